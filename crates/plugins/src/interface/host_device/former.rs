//! What versions of weft before this one wrote into the alias of a device that was away: `MARK NAME up|down [ALIAS]`.
//!
//! Devices that they moved are brought home, found and collected as ever; nothing is written in this form any more.
//!
//! Rule: an alias is anybody's to write; what is read here was checked, above all the name.

use cni::name::ifname_fault;
use plugin_support::owner_tag::Mark;

use super::record::Was;

/// Longest mark, in bytes: the rest of an alias was for the name and the alias that were.
const MARK_MAX: usize = 160;

/// What stands in an alias.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Former {
    /// For whom it was moved: the text of a mark, perhaps cut.
    mark: String,
    /// What it was; of its alias the end may be missing.
    pub was: Was,
}

impl Former {
    /// Reads an alias; `None` for anything that is not ours.
    pub(super) fn read(alias: &str) -> Option<Former> {
        let mut parts = alias.splitn(4, ' ');
        let (mark, name, state) = (parts.next()?, parts.next()?, parts.next()?);
        Mark::read(mark)?;
        let up = match state {
            "up" => true,
            "down" => false,
            _ => return None,
        };
        let alias = parts.next().unwrap_or_default().to_owned();
        let was = Was { name: name.to_owned(), up, alias };
        ifname_fault(name).is_none().then(|| Former { mark: mark.to_owned(), was })
    }

    /// Was it moved for this attachment?
    pub(super) fn is_for(&self, mark: &Mark) -> bool {
        Mark::read(&self.mark).is_some_and(|own| {
            let cut = self.mark.len() == MARK_MAX && mark.network.starts_with(&own.network);
            let network = if cut { mark.network.clone() } else { own.network };
            Mark { network, ..own } == *mark
        })
    }

    /// Was it moved by `plugin` for `network`? Of one whose name was cut nobody knows.
    pub(super) fn is_of(&self, plugin: &str, network: &str) -> bool {
        Mark::read(&self.mark).is_some_and(|mark| mark.is_of(plugin, network))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(network: &str) -> Mark {
        let own = str::to_owned;
        Mark {
            plugin: own("host-device"),
            network: own(network),
            container: own("0123"),
            ifname: own("net1"),
        }
    }

    #[test]
    fn every_alias_that_was_written_is_read() {
        for alias in ["", "uplink", "rack 7 / port  3", " leading", "up down", "ä"] {
            let text = format!("weft/host-device/net/0123/net1 eth5 up {alias}");
            let former = Former::read(if alias.is_empty() { text.trim_end() } else { &text }).unwrap();
            assert_eq!(former.was, Was { name: "eth5".into(), up: true, alias: alias.into() });
            assert!(former.is_for(&mark("net")) && !former.is_for(&mark("other")));
            assert!(former.is_of("host-device", "net") && !former.is_of("host-device", "other"));
        }
        let long = mark(&"n".repeat(200));
        let cut = "n".repeat(MARK_MAX - "weft/host-device//0123/net1".len());
        let former = Former::read(&format!("weft/host-device/{cut}/0123/net1 eth5 down")).unwrap();
        assert!(former.is_for(&long) && !former.is_of("host-device", &long.network));
        assert!(!former.is_for(&Mark { ifname: "net2".into(), ..long }));
    }

    #[test]
    fn what_somebody_else_wrote_is_none() {
        for text in [
            "",
            "eth5",
            "uplink to rack 7",
            "weft/host-device/net/0123/net1",
            "weft/host-device/net/0123/net1 eth5",
            "weft/host-device/net/0123/net1 eth5 sideways",
            "weft/host-device/net/0123/net1 ../eth5 up",
            "weft/host-device/net/0123/net1  up",
            "weft/host-device/net/0123 eth5 up",
        ] {
            assert_eq!(Former::read(text), None, "{text:?}");
        }
    }
}
