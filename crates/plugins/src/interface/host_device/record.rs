//! The record of a moved device: its state on the host and the attachment it was moved for.
//!
//! Rules:
//! - While the device is away, its alias is exactly its name on the host: the DEL of the Go plugin reads it, too.
//! - The file is written before the device moves and removed after it is back, so each moved device has a record.
//! - A device matches a record by alias or name *and* by kind and hardware address or index. A link that has only the
//!   alias stays where it is.
//! - In the container, alias and kind suffice for the link with the attachment's interface name, because hardware address
//!   and index may have changed. Its parent or peer is compared once it is on the host.
//! - A record is validated when it is read, above all the name.

use std::path::{Path, PathBuf};

use cni::name::ifname_fault;
use linux::Netns;
use linux::link::{Link, mac_text};
use plugin_support::owner_tag::OwnerTag;
use serde::{Deserialize, Serialize};

/// Length that no owner tag reaches, in bytes: it has three names of at most 200.
const TAG_MAX: usize = 1024;

/// State that a device gets back when it returns to the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct HostState {
    /// Name.
    pub name: String,
    /// Whether it was up.
    pub up: bool,
    /// Alias.
    pub alias: String,
}

/// Record of a device that is away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Record {
    /// Owner tag of the attachment, as a string.
    #[serde(rename = "mark")]
    pub tag: String,
    /// State on the host.
    #[serde(flatten)]
    pub host_state: HostState,
    /// Path of the container's network namespace; `inode` identifies the namespace that was there.
    netns: PathBuf,
    inode: u64,
    kind: String,
    mac: String,
    index: u32,
    /// Parent or peer of the link: its index, and the host's id of the namespace that has this index.
    #[serde(rename = "end")]
    peer: (Option<u32>, Option<i32>),
}

impl HostState {
    /// Returns the present state of `link`.
    pub(super) fn of(link: &Link) -> HostState {
        HostState { name: link.name.clone(), up: link.up, alias: link.alias.clone() }
    }

    /// Returns the state for an alias that is only a name, as the Go plugin and a device without a record have it.
    pub(super) fn of_alias(alias: &str) -> Option<HostState> {
        let fine = !alias.is_empty() && ifname_fault(alias).is_none();
        fine.then(|| HostState { name: alias.to_owned(), ..HostState::default() })
    }
}

impl Record {
    /// Returns the record of `link`, to be moved for `tag` into the namespace at path `netns` with inode `inode`.
    pub(super) fn of(link: &Link, tag: &OwnerTag, netns: &Path, inode: u64) -> Record {
        let (tag, host_state, netns) = (tag.text(TAG_MAX), HostState::of(link), netns.to_owned());
        Record {
            tag,
            host_state,
            netns,
            inode,
            kind: link.kind.clone(),
            mac: mac_text(&link.mac),
            index: link.index,
            peer: peer(link),
        }
    }

    /// Returns the owner tag of the attachment.
    pub(super) fn tag(&self) -> Option<OwnerTag> {
        OwnerTag::read(&self.tag)
    }

    /// Decodes a file; `None` if its content is invalid.
    pub(super) fn read(bytes: &[u8]) -> Option<Record> {
        let record: Record = serde_json::from_slice(bytes).ok()?;
        (record.tag().is_some() && ifname_fault(&record.host_state.name).is_none()).then_some(record)
    }

