//! Pings from one pod to the other, across each network that both have.

use cni::Version;
use cni::result::Success;
use ipnet::IpNet;
use npwg::outcome::Own;
use rpc::journal::Entry;

use super::demo_host::{AttachedPod, DemoHost};
use cli_support::failure::Failure;
use cli_support::interrupt::Interrupt;
use cli_support::table;
use cli_support::terminal::plain;

/// Number of attempts. The first may fail while duplicate address detection runs for an IPv6 address.
const ATTEMPTS: usize = 3;

/// Source and destination for a ping.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pair {
    network: String,
    from_interface: String,
    from: String,
    to_interface: String,
    to: String,
}

/// Pings across every common network and prints the replies.
///
/// # Errors
/// The partner does not reply on a network, or shares no network with the pod.
pub(super) fn ping_all(
    demo_host: &DemoHost,
    pod: &AttachedPod,
    partner: &AttachedPod,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let progress = demo_host.progress();
    progress.line(format!("\npings from {} to {}", pod.pod, partner.pod));
    let pairs = pairs(&pod.entry, &partner.entry);
    if pairs.is_empty() {
        return Err(Failure::new(format!(
            "{} and {} have no common network with addresses",
            pod.pod, partner.pod
        )));
    }
    let mut rows = Vec::new();
    let mut silent = Vec::new();
    for Pair { network, from_interface, from, to_interface, to } in pairs {
        let mut reply = None;
        for _ in 0..ATTEMPTS {
            interrupt.stop_here()?;
            reply = demo_host.weft_cni().ping(&pod.netns, &to, &from)?;
            if reply.is_some() {
                break;
            }
        }
        if reply.is_none() {
            silent.push(format!("{to} across {network}"));
        }
        let took = reply.unwrap_or_else(|| "no reply".to_owned());
        rows.push(vec![network, format!("{from_interface} {from}"), format!("{to_interface} {to}"), took]);
    }
    let table = table::lay_out(&["network", "from", "to", "reply in"], &rows, 2);
    progress.line(table.trim_end());
    match silent.as_slice() {
        [] => Ok(()),
        silent => Err(Failure::new(plain(&format!("no reply from {}", silent.join(", "))))),
    }
}

/// Returns, for each address on the pod, an address on the partner in the same network and family.
fn pairs(pod: &Entry, partner: &Entry) -> Vec<Pair> {
    let partner_addresses = addresses(partner);
    let mut pairs = Vec::new();
    for (network, from_interface, from) in addresses(pod) {
        let other = partner_addresses.iter().find(|(other_network, _, to)| {
            *other_network == network && to.addr().is_ipv4() == from.addr().is_ipv4()
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

/// Returns network, interface and address for each attachment.
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
