//! Limits for every row, in one table.
//!
//! - A bench ends with [`crate::MISSED`] if a row misses a limit, or has no entry here.
//! - If the hardware makes a figure impossible, the limit is set relative to a floor that the same run measures: the
//!   kernel's own time, starting a process, or writing to disk.
//! - A ratio with one of weft's own situations ("one pod", "none held") limits how a cost may grow.

use crate::results::Row;

/// Limit for a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// weft must be better by this factor.
    Faster(f64),
    /// weft may take at most this many times as much.
    Ratio(f64),
    /// weft may take at most this much more.
    More(f64),
    /// The figure, or the median, may be at most this.
    Most(f64),
    /// The figure, or the median, must be at least this.
    Least(f64),
    /// The 99th percentile may be at most this.
    Tail(f64),
}

use Limit::{Faster, Least, More, Most, Ratio, Tail};

/// Rows, by what is measured and what it is compared with, and the limits.
const GOALS: &[(&str, &str, &[Limit])] = &[
    // start
    ("start (VERSION)", "/bin/true", &[More(0.5)]),
    ("start (VERSION)", "Go", &[Faster(3.0)]),
    // plugins
    ("bridge + host-local ADD", "kernel baseline", &[More(2.0)]),
    ("bridge + host-local ADD", "kernel baseline and a bare exec", &[Ratio(1.5)]),
    // The floor and not Go shows what is possible: Go itself takes six times as long as the floor.
    ("bridge + host-local ADD", "Go", &[Faster(4.0)]),
    ("bridge + host-local DEL", "kernel baseline", &[More(2.0)]),
    ("bridge + host-local DEL", "Go", &[Faster(5.0)]),
    ("bridge with ipMasq ADD", "Go", &[Faster(8.0), Most(4.0)]),
    ("bridge with ipMasq DEL", "Go", &[Faster(3.0), Most(20.0)]),
    ("bridge with ipMasq ADD", "kernel baseline", &[More(3.0)]),
    ("bridge, IPv4 and IPv6 ADD", "IPv4 alone", &[Ratio(1.5)]),
    ("bridge, IPv4 and IPv6 ADD", "Go", &[Faster(4.0)]),
    // interfaces
    ("host-device + host-local ADD", "kernel baseline", &[Ratio(1.6)]),
    ("host-device + host-local DEL", "kernel baseline", &[Ratio(1.6)]),
    ("host-device + host-local ADD", "Go", &[Faster(1.5)]),
    ("host-device + host-local DEL", "Go", &[Faster(1.2)]),
    ("ptp + host-local ADD", "Go", &[Faster(4.0)]),
    ("ptp + host-local DEL", "Go", &[Faster(2.0)]),
    ("loopback + host-local ADD", "Go", &[Faster(3.0)]),
    ("loopback + host-local DEL", "Go", &[Faster(2.0)]),
    ("macvlan + host-local ADD", "Go", &[Faster(3.0)]),
    ("macvlan + host-local DEL", "Go", &[Faster(2.0)]),
    ("ipvlan + host-local ADD", "Go", &[Faster(2.0)]),
    ("ipvlan + host-local DEL", "Go", &[Faster(1.2)]),
    ("vlan + host-local ADD", "Go", &[Faster(2.0)]),
    ("vlan + host-local DEL", "Go", &[Faster(1.2)]),
    ("dummy + host-local ADD", "Go", &[Faster(2.0)]),
    ("dummy + host-local DEL", "Go", &[Faster(1.2)]),
    ("tap + host-local ADD", "Go", &[Faster(4.0)]),
    ("tap + host-local DEL", "Go", &[Faster(2.0)]),
    // chained
    ("bandwidth ADD", "Go", &[Faster(4.0)]),
    ("bandwidth DEL", "Go", &[Faster(1.2)]),
    ("firewall, nftables ADD", "Go, iptables", &[Faster(4.0)]),
    ("firewall, nftables DEL", "Go, iptables", &[Faster(2.0)]),
    ("firewall, iptables ADD", "Go, iptables", &[Faster(3.0)]),
    ("firewall, iptables DEL", "Go, iptables", &[Faster(1.2)]),
    ("portmap, nftables ADD", "Go, nftables", &[Faster(4.0)]),
    ("portmap, nftables DEL", "Go, nftables", &[Faster(1.2)]),
    ("portmap, nftables ADD", "Go, iptables", &[Faster(10.0)]),
    ("portmap, nftables DEL", "Go, iptables", &[Faster(3.0)]),
    ("portmap, iptables ADD", "Go, iptables", &[Faster(4.0)]),
    ("portmap, iptables DEL", "Go, iptables", &[Faster(2.0)]),
    ("sbr ADD", "Go", &[Faster(4.0)]),
    ("sbr DEL", "Go", &[Faster(3.0)]),
    ("tuning ADD", "Go", &[Faster(4.0)]),
    ("tuning DEL", "Go", &[Faster(3.0)]),
    ("vrf ADD", "Go", &[Faster(2.0)]),
    ("vrf DEL", "Go", &[Faster(1.2)]),
    // leases
    ("bridge + dhcp ADD", "DHCP server alone", &[More(4.0)]),
    ("bridge + dhcp ADD", "Go", &[Faster(4.0)]),
    ("bridge + dhcp DEL", "Go", &[Faster(2.0)]),
    // addresses
    ("weft-ipam ADD", "host-local of weft", &[Ratio(1.5)]),
    ("weft-ipam ADD", "Go's host-local", &[Faster(3.0)]),
    ("weft-ipam ADD where 10000 addresses are held", "none held", &[Ratio(1.3)]),
    ("weft-ipam ADD where 50000 addresses are held", "none held", &[Ratio(1.3)]),
    // Even 32 processes without work miss 5 ms on two cores.
    ("weft-ipam ADD, 32 at once", "as many VERSION calls", &[Ratio(6.0), Tail(100.0)]),
    ("weft-ipam ADD, 32 at once", "as many /bin/true", &[Ratio(6.0)]),
    ("weft-ipam ADD, 32 at once, calls a second", "", &[Least(1000.0)]),
    // In memory a sync is free, so the ratio has no meaning there.
    ("weft-ipam ADD by 32 threads of one process", "lock, write, sync alone", &[Most(5.0)]),
    ("weft-ipam ADD by 32 threads of one process, calls a second", "", &[Least(1000.0)]),
    (
        "weft-ipam ADD by 32 threads of one process where 50000 are held",
        "lock, write, sync alone",
        &[Most(10.0)],
    ),
    ("weft-ipam ADD by 32 threads of one process where 50000 are held, calls a second", "", &[Least(1000.0)]),
    // pods
    ("pod with 3 networks more ADD", "default network alone", &[Ratio(3.0)]),
    ("pod with 3 networks more DEL", "default network alone", &[Ratio(3.5)]),
    ("pod with 10 networks more ADD", "default network alone", &[Ratio(8.0)]),
    ("pod with 10 networks more DEL", "default network alone", &[Ratio(8.0)]),
    ("pod with 30 networks more ADD", "default network alone", &[Ratio(22.0)]),
    ("pod with 30 networks more DEL", "default network alone", &[Ratio(22.0)]),
    ("pod, default network alone ADD", "Go", &[Faster(2.5)]),
    ("pod, default network alone DEL", "Go", &[Faster(4.0)]),
    ("pod with 1 network more ADD", "default network alone", &[Ratio(2.0)]),
    ("pod with 1 network more DEL", "default network alone", &[Ratio(2.5)]),
    ("pod with 1 network more ADD", "Go", &[Faster(3.0)]),
    ("pod with 1 network more DEL", "Go", &[Faster(4.0)]),
    ("pod with 3 networks more ADD", "Go", &[Faster(4.0)]),
    ("pod with 3 networks more DEL", "Go", &[Faster(6.0)]),
    ("pod with 10 networks more ADD", "Go", &[Faster(4.0)]),
    ("pod with 10 networks more DEL", "Go", &[Faster(8.0)]),
    ("pod with 30 networks more ADD", "Go", &[Faster(4.0)]),
    ("pod with 30 networks more DEL", "Go", &[Faster(8.0)]),
    ("pod with bandwidth DEL", "default network alone", &[Ratio(1.8)]),
    // policies: committing only the rules takes the kernel almost half as long as an ADD without them
    ("pod with a bridge network more ADD, 10 policies", "policies of other pods", &[Ratio(2.0)]),
    (
        "pod with a bridge network more ADD, 10 policies",
        "policies of other pods, and the rules alone",
        &[Ratio(1.15)],
    ),
    ("pod with a bridge network more DEL, 10 policies", "policies of other pods", &[Ratio(1.3)]),
    ("pod with a ptp network more ADD, 10 policies", "policies of other pods", &[Ratio(2.0)]),
    (
        "pod with a ptp network more ADD, 10 policies",
        "policies of other pods, and the rules alone",
        &[Ratio(1.15)],
    ),
    ("pod with a ptp network more DEL, 10 policies", "policies of other pods", &[Ratio(1.3)]),
    // Replies pass because the kernel tracks connections, which costs more than the rules do. On ptp all pods have it.
    ("TCP stream on bridge, 1000 peers", "no policies", &[Faster(0.9)]),
    ("TCP stream on bridge, 1000 peers", "connection tracking alone", &[Faster(0.93)]),
    ("5000 UDP round trips on bridge, 1000 peers", "no policies", &[Ratio(1.5)]),
    ("5000 UDP round trips on bridge, 1000 peers", "connection tracking alone", &[Ratio(1.1)]),
    ("TCP stream on ptp, 1000 peers", "no policies", &[Faster(0.93)]),
    ("5000 UDP round trips on ptp, 1000 peers", "no policies", &[Ratio(1.12)]),
    ("change of a policy until the packet, N pods in the cluster", "", &[Tail(1000.0)]),
    ("change of a peer's label until the packet, N pods in the cluster", "", &[Tail(1000.0)]),
    // disk
    ("pod with 3 networks more ADD, files on the disk", "files in memory", &[More(30.0)]),
    ("pod with 3 networks more DEL, files on the disk", "files in memory", &[More(5.0)]),
    ("pod with 3 networks more ADD, files on the disk", "Go", &[Faster(2.0)]),
    ("pod with 3 networks more DEL, files on the disk", "Go", &[Faster(4.0)]),
    ("bridge + host-local ADD, nothing in the page cache", "Go", &[Faster(1.0)]),
    ("bridge + host-local ADD, nothing in the page cache", "everything in it", &[More(20.0)]),
    // sustained: N is any number. The links stay, and most of the time is the kernel's work for each link next to
    // hundreds of others, which is the same for all programs; during removal, it is the kernel's work for removing
    // them.
    ("N pods, 1 network more, in a row", "Go", &[Faster(2.5)]),
    ("N pods, 1 network more, removed in a row", "Go", &[Faster(2.0)]),
    // With 1,000 pods, the kernel creates half as many links per second as with 320.
    ("N pods, 3 networks more, in a row", "Go", &[Faster(2.0)]),
    ("N pods, 3 networks more, removed in a row", "Go", &[Faster(3.0)]),
    ("N pods, 1 network more, in a row", "kernel baseline and a bare exec", &[Ratio(2.5)]),
    ("N pods, 3 networks more, in a row", "kernel baseline and a bare exec", &[Ratio(3.0)]),
    ("N pods, 1 network more, in a row", "", &[Least(50.0)]),
    ("N pods, 1 network more, removed in a row", "", &[Least(50.0)]),
    ("N pods, 3 networks more, in a row", "", &[Least(30.0)]),
    ("N pods, 3 networks more, removed in a row", "", &[Least(30.0)]),
    // full: the kernel sends each link's multicast to all ports on its bridge, so the Go plugins slow down as well
    ("pod with 3 networks more ADD, N pods on the node", "Go", &[Faster(3.0)]),
    ("pod with 3 networks more DEL, N pods on the node", "Go", &[Faster(4.0)]),
    // The kernel delivers each announcement to 500 ports, which takes most of the time, so the limit is relative to
    // this floor.
    ("pod with 3 networks more ADD, N pods on the node", "kernel baseline there", &[Ratio(2.5)]),
    ("pod with 3 networks more ADD, N pods on the node", "20 pods", &[Ratio(8.0)]),
    ("pod with 3 networks more DEL, N pods on the node", "20 pods", &[Ratio(2.5)]),
    // concurrency
    ("N pods at once, bridge + portmap + bandwidth ADD", "Go", &[Faster(8.0)]),
    ("N pods at once, bridge + portmap + bandwidth DEL, one by one", "Go", &[Faster(2.0)]),
    ("N pods at once, until all are attached", "Go", &[Faster(8.0)]),
    ("N pods at once, until all are detached", "Go", &[Faster(2.0)]),
    ("N pods at once, until all are attached", "", &[Most(2000.0)]),
    ("N pods at once, until all are detached", "", &[Most(10_000.0)]),
    // entries
    ("portmap ADD, N pods there", "one there", &[Ratio(1.3)]),
    ("firewall ADD, N pods there", "one there", &[Ratio(1.3)]),
    // size
    ("plugins on the node", "Go", &[Ratio(0.1), Most(4.0)]),
    ("plugins on the node", "", &[Most(4.0)]),
    ("memory of weft-cni, pod with 4 networks", "", &[Most(4.0)]),
    // kube-adds: with API server and agent on the same processors
    ("N pods, 1 network more, in a row, API server", "", &[Least(40.0)]),
    ("N pods, 3 networks more, in a row, API server", "", &[Least(25.0)]),
    ("N pods, 1 network more, in a row, API server", "Multus thin", &[Faster(3.0)]),
    ("N pods, 3 networks more, in a row, API server", "Multus thin", &[Faster(3.0)]),
    ("N pods, 1 network more, in a row, API server", "Multus thick", &[Faster(3.0)]),
    ("N pods, 3 networks more, in a row, API server", "Multus thick", &[Faster(3.0)]),
    ("N pods, 1 network more, until every status is readable", "the calls alone", &[Ratio(2.5)]),
    ("N pods, 3 networks more, until every status is readable", "the calls alone", &[Ratio(2.5)]),
    ("N pods, 1 network more, until every status is readable", "Multus thin", &[Faster(3.0)]),
    ("N pods, 3 networks more, until every status is readable", "Multus thin", &[Faster(3.0)]),
    ("N pods, 1 network more, until every status is readable", "Multus thick", &[Faster(3.0)]),
    ("N pods, 3 networks more, until every status is readable", "Multus thick", &[Faster(3.0)]),
    ("pod with 3 networks more ADD, API server", "Multus thin", &[Faster(10.0)]),
    ("pod with 3 networks more DEL, API server", "Multus thin", &[Faster(10.0)]),
    ("pod with 3 networks more ADD, API server", "Multus thick", &[Faster(10.0)]),
    ("pod with 3 networks more DEL, API server", "Multus thick", &[Faster(10.0)]),
    ("N pods at once, 1 network more, API server", "Multus thin", &[Faster(8.0)]),
    ("N pods at once, 1 network more, removed, API server", "Multus thin", &[Faster(6.0)]),
    ("N pods at once, 1 network more, API server", "Multus thick", &[Faster(8.0)]),
    ("N pods at once, 1 network more, removed, API server", "Multus thick", &[Faster(6.0)]),
    ("N pods at once, 3 networks more, API server", "Multus thin", &[Faster(8.0)]),
    ("N pods at once, 3 networks more, removed, API server", "Multus thin", &[Faster(6.0)]),
    ("N pods at once, 3 networks more, API server", "Multus thick", &[Faster(8.0)]),
    ("N pods at once, 3 networks more, removed, API server", "Multus thick", &[Faster(6.0)]),
    ("weft-ipam ADD, pool of the cluster", "whereabouts", &[Faster(10.0)]),
    ("weft-ipam DEL, pool of the cluster", "whereabouts", &[Faster(10.0)]),
    ("weft-ipam ADD, pool of the cluster, 32 at once, until all are done", "whereabouts", &[Faster(30.0)]),
    ("weft-ipam DEL, pool of the cluster, 32 at once, until all are done", "whereabouts", &[Faster(30.0)]),
    ("agent's processor time for an ADD, N pods on the node", "20 pods", &[Ratio(1.2)]),
    ("agent's processor time until all is published, N pods on the node", "during the calls", &[Ratio(1.5)]),
    ("pod with 3 networks more ADD, 5000 definitions", "without them", &[Ratio(1.3)]),
    ("memory of the agent with 5000 definitions", "without them", &[More(15.0)]),
    // The minimum is compared, because medians on a busy machine differ by more than this.
    (
        "fastest ADD of a pod with 3 networks more, with history, interface metrics and page",
        "without them",
        &[Ratio(1.02)],
    ),
    ("memory of the agent with 110 pods, 1000 definitions and all of it", "", &[Most(25.0)]),
    (
        "memory of the agent after all cycles of ADD and DEL",
        "after a tenth of them",
        &[Most(25.0), Ratio(1.1)],
    ),
];

