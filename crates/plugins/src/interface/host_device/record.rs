//! Record about a moved device: the state on the host, and the attachment that it was moved for.
//!
//! Rules:
//! - While the device is away, the alias is exactly the name on the host, because the Go plugin's DEL reads it, too.
//! - The file is written before the device moves and removed after it is back, so each moved device has a
//!   record.
//! - A process in the container can write the device's name, alias, hardware address and other settings. So a
//!   device matches a record by properties that it cannot write: kind, and permanent hardware address or
//!   index.
//! - A record is validated when it is read, above all the name.

use std::path::{Path, PathBuf};

use cni::address::parse_mac;
use cni::name::ifname_fault;
use linux::Netns;
use linux::link::device_settings::{DeviceSettings, SettingsChange};
use linux::link::{Change, Link, mac_text};
use plugin_support::owner_tag::OwnerTag;
use serde::{Deserialize, Serialize};

/// Length that no owner tag reaches, in bytes: it has three names with at most 200.
const TAG_MAX: usize = 1024;

/// Flag `IFF_NOARP`.
const NO_ARP: u32 = 0x80;

/// State that a device gets back when it returns to the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct HostState {
    /// Name on the host.
    pub name: String,
    /// Whether it was up.
    pub up: bool,
    /// Alias on the host.
    pub alias: String,
}

/// Device settings that a process in the container can change, and that a device gets back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Settings {
    /// Group number.
    pub group: u32,
    /// MTU in bytes.
    pub mtu: u32,
    /// Flags, as in [`Link::flags`].
    pub flags: u32,
    /// Transmit queue length, in packets.
    pub queue: u32,
    /// Alternative names.
    pub altnames: Vec<String>,
    /// Absent if an earlier weft release moved the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub further: Option<Further>,
}

/// Settings that [`DeviceSettings`] describes, XDP programs and offloads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Further {
    /// Hardware address for broadcasts.
    pub broadcast: String,
    /// Link mode.
    pub mode: u8,
    /// Whether a protocol has switched it off.
    pub protodown: bool,
    /// Sizes up to which packets are aggregated.
    pub aggregation: [u32; 5],
    /// XDP program ids.
    pub xdp: Vec<u32>,
    /// Offloads that are requested, by name; absent if the kernel does not report them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offloads: Option<Vec<String>>,
}

/// Record about a device that is away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Record {
    /// The attachment's owner tag, as a string.
    #[serde(rename = "mark")]
    pub tag: String,
    /// State on the host.
    #[serde(flatten)]
    pub host_state: HostState,
    /// Path to the container's network namespace; `inode` identifies the namespace that was there.
    netns: PathBuf,
    inode: u64,
    kind: String,
    mac: String,
    index: u32,
    /// Index in the container, if it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    inside: Option<u32>,
    /// Permanent hardware address; empty if the driver reports none.
    #[serde(skip_serializing_if = "String::is_empty")]
    permanent: String,
    /// Absent if an earlier weft release moved the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    settings: Option<Settings>,
    /// The link's parent or peer: the index, and the host's id for the namespace that has this index.
    #[serde(rename = "end")]
    peer: (Option<u32>, Option<i32>),
}

impl HostState {
    /// Returns the state that `link` has now.
    pub(super) fn of(link: &Link) -> HostState {
        HostState { name: link.name.clone(), up: link.up, alias: link.alias.clone() }
    }
}

impl Further {
    /// Returns the settings that `link` has now, without offloads.
    fn of(link: &Link) -> Further {
        let DeviceSettings { broadcast, link_mode, protocol_down, aggregation } = &link.settings;
        Further {
            broadcast: mac_text(broadcast),
            mode: *link_mode,
            protodown: *protocol_down,
            aggregation: *aggregation,
            xdp: link.xdp.iter().map(|program| program.id).collect(),
            offloads: None,
        }
    }

    /// Returns the settings to give back.
    fn device_settings(&self) -> DeviceSettings {
        DeviceSettings {
            broadcast: parse_mac(&self.broadcast).unwrap_or_default(),
            link_mode: self.mode,
            protocol_down: self.protodown,
            aggregation: self.aggregation,
        }
    }
}

