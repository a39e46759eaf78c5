//! Network namespaces as values.
//!
//! Only this module calls `setns`: [`Netns::run`] executes a closure inside a namespace. A guard moves the thread back
//! after a result, an error or a panic, so that no other code can run in the wrong namespace.
//!
//! Source: network_namespaces(7), setns(2); ip-netns(8) for named namespaces.

mod cookie;

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
use crate::error::{Error, is_nowhere};
use crate::nft::Nft;
use crate::rtnl::Rtnl;
use crate::thread_netns::path as own;

/// Magic number of the namespace file system (`include/uapi/linux/magic.h`).
const NSFS_MAGIC: i64 = 0x6e73_6673;

/// Number of attempts to remove a namespace that is meanwhile mounted again.
const REMOVALS_MAX: usize = 10;

/// Files that every network namespace has and that only an administrator of the namespace may open: one for the link
/// lock, one for the packet-filter lock. They are never written.
const OF_ADMINISTRATORS: &str = "/proc/sys/net/ipv4/route/flush";
const OF_FILTERS: &str = "/proc/sys/net/ipv4/tcp_fastopen_key";

/// Timeouts for locks in general, and for a lock under which programs run; and the interval between two attempts.
const LOCK_MAX: Duration = Duration::from_secs(10);
const LOCK_OF_PROGRAMS_MAX: Duration = Duration::from_secs(60);
const LOCK_LOOK: Duration = Duration::from_millis(5);

/// Open network namespace, which lives at least as long as this value.
#[derive(Debug)]
pub struct Netns {
    file: File,
    name: String,
}

/// Namespace identity: two open handles refer to the same namespace exactly if the identities are equal. A later
/// namespace may get the identity of a deleted one; see [`Netns::cookie`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    device: u64,
    inode: u64,
}

/// Formats device and inode, as in stat(2).
impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.device, self.inode)
    }
}

impl Identity {
    /// Returns the number that `/proc/PID/ns/net` shows.
    pub fn inode(self) -> u64 {
        self.inode
    }
}

impl Netns {
    /// Opens the namespace at `path` (a bind mount, or `/proc/PID/ns/net`).
    ///
    /// # Errors
    /// [`crate::Kind::Absent`]: the path does not exist. Another kind: it is not a namespace.
    pub fn open(path: &Path) -> Result<Netns, Error> {
        match Netns::open_file(path)? {
            netns if netns.is_namespace()? => Ok(netns),
            netns => {
                Err(Error::protocol(format!("open network namespace {}", netns.name), "not a namespace"))
            }
        }
    }

