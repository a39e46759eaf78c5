//! Format of the history: one record for each call and task that `weft-cni` executed on this node.
//!
//! ```text
//!   cniDir/history/failures.jsonl     newest failures, then failures.1.jsonl with older ones
//!   cniDir/history/successes.jsonl    newest successes, then successes.1.jsonl
//! ```
//!
//! - A record is one line of JSON of at most [`RECORD_MAX`] bytes: a writer appends it with one write. A longer record
//!   loses the stages first, then networks, then the end of the error.
//! - A file has at most [`FILE_MAX`] bytes, so a node keeps a bounded number of records. Failures and successes are kept
//!   apart: many successes remove no failure.
//! - Every text comes from a pod, a definition or a plugin. It is shortened when it is written, and contains no control
//!   characters when it is read.
//! - The history decides nothing. A line that cannot be read is skipped.

use cni::Error;
use cni::text::plain;
use npwg::plan::PodIdentity;
use serde::{Deserialize, Serialize};

/// History directory below `cniDir`.
pub const DIRECTORY: &str = "history";
/// File with the newest failures.
pub const FAILURES: &str = "failures.jsonl";
/// File with the newest successes.
pub const SUCCESSES: &str = "successes.jsonl";
/// Maximum file size, in bytes.
pub const FILE_MAX: u64 = 1 << 20;
/// Maximum record size, in bytes.
pub const RECORD_MAX: usize = 4096;
/// Maximum length for a name, in bytes.
const NAME_MAX: usize = 253;
/// Maximum length for an error's message and for its details, in bytes.
const MESSAGE_MAX: usize = 1500;
const DETAILS_MAX: usize = 500;
/// Maximum number of networks and stages.
const NETWORKS_MAX: usize = 16;
const STAGES_MAX: usize = 24;

/// Record about a call or task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Record {
    /// When it started, in microseconds since 1970.
    pub time: u64,
    /// Duration in microseconds.
    pub microseconds: u64,
    /// `ADD`, `DEL`, `CHECK`, `GC`; for a task `take-down`, `check`, `change`, `publish`, `update-policy` or
    /// `verify-policy`.
    pub verb: String,
    /// Pod, as far as it is known.
    pub pod: PodIdentity,
    /// Sandbox that it was for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub container: String,
    /// Interface that the runtime named.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ifname: String,
    /// Networks in the plan.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<NetworkRecord>,
    /// Stages, in the order in which they started.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<Stage>,
    /// Stage that failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub failed_stage: String,
    /// Error; absent after a success.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Error>,
    /// OpenTelemetry trace id, if the runtime or the agent traces the call.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub trace: String,
}

/// Network in a recorded plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NetworkRecord {
    /// Name, as the network-status has it.
    pub network: String,
    /// Interface in the pod.
    pub interface: String,
    /// Plugin that was called first; empty if none was.
    pub plugin: String,
}

/// Stage in a recorded call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Stage {
    /// `lock`, `plan`, `journal`, `verify`, or plugin, verb and interface: `bridge ADD net1`.
    pub name: String,
    /// When it started, in microseconds after the call.
    pub began: u64,
    /// Duration in microseconds.
    pub microseconds: u64,
    /// Number of plugins above this one in the call chain.
    #[serde(skip_serializing_if = "is_zero")]
    pub depth: usize,
}

fn is_zero(depth: &usize) -> bool {
    *depth == 0
}

