//! Counters of the rules of an attachment.
//!
//! A rule of a policy is several rules of the kernel, one for each kind of peer. Their counters are added up. The rules that
//! let replies pass come first, so a connection counts with the packets before its first reply.

use std::collections::BTreeMap;

use cni::Error;
use linux::Netns;
use linux::nft::{Counted, Family, Nft, Table};
use npwg::network_policy::Direction;
use plugin_support::failure::OrRefused;
use rpc::diagnosis::PolicyCounter;
use rpc::journal::PolicyRules;

use super::identity::{AttachmentId, TABLE};
use super::place::Place;
use super::ruleset::{Decider, decider};

/// Returns the counters of the rules of an attachment, which are in the namespace `netns` of its pod or on the host. `None`
/// without a namespace, or without rules.
///
/// # Errors
/// The kernel's rules cannot be read.
pub(crate) fn counters(
    rules: &PolicyRules,
    netns: Option<&Netns>,
) -> Result<Option<Vec<PolicyCounter>>, Error> {
    let place = Place::recorded(rules);
    let mut nft = match (place.is_in_pod(), netns) {
        (false, _) => Nft::open().or_refused()?,
        (true, Some(netns)) => netns.nft().or_refused()?,
        (true, None) => return Ok(None),
    };
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
    let counter =
        |((direction, rule), Counted { packets, bytes })| PolicyCounter { direction, rule, packets, bytes };
    let all: Vec<PolicyCounter> = sums.into_iter().map(counter).collect();
    Ok((!all.is_empty()).then_some(all))
}
