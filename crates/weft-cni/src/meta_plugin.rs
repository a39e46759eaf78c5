//! `weft`: the meta-plugin. The container runtime calls it for a pod; it attaches the default network and
//! every network the pod asks for.
//!
//! ```text
//!   ADD    lock ─► plan (pure) ─► journal ─► each delegate's chain ─► verify ─► default routes ─► status
//!   DEL    lock ─► journal ─► each delegate's chain, last first ─► entry removed
//!   CHECK  journal ─► each delegate's chain        GC  journal less what is valid ─► DEL; then delegates
//!   STATUS are the networks that every pod gets ready, could they serve?
//! ```
//!
//! It also answers to the name `multus`; some defaults differ then (DEVIATIONS.md).
//!
//! Source: the multi-network standard v1.0–v1.3, CNI 1.1.0; Multus for the configuration.

pub mod adoption;
mod agent;
mod attach;
mod attached_link;
mod change;
mod detach;
mod devices;
mod gc;
mod journal;
mod lock;
mod namespace;
mod planning;
mod preexisting;
mod readiness;
mod routes;
pub mod tasks;

use std::path::Path;
use std::time::{Duration, Instant};

use cni::invocation::{Attach, Attachment, Call, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::name::IfName;
use cni::network::Network;
use cni::plugin::Plugin;
use cni::result::Success;
use cni::runtime::chain;
use cni::{Context, Error, code};
use npwg::configuration::{Flavour, NodeConfiguration};
use npwg::plan::{Delegate, Sandbox};
use plugin_support::log;
use rpc::journal::{self as record, Entry};
use rpc::plan::{AttachmentReport, PlanReport, PluginCall};

use crate::plugin_invoker::{self, PluginInvoker, Run};
use agent::Advice;
use journal::Journal;
use lock::Lock;

/// The meta-plugin, under one of its names.
pub struct Weft(pub Flavour);

/// What every verb starts from.
struct Node {
    configuration: NodeConfiguration,
    journal: Journal,
    invoker: PluginInvoker,
    /// `binDir`, then the runtime's `CNI_PATH`.
    path: String,
}

impl Weft {
    /// Plans and attaches; the sandbox is locked.
    fn attach(&self, node: &Node, request: &Attach) -> Result<Success, Error> {
        let Attach { who, netns, call } = request;
        let (started, netns) = (Instant::now(), netns.display().to_string());
        clear_remains(node, who)?;
        let sandbox = Sandbox { container: who.container.clone(), ifname: who.ifname.clone() };
        let mut advice = planning::plan(&node.configuration, call, &sandbox, self.0)?;
        let listener = advice.listener();
        if listener.is_there() {
            node.invoker.take_notes();
        }
        let Advice { plan, tasks, .. } = advice;
        for warning in &plan.warnings {
            log!("weft: {}", warning.fault);
        }
        let mut entry = Entry {
            version: record::VERSION,
            network: call.config.name.to_string(),
            container_id: who.container.clone(),
            namespace: namespace::identify(&netns)?,
            netns,
            ifname: who.ifname.clone(),
            args: call.args().to_owned(),
            path: node.path.clone(),
            attachments: vec![record::Attachment::default(); plan.delegates.len()],
            plan,
            network_status: Vec::new(),
            complete: false,
            changing: false,
        };
        let attached = attach::attach(&node.journal, &node.invoker, &mut entry);
        if listener.is_there() {
            listener.report(report(&entry, &node.invoker.runs(), started, attached.as_ref().err()));
        }
        if !tasks.is_empty() {
            tasks::run_later(call, self.0, tasks);
        }
        attached
    }

    fn node(&self, call: &Call) -> Result<Node, Error> {
        self.node_of(NodeConfiguration::read(call.config.bytes(), self.0)?, call)
    }

    /// For who needs nothing of the configuration but where the journal and plugins are: one that is wrong by now keeps no pod
    /// from ending.
    fn node_of_journal(&self, call: &Call) -> Result<Node, Error> {
        let configuration = NodeConfiguration::read(call.config.bytes(), self.0).or_else(|error| {
            log!("weft: {error}: what the journal says counts");
            NodeConfiguration::of_journal(call.config.bytes(), self.0).map_err(|_| error)
        })?;
        self.node_of(configuration, call)
    }

    fn node_of(&self, configuration: NodeConfiguration, call: &Call) -> Result<Node, Error> {
        plugin_invoker::refuse_delegate()?;
        for warning in &configuration.warnings {
            log!("weft: {}", warning.fault);
        }
        let directory = configuration.cni_dir.as_deref().unwrap_or(record::DIRECTORY);
        let journal = Journal::open(Path::new(directory))?;
        let invoker = PluginInvoker::new(configuration.builtin, configuration.delegate_timeout);
        let path = join_path(&configuration.bin_dir, &call.environment.path);
        Ok(Node { configuration, journal, invoker, path })
    }
}

/// What is searched first, `binDir` or what was used before, and then what the runtime says, unless it is there already.
fn join_path(first: &str, path: &str) -> String {
    let mut directories: Vec<&str> = first.split(':').filter(|directory| !directory.is_empty()).collect();
    for directory in path.split(':').filter(|directory| !directory.is_empty()) {
        if !directories.contains(&directory) {
            directories.push(directory);
        }
    }
    directories.join(":")
}

// === impl Plugin ===

impl Plugin for Weft {
    fn name(&self) -> &'static str {
        match self.0 {
            Flavour::Weft => "weft",
            Flavour::Multus => "multus",
        }
    }

    fn add(&self, request: &Attach, _: &dyn Invoke) -> Result<Success, Error> {
        let Attach { who, netns: _, call } = request;
        let node = self.node(call)?;
        readiness::wait(&node.configuration)?;
        let lock = Lock::acquire(node.journal.directory(), &who.container)?;
        let attached = self.attach(&node, request);
        if attached.is_err() && node.journal.read(&who.container).is_ok_and(|entry| entry.is_none()) {
            lock.retire();
        }
        attached
    }

    fn del(&self, request: &Detach, _: &dyn Invoke) -> Result<(), Error> {
        let Detach { who, netns, call } = request;
        let node = self.node_of_journal(call)?;
        let lock = Lock::acquire(node.journal.directory(), &who.container)?;
        let Some(mut entry) = node.journal.read(&who.container)? else {
            // Nothing was begun for it by us: the entry comes before the first effect.
            node.journal.remove(&who.container)?;
            let detached = preexisting::take_down(&node, request);
            lock.retire();
            return detached;
        };
        if entry.ifname != who.ifname {
            // An ADD under this name was refused: what is attached is another attachment.
            return Ok(());
        }
        readiness::look(&node.configuration);
        if let Some(netns) = netns {
            entry.netns = netns.display().to_string();
            // Where nothing is, what it was stays known.
            let now = namespace::identify(&entry.netns)?;
            if !now.is_empty() {
                entry.namespace = now;
            }
        }
        entry.path = join_path(&entry.path, &node.path);
        detach::take_down(&node.journal, &node.invoker, &mut entry)?;
        lock.retire();
        Ok(())
    }

    fn check(&self, request: &Attach, _: &dyn Invoke) -> Result<(), Error> {
        let Attach { who, netns, call } = request;
        let node = self.node_of_journal(call)?;
        let lock = Lock::acquire(node.journal.directory(), &who.container)?;
        let Some(mut entry) = node.journal.read(&who.container)? else {
            lock.retire();
            let why = format!("sandbox {} is not attached", who.container);
            return Err(Error::new(code::UNKNOWN_CONTAINER, why));
        };
        if entry.ifname != who.ifname {
            let why =
                format!("sandbox {} is attached as {}, not as {}", who.container, entry.ifname, who.ifname);
            return Err(Error::new(code::UNKNOWN_CONTAINER, why));
        }
        if !entry.complete {
            return Err(Error::internal(format!("sandbox {} is only partly attached", who.container)));
        }
        entry.netns = netns.display().to_string();
        entry.path = join_path(&entry.path, &node.path);
        check_all(&node.invoker, &entry)
    }

    fn gc(&self, request: &Sweep, _: &dyn Invoke) -> Result<(), Error> {
        let node = self.node(&request.call)?;
        gc::collect(&node, request, self.0)
    }

    fn status(&self, request: &Probe, _: &dyn Invoke) -> Result<(), Error> {
        let node = self.node(&request.call)?;
        readiness::now(&node.configuration)?;
        let networks = planning::networks_of_every_pod(&node.configuration, &request.call, self.0);
        for (place, network) in networks.map_err(readiness::unavailable)?.iter().enumerate() {
            let asked = readiness::plugins_are_there(&node.invoker, network, &node.path)
                .and_then(|()| chain::status(&node.invoker, network, &node.path));
            // The default network's answer is that of the whole, word by word.
            asked.map_err(|error| match place {
                0 => error,
                _ => error.context(format_args!("network {} of every pod", network.name)),
            })?;
        }
        Ok(())
    }
}

