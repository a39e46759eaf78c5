//! `dhcp`: addresses from a DHCP server on the container's link, kept by a daemon on the node.
//!
//! ```text
//!   runtime ─► bridge ─► dhcp ─(socket)─► dhcp daemon ─► keeper ─► exchange ─(container's link)─► server
//! ```
//!
//! The plugin lives for one call, a lease for days: so the plugin asks the daemon (`weft-cni dhcp daemon`, or the
//! program called as `dhcp`), which acquires, extends and gives back. Paths, flags, identity of clients and results
//! are the reference plugin's; what plugin and daemon say to each other is not.
//!
//! Rules: DEL never waits for a daemon that is not there; leases outlive the daemon, and the Go plugin's.
//!
//! Source: containernetworking/plugins `plugins/ipam/dhcp` v1.9.1; RFC 2131.

pub mod daemon;
pub mod exchange;
pub mod flags;
pub mod frame;
pub mod keeper;
pub mod lease;
pub mod message;
pub mod options;
pub mod state;
pub mod takeover;
pub mod wire;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni::config::Config;
use cni::invocation::{Attach, Attachment, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::result::Success;
use cni::version::Version;
use cni::{Context, Error, code};
use linux::unix::connect_within;
use serde::Deserialize;

use self::options::{Options, Provide, Request};
use self::wire::{Answer, Owner, Question};

/// The plugin.
pub struct Dhcp;

/// Its name, which others ask for to know how it speaks.
pub const NAME: &str = "dhcp";
/// How long the daemon may take to acquire a lease; its own limit is shorter.
const ACQUIRE: Duration = Duration::from_secs(15 * 60);
/// How long it may take for anything else.
const ELSE: Duration = Duration::from_secs(30);

/// The configuration as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Conf {
    ipam: IpamConf,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct IpamConf {
    #[serde(rename = "daemonSocketPath")]
    daemon_socket_path: String,
    provide: Vec<Provide>,
    request: Vec<Request>,
    priority: u32,
}

/// Checked.
#[derive(Debug)]
struct Network {
    socket: PathBuf,
    options: Options,
    /// Metric of the routes.
    priority: Option<u32>,
}

impl Network {
    fn read(config: &Config, args: &str) -> Result<Network, Error> {
        let Conf { ipam: IpamConf { daemon_socket_path, provide, request, priority } } = config.decode()?;
        Ok(Network {
            socket: socket(&daemon_socket_path)?,
            options: Options::read(&provide, &request, args)?,
            priority: (priority > 0).then_some(priority),
        })
    }
}

/// The daemon's socket alone: a DEL needs nothing else to be right.
fn socket_of(config: &Config) -> Result<PathBuf, Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Outer {
        ipam: Inner,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Inner {
        #[serde(rename = "daemonSocketPath")]
        daemon_socket_path: String,
    }
    let Outer { ipam: Inner { daemon_socket_path } } = config.decode()?;
    socket(&daemon_socket_path)
}

fn socket(text: &str) -> Result<PathBuf, Error> {
    match text {
        "" => Ok(PathBuf::from(flags::SOCKET)),
        path if path.starts_with('/') && path.len() < 108 && !path.contains('\0') => Ok(PathBuf::from(path)),
        path => {
            let why = "not an absolute path of a socket, which has less than 108 bytes";
            Err(Error::key("ipam.daemonSocketPath", format!("{path:?}"), why))
        }
    }
}

// === impl Plugin ===

impl Plugin for Dhcp {
    fn name(&self) -> &'static str {
        NAME
    }

    fn add(&self, request: &Attach, _: &dyn Invoke) -> Result<Success, Error> {
        let Attach { who, netns, call } = request;
        let Network { socket, options, priority } = Network::read(&call.config, call.args())?;
        let owner = owner(&call.config, who);
        let netns = netns.clone();
        ask(&socket, &Question::Allocate { owner, netns, options, priority }, ACQUIRE)
    }

    fn del(&self, request: &Detach, _: &dyn Invoke) -> Result<(), Error> {
        let Detach { who, netns: _, call } = request;
        let question = Question::Release { owner: owner(&call.config, who) };
        without_daemon(tell(&socket_of(&call.config)?, &question))
    }

    fn check(&self, request: &Attach, _: &dyn Invoke) -> Result<(), Error> {
        let Attach { who, netns: _, call } = request;
        let Network { socket, .. } = Network::read(&call.config, call.args())?;
        let known = call.config.require_prev_result()?;
        let lease = ask(&socket, &Question::Inspect { owner: owner(&call.config, who) }, ELSE)?;
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
        let Network { socket, .. } = Network::read(&request.call.config, request.call.args())?;
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
    let failed = |cause| Error::io(&place, cause);
    stream.set_read_timeout(Some(wait)).map_err(failed)?;
    wire::send(&mut stream, question).context(&place)?;
    match wire::receive(&mut stream).context(&place)? {
        Answer::Refused(error) => Err(error.context("dhcp daemon")),
        answer => Ok(answer),
    }
}
