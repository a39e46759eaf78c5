//! Boot in which a reservation was made, as an extended file attribute.
//!
//! The reference plugin ignores the attribute, and it is removed with the file. A reservation counts as made
//! in an earlier boot only if all this is true:
//!
//! - The reference plugin sets no such attribute, so those reservations never count.
//! - It names this machine and another boot than the present one.
//! - The file was last modified before the present boot.
//! - The file system is local to one kernel: no other node can have it mounted.
//!
//! The network namespace that used such an address no longer exists, because namespaces do not outlive the
//! kernel. Even so the address is released only if ADD would fail otherwise.
//!
//! Source: random(4) `boot_id`; machine-id(5), which asks applications not to expose the id: a hash is
//! stored.

use std::fs::File;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use linux::boot_id;
use plugin_support::hash::hashed;
use rustix::fs::{XattrFlags, fgetxattr, fsetxattr, fstatfs};

/// Attribute name.
const ATTRIBUTE: &str = "user.weft.boot";
/// Maximum attribute size, in bytes.
const ATTRIBUTE_MAX: usize = 128;

/// File with this machine's id, which never changes.
const MACHINE_ID: &str = "/etc/machine-id";
/// File with the seconds since boot, including suspend.
const UPTIME: &str = "/proc/uptime";

/// File systems that only one kernel can mount: ext2/3/4, XFS, Btrfs, F2FS, ZFS, tmpfs, overlayfs; statfs(2).
const LOCAL: [i64; 7] =
    [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x2fc1_2fc1, 0x0102_1994, 0x794c_7630];

/// A machine, and one boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot {
    machine: String,
    id: String,
}

impl Boot {
    /// Returns the present boot; `None` if the machine or the boot has no id. A process reads it once, also for a pod with many
    /// networks.
    pub fn current() -> Option<Boot> {
        static PRESENT: OnceLock<Boot> = OnceLock::new();
        if let Some(present) = PRESENT.get() {
            return Some(present.clone());
        }
        // A failure is not kept: the first boot may be completed later.
        Boot::read().map(|present| PRESENT.get_or_init(|| present).clone())
    }

    fn read() -> Option<Boot> {
        let machine = std::fs::read_to_string(MACHINE_ID).ok()?;
        // Before the first boot is complete it is empty or a word.
        let machine = Some(machine.trim()).filter(|id| id.len() == 32)?;
        Some(Boot { machine: hashed("", 32, &["host-local", machine]), id: boot_id::current()?.to_owned() })
    }

    /// Sets the attribute on a file. Best effort: not every file system supports it.
    pub fn label(&self, file: &File) {
        let attribute = format!("{}/{}", self.machine, self.id);
        let _ = fsetxattr(file, ATTRIBUTE, attribute.as_bytes(), XattrFlags::empty());
    }

    /// Whether the file was written in an earlier boot on this machine, with all the evidence above.
    pub fn is_after(&self, file: &File) -> bool {
        let mut attribute = [0; ATTRIBUTE_MAX];
        let Ok(length) = fgetxattr(file, ATTRIBUTE, &mut attribute) else { return false };
        let Some(attribute) =
            attribute.get(..length).and_then(|attribute| std::str::from_utf8(attribute).ok())
        else {
            return false;
        };
        let Some((machine, id)) = attribute.split_once('/') else { return false };
        let older = || {
            let written = file.metadata().and_then(|meta| meta.modified()).ok()?;
            Some(written < began()?)
        };
        let local = || fstatfs(file).is_ok_and(|stat| LOCAL.contains(&stat.f_type));
        machine == self.machine && id != self.id && older() == Some(true) && local()
    }
}

/// Returns the time at which the present boot began.
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
    fn boot_file_of_this_boot_or_without_attribute_is_kept() {
        let (path, file) = file("this");
        let this = boot("m", "this");
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert!(!this.is_after(&file), "without attribute");
        this.label(&file);
        assert!(!this.is_after(&file), "of this boot, whatever its date");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn boot_earlier_needs_every_piece_of_evidence() {
        let (path, file) = file("earlier");
        let this = boot("m", "this");
        boot("m", "that").label(&file);
        let supported = fgetxattr(&file, ATTRIBUTE, &mut [0_u8; ATTRIBUTE_MAX]).is_ok();
        assert!(!this.is_after(&file), "it is younger than this boot");
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        // If the file system of temporary files has no attributes, no file counts.
        assert_eq!(this.is_after(&file), supported);
        boot("another", "that").label(&file);
        assert!(!this.is_after(&file), "of another machine");
        let _ = fsetxattr(&file, ATTRIBUTE, b"nonsense", XattrFlags::empty());
        assert!(!this.is_after(&file), "an invalid attribute");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn boot_began_before_now_and_has_one_id() {
        assert!(began().is_some_and(|began| began < SystemTime::now()));
        assert_eq!(boot_id::current().map(str::len), Some(36), "a UUID");
    }
}
