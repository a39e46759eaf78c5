//! Masquerading through iptables, rule for rule as the reference plugins make it, so that either side
//! can remove what the other made.
//!
//! One chain per container and network, `CNI-` and a hash; a jump to it from POSTROUTING per address.
//!
//! Source: plugins `pkg/ip/ipmasq_iptables_linux.go` (G5).

use cni::Error;
use cni::invocation::ValidAttachment;
use ipnet::IpNet;
use linux::nft;
use plugin_support::owner_tag::OwnerTag;

use crate::iptables::{self, Family, Saved, Turn, chain_of, comment, deletion};

const TABLE: &str = "nat";
/// How the chains begin.
const PREFIX: &str = "CNI-";

/// What is sent to groups is nobody's conversation with the outside.
fn multicast(family: Family) -> &'static str {
    match family {
        Family::V4 => "224.0.0.0/4",
        Family::V6 => "ff00::/8",
    }
}

/// Is there, or could there be, a chain of the attachment? Found out without running a program.
pub(super) fn is_there(tag: &OwnerTag) -> Result<bool, Error> {
    let chain = chain_name(tag);
    Family::any(|family| iptables::has_chain(family, TABLE, &chain))
}

/// The first of the addresses from which no jump leads to the attachment's chain.
pub(super) fn bare(tag: &OwnerTag, addresses: &[IpNet]) -> Result<Option<IpNet>, Error> {
    let chain = chain_name(tag);
    for family in Family::ALL {
        let mut own = addresses.iter().filter(|net| family.has(net.addr())).peekable();
        if own.peek().is_none() {
            continue;
        }
        // Of the older kernel interface only its program knows.
        let saved = match iptables::has_chain(family, TABLE, &chain)? {
            true => Some(family.save(TABLE)?),
            false => None,
        };
        let leads = |net: &IpNet| {
            let mut jumps = saved.iter().flat_map(|saved| saved.jumps(&chain));
            jumps.any(|jump| is_of(jump, &[*net]))
        };
        if let Some(bare) = own.find(|net| !leads(net)) {
            return Ok(Some(*bare));
        }
    }
    Ok(None)
}

/// Is there one for sure, in one of the tables that nf_tables `has`?
pub(super) fn is_seen(tag: &OwnerTag, has: impl Fn(nft::Family, &str) -> bool) -> Result<bool, Error> {
    let chain = chain_name(tag);
    Family::any(|family| Ok(has(family.nft(), TABLE) && iptables::has_chain_in_nft(family, TABLE, &chain)?))
}

/// Is there, or could there be, one of anybody's?
pub(super) fn is_any_there() -> Result<bool, Error> {
    Family::any(|family| iptables::has_chains(family, TABLE, PREFIX))
}

fn chain_name(tag: &OwnerTag) -> String {
    iptables::chain_name("", tag)
}

/// `iptables -t nat -N CHAIN`, `-A CHAIN -d SUBNET -j ACCEPT`, `-A CHAIN ! -d 224.0.0.0/4 -j MASQUERADE`,
/// `-A POSTROUTING -s IP -j CHAIN`, in one commit.
pub(super) fn add(tag: &OwnerTag, addresses: &[IpNet]) -> Result<(), Error> {
    let chain = chain_name(tag);
    let comment = comment(&format!("name: \"{}\" id: \"{}\"", tag.network, tag.container));
    let turn = Turn::take()?;
    for family in Family::ALL {
        let of_family: Vec<&IpNet> = addresses.iter().filter(|net| family.has(net.addr())).collect();
        if of_family.is_empty() {
            continue;
        }
        family.change(&turn, TABLE, &mut |saved| {
            let mut script: Vec<String> =
                saved.jumps(&chain).filter(|jump| is_of(jump, addresses)).map(deletion).collect();
            // The chain is there if the container has another interface on the network: that one keeps its rules.
            if !saved.has_chain(&chain) {
                script.push(iptables::creation(&chain));
                script.push(format!("-A {chain} ! -d {} -j MASQUERADE {comment}", multicast(family)));
            }
            for net in &of_family {
                let accepted =
                    saved.lines().any(|rule| rule.starts_with(&format!("-A {chain} -d {} ", net.trunc())));
                if !accepted {
                    script.push(format!("-I {chain} 1 -d {net} -j ACCEPT {comment}"));
                }
            }
            for net in &of_family {
                script.push(format!("-A POSTROUTING -s {} -j {chain} {comment}", net.addr()));
            }
            script
        })?;
    }
    Ok(())
}

/// Removes the jumps of the `known` addresses, and the chain if no other jump leads to it; without known
/// addresses the chain and every jump to it. Both families.
pub(super) fn remove(tag: &OwnerTag, known: &[IpNet]) -> Result<(), Error> {
    let chain = chain_name(tag);
    iptables::clean(TABLE, &[&chain], &mut |saved| removal(saved, &chain, known))
}

/// Removes the chains of this network whose container has no valid attachment any more.
///
/// The chain is a container's, not an interface's: as long as one of them is valid it stays.
pub(super) fn sweep(network: &str, valid: &[ValidAttachment]) -> Result<(), Error> {
    iptables::clean(TABLE, &["POSTROUTING"], &mut |saved| {
        let mut chains: Vec<&str> =
            saved.lines().filter_map(|line| stale_chain(line, network, valid)).collect();
        chains.sort_unstable();
        chains.dedup();
        chains.into_iter().flat_map(|chain| removal(saved, chain, &[])).collect()
    })
}

/// The chain of a rule of ours, if its comment names this network and none of the valid containers.
///
/// The comment is the reference plugins': `name: "NETWORK" id: "CONTAINER"`.
fn stale_chain<'a>(line: &'a str, network: &str, valid: &[ValidAttachment]) -> Option<&'a str> {
    let chain = chain_of(line).filter(|chain| chain.starts_with(PREFIX))?;
    let (_, container) = iptables::named(line, "").filter(|(named, _)| *named == network)?;
    valid.iter().all(|valid| valid.container_id != container).then_some(chain)
}

/// The lines that remove the jumps of the `known` addresses to a chain, and the chain if no other leads to it.
fn removal(saved: &Saved, chain: &str, known: &[IpNet]) -> Vec<String> {
    let (own, others): (Vec<&str>, Vec<&str>) =
        saved.jumps(chain).partition(|jump| known.is_empty() || is_of(jump, known));
    let mut script: Vec<String> = own.into_iter().map(deletion).collect();
    if others.is_empty() && saved.has_chain(chain) {
        script.extend([format!("-F {chain}"), format!("-X {chain}")]);
    }
    script
}

/// Is it the jump of one of these addresses, in today's form or in the older one of the whole subnet?
fn is_of(jump: &str, addresses: &[IpNet]) -> bool {
    let source = jump.split_once(" -s ").and_then(|(_, rest)| rest.split(' ').next()).unwrap_or_default();
    addresses
        .iter()
        .any(|net| source == IpNet::from(net.addr()).to_string() || source == net.trunc().to_string())
}
