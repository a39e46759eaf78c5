//! A pod's attachments as far as the Pod object describes them: selected networks, and addresses.
//!
//! The addresses come from the network-status annotation. For a network that is not in it yet,
//! [`PodNetworks::of`] takes the requested ones (`ips`).

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::metadata::Labels;
use crate::metadata::{NetworkReference, Pod};
use crate::network_policy::PodAttachment;
use crate::protocol::Protocol;
use crate::selection::{Annotation, Element, Reading};
use crate::status::{Entry, NETWORK_STATUS};

/// Maximum number of addresses that are used for one attachment.
const ADDRESSES_MAX: usize = 32;

/// Pod with the networks that it selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodNetworks {
    /// Namespace that the pod is in.
    pub namespace: String,
    /// Pod name.
    pub name: String,
    labels: Labels,
    ports: BTreeMap<String, (Protocol, u16)>,
    /// Networks with the pod's addresses, in selection order.
    pub networks: Vec<(NetworkReference, Vec<IpAddr>)>,
}

// === impl PodNetworks ===

impl PodNetworks {
    /// Returns a pod's networks; none if it uses the host network.
    pub fn of(pod: &Pod) -> PodNetworks {
        let requested = |element: &Element| element.ips.iter().map(ToString::to_string).collect();
        PodNetworks::with(pod, &requested)
    }

    /// Returns a pod's networks with addresses from the network status alone, because a pod that was never
    /// attached can request addresses, too.
    pub fn attached(pod: &Pod) -> PodNetworks {
        PodNetworks::with(pod, &|_| Vec::new())
    }

    /// Returns a pod's networks. `otherwise` gives the addresses for a network without network status.
    fn with(pod: &Pod, otherwise: &dyn Fn(&Element) -> Vec<String>) -> PodNetworks {
        let annotation = Annotation::Networks;
        let text = pod.annotations.get(annotation.key()).filter(|_| !pod.host_network);
        let elements = text.map(|text| Reading::of(annotation, text, &pod.namespace).elements);
        let mut status: Vec<Entry> = pod
            .annotations
            .get(NETWORK_STATUS)
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        let networks = elements.unwrap_or_default().into_iter().map(|element| {
            let name = element.network.to_string();
            // A network that is selected twice has an entry for each.
            let entry = status.iter().position(|entry| entry.name == name).map(|index| status.remove(index));
            let texts = entry.map_or_else(|| otherwise(&element), |entry| entry.ips);
            let addresses = texts.iter().filter_map(|text| address(text));
            (element.network, addresses.take(ADDRESSES_MAX).collect())
        });
        PodNetworks {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            labels: pod.labels.clone(),
            ports: pod.named_ports.clone(),
            networks: networks.collect(),
        }
    }

    /// Returns the pod with other networks or addresses.
    pub fn with_networks(&self, networks: Vec<(NetworkReference, Vec<IpAddr>)>) -> PodNetworks {
        PodNetworks { networks, ..self.clone() }
    }

    /// Returns the attachment to each network.
    pub fn attachments<'a>(
        &'a self,
        namespace_labels: Option<&'a Labels>,
    ) -> impl Iterator<Item = PodAttachment<'a>> {
        self.networks
            .iter()
            .map(move |(network, addresses)| self.attachment(network, addresses, namespace_labels))
    }

    fn attachment<'a>(
        &'a self,
        network: &'a NetworkReference,
        addresses: &'a [IpAddr],
        namespace_labels: Option<&'a Labels>,
    ) -> PodAttachment<'a> {
        PodAttachment {
            namespace: &self.namespace,
            name: &self.name,
            labels: &self.labels,
            namespace_labels,
            ports: &self.ports,
            network,
            addresses,
        }
    }
}

/// Reads an address, with or without prefix length.
fn address(text: &str) -> Option<IpAddr> {
    text.split('/').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_policy_addresses_come_from_status_or_request() {
        let mut pod = Pod { namespace: "x".into(), name: "a".into(), ..Pod::default() };
        let selection =
            r#"[{"name":"net","ips":["10.0.0.1/24","fd00::1/64"]},{"name":"other","namespace":"y"}]"#;
        pod.annotations.insert(Annotation::Networks.key().to_owned(), selection.to_owned());
        let shown = |pod: &Pod| {
            let networks = PodNetworks::of(pod).networks;
            let text = |(network, all): &(NetworkReference, Vec<IpAddr>)| format!("{network} {all:?}");
            networks.iter().map(text).collect::<Vec<_>>()
        };
        assert_eq!(shown(&pod), ["x/net [10.0.0.1, fd00::1]", "y/other []"]);
        let status = r#"[{"name":"y/other","interface":"net2","ips":["10.1.0.1"],"dns":{}}]"#;
        pod.annotations.insert(NETWORK_STATUS.to_owned(), status.to_owned());
        assert_eq!(shown(&pod), ["x/net [10.0.0.1, fd00::1]", "y/other [10.1.0.1]"]);
        let attached = PodNetworks::attached(&pod).networks;
        assert_eq!((attached[0].1.as_slice(), attached[1].1.len()), (&[][..], 1), "without requests");
        pod.host_network = true;
        assert_eq!(shown(&pod), [""; 0]);
    }
}
