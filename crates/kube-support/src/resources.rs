//! Kubernetes resources that weft reads (Pod, Namespace, Node, NetworkAttachmentDefinition), reduced to the
//! fields in use.
//!
//! - Objects are read leniently, because a malformed object must not hide the rest of the list.
//! - Unused fields are dropped.
//!
//! Source: Kubernetes API reference, Pod v1, Namespace v1; multi-network specification (NPWG), section 3.1.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::Resource;
use npwg::metadata::{Definition, Pod, PodController, SpecConfig};
use npwg::policy::Labels;
use npwg::protocol::Protocol;
use serde::Deserialize;
use serde_json::Value;

use crate::custom_resources::NetworkAttachmentDefinition;
use crate::resource;

/// Taint on a node that an operator, or a controller, has confirmed to be off.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// Annotation on the API object for a static pod, with the pod's own uid. The container runtime and the
/// plugins get that uid.
pub const MIRROR: &str = "kubernetes.io/config.mirror";
/// Maximum number of named ports on a pod.
const NAMED_PORTS_MAX: usize = 1024;
/// Pod as the API returns it.
#[derive(Clone, Debug, Deserialize)]
pub struct PodObject {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodSpec {
    host_network: bool,
    tolerations: Vec<Toleration>,
    service_account_name: String,
    node_name: String,
    resource_claims: Vec<PodClaim>,
    containers: Vec<Container>,
    init_containers: Vec<Container>,
}

/// Container in a pod, reduced to the fields that are used.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Container {
    ports: Vec<ContainerPort>,
    /// Restart policy for an init container: `Always` makes it a sidecar.
    restart_policy: String,
}

/// Port on a container.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ContainerPort {
    name: String,
    container_port: i32,
    protocol: String,
}

/// Returns the named ports on containers and sidecars; if two have one name, the first counts.
pub fn named_ports(
    containers: Vec<Container>,
    init_containers: Vec<Container>,
) -> BTreeMap<String, (Protocol, u16)> {
    let mut named = BTreeMap::new();
    for (name, protocol, number) in all_named_ports(containers, init_containers) {
        named.entry(name).or_insert((protocol, number));
    }
    named
}

/// Returns all named ports on containers and sidecars, in order. Other init containers have ended when the
/// pod is reached. Ports with one name can have different protocols, which Services tell apart.
pub fn all_named_ports(
    containers: Vec<Container>,
    init_containers: Vec<Container>,
) -> impl Iterator<Item = (String, Protocol, u16)> {
    let sidecars = init_containers.into_iter().filter(|container| container.restart_policy == "Always");
    let ports = containers.into_iter().chain(sidecars).flat_map(|container| container.ports);
    let named = ports.filter_map(|ContainerPort { name, container_port, protocol }| {
        let word = if protocol.is_empty() { Protocol::Tcp.word() } else { protocol.as_str() };
        let protocol = Protocol::ALL.into_iter().find(|known| known.word() == word)?;
        let number = u16::try_from(container_port).ok().filter(|number| *number > 0)?;
        (!name.is_empty()).then_some((name, protocol, number))
    });
    named.take(NAMED_PORTS_MAX)
}

/// Toleration on a pod, reduced to the fields that are used.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Toleration {
    key: String,
    effect: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodStatus {
    phase: String,
    #[serde(rename = "podIPs")]
    pod_ips: Vec<PodIp>,
    resource_claim_statuses: Vec<PodClaim>,
    extended_resource_claim_status: PodClaim,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct PodIp {
    ip: String,
}

/// A pod's ResourceClaim. In the pod's status: the claim created from a template, or for an extended
/// resource.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PodClaim {
    name: String,
    resource_claim_name: Option<String>,
}

/// Returns the names of a pod's ResourceClaims, in spec order.
fn claims(spec: Vec<PodClaim>, created: &[PodClaim], extended: PodClaim) -> Vec<String> {
    let of_template =
        |name: &str| created.iter().find(|created| created.name == name)?.resource_claim_name.clone();
    let named = spec.into_iter().filter_map(|claim| {
        let PodClaim { name, resource_claim_name } = claim;
        resource_claim_name.or_else(|| of_template(&name))
    });
    named.chain(extended.resource_claim_name).collect()
}

/// NetworkAttachmentDefinition as the API returns it.
#[derive(Clone, Debug, Deserialize)]
pub struct DefinitionObject {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: Value,
}

/// Namespace as the API returns it.
#[derive(Clone, Debug, Deserialize)]
pub struct NamespaceObject {
    metadata: ObjectMeta,
}

/// Node as the API returns it.
#[derive(Clone, Debug, Deserialize)]
pub struct NodeObject {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: NodeSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeSpec {
    taints: Vec<Taint>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Taint {
    key: String,
}

impl NodeObject {
    /// Returns the node's name.
    pub fn name(&self) -> String {
        self.metadata.name.clone().unwrap_or_default()
    }

