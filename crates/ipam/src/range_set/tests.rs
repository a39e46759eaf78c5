//! Search order and choice of range sets, compared with a slow model for random sets.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn range(subnet: &str, first: &str, last: &str, gateway: &str) -> Range {
    let range = Range::between(subnet.parse().unwrap(), Some(ip(first)), Some(ip(last))).unwrap();
    if gateway.is_empty() { range } else { range.with_gateway(ip(gateway)).unwrap() }
}

fn set(ranges: &[(&str, &str, &str, &str)]) -> RangeSet {
    RangeSet::new(
        ranges.iter().map(|(subnet, first, last, gateway)| range(subnet, first, last, gateway)).collect(),
    )
    .unwrap()
}

fn texts(candidates: Candidates<'_>) -> Vec<String> {
    candidates.map(|assignment| assignment.address.addr().to_string()).collect()
}

#[test]
fn range_set_search_starts_after_last_address_and_wraps() {
    let set = set(&[
        ("10.0.0.0/24", "10.0.0.1", "10.0.0.3", "10.0.0.1"),
        ("10.0.1.0/24", "10.0.1.8", "10.0.1.9", "10.0.1.9"),
    ]);
    let cases = [
        ("", "2 3 8"),
        ("10.0.0.2", "3 8 2"),
        ("10.0.0.3", "8 2 3"),
        ("10.0.1.8", "2 3 8"),
        ("10.0.1.9", "2 3 8"),
        ("10.0.0.1", "2 3 8"),
        ("10.9.9.9", "2 3 8"),
        ("fd00::1", "2 3 8"),
    ];
    for (last, expected) in cases {
        let order = texts(set.after((!last.is_empty()).then(|| ip(last))));
        let digits: Vec<&str> = order.iter().filter_map(|text| text.rsplit('.').next()).collect();
        assert_eq!(digits.join(" "), expected, "after {last:?}");
    }
}

#[test]
fn range_set_assignment_has_prefix_and_gateway_of_its_range() {
    let set = set(&[
        ("10.0.0.0/24", "10.0.0.2", "10.0.0.3", "10.0.0.254"),
        ("10.7.0.0/16", "10.7.0.5", "10.7.0.5", "10.0.0.3"),
    ]);
    let assignment = set.assign(ip("10.7.0.5")).unwrap();
    assert_eq!(
        (assignment.address.to_string().as_str(), assignment.gateway),
        ("10.7.0.5/16", Some(ip("10.0.0.3")))
    );
    assert_eq!(set.assign(ip("10.7.0.6")), None, "outside");
    assert_eq!(set.assign(ip("10.0.0.3")), None, "gateway of another range");
    assert!(set.contains(ip("10.0.0.3")) && set.is_gateway(ip("10.0.0.254")));
    assert_eq!(texts(set.after(None)), ["10.0.0.2", "10.7.0.5"]);
    assert_eq!(set.to_string(), "10.0.0.2-10.0.0.3,10.7.0.5-10.7.0.5");
}

