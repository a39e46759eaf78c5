//! GC: what no runtime knows any more is taken down, from the journal; then the delegates are told what is left.
//!
//! Rules:
//! - only sandboxes that this very network (the meta-plugin's configuration by name) attached are looked at;
//! - without a list nothing is dropped; an empty list means that nothing is valid;
//! - a delegate's list is what the journal still holds for its network, and what the runtime says is valid:
//!   a network that others use beside us loses nothing of theirs that the runtime knows;
//! - failures stop nothing and are returned together; but with an entry that cannot be read no delegate is told
//!   anything: what is not in its list it would take from a pod that may well run.
//!
//! Source: SPEC 1.1.0 §2 GC, §3 (S32); Multus defect M12.

use std::collections::BTreeMap;

use cni::Error;
use cni::invocation::{Sweep, ValidAttachment};
use cni::network::Network;
use cni::runtime::chain::{self, Keep};
use npwg::configuration::Flavour;
use npwg::journal::Entry;

use super::lock::Lock;
use super::{Node, detach, planning};

/// Takes down the stale, then forwards.
pub(super) fn collect(node: &Node, request: &Sweep, flavour: Flavour) -> Result<(), Error> {
    let Some(valid) = request.valid()? else { return Ok(()) };
    let mut errors = Vec::new();
    let mut kept = Vec::new();
    for container in node.journal.containers()? {
        match node.journal.read(&container) {
            Ok(Some(entry)) => kept.push(entry),
            Ok(None) => {}
            Err(error) => errors.push(error),
        }
    }
    let all_is_known = errors.is_empty();
    let is_stale = |entry: &Entry| {
        entry.network == request.call.config.name.as_str()
            && !valid
                .iter()
                .any(|v| v.container_id == entry.container_id.as_str() && v.ifname == entry.ifname.as_str())
    };
    let (stale, mut kept): (Vec<Entry>, Vec<Entry>) = kept.into_iter().partition(is_stale);
    for entry in stale {
        match take_down(node, &entry) {
            Ok(()) => {}
            Err(error) => {
                errors.push(error.context(format_args!("sandbox {}", entry.container_id)));
                // What could not be taken down still holds what it holds.
                kept.push(entry);
            }
        }
    }
    if all_is_known {
        errors.extend(forward(node, request, flavour, &valid, &kept));
    }
    crate::interface::collected(errors)
}

fn take_down(node: &Node, stale: &Entry) -> Result<(), Error> {
    let lock = Lock::acquire(node.journal.directory(), &stale.container_id)?;
    // It may have gone, or changed, while we waited.
    let Some(mut entry) = node.journal.read(&stale.container_id)? else {
        lock.retire();
        return Ok(());
    };
    entry.path.clone_from(&node.path);
    detach::take_down(&node.journal, &node.hands, &mut entry)?;
    lock.retire();
    Ok(())
}

/// GC of every network that is configured or still in use.
fn forward(
    node: &Node,
    request: &Sweep,
    flavour: Flavour,
    valid: &[ValidAttachment],
    kept: &[Entry],
) -> Vec<Error> {
    let mut networks: BTreeMap<String, (Network, Vec<ValidAttachment>)> = BTreeMap::new();
    let mut errors = Vec::new();
    match planning::networks_of_every_pod(&node.configuration, &request.call, flavour) {
        Ok(all) => networks.extend(all.into_iter().map(|one| (one.name.to_string(), (one, valid.to_vec())))),
        Err(error) => errors.push(error),
    }
    for entry in kept {
        for delegate in &entry.plan.delegates {
            let Ok(network) = Network::parse(delegate.config.as_bytes(), &delegate.network) else { continue };
            let attachment = ValidAttachment {
                container_id: entry.container_id.to_string(),
                ifname: delegate.ifname.to_string(),
            };
            let (_, list) =
                networks.entry(network.name.to_string()).or_insert_with(|| (network, valid.to_vec()));
            list.push(attachment);
        }
    }
    for (network, list) in networks.into_values() {
        errors.extend(chain::gc(&node.hands, &network, Keep::Only(&list), &node.path).err());
    }
    errors
}
