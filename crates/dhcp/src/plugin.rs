//! CNI plugin `dhcp`: asks the lease daemon of this node.
//!
//! - A DEL does not fail when the daemon does not run: the lease then ends by itself.
//! - Paths, client identity and results are the reference plugin's; the protocol between plugin and daemon is not.
//!
//! Source: containernetworking/plugins `plugins/ipam/dhcp` v1.9.1.

use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use cni::config::Config;
use cni::invocation::{Attach, Attachment, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::result::Success;
use cni::version::Version;
use cni::{Context, Error, code};
use linux::unix::{Bounded, connect_within};

use crate::owner::Owner;
use crate::plugin_config::{PluginConfig, socket_of};
use crate::protocol::{self, Answer, Question};

/// The plugin.
pub struct Dhcp;

/// Its name, which others ask for to know how it speaks.
pub const NAME: &str = "dhcp";
/// How long the daemon may take to acquire a lease; its own limit is shorter.
const ACQUIRE: Duration = Duration::from_secs(15 * 60);
/// How long it may take for anything else.
const ELSE: Duration = Duration::from_secs(30);

// === impl Plugin ===

impl Plugin for Dhcp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn releases_through_interface(&self) -> bool {
        true
    }

    fn add(&self, request: &Attach, _: &dyn Invoke) -> Result<Success, Error> {
        let Attach { who, netns, call } = request;
        let PluginConfig { socket, families, options, priority, wish } =
            PluginConfig::read(&call.config, call.args())?;
        let owner = owner(&call.config, who);
        let netns = netns.clone();
        let question = Question::Allocate { owner, netns, options, priority, families, wish };
        ask(&socket, &question, ACQUIRE)
    }

    fn del(&self, request: &Detach, _: &dyn Invoke) -> Result<(), Error> {
        let Detach { who, netns: _, call } = request;
        let question = Question::Release { owner: owner(&call.config, who) };
        without_daemon(tell(&socket_of(&call.config)?, &question))
    }

    fn check(&self, request: &Attach, _: &dyn Invoke) -> Result<(), Error> {
        let Attach { who, netns: _, call } = request;
        let PluginConfig { socket, families, .. } = PluginConfig::read(&call.config, call.args())?;
        let known = call.config.require_prev_result()?;
        let owner = owner(&call.config, who);
        let lease = ask(&socket, &Question::Inspect { owner, families }, ELSE)?;
        match lease.ips.iter().find(|ip| !known.ips.iter().any(|known| known.address == ip.address)) {
            None => Ok(()),
            Some(ip) => {
                Err(Error::internal(format!("the lease is for {}, which prevResult lacks", ip.address)))
            }
        }
    }

    fn gc(&self, request: &Sweep, _: &dyn Invoke) -> Result<(), Error> {
        let Some(valid) = request.valid()? else { return Ok(()) };
        let network = request.call.config.name.to_string();
        without_daemon(tell(&socket_of(&request.call.config)?, &Question::Keep { network, valid }))
    }

    fn status(&self, request: &Probe, _: &dyn Invoke) -> Result<(), Error> {
        let PluginConfig { socket, .. } = PluginConfig::read(&request.call.config, request.call.args())?;
        tell(&socket, &Question::Ping).map_err(|error| Error { code: code::NOT_AVAILABLE, ..error })
    }
}

fn owner(config: &Config, who: &Attachment) -> Owner {
    Owner {
        container: who.container.to_string(),
        network: config.name.to_string(),
        ifname: who.ifname.to_string(),
    }
}

/// The code of «nobody listens», of which DEL makes a success; it never leaves this file.
const NOBODY: u32 = 100;

/// Without a daemon nobody extends a lease: it ends by itself.
fn without_daemon(outcome: Result<(), Error>) -> Result<(), Error> {
    match outcome {
        Err(error) if error.code == NOBODY => Ok(()),
        other => other.map_err(visible),
    }
}

fn visible(error: Error) -> Error {
    match error.code {
        NOBODY => Error { code: code::TRY_AGAIN_LATER, ..error },
        _ => error,
    }
}

/// Asks for a lease.
fn ask(socket: &Path, question: &Question, wait: Duration) -> Result<Success, Error> {
    match converse(socket, question, wait).map_err(visible)? {
        Answer::Lease(value) => Success::from_value(&value, Version::LATEST).map(|(_, success)| success),
        other => Err(Error::internal(format!("the daemon answered {other:?}"))),
    }
}

/// Says something that has no answer but whether it was done.
fn tell(socket: &Path, question: &Question) -> Result<(), Error> {
    converse(socket, question, ELSE).map(|_| ())
}

fn converse(socket: &Path, question: &Question, wait: Duration) -> Result<Answer, Error> {
    let place = format!("dhcp daemon {}", socket.display());
    let mut stream = connect_within(socket, ELSE).map_err(|cause| match cause.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
            let cure = "is `weft-cni dhcp daemon` running?";
            Error::new(NOBODY, format!("{place}: {}; {cure}", linux::Error::io("connect", &cause)))
        }
        _ => Error::io(&place, cause),
    })?;
    let mut stream = Bounded::within(&mut stream, wait);
    protocol::send(&mut stream, question).context(&place)?;
    match protocol::receive(&mut stream).context(&place)? {
        Answer::Refused(error) => Err(error.context("dhcp daemon")),
        answer => Ok(answer),
    }
}