impl Record {
    /// Returns a record about `link`, which is to be moved for `tag` into the namespace at path `netns` with
    /// inode `inode`.
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
            inside: None,
            permanent: mac_text(&link.permanent_mac),
            settings: Some(Settings {
                group: link.group,
                mtu: link.mtu,
                flags: link.flags,
                queue: link.tx_queue_length,
                altnames: link.alternative_names.clone(),
                further: Some(Further::of(link)),
            }),
            peer: peer(link),
        }
    }

    /// Returns a record about `link`, in the container, which was the device `name` on the host: another program moved
    /// it, or the record is lost.
    pub(super) fn without_file(name: &str, link: &Link) -> Record {
        let host_state = HostState { name: name.to_owned(), ..HostState::default() };
        Record {
            host_state,
            kind: link.kind.clone(),
            mac: mac_text(&link.mac),
            index: link.index,
            permanent: mac_text(&link.permanent_mac),
            // Its parent or peer is on the host.
            peer: (link.link, None),
            ..Record::default()
        }
    }

    /// Returns the record with the index that the device has in the container, if that index is another one.
    pub(super) fn renumbered(&self, inside: &Link) -> Option<Record> {
        (inside.index != self.index).then(|| Record { inside: Some(inside.index), ..self.clone() })
    }

    /// Adds the offloads that are requested on the device.
    pub(super) fn with_offloads(mut self, wanted: Vec<String>) -> Record {
        if let Some(further) = self.settings.as_mut().and_then(|settings| settings.further.as_mut()) {
            further.offloads = Some(wanted);
        }
        self
    }

    /// Returns the offloads that differ from the record, with the recorded values. `now`: the requested ones.
    pub(super) fn offload_resets<'a>(&'a self, now: &'a [String]) -> Vec<(&'a str, bool)> {
        let Some(had) = self.further().and_then(|further| further.offloads.as_ref()) else {
            return Vec::new();
        };
        let missing = had.iter().filter(|one| !now.contains(one)).map(|one| (one.as_str(), true));
        let beyond = now.iter().filter(|one| !had.contains(one)).map(|one| (one.as_str(), false));
        missing.chain(beyond).collect()
    }

    fn further(&self) -> Option<&Further> {
        self.settings.as_ref()?.further.as_ref()
    }

    /// Returns the settings that the device gets back, as [`Record::resets`] needs them; `link` is the device.
    pub(super) fn device_settings(&self, link: &Link) -> DeviceSettings {
        self.further().map_or_else(|| link.settings.clone(), Further::device_settings)
    }

    /// Returns what removes XDP programs that the device had not: such a program could filter or redirect the
    /// host's packets.
    fn xdp_removals<'a>(&self, link: &Link) -> impl Iterator<Item = Change<'a>> {
        let had = self.further().map(|further| further.xdp.as_slice()).unwrap_or_default();
        let foreign = link.xdp.iter().filter(|program| !had.contains(&program.id));
        foreign.map(|program| Change { remove_xdp: Some(program.mode), ..Change::default() })
    }

    /// Returns the attachment's owner tag.
    pub(super) fn tag(&self) -> Option<OwnerTag> {
        OwnerTag::read(&self.tag)
    }

    /// Decodes a file; `None` if the content is invalid.
    pub(super) fn read(bytes: &[u8]) -> Option<Record> {
        let record: Record = serde_json::from_slice(bytes).ok()?;
        (record.tag().is_some() && ifname_fault(&record.host_state.name).is_none()).then_some(record)
    }

    /// Returns what to write to the file.
    pub(super) fn text(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Returns the index that the device has in the container.
    pub(super) fn index_inside(&self) -> u32 {
        self.inside.unwrap_or(self.index)
    }

    /// Whether the driver reports a permanent hardware address, by which the device is found under any index.
    pub(super) fn has_permanent_address(&self) -> bool {
        !self.permanent.is_empty()
    }

    /// Whether `link`, in the container, is the device.
    pub(super) fn is_inside(&self, link: &Link) -> bool {
        self.is_device(link, self.index_inside())
    }

    /// Whether `link` has the alias that weft gives a device, and the device's kind and hardware address. A
    /// process in the container can write the alias and the address.
    pub(super) fn may_be(&self, link: &Link) -> bool {
        link.alias == self.host_state.name && link.kind == self.kind && mac_text(&link.mac) == self.mac
    }

    /// Whether `link`, on the host, is the device, under any name: it did not leave, or it returned.
    pub(super) fn is_outside(&self, link: &Link) -> bool {
        (self.is_device(link, self.index) || self.permanent.is_empty() && self.may_be(link))
            && self.has_recorded_peer(link)
    }

    /// Whether `link` is the device on the host, under another name.
    pub(super) fn is_away(&self, link: &Link) -> bool {
        link.name != self.host_state.name && self.is_outside(link)
    }

    /// Whether `link` is the device on the host, under the original name.
    pub(super) fn is_unmoved(&self, link: &Link) -> bool {
        link.name == self.host_state.name && self.is_outside(link)
    }

    /// Whether `link`, which was moved from the container to the host as the device, is the device. A process in the
    /// container may have replaced the device between the search and the move.
    pub(super) fn is_moved(&self, link: &Link) -> bool {
        let is_card = self.permanent.is_empty() || mac_text(&link.permanent_mac) == self.permanent;
        link.kind == self.kind && is_card && self.has_recorded_peer(link)
    }

    /// Whether `link`, on the host, has the recorded parent or peer. A link created in the container has another one.
    fn has_recorded_peer(&self, link: &Link) -> bool {
        self.kind.is_empty() || self.peer == peer(link)
    }

    /// Returns the changes that restore the device's settings; the first one cannot fail because of the driver. `mac`,
    /// `further`: [`Record::mac`], [`Record::device_settings`].
    pub(super) fn resets<'a>(
        &'a self,
        link: &'a Link,
        mac: &'a [u8],
        further: &'a DeviceSettings,
    ) -> Vec<Change<'a>> {
        let nothing = Change::default;
        let Some(Settings { group, mtu, flags, queue, altnames: _, further: _ }) = &self.settings else {
            let group = (link.group != 0).then(|| Change { group: Some(0), ..nothing() });
            return group.into_iter().chain(self.xdp_removals(link)).collect();
        };
        let settings = SettingsChange { wanted: further, present: &link.settings };
        let changes = [
            (link.group != *group).then(|| Change { group: Some(*group), ..nothing() }),
            (link.flags != *flags).then(|| Change { flags: Some(*flags), ..nothing() }),
            (link.tx_queue_length != *queue).then(|| Change { tx_queue_length: Some(*queue), ..nothing() }),
            (link.mtu != *mtu).then(|| Change { mtu: Some(*mtu), ..nothing() }),
            (!mac.is_empty() && link.mac != mac).then(|| Change { mac: Some(mac), ..nothing() }),
            (!settings.is_empty()).then(|| Change { settings: Some(settings), ..nothing() }),
        ];
        // A program may prevent a larger MTU, so it is removed before.
        let (first, others) = changes.split_at(1);
        let programs = self.xdp_removals(link).map(Some);
        first.iter().cloned().chain(programs).chain(others.iter().cloned()).flatten().collect()
    }

    /// Whether the kernel has switched duplicate address detection off, because `link` came without ARP and the device had it.
    pub(super) fn lost_duplicate_detection(&self, link: &Link) -> bool {
        let had_arp = self.settings.as_ref().is_some_and(|settings| settings.flags & NO_ARP == 0);
        had_arp && link.flags & NO_ARP != 0
    }

    /// Returns the recorded hardware address; empty if there was none.
    pub(super) fn mac(&self) -> Vec<u8> {
        parse_mac(&self.mac).unwrap_or_default()
    }

    /// Returns the alternative names that `link` has and the device had not, and those that it had and `link` has not.
    pub(super) fn alternative_names<'a>(&'a self, link: &'a Link) -> (Vec<&'a str>, Vec<&'a str>) {
        let had = self.settings.as_ref().map(|settings| settings.altnames.as_slice()).unwrap_or_default();
        let beyond = |of: &'a [String], these: &[String]| {
            of.iter().filter(|name| !these.contains(name)).map(String::as_str).collect()
        };
        (beyond(&link.alternative_names, had), beyond(had, &link.alternative_names))
    }

    /// Whether a device that was not found no longer exists. The kernel destroys virtual devices with the namespace and
    /// returns hardware after a while. `looked_inside`: whether the search included the device's namespace.
    pub(super) fn is_lost(&self, looked_inside: bool) -> bool {
        // A namespace that cannot be looked at may be the device's.
        let same = |netns: Netns| netns.identity().map_or(true, |identity| identity.inode() == self.inode);
        let lives = || Netns::find(&self.netns).map_or(true, |netns| netns.is_some_and(same));
        !self.kind.is_empty() && (looked_inside || !lives())
    }

    /// Whether `link` has this index and the device's kind, or the device's permanent address. An index is unique in a
    /// namespace, and hardware gets a new one if the index is in use.
    fn is_device(&self, link: &Link, index: u32) -> bool {
        let permanent = mac_text(&link.permanent_mac);
        let matches =
            if self.permanent.is_empty() { link.index == index } else { permanent == self.permanent };
        link.kind == self.kind && matches
    }
}

