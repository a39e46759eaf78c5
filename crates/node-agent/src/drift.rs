//! Drift detection: finds attachments that no longer match the configuration, for example because an interface was
//! deleted.
//!
//! The agent sends CHECKs as tasks to weft-cni, a few with each response, and compares the results with
//! earlier ones. Nothing is repaired: the change may be intended, and recreating the pod repairs it. (`weft
//! doctor` runs CHECK, too.)
//!
//! - The kubelet never calls CHECK, so a plugin may reject an intact attachment that it made. Therefore what the first
//!   check finds is not drift.
//! - The first check follows soon after the attachment, also for a network added to a running pod.
//! - An attachment that once passed a check and fails now has drifted. Findings of first checks are stored in a
//!   file, so that a later agent knows them. Without the file, each sandbox has a first check again.
//! - A result costs one line at the end of that file, however many sandboxes there are; a sandbox's latest
//!   line counts. The file is written again when most of its lines are outdated.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cni::name::{ContainerId, IfName};
use rpc::task::{Task, TaskResult};
use tracing::warn;

use node_support::sandboxes::{Sandbox, Sandboxes};

/// Time until a sandbox's first check.
const FIRST: Duration = Duration::from_secs(10);
/// Maximum number of checks in one response.
const CHECKS_MAX: usize = 4;
/// Maximum size up to which the file is read, in bytes: enough for some thousand sandboxes.
const FILE_MAX: u64 = 1 << 20;

/// Number of outdated lines that the file may have in any case.
const OUTDATED_MIN: usize = 256;

/// Interfaces in each checked sandbox that have failed every check.
type FirstFaults = BTreeMap<ContainerId, BTreeSet<IfName>>;

/// Drift detector for this node.
#[derive(Debug)]
pub(crate) struct Drift {
    interval: Duration,
    /// File with the first faults.
    file: PathBuf,
    stored: Mutex<Stored>,
    checked: Mutex<BTreeMap<ContainerId, CheckState>>,
}

/// Content of the file.
#[derive(Debug, Default)]
struct Stored {
    /// First faults in sandboxes that this agent has not found yet.
    waiting: FirstFaults,
    /// Open file, and how many lines it has; none before the first write.
    open: Option<(File, usize)>,
}

#[derive(Debug)]
struct CheckState {
    /// When the next check is due.
    due: Instant,
    /// Interfaces that have failed every check; none before the first check.
    first_faults: Option<BTreeSet<IfName>>,
    /// Interfaces added since the last check, for which the next check is the first one.
    added: BTreeSet<IfName>,
    /// Interfaces that passed a check and failed the last one.
    drifted: BTreeSet<IfName>,
}

/// Conclusion from a check result.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CheckOutcome {
    /// Nothing has changed.
    Same,
    /// An attachment failed the first check.
    NeverCorrect,
    /// An attachment has drifted.
    Drifted,
    /// No attachment is drifted any more.
    Restored,
}

impl Drift {
    /// Returns a detector that has every sandbox checked each `interval` (zero: never) and stores first faults in `file`.
    pub(crate) fn new(interval: Duration, file: PathBuf) -> Drift {
        let stored = Stored { waiting: read(&file), open: None };
        Drift { interval, file, stored: Mutex::new(stored), checked: Mutex::default() }
    }

    fn stored(&self) -> MutexGuard<'_, Stored> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores one sandbox's first faults; `checked` has them for all.
    fn store(
        &self,
        container: &ContainerId,
        faults: &BTreeSet<IfName>,
        checked: &BTreeMap<ContainerId, CheckState>,
    ) {
        let mut stored = self.stored();
        if let Err(error) = stored.write(&self.file, container, faults, checked) {
            stored.open = None;
            warn!(%error, file = %self.file.display(), "failed to store the results of first checks");
        }
    }

    fn checked(&self) -> MutexGuard<'_, BTreeMap<ContainerId, CheckState>> {
        self.checked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the checks that are due now.
    pub(crate) fn due(&self, sandboxes: &Sandboxes) -> Vec<Task> {
        if self.interval.is_zero() {
            return Vec::new();
        }
        sandboxes.with(|all| self.due_of(all, Instant::now()))
    }

