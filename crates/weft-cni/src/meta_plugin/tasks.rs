//! Execution of the tasks that the agent decides and no call of the container runtime triggers.
//!
//! ```text
//!   weft-cni, an ADD ── starts weft-cni, passes the batch on its standard input ── answers the runtime, exits
//!                                 └──────── waits for that exit ──────────────────────► executes the tasks
//! ```
//!
//! Tasks are executed as a DEL is: from the journal, under the sandbox's lock. The agent sends a failed task again later.
//!
//! - A batch that is not complete is discarded: the sender was killed.
//! - A task names a sandbox and a pod; an entry for another pod is left alone.
//! - If only the pod is known to be gone, a sandbox whose namespace still exists is left alone: the runtime will call
//!   DEL.
//! - The result of a check or a change is reported to the agent.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use cni::Error;
use cni::invocation::Call;
use cni::name::ContainerId;
use linux::parent_death;
use npwg::configuration::Flavour;
use npwg::plan::{Plan, Sandbox};
use plugin_support::log;
use rpc::frame;
use rpc::journal::{DIRECTORY, Entry};
use rpc::task::{Certainty, PolicyUpdate, Task, TaskBatch, TaskKind, TaskResult};
use rustix::io::Errno;
use serde_json::Value;

use super::change::{self, Changed};
use super::check::check_each;
use super::history::{self, CallRecorder};
use super::journal::Journal;
use super::lock::Lock;
use super::policy_update::{self, PolicyOutcome};
use super::{agent, detach, namespace};
use crate::plugin_invoker::PluginInvoker;

/// First argument of a process that executes a task batch.
pub const COMMAND: &str = "run-tasks";

/// Option for a process in a container: plugins find the programs of the host, for example iptables.
pub const ON_HOST: &str = "--on-host";

/// Option with the id of the parent process, whose exit is waited for.
pub const AFTER: &str = "--after";

/// Starts a process that executes the tasks once this one has exited. A failure to start it is logged.
pub(super) fn run_later(call: &Call, flavour: Flavour, tasks: Vec<Task>) {
    if let Err(error) = start(call.config.value(), flavour, tasks) {
        log!("weft: failed to hand over tasks: {error}");
    }
}

fn start(configuration: &Value, flavour: Flavour, tasks: Vec<Task>) -> Result<(), Error> {
    let configuration = serde_json::value::to_raw_value(configuration)
        .map_err(|cause| Error::internal(format!("encode the configuration: {cause}")))?;
    let mut child = Command::new("/proc/self/exe")
        .args([COMMAND, AFTER, &std::process::id().to_string()])
        .env_clear()
        // The directory of `weft` may be in it.
        .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|cause| Error::io("start", cause))?;
    match child.stdin.take() {
        Some(mut pipe) => Ok(frame::send(&mut pipe, &TaskBatch { configuration, flavour, tasks })?),
        None => Err(Error::internal("the process has no standard input")),
    }
}

/// Reads a task batch from standard input, waits for the exit of the process `after`, and executes the tasks.
///
/// # Errors
/// All failures in one; unfinished work stays in the journal.
pub fn run(after: Option<u32>) -> Result<(), Error> {
    // The runtime may kill the process group of the plugin that it called.
    match rustix::process::setsid() {
        // The leader of a process group is already separate.
        Ok(_) | Err(Errno::PERM) => {}
        Err(cause) => return Err(Error::io("leave the session", cause)),
    }
    let batch: TaskBatch = frame::receive(&mut io::stdin().lock())?;
    if let Some(parent) = after {
        parent_death::wait(parent)
            .map_err(|cause| Error::io("wait for the exit of the parent process", cause))?;
    }
    let node = batch.configuration()?;
    let directory = node.cni_dir.as_deref().unwrap_or(DIRECTORY);
    let journal = Journal::open(Path::new(directory))?;
    let invoker = PluginInvoker::new(node.builtin, node.delegate_timeout);
    let mut errors = Vec::new();
    for task in &batch.into_ordered() {
        let mut recorder = begin_record(&journal, task);
        let result = match task {
            Task::TakeDown { container, uid, certainty } => {
                invoker.start_recording();
                let done = take_down(&journal, &invoker, container, uid, *certainty, &mut recorder);
                recorder.runs(invoker.take_runs());
                done.map(|()| None)
            }
            Task::Publish { container, kubeconfig } => {
                // The path is that of this node: a kubeconfig can name programs, and the agent may be compromised.
                let own = kubeconfig.as_ref().and(node.kubeconfig.as_deref());
                publish(directory, container, own).map(|()| None)
            }
            Task::Check { container, uid } => check(&journal, &invoker, container, uid),
            Task::Change { plan } => {
                recorder.networks(&plan.delegates);
                change_networks(&journal, &invoker, plan, node.delegate_timeout)
            }
            Task::UpdatePolicy { container, uid, attachments } => {
                update_policy(&journal, &invoker, container, uid, attachments)
            }
            Task::VerifyPolicy { container, uid } => verify_policy(&journal, &invoker, container, uid),
        };
        let error = match &result {
            Ok(result) => result.as_ref().and_then(|result| result.error.as_ref()),
            Err(error) => Some(error),
        };
        recorder.finish(error, || directory.into());
        match result {
            Ok(Some(result)) => errors.extend(agent::report(&node, result).err()),
            Ok(None) => {}
            Err(error) => errors.push(error),
        }
    }
    cni::error::collected(errors)
}

