//! Entries of sets and maps in nf_tables that carry the tag of an attachment in their comment.
//!
//! Rules:
//! - the usual ADD is one transaction that only makes entries; what they need is made when the kernel says that
//!   it is not there;
//! - an entry is the last one's who asked for it, and removed only by whom its comment names: an address or a
//!   port may have been given to another container since.
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

/// How often a transaction is tried that others are in the way of.
const TRIES: usize = 5;

/// An entry of a set or map.
pub struct Entry {
    /// The set's name.
    pub set: &'static str,
    /// The key.
    pub key: Data,
    /// What a map of values has for it.
    pub value: Option<Data>,
    /// All of it.
    pub element: Element,
}

/// The tables of nf_tables: who asks for all of them need not ask for what is in those that are not there.
pub struct Tables {
    /// The socket that was asked.
    pub nft: Nft,
    names: Vec<(Family, String)>,
}

impl Tables {
    /// Is this one there?
    pub fn has(&self, family: Family, name: &str) -> bool {
        self.names.iter().any(|(of, known)| *of == family && known == name)
    }
}

/// A socket to find what is to be removed; none on a kernel without nf_tables, which holds nothing.
pub fn open() -> Result<Option<Nft>, Error> {
    unless_absent(Nft::open().and_then(|mut nft| nft.tables(Family::Inet).map(|_| nft)))
}

/// [`open`], and the tables that there are.
pub fn tables() -> Result<Option<Tables>, Error> {
    unless_absent(Nft::open().and_then(|mut nft| nft.all_tables().map(|names| Tables { nft, names })))
}

/// What was listed; none on a kernel without nf_tables.
pub fn unless_absent<T>(listed: Result<T, linux::Error>) -> Result<Option<T>, Error> {
    match listed {
        Ok(found) => Ok(Some(found)),
        // What the kernel says of a part of netfilter that it has not, and of netfilter if it has none.
        Err(error) if error.errno() == Some(Errno::INVAL) || error.kind() == Kind::Unsupported => Ok(None),
        Err(error) => Err(refused(&error)),
    }
}

/// Makes the entries, whose comments are all `comment`, in one transaction.
///
/// An entry of `sets` that is there already, of whomever, is replaced; then others of the same comment go, too. Without one
/// in the way nobody looks for those: it would cost every ADD a look at all entries, and who asks again has the same keys.
/// `furniture` makes what the entries need; repeating it changes nothing.
pub fn put(
    nft: &mut Nft,
    table: Table<'_>,
    sets: &[&'static str],
    comment: &str,
    entries: &[Entry],
    furniture: impl Fn() -> Result<Batch, Error>,
) -> Result<(), Error> {
    let mut batch = Batch::new();
    create(&mut batch, table, sets, entries);
    for _ in 0..TRIES {
        match nft.commit(batch) {
            Ok(()) => return Ok(()),
            Err(error) if matches!(error.kind(), Kind::Absent | Kind::Exists) => {}
            Err(error) => return Err(refused(&error)),
        }
        // Either something is not there yet, or an entry of somebody who is gone without a word.
        batch = furniture()?;
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

/// Set and key of the entries that are meant, by set, key and comment; none if a set is not there.
pub fn find(
    nft: &mut Nft,
    table: Table<'_>,
    sets: &[&'static str],
    is_meant: impl Fn(&'static str, &Data, &str) -> bool,
) -> Result<Vec<(&'static str, Data)>, Error> {
    let mut found = Vec::new();
    for set in sets {
        match nft.elements(table, set) {
            Ok(elements) => {
                let own = elements.into_iter().filter(|e| is_meant(set, &e.key, &e.comment));
                found.extend(own.map(|element| (*set, element.key)));
            }
            Err(error) if error.kind() == Kind::Absent => {}
            Err(error) => return Err(refused(&error)),
        }
    }
    Ok(found)
}

/// Removes the entries whose comment is meant, in one transaction; set and key of each.
pub fn remove(
    nft: &mut Nft,
    table: Table<'_>,
    sets: &[&'static str],
    is_meant: impl Fn(&str) -> bool,
) -> Result<Vec<(&'static str, Data)>, Error> {
    let mut tries = 0;
    loop {
        tries += 1;
        let found = find(nft, table, sets, |_, _, comment| is_meant(comment))?;
        let mut batch = Batch::new();
        for (set, key) in &found {
            batch.delete_elements(table, set, &[Element::new(key.clone())]);
        }
        match nft.commit(batch) {
            Ok(()) => return Ok(found),
            // Somebody else took one of them away in the meantime.
            Err(error) if error.kind() == Kind::Absent && tries < TRIES => {}
            Err(error) => return Err(refused(&error)),
        }
    }
}

/// The first entry that is not there as it was made.
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

/// Is a comment the tag of an attachment of `plugin` and `network` that is not among the valid ones?
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
    fn s32_what_is_stale_is_of_this_network_and_of_no_other_whose_name_begins_alike() {
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
