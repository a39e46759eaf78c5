//! The directory of a network's reservations, in the reference plugin's format.
//!
//! ```text
//!   <dataDir>/<network>/            0755
//!     10.1.2.3   2001:db8::5        0600  owner; the name is the address
//!     last_reserved_ip.<set>        0600  the address given last: where round robin goes on
//!     lock                                flock(2), exclusive, by whoever reads or changes anything
//! ```
//!
//! Rules:
//! - a reservation appears complete or not at all: it is written without a name and then linked;
//! - names that are no address, and what is no plain file, are not ours;
//! - an address is chosen without reading any file; contents are read only to find an owner's reservations,
//!   and then by the [`Index`].
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
use linux::error::lacks_resources;
use plugin_support::failure::refused;
use plugin_support::log;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RawDir, SeekFrom, linkat, openat, seek};
use rustix::io::{Errno, retry_on_intr};

use super::boot::Boot;
use super::index::Index;
use super::network::Place;
use super::owner::{CONTENT_MAX, Content, Owner};

const LOCK: &str = "lock";
const LAST_RESERVED: &str = "last_reserved_ip.";
/// Room for a part of the directory's list, in bytes: some 400 addresses.
const LIST_ROOM: usize = 16 << 10;
/// Longest address, in bytes.
const ADDRESS_MAX: u64 = 64;

/// How long others may hold the lock.
const LOCK_DEADLINE: Duration = Duration::from_secs(30);
/// How often the lock is looked for before another thread waits for it.
const LOOKS: usize = 20;

/// The directory, locked as long as this value lives.
#[derive(Debug)]
pub struct Store {
    place: Place,
    directory: File,
    _lock: File,
    index: Option<Index>,
    /// A reservation that is written and has no name yet.
    draft: Option<File>,
}

/// One reservation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The address.
    pub ip: IpAddr,
    /// The file's name: the address, perhaps in another notation than ours.
    pub name: String,
}

// === opening ===

impl Store {
    /// Opens the directory, which is made if it is missing.
    pub fn create(place: &Place) -> Result<Store, Error> {
        // Nearly always it is there.
        if !place.directory.is_dir() {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(&place.directory);
            made.map_err(|error| {
                io_error(&format!("create directory {}", place.directory.display()), &error)
            })?;
        }
        Store::open(place)
    }

    /// Opens the directory; `None` if there is none, and then nothing is reserved.
    pub fn find(place: &Place) -> Result<Option<Store>, Error> {
        use io::ErrorKind::{NotADirectory, NotFound};
        match fs::metadata(&place.directory) {
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => Ok(None),
            Ok(meta) if !meta.is_dir() => Ok(None),
            _ => Store::open(place).map(Some),
        }
    }

    fn open(place: &Place) -> Result<Store, Error> {
        let path = place.directory.display();
        let directory = OpenOptions::new()
            .read(true)
            .custom_flags(OFlags::DIRECTORY.bits() as i32)
            .open(&place.directory)
            .map_err(|error| io_error(&format!("open directory {path}"), &error))?;
        let lock = OpenOptions::new()
            .read(true)
            // Read and create: what the reference plugin asks for, and std only offers with writing.
            .custom_flags((OFlags::CREATE | OFlags::NONBLOCK).bits() as i32)
            .mode(0o750)
            .open(place.directory.join(LOCK))
            .map_err(|error| io_error(&format!("open {path}/{LOCK}"), &error))?;
        let lock = wait(lock, &format!("{path}/{LOCK}"))?;
        let index = Index::load(&directory, &place.copies);
        Ok(Store { place: place.clone(), directory, _lock: lock, index, draft: None })
    }

    fn failed(&self, what: &str, name: &str, error: &io::Error) -> Error {
        io_error(&format!("{what} {}/{name}", self.place.directory.display()), error)
    }
}

/// Takes the lock, waiting in the kernel's queue like everybody, but not for ever.
pub fn wait(lock: File, name: &str) -> Result<File, Error> {
    when_locked(lock, name, |lock| lock)
}

/// Does the work once it has the lock; does nothing, and says so, if that takes too long.
///
/// Who has it often gives it back before another thread would have been started. Who has to wait longer waits in another
/// thread, because nothing ends a wait for a lock; and that thread does the work: while the lock would be handed from one
/// to the other, everybody else would wait for the scheduler.
pub fn when_locked<T: Send + 'static>(
    lock: File,
    name: &str,
    work: impl FnOnce(File) -> T + Send + 'static,
) -> Result<T, Error> {
    let done = Arc::new(Mutex::new(None));
    let place = Arc::clone(&done);
    let work = move |lock| {
        let made = work(lock);
        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(made);
    };
    work_locked(lock, name, Box::new(work))?;
    let made = done.lock().unwrap_or_else(PoisonError::into_inner).take();
    made.ok_or_else(|| Error::internal(format!("lock {name}: who had it ended")))
}

