//! Entries of sets and maps in nf_tables whose comment is the owner tag of an attachment.
//!
//! Rules:
//! - In the usual case, ADD is one transaction that only adds entries. If the kernel reports that an object is missing,
//!   the objects that all entries share are created.
//! - The last attachment that requests an entry gets it. Only the attachment named in the comment removes it, because
//!   an address or port may belong to another container by now.
//!
//! Source: nft(8) "sets", "maps".

use std::collections::{HashMap, HashSet};

use cni::Error;
use cni::invocation::ValidAttachment;
use linux::Kind;
use linux::nft::{Batch, Data, Element, Family, ListedElement, Nft, Table};
use plugin_support::failure::{OrRefused, refused};
use plugin_support::owner_tag::{COMMENT_MAX, OwnerTag};
use rustix::io::Errno;

/// Maximum number of attempts for a transaction that conflicts with others.
const TRIES: usize = 5;

/// Entry of a set or map.
pub struct Entry {
    /// Name of the set.
    pub set: &'static str,
    /// Key of the entry.
    pub key: Data,
    /// Value in a map of values.
    pub value: Option<Data>,
    /// Complete element.
    pub element: Element,
}

/// Names of all nf_tables tables, so that a caller need not query a table that does not exist.
pub struct Tables {
    /// Socket for further requests.
    pub nft: Nft,
    names: Vec<(Family, String)>,
}

impl Tables {
    /// Whether the table exists.
    pub fn has(&self, family: Family, name: &str) -> bool {
        self.names.iter().any(|(of, known)| *of == family && known == name)
    }
}

/// Opens a socket to find objects to remove; none on a kernel without nf_tables, which has no objects.
pub fn open() -> Result<Option<Nft>, Error> {
    unless_absent(Nft::open().and_then(|mut nft| nft.tables(Family::Inet).map(|_| nft)))
}

/// As [`open`], and lists the tables.
pub fn tables() -> Result<Option<Tables>, Error> {
    unless_absent(Nft::open().and_then(|mut nft| nft.all_tables().map(|names| Tables { nft, names })))
}

/// Returns the listed objects; none on a kernel without nf_tables.
pub fn unless_absent<T>(listed: Result<T, linux::Error>) -> Result<Option<T>, Error> {
    match listed {
        Ok(found) => Ok(Some(found)),
        // The kernel's answers if a part of netfilter, or all of it, is missing.
        Err(error) if error.errno() == Some(Errno::INVAL) || error.kind() == Kind::Unsupported => Ok(None),
        Err(error) => Err(refused(&error)),
    }
}

/// Adds the entries, whose comments are all `comment`, in one transaction.
///
/// An existing entry of the same key is replaced, whatever its owner. Then other entries of the same comment are
/// removed, too. Without such a conflict they are not searched for: it would read all entries at every ADD, and a
/// repeated ADD has the same keys. `shared_objects` returns what the entries need and can be committed repeatedly.
pub fn put(
    nft: &mut Nft,
    table: Table<'_>,
    sets: &[&'static str],
    comment: &str,
    entries: &[Entry],
    shared_objects: impl Fn() -> Result<Batch, Error>,
) -> Result<(), Error> {
    let mut batch = Batch::new();
    create(&mut batch, table, sets, entries);
    for _ in 0..TRIES {
        match nft.commit(batch) {
            Ok(()) => return Ok(()),
            Err(error) if matches!(error.kind(), Kind::Absent | Kind::Exists) => {}
            Err(error) => return Err(refused(&error)),
        }
        // Either an object is missing, or an entry is left from a container that was never deleted.
        batch = shared_objects()?;
        let keys: HashSet<(&str, &Data)> = entries.iter().map(|entry| (entry.set, &entry.key)).collect();
        let in_the_way =
            find(nft, table, sets, |set, key, found| found == comment || keys.contains(&(set, key)))?;
        for (set, key) in in_the_way {
            batch.delete_elements(table, set, &[Element::new(key)]);
        }
        create(&mut batch, table, sets, entries);
    }
    nft.commit(batch).or_refused()
}

fn create(batch: &mut Batch, table: Table<'_>, sets: &[&'static str], entries: &[Entry]) {
    for set in sets {
        let own: Vec<Element> =
            entries.iter().filter(|entry| entry.set == *set).map(|entry| entry.element.clone()).collect();
        batch.create_elements(table, set, &own);
    }
}

