//! The sandboxes of this node as the journal has them, followed as it changes.
//!
//! Rules: the journal is only read; what inotify tells of is read again, and everything from time to time, because
//! a queue may overflow and a directory may come late; of what cannot be read now what was last read counts, so that
//! nobody takes it for gone and forgets what is known of it.
//!
//! Source: inotify(7).

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use cni::name::ContainerId;
use rpc::journal::Entry;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tracing::{debug, warn};

use crate::journal_reader::{Journal, Row};

/// How often everything is read again.
pub const RESCAN: Duration = Duration::from_secs(30);
/// How often it is looked whether the directory has come.
const RETRY: Duration = Duration::from_secs(1);
/// Room for what inotify tells at once, in bytes.
const EVENTS: usize = 16 * 1024;
/// Stack of the thread that waits for them, in bytes.
const STACK: usize = 128 * 1024;

/// A sandbox as it was last read.
#[derive(Clone, Debug)]
pub struct Sandbox {
    /// Its entry.
    pub entry: Arc<Entry>,
    /// When its file was written last.
    pub modified: SystemTime,
}

/// Every sandbox by container id.
#[derive(Debug)]
pub struct Sandboxes {
    journal: Journal,
    directory: PathBuf,
    known: Mutex<BTreeMap<ContainerId, Sandbox>>,
    broken: Mutex<BTreeSet<String>>,
}

impl Sandboxes {
    /// Those of the journal in `directory`, not read yet.
    pub fn of(directory: &Path) -> Sandboxes {
        Sandboxes {
            journal: Journal::at(directory),
            directory: directory.to_owned(),
            known: Mutex::default(),
            broken: Mutex::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<ContainerId, Sandbox>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Is there an entry that cannot be read?
    pub fn has_broken(&self) -> bool {
        !self.broken.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// All of them.
    pub fn all(&self) -> BTreeMap<ContainerId, Sandbox> {
        self.known().clone()
    }

    /// One of them.
    pub fn find(&self, container: &ContainerId) -> Option<Sandbox> {
        self.known().get(container).cloned()
    }

    /// How many are whole, partly there, and unreadable.
    pub fn counts(&self) -> [(&'static str, usize); 3] {
        let known = self.known();
        let broken = self.broken.lock().unwrap_or_else(PoisonError::into_inner);
        let readable = known.iter().filter(|(container, _)| !broken.contains(container.as_str()));
        let (whole, partly): (Vec<_>, Vec<_>) = readable.partition(|(_, sandbox)| sandbox.entry.complete);
        [("attached", whole.len()), ("partly attached", partly.len()), ("unreadable", broken.len())]
    }

    /// Reads everything.
    pub fn read_all(&self) {
        let rows = match self.journal.rows() {
            Ok(rows) => rows,
            Err(error) => return warn!(%error, "the journal cannot be read"),
        };
        let mut known = BTreeMap::new();
        let mut broken = BTreeSet::new();
        for row in rows {
            match row {
                Row::Entry(entry) => {
                    let container = entry.container_id.clone();
                    let modified = self.modified(&container);
                    known.insert(container, Sandbox { entry: Arc::new(*entry), modified });
                }
                Row::Broken { container, error } => {
                    warn!(container, %error, "an entry of the journal cannot be read");
                    let id = ContainerId::new(&container).ok();
                    known.extend(id.and_then(|id| Some((id.clone(), self.find(&id)?))));
                    broken.insert(container);
                }
            }
        }
        *self.known() = known;
        *self.broken.lock().unwrap_or_else(PoisonError::into_inner) = broken;
    }

    /// Reads one again.
    fn read(&self, container: &ContainerId) {
        match self.journal.entry(container) {
            Ok(Some(entry)) => {
                let modified = self.modified(container);
                self.known().insert(container.clone(), Sandbox { entry: Arc::new(entry), modified });
            }
            Ok(None) => drop(self.known().remove(container)),
            // It may be half written; everything is read again soon.
            Err(error) => debug!(%container, %error, "not readable now"),
        }
    }

    fn modified(&self, container: &ContainerId) -> SystemTime {
        let metadata = std::fs::metadata(self.journal.file(container));
        metadata.and_then(|metadata| metadata.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// Waits until something may have changed, and reads it.
    pub async fn changed(&self, watch: &mut Option<Watch>) {
        let Some(open) = watch else {
            tokio::time::sleep(RETRY).await;
            *watch = Watch::open(&self.directory);
            if watch.is_some() {
                self.read_all();
            }
            return;
        };
        match open.next().await {
            Some(containers) => containers.iter().for_each(|container| self.read(container)),
            None => {
                *watch = None;
                self.read_all();
            }
        }
    }

    /// Begins to watch, if the directory is there.
    pub fn watch(&self) -> Option<Watch> {
        Watch::open(&self.directory)
    }
}

/// What is told of changes in the directory: by a thread, since a file descriptor in tokio's hands takes `unsafe`.
#[derive(Debug)]
pub struct Watch(UnboundedReceiver<BTreeSet<ContainerId>>);

impl Watch {
    fn open(directory: &Path) -> Option<Watch> {
        let watched =
            WatchFlags::CLOSE_WRITE | WatchFlags::MODIFY | WatchFlags::MOVED_TO | WatchFlags::DELETE;
        let ended = WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF | WatchFlags::ONLYDIR;
        let opened = inotify::init(CreateFlags::CLOEXEC)
            .and_then(|fd| inotify::add_watch(&fd, directory, watched | ended).map(|_| fd));
        let fd = match opened {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return None,
            Err(error) => {
                warn!(%error, directory = %directory.display(), "the journal cannot be watched");
                return None;
            }
        };
        let (sender, receiver) = mpsc::unbounded_channel();
        let told = move || {
            let mut room = [MaybeUninit::uninit(); EVENTS];
            let mut reader = inotify::Reader::new(&fd, &mut room);
            while let Some(changed) = next(&mut reader) {
                if sender.send(changed).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("inotify".to_owned()).stack_size(STACK).spawn(told);
        thread.inspect_err(|error| warn!(%error, "the journal cannot be watched")).ok()?;
        Some(Watch(receiver))
    }

    /// The containers whose files changed; nothing if the watch has ended or missed something.
    async fn next(&mut self) -> Option<BTreeSet<ContainerId>> {
        self.0.recv().await
    }
}

/// Waits for changes; nothing when the directory goes, or some were missed.
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
    fn what_cannot_be_read_is_not_gone_and_what_is_gone_is() {
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
        // A link to itself: nobody can read it, not even root.
        std::os::unix::fs::symlink(&file, &file).unwrap();
        assert_eq!(counted(), (true, [0, 0, 1]));
        std::fs::remove_file(&file).unwrap();
        assert_eq!(counted(), (false, [0, 0, 0]));
        std::fs::write(&file, "{").unwrap();
        assert_eq!(counted(), (false, [0, 0, 1]), "it was never read");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
