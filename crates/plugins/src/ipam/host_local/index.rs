//! Index from owners to reservations, so that not every file must be read: a copy of what the directory
//! contains.
//!
//! A reservation file names the owner. With thousands of reservations, reading all files takes longer than the rest of
//! a call. The index is one file in `/run` with 32 bytes for each reservation: half of the owner's hash, and the
//! address. It is only a hint: the files that it leads to are read and compared.
//!
//! Rules:
//! - The directory is the source of truth, and the reference plugin changes it without the index. The index
//!   is valid only while the directory's modification time is, to the nanosecond, the one set with the index.
//!   That time is in the past, so any other change results in another time.
//! - The header is written last, so an interrupted write leaves an invalid index.
//! - If the index is invalid or cannot be written, all files are read once.
//! - Few reservations have no index: to read all files takes less time than to write one.
//!
//! Source: utimensat(2); inode(7) on when a directory's modification time changes.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use linux::boot_id;
use sha2::{Digest, Sha512};

use super::owner::Owner;

/// Time by which the directory's modification time is set back: more than the kernel clock's resolution.
const BACKDATED: Duration = Duration::from_secs(1);

/// Minimum number of reservations for an index.
pub(super) const MIN_RECORDS: usize = 8;

const MAGIC: &[u8; 8] = b"weft-hl1";
const HEADER: usize = 64;
const RECORD: usize = 32;
const HALF: usize = 16;
/// Maximum size for an index that is read, in records.
const RECORDS_MAX: usize = 4 << 20;

type Record = [u8; RECORD];

/// Index in memory.
#[derive(Debug)]
pub struct Index {
    records: Vec<Record>,
    path: PathBuf,
    /// Records whose position in the file differs; `None`: the whole file.
    stale: Option<Vec<usize>>,
    changed: bool,
}

impl Index {
    /// Returns this directory's index, if it is valid; index files are in `index_directory`.
    pub fn load(directory: &File, index_directory: &Path) -> Option<Index> {
        let path = path_for(directory, index_directory)?;
        let mut file = File::open(&path).ok()?;
        let length = usize::try_from(file.metadata().ok()?.len()).ok()?;
        if length > HEADER + RECORDS_MAX * RECORD {
            return None;
        }
        let mut bytes = vec![0; length];
        file.read_exact(&mut bytes).ok()?;
        let (header, records) = bytes.split_at_checked(HEADER)?;
        let (records, rest) = records.as_chunks::<RECORD>();
        let present = header_of(stamp_of(directory)?, records.len())?;
        let counts = header == present && rest.is_empty();
        counts.then(|| Index { records: records.to_vec(), path, stale: Some(Vec::new()), changed: false })
    }

    /// Builds an index from all reservations in this directory.
    pub fn rebuilt<'a>(
        directory: &File,
        index_directory: &Path,
        all: impl Iterator<Item = (&'a Owner, IpAddr)>,
    ) -> Index {
        let records = all.map(|(owner, ip)| record(owner, ip)).collect();
        let path = path_for(directory, index_directory).unwrap_or_default();
        Index { records, path, stale: None, changed: true }
    }

    /// Returns the addresses that this owner holds according to the index.
    pub fn addresses(&self, owner: &Owner) -> Vec<IpAddr> {
        let wanted = key(owner);
        self.records.iter().filter(|record| record[..HALF] == wanted).map(address).collect()
    }

    /// Adds a reservation.
    pub fn insert(&mut self, owner: &Owner, ip: IpAddr) {
        self.touch(self.records.len());
        self.records.push(record(owner, ip));
    }

    /// Removes a reservation.
    pub fn remove(&mut self, ip: IpAddr) {
        let gone = octets(ip);
        if let Some(at) = self.records.iter().position(|record| record[HALF..] == gone) {
            self.records.swap_remove(at);
            self.touch(at);
        }
    }

    fn touch(&mut self, at: usize) {
        self.changed = true;
        if let Some(stale) = &mut self.stale {
            stale.push(at);
        }
    }

    /// Writes the changes, so that the index is valid until another process changes the directory.
    ///
    /// Call it after the last change. Best effort: without an index calls are slower, but correct.
    pub fn save(self, directory: &File) {
        if self.changed {
            let _ = self.try_save(directory);
        }
    }

    fn try_save(self, directory: &File) -> io::Result<()> {
        let Index { records, path, stale, changed: _ } = self;
        if records.len() < MIN_RECORDS {
            fs::remove_file(&path)?;
            // Fails while other indexes exist.
            return fs::remove_dir(path.parent().unwrap_or(&path));
        }
        let file = open(&path)?;
        match stale {
            Some(positions) => {
                for at in positions {
                    if let Some(record) = records.get(at) {
                        file.write_all_at(record, (HEADER + at * RECORD) as u64)?;
                    }
                }
            }
            None => file.write_all_at(records.as_flattened(), HEADER as u64)?,
        }
        file.set_len((HEADER + records.len() * RECORD) as u64)?;
        let stamp = SystemTime::now().checked_sub(BACKDATED).ok_or(io::ErrorKind::Unsupported)?;
        directory.set_times(fs::FileTimes::new().set_modified(stamp))?;
        let header = header_of(stamp, records.len()).ok_or(io::ErrorKind::Unsupported)?;
        file.write_all_at(&header, 0)
    }
}

/// Opens the index for writing; creates it and the directories above it if they do not exist.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let index_directory = path.parent().unwrap_or(path);
            if let Some(run) = index_directory.parent() {
                DirBuilder::new().recursive(true).mode(0o755).create(run)?;
            }
            DirBuilder::new().recursive(true).mode(0o700).create(index_directory)?;
            options.open(path)
        }
        opened => opened,
    }
}

/// Returns the index's path, which is named for the directory's identity, not for a path to it.
fn path_for(directory: &File, index_directory: &Path) -> Option<PathBuf> {
    let meta = directory.metadata().ok()?;
    Some(index_directory.join(format!("{:x}-{:x}", meta.dev(), meta.ino())))
}

fn stamp_of(directory: &File) -> Option<SystemTime> {
    directory.metadata().ok()?.modified().ok()
}

/// Returns the header: magic number, boot, directory time, record count.
fn header_of(stamp: SystemTime, records: usize) -> Option<[u8; HEADER]> {
    let since = stamp.duration_since(UNIX_EPOCH).ok()?;
    let boot: &[u8; 36] = boot_id::current()?.as_bytes().try_into().ok()?;
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(MAGIC);
    header[8..44].copy_from_slice(boot);
    header[44..52].copy_from_slice(&since.as_secs().to_le_bytes());
    header[52..56].copy_from_slice(&since.subsec_nanos().to_le_bytes());
    header[56..].copy_from_slice(&(records as u64).to_le_bytes());
    Some(header)
}

fn key(owner: &Owner) -> [u8; HALF] {
    let mut key = [0; HALF];
    key.copy_from_slice(&Sha512::digest(owner.content())[..HALF]);
    key
}

fn record(owner: &Owner, ip: IpAddr) -> Record {
    let mut record = [0; RECORD];
    record[..HALF].copy_from_slice(&key(owner));
    record[HALF..].copy_from_slice(&octets(ip));
    record
}

/// Returns an address's bytes; IPv4 as the mapped IPv6 address.
fn octets(ip: IpAddr) -> [u8; HALF] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

fn address(record: &Record) -> IpAddr {
    let mut octets = [0; HALF];
    octets.copy_from_slice(&record[HALF..]);
    IpAddr::V6(Ipv6Addr::from(octets)).to_canonical()
}
