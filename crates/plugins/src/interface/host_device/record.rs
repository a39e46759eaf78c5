//! What a device was before it was given away, in its own alias: wherever it is, that is with it.
//!
//! The text is `MARK NAME up|down [ALIAS]`. Of an alias of its own more than 70 bytes are not kept.
//!
//! Rule: an alias is anybody's to write; what is read here was checked, above all the name.

use cni::name::ifname_fault;
use linux::link::Link;

use crate::fingerprint::{ALIAS_MAX, Mark};

/// Longest mark, in bytes: the rest of an alias is for the name and the alias that were.
const MARK_MAX: usize = 160;

/// What a device was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// For whom it was moved: the text of a mark.
    pub mark: String,
    /// Its name on the host.
    pub name: String,
    /// Was it up?
    pub up: bool,
    /// Its alias.
    pub alias: String,
}

impl Record {
    /// What `link` is now.
    pub(super) fn of(link: &Link, mark: &Mark) -> Record {
        let Link { name, up, alias, .. } = link;
        Record { mark: Record::mark_text(mark), name: name.clone(), up: *up, alias: alias.clone() }
    }

    /// How a mark stands in a record.
    pub(super) fn mark_text(mark: &Mark) -> String {
        mark.text(MARK_MAX)
    }

    /// The alias of a device that is away.
    pub(super) fn text(&self) -> String {
        let Record { mark, name, up, alias } = self;
        let mut text = format!("{mark} {name} {}", if *up { "up" } else { "down" });
        if !alias.is_empty() {
            text.push(' ');
            text.push_str(alias);
        }
        let mut end = text.len().min(ALIAS_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text
    }

    /// Reads the alias of a device; `None` for anything that is not ours.
    pub(super) fn read(text: &str) -> Option<Record> {
        let mut parts = text.splitn(4, ' ');
        let (mark, name, state) = (parts.next()?, parts.next()?, parts.next()?);
        Mark::read(mark)?;
        let up = match state {
            "up" => true,
            "down" => false,
            _ => return None,
        };
        let alias = parts.next().unwrap_or_default().to_owned();
        ifname_fault(name).is_none().then(|| Record {
            mark: mark.to_owned(),
            name: name.to_owned(),
            up,
            alias,
        })
    }

    /// The alias that the Go plugin leaves is the name alone.
    pub(super) fn read_foreign(text: &str) -> Option<Record> {
        let fine = !text.is_empty() && ifname_fault(text).is_none();
        fine.then(|| Record { mark: String::new(), name: text.to_owned(), up: false, alias: String::new() })
    }

    /// Was it moved by `plugin` for `network`?
    pub(super) fn is_of(&self, plugin: &str, network: &str) -> bool {
        Mark::read(&self.mark).is_some_and(|mark| mark.is_of(plugin, network, self.mark.len(), MARK_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark() -> Mark {
        let own = str::to_owned;
        Mark { plugin: own("host-device"), network: own("net"), container: own("0123"), ifname: own("net1") }
    }

    fn record(alias: &str) -> Record {
        Record {
            mark: Record::mark_text(&mark()),
            name: "eth5".to_owned(),
            up: true,
            alias: alias.to_owned(),
        }
    }

    #[test]
    fn a_record_reads_back_with_any_alias_that_fits() {
        assert_eq!(record("").text(), "weft/host-device/net/0123/net1 eth5 up");
        for alias in ["", "uplink", "rack 7 / port  3", " leading", "up down", "ä"] {
            assert_eq!(Record::read(&record(alias).text()), Some(record(alias)), "{alias:?}");
        }
        assert!(record("").is_of("host-device", "net") && !record("").is_of("host-device", "other"));
    }

    #[test]
    fn a_long_alias_is_cut_and_nothing_else_is() {
        let long = Mark { network: "n".repeat(200), container: "c".repeat(64), ..mark() };
        let record = Record { mark: Record::mark_text(&long), ..record(&"ä".repeat(200)) };
        let text = record.text();
        assert!(text.len() <= ALIAS_MAX);
        let read = Record::read(&text).unwrap();
        assert_eq!((&read.mark, &read.name, read.up), (&record.mark, &record.name, true));
        assert!(read.alias.len() >= 70 && record.alias.starts_with(&read.alias), "{}", read.alias);
        assert!(read.is_of("host-device", &"n".repeat(200)));
    }

    #[test]
    fn what_somebody_else_wrote_is_no_record() {
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
            assert_eq!(Record::read(text), None, "{text:?}");
        }
        assert_eq!(Record::read_foreign("eth5").map(|record| record.name).as_deref(), Some("eth5"));
        for text in ["", "uplink to rack 7", "a/b", "sixteen-letters-"] {
            assert_eq!(Record::read_foreign(text), None, "{text:?}");
        }
    }
}
