//! What a device was before it was given away, and for whom: a file of the node.
//!
//! Rules:
//! - while it is away its alias is its name on the host, nothing else: the Go plugin's DEL reads that, too;
//! - the file is written before the device goes and removed once it is back, so a device that is away has one;
//! - a device is the one of a record by its alias, or its name, *and* by kind and hardware address or index: what
//!   merely has that alias stays where it is;
//! - what is read here was checked, above all the name.

use std::path::{Path, PathBuf};

use cni::name::ifname_fault;
use linux::Netns;
use linux::link::{Link, mac_text};
use plugin_support::owner_tag::OwnerTag;
use serde::{Deserialize, Serialize};

/// No mark is as long as this, in bytes: three names of at most 200.
const MARK_MAX: usize = 1024;

/// What is given back with a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Was {
    /// Its name on the host.
    pub name: String,
    /// Was it up?
    pub up: bool,
    /// Its alias.
    pub alias: String,
}

/// A device that is away.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Record {
    /// For whom it was moved: the text of a mark.
    pub mark: String,
    /// What it was.
    #[serde(flatten)]
    pub was: Was,
    /// Where it went: the path of a namespace, and which one was there.
    netns: PathBuf,
    inode: u64,
    kind: String,
    mac: String,
    index: u32,
    /// What it was on, or the other end of: index, and the host's id of the namespace that counts it.
    end: (Option<u32>, Option<i32>),
}

impl Was {
    /// What `link` is now.
    pub(super) fn of(link: &Link) -> Was {
        Was { name: link.name.clone(), up: link.up, alias: link.alias.clone() }
    }

    /// The alias that is the name alone: the Go plugin leaves no more, and of ours no more may be left.
    pub(super) fn of_alias(alias: &str) -> Option<Was> {
        let fine = !alias.is_empty() && ifname_fault(alias).is_none();
        fine.then(|| Was { name: alias.to_owned(), ..Was::default() })
    }
}

impl Record {
    /// What `link` is now, to be moved for `mark` into the namespace at this path, which has this inode.
    pub(super) fn of(link: &Link, mark: &OwnerTag, (netns, inode): (&Path, u64)) -> Record {
        let (mark, was, netns) = (mark.text(MARK_MAX), Was::of(link), netns.to_owned());
        Record {
            mark,
            was,
            netns,
            inode,
            kind: link.kind.clone(),
            mac: mac_text(&link.mac),
            index: link.index,
            end: end(link),
        }
    }

    /// For whom it was moved.
    pub(super) fn mark(&self) -> Option<OwnerTag> {
        OwnerTag::read(&self.mark)
    }

    /// Reads a file's text; `None` for what cannot be understood.
    pub(super) fn read(bytes: &[u8]) -> Option<Record> {
        let record: Record = serde_json::from_slice(bytes).ok()?;
        (record.mark().is_some() && ifname_fault(&record.was.name).is_none()).then_some(record)
    }

    /// The text of the file.
    pub(super) fn text(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Is this the device, away or given back by the kernel?
    pub(super) fn is_away(&self, link: &Link) -> bool {
        link.alias == self.was.name && self.is_alike(link)
    }

    /// Is this the device, in every respect as it was? So it is in the container if its new name was refused.
    pub(super) fn is_as_it_was(&self, link: &Link) -> bool {
        let Was { name, up: _, alias } = &self.was;
        let same = link.name == *name && link.alias == *alias;
        same && link.kind == self.kind && mac_text(&link.mac) == self.mac
    }

    /// Is this the device, by its alias and kind alone? Its address may have been changed, and its index.
    pub(super) fn is_renamed(&self, link: &Link) -> bool {
        link.alias == self.was.name && link.kind == self.kind
    }

    /// Is this, on the host, a link to where the device led? One that was made in the container leads into it.
    pub(super) fn leads_where_it_led(&self, link: &Link) -> bool {
        self.end == end(link)
    }

    /// Is this the device, on the host under its name, whoever brought it there?
    pub(super) fn is_home(&self, link: &Link) -> bool {
        link.name == self.was.name && self.is_alike(link)
    }

    /// Is it gone for good, once it was found nowhere? With its namespace the kernel destroys all but hardware, which it
    /// gives back in its own time. `looked_inside`: in its namespace it was looked for.
    pub(super) fn is_lost(&self, looked_inside: bool) -> bool {
        let same = |netns: Netns| netns.identity().is_ok_and(|identity| identity.inode() == self.inode);
        let lives = || Netns::find(&self.netns).ok().flatten().is_some_and(same);
        !self.kind.is_empty() && (looked_inside || !lives())
    }

    /// A plugin may have changed the address meanwhile, a namespace that has such an index the index.
    fn is_alike(&self, link: &Link) -> bool {
        link.kind == self.kind && (mac_text(&link.mac) == self.mac || link.index == self.index)
    }
}

fn end(link: &Link) -> (Option<u32>, Option<i32>) {
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
        let mark = OwnerTag {
            plugin: own("host-device"),
            network: own("n"),
            container: own("0123"),
            ifname: own("net1"),
        };
        Record::of(&link(), &mark, (Path::new("/run/netns/gone"), 7))
    }

    #[test]
    fn a_record_reads_back_and_what_cannot_be_understood_is_none() {
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
    fn a_device_is_known_by_more_than_its_alias() {
        let away = Link { name: "net1".into(), alias: "eth5".into(), ..link() };
        let mac = vec![2, 0, 0, 0, 0, 6];
        for known in
            [away.clone(), Link { index: 8, ..away.clone() }, Link { mac: mac.clone(), ..away.clone() }]
        {
            assert!(record().is_away(&known) && !record().is_as_it_was(&known), "{known:?}");
        }
        for other in [
            Link { alias: "eth6".into(), ..away.clone() },
            Link { index: 8, mac, ..away.clone() },
            Link { kind: "macvlan".into(), ..away },
        ] {
            assert!(!record().is_away(&other), "{other:?}");
        }
        assert!(record().is_as_it_was(&link()) && record().is_home(&link()) && !record().is_away(&link()));
        assert!(
            record().is_home(&Link { alias: "eth5".into(), ..link() }),
            "Debian's host-device leaves it so"
        );
    }

    #[test]
    fn an_alias_that_is_no_name_is_nobodys() {
        assert_eq!(Was::of_alias("eth5").map(|was| was.name).as_deref(), Some("eth5"));
        for text in ["", "uplink to rack 7", "a/b", "sixteen-letters-"] {
            assert_eq!(Was::of_alias(text), None, "{text:?}");
        }
    }
}
