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
//! Source: containernetworking/plugins `plugins/ipam/dhcp` v1.9.1; RFC 2131; RFC 8415, which it has not ([`v6`]).

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
pub mod terms;
pub mod v6;
pub mod wire;

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni::config::Config;
use cni::fold::quote;
use cni::invocation::{Attach, Attachment, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::result::Success;
use cni::version::Version;
use cni::{Context, Error, code};
use linux::unix::{Bounded, connect_within};
use serde::Deserialize;
use serde_json::Value;

use self::options::{Options, Provide, Request};
use self::v6::Wish;
use self::wire::{Answer, Family, Owner, Question};

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
    /// A bridge's: duplicates of addresses are looked for.
    enabledad: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct IpamConf {
    #[serde(rename = "daemonSocketPath")]
    daemon_socket_path: String,
    provide: Vec<Provide>,
    request: Vec<Request>,
    priority: u32,
    families: Option<Vec<Value>>,
    #[serde(rename = "provideV6")]
    provide_v6: Vec<Provide>,
    #[serde(rename = "requestV6")]
    request_v6: Vec<Request>,
    #[serde(rename = "prefixLengthV6")]
    prefix_length_v6: Option<u8>,
}

/// Checked.
#[derive(Debug)]
struct Network {
    socket: PathBuf,
    /// In order, each once.
    families: Vec<Family>,
    options: Options,
    /// Metric of the routes.
    priority: Option<u32>,
    wish: Wish,
}

impl Network {
    fn read(config: &Config, args: &str) -> Result<Network, Error> {
        let Conf { ipam, enabledad } = config.decode()?;
        let IpamConf {
            daemon_socket_path,
            provide,
            request,
            priority,
            families,
            provide_v6,
            request_v6,
            prefix_length_v6,
        } = ipam;
        let families = families.as_deref().map_or_else(|| Ok(Family::default_ones()), read_families)?;
        let of_v6 = [
            ("provideV6", !provide_v6.is_empty()),
            ("requestV6", !request_v6.is_empty()),
            ("prefixLengthV6", prefix_length_v6.is_some()),
        ];
        if let Some((key, _)) = of_v6.iter().find(|(_, is_there)| *is_there)
            && !families.contains(&Family::Ipv6)
        {
            return Err(Error::config(format!(
                "ipam.{key}: has no meaning without \"ipv6\" in ipam.families"
            )));
        }
        Ok(Network {
            socket: socket(&daemon_socket_path)?,
            families,
            options: Options::read(&provide, &request, args)?,
            priority: (priority > 0).then_some(priority),
            wish: Wish {
                options: v6::options::Options::read(&provide_v6, &request_v6, args)?,
                prefix_length: check_prefix_length(prefix_length_v6)?,
                detect_duplicates: enabledad,
            },
        })
    }
}

fn read_families(listed: &[Value]) -> Result<Vec<Family>, Error> {
    let mut families = Vec::new();
    for (at, value) in listed.iter().enumerate() {
        let key = format!("ipam.families[{at}]");
        let family = match value.as_str() {
            Some("ipv4") => Family::Ipv4,
            Some("ipv6") => Family::Ipv6,
            _ => return Err(Error::key(key, quote(value), "neither \"ipv4\" nor \"ipv6\"")),
        };
        if families.contains(&family) {
            return Err(Error::key(key, quote(value), "is there already"));
        }
        families.push(family);
    }
    families.sort_unstable();
    match families.is_empty() {
        true => Err(Error::key("ipam.families", "[]", "one of \"ipv4\", \"ipv6\" at least")),
        false => Ok(families),
    }
}

fn check_prefix_length(length: Option<u8>) -> Result<u8, Error> {
    match length {
        None => Ok(v6::PREFIX_LENGTH),
        Some(length) if (1..=v6::PREFIX_LENGTH).contains(&length) => Ok(length),
        Some(length) => Err(Error::key("ipam.prefixLengthV6", length, "not within 1..=128")),
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
        let Network { socket, families, options, priority, wish } = Network::read(&call.config, call.args())?;
        let owner = owner(&call.config, who);
        let netns = netns.clone();
        let has = |success: &Success, family: &Family| {
            success.ips.iter().any(|ip| ip.address.addr().is_ipv6() == (*family == Family::Ipv6))
        };
        let release = Question::Release { owner: owner.clone() };
        let wanted = families.clone();
        let question = Question::Allocate { owner, netns, options, priority, families, wish };
        let success = ask(&socket, &question, ACQUIRE)?;
        if wanted.iter().all(|family| has(&success, family)) {
            return Ok(success);
        }
        let undone = tell(&socket, &release).map_err(visible).err();
        let why = "the daemon is of before ipam.families: start it again, with this program";
        Err(Error::internal(why).also(undone))
    }

    fn del(&self, request: &Detach, _: &dyn Invoke) -> Result<(), Error> {
        let Detach { who, netns: _, call } = request;
        let question = Question::Release { owner: owner(&call.config, who) };
        without_daemon(tell(&socket_of(&call.config)?, &question))
    }

    fn check(&self, request: &Attach, _: &dyn Invoke) -> Result<(), Error> {
        let Attach { who, netns: _, call } = request;
        let Network { socket, families, .. } = Network::read(&call.config, call.args())?;
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
    let mut stream = Bounded::within(&mut stream, wait);
    wire::send(&mut stream, question).context(&place)?;
    match wire::receive(&mut stream).context(&place)? {
        Answer::Refused(error) => Err(error.context("dhcp daemon")),
        answer => Ok(answer),
    }
}