fn peer(link: &Link) -> (Option<u32>, Option<i32>) {
    (link.link, link.link_netns_id)
}

#[cfg(test)]
mod tests {
    use linux::link::device_settings::XdpProgram;

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
    fn device_record_matches_by_what_a_pod_cannot_write() {
        let away = Link { name: "net1".into(), alias: "eth5".into(), ..link() };
        let mac = vec![2, 0, 0, 0, 0, 6];
        for known in [
            away.clone(),
            Link { alias: "eth6".into(), mac: mac.clone(), name: "eth0".into(), ..away.clone() },
            Link { index: 8, ..away.clone() },
        ] {
            assert!(record().is_away(&known) && record().is_outside(&known), "{known:?}");
        }
        for other in [
            Link { index: 8, mac, ..away.clone() },
            Link { index: 8, alias: "eth6".into(), ..away.clone() },
            Link { kind: "macvlan".into(), ..away.clone() },
        ] {
            assert!(!record().is_away(&other) && !record().is_inside(&other), "{other:?}");
        }
        assert!(record().is_outside(&link()) && record().is_unmoved(&link()) && !record().is_away(&link()));
        let inside = Link { index: 9, alias: "weft/a/b/c/d".into(), ..away };
        let renumbered = record().renumbered(&inside).unwrap();
        assert!(!record().is_inside(&inside) && renumbered.is_inside(&inside));
        assert!(renumbered.is_unmoved(&link()) && record().renumbered(&link()).is_none());
    }