    /// Opens the namespace at `path`; `None` if the path does not exist, or if it is only the empty file on which the
    /// namespace was mounted.
    pub fn find(path: &Path) -> Result<Option<Netns>, Error> {
        match Netns::open_file(path) {
            Ok(netns) => Ok(netns.is_namespace()?.then_some(netns)),
            Err(error) if error.kind() == crate::Kind::Absent || error.errno().is_some_and(is_nowhere) => {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn is_namespace(&self) -> Result<bool, Error> {
        match rustix::fs::fstatfs(&self.file) {
            Ok(stat) => Ok(stat.f_type == NSFS_MAGIC),
            Err(errno) => Err(Error::io(format!("identify {}", self.name), &errno.into())),
        }
    }

    fn open_file(path: &Path) -> Result<Netns, Error> {
        let name = path.display().to_string();
        // The path is untrusted and may be any file: it must neither become the controlling terminal nor block.
        let flags = (rustix::fs::OFlags::NOCTTY | rustix::fs::OFlags::NONBLOCK).bits();
        match fs::OpenOptions::new().read(true).custom_flags(flags as i32).open(path) {
            Ok(file) => Ok(Netns { file, name }),
            Err(error) => Err(Error::io(format!("open network namespace {name}"), &error)),
        }
    }

    /// Opens this thread's namespace.
    pub fn own() -> Result<Netns, Error> {
        // The kernel provides this path, so it is a namespace.
        Netns::open_file(Path::new(own()))
    }

    /// Returns the namespace identity.
    pub fn identity(&self) -> Result<Identity, Error> {
        match self.file.metadata() {
            Ok(meta) => Ok(Identity { device: meta.dev(), inode: meta.ino() }),
            Err(error) => Err(Error::io(format!("stat network namespace {}", self.name), &error)),
        }
    }

    /// Returns the namespace cookie. Unlike an inode number, the kernel never gives it to another namespace during this
    /// boot. `None` on kernels before 5.14.
    pub fn cookie(&self) -> Option<u64> {
        self.run(cookie::own).ok().flatten()
    }

    /// Runs `work` inside the namespace. `ip netns exec …`
    ///
    /// The calling thread enters the namespace and returns, even if `work` panics; a separate thread would cost a tenth
    /// of a whole ADD. If the thread cannot return, the process aborts, because it would otherwise continue in the
    /// wrong namespace. The journal records the unfinished work.
    ///
    /// # Errors
    /// The namespace cannot be entered: it is not a network namespace, or permission is denied.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> Result<T, Error> {
        let back = Return(Netns::own()?.file);
        enter(&self.file)
            .map_err(|errno| Error::kernel(format!("enter network namespace {}", self.name), errno))?;
        let result = work();
        drop(back);
        Ok(result)
    }

    /// Locks the namespace, in the same way as [`Netns::lock_own`] does from inside.
    ///
    /// # Errors
    /// Those from [`Netns::lock_own`] and from [`Netns::run`].
    pub fn lock(&self, lock: Lock) -> Result<Locked, Error> {
        self.run(|| Netns::lock_own(lock))?
    }

    /// Locks the namespace file. `flock PATH`. Every process that can open the namespace can hold this lock.
    fn lock_for(&self, lock: Lock, most: Duration) -> Result<Locked, Error> {
        let operation = || format!("lock network namespace {}", self.name);
        // A lock belongs to the open file, and a clone would share it, so the file must be opened again.
        let own = File::open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))
            .map_err(|error| Error::io(operation(), &error))?;
        lock_within(own, lock, most).map_err(|errno| Error::kernel(operation(), errno))
    }

    /// Locks the calling thread's namespace on a file that only an administrator of the namespace may open. The lock
    /// leaves no file behind and ends with the returned value. If `/proc/sys` is read-only, that file cannot be opened,
    /// and the namespace file is locked instead, which other users can also do.
    ///
    /// # Errors
    /// [`crate::Kind::TimedOut`] after [`LOCK_MAX`], or at once with [`Lock::TryExclusive`].
    pub fn lock_own(lock: Lock) -> Result<Locked, Error> {
        lock_file(OF_ADMINISTRATORS, lock, LOCK_MAX)
    }

    /// Locks the packet filter in the calling thread's namespace, like [`Netns::lock_own`]; if `/proc/sys` is
    /// read-only, both are the same lock. A program that is started under the lock holds it until it exits, even if the
    /// parent is killed.
    ///
    /// # Errors
    /// Those from [`Netns::lock_own`], but only after a minute, because many processes may hold the lock first, each
    /// with several programs.
    pub fn lock_filters(lock: Lock) -> Result<Locked, Error> {
        let locked = lock_file(OF_FILTERS, lock, LOCK_OF_PROGRAMS_MAX)?;
        rustix::io::fcntl_setfd(&locked._file, FdFlags::empty())
            .map_err(|errno| Error::kernel("share the lock of the packet filter".to_owned(), errno))?;
        Ok(locked)
    }

    /// Opens a routing socket in this namespace, which any thread may use.
    pub fn rtnl(&self) -> Result<Rtnl, Error> {
        self.run(Rtnl::open)?
    }

    /// Opens an nf_tables socket in this namespace, which any thread may use.
    pub fn nft(&self) -> Result<Nft, Error> {
        self.run(Nft::open)?
    }

    /// Opens a connection tracking socket in this namespace, which any thread may use.
    pub fn conntrack(&self) -> Result<Conntrack, Error> {
        self.run(Conntrack::open)?
    }

