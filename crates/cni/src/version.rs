//! The versions of the CNI protocol, and which verb exists since when.
//!
//! A version is negotiated by exact text: `"1.0"` is not `"1.0.0"`. Only where the specification
//! *compares* versions (`cniVersions`, the CHECK gate) is the text read as numbers, by [`Triple`].
//!
//! Source: SPEC.md of every tag v0.1.0 … v1.1.0; libcni `pkg/version/plugin.go` (`ParseVersion`).

use std::fmt;

/// One released version of the protocol. Ordered: later is greater.
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
    /// Every version, oldest first.
    pub const ALL: &'static [Version] = &[
        Version::V0_1_0,
        Version::V0_2_0,
        Version::V0_3_0,
        Version::V0_3_1,
        Version::V0_4_0,
        Version::V1_0_0,
        Version::V1_1_0,
    ];

    /// The newest version this crate speaks.
    pub const LATEST: Version = Version::V1_1_0;

    /// What a missing `cniVersion` means (libcni's `DecodeVersion`; the upgrade notes say 0.2.0, no code does).
    pub const ABSENT: Version = Version::V0_1_0;

    /// The text used on the wire.
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

    /// The version with exactly this text; the empty text is [`Version::ABSENT`].
    pub fn from_wire(text: &str) -> Option<Version> {
        if text.is_empty() {
            return Some(Version::ABSENT);
        }
        Version::ALL.iter().copied().find(|v| v.as_str() == text)
    }

    /// This version as numbers.
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

/// A version as numbers, for comparing texts that may name versions we do not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Triple(pub u32, pub u32, pub u32);

impl Triple {
    /// Reads one to three dotted numbers; missing parts are 0 and the empty text is 0.1.0.
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

/// A command of the protocol: the value of `CNI_COMMAND`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Attach a container to a network.
    Add,
    /// Detach it; never fails for what is already gone.
    Del,
    /// Is the attachment still as the last ADD left it?
    Check,
    /// Drop whatever belongs to no valid attachment.
    Gc,
    /// Could an ADD be served now?
    Status,
    /// Which versions does the plugin speak?
    Version,
}

impl Verb {
    /// Every verb, in the order the specification introduced them.
    pub const ALL: &'static [Verb] =
        &[Verb::Add, Verb::Del, Verb::Version, Verb::Check, Verb::Gc, Verb::Status];

    /// The value of `CNI_COMMAND`.
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

    /// The verb of this exact text; the protocol is case-sensitive here.
    pub fn from_wire(text: &str) -> Option<Verb> {
        Verb::ALL.iter().copied().find(|v| v.as_str() == text)
    }

    /// The first version whose configurations may be used with this verb.
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
    fn only_the_exact_text_names_a_version() {
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
    fn a_missing_version_is_0_1_0() {
        assert_eq!(Version::from_wire(""), Some(Version::V0_1_0));
        assert_eq!(Triple::parse(""), Some(Triple(0, 1, 0)));
    }

    #[test]
    fn a_version_reads_as_up_to_three_numbers() {
        assert_eq!(Triple::parse("1"), Some(Triple(1, 0, 0)));
        assert_eq!(Triple::parse("1.2"), Some(Triple(1, 2, 0)));
        for text in ["1.2.3.4", "a", "1..0", "1.", "-1", "1.0.0-rc1", "4294967296"] {
            assert_eq!(Triple::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_verb_is_case_sensitive() {
        assert_eq!(Verb::from_wire("ADD"), Some(Verb::Add));
        assert_eq!(Verb::from_wire("add"), None);
        assert_eq!(Verb::from_wire(""), None);
    }
}
