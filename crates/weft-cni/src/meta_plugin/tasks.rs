//! Work that nobody calls for: what the agent found to be done on this node, done once the runtime has its answer.
//!
//! The process that has answered starts another one of this program, passes it the tasks, and ends; that one
//! waits for its end, then does them as DEL would: by the journal, under the sandbox's lock, with everything that
//! fails left for the next time.
//!
//! Rules: an order names a sandbox and its pod, and an entry of another pod is left alone; where only the pod is
//! known to be gone, a sandbox whose namespace is still there is left alone, too: its runtime will call. What was
//! found, or came of a change, is told to the agent.

use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use cni::Error;
use cni::invocation::Call;
use cni::name::{ContainerId, IfName};
use npwg::configuration::{Flavour, NodeConfiguration};
use npwg::plan::{Plan, PodIdentity};
use plugin_support::log;
use rpc::exchange::{self, Certainty, Errand, Order, Outcome, Purpose, Question, Work};
use rpc::journal::{DIRECTORY, Entry};
use rustix::io::Errno;
use serde_json::Value;

use super::change::{self, Changed};
use super::journal::Journal;
use super::lock::Lock;
use super::{agent, check_each, detach, namespace};
use crate::plugin_invoker::PluginInvoker;

/// The word on the command line for it.
pub const COMMAND: &str = "run-tasks";

/// The word after it in a container: plugins run programs of the host, iptables for one.
pub const ON_HOST: &str = "--on-host";

/// Leaves orders to a process of their own; that it cannot be started is said and changes nothing.
pub(super) fn carry_out_later(call: &Call, flavour: Flavour, orders: &[Order]) {
    if let Err(error) = hand_over(call.config.value(), flavour, orders) {
        log!("weft: orders: {error}");
    }
}

fn hand_over(configuration: &Value, flavour: Flavour, orders: &[Order]) -> Result<(), Error> {
    let configuration = serde_json::value::to_raw_value(configuration)
        .map_err(|cause| Error::internal(format!("encode the configuration: {cause}")))?;
    let errand = Errand { configuration, multus: flavour == Flavour::Multus, orders: orders.to_vec() };
    let mut child = Command::new("/proc/self/exe")
        .arg(COMMAND)
        .env_clear()
        // Where `weft` may be.
        .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|cause| Error::io("start", cause))?;
    if let Some(mut pipe) = child.stdin.take() {
        exchange::send(&mut pipe, &errand)?;
        // Its end is ours: the other process waits for it.
        std::mem::forget(pipe);
    }
    Ok(())
}

/// Reads orders from stdin, waits until whoever gave them is gone, and carries them out.
///
/// # Errors
/// All failures in one; what could not be done stays in the journal.
pub fn obey() -> Result<(), Error> {
    // The runtime may end the process group of what it called.
    match rustix::process::setsid() {
        // Who leads a group of its own already is in nobody else's.
        Ok(_) | Err(Errno::PERM) => {}
        Err(cause) => return Err(Error::io("leave the session", cause)),
    }
    let mut stdin = io::stdin().lock();
    let Errand { configuration, multus, orders } = exchange::receive(&mut stdin)?;
    io::copy(&mut stdin.by_ref().take(1), &mut io::sink()).map_err(|cause| Error::io("wait", cause))?;
    let flavour = if multus { Flavour::Multus } else { Flavour::Weft };
    let node = NodeConfiguration::read(configuration.get().as_bytes(), flavour)?;
    let directory = node.cni_dir.as_deref().unwrap_or(DIRECTORY);
    let journal = Journal::open(Path::new(directory))?;
    let invoker = PluginInvoker::new(node.builtin, node.delegate_timeout);
    let mut errors = Vec::new();
    for order in &orders {
        let mut told = None;
        let done = match order {
            Order::TakeDown { container, uid, certainty } => {
                take_down(&journal, &invoker, container, uid, *certainty)
            }
            Order::Publish { container, kubeconfig } => publish(directory, container, kubeconfig.as_deref()),
            Order::Check { container, uid } => {
                check(&journal, &invoker, container, uid).map(|outcome| told = outcome)
            }
            Order::Change { plan } => {
                alter(&journal, &invoker, (plan, node.delegate_timeout)).map(|outcome| told = outcome)
            }
        };
        errors.extend(done.err());
        if let Some(outcome) = told {
            let question = Question {
                version: exchange::VERSION,
                pod: PodIdentity::default(),
                container: outcome.container.clone(),
                ifname: IfName::new("eth0")?,
                configuration: configuration.clone(),
                multus,
                files: Vec::new(),
                unreadable: Vec::new(),
                purpose: Purpose::Outcome(outcome),
                began: 0,
            };
            errors.extend(agent::tell(&node, &question).err());
        }
    }
    cni::error::collected(errors)
}