/// Takes down what an ADD that was killed has left; an attached sandbox is not attached again (S18, S25).
fn clear_remains(node: &Node, who: &Attachment) -> Result<(), Error> {
    let Some(mut entry) = node.journal.read(&who.container)? else { return Ok(()) };
    if entry.complete || entry.changing {
        let why = format!("sandbox {} is attached already: DEL comes first", who.container);
        return Err(Error::new(code::INVALID_ENVIRONMENT, why));
    }
    detach::take_down(&node.journal, &node.invoker, &mut entry).context("remains of an earlier attempt")
}

/// Is every attachment as it was made?
fn check_all(invoker: &PluginInvoker, entry: &Entry) -> Result<(), Error> {
    let (_, errors) = check_each(invoker, entry);
    cni::error::collected(errors)
}

/// The interfaces of those that are not, and why.
fn check_each(invoker: &PluginInvoker, entry: &Entry) -> (Vec<IfName>, Vec<Error>) {
    let check = |(index, delegate): (usize, &Delegate)| {
        let step = format!("check {} ({})", delegate.ifname, delegate.network);
        let error = check_one(invoker, entry, index, delegate).context(step).err()?;
        Some((delegate.ifname.clone(), error))
    };
    entry.plan.delegates.iter().enumerate().filter_map(check).unzip()
}

