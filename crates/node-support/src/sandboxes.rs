//! Sandboxes on this node: an in-memory copy of the journal that follows changes.
//!
//! - The journal is only read. Files that inotify reports are read again. Every file is looked at from time
//!   to time, because the queue may overflow and the directory may be created later; a file that is unchanged
//!   is not read again.
//! - An entry is read when a writer closes the file, not at each value that an ADD appends.
//! - If an entry cannot be read now, the entry as last read counts. The sandbox must not be taken for a
//!   deleted one.
//!
//! Source: inotify(7).

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use cni::name::ContainerId;
use rpc::journal::Entry;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tracing::{debug, warn};

use crate::journal_reader::{Journal, Row};

/// Interval between two scans through the whole journal.
pub const RESCAN: Duration = Duration::from_secs(30);
/// Interval between two checks whether the directory exists.
const RETRY: Duration = Duration::from_secs(1);
/// Time for which changes are collected: an ADD with a few networks ends within it.
const GATHER: Duration = Duration::from_millis(10);
/// Buffer size for inotify events, in bytes.
const EVENTS: usize = 16 * 1024;
/// Stack size for the thread that waits for events, in bytes.
const STACK: usize = 128 * 1024;

/// Sandbox as last read.
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// Journal entry as last read.
    pub entry: Arc<Entry>,
    /// When the entry's file was last written.
    pub modified: SystemTime,
    /// Inode and size of the file.
    file: (u64, u64),
    /// Number of attachments with a plugin that no CHECK calls, once somebody has asked.
    unchecked: Arc<OnceLock<usize>>,
}

/// Sandboxes by container id.
#[derive(Debug)]
pub struct Sandboxes {
    journal: Journal,
    directory: PathBuf,
    known: Mutex<BTreeMap<ContainerId, Sandbox>>,
    broken: Mutex<BTreeSet<String>>,
    changes: watch::Sender<u64>,
}

// === impl Sandbox ===

impl Sandbox {
    fn new(entry: Entry, modified: SystemTime, file: (u64, u64)) -> Sandbox {
        Sandbox { entry: Arc::new(entry), modified, file, unchecked: Arc::default() }
    }

    fn unchecked(&self) -> usize {
        *self.unchecked.get_or_init(|| self.entry.unchecked().len())
    }
}

// === impl Sandboxes ===

impl Sandboxes {
    /// Sandbox states, as [`Sandboxes::counts`] names them.
    pub const STATES: [&str; 3] = ["attached", "partly attached", "unreadable"];

    /// Returns the sandboxes for the journal in `directory`, without reading it.
    pub fn of(directory: &Path) -> Sandboxes {
        Sandboxes {
            journal: Journal::at(directory),
            directory: directory.to_owned(),
            known: Mutex::default(),
            broken: Mutex::default(),
            changes: watch::Sender::new(0),
        }
    }

