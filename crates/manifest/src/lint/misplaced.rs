//! Linter for keys at a place where nothing reads them: annotations, `spec.config`, and keys that occur
//! twice.

use super::Report;
use crate::node::{Key, Node, Value};
use crate::{Located, Manifest, PodObject};
use npwg::metadata::RESOURCE_NAME;
use npwg::nearest::nearest;
use npwg::refusal::{Fault, KeyPath, Step};
use npwg::rule::Rule;

/// Domains that network annotations have.
const DOMAINS: &[&str] = &["k8s.v1.cni.cncf.io", "v1.multus-cni.io"];
/// Annotation that replaces the default network.
const DEFAULT_NETWORK: &str = "v1.multus-cni.io/default-network";
/// Annotations in these domains that a component reads.
const KNOWN: &[&str] = &[
    "k8s.v1.cni.cncf.io/networks",
    "k8s.v1.cni.cncf.io/network-status",
    "k8s.v1.cni.cncf.io/networks-status",
    "k8s.v1.cni.cncf.io/policy-for",
    RESOURCE_NAME,
    DEFAULT_NETWORK,
];
/// CNI configuration keys, which belong into the string `spec.config`.
const OF_CONFIG: &[&str] = &["cniVersion", "name", "type", "plugins", "ipam"];
/// Hint for such keys.
const AS_TEXT: &str = "write \"config: |\" below spec, and the JSON on indented lines below it";

pub(super) fn look(report: &mut Report<'_>, manifest: &Manifest) {
    for located in &manifest.pods {
        let PodObject { pod, kind } = &located.value;
        let subject = format!("{} {}/{}", kind.to_lowercase(), pod.namespace, pod.name);
        Object { report: &mut *report, subject: &subject, node: &located.node }.look(&located.base);
    }
    for located in &manifest.definitions {
        let subject = npwg::definition::subject(&located.value.reference());
        let mut object = Object { report: &mut *report, subject: &subject, node: &located.node };
        object.look(&located.base);
        object.config();
    }
    let namespaces = manifest.namespaces.iter().map(|Located { node, .. }| node);
    let others = manifest.others.iter().map(|Located { node, .. }| node);
    for node in namespaces.chain(others) {
        Object { report: &mut *report, subject: "document", node }.duplicates(node, &KeyPath::root());
    }
}

/// Linter for one object.
struct Object<'a, 'b> {
    report: &'a mut Report<'b>,
    subject: &'a str,
    node: &'a Node,
}

impl Object<'_, '_> {
    fn look(&mut self, base: &KeyPath) {
        let object = self.node;
        self.duplicates(object, &KeyPath::root());
        self.annotations(&base.key("metadata").key("annotations"));
        let metadata = base.key("metadata");
        self.elsewhere(object, &KeyPath::root(), &metadata.key("annotations"));
    }

    /// Reports annotations whose name is almost a known one.
    fn annotations(&mut self, path: &KeyPath) {
        for (key, _) in entries(self.node, path) {
            let name = key.text.as_str();
            let Some((domain, last)) = name.split_once('/').filter(|_| !KNOWN.contains(&name)) else {
                continue;
            };
            let in_domain = DOMAINS.iter().any(|known| known.eq_ignore_ascii_case(domain));
            let same_end = KNOWN.iter().any(|known| known.split('/').next_back() == Some(last));
            if !(in_domain || same_end && nearest(domain, DOMAINS).is_some()) {
                continue;
            }
            let meant = match last.contains("default") {
                true => Some(DEFAULT_NETWORK),
                false => nearest(name, KNOWN),
            };
            let hint = meant.map(|meant| format!("did you mean {meant}?")).unwrap_or_default();
            let fault = Fault::new(
                Rule::UnknownAnnotation,
                self.subject,
                "is not an annotation that selects networks",
            );
            self.report.add(key.span.start, fault.at(path.key(name)).hint(hint));
        }
    }

