//! Fuzz target for manifests: parsing and linting must never panic, and every position and edit must be inside the
//! text.

#![no_main]

use libfuzzer_sys::fuzz_target;
use manifest::Manifest;
use manifest::lint::{self, Knowledge};

fuzz_target!(|text: &str| {
    let manifest = Manifest::parse(text);
    assert!(manifest.problems.iter().all(|problem| problem.at <= text.len()));
    for finding in lint::manifest(&manifest, &Knowledge::default()) {
        assert!(finding.position.line >= 1 && finding.position.column >= 1);
        if let Some(edit) = finding.fix {
            assert!(edit.span.start <= edit.span.end && edit.span.end <= text.len());
            Manifest::parse(&lint::apply(text, &[edit]));
        }
    }
});
