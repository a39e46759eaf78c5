//! Reader for one object: the kind and the fields that planning and the linter use.

use std::collections::BTreeMap;

use super::node::{Node, Value};
use super::{DEFAULT_NAMESPACE, Located, Manifest, Namespace, PodObject, Problem};
use npwg::metadata::{Definition, Pod, SpecConfig};
use npwg::nearest::hint;
use npwg::network_policy::{self, Protocol};
use npwg::refusal::{Fault, KeyPath};
use npwg::rule::Rule;

/// Kind that a definition has.
const DEFINITION: &str = "NetworkAttachmentDefinition";
const DEFINITION_VERSION: &str = "k8s.cni.cncf.io/v1";

/// Path of the pod template in each workload kind.
const TEMPLATES: &[(&str, &[&str])] = &[
    ("Deployment", &["spec", "template"]),
    ("StatefulSet", &["spec", "template"]),
    ("DaemonSet", &["spec", "template"]),
    ("ReplicaSet", &["spec", "template"]),
    ("ReplicationController", &["spec", "template"]),
    ("Job", &["spec", "template"]),
    ("CronJob", &["spec", "jobTemplate", "spec", "template"]),
    ("PodTemplate", &["template"]),
    ("DeploymentConfig", &["spec", "template"]),
    ("Rollout", &["spec", "template"]),
    ("VirtualMachine", &["spec", "template"]),
    ("VirtualMachineInstance", &[]),
    ("VirtualMachineInstanceReplicaSet", &["spec", "template"]),
];

/// Kinds that a misspelled kind is compared with.
const SIMILAR: &[&str] = &[
    "Pod",
    DEFINITION,
    "Namespace",
    network_policy::KIND,
    "Deployment",
    "StatefulSet",
    "DaemonSet",
    "CronJob",
];

/// API versions for KubeVirt kinds.
const KUBEVIRT: &[&str] = &["kubevirt.io/v1", "kubevirt.io/v1alpha3"];

/// Reads one object or the items in a list.
pub(super) fn read(manifest: &mut Manifest, node: &Node) {
    let Value::Map(_) = node.value else {
        let fault = Fault::new(Rule::InvalidObject, "document", format!("is {}, not an object", node.kind()));
        manifest.problems.push(Problem { at: node.span.start, fault });
        return;
    };
    let kind = match node.get("kind").map(|node| &node.value) {
        Some(Value::Text(kind)) => kind.clone(),
        _ => {
            let fault =
                Fault::new(Rule::InvalidObject, "document", "has no kind: it is not a Kubernetes object");
            manifest.problems.push(Problem { at: node.span.start, fault });
            return;
        }
    };
    let items = node.get("items");
    if let (true, Some(Node { value: Value::List(items), .. })) = (kind.ends_with("List"), items) {
        items.iter().for_each(|item| read(manifest, item));
        return;
    }
    let template = TEMPLATES.iter().find(|(name, _)| *name == kind);
    let path = template.map_or(&[][..], |(_, path)| path);
    let base = path.iter().fold(KeyPath::root(), |base, key| base.key(key));
    let mut object = Object { manifest, node, kind: &kind, base: base.clone() };
    match kind.as_str() {
        "Pod" => object.pod(),
        DEFINITION => object.definition(),
        "Namespace" => {
            let (name, labels) = (object.name(), object.texts(&object.at(&["metadata", "labels"])));
            let value = Namespace { name, labels };
            object.manifest.namespaces.push(Located { value, node: node.clone(), base });
        }
        network_policy::KIND => {
            // The name is checked as that of any object; the reader checks the rest.
            object.name();
            let value = network_policy::read(&node.to_json());
            object.manifest.policies.push(Located { value, node: node.clone(), base });
        }
        _ if template.is_some() => object.pod(),
        other => {
            let near = hint(other, SIMILAR);
            if !near.is_empty() {
                object.problem(
                    &KeyPath::root().key("kind"),
                    Rule::InvalidObject,
                    "is an unknown kind",
                    &near,
                );
            }
            manifest.others.push(Located { value: kind.clone(), node: node.clone(), base });
        }
    }
}

/// Reader for an object.
struct Object<'a> {
    manifest: &'a mut Manifest,
    node: &'a Node,
    kind: &'a str,
    base: KeyPath,
}