    /// Whether the node has the taint `out-of-service`: it is confirmed to be off.
    pub fn is_out_of_service(&self) -> bool {
        self.spec.taints.iter().any(|taint| taint.key == OUT_OF_SERVICE)
    }
}

/// API object that is reduced to the fields in use.
pub trait Reduced: Resource<DynamicType = ()> {
    /// Form that the cache keeps.
    type Form: Clone + PartialEq + Send + Sync + 'static;

    /// Returns the reduced form.
    fn reduce(self) -> Self::Form;
}

impl PodObject {
    /// Whether the pod has ended, so that the addresses are free.
    pub fn is_over(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Whether the pod stays bound to a node that is out of service, so that it does not indicate a running
    /// node.
    ///
    /// Such a pod tolerates the taint or uses the host network. For how long it tolerates the taint is
    /// ignored.
    pub fn stays_out_of_service(&self) -> bool {
        let tolerates = |Toleration { key, effect }: &Toleration| {
            (key.is_empty() || key == OUT_OF_SERVICE) && (effect.is_empty() || effect == "NoExecute")
        };
        self.spec.host_network || self.spec.tolerations.iter().any(tolerates)
    }
}

/// Namespace and name; the namespace is empty for cluster-scoped objects.
pub type Key = (String, String);

/// Returns an object's key.
pub fn key(object: &impl Resource) -> Key {
    let meta = object.meta();
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

fn sorted(map: Option<BTreeMap<String, String>>) -> BTreeMap<String, String> {
    map.unwrap_or_default()
}

impl Reduced for PodObject {
    type Form = Pod;

    fn reduce(self) -> Pod {
        let PodObject { metadata, spec, status } = self;
        let PodSpec {
            host_network,
            tolerations: _,
            service_account_name,
            node_name,
            resource_claims,
            containers,
            init_containers,
        } = spec;
        let PodStatus { phase, pod_ips, resource_claim_statuses, extended_resource_claim_status } = status;
        let runs = phase == "Running" && metadata.deletion_timestamp.is_none();
        let mirrored = metadata.annotations.as_ref().and_then(|annotations| annotations.get(MIRROR)).cloned();
        let uid = mirrored.or(metadata.uid);
        let owners = metadata.owner_references.unwrap_or_default();
        let controller = owners.into_iter().find(|owner| owner.controller == Some(true));
        Pod {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            uid: uid.unwrap_or_default(),
            labels: sorted(metadata.labels),
            annotations: sorted(metadata.annotations),
            host_network,
            service_account_name,
            node_name,
            controller: controller.map(|owner| PodController {
                api_version: owner.api_version,
                kind: owner.kind,
                name: owner.name,
                uid: owner.uid,
            }),
            resource_claims: claims(
                resource_claims,
                &resource_claim_statuses,
                extended_resource_claim_status,
            ),
            addresses: pod_ips.into_iter().filter(|_| runs).map(|PodIp { ip }| ip).collect(),
            named_ports: named_ports(containers, init_containers),
            described_by_runtime: false,
        }
    }
}

impl Reduced for DefinitionObject {
    type Form = Definition;

    fn reduce(self) -> Definition {
        let DefinitionObject { metadata, spec } = self;
        Definition {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            annotations: sorted(metadata.annotations),
            config: match spec.get("config") {
                None | Some(Value::Null) => SpecConfig::Absent,
                Some(Value::String(text)) => SpecConfig::Text(text.clone()),
                Some(other) => SpecConfig::Structured(other.to_string()),
            },
        }
    }
}

/// Node reduced to whether it is alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeHealth {
    /// Node name.
    pub name: String,
    /// Whether the node has the taint `out-of-service`: it is confirmed to be off.
    pub is_out_of_service: bool,
}

impl Reduced for NodeObject {
    type Form = NodeHealth;

    fn reduce(self) -> NodeHealth {
        NodeHealth { name: self.name(), is_out_of_service: self.is_out_of_service() }
    }
}

impl Reduced for NamespaceObject {
    type Form = Labels;

    fn reduce(self) -> Labels {
        sorted(self.metadata.labels)
    }
}

resource!(PodObject, NamespaceResourceScope, "Pod", "pods", "");
resource!(NodeObject, ClusterResourceScope, "Node", "nodes", "");
resource!(NamespaceObject, ClusterResourceScope, "Namespace", "namespaces", "");
resource!(DefinitionObject as NetworkAttachmentDefinition);

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn definition_malformed_spec_is_read_leniently() {
        for (spec, expected) in [
            (json!(null), SpecConfig::Absent),
            (json!([]), SpecConfig::Absent),
            (json!({ "config": null }), SpecConfig::Absent),
            (json!({ "config": "{}" }), SpecConfig::Text("{}".into())),
            (json!({ "config": { "a": 1 } }), SpecConfig::Structured(r#"{"a":1}"#.into())),
        ] {
            let object = json!({ "metadata": { "namespace": "n", "name": "a" }, "spec": spec });
            let object: DefinitionObject = serde_json::from_value(object).unwrap();
            assert_eq!(object.reduce().config, expected);
        }
        let bare: DefinitionObject = serde_json::from_value(json!({ "metadata": {} })).unwrap();
        assert_eq!(bare.reduce(), Definition::default());
    }

    #[test]
    fn pod_is_reduced_to_the_fields_in_use() {
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "namespace": "n", "name": "p", "uid": "u", "annotations": { "a": "b" }, "managedFields": [{}] },
            "spec": { "hostNetwork": true, "serviceAccountName": "s", "nodeName": "w", "containers": [] },
        });
        let pod = serde_json::from_value::<PodObject>(object).unwrap();
        assert_eq!(key(&pod), ("n".into(), "p".into()));
        let pod = pod.reduce();
        assert!(pod.host_network && pod.annotations["a"] == "b");
        assert_eq!(
            (pod.uid.as_str(), pod.service_account_name.as_str(), pod.node_name.as_str()),
            ("u", "s", "w")
        );
    }

