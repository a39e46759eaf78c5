//! Neutron ports in a plan: waits for the pod's ports and puts a description of them into the plan.
//!
//! ```text
//!   plan (delegates of type neutron, without a port) ─► PodState (annotation, KuryrPort) ─► plan with `vif`
//! ```
//!
//! - The plan, and so the journal, contains the whole description of each port. Nothing is looked up on the node.
//! - Further ports have the numbers that the controller gives them: in the order of the selection, counting only definitions
//!   with `openstack.org/kuryr-config`. The controller's configuration determines the prefix before the number.
//! - A running pod gets no further Neutron port, because the port numbers could change.
//! - A definition with `openstack.org/kuryr-config` and no plugin of type neutron, as Kuryr uses them, becomes a
//!   neutron network.

use std::collections::BTreeSet;
use std::time::Duration;

use cni::{Error, code};
use neutron::pod_state::PodState;
use neutron::vif::{Kind, Vif};
use npwg::plan::{Held, Plan, Role};
use serde_json::{Value, json};

use kube_support::kuryr::definition::{PLUGIN, plugins};

/// Deadline for a pod's ports to be written; shorter than the deadline for a response.
pub(crate) const PORTS_MAX: Duration = Duration::from_secs(20);
/// Index of a delegate that needs a port, and the port's number; the default network's port is 0.
pub(crate) type WantedPort = (usize, usize);

/// Returns the ports that a plan needs, without those that a running pod already has.
///
/// # Errors
/// A running pod selects a further port: the numbers follow the selection order, so they could change.
pub(crate) fn wanted(
    plan: &Plan,
    networks: &BTreeSet<String>,
    held: &[Held],
) -> Result<Vec<WantedPort>, Error> {
    let mut number = 0;
    let mut wanted = Vec::new();
    for (index, delegate) in plan.delegates.iter().enumerate() {
        let selected = delegate.role == Role::Selected && networks.contains(&delegate.network);
        number += usize::from(selected);
        let config: Value = serde_json::from_str(&delegate.config).unwrap_or_default();
        let Some(plugin) = plugins(&config).find(|plugin| plugin["type"] == PLUGIN) else { continue };
        let is_held = |held: &Held| held.is(&delegate.network, &delegate.ifname);
        // A port in the definition's own configuration stays.
        if !plugin["vif"].is_null() || held.iter().any(is_held) {
            continue;
        }
        match delegate.role {
            _ if !held.is_empty() && selected => {
                let why =
                    format!("network {}: a running pod cannot get a further Neutron port", delegate.network);
                return Err(Error::config(why).details("recreate the pod"));
            }
            Role::Default => wanted.push((index, 0)),
            _ if selected => wanted.push((index, number)),
            _ => {}
        }
    }
    Ok(wanted)
}

/// Puts the ports into the plan. The result is false if one is not written yet.
///
/// # Errors
/// The plugin neutron cannot connect a port.
pub(crate) fn put(plan: &mut Plan, wanted: &[WantedPort], state: &PodState) -> Result<bool, Error> {
    if wanted.iter().any(|(_, number)| find(state, *number).is_none()) {
        return Ok(false);
    }
    for (index, number) in wanted {
        let (Some((name, vif)), Some(delegate)) = (find(state, *number), plan.delegates.get_mut(*index))
        else {
            continue;
        };
        let described = describe(vif, delegate.role)
            .map_err(|why| Error::config(format!("port {} ({name}): {why}", vif.id)))?;
        let mut config: Value = serde_json::from_str(&delegate.config)
            .map_err(|cause| Error::internal(format!("{}: {cause}", delegate.network)))?;
        let list = match config.get_mut("plugins").and_then(Value::as_array_mut) {
            Some(list) => list.iter_mut().find(|plugin| plugin["type"] == PLUGIN),
            None => Some(&mut config),
        };
        if let Some(plugin) = list {
            plugin["vif"] = described;
        }
        delegate.config = config.to_string();
    }
    Ok(true)
}

