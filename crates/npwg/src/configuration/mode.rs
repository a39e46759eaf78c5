//! Options whose values are words of a fixed list.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::nearest::hint;

/// Error of a word that an option does not have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("must be one of {}{}{hint}", known.join(", "), if hint.is_empty() { "" } else { ": " })]
pub(super) struct UnknownWord {
    /// Words of the option.
    known: Vec<&'static str>,
    /// Suggestion of the nearest word; empty if there is none.
    hint: String,
}

/// Option whose values are words.
pub(super) trait Mode: Sized + Copy + 'static {
    /// All words and values.
    const WORDS: &'static [(&'static str, Self)];

    /// Reads a word; the error lists all words.
    fn parse(text: &str) -> Result<Self, UnknownWord> {
        if let Some((_, mode)) = Self::WORDS.iter().find(|(word, _)| *word == text) {
            return Ok(*mode);
        }
        let known: Vec<&'static str> = Self::WORDS.iter().map(|(word, _)| *word).collect();
        let hint = hint(text, &known);
        Err(UnknownWord { known, hint })
    }
}

/// Name by which the meta-plugin was called (`argv[0]`); some defaults depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Flavour {
    /// `weft`: the defaults of the specification.
    Weft,
    /// `multus`: the defaults of Multus; unknown keys are accepted.
    Multus,
}

/// Consequence of an invalid annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidAnnotation {
    /// The annotation is ignored with a warning, as the specification says.
    Ignore,
    /// The pod fails, as with Multus.
    Fail,
}

impl Mode for InvalidAnnotation {
    const WORDS: &'static [(&'static str, Self)] =
        &[("ignore", InvalidAnnotation::Ignore), ("fail", InvalidAnnotation::Fail)];
}

/// Enforcement of requested `ips` and `mac`. Every policy passes the requests to the plugins in both forms.
///
/// Requests from later specification versions (`portMappings`, `bandwidth`, `infiniband-guid`) need a declared
/// capability under every policy but `permissive`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpRequestPolicy {
    /// As in v1.1 and later: the plan fails unless a plugin declares the capability. The result is not examined.
    Capability,
    /// As in v1.0, and the default: an attachment whose result does not show the requested values fails and is undone. A
    /// missing capability is a warning (C1).
    Result,
    /// Both checks: the capability before the attachment, the result after it.
    Both,
    /// Neither check, as in Multus. A missing capability is a warning.
    Permissive,
}

impl IpRequestPolicy {
    /// Whether the plan fails if no plugin declares the capability.
    pub fn requires_capability(self) -> bool {
        matches!(self, IpRequestPolicy::Capability | IpRequestPolicy::Both)
    }

    /// Whether the result is examined.
    pub fn requires_result(self) -> bool {
        matches!(self, IpRequestPolicy::Result | IpRequestPolicy::Both)
    }
}

impl Mode for IpRequestPolicy {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("capability", IpRequestPolicy::Capability),
        ("result", IpRequestPolicy::Result),
        ("both", IpRequestPolicy::Both),
        ("permissive", IpRequestPolicy::Permissive),
    ];
}

/// Place of a pod's Neutron ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VifStore {
    /// An annotation of the pod.
    Annotation,
    /// A KuryrPort of the pod's name.
    KuryrPort,
}

impl Mode for VifStore {
    const WORDS: &'static [(&'static str, Self)] =
        &[("annotation", VifStore::Annotation), ("kuryrport", VifStore::KuryrPort)];
}

/// When a plugin runs in process instead of as a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Builtin {
    /// If it is built in and no other plugin with this name comes earlier in `CNI_PATH`.
    Auto,
    /// If it is built in.
    Always,
    /// Never.
    Never,
}

impl Mode for Builtin {
    const WORDS: &'static [(&'static str, Self)] =
        &[("auto", Builtin::Auto), ("always", Builtin::Always), ("never", Builtin::Never)];
}

/// Log levels of Multus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Errors that end the process.
    Panic,
    /// Failures.
    Error,
    /// Failures and actions.
    Verbose,
    /// All, with the reasons of decisions.
    Debug,
}

impl Mode for LogLevel {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("panic", LogLevel::Panic),
        ("error", LogLevel::Error),
        ("verbose", LogLevel::Verbose),
        ("debug", LogLevel::Debug),
    ];
}
