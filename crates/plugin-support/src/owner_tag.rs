//! Who made this, and for whom: the marks we leave on what we create.
//!
//! Links carry an alias, packet-filter objects a comment, both with the same text; routes and rules
//! carry our protocol number ([`linux::route::PROTOCOL`]). So `ip -d link` on a strange node answers
//! the question, and orphans can be found.
//!
//! The text is `weft/PLUGIN/NETWORK/CONTAINER/IFNAME`: none of the four can contain a `/`. A network's name that has no
//! room ends with `~` and a hash of all of it: no name can contain a `~`, either, and no two are cut alike. The name of an
//! interface is chosen by a pod, and may hold what a comment cannot hold or iptables says otherwise (quotes, backslashes,
//! control characters): a hash stands for it then, or what bears it would not be found again.

use cni::config::Config;
use cni::invocation::{Attachment, ValidAttachment};
use cni::name::IFNAME_MAX;

use crate::hash::hashed;

/// The first word of every tag.
const MAKER: &str = "weft";

/// Longest alias of a link, in bytes (`IFALIASZ` less the terminator).
pub const ALIAS_MAX: usize = 255;
/// Longest comment of a packet-filter object, in bytes (`NFTNL_UDATA_COMMENT_MAXLEN`).
pub const COMMENT_MAX: usize = 128;

/// The `~` and the hash that a network's name ends with where it was cut, in bytes.
const CUT: usize = 17;
/// What is left at least of a network's name, in bytes.
const NETWORK_MIN: usize = 24;

/// What an object was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerTag {
    /// The plugin that made it.
    pub plugin: String,
    /// The network's name.
    pub network: String,
    /// The container's id; empty for what all containers share.
    pub container: String,
    /// The interface's name in the container; empty for what all containers share.
    pub ifname: String,
}

impl OwnerTag {
    /// The tag of one attachment.
    pub fn of(plugin: &str, config: &Config, who: &Attachment) -> OwnerTag {
        OwnerTag {
            plugin: plugin.to_owned(),
            network: config.name.to_string(),
            container: who.container.to_string(),
            ifname: who.ifname.to_string(),
        }
    }

    /// The tag of something all attachments of a network share.
    pub fn shared(plugin: &str, config: &Config) -> OwnerTag {
        OwnerTag {
            plugin: plugin.to_owned(),
            network: config.name.to_string(),
            container: String::new(),
            ifname: String::new(),
        }
    }

    /// The tag of a valid attachment in a GC's list.
    pub fn of_valid(plugin: &str, network: &str, valid: &ValidAttachment) -> OwnerTag {
        OwnerTag {
            plugin: plugin.to_owned(),
            network: network.to_owned(),
            container: valid.container_id.clone(),
            ifname: valid.ifname.clone(),
        }
    }

    /// The tag's text in at most `limit` bytes ([`ALIAS_MAX`], [`COMMENT_MAX`]).
    ///
    /// Where it does not fit the network's name is cut, and if that is not enough the container's id is replaced
    /// by a hash of it: two attachments never have the same text.
    pub fn text(&self, limit: usize) -> String {
        let OwnerTag { plugin, network, container, ifname } = self;
        let is_plain = |character: char| !character.is_control() && !"\"'\\".contains(character);
        let ifname = match ifname.chars().all(is_plain) {
            true => ifname.clone(),
            false => hashed("~", IFNAME_MAX, &[ifname]),
        };
        let room = |container: &str| {
            limit.saturating_sub(MAKER.len() + plugin.len() + container.len() + ifname.len() + 4)
        };
        let container = match room(container) >= network.len().min(NETWORK_MIN) {
            true => container.clone(),
            false => hashed("hash-", 32, &[container]),
        };
        let network = cut(network, room(&container));
        format!("{MAKER}/{plugin}/{network}/{container}/{ifname}")
    }

    /// Was this tag made by `plugin` for `network`, whose name may have been cut in it?
    pub fn is_of(&self, plugin: &str, network: &str) -> bool {
        self.plugin == plugin && self.network == cut(network, self.network.len())
    }

    /// Reads a tag; `None` for anything that is not ours.
    pub fn read(text: &str) -> Option<OwnerTag> {
        let mut parts = text.split('/');
        if parts.next() != Some(MAKER) {
            return None;
        }
        let mut part = || parts.next().map(str::to_owned);
        let tag = OwnerTag { plugin: part()?, network: part()?, container: part()?, ifname: part()? };
        parts.next().is_none().then_some(tag)
    }
}

/// A network's name in at most `room` bytes.
fn cut(network: &str, room: usize) -> String {
    match network.get(..room.saturating_sub(CUT)) {
        Some(start) if room < network.len() => hashed(&format!("{start}~"), room, &[network]),
        _ => network.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_reads_back() {
        let tag = OwnerTag {
            plugin: "bridge".into(),
            network: "net-a".into(),
            container: "0123abcd".into(),
            ifname: "eth0".into(),
        };
        assert_eq!(tag.text(COMMENT_MAX), "weft/bridge/net-a/0123abcd/eth0");
        assert_eq!(OwnerTag::read(&tag.text(COMMENT_MAX)), Some(tag));
        for foreign in ["", "weft", "weft/a/b/c", "weft/a/b/c/d/e", "other/a/b/c/d"] {
            assert_eq!(OwnerTag::read(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_name_that_a_comment_cannot_hold_is_a_hash_and_each_its_own() {
        let tag = |ifname: &str| OwnerTag {
            plugin: "bridge".into(),
            network: "net-a".into(),
            container: "0123abcd".into(),
            ifname: ifname.into(),
        };
        let names = ["a\"b", "a'b", "a\\b", "a\u{1}b", "a_b"];
        let texts: std::collections::BTreeSet<String> =
            names.iter().map(|name| tag(name).text(COMMENT_MAX)).collect();
        assert_eq!(texts.len(), names.len());
        for text in texts {
            assert!(!text.contains(['"', '\'', '\\', '\u{1}']), "{text}");
            // What was read is written the same.
            assert_eq!(OwnerTag::read(&text).unwrap().text(COMMENT_MAX), text);
        }
    }

    #[test]
    fn a_long_mark_is_cut_and_still_tells_attachments_apart() {
        let tag = |container: &str| OwnerTag {
            plugin: "bridge".into(),
            network: "n".repeat(200),
            container: container.into(),
            ifname: "eth0".into(),
        };
        let text = tag(&"c".repeat(64)).text(ALIAS_MAX);
        assert_eq!(text.len(), ALIAS_MAX);
        let read = OwnerTag::read(&text).unwrap();
        assert_eq!((read.container.as_str(), read.ifname.as_str()), ("c".repeat(64).as_str(), "eth0"));
        assert!(read.is_of("bridge", &"n".repeat(200)) && !read.is_of("ptp", &"n".repeat(200)));
        for other in ["other", &"n".repeat(199), &"n".repeat(201), &"n".repeat(100), ""] {
            assert!(!read.is_of("bridge", other), "{other}");
        }

        let long = tag(&"c".repeat(200)).text(COMMENT_MAX);
        assert!(long.len() <= COMMENT_MAX);
        assert_ne!(long, tag(&format!("{}d", "c".repeat(199))).text(COMMENT_MAX));
    }
}
