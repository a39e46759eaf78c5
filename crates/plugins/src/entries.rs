//! Entries in nf_tables sets and maps whose comment is an attachment's owner tag.
//!
//! Rules:
//! - In the usual case, ADD is one transaction that only adds entries. If the kernel reports that an object
//!   is missing, the objects that all entries share are created.
//! - Several attachments can request an entry with the same key. One has it, and the others claim it (`claims`). An
//!   attachment removes only the entry and claim that it has. The entry then passes to another claimant.
//!
//! Source: nft(8) "sets", "maps".

mod claims;

use std::collections::{HashMap, HashSet};

use cni::Error;
use cni::invocation::ValidAttachment;
use linux::Kind;
use linux::nft::{Batch, Data, Element, Family, ListedElement, Nft, Set, Table, Verdict};
use plugin_support::failure::{OrRefused, refused};
use plugin_support::owner_tag::{COMMENT_MAX, OwnerTag};
use rustix::io::Errno;

use self::claims::{Changes, Claims, Contest};

/// Maximum number of attempts for a transaction that conflicts with others.
const TRIES: usize = 5;

/// Entry in a set or map.
pub struct Entry {
    /// Set name.
    pub set: &'static str,
    /// Entry key.
    pub key: Data,
    /// Value, in a map from keys to values.
    pub value: Option<Data>,
    /// The whole element.
    pub element: Element,
}

/// Sets and maps in a table that have attachments' entries.
#[derive(Clone, Copy)]
pub struct EntrySets<'a> {
    /// Table that contains the sets.
    pub table: Table<'a>,
    /// The sets. If several attachments claim a key, they share the entry.
    pub sets: &'a [Set<'static>],
    /// Precedence for a verdict: the entry belongs to a claimant with the highest one. Among equal ones, the
    /// last attachment that requests the entry gets it.
    pub precedence: fn(&Verdict) -> u8,
}

/// Entry that an attachment does not have any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedEntry {
    /// Set name.
    pub set: &'static str,
    /// Entry key.
    pub key: Data,
    /// Whether another attachment has claimed the key.
    pub is_claimed: bool,
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

// === impl EntrySets ===

impl EntrySets<'_> {
    /// Returns the sets' names.
    pub fn names(&self) -> Vec<&'static str> {
        self.sets.iter().map(Set::name).collect()
    }
}

/// Returns the same precedence for every verdict.
pub fn any_verdict(_: &Verdict) -> u8 {
    0
}

/// Adds the entries, whose comments are all `comment`, in one transaction.
///
/// If another attachment has an entry with the same key, both claim it. Then other entries with the same
/// comment are removed, too. Without such a conflict they are not searched for: it would read all entries at
/// every ADD, and a repeated ADD has the same keys. `shared_objects` returns what the entries need and can be
/// committed repeatedly.
pub fn put(
    nft: &mut Nft,
    sets: EntrySets<'_>,
    comment: &str,
    entries: &[Entry],
    shared_objects: impl Fn() -> Result<Batch, Error>,
) -> Result<(), Error> {
    let mut changes = Changes::default();
    entries.iter().for_each(|entry| changes.create(entry.set, entry.element.clone()));
    let mut batch = Batch::new();
    changes.write(sets.table, &mut batch);
    let mut conflicts = false;
    for _ in 0..TRIES {
        match nft.commit(batch) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == Kind::Absent => {}
            Err(error) if error.kind() == Kind::Exists => conflicts = true,
            Err(error) => return Err(refused(&error)),
        }
        // Either an object is missing, or a key belongs to another container, which may be one that was never deleted.
        batch = shared_objects()?;
        if conflicts {
            Contest { sets, comment, entries }.write(nft, &mut batch)?;
        } else {
            changes.write(sets.table, &mut batch);
        }
    }
    nft.commit(batch).or_refused()
}

/// Returns set and key for the entries that `matches` selects by set, key and comment; none if a set does not
/// exist.
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

