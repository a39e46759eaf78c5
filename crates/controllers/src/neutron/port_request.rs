//! Port requests: the Neutron ports that a pod needs, computed from the pod, the definitions it selects, and
//! the rules.
//!
//! - The port for the default interface follows the default-network annotation, else the rule for all pods.
//! - A network is a Neutron network if the definition has `openstack.org/kuryr-config`.
//! - Further interfaces are numbered in annotation order, counting Neutron networks only.
//! - The annotation is read like on the node, so an element without a namespace is in the pod's namespace.
//!
//! Source: Kuryr-Kubernetes specification and `multi_vif.py`; multi-network specification (NPWG), section
//! 4.1.2.

use std::collections::BTreeMap;
use std::net::IpAddr;

use manifest::lint::kuryr::KURYR_CONFIG;
use neutron::pod_state::DEFAULT;
use npwg::metadata::{Definition, NetworkReference, Pod};
use npwg::refusal::Refusal;
use npwg::selection::{Annotation, Element, Reading};
use serde::Deserialize;
use thiserror::Error;

use crate::neutron::port_rules::{Driver, Rules, UnknownDriver};
use kube_support::kuryr::definition::is_of_plugin;

/// Maximum size for Kuryr's annotation, in bytes.
const CONFIG_MAX: usize = 16 << 10;

/// Port that a pod requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortRequest {
    /// Interface name in Kuryr: `eth0`, `eth1`…
    pub(crate) name: String,
    /// Subnet id.
    pub(crate) subnet: String,
    /// Driver that plugs the port in.
    pub(crate) driver: Driver,
    /// Addresses that the pod requests.
    pub(crate) addresses: Vec<IpAddr>,
    /// Hardware address that the pod requests.
    pub(crate) mac: Option<String>,
}

/// Content of Kuryr's annotation on a definition.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Config {
    subnet_id: Option<String>,
    driver_type: Option<String>,
}

/// Networks that a pod's annotations select.
#[derive(Debug, Default)]
pub(crate) struct Selected {
    /// Network in place of the node's default network.
    pub(crate) default: Option<Element>,
    /// Additional networks, in annotation order.
    pub(crate) elements: Vec<Element>,
    /// Faults for which an annotation is ignored.
    pub(crate) ignored: Vec<String>,
}

impl Selected {
    /// Returns the selected definitions.
    pub(crate) fn networks(&self) -> impl Iterator<Item = &NetworkReference> {
        self.default.iter().chain(&self.elements).map(|element| &element.network)
    }
}

/// Why a pod's ports cannot be requested.
#[derive(Debug, Error)]
pub(crate) enum RequestError {
    /// The annotations are refused.
    #[error("{0}")]
    Selection(Refusal),
    /// A selected definition does not exist.
    #[error("network {0}: no such NetworkAttachmentDefinition")]
    NoDefinition(NetworkReference),
    /// Kuryr's annotation on a definition is invalid.
    #[error("network {network}: {KURYR_CONFIG}: {error}")]
    Definition {
        /// Definition with the annotation.
        network: NetworkReference,
        /// Error in the annotation.
        error: ConfigError,
    },
}

/// Error in Kuryr's annotation on a definition.
#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    /// The annotation is too large.
    #[error("larger than {CONFIG_MAX} bytes")]
    TooLarge,
    /// The annotation is not the expected JSON.
    #[error("{0}")]
    Form(Box<cni::Error>),
    /// The driver is unknown.
    #[error("driverType: {0}")]
    Driver(UnknownDriver),
    /// There is no subnet.
    #[error("subnetId is missing, and the controller has no podSubnet")]
    NoSubnet,
    /// The subnet is not an id.
    #[error("subnetId: {0:?} is not an id")]
    SubnetId(String),
}

