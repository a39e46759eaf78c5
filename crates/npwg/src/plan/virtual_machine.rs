//! KubeVirt virtual machine that a pod runs: addresses follow the machine instead of the pod.
//!
//! The name is passed to weft's IPAM plugins in `args.cni`. It is a proposal: the node agent compares it with
//! the pod and the VirtualMachineInstance before an address is leased.
//!
//! Source: kubevirt/kubevirt, pods `virt-launcher-…`; kubevirt/ipam-extensions, `allowPersistentIPs`.

use cni::network::Network;
use cni::object::Object;
use serde_json::Value;

use crate::metadata::Pod;

/// Option in a definition: whether virtual machines keep addresses. With weft they do by default.
const ALLOW: &str = "allowPersistentIPs";
/// IPAM plugin types that keep addresses.
const PLUGINS: [&str; 2] = ["weft-ipam", "whereabouts"];

/// Returns the virtual machine whose addresses a network keeps, if the pod runs one.
pub(super) fn kept_for<'a>(pod: &'a Pod, network: &Network) -> Option<&'a str> {
    let machine = pod.controller.as_ref().filter(|owner| owner.is_virtual_machine())?;
    let list = Object::parse(network.bytes(), "config").ok()?;
    let denies = |object: &Object| matches!(object.read::<Value>(ALLOW), Ok(Some(Value::Bool(false))));
    if denies(&list) || network.plugins.iter().any(denies) {
        return None;
    }
    let keeps = |plugin: &Object| {
        let ipam = plugin.read_object("ipam").ok().flatten()?;
        ipam.text("type").ok().flatten().filter(|name| PLUGINS.contains(&name.as_str()))
    };
    network.plugins.iter().any(|plugin| keeps(plugin).is_some()).then_some(machine.name.as_str())
}
