//! `conditionsV4` and `conditionsV6`: conditions on the packets to be forwarded.
//!
//! Each backend has a different syntax. The words for iptables are passed on unchanged, except that words that are more
//! than a condition are refused. The syntax of nft(8) is parsed here, because no program is run: the part of it that
//! matches source, destination, interface and mark.
//!
//! ```text
//! ip saddr != 10.0.0.0/8   ip6 daddr { fd00::1, fd00::2 }   iifname != "eth1"   meta mark 0x10
//! ```
//!
//! Source: nft(8) "payload expressions", "meta expressions"; iptables(8); plugins `portmap/main.go`
//! (`detectBackendOfConditions`).

use std::fmt;
use std::iter::Peekable;

use cni::Error;
use ipnet::IpNet;

use crate::interface::check_name;

/// Maximum number of rules that one list may expand to.
const ALTERNATIVES_MAX: usize = 64;

/// Short options to iptables(8) that are conditions.
const CONDITIONS: &str = "mpsdiof";

/// Long options that are more than a condition. iptables(8) also accepts any unambiguous prefix.
const ACTIONS: [&str; 22] = [
    "--append",
    "--check",
    "--delete",
    "--insert",
    "--replace",
    "--list",
    "--list-rules",
    "--flush",
    "--zero",
    "--new-chain",
    "--delete-chain",
    "--policy",
    "--rename-chain",
    "--jump",
    "--goto",
    "--table",
    "--verbose",
    "--wait",
    "--set-counters",
    "--modprobe",
    "--version",
    "--help",
];

/// Syntax that conditions are written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// nft(8) syntax.
    Nftables,
    /// iptables(8) syntax.
    Iptables,
}

/// Address family that the matched packets have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Relation between a field and the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Is {
    /// The field has one of the values.
    In,
    /// The field has none of the values.
    NotIn,
}

/// Conditions that must all be met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions(pub Vec<Condition>);

/// One condition: a field has one of these values, or none of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Packet field, with the values.
    pub field: Field,
    /// Whether the field must have one of the values.
    pub is: Is,
}

/// Packet field and values. The `Debug` format is part of a table's name, so a renamed variant renames the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field {
    /// Source address.
    Source(Vec<IpNet>),
    /// Destination address.
    Destination(Vec<IpNet>),
    /// Interface through which the packet arrives.
    LinkIn(Vec<String>),
    /// Packet mark.
    OwnerTag(Vec<u32>),
}

// === impl Syntax ===

impl Syntax {
    /// Returns the syntax that the first character implies, as the reference plugin does; `None` without
    /// words.
    pub fn of(words: &[String]) -> Option<Syntax> {
        match words.first()?.chars().next()? {
            '-' | '!' => Some(Syntax::Iptables),
            _ => Some(Syntax::Nftables),
        }
    }
}

impl fmt::Display for Syntax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Syntax::Nftables => "nftables",
            Syntax::Iptables => "iptables",
        })
    }
}

/// Returns the words for an iptables rule.
///
/// # Errors
/// A word is more than a condition, or has control characters.
pub fn words(key: &str, words: &[String]) -> Result<Vec<String>, Error> {
    for word in words {
        let refuse = |why: &str| Err(Error::key(key, format!("{word:?}"), why));
        if word.chars().any(char::is_control) {
            return refuse("has control characters");
        }
        let option = word.split('=').next().unwrap_or_default();
        let more = match option.strip_prefix('-').map(|rest| (rest.starts_with('-'), rest)) {
            None => false,
            Some((true, _)) => ACTIONS.iter().any(|known| known.starts_with(option)),
            Some((false, short)) => !short.starts_with(|first| CONDITIONS.contains(first)),
        };
        if more {
            return refuse("not a condition");
        }
    }
    Ok(words.iter().filter(|word| !word.is_empty()).cloned().collect())
}

