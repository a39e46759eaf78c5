//! Daemon state on disk: every lease with owner and location. The next daemon reads it.
//!
//! - The file has mode 0600 and is replaced atomically.
//! - The content is validated like untrusted input.
//! - Times count from boot. After a reboot the file is ignored, because no container from before can still use an
//!   address.
//!
//! ```json
//! {"bootId":"…","leases":[{"owner":{…},"netns":"/run/netns/a","inode":4026531,"granted":1234,"lease":"0201…","…":0}],
//!  "leasesV6":[{"owner":{…},"…":0,"address":"2001:db8::5","reply":"07a1…"}]}
//! ```
//!
//! DHCPv6 leases are in a separate list, which is left out if it is empty.

use std::fs;
use std::io::ErrorKind;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

use cni::Error;
use linux::boot_id;
use serde::{Deserialize, Serialize};

use crate::owner::Owner;
use crate::terms::Terms;
use crate::v4::lease::Lease;
use crate::v4::message::Message;
use crate::v4::options::Options;
use crate::v6::{self, V6Request};

/// Maximum file size in bytes, enough for about ten thousand leases.
const FILE_MAX: u64 = 64 << 20;

/// Lease with everything that is needed to extend it.
#[derive(Clone, Debug)]
pub struct Record {
    /// Lease owner.
    pub owner: Owner,
    /// Namespace path, as the runtime passed it.
    pub netns: PathBuf,
    /// Namespace inode, because another namespace may later have the same path.
    pub inode: u64,
    /// When the lease was granted, in milliseconds since boot.
    pub granted: u64,
    /// Why the lease was lost, if it was.
    pub lost: Option<String>,
    /// Terms that the server granted.
    pub terms: Terms,
}

/// DHCPv4 lease in the file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredV4 {
    owner: Owner,
    netns: PathBuf,
    inode: u64,
    options: Options,
    priority: Option<u32>,
    granted: u64,
    lost: Option<String>,
    /// DHCPACK in hexadecimal digits.
    #[serde(with = "packet")]
    lease: Lease,
}

/// DHCPv6 lease in the file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredV6 {
    owner: Owner,
    netns: PathBuf,
    inode: u64,
    #[serde(rename = "wish")]
    v6_request: V6Request,
    granted: u64,
    lost: Option<String>,
    address: Ipv6Addr,
    /// REPLY in hexadecimal digits.
    reply: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    boot_id: String,
    leases: Vec<StoredV4>,
    #[serde(default, skip_serializing_if = "Vec::is_empty", rename = "leasesV6")]
    leases_v6: Vec<StoredV6>,
}

impl Document {
    fn of(boot_id: String, records: Vec<Record>) -> Document {
        let mut document = Document { boot_id, leases: Vec::new(), leases_v6: Vec::new() };
        for Record { owner, netns, inode, granted, lost, terms } in records {
            match terms {
                Terms::V4 { options, priority, lease } => document.leases.push(StoredV4 {
                    owner,
                    netns,
                    inode,
                    options,
                    priority,
                    granted,
                    lost,
                    lease,
                }),
                Terms::V6 { v6_request, lease } => document.leases_v6.push(StoredV6 {
                    owner,
                    netns,
                    inode,
                    v6_request,
                    granted,
                    lost,
                    address: lease.address,
                    reply: digits(&lease.reply.encode()),
                }),
            }
        }
        document
    }

    fn records(self) -> Result<Vec<Record>, Error> {
        let Document { boot_id: _, leases, leases_v6 } = self;
        let v4 = leases.into_iter().map(|stored| {
            let StoredV4 { owner, netns, inode, options, priority, granted, lost, lease } = stored;
            Ok(Record { owner, netns, inode, granted, lost, terms: Terms::V4 { options, priority, lease } })
        });
        let v6 = leases_v6.into_iter().map(|stored| {
            let StoredV6 { owner, netns, inode, v6_request, granted, lost, address, reply } = stored;
            let reply = bytes(&reply).and_then(|bytes| v6::message::Message::decode(&bytes));
            let reply = reply.ok_or_else(|| Error::internal("not a DHCP message"))?;
            let association = v6::identity::association(&owner);
            let lease = v6::lease::Lease::for_address(reply, association, Some(address))?;
            Ok(Record { owner, netns, inode, granted, lost, terms: Terms::V6 { v6_request, lease } })
        });
        v4.chain(v6).collect()
    }
}

/// Writes the leases to the file.
pub fn save(path: &Path, leases: Vec<Record>) -> Result<(), Error> {
    let document = Document::of(boot_id()?, leases);
    let bytes = serde_json::to_vec(&document).map_err(|cause| Error::internal(format!("encode: {cause}")))?;
    plugin_support::file::replace(path, &bytes)
        .map_err(|cause| Error::io(format_args!("write {}", path.display()), cause))
}