    #[test]
    fn device_record_of_hardware_matches_by_permanent_address() {
        let card = Link { permanent_mac: vec![2, 0, 0, 0, 0, 1], ..link() };
        let record = Record::of(&card, &record().tag().unwrap(), Path::new("/run/netns/gone"), 7);
        let modified = Link { index: 9, name: "x".into(), mac: vec![2, 0, 0, 0, 0, 9], ..card.clone() };
        assert!(record.is_inside(&modified) && record.is_away(&modified));
        let other = Link { permanent_mac: vec![2, 0, 0, 0, 0, 2], alias: "eth5".into(), ..card };
        assert!(
            !record.is_inside(&other) && !record.is_outside(&other),
            "the index alone is of another card"
        );
    }

    #[test]
    fn device_record_refuses_a_link_that_a_pod_moved_in_its_place() {
        let card = Link { permanent_mac: vec![2, 0, 0, 0, 0, 1], ..link() };
        let of = |link: &Link| Record::of(link, &record().tag().unwrap(), Path::new("/run/netns/gone"), 7);
        // The kernel chose another index.
        let returned = Link { index: 9, ..card.clone() };
        for record in [of(&card), Record::without_file("eth5", &card)] {
            assert!(record.is_moved(&returned));
            let veth = Link { kind: "veth".into(), link: Some(3), link_netns_id: Some(1), ..link() };
            let other_card = Link { permanent_mac: vec![2, 0, 0, 0, 0, 2], ..card.clone() };
            assert!(!record.is_moved(&veth) && !record.is_moved(&other_card));
        }
        let on_uplink = Link { kind: "vlan".into(), link: Some(3), ..link() };
        let other_kind = Link { kind: "macvlan".into(), ..on_uplink.clone() };
        let other_parent = Link { link: Some(4), ..on_uplink.clone() };
        let record = of(&on_uplink);
        assert!(
            record.is_moved(&on_uplink) && !record.is_moved(&other_kind) && !record.is_moved(&other_parent)
        );
    }

    #[test]
    fn device_record_resets_exactly_what_differs() {
        let mac = record().mac();
        let further = record().device_settings(&link());
        let unmodified = link();
        let record = record();
        assert!(record.resets(&unmodified, &mac, &further).is_empty());
        let modified = Link {
            group: 7,
            mtu: 1400,
            flags: 0x80,
            tx_queue_length: 1,
            mac: vec![2, 0, 0, 0, 0, 9],
            alternative_names: vec!["eth0".into()],
            settings: DeviceSettings { link_mode: 1, ..DeviceSettings::default() },
            xdp: vec![XdpProgram { mode: 2, id: 9 }],
            ..link()
        };
        let changes = record.resets(&modified, &mac, &further);
        assert_eq!((changes.len(), changes[0].group, changes[5].mac), (7, Some(0), Some(mac.as_slice())));
        assert_eq!((changes[1].remove_xdp, changes[6].settings.is_some()), (Some(2), true));
        assert_eq!(record.alternative_names(&modified), (vec!["eth0"], vec![]));
        // A record of an earlier release has no settings; no device of the host is in a group of a container.
        let old = Record { settings: None, ..record.clone() };
        let changes = old.resets(&modified, &mac, &further);
        assert_eq!((changes.len(), changes[0].group, changes[1].remove_xdp), (2, Some(0), Some(2)));
    }

    #[test]
    fn device_record_keeps_xdp_and_offloads_of_the_host() {
        let program = XdpProgram { mode: 4, id: 7 };
        let protected = Link { xdp: vec![program], ..link() };
        let record = Record::of(&protected, &record().tag().unwrap(), Path::new("/run/netns/gone"), 7);
        let further = record.device_settings(&protected);
        assert!(record.resets(&protected, &record.mac(), &further).is_empty());
        let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert!(record.offload_resets(&own(&["rx-gro"])).is_empty(), "the kernel reported none");
        let record = record.with_offloads(own(&["rx-gro", "tx-tcp"]));
        assert_eq!(record.offload_resets(&own(&["tx-tcp", "rx-all"])), [("rx-gro", true), ("rx-all", false)]);
        assert_eq!(Record::read(&record.text()), Some(record));
    }
}