/// Parses conditions in nft syntax for packets in one address family.
pub fn read(key: &str, family: Family, written: &[String]) -> Result<Conditions, Error> {
    let written = written.join(" ");
    let mut spaced = String::new();
    for character in written.chars() {
        match character {
            '{' | '}' | ',' => spaced.extend([' ', character, ' ']),
            _ => spaced.push(character),
        }
    }
    let mut words = spaced.split_whitespace().peekable();
    let mut conditions = Vec::new();
    while words.peek().is_some() {
        conditions.push(Condition::read(key, family, &mut words)?);
    }
    let conditions = Conditions(conditions);
    match conditions.alternatives() <= ALTERNATIVES_MAX {
        true => Ok(conditions),
        false => {
            Err(Error::key(key, format!("{written:?}"), format!("more than {ALTERNATIVES_MAX} combinations")))
        }
    }
}

/// Supported syntax, as the error describes it.
const SUPPORTED: &str = "supported are ip saddr, ip daddr, ip6 saddr, ip6 daddr, iifname and meta mark, with != and { }; with backend iptables, all conditions of iptables(8)";

// === impl Condition ===

impl Condition {
    /// Parses the next condition.
    fn read<'a>(
        key: &str,
        family: Family,
        words: &mut Peekable<impl Iterator<Item = &'a str>>,
    ) -> Result<Condition, Error> {
        let refuse = |word: &str, why: &str| Error::key(key, format!("{word:?}"), why);
        let mut next = || words.next().unwrap_or_default();
        let first = next();
        let field = match (first, family) {
            ("ip", Family::V4) | ("ip6", Family::V6) | ("meta", _) => {
                let second = next();
                match (first, second) {
                    ("ip" | "ip6", "saddr" | "daddr") | ("meta", "iifname" | "mark") => second,
                    _ => return Err(refuse(&format!("{first} {second}"), SUPPORTED)),
                }
            }
            ("iifname", _) => first,
            _ => return Err(refuse(first, SUPPORTED)),
        };
        let is = match words.next_if(|word| matches!(*word, "!=" | "==")) {
            Some("!=") => Is::NotIn,
            _ => Is::In,
        };
        let mut values = Vec::new();
        match words.next() {
            Some("{") => loop {
                match words.next() {
                    Some("}") => break,
                    Some(",") => {}
                    Some(value) => values.push(value),
                    None => return Err(refuse("{", "the set has no closing }")),
                }
            },
            Some(value) => values.push(value),
            None => {}
        }
        match values.is_empty() {
            true => Err(refuse(field, "a value is missing")),
            false => Ok(Condition { field: Field::read(key, field, family, &values)?, is }),
        }
    }
}

// === impl Field ===

impl Field {
    fn read(key: &str, field: &str, family: Family, values: &[&str]) -> Result<Field, Error> {
        let refuse = |value: &str, why: &str| Error::key(key, format!("{value:?}"), why);
        let network = |value: &&str| -> Result<IpNet, Error> {
            let single = value.parse::<std::net::IpAddr>().map(IpNet::from);
            let net =
                single.or_else(|_| value.parse()).map_err(|_| refuse(value, "not an address or network"))?;
            match net.addr().is_ipv4() == (family == Family::V4) {
                true => Ok(net.trunc()),
                false => Err(refuse(value, "not of this address family")),
            }
        };
        let mark = |value: &&str| {
            let number = match value.strip_prefix("0x") {
                Some(digits) => u32::from_str_radix(digits, 16),
                None => value.parse(),
            };
            number.map_err(|_| refuse(value, "not a mark"))
        };
        let link = |value: &&str| {
            let name = value.trim_matches('"');
            check_name(key, name).map(|()| name.to_owned())
        };
        Ok(match field {
            "saddr" => Field::Source(values.iter().map(network).collect::<Result<_, _>>()?),
            "daddr" => Field::Destination(values.iter().map(network).collect::<Result<_, _>>()?),
            "iifname" => Field::LinkIn(values.iter().map(link).collect::<Result<_, _>>()?),
            _ => Field::OwnerTag(values.iter().map(mark).collect::<Result<_, _>>()?),
        })
    }

