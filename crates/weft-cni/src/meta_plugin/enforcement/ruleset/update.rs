//! Replacement of an attachment's rules by other ones, in one transaction.
//!
//! - Chains and sets have the same names before and after, so a packet sees the old or the new rules. At the moment of the
//!   commit the kernel may look up new content for an old rule (docs/design/policy.md, "Running pods").
//! - If only set contents differ, no rule is written: counters keep the values, and the cost depends on the number of
//!   changed addresses.

use std::collections::BTreeSet;
use std::net::IpAddr;

use linux::nft::{Batch, Data, Element, Nft, Table, Verdict};
use linux::{Error, Kind};
use npwg::network_policy::Direction;

use super::super::place::{HOST_FAMILIES, Place, bridges_track};
use super::base_chains::{self, BaseChainSource, retried};
use super::{HOOKS, HookChain, Phase, Ruleset, TABLE, guard};

// === impl Ruleset ===

impl Ruleset {
    /// Replaces an attachment's rules by these. `known` are the rules in force, if they are known and differ from these
    /// only in set contents. Returns whether only contents were changed.
    ///
    /// # Errors
    /// Nothing was changed.
    pub(in super::super) fn replace(
        &self,
        nft: &mut Nft,
        place: &Place,
        known: Option<&Ruleset>,
    ) -> Result<bool, Error> {
        // The first IPv6 address of a rule's peers begins a set.
        if let Some(known) = known.filter(|known| self.has_sets_of(known)) {
            match nft.commit(self.set_changes(known)) {
                // The rules in force are not those that were written: another program changed them.
                Err(error) if matches!(error.kind(), Kind::Absent | Kind::Exists) => {}
                done => return done.map(|()| true),
            }
        }
        let mut write = |known: BaseChainSource| {
            let mut batch = Batch::new();
            self.write(Phase::Attached, &mut known(nft), &mut batch);
            if nft.tables(self.family)?.iter().any(|name| name == TABLE) {
                self.discard_others(nft, &mut batch)?;
            }
            nft.commit(batch).map(|()| false)
        };
        // A process in the pod may have changed base chains there in a way that no list shows.
        if place.is_in_pod() { write(base_chains::unknown) } else { retried(write) }
    }

    /// Replaces the address protection on the host by that for these rules. It is in force before replies pass by them.
    pub(in super::super) fn replace_guard(
        &self,
        nft: &mut Nft,
        links: &[&str],
        addresses: &[IpAddr],
    ) -> Result<(), Error> {
        retried(|known| {
            let tables = nft.all_tables()?;
            let mut batch = Batch::new();
            for family in HOST_FAMILIES {
                if tables.iter().any(|(of, name)| *of == family && name == TABLE) {
                    let ids = std::slice::from_ref(&self.id);
                    guard::discard(nft, Table::new(family, TABLE), ids, &mut batch)?;
                }
            }
            self.guard(links, addresses, bridges_track, &mut known(nft), &mut batch);
            nft.commit(batch)
        })
    }

    /// Whether both have the same sets, whatever the contents.
    fn has_sets_of(&self, known: &Ruleset) -> bool {
        self.sets.iter().map(|set| &set.name).eq(known.sets.iter().map(|set| &set.name))
    }

    /// Returns the operations that give the sets in `known` these contents.
    fn set_changes(&self, known: &Ruleset) -> Batch {
        let table = Table::new(self.family, TABLE);
        let mut batch = Batch::new();
        for (old, new) in known.sets.iter().zip(&self.sets) {
            if old.elements == new.elements {
                continue;
            }
            batch.delete_elements(table, &old.name, &without(&old.elements, &new.elements));
            batch.add_elements(table, &new.name, &without(&new.elements, &old.elements));
        }
        batch
    }

    /// Adds the operations that remove the attachment's chains and sets that these rules do not have.
    fn discard_others(&self, nft: &mut Nft, batch: &mut Batch) -> Result<(), Error> {
        let id = &self.id;
        let table = Table::new(self.family, TABLE);
        let is_current = |name: &String| self.chains.iter().any(|chain| chain.name == *name);
        let chains = Direction::ALL.map(|direction| id.chain(direction));
        let existing = nft.chains(table)?;
        for chain in chains.iter().filter(|name| !is_current(name) && existing.contains(name)) {
            for HookChain { map, .. } in &HOOKS {
                let entry = match nft.element(table, map, &Data::link(&self.link)) {
                    Err(error) if error.kind() == Kind::Absent => None,
                    entry => entry?,
                };
                let leads = |verdict: &Option<Verdict>| *verdict == Some(Verdict::Goto(chain.clone()));
                if let Some(entry) = entry.filter(|entry| leads(&entry.verdict)) {
                    batch.delete_elements(table, map, &[entry.at(entry.key.clone())]);
                }
            }
            batch.flush_chain(table, chain).delete_chain(table, chain);
        }
        let own = format!("{id}-");
        let is_left =
            |name: &String| name.starts_with(&own) && !self.sets.iter().any(|set| set.name == *name);
        for set in nft.sets(table)?.iter().filter(|name| is_left(name)) {
            batch.delete_set(table, set);
        }
        Ok(())
    }
}

/// Returns the elements whose key is not among the others.
fn without(elements: &[Element], others: &[Element]) -> Vec<Element> {
    let key = |element: &Element| element.listed().key.bytes().to_vec();
    let others: BTreeSet<Vec<u8>> = others.iter().map(key).collect();
    elements.iter().filter(|element| !others.contains(&key(element))).cloned().collect()
}
