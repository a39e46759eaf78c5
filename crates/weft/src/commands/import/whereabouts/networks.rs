//! Networks whose addresses whereabouts or weft-ipam allocates, and the addresses that pods show on them.
//!
//! A pod's network-status names the NetworkAttachmentDefinition, and the definition names the address space.
//! Networks in files on a node are unknown here.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cli_support::failure::Failure;
use ipam_api::cluster_snapshot::ClusterSnapshot;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use kube_support::api_error;
use serde_json::Value;

/// Number of objects in a page.
const PAGE: u32 = 500;
/// Address managers whose pools are imported, or hold imported addresses.
const TYPES: [&str; 2] = ["whereabouts", "weft-ipam"];

/// Network in a definition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SharedNetwork {
    /// Address space (`network_name`).
    pub(super) space: String,
    /// Addresses that the definition adds to each result (`addresses`).
    pub(super) fixed: Vec<IpAddr>,
}

/// Networks by the definition's `namespace/name`.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedNetworks(pub(super) BTreeMap<String, SharedNetwork>);

/// Pod with an interface, and the address that the network-status shows for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ShownAddress {
    /// Address space.
    pub(super) space: String,
    /// Address that the pod shows.
    pub(super) address: IpAddr,
    /// Pod, as `namespace/name`.
    pub(super) pod: String,
    /// Interface in the pod.
    pub(super) interface: String,
}

impl SharedNetworks {
    /// Lists the definitions in all namespaces.
    pub(super) async fn list(client: &Client) -> Result<SharedNetworks, Failure> {
        let kind = GroupVersionKind::gvk("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition");
        let resource = ApiResource::from_gvk_with_plural(&kind, "network-attachment-definitions");
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let mut parameters = ListParams::default().limit(PAGE);
        let mut all = BTreeMap::new();
        loop {
            let page = match api.list(&parameters).await {
                Ok(page) => page,
                // The cluster has no definitions.
                Err(kube::Error::Api(status)) if status.code == 404 => break,
                Err(error) => {
                    let why = api_error::describe(&error);
                    return Err(Failure::new(format!("list network-attachment-definitions: {why}")));
                }
            };
            all.extend(page.items.iter().filter_map(|object| {
                let (namespace, name) = (object.metadata.namespace.as_ref()?, object.metadata.name.as_ref()?);
                let config = object.data["spec"]["config"].as_str()?;
                Some((format!("{namespace}/{name}"), shared_network(config)?))
            }));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => break,
            }
        }
        Ok(SharedNetworks(all))
    }

    /// Returns the addresses that pods show on these networks, except fixed ones, sorted.
    pub(super) fn shown(&self, snapshot: &ClusterSnapshot) -> Vec<ShownAddress> {
        let mut all = Vec::new();
        for pod in snapshot.pods.values() {
            for (address, interface, network) in &pod.addresses {
                let Some(network) = self.0.get(network).filter(|network| !network.fixed.contains(address))
                else {
                    continue;
                };
                all.push(ShownAddress {
                    space: network.space.clone(),
                    address: *address,
                    pod: format!("{}/{}", pod.namespace, pod.name),
                    interface: interface.clone(),
                });
            }
        }
        all.sort();
        all.dedup();
        all
    }
}

/// Returns the network that a configuration describes; `None` if another plugin manages the addresses.
fn shared_network(config: &str) -> Option<SharedNetwork> {
    let config: Value = serde_json::from_str(config).ok()?;
    let plugins = config["plugins"].as_array().cloned().unwrap_or_else(|| vec![config.clone()]);
    let ipam = plugins.iter().map(|plugin| &plugin["ipam"]);
    let ipam =
        ipam.into_iter().find(|ipam| ipam["type"].as_str().is_some_and(|name| TYPES.contains(&name)))?;
    let fixed = ipam["addresses"].as_array().into_iter().flatten();
    let fixed = fixed.filter_map(|entry| entry["address"].as_str()?.split('/').next()?.parse().ok());
    Some(SharedNetwork {
        space: ipam["network_name"].as_str().unwrap_or_default().to_owned(),
        fixed: fixed.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn import_whereabouts_networks_are_those_of_its_ipam() {
        let network = |space: &str, fixed: &[&str]| SharedNetwork {
            space: space.to_owned(),
            fixed: fixed.iter().map(|ip| ip.parse().unwrap()).collect(),
        };
        for (config, expected) in [
            (
                r#"{"type":"macvlan","ipam":{"type":"whereabouts","range":"10.0.0.0/24"}}"#,
                Some(network("", &[])),
            ),
            (
                r#"{"plugins":[{"type":"bridge","ipam":{"type":"whereabouts","network_name":"red",
                    "addresses":[{"address":"10.0.0.9/24"}]}},{"type":"tuning"}]}"#,
                Some(network("red", &["10.0.0.9"])),
            ),
            (r#"{"type":"macvlan","ipam":{"type":"weft-ipam"}}"#, Some(network("", &[]))),
            (r#"{"type":"macvlan","ipam":{"type":"host-local"}}"#, None),
            (r#"{"type":"macvlan"}"#, None),
            ("{", None),
        ] {
            assert_eq!(shared_network(config), expected, "{config}");
        }
    }
}
