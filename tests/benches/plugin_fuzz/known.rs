//! Differences that are intended: each row has a reason, which DEVIATIONS.md has under the plugin.

use std::fmt;

/// Step in which the two differ.
pub(crate) struct Difference {
    pub(crate) step: &'static str,
    pub(crate) weft: String,
    pub(crate) go: String,
    /// Lines that only one of them has, each with its name.
    pub(crate) lines: Vec<String>,
    /// Errors of a failed ADD: that of weft, that of the Go plugin.
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

const KNOWN: &[Known] = &[
    ("a DEL of weft succeeds (S15)", |one| {
        (one.step == "6 DEL" || one.step == "8 DEL again") && one.weft == "succeeds"
    }),
    ("weft leaves nothing", |one| {
        one.step.starts_with('7') && (one.weft == "nothing" || one.weft.is_empty())
    }),
    ("a CHECK of weft succeeds after a good ADD", |one| one.step == "5 CHECK" && one.weft == "succeeds"),
    ("the Go plugin adds the same route twice", |one| {
        one.step == "1 ADD" && one.errors[1].contains("file exists")
    }),
    ("the Go plugin refuses a version that its documentation lists", |one| {
        one.step == "1 ADD" && one.errors[1].contains("incompatible CNI versions")
    }),
    ("the Go plugin accepts an invalid value without effect", |one| {
        one.step == "1 ADD"
            && one.go == "succeeds"
            && [r#""code": 7"#, r#""code": 6"#].iter().any(|code| one.errors[0].contains(code))
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
        let is_flag =
            |line: &String| ["flags", "onlink", "weft         ]"].iter().any(|part| line.contains(part));
        one.lines.iter().any(|line| line.contains("onlink")) && one.lines.iter().all(is_flag)
    }),
];

/// Reason, and whether it explains a line that only one of the two has.
type KnownLine = (&'static str, fn(&str) -> bool);

/// Lines of the kernel state. A difference is known if each of its lines is.
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
    ("the number of users of a queue", |line| line.contains(r#""refcnt": "#)),
    ("an empty list of rules", |line| {
        line.ends_with("[],") || line.ends_with('[') || line.ends_with("],") || line.ends_with(']')
    }),
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
