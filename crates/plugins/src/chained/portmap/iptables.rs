//! The backend `iptables`, with the same rules as the reference plugin, so that each plugin can check and remove what
//! the other created.
//!
//! ```text
//! PREROUTING, OUTPUT: -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
//! CNI-HOSTPORT-DNAT:  -p tcp -m multiport --dports 8080,8081 CONDITIONS -j CNI-DN-…   (15 ports a rule)
//! CNI-DN-…:           -s 10.1.0.0/24 … -j CNI-HOSTPORT-SETMARK; -s 127.0.0.1/32 …; -j DNAT --to-destination 10.1.0.5:80
//! POSTROUTING, first: -j CNI-HOSTPORT-MASQ: -m mark --mark 0x2000/0x2000 -j MASQUERADE
//! ```
//!
//! There is one commit for each address family. Chain names are part of this compatibility. So several `portmap`
//! plugins in one list share the container's chain, as they do with the reference plugin.
//!
//! Source: plugins `plugins/meta/portmap/{portmap_iptables,chain}.go`.

use std::collections::{BTreeMap, BTreeSet};

use cni::Error;
use cni::invocation::ValidAttachment;
use ipnet::IpNet;
use linux::nft::Protocol;
use plugin_config::portmap::{Marking, Masquerade};
use plugin_support::owner_tag::OwnerTag;

use super::settings::Mapping;
use crate::iptables::{self, Family, FilterLock, Saved, chain_of, comment, deletion, quoted};

/// Table with the rules for `portmap`.
pub const TABLE: &str = "nat";
/// Prefix in the comment on a container's rule.
pub const COMMENT: &str = "dnat ";
const DNAT_CHAIN: &str = "CNI-HOSTPORT-DNAT";
const SET_MARK: &str = "CNI-HOSTPORT-SETMARK";
const MASQUERADE: &str = "CNI-HOSTPORT-MASQ";
/// Maximum number of ports that a rule matches.
const MULTIPORT_MAX: usize = 15;

/// Returns the name of the container's chain, and the one that versions before 0.8 also created.
fn chain_names(tag: &OwnerTag) -> [String; 2] {
    ["DN-", "SN-"].map(|prefix| iptables::chain_name(prefix, tag))
}

/// Port forwarding for one container.
pub(super) struct Forwarding<'a> {
    pub(super) tag: &'a OwnerTag,
    pub(super) mappings: &'a [Mapping],
    pub(super) masquerade: Masquerade,
    pub(super) marking: &'a Marking,
    pub(super) conditions: &'a [Vec<String>; 2],
}

// === impl Forwarding ===

