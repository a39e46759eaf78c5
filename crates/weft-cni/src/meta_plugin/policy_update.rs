//! Network policies of a running sandbox: replaces them by new ones, and restores rules that were changed.
//!
//! ```text
//!   entry: new policies, pending ──► one transaction for each attachment ──► entry: no longer pending
//! ```
//!
//! - The entry names the new policies before the kernel has them. A kill in between leaves the old or the new rules, which
//!   the entry shows as pending: the agent sends the update again, and a DEL removes what exists.
//! - An update names the policies that the agent compared. It is skipped if the entry has others: a later update was
//!   executed first, and the agent compares the new entry.
//! - A policy without isolated directions is in the entry as long as rules may have to be removed.
//! - The entry is not synchronized with the disk: a loss of power destroys the rules as well.

use cni::Error;
use cni::name::IfName;
use npwg::network_policy::AttachmentPolicy;
use npwg::plan::Delegate;
use npwg::pod_policies::ISOLATED;
use rpc::journal::{Entry, State};
use rpc::task::PolicyUpdate;

use super::enforcement;
use super::journal::Journal;
use crate::plugin_invoker::PluginInvoker;

/// Result of an update or a verification.
#[derive(Debug, Default)]
pub(super) struct PolicyOutcome {
    /// Attachments that failed, or whose rules were changed by another program.
    pub(super) wrong: Vec<IfName>,
    /// Failures, or changes that were undone.
    pub(super) errors: Vec<Error>,
    /// Whether nothing was begun, and an update was skipped because the entry has other policies than it replaces.
    pub(super) is_stale: bool,
}

/// Attachment whose update has begun, with the policies whose rules are in force, if that is known.
struct Begun {
    index: usize,
    known: Option<AttachmentPolicy>,
}

/// Replaces the policies of attachments. The caller holds the sandbox's lock. Attachments that already have them, that do
/// not exist any more, or whose policies are not those that the agent compared, are left alone.
///
/// # Errors
/// Nothing was changed. Errors in single attachments are part of the result.
pub(super) fn update(
    journal: &Journal,
    invoker: &PluginInvoker,
    entry: &mut Entry,
    updates: &[PolicyUpdate],
) -> Result<PolicyOutcome, Error> {
    let (mut begun, mut outcome) = (Vec::new(), PolicyOutcome::default());
    for update in updates {
        let Some(index) = attached(entry, update) else { continue };
        if update.is_stale(entry.plan.delegates[index].policy.as_ref())? {
            outcome.is_stale = true;
        } else if is_different(entry, index, update) {
            enforcement::assign_running(journal.directory(), invoker, entry, index)?;
            begun.push(begin(entry, index, update));
        }
    }
    if begun.is_empty() {
        return Ok(outcome);
    }
    outcome.is_stale = false;
    journal.update(entry)?;
    for Begun { index, known } in begun {
        match enforcement::update(invoker, entry, index, known.as_ref()) {
            Ok(()) => end(entry, index),
            Err(error) => outcome.add(&entry.plan.delegates[index], error),
        }
    }
    journal.update(entry)?;
    Ok(outcome)
}

/// Returns the index of the attachment that an update is for.
fn attached(entry: &Entry, update: &PolicyUpdate) -> Option<usize> {
    let PolicyUpdate { ifname, network, .. } = update;
    let is_meant = |delegate: &Delegate| delegate.ifname == *ifname && delegate.network == *network;
    let index = entry.plan.delegates.iter().position(is_meant)?;
    (entry.attachments[index].state == State::Attached).then_some(index)
}

/// Whether the policies of the attachment change.
fn is_different(entry: &Entry, index: usize, update: &PolicyUpdate) -> bool {
    let policy = update.policy.as_ref().filter(|policy| !policy.is_open());
    entry.attachments[index].policy_pending || entry.plan.delegates[index].policy.as_ref() != policy
}

/// Puts new policies into the entry, as pending.
fn begin(entry: &mut Entry, index: usize, update: &PolicyUpdate) -> Begun {
    let PolicyUpdate { policy, because, .. } = update;
    let (delegate, attachment) = (&mut entry.plan.delegates[index], &mut entry.attachments[index]);
    let known = delegate.policy.take().filter(|_| !attachment.policy_pending);
    if let Some(rules) = &mut attachment.rules {
        rules.ipv6_peers = enforcement::kept_ipv6_peers(rules, known.as_ref(), policy.as_ref());
    }
    delegate.policy = Some(policy.clone().filter(|policy| !policy.is_open()).unwrap_or_default());
    delegate.because.retain(|decision| decision.what != ISOLATED);
    delegate.because.extend(because.clone());
    attachment.policy_pending = true;
    Begun { index, known }
}