    /// Returns how many values there are.
    pub fn values(&self) -> usize {
        match self {
            Field::Source(networks) | Field::Destination(networks) => networks.len(),
            Field::LinkIn(names) => names.len(),
            Field::OwnerTag(marks) => marks.len(),
        }
    }
}

// === impl Conditions ===

impl Conditions {
    /// Whether there is no condition.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns how many rules the conditions expand to.
    fn alternatives(&self) -> usize {
        let of = |Condition { field, is }: &Condition| if *is == Is::In { field.values() } else { 1 };
        self.0.iter().map(of).fold(1, usize::saturating_mul)
    }
}

impl fmt::Display for Conditions {
    /// Formats equivalent conditions equally: the text is part of the table's name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn portmap_conditions_of_nft_are_parsed() {
        let read = |words: &[&str]| read("conditionsV4", Family::V4, &list(words));
        assert!(read(&[]).unwrap().is_empty() && read(&["", " "]).unwrap().is_empty());
        let several = read(&["ip", "saddr", "!=", "10.0.0.0/8", "iifname \"eth0\""]).unwrap();
        assert_eq!(several, read(&["ip saddr != 10.0.0.0/8 meta iifname eth0"]).unwrap());
        assert_eq!((several.0.len(), several.alternatives()), (2, 1));
        let sets = read(&["ip saddr {10.0.0.1,10.0.0.2}", "meta mark { 0x10, 3 }"]).unwrap();
        assert_eq!(sets.alternatives(), 4);
        assert_eq!(read(&["ip daddr != { 10.0.0.1, 10.0.0.2 }"]).unwrap().alternatives(), 1);
    }

    #[test]
    fn portmap_conditions_report_what_is_not_supported() {
        for (words, named) in [
            (&["tcp", "dport", "80"][..], "\"tcp\""),
            (&["ip", "ttl", "3"], "\"ip ttl\""),
            (&["ip6", "saddr", "::1"], "\"ip6\""),
            (&["ip", "saddr", "fd00::1"], "\"fd00::1\""),
            (&["ip", "saddr", "10.0.0.0/33"], "\"10.0.0.0/33\""),
            (&["ip", "saddr"], "\"saddr\""),
            (&["ip saddr {"], "\"{\""),
            (&["ip saddr { }"], "\"saddr\""),
            (&["iifname", "a/b"], "a/b"),
            (&["meta mark 0xg"], "\"0xg\""),
            (&["ip saddr 10.0.0.1; flush ruleset"], "\"10.0.0.1;\""),
        ] {
            let error = read("conditionsV4", Family::V4, &list(words)).unwrap_err();
            assert!(error.code == 7 && error.msg.starts_with("conditionsV4"), "{}", error.msg);
            assert!(error.msg.contains(named), "{}", error.msg);
        }
        let many = format!("ip saddr {{ {} }}", vec!["10.0.0.1"; 65].join(","));
        assert!(read("conditionsV4", Family::V4, &[many]).is_err());
    }

    #[test]
    fn portmap_conditions_of_iptables_cannot_contain_actions() {
        for good in [
            &["!", "-d", "192.0.2.0/24"][..],
            &["-m", "addrtype", "!", "--src-type", "LOCAL"],
            &["-i", "eth0"],
            &["--in-interface", "eth0", "-m", "limit", "--limit", "3/s"],
        ] {
            assert_eq!(words("conditionsV4", &list(good)).unwrap(), list(good));
        }
        for bad in [
            "-j",
            "-jDROP",
            "--jump",
            "--jum",
            "-g",
            "--goto",
            "-A",
            "-I",
            "-F",
            "-t",
            "-tfilter",
            "--table",
            "--append",
            "--insert",
            "--delete-chain",
            "--flush",
            "--modprobe=/bin/sh",
            "a\nCOMMIT",
            "-w",
            "--wait",
        ] {
            let error = words("conditionsV4", &list(&["-s", "1.2.3.4", bad])).unwrap_err();
            assert!(error.code == 7 && error.msg.starts_with("conditionsV4: "), "{}", error.msg);
        }
    }
}