impl Object<'_> {
    /// Returns what messages call the object.
    fn subject(&self) -> String {
        let metadata = self.node.get("metadata");
        let text = |key: &str| match metadata.and_then(|node| node.get(key)).map(|node| &node.value) {
            Some(Value::Text(text) | Value::Number(text)) => text.clone(),
            _ => String::new(),
        };
        let kind = match self.kind {
            DEFINITION => "network-attachment-definition".to_owned(),
            other => other.to_lowercase(),
        };
        match (text("namespace"), text("name")) {
            (namespace, name) if namespace.is_empty() => format!("{kind} {name}").trim_end().to_owned(),
            (namespace, name) => format!("{kind} {namespace}/{name}"),
        }
    }

    /// Reports a problem at `path` in the object.
    fn problem(&mut self, path: &KeyPath, rule: Rule, reason: impl Into<String>, hint: &str) {
        let node = self.node.nearest(path);
        let shown = match &node.value {
            Value::Map(_) | Value::List(_) | Value::Null => String::new(),
            _ => node.to_json().to_string(),
        };
        let fault = Fault::new(rule, self.subject(), reason).at(path.clone()).showing(&shown).hint(hint);
        self.manifest.problems.push(Problem { at: node.span.start, fault });
    }

    fn value(&self, path: &KeyPath) -> Option<&Node> {
        let (last, parent) = path.steps().split_last()?;
        let npwg::refusal::Step::Key(last) = last else { return None };
        let parent = parent.iter().try_fold(self.node, |node, step| match step {
            npwg::refusal::Step::Key(key) => node.get(key),
            npwg::refusal::Step::Index(_) => None,
        });
        parent.and_then(|parent| parent.get(last))
    }

    /// Returns the string at `path`; empty if there is none.
    fn text(&mut self, path: &KeyPath) -> String {
        match self.value(path).map(|node| (node.value.clone(), node.kind())) {
            None => String::new(),
            Some((Value::Text(text), _)) => text,
            Some((_, kind)) => {
                self.problem(
                    path,
                    Rule::InvalidObject,
                    format!("must be a string, this is {kind}"),
                    "write it in quotes",
                );
                String::new()
            }
        }
    }

    /// Returns the strings in the map at `path`.
    fn texts(&mut self, path: &KeyPath) -> BTreeMap<String, String> {
        let entries = match self.value(path).map(|node| (&node.value, node.kind())) {
            None => return BTreeMap::new(),
            Some((Value::Map(entries), _)) => entries.clone(),
            Some((_, kind)) => {
                self.problem(path, Rule::InvalidObject, format!("must be a map, this is {kind}"), "");
                return BTreeMap::new();
            }
        };
        let mut texts = BTreeMap::new();
        for (key, node) in entries {
            match node.value {
                Value::Text(text) => {
                    texts.insert(key.text, text);
                }
                Value::Null => {
                    texts.insert(key.text, String::new());
                }
                _ => {
                    let reason = format!("must be a string, this is {}", node.kind());
                    self.problem(
                        &path.key(&key.text),
                        Rule::InvalidObject,
                        reason,
                        "write \"|\" after the key and the value on indented lines below it",
                    );
                }
            }
        }
        texts
    }

    fn at(&self, path: &[&str]) -> KeyPath {
        path.iter().fold(self.base.clone(), |path, key| path.key(key))
    }

    /// Returns the object's `metadata.name`, or `metadata.generateName`.
    fn name(&mut self) -> String {
        let metadata = KeyPath::root().key("metadata");
        let name = self.text(&metadata.key("name"));
        if !name.is_empty() {
            return name;
        }
        let generated = self.text(&metadata.key("generateName"));
        if generated.is_empty() && self.value(&metadata.key("name")).is_none() {
            self.problem(&metadata.key("name"), Rule::InvalidObject, "metadata.name is missing", "");
        }
        generated
    }

    fn namespace(&mut self) -> String {
        match self.text(&KeyPath::root().key("metadata").key("namespace")) {
            text if text.is_empty() => DEFAULT_NAMESPACE.to_owned(),
            text => text,
        }
    }

    /// Reports an `apiVersion` that is not one of these.
    fn version(&mut self, known: &[&str]) {
        let path = KeyPath::root().key("apiVersion");
        let version = self.text(&path);
        if version.is_empty() {
            self.problem(
                &path,
                Rule::InvalidObject,
                "apiVersion is missing",
                &format!("write apiVersion: {}", known.join(" or ")),
            );
        } else if !known.contains(&version.as_str()) {
            self.problem(
                &path,
                Rule::InvalidObject,
                format!("is not a version of {}", self.kind),
                &format!("write {}", known.join(" or ")),
            );
        }
    }

    fn pod(&mut self) {
        match self.kind {
            "Pod" | "PodTemplate" | "ReplicationController" => self.version(&["v1"]),
            "Job" | "CronJob" => self.version(&["batch/v1"]),
            "DeploymentConfig" => self.version(&["apps.openshift.io/v1"]),
            "Rollout" => self.version(&["argoproj.io/v1alpha1"]),
            kind if kind.starts_with("VirtualMachine") => self.version(KUBEVIRT),
            _ => self.version(&["apps/v1"]),
        }
        let host_network = match self.value(&self.at(&["spec", "hostNetwork"])).map(|node| &node.value) {
            None => false,
            Some(Value::Bool(value)) => *value,
            Some(_) => {
                self.problem(
                    &self.at(&["spec", "hostNetwork"]),
                    Rule::InvalidObject,
                    "must be true or false",
                    "",
                );
                false
            }
        };
        let pod = Pod {
            namespace: self.namespace(),
            name: self.name(),
            uid: self.text(&self.at(&["metadata", "uid"])),
            labels: self.texts(&self.at(&["metadata", "labels"])),
            annotations: self.texts(&self.at(&["metadata", "annotations"])),
            host_network,
            service_account_name: self.text(&self.at(&["spec", "serviceAccountName"])),
            node_name: self.text(&self.at(&["spec", "nodeName"])),
            // These are known only when the pod runs.
            controller: None,
            resource_claims: Vec::new(),
            addresses: Vec::new(),
            named_ports: self.named_ports(),
            described_by_runtime: false,
        };
        let value = PodObject { pod, kind: self.kind.to_owned() };
        let located = Located { value, node: self.node.clone(), base: self.base.clone() };
        self.manifest.pods.push(located);
    }

    /// Returns the ports that containers and sidecars name. If two have one name, the first counts, as agents
    /// read them from the API server, which checks the other ones.
    fn named_ports(&self) -> BTreeMap<String, (Protocol, u16)> {
        let spec = self.node.nearest(&self.at(&["spec"]));
        let list = |node: Option<&Node>| match node.map(|node| &node.value) {
            Some(Value::List(items)) => items.clone(),
            _ => Vec::new(),
        };
        let is_sidecar = |container: &Node| {
            container.get("restartPolicy").is_some_and(|policy| policy.to_json() == "Always")
        };
        let sidecars = list(spec.get("initContainers")).into_iter().filter(is_sidecar);
        let containers = list(spec.get("containers")).into_iter().chain(sidecars);
        let ports = containers.flat_map(|container| list(container.get("ports")));
        let named = ports.filter_map(|port| {
            let port = port.to_json();
            let name = port.get("name")?.as_str()?.to_owned();
            let number = u16::try_from(port.get("containerPort")?.as_u64()?).ok()?;
            let word = port.get("protocol").map_or(Some(Protocol::Tcp.word()), |word| word.as_str())?;
            let protocol = Protocol::ALL.into_iter().find(|known| known.word() == word)?;
            Some((name, (protocol, number)))
        });
        let mut first = BTreeMap::new();
        for (name, port) in named {
            first.entry(name).or_insert(port);
        }
        first
    }

    fn definition(&mut self) {
        self.version(&[DEFINITION_VERSION]);
        let path = KeyPath::root().key("spec").key("config");
        let config = match self.value(&path) {
            None => SpecConfig::Absent,
            Some(Node { value: Value::Text(text), .. }) => SpecConfig::Text(text.clone()),
            Some(node) => SpecConfig::Structured(node.to_json().to_string()),
        };
        let definition = Definition {
            namespace: self.namespace(),
            name: self.name(),
            annotations: self.texts(&self.at(&["metadata", "annotations"])),
            config,
        };
        let located = Located { value: definition, node: self.node.clone(), base: KeyPath::root() };
        self.manifest.definitions.push(located);
    }
}
