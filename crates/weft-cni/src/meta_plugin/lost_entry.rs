//! DEL of a sandbox whose journal entry was lost: the directory of the journal was deleted or moved, the entry cannot be
//! decoded, or Multus attached the sandbox.
//!
//! The networks are taken down from a new plan of the pod, as Multus does. The plan becomes a journal entry before the
//! first effect, so a DEL that is killed or fails is continued by the next one.
//!
//! - A sandbox was attached if the runtime still has the ADD result: in `prevResult`, or in the cache. A repeated DEL
//!   and a DEL after a failed ADD have none, and they cost nothing.
//! - Without a plan there is nothing to take down: the pod is deleted or has another uid, or no planner answers in time.
//! - A namespace that belongs to another sandbox of the journal is not entered.
//! - If the journal has another sandbox for the same pod, only networks with built-in plugins and without a device are
//!   taken down. Built-in plugins find objects by container id. A device may be in use by the other sandbox.
//! - A network with a plugin that is not installed is logged and left out.
//! - Rules of network policies are removed by the names that the lost entry had, which follow from journal and attachment.
//!
//! Source: Multus `CmdDel`; CNI 1.1.0 §2 "DEL".

use std::path::Path;

use cni::invocation::Detach;
use cni::network::Network;
use cni::runtime::cache::{self, Cache};
use cni::{Context, Error, code};
use npwg::configuration::Flavour;
use npwg::plan::{Delegate, Plan, Role, Sandbox};
use plugin_support::log;
use rpc::journal::{self as record, Entry};
use serde_json::value::RawValue;

use super::agent::PlannedSandbox;
use super::{Node, detach, enforcement, namespace, planning, readiness};
use crate::builtins;

/// Takes down the networks of a sandbox that was attached and has no journal entry. `was_attached`: whether it had an entry,
/// which cannot be read.
///
/// # Errors
/// All failures in one; the journal then has an entry with the remaining attachments. Or the runtime's cache cannot be read.
pub(super) fn take_down(
    node: &Node,
    request: &Detach,
    flavour: Flavour,
    was_attached: bool,
) -> Result<(), Error> {
    let Detach { who, netns, call } = request;
    let result = match result_of_add(request)? {
        Some(result) => result,
        None if was_attached => None,
        None => return Ok(()),
    };
    readiness::wait_briefly(&node.configuration);
    let sandbox = Sandbox { container: who.container.clone(), ifname: who.ifname.clone() };
    let mut plan = match planning::plan_to_detach(&node.configuration, call, &sandbox, flavour) {
        Ok(PlannedSandbox { plan, .. }) => plan,
        Err(error) => {
            log!(
                "weft: the journal has no entry of {}, and its networks are unknown: {error}",
                who.container
            );
            return Ok(());
        }
    };
    let mut netns = netns.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let mut namespace = namespace::identify(&netns)?;
    let others = Others::read(node, &plan, &namespace);
    if others.has_namespace {
        log!("weft: {netns}: is the namespace of another sandbox");
        (netns, namespace) = (String::new(), String::new());
    }
    plan.delegates.retain(|delegate| may_be_detached(node, delegate, &others));
    let attachment = |delegate: &Delegate| record::Attachment {
        result: result.clone().filter(|_| delegate.role == Role::Default),
        ..record::Attachment::default()
    };
    let mut entry = Entry {
        version: record::VERSION,
        network: call.config.name.to_string(),
        container_id: who.container.clone(),
        netns,
        namespace,
        ifname: who.ifname.clone(),
        args: call.args().to_owned(),
        path: node.path.clone(),
        attachments: plan.delegates.iter().map(attachment).collect(),
        plan,
        network_status: Vec::new(),
        complete: false,
        changing: false,
        replaced: true,
    };
    enforcement::assign_lost(node.journal.directory(), &node.invoker, &mut entry);
    log!("weft: the journal has no entry of {}: its networks are detached from a new plan", who.container);
    // A full disk prevents no DEL.
    if let Err(error) = node.journal.begin(&entry) {
        log!("weft: {error}");
    }
    detach::take_down(&node.journal, &node.invoker, &mut entry)
}

/// Returns the result of the ADD that the runtime still has; `None` if nothing is attached as far as the runtime knows. An
/// unknown result is `Some(None)`.
///
/// # Errors
/// The cache cannot be read now, so it is unknown whether anything is attached.
fn result_of_add(request: &Detach) -> Result<Option<Option<Box<RawValue>>>, Error> {
    let Detach { who, netns: _, call } = request;
    match call.config.prev_result() {
        Ok(None) => {}
        Err(_) => return Ok(Some(None)),
        Ok(Some(success)) => {
            let value = success.to_value(call.config.version).ok();
            return Ok(Some(value.and_then(|value| serde_json::value::to_raw_value(&value).ok())));
        }
    }
    // A runtime passes no result in a version before 0.4.0.
    let cache = Cache::new(Path::new(cache::DIRECTORY));
    match cache.entry(&call.config.name, who) {
        Ok(None) => Ok(None),
        Ok(Some(_)) => {
            let result = cache.result(&call.config.name, who, call.config.version);
            Ok(Some(result.ok().flatten().map(|attached| attached.raw)))
        }
        Err(error) if error.code == code::IO_FAILURE => Err(error.context("the runtime's cache")),
        // An invalid file proves nothing.
        Err(error) => {
            log!("weft: the runtime's cache: {error}");
            Ok(None)
        }
    }
}

/// Other sandboxes of the journal.
struct Others {
    /// Whether one has the namespace of this sandbox.
    has_namespace: bool,
    /// Whether one is of the same pod.
    has_pod: bool,
}

impl Others {
    /// Reads the journal. An entry that cannot be read may be of the same pod.
    fn read(node: &Node, plan: &Plan, namespace: &str) -> Others {
        let mut others = Others { has_namespace: false, has_pod: false };
        let Ok(containers) = node.journal.containers() else {
            return Others { has_pod: true, ..others };
        };
        for container in containers.iter().filter(|container| **container != plan.container) {
            let Ok(Some(entry)) = node.journal.read(container) else {
                others.has_pod = true;
                continue;
            };
            others.has_namespace |= namespace::are_same(&entry.namespace, namespace);
            let (pod, other) = (&plan.pod, &entry.plan.pod);
            others.has_pod |=
                !pod.name.is_empty() && (&pod.namespace, &pod.name) == (&other.namespace, &other.name);
        }
        others
    }
}

/// Whether a network may be taken down although nothing is known about the ADD.
fn may_be_detached(node: &Node, delegate: &Delegate, others: &Others) -> bool {
    let may = || {
        let network = Network::parse(delegate.config.as_bytes(), &delegate.network)?;
        readiness::find_programs(&node.invoker, &network, &node.path)?;
        if !others.has_pod {
            return Ok(true);
        }
        let is_own = |kind: &_| {
            node.invoker.in_process(kind, &node.path)
                && builtins::find(kind.as_str()).is_some_and(|plugin| !plugin.needs_agent())
        };
        let plugins = network.needs()?;
        Ok(delegate.device().is_none() && plugins.iter().all(is_own))
    };
    let may: Result<bool, Error> = may();
    match may.context(&delegate.network) {
        Ok(true) => true,
        Ok(false) => {
            log!("weft: {}: left alone, because the pod has another sandbox", delegate.network);
            false
        }
        Err(error) => {
            log!("weft: {error}");
            false
        }
    }
}
