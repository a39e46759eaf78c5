//! Gives the program a build id that begins with its name: copies of `weft-cni` recognize each other by it, whatever their
//! version, directory or file name is (`src/program_file.rs`).

use std::io::{self, Write};

/// Hexadecimal digits in a build id, as long as a linker's own.
const DIGITS: usize = 40;

fn main() -> io::Result<()> {
    let name: String = b"weft-cni".iter().map(|byte| format!("{byte:02x}")).collect();
    let commit = std::env::var("WEFT_COMMIT").unwrap_or_default();
    let commit: String = commit.chars().filter(char::is_ascii_hexdigit).collect();
    let id: String = name.chars().chain(commit.chars()).chain(std::iter::repeat('0')).take(DIGITS).collect();
    let mut out = io::stdout();
    writeln!(out, "cargo::rerun-if-changed=build.rs")?;
    writeln!(out, "cargo::rerun-if-env-changed=WEFT_COMMIT")?;
    writeln!(out, "cargo::rustc-link-arg-bin=weft-cni=-Wl,--build-id=0x{id}")
}