/// Begins the record of a task.
fn begin_record(journal: &Journal, task: &Task) -> CallRecorder {
    let (verb, container, pod) = match task {
        Task::TakeDown { container, uid: _, certainty: _ } => (history::TAKE_DOWN, container, None),
        Task::Publish { container, kubeconfig: _ } => ("publish", container, None),
        Task::Check { container, uid: _ } => ("check", container, None),
        Task::Change { plan } => (history::CHANGE, &plan.container, Some(&plan.pod)),
        Task::UpdatePolicy { container, .. } => (history::UPDATE_POLICY, container, None),
        Task::VerifyPolicy { container, .. } => (history::VERIFY_POLICY, container, None),
    };
    let mut recorder = CallRecorder::begin(verb, pod.cloned().unwrap_or_default());
    recorder.journal(journal);
    recorder.sandbox(container, &"");
    recorder.stage("task");
    recorder
}

/// Returns the entry of a sandbox, locked. Returns `None` if it is locked by another process, is gone, or is another pod's.
fn find(journal: &Journal, container: &ContainerId, uid: &str) -> Result<Option<(Lock, Entry)>, Error> {
    let Some(lock) = Lock::attempt(journal.directory(), container)? else { return Ok(None) };
    entry_of(journal, lock, container, uid)
}

/// Returns the entry of a locked sandbox. Returns `None` if it is gone, or is another pod's.
fn entry_of(
    journal: &Journal,
    lock: Lock,
    container: &ContainerId,
    uid: &str,
) -> Result<Option<(Lock, Entry)>, Error> {
    let Some(entry) = journal.read(container)? else {
        lock.retire();
        return Ok(None);
    };
    Ok((entry.plan.pod.uid == uid).then_some((lock, entry)))
}

/// Checks that a sandbox is as it was attached. Returns no result for a sandbox that is not completely attached.
fn check(
    journal: &Journal,
    invoker: &PluginInvoker,
    container: &ContainerId,
    uid: &str,
) -> Result<Option<TaskResult>, Error> {
    let Some((lock, entry)) = find(journal, container, uid)? else { return Ok(None) };
    if !entry.complete || !namespace::is_there(&entry)? {
        return Ok(None);
    }
    invoker.isolate(lock.mark_work());
    let (wrong, errors) = check_each(invoker, &entry);
    let error = Error::join(errors);
    Ok(Some(TaskResult { error, wrong, ..nothing_done(TaskKind::Check, container, uid) }))
}

/// Changes a running sandbox to `plan`.
fn change_networks(
    journal: &Journal,
    invoker: &PluginInvoker,
    plan: &Plan,
    timeout: Duration,
) -> Result<Option<TaskResult>, Error> {
    // A concurrent GC would treat new reservations as leftovers.
    let changes = Lock::changes(journal.directory())?;
    let changed = change_locked(journal, invoker, plan, timeout);
    changes.retire();
    changed
}

fn change_locked(
    journal: &Journal,
    invoker: &PluginInvoker,
    plan: &Plan,
    timeout: Duration,
) -> Result<Option<TaskResult>, Error> {
    let (container, uid) = (&plan.container, &plan.pod.uid);
    let Some((lock, entry)) = find(journal, container, uid)? else { return Ok(None) };
    if !(entry.complete || entry.changing) || !namespace::is_there(&entry)? {
        return Ok(None);
    }
    let sandbox = Sandbox { container: entry.container_id.clone(), ifname: entry.ifname.clone() };
    plan.expect_for(&sandbox, &entry.plan.pod)?;
    invoker.isolate(lock.mark_work());
    let Changed { done, errors } = change::change(journal, invoker, &entry, plan, timeout)
        .unwrap_or_else(|error| Changed { done: Vec::new(), errors: vec![error] });
    let error = Error::join(errors);
    Ok(Some(TaskResult { changes: done, error, ..nothing_done(TaskKind::Change, container, uid) }))
}