impl Forwarding<'_> {
    /// Forwards the ports to the container's addresses. Replaces the container's rules for other mappings.
    /// Rules for the same ones may come from an earlier `portmap` in the list, which gets the same mappings.
    pub(super) fn add(&self, addresses: &[IpNet]) -> Result<(), Error> {
        let [chain, _] = chain_names(self.tag);
        let lock = FilterLock::take()?;
        for net in addresses {
            let family = family(net);
            family.change(&lock, TABLE, &mut |saved| {
                let (rules, jumps) = (self.rules(&chain, net), self.jumps_to_chain(&chain, family));
                if has_mappings(saved, &chain, &rules) {
                    let unseen = unseen_jumps(saved, &chain, jumps);
                    // A second copy of a jump changes nothing.
                    let jumps = absent_jumps(family, &unseen).unwrap_or(unseen);
                    return self.missing(saved, &rules, jumps);
                }
                let mut script: Vec<String> = saved.jumps(&chain).map(deletion).collect();
                script.extend(self.shared_objects(saved));
                // `iptables-restore` creates a declared chain, or empties it: this chain is the container's own.
                script.push(format!(":{chain} - [0:0]"));
                script.extend(rules);
                script.extend(jumps);
                script
            })?;
        }
        Ok(())
    }

    /// Returns the commands for what is missing beside existing rules for the same mappings. `jumps` are missing.
    fn missing(&self, saved: &Saved, rules: &[String], jumps: Vec<String>) -> Vec<String> {
        let mut script = self.shared_objects(saved);
        // The existing rules translate already, so those that mark are inserted before them.
        let rules = rules.iter().rev().filter(|rule| !saved.has_rule(rule));
        script.extend(rules.map(|rule| rule.replacen("-A ", "-I ", 1)));
        script.extend(jumps);
        script
    }

    /// Fails unless the chain, the rules and the jumps to it exist.
    pub(super) fn check(&self, addresses: &[IpNet]) -> Result<(), Error> {
        let [chain, _] = chain_names(self.tag);
        for net in addresses {
            let saved = family(net).save(TABLE)?;
            let missing = self.rules(&chain, net).into_iter().find(|rule| !saved.has_rule(rule));
            if let Some(rule) = missing {
                return Err(Error::internal(format!("table nat lacks rule {rule}")));
            }
            let unseen = unseen_jumps(&saved, &chain, self.jumps_to_chain(&chain, family(net)));
            if let Some(rule) = absent_jumps(family(net), &unseen)?.first() {
                return Err(Error::internal(format!("table nat lacks rule {rule}")));
            }
            let missing = self.shared_objects(&saved).into_iter().find(|line| !iptables::is_creation(line));
            if let Some(rule) = missing {
                return Err(Error::internal(format!("table nat lacks rule {rule}")));
            }
        }
        Ok(())
    }

    /// Returns the commands for missing chains and rules that all containers share.
    fn shared_objects(&self, saved: &Saved) -> Vec<String> {
        let mut lines = Vec::new();
        let mut chains = vec![DNAT_CHAIN];
        let mut rules = Vec::new();
        if let (Marking::Own(bit), true) = (self.marking, self.masquerade != Masquerade::Nothing) {
            chains.extend([SET_MARK, MASQUERADE]);
            let value = 1_u32 << bit;
            let mark_comment = comment("CNI portfwd masquerade mark");
            rules.push(format!("-A {SET_MARK} {mark_comment} -j MARK --set-xmark {value:#x}/{value:#x}"));
            rules.push(format!("-A {MASQUERADE} -m mark --mark {value:#x}/{value:#x} -j MASQUERADE"));
            // Inserted first: a rule that masquerades all traffic that leaves a network would match before.
            let jump = format!("POSTROUTING {} -j {MASQUERADE}", comment("CNI portfwd requiring masquerade"));
            if !saved.has_rule(&format!("-A {jump}")) {
                rules.push(format!("-I {jump}"));
            }
        }
        for entry in ["PREROUTING", "OUTPUT"] {
            rules.push(format!("-A {entry} -m addrtype --dst-type LOCAL -j {DNAT_CHAIN}"));
        }
        lines.extend(chains.into_iter().filter(|chain| !saved.has_chain(chain)).map(iptables::creation));
        lines.extend(rules.into_iter().filter(|rule| !saved.has_rule(rule)));
        lines
    }

    /// Returns the rules for the container's chain; those that mark precede those that translate.
    fn rules(&self, chain: &str, net: &IpNet) -> Vec<String> {
        let target = match self.marking {
            Marking::Own(_) => SET_MARK,
            Marking::Foreign(chain) => chain,
        };
        let sources: Vec<String> = match self.masquerade {
            Masquerade::Nothing => Vec::new(),
            Masquerade::Everything => vec![String::new()],
            Masquerade::Needed if net.addr().is_ipv4() => {
                vec![format!("-s {} ", net.trunc()), "-s 127.0.0.1/32 ".to_owned()]
            }
            Masquerade::Needed => vec![format!("-s {} ", net.trunc())],
        };
        let mut rules = Vec::new();
        for mapping in self.mappings.iter().filter(|mapping| mapping.is_of(family(net))) {
            let destination =
                mapping.host_address().map(|ip| format!("-d {} ", IpNet::from(ip))).unwrap_or_default();
            let protocol = word(mapping.protocol);
            let matches = format!("{destination}-p {protocol} -m {protocol} --dport {}", mapping.host_port);
            for source in &sources {
                rules.push(format!("-A {chain} {source}{matches} -j {target}"));
            }
            let to = std::net::SocketAddr::new(net.addr(), mapping.container_port.get());
            rules.push(format!("-A {chain} {matches} -j DNAT --to-destination {to}"));
        }
        rules
    }

    /// Returns the jumps to the container's chain, each for as many ports as a rule can match.
    fn jumps_to_chain(&self, chain: &str, family: Family) -> Vec<String> {
        let Forwarding { tag, mappings, masquerade: _, marking: _, conditions } = self;
        let comment = comment(&format!("{COMMENT}name: \"{}\" id: \"{}\"", tag.network, tag.container));
        let mut conditions = conditions[usize::from(family == Family::V6)]
            .iter()
            .map(|word| quoted(word))
            .collect::<Vec<_>>()
            .join(" ");
        if !conditions.is_empty() {
            conditions.push(' ');
        }
        let mut ports: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for mapping in *mappings {
            ports.entry(word(mapping.protocol)).or_default().push(mapping.host_port.to_string());
        }
        let rules = ports.iter().flat_map(|(protocol, ports)| {
            ports.chunks(MULTIPORT_MAX).map(move |ports| (protocol, ports.join(",")))
        });
        rules
            .map(|(protocol, ports)| {
                format!("-A {DNAT_CHAIN} -p {protocol} {comment} -m multiport --dports {ports} {conditions}-j {chain}")
            })
            .collect()
    }
}