    /// Returns a receiver that is notified after entries were read again.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<ContainerId, Sandbox>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the journal contains an unreadable entry.
    pub fn has_broken(&self) -> bool {
        !self.broken.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Returns all sandboxes.
    pub fn all(&self) -> BTreeMap<ContainerId, Sandbox> {
        self.known().clone()
    }

    /// Returns one sandbox, if it is known.
    pub fn find(&self, container: &ContainerId) -> Option<Sandbox> {
        self.known().get(container).cloned()
    }

    /// Returns how many sandboxes are attached, partly attached and unreadable.
    pub fn counts(&self) -> [(&'static str, usize); 3] {
        let known = self.known();
        let broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        let readable = known.iter().filter(|(container, _)| !broken.contains(container.as_str()));
        let (whole, partly): (Vec<_>, Vec<_>) = readable.partition(|(_, sandbox)| sandbox.entry.complete);
        let [attached, partial, unreadable] = Sandboxes::STATES;
        [(attached, whole.len()), (partial, partly.len()), (unreadable, broken.len())]
    }

    /// Returns the number of attachments with a plugin that no CHECK calls.
    pub fn unchecked(&self) -> usize {
        self.known().values().map(Sandbox::unchecked).sum()
    }

    /// Calls `work` with all sandboxes, which cannot change meanwhile.
    pub fn with<T>(&self, work: impl FnOnce(&BTreeMap<ContainerId, Sandbox>) -> T) -> T {
        work(&self.known())
    }

    /// Reads every entry that has changed since it was last read; returns the containers whose entry changed
    /// or was removed.
    pub fn read_all(&self) -> BTreeSet<ContainerId> {
        let containers = match self.journal.containers() {
            Ok(containers) => containers,
            Err(error) => {
                warn!(%error, "failed to read journal");
                return BTreeSet::new();
            }
        };
        let mut known = BTreeMap::new();
        let mut broken = BTreeSet::new();
        for container in containers {
            let id = ContainerId::new(&container).ok();
            // First: an entry that changes while it is read is read again.
            let stamp = id.as_ref().and_then(|id| self.stamp(id));
            let before = id.as_ref().and_then(|id| self.find(id));
            if let (Some(id), Some(before)) = (&id, &before)
                && stamp == Some((before.modified, before.file))
            {
                known.insert(id.clone(), before.clone());
                continue;
            }
            match self.journal.row(container) {
                None => {}
                Some(Row::Entry(entry)) => {
                    let (modified, file) = stamp.unwrap_or((SystemTime::UNIX_EPOCH, (0, 0)));
                    let sandbox = Sandbox::new(*entry, modified, file);
                    known.insert(sandbox.entry.container_id.clone(), sandbox);
                }
                Some(Row::Broken { container, error }) => {
                    warn!(container, %error, "failed to read journal entry");
                    known.extend(id.zip(before));
                    broken.insert(container);
                }
            }
        }
        let changed = differences(&self.known(), &known);
        *self.known() = known;
        *self.broken.lock().unwrap_or_else(PoisonError::into_inner) = broken;
        self.changes.send_modify(|count| *count += 1);
        changed
    }

    /// Reads one entry again.
    fn read(&self, container: &ContainerId) {
        let stamp = self.stamp(container);
        match self.journal.entry(container) {
            Ok(Some(entry)) => {
                let (modified, file) = stamp.unwrap_or((SystemTime::UNIX_EPOCH, (0, 0)));
                let sandbox = Sandbox::new(entry, modified, file);
                self.known().insert(container.clone(), sandbox);
            }
            Ok(None) => drop(self.known().remove(container)),
            // The file may be partly written; the next scan reads it again.
            Err(error) => debug!(%container, %error, "failed to read journal entry, retrying later"),
        }
        self.changes.send_modify(|count| *count += 1);
    }

    /// Returns when an entry's file was last written, the inode and the size.
    fn stamp(&self, container: &ContainerId) -> Option<(SystemTime, (u64, u64))> {
        let metadata = std::fs::metadata(self.journal.file(container)).ok()?;
        Some((metadata.modified().ok()?, (metadata.ino(), metadata.len())))
    }

    /// Waits for a change and reads it; returns the containers whose entry was written or removed.
    pub async fn changed(&self, watch: &mut Option<Watch>) -> BTreeSet<ContainerId> {
        let Some(open) = watch else {
            tokio::time::sleep(RETRY).await;
            *watch = Watch::open(&self.directory);
            return if watch.is_some() { self.read_all() } else { BTreeSet::new() };
        };
        match open.next().await {
            Some(containers) => {
                containers.iter().for_each(|container| self.read(container));
                containers
            }
            None => {
                *watch = None;
                self.read_all()
            }
        }
    }

    /// Starts to watch the directory, if it exists.
    pub fn watch(&self) -> Option<Watch> {
        Watch::open(&self.directory)
    }
}

/// Returns the containers whose entries are not the same in both.
fn differences(
    before: &BTreeMap<ContainerId, Sandbox>,
    after: &BTreeMap<ContainerId, Sandbox>,
) -> BTreeSet<ContainerId> {
    let is_same = |id: &ContainerId, one: &Sandbox| {
        before.get(id).is_some_and(|other| Arc::ptr_eq(&one.entry, &other.entry))
    };
    let written = after.iter().filter(|(id, sandbox)| !is_same(id, sandbox)).map(|(id, _)| id);
    let removed = before.keys().filter(|id| !after.contains_key(*id));
    written.chain(removed).cloned().collect()
}

/// Directory changes, reported by a thread: a file descriptor in tokio would need `unsafe`.
#[derive(Debug)]
pub struct Watch {
    receiver: UnboundedReceiver<BTreeSet<ContainerId>>,
    /// Changes that are collected until `deadline`.
    pending: BTreeSet<ContainerId>,
    deadline: Option<Instant>,
}

impl Watch {
    fn open(directory: &Path) -> Option<Watch> {
        let watched = WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO | WatchFlags::DELETE;
        let ended = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR;
        let opened = inotify::init(CreateFlags::CLOEXEC)
            .and_then(|fd| inotify::add_watch(&fd, directory, watched | ended).map(|_| fd));
        let fd = match opened {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return None,
            Err(error) => {
                warn!(%error, directory = %directory.display(), "failed to watch journal");
                return None;
            }
        };
        let (sender, receiver) = mpsc::unbounded_channel();
        let forward = move || {
            let mut room = [MaybeUninit::uninit(); EVENTS];
            let mut reader = inotify::Reader::new(&fd, &mut room);
            while let Some(changed) = next(&mut reader) {
                if sender.send(changed).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("inotify".to_owned()).stack_size(STACK).spawn(forward);
        thread.inspect_err(|error| warn!(%error, "failed to watch journal")).ok()?;
        Some(Watch { receiver, pending: BTreeSet::new(), deadline: None })
    }

    /// Returns the containers whose files changed; `None` if the watch has ended or missed an event.
    ///
    /// A caller may drop the future: collected changes are kept for the next call.
    async fn next(&mut self) -> Option<BTreeSet<ContainerId>> {
        loop {
            let received = match self.deadline {
                None => self.receiver.recv().await,
                Some(deadline) => match timeout_at(deadline, self.receiver.recv()).await {
                    Ok(received) => received,
                    Err(_) => {
                        self.deadline = None;
                        return Some(std::mem::take(&mut self.pending));
                    }
                },
            };
            self.pending.extend(received?);
            self.deadline.get_or_insert_with(|| Instant::now() + GATHER);
        }
    }
}

/// Waits for changes; `None` if the directory is removed, or an event was missed.
fn next(reader: &mut inotify::Reader<'_, &OwnedFd>) -> Option<BTreeSet<ContainerId>> {
    let mut changed = BTreeSet::new();
    loop {
        match reader.next() {
            Ok(event) => {
                let over = ReadFlags::QUEUE_OVERFLOW | ReadFlags::IGNORED;
                if event.events().intersects(over) {
                    return None;
                }
                let name = event.file_name().and_then(|name| name.to_str().ok());
                let id = name.and_then(|name| name.strip_suffix(".json"));
                changed.extend(id.and_then(|id| ContainerId::new(id).ok()));
            }
            Err(Errno::INTR) => continue,
            Err(_) => return None,
        }
        if reader.is_buffer_empty() && !changed.is_empty() {
            return Some(changed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = r#"{"version":1,"network":"weft-example","containerId":"ns_web","netns":"/run/netns/weft-ns_web",
      "ifname":"eth0","args":"","path":"/opt/cni/bin",
      "plan":{"version":1,"pod":{"namespace":"ns","name":"web","uid":"u-1"},"container":"ns_web",
        "status":{"addresses":"bare","keys":"standard"},"delegates":[],"warnings":[]},
      "attachments":[],"complete":false}"#;

    #[test]
    fn journal_entry_that_becomes_unreadable_keeps_its_sandbox() {
        let directory = std::env::temp_dir().join(format!("weft-sandboxes-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let (file, container) = (directory.join("ns_web.json"), ContainerId::new("ns_web").unwrap());
        std::fs::write(&file, ENTRY).unwrap();
        let sandboxes = Sandboxes::of(&directory);
        let counted = || {
            sandboxes.read_all();
            (sandboxes.find(&container).is_some(), sandboxes.counts().map(|(_, count)| count))
        };
        assert_eq!(counted(), (true, [0, 1, 0]));
        std::fs::remove_file(&file).unwrap();
        // A link to itself: even root cannot read it.
        std::os::unix::fs::symlink(&file, &file).unwrap();
        assert_eq!(counted(), (true, [0, 0, 1]));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(counted(), (false, [0, 0, 0]));
        std::fs::write(&file, "{").unwrap();
        assert_eq!(counted(), (false, [0, 0, 1]), "never read successfully");
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[tokio::test]
    async fn journal_change_is_read_once_and_other_entries_are_kept() {
        let directory = std::env::temp_dir().join(format!("weft-changes-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let [one, other] = ["ns_web", "ns_db"].map(|id| ContainerId::new(id).unwrap());
        let write = |id: &ContainerId, end: &str| {
            let text = ENTRY.replace("ns_web", id.as_str());
            std::fs::write(directory.join(format!("{id}.json")), text + end).unwrap();
        };
        write(&one, "");
        write(&other, "");
        let sandboxes = Sandboxes::of(&directory);
        assert_eq!(sandboxes.read_all(), BTreeSet::from([one.clone(), other.clone()]));
        let mut watch = sandboxes.watch();
        let entry = |id: &ContainerId| sandboxes.find(id).unwrap().entry;
        let (before, kept) = (entry(&one), entry(&other));
        // Two writes within a moment are one change.
        write(&one, "");
        write(&one, r#"{"complete":{"networkStatus":[]}}"#);
        let changed = sandboxes.changed(&mut watch).await;
        assert_eq!(changed, BTreeSet::from([one.clone()]));
        assert!(!before.complete && entry(&one).complete);
        assert!(Arc::ptr_eq(&kept, &entry(&other)), "not read again");
        // A scan reads changed entries only.
        let known = entry(&one);
        write(&other, r#"{"complete":{"networkStatus":[]}}"#);
        assert_eq!(sandboxes.read_all(), BTreeSet::from([other.clone()]));
        assert!(Arc::ptr_eq(&known, &entry(&one)) && entry(&other).complete);
        assert_eq!(sandboxes.read_all(), BTreeSet::new());
        std::fs::remove_file(directory.join("ns_db.json")).unwrap();
        let changed = sandboxes.changed(&mut watch).await;
        assert_eq!(changed, BTreeSet::from([other.clone()]));
        assert!(sandboxes.find(&other).is_none() && sandboxes.find(&one).is_some());
        std::fs::remove_file(directory.join("ns_web.json")).unwrap();
        assert_eq!(sandboxes.read_all(), BTreeSet::from([one]));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