/// Finds the port with a number. The prefix before the number depends on the controller's configuration.
fn find(state: &PodState, number: usize) -> Option<(&str, &Vif)> {
    let is_it = |name: &str| {
        let letters = name.trim_end_matches(|last: char| last.is_ascii_digit());
        name[letters.len()..].parse() == Ok(number)
    };
    match number {
        0 => state.vifs().find(|(name, _)| *name == neutron::pod_state::DEFAULT),
        _ => state.additional.iter().map(|(name, vif)| (name.as_str(), vif)).find(|(name, _)| is_it(name)),
    }
}

/// Returns the error for ports that were not written in time.
pub(crate) fn missing(wanted: &[WantedPort], state: Option<&PodState>) -> Error {
    let lacks = |number: &usize| state.is_none_or(|state| find(state, *number).is_none());
    let names = wanted.iter().map(|(_, number)| *number).filter(lacks);
    let names: Vec<String> = names.map(|number| format!("eth{number}")).collect();
    let why = format!("no Neutron port for {} has been written yet", names.join(", "));
    Error::new(code::TRY_AGAIN_LATER, why).details(
        "check that `weft controller --neutron` runs; an Event of the pod has the reason if it failed",
    )
}

/// VIF in a class that the plugin neutron does not support.
#[derive(Debug, thiserror::Error)]
#[error("{class} is not supported by the plugin neutron")]
struct ForeignVif {
    /// VIF class.
    class: String,
}

/// Returns what the plugin's configuration says about a port.
fn describe(vif: &Vif, role: Role) -> Result<Value, ForeignVif> {
    let (kind, bridge, vlan) = match &vif.kind {
        Kind::OpenVSwitch { bridge } => ("ovs", Some(bridge), None),
        Kind::Bridge { .. } => ("bridge", vif.network.bridge.as_ref(), None),
        Kind::VlanNested { vlan_id } => ("vlan", None, Some(vlan_id)),
        Kind::MacvlanNested => ("macvlan", None, None),
        Kind::Foreign { name, .. } => {
            return Err(ForeignVif { class: name.clone() });
        }
    };
    let (mut ips, mut routes, mut servers) = (Vec::new(), Vec::new(), Vec::new());
    for subnet in &vif.network.subnets {
        for ip in &subnet.ips {
            ips.push(
                json!({ "address": format!("{ip}/{}", subnet.cidr.prefix_len()), "gateway": subnet.gateway }),
            );
        }
        routes.extend(subnet.routes.iter().map(|route| json!({ "dst": route.cidr, "gw": route.gateway })));
        if let Some(gateway) = subnet.gateway.filter(|_| role == Role::Default && !subnet.ips.is_empty()) {
            let all = if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
            routes.push(json!({ "dst": all, "gw": gateway }));
        }
        servers.extend(subnet.dns.iter().map(ToString::to_string));
    }
    Ok(json!({
        "id": vif.id, "mac": vif.address, "kind": kind, "bridge": bridge.cloned().unwrap_or_default(),
        "vlanId": vlan.copied().unwrap_or_default(), "mtu": vif.network.mtu.unwrap_or_default(),
        "result": { "ips": ips, "routes": routes, "dns": { "nameservers": servers } },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neutron_port_default_route_needs_gateway_and_default_role() {
        let golden = include_str!("../../neutron/testdata/podstate-nochanges.json");
        let state = PodState::from_annotation(golden).unwrap();
        let routes =
            |name: &str, role| describe(state.vif(name).unwrap(), role).unwrap()["result"]["routes"].clone();
        assert_eq!(routes("eth0", Role::Default), json!([{ "dst": "0.0.0.0/0", "gw": "10.1.0.1" }]));
        assert_eq!(routes("eth1", Role::Selected), json!([{ "dst": "203.0.113.0/24", "gw": "192.0.2.254" }]));
        assert_eq!(routes("eth2", Role::Default), json!([]));
    }
}