/// Whether the chain translates exactly the ports that `rules` translate.
fn has_mappings(saved: &Saved, chain: &str, rules: &[String]) -> bool {
    let is_translation = |rule: &&str| rule.contains(" -j DNAT --to-destination ");
    let present = saved.lines().filter(|line| chain_of(line) == Some(chain)).map(str::trim_end);
    let present: BTreeSet<&str> = present.filter(is_translation).collect();
    !present.is_empty() && present == rules.iter().map(String::as_str).filter(is_translation).collect()
}

/// Returns the jumps to a chain that the output does not have in the same words. Other jumps to it may come
/// from another `portmap` in the list.
fn unseen_jumps(saved: &Saved, chain: &str, jumps: Vec<String>) -> Vec<String> {
    let is_seen = |jump: &String| saved.jumps(chain).any(|known| is_same(known, jump));
    jumps.into_iter().filter(|jump| !is_seen(jump)).collect()
}

/// Returns the jumps that the kernel does not have. Usually there are none to ask about, and no program runs.
fn absent_jumps(family: Family, unseen: &[String]) -> Result<Vec<String>, Error> {
    if unseen.is_empty() || family.has_rules(TABLE, unseen)? {
        return Ok(Vec::new());
    }
    let mut absent = Vec::new();
    for jump in unseen {
        if unseen.len() == 1 || !family.has_rules(TABLE, std::slice::from_ref(jump))? {
            absent.push(jump.clone());
        }
    }
    Ok(absent)
}

/// Whether two rules have the same matches. `iptables-save` prints matches in another order than they were written,
/// with other quotation marks, and addresses with a prefix length. It also replaces long options, masks and names,
/// which are not recognised here.
fn is_same(one: &str, other: &str) -> bool {
    matches_of(one) == matches_of(other)
}

/// Returns each option in a rule with the values, and with the `!` before it, in any order.
fn matches_of(rule: &str) -> Vec<Vec<String>> {
    let mut all: Vec<Vec<String>> = Vec::new();
    for word in rule.split_whitespace() {
        let bare = word.trim_matches('"');
        let bare = ["/32", "/128"].iter().find_map(|length| bare.strip_suffix(length)).unwrap_or(bare);
        let is_negated = all.last().is_some_and(|option| *option == ["!"]);
        match all.last_mut() {
            Some(option) if is_negated || !(bare == "!" || bare.starts_with('-')) => {
                option.push(bare.to_owned());
            }
            _ => all.push(vec![bare.to_owned()]),
        }
    }
    all.sort_unstable();
    all
}

fn family(net: &IpNet) -> Family {
    if net.addr().is_ipv4() { Family::V4 } else { Family::V6 }
}

fn word(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tcp => "tcp",
        Protocol::Udp => "udp",
        Protocol::Sctp => "sctp",
    }
}

// === DEL, GC ===

/// Whether the container has a chain.
pub(super) fn exists(tag: &OwnerTag) -> Result<bool, Error> {
    let [chain, _] = chain_names(tag);
    // The content of the legacy kernel interface is known only to its program.
    Family::any(|family| {
        Ok(iptables::has_chain(family, TABLE, &chain)? && family.save(TABLE)?.has_chain(&chain))
    })
}

