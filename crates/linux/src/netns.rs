//! Network namespaces as values.
//!
//! The one place that calls `setns`: a function over a closure, whose guard brings the thread back after a
//! result, an error and a panic alike. No other code ever runs in the wrong place.
//!
//! Source: network_namespaces(7), setns(2); ip-netns(8) for the named ones.

use std::fmt;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use rustix::io::{Errno, FdFlags};
use rustix::mount::{MountPropagationFlags, UnmountFlags};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use crate::conntrack::Conntrack;
use crate::error::Error;
use crate::nft::Nft;
use crate::rtnl::Rtnl;

/// The namespace of the thread that asks. That of the process's first thread is the process's, whose directory the kernel
/// makes up in half the time.
fn own() -> &'static str {
    match rustix::thread::gettid() == rustix::process::getpid() {
        true => "/proc/self/ns/net",
        false => "/proc/thread-self/ns/net",
    }
}

/// The file system that namespaces live in (`include/uapi/linux/magic.h`).
const NSFS_MAGIC: i64 = 0x6e73_6673;

/// How often a namespace is removed that is mounted again meanwhile.
const REMOVALS_MAX: usize = 10;

/// Files of each network namespace that only who administers it may open: for its links, and for its packet filter. Nothing
/// is written to them.
const OF_ADMINISTRATORS: &str = "/proc/sys/net/ipv4/route/flush";
const OF_FILTERS: &str = "/proc/sys/net/ipv4/tcp_fastopen_key";

/// How long a lock is waited for; one under which programs are run; and how long between two looks.
const LOCK_MAX: Duration = Duration::from_secs(10);
const LOCK_OF_PROGRAMS_MAX: Duration = Duration::from_secs(60);
const LOCK_LOOK: Duration = Duration::from_millis(5);

/// An open network namespace; it stays alive as long as this value does.
#[derive(Debug)]
pub struct Netns {
    file: File,
    name: String,
}

/// Which namespace it is: two handles are the same namespace exactly if these are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    device: u64,
    inode: u64,
}

/// Device and inode, as stat(2) has them.
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.device, self.inode)
    }
}

impl Identity {
    /// The number that `/proc/PID/ns/net` shows.
    pub fn inode(self) -> u64 {
        self.inode
    }
}

impl Netns {
    /// Opens the namespace at `path` (a bind mount, or `/proc/PID/ns/net`).
    ///
    /// # Errors
    /// [`crate::Kind::Absent`] if nothing is there; another kind if it is not a namespace.
    pub fn open(path: &Path) -> Result<Netns, Error> {
        match Netns::open_file(path)? {
            netns if netns.is_namespace() => Ok(netns),
            netns => {
                Err(Error::protocol(format!("open network namespace {}", netns.name), "not a namespace"))
            }
        }
    }