#[test]
fn range_set_rejects_mixed_families_and_overlaps() {
    let a = || range("10.0.0.0/24", "10.0.0.2", "10.0.0.20", "");
    let b = || range("10.0.0.0/16", "10.0.0.21", "10.0.0.30", "");
    let c = || range("10.0.0.0/24", "10.0.0.30", "10.0.0.40", "");
    let v6 = || range("::/96", "::a00:2", "::a00:14", "");
    assert_eq!(RangeSet::new(vec![]), Err(RangeSetError::Empty));
    assert_eq!(RangeSet::new(vec![a(), b(), v6()]), Err(RangeSetError::MixedFamilies(2)));
    assert_eq!(RangeSet::new(vec![c(), a(), b()]), Err(RangeSetError::Overlap(0, 2)));
    assert!(RangeSet::new(vec![b(), a()]).is_ok(), "nested subnets are accepted");
    let sets = |lists: Vec<Vec<Range>>| {
        lists.into_iter().map(|list| RangeSet::new(list).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(RangeSet::overlap(&sets(vec![vec![a()], vec![v6()], vec![b()]])), None);
    assert_eq!(RangeSet::overlap(&sets(vec![vec![a()], vec![v6()], vec![b()], vec![c()]])), Some((2, 3)));
}

#[test]
fn range_set_search_of_ipv6_subnet_depends_on_used_only() {
    let set = set(&[("::/0", "::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "::1")]);
    let used: UsedAddresses = (2u128..=50_000).map(|number| Family::V6.address(number)).collect();
    assert_eq!(set.choose(None, &used).unwrap().address.addr(), ip("::c351"));
    let end = ip("ffff:ffff:ffff:ffff:ffff:ffff:ffff:fffe");
    assert_eq!(
        set.choose(Some(end), &used).unwrap().address.addr(),
        ip("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
    );
    let used: UsedAddresses = used_and(&used, "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff");
    assert_eq!(
        set.choose(Some(end), &used).unwrap().address.addr(),
        ip("::c351"),
        "wraps at the last IPv6 address"
    );
}

/// Adds one address to a run of 50,000.
fn used_and(used: &UsedAddresses, more: &str) -> UsedAddresses {
    let run = (2u128..=50_000).map(|number| Family::V6.address(number));
    let both: UsedAddresses = run.chain([ip(more)]).collect();
    assert_ne!(&both, used);
    both
}

/// First subnet addresses in random sets, including both ends of each family.
const PLACES: [&str; 6] =
    ["0.0.0.0", "10.1.2.0", "255.255.255.0", "::", "fd00::100", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff00"];

prop_compose! {
    /// Range of a few addresses in a /24 or /120, with a gateway near it.
    fn small_range(family: bool)(
        place in 0..3_usize, first in 0..30_u128, length in 0..9_u128, gateway in proptest::option::of(0..40_u128),
    ) -> Range {
        let base = ip(PLACES[if family { place } else { place + 3 }]);
        let subnet = IpNet::new(base, if base.is_ipv4() { 24 } else { 120 }).unwrap();
        let start = number(base) + 215 + first;
        let at = |offset: u128| Family::of(base).address((start + offset).min(number(base) + 255));
        let range = Range::between(subnet, Some(at(0)), Some(at(length))).unwrap();
        match gateway {
            None => range,
            Some(gateway) => range.with_gateway(Family::of(base).address(number(base) + 215 + gateway)).unwrap(),
        }
    }
}

/// Sets of up to four ranges without overlap.
fn sets() -> impl Strategy<Value = RangeSet> {
    any::<bool>().prop_flat_map(|family| {
        proptest::collection::vec(small_range(family), 1..5).prop_map(|ranges| {
            let mut fitting: Vec<Range> = Vec::new();
            for range in ranges {
                let mut more = fitting.clone();
                more.push(range);
                if RangeSet::new(more.clone()).is_ok() {
                    fitting = more;
                }
            }
            RangeSet::new(fitting).unwrap()
        })
    })
}

/// All addresses of a set that may be allocated, found by enumeration.
fn all(set: &RangeSet) -> Vec<IpAddr> {
    let numbers = set.ranges().iter().flat_map(|range| {
        let (first, last) = range.bounds();
        (first..=last).map(|number| range.family().address(number))
    });
    numbers.filter(|ip| !set.ranges().iter().any(|range| range.gateway() == Some(*ip))).collect()
}

proptest! {
    #[test]
    fn range_set_candidates_are_complete_and_unique(set in sets(), last in 0..60_usize) {
        let expected = all(&set);
        let last = expected.get(last).copied();
        let order: Vec<IpAddr> = set.after(last).map(|assignment| assignment.address.addr()).collect();
        prop_assert_eq!(order.len(), expected.len());
        let allocated: HashSet<IpAddr> = order.iter().copied().collect();
        prop_assert_eq!(&allocated, &expected.iter().copied().collect());
        prop_assert!(last.is_none() || order.last() == last.as_ref(), "the last address comes last");
        for ip in order {
            prop_assert!(set.contains(ip) && !set.is_gateway(ip));
        }
    }

    #[test]
    fn range_set_choice_is_first_unused_candidate(
        set in sets(), last in 0..60_usize, taken in proptest::collection::vec(any::<bool>(), 60),
    ) {
        let every = all(&set);
        let used: Vec<IpAddr> = every.iter().zip(&taken).filter(|(_, taken)| **taken).map(|(ip, _)| *ip).collect();
        // Gateways and addresses outside the set make no difference.
        let more = set.ranges().iter().filter_map(Range::gateway).chain(PLACES.map(ip));
        let known: UsedAddresses = used.iter().copied().chain(more).filter(|ip| used.contains(ip) || !every.contains(ip)).collect();
        let last = every.get(last).copied();
        let slow = set.after(last).find(|assignment| !used.contains(&assignment.address.addr()));
        prop_assert_eq!(set.choose(last, &known), slow);
    }

    #[test]
    fn range_set_allocates_every_address_once_then_none(set in sets(), last in 0..60_usize) {
        let every = all(&set);
        let mut last = every.get(last).copied();
        let mut allocated: Vec<IpAddr> = Vec::new();
        while let Some(assignment) = set.choose(last, &allocated.iter().copied().collect()) {
            let ip = assignment.address.addr();
            prop_assert!(!allocated.contains(&ip), "{} was allocated twice", ip);
            allocated.push(ip);
            last = Some(ip);
        }
        prop_assert_eq!(allocated.len(), every.len());
    }

    #[test]
    fn range_set_finds_the_only_free_address(set in sets(), free in 0..60_usize, last in 0..60_usize) {
        let every = all(&set);
        prop_assume!(!every.is_empty());
        let free = every[free % every.len()];
        let used: UsedAddresses = every.iter().copied().filter(|ip| *ip != free).collect();
        let chosen = set.choose(every.get(last).copied(), &used).map(|assignment| assignment.address.addr());
        prop_assert_eq!(chosen, Some(free));
        prop_assert!(!used.contains(free));
    }
}