/// Reads the previous daemon's leases; none if the node has been rebooted since.
pub fn load(path: &Path) -> Result<Vec<Record>, Error> {
    let failed = |cause| Error::io(format_args!("read {}", path.display()), cause);
    let length = match fs::metadata(path) {
        Ok(meta) => meta.len(),
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(cause) => return Err(failed(cause)),
    };
    if length > FILE_MAX {
        return Err(Error::internal(format!("read {}: larger than {FILE_MAX} bytes", path.display())));
    }
    let bytes = fs::read(path).map_err(failed)?;
    let document: Document = serde_json::from_slice(&bytes)
        .map_err(|cause| cni::wording::syntax_error(&bytes, &cause))
        .map_err(|why| Error::internal(format!("read {}: {why}", path.display())))?;
    match document.boot_id == boot_id()? {
        true => document.records().map_err(|error| error.context(format_args!("read {}", path.display()))),
        false => Ok(Vec::new()),
    }
}

/// Returns the boot id; empty if the kernel has none. A read error must not be ignored, because it would look like
/// another boot.
fn boot_id() -> Result<String, Error> {
    let id = boot_id::read().map_err(|cause| Error::io(format_args!("read {}", boot_id::PATH), cause))?;
    Ok(id.unwrap_or_default().to_owned())
}

/// Returns the time since boot including suspend, in milliseconds.
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, nanoseconds) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
    seconds * 1000 + nanoseconds / 1_000_000
}

/// Encodes bytes as hexadecimal digits.
fn digits(bytes: &[u8]) -> String {
    plugin_support::hash::hex("", bytes.len() * 2, bytes)
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let byte = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    text.as_bytes().chunks(2).map(byte).collect()
}

/// Stores a lease as hexadecimal digits of the DHCPACK.
mod packet {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::{Lease, Message};

    pub(super) fn serialize<S: Serializer>(lease: &Lease, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&super::digits(&lease.ack.encode()))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Lease, D::Error> {
        let text = String::deserialize(from)?;
        let bytes = super::bytes(&text);
        let ack = bytes
            .and_then(|bytes| Message::decode(&bytes))
            .ok_or_else(|| D::Error::custom("not a DHCP message"))?;
        Lease::of(ack).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::v4::message::{Kind, option};

    fn record() -> Record {
        let mut ack = Message::new(Kind::Ack, 7, [2, 0, 0, 0, 0, 1]);
        ack.reply = true;
        ack.yours = Ipv4Addr::new(10, 1, 0, 5);
        ack.set(option::SERVER, [10, 1, 0, 1]);
        ack.set(option::SUBNET_MASK, [255, 255, 255, 0]);
        Record {
            owner: Owner { container: "c".into(), network: "n".into(), ifname: "eth0".into() },
            netns: "/run/netns/a".into(),
            inode: 7,
            granted: now(),
            lost: None,
            terms: Terms::V4 {
                options: Options { provided: vec![(12, b"web".to_vec())], requested: vec![1, 3] },
                priority: Some(5),
                lease: Lease::of(ack).unwrap(),
            },
        }
    }

    fn record_v6() -> Record {
        use crate::v6::message::{Address, Association, Kind, Message, Status, option};
        let record = record();
        let mut reply = Message::new(Kind::Reply, 7);
        reply.set(option::SERVER, b"server".to_vec());
        let address = |last: u16| Address {
            address: Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last),
            preferred: 80,
            valid: 100,
            status: Status::SUCCESS,
        };
        let id = v6::identity::association(&record.owner);
        let addresses = vec![address(4), address(5)];
        let association = Association { id, renewal: 0, rebinding: 0, addresses, status: Status::SUCCESS };
        reply.set(option::ASSOCIATION, association.encode());
        let lease = v6::lease::Lease::for_address(reply, id, Some(address(5).address)).unwrap();
        Record { terms: Terms::V6 { v6_request: V6Request::default(), lease }, ..record }
    }

    #[test]
    fn lease_state_round_trips_and_damage_is_an_error() {
        let path = std::env::temp_dir().join(format!("weft-dhcp-state-{}", std::process::id()));
        assert!(load(&path).unwrap().is_empty(), "none yet");
        save(&path, vec![record_v6(), record()]).unwrap();
        let loaded = load(&path).unwrap();
        let terms: Vec<Terms> = loaded.into_iter().map(|record| record.terms).collect();
        assert_eq!(terms, [record().terms, record_v6().terms]);
        let text = fs::read_to_string(&path).unwrap();
        for damaged in
            [text.replace("\"reply\":\"07", "\"reply\":\"ff"), text.replace("2001:db8::5", "2001:db8::6")]
        {
            fs::write(&path, &damaged).unwrap();
            assert!(damaged != text && load(&path).is_err());
        }
        save(&path, vec![record()]).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace(&boot_id().unwrap(), "another")).unwrap();
        assert!(load(&path).unwrap().is_empty(), "of another boot");
        for damaged in [
            text.replace("\"lease\":\"02", "\"lease\":\"0x"),
            text[..text.len() / 2].to_owned(),
            text.replace("0a010005", "7f010005"),
        ] {
            fs::write(&path, &damaged).unwrap();
            assert!(damaged != text && load(&path).is_err());
        }
        fs::remove_file(&path).unwrap();
    }
}
