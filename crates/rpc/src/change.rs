//! Difference between an attached sandbox and a new plan: which attachments to keep, to remove and to add.
//!
//! - Only networks that the pod selects change; the default network and those that every pod gets are kept.
//! - An attachment is kept if network, interface and requests are the same. An edited definition or another
//!   device order changes no running pod.
//! - A running pod's default route does not move: a network that would move it is not added or removed, but
//!   the others are.
//! - An attachment is kept if the network cannot be planned now ([`Plan::refused`]), for example because the definition
//!   is deleted. A wrong or missing object never takes a network away from a running pod.
//! - A removed attachment remains at the end of the plan until it is detached, so that a DEL finds it
//!   (`docs/design/journal.md`, hot-plug).
//!
//! Source: the multi-network specification, 4.1.2, which leaves annotation changes to implementations.

use cni::capability::{self, HardwareAddress, RequestedIp};
use cni::error::{Error, code};

use crate::journal::{Attachment, Entry, State};
use npwg::plan::{DefaultRouteAction, Delegate, Plan, Role};
use npwg::request::ETHERNET_LENGTH;

/// Change that a sandbox needs.
#[derive(Clone, Debug)]
pub struct Change {
    /// Entry to write before the first effect: kept and added delegates in the new plan's order, then removed
    /// ones.
    pub entry: Entry,
    /// Number of delegates to keep or add; the delegates after them are removed.
    pub wanted: usize,
    /// Networks that neither are added nor removed, each with the reason.
    pub refused: Vec<Error>,
}

impl Change {
    /// Returns the indices at which a delegate must be added.
    pub fn added(&self) -> Vec<usize> {
        let comes = |place: &usize| self.entry.attachments[*place].state == State::Planned;
        (0..self.wanted).filter(comes).collect()
    }

    /// Returns the indices at which a delegate must be removed, last first.
    pub fn removed(&self) -> Vec<usize> {
        (self.wanted..self.entry.attachments.len()).rev().collect()
    }
}

/// Returns the change that turns the sandbox in `entry` into `plan`, or `None` if there is no difference.
///
/// # Errors
/// Code 7: the only difference is a default route that would change. Code 4: the plan belongs to another
/// sandbox.
pub fn between(entry: &Entry, plan: &Plan) -> Result<Option<Change>, Error> {
    let old = &entry.plan;
    if (&old.container, &old.pod.uid) != (&plan.container, &plan.pod.uid) {
        return Err(Error::new(code::INVALID_ENVIRONMENT, "change: the plan belongs to another sandbox"));
    }
    let all = old.delegates.iter().zip(&entry.attachments);
    let (mut left, others): (Vec<_>, Vec<_>) = all.partition(|(delegate, _)| delegate.role == Role::Selected);
    // Networks that the pod does not select never change.
    let owned = |(delegate, attachment): (&Delegate, &Attachment)| (delegate.clone(), attachment.clone());
    let mut wanted: Vec<(Delegate, Attachment)> = others.into_iter().map(owned).collect();
    let mut refused = Vec::new();
    for delegate in plan.selected() {
        let same = |(known, attachment): &(&Delegate, &Attachment)| {
            attachment.state == State::Attached && is_same(known, delegate)
        };
        match left.iter().position(same) {
            Some(place) => wanted.push(owned(left.remove(place))),
            None => match refuse_default_route(delegate) {
                Ok(()) => wanted.push((delegate.clone(), Attachment::default())),
                Err(error) => refused.push(error),
            },
        }
    }
    left.retain(|(_, attachment)| attachment.state != State::Detached);
    let is_attached = |attachment: &Attachment| attachment.state == State::Attached;
    let is_kept = |(delegate, attachment): &(&Delegate, &Attachment)| {
        let is_unknown = plan.refused.iter().any(|refused| refused.network == delegate.network);
        let moves_route = refuse_default_route(delegate);
        refused.extend(moves_route.clone().err());
        is_attached(attachment) && (is_unknown || moves_route.is_err())
    };
    let (kept, left): (Vec<_>, Vec<_>) = left.into_iter().partition(is_kept);
    wanted.extend(kept.into_iter().map(owned));
    let is_whole = wanted.iter().all(|(_, attachment)| is_attached(attachment));
    if left.is_empty() && is_whole && !entry.changing {
        return refused.into_iter().next().map_or(Ok(None), Err);
    }
    let count = wanted.len();
    wanted.extend(left.into_iter().map(owned));
    let mut changed = Entry { complete: false, changing: true, ..entry.clone() };
    (changed.plan.delegates, changed.attachments) = wanted.into_iter().unzip();
    let is_added = |place: usize| changed.attachments[place].state == State::Planned;
    let sources: Vec<&Plan> =
        (0..changed.plan.delegates.len()).map(|place| if is_added(place) { plan } else { old }).collect();
    yield_to_the_same(&mut changed.plan.delegates, &sources);
    changed.plan.warnings.clone_from(&plan.warnings);
    Ok(Some(Change { entry: changed, wanted: count, refused }))
}

