//! The backup of original values: one file for each attachment, from which DEL restores them.
//!
//! ```text
//!   <dataDir>/<container id>_<interface>.json     0600
//!   { "mac": …, "promisc": …, "mtu": …, "allmulti": …, "txQLen": …, "network": …, "sysctl": { path: value } }
//! ```
//!
//! Rules:
//! - The first five fields are the reference plugin's, with the same meaning, so each plugin reads the other's files.
//!   `network` and `sysctl` are additions that it ignores.
//! - Only values that are to be changed are written, before they are changed.
//! - A backed-up value is kept: otherwise a repeated ADD would take the values of the first for the original ones.
//! - A file is not trusted: keys outside `net/` are ignored.
//!
//! Source: plugins `plugins/meta/tuning` `configToRestore`.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni::invocation::Attachment;
use cni::{Error, fold};
use linux::error::leads_nowhere;
use plugin_support::failure::refused;
use plugin_support::file;
use serde::{Deserialize, Serialize};

/// Maximum backup size, in bytes.
const FILE_MAX: u64 = 1 << 20;

/// Age from which a temporary file's writer must have been killed: to write one takes milliseconds.
const ABANDONED: Duration = Duration::from_secs(600);

/// Original values; an unchanged value is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Backup {
    /// Hardware address; empty if it was not changed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// Whether the interface was promiscuous.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promisc: Option<bool>,
    /// MTU in bytes; 0 if it was not changed.
    #[serde(skip_serializing_if = "is_zero")]
    pub mtu: u32,
    /// Whether the interface received all multicast packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allmulti: Option<bool>,
    /// Transmit queue length, in packets.
    #[serde(rename = "txQLen", skip_serializing_if = "Option::is_none")]
    pub tx_queue_length: Option<u32>,
    /// Network that the attachment is to; empty in the reference plugin's files.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub network: String,
    /// Kernel parameters by key in path form.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub sysctl: BTreeMap<String, String>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Backup {
    /// Whether there is no value to restore.
    pub fn is_empty(&self) -> bool {
        let Backup { mac, promisc, mtu, allmulti, tx_queue_length, network: _, sysctl } = self;
        mac.is_empty()
            && promisc.is_none()
            && *mtu == 0
            && allmulti.is_none()
            && tx_queue_length.is_none()
            && sysctl.is_empty()
    }

    /// Returns the values in `older`, completed by those in `self`.
    fn with_precedence_of(self, older: Backup) -> Backup {
        let Backup { mac, promisc, mtu, allmulti, tx_queue_length, network, mut sysctl } = self;
        sysctl.extend(older.sysctl);
        Backup {
            mac: if older.mac.is_empty() { mac } else { older.mac },
            promisc: older.promisc.or(promisc),
            mtu: if older.mtu == 0 { mtu } else { older.mtu },
            allmulti: older.allmulti.or(allmulti),
            tx_queue_length: older.tx_queue_length.or(tx_queue_length),
            network,
            sysctl,
        }
    }
}

/// Backup file for one attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupFile {
    path: PathBuf,
}

/// Whether a temporary file is so old that the writer must have been killed.
fn is_abandoned(path: &Path) -> bool {
    let age = path.symlink_metadata().and_then(|meta| meta.modified()).map(|at| at.elapsed());
    matches!(age, Ok(Ok(age)) if age > ABANDONED)
}

/// Previous content of a backup file, to restore if the change fails.
#[derive(Debug)]
#[must_use]
pub struct PreviousBackup {
    file: BackupFile,
    older: Option<Backup>,
}

impl BackupFile {
    /// Returns an attachment's file.
    pub fn of(directory: &Path, container: &str, ifname: &str) -> BackupFile {
        BackupFile { path: directory.join(format!("{container}_{ifname}.json")) }
    }

    /// Returns the file for an attachment whose names are validated.
    pub fn of_attachment(directory: &Path, who: &Attachment) -> BackupFile {
        BackupFile::of(directory, who.container.as_str(), who.ifname.as_str())
    }

