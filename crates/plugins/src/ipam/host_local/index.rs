//! Who holds which address, without reading a file for each: a copy of what the directory says.
//!
//! An attachment's reservations are found by the content of files, and with thousands of them reading all
//! takes longer than everything else. The copy is one file in `/run`, 32 bytes for each reservation: half of
//! a hash of the owner, and the address. It is only ever a hint; what it leads to is read and compared.
//!
//! Rules:
//! - the directory is the truth, and the reference plugin changes it without knowing of us: the copy counts
//!   only while the directory's modification time is, to the nanosecond, the one that we gave it last. We
//!   give it a time that has passed already, so any change by anybody else gives it another one;
//! - the header is written last: whatever dies half-way leaves a copy that does not count;
//! - a copy that does not count, or cannot be written, costs one reading of all files and nothing else;
//! - of few reservations there is no copy: to read them all takes less time than to keep one.
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

/// How far in the past the time lies that we give a directory: more than the kernel's clock is coarse.
const BACKDATED: Duration = Duration::from_secs(1);

/// From so many reservations on there is a copy.
pub(super) const FEWEST: usize = 8;

const MAGIC: &[u8; 8] = b"weft-hl1";
const HEADER: usize = 64;
const RECORD: usize = 32;
const HALF: usize = 16;
/// Largest copy read, in records.
const RECORDS_MAX: usize = 4 << 20;

type Record = [u8; RECORD];

/// The copy, in memory.
#[derive(Debug)]
pub struct Index {
    records: Vec<Record>,
    path: PathBuf,
    /// Records whose place in the file differs; `None`: the whole file does.
    stale: Option<Vec<usize>>,
    changed: bool,
}

impl Index {
    /// The copy of this directory, if it counts; copies are kept in `copies`.
    pub fn load(directory: &File, copies: &Path) -> Option<Index> {
        let path = path_for(directory, copies)?;
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

    /// A copy made anew from all owned addresses of this directory.
    pub fn rebuilt<'a>(
        directory: &File,
        copies: &Path,
        all: impl Iterator<Item = (&'a Owner, IpAddr)>,
    ) -> Index {
        let records = all.map(|(owner, ip)| record(owner, ip)).collect();
        let path = path_for(directory, copies).unwrap_or_default();
        Index { records, path, stale: None, changed: true }
    }

    /// The addresses that this owner holds, as far as the copy knows.
    pub fn addresses(&self, owner: &Owner) -> Vec<IpAddr> {
        let wanted = key(owner);
        self.records.iter().filter(|record| record[..HALF] == wanted).map(address).collect()
    }

    /// A reservation was made.
    pub fn insert(&mut self, owner: &Owner, ip: IpAddr) {
        self.touch(self.records.len());
        self.records.push(record(owner, ip));
    }

    /// A reservation was given back.
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

    /// Writes what changed, so that it counts until somebody else changes the directory.
    ///
    /// Call it after the last change. Best effort: without a copy we are slow, not wrong.
    pub fn save(self, directory: &File) {
        if self.changed {
            let _ = self.try_save(directory);
        }
    }

    fn try_save(self, directory: &File) -> io::Result<()> {
        let Index { records, path, stale, changed: _ } = self;
        if records.len() < FEWEST {
            fs::remove_file(&path)?;
            // Only if it was the last.
            return fs::remove_dir(path.parent().unwrap_or(&path));
        }
        let file = open(&path)?;
        match stale {
            Some(places) => {
                for at in places {
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

/// Opens the copy for writing, and makes it and the directories above where they are missing.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).mode(0o600);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let copies = path.parent().unwrap_or(path);
            if let Some(run) = copies.parent() {
                DirBuilder::new().recursive(true).mode(0o755).create(run)?;
            }
            DirBuilder::new().recursive(true).mode(0o700).create(copies)?;
            options.open(path)
        }
        opened => opened,
    }
}

/// Named for the directory's identity, not for a path to it.
fn path_for(directory: &File, copies: &Path) -> Option<PathBuf> {
    let meta = directory.metadata().ok()?;
    Some(copies.join(format!("{:x}-{:x}", meta.dev(), meta.ino())))
}

fn stamp_of(directory: &File) -> Option<SystemTime> {
    directory.metadata().ok()?.modified().ok()
}

/// Magic, boot, time of the directory, number of records.
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

/// An IPv4 address as the IPv6 address it is mapped to.
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
