//! The directory of a network's reservations, in the reference plugin's format.
//!
//! ```text
//!   <dataDir>/<network>/            0755
//!     10.1.2.3   2001:db8::5        0600  owner; the name is the address
//!     last_reserved_ip.<set>        0600  last allocated address: round robin continues after it
//!     lock                                flock(2), exclusive, for every read and change
//! ```
//!
//! Rules:
//! - A reservation appears complete or not at all: the file is written without a name and then linked.
//! - Names that are no address, and entries that are no regular file, are left alone.
//! - An address is chosen without reading any file. Files are read only to find an owner's reservations, and then with
//!   the help of the [`Index`].
//!
//! Source: plugins `plugins/ipam/host-local/backend/disk`; open(2) `O_TMPFILE`; flock(2).

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cni::{Error, code};
use ipam::UsedAddresses;
use linux::error::{lacks_resources, leads_nowhere};
use plugin_support::failure::refused;
use plugin_support::log;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, SeekFrom, linkat, openat, seek};
use rustix::io::{Errno, retry_on_intr};

use super::boot::Boot;
use super::index::Index;
use super::lock_holder;
use super::owner::{CONTENT_MAX, Content, Owner};
use plugin_config::host_local::StoreLocation;

const LOCK: &str = "lock";
const LAST_RESERVED: &str = "last_reserved_ip.";
/// Buffer for a part of the directory list, in bytes: about 400 addresses.
const LIST_ROOM: usize = 16 << 10;
/// Maximum length for an address, in bytes.
const ADDRESS_MAX: u64 = 64;

/// Timeout for the lock.
const LOCK_TIMEOUT: Duration = Duration::from_secs(30);
/// Number of attempts to take the lock before another thread waits for it.
const ATTEMPTS: usize = 20;

/// Directory with reservations, locked as long as this value lives.
#[derive(Debug)]
pub struct Store {
    location: StoreLocation,
    directory: File,
    _lock: File,
    index: Option<Index>,
    /// Reservation that is written and has no name yet.
    draft: Option<File>,
}

/// Reservation for one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Address that is reserved.
    pub ip: IpAddr,
    /// File name: the address, possibly in another notation.
    pub name: String,
}

// === opening ===

impl Store {
    /// Opens the directory, and creates it if it does not exist.
    pub fn create(location: &StoreLocation) -> Result<Store, Error> {
        // In most cases it exists.
        if !location.directory.is_dir() {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(&location.directory);
            made.map_err(|error| {
                io_error(&format!("create directory {}", location.directory.display()), &error)
            })?;
        }
        Store::open(location)
    }

    /// Opens the directory; `None` if no directory can be at that path, and then nothing is reserved.
    pub fn find(location: &StoreLocation) -> Result<Option<Store>, Error> {
        match fs::metadata(&location.directory) {
            Err(error) if leads_nowhere(&error) => Ok(None),
            Ok(meta) if !meta.is_dir() => Ok(None),
            _ => Store::open(location).map(Some),
        }
    }

    fn open(location: &StoreLocation) -> Result<Store, Error> {
        let path = location.directory.display();
        let directory = OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::DIRECTORY.bits() as i32)
            .open(&location.directory)
            .map_err(|error| io_error(&format!("open directory {path}"), &error))?;
        let lock = OpenOptions::new()
            .read(true)
            // Read and create, as in the reference plugin; std offers "create" only with write access.
            .custom_flags((OFlags::CREATE | OFlags::NONBLOCK).bits() as i32)
            .mode(0o750)
            .open(location.directory.join(LOCK))
            .map_err(|error| io_error(&format!("open {path}/{LOCK}"), &error))?;
        let lock = wait(lock, &format!("{path}/{LOCK}"))?;
        let index = Index::load(&directory, &location.index_directory);
        Ok(Store { location: location.clone(), directory, _lock: lock, index, draft: None })
    }

    fn failed(&self, what: &str, name: &str, error: &io::Error) -> Error {
        io_error(&format!("{what} {}/{name}", self.location.directory.display()), error)
    }
}

/// Takes the lock. Waits in the kernel's queue, up to the timeout.
pub fn wait(lock: File, name: &str) -> Result<File, Error> {
    when_locked(lock, name, |lock| lock)
}

