//! Tests of the source tree: dependencies between crates, import cycles, files, lanes, documents and language.
//!
//! Rules that clippy can check are in the root manifest and in `clippy.toml`, not here.

#![cfg(test)]

mod chart;
mod console_blocks;
mod crates;
mod cycles;
mod documents;
mod files;
mod interrupted_run;
mod lanes;
mod language;
mod modules;
mod programs;
mod site;
mod tokens;
mod tree;