/// The same for whatever work: it is in the program once.
fn work_locked(lock: File, name: &str, work: Box<dyn FnOnce(File) + Send>) -> Result<(), Error> {
    let failed = |error: &io::Error| io_error(&format!("lock {name}"), error);
    for _ in 0..LOOKS {
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
    // Whoever sets it first: the one who has the lock, or the one whose patience is over.
    let decided = Arc::new(AtomicBool::new(false));
    let first = Arc::clone(&decided);
    let waiter = move || {
        let locked = lock.lock();
        // Nobody waits any more if it took too long; dropping the file gives the lock back.
        if !first.swap(true, Ordering::AcqRel) {
            let _ = send.send(locked.map(|()| work(lock)));
        }
    };
    std::thread::Builder::new().spawn(waiter).map_err(|error| failed(&error))?;
    let done = match receive.recv_timeout(LOCK_DEADLINE) {
        Err(RecvTimeoutError::Timeout) if !decided.swap(true, Ordering::AcqRel) => {
            return Err(Error::new(
                code::TRY_AGAIN_LATER,
                format!("lock {name}: somebody else has held it for {} s", LOCK_DEADLINE.as_secs()),
            ));
        }
        // It has the lock, and is at work.
        Err(RecvTimeoutError::Timeout) => receive.recv().ok(),
        other => other.ok(),
    };
    // Who ended without a word has left nothing, either.
    done.unwrap_or(Ok(())).map_err(|error| failed(&error))
}

// === reading ===

impl Store {
    /// Every name that is an address. `ls -U`
    ///
    /// Asked of the kernel by the directory that is open: std opens another, and begins musl's allocator for its list.
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

    /// Every address that has a file, whatever is in it.
    pub fn held(&self) -> Result<UsedAddresses, Error> {
        Ok(self.names()?.into_iter().map(|reservation| reservation.ip).collect())
    }

    /// Every reservation with its content.
    pub fn all(&self) -> Result<Vec<(Reservation, Content)>, Error> {
        let mut all = Vec::new();
        for reservation in self.names()? {
            if let Some((content, _)) = self.read(&reservation.name)? {
                all.push((reservation, content));
            }
        }
        Ok(all)
    }

    /// The file of this name and what it says; `None` if there is none.
    fn read(&self, name: &str) -> Result<Option<(Content, Option<File>)>, Error> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match retry_on_intr(|| openat(&self.directory, name, flags, Mode::empty())) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            // It passes; taken for somebody else's, the reservation would never be given back.
            Err(errno) if lacks_resources(&errno.into()) => {
                return Err(self.failed("read", name, &errno.into()));
            }
            Err(Errno::LOOP | Errno::NXIO) => return Ok(Some((Content::Foreign, None))),
            // One such file must not stop every DEL.
            Err(_) => return Ok(Some((Content::Unreadable, None))),
        };
        // One read is enough for what can be ours, and this is done for thousands of files.
        let mut bytes = [0; CONTENT_MAX + 1];
        let content = match retry_on_intr(|| rustix::io::read(&file, &mut bytes)) {
            // An empty file, or a pipe.
            Ok(0) if !file.metadata().is_ok_and(|meta| meta.is_file()) => Content::Foreign,
            Ok(length) => Content::read(&bytes[..length]),
            // A pipe that somebody writes to, a directory.
            Err(Errno::AGAIN | Errno::ISDIR) => Content::Foreign,
            Err(_) => Content::Unreadable,
        };
        Ok(Some((content, Some(file))))
    }

    /// The reservations of this very owner.
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
        self.adopt(&all);
        Ok(all
            .into_iter()
            .filter_map(|(reservation, content)| match content {
                Content::Owned(found) if found == *owner => Some(reservation),
                _ => None,
            })
            .collect())
    }

    /// Takes what was read from all files for the index, if all could be: what is not in it is nobody's.
    fn adopt(&mut self, all: &[(Reservation, Content)]) {
        let unreadable = all.iter().find(|(_, content)| *content == Content::Unreadable);
        if let Some((Reservation { name, .. }, _)) = unreadable {
            let directory = self.place.directory.display();
            log!("host-local: {directory}/{name} cannot be read: whose it is nobody knows");
            self.index = None;
            return;
        }
        let owned = all.iter().filter_map(|(reservation, content)| match content {
            Content::Owned(owner) => Some((owner, reservation.ip)),
            _ => None,
        });
        self.index = Some(Index::rebuilt(&self.directory, &self.place.copies, owned));
    }

    /// Has nobody finished this reservation? A look at its size, nothing more.
    pub fn is_empty(&self, ip: IpAddr) -> bool {
        let meta = fs::symlink_metadata(self.place.directory.join(ip.to_string()));
        meta.is_ok_and(|meta| meta.is_file() && meta.len() == 0)
    }

    /// The reservations among these addresses that nobody can hold: unfinished ones, and those of an
    /// earlier boot.
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

    /// The address that was given last from this range set, if that is known.
    pub fn last_reserved(&self, set: usize) -> Option<IpAddr> {
        let path = self.place.directory.join(format!("{LAST_RESERVED}{set}"));
        let flags = OFlags::NONBLOCK.bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
        let mut text = String::new();
        file.take(ADDRESS_MAX).read_to_string(&mut text).ok()?;
        text.parse::<IpAddr>().ok().map(|ip| ip.to_canonical())
    }
}

