//! Difference between an attached sandbox and a new plan: what stays, what is removed, what is added.
//!
//! - Only networks that the pod selects change; the default network and those of every pod stay.
//! - An attachment stays if network, interface and requests are the same. An edited definition or another order of
//!   devices changes no running pod.
//! - The default route of a running pod does not move.
//! - A removed attachment stays at the end of the plan until it is gone, so that a DEL finds it
//!   (`docs/design/journal.md`, hot-plug).
//!
//! Source: the multi-network specification, 4.1.2, which leaves a change of the annotation to implementations.

use cni::capability::{self, HardwareAddress, RequestedIp};
use cni::error::{Error, code};

use crate::journal::{Attachment, Entry, State};
use npwg::plan::{DefaultRouteAction, Delegate, Plan, Role};
use npwg::request::ETHERNET_LENGTH;

/// What is to be done to a sandbox.
#[derive(Clone, Debug)]
pub struct Change {
    /// The entry to write before anything is done: what stays and comes, in the order of the new plan, then what goes.
    pub entry: Entry,
    /// How many of its delegates stay or come; those behind them go.
    pub wanted: usize,
}

impl Change {
    /// The places of what comes.
    pub fn added(&self) -> Vec<usize> {
        let comes = |place: &usize| self.entry.attachments[*place].state == State::Planned;
        (0..self.wanted).filter(comes).collect()
    }

    /// The places of what goes, last first.
    pub fn removed(&self) -> Vec<usize> {
        (self.wanted..self.entry.attachments.len()).rev().collect()
    }
}

/// What makes the sandbox of `entry` the one of `plan`; nothing if it is.
///
/// # Errors
/// 7 the default route would change; 4 the plan is another sandbox's.
pub fn between(entry: &Entry, plan: &Plan) -> Result<Option<Change>, Error> {
    let old = &entry.plan;
    if (&old.container, &old.pod.uid) != (&plan.container, &plan.pod.uid) {
        return Err(Error::new(code::INVALID_ENVIRONMENT, "change: the plan is another sandbox's"));
    }
    let all = old.delegates.iter().zip(&entry.attachments);
    let (mut left, others): (Vec<_>, Vec<_>) = all.partition(|(delegate, _)| delegate.role == Role::Selected);
    // What the pod did not select is not looked at again.
    let owned = |(delegate, attachment): (&Delegate, &Attachment)| (delegate.clone(), attachment.clone());
    let mut wanted: Vec<(Delegate, Attachment)> = others.into_iter().map(owned).collect();
    for delegate in plan.selected() {
        let same = |(known, attachment): &(&Delegate, &Attachment)| {
            attachment.state == State::Attached && is_same(known, delegate)
        };
        match left.iter().position(same) {
            Some(place) => wanted.push(owned(left.remove(place))),
            None => {
                refuse_default_route(delegate)?;
                wanted.push((delegate.clone(), Attachment::default()));
            }
        }
    }
    left.retain(|(_, attachment)| attachment.state != State::Detached);
    left.iter().try_for_each(|(delegate, _)| refuse_default_route(delegate))?;
    let is_whole = wanted.iter().all(|(_, attachment)| attachment.state == State::Attached);
    if left.is_empty() && is_whole && !entry.changing {
        return Ok(None);
    }
    let count = wanted.len();
    wanted.extend(left.into_iter().map(owned));
    let mut changed = Entry { complete: false, changing: true, ..entry.clone() };
    (changed.plan.delegates, changed.attachments) = wanted.into_iter().unzip();
    changed.plan.warnings.clone_from(&plan.warnings);
    Ok(Some(Change { entry: changed, wanted: count }))
}

/// The same attachment: nothing the pod asks of it differs. How that reaches the plugins, their definition says, and
/// that may be another one by now.
fn is_same(known: &Delegate, wanted: &Delegate) -> bool {
    let asks_the_same = match (&known.asked, &wanted.asked) {
        (Some(known), Some(wanted)) => known == wanted,
        _ => seems_same(known, wanted),
    };
    known.network == wanted.network && known.ifname == wanted.ifname && asks_the_same
}

/// Of an entry that does not say what was asked, what can be compared whatever the definition declares: the pairs that
/// every plugin gets, and the addresses that it declared then and declares now.
fn seems_same(known: &Delegate, wanted: &Delegate) -> bool {
    fn arg<'a>(of: &'a Delegate, key: &str) -> Option<&'a str> {
        of.args.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }
    // Multus joins several addresses, and says longer hardware addresses, too: what is none of ours says nothing.
    let ip = |of| RequestedIp::parse(arg(of, "IP")?);
    let mac = |of| HardwareAddress::parse(arg(of, "MAC")?).filter(|mac| mac.bytes().len() == ETHERNET_LENGTH);
    ip(known) == ip(wanted)
        && mac(known) == mac(wanted)
        && [capability::IPS, capability::MAC, capability::INFINIBAND_GUID]
            .iter()
            .all(|key| agree(known, wanted, key))
}

/// Do both say the same, but for blanks and case, or one of them nothing?
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
    let why = format!("change: {network} on {ifname}: the default route of a running pod stays where it is");
    Err(Error::new(code::INVALID_CONFIG, why).details("make the pod anew"))
}

#[cfg(test)]
mod tests;
