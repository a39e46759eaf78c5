//! Masquerading with iptables, with the same rules as the reference plugins, so that each can remove what the other
//! created.
//!
//! There is one chain for each container and network, `CNI-` and a hash, and a jump to it from POSTROUTING for each
//! address.
//!
//! Source: plugins `pkg/ip/ipmasq_iptables_linux.go` (G5).

use cni::Error;
use cni::invocation::ValidAttachment;
use ipnet::IpNet;
use linux::nft;
use plugin_support::owner_tag::OwnerTag;

use crate::iptables::{self, Family, FilterLock, Saved, chain_of, comment, deletion};

const TABLE: &str = "nat";
/// Prefix for chain names.
const PREFIX: &str = "CNI-";

/// Returns a family's multicast network. Packets to groups are not masqueraded.
fn multicast(family: Family) -> &'static str {
    match family {
        Family::V4 => "224.0.0.0/4",
        Family::V6 => "ff00::/8",
    }
}

/// Whether the attachment has a chain, or may have one. Runs no program.
pub(super) fn exists(tag: &OwnerTag) -> Result<bool, Error> {
    let chain = chain_name(tag);
    Family::any(|family| iptables::has_chain(family, TABLE, &chain))
}

/// Returns the first address without a jump to the attachment's chain.
pub(super) fn without_jump(tag: &OwnerTag, addresses: &[IpNet]) -> Result<Option<IpNet>, Error> {
    let chain = chain_name(tag);
    for family in Family::ALL {
        let mut own = addresses.iter().filter(|net| family.has(net.addr())).peekable();
        if own.peek().is_none() {
            continue;
        }
        // The content of the legacy kernel interface is known only to its program.
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

/// Whether the attachment certainly has a chain in one of the tables that nf_tables `has`.
pub(super) fn is_in_nft(tag: &OwnerTag, has: impl Fn(nft::Family, &str) -> bool) -> Result<bool, Error> {
    let chain = chain_name(tag);
    Family::any(|family| Ok(has(family.nft(), TABLE) && iptables::has_chain_in_nft(family, TABLE, &chain)?))
}

/// Whether any attachment has a chain, or may have one.
pub(super) fn is_any_present() -> Result<bool, Error> {
    Family::any(|family| iptables::has_chains(family, TABLE, PREFIX))
}

fn chain_name(tag: &OwnerTag) -> String {
    iptables::chain_name("", tag)
}

/// Adds the rules in one commit: `iptables -t nat -N CHAIN`, `-A CHAIN -d SUBNET -j ACCEPT`,
/// `-A CHAIN ! -d 224.0.0.0/4 -j MASQUERADE`, `-A POSTROUTING -s IP -j CHAIN`.
pub(super) fn add(tag: &OwnerTag, addresses: &[IpNet]) -> Result<(), Error> {
    let chain = chain_name(tag);
    let comment = comment(&format!("name: \"{}\" id: \"{}\"", tag.network, tag.container));
    let lock = FilterLock::take()?;
    for family in Family::ALL {
        let of_family: Vec<&IpNet> = addresses.iter().filter(|net| family.has(net.addr())).collect();
        if of_family.is_empty() {
            continue;
        }
        family.change(&lock, TABLE, &mut |saved| {
            let mut script: Vec<String> =
                saved.jumps(&chain).filter(|jump| is_of(jump, addresses)).map(deletion).collect();
            // The chain exists if the container has another interface on the network: its rules stay.
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

/// Removes the jumps for the `known` addresses, and the chain if no other jump leads to it. Without known
/// addresses, removes the chain and every jump to it. Applies to both families.
pub(super) fn remove(tag: &OwnerTag, known: &[IpNet]) -> Result<(), Error> {
    let chain = chain_name(tag);
    iptables::clean(TABLE, &[&chain], &mut |saved| removal(saved, &chain, known))
}

/// Removes the chains on this network whose container has no valid attachment any more.
///
/// A chain belongs to a container: it stays while one of the container's attachments is valid.
pub(super) fn sweep(network: &str, valid: &[ValidAttachment]) -> Result<(), Error> {
    iptables::clean(TABLE, &["POSTROUTING"], &mut |saved| {
        let mut chains: Vec<&str> =
            saved.lines().filter_map(|line| stale_chain(line, network, valid)).collect();
        chains.sort_unstable();
        chains.dedup();
        chains.into_iter().flat_map(|chain| removal(saved, chain, &[])).collect()
    })
}

/// Returns a rule's chain if the comment names this network and none of the valid containers.
///
/// The comment has the reference plugins' form: `name: "NETWORK" id: "CONTAINER"`.
fn stale_chain<'a>(line: &'a str, network: &str, valid: &[ValidAttachment]) -> Option<&'a str> {
    let chain = chain_of(line).filter(|chain| chain.starts_with(PREFIX))?;
    let (_, container) = iptables::named(line, "").filter(|(named, _)| *named == network)?;
    valid.iter().all(|valid| valid.container_id != container).then_some(chain)
}

/// Returns the commands that remove the jumps for the `known` addresses, and the chain if no other jump leads
/// to it.
fn removal(saved: &Saved, chain: &str, known: &[IpNet]) -> Vec<String> {
    let (own, others): (Vec<&str>, Vec<&str>) =
        saved.jumps(chain).partition(|jump| known.is_empty() || is_of(jump, known));
    let mut script: Vec<String> = own.into_iter().map(deletion).collect();
    if others.is_empty() && saved.has_chain(chain) {
        script.extend([format!("-F {chain}"), format!("-X {chain}")]);
    }
    script
}

/// Whether a jump is for one of these addresses, in the present form or in the older one with the whole
/// subnet.
fn is_of(jump: &str, addresses: &[IpNet]) -> bool {
    let source = jump.split_once(" -s ").and_then(|(_, rest)| rest.split(' ').next()).unwrap_or_default();
    addresses
        .iter()
        .any(|net| source == IpNet::from(net.addr()).to_string() || source == net.trunc().to_string())
}
