//! What a pod wants of Neutron: pure, from the pod, the definitions it selects, and the rules.
//!
//! Rules: the port of the default interface is that of the default-network annotation, else of every pod's; a network is
//! Neutron's if its definition has `openstack.org/kuryr-config`; further interfaces are numbered in
//! the order of the annotation, Neutron's alone. The annotation is read by the standard's own reader, so an element
//! without a namespace is in the pod's, whatever stands before it.
//!
//! Source: the specification; Kuryr-Kubernetes `multi_vif.py`; the standard, 4.1.2.

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

/// Longest of them that is read, in bytes.
const CONFIG_MAX: usize = 16 << 10;

/// One port that a pod wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortRequest {
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

/// What a pod's annotations select.
#[derive(Debug, Default)]
pub(crate) struct Selected {
    /// In place of the node's default network.
    pub(crate) default: Option<Element>,
    /// Beside it, in the order of the annotation.
    pub(crate) elements: Vec<Element>,
    /// Why an annotation is as good as none.
    pub(crate) ignored: Vec<String>,
}

impl Selected {
    /// The definitions it takes.
    pub(crate) fn networks(&self) -> impl Iterator<Item = &NetworkReference> {
        self.default.iter().chain(&self.elements).map(|element| &element.network)
    }
}

/// Reason why a pod's ports cannot be made.
#[derive(Debug, Error)]
pub(crate) enum RequestError {
    /// What the annotations select cannot be attached.
    #[error("{0}")]
    Selection(Refusal),
    /// The definition of a network is not there.
    #[error("network {0}: no such NetworkAttachmentDefinition")]
    NoDefinition(NetworkReference),
    /// Kuryr's annotation of a definition is wrong.
    #[error("network {network}: {KURYR_CONFIG}: {error}")]
    Definition {
        /// The definition.
        network: NetworkReference,
        /// The fault of the annotation.
        error: ConfigError,
    },
}

/// Fault of Kuryr's annotation of a definition.
#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    /// The annotation is too large.
    #[error("larger than {CONFIG_MAX} bytes")]
    TooLarge,
    /// The annotation is not of the form.
    #[error("{0}")]
    Form(#[from] serde_json::Error),
    /// The driver is unknown.
    #[error("driverType: {0}")]
    Driver(UnknownDriver),
    /// The subnet is missing.
    #[error("subnetId is missing, and there is no podSubnet")]
    NoSubnet,
    /// The subnet is no id.
    #[error("subnetId: {0:?} is no id")]
    SubnetId(String),
}

/// What a pod's annotations select. One that is invalid selects nothing, as on a node: a node that is told to refuse such a
/// pod does so, whatever ports there are.
///
/// # Errors
/// What is selected cannot be attached.
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
    let elements = match rules.reads_annotation() {
        true => read(Annotation::Networks, &pod.namespace)?,
        false => Vec::new(),
    };
    Ok(Selected { default, elements, ..selected })
}

/// All ports that a pod wants.
///
/// # Errors
/// What cannot be wanted, with a path through it.
pub(crate) fn wishes(
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
        wish(name, element, text, rules)
            .map_err(|error| RequestError::Definition { network: element.network.clone(), error })
    };
    let mut wishes = Vec::new();
    match &selected.default {
        None if rules.default_network => wishes.push(default_wish(rules)),
        None => {}
        Some(element) => {
            let definition = find(element)?;
            match definition.annotations.get(KURYR_CONFIG) {
                Some(text) => wishes.push(of(DEFAULT.to_owned(), element, text)?),
                None if is_of_plugin(&definition.config) && !rules.pod_subnet.is_empty() => {
                    wishes.push(default_wish(rules));
                }
                // Somebody else's network.
                None => {}
            }
        }
    }
    let mut number = 0;
    for element in &selected.elements {
        let Some(text) = find(element)?.annotations.get(KURYR_CONFIG) else { continue };
        number += 1;
        wishes.push(of(format!("{}{number}", rules.additional_ifname_prefix), element, text)?);
    }
    Ok(wishes)
}

fn default_wish(rules: &Rules) -> PortRequest {
    PortRequest {
        name: DEFAULT.to_owned(),
        subnet: rules.pod_subnet.clone(),
        driver: rules.pod_vif_driver,
        addresses: Vec::new(),
        mac: None,
    }
}

fn wish(name: String, element: &Element, text: &str, rules: &Rules) -> Result<PortRequest, ConfigError> {
    if text.len() > CONFIG_MAX {
        return Err(ConfigError::TooLarge);
    }
    let Config { subnet_id, driver_type } = serde_json::from_str(text)?;
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

    fn wished(
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
        let wishes = wishes(&selected, &definitions, rules)?;
        Ok((wishes.into_iter().map(|wish| (wish.name, wish.subnet)).collect(), selected.ignored.len()))
    }

    #[test]
    fn the_default_network_annotation_says_where_the_first_port_is() {
        let (networks, default) = (Annotation::Networks.key(), Annotation::DefaultNetwork.key());
        let everywhere = Rules { default_network: true, pod_subnet: "s-pod".into(), ..Rules::default() };
        let names = |annotations: &[(&str, &str)], rules: &Rules| {
            let (wishes, ignored) = wished(annotations, rules).unwrap();
            assert_eq!(ignored, 0);
            wishes.into_iter().map(|(name, subnet)| format!("{name} {subnet}")).collect::<Vec<_>>()
        };
        assert_eq!(names(&[(networks, "a")], &everywhere), ["eth0 s-pod", "eth1 s-a"]);
        assert_eq!(names(&[(default, "own"), (networks, "a")], &everywhere), ["eth0 s-own", "eth1 s-a"]);
        assert_eq!(names(&[(default, "plain")], &everywhere), ["eth0 s-pod"]);
        assert_eq!(names(&[(default, "bridge")], &everywhere), [""; 0]);
        assert_eq!(names(&[(default, "own")], &Rules::default()), ["eth0 s-own"]);
        assert_eq!(names(&[], &Rules::default()), [""; 0]);
        assert!(
            wished(&[(default, "nowhere")], &everywhere)
                .unwrap_err()
                .to_string()
                .contains("kube-system/nowhere")
        );
    }

    #[test]
    fn an_invalid_annotation_takes_the_default_networks_port_from_nobody() {
        let rules = Rules { default_network: true, pod_subnet: "s-pod".into(), ..Rules::default() };
        let (wishes, ignored) =
            wished(&[(Annotation::Networks.key(), r#"[{"name":"a","ips":[]}]"#)], &rules).unwrap();
        assert_eq!((wishes, ignored), (vec![("eth0".to_owned(), "s-pod".to_owned())], 1));
    }
}
