//! Kernel baseline: makes the same changes through rtnetlink in this process, which is the lower bound for any plugin.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use linux::link::Change;
use linux::link::create::{NewKind, NewLink, Peer, Queues};
use linux::route::{Existing, Route};
use linux::sysctl::{self, Family};
use linux::{Netns, Rtnl};

use crate::call::{Container, SETTLING};
use benches::Failure;

const BRIDGE: &str = "baseline0";

/// Times how a bridge port with an address and a default route is created, and removed.
pub(crate) fn bridge_port(container: &Container, number: usize) -> Result<(Duration, Duration), Failure> {
    let mut host = Rtnl::open()?;
    let bridge = match host.find_link(BRIDGE)? {
        Some(bridge) => bridge,
        None => {
            host.add_link(&NewLink::new(BRIDGE, NewKind::Bridge { vlan_filtering: false }))?;
            let bridge = host.link(BRIDGE)?;
            host.set_up(bridge.index, BRIDGE)?;
            bridge
        }
    };
    let started = Instant::now();
    let netns = Netns::open(Path::new(&container.netns))?;
    let mut inside = attach(&mut host, &netns, bridge.index, (&format!("baseline{number}p"), "eth0"), 255)?;
    let link = inside.link("eth0")?;
    let gateway = Some("10.255.0.1".parse()?);
    inside.add_route(&Route::new("0.0.0.0/0".parse()?, link.index, gateway), Existing::Refuse)?;
    let added = started.elapsed();
    sleep(SETTLING);
    let started = Instant::now();
    inside.delete_link(link.index, "eth0")?;
    Ok((added, started.elapsed()))
}

/// Times the creation of a port with an address on each of these bridges; removes the ports afterwards.
pub(crate) fn bridge_ports(container: &Container, bridges: &[&str]) -> Result<Duration, Failure> {
    let started = Instant::now();
    let ports = attach_ports(container, 0, bridges)?;
    let added = started.elapsed();
    sleep(SETTLING);
    remove_ports(&ports)?;
    Ok(added)
}

/// Creates a port with an address on each of these bridges; returns the port names, which contain the pod's number.
pub(crate) fn attach_ports(
    container: &Container,
    number: usize,
    bridges: &[&str],
) -> Result<Vec<String>, Failure> {
    let mut host = Rtnl::open()?;
    let netns = Netns::open(Path::new(&container.netns))?;
    let mut ports = Vec::new();
    for (second, bridge) in bridges.iter().enumerate() {
        let (port, inside) = (format!("floor{second}n{number}"), format!("net{second}"));
        let bridge = host.link(bridge)?;
        attach(&mut host, &netns, bridge.index, (&port, &inside), second)?;
        ports.push(port);
    }
    Ok(ports)
}

/// Removes ports, all in one request.
pub(crate) fn remove_ports(ports: &[String]) -> Result<(), Failure> {
    let mut host = Rtnl::open()?;
    let mut indexes = Vec::new();
    for port in ports {
        indexes.push(host.link(port)?.index);
    }
    Ok(host.delete_links(&indexes)?)
}

/// Creates a bridge port with these names on the host and inside, and the address 10.SECOND.0.2 inside. Returns the
/// socket in the namespace.
fn attach(
    host: &mut Rtnl,
    netns: &Netns,
    bridge: u32,
    (port, ifname): (&str, &str),
    second: usize,
) -> Result<Rtnl, Failure> {
    let peer = Peer { name: ifname, mtu: None, mac: None, queues: Queues::ONE, netns: Some(netns) };
    let mut pair = NewLink::new(port, NewKind::Veth(peer));
    pair.master = Some(bridge);
    pair.up = true;
    host.add_link(&pair)?;
    let mut inside = netns.rtnl()?;
    let link = inside.link(ifname)?;
    inside.add_address(link.index, ifname, format!("10.{second}.0.2/24").parse()?)?;
    // The same settings as in the plugins. The kernel announces addresses at once, and delivers the packets to each
    // bridge port.
    netns.run(|| {
        [("accept_dad", "0"), ("ndisc_notify", "1")]
            .iter()
            .try_for_each(|(key, value)| sysctl::write_interface(Family::V6, ifname, key, value))
    })??;
    let up = Change { up: Some(true), arp_notify: Some(true), ..Change::default() };
    inside.change_link(link.index, ifname, &up)?;
    Ok(inside)
}

/// Times how a host link with an address is moved into a container, and back.
pub(crate) fn moved_link(container: &Container, name: &str) -> Result<(Duration, Duration), Failure> {
    let started = Instant::now();
    let mut host = Rtnl::open()?;
    let netns = Netns::open(Path::new(&container.netns))?;
    let link = host.link(name)?;
    let there = Change { name: Some("eth0"), up: Some(true), ..Change::default() };
    host.move_link(link.index, name, &netns, &there)?;
    let mut inside = netns.rtnl()?;
    let link = inside.link("eth0")?;
    inside.add_address(link.index, "eth0", "10.255.0.2/24".parse()?)?;
    let added = started.elapsed();
    sleep(SETTLING);
    let started = Instant::now();
    let back = Change { name: Some(name), ..Change::default() };
    inside.move_link(link.index, "eth0", &Netns::own()?, &back)?;
    Ok((added, started.elapsed()))
}

/// Whether this kernel supports a kind of link; if not, this is reported on standard error.
pub(crate) fn can_make(plugin: &str, kind: NewKind<'_>) -> Result<bool, Failure> {
    let mut host = Rtnl::open()?;
    if let Err(error) = host.add_link(&NewLink::new("trial0", kind)) {
        eprintln!("weft-bench: {plugin} is left out: {error}");
        return Ok(false);
    }
    let trial = host.link("trial0")?.index;
    host.delete_link(trial, "trial0")?;
    Ok(true)
}