/// Returns the networks that a pod's annotations select. An invalid annotation selects nothing, like on the node. A
/// node that is configured to refuse such a pod does so independently of ports.
///
/// # Errors
/// A selected network cannot be attached.
pub(crate) fn selected(pod: &Pod, rules: &Rules) -> Result<Selected, RequestError> {
    let mut selected = Selected::default();
    let mut read = |annotation: Annotation, home: &str| {
        let Some(text) = pod.annotations.get(annotation.key()) else { return Ok(Vec::new()) };
        match Reading::of(annotation, text, home).settle() {
            Ok(selection) => Ok(selection.elements),
            Err(Refusal::AnnotationInvalid(fault)) => {
                selected.ignored.push(fault.to_string());
                Ok(Vec::new())
            }
            Err(refusal) => Err(RequestError::Selection(refusal)),
        }
    };
    let default = read(Annotation::DefaultNetwork, &rules.multus_namespace)?.into_iter().next();
    let elements =
        if rules.reads_annotation() { read(Annotation::Networks, &pod.namespace)? } else { Vec::new() };
    Ok(Selected { default, elements, ..selected })
}

/// Returns all ports that a pod requests.
///
/// # Errors
/// A definition is missing or invalid.
pub(crate) fn requests(
    selected: &Selected,
    definitions: &BTreeMap<NetworkReference, Definition>,
    rules: &Rules,
) -> Result<Vec<PortRequest>, RequestError> {
    let find = |element: &Element| {
        let network = &element.network;
        let found = definitions.get(network);
        found.ok_or_else(|| RequestError::NoDefinition(network.clone()))
    };
    let of = |name: String, element: &Element, text: &str| {
        request(name, element, text, rules)
            .map_err(|error| RequestError::Definition { network: element.network.clone(), error })
    };
    let mut requests = Vec::new();
    match &selected.default {
        None if rules.default_network => requests.push(default_request(rules)),
        None => {}
        Some(element) => {
            let definition = find(element)?;
            match definition.annotations.get(KURYR_CONFIG) {
                Some(text) => requests.push(of(DEFAULT.to_owned(), element, text)?),
                None if is_of_plugin(&definition.config) && !rules.pod_subnet.is_empty() => {
                    requests.push(default_request(rules));
                }
                // The network is not a Neutron network.
                None => {}
            }
        }
    }
    let mut number = 0;
    for element in &selected.elements {
        let Some(text) = find(element)?.annotations.get(KURYR_CONFIG) else { continue };
        number += 1;
        requests.push(of(format!("{}{number}", rules.additional_ifname_prefix), element, text)?);
    }
    Ok(requests)
}

fn default_request(rules: &Rules) -> PortRequest {
    PortRequest {
        name: DEFAULT.to_owned(),
        subnet: rules.pod_subnet.clone(),
        driver: rules.pod_vif_driver,
        addresses: Vec::new(),
        mac: None,
    }
}

fn request(name: String, element: &Element, text: &str, rules: &Rules) -> Result<PortRequest, ConfigError> {
    if text.len() > CONFIG_MAX {
        return Err(ConfigError::TooLarge);
    }
    let config = cni::fold::strict_from_slice(text.as_bytes(), "");
    let Config { subnet_id, driver_type } = config.map_err(|error| ConfigError::Form(Box::new(error)))?;
    let driver = match &driver_type {
        None => rules.pod_vif_driver,
        Some(name) => Driver::named(name).map_err(ConfigError::Driver)?,
    };
    let mapped = driver_type.and_then(|name| rules.subnet_mapping.get(&name).cloned());
    let subnet = subnet_id.or(mapped).unwrap_or_else(|| rules.pod_subnet.clone());
    let is_id = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if subnet.is_empty() {
        return Err(ConfigError::NoSubnet);
    }
    if subnet.len() > 64 || !subnet.bytes().all(is_id) {
        return Err(ConfigError::SubnetId(subnet));
    }
    Ok(PortRequest {
        name,
        subnet,
        driver,
        addresses: element.ips.iter().map(|ip| ip.address).collect(),
        mac: element.mac.as_ref().map(ToString::to_string),
    })
}

