//! What was there before: a file for each attachment, from which DEL restores it.
//!
//! ```text
//!   <dataDir>/<container id>_<interface>.json     0600
//!   { "mac": …, "promisc": …, "mtu": …, "allmulti": …, "txQLen": …, "network": …, "sysctl": { path: value } }
//! ```
//!
//! Rules:
//! - the first five keys are the reference plugin's and mean what it means by them; it reads our files and we
//!   read its. `network` and `sysctl` are ours: it passes over what it does not know;
//! - only what is to be changed is written down, before it is changed;
//! - what is written down stays: a repeated ADD would otherwise take its own values for the original ones;
//! - a file is not trusted: a key leads nowhere but below `net/`.
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
use plugin_support::failure::refused;
use plugin_support::file;
use serde::{Deserialize, Serialize};

/// Largest backup read, in bytes.
const FILE_MAX: u64 = 1 << 20;

/// How old a file is whose writer was killed: writing one takes a moment.
const ABANDONED: Duration = Duration::from_secs(600);

/// Original values; what was not changed is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Backup {
    /// Hardware address as text; empty if it was not changed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// Did it take all packets?
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promisc: Option<bool>,
    /// MTU in bytes; 0 if it was not changed.
    #[serde(skip_serializing_if = "is_zero")]
    pub mtu: u32,
    /// Did it take all multicast packets?
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allmulti: Option<bool>,
    /// Length of the transmit queue, in packets.
    #[serde(rename = "txQLen", skip_serializing_if = "Option::is_none")]
    pub tx_queue_length: Option<u32>,
    /// The network that the attachment belongs to; empty in the reference plugin's files.
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
    /// Does it hold no value to restore?
    pub fn is_empty(&self) -> bool {
        let Backup { mac, promisc, mtu, allmulti, tx_queue_length, network: _, sysctl } = self;
        mac.is_empty()
            && promisc.is_none()
            && *mtu == 0
            && allmulti.is_none()
            && tx_queue_length.is_none()
            && sysctl.is_empty()
    }

    /// The values of `older`, and from here what it does not have.
    fn behind(self, older: Backup) -> Backup {
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

/// The file of one attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupFile {
    path: PathBuf,
}

/// Has nobody written to it for so long that its writer must be gone?
fn is_abandoned(path: &Path) -> bool {
    let age = path.symlink_metadata().and_then(|meta| meta.modified()).map(|at| at.elapsed());
    matches!(age, Ok(Ok(age)) if age > ABANDONED)
}

/// How the file was before it was written: to be put back if the change fails.
#[derive(Debug)]
#[must_use]
pub struct Before {
    file: BackupFile,
    older: Option<Backup>,
}

impl BackupFile {
    /// The file of this attachment.
    pub fn of(directory: &Path, container: &str, ifname: &str) -> BackupFile {
        BackupFile { path: directory.join(format!("{container}_{ifname}.json")) }
    }

    /// The file of an attachment whose names are checked.
    pub fn of_attachment(directory: &Path, who: &Attachment) -> BackupFile {
        BackupFile::of(directory, who.container.as_str(), who.ifname.as_str())
    }

    /// Every backup in the directory, whoever's; none if there is no directory. What writers that were killed have left
    /// goes.
    pub fn all(directory: &Path) -> Result<Vec<BackupFile>, Error> {
        let failed =
            |error: io::Error| refused(&linux::Error::io(format!("list {}", directory.display()), &error));
        let entries = match fs::read_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
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

    /// Reads it; `None` if it is not there or cannot be understood: then nothing can be restored.
    pub fn load(&self) -> Result<Option<Backup>, Error> {
        let failed = |error: io::Error| self.failed("read", &error);
        let file = match File::open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file.map_err(failed)?,
        };
        let mut bytes = Vec::new();
        file.take(FILE_MAX).read_to_end(&mut bytes).map_err(failed)?;
        Ok(fold::from_slice(&bytes, "backup").ok())
    }

    /// Writes the values down, behind those that are there already.
    pub fn keep(self, values: Backup) -> Result<Before, Error> {
        let older = self.load()?;
        if let Some(directory) = self.path.parent() {
            let made = DirBuilder::new().recursive(true).mode(0o700).create(directory);
            made.map_err(|error| self.failed("create directory for", &error))?;
        }
        self.write(&values.behind(older.clone().unwrap_or_default()))?;
        Ok(Before { file: self, older })
    }

    fn write(&self, backup: &Backup) -> Result<(), Error> {
        let mut bytes = Vec::new();
        let format = serde_json::ser::PrettyFormatter::with_indent(b" ");
        let written = backup.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, format));
        written.map_err(|cause| Error::internal(format!("encode a backup: {cause}")))?;
        file::replace(&self.path, &bytes).map_err(|error| self.failed("write", &error))
    }

    /// Removes it; what is gone is gone.
    pub fn remove(&self) -> Result<(), Error> {
        file::remove(&self.path).map_err(|error| self.failed("remove", &error))
    }

    fn failed(&self, what: &str, error: &io::Error) -> Error {
        refused(&linux::Error::io(format!("{what} {}", self.path.display()), error))
    }
}

impl Before {
    /// Puts the file back.
    pub fn restore(self) -> Result<(), Error> {
        let Before { file, older } = self;
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
    fn the_file_is_the_reference_plugins_and_ours_behind() {
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
    fn the_first_values_stay_and_a_failed_change_puts_the_file_back() {
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
    fn what_cannot_be_understood_is_no_backup() {
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
    fn what_a_writer_that_was_killed_has_left_goes_once_it_is_old() {
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
