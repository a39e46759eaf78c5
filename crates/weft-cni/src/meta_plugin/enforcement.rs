//! Network policies of attachments, as nf_tables rules.
//!
//! - The rules of an attachment are committed in one transaction before its plugins run: no packet passes without them.
//!   They name interfaces, which need not exist yet.
//! - They are in the host's namespace where a host end exists that the pod cannot reach, else in the pod's ([`place`]).
//! - DEL removes them after the interface. Their names are derived from the attachment, so it needs no policy.
//! - Attachments without a policy cost nothing here.
//!
//! `docs/design/policy.md` has the hooks and the reasons.

mod place;
mod ruleset;
mod update;

use std::collections::BTreeSet;
use std::path::Path;

use cni::Error;
use cni::network::Network;
use cni::result::Success;
use linux::Netns;
use linux::conntrack::Conntrack;
use linux::nft::{Batch, Family, Nft, Table};
use npwg::plan::Delegate;
use plugin_support::failure::OrRefused;
use plugin_support::log;
use plugins::entries;
use rpc::journal::Entry;
use serde::Deserialize;

use self::place::Place;
use self::ruleset::{AttachmentId, Leases, Ruleset, TABLE, Target};
use crate::plugin_invoker::PluginInvoker;

pub(super) use self::update::{difference, restore, update};

/// IPAM plugin whose client exchanges packets on the attachment.
const DHCP: &str = "dhcp";

#[derive(Default, Deserialize)]
#[serde(default)]
struct IpamType {
    r#type: String,
}

/// Rules of an attachment that are in force, with their place; `None` without a policy.
pub(super) struct Enforced(Option<(Place, Ruleset)>);

/// Commits the rules of an attachment; does nothing without a policy.
///
/// On the host, replies do not pass before [`verify`]: the kernel may still track connections of the previous owner of the
/// address, whose packets would pass as replies.
pub(super) fn enforce(
    invoker: &PluginInvoker,
    entry: &Entry,
    delegate: &Delegate,
) -> Result<Enforced, Error> {
    let Some(policy) = &delegate.policy else { return Ok(Enforced(None)) };
    let target = target(invoker, entry, delegate)?;
    let ruleset = Ruleset::new(&target, policy);
    let replies = matches!(target.place, Place::Pod { .. });
    commit(&mut target.place.nft(entry)?, &ruleset, replies)?;
    Ok(Enforced(Some((target.place, ruleset))))
}

fn commit(nft: &mut Nft, ruleset: &Ruleset, replies: bool) -> Result<(), Error> {
    let mut batch = Batch::new();
    ruleset.write(replies, &mut batch);
    nft.commit(batch).or_refused().map_err(|error| error.context("network policy"))
}

/// Fails if the interface that the rules are about does not exist: packets of the attachment would pass without them.
///
/// On the host it ends the tracked connections of the addresses. From then on replies pass.
pub(super) fn verify(enforced: &Enforced, entry: &Entry, result: &Success) -> Result<(), Error> {
    let Some((place, ruleset)) = &enforced.0 else { return Ok(()) };
    match place {
        Place::Pod { link } => {
            let netns = Netns::open(Path::new(&entry.netns)).or_refused()?;
            match netns.rtnl().or_refused()?.find_link(link).or_refused()? {
                Some(_) => Ok(()),
                None => Err(Error::internal(format!(
                    "network policy: the kernel of the pod has no interface {link:?} whose packets it could filter"
                ))),
            }
        }
        Place::Host { link } => {
            let mut interfaces = result.interfaces.iter();
            if !interfaces.any(|interface| interface.name == *link && interface.sandbox.is_empty()) {
                return Err(Error::internal(format!(
                    "network policy: the host end is not {link:?}, because another link has this name"
                )));
            }
            let mut conntrack = Conntrack::open().or_refused()?;
            for ip in &result.ips {
                conntrack.forget_address(ip.address.addr()).or_refused()?;
            }
            commit(&mut place.nft(entry)?, ruleset, true)
        }
    }
}

/// Fails unless the rules of an attachment are in force unchanged.
pub(super) fn check(invoker: &PluginInvoker, entry: &Entry, delegate: &Delegate) -> Result<(), Error> {
    let Some(policy) = &delegate.policy else { return Ok(()) };
    let target = target(invoker, entry, delegate)?;
    match Ruleset::new(&target, policy).difference(&mut target.place.nft(entry)?).or_refused()? {
        None => Ok(()),
        Some(difference) => Err(Error::internal(format!("network policy: {difference}"))),
    }
}