/// The entry of a sandbox, locked; nothing where somebody is at it already, or it is gone or another pod's.
fn find(journal: &Journal, container: &ContainerId, uid: &str) -> Result<Option<(Lock, Entry)>, Error> {
    let Some(lock) = Lock::attempt(journal.directory(), container)? else { return Ok(None) };
    let Some(entry) = journal.read(container)? else {
        lock.retire();
        return Ok(None);
    };
    Ok((entry.plan.pod.uid == uid).then_some((lock, entry)))
}

/// Is a sandbox as it was attached? Nothing is said of one that is not whole.
fn check(
    journal: &Journal,
    invoker: &PluginInvoker,
    container: &ContainerId,
    uid: &str,
) -> Result<Option<Outcome>, Error> {
    let Some((_lock, entry)) = find(journal, container, uid)? else { return Ok(None) };
    if !entry.complete || !namespace::is_there(&entry)? {
        return Ok(None);
    }
    let (uid, done) = (uid.to_owned(), Vec::new());
    let (wrong, errors) = check_each(invoker, &entry);
    let error = Error::join(errors);
    Ok(Some(Outcome { of: Work::Check, container: container.clone(), uid, done, error, wrong }))
}

/// Makes a running sandbox the one of `plan`.
fn alter(
    journal: &Journal,
    invoker: &PluginInvoker,
    (plan, patience): (&Plan, Duration),
) -> Result<Option<Outcome>, Error> {
    let (container, uid) = (&plan.container, &plan.pod.uid);
    // A GC would take what comes for what nobody holds.
    let changes = Lock::changes(journal.directory())?;
    let altered = alter_alone(journal, invoker, (plan, patience), (container, uid));
    changes.retire();
    altered
}

fn alter_alone(
    journal: &Journal,
    invoker: &PluginInvoker,
    (plan, patience): (&Plan, Duration),
    (container, uid): (&ContainerId, &String),
) -> Result<Option<Outcome>, Error> {
    let Some((_lock, entry)) = find(journal, container, uid)? else { return Ok(None) };
    if !(entry.complete || entry.changing) || !namespace::is_there(&entry)? {
        return Ok(None);
    }
    let Changed { done, errors } = change::change(journal, invoker, &entry, plan, patience)
        .unwrap_or_else(|error| Changed { done: Vec::new(), errors: vec![error] });
    let (container, uid) = (container.clone(), uid.clone());
    let (error, wrong) = (Error::join(errors), Vec::new());
    Ok(Some(Outcome { of: Work::Change, container, uid, done, error, wrong }))
}

fn take_down(
    journal: &Journal,
    invoker: &PluginInvoker,
    container: &ContainerId,
    uid: &str,
    certainty: Certainty,
) -> Result<(), Error> {
    let Some((lock, mut entry)) = find(journal, container, uid)? else { return Ok(()) };
    if certainty == Certainty::PodGone && namespace::is_there(&entry)? {
        return Ok(());
    }
    detach::take_down(journal, invoker, &mut entry)?;
    lock.retire();
    Ok(())
}

/// `weft publish --journal DIRECTORY --container-id CONTAINER`; it knows how long to try.
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
