//! Differences that are intended: each row has a reason, which DEVIATIONS.md has under the plugin.

use std::fmt;

use crate::ADD;

/// Step in which the two differ.
pub(crate) struct Difference {
    pub(crate) step: &'static str,
    pub(crate) weft: String,
    pub(crate) go: String,
    /// Lines that only one of them has, each with the plugin's name.
    pub(crate) lines: Vec<String>,
    /// Errors from a failed ADD: weft's, and the Go plugin's.
    pub(crate) errors: [String; 2],
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [weft, go] = &self.errors;
        let shown = &self.lines[..self.lines.len().min(12)];
        write!(f, "{}: weft: {weft}; Go: {go}\n{}", self.step, shown.join("\n"))
    }
}

/// Reason, and whether it explains a difference.
type Known = (&'static str, fn(&Difference) -> bool);

/// Whether an ADD of weft succeeds, or comes further, where the Go plugin fails with one of these errors.
fn go_refuses(one: &Difference, errors: &[&str]) -> bool {
    one.step == ADD && one.weft > one.go && errors.iter().any(|error| one.errors[1].contains(error))
}

const KNOWN: &[Known] = &[
    ("a DEL of weft succeeds (S15)", |one| {
        (one.step == "6 DEL" || one.step == "8 DEL again") && one.weft == "succeeds"
    }),
    ("weft leaves nothing", |one| {
        let is_less = |line: &String| {
            line.starts_with("go ")
                || ["MAC", "VETH"].iter().any(|part| line.contains(part))
                || line.ends_with(['[', ']', '{', '}'])
        };
        one.step.starts_with('7')
            && (one.weft == "nothing" || one.weft.is_empty() || one.lines.iter().all(is_less))
    }),
    ("a CHECK of weft succeeds after a good ADD", |one| one.step == "5 CHECK" && one.weft == "succeeds"),
    ("a CHECK of weft tests more", |one| {
        one.step == "5 CHECK after a change" && one.weft == "fails" && one.go == "succeeds"
    }),
    ("the Go plugin adds the same route twice", |one| go_refuses(one, &["file exists"])),
    ("the Go plugin refuses a version that its documentation lists", |one| {
        go_refuses(one, &["incompatible CNI versions"])
    }),
    ("the Go plugin fails with an empty bridge", |one| go_refuses(one, &["LinkAttrs.Name cannot be empty"])),
    ("the Go plugin fails with an IPv4 range in the notation of IPv6", |one| {
        go_refuses(one, &["IPNet IP and Mask version mismatch"])
    }),
    ("the Go plugin accepts an invalid value without effect", |one| {
        // It succeeds, or a later plugin fails.
        one.step == ADD
            && one.go > one.weft
            && ["code 7:", "code 6:", "code 4:"].iter().any(|code| one.errors[0].starts_with(code))
    }),
    ("a table of sbr has no routes of the other family", |one| {
        let of_go = one.lines.iter().all(|line| line.starts_with("go "));
        let has = |part: &str| one.lines.iter().any(|line| line.contains(part));
        one.step == "2 pod after ADD" && of_go && has(r#""table": "100""#) && has(r#""dst": "fd01::/64""#)
    }),
    ("a requested address has the gateway of its subnet", |one| {
        let lines = one.lines.iter().all(|line| line.starts_with("weft") && line.contains(r#""gateway": "#));
        lines && !one.step.starts_with('7')
    }),
    ("a route of ptp through another gateway of the subnet is onlink", |one| {
        let parts = ["flags", "onlink", "nexthops", r#""gateway": "#, r#""dev": "#, r#""weight": "#];
        let is_hop = |line: &String| {
            parts.iter().any(|part| line.contains(part)) || line.ends_with(['[', ']', '{', '}'])
        };
        one.lines.iter().any(|line| line.contains("onlink")) && one.lines.iter().all(is_hop)
    }),
    ("sbr keeps an existing default route, with its metric", |one| {
        let has = |part: &str| one.lines.iter().any(|line| line.contains(part));
        let of_go = one.lines.iter().all(|line| line.starts_with("go "));
        one.step == "2 pod after ADD" && of_go && has(r#""dst": "default""#) && has(r#""table": "100""#)
    }),
    ("routes are added in another order", |one| {
        one.step == "2 pod after ADD" && one.lines.iter().all(|line| line == "another order")
    }),
    ("tap has args.cni.mac", |one| {
        one.lines.iter().any(|line| line.starts_with("weft") && line.contains("02:00:00:00:00:07"))
            && one
                .lines
                .iter()
                .all(|line| ["address", "mac", "group_addr"].iter().any(|part| line.contains(part)))
    }),
    ("other names of generated addresses", |one| {
        !one.lines.is_empty()
            && one.lines.iter().all(|line| ["\"MAC", "\"VETH"].iter().any(|part| line.contains(part)))
    }),
    ("the Go plugin reads the driver of a device that it does not use", |one| {
        go_refuses(one, &["error with host device"])
    }),
    ("the Go plugin fails with a scope of a route through a gateway", |one| {
        go_refuses(one, &["(Scope: link"])
    }),
    ("the Go plugin fails with an empty ipMasqBackend", |one| {
        go_refuses(one, &["unknown ipmasq backend \\\"\\\""])
    }),
    ("the Go plugin fails with a destination that has host bits", |one| {
        go_refuses(one, &["failed to add route '{10.9.1.1", "failed to add route '{fd09::1"])
    }),
    ("the Go plugin fails with an address of a single host", |one| {
        go_refuses(one, &["network is unreachable", "failed to delete route"])
    }),
    ("a requested address takes the prefix length of its subnet", |one| {
        go_refuses(
            one,
            &["the 'ip' field is expected to be in CIDR", "entry in the 'ips' field is NOT in CIDR"],
        )
    }),
    ("loopback has no options", |one| {
        go_refuses(one, &["dns of type types.DNS", "field DNS.dns.", "NetConf.ipam of type types.IPAM"])
    }),
    ("results contain the DNS settings of the IPAM plugin", |one| {
        one.step == "4 result"
            && one.lines.iter().any(|line| line.contains(r#""dns": {"#))
            && one.lines.iter().all(|line| line.starts_with("weft "))
    }),
    ("routes of one destination are one multipath route", |one| {
        one.step == "2 pod after ADD" && one.lines.iter().any(|line| line == r#"weft         "nexthops": ["#)
    }),
    ("the firewall uses nftables unless an option requests iptables", |one| {
        let parts = ["CNI-FORWARD", "CNI-ADMIN", "*filter", "COMMIT"];
        one.step == "3 host after ADD"
            && one.lines.iter().all(|line| {
                line.starts_with("go ") && parts.iter().any(|part| line.contains(part))
                    || line.ends_with([']', '['])
            })
    }),
];

/// Reason, and whether it explains a line that only one of the two has.
type KnownLine = (&'static str, fn(&str) -> bool);

/// Lines of the kernel state. A difference is known if each line in it is.
const KNOWN_LINES: &[KnownLine] = &[
    ("masquerading and port mappings use nftables", |line| {
        let of_go = line.starts_with("go ");
        let chains =
            ["CNI-HOSTPORT-", "CNI-DN-", "-A POSTROUTING -s ", "-j MASQUERADE", "-j CNI-", "*nat", "COMMIT"];
        of_go && (chains.iter().any(|part| line.contains(part)) || line.contains("-A CNI-"))
    }),
    ("rules of the firewall have an owner tag", |line| line.contains("-A CNI-FORWARD ")),
    ("the comment of ingressPolicy names both policies", |line| line.contains("(ingressPolicy: same-bridge")),
    ("an IPv4 route without a gateway has the scope link", |line| line.contains(r#""scope": "#)),
    ("results below 1.0.0 have the version of each address", |line| {
        line.starts_with("weft ") && line.contains(r#""version": "#)
    }),
    ("routes have mtu and advmss", |line| {
        // The MTU of a link has another indentation.
        [r#"weft         "metrics": ["#, r#"weft             "mtu": "#, r#"weft             "advmss": "#]
            .iter()
            .any(|part| line.starts_with(part))
    }),
    ("a route of ptp through another gateway of the subnet is onlink", |line| {
        [r#""flags": ["#, r#""onlink""#].iter().any(|part| line.contains(part))
    }),
    ("a bucket holds at least one packet", |line| {
        [r#""burst": "#, r#""lat": "#].iter().any(|part| line.contains(part))
    }),
    ("the number of users of a queue", |line| line.contains(r#""refcnt": "#)),
    ("an empty list of rules", |line| line.ends_with(['[', ']', '{', '}'])),
];

/// Returns the reason of a known difference.
pub(crate) fn reason(difference: &Difference) -> Option<&'static str> {
    let whole = KNOWN.iter().find(|(_, explains)| explains(difference)).map(|(why, _)| *why);
    let of_line =
        |line: &String| KNOWN_LINES.iter().find(|(_, explains)| explains(line)).map(|(why, _)| *why);
    whole.or_else(|| {
        let reasons: Option<Vec<&str>> = difference.lines.iter().map(of_line).collect();
        // The reason of an empty list is another line.
        reasons?.into_iter().rev().max_by_key(|why| *why != "an empty list of rules")
    })
}