/// Removes the container's chains and the jumps to them; returns the UDP ports.
pub(super) fn remove(tag: &OwnerTag) -> Result<Vec<u16>, Error> {
    let chains = chain_names(tag);
    let chains = chains.each_ref().map(String::as_str);
    let mut ports = Vec::new();
    iptables::clean(TABLE, &chains, &mut |saved| removal(saved, &chains, &mut ports))?;
    Ok(ports)
}

/// Returns the commands that remove these chains and the jumps to them; adds the UDP ports in the jumps to
/// `ports`.
fn removal(saved: &Saved, chains: &[&str], ports: &mut Vec<u16>) -> Vec<String> {
    let mut script = Vec::new();
    for chain in chains.iter().filter(|chain| saved.has_chain(chain)) {
        for jump in saved.jumps(chain) {
            ports.extend(udp_ports(jump));
            script.push(deletion(jump));
        }
        script.extend([format!("-F {chain}"), format!("-X {chain}")]);
    }
    script
}

/// Returns the ports in a UDP rule.
fn udp_ports(rule: &str) -> Vec<u16> {
    let list = rule.split_once(" --dports ").and_then(|(_, rest)| rest.split(' ').next()).unwrap_or_default();
    match rule.contains(" -p udp ") {
        true => list.split(',').filter_map(|port| port.parse().ok()).collect(),
        false => Vec::new(),
    }
}

/// Removes the chains on this network whose container has no valid attachment any more. A chain belongs to a
/// container, not to an interface.
pub(super) fn sweep(network: &str, valid: &[ValidAttachment]) -> Result<Vec<u16>, Error> {
    let mut ports = Vec::new();
    iptables::clean(TABLE, &[DNAT_CHAIN], &mut |saved| {
        let mut chains: Vec<&str> =
            saved.lines().filter_map(|line| stale_chain(line, network, valid)).collect();
        chains.sort_unstable();
        chains.dedup();
        removal(saved, &chains, &mut ports)
    })?;
    Ok(ports)
}

/// Returns a rule's target chain if it belongs to this network and the container is not among the valid ones.
fn stale_chain<'a>(line: &'a str, network: &str, valid: &[ValidAttachment]) -> Option<&'a str> {
    chain_of(line).filter(|chain| *chain == DNAT_CHAIN)?;
    let (_, container) = iptables::named(line, COMMENT).filter(|(named, _)| *named == network)?;
    let target = line.rsplit(' ').next().filter(|target| target.starts_with("CNI-DN-"))?;
    valid.iter().all(|valid| valid.container_id != container).then_some(target)
}

// === STATUS ===

/// Fails unless the programs can be run.
pub(super) fn status() -> Result<(), Error> {
    Family::V4.save(TABLE).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portmap_jumps_of_iptables_differ_by_their_conditions() {
        let jump = |conditions: &str| {
            format!(
                "-A {DNAT_CHAIN} -p tcp -m comment --comment \"dnat name: \\\"n\\\"\" -m multiport --dports 80 {conditions}-j X"
            )
        };
        let saved = |conditions: &str| {
            format!(
                "-A {DNAT_CHAIN} {conditions}-p tcp -m comment --comment \"dnat name: \\\"n\\\"\" -m multiport --dports 80 -j X"
            )
        };
        for (written, printed, expected) in [
            ("", "", true),
            ("\"-s\" \"192.0.2.2\" \"-d\" \"192.0.2.3\" ", "-s 192.0.2.2/32 -d 192.0.2.3/32 ", true),
            ("\"!\" \"-s\" \"192.0.2.2\" \"-i\" \"up0\" ", "! -s 192.0.2.2/32 -i up0 ", true),
            ("\"-d\" \"192.0.2.2\" \"-s\" \"192.0.2.3\" ", "-s 192.0.2.2/32 -d 192.0.2.3/32 ", false),
            ("\"-s\" \"192.0.2.2\" \"!\" \"-i\" \"up0\" ", "! -s 192.0.2.2/32 -i up0 ", false),
            ("\"-s\" \"192.0.2.2\" ", "", false),
            ("\"-s\" \"192.0.2.0/255.255.255.0\" ", "-s 192.0.2.0/24 ", false),
        ] {
            assert_eq!(is_same(&saved(printed), &jump(written)), expected, "{written}{printed}");
        }
    }
}