/// Runs `work` once it has the lock.
///
/// A lock is often released faster than a thread can be started, so it is tried several times first. A longer wait
/// needs another thread, because a wait for a lock has no timeout. That thread then does the work: to hand the lock to
/// the caller's thread would make all other waiters wait for the scheduler.
///
/// # Errors
/// The wait takes too long; then the work is not done.
pub fn when_locked<T: Send + 'static>(
    lock: File,
    name: &str,
    work: impl FnOnce(File) -> T + Send + 'static,
) -> Result<T, Error> {
    let done = Arc::new(Mutex::new(None));
    let location = Arc::clone(&done);
    let work = move |lock| {
        let made = work(lock);
        *location.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
    };
    work_locked(lock, name, Box::new(work))?;
    let made = done.lock().unwrap_or_else(PoisonError::into_inner).take();
    made.ok_or_else(|| Error::internal(format!("lock {name}: the thread that had it ended")))
}

/// Non-generic part of [`when_locked`].
fn work_locked(lock: File, name: &str, work: Box<dyn FnOnce(File) + Send>) -> Result<(), Error> {
    let failed = |error: &io::Error| io_error(&format!("lock {name}"), error);
    let identity = lock_holder::identity(&lock);
    for _ in 0..ATTEMPTS {
        match lock.try_lock() {
            Ok(()) => {
                work(lock);
                return Ok(());
            }
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            Err(TryLockError::Error(error)) => return Err(failed(&error)),
        }
    }
    let (send, receive) = mpsc::channel();
    // Set by the first of: the thread that gets the lock, and the caller after its timeout.
    let decided = Arc::new(AtomicBool::new(false));
    let first = Arc::clone(&decided);
    let waiter = move || {
        let locked = lock.lock();
        // After the timeout no caller waits; dropping the file releases the lock.
        if !first.swap(true, Ordering::AcqRel) {
            let _ = send.send(locked.map(|()| work(lock)));
        }
    };
    std::thread::Builder::new().spawn(waiter).map_err(|error| failed(&error))?;
    let done = match receive.recv_timeout(LOCK_TIMEOUT) {
        Err(RecvTimeoutError::Timeout) if !decided.swap(true, Ordering::AcqRel) => {
            let holder = lock_holder::find(identity).unwrap_or_else(|| "another process".to_owned());
            return Err(Error::new(
                code::TRY_AGAIN_LATER,
                format!("lock {name}: {holder} has held it for {} s", LOCK_TIMEOUT.as_secs()),
            ));
        }
        // The thread has the lock and does the work.
        Err(RecvTimeoutError::Timeout) => receive.recv().ok(),
        other => other.ok(),
    };
    // A thread that ended without a message has done nothing.
    done.unwrap_or(Ok(())).map_err(|error| failed(&error))
}

// === reading ===