    /// Reports known annotations at every place but `right`, except on a workload, for which there is a
    /// separate finding.
    fn elsewhere(&mut self, node: &Node, path: &KeyPath, right: &KeyPath) {
        let of_object = KeyPath::root().key("metadata").key("annotations");
        if path == right || *path == of_object {
            return;
        }
        match &node.value {
            Value::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.elsewhere(item, &path.index(index), right);
                }
            }
            Value::Map(entries) => {
                for (key, inner) in entries {
                    let at = path.key(&key.text);
                    if KNOWN.contains(&key.text.as_str()) {
                        let fault = Fault::new(Rule::MisplacedAnnotation, self.subject, reason(path)).at(at);
                        self.report.add(key.span.start, fault.hint(format!("move it to {right}")));
                    } else {
                        self.elsewhere(inner, &at, right);
                    }
                }
            }
            _ => {}
        }
    }

    /// Reports a configuration that is not in `spec.config`.
    fn config(&mut self) {
        let (root, spec) = (KeyPath::root(), KeyPath::root().key("spec"));
        let mut found: Vec<(KeyPath, usize, &str)> = Vec::new();
        for (key, inner) in entries(self.node, &root) {
            let place = root.key(&key.text);
            match key.text.as_str() {
                "spec" => {}
                name if is_config(name) => found.push((place, key.span.start, "indent it below spec")),
                name if OF_CONFIG.contains(&name) => found.push((place, key.span.start, AS_TEXT)),
                _ => {
                    let inside = entries(inner, &KeyPath::root()).into_iter();
                    let misplaced = inside.filter(|(key, _)| is_config(&key.text));
                    found.extend(
                        misplaced
                            .map(|(key, _)| (place.key(&key.text), key.span.start, "move it below spec")),
                    );
                }
            }
        }
        for (key, _) in entries(self.node, &spec) {
            let name = key.text.as_str();
            let hint = match name {
                "config" => continue,
                _ if is_config(name) => "write config in lower case",
                _ if OF_CONFIG.contains(&name) => AS_TEXT,
                _ => continue,
            };
            found.push((spec.key(name), key.span.start, hint));
        }
        for (path, at, hint) in found {
            let reason = "is not spec.config: the API server drops it";
            self.report.add(at, Fault::new(Rule::MisplacedConfig, self.subject, reason).at(path).hint(hint));
        }
    }

    /// Reports keys that occur twice in one map. An entry that comes from a merge or an alias is older than the map.
    fn duplicates(&mut self, node: &Node, path: &KeyPath) {
        match &node.value {
            Value::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    self.duplicates(item, &path.index(index));
                }
            }
            Value::Map(entries) => {
                let mut names = std::collections::BTreeSet::new();
                for (key, inner) in entries {
                    let at = path.key(&key.text);
                    if key.span.start >= node.span.start && !names.insert(&key.text) {
                        let reason = "occurs twice: only the last value counts";
                        let fault = Fault::new(Rule::DuplicateKey, self.subject, reason).at(at.clone());
                        self.report.add(key.span.start, fault.hint("remove one of the two"));
                    }
                    self.duplicates(inner, &at);
                }
            }
            _ => {}
        }
    }
}

fn is_config(key: &str) -> bool {
    key.eq_ignore_ascii_case("config")
}

/// Returns the reason why no component reads an annotation in the map at `path`.
fn reason(path: &KeyPath) -> String {
    match path.steps().last() {
        Some(Step::Key(last)) if last == "labels" => {
            "is a label, and only annotations select networks".to_owned()
        }
        Some(Step::Key(last)) if last != "annotations" && nearest(last, &["annotations"]).is_some() => {
            format!("is in {last}, which Kubernetes drops")
        }
        _ if path.is_root() => {
            "is beside the fields of the object, where nothing reads annotations".to_owned()
        }
        _ => format!("is in {path}, where nothing reads annotations"),
    }
}

/// Returns the entries in the map at `path`.
fn entries<'a>(node: &'a Node, path: &KeyPath) -> Vec<&'a (Key, Node)> {
    let mut node = node;
    for step in path.steps() {
        let Step::Key(key) = step else { return Vec::new() };
        let Some(inner) = node.get(key) else { return Vec::new() };
        node = inner;
    }
    match &node.value {
        Value::Map(entries) => entries.iter().collect(),
        _ => Vec::new(),
    }
}
