//! Claims on entries with the same key, so that one attachment's DEL does not take another's entry.
//!
//! ```text
//! map sources4        { type ipv4_addr : verdict;          10.1.0.5                   comment OWNER : jump CHAIN }
//! map sources4_claims { type ipv4_addr . ifname : verdict; 10.1.0.5 . "0123456789abcde" comment OWNER : jump CHAIN }
//! ```
//!
//! Packets are matched with the entries; no rule uses the claims. The last field in a claim's key is a hash of the
//! comment.
//!
//! Rules:
//! - A table has no sets of claims before the first conflict, so other calls make one request to find none.
//! - From the second attachment on, each one with the key has a claim, also the one that has the entry.
//! - ADD writes the claim in the transaction that replaces the entry. DEL reads the claims again after the transaction
//!   that removed them. So at least one of two concurrent calls sees the other, and the entry exists after both.

use std::collections::{BTreeMap, HashMap, HashSet};

use cni::Error;
use linux::Kind;
use linux::nft::{Batch, Data, Element, ListedElement, Nft, Table, Type};
use plugin_support::failure::{OrRefused, refused};
use plugin_support::hash::hashed;

use super::{Entry, EntrySets};

/// Hash length; for nft the hash is an interface name.
const HASH: usize = 15;

/// Claims in a table's sets.
pub(super) struct Claims<'a> {
    sets: EntrySets<'a>,
    /// Entry set, entry key, and the claim.
    claims: Vec<(&'static str, Data, ListedElement)>,
}

/// An attachment's entries, one of which others may have.
pub(super) struct Contest<'a> {
    pub(super) sets: EntrySets<'a>,
    pub(super) comment: &'a str,
    pub(super) entries: &'a [Entry],
}

/// Elements to delete and to create, by set name.
#[derive(Debug, Default)]
pub(super) struct Changes {
    deleted: BTreeMap<String, Vec<Element>>,
    created: BTreeMap<String, Vec<Element>>,
}

/// Entries by set and key, and the keys that others have.
type Present = (HashMap<(&'static str, Data), ListedElement>, Vec<(&'static str, Data)>);

fn set_of_claims(set: &str) -> String {
    format!("{set}_claims")
}

fn key_of_claim(key: &Data, comment: &str) -> Data {
    key.clone().and(Data::link(&hashed("", HASH, &[comment])))
}

/// Whether the attachment with this comment claims the key.
pub(super) fn exists(
    nft: &mut Nft,
    table: Table<'_>,
    set: &str,
    key: &Data,
    comment: &str,
) -> Result<bool, Error> {
    let claim = nft.element(table, &set_of_claims(set), &key_of_claim(key, comment)).or_refused()?;
    Ok(claim.is_some_and(|claim| claim.comment == comment))
}

// === impl Claims ===