impl Store {
    /// Returns every name that is an address. `ls -U`
    ///
    /// Lists with the open directory: std would open another one, and listing it would initialize musl's allocator.
    fn names(&self) -> Result<Vec<Reservation>, Error> {
        let failed = |errno: Errno| self.failed("list", "", &errno.into());
        seek(&self.directory, SeekFrom::Start(0)).map_err(failed)?;
        let mut room = [MaybeUninit::uninit(); LIST_ROOM];
        let mut entries = RawDir::new(&self.directory, &mut room);
        let mut all = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if let Ok(ip) = name.parse::<IpAddr>() {
                all.push(Reservation { ip: ip.to_canonical(), name: name.to_owned() });
            }
        }
        Ok(all)
    }

    /// Returns every address that has a file, whatever it contains.
    pub fn held(&self) -> Result<UsedAddresses, Error> {
        Ok(self.names()?.into_iter().map(|reservation| reservation.ip).collect())
    }

    /// Returns every reservation with the file content.
    pub fn all(&self) -> Result<Vec<(Reservation, Content)>, Error> {
        let mut all = Vec::new();
        for reservation in self.names()? {
            if let Some((content, _)) = self.read(&reservation.name)? {
                all.push((reservation, content));
            }
        }
        Ok(all)
    }

    /// Opens a file and decodes it; `None` if it does not exist.
    fn read(&self, name: &str) -> Result<Option<(Content, Option<File>)>, Error> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match retry_on_intr(|| openat(&self.directory, name, flags, Mode::empty())) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            // A temporary error. If the file counted as another program's, it would never be released.
            Err(errno) if lacks_resources(&errno.into()) => {
                return Err(self.failed("read", name, &errno.into()));
            }
            Err(Errno::LOOP | Errno::NXIO) => return Ok(Some((Content::Foreign, None))),
            // One unreadable file must not fail every call: DEL decides whether it may be its own.
            Err(_) => return Ok(Some((Content::Unreadable, None))),
        };
        // One read is enough for a plugin's content, and thousands of files are read.
        let mut bytes = [0; CONTENT_MAX + 1];
        let content = match retry_on_intr(|| rustix::io::read(&file, &mut bytes)) {
            // Empty file or pipe.
            Ok(0) if !file.metadata().is_ok_and(|meta| meta.is_file()) => Content::Foreign,
            Ok(length) => Content::read(&bytes[..length]),
            // Pipe with a writer, or directory.
            Err(Errno::AGAIN | Errno::ISDIR) => Content::Foreign,
            Err(_) => Content::Unreadable,
        };
        Ok(Some((content, Some(file))))
    }

    /// Returns the reservations that exactly this owner has.
    pub fn held_by(&mut self, owner: &Owner) -> Result<Vec<Reservation>, Error> {
        if let Some(index) = &self.index {
            let hints: Vec<Reservation> = index.addresses(owner).into_iter().map(Reservation::of).collect();
            let mut confirmed = true;
            for hint in &hints {
                let content = self.read(&hint.name)?.map(|(content, _)| content);
                confirmed &= matches!(content, Some(Content::Owned(found)) if found == *owner);
            }
            if confirmed {
                return Ok(hints);
            }
        }
        let all = self.all()?;
        self.rebuild_index(&all);
        Ok(all
            .into_iter()
            .filter_map(|(reservation, content)| match content {
                Content::Owned(found) if found == *owner => Some(reservation),
                _ => None,
            })
            .collect())
    }

    /// Fails if a reservation cannot be read that may be the caller's: for one of these addresses, or any if
    /// they are unknown. The next call may read it.
    pub fn require_readable(&self, addresses: Option<&[IpAddr]>) -> Result<(), Error> {
        let reservations = match addresses {
            Some(addresses) => addresses.iter().copied().map(Reservation::of).collect(),
            None => self.names()?,
        };
        for reservation in reservations {
            if let Some((Content::Unreadable, _)) = self.read(&reservation.name)? {
                let path = self.location.directory.join(&reservation.name);
                let why =
                    format!("{}: the reservation cannot be read, so its owner is unknown", path.display());
                let hint = "repair the file system, or remove the file if its address is not in use";
                return Err(Error::new(code::IO_FAILURE, why).details(hint));
            }
        }
        Ok(())
    }

    /// Rebuilds the index from all files, unless one is unreadable: an index must be complete.
    fn rebuild_index(&mut self, all: &[(Reservation, Content)]) {
        let unreadable = all.iter().find(|(_, content)| *content == Content::Unreadable);
        if let Some((Reservation { name, .. }, _)) = unreadable {
            let directory = self.location.directory.display();
            log!("host-local: {directory}/{name} cannot be read, so its owner is unknown");
            self.index = None;
            return;
        }
        let owned = all.iter().filter_map(|(reservation, content)| match content {
            Content::Owned(owner) => Some((owner, reservation.ip)),
            _ => None,
        });
        self.index = Some(Index::rebuilt(&self.directory, &self.location.index_directory, owned));
    }

    /// Whether the reservation was never completed. Reads only the file size.
    pub fn is_empty(&self, ip: IpAddr) -> bool {
        let meta = fs::symlink_metadata(self.location.directory.join(ip.to_string()));
        meta.is_ok_and(|meta| meta.is_file() && meta.len() == 0)
    }

    /// Returns the reservations among these addresses that no attachment can hold: incomplete ones, and those
    /// from an earlier boot.
    pub fn abandoned(&self, among: impl Fn(IpAddr) -> bool) -> Result<Vec<Reservation>, Error> {
        let boot = Boot::current();
        let mut abandoned = Vec::new();
        for reservation in self.names()?.into_iter().filter(|reservation| among(reservation.ip)) {
            let free = match self.read(&reservation.name)? {
                Some((Content::Unfinished, _)) => true,
                Some((Content::Owned(_), Some(file))) => {
                    boot.as_ref().is_some_and(|boot| boot.is_after(&file))
                }
                _ => false,
            };
            if free {
                abandoned.push(reservation);
            }
        }
        Ok(abandoned)
    }

    /// Returns the address that was last allocated from this range set, if it is known.
    pub fn last_reserved(&self, set: usize) -> Option<IpAddr> {
        let path = self.location.directory.join(format!("{LAST_RESERVED}{set}"));
        let flags = OFlags::NONBLOCK.bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
        let mut text = String::new();
        file.take(ADDRESS_MAX).read_to_string(&mut text).ok()?;
        text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
    }
}

// === changing ===