    fn due_of(&self, all: &BTreeMap<ContainerId, Sandbox>, now: Instant) -> Vec<Task> {
        let (mut checked, mut stored) = (self.checked(), self.stored());
        checked.retain(|container, _| all.contains_key(container));
        if !all.is_empty() {
            stored.waiting.retain(|container, _| all.contains_key(container));
        }
        let mut tasks = Vec::new();
        for (container, sandbox) in all {
            if !checked.contains_key(container) {
                let state = CheckState {
                    due: now + self.interval.min(FIRST),
                    first_faults: stored.waiting.remove(container),
                    added: BTreeSet::new(),
                    drifted: BTreeSet::new(),
                };
                checked.insert(container.clone(), state);
            }
            let Some(known) = checked.get_mut(container) else { continue };
            if tasks.len() == CHECKS_MAX || !sandbox.entry.complete || now < known.due {
                continue;
            }
            known.due = now + self.interval;
            let (container, uid) = (container.clone(), sandbox.entry.plan.pod.uid.clone());
            tasks.push(Task::Check { container, uid });
        }
        tasks
    }

    /// Records a check result and returns what it means.
    pub(crate) fn record(&self, result: &TaskResult) -> CheckOutcome {
        let mut checked = self.checked();
        let Some(known) = checked.get_mut(&result.container) else { return CheckOutcome::Same };
        let wrong: BTreeSet<IfName> = result.wrong.iter().cloned().collect();
        let added = std::mem::take(&mut known.added);
        let is_first = known.first_faults.is_none();
        let faults_before = known.first_faults.clone();
        let first_faults = known.first_faults.get_or_insert_with(|| wrong.clone());
        let count_before = first_faults.len();
        first_faults.retain(|ifname| wrong.contains(ifname));
        first_faults.extend(wrong.intersection(&added).cloned());
        let never_correct =
            if is_first { !first_faults.is_empty() } else { first_faults.len() > count_before };
        let drifted: BTreeSet<IfName> = wrong.difference(first_faults).cloned().collect();
        let before = std::mem::replace(&mut known.drifted, drifted);
        let outcome = match (known.drifted == before, known.drifted.is_empty()) {
            (true, _) if never_correct => CheckOutcome::NeverCorrect,
            (true, _) => CheckOutcome::Same,
            (false, true) => CheckOutcome::Restored,
            (false, false) => CheckOutcome::Drifted,
        };
        if faults_before != known.first_faults {
            let faults = known.first_faults.clone().unwrap_or_default();
            self.store(&result.container, &faults, &checked);
        }
        outcome
    }

    /// Records that a network was added to a running pod: the first check follows soon.
    pub(crate) fn attachment_added(&self, container: &ContainerId, ifname: &IfName) {
        if let Some(known) = self.checked().get_mut(container) {
            known.due = known.due.min(Instant::now() + FIRST);
            known.added.insert(ifname.clone());
        }
    }
    /// Returns how many sandboxes have drifted.
    pub(crate) fn count(&self) -> usize {
        self.checked().values().filter(|known| !known.drifted.is_empty()).count()
    }
}

impl Stored {
    /// Appends a line, or writes the whole file if it is not open or most lines are outdated.
    fn write(
        &mut self,
        file: &Path,
        container: &ContainerId,
        faults: &BTreeSet<IfName>,
        checked: &BTreeMap<ContainerId, CheckState>,
    ) -> io::Result<()> {
        let current = self.waiting.len() + checked.len();
        if let Some((open, lines)) = &mut self.open
            && *lines < 2 * current + OUTDATED_MIN
        {
            *lines += 1;
            return open.write_all(line(container, faults)?.as_bytes());
        }
        let of_checked =
            checked.iter().filter_map(|(container, state)| Some((container, state.first_faults.as_ref()?)));
        let all = self.waiting.iter().chain(of_checked).map(|(container, faults)| line(container, faults));
        let lines = all.collect::<io::Result<Vec<String>>>()?;
        cli_support::atomic_file::write(file, &lines.concat())?;
        let open = OpenOptions::new().append(true).mode(0o600).open(file)?;
        self.open = Some((open, lines.len()));
        Ok(())
    }
}

/// Returns the line for a sandbox.
fn line(container: &ContainerId, faults: &BTreeSet<IfName>) -> io::Result<String> {
    Ok(serde_json::to_string(&(container, faults))? + "\n")
}

