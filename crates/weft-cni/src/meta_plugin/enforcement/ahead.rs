//! Rules that are committed ahead, while earlier networks are being attached.
//!
//! ```text
//!   network 1: plugins ──────────────────► network 2: take() ─► plugins
//!   thread:    rules of network 2 ─► rules of network 3 ─►
//! ```
//!
//! - The kernel and the plugins of another network work at the same time. An attachment waits for the rules before the
//!   plugins run, so no packet passes without them.
//! - A plugin that is not built in could change the pod's rules, for example with `nft flush ruleset`. The rules in the
//!   pod of the networks after it are committed in turn.
//! - The journal has the names of all rules before the first is committed. A DEL removes them, whatever was begun.
//! - Before anything is undone, no transaction is in progress any more. The rules of networks that were not attempted are
//!   removed.

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};

use cni::Error;
use cni::network::{Network, plugin_type};
use npwg::network_policy::AttachmentPolicy;
use npwg::plan::Delegate;
use plugin_support::log;
use rpc::journal::{Entry, State};

use super::ruleset::Target;
use super::{Enforced, commit_rules, has_own_rules, names, target, withdraw};
use crate::plugin_invoker::PluginInvoker;

/// Rules to commit.
struct Job {
    index: usize,
    target: Target,
    policy: AttachmentPolicy,
}

/// Rules that are being committed, or were committed, by attachment index. Dropping it waits for them.
pub(in super::super) struct AheadRules {
    pending: BTreeSet<usize>,
    ready: BTreeMap<usize, Result<Enforced, Error>>,
    receiver: Receiver<(usize, Result<Enforced, Error>)>,
    thread: Option<JoinHandle<()>>,
}

// === impl AheadRules ===

impl AheadRules {
    /// Begins to commit the rules for all networks after the first one. Without any, no thread is started.
    pub(in super::super) fn begin(invoker: &PluginInvoker, entry: &Entry) -> AheadRules {
        let jobs = jobs(invoker, entry);
        let mut pending: BTreeSet<usize> = jobs.iter().map(|job| job.index).collect();
        let (sender, receiver) = mpsc::channel();
        let netns = entry.netns.clone();
        let commit = move || {
            for Job { index, target, policy } in jobs {
                let committed = commit_rules(target, &policy, &netns);
                let is_over = committed.is_err();
                // The receiver lives until this thread has ended.
                if sender.send((index, committed)).is_err() || is_over {
                    return;
                }
            }
        };
        let thread = (!pending.is_empty()).then(|| thread::Builder::new().spawn(commit).ok()).flatten();
        if thread.is_none() {
            // Each attachment commits its own rules.
            pending.clear();
        }
        AheadRules { pending, ready: BTreeMap::new(), receiver, thread }
    }

    /// Waits for an attachment's rules. `None` if they were not begun.
    pub(in super::super) fn take(&mut self, index: usize) -> Option<Result<Enforced, Error>> {
        while self.pending.contains(&index) {
            // The thread ends after its last rules, or after a failure.
            let Ok((committed, result)) = self.receiver.recv() else { break };
            self.pending.remove(&committed);
            self.ready.insert(committed, result);
        }
        self.ready.remove(&index)
    }

    /// Waits until no transaction is in progress. Returns whether some was begun.
    fn wait(&mut self) -> bool {
        // A thread that panicked commits nothing more.
        self.thread.take().map(JoinHandle::join).is_some()
    }

    /// Waits until no transaction is in progress, and removes the rules for attachments that were not
    /// attempted: those from `first` on. If an attachment's rules stay, the ADD's undo removes them.
    pub(in super::super) fn abandon(mut self, entry: &mut Entry, first: usize) {
        let began = self.wait();
        let all = entry.plan.delegates.iter().enumerate().skip(first);
        let (mut staying, with_rules): (Vec<usize>, Vec<&Delegate>) =
            all.filter(|(index, delegate)| began && has_own_rules(entry, *index, delegate)).unzip();
        let removed = if with_rules.is_empty() { Ok(()) } else { withdraw(entry, &with_rules) };
        match removed {
            Ok(()) => staying.clear(),
            Err(error) => {
                log!("weft: {}: rules of {} stay: {error}", entry.container_id, names(&with_rules));
            }
        }
        for (index, attachment) in entry.attachments.iter_mut().enumerate().skip(first) {
            if !staying.contains(&index) {
                attachment.state = State::Detached;
            }
        }
    }
}

impl Drop for AheadRules {
    fn drop(&mut self) {
        self.wait();
    }
}

/// Returns a job for each attachment with policies after the first one. An attachment whose configuration is invalid
/// has none: the ADD reports that in turn.
fn jobs(invoker: &PluginInvoker, entry: &Entry) -> Vec<Job> {
    let delegates = &entry.plan.delegates;
    let is_external = |delegate: &Delegate| !is_built_in(invoker, entry, delegate);
    // Most pods have no policies, and need no answer.
    let external = LazyCell::new(|| delegates.iter().position(is_external).unwrap_or(delegates.len()));
    let mut jobs = Vec::new();
    for (index, delegate) in delegates.iter().enumerate().skip(1) {
        if let Some(policy) = delegate.policy.clone()
            && let Ok(target) = target(invoker, entry, delegate)
            && (!target.place.is_in_pod() || index <= *external)
        {
            jobs.push(Job { index, target, policy });
        }
    }
    jobs
}

/// Whether all plugins in a network are built in.
fn is_built_in(invoker: &PluginInvoker, entry: &Entry, delegate: &Delegate) -> bool {
    let Ok(network) = Network::parse(delegate.config.as_bytes(), &delegate.network) else { return false };
    let plugins = invoker.attachment(entry, delegate);
    let is_built_in =
        |plugin| plugin_type(plugin).is_ok_and(|plugin| plugins.in_process(&plugin, &entry.path));
    network.plugins.iter().all(is_built_in)
}
