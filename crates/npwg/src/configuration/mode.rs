//! The settings that are one of a few words.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::nearest::hint;

/// Error of a word that a setting does not have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("must be one of {}{}{hint}", known.join(", "), if hint.is_empty() { "" } else { ": " })]
pub(super) struct UnknownWord {
    /// Words that the setting has.
    known: Vec<&'static str>,
    /// Suggestion of the nearest word; empty if there is none.
    hint: String,
}

/// A setting whose values are words.
pub(super) trait Mode: Sized + Copy + 'static {
    /// Every word and what it means.
    const WORDS: &'static [(&'static str, Self)];

    /// Reads a word; the error lists them all.
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
    /// `weft`: the standard's defaults.
    Weft,
    /// `multus`: Multus's defaults, and its leniency with unknown keys.
    Multus,
}

/// What follows from an invalid annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidAnnotation {
    /// It is ignored, as the standard says; there is always a warning.
    Ignore,
    /// The pod fails, as with Multus.
    Fail,
}

impl Mode for InvalidAnnotation {
    const WORDS: &'static [(&'static str, Self)] =
        &[("ignore", InvalidAnnotation::Ignore), ("fail", InvalidAnnotation::Fail)];
}

/// How requested `ips` and `mac` are enforced. Both transports are always used; this is about refusing.
///
/// The requests that only later versions of the standard know (`portMappings`, `bandwidth`,
/// `infiniband-guid`) need a declared capability under every policy but `permissive`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpRequestPolicy {
    /// v1.1 and later: some plugin must declare the capability, or nothing is started. The result is not examined.
    Capability,
    /// v1.0, and the default: the result must show what was asked for, or the attachment fails and is
    /// undone. A missing capability is a warning (C1).
    Result,
    /// Both of these: no attachment starts without the capability, none stands without the result.
    Both,
    /// Neither; what Multus does. A missing capability is a warning.
    Permissive,
}

impl IpRequestPolicy {
    /// Is an attachment refused when no plugin declares the capability?
    pub fn demands_capability(self) -> bool {
        matches!(self, IpRequestPolicy::Capability | IpRequestPolicy::Both)
    }

    /// Is the result examined?
    pub fn demands_result(self) -> bool {
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

/// Where a pod's Neutron ports are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VifStore {
    /// An annotation of the pod.
    Annotation,
    /// A KuryrPort beside it.
    KuryrPort,
}

impl Mode for VifStore {
    const WORDS: &'static [(&'static str, Self)] =
        &[("annotation", VifStore::Annotation), ("kuryrport", VifStore::KuryrPort)];
}

/// When a plugin is called in process rather than exec'ed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Builtin {
    /// If it is built in and no foreign plugin of its name stands earlier in `CNI_PATH`.
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

/// How much to log: Multus's levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Only what ends the process.
    Panic,
    /// Failures.
    Error,
    /// And what was done.
    Verbose,
    /// And why.
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
