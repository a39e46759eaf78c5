//! `weft`: the meta-plugin. The container runtime calls it for a pod; it attaches the default network and every network
//! that the pod requests.
//!
//! ```text
//!   ADD    lock ─► plan (pure) ─► journal ─► each delegate's chain ─► verify ─► default routes ─► status
//!   DEL    lock ─► journal ─► each delegate's chain, last first ─► entry removed
//!   CHECK  journal ─► each delegate's chain        GC  journal without the valid sandboxes ─► DEL; then delegates
//!   STATUS of the networks that every pod gets
//! ```
//!
//! It can also be called as `multus`; some defaults differ then (DEVIATIONS.md).
//!
//! Source: the multi-network specification v1.0–v1.3, CNI 1.1.0; Multus for the configuration.

mod agent;
mod attach;
mod attached_link;
mod change;
mod check;
mod detach;
mod devices;
pub(crate) mod enforcement;
pub mod forget;
mod gc;
mod history;
pub mod import_entry;
mod journal;
mod lock;
mod logging;
mod lost_entry;
pub(crate) mod namespace;
mod planning;
mod policy_update;
mod preexisting;
mod readiness;
mod routes;
pub mod tasks;

use std::path::Path;
use std::time::{Duration, Instant};

use cni::invocation::{Attach, Attachment, Call, Detach, Probe, Sweep};
use cni::invoke::Invoke;
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

use crate::plugin_invoker::{PluginInvoker, Run};
use crate::recursion;
use agent::PlannedSandbox;
use history::CallRecorder;
use journal::{Found, Journal};
use lock::Lock;

/// Meta-plugin, called as `weft` or as `multus`.
pub struct Weft(pub Flavour);

/// Configuration and state that every verb needs.
struct Node {
    configuration: NodeConfiguration,
    journal: Journal,
    invoker: PluginInvoker,
    /// `binDir`, then the runtime's `CNI_PATH`.
    path: String,
}

