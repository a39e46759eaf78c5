//! Packets that network policies allowed and denied, for each attachment on a node, for Prometheus.
//!
//! A counter begins again when the attachment's rules are written again.
//!
//! - At most [`SERIES_MAX`] counters have series; the others are counted, and so are attachments that were
//!   not read.
//! - A pod with many policies does not hide other pods' counters: denied packets come first, then one policy
//!   from each attachment after the other, at most [`ALLOWED_MAX`] from one attachment.

use std::fmt::Write;

use node_support::metric_labels;

use crate::policy_counters::{PolicyCount, ReadCounts};

/// Maximum number of counters with series.
const SERIES_MAX: usize = 4096;
/// Maximum number of counters for allowed packets with series for an attachment.
const ALLOWED_MAX: usize = 64;

/// Function that returns a metric's value.
type Field = fn(&PolicyCount) -> u64;

/// Metrics: name, help, whether the packets were allowed, value. Those for allowed packets have a policy.
const METRICS: [(&str, &str, bool, Field); 4] = [
    (
        "allowed_packets",
        "Number of packets to or from an interface of a pod that a rule of a network policy allowed, without those after the first reply of a connection",
        true,
        |count| count.packets,
    ),
    (
        "allowed_bytes",
        "Number of bytes of the packets that a rule of a network policy allowed",
        true,
        |count| count.bytes,
    ),
    (
        "denied_packets",
        "Number of packets to or from an interface of a pod that no rule of its network policies allowed",
        false,
        |count| count.packets,
    ),
    (
        "denied_bytes",
        "Number of bytes of the packets that no rule of network policies allowed",
        false,
        |count| count.bytes,
    ),
];

/// Returns the page. Rules in one policy are added up. `None` means that the counters could not be read.
pub(super) fn page(read: Option<&ReadCounts>) -> String {
    let mut page = String::new();
    let unread = read.map_or(0, |read| read.unread);
    let all = added_up(read.map_or(&[], |read| &read.counts));
    let series = chosen(&all);
    for (name, help, is_allowed, value) in METRICS {
        let name = format!("weft_policy_{name}_total");
        // Writing to a string cannot fail.
        let _ = writeln!(page, "# HELP {name} {help}.\n# TYPE {name} counter");
        for count in series.iter().filter(|count| count.allowed_by.is_some() == is_allowed) {
            let PolicyCount { namespace, pod, interface, network, direction, allowed_by, .. } = count;
            let policy = allowed_by.as_ref().map(|rule| ("policy", rule.policy.as_str()));
            let labels = [
                ("namespace", namespace.as_str()),
                ("pod", pod),
                ("interface", interface),
                ("network", network),
                ("direction", direction.word()),
            ];
            let labels = metric_labels::labels(labels.into_iter().chain(policy));
            let _ = writeln!(page, "{name}{labels} {}", value(count));
        }
    }
    let states = [
        (
            "omitted",
            "Number of counters of network policies without series, because there are too many",
            all.len() - series.len(),
        ),
        (
            "unread",
            "Number of attachments with network policies whose counters were not read: their rules are gone, or are too many",
            unread,
        ),
        (
            "read_failed",
            "Whether the last reading of the counters of network policies failed",
            usize::from(read.is_none()),
        ),
    ];
    for (name, help, value) in states {
        let name = format!("weft_policy_counters_{name}");
        let _ = writeln!(page, "# HELP {name} {help}.\n# TYPE {name} gauge\n{name} {value}");
    }
    page
}

/// Returns the counts with series.
fn chosen(all: &[PolicyCount]) -> Vec<&PolicyCount> {
    let mut ranked = Vec::new();
    for of_attachment in all.chunk_by(are_of_one_attachment) {
        let (denied, allowed): (Vec<_>, Vec<_>) =
            of_attachment.iter().partition(|count| count.allowed_by.is_none());
        ranked.extend(denied.into_iter().map(|count| (0, count)));
        ranked.extend((1..=ALLOWED_MAX).zip(allowed));
    }
    // Counts of one rank stay in the order of the attachments.
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.truncate(SERIES_MAX);
    ranked.into_iter().map(|(_, count)| count).collect()
}

fn are_of_one_attachment(one: &PolicyCount, other: &PolicyCount) -> bool {
    (&one.namespace, &one.pod, &one.interface) == (&other.namespace, &other.pod, &other.interface)
}

