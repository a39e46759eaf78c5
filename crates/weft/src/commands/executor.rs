//! `weft executor`: executes the tasks that the node agent queues, at once.
//!
//! It polls the agent for tasks, passes them to `weft-cni run-tasks`, and polls again. Without it tasks wait
//! for the container runtime's next call. That is soon enough for orphaned sandboxes, but no call follows a
//! changed annotation.
//!
//! - It is optional and privileged. It runs in the host network, like the runtime's plugins.
//! - With `--listen` it serves the traffic counters on the pods' interfaces ([`interface_metrics`]).
//! - It decides nothing and keeps no state. If it is killed, the journal records what was begun, and the
//!   agent queues the task again.

pub(crate) mod interface_metrics;
mod policy_metrics;

use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use cni::runtime::load::Directory;
use cni::{Context, Error};
use npwg::configuration::Place;
use npwg::definition::Disk;
use rpc::frame;
use rpc::message::{Request, Response};
use rpc::node_input::NodeInput;
use rpc::task::{PollTasks, Task, TaskBatch};
use serde_json::value::RawValue;

use crate::meta_plugin_config::MetaPlugin;
use cli_support::async_runtime::runtime;
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::interrupt::Interrupt;
use cli_support::output::{Format, Progress};
use cli_support::privilege;
use interface_metrics::InterfaceMetrics;
use kube_support::health;
use node_support::sandboxes::Sandboxes;
use node_support::weft_cni::{OnHost, WeftCni};

/// Timeout for one exchange with the agent, which delays the response for up to 20 s.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Pause after a failure, and minimum interval between two empty responses.
const PAUSE: Duration = Duration::from_secs(2);
/// Interval at which the loop checks for SIGTERM and SIGINT.
const TICK: Duration = Duration::from_millis(200);

/// Arguments of `weft executor`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft agent --node-name worker-1 --hot-plug
  weft executor
  weft executor --listen 127.0.0.1:9466

Running pods get the networks that their annotation selects. In a cluster the executor runs as a DaemonSet
(deploy/hot-plug).

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    /// Path to the configuration of the meta-plugin (default: the first one in /etc/cni/net.d)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address of the HTTP server for /metrics with the traffic of each interface of each pod (default: off)
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    on_host: OnHost,
}

/// Runs until SIGTERM or SIGINT, and finishes the task that is being executed.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    privilege::require("weft executor", "it changes the networks of pods")?;
    let interrupt = Interrupt::watch()?;
    let weft_cni = WeftCni::find()?.on_host(arguments.on_host)?;
    let Some(meta_plugin) = wait_for_configuration(arguments.config.as_deref(), &interrupt) else {
        return Ok(());
    };
    if let Some(address) = arguments.listen {
        serve_metrics(address, weft_cni.clone(), &meta_plugin)?;
    }
    let (sender, receiver) = mpsc::sync_channel(0);
    let config = arguments.config.clone();
    // A blocking read from the agent cannot be interrupted, so another thread waits for it.
    thread::spawn(move || {
        loop {
            let began = Instant::now();
            let polled = poll(config.as_deref());
            let pause = pause(&polled, began.elapsed());
            if sender.send(polled).is_err() {
                return;
            }
            thread::sleep(pause);
        }
    });
    let (log, mut is_agent_away) = (Progress::beside(Format::Json), false);
    while !interrupt.is_set() {
        match receiver.recv_timeout(TICK) {
            Ok(Ok(batch)) => {
                is_agent_away = false;
                if !batch.tasks.is_empty()
                    && let Err(failure) = weft_cni.run_tasks(&batch)
                {
                    log.line(format!("weft: tasks failed: {failure}"));
                }
            }
            Ok(Err(failure)) => {
                if !std::mem::replace(&mut is_agent_away, true) {
                    log.line(format!("weft: {failure}; retrying every {} s", PAUSE.as_secs()));
                }
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(Failure::new("the polling thread ended"));
            }
        }
    }
    Ok(())
}