    /// Returns all backups in the directory, for every network; none if there is no directory. Removes old
    /// temporary files.
    pub fn all(directory: &Path) -> Result<Vec<BackupFile>, Error> {
        let failed =
            |error: io::Error| refused(&linux::Error::io(format!("list {}", directory.display()), &error));
        let entries = match fs::read_dir(directory) {
            Err(error) if leads_nowhere(&error) => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut all = Vec::new();
        for entry in entries {
            let path = entry.map_err(failed)?.path();
            let name = path.to_string_lossy();
            if name.ends_with(".json") {
                all.push(BackupFile { path });
            } else if name.ends_with(".json.new") && is_abandoned(&path) {
                // The next GC tries again.
                let _ = fs::remove_file(path);
            }
        }
        Ok(all)
    }

    /// Reads the file; `None` if it does not exist or is invalid: then nothing can be restored.
    pub fn load(&self) -> Result<Option<Backup>, Error> {
        let failed = |error: io::Error| self.failed("read", &error);
        let file = match File::open(&self.path) {
            Err(error) if leads_nowhere(&error) => return Ok(None),
            file => file.map_err(failed)?,
        };
        let mut bytes = Vec::new();
        file.take(FILE_MAX).read_to_end(&mut bytes).map_err(failed)?;
        Ok(fold::from_slice(&bytes, "backup").ok())
    }

    /// Adds the values to the file; a value that is there already is kept.
    pub fn keep(self, values: Backup) -> Result<PreviousBackup, Error> {
        let older = self.load()?;
        if let Some(directory) = self.path.parent() {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
            made.map_err(|error| self.failed("create directory for", &error))?;
        }
        self.write(&values.with_precedence_of(older.clone().unwrap_or_default()))?;
        Ok(PreviousBackup { file: self, older })
    }

    fn write(&self, backup: &Backup) -> Result<(), Error> {
        let mut bytes = Vec::new();
        let format = serde_json::ser::PrettyFormatter::with_indent(b" ");
        let written = backup.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, format));
        written.map_err(|cause| Error::internal(format!("encode a backup: {cause}")))?;
        file::replace(&self.path, &bytes).map_err(|error| self.failed("write", &error))
    }

    /// Removes the file if it exists.
    pub fn remove(&self) -> Result<(), Error> {
        file::remove(&self.path).map_err(|error| self.failed("remove", &error))
    }

    fn failed(&self, what: &str, error: &io::Error) -> Error {
        refused(&linux::Error::io(format!("{what} {}", self.path.display()), error))
    }
}

impl PreviousBackup {
    /// Restores the file.
    pub fn restore(self) -> Result<(), Error> {
        let PreviousBackup { file, older } = self;
        match older {
            Some(older) => file.write(&older),
            None => file.remove(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("weft-backup-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        directory
    }

    fn full() -> Backup {
        Backup {
            mac: "02:00:00:00:00:01".into(),
            promisc: Some(false),
            mtu: 1500,
            allmulti: Some(true),
            tx_queue_length: Some(1000),
            network: "net".into(),
            sysctl: BTreeMap::from([("net/ipv4/conf/eth0/arp_notify".into(), "0".into())]),
        }
    }

    #[test]
    fn tuning_backup_has_the_reference_plugins_format_and_additions() {
        let directory = scratch("format");
        let file = BackupFile::of(&directory, "id", "eth0");
        let _ = file.clone().keep(full()).unwrap();
        let text = fs::read_to_string(directory.join("id_eth0.json")).unwrap();
        let expected = "{\n \"mac\": \"02:00:00:00:00:01\",\n \"promisc\": false,\n \"mtu\": 1500,\n \"allmulti\": true,\n \
                        \"txQLen\": 1000,\n \"network\": \"net\",\n \"sysctl\": {\n  \"net/ipv4/conf/eth0/arp_notify\": \"0\"\n }\n}";
        assert_eq!(text, expected);
        assert_eq!(file.load().unwrap(), Some(full()));
        fs::write(directory.join("id_eth0.json"), "{\n \"mtu\": 1400,\n \"Promisc\": true\n}").unwrap();
        assert_eq!(
            file.load().unwrap(),
            Some(Backup { mtu: 1400, promisc: Some(true), ..Backup::default() })
        );
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn tuning_backup_keeps_first_values_and_is_restored_on_failure() {
        let directory = scratch("first");
        let file = BackupFile::of(&directory, "id", "eth0");
        let first = Backup { mtu: 1500, network: "net".into(), ..Backup::default() };
        let before = file.clone().keep(first.clone()).unwrap();
        assert!(before.older.is_none());
        let again = Backup { mtu: 1400, promisc: Some(true), ..full() };
        let second = file.clone().keep(again.clone()).unwrap();
        let kept = file.load().unwrap().unwrap();
        assert_eq!(kept, Backup { mtu: 1500, ..again });
        second.restore().unwrap();
        assert_eq!(file.load().unwrap(), Some(first));
        before.restore().unwrap();
        assert_eq!(file.load().unwrap(), None);
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn tuning_backup_with_invalid_content_is_ignored() {
        let directory = scratch("garbage");
        fs::create_dir_all(&directory).unwrap();
        let file = BackupFile::of(&directory, "id", "eth0");
        for garbage in ["", "{", "[]", "{\"mtu\":-1}", "\u{0}\u{0}"] {
            fs::write(directory.join("id_eth0.json"), garbage).unwrap();
            assert_eq!(file.load().unwrap(), None, "{garbage:?}");
        }
        assert_eq!(BackupFile::all(&directory).unwrap(), [file]);
        assert_eq!(BackupFile::all(Path::new("/no/such")).unwrap(), []);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn tuning_backup_temporary_files_are_removed_when_old() {
        let directory = scratch("killed");
        fs::create_dir_all(&directory).unwrap();
        for (name, age) in [(".old_eth0.json.new", 3600), (".young_eth0.json.new", 0), ("notes", 3600)] {
            let file = File::create(directory.join(name)).unwrap();
            file.set_modified(std::time::SystemTime::now() - Duration::from_secs(age)).unwrap();
        }
        assert_eq!(BackupFile::all(&directory).unwrap(), []);
        let mut left: Vec<_> =
            fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [".young_eth0.json.new", "notes"]);
        fs::remove_dir_all(directory).unwrap();
    }
}