/// Returns one count for each attachment, direction and policy. Those for one attachment follow each other.
fn added_up(counts: &[PolicyCount]) -> Vec<PolicyCount> {
    let mut all: Vec<PolicyCount> = Vec::new();
    for count in counts {
        let policy = |count: &PolicyCount| count.allowed_by.as_ref().map(|rule| rule.policy.clone());
        let is_same = |known: &PolicyCount| {
            are_of_one_attachment(known, count)
                && known.direction == count.direction
                && policy(known) == policy(count)
        };
        match all.last_mut().filter(|known| is_same(known)) {
            Some(known) => {
                known.packets = known.packets.saturating_add(count.packets);
                known.bytes = known.bytes.saturating_add(count.bytes);
            }
            None => all.push(count.clone()),
        }
    }
    all
}

/// Returns counts for the metrics reference.
#[cfg(test)]
pub(super) fn example() -> ReadCounts {
    use npwg::network_policy::Direction;

    use crate::policy_counters::RuleName;

    let count = |direction, policy: Option<&str>| PolicyCount {
        namespace: "NAMESPACE".into(),
        pod: "POD".into(),
        interface: "INTERFACE".into(),
        network: "NETWORK".into(),
        direction,
        allowed_by: policy.map(|policy| RuleName { policy: policy.into(), rule: 0 }),
        packets: 1,
        bytes: 1,
    };
    let all = Direction::ALL
        .into_iter()
        .flat_map(|direction| [None, Some("POLICY")].map(|policy| (direction, policy)));
    let counts = all.map(|(direction, policy)| count(direction, policy)).collect();
    ReadCounts { counts, unread: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy_counters::RuleName;

    #[test]
    fn network_policy_metrics_add_up_the_rules_of_a_policy() {
        let mut read = example();
        let mut second = read.counts[1].clone();
        (second.packets, second.bytes) = (4, 40);
        read.counts.insert(2, second);
        read.unread = 3;
        let page = page(Some(&read));
        let labels = r#"namespace="NAMESPACE",pod="POD",interface="INTERFACE",network="NETWORK""#;
        for line in [
            format!(r#"weft_policy_allowed_packets_total{{{labels},direction="ingress",policy="POLICY"}} 5"#),
            format!(r#"weft_policy_allowed_bytes_total{{{labels},direction="ingress",policy="POLICY"}} 41"#),
            format!(r#"weft_policy_denied_packets_total{{{labels},direction="egress"}} 1"#),
            "weft_policy_counters_omitted 0".to_owned(),
            "weft_policy_counters_unread 3".to_owned(),
            "weft_policy_counters_read_failed 0".to_owned(),
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
        assert_eq!(page.lines().filter(|line| line.starts_with("weft_policy_allowed_packets")).count(), 2);
    }

    #[test]
    fn network_policy_metrics_of_a_pod_do_not_hide_other_pods() {
        let of_pod = |pod: usize, policies: usize| {
            let mut counts = example().counts[..2].to_vec();
            let allowed = counts.pop().expect("a count of allowed packets");
            counts.extend((0..policies).map(|policy| PolicyCount {
                allowed_by: Some(RuleName { policy: format!("policy-{policy}"), rule: 0 }),
                ..allowed.clone()
            }));
            counts.into_iter().map(move |count| PolicyCount { pod: format!("pod-{pod}"), ..count })
        };
        // The first pods alone have more counters than fit.
        let counts: Vec<PolicyCount> =
            (0..200).flat_map(|pod| of_pod(pod, if pod < 100 { 1024 } else { 1 })).collect();
        let read = |counts| page(Some(&ReadCounts { counts, unread: 0 }));
        let page = read(counts);
        let series = |metric: &str, pod: usize| {
            let start =
                format!("weft_policy_{metric}_packets_total{{namespace=\"NAMESPACE\",pod=\"pod-{pod}\",");
            page.lines().filter(|line| line.starts_with(&start)).count()
        };
        assert!((0..200).all(|pod| series("denied", pod) == 1), "{page}");
        assert!((100..200).all(|pod| series("allowed", pod) == 1), "{page}");
        let of_first: Vec<usize> = (0..100).map(|pod| series("allowed", pod)).collect();
        assert!(of_first.iter().all(|count| (37..=38).contains(count)), "{of_first:?}");
        let omitted = 200 + 100 * 1024 + 100 - SERIES_MAX;
        assert!(page.contains(&format!("weft_policy_counters_omitted {omitted}\n")), "{page}");
        let alone = read(of_pod(0, 1024).collect());
        let allowed = alone.lines().filter(|line| line.starts_with("weft_policy_allowed_packets")).count();
        assert_eq!(allowed, ALLOWED_MAX);
    }

    #[test]
    fn network_policy_metrics_tell_a_failed_reading() {
        let page = page(None);
        for line in ["weft_policy_counters_read_failed 1", "weft_policy_counters_unread 0"] {
            assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
        }
        assert!(!page.contains("interface_read_failed") && !page.contains('{'), "{page}");
    }
}