/// Removes the entries and claims that `matches` selects by comment; returns the entries.
///
/// An entry that others claim passes to a claimant in the same transaction.
pub fn remove(
    nft: &mut Nft,
    sets: EntrySets<'_>,
    matches: impl Fn(&str) -> bool,
) -> Result<Vec<RemovedEntry>, Error> {
    let own = find(nft, sets.table, &sets.names(), |_, _, comment| matches(comment))?;
    remove_at(nft, sets, own, matches)
}

/// As [`remove`], for callers that know all entries' keys. It takes constant time.
pub fn remove_known(
    nft: &mut Nft,
    sets: EntrySets<'_>,
    keys: &[(&'static str, Data)],
    matches: impl Fn(&str) -> bool,
) -> Result<Vec<RemovedEntry>, Error> {
    let own = among(nft, sets.table, keys, &matches)?;
    remove_at(nft, sets, own, matches)
}

fn remove_at(
    nft: &mut Nft,
    sets: EntrySets<'_>,
    mut own: Vec<(&'static str, Data)>,
    matches: impl Fn(&str) -> bool,
) -> Result<Vec<RemovedEntry>, Error> {
    let mut keys = own.clone();
    let mut last = Ok(());
    for _ in 0..=TRIES {
        let claims = Claims::read(nft, sets)?;
        keys.extend(claims.keys_of(&matches));
        keys.sort_unstable_by(|one, other| (one.0, one.1.bytes()).cmp(&(other.0, other.1.bytes())));
        keys.dedup();
        if last.is_err() || !claims.is_empty() {
            // Another process changed an entry, or may have done so.
            own = among(nft, sets.table, &keys, &matches)?;
        }
        let mut changes = Changes::default();
        own.iter().for_each(|(set, key)| changes.delete(set, key));
        claims.pass(nft, &mut changes, &keys, &own, &matches)?;
        let mut batch = Batch::new();
        changes.write(sets.table, &mut batch);
        if batch.is_empty() {
            let removed = keys.into_iter().map(|(set, key)| {
                let is_claimed = claims.best(set, &key, &matches).is_some();
                RemovedEntry { set, key, is_claimed }
            });
            return Ok(removed.collect());
        }
        own.clear();
        last = nft.commit(batch);
        if let Err(error) = &last
            && !matches!(error.kind(), Kind::Absent | Kind::Exists)
        {
            return Err(refused(error));
        }
    }
    last.or_refused().and_then(|()| {
        Err(Error::internal(format!("table {}: other processes keep changing the entries", sets.table)))
    })
}

/// Returns the keys whose entry `matches` selects by comment.
fn among(
    nft: &mut Nft,
    table: Table<'_>,
    keys: &[(&'static str, Data)],
    matches: impl Fn(&str) -> bool,
) -> Result<Vec<(&'static str, Data)>, Error> {
    let mut own = Vec::new();
    for (set, key) in keys {
        if nft.element(table, set, key).or_refused()?.is_some_and(|entry| matches(&entry.comment)) {
            own.push((*set, key.clone()));
        }
    }
    Ok(own)
}

/// Whether an entry exists and the attachment with this comment has it or has claimed it.
pub fn has(
    nft: &mut Nft,
    table: Table<'_>,
    set: &'static str,
    key: &Data,
    comment: &str,
) -> Result<bool, Error> {
    match nft.element(table, set, key).or_refused()? {
        None => Ok(false),
        Some(entry) if entry.comment == comment => Ok(true),
        Some(_) => claims::exists(nft, table, set, key, comment),
    }
}

/// Returns the first entry that does not exist as it was created. An entry without a value may be another claimant's.
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
        let is_ours = match present.get(entry.set).and_then(|set| set.get(&entry.key)) {
            None => false,
            Some(there) if there.comment == comment => {
                entry.value.as_ref().is_none_or(|value| there.value == *value)
            }
            Some(_) if entry.value.is_some() => false,
            Some(_) => claims::exists(nft, table, entry.set, &entry.key, comment)?,
        };
        if !is_ours {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

/// Whether a comment is an owner tag from `plugin` and `network` whose attachment is not among the valid
/// ones.
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
