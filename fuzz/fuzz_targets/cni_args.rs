//! `CNI_ARGS` from anywhere: neither reader panics, and the lenient one finds what the strict one finds.

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
