//! In which boot of which machine a reservation was made: a note that only we read.
//!
//! The note is an extended attribute of the reservation's file, so the reference plugin never sees it, and
//! it goes with the file. A reservation is taken for one of an earlier boot only on all of this evidence:
//!
//! - the note is there (the reference plugin leaves none: its reservations are never judged);
//! - it names this machine, and another boot than the present one;
//! - the file is older than the present boot, by the clock;
//! - the file system is one that a single kernel writes: nobody else has it mounted.
//!
//! The network namespace that such an address was given to is gone, whatever the container's id: namespaces
//! do not outlive a kernel. Even so it is taken back only where an ADD would fail otherwise.
//!
//! Source: random(4) `boot_id`; machine-id(5), which asks for its id not to be shown: a hash is written.

use std::fs::File;
use std::time::{Duration, SystemTime};

use linux::boot_id;
use plugin_support::hash::hashed;
use rustix::fs::{XattrFlags, fgetxattr, fsetxattr, fstatfs};

/// The name of the note.
const ATTRIBUTE: &str = "user.weft.boot";
/// Longest note, in bytes.
const NOTE_MAX: usize = 128;

/// The machine we are on; the same for ever.
const MACHINE_ID: &str = "/etc/machine-id";
/// Seconds since boot, sleep included.
const UPTIME: &str = "/proc/uptime";

/// File systems of one kernel: ext2/3/4, XFS, Btrfs, F2FS, ZFS, tmpfs, overlayfs; statfs(2).
const LOCAL: [i64; 7] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x2fc1_2fc1, 0x0102_1994, 0x794c_7630];

/// A machine and one of its boots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot {
    machine: String,
    id: String,
}

impl Boot {
    /// The present one; `None` where machine or boot have no id.
    pub fn current() -> Option<Boot> {
        let machine = std::fs::read_to_string(MACHINE_ID).ok()?;
        // Not yet set, it is empty or a word.
        let machine = Some(machine.trim()).filter(|id| id.len() == 32)?;
        Some(Boot { machine: hashed("", 32, &["host-local", machine]), id: boot_id::current()?.to_owned() })
    }

    /// Leaves the note on a file. Best effort: not every file system has room for one.
    pub fn mark(&self, file: &File) {
        let note = format!("{}/{}", self.machine, self.id);
        let _ = fsetxattr(file, ATTRIBUTE, note.as_bytes(), XattrFlags::empty());
    }

    /// Is this file of an earlier boot of this machine? Only on all evidence.
    pub fn is_after(&self, file: &File) -> bool {
        let mut note = [0; NOTE_MAX];
        let Ok(length) = fgetxattr(file, ATTRIBUTE, &mut note) else { return false };
        let Some(note) = note.get(..length).and_then(|note| std::str::from_utf8(note).ok()) else {
            return false;
        };
        let Some((machine, id)) = note.split_once('/') else { return false };
        let older = || {
            let written = file.metadata().and_then(|meta| meta.modified()).ok()?;
            Some(written < began()?)
        };
        let local = || fstatfs(file).is_ok_and(|stat| LOCAL.contains(&stat.f_type));
        machine == self.machine && id != self.id && older() == Some(true) && local()
    }
}

/// When the present boot began, by the clock.
fn began() -> Option<SystemTime> {
    let text = std::fs::read_to_string(UPTIME).ok()?;
    let seconds: f64 = text.split_whitespace().next()?.parse().ok()?;
    SystemTime::now().checked_sub(Duration::try_from_secs_f64(seconds).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str) -> (std::path::PathBuf, File) {
        let path = std::env::temp_dir().join(format!("weft-boot-{name}-{}", std::process::id()));
        (path.clone(), File::create(path).unwrap())
    }

    fn boot(machine: &str, id: &str) -> Boot {
        Boot { machine: machine.to_owned(), id: id.to_owned() }
    }

    #[test]
    fn a_file_of_this_boot_or_without_note_is_never_of_an_earlier_one() {
        let (path, file) = file("this");
        let this = boot("m", "this");
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert!(!this.is_after(&file), "without note");
        this.mark(&file);
        assert!(!this.is_after(&file), "of this boot, whatever its date");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn an_earlier_boot_needs_every_piece_of_evidence() {
        let (path, file) = file("earlier");
        let this = boot("m", "this");
        boot("m", "that").mark(&file);
        let noted = fgetxattr(&file, ATTRIBUTE, &mut [0_u8; NOTE_MAX]).is_ok();
        assert!(!this.is_after(&file), "it is younger than this boot");
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        // Where the file system of temporary files keeps no notes, nothing is ever of an earlier boot.
        assert_eq!(this.is_after(&file), noted);
        boot("another", "that").mark(&file);
        assert!(!this.is_after(&file), "of another machine");
        let _ = fsetxattr(&file, ATTRIBUTE, b"nonsense", XattrFlags::empty());
        assert!(!this.is_after(&file), "an unreadable note");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn this_boot_began_before_now_and_has_one_id() {
        assert!(began().is_some_and(|began| began < SystemTime::now()));
        assert_eq!(boot_id::current().map(str::len), Some(36), "a UUID");
    }
}
