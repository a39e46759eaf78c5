//! `weft-cni`: one static binary that contains every plugin; the file name selects the plugin.

use std::process::ExitCode;

/// musl's allocator maps and unmaps memory for every few kilobytes; this one requests 64 KiB at a time.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    weft_cni::run()
}
