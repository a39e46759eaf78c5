//! `loopback`: sets the container's `lo` up.
//!
//! CNI_IFNAME is ignored: every namespace has exactly one loopback interface. If the plugin is in a chain,
//! the previous plugin's result is passed through.
//!
//! Source: containernetworking/plugins `plugins/main/loopback` v1.9.1.

use cni::Error;
use cni::invocation::{Attach, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::result::{Interface, IpConfig, Success};
use linux::link::{Change, mac_text};
use linux::{Kind, Netns};
use plugin_support::failure::OrRefused;
use plugin_support::netns::open_netns;

use crate::interface::link_in;

/// Plugin `loopback`.
pub struct Loopback;

const NAME: &str = "loopback";
const LO: &str = "lo";

impl Plugin for Loopback {
    fn name(&self) -> &'static str {
        NAME
    }

    fn add(&self, request: &Attach, _: &dyn Invoke) -> Result<Success, Error> {
        let previous = request.call.config.prev_result()?;
        let netns = open_netns(&request.netns)?;
        let (mut net, link) = link_in(&netns, LO)?;
        // Read before any change; the kernel adds the loopback addresses when `lo` is set up.
        let there = net.addresses(link.index, LO).or_refused()?;
        let foreign = there.iter().find(|address| !address.address.addr().is_loopback());
        if let (Some(foreign), None) = (foreign, &previous) {
            return Err(Error::internal(format!(
                "{LO} has the address {}, which is no loopback address",
                foreign.address
            )));
        }
        net.change_link(link.index, LO, &Change { up: Some(true), ..Change::default() }).or_refused()?;
        if let Some(previous) = previous {
            return Ok(previous);
        }
        let mut addresses = net.addresses(link.index, LO).or_refused()?;
        addresses.sort_by_key(|address| address.address.addr().is_ipv6());
        let interface = Interface {
            name: LO.to_owned(),
            mac: mac_text(&link.mac),
            sandbox: request.netns.display().to_string(),
            ..Interface::default()
        };
        let ips = addresses.iter().map(|address| IpConfig {
            interface: Some(0),
            address: address.address,
            gateway: None,
        });
        Ok(Success { interfaces: vec![interface], ips: ips.collect(), ..Success::default() })
    }

    fn del(&self, request: &Detach, _: &dyn Invoke) -> Result<(), Error> {
        let Some(path) = &request.netns else { return Ok(()) };
        let Some(netns) = Netns::find(path).or_refused()? else { return Ok(()) };
        let (mut net, link) = link_in(&netns, LO)?;
        match net.change_link(link.index, LO, &Change { up: Some(false), ..Change::default() }) {
            Err(error) if error.kind() == Kind::Absent => Ok(()),
            other => other.or_refused(),
        }
    }

    fn check(&self, request: &Attach, _: &dyn Invoke) -> Result<(), Error> {
        let netns = open_netns(&request.netns)?;
        let (_, link) = link_in(&netns, LO)?;
        match link.up {
            true => Ok(()),
            false => Err(Error::internal(format!("{LO} is down"))),
        }
    }

    // No object of this plugin outlives the container's namespace.
    fn gc(&self, _: &Sweep, _: &dyn Invoke) -> Result<(), Error> {
        Ok(())
    }

    fn status(&self, _: &Probe, _: &dyn Invoke) -> Result<(), Error> {
        Ok(())
    }
}