/// Returns set and key of the entries that `matches` selects by set, key and comment; none if a set does not exist.
pub fn find(
    nft: &mut Nft,
    table: Table<'_>,
    sets: &[&'static str],
    matches: impl Fn(&'static str, &Data, &str) -> bool,
) -> Result<Vec<(&'static str, Data)>, Error> {
    let mut found = Vec::new();
    for set in sets {
        match nft.elements(table, set) {
            Ok(elements) => {
                let own = elements.into_iter().filter(|e| matches(set, &e.key, &e.comment));
                found.extend(own.map(|element| (*set, element.key)));
            }
            Err(error) if error.kind() == Kind::Absent => {}
            Err(error) => return Err(refused(&error)),
        }
    }
    Ok(found)
}

/// Removes the entries that `matches` selects by comment, in one transaction; returns set and key of each.
pub fn remove(
    nft: &mut Nft,
    table: Table<'_>,
    sets: &[&'static str],
    matches: impl Fn(&str) -> bool,
) -> Result<Vec<(&'static str, Data)>, Error> {
    let mut tries = 0;
    loop {
        tries += 1;
        let found = find(nft, table, sets, |_, _, comment| matches(comment))?;
        let mut batch = Batch::new();
        for (set, key) in &found {
            batch.delete_elements(table, set, &[Element::new(key.clone())]);
        }
        match nft.commit(batch) {
            Ok(()) => return Ok(found),
            // Another process removed one of them meanwhile.
            Err(error) if error.kind() == Kind::Absent && tries < TRIES => {}
            Err(error) => return Err(refused(&error)),
        }
    }
}

/// Returns the first entry that does not exist as it was created.
pub fn missing<'a>(
    nft: &mut Nft,
    table: Table<'_>,
    comment: &str,
    entries: &'a [Entry],
) -> Result<Option<&'a Entry>, Error> {
    let mut present: HashMap<&str, HashMap<Data, ListedElement>> = HashMap::new();
    for entry in entries {
        if !present.contains_key(entry.set) {
            let elements = nft.elements(table, entry.set).or_refused()?;
            present.insert(entry.set, elements.into_iter().map(|there| (there.key.clone(), there)).collect());
        }
        let there = present.get(entry.set).and_then(|set| set.get(&entry.key));
        let is_ours = there.is_some_and(|there| {
            there.comment == comment && entry.value.as_ref().is_none_or(|value| there.value == *value)
        });
        if !is_ours {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

/// Whether a comment is the owner tag of an attachment of `plugin` and `network` that is not among the valid ones.
pub fn is_stale<'a>(
    plugin: &'a str,
    network: &'a str,
    valid: &[ValidAttachment],
) -> impl Fn(&str) -> bool + use<'a> {
    let keep: HashSet<String> =
        valid.iter().map(|v| OwnerTag::of_valid(plugin, network, v).text(COMMENT_MAX)).collect();
    move |comment| {
        let tag = OwnerTag::read(comment);
        tag.is_some_and(|tag| tag.is_of(plugin, network) && !tag.container.is_empty())
            && !keep.contains(comment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gc_stale_entry_belongs_to_exactly_this_network() {
        let name = |end: &str| format!("{}{end}", "long-".repeat(12));
        let of = |network: &str, container: &str| OwnerTag {
            plugin: "portmap".into(),
            network: network.into(),
            container: container.repeat(64),
            ifname: "eth0".into(),
        };
        let (one, other) = (name("one"), name("other"));
        let valid = ValidAttachment { container_id: "a".repeat(64), ifname: "eth0".into() };
        let is_stale = is_stale("portmap", &one, &[valid]);
        for (network, container, stale) in [(&one, "a", false), (&one, "b", true), (&other, "b", false)] {
            let comment = of(network, container).text(COMMENT_MAX);
            assert!(comment.len() <= COMMENT_MAX);
            assert_eq!(is_stale(&comment), stale, "{comment}");
        }
    }
}