    /// Opens the namespace at `path` if there is one: not if the path is gone, and not if all that is
    /// left of it is the empty file that it was mounted on.
    pub fn find(path: &Path) -> Result<Option<Netns>, Error> {
        match Netns::open_file(path) {
            Ok(netns) => Ok(netns.is_namespace().then_some(netns)),
            Err(error) if error.kind() == crate::Kind::Absent => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn is_namespace(&self) -> bool {
        rustix::fs::fstatfs(&self.file).is_ok_and(|stat| stat.f_type == NSFS_MAGIC)
    }

    fn open_file(path: &Path) -> Result<Netns, Error> {
        let name = path.display().to_string();
        // Not a controlling terminal, not blocking: the path comes from outside and may be anything.
        let flags = (rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::NONBLOCK).bits();
        match fs::OpenOptions::new().read(true).custom_flags(flags as i32).open(path) {
            Ok(file) => Ok(Netns { file, name }),
            Err(error) => Err(Error::io(format!("open network namespace {name}"), &error)),
        }
    }

    /// The namespace this thread is in.
    pub fn own() -> Result<Netns, Error> {
        Netns::open(Path::new(own()))
    }

    /// Which namespace it is.
    pub fn identity(&self) -> Result<Identity, Error> {
        match self.file.metadata() {
            Ok(meta) => Ok(Identity { device: meta.dev(), inode: meta.ino() }),
            Err(error) => Err(Error::io(format!("stat network namespace {}", self.name), &error)),
        }
    }

    /// Runs `work` inside. `ip netns exec …`
    ///
    /// The calling thread enters and comes back, also when `work` panics; a thread of its own would cost a tenth
    /// of a whole ADD. A thread that cannot come back would go on in the wrong place, so then the
    /// process ends: what it was doing is in the journal.
    ///
    /// # Errors
    /// If it cannot be entered: not a network namespace, or no permission.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> Result<T, Error> {
        let back = Return(Netns::own()?.file);
        enter(&self.file)
            .map_err(|errno| Error::kernel(format!("enter network namespace {}", self.name), errno))?;
        let result = work();
        drop(back);
        Ok(result)
    }

    /// Locks the namespace among those who agree to do so. `flock PATH`
    ///
    /// The lock is on the namespace itself: it leaves no file behind and ends with the returned value. Anybody who may look at
    /// the namespace may lock it, too, so nobody waits for it for longer than [`LOCK_MAX`].
    ///
    /// # Errors
    /// [`crate::Kind::TimedOut`] after that, with [`Lock::TryExclusive`] at once.
    pub fn lock(&self, lock: Lock) -> Result<Locked, Error> {
        self.lock_for(lock, LOCK_MAX)
    }

    fn lock_for(&self, lock: Lock, most: Duration) -> Result<Locked, Error> {
        let operation = || format!("lock network namespace {}", self.name);
        // Opened anew: a lock belongs to the open file, and a clone of ours would share it.
        let own = File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
            .map_err(|error| Error::io(operation(), &error))?;
        lock_within(own, lock, most).map_err(|errno| Error::kernel(operation(), errno))
    }

    /// Locks the calling thread's namespace among those who administer it: on a file of it that only they may open. Where
    /// it cannot be opened, because `/proc/sys` is read-only, it is as [`Netns::lock`].
    ///
    /// # Errors
    /// As for [`Netns::lock`].
    pub fn lock_own(lock: Lock) -> Result<Locked, Error> {
        lock_file(OF_ADMINISTRATORS, lock, LOCK_MAX)
    }

    /// Locks the packet filter of the calling thread's namespace as [`Netns::lock_own`] does; where `/proc/sys` is read-only it
    /// is one lock with that. A program that is started meanwhile keeps it until it ends, even if whoever started it is
    /// killed.
    ///
    /// # Errors
    /// As for [`Netns::lock`], after a minute: many may be in front, each with its programs.
    pub fn lock_filters(lock: Lock) -> Result<Locked, Error> {
        let locked = lock_file(OF_FILTERS, lock, LOCK_OF_PROGRAMS_MAX)?;
        rustix::io::fcntl_setfd(&locked._file, FdFlags::empty())
            .map_err(|errno| Error::kernel("share the lock of the packet filter".to_owned(), errno))?;
        Ok(locked)
    }

    /// A routing socket that lives in this namespace, whoever uses it.
    pub fn rtnl(&self) -> Result<Rtnl, Error> {
        self.run(Rtnl::open)?
    }

    /// An nf_tables socket that lives in this namespace, whoever uses it.
    pub fn nft(&self) -> Result<Nft, Error> {
        self.run(Nft::open)?
    }

    /// A connection tracking socket that lives in this namespace, whoever uses it.
    pub fn conntrack(&self) -> Result<Conntrack, Error> {
        self.run(Conntrack::open)?
    }

    /// Makes a new namespace and mounts it at `path`, which is created. `ip netns add`
    ///
    /// # Errors
    /// [`crate::Kind::Exists`] if there is already something at `path`; on failure nothing is left there.
    pub fn create(path: &Path) -> Result<Netns, Error> {
        let name = path.display().to_string();
        let failed = |what: &str, error: std::io::Error| Error::io(format!("{what} {name}"), &error);
        if let Some(directory) = path.parent() {
            prepare_directory(directory)?;
        }
        fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o444)
            .open(path)
            .map_err(|error| failed("create network namespace", error))?;
        let mounted = thread::scope(|scope| {
            let make = || {
                new_network_namespace()?;
                rustix::mount::mount_bind(own(), path)
            };
            match scope.spawn(make).join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        });
        if let Err(errno) = mounted {
            // Best effort: the error that matters is the one we return.
            let _ = fs::remove_file(path);
            return Err(Error::kernel(format!("create network namespace {name}"), errno));
        }
        Netns::open(path)
    }

    /// Unmounts and removes the namespace at `path`. `ip netns delete`
    ///
    /// What is gone is success. Who makes it at the same moment has made the file and not yet mounted anything on it, or
    /// has it taken away under his hands and fails.
    pub fn destroy(path: &Path) -> Result<(), Error> {
        let name = path.display().to_string();
        for _ in 0..REMOVALS_MAX {
            match rustix::mount::unmount(path, UnmountFlags::DETACH) {
                // EINVAL: there is a file, but nothing is mounted on it.
                Ok(()) | Err(Errno::NOENT | Errno::INVAL) => {}
                Err(errno) => return Err(Error::kernel(format!("unmount network namespace {name}"), errno)),
            }
            match fs::remove_file(path) {
                // Mounted in between.
                Err(error) if error.kind() == ErrorKind::ResourceBusy => {}
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(Error::io(format!("remove network namespace {name}"), &error));
                }
                _ => return Ok(()),
            }
        }
        Err(Error::kernel(format!("remove network namespace {name}"), Errno::BUSY))
    }
}

