//! Pings from one pod to the other, across each network both are on.

use cni::Version;
use cni::result::Success;
use ipnet::IpNet;
use npwg::outcome::Own;
use rpc::journal::Entry;

use super::stage::{Actor, Stage};
use cli_support::failure::Failure;
use cli_support::interrupt::Interrupt;
use cli_support::table;
use cli_support::terminal::plain;

/// How often a ping is tried: an address of IPv6 may still be looking for its twin.
const ATTEMPTS: usize = 3;

/// Both ends of a ping.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pair {
    network: String,
    from_interface: String,
    from: String,
    to_interface: String,
    to: String,
}

/// Pings, and shows who answered.
///
/// # Errors
/// A partner that does not answer, or shares no network with the pod.
pub(super) fn across(
    stage: &Stage,
    actor: &Actor,
    partner: &Actor,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let progress = stage.progress();
    progress.line(format!("\npings from {} to {}", actor.pod, partner.pod));
    let pairs = pairs(&actor.entry, &partner.entry);
    if pairs.is_empty() {
        return Err(Failure::new(format!(
            "{} and {} share no network with addresses",
            actor.pod, partner.pod
        )));
    }
    let mut rows = Vec::new();
    let mut silent = Vec::new();
    for Pair { network, from_interface, from, to_interface, to } in pairs {
        let mut answer = None;
        for _ in 0..ATTEMPTS {
            interrupt.stop_here()?;
            answer = stage.weft_cni().ping(&actor.netns, &to, &from)?;
            if answer.is_some() {
                break;
            }
        }
        if answer.is_none() {
            silent.push(format!("{to} across {network}"));
        }
        let took = answer.unwrap_or_else(|| "no answer".to_owned());
        rows.push(vec![network, format!("{from_interface} {from}"), format!("{to_interface} {to}"), took]);
    }
    let table = table::lay_out(&["across", "from", "to", "answered in"], &rows, 2);
    progress.line(table.trim_end());
    match silent.as_slice() {
        [] => Ok(()),
        silent => Err(Failure::new(plain(&format!("no answer from {}", silent.join(", "))))),
    }
}

/// For each address of the pod, one of the partner on the same network and of the same family.
fn pairs(actor: &Entry, partner: &Entry) -> Vec<Pair> {
    let theirs = addresses(partner);
    let mut pairs = Vec::new();
    for (network, from_interface, from) in addresses(actor) {
        let other = theirs.iter().find(|(their_network, _, to)| {
            *their_network == network && to.addr().is_ipv4() == from.addr().is_ipv4()
        });
        if let Some((_, to_interface, to)) = other {
            pairs.push(Pair {
                network,
                from_interface,
                from: from.addr().to_string(),
                to_interface: to_interface.clone(),
                to: to.addr().to_string(),
            });
        }
    }
    pairs
}

/// Network, interface and address of all that is attached.
fn addresses(entry: &Entry) -> Vec<(String, String, IpNet)> {
    let mut found = Vec::new();
    for (delegate, attachment) in entry.plan.delegates.iter().zip(&entry.attachments) {
        let Some(raw) = &attachment.result else { continue };
        let Ok((_, result)) = Success::read(raw.get().as_bytes(), Version::LATEST) else { continue };
        for ip in Own::of(&result, &delegate.ifname).addresses {
            found.push((delegate.network.clone(), delegate.ifname.to_string(), ip.address));
        }
    }
    found
}