// === impl Limit ===

impl Limit {
    /// Formats the limit as text.
    #[must_use]
    pub fn text(&self, unit: &str) -> String {
        match self {
            Faster(factor) if unit.ends_with("/s") => format!("at least {factor}x as many"),
            Faster(factor) => format!("at least {factor}x faster"),
            Ratio(factor) if unit.ends_with("/s") => format!("at least {:.2}x as many", 1.0 / factor),
            Ratio(factor) => format!("at most {factor}x"),
            More(figure) => format!("at most {figure} {unit} more"),
            Most(figure) => format!("at most {figure} {unit}"),
            Least(figure) => format!("at least {figure} {unit}"),
            Tail(figure) => format!("p99 at most {figure} {unit}"),
        }
    }

    /// Whether a row keeps the limit.
    #[must_use]
    pub fn holds(&self, row: &Row) -> bool {
        let factor = row.factor().unwrap_or_default();
        match self {
            Faster(least) => factor >= *least,
            Ratio(most) => factor * most >= 1.0,
            More(more) => row.median() <= row.other().unwrap_or_default() + more,
            Most(most) => row.median() <= *most,
            Least(least) => row.median() >= *least,
            Tail(most) => row.tail() <= *most,
        }
    }
}

/// Returns a row's table cells; the last one is the goal.
#[must_use]
pub fn cells(row: &Row) -> [String; 5] {
    let [what, ours, beside, ratio] = row.cells();
    let limits = of(row).unwrap_or_default().iter().map(|limit| limit.text(&row.unit));
    [what, ours, beside, ratio, Vec::from_iter(limits).join(", ")]
}

