//! `weft-cni`: one static binary that is every plugin, by the name it is called as.

use std::process::ExitCode;

/// musl's allocator maps and unmaps memory for every few kilobytes; this one asks for 64 KiB at a time.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    weft_cni::run()
}
