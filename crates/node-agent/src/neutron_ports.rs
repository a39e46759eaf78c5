//! The Neutron ports of a pod, put into its plan.
//!
//! ```text
//!   plan (delegates of type neutron, without a port) ─► PodState (annotation, KuryrPort) ─► plan with `vif`
//! ```
//!
//! Rules: the plan that goes to the hands, and so the journal, holds the whole description of each port: nothing is
//! looked up on the node. Further ports are numbered as the controller does, in the order of the selection, those alone
//! whose definition has `openstack.org/kuryr-config`; what stands before the number is the controller's own affair. A definition that has it and names no plugin of type neutron, as
//! Kuryr's do, is one of a network of that type.

use std::collections::BTreeSet;
use std::time::Duration;

use cni::{Error, code};
use neutron::pod_state::PodState;
use neutron::vif::{Kind, Vif};
use npwg::plan::{Held, Plan, Role};
use serde_json::{Value, json};

use kube_support::kuryr::definition::{PLUGIN, plugins};

/// How long the ports of a pod are waited for: shorter than an answer may take.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
/// A port that a plan waits for: the delegate's index, and the port's number, 0 for that of the default network.
pub(crate) type Wanted = (usize, usize);

/// The ports that a plan waits for. What a running pod holds already waits for none.
///
/// # Errors
/// A running pod is to get one: ports are numbered in the order of the selection, and one that changes has another.
pub(crate) fn wanted(plan: &Plan, networks: &BTreeSet<String>, held: &[Held]) -> Result<Vec<Wanted>, Error> {
    let mut number = 0;
    let mut wanted = Vec::new();
    for (index, delegate) in plan.delegates.iter().enumerate() {
        let selected = delegate.role == Role::Selected && networks.contains(&delegate.network);
        number += usize::from(selected);
        let config: Value = serde_json::from_str(&delegate.config).unwrap_or_default();
        let Some(plugin) = plugins(&config).find(|plugin| plugin["type"] == PLUGIN) else { continue };
        let is_held = |held: &Held| held.is(&delegate.network, &delegate.ifname);
        // One that somebody wrote down by hand stays.
        if !plugin["vif"].is_null() || held.iter().any(is_held) {
            continue;
        }
        match delegate.role {
            _ if !held.is_empty() && selected => {
                let why = format!("network {}: a running pod gets no port of Neutron", delegate.network);
                return Err(Error::config(why).details("create the pod anew"));
            }
            Role::Default => wanted.push((index, 0)),
            _ if selected => wanted.push((index, number)),
            _ => {}
        }
    }
    Ok(wanted)
}

/// Puts the ports into the plan; false if one of them is not there yet.
///
/// # Errors
/// A port that nobody here can plug in.
pub(crate) fn put(plan: &mut Plan, wanted: &[Wanted], state: &PodState) -> Result<bool, Error> {
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

/// The port of a number: the controller's configuration says what stands before it.
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

/// Why a plan cannot be made yet.
pub(crate) fn missing(wanted: &[Wanted], state: Option<&PodState>) -> Error {
    let lacks = |number: &usize| state.is_none_or(|state| find(state, *number).is_none());
    let names = wanted.iter().map(|(_, number)| *number).filter(lacks);
    let names: Vec<String> = names.map(|number| format!("eth{number}")).collect();
    let why = format!("no Neutron port for {} has been written yet", names.join(", "));
    Error::new(code::TRY_AGAIN_LATER, why)
        .details("`weft controller --neutron` makes them; an Event of the pod says why it has not")
}

/// A VIF of a class that the plugin neutron does not plug in.
#[derive(Debug, thiserror::Error)]
#[error("{class} cannot be plugged in by the plugin neutron")]
struct ForeignVif {
    /// The class of the VIF.
    class: String,
}

/// A port, in the words of the plugin.
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
    fn a_port_without_a_gateway_gets_no_default_route_and_a_further_one_none_either() {
        let golden = include_str!("../../neutron/testdata/podstate-nochanges.json");
        let state = PodState::from_annotation(golden).unwrap();
        let routes =
            |name: &str, role| describe(state.vif(name).unwrap(), role).unwrap()["result"]["routes"].clone();
        assert_eq!(routes("eth0", Role::Default), json!([{ "dst": "0.0.0.0/0", "gw": "10.1.0.1" }]));
        assert_eq!(routes("eth1", Role::Selected), json!([{ "dst": "203.0.113.0/24", "gw": "192.0.2.254" }]));
        assert_eq!(routes("eth2", Role::Default), json!([]));
    }
}
