//! A container's host end as a bridge port: reflection, isolation, VLANs.

use std::time::{Duration, Instant};

use cni::Error;
use linux::Rtnl;
use linux::link::bridge::{PortVlan, VlanOn};
use linux::link::{BridgePort, Link};
use linux::watch::Watch;
use plugin_config::bridge::{Network, Reflection};
use plugin_config::vlans::Vlans;
use plugin_support::failure::OrRefused;

use crate::interface::inspection::differs;

/// Timeout until a port forwards.
const FORWARDING_TIMEOUT: Duration = Duration::from_millis(2550);

/// VLANs that a port has in the kernel.
pub(super) trait PortVlans {
    /// Sets the VLANs: `bridge vlan add dev PORT vid ID pvid untagged`, after `bridge vlan del` for all
    /// others.
    fn apply(&self, host: &mut Rtnl, port: &Link) -> Result<(), Error>;

    /// Fails unless the port has exactly these VLANs.
    fn inspect(&self, host: &mut Rtnl, port: &Link) -> Result<(), Error>;

    /// Returns all VLANs, sorted; none if the port keeps the bridge's defaults.
    fn wanted(&self) -> Vec<PortVlan>;
}

impl PortVlans for Vlans {
    fn apply(&self, host: &mut Rtnl, port: &Link) -> Result<(), Error> {
        let wanted = self.wanted();
        if wanted.is_empty() {
            return Ok(());
        }
        if !self.preserve_default {
            for vlan in host.port_vlans(port.index, &port.name).or_refused()? {
                if !wanted.contains(&vlan) {
                    // Another ADD may change the same port, the gateway's, at the same time.
                    let gone = host.delete_port_vlan(port.index, &port.name, vlan.id, VlanOn::Port);
                    linux::error::absent_is_fine(gone).or_refused()?;
                }
            }
        }
        for vlan in wanted {
            host.add_port_vlan(port.index, &port.name, vlan, VlanOn::Port).or_refused()?;
        }
        Ok(())
    }

    fn inspect(&self, host: &mut Rtnl, port: &Link) -> Result<(), Error> {
        let wanted = self.wanted();
        if wanted.is_empty() {
            return Ok(());
        }
        let mut present = host.port_vlans(port.index, &port.name).or_refused()?;
        if self.preserve_default {
            present.retain(|vlan| wanted.contains(vlan));
        }
        present.sort_unstable();
        match present == wanted {
            true => Ok(()),
            false => Err(differs(&port.name, "vlans", &listed(&present), &listed(&wanted))),
        }
    }

    fn wanted(&self) -> Vec<PortVlan> {
        if self.access.is_none() && self.trunk.is_empty() {
            return Vec::new();
        }
        // A trunk without `vlan` keeps VLAN 1 for untagged traffic, as before `vlan` existed.
        let native = self.access.unwrap_or(1);
        let untagged = PortVlan { id: native, pvid: true, untagged: true };
        let tagged = |id: &u16| PortVlan { id: *id, pvid: false, untagged: false };
        let trunk = self.trunk.iter().filter(|id| **id != native).map(tagged);
        let mut wanted: Vec<PortVlan> = std::iter::once(untagged).chain(trunk).collect();
        wanted.sort_unstable();
        wanted
    }
}

/// Returns VLANs as text, such as `5 pvid untagged, 10`.
fn listed(vlans: &[PortVlan]) -> String {
    let text = |vlan: &PortVlan| {
        let PortVlan { id, pvid, untagged } = vlan;
        format!("{id}{}{}", if *pvid { " pvid" } else { "" }, if *untagged { " untagged" } else { "" })
    };
    vlans.iter().map(text).collect::<Vec<_>>().join(", ")
}

/// Applies settings that differ from the kernel's defaults.
///
/// `ip link set dev PORT type bridge_slave hairpin on isolated on`
pub(super) fn configure(host: &mut Rtnl, network: &Network, port: &str) -> Result<(), Error> {
    let wanted =
        BridgePort { hairpin: network.reflection == Reflection::Hairpin, isolated: network.port_isolation };
    if wanted == BridgePort::default() && network.vlans.is_none() {
        return Ok(());
    }
    let port = host.link(port).or_refused()?;
    if port.port != Some(wanted) {
        host.change_bridge_port(port.index, &port.name, wanted).or_refused()?;
    }
    network.vlans.apply(host, &port)
}

/// Waits until the bridge forwards the port's traffic, unless `forwarding` is not expected. Returns bridge
/// and port as they are then.
///
/// A bridge gets the carrier from the first port a moment later, and answers for no IPv6 address before. The port is
/// read first: since Linux 6.8 the request makes the kernel process the port's carrier change. Then the port forwards
/// and the bridge has the carrier, which the second read finds.
pub(super) fn await_forwarding(
    host: &mut Rtnl,
    bridge: &str,
    port: &str,
    forwarding: bool,
) -> Result<[Link; 2], Error> {
    let deadline = Instant::now() + FORWARDING_TIMEOUT;
    let mut changes = None;
    loop {
        let [host_end, above] = host.links_named([port, bridge]).or_refused()?;
        if (host_end.running && above.running) || !forwarding {
            return Ok([above, host_end]);
        }
        if Instant::now() >= deadline {
            return Err(Error::internal(format!(
                "bridge port {port} in error state: not up after {} ms",
                FORWARDING_TIMEOUT.as_millis()
            )));
        }
        // Usually the first read finds both. The links are read again after the subscription, which may be too late.
        match &changes {
            Some(changes) => {
                Watch::wait(changes, deadline).or_refused()?;
            }
            None => changes = Some(Watch::links().or_refused()?),
        }
    }
}
