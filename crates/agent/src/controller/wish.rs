//! What a pod wants of Neutron: pure, from the pod, the definitions it selects, and the rules.
//!
//! Rules: a network is Neutron's if its definition has `openstack.org/kuryr-config`; further interfaces are numbered in
//! the order of the annotation, Neutron's alone. The annotation is read by the standard's own reader, so an element
//! without a namespace is in the pod's, whatever stands before it.
//!
//! Source: the specification; Kuryr-Kubernetes `multi_vif.py`; the standard, 4.1.2.

use std::collections::BTreeMap;
use std::net::IpAddr;

use npwg::metadata::{Definition, NetworkReference};
use npwg::selection::{Annotation, Element, Reading};
use serde::Deserialize;

use super::settings::{Driver, Rules};
use super::subject::Subject;

/// The annotation of a definition that makes it Neutron's.
pub(crate) const KURYR_CONFIG: &str = "openstack.org/kuryr-config";
/// Longest of them that is read, in bytes.
const CONFIG_MAX: usize = 16 << 10;

/// One port that a pod wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wish {
    /// Kuryr's name for the interface: `eth0`, `eth1`…
    pub(crate) name: String,
    /// The subnet's id.
    pub(crate) subnet: String,
    /// How it is plugged in.
    pub(crate) driver: Driver,
    /// Addresses that are wanted.
    pub(crate) addresses: Vec<IpAddr>,
    /// The hardware address that is wanted.
    pub(crate) mac: Option<String>,
}

/// What a definition says.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Config {
    subnet_id: Option<String>,
    driver_type: Option<String>,
}

/// The definitions a pod selects, by name.
///
/// # Errors
/// The annotation is invalid.
pub(crate) fn selected(subject: &Subject, rules: &Rules) -> Result<Vec<Element>, String> {
    let pod = &subject.pod;
    let annotation = Annotation::Networks;
    let Some(text) = pod.annotations.get(annotation.key()).filter(|_| rules.reads_annotation()) else {
        return Ok(Vec::new());
    };
    let reading = Reading::of(annotation, text, &pod.namespace);
    reading.settle().map(|selection| selection.elements).map_err(|refusal| refusal.to_string())
}

/// All ports that a pod wants.
///
/// # Errors
/// What cannot be wanted, with a path through it.
pub(crate) fn wishes(
    elements: &[Element],
    definitions: &BTreeMap<NetworkReference, Definition>,
    rules: &Rules,
) -> Result<Vec<Wish>, String> {
    let mut wishes = Vec::new();
    if rules.default_network {
        wishes.push(Wish {
            name: neutron::pod_state::DEFAULT.to_owned(),
            subnet: rules.pod_subnet.clone(),
            driver: rules.pod_vif_driver,
            addresses: Vec::new(),
            mac: None,
        });
    }
    let mut number = 0;
    for element in elements {
        let network = &element.network;
        let Some(definition) = definitions.get(network) else {
            return Err(format!("network {network}: no such NetworkAttachmentDefinition"));
        };
        let Some(text) = definition.annotations.get(KURYR_CONFIG) else { continue };
        number += 1;
        let name = format!("{}{number}", rules.additional_ifname_prefix);
        wishes.push(
            wish(name, element, text, rules)
                .map_err(|why| format!("network {network}: {KURYR_CONFIG}: {why}"))?,
        );
    }
    Ok(wishes)
}

fn wish(name: String, element: &Element, text: &str, rules: &Rules) -> Result<Wish, String> {
    if text.len() > CONFIG_MAX {
        return Err(format!("larger than {CONFIG_MAX} bytes"));
    }
    let Config { subnet_id, driver_type } = serde_json::from_str(text).map_err(|cause| cause.to_string())?;
    let driver = match &driver_type {
        None => rules.pod_vif_driver,
        Some(name) => Driver::named(name).map_err(|why| format!("driverType: {why}"))?,
    };
    let mapped = driver_type.and_then(|name| rules.subnet_mapping.get(&name).cloned());
    let subnet = subnet_id.or(mapped).unwrap_or_else(|| rules.pod_subnet.clone());
    let is_id = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if subnet.is_empty() {
        return Err("subnetId is missing, and there is no podSubnet".to_owned());
    }
    if subnet.len() > 64 || !subnet.bytes().all(is_id) {
        return Err(format!("subnetId: {subnet:?} is no id"));
    }
    Ok(Wish {
        name,
        subnet,
        driver,
        addresses: element.ips.iter().map(|ip| ip.address).collect(),
        mac: element.mac.as_ref().map(ToString::to_string),
    })
}
