//! Identification of a build of the programs: version, commit, date, architecture, features.
//!
//! `make dist` passes the commit and its date to the compiler in `WEFT_COMMIT` and `WEFT_DATE`. Cargo compiles this crate
//! again if one of them changes. Any other build has neither, so a new commit rebuilds nothing during development, and a
//! source archive without git can be built.
//!
//! - The date is that of the commit, not of the build: two builds of a commit are equal.
//! - Everything is a constant: a plugin call that prints no version does nothing for it.

#![forbid(unsafe_code)]

use std::fmt;

use serde::Serialize;

/// Text in place of a commit or date that the build was not given.
pub const UNKNOWN: &str = "unknown";

/// Version of the release.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Commit that was built: 40 digits, with `-dirty` if files were changed.
pub const COMMIT: &str = match option_env!("WEFT_COMMIT") {
    Some(commit) => commit,
    None => UNKNOWN,
};

/// Date of the commit, in UTC, as RFC 3339 writes it.
pub const DATE: &str = match option_env!("WEFT_DATE") {
    Some(date) => date,
    None => UNKNOWN,
};

/// Identification of one program, for people as text and for other programs as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BuildInfo<'a> {
    /// Name of the program.
    pub program: &'a str,
    /// Version of the release.
    pub version: &'a str,
    /// Commit, or [`UNKNOWN`].
    pub commit: &'a str,
    /// Date of the commit, or [`UNKNOWN`].
    pub date: &'a str,
    /// Architecture of the processor, as the kernel names it.
    pub architecture: &'a str,
    /// Features of the program: plugins of `weft-cni`, long-running roles of `weft`.
    pub features: Vec<&'a str>,
}

impl<'a> BuildInfo<'a> {
    /// Returns the identification of this build of a program.
    pub fn of(program: &'a str, features: Vec<&'a str>) -> BuildInfo<'a> {
        let architecture = std::env::consts::ARCH;
        BuildInfo { program, version: VERSION, commit: COMMIT, date: DATE, architecture, features }
    }
}

impl fmt::Display for BuildInfo<'_> {
    /// Writes five lines, the first of which is that of `--version`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {}", self.program, self.version)?;
        writeln!(f, "commit:       {}", self.commit)?;
        writeln!(f, "date:         {}", self.date)?;
        writeln!(f, "architecture: {}", self.architecture)?;
        writeln!(f, "features:     {}", self.features.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_text_and_json_have_the_same_facts() {
        let build = BuildInfo {
            program: "weft",
            version: "1.2.3",
            commit: "abc",
            date: "2026-01-02T03:04:05Z",
            architecture: "aarch64",
            features: vec!["agent", "executor"],
        };
        let json = serde_json::to_value(&build).unwrap();
        let text = build.to_string();
        assert!(text.starts_with("weft 1.2.3\n"), "{text}");
        for fact in ["commit", "date", "architecture"] {
            let value = json[fact].as_str().unwrap();
            assert!(
                text.lines().any(|line| line.starts_with(fact) && line.ends_with(value)),
                "{fact}: {text}"
            );
        }
        assert_eq!(json["features"], serde_json::json!(["agent", "executor"]));
        assert!(text.ends_with("features:     agent executor\n"), "{text}");
    }
}