fn check_one(invoker: &PluginInvoker, entry: &Entry, index: usize, delegate: &Delegate) -> Result<(), Error> {
    let network = Network::parse(delegate.config.as_bytes(), &delegate.network)?;
    if network.disable_check || network.version < cni::Verb::Check.since() {
        return Ok(());
    }
    let last = entry.last_result(index, &network)?;
    chain::check(invoker, &network, &entry.parameters(delegate), last.as_ref())
}

/// Report of an ADD, for the agent's metrics.
fn report(entry: &Entry, runs: &[Run], started: Instant, error: Option<&Error>) -> PlanReport {
    let failed = |error: &Error| Error { details: String::new(), ..error.clone() };
    let attachments = &entry.attachments;
    // One after the other: the one behind the last that was attached has failed, those behind it were not tried.
    let done = attachments.iter().filter(|attachment| attachment.microseconds.is_some()).count();
    let begun = attachments.iter().any(|attachment| attachment.state != record::State::Planned);
    let tried =
        entry.plan.delegates.iter().zip(attachments).take(done + usize::from(error.is_some() && begun));
    let steps = |ifname: &str| {
        let own = runs.iter().filter(|run| run.ifname == ifname);
        own.map(|Run { plugin, verb, ifname: _, began, took, depth, failed }| PluginCall {
            plugin: plugin.to_string(),
            verb: verb.clone(),
            began: microseconds(began.saturating_duration_since(started)),
            microseconds: microseconds(*took),
            depth: *depth,
            failed: *failed,
        })
        .collect()
    };
    PlanReport {
        microseconds: microseconds(started.elapsed()),
        attachments: tried
            .map(|(delegate, attachment)| AttachmentReport {
                network: delegate.network.clone(),
                plugin: first_plugin(delegate),
                ifname: delegate.ifname.clone(),
                microseconds: attachment.microseconds,
                steps: steps(delegate.ifname.as_str()),
            })
            .collect(),
        error: error.map(failed),
    }
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn first_plugin(delegate: &Delegate) -> String {
    let network = Network::parse(delegate.config.as_bytes(), &delegate.network);
    let types = network.and_then(|network| network.needs());
    types.ok().and_then(|types| types.first().map(ToString::to_string)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bin_dir_comes_first_and_once() {
        assert_eq!(join_path("/opt/cni/bin", "/usr/lib/cni:/opt/cni/bin"), "/opt/cni/bin:/usr/lib/cni");
        assert_eq!(join_path("/opt/cni/bin", ""), "/opt/cni/bin");
        assert_eq!(join_path("", "/a::/b"), "/a:/b");
        assert_eq!(join_path("/a:/b", "/c:/a"), "/a:/b:/c");
    }
}