// === changing ===

impl Store {
    /// Reserves an address; false if it has a file already.
    ///
    /// # Errors
    /// If it cannot be written; then nothing is left.
    pub fn reserve(&mut self, ip: IpAddr, owner: &Owner) -> Result<bool, Error> {
        let name = ip.to_string();
        let made = match self.link_draft(&name, owner) {
            Some(made) => made,
            None => self.create_whole(&name, owner)?,
        };
        if let (true, Some(index)) = (made, &mut self.index) {
            index.insert(owner, ip);
        }
        Ok(made)
    }

    /// Gives the draft this name: false if there is one, `None` if it cannot be done this way here.
    fn link_draft(&mut self, name: &str, owner: &Owner) -> Option<bool> {
        let draft = match self.draft.take() {
            Some(draft) => draft,
            None => {
                let flags = OFlags::TMPFILE.bits() as i32;
                let mut options = OpenOptions::new();
                options.write(true).custom_flags(flags).mode(0o600);
                let mut draft = options.open(&self.place.directory).ok()?;
                draft.write_all(owner.content().as_bytes()).ok()?;
                note_boot(&draft);
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

    /// As the reference plugin does it: created exclusively, then written.
    fn create_whole(&self, name: &str, owner: &Owner) -> Result<bool, Error> {
        let path = self.place.directory.join(name);
        let mut file = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
            Err(error) => return Err(self.failed("reserve", name, &error)),
        };
        if let Err(error) = file.write_all(owner.content().as_bytes()) {
            // Nothing is left; the error that matters is the one that is returned.
            let _ = fs::remove_file(&path);
            return Err(self.failed("reserve", name, &error));
        }
        note_boot(&file);
        Ok(true)
    }

    /// Writes down where round robin goes on.
    ///
    /// In place, and cut only where the old text was longer: ext4 takes a file that is cut to nothing and
    /// written anew for one that is being replaced, and brings it to the disk at once.
    pub fn remember(&self, set: usize, ip: IpAddr) -> Result<(), Error> {
        let name = format!("{LAST_RESERVED}{set}");
        let text = ip.to_string();
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        options.custom_flags(OFlags::NONBLOCK.bits() as i32);
        let write = || {
            let file = options.open(self.place.directory.join(&name))?;
            file.write_all_at(text.as_bytes(), 0)?;
            match file.metadata()?.len() > text.len() as u64 {
                true => file.set_len(text.len() as u64),
                false => Ok(()),
            }
        };
        write().map_err(|error| self.failed("write", &name, &error))
    }

    /// Gives a reservation back; one that is gone is given back already.
    pub fn release(&mut self, reservation: &Reservation) -> Result<(), Error> {
        let Reservation { ip, name } = reservation;
        match fs::remove_file(self.place.directory.join(name)) {
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

    /// Gives back every reservation for which `stale` says so; what fails is collected.
    pub fn sweep(&mut self, stale: impl Fn(&Content) -> bool) -> Result<(), Error> {
        let (gone, kept): (Vec<_>, Vec<_>) = self.all()?.into_iter().partition(|(_, content)| stale(content));
        let errors = gone.iter().filter_map(|(reservation, _)| self.release(reservation).err()).collect();
        match Error::join(errors) {
            None => {
                self.adopt(&kept);
                Ok(())
            }
            Some(error) => {
                // What is still there, the next call shall see for itself.
                self.index = None;
                Err(error)
            }
        }
    }

    /// Keeps what is known for the next call. To be called after the last change, also after a failure.
    pub fn settle(self) {
        if let Some(index) = self.index {
            index.save(&self.directory);
        }
    }
}

impl Reservation {
    /// The reservation of this address, in our notation.
    pub fn of(ip: IpAddr) -> Reservation {
        Reservation { ip, name: ip.to_string() }
    }
}

fn note_boot(file: &File) {
    if let Some(boot) = Boot::current() {
        boot.mark(file);
    }
}

fn io_error(operation: &str, error: &io::Error) -> Error {
    refused(&linux::Error::io(operation, error))
}

#[cfg(test)]
mod tests;
