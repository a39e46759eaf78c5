//! Tests of the tree itself: the arrows between crates, import cycles, files, lanes and documents.
//!
//! Rules that clippy can check are in the root manifest and in `clippy.toml`, not here.

#![cfg(test)]

mod console_blocks;
mod crates;
mod cycles;
mod documents;
mod files;
mod lanes;
mod language;
mod modules;
mod tokens;
mod tree;
