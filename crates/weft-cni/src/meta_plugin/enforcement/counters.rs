//! Counters in an attachment's rules.
//!
//! A policy rule is several kernel rules, one for each kind of peer, so the counters are added up. The rules that let
//! replies pass come first, so a connection counts only with the packets before the first reply.

use std::collections::BTreeMap;

use cni::Error;
use linux::nft::{Counted, Family, Nft, Table};
use npwg::network_policy::{COMPILED_RULES_MAX, Direction};
use plugin_support::failure::OrRefused;
use rpc::diagnosis::PolicyCounter;
use rpc::journal::PolicyRules;

use super::bound_addresses;
use super::identity::{AttachmentId, TABLE};
use super::place::Place;
use super::ruleset::{Decider, decider};

/// Maximum size of the kernel's list of an attachment's rules in a pod, in bytes. The pod can add rules. A compiled
/// rule is at most four kernel rules in each direction, each smaller than 1 KiB.
pub(crate) const LIST_IN_POD_MAX: usize = 8 * COMPILED_RULES_MAX * 1024;

/// Whether an attachment's rules are in the pod's namespace, and not on the host.
pub(crate) fn are_in_pod(rules: &PolicyRules) -> bool {
    Place::recorded(rules).is_in_pod()
}

/// Returns an attachment's rule counters. `nft` must be in the namespace that has the rules: [`are_in_pod`]. `None`
/// without rules.
///
/// # Errors
/// The kernel's rules cannot be read.
pub(crate) fn counters(rules: &PolicyRules, nft: &mut Nft) -> Result<Option<Vec<PolicyCounter>>, Error> {
    let place = Place::recorded(rules);
    // Frames that bypass a bridge are dropped by a chain of the family inet.
    let families: &[Family] = match place.family() {
        Family::Bridge => &[Family::Bridge, Family::Inet],
        _ => &[Family::Inet],
    };
    let mut sums: BTreeMap<(Direction, Option<usize>), Counted> = BTreeMap::new();
    for direction in Direction::ALL {
        let chain = AttachmentId::read(&rules.id).chain(direction);
        for family in families {
            for rule in nft.rules(Table::new(*family, TABLE), &chain).or_refused()? {
                let (Some(counted), Some(decider)) = (rule.counted, decider(&rule.comment)) else { continue };
                let index = match decider {
                    Decider::Rule(index) => Some(index),
                    Decider::NoRule => None,
                };
                let sum = sums.entry((direction, index)).or_default();
                sum.packets = sum.packets.saturating_add(counted.packets);
                sum.bytes = sum.bytes.saturating_add(counted.bytes);
            }
        }
    }
    if place.is_in_pod() {
        let rules_of_addresses =
            nft.rules(Table::new(Family::Inet, TABLE), bound_addresses::CHAIN).or_refused()?;
        for counted in
            rules_of_addresses.iter().filter(|rule| rule.comment == rules.id).filter_map(|rule| rule.counted)
        {
            let sum = sums.entry((Direction::Ingress, None)).or_default();
            sum.packets = sum.packets.saturating_add(counted.packets);
            sum.bytes = sum.bytes.saturating_add(counted.bytes);
        }
    }
    let counter =
        |((direction, rule), Counted { packets, bytes })| PolicyCounter { direction, rule, packets, bytes };
    let all: Vec<PolicyCounter> = sums.into_iter().map(counter).collect();
    Ok((!all.is_empty()).then_some(all))
}