/// Waits until there is a usable configuration, which the agent's pod installs at about the same time; `None` if the
/// process is to end. Each reason for waiting is printed once.
fn wait_for_configuration(config: Option<&Path>, interrupt: &Interrupt) -> Option<MetaPlugin> {
    let (log, mut printed) = (Progress::beside(Format::Json), String::new());
    let mut next_look = Instant::now();
    while !interrupt.is_set() {
        if Instant::now() >= next_look {
            match MetaPlugin::find(config, &[]) {
                Ok(found) => return Some(found),
                Err(failure) => {
                    let text = failure.to_string();
                    if text != printed {
                        log.line(format!("weft: waiting for the configuration: {text}"));
                        printed = text;
                    }
                }
            }
            next_look = Instant::now() + PAUSE;
        }
        thread::sleep(TICK);
    }
    None
}

/// Serves the interface metrics on a thread, until the process ends.
fn serve_metrics(address: SocketAddr, weft_cni: WeftCni, meta_plugin: &MetaPlugin) -> Result<(), Failure> {
    let metrics = Arc::new(InterfaceMetrics::new(weft_cni, Sandboxes::of(&meta_plugin.journal())));
    let runtime = runtime()?;
    let listener = runtime.block_on(health::bind(address))?;
    thread::spawn(move || runtime.block_on(health::serve(listener, metrics)));
    Ok(())
}

/// Returns the pause until the next poll. An agent delays the response until there are tasks. A CRI proxy has none and
/// responds at once, so the pause keeps the executor from polling in a tight loop.
fn pause(polled: &Result<TaskBatch, Failure>, took: Duration) -> Duration {
    match polled {
        Ok(batch) if !batch.tasks.is_empty() => Duration::ZERO,
        Ok(_) => PAUSE.saturating_sub(took),
        Err(_) => PAUSE,
    }
}

/// Polls the agent for tasks once; it delays the response until there are some.
fn poll(config: Option<&Path>) -> Result<TaskBatch, Failure> {
    // Read for each poll, because the configuration may have changed.
    let meta_plugin = MetaPlugin::find(config, &[])?;
    let mut disk = Disk::default();
    for location in meta_plugin.node.places() {
        if let Place::Path(path) = location {
            disk.add(Directory::at(Path::new(&path))?);
        }
    }
    let configuration = RawValue::from_string(meta_plugin.object.to_json())
        .map_err(|cause| Failure::new(format!("encode the configuration: {cause}")))?;
    let flavour = meta_plugin.flavour;
    let node = NodeInput::new(configuration.clone(), flavour, &disk);
    let tasks = send_poll(&meta_plugin.node.agent_socket, PollTasks { node })?;
    Ok(TaskBatch { configuration, flavour, tasks })
}

fn send_poll(socket: &str, request: PollTasks) -> Result<Vec<Task>, Error> {
    let step = || format!("agent {socket}");
    let failed = |cause| Error::io(step(), cause);
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
    stream.set_write_timeout(Some(TIMEOUT)).map_err(failed)?;
    let sent = frame::send(&mut stream, &Request::PollTasks(request));
    let response = sent.and_then(|()| frame::receive(&mut stream)).map_err(Error::from).context(step())?;
    match response {
        Response::Tasks(tasks) => Ok(tasks),
        other => Err(other.into_error().context(step())),
    }
}

#[cfg(test)]
mod tests {
    use cni::name::ContainerId;
    use npwg::configuration::Flavour;
    use rpc::task::Certainty;

    use super::*;

    #[test]
    fn task_poll_pauses_after_an_immediate_empty_response() {
        let container = ContainerId::new("c").unwrap();
        let task = Task::TakeDown { container, uid: "u".into(), certainty: Certainty::Gone };
        let batch = |tasks| {
            let configuration = RawValue::from_string("{}".into()).unwrap();
            Ok(TaskBatch { configuration, flavour: Flavour::Weft, tasks })
        };
        assert_eq!(pause(&batch(vec![]), Duration::ZERO), PAUSE);
        assert_eq!(pause(&batch(vec![]), Duration::from_secs(20)), Duration::ZERO);
        assert_eq!(pause(&batch(vec![task]), Duration::ZERO), Duration::ZERO);
        assert_eq!(pause(&Err(Failure::new("is_agent_away")), Duration::from_secs(60)), PAUSE);
    }
}