/// Returns a row's limits; `None` if it has no entry.
#[must_use]
pub fn of(row: &Row) -> Option<&'static [Limit]> {
    let what = without_count(&row.what);
    let is_row = |(name, beside, _): &&(&str, &str, &[Limit])| *name == what && *beside == row.beside;
    GOALS.iter().find(is_row).map(|(_, _, limits)| *limits)
}

/// Replaces the number of pods by N, because the limits are the same for any number.
fn without_count(what: &str) -> String {
    let is_count = |word: &&str| word.bytes().all(|byte| byte.is_ascii_digit());
    match what
        .split_once(" pods")
        .map(|(before, after)| (before.rsplit_once(", ").unwrap_or(("", before)), after))
    {
        Some((("", count), after)) if is_count(&count) => format!("N pods{after}"),
        Some(((before, count), after)) if is_count(&count) => format!("{before}, N pods{after}"),
        _ => what.to_owned(),
    }
}

/// Returns a sentence for each limit that a row misses, or one if it has no limits.
#[must_use]
pub fn missed(row: &Row) -> Vec<String> {
    let [what, ours, beside, ratio] = row.cells();
    let Some(limits) = of(row) else {
        return vec![format!("{what} ({beside}): no goal; add the row to benches/src/goals.rs")];
    };
    let missed = limits.iter().filter(|limit| !limit.holds(row));
    missed
        .map(|limit| {
            let measured = [ours.as_str(), beside.as_str(), ratio.as_str()];
            let measured = Vec::from_iter(measured.into_iter().filter(|part| !part.is_empty())).join(", ");
            format!("{what}: {}: {measured}", limit.text(&row.unit))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(what: &str, beside: &str, ours: &[f64], theirs: &[f64]) -> Row {
        let (unit, beside) = ("ms".to_owned(), beside.to_owned());
        Row { what: what.to_owned(), unit, ours: ours.to_vec(), beside, theirs: theirs.to_vec() }
    }

    #[test]
    fn bench_goal_that_is_missed_names_the_row_and_its_limit() {
        let what = "bridge + host-local ADD";
        assert!(missed(&row(what, "Go", &[1.0, 2.0, 3.0], &[9.0, 10.0, 11.0])).is_empty());
        let slow = missed(&row(what, "Go", &[1.0, 2.6, 3.0], &[9.0, 10.0, 11.0]));
        let expected = format!(
            "{what}: at least 4x faster: 1.00 / 2.60 / 3.00 ms, Go: 9.00 / 10.0 / 11.0 ms, 3.8x faster"
        );
        assert_eq!(slow, [expected]);
        assert!(missed(&row("a new row", "Go", &[1.0], &[2.0]))[0].contains("no goal"));
    }

    #[test]
    fn bench_goal_of_a_row_is_the_same_for_any_number_of_pods() {
        assert_eq!(without_count("320 pods, 1 network more, in a row"), "N pods, 1 network more, in a row");
        assert_eq!(
            without_count("pod with 3 ADD, 500 pods on the node"),
            "pod with 3 ADD, N pods on the node"
        );
        assert_eq!(without_count("portmap ADD, with pods"), "portmap ADD, with pods");
        assert!(of(&row("64 pods, 1 network more, in a row", "Go", &[1.0], &[1.0])).is_some());
    }

    #[test]
    fn bench_limits_of_all_kinds_are_compared() {
        let holds = |limit: Limit, ours: f64, theirs: f64| limit.holds(&row("x", "y", &[ours], &[theirs]));
        assert!(holds(Ratio(1.2), 12.0, 10.0) && !holds(Ratio(1.2), 12.1, 10.0));
        assert!(holds(Faster(5.0), 2.0, 10.0) && !holds(Faster(5.0), 2.1, 10.0));
        assert!(holds(More(2.0), 12.0, 10.0) && !holds(More(2.0), 12.1, 10.0));
        assert!(holds(Most(4.0), 4.0, 0.0) && !holds(Most(4.0), 4.1, 0.0));
        assert!(holds(Least(4.0), 4.0, 0.0) && !holds(Least(4.0), 3.9, 0.0));
        let tail = row("x", "y", &[1.0, 2.0, 6.0], &[]);
        assert!(Tail(6.0).holds(&tail) && !Tail(5.0).holds(&tail));
    }

    #[test]
    fn bench_goals_have_one_entry_for_each_row() {
        let mut rows: Vec<_> = GOALS.iter().map(|(what, beside, _)| (what, beside)).collect();
        let all = rows.len();
        rows.sort();
        rows.dedup();
        assert_eq!(rows.len(), all);
        assert!(GOALS.iter().all(|(_, _, limits)| !limits.is_empty()));
    }
}