impl Weft {
    /// Plans and attaches a sandbox; the caller holds the sandbox lock.
    fn attach(&self, node: &Node, request: &Attach, recorder: &mut CallRecorder) -> Result<Success, Error> {
        let Attach { who, netns, call } = request;
        let (started, netns) = (Instant::now(), netns.display().to_string());
        recorder.stage("leftovers");
        clear_leftovers(node, who)?;
        recorder.stage("plan");
        let sandbox = Sandbox { container: who.container.clone(), ifname: who.ifname.clone() };
        let planned = planning::plan(&node.configuration, call, &sandbox, self.0);
        let mut planned = planned.inspect_err(|refusal| recorder.trace(&refusal.trace))?;
        let receiver = planned.take_report_receiver();
        node.invoker.start_recording();
        let PlannedSandbox { plan, tasks, trace, .. } = planned;
        recorder.trace(&trace);
        logging::plan(&plan);
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
            replaced: false,
        };
        recorder.attach(&entry.plan.delegates);
        recorder.pod(&entry.plan.pod);
        let attached = attach::attach(&node.journal, &node.invoker, &mut entry);
        let runs = node.invoker.take_runs();
        if receiver.is_connected() {
            receiver.report(report(&entry, &runs, started, attached.as_ref().err()));
        }
        recorder.runs(runs);
        if !tasks.is_empty() {
            tasks::run_later(call, self.0, tasks);
        }
        attached
    }

    fn add_recorded(&self, request: &Attach, recorder: &mut CallRecorder) -> Result<Success, Error> {
        let Attach { who, netns: _, call } = request;
        let node = self.node(call)?;
        recorder.journal(&node.journal);
        recorder.stage("ready");
        readiness::wait(&node.configuration)?;
        recorder.stage("lock");
        let lock = Lock::acquire(node.journal.directory(), &who.container)?;
        node.invoker.isolate(lock.holder_died() && lock.mark_work());
        let attached = self.attach(&node, request, recorder);
        if attached.is_err() && node.journal.read(&who.container).is_ok_and(|entry| entry.is_none()) {
            lock.retire();
        }
        attached
    }

    fn del_recorded(&self, request: &Detach, recorder: &mut CallRecorder) -> Result<(), Error> {
        let Detach { who, netns, call } = request;
        let node = self.node_of_journal(call)?;
        recorder.journal(&node.journal);
        recorder.stage("lock");
        let lock = Lock::acquire(node.journal.directory(), &who.container)?;
        node.invoker.isolate(lock.mark_work());
        recorder.stage("entry");
        let mut entry = match node.journal.read_or_set_aside(&who.container)? {
            Found::Entry(entry) => {
                if entry.is_interrupted() {
                    node.invoker.isolate(true);
                }
                *entry
            }
            // The entry is written before the first effect, so without an entry weft attached nothing, or the entry was lost.
            found @ (Found::Nothing | Found::Unreadable) => {
                let was_attached = matches!(found, Found::Unreadable);
                node.journal.remove(&who.container)?;
                preexisting::take_down(&node, request)?;
                lost_entry::take_down(&node, request, self.0, was_attached)?;
                lock.retire();
                return Ok(());
            }
        };
        if entry.ifname != who.ifname {
            // An ADD under this interface name was refused; the entry is of another attachment.
            return Ok(());
        }
        readiness::wait_briefly(&node.configuration);
        if let Some(netns) = netns {
            entry.netns = netns.display().to_string();
            // If the path leads to no namespace, the recorded identity is kept.
            let now = namespace::identify(&entry.netns)?;
            if !now.is_empty() {
                entry.namespace = now;
            }
        }
        entry.path = join_path(&entry.path, &node.path);
        recorder.pod(&entry.plan.pod);
        recorder.detach(&entry.plan.delegates);
        node.invoker.start_recording();
        let detached = detach::take_down(&node.journal, &node.invoker, &mut entry);
        recorder.runs(node.invoker.take_runs());
        detached?;
        lock.retire();
        Ok(())
    }

    fn check_recorded(&self, request: &Attach, recorder: &mut CallRecorder) -> Result<(), Error> {
        let Attach { who, netns, call } = request;
        let node = self.node_of_journal(call)?;
        recorder.journal(&node.journal);
        recorder.stage("lock");
        let lock = Lock::acquire(node.journal.directory(), &who.container)?;
        node.invoker.isolate(lock.mark_work());
        recorder.stage("check");
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
        check::check_all(&node.invoker, &entry)
    }

    /// Runs a call and appends a record to the history.
    fn recorded<T>(
        &self,
        verb: &str,
        call: &Call,
        who: Option<&Attachment>,
        work: impl FnOnce(&mut CallRecorder) -> Result<T, Error>,
    ) -> Result<T, Error> {
        // A network's definition must not choose the directory of a record: the call of the meta-plugin itself is recorded.
        recursion::refuse_delegate()?;
        let mut recorder = CallRecorder::begin(verb, planning::named(call.args()));
        if let Some(Attachment { container, ifname }) = who {
            recorder.sandbox(container, ifname);
        }
        recorder.stage("configuration");
        let done = work(&mut recorder);
        if let Some(who) = who {
            logging::outcome(verb, who, &done);
        }
        recorder.finish(done.as_ref().err(), || {
            let node = NodeConfiguration::of_journal(call.config.bytes(), self.0);
            let directory = node.ok().and_then(|node| node.cni_dir);
            directory.unwrap_or_else(|| record::DIRECTORY.to_owned()).into()
        });
        done
    }

    fn node(&self, call: &Call) -> Result<Node, Error> {
        self.node_of(NodeConfiguration::read(call.config.bytes(), self.0)?, call)
    }

    /// Returns the node for a verb that needs only the journal and plugin paths. An invalid configuration must not
    /// prevent a pod's deletion.
    fn node_of_journal(&self, call: &Call) -> Result<Node, Error> {
        let configuration = NodeConfiguration::read(call.config.bytes(), self.0).or_else(|error| {
            log!("weft: {error}: continuing with the configuration in the journal");
            NodeConfiguration::of_journal(call.config.bytes(), self.0).map_err(|_| error)
        })?;
        self.node_of(configuration, call)
    }

    fn node_of(&self, configuration: NodeConfiguration, call: &Call) -> Result<Node, Error> {
        recursion::refuse_delegate()?;
        logging::direct(&configuration.logging);
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

/// Joins two search paths: the directories of `first`, then those of `path` that are not among them.
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
        self.recorded("ADD", call, Some(who), |recorder| self.add_recorded(request, recorder))
    }

    fn del(&self, request: &Detach, _: &dyn Invoke) -> Result<(), Error> {
        // As a delegate, it attaches nothing.
        if recursion::refuse_delegate().is_err() {
            return Ok(());
        }
        let Detach { who, netns: _, call } = request;
        self.recorded("DEL", call, Some(who), |recorder| self.del_recorded(request, recorder))
    }

    fn check(&self, request: &Attach, _: &dyn Invoke) -> Result<(), Error> {
        let Attach { who, netns: _, call } = request;
        self.recorded("CHECK", call, Some(who), |recorder| self.check_recorded(request, recorder))
    }

    fn gc(&self, request: &Sweep, _: &dyn Invoke) -> Result<(), Error> {
        if recursion::refuse_delegate().is_err() {
            return Ok(());
        }
        self.recorded("GC", &request.call, None, |recorder| {
            let node = self.node(&request.call)?;
            recorder.journal(&node.journal);
            recorder.stage("collect");
            gc::collect(&node, request, self.0)
        })
    }

    fn status(&self, request: &Probe, _: &dyn Invoke) -> Result<(), Error> {
        let node = self.node(&request.call)?;
        readiness::require_ready(&node.configuration)?;
        let networks = planning::networks_of_every_pod(&node.configuration, &request.call, self.0);
        for (place, network) in networks.map_err(readiness::unavailable)?.iter().enumerate() {
            let asked = readiness::find_programs(&node.invoker, network, &node.path)
                .and_then(|_| chain::status(&node.invoker, network, &node.path));
            // An error of the default network is returned unchanged.
            asked.map_err(|error| match place {
                0 => error,
                _ => error.context(format_args!("network {} of every pod", network.name)),
            })?;
        }
        Ok(())
    }
}