impl<'a> Claims<'a> {
    /// Reads the claims in these sets.
    pub(super) fn read(nft: &mut Nft, sets: EntrySets<'a>) -> Result<Claims<'a>, Error> {
        let mut claims = Vec::new();
        let existing = match nft.sets(sets.table) {
            Ok(names) => names,
            Err(error) if error.kind() == Kind::Absent => Vec::new(),
            Err(error) => return Err(refused(&error)),
        };
        for set in sets.names() {
            let name = set_of_claims(set);
            if existing.contains(&name) {
                match nft.elements(sets.table, &name) {
                    Ok(found) => {
                        claims.extend(
                            found.into_iter().map(|claim| (set, claim.key.without(Type::Link), claim)),
                        );
                    }
                    Err(error) if error.kind() == Kind::Absent => {}
                    Err(error) => return Err(refused(&error)),
                }
            }
        }
        Ok(Claims { sets, claims })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// Returns set and key for the claims that `matches` selects by comment.
    pub(super) fn keys_of(&self, matches: impl Fn(&str) -> bool) -> Vec<(&'static str, Data)> {
        let own = self.claims.iter().filter(|(_, _, claim)| matches(&claim.comment));
        own.map(|(set, key, _)| (*set, key.clone())).collect()
    }

    /// Returns the claim to a key that has the highest precedence, without those that `excluded` selects.
    pub(super) fn best(
        &self,
        set: &str,
        key: &Data,
        excluded: impl Fn(&str) -> bool,
    ) -> Option<&ListedElement> {
        let of_key = self.claims.iter().filter(|(of, to, _)| *of == set && to == key);
        let others = of_key.map(|(_, _, claim)| claim).filter(|claim| !excluded(&claim.comment));
        others.max_by_key(|claim| self.precedence(claim))
    }

    /// Returns the claims to other keys than the wanted ones.
    fn to_others(&self, wanted: &HashSet<(&str, &Data)>) -> Claims<'a> {
        let others = self.claims.iter().filter(|(set, key, _)| !wanted.contains(&(*set, key)));
        Claims { sets: self.sets, claims: others.cloned().collect() }
    }

    fn precedence(&self, element: &ListedElement) -> u8 {
        element.verdict.as_ref().map_or(0, self.sets.precedence)
    }

    /// Whether the element is among the claims.
    fn has(&self, set: &str, key: &Data, comment: &str) -> bool {
        self.claims.iter().any(|(of, to, claim)| *of == set && to == key && claim.comment == comment)
    }

    /// Removes the claims that `leaving` selects. Each key passes to the best among the other claimants if the entry is
    /// among the removed `own` ones, or if it has no entry.
    pub(super) fn pass(
        &self,
        nft: &mut Nft,
        changes: &mut Changes,
        keys: &[(&'static str, Data)],
        own: &[(&'static str, Data)],
        leaving: impl Fn(&str) -> bool,
    ) -> Result<(), Error> {
        for (set, _, claim) in self.claims.iter().filter(|(_, _, claim)| leaving(&claim.comment)) {
            changes.delete(&set_of_claims(set), &claim.key);
        }
        for (set, key) in keys {
            let Some(heir) = self.best(set, key, &leaving) else { continue };
            let is_free = own.contains(&(*set, key.clone()))
                || nft.element(self.sets.table, set, key).or_refused()?.is_none();
            if is_free {
                // The claim is written again, so that the transaction fails if its owner has withdrawn it.
                changes.delete(&set_of_claims(set), &heir.key);
                changes.create(&set_of_claims(set), heir.at(heir.key.clone()));
                changes.create(set, heir.at(key.clone()));
            }
        }
        Ok(())
    }
}

// === impl Changes ===

impl Changes {
    pub(super) fn delete(&mut self, set: &str, key: &Data) {
        self.deleted.entry(set.to_owned()).or_default().push(Element::new(key.clone()));
    }

    pub(super) fn create(&mut self, set: &str, element: Element) {
        self.created.entry(set.to_owned()).or_default().push(element);
    }

    /// Appends all deletions, and then all creations.
    pub(super) fn write(&self, table: Table<'_>, batch: &mut Batch) {
        let Changes { deleted, created } = self;
        for (set, elements) in deleted {
            batch.delete_elements(table, set, elements);
        }
        for (set, elements) in created {
            batch.create_elements(table, set, elements);
        }
    }
}

// === impl Contest ===

impl Contest<'_> {
    /// Adds the entries to the batch. If another attachment has one, both get a claim to it.
    pub(super) fn write(&self, nft: &mut Nft, batch: &mut Batch) -> Result<(), Error> {
        let Contest { sets, comment, entries } = self;
        let claims = Claims::read(nft, *sets)?;
        let wanted: HashSet<(&str, &Data)> = entries.iter().map(|entry| (entry.set, &entry.key)).collect();
        let (there, left) = self.present(nft, &wanted)?;
        if !claims.is_empty() || there.values().any(|element| element.comment != *comment) {
            for set in sets.sets {
                let key = [set.key(), &[Type::Link]].concat();
                batch.ensure_set(sets.table, &set.with_key(&set_of_claims(set.name()), &key));
            }
        }
        let mut changes = Changes::default();
        left.iter().for_each(|(set, key)| changes.delete(set, key));
        claims.to_others(&wanted).pass(nft, &mut changes, &left, &left, |found| found == *comment)?;
        for entry in *entries {
            self.write_entry(&mut changes, &claims, entry, there.get(&(entry.set, entry.key.clone())));
        }
        changes.write(sets.table, batch);
        Ok(())
    }

    /// Adds one entry to the changes; `there` is the existing one.
    fn write_entry(
        &self,
        changes: &mut Changes,
        claims: &Claims<'_>,
        Entry { set, key, value: _, element }: &Entry,
        there: Option<&ListedElement>,
    ) {
        let (comment, of_claims, own) = (self.comment, set_of_claims(set), element.listed());
        if there.is_some() {
            changes.delete(set, key);
        }
        let other = there.filter(|there| there.comment != comment);
        let rival = claims.best(set, key, |found| found == comment);
        if let Some(other) = other.filter(|other| !claims.has(set, key, &other.comment)) {
            changes.create(&of_claims, other.at(key_of_claim(key, &other.comment)));
        }
        if claims.has(set, key, comment) {
            changes.delete(&of_claims, &key_of_claim(key, comment));
        }
        if other.is_some() || rival.is_some() {
            changes.create(&of_claims, own.at(key_of_claim(key, comment)));
        }
        let best = other.into_iter().chain(rival).max_by_key(|rival| claims.precedence(rival));
        let winner = best.filter(|rival| claims.precedence(rival) > claims.precedence(&own));
        changes.create(set, winner.unwrap_or(&own).at(key.clone()));
    }

    /// Returns the existing entries with one of the keys, and the keys that the attachment's other entries
    /// have.
    fn present(&self, nft: &mut Nft, wanted: &HashSet<(&str, &Data)>) -> Result<Present, Error> {
        let (mut there, mut left) = (HashMap::new(), Vec::new());
        for set in self.sets.names() {
            match nft.elements(self.sets.table, set) {
                Ok(found) => {
                    for element in found {
                        if wanted.contains(&(set, &element.key)) {
                            there.insert((set, element.key.clone()), element);
                        } else if element.comment == self.comment {
                            left.push((set, element.key));
                        }
                    }
                }
                Err(error) if error.kind() == Kind::Absent => {}
                Err(error) => return Err(refused(&error)),
            }
        }
        Ok((there, left))
    }
}