/// Corrects the indices that say which network holds the default route: `sources` are the plans that the
/// delegates come from. If the holder is not among the delegates, the routes stay as the plugins make them.
fn yield_to_the_same(delegates: &mut [Delegate], sources: &[&Plan]) {
    let names: Vec<_> = delegates.iter().map(|held| (held.network.clone(), held.ifname.clone())).collect();
    for (delegate, source) in delegates.iter_mut().zip(sources) {
        let DefaultRouteAction::Yield { to, families } = delegate.default_route else { continue };
        let holder = source.delegates.get(to);
        let place = holder.and_then(|holder| {
            names.iter().position(|(network, ifname)| *network == holder.network && *ifname == holder.ifname)
        });
        delegate.default_route =
            place.map_or(DefaultRouteAction::Untouched, |to| DefaultRouteAction::Yield { to, families });
    }
}

/// Whether the attachments are the same: the pod's requests are equal. The form in which they reach the plugins is not
/// compared, because it depends on the definition, which may have been edited.
fn is_same(known: &Delegate, wanted: &Delegate) -> bool {
    let asks_the_same = match (&known.asked, &wanted.asked) {
        (Some(known), Some(wanted)) => known == wanted,
        _ => seems_same(known, wanted),
    };
    known.network == wanted.network && known.ifname == wanted.ifname && asks_the_same
}

/// Whether the attachments are the same as far as an entry without recorded requests shows: compares the pairs that every
/// plugin gets, and the addresses in capabilities that both definitions declare.
fn seems_same(known: &Delegate, wanted: &Delegate) -> bool {
    fn arg<'a>(of: &'a Delegate, key: &str) -> Option<&'a str> {
        of.args.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }
    // Multus joins several addresses and also passes longer hardware addresses; values of another form are not compared.
    let ip = |of| RequestedIp::parse(arg(of, "IP")?);
    let mac = |of| HardwareAddress::parse(arg(of, "MAC")?).filter(|mac| mac.bytes().len() == ETHERNET_LENGTH);
    ip(known) == ip(wanted)
        && mac(known) == mac(wanted)
        && [capability::IPS, capability::MAC, capability::INFINIBAND_GUID]
            .iter()
            .all(|key| agree(known, wanted, key))
}

/// Whether both have the same value, ignoring blanks and case, or one has none.
fn agree(known: &Delegate, wanted: &Delegate, key: &str) -> bool {
    let text = |of: &Delegate| {
        let raw = of.runtime_config.get(key)?.get();
        Some(raw.to_ascii_lowercase().replace(' ', ""))
    };
    text(known).zip(text(wanted)).is_none_or(|(known, wanted)| known == wanted)
}

fn refuse_default_route(delegate: &Delegate) -> Result<(), Error> {
    if matches!(delegate.default_route, DefaultRouteAction::Untouched | DefaultRouteAction::Yield { .. }) {
        return Ok(());
    }
    let Delegate { network, ifname, .. } = delegate;
    let why = format!("change: {network} on {ifname}: the default route of a running pod cannot change");
    Err(Error::new(code::INVALID_CONFIG, why).details("recreate the pod"))
}

#[cfg(test)]
mod tests;
