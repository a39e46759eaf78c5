//! The host end of a container's pair as a port of the bridge: reflection, isolation, VLANs.

use std::time::{Duration, Instant};

use cni::Error;
use linux::Rtnl;
use linux::link::bridge::{PortVlan, VlanOn};
use linux::link::{BridgePort, Link};
use linux::watch::Watch;
use plugin_support::failure::OrRefused;

use super::{Network, Reflection, Trunk};
use crate::interface::inspection::differs;

/// Largest VLAN id.
const VLAN_MAX: u16 = 4094;
/// Timeout until a port forwards.
const FORWARDING_TIMEOUT: Duration = Duration::from_millis(2550);

/// Validated VLANs of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Vlans {
    /// VLAN of untagged traffic.
    access: Option<u16>,
    /// VLANs of tagged traffic, sorted, without duplicates.
    trunk: Vec<u16>,
    /// Whether the port keeps the bridge's default VLAN.
    preserve_default: bool,
    /// Whether `vlanTrunk` is present, even if empty: the bridge filters then, as with the reference plugin.
    trunk_written: bool,
}

impl Vlans {
    pub(super) fn check(
        bridge: &str,
        vlan: u16,
        trunk: Option<Vec<Trunk>>,
        preserve_default: bool,
    ) -> Result<Vlans, Error> {
        if vlan > VLAN_MAX {
            return Err(Error::key("vlan", vlan, format!("not within 0..={VLAN_MAX}, bridge {bridge}")));
        }
        let trunk_written = trunk.is_some();
        let trunk = trunk.map(ids).transpose()?.unwrap_or_default();
        Ok(Vlans { access: (vlan != 0).then_some(vlan), trunk, preserve_default, trunk_written })
    }

    pub(super) fn is_none(&self) -> bool {
        self.access.is_none() && !self.trunk_written
    }

    pub(super) fn access(&self) -> Option<u16> {
        self.access
    }

    /// Returns the VLANs without the trunk, for the gateway's port.
    pub(super) fn access_only(&self) -> Vlans {
        Vlans { trunk: Vec::new(), ..self.clone() }
    }

    /// Sets the VLANs: `bridge vlan add dev PORT vid ID pvid untagged`, after `bridge vlan del` of all others.
    pub(super) fn apply(&self, host: &mut Rtnl, port: &Link) -> Result<(), Error> {
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

    /// Fails unless the port has exactly these VLANs.
    pub(super) fn inspect(&self, host: &mut Rtnl, port: &Link) -> Result<(), Error> {
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

    /// Returns all VLANs, sorted; none if the port keeps the bridge's defaults.
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

impl Trunk {
    /// Adds the ids of one entry to `has`: a range, a single one, or both.
    fn mark(self, index: usize, has: &mut [bool]) -> Result<(), Error> {
        let Trunk { min_id, max_id, id } = self;
        let legal = |key: &str, value: i64| {
            let within = usize::try_from(value).ok().filter(|id| (1..=usize::from(VLAN_MAX)).contains(id));
            within.ok_or_else(|| {
                Error::key(format!("vlanTrunk[{index}].{key}"), value, format!("not within 1..={VLAN_MAX}"))
            })
        };
        let missing = |key: &str, other: &str| {
            Error::key(format!("vlanTrunk[{index}].{key}"), "missing", format!("required with {other}"))
        };
        match (min_id, max_id) {
            (None, None) => {}
            (Some(_), None) => return Err(missing("maxID", "minID")),
            (None, Some(_)) => return Err(missing("minID", "maxID")),
            (Some(min), Some(max)) => {
                let (min, max) = (legal("minID", min)?, legal("maxID", max)?);
                if min > max {
                    return Err(Error::key(
                        format!("vlanTrunk[{index}].minID"),
                        min,
                        format!("greater than maxID {max}"),
                    ));
                }
                has[min..=max].fill(true);
            }
        }
        if let Some(id) = id {
            has[legal("id", id)?] = true;
        }
        Ok(())
    }
}

/// Returns the ids of all entries, sorted, without duplicates.
fn ids(trunk: Vec<Trunk>) -> Result<Vec<u16>, Error> {
    let mut has = [false; VLAN_MAX as usize + 1];
    for (index, entry) in trunk.into_iter().enumerate() {
        entry.mark(index, &mut has)?;
    }
    Ok((1..=VLAN_MAX).filter(|id| has[usize::from(*id)]).collect())
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

/// Waits until the bridge forwards traffic of the port, unless `forwarding` is not expected. Returns bridge and port as
/// they are then.
///
/// A bridge gets its carrier from its first port a moment later, and answers for no IPv6 address before. The port is
/// read first: since Linux 6.8 the request makes the kernel process the port's change of carrier. Then the port
/// forwards and the bridge has its carrier, which the second read finds.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vlan_trunk_is_sorted_without_duplicates_and_fast() {
        let started = Instant::now();
        let entry = |min, max, id| Trunk { min_id: min, max_id: max, id };
        let mut trunk = vec![entry(Some(7), Some(9), Some(2)), entry(None, None, Some(8))];
        let ids = |trunk| Vlans::check("br0", 0, Some(trunk), false).map(|vlans| vlans.trunk);
        assert_eq!(ids(trunk).unwrap(), [2, 7, 8, 9]);
        // As many entries as the maximum size of a configuration allows.
        trunk = (0..35_000).map(|_| entry(Some(1), Some(4094), None)).collect();
        assert_eq!(ids(trunk).unwrap().len(), 4094);
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    }
}
