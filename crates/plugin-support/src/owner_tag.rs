//! Owner tags: marks on kernel objects that name the plugin and the attachment they belong to.
//!
//! A tag is a link alias or a packet-filter comment, so `ip -d link` shows the owner, and orphans can be found. Routes
//! and rules cannot carry text; they carry weft's protocol number ([`linux::route::PROTOCOL`]) instead.
//!
//! The text is `weft/PLUGIN/NETWORK/CONTAINER/IFNAME`; none of the four parts can contain a `/`.
//! - A network name that is too long is cut and ends with `~` and a hash of the whole name. Real names contain no `~`,
//!   and different names stay different.
//! - A pod can choose interface names, so they may contain characters that a comment cannot hold or that iptables
//!   prints in another form (quotes, backslashes, control characters). Such a name is replaced by a hash, so that the
//!   object can be found again.

use cni::config::Config;
use cni::invocation::{Attachment, ValidAttachment};
use cni::name::IFNAME_MAX;

use crate::hash::hashed;

/// First word in every tag.
const MAKER: &str = "weft";

/// Maximum length of a link alias in bytes (`IFALIASZ` without the terminator).
pub const ALIAS_MAX: usize = 255;
/// Maximum length of a packet-filter comment in bytes (`NFTNL_UDATA_COMMENT_MAXLEN`).
pub const COMMENT_MAX: usize = 128;

/// Bytes that the `~` and the hash take at the end of a cut network name.
const CUT: usize = 17;
/// Bytes that a cut network name keeps at least, so that people can still recognize it.
const NETWORK_MIN: usize = 24;

/// Owner of a kernel object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerTag {
    /// Plugin that created the object, for example `bridge`.
    pub plugin: String,
    /// Network name.
    pub network: String,
    /// Container id; empty for an object that all containers share.
    pub container: String,
    /// Interface name in the container; empty for an object that all containers share.
    pub ifname: String,
}

impl OwnerTag {
    /// Returns the tag for one attachment.
    pub fn of(plugin: &str, config: &Config, who: &Attachment) -> OwnerTag {
        OwnerTag {
            plugin: plugin.to_owned(),
            network: config.name.to_string(),
            container: who.container.to_string(),
            ifname: who.ifname.to_string(),
        }
    }

    /// Returns the tag for an object that all attachments to a network share, for example a bridge.
    pub fn shared(plugin: &str, config: &Config) -> OwnerTag {
        OwnerTag {
            plugin: plugin.to_owned(),
            network: config.name.to_string(),
            container: String::new(),
            ifname: String::new(),
        }
    }

    /// Returns the tag for an attachment that GC lists as valid.
    pub fn of_valid(plugin: &str, network: &str, valid: &ValidAttachment) -> OwnerTag {
        OwnerTag {
            plugin: plugin.to_owned(),
            network: network.to_owned(),
            container: valid.container_id.clone(),
            ifname: valid.ifname.clone(),
        }
    }

    /// Returns the tag as text with at most `limit` bytes ([`ALIAS_MAX`], [`COMMENT_MAX`]).
    ///
    /// If the text is too long, the network name is cut first; if that is not enough, a hash replaces the container id.
    /// Two attachments never get the same text.
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

    /// Whether `plugin` made this tag for `network`, whose name may be cut in the tag.
    pub fn is_of(&self, plugin: &str, network: &str) -> bool {
        self.plugin == plugin && self.network == cut(network, self.network.len())
    }

    /// Reads a tag; `None` for text that is not weft's.
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

/// Returns a network name in at most `room` bytes.
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
    fn owner_tag_round_trip() {
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
    fn owner_tag_replaces_a_special_name_by_a_hash() {
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
            // Reading a tag and writing it again must give the same text.
            assert_eq!(OwnerTag::read(&text).unwrap().text(COMMENT_MAX), text);
        }
    }

    #[test]
    fn owner_tag_that_is_cut_stays_unique() {
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