/// Reads the file's lines. The last one may be incomplete; a file that is too large counts as empty.
fn read(file: &Path) -> FirstFaults {
    let is_short = fs::metadata(file).is_ok_and(|metadata| metadata.len() <= FILE_MAX);
    let text = is_short.then(|| fs::read_to_string(file).ok()).flatten().unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[cfg(test)]
mod tests {
    use rpc::task::TaskKind;

    use super::*;

    fn drift() -> Drift {
        let drift = Drift::new(Duration::from_secs(300), "/dev/null/checked.json".into());
        let known = CheckState {
            due: Instant::now(),
            first_faults: None,
            added: BTreeSet::new(),
            drifted: BTreeSet::new(),
        };
        drift.checked().insert(ContainerId::new("c").unwrap(), known);
        drift
    }

    fn found(wrong: &[&str]) -> TaskResult {
        let error = (!wrong.is_empty()).then(|| cni::Error::internal("wrong"));
        let wrong = wrong.iter().map(|name| IfName::new(name).unwrap()).collect();
        let container = ContainerId::new("c").unwrap();
        TaskResult {
            kind: TaskKind::Check,
            container,
            uid: "u".into(),
            changes: Vec::new(),
            error,
            wrong,
            is_locked: false,
        }
    }

    #[test]
    fn drift_ignores_faults_of_the_first_check() {
        let drift = drift();
        assert_eq!(drift.record(&found(&["eth0"])), CheckOutcome::NeverCorrect);
        assert_eq!((drift.record(&found(&["eth0"])), drift.count()), (CheckOutcome::Same, 0));
        assert_eq!((drift.record(&found(&["eth0", "net1"])), drift.count()), (CheckOutcome::Drifted, 1));
        assert_eq!(drift.record(&found(&["eth0", "net1"])), CheckOutcome::Same);
        assert_eq!((drift.record(&found(&["eth0"])), drift.count()), (CheckOutcome::Restored, 0));
        // Once it passed, a fault is drift.
        assert_eq!(drift.record(&found(&[])), CheckOutcome::Same);
        assert_eq!(drift.record(&found(&["eth0"])), CheckOutcome::Drifted);
    }

    #[test]
    fn drift_hot_plugged_network_has_its_own_first_check() {
        let drift = drift();
        assert_eq!(drift.record(&found(&[])), CheckOutcome::Same);
        drift.attachment_added(&ContainerId::new("c").unwrap(), &IfName::new("net1").unwrap());
        assert_eq!(drift.record(&found(&["net1"])), CheckOutcome::NeverCorrect);
        assert_eq!((drift.record(&found(&["net1"])), drift.count()), (CheckOutcome::Same, 0));
        assert_eq!(drift.record(&found(&["net1", "eth0"])), CheckOutcome::Drifted);
    }

    #[test]
    fn drift_file_has_a_bounded_number_of_outdated_lines() {
        let directory = std::env::temp_dir().join(format!("weft-drift-lines-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let file = directory.join("checked.json");
        let drift = Drift { file: file.clone(), ..drift() };
        let mut longest = 0;
        for round in 0..3 * OUTDATED_MIN {
            // A restored interface and a new first fault: each check changes what is stored.
            drift.record(&found(if round % 2 == 0 { &["eth0"] } else { &[] }));
            let (id, ifname) = (ContainerId::new("c").unwrap(), IfName::new("eth0").unwrap());
            drift.attachment_added(&id, &ifname);
            longest = longest.max(fs::read_to_string(&file).unwrap().lines().count());
        }
        assert!((OUTDATED_MIN..OUTDATED_MIN + 4).contains(&longest), "{longest}");
        assert_eq!(read(&file).len(), 1);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn drift_first_faults_are_kept_across_agents() {
        let directory = std::env::temp_dir().join(format!("weft-drift-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (file, container) = (directory.join("checked.json"), ContainerId::new("c").unwrap());
        let next = |file: &PathBuf| {
            let drift = Drift::new(Duration::from_secs(300), file.clone());
            let first_faults = drift.stored().waiting.remove(&container);
            let (added, drifted) = (BTreeSet::new(), BTreeSet::new());
            let known = CheckState { due: Instant::now(), first_faults, added, drifted };
            drift.checked().insert(container.clone(), known);
            drift
        };
        assert_eq!(next(&file).record(&found(&["eth0"])), CheckOutcome::NeverCorrect);
        let second = next(&file);
        assert_eq!(second.record(&found(&["eth0"])), CheckOutcome::Same);
        assert_eq!((second.record(&found(&["eth0", "net1"])), second.count()), (CheckOutcome::Drifted, 1));
        assert_eq!((next(&file).record(&found(&["eth0", "net1"]))), CheckOutcome::Drifted);
        // Of a file whose last line is incomplete, the other lines count.
        fs::write(&file, "[\"c\",[\"eth0\"]]\n[\"d\",[\"e").unwrap();
        assert_eq!(next(&file).record(&found(&["eth0"])), CheckOutcome::Same);
        // An unreadable file counts as empty.
        fs::write(&file, "{").unwrap();
        assert_eq!(next(&file).record(&found(&["eth0"])), CheckOutcome::NeverCorrect);
        fs::remove_dir_all(&directory).unwrap();
    }
}