    /// Creates a namespace and mounts it at `path`, which is created. `ip netns add`
    ///
    /// # Errors
    /// [`crate::Kind::Exists`]: `path` exists. After a failure nothing is left there.
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
            // Best effort: the caller must get the first error.
            let _ = fs::remove_file(path);
            return Err(Error::kernel(format!("create network namespace {name}"), errno));
        }
        Netns::open(path)
    }

    /// Unmounts and removes the namespace at `path`. `ip netns delete`
    ///
    /// A missing namespace is not an error. If another process creates it at the same moment, either the file is
    /// removed before it is mounted and that process fails, or the new namespace is removed.
    pub fn destroy(path: &Path) -> Result<(), Error> {
        let name = path.display().to_string();
        for _ in 0..REMOVALS_MAX {
            match rustix::mount::unmount(path, UnmountFlags::DETACH) {
                // EINVAL: the file exists, but nothing is mounted on it.
                Ok(()) | Err(Errno::NOENT | Errno::INVAL) => {}
                Err(errno) => return Err(Error::kernel(format!("unmount network namespace {name}"), errno)),
            }
            match fs::remove_file(path) {
                // It was mounted since the last attempt.
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

/// Lock mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lock {
    /// Shares the lock with other shared locks, and waits for exclusive ones.
    Shared,
    /// Exclusive; waits.
    Exclusive,
    /// Exclusive; does not wait.
    TryExclusive,
}

/// Lock that is held until it is dropped.
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

/// Moves this single-threaded process to the host's files and programs: the mount namespace and root directory of
/// process 1, which is the host's if the container shares its process ids. `nsenter --target 1 --mount --root`
///
/// # Errors
/// [`crate::Kind::Denied`]: the privilege is missing.
pub fn enter_host_mount_namespace() -> Result<(), Error> {
    let step = || "enter the mount namespace of process 1".to_owned();
    let open = |path: &str| File::open(path).map_err(|error| Error::io(format!("open {path}"), &error));
    let (mounts, root) = (open("/proc/1/ns/mnt")?, open("/proc/1/root")?);
    let entered = rustix::thread::move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount))
        .and_then(|()| rustix::process::fchdir(&root))
        .and_then(|()| rustix::process::chroot("."));
    entered.map_err(|errno| Error::kernel(step(), errno))
}

/// Enters a network namespace: the only other place that calls `setns`.
fn enter(file: &File) -> Result<(), Errno> {
    rustix::thread::move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
}

/// Guard that moves the thread back to the previous namespace when it is dropped.
struct Return(File);

impl Drop for Return {
    fn drop(&mut self) {
        if let Err(errno) = enter(&self.0) {
            eprintln!("return to this thread's network namespace: {errno}");
            std::process::abort();
        }
    }
}

/// Moves this thread into a new network namespace.
fn new_network_namespace() -> Result<(), Errno> {
    #[expect(
        deprecated,
        reason = "its danger is CLONE_FILES, which takes descriptors from the caller; this call only asks for a network namespace"
    )]
    rustix::thread::unshare(UnshareFlags::NEWNET)
}

/// Makes the directory a shared mount, as ip-netns(8) does, so that namespaces mounted in it are visible in every mount
/// namespace and can be removed there.
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

/// Locks a file in the calling thread's namespace, or the namespace itself if the file cannot be opened.
fn lock_file(path: &str, lock: Lock, most: Duration) -> Result<Locked, Error> {
    match fs::OpenOptions::new().write(true).open(path) {
        Ok(own) => lock_within(own, lock, most).map_err(|errno| Error::kernel(format!("lock {path}"), errno)),
        Err(_) => Netns::own()?.lock_for(lock, most),
    }
}

/// Locks the file within a time limit. It polls, because flock(2) has no timeout.
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
    fn netns_missing_or_plain_file_cannot_be_opened() {
        let absent = Netns::open(Path::new("/run/netns/no such")).map(|_| ()).unwrap_err();
        assert_eq!(absent.kind(), crate::Kind::Absent);
        let plain = Netns::open(Path::new("/etc/hostname")).map(|_| ()).unwrap_err();
        assert_eq!(plain.to_string(), "open network namespace /etc/hostname: not a namespace");
        assert!(Netns::find(Path::new("/etc/hostname")).unwrap().is_none());
        assert!(Netns::find(Path::new("/no/such")).unwrap().is_none());
    }

    #[test]
    fn netns_own_has_a_stable_identity() {
        assert_eq!(Netns::own().unwrap().identity(), Netns::own().unwrap().identity());
        assert_eq!(Netns::own().unwrap().cookie(), cookie::own());
    }
}
