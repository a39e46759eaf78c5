//! `weft executor`: does what the agent finds to be done on this node, at once.
//!
//! Without it orders wait for the next call of the runtime, which is soon enough for what is left behind; a running pod
//! whose networks change has nobody who calls. It asks the agent for orders, hands them to `weft-cni`, and asks again.
//!
//! Rules: opt-in and privileged: it runs where the runtime's plugins run, in the host's network namespace; it decides
//! nothing, and keeps nothing: killed at any moment, the journal knows what was begun, and the agent orders it again.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use cni::name::{ContainerId, IfName};
use cni::runtime::load::Directory;
use cni::{Context, Error};
use npwg::configuration::{Flavour, Place};
use npwg::definition::Disk;
use npwg::plan::PodIdentity;
use rpc::exchange::{self, Answer, Errand, NetworkFile, Order, Purpose, Question, Reply};
use serde_json::value::RawValue;

use crate::meta_plugin_config::MetaPlugin;
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::interrupt::Interrupt;
use cli_support::output::{Format, Progress};
use cli_support::privilege;
use node_support::weft_cni::{Hands, OnHost};

/// How long the agent may take to have orders, or to say that there are none.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pause after a failure, as the agent may be away, and between two answers that there is nothing to do.
const PAUSE: Duration = Duration::from_secs(2);
/// How often it is looked whether somebody wants us to stop.
const TICK: Duration = Duration::from_millis(200);

/// What `weft executor` is told.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft agent --node-name worker-1 --hot-plug
  weft executor

Running pods get the networks that their annotation selects. In a cluster the executor runs as a DaemonSet
(deploy/hot-plug).

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    /// Path to the configuration of the meta-plugin (default: the first one in /etc/cni/net.d)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    on_host: OnHost,
}

/// Does it, until SIGTERM or SIGINT; an order that is being carried out is finished.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    privilege::require("weft executor", "it changes the networks of pods")?;
    let interrupt = Interrupt::watch()?;
    let hands = Hands::find()?.on_host(arguments.on_host)?;
    // It is asked for before it is needed: whoever starts this wants to know.
    MetaPlugin::find(arguments.config.as_deref(), &[])?;
    let (sender, receiver) = mpsc::sync_channel(0);
    let config = arguments.config.clone();
    // Waiting for the agent cannot be interrupted, so somebody else waits.
    thread::spawn(move || {
        loop {
            let began = Instant::now();
            let told = errand(config.as_deref());
            let pause = pause(&told, began.elapsed());
            if sender.send(told).is_err() {
                return;
            }
            thread::sleep(pause);
        }
    });
    let (log, mut away) = (Progress::beside(Format::Json), false);
    while !interrupt.has_come() {
        match receiver.recv_timeout(TICK) {
            Ok(Ok(errand)) => {
                away = false;
                if !errand.orders.is_empty()
                    && let Err(failure) = hands.run_tasks(&errand)
                {
                    log.line(format!("weft: orders: {failure}"));
                }
            }
            Ok(Err(failure)) => {
                if !std::mem::replace(&mut away, true) {
                    log.line(format!("weft: {failure}; asked again every {} s", PAUSE.as_secs()));
                }
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(Failure::new("nobody asks the agent any more"));
            }
        }
    }
    Ok(())
}

/// How long it is not asked again. An agent lets who asks wait until there is something; a proxy, which has no orders, says so at
/// once, and would each time.
fn pause(told: &Result<Errand, Failure>, took: Duration) -> Duration {
    match told {
        Ok(errand) if !errand.orders.is_empty() => Duration::ZERO,
        Ok(_) => PAUSE.saturating_sub(took),
        Err(_) => PAUSE,
    }
}

/// Asks the agent once; it waits a while until there is something to do.
fn errand(config: Option<&Path>) -> Result<Errand, Failure> {
    // Read each time: what it says may have changed.
    let meta_plugin = MetaPlugin::find(config, &[])?;
    let mut disk = Disk::default();
    for place in meta_plugin.node.places() {
        if let Place::Path(path) = place {
            disk.add(Directory::at(Path::new(&path))?);
        }
    }
    let configuration = RawValue::from_string(meta_plugin.object.to_json())
        .map_err(|cause| Failure::new(format!("encode the configuration: {cause}")))?;
    let multus = meta_plugin.flavour == Flavour::Multus;
    let question = Question {
        version: exchange::VERSION,
        pod: PodIdentity::default(),
        container: ContainerId::new("none")?,
        ifname: IfName::new("eth0")?,
        configuration: configuration.clone(),
        multus,
        files: NetworkFile::all(&disk),
        unreadable: disk.unreadable,
        purpose: Purpose::Orders,
        began: 0,
    };
    let orders = ask(&meta_plugin.node.agent_socket, &question)?;
    Ok(Errand { configuration, multus, orders })
}

fn ask(socket: &str, question: &Question) -> Result<Vec<Order>, Error> {
    let step = || format!("agent {socket}");
    let failed = |cause| Error::io(step(), cause);
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(failed)?;
    exchange::send(&mut stream, question).context(step())?;
    let Reply { answer, orders } = exchange::receive(&mut stream).context(step())?;
    match answer {
        Answer::Noted => Ok(orders),
        Answer::Refused(error) => Err(error.context(step())),
        // It would answer so at once, and again.
        Answer::Plan(_) => Err(Error::config("unexpected reply: a plan instead of tasks")).context(step()),
    }
}

#[cfg(test)]
mod tests {
    use rpc::exchange::Certainty;

    use super::*;

    #[test]
    fn who_says_at_once_that_there_is_nothing_is_not_asked_again_at_once() {
        let container = ContainerId::new("c").unwrap();
        let order = Order::TakeDown { container, uid: "u".into(), certainty: Certainty::Gone };
        let errand = |orders| {
            let configuration = RawValue::from_string("{}".into()).unwrap();
            Ok(Errand { configuration, multus: false, orders })
        };
        assert_eq!(pause(&errand(vec![]), Duration::ZERO), PAUSE);
        assert_eq!(pause(&errand(vec![]), Duration::from_secs(20)), Duration::ZERO);
        assert_eq!(pause(&errand(vec![order]), Duration::ZERO), Duration::ZERO);
        assert_eq!(pause(&Err(Failure::new("away")), Duration::from_secs(60)), PAUSE);
    }
}
