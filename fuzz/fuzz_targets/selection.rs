//! Fuzz target for network annotations: parsing must never panic, and every error must have a position in the text.

#![no_main]

use libfuzzer_sys::fuzz_target;
use manifest::position;
use npwg::selection::{Annotation, Reading};

fuzz_target!(|text: &str| {
    for annotation in [Annotation::Networks, Annotation::DefaultNetwork] {
        let reading = Reading::of(annotation, text, "home");
        for refusal in &reading.refusals {
            let fault = refusal.fault();
            assert!(position::offset(text, &fault.path) <= text.len());
            assert!(!fault.to_string().contains('\n'), "a message is one line");
        }
        let valid = reading.refusals.is_empty();
        assert_eq!(valid, reading.settle().is_ok());
    }
});