/// How to lock a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Beside other shared ones; waits for exclusive ones to end.
    Shared,
    /// Alone; waits.
    Exclusive,
    /// Alone or not at all: does not wait.
    TryExclusive,
}

/// A held lock.
#[must_use = "dropping it unlocks"]
#[derive(Debug)]
pub struct Locked {
    _file: File,
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Moves this process, whose only thread asks, to the files and programs of the host: the mount namespace and the root of
/// the first process, which is the host's where a container shares its process ids. `nsenter --target 1 --mount --root`
///
/// # Errors
/// [`crate::Kind::Denied`] without the privilege.
pub fn enter_files_of_host() -> Result<(), Error> {
    let step = || "enter the mount namespace of process 1".to_owned();
    let open = |path: &str| File::open(path).map_err(|error| Error::io(format!("open {path}"), &error));
    let (mounts, root) = (open("/proc/1/ns/mnt")?, open("/proc/1/root")?);
    let entered = rustix::thread::move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount))
        .and_then(|()| rustix::process::fchdir(&root))
        .and_then(|()| rustix::process::chroot("."));
    entered.map_err(|errno| Error::kernel(step(), errno))
}

/// The only other `setns` there is.
fn enter(file: &File) -> Result<(), Errno> {
    rustix::thread::move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
}

/// The way back to where the thread was; dropping it takes it.
struct Return(File);

impl Drop for Return {
    fn drop(&mut self) {
        if let Err(errno) = enter(&self.0) {
            eprintln!("return to the own network namespace: {errno}");
            std::process::abort();
        }
    }
}

/// Moves this thread into a fresh network namespace.
fn new_network_namespace() -> Result<(), Errno> {
    #[expect(
        deprecated,
        reason = "its danger is CLONE_FILES pulling descriptors from under the caller; we only ask for a network namespace"
    )]
    rustix::thread::unshare(UnshareFlags::NEWNET)
}

/// As ip-netns(8) does: the directory is a shared mount of its own, so that namespaces mounted in it
/// are seen, and can be removed, everywhere.
fn prepare_directory(directory: &Path) -> Result<(), Error> {
    let name = directory.display().to_string();
    fs::create_dir_all(directory).map_err(|error| Error::io(format!("create directory {name}"), &error))?;
    let share =
        || rustix::mount::mount_change(directory, MountPropagationFlags::SHARED | MountPropagationFlags::REC);
    match share() {
        Ok(()) => Ok(()),
        // EINVAL: not a mount point yet.
        Err(Errno::INVAL) => rustix::mount::mount_bind_recursive(directory, directory)
            .and_then(|()| share())
            .map_err(|errno| Error::kernel(format!("share mount {name}"), errno)),
        Err(errno) => Err(Error::kernel(format!("share mount {name}"), errno)),
    }
}

/// Locks a file of the calling thread's namespace; where it cannot be opened, the namespace.
fn lock_file(path: &str, lock: Lock, most: Duration) -> Result<Locked, Error> {
    match fs::OpenOptions::new().write(true).open(path) {
        Ok(own) => lock_within(own, lock, most).map_err(|errno| Error::kernel(format!("lock {path}"), errno)),
        Err(_) => Netns::own()?.lock_for(lock, most),
    }
}

/// Locks the file, or gives up; flock(2) has no time of its own.
fn lock_within(own: File, lock: Lock, most: Duration) -> Result<Locked, Errno> {
    let (how, most) = match lock {
        Lock::Shared => (FlockOperation::NonBlockingLockShared, most),
        Lock::Exclusive => (FlockOperation::NonBlockingLockExclusive, most),
        Lock::TryExclusive => (FlockOperation::NonBlockingLockExclusive, Duration::ZERO),
    };
    let began = Instant::now();
    loop {
        match rustix::fs::flock(&own, how) {
            Ok(()) => return Ok(Locked { _file: own }),
            Err(Errno::AGAIN) if began.elapsed() < most => thread::sleep(LOCK_LOOK),
            Err(errno) => return Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_namespace_is_absent_and_a_plain_file_cannot_be_entered() {
        let absent = Netns::open(Path::new("/run/netns/no such")).map(|_| ()).unwrap_err();
        assert_eq!(absent.kind(), crate::Kind::Absent);
        let plain = Netns::open(Path::new("/etc/hostname")).map(|_| ()).unwrap_err();
        assert_eq!(plain.to_string(), "open network namespace /etc/hostname: not a namespace");
        assert!(Netns::find(Path::new("/etc/hostname")).unwrap().is_none());
        assert!(Netns::find(Path::new("/no/such")).unwrap().is_none());
    }

    #[test]
    fn the_own_namespace_is_itself() {
        assert_eq!(Netns::own().unwrap().identity(), Netns::own().unwrap().identity());
    }
}
