//! GC: takes down sandboxes that the runtime no longer knows, then calls GC of every network.
//!
//! - Only sandboxes of this network (by configuration name) are taken down; without a list of valid attachments, none.
//! - A network receives the attachments in the journal and those that the runtime lists.
//! - If an entry cannot be read, no network is called: it would remove attachments that are not listed.
//! - Hot-plug waits until the last network has answered (`docs/design/journal.md`, "Locks").
//!
//! Source: CNI 1.1.0 §2 "GC", §3.

use std::collections::BTreeMap;

use cni::invocation::{Sweep, ValidAttachment};
use cni::network::Network;
use cni::runtime::chain::{self, Keep};
use cni::{Context, Error};
use npwg::configuration::Flavour;
use rpc::journal::{Entry, Programs};

use super::lock::Lock;
use super::{Node, detach, enforcement, join_path, planning, readiness};

/// Takes down stale sandboxes, then calls GC of the networks.
pub(super) fn collect(node: &Node, request: &Sweep, flavour: Flavour) -> Result<(), Error> {
    let Some(valid) = request.valid()? else { return Ok(()) };
    let (known, mut errors) = entries(node)?;
    let all_is_known = errors.is_empty();
    let is_stale = |entry: &Entry| {
        entry.network == request.call.config.name.as_str()
            && !valid
                .iter()
                .any(|v| v.container_id == entry.container_id.as_str() && v.ifname == entry.ifname.as_str())
    };
    for entry in known.into_iter().filter(is_stale) {
        let context = format!("sandbox {}", entry.container_id);
        errors.extend(take_down(node, &entry).context(context).err());
    }
    if all_is_known {
        errors.extend(forward_to_networks(node, request, flavour, &valid));
        errors.extend(remove_stale_rules(node).err());
    }
    cni::error::collected(errors)
}

/// Returns the readable journal entries, and the errors for the others.
fn entries(node: &Node) -> Result<(Vec<Entry>, Vec<Error>), Error> {
    let (mut known, mut errors) = (Vec::new(), Vec::new());
    for container in node.journal.containers()? {
        match node.journal.read(&container) {
            Ok(entry) => known.extend(entry),
            Err(error) => errors.push(error),
        }
    }
    Ok((known, errors))
}

/// Calls GC for the networks with the present journal entries. Sandboxes that could not be taken down remain in use.
fn forward_to_networks(
    node: &Node,
    request: &Sweep,
    flavour: Flavour,
    valid: &[ValidAttachment],
) -> Vec<Error> {
    let changes = match Lock::changes(node.journal.directory()) {
        Ok(changes) => changes,
        Err(error) => return vec![error],
    };
    node.invoker.isolate(changes.mark_work());
    let errors = match entries(node) {
        Ok((kept, unread)) if unread.is_empty() => forward(node, request, flavour, valid, &kept),
        Ok((_, unread)) => unread,
        Err(error) => vec![error],
    };
    changes.retire();
    errors
}

/// Removes rules of network policies in the host's namespace whose attachment is not in the journal.
fn remove_stale_rules(node: &Node) -> Result<(), Error> {
    // The rules first: an ADD writes its entry before its rules, so the entry of each listed rule is found.
    let found = enforcement::on_host(node.journal.directory())?;
    if found.is_empty() {
        return Ok(());
    }
    let (kept, unread) = entries(node)?;
    if !unread.is_empty() {
        return Ok(());
    }
    enforcement::sweep(&found, &kept)
}

fn take_down(node: &Node, stale: &Entry) -> Result<(), Error> {
    let lock = Lock::acquire(node.journal.directory(), &stale.container_id)?;
    let has_died = lock.mark_work();
    // The entry may have been removed or changed while this process waited.
    let Some(mut entry) = node.journal.read(&stale.container_id)? else {
        lock.retire();
        return Ok(());
    };
    entry.path = join_path(&entry.path, &node.path);
    node.invoker.isolate(has_died || entry.is_interrupted());
    detach::take_down(&node.journal, &node.invoker, &mut entry)?;
    lock.retire();
    Ok(())
}

/// Calls GC of every network that is configured or still in use.
fn forward(
    node: &Node,
    request: &Sweep,
    flavour: Flavour,
    valid: &[ValidAttachment],
    kept: &[Entry],
) -> Vec<Error> {
    let mut networks: BTreeMap<String, UsedNetwork> = BTreeMap::new();
    let mut errors = Vec::new();
    match planning::networks_of_every_pod(&node.configuration, &request.call, flavour) {
        Ok(all) => {
            // An attachment of the network that was made now has these programs.
            let programs = |network: &Network| {
                readiness::find_programs(&node.invoker, network, &node.path).unwrap_or_default()
            };
            let used = |network: Network| {
                let programs = programs(&network);
                UsedNetwork::new(network, valid, programs)
            };
            networks.extend(all.into_iter().map(|one| (one.name.to_string(), used(one))));
        }
        Err(error) => errors.push(error),
    }
    for entry in kept {
        for (delegate, attachment) in entry.plan.delegates.iter().zip(&entry.attachments) {
            let programs = &attachment.programs;
            let network = match Network::parse(delegate.config.as_bytes(), &delegate.network) {
                Ok(network) => network,
                // Its list of attachments would be incomplete, if it has the name of another network.
                Err(error) => {
                    errors.push(error);
                    return errors;
                }
            };
            let attachment = ValidAttachment {
                container_id: entry.container_id.to_string(),
                ifname: delegate.ifname.to_string(),
            };
            let used = networks
                .entry(network.name.to_string())
                .or_insert_with(|| UsedNetwork::new(network, valid, programs.clone()));
            used.attachments.push(attachment);
            if !used.programs.contains(programs) {
                used.programs.push(programs.clone());
            }
        }
    }
    for UsedNetwork { network, attachments, programs } in networks.into_values() {
        for programs in programs {
            let plugins = node.invoker.following(programs);
            errors.extend(chain::gc(&plugins, &network, Keep::Only(&attachments), &node.path).err());
        }
    }
    errors
}

/// Network that is configured or in use.
struct UsedNetwork {
    network: Network,
    attachments: Vec<ValidAttachment>,
    /// Plugin programs: different ones if attachments were made before and after a change on the node.
    programs: Vec<Programs>,
}

impl UsedNetwork {
    fn new(network: Network, valid: &[ValidAttachment], programs: Programs) -> UsedNetwork {
        UsedNetwork { network, attachments: valid.to_vec(), programs: vec![programs] }
    }
}
