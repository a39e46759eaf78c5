//! Owners of addresses: what whereabouts recorded beside what pods show.
//!
//! ```text
//!   records of whereabouts ┐
//!   network-status of pods ┴─► one living owner ──► address to keep for it
//!                              two living owners ─► conflict, with both
//! ```
//!
//! - A record of a deleted pod gives way to a pod that exists.
//! - An address that a pod shows and whereabouts lost belongs to this pod, if a pool of whereabouts contains it.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;

use super::networks::ShownAddress;
use super::objects::Allocation;

/// Address and owners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnedAddress {
    /// Address and owner; if there are several, the first.
    pub(super) allocation: Allocation,
    /// Owners that contradict each other, each with where the claim comes from; empty: there is one owner.
    pub(super) rivals: Vec<String>,
}

/// Returns each address once, sorted by address space and address. `exists` tells whether a pod exists.
pub(super) fn owners(
    records: &[Allocation],
    shown: &[ShownAddress],
    ranges: &[(String, IpNet)],
    exists: impl Fn(&str) -> bool,
) -> Vec<OwnedAddress> {
    let mut all: BTreeMap<(String, IpAddr), Vec<Allocation>> = BTreeMap::new();
    for record in records {
        all.entry((record.network_name.clone(), record.address)).or_default().push(record.clone());
    }
    for one in shown {
        let key = (one.space.clone(), one.address);
        let contains =
            |(space, range): &&(String, IpNet)| *space == one.space && range.contains(&one.address);
        let range = match all.get(&key).and_then(|known| known.first()) {
            Some(known) => known.range,
            None => match ranges.iter().filter(contains).min_by_key(|(_, range)| range.prefix_len()) {
                Some((_, range)) => *range,
                None => continue,
            },
        };
        all.entry(key).or_default().push(Allocation {
            network_name: one.space.clone(),
            range,
            address: one.address,
            pod: one.pod.clone(),
            container: String::new(),
            interface: one.interface.clone(),
            recorded_in: String::new(),
        });
    }
    all.into_values().filter_map(|claims| owned_address(claims, &exists)).collect()
}

/// Decides between the claims on one address. A record without a pod gives way to a pod that exists.
fn owned_address(claims: Vec<Allocation>, exists: impl Fn(&str) -> bool) -> Option<OwnedAddress> {
    let (living, mut gone): (Vec<_>, Vec<_>) = claims.into_iter().partition(|claim| exists(&claim.pod));
    // If the pod is unknown, the address may be in use.
    gone.sort_by_key(|claim| !claim.pod.is_empty());
    let mut distinct: Vec<Allocation> = Vec::new();
    for claim in living {
        let is_same = |known: &Allocation| {
            known.pod == claim.pod
                && (known.interface == claim.interface
                    || known.interface.is_empty()
                    || claim.interface.is_empty())
        };
        match distinct.iter_mut().find(|known| is_same(known)) {
            Some(known) if known.interface.is_empty() => known.interface = claim.interface,
            Some(_) => {}
            None => distinct.push(claim),
        }
    }
    let rivals = match distinct.len() {
        0 | 1 => Vec::new(),
        _ => distinct.iter().map(describe_claim).collect(),
    };
    let allocation = distinct.into_iter().next().or_else(|| gone.into_iter().next())?;
    Some(OwnedAddress { allocation, rivals })
}

/// Returns the owner and where the claim comes from.
fn describe_claim(claim: &Allocation) -> String {
    let Allocation { pod, interface, recorded_in, .. } = claim;
    let interface = if interface.is_empty() { String::new() } else { format!(" ({interface})") };
    match recorded_in.is_empty() {
        true => format!("pod {pod}{interface}, by its network-status"),
        false => format!("pod {pod}{interface}, by {recorded_in}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(address: &str, pod: &str, interface: &str, recorded_in: &str) -> Allocation {
        Allocation {
            network_name: String::new(),
            range: "10.0.0.0/24".parse().unwrap(),
            address: address.parse().unwrap(),
            pod: pod.to_owned(),
            container: String::new(),
            interface: interface.to_owned(),
            recorded_in: recorded_in.to_owned(),
        }
    }

    fn shown(address: &str, pod: &str, interface: &str) -> ShownAddress {
        let (space, address) = (String::new(), address.parse().unwrap());
        ShownAddress { space, address, pod: pod.to_owned(), interface: interface.to_owned() }
    }

    #[test]
    fn import_whereabouts_two_owners_of_an_address_are_both_named() {
        let ranges = [(String::new(), "10.0.0.0/24".parse().unwrap())];
        let judge = |records: &[Allocation], shown: &[ShownAddress]| {
            let exists = |pod: &str| !pod.is_empty() && !pod.ends_with("gone");
            let all = owners(records, shown, &ranges, exists);
            let line = |one: &OwnedAddress| {
                let Allocation { address, pod, interface, .. } = &one.allocation;
                format!("{address} {pod} {interface} {}", one.rivals.join(" | "))
            };
            all.iter().map(line).collect::<Vec<_>>()
        };
        let a = record("10.0.0.1", "x/a", "net1", "ippool one/p");
        for (records, shown, expected) in [
            // Once, although a reservation and the pod repeat it.
            (
                vec![a.clone(), record("10.0.0.1", "x/a", "", "r")],
                vec![shown("10.0.0.1", "x/a", "net1")],
                "10.0.0.1 x/a net1 ",
            ),
            (
                vec![a.clone(), record("10.0.0.1", "x/b", "net1", "ippool two/p")],
                vec![],
                "10.0.0.1 x/a net1 pod x/a (net1), by ippool one/p | pod x/b (net1), by ippool two/p",
            ),
            (
                vec![a.clone(), record("10.0.0.1", "x/gone", "net1", "ippool two/p")],
                vec![],
                "10.0.0.1 x/a net1 ",
            ),
            (
                vec![a.clone()],
                vec![shown("10.0.0.1", "x/b", "net1")],
                "10.0.0.1 x/a net1 pod x/a (net1), by ippool one/p | pod x/b (net1), by its network-status",
            ),
            (
                vec![a],
                vec![shown("10.0.0.1", "x/a", "net2")],
                "10.0.0.1 x/a net1 pod x/a (net1), by ippool one/p | pod x/a (net2), by its network-status",
            ),
            // The record is of a deleted pod, or whereabouts lost it.
            (
                vec![record("10.0.0.1", "x/gone", "net1", "p")],
                vec![shown("10.0.0.1", "x/b", "net1")],
                "10.0.0.1 x/b net1 ",
            ),
            (vec![], vec![shown("10.0.0.1", "x/b", "net1")], "10.0.0.1 x/b net1 "),
            (
                vec![record("10.0.0.1", "", "", "p")],
                vec![shown("10.0.0.1", "x/b", "net1")],
                "10.0.0.1 x/b net1 ",
            ),
            (
                vec![],
                vec![shown("10.0.0.1", "x/b", "net1"), shown("10.0.0.1", "x/c", "net1")],
                "10.0.0.1 x/b net1 pod x/b (net1), by its network-status | pod x/c (net1), by its network-status",
            ),
            (vec![record("10.0.0.1", "x/gone", "net1", "p")], vec![], "10.0.0.1 x/gone net1 "),
        ] {
            assert_eq!(judge(&records, &shown), [expected]);
        }
        assert_eq!(judge(&[], &[shown("192.0.2.1", "x/b", "net1")]), [""; 0], "in no pool of whereabouts");
    }
}