/// Replaces the network policies of a running sandbox. A sandbox that is not completely attached is left alone: the
/// agent compares the policies once it is.
fn update_policy(
    journal: &Journal,
    invoker: &PluginInvoker,
    container: &ContainerId,
    uid: &str,
    updates: &[PolicyUpdate],
) -> Result<Option<TaskResult>, Error> {
    let Some(lock) = Lock::attempt(journal.directory(), container)? else {
        // An ADD or DEL is in progress. The agent sends the update again soon.
        let nothing = nothing_done(TaskKind::UpdatePolicy, container, uid);
        return Ok(Some(TaskResult { is_locked: true, ..nothing }));
    };
    let Some((_lock, mut entry)) = entry_of(journal, lock, container, uid)? else { return Ok(None) };
    if !(entry.complete || entry.changing) || !namespace::is_there(&entry)? {
        return Ok(None);
    }
    let updated = policy_update::update(journal, invoker, &mut entry, updates);
    let outcome = updated.unwrap_or_else(|error| PolicyOutcome {
        wrong: updates.iter().map(|update| update.ifname.clone()).collect(),
        errors: vec![error],
        is_stale: false,
    });
    if outcome.is_stale && outcome.errors.is_empty() {
        // The agent compares the entry that has other policies, and sends another update if one is needed.
        return Ok(None);
    }
    Ok(Some(policy_result(TaskKind::UpdatePolicy, &entry, outcome)))
}

/// Restores rules of network policies that another program changed. Returns no result if there are none.
fn verify_policy(
    journal: &Journal,
    invoker: &PluginInvoker,
    container: &ContainerId,
    uid: &str,
) -> Result<Option<TaskResult>, Error> {
    let Some((_lock, entry)) = find(journal, container, uid)? else { return Ok(None) };
    if !entry.complete || !namespace::is_there(&entry)? {
        return Ok(None);
    }
    let [restored, failed] = policy_update::verify(invoker, &entry);
    // A failure is reported alone: the next verification finds the other changes.
    Ok(if !failed.wrong.is_empty() {
        Some(policy_result(TaskKind::UpdatePolicy, &entry, failed))
    } else if !restored.wrong.is_empty() {
        Some(policy_result(TaskKind::VerifyPolicy, &entry, restored))
    } else {
        None
    })
}

fn policy_result(kind: TaskKind, entry: &Entry, outcome: PolicyOutcome) -> TaskResult {
    let PolicyOutcome { wrong, errors, is_stale: _ } = outcome;
    let nothing = nothing_done(kind, &entry.container_id, &entry.plan.pod.uid);
    TaskResult { error: Error::join(errors), wrong, ..nothing }
}

/// Returns the result of a task that found and changed nothing.
fn nothing_done(kind: TaskKind, container: &ContainerId, uid: &str) -> TaskResult {
    let (container, uid) = (container.clone(), uid.to_owned());
    TaskResult { kind, container, uid, changes: Vec::new(), error: None, wrong: Vec::new(), is_locked: false }
}

fn take_down(
    journal: &Journal,
    invoker: &PluginInvoker,
    container: &ContainerId,
    uid: &str,
    certainty: Certainty,
    recorder: &mut CallRecorder,
) -> Result<(), Error> {
    let Some((lock, mut entry)) = find(journal, container, uid)? else { return Ok(()) };
    recorder.pod(&entry.plan.pod);
    if certainty == Certainty::PodGone && namespace::is_there(&entry)? {
        return Ok(());
    }
    recorder.detach(&entry.plan.delegates);
    invoker.isolate(lock.mark_work() || entry.is_interrupted());
    detach::take_down(journal, invoker, &mut entry)?;
    lock.retire();
    Ok(())
}

/// Runs `weft publish --journal DIRECTORY --container-id CONTAINER`, which has a separate timeout.
fn publish(directory: &str, container: &ContainerId, kubeconfig: Option<&str>) -> Result<(), Error> {
    let program = agent::find_weft();
    let mut command = Command::new(&program);
    command.args(["publish", "--journal", directory, "--container-id", container.as_str()]);
    if let Some(kubeconfig) = kubeconfig {
        command.args(["--kubeconfig", kubeconfig]);
    }
    let ended = command.stdin(Stdio::null()).status();
    let status = ended.map_err(|cause| Error::io(format_args!("run {}", program.display()), cause))?;
    match status.success() {
        true => Ok(()),
        false => Err(Error::internal(format!("{} publish: {status}", program.display()))),
    }
}
