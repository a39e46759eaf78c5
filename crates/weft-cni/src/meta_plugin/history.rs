//! History writer: appends a record for each call and task to a bounded file on the node.
//!
//! - A record is appended with one write, so records from concurrent calls are never mixed. Nothing is
//!   synchronized to disk.
//! - A file that is full is renamed, and replaces the older one. A lock lets one writer rename it.
//! - The history never fails a call: a full disk, a directory that cannot be written or a file that is not a
//!   regular one loses records.
//!
//! Source: [`rpc::history`]; open(2), `O_APPEND`.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use cni::Error;
use npwg::plan::{Delegate, PodIdentity};
use rpc::history::{DIRECTORY, FILE_MAX, NetworkRecord, Record, Stage};
use rustix::fs::{FlockOperation, OFlags};

use super::journal::Journal;
use super::microseconds;
use crate::plugin_invoker::Run;

/// Environment variable with the runtime's trace (W3C Trace Context).
const TRACE_PARENT: &str = "TRACEPARENT";
/// Hexadecimal digits in a trace id.
const TRACE_ID: usize = 32;
/// Maximum length for a `traceparent`: version 00 has 55 bytes, later versions may append fields.
const TRACE_PARENT_MAX: usize = 128;
/// Verbs and tasks whose successes are recorded, too.
const WITH_SUCCESSES: [&str; 4] = ["ADD", "DEL", TAKE_DOWN, CHANGE];
/// Task that takes a sandbox down.
pub(super) const TAKE_DOWN: &str = "take-down";
/// Task that changes a running pod's networks.
pub(super) const CHANGE: &str = "change";
/// Verbs for tasks about network policies, whose successes are not recorded: they are frequent.
pub(super) const UPDATE_POLICY: &str = "update-policy";
pub(super) const VERIFY_POLICY: &str = "verify-policy";

/// Recorder for one call or task.
#[derive(Debug)]
pub(super) struct CallRecorder {
    started: Instant,
    record: Record,
    /// Directory `cniDir`, once it is known.
    directory: Option<PathBuf>,
    /// When the present stage started.
    stage: Option<(Phase, Instant)>,
    runs: Vec<Run>,
}

/// Present stage.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Named(&'static str),
    /// Plugins run, between a part before the first one and a part after the last one.
    Plugins {
        before: &'static str,
        after: &'static str,
    },
}

impl CallRecorder {
    /// Begins a record.
    pub(super) fn begin(verb: &str, pod: PodIdentity) -> CallRecorder {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let trace = trace_parent().and_then(|value| trace_id(&value)).unwrap_or_default();
        let record =
            Record { time: microseconds(now), verb: verb.to_owned(), pod, trace, ..Record::default() };
        CallRecorder { started: Instant::now(), record, directory: None, stage: None, runs: Vec::new() }
    }

    /// Sets container id and interface.
    pub(super) fn sandbox(&mut self, container: &impl ToString, ifname: &impl ToString) {
        self.record.container = container.to_string();
        self.record.ifname = ifname.to_string();
    }

    /// Sets the pod, if the runtime did not name it.
    pub(super) fn pod(&mut self, pod: &PodIdentity) {
        if self.record.pod.name.is_empty() {
            self.record.pod = pod.clone();
        }
    }

    /// Sets the trace id under which the agent exports. It is the runtime's, if there is one.
    pub(super) fn trace(&mut self, id: &str) {
        if is_trace_id(id) {
            self.record.trace = id.to_ascii_lowercase();
        }
    }

    /// Sets the directory below which the journal is.
    pub(super) fn journal(&mut self, journal: &Journal) {
        self.directory = journal.directory().parent().map(Path::to_owned);
    }

    /// Ends the present stage and begins another one.
    pub(super) fn stage(&mut self, name: &'static str) {
        self.end_stage();
        self.stage = Some((Phase::Named(name), Instant::now()));
    }

    /// Begins the stage that attaches a plan's networks.
    pub(super) fn attach(&mut self, delegates: &[Delegate]) {
        self.end_stage();
        self.stage = Some((Phase::Plugins { before: "journal", after: "verify" }, Instant::now()));
        self.networks(delegates);
    }