    /// Returns the content of the file.
    pub(super) fn text(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Whether `link` is the device, while it is away or after the kernel returned it.
    pub(super) fn is_away(&self, link: &Link) -> bool {
        link.alias == self.host_state.name && self.matches_identity(link)
    }

    /// Whether `link` is the device with its name and alias unchanged, as in the container if its new name was refused.
    pub(super) fn is_unchanged(&self, link: &Link) -> bool {
        let HostState { name, up: _, alias } = &self.host_state;
        let same = link.name == *name && link.alias == *alias;
        same && link.kind == self.kind && mac_text(&link.mac) == self.mac
    }

    /// Whether `link` matches by alias and kind alone: its hardware address and index may have changed.
    pub(super) fn is_renamed(&self, link: &Link) -> bool {
        link.alias == self.host_state.name && link.kind == self.kind
    }

    /// Whether `link`, on the host, has the recorded parent or peer. A link created in the container has another one.
    pub(super) fn has_recorded_peer(&self, link: &Link) -> bool {
        self.peer == peer(link)
    }

    /// Whether `link` is the device, on the host under its own name.
    pub(super) fn is_on_host(&self, link: &Link) -> bool {
        link.name == self.host_state.name && self.matches_identity(link)
    }

    /// Whether a device that was not found no longer exists. The kernel destroys virtual devices with their namespace
    /// and returns hardware after a while. `looked_inside`: whether the search included the device's namespace.
    pub(super) fn is_lost(&self, looked_inside: bool) -> bool {
        let same = |netns: Netns| netns.identity().is_ok_and(|identity| identity.inode() == self.inode);
        let lives = || Netns::find(&self.netns).ok().flatten().is_some_and(same);
        !self.kind.is_empty() && (looked_inside || !lives())
    }

    /// The hardware address may have been changed by a plugin, the index by a namespace that already used it.
    fn matches_identity(&self, link: &Link) -> bool {
        link.kind == self.kind && (mac_text(&link.mac) == self.mac || link.index == self.index)
    }
}

fn peer(link: &Link) -> (Option<u32>, Option<i32>) {
    (link.link, link.link_netns_id)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> Link {
        Link {
            name: "eth5".into(),
            index: 7,
            mac: vec![2, 0, 0, 0, 0, 5],
            up: true,
            alias: "uplink to \"rack\" 7".into(),
            ..Link::default()
        }
    }

    fn record() -> Record {
        let own = str::to_owned;
        let tag = OwnerTag {
            plugin: own("host-device"),
            network: own("n"),
            container: own("0123"),
            ifname: own("net1"),
        };
        Record::of(&link(), &tag, Path::new("/run/netns/gone"), 7)
    }

    #[test]
    fn device_record_round_trips_and_rejects_invalid_content() {
        assert_eq!(Record::read(&record().text()), Some(record()));
        let text = String::from_utf8(record().text()).unwrap();
        for broken in [
            String::new(),
            "{}".to_owned(),
            text.replace("eth5", "../eth5"),
            text.replace("eth5", ""),
            text.replace("weft/", "other/"),
            text.replace("true", "\"up\""),
            text[..text.len() / 2].to_owned(),
        ] {
            assert_eq!(Record::read(broken.as_bytes()), None, "{broken}");
        }
    }

    #[test]
    fn device_record_matches_by_more_than_the_alias() {
        let away = Link { name: "net1".into(), alias: "eth5".into(), ..link() };
        let mac = vec![2, 0, 0, 0, 0, 6];
        for known in
            [away.clone(), Link { index: 8, ..away.clone() }, Link { mac: mac.clone(), ..away.clone() }]
        {
            assert!(record().is_away(&known) && !record().is_unchanged(&known), "{known:?}");
        }
        for other in [
            Link { alias: "eth6".into(), ..away.clone() },
            Link { index: 8, mac, ..away.clone() },
            Link { kind: "macvlan".into(), ..away },
        ] {
            assert!(!record().is_away(&other), "{other:?}");
        }
        assert!(record().is_unchanged(&link()) && record().is_on_host(&link()) && !record().is_away(&link()));
        assert!(
            record().is_on_host(&Link { alias: "eth5".into(), ..link() }),
            "as left by Debian's host-device"
        );
    }

    #[test]
    fn device_alias_that_is_no_interface_name_is_ignored() {
        assert_eq!(HostState::of_alias("eth5").map(|host_state| host_state.name).as_deref(), Some("eth5"));
        for text in ["", "uplink to rack 7", "a/b", "sixteen-letters-"] {
            assert_eq!(HostState::of_alias(text), None, "{text:?}");
        }
    }
}
