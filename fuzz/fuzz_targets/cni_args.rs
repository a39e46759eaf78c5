//! Fuzz target for `CNI_ARGS`: neither parser may panic, and the lenient one must return the same pairs as the strict
//! one.

#![no_main]

use cni::args::Args;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let scanned = Args::scan(text);
    if let Ok(parsed) = Args::parse(text) {
        assert_eq!(parsed, scanned);
        let _ = parsed.only(&["IP"]);
    }
});