/// Removes the mark of an update that succeeded.
fn end(entry: &mut Entry, index: usize) {
    let policy = &mut entry.plan.delegates[index].policy;
    *policy = policy.take().filter(|policy| !policy.is_open());
    let attachment = &mut entry.attachments[index];
    attachment.policy_pending = false;
    if policy.is_none() {
        attachment.rules = None;
    }
}

/// Compares the rules of every attachment with the kernel's, and restores those that were changed. The caller holds the
/// sandbox's lock. Returns the restored attachments, and those that could not be restored.
pub(super) fn verify(invoker: &PluginInvoker, entry: &Entry) -> [PolicyOutcome; 2] {
    let (mut restored, mut failed) = (PolicyOutcome::default(), PolicyOutcome::default());
    for (delegate, attachment) in entry.plan.delegates.iter().zip(&entry.attachments) {
        if delegate.policy.is_none() || attachment.state != State::Attached || attachment.policy_pending {
            continue;
        }
        let difference = match enforcement::difference(invoker, entry, delegate) {
            Ok(None) => continue,
            Ok(Some(difference)) => difference,
            Err(error) => {
                failed.add(delegate, error);
                continue;
            }
        };
        match enforcement::restore(invoker, entry, delegate) {
            Ok(()) => {
                let why = format!("another program changed the rules of network policies: {difference}");
                restored.add(delegate, Error::internal(why).details("weft restored them"));
            }
            Err(error) => failed.add(delegate, error.context("restore the rules of network policies")),
        }
    }
    [restored, failed]
}

// === impl PolicyOutcome ===

impl PolicyOutcome {
    fn add(&mut self, delegate: &Delegate, error: Error) {
        let Delegate { ifname, network, .. } = delegate;
        self.wrong.push(ifname.clone());
        self.errors.push(error.context(format_args!("{ifname} ({network})")));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use npwg::configuration::Builtin;
    use npwg::fixture::World;
    use npwg::network_policy::IsolatedDirection;
    use rpc::journal::{self, Attachment};

    use super::*;

    /// Returns the entry of a sandbox whose second network has policies.
    fn attached(policy: &AttachmentPolicy) -> Entry {
        let mut plan = World::new().networks("plain").plan();
        plan.delegates[1].policy = Some(policy.clone());
        Entry {
            version: journal::VERSION,
            network: "weft".into(),
            container_id: plan.container.clone(),
            netns: "/run/netns/x".into(),
            namespace: String::new(),
            ifname: plan.delegates[0].ifname.clone(),
            args: String::new(),
            path: "/opt/cni/bin".into(),
            attachments: vec![
                Attachment { state: State::Attached, ..Attachment::default() };
                plan.delegates.len()
            ],
            plan,
            network_status: Vec::new(),
            complete: true,
            changing: false,
            replaced: false,
        }
    }

    #[test]
    fn network_policy_update_of_replaced_policies_is_skipped() {
        let directory = std::env::temp_dir().join(format!("weft-policy-update-{}", std::process::id()));
        let journal = Journal::open(&directory).unwrap();
        let invoker = PluginInvoker::new(Builtin::Auto, Duration::from_secs(1));
        let newer = AttachmentPolicy { ingress: Some(IsolatedDirection::default()), ..Default::default() };
        let mut entry = attached(&newer);
        let Delegate { ifname, network, .. } = &entry.plan.delegates[1];
        let (ifname, network) = (ifname.clone(), network.clone());
        let update = |compared: Option<&AttachmentPolicy>, policy: Option<AttachmentPolicy>| PolicyUpdate {
            ifname: ifname.clone(),
            network: network.clone(),
            replaces: Some(PolicyUpdate::digest(compared).unwrap()),
            policy,
            because: None,
        };
        // The agent compared an entry without policies, and another update was executed first.
        let late = [update(None, Some(AttachmentPolicy::default())), update(None, None)];
        let outcome = super::update(&journal, &invoker, &mut entry, &late).unwrap();
        assert!(outcome.is_stale && outcome.errors.is_empty(), "{outcome:?}");
        let same = [update(Some(&newer), Some(newer.clone()))];
        let outcome = super::update(&journal, &invoker, &mut entry, &same).unwrap();
        assert!(!outcome.is_stale && outcome.errors.is_empty(), "{outcome:?}");
        assert_eq!(entry.plan.delegates[1].policy.as_ref(), Some(&newer));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
