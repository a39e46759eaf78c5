//! Networks, nodes and image for a `weft test` run, as the cluster has them.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client, Resource, ResourceExt};
use npwg::metadata::RESOURCE_NAME;
use serde::Deserialize;

use super::Arguments;
use crate::pod_name::PodName;
use cli_support::failure::{Exit, Failure};
use kube_support::resources::{DefinitionObject, NodeObject};
use kube_support::{api_error, resource};

/// Selector for the agents' DaemonSet, in deploy/ and in the chart.
const AGENTS: &str = "app.kubernetes.io/name=weft,app.kubernetes.io/component=agent";
/// Pull policy for an image without one.
const IF_NOT_PRESENT: &str = "IfNotPresent";
/// Next step if the image is unknown.
const NAME_IMAGE: &str = "name the image of weft with --image";
/// Label with a node's operating system.
const SYSTEM: &str = "kubernetes.io/os";

/// Network that is tested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TestedNetwork {
    /// The definition's namespace and name.
    pub(super) name: PodName,
    /// Resource that its devices belong to; empty if it needs none.
    pub(super) resource: String,
}

/// Image that the pods run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Image {
    pub(super) name: String,
    /// `Always`, `IfNotPresent` or `Never`.
    pub(super) pull_policy: String,
}

/// Node, reduced to the fields in use.
#[derive(Clone, Debug, Deserialize)]
struct ListedNode {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: ListedNodeSpec,
    #[serde(default)]
    status: ListedNodeStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ListedNodeSpec {
    unschedulable: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ListedNodeStatus {
    conditions: Vec<NodeCondition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct NodeCondition {
    r#type: String,
    status: String,
}

resource!(ListedNode as NodeObject);

/// Returns the networks that the options name, or all in the namespace or the cluster. `namespace` is for a
/// network without one.
pub(super) async fn networks(
    client: &Client,
    arguments: &Arguments,
    namespace: &str,
) -> Result<Vec<TestedNetwork>, Failure> {
    let Arguments { networks, all_namespaces, .. } = arguments;
    if networks.is_empty() {
        let (api, place): (Api<DefinitionObject>, String) = match all_namespaces {
            true => (Api::all(client.clone()), "the cluster".to_owned()),
            false => (Api::namespaced(client.clone(), namespace), format!("namespace {namespace}")),
        };
        let listed = api
            .list(&ListParams::default())
            .await
            .map_err(|error| api_error::failure(format_args!("list networks of {place}"), &error))?;
        if listed.items.is_empty() {
            return Err(Failure::new(format!("{place} has no networks"))
                .next("name a network with --network NAMESPACE/NAME, or another namespace with -n"));
        }
        return listed.items.iter().map(tested).collect();
    }
    let mut found = Vec::new();
    for name in networks {
        // A network has the same form of names as a pod.
        let invalid = |error| Failure::new(format!("--network {name:?}: {error}")).exit(Exit::Usage);
        let name = if name.contains('/') { name.parse() } else { PodName::new(namespace, name) };
        let name = name.map_err(invalid)?;
        let api: Api<DefinitionObject> = Api::namespaced(client.clone(), &name.namespace);
        let object = api.get(&name.name).await;
        let object = object.map_err(|error| api_error::failure(format_args!("network {name}"), &error))?;
        found.push(tested(&object)?);
    }
    Ok(found)
}

fn tested(definition: &DefinitionObject) -> Result<TestedNetwork, Failure> {
    let (namespace, name) = (definition.namespace().unwrap_or_default(), definition.name_any());
    let name = PodName::new(&namespace, &name)
        .map_err(|error| Failure::new(format!("network {namespace}/{name}: {error}")))?;
    let resource = definition.annotations().get(RESOURCE_NAME).cloned().unwrap_or_default();
    Ok(TestedNetwork { name, resource })
}

/// Returns pairs of nodes: each ready node with the next one by name, and a single node with itself.
pub(super) async fn pairs(client: &Client, wanted: &[String]) -> Result<Vec<[String; 2]>, Failure> {
    let api: Api<ListedNode> = Api::all(client.clone());
    let listed = api.list(&ListParams::default()).await;
    let listed = listed.map_err(|error| api_error::failure("list nodes", &error))?;
    pairs_of(&listed.items, wanted)
}

fn pairs_of(listed: &[ListedNode], wanted: &[String]) -> Result<Vec<[String; 2]>, Failure> {
    let find = |name: &String| listed.iter().find(|node| node.name_any() == *name);
    for name in wanted {
        let why = match find(name) {
            None => "the cluster has no such node",
            Some(node) if !node.is_ready() => "it is not ready",
            Some(_) => continue,
        };
        return Err(Failure::new(format!("--nodes: {name}: {why}")));
    }
    let is_usual = |node: &&ListedNode| node.is_ready() && !node.spec.unschedulable && node.is_linux();
    let all: BTreeSet<String> = match wanted {
        [] => listed.iter().filter(is_usual).map(ResourceExt::name_any).collect(),
        wanted => wanted.iter().cloned().collect(),
    };
    let all: Vec<String> = all.into_iter().collect();
    let with_next = all.iter().zip(all.iter().cycle().skip(1));
    let mut pairs: Vec<[String; 2]> = with_next.map(|(a, b)| [a.clone(), b.clone()]).collect();
    if all.len() == 2 {
        // The second pair is the first one in the other direction.
        pairs.pop();
    }
    match pairs.is_empty() {
        true => Err(Failure::new("the cluster has no ready node that runs Linux and accepts pods")),
        false => Ok(pairs),
    }
}

/// Returns the given image, or the one that the agents in a namespace run.
///
/// A DaemonSet in another namespace may have the same labels, and an image of its own.
pub(super) async fn image(client: &Client, given: Option<&str>, namespace: &str) -> Result<Image, Failure> {
    if let Some(name) = given {
        return Ok(Image { name: name.to_owned(), pull_policy: IF_NOT_PRESENT.to_owned() });
    }
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("apps", "v1", "DaemonSet"));
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
    let listed = api.list(&ListParams::default().labels(AGENTS)).await.map_err(|error| {
        Failure::new(format!("list daemonsets of {namespace}: {}", api_error::describe(&error)))
            .next(NAME_IMAGE)
    })?;
    image_of(&listed.items, namespace)
}

/// Returns the only image in the agents' DaemonSets.
fn image_of(agents: &[DynamicObject], namespace: &str) -> Result<Image, Failure> {
    let container = |set: &DynamicObject| {
        let container = set.data.pointer("/spec/template/spec/containers/0")?;
        let name = container.get("image")?.as_str()?.to_owned();
        let policy = container.get("imagePullPolicy").and_then(|policy| policy.as_str());
        Some(Image { name, pull_policy: policy.unwrap_or(IF_NOT_PRESENT).to_owned() })
    };
    let images: Vec<Image> = agents.iter().filter_map(container).collect();
    let names: BTreeSet<&str> = images.iter().map(|image| image.name.as_str()).collect();
    if names.len() > 1 {
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        let why = format!("the DaemonSets of weft in namespace {namespace} have several images: {names}");
        return Err(Failure::new(why).next(NAME_IMAGE));
    }
    images.into_iter().next().ok_or_else(|| {
        let why = format!("namespace {namespace} has no DaemonSet of weft, whose image the pods would use");
        Failure::new(why).next(
            "name the namespace of the agents with --agent-namespace, or the image of weft with --image",
        )
    })
}

// === impl ListedNode ===

impl ListedNode {
    fn is_ready(&self) -> bool {
        self.status.conditions.iter().any(|one| one.r#type == "Ready" && one.status == "True")
    }

    fn is_linux(&self) -> bool {
        self.meta().labels.as_ref().and_then(|all| all.get(SYSTEM)).is_none_or(|system| system == "linux")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, ready: &str, cordoned: bool) -> ListedNode {
        let node = json!({
            "metadata": { "name": name },
            "spec": { "unschedulable": cordoned },
            "status": { "conditions": [{ "type": "Ready", "status": ready }] },
        });
        serde_json::from_value(node).unwrap()
    }

    #[test]
    fn test_pairs_have_each_ready_node_twice() {
        let pair = |a: &str, b: &str| [a.to_owned(), b.to_owned()];
        let mut nodes = vec![node("c", "True", false), node("x", "False", false), node("y", "True", true)];
        assert_eq!(pairs_of(&nodes, &[]).unwrap(), [pair("c", "c")]);
        nodes.push(node("a", "True", false));
        assert_eq!(pairs_of(&nodes, &[]).unwrap(), [pair("a", "c")]);
        nodes.push(node("b", "True", false));
        assert_eq!(pairs_of(&nodes, &[]).unwrap(), [pair("a", "b"), pair("b", "c"), pair("c", "a")]);
        assert_eq!(pairs_of(&nodes, &["y".into(), "a".into()]).unwrap(), [pair("a", "y")]);
        for (name, why) in [("x", "not ready"), ("z", "no such node")] {
            let failure = pairs_of(&nodes, &[name.into()]).unwrap_err().to_string();
            assert!(failure.contains(name) && failure.contains(why), "{failure}");
        }
        assert!(pairs_of(&[], &[]).is_err());
    }

    #[test]
    fn test_image_of_several_agents_is_refused_unless_equal() {
        let agents = |name: &str, image: &str| -> DynamicObject {
            let container = json!({ "image": image, "imagePullPolicy": "Never" });
            let spec = json!({ "template": { "spec": { "containers": [container] } } });
            serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap()
        };
        let same = [agents("a", "weft:1"), agents("b", "weft:1")];
        let image = image_of(&same, "kube-system").unwrap();
        assert_eq!((image.name.as_str(), image.pull_policy.as_str()), ("weft:1", "Never"));
        let failure = image_of(&[agents("a", "weft:1"), agents("b", "weft:2")], "kube-system").unwrap_err();
        let failure = failure.to_string();
        assert!(failure.contains("weft:1, weft:2") && failure.contains("kube-system"), "{failure}");
        let failure = image_of(&[], "blue").unwrap_err().to_string();
        assert!(failure.contains("namespace blue has no DaemonSet of weft"), "{failure}");
    }
}