    /// Begins the stage that detaches networks.
    pub(super) fn detach(&mut self, delegates: &[Delegate]) {
        self.end_stage();
        self.stage = Some((Phase::Plugins { before: "links", after: "journal" }, Instant::now()));
        self.networks(delegates);
    }

    /// Sets the networks.
    pub(super) fn networks(&mut self, delegates: &[Delegate]) {
        let networks = delegates.iter().map(|delegate| NetworkRecord {
            network: delegate.network.clone(),
            interface: delegate.ifname.to_string(),
            plugin: String::new(),
        });
        self.record.networks = networks.collect();
    }

    /// Sets the plugin calls. They also tell each network's plugin: parsing the configuration would take longer.
    pub(super) fn runs(&mut self, runs: Vec<Run>) {
        for network in &mut self.record.networks {
            let first = runs.iter().find(|run| run.depth == 0 && run.ifname == network.interface);
            network.plugin = first.map(|run| run.plugin.to_string()).unwrap_or_default();
        }
        self.runs = runs;
    }

    /// Ends the record and appends it to the history. `directory` returns `cniDir` if the call has not got that far.
    pub(super) fn finish(mut self, error: Option<&Error>, directory: impl FnOnce() -> PathBuf) {
        let verb = self.record.verb.as_str();
        // A task that found nothing to do has no networks.
        let is_idle = [TAKE_DOWN, CHANGE].contains(&verb) && self.record.networks.is_empty();
        if error.is_none() && (is_idle || !WITH_SUCCESSES.contains(&verb)) {
            return;
        }
        if error.is_some() {
            self.record.failed_stage = self.failed_stage();
        }
        self.end_stage();
        self.record.error = error.cloned();
        self.record.microseconds = microseconds(self.started.elapsed());
        let directory = self.directory.take().unwrap_or_else(directory);
        let file = directory.join(DIRECTORY).join(self.record.file());
        // The history is for people: a call does not depend on it.
        let _ = append(&file, &self.record.line());
    }

    /// Returns the stage in which the call failed.
    fn failed_stage(&self) -> String {
        let failed = self.runs.iter().find(|run| run.failed && run.depth == 0);
        match (failed, self.stage) {
            (Some(run), _) => run.plugin.to_string(),
            (None, Some((Phase::Named(name), _))) => name.to_owned(),
            (None, Some((Phase::Plugins { before, after }, _))) => {
                if self.runs.is_empty() { before } else { after }.to_owned()
            }
            (None, None) => String::new(),
        }
    }

    fn end_stage(&mut self) {
        let Some((phase, began)) = self.stage.take() else { return };
        let now = Instant::now();
        let (before, after) = match phase {
            Phase::Named(name) => return self.push(name.to_owned(), began, now, 0),
            Phase::Plugins { before, after } => (before, after),
        };
        let runs = std::mem::take(&mut self.runs);
        self.push(before.to_owned(), began, runs.first().map_or(now, |run| run.began), 0);
        let mut last = None;
        for Run { plugin, verb, ifname, began, took, depth, failed: _ } in runs {
            let ended = began + took;
            self.push(format!("{plugin} {verb} {ifname}"), began, ended, depth);
            last = last.max(Some(ended));
        }
        if let Some(last) = last {
            self.push(after.to_owned(), last, now, 0);
        }
    }

    fn push(&mut self, name: String, began: Instant, ended: Instant, depth: usize) {
        self.record.stages.push(Stage {
            name,
            began: microseconds(began.saturating_duration_since(self.started)),
            microseconds: microseconds(ended.saturating_duration_since(began)),
            depth,
        });
    }
}

/// Returns the `traceparent` that the runtime passed, if it is valid.
pub(super) fn trace_parent() -> Option<String> {
    let value = std::env::var(TRACE_PARENT).ok()?;
    (value.len() <= TRACE_PARENT_MAX && trace_id(&value).is_some()).then_some(value)
}

/// Returns the trace id in a `traceparent`, `00-TRACE-SPAN-FLAGS`.
fn trace_id(value: &str) -> Option<String> {
    let id = value.split('-').nth(1)?;
    is_trace_id(id).then(|| id.to_ascii_lowercase())
}

