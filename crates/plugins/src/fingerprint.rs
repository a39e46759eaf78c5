//! Who made this, and for whom: the marks we leave on what we create.
//!
//! Links carry an alias, packet-filter objects a comment, both with the same text; routes and rules
//! carry our protocol number ([`linux::route::PROTOCOL`]). So `ip -d link` on a strange node answers
//! the question, and orphans can be found.
//!
//! The text is `weft/PLUGIN/NETWORK/CONTAINER/IFNAME`: none of the four can contain a `/`.

use cni::config::Config;
use cni::invocation::Attachment;
use sha2::{Digest, Sha512};

/// The first word of every mark.
const MAKER: &str = "weft";

/// Longest alias the kernel keeps, in bytes (`IFALIASZ` less the terminator).
const ALIAS_MAX: usize = 255;

/// What an object was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The plugin that made it.
    pub plugin: String,
    /// The network's name.
    pub network: String,
    /// The container's id; empty for what all containers share.
    pub container: String,
    /// The interface's name in the container; empty for what all containers share.
    pub ifname: String,
}

impl Mark {
    /// The mark of one attachment.
    pub fn of(plugin: &str, config: &Config, who: &Attachment) -> Mark {
        Mark {
            plugin: plugin.to_owned(),
            network: config.name.to_string(),
            container: who.container.to_string(),
            ifname: who.ifname.to_string(),
        }
    }

    /// The mark of something all attachments of a network share.
    pub fn shared(plugin: &str, config: &Config) -> Mark {
        Mark {
            plugin: plugin.to_owned(),
            network: config.name.to_string(),
            container: String::new(),
            ifname: String::new(),
        }
    }

    /// The mark's text, cut to what an alias can hold.
    ///
    /// It is only ever cut within the network's name: what identifies the attachment survives.
    pub fn text(&self) -> String {
        let Mark { plugin, network, container, ifname } = self;
        let fixed = MAKER.len() + plugin.len() + container.len() + ifname.len() + 4;
        let room = ALIAS_MAX.saturating_sub(fixed);
        let network = network.get(..room.min(network.len())).unwrap_or(network);
        format!("{MAKER}/{plugin}/{network}/{container}/{ifname}")
    }

    /// Reads a mark; `None` for anything that is not ours.
    pub fn read(text: &str) -> Option<Mark> {
        let mut parts = text.split('/');
        if parts.next() != Some(MAKER) {
            return None;
        }
        let mut part = || parts.next().map(str::to_owned);
        let mark = Mark { plugin: part()?, network: part()?, container: part()?, ifname: part()? };
        parts.next().is_none().then_some(mark)
    }
}

/// `prefix` and the first hexadecimal digits of SHA-512 over the parts, `length` bytes in all.
///
/// Names that must fit somewhere are made here and nowhere else. With `n` digits, two of `k` names
/// collide with a probability of about k²/2·16ⁿ: for 11 digits (an interface name of `veth` length)
/// and 1,000 pods about 1 in 35 million.
pub fn hashed(prefix: &str, length: usize, parts: &[&str]) -> String {
    let mut hash = Sha512::new();
    for part in parts {
        hash.update(part.as_bytes());
        // A divider that no name can hold: ("a", "bc") and ("ab", "c") differ.
        hash.update([0]);
    }
    let digits = length.saturating_sub(prefix.len());
    let mut name = prefix.to_owned();
    for byte in hash.finalize().iter() {
        name.push_str(&format!("{byte:02x}"));
    }
    name.truncate(prefix.len() + digits);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_reads_back() {
        let mark = Mark {
            plugin: "bridge".into(),
            network: "net-a".into(),
            container: "0123abcd".into(),
            ifname: "eth0".into(),
        };
        assert_eq!(mark.text(), "weft/bridge/net-a/0123abcd/eth0");
        assert_eq!(Mark::read(&mark.text()), Some(mark));
        for foreign in ["", "weft", "weft/a/b/c", "weft/a/b/c/d/e", "other/a/b/c/d"] {
            assert_eq!(Mark::read(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_long_mark_is_cut_in_the_networks_name() {
        let mark = Mark {
            plugin: "bridge".into(),
            network: "n".repeat(200),
            container: "c".repeat(64),
            ifname: "eth0".into(),
        };
        let text = mark.text();
        assert_eq!(text.len(), ALIAS_MAX);
        let read = Mark::read(&text).unwrap();
        assert_eq!((read.container, read.ifname), (mark.container, mark.ifname));
    }

    #[test]
    fn a_hashed_name_has_its_length_and_depends_on_every_part() {
        let name = hashed("veth", 15, &["net", "container", "eth0"]);
        assert_eq!(name.len(), 15);
        assert_ne!(name, hashed("veth", 15, &["net", "containe", "reth0"]));
    }
}