#[cfg(test)]
mod tests {
    use npwg::metadata::SpecConfig;

    use super::*;

    fn requested(
        annotations: &[(&str, &str)],
        rules: &Rules,
    ) -> Result<(Vec<(String, String)>, usize), RequestError> {
        let definition = |namespace: &str, name: &str, config: &str, kuryr: Option<&str>| {
            let annotations =
                kuryr.map(|text| (KURYR_CONFIG.to_owned(), text.to_owned())).into_iter().collect();
            let config = SpecConfig::Text(config.to_owned());
            let definition =
                Definition { namespace: namespace.into(), name: name.into(), annotations, config };
            (definition.reference(), definition)
        };
        let definitions = BTreeMap::from([
            definition("kube-system", "own", "", Some(r#"{"subnetId":"s-own"}"#)),
            definition("kube-system", "plain", r#"{"type":"neutron"}"#, None),
            definition("kube-system", "bridge", r#"{"type":"bridge"}"#, None),
            definition("n", "a", "", Some(r#"{"subnetId":"s-a"}"#)),
        ]);
        let annotations =
            annotations.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
        let pod = Pod { namespace: "n".into(), annotations, ..Pod::default() };
        let selected = selected(&pod, rules)?;
        let requests = requests(&selected, &definitions, rules)?;
        Ok((
            requests.into_iter().map(|request| (request.name, request.subnet)).collect(),
            selected.ignored.len(),
        ))
    }

    #[test]
    fn port_request_of_eth0_follows_the_default_network_annotation() {
        let (networks, default) = (Annotation::Networks.key(), Annotation::DefaultNetwork.key());
        let everywhere = Rules { default_network: true, pod_subnet: "s-pod".into(), ..Rules::default() };
        let names = |annotations: &[(&str, &str)], rules: &Rules| {
            let (requests, ignored) = requested(annotations, rules).unwrap();
            assert_eq!(ignored, 0);
            requests.into_iter().map(|(name, subnet)| format!("{name} {subnet}")).collect::<Vec<_>>()
        };
        assert_eq!(names(&[(networks, "a")], &everywhere), ["eth0 s-pod", "eth1 s-a"]);
        assert_eq!(names(&[(default, "own"), (networks, "a")], &everywhere), ["eth0 s-own", "eth1 s-a"]);
        assert_eq!(names(&[(default, "plain")], &everywhere), ["eth0 s-pod"]);
        assert_eq!(names(&[(default, "bridge")], &everywhere), [""; 0]);
        assert_eq!(names(&[(default, "own")], &Rules::default()), ["eth0 s-own"]);
        assert_eq!(names(&[], &Rules::default()), [""; 0]);
        assert!(
            requested(&[(default, "nowhere")], &everywhere)
                .unwrap_err()
                .to_string()
                .contains("kube-system/nowhere")
        );
    }

    #[test]
    fn port_request_error_of_an_annotation_names_key_and_value() {
        let element = Reading::of(Annotation::Networks, "a", "ns").elements.remove(0);
        for (text, expected) in [
            ("{\"subnetId\": 7}", "subnetId: 7: expected a string"),
            ("{\"subnetId\": }", "not valid JSON: a value is missing or misspelt at line 1 column 14"),
            ("[]", "[]: expected an object"),
        ] {
            let error =
                request("eth1".to_owned(), &element, text, &Rules::default()).unwrap_err().to_string();
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn port_request_of_eth0_survives_an_invalid_annotation() {
        let rules = Rules { default_network: true, pod_subnet: "s-pod".into(), ..Rules::default() };
        let (requests, ignored) =
            requested(&[(Annotation::Networks.key(), r#"[{"name":"a","ips":[]}]"#)], &rules).unwrap();
        assert_eq!((requests, ignored), (vec![("eth0".to_owned(), "s-pod".to_owned())], 1));
    }
}