impl Record {
    /// Returns the file that this record belongs in.
    pub fn file(&self) -> &'static str {
        if self.error.is_some() { FAILURES } else { SUCCESSES }
    }

    /// Returns the line to write for this record, at most [`RECORD_MAX`] bytes including the line feed.
    pub fn line(mut self) -> Vec<u8> {
        self.shorten();
        let mut line = self.encoded();
        for networks in [NETWORKS_MAX, 4, 0] {
            if line.len() <= RECORD_MAX {
                return line;
            }
            self.stages.clear();
            self.networks.truncate(networks);
            line = self.encoded();
        }
        if let Some(error) = &mut self.error {
            // Escapes make a text up to six times as long.
            shorten(&mut error.msg, MESSAGE_MAX / 6);
            error.details.clear();
        }
        if line.len() > RECORD_MAX {
            line = self.encoded();
        }
        if line.len() > RECORD_MAX { Vec::new() } else { line }
    }

    fn encoded(&self) -> Vec<u8> {
        // A record has a JSON form.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }

    fn shorten(&mut self) {
        self.networks.truncate(NETWORKS_MAX);
        self.stages.truncate(STAGES_MAX);
        self.texts(|text| shorten(text, NAME_MAX));
        if let Some(Error { cni_version, msg, details, .. }) = &mut self.error {
            *cni_version = None;
            shorten(msg, MESSAGE_MAX);
            shorten(details, DETAILS_MAX);
        }
    }

    /// Reads a line; `None` if it is not a record.
    pub fn read(line: &[u8]) -> Option<Record> {
        if line.len() > RECORD_MAX {
            return None;
        }
        let mut record: Record = serde_json::from_slice(line).ok()?;
        if record.verb.is_empty() {
            return None;
        }
        record.texts(|text| *text = plain(text));
        if let Some(Error { msg, details, .. }) = &mut record.error {
            (*msg, *details) = (plain(msg), plain(details));
        }
        Some(record)
    }

    /// Changes every text except those in the error.
    fn texts(&mut self, change: impl Fn(&mut String)) {
        let Record { time: _, microseconds: _, verb, pod, container, ifname, .. } = self;
        let PodIdentity { namespace, name, uid } = pod;
        [verb, namespace, name, uid, container, ifname].into_iter().for_each(&change);
        let Record { networks, stages, failed_stage, error: _, trace, .. } = self;
        [failed_stage, trace].into_iter().for_each(&change);
        for NetworkRecord { network, interface, plugin } in networks {
            [network, interface, plugin].into_iter().for_each(&change);
        }
        for Stage { name, .. } in stages {
            change(name);
        }
    }
}

fn shorten(text: &mut String, length: usize) {
    text.truncate(text.floor_char_boundary(length));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(text: &str, count: usize) -> Record {
        let network = || NetworkRecord { network: text.into(), interface: text.into(), plugin: text.into() };
        Record {
            time: 1,
            verb: "ADD".into(),
            pod: PodIdentity { namespace: text.into(), name: text.into(), uid: text.into() },
            container: text.into(),
            networks: (0..count).map(|_| network()).collect(),
            stages: (0..count).map(|_| Stage { name: text.into(), ..Stage::default() }).collect(),
            error: Some(Error::new(7, text).details(text)),
            ..Record::default()
        }
    }

    #[test]
    fn history_record_is_one_line_of_bounded_length() {
        let small = record("net-a", 3);
        let line = small.clone().line();
        assert_eq!(Record::read(&line), Some(small));
        for hostile in ["x".repeat(100_000), "\u{1b}\n\"\\".repeat(10_000), "\u{202e}ü".repeat(10_000)] {
            let line = record(&hostile, 200).line();
            assert!(line.len() <= RECORD_MAX, "{}", line.len());
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1, "one line");
            let read = Record::read(&line).unwrap();
            assert!(read.error.is_some_and(|error| error.code == 7 && error.msg.len() > 100));
        }
    }

    #[test]
    fn history_record_is_read_without_control_characters() {
        let read = Record::read(&record("a\u{1b}[2J\u{9b}\u{202e}b\n", 2).line()).unwrap();
        let text = format!("{read:?}");
        assert!(!text.contains("\\u{") && read.container == "a [2J  b ", "{text}");
        for line in [&b"{\"time\":"[..], b"[]", b"{}", b"7", b""] {
            assert_eq!(Record::read(line), None);
        }
        assert_eq!(Record::read(&[b' '; RECORD_MAX + 1]), None);
    }
}