/// Takes down the leftovers of a killed ADD; a sandbox that is attached is not attached again (S18, S25).
fn clear_leftovers(node: &Node, who: &Attachment) -> Result<(), Error> {
    let Some(mut entry) = node.journal.read(&who.container)? else { return Ok(()) };
    if entry.complete || entry.changing {
        let why = match entry.ifname == who.ifname {
            true => format!("sandbox {} is already attached: call DEL first", who.container),
            // nerdctl and podman call once for each network of a container.
            false => format!(
                "sandbox {} is already attached as {} by network {}; weft attaches all networks of a container in one call: \
                 name one network of type weft, and the others in its delegates or in the pod's annotation",
                who.container, entry.ifname, entry.network
            ),
        };
        return Err(Error::new(code::INVALID_ENVIRONMENT, why));
    }
    // This attempt also attaches with isolated plugins.
    if entry.is_interrupted() {
        node.invoker.isolate(true);
    }
    detach::take_down(&node.journal, &node.invoker, &mut entry).context("leftovers of an earlier attempt")
}

/// Report of an ADD, for the agent's metrics.
fn report(entry: &Entry, runs: &[Run], started: Instant, error: Option<&Error>) -> PlanReport {
    let failed = |error: &Error| Error { details: String::new(), ..error.clone() };
    let attachments = &entry.attachments;
    // Attachments are made in order: the one after the last attached one has failed, those after it were not attempted.
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
    fn search_path_lists_the_bin_dir_first_and_once() {
        assert_eq!(join_path("/opt/cni/bin", "/usr/lib/cni:/opt/cni/bin"), "/opt/cni/bin:/usr/lib/cni");
        assert_eq!(join_path("/opt/cni/bin", ""), "/opt/cni/bin");
        assert_eq!(join_path("", "/a::/b"), "/a:/b");
        assert_eq!(join_path("/a:/b", "/c:/a"), "/a:/b:/c");
    }
}
