//! Tells which build of a program this is: version, commit, date, architecture and features.
//!
//! `make dist` passes the commit and the commit date to the compiler in `WEFT_COMMIT` and `WEFT_DATE`, and Cargo
//! recompiles this crate when one of them changes. Other builds set neither variable. A new commit therefore rebuilds
//! nothing during development, and a source archive can be built without git.
//!
//! - The date is the commit date and not the build date, so that two builds from one commit are identical.
//! - Everything is a constant, so a plugin call that prints no version pays nothing for it.

#![forbid(unsafe_code)]

use std::fmt;

use serde::Serialize;

/// Placeholder when the build was given no commit or date, for example after a plain `cargo build`.
pub const UNKNOWN: &str = "unknown";

/// Release version, for example `0.1.0`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Commit that was built: 40 hexadecimal digits, followed by `-dirty` if the work tree had uncommitted changes.
pub const COMMIT: &str = match option_env!("WEFT_COMMIT") {
    Some(commit) => commit,
    None => UNKNOWN,
};

/// Commit date in UTC, in RFC 3339 format.
pub const DATE: &str = match option_env!("WEFT_DATE") {
    Some(date) => date,
    None => UNKNOWN,
};

/// Build identification that `--version` prints: text for people, JSON for scripts and support bundles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BuildInfo<'a> {
    /// Program name, for example `weft-cni`.
    pub program: &'a str,
    /// Release version.
    pub version: &'a str,
    /// Commit, or [`UNKNOWN`].
    pub commit: &'a str,
    /// Commit date, or [`UNKNOWN`].
    pub date: &'a str,
    /// Processor architecture in the kernel's spelling, for example `x86_64`.
    pub architecture: &'a str,
    /// Compiled-in features: the plugins in `weft-cni`, the long-running roles in `weft`.
    pub features: Vec<&'a str>,
}

impl<'a> BuildInfo<'a> {
    /// Returns the identification for `program`; the rest is the same for every program in this build.
    pub fn of(program: &'a str, features: Vec<&'a str>) -> BuildInfo<'a> {
        let architecture = std::env::consts::ARCH;
        BuildInfo { program, version: VERSION, commit: COMMIT, date: DATE, architecture, features }
    }
}

impl fmt::Display for BuildInfo<'_> {
    /// Writes five lines; the first one is also the whole output of `--version`.
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