/// Removes the rules of an attachment; does nothing without a policy. Rules that do not exist are no error.
///
/// It looks in both namespaces: another program may have replaced a built-in plugin since the ADD. A process in the pod can
/// make rules of the pod's namespace irremovable, by rules of its own that refer to them. They end with the namespace, so
/// they do not fail the DEL.
pub(super) fn remove(entry: &Entry, delegate: &Delegate) -> Result<(), Error> {
    if delegate.policy.is_none() {
        return Ok(());
    }
    let ids = [AttachmentId::of(entry, delegate)];
    let in_pod = Place::Pod { link: delegate.ifname.to_string() };
    let mut errors = Vec::new();
    match in_pod.find_nft(entry) {
        Ok(Some(mut nft)) => {
            if let Err(error) = withdraw_in_pod(&mut nft, in_pod.family(), &ids) {
                log!("weft: {}: rules of {} stay in the pod: {error}", entry.container_id, delegate.ifname);
            }
        }
        // The rules ended with the namespace.
        Ok(None) => {}
        Err(error) => errors.push(error),
    }
    let mut host = Nft::open().or_refused()?;
    errors.extend(place::HOST_FAMILIES.iter().filter_map(|family| withdraw(&mut host, *family, &ids).err()));
    cni::error::collected(errors)
}

/// Returns the attachments that have rules in the host's namespace.
pub(super) fn on_host() -> Result<BTreeSet<AttachmentId>, Error> {
    let mut found = BTreeSet::new();
    let Some(mut tables) = entries::tables()? else { return Ok(found) };
    for family in place::HOST_FAMILIES {
        if tables.has(family, TABLE) {
            found.extend(ruleset::attachments(&mut tables.nft, family).or_refused()?);
        }
    }
    Ok(found)
}

/// Removes the rules in the host's namespace of these attachments, except for those of the `kept` entries.
pub(super) fn sweep(found: &BTreeSet<AttachmentId>, kept: &[Entry]) -> Result<(), Error> {
    let known: BTreeSet<AttachmentId> = kept
        .iter()
        .flat_map(|entry| entry.plan.delegates.iter().map(|delegate| AttachmentId::of(entry, delegate)))
        .collect();
    let stale: Vec<AttachmentId> = found.difference(&known).cloned().collect();
    if stale.is_empty() {
        return Ok(());
    }
    let mut nft = Nft::open().or_refused()?;
    let removed = place::HOST_FAMILIES.map(|family| withdraw(&mut nft, family, &stale));
    cni::error::collected(removed.into_iter().filter_map(Result::err).collect())
}

/// Returns the attachment that the rules are about.
fn target(invoker: &PluginInvoker, entry: &Entry, delegate: &Delegate) -> Result<Target, Error> {
    let network = Network::parse(delegate.config.as_bytes(), &delegate.network)?;
    let ipam: IpamType =
        network.plugins.first().and_then(|plugin| plugin.read("ipam").ok().flatten()).unwrap_or_default();
    let leases = if ipam.r#type == DHCP { Leases::Dhcp } else { Leases::None };
    Ok(Target { id: AttachmentId::of(entry, delegate), place: Place::of(invoker, entry, delegate)?, leases })
}

/// Removes the rules of attachments in the pod's namespace, and the table after the last one.
///
/// The caller holds the lock of the sandbox, so no other process uses the table.
fn withdraw_in_pod(nft: &mut Nft, family: Family, ids: &[AttachmentId]) -> Result<(), Error> {
    if !nft.tables(family).or_refused()?.iter().any(|name| name == TABLE) {
        return Ok(());
    }
    let mut others = ruleset::attachments(nft, family).or_refused()?;
    others.retain(|id| !ids.contains(id));
    if !others.is_empty() {
        return withdraw(nft, family, ids);
    }
    let mut batch = Batch::new();
    batch.delete_table(Table::new(family, TABLE));
    nft.commit(batch).or_refused().map_err(|error| error.context("network policy"))
}

/// Removes the rules of attachments from a table, which may not exist.
fn withdraw(nft: &mut Nft, family: Family, ids: &[AttachmentId]) -> Result<(), Error> {
    if !nft.tables(family).or_refused()?.iter().any(|name| name == TABLE) {
        return Ok(());
    }
    let mut batch = Batch::new();
    ruleset::discard(nft, family, ids, &mut batch).or_refused()?;
    nft.commit(batch).or_refused().map_err(|error| error.context("network policy"))
}