impl Store {
    /// Reserves an address; returns false if it has a file already.
    ///
    /// # Errors
    /// The file cannot be written; then nothing is left.
    pub fn reserve(&mut self, ip: IpAddr, owner: &Owner) -> Result<bool, Error> {
        let name = ip.to_string();
        let made = match self.link_draft(&name, owner) {
            Some(made) => made,
            None => self.create_exclusively(&name, owner)?,
        };
        if let (true, Some(index)) = (made, &mut self.index) {
            index.insert(owner, ip);
        }
        Ok(made)
    }

    /// Links the draft under this name: false if the name exists, `None` if the file system does not support it.
    fn link_draft(&mut self, name: &str, owner: &Owner) -> Option<bool> {
        let draft = match self.draft.take() {
            Some(draft) => draft,
            None => {
                let flags = OFlags::TMPFILE.bits() as i32;
                let mut options = OpenOptions::new();
                options.write(true).custom_flags(flags).mode(0o600);
                let mut draft = options.open(&self.location.directory).ok()?;
                draft.write_all(owner.content().as_bytes()).ok()?;
                set_boot(&draft);
                draft
            }
        };
        let source = format!("/proc/self/fd/{}", draft.as_raw_fd());
        match linkat(CWD, source, &self.directory, name, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) => Some(true),
            Err(Errno::EXIST) => {
                self.draft = Some(draft);
                Some(false)
            }
            Err(_) => None,
        }
    }

    /// Creates a reservation as the reference plugin does: creates the file exclusively, then writes it.
    fn create_exclusively(&self, name: &str, owner: &Owner) -> Result<bool, Error> {
        let path = self.location.directory.join(name);
        let mut file = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
            Err(error) => return Err(self.failed("reserve", name, &error)),
        };
        if let Err(error) = file.write_all(owner.content().as_bytes()) {
            // Best effort: the original error is returned.
            let _ = fs::remove_file(&path);
            return Err(self.failed("reserve", name, &error));
        }
        set_boot(&file);
        Ok(true)
    }

    /// Writes the address after which round robin continues.
    ///
    /// The file is written in place, and truncated only if the old content was longer. If a file is truncated to zero
    /// and rewritten, ext4 treats it as a replacement and writes it to the disk at once.
    pub fn set_last_reserved(&self, set: usize, ip: IpAddr) -> Result<(), Error> {
        let name = format!("{LAST_RESERVED}{set}");
        let text = ip.to_string();
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        options.custom_flags(OFlags::NONBLOCK.bits() as i32);
        let write = || {
            let file = options.open(self.location.directory.join(&name))?;
            file.write_all_at(text.as_bytes(), 0)?;
            match file.metadata()?.len() > text.len() as u64 {
                true => file.set_len(text.len() as u64),
                false => Ok(()),
            }
        };
        write().map_err(|error| self.failed("write", &name, &error))
    }

    /// Releases a reservation; one that does not exist counts as released.
    pub fn release(&mut self, reservation: &Reservation) -> Result<(), Error> {
        let Reservation { ip, name } = reservation;
        match fs::remove_file(self.location.directory.join(name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(self.failed("release", name, &error));
            }
            _ => {}
        }
        if let Some(index) = &mut self.index {
            index.remove(*ip);
        }
        Ok(())
    }

    /// Releases every reservation for which `stale` is true; errors are collected.
    pub fn sweep(&mut self, stale: impl Fn(&Content) -> bool) -> Result<(), Error> {
        let (gone, kept): (Vec<_>, Vec<_>) = self.all()?.into_iter().partition(|(_, content)| stale(content));
        let errors = gone.iter().filter_map(|(reservation, _)| self.release(reservation).err()).collect();
        match Error::join(errors) {
            None => {
                self.rebuild_index(&kept);
                Ok(())
            }
            Some(error) => {
                // The next call reads all files.
                self.index = None;
                Err(error)
            }
        }
    }

    /// Saves the index for the next call. Call it after the last change, also after a failure.
    pub fn save_index(self) {
        if let Some(index) = self.index {
            index.save(&self.directory);
        }
    }
}

impl Reservation {
    /// Returns this address's reservation, in canonical notation.
    pub fn of(ip: IpAddr) -> Reservation {
        Reservation { ip, name: ip.to_string() }
    }
}

fn set_boot(file: &File) {
    if let Some(boot) = Boot::current() {
        boot.label(file);
    }
}

fn io_error(operation: &str, error: &io::Error) -> Error {
    refused(&linux::Error::io(operation, error))
}

#[cfg(test)]
mod tests;