    #[test]
    fn out_of_service_taint_tolerated_by_pod_or_host_network() {
        let stays = |spec: Value| {
            let object = json!({ "metadata": { "name": "p" }, "spec": spec });
            serde_json::from_value::<PodObject>(object).unwrap().stays_out_of_service()
        };
        assert!(stays(json!({ "hostNetwork": true })));
        assert!(stays(json!({ "tolerations": [{ "operator": "Exists" }] })));
        assert!(stays(
            json!({ "tolerations": [{ "key": OUT_OF_SERVICE, "operator": "Exists", "effect": "NoExecute" }] })
        ));
        assert!(!stays(
            json!({ "tolerations": [{ "key": "node.kubernetes.io/not-ready", "operator": "Exists" }] })
        ));
        assert!(!stays(json!({ "tolerations": [{ "key": OUT_OF_SERVICE, "effect": "NoSchedule" }] })));
        assert!(!stays(json!({})));
    }

    #[test]
    fn resource_claims_of_a_pod_are_named_templated_and_extended() {
        let object = json!({
            "metadata": { "name": "p" },
            "spec": { "resourceClaims": [
                { "name": "b", "resourceClaimTemplateName": "t" },
                { "name": "none", "resourceClaimTemplateName": "t" },
                { "name": "a", "resourceClaimName": "own" },
            ] },
            "status": {
                "resourceClaimStatuses": [{ "name": "none" }, { "name": "b", "resourceClaimName": "p-b-x" }],
                "extendedResourceClaimStatus": { "resourceClaimName": "p-extended-y", "requestMappings": [] },
            },
        });
        let pod = serde_json::from_value::<PodObject>(object).unwrap().reduce();
        assert_eq!(pod.resource_claims, ["p-b-x", "own", "p-extended-y"]);
    }

    #[test]
    fn pod_addresses_are_read_only_while_it_runs() {
        let read = |phase: &str, deleted: Option<&str>| {
            let object = json!({
                "metadata": { "name": "p", "deletionTimestamp": deleted },
                "status": { "phase": phase, "podIPs": [{ "ip": "10.0.0.2" }, { "ip": "fd00::2" }] },
            });
            serde_json::from_value::<PodObject>(object).unwrap().reduce().addresses
        };
        assert_eq!(read("Running", None), ["10.0.0.2", "fd00::2"]);
        assert_eq!(read("Succeeded", None), [""; 0]);
        assert_eq!(read("Running", Some("2026-11-23T06:00:00Z")), [""; 0]);
    }

    #[test]
    fn pod_named_ports_are_those_of_containers_and_sidecars() {
        let object = json!({
            "metadata": { "name": "p" },
            "spec": {
                "containers": [
                    { "ports": [{ "containerPort": 80 }, { "name": "sql", "containerPort": 5432 }] },
                    { "ports": [{ "name": "dns", "containerPort": 53, "protocol": "UDP" },
                        { "name": "sql", "containerPort": 5433 },
                        { "name": "odd", "containerPort": 1, "protocol": "ICMP" },
                        { "name": "far", "containerPort": 70_000 }] },
                ],
                "initContainers": [
                    { "restartPolicy": "Always",
                        "ports": [{ "name": "side", "containerPort": 9, "protocol": "SCTP" }] },
                    { "ports": [{ "name": "first", "containerPort": 7 }] },
                    {},
                ],
            },
        });
        let ports = serde_json::from_value::<PodObject>(object).unwrap().reduce().named_ports;
        let expected =
            [("dns", (Protocol::Udp, 53)), ("side", (Protocol::Sctp, 9)), ("sql", (Protocol::Tcp, 5432))];
        assert_eq!(ports, expected.map(|(name, port)| (name.to_owned(), port)).into());
    }

    #[test]
    fn static_pod_has_the_uid_of_its_runtime() {
        let object = json!({ "metadata": { "name": "p", "uid": "of-the-mirror", "annotations": { MIRROR: "of-the-pod" } } });
        assert_eq!(serde_json::from_value::<PodObject>(object).unwrap().reduce().uid, "of-the-pod");
    }
}
