//! CNI plugin `dhcp`: sends requests to the lease daemon on this node.
//!
//! - DEL succeeds even if the daemon does not run; the lease then expires. The same holds if another program listens on
//!   the socket: no ADD has succeeded there.
//! - Paths, client identity and results are the same as in the Go plugin, but the protocol between plugin and daemon is
//!   not.
//!
//! Source: containernetworking/plugins `plugins/ipam/dhcp` v1.9.1.

use std::path::Path;
use std::time::Duration;

use cni::config::Config;
use cni::invocation::{Attach, Attachment, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::result::Success;
use cni::version::Version;
use cni::{Context, Error, code};
use linux::error::leads_nowhere;
use linux::unix::{Bounded, connect_within};
use plugin_support::log;
use rustix::io::Errno;

use crate::owner::Owner;
use crate::protocol::{self, DaemonAnswer, DaemonRequest};
use plugin_config::dhcp::{PluginConfig, socket_of};

/// The `dhcp` plugin.
pub struct Dhcp;

/// Plugin name.
pub const NAME: &str = "dhcp";
/// Timeout for acquiring a lease; the daemon's own limit is shorter.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Timeout for all other requests.
const OTHER_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for the question whether weft's daemon listens.
const PING_TIMEOUT: Duration = Duration::from_secs(2);

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
        let PluginConfig { socket, families, options, priority, v6_request } =
            PluginConfig::read(&call.config, call.args())?;
        let owner = owner(&call.config, who);
        let netns = netns.clone();
        let daemon_request =
            DaemonRequest::Allocate { owner, netns, options, priority, families, v6_request };
        request_lease(&socket, &daemon_request, ACQUIRE_TIMEOUT)
    }

    fn del(&self, request: &Detach, _: &dyn Invoke) -> Result<(), Error> {
        let Detach { who, netns: _, call } = request;
        let daemon_request = DaemonRequest::Release { owner: owner(&call.config, who) };
        release(&socket_of(&call.config), &daemon_request)
    }

    fn check(&self, request: &Attach, _: &dyn Invoke) -> Result<(), Error> {
        let Attach { who, netns: _, call } = request;
        let PluginConfig { socket, families, .. } = PluginConfig::read(&call.config, call.args())?;
        let known = call.config.require_prev_result()?;
        let owner = owner(&call.config, who);
        let lease = request_lease(&socket, &DaemonRequest::Inspect { owner, families }, OTHER_TIMEOUT)?;
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
        release(&socket_of(&request.call.config), &DaemonRequest::Keep { network, valid })
    }

    fn status(&self, request: &Probe, _: &dyn Invoke) -> Result<(), Error> {
        let PluginConfig { socket, .. } = PluginConfig::read(&request.call.config, request.call.args())?;
        send_request(&socket, &DaemonRequest::Ping)
            .map_err(|error| Error { code: code::NOT_AVAILABLE, ..error })
    }
}

fn owner(config: &Config, who: &Attachment) -> Owner {
    Owner {
        container: who.container.to_string(),
        network: config.name.to_string(),
        ifname: who.ifname.to_string(),
    }
}

/// Internal error code for "no daemon listens". It never leaves the plugin; DEL and GC treat it as success.
const NO_DAEMON: u32 = 100;

/// Sends a request of DEL or GC. Succeeds if weft's daemon does not answer: a lease then expires.
fn release(socket: &Path, daemon_request: &DaemonRequest) -> Result<(), Error> {
    match exchange(socket, daemon_request, OTHER_TIMEOUT) {
        Ok(answer) => accepted(answer).map(drop),
        Err(error) if error.code == NO_DAEMON => Ok(()),
        // A daemon that has only failed to answer this request must get it again.
        Err(error)
            if matches!(exchange(socket, &DaemonRequest::Ping, PING_TIMEOUT), Ok(DaemonAnswer::Done)) =>
        {
            Err(visible(error))
        }
        Err(error) => {
            log!("weft: {error}: the dhcp daemon of weft does not answer there, so no lease is released");
            Ok(())
        }
    }
}

fn visible(error: Error) -> Error {
    match error.code {
        NO_DAEMON => Error { code: code::TRY_AGAIN_LATER, ..error },
        _ => error,
    }
}

/// Sends a request whose answer is a lease.
fn request_lease(socket: &Path, daemon_request: &DaemonRequest, wait: Duration) -> Result<Success, Error> {
    match exchange(socket, daemon_request, wait).map_err(visible).and_then(accepted)? {
        DaemonAnswer::Lease(value) => {
            Success::from_value(&value, Version::LATEST).map(|(_, success)| success)
        }
        DaemonAnswer::Done | DaemonAnswer::Refused(_) => {
            Err(Error::internal("the daemon answered a lease request without a lease"))
        }
    }
}

/// Whether no daemon listens: the path leads nowhere, or to a file that is no socket or a socket of another type.
fn is_without_daemon(cause: &std::io::Error) -> bool {
    let refused = [Errno::CONNREFUSED, Errno::PROTOTYPE];
    leads_nowhere(cause) || Errno::from_io_error(cause).is_some_and(|errno| refused.contains(&errno))
}

/// Sends a request whose answer has no data.
fn send_request(socket: &Path, daemon_request: &DaemonRequest) -> Result<(), Error> {
    exchange(socket, daemon_request, OTHER_TIMEOUT).and_then(accepted).map(drop)
}

/// Returns an answer that is no refusal.
fn accepted(answer: DaemonAnswer) -> Result<DaemonAnswer, Error> {
    match answer {
        DaemonAnswer::Refused(error) => Err(error.context("dhcp daemon")),
        answer => Ok(answer),
    }
}

fn exchange(socket: &Path, daemon_request: &DaemonRequest, wait: Duration) -> Result<DaemonAnswer, Error> {
    let daemon = format!("dhcp daemon {}", socket.display());
    let mut stream =
        connect_within(socket, wait.min(OTHER_TIMEOUT)).map_err(|cause| match is_without_daemon(&cause) {
            true => {
                let hint = "is `weft-cni dhcp daemon` running?";
                Error::new(NO_DAEMON, format!("{daemon}: {}; {hint}", linux::Error::io("connect", &cause)))
            }
            false => Error::io(&daemon, cause),
        })?;
    let mut stream = Bounded::within(&mut stream, wait);
    protocol::send(&mut stream, daemon_request).context(&daemon)?;
    protocol::receive(&mut stream).context(&daemon)
}
