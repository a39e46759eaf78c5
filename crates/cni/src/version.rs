//! CNI versions, and the verbs that each one has.
//!
//! Versions are negotiated as exact strings: `"1.0"` is not `"1.0.0"`. Only where the specification compares versions
//! (for example in `cniVersions`, or whether CHECK exists) are they parsed as numbers, by [`Triple`].
//!
//! Source: SPEC.md of every tag v0.1.0 … v1.1.0; libcni `pkg/version/plugin.go` (`ParseVersion`).

use std::fmt;

/// Released CNI version. Later versions compare as greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Version {
    /// 0.1.0: `ip4`/`ip6` results, ADD and DEL.
    V0_1_0,
    /// 0.2.0: VERSION, `args`.
    V0_2_0,
    /// 0.3.0: interfaces, several addresses, configuration lists.
    V0_3_0,
    /// 0.3.1: the text of 0.3.0 with `ip` corrected to `ips`.
    V0_3_1,
    /// 0.4.0: CHECK, prevResult on DEL.
    V0_4_0,
    /// 1.0.0: lists only, no `version` in `ips`.
    V1_0_0,
    /// 1.1.0: GC, STATUS, `cniVersions`, more result fields.
    V1_1_0,
}

impl Version {
    /// All versions, oldest first.
    pub const ALL: &'static [Version] = &[
        Version::V0_1_0,
        Version::V0_2_0,
        Version::V0_3_0,
        Version::V0_3_1,
        Version::V0_4_0,
        Version::V1_0_0,
        Version::V1_1_0,
    ];

    /// Newest supported version.
    pub const LATEST: Version = Version::V1_1_0;

    /// Version that a missing `cniVersion` stands for (libcni's `DecodeVersion`; the upgrade notes say 0.2.0, but no
    /// code does).
    pub const ABSENT: Version = Version::V0_1_0;

    /// Returns the string used in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::V0_1_0 => "0.1.0",
            Version::V0_2_0 => "0.2.0",
            Version::V0_3_0 => "0.3.0",
            Version::V0_3_1 => "0.3.1",
            Version::V0_4_0 => "0.4.0",
            Version::V1_0_0 => "1.0.0",
            Version::V1_1_0 => "1.1.0",
        }
    }

    /// Returns the version with exactly this string; the empty string means [`Version::ABSENT`].
    pub fn from_wire(text: &str) -> Option<Version> {
        if text.is_empty() {
            return Some(Version::ABSENT);
        }
        Version::ALL.iter().copied().find(|v| v.as_str() == text)
    }

    /// Returns the version as numbers.
    pub fn triple(self) -> Triple {
        match self {
            Version::V0_1_0 => Triple(0, 1, 0),
            Version::V0_2_0 => Triple(0, 2, 0),
            Version::V0_3_0 => Triple(0, 3, 0),
            Version::V0_3_1 => Triple(0, 3, 1),
            Version::V0_4_0 => Triple(0, 4, 0),
            Version::V1_0_0 => Triple(1, 0, 0),
            Version::V1_1_0 => Triple(1, 1, 0),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Version as numbers, which can also be compared with versions that this release does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Triple(pub u32, pub u32, pub u32);

impl Triple {
    /// Parses one to three numbers separated by dots; missing ones are 0, and the empty string is 0.1.0.
    pub fn parse(text: &str) -> Option<Triple> {
        if text.is_empty() {
            return Some(Version::ABSENT.triple());
        }
        let mut parts = [0u32; 3];
        for (index, part) in text.split('.').enumerate() {
            if part.is_empty() || !part.bytes().all(|b| b.is_ascii_digit()) {
                return None;
            }
            *parts.get_mut(index)? = part.parse().ok()?;
        }
        Some(Triple(parts[0], parts[1], parts[2]))
    }
}

/// CNI command: the value of `CNI_COMMAND`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Attaches a container to a network.
    Add,
    /// Detaches it; must never fail because an object no longer exists.
    Del,
    /// Checks that the attachment is still as the last ADD left it.
    Check,
    /// Removes objects that belong to no valid attachment.
    Gc,
    /// Checks whether an ADD would succeed now.
    Status,
    /// Reports the supported versions.
    Version,
}

impl Verb {
    /// All verbs, in the order in which the specification introduced them.
    pub const ALL: &'static [Verb] =
        &[Verb::Add, Verb::Del, Verb::Version, Verb::Check, Verb::Gc, Verb::Status];

    /// Returns the value for `CNI_COMMAND`.
    pub fn as_str(self) -> &'static str {
        match self {
            Verb::Add => "ADD",
            Verb::Del => "DEL",
            Verb::Check => "CHECK",
            Verb::Gc => "GC",
            Verb::Status => "STATUS",
            Verb::Version => "VERSION",
        }
    }

    /// Returns the verb with exactly this name; names are case-sensitive.
    pub fn from_wire(text: &str) -> Option<Verb> {
        Verb::ALL.iter().copied().find(|v| v.as_str() == text)
    }

    /// Returns the first version whose configurations may be used with this verb.
    pub fn since(self) -> Version {
        match self {
            Verb::Add | Verb::Del => Version::V0_1_0,
            Verb::Version => Version::V0_2_0,
            Verb::Check => Version::V0_4_0,
            Verb::Gc | Verb::Status => Version::V1_1_0,
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Requirements: S19
    #[test]
    fn version_is_named_by_its_exact_string() {
        for version in Version::ALL {
            assert_eq!(Version::from_wire(version.as_str()), Some(*version));
            assert_eq!(Triple::parse(version.as_str()), Some(version.triple()));
        }
        for text in ["1", "1.0", "1.0.0 ", "v1.0.0", "9.9.9", "01.0.0"] {
            assert_eq!(Version::from_wire(text), None, "{text:?}");
        }
    }

    // Requirements: trap 4
    #[test]
    fn version_missing_is_0_1_0() {
        assert_eq!(Version::from_wire(""), Some(Version::V0_1_0));
        assert_eq!(Triple::parse(""), Some(Triple(0, 1, 0)));
    }

    #[test]
    fn version_has_up_to_three_numbers() {
        assert_eq!(Triple::parse("1"), Some(Triple(1, 0, 0)));
        assert_eq!(Triple::parse("1.2"), Some(Triple(1, 2, 0)));
        for text in ["1.2.3.4", "a", "1..0", "1.", "-1", "1.0.0-rc1", "4294967296"] {
            assert_eq!(Triple::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn verb_is_case_sensitive() {
        assert_eq!(Verb::from_wire("ADD"), Some(Verb::Add));
        assert_eq!(Verb::from_wire("add"), None);
        assert_eq!(Verb::from_wire(""), None);
    }
}