fn is_trace_id(id: &str) -> bool {
    id.len() == TRACE_ID
        && id.bytes().all(|byte| byte.is_ascii_hexdigit())
        && id.bytes().any(|byte| byte != b'0')
}

/// Appends a line to a file, which is renamed first if it is full.
fn append(path: &Path, line: &[u8]) -> std::io::Result<()> {
    let mut file = match open(path) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => {
            let directory = path.parent().unwrap_or(Path::new("/"));
            fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
            open(path)?
        }
        opened => opened?,
    };
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(std::io::Error::other("not a file"));
    }
    if metadata.len() + line.len() as u64 > FILE_MAX {
        file = rotate(path, file)?;
    }
    // The line feed ends a line that a full disk has cut off.
    file.write_all(&[b"\n", line].concat())
}

fn open(path: &Path) -> std::io::Result<File> {
    // Opening a FIFO would block, and a link could lead to another file.
    let flags = OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600).custom_flags(flags.bits() as i32).open(path)
}

/// Renames a full file and returns the new one. Another writer may have done so already.
fn rotate(path: &Path, full: File) -> std::io::Result<File> {
    if rustix::fs::flock(&full, FlockOperation::NonBlockingLockExclusive).is_err() {
        // Another writer renames it now: this record makes the file a little larger.
        return Ok(full);
    }
    let named = fs::metadata(path);
    let is_current = named.is_ok_and(|named| full.metadata().is_ok_and(|full| full.ino() == named.ino()));
    if is_current {
        fs::rename(path, older(path))?;
    }
    open(path)
}

/// Returns the older file's path: `failures.1.jsonl`.
fn older(path: &Path) -> PathBuf {
    path.with_extension("1.jsonl")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("weft-history-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        directory
    }

    #[test]
    fn history_files_are_bounded_with_concurrent_writers() {
        let directory = scratch("bounded");
        let file = directory.join("failures.jsonl");
        let line = |writer: usize, number: usize| format!("{writer:02} {number:05} {}\n", "x".repeat(1000));
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let file = &file;
                scope.spawn(move || {
                    (0..1000).for_each(|number| append(file, line(writer, number).as_bytes()).unwrap());
                });
            }
        });
        let mut files: Vec<_> =
            fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        files.sort();
        assert_eq!(files, ["failures.1.jsonl", "failures.jsonl"]);
        for path in [older(&file), file.clone()] {
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.len() as u64 <= FILE_MAX + 8 * 1100, "{}", text.len());
            assert!(
                text.lines().all(|line| line.is_empty() || (line.len() == 1009 && line.ends_with('x'))),
                "whole lines"
            );
        }
        // A file is renamed once, so the newest records are kept: as many as fit into one file.
        let newest = line(9, 9);
        append(&file, newest.as_bytes()).unwrap();
        let all = fs::read_to_string(older(&file)).unwrap() + &fs::read_to_string(&file).unwrap();
        assert!(all.ends_with(&newest) && all.lines().filter(|line| !line.is_empty()).count() > 1000);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn history_that_cannot_be_written_is_an_error_without_effect() {
        let directory = scratch("broken");
        fs::create_dir_all(&directory).unwrap();
        let target = directory.join("target");
        fs::write(&target, "kept").unwrap();
        let link = directory.join("link.jsonl");
        std::os::unix::fs::symlink(&target, &link).unwrap();
        let fifo = directory.join("fifo.jsonl");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let below_a_file = target.join("failures.jsonl");
        for path in [&link, &fifo, &directory, &below_a_file] {
            assert!(append(path, b"line\n").is_err(), "{}", path.display());
        }
        assert_eq!(fs::read_to_string(&target).unwrap(), "kept");
        CallRecorder::begin("ADD", PodIdentity::default()).finish(None, || target.clone());
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn trace_id_is_read_from_a_valid_traceparent() {
        let id = "4bf92f3577b34da6a3ce929d0e0e4736";
        assert_eq!(trace_id(&format!("00-{id}-00f067aa0ba902b7-01")).as_deref(), Some(id));
        for other in
            ["", "00", "00-short-00f067aa0ba902b7-01", &format!("00-{}-1-01", "0".repeat(32)), "00-zz"]
        {
            assert_eq!(trace_id(other), None, "{other}");
        }
    }
}
