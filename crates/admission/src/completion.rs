//! Completion of a new pod: device resources, node selectors, and the namespace's default network.
//!
//! - A resource is added to the first container, as often as networks need it and no container requests it already. So
//!   a second call changes nothing, and a pod that requests devices itself keeps them.
//! - A pod with resource claims gets no resources, because the claims may cover the networks. The annotation [`INJECT`]
//!   with the value `true` adds them nevertheless.
//! - A node selector of a definition never replaces one of the pod. Where the two differ, the pod is left as it is, and the user
//!   is warned.
//!
//! Source: network-resources-injector, whose annotations these are.

use std::collections::BTreeMap;

use json_patch::{AddOperation, Patch, PatchOperation, jsonptr::PointerBuf};
use npwg::metadata::{Definition, NetworkReference, Pod};
use npwg::selection::{Annotation, Reading};
use serde_json::{Value, json};

use crate::cluster::NamespaceFacts;

/// Annotation of a pod: `true` adds resources although it has claims, `false` never adds resources.
pub(crate) const INJECT: &str = "weft.dev/inject-resources";
/// Annotation of a definition with node labels that pods with this network need, `KEY=VALUE[,KEY=VALUE…]`.
pub(crate) const NODE_SELECTOR: &str = "k8s.v1.cni.cncf.io/nodeSelector";
/// Volume with the labels and annotations of the pod, which programs that use devices read.
const INFO_VOLUME: &str = "podnetinfo";
/// Directory for it in the containers.
const INFO_PATH: &str = "/etc/podnetinfo";

/// Change of a pod.
#[derive(Debug, Default)]
pub(crate) struct Completion {
    /// Operations in the order in which they apply.
    operations: Vec<PatchOperation>,
    /// Remarks for the user.
    pub(crate) warnings: Vec<String>,
}

impl Completion {
    /// Returns the change of a new pod. `object` is the pod as written, `pod` the same in reduced form.
    pub(crate) fn of(
        object: &Value,
        pod: &Pod,
        namespace: Option<&NamespaceFacts>,
        definitions: &BTreeMap<NetworkReference, Definition>,
    ) -> Completion {
        let mut completion = Completion::default();
        if pod.host_network {
            return completion;
        }
        completion.default_network(object, pod, namespace);
        let selected = selected(pod, definitions);
        completion.node_selectors(object, &selected);
        completion.resources(object, pod, &selected);
        completion
    }

    /// Returns the change as a patch; `None` if there is none.
    pub(crate) fn patch(self) -> Option<Patch> {
        (!self.operations.is_empty()).then_some(Patch(self.operations))
    }

    fn add(&mut self, path: &[&str], value: Value) {
        let path = PointerBuf::from_tokens(path.iter().copied());
        self.operations.push(PatchOperation::Add(AddOperation { path, value }));
    }

    /// Adds a member of an object, and the object itself if it is missing. `added` tells whether it was added before.
    fn add_member(&mut self, object: &Value, path: &[&str], key: &str, value: Value) {
        let pointer = PointerBuf::from_tokens(path.iter().copied());
        let is_there = object.pointer(pointer.as_str()).is_some_and(Value::is_object)
            || self.operations.iter().any(|done| done.path().as_str() == pointer.as_str());
        if is_there {
            self.add(&[path, &[key]].concat(), value);
        } else {
            self.add(path, json!({ key: value }));
        }
    }

    /// Adds an element to a list, and the list itself if it is missing.
    fn add_element(&mut self, object: &Value, path: &[&str], value: Value) {
        let pointer = PointerBuf::from_tokens(path.iter().copied());
        let is_there = object.pointer(pointer.as_str()).is_some_and(Value::is_array)
            || self.operations.iter().any(|done| done.path().as_str() == pointer.as_str());
        if is_there {
            self.add(&[path, &["-"]].concat(), value);
        } else {
            self.add(path, json!([value]));
        }
    }

    fn default_network(&mut self, object: &Value, pod: &Pod, namespace: Option<&NamespaceFacts>) {
        let key = Annotation::DefaultNetwork.key();
        let Some(network) = namespace.and_then(|namespace| namespace.default_network.as_ref()) else {
            return;
        };
        if !pod.annotations.contains_key(key) {
            self.add_member(object, &["metadata", "annotations"], key, json!(network));
        }
    }

    fn node_selectors(&mut self, object: &Value, selected: &[(Option<String>, &Definition)]) {
        let mut wanted: BTreeMap<String, String> = BTreeMap::new();
        let own = |key: &str| {
            object
                .pointer("/spec/nodeSelector")
                .and_then(|selector| selector.get(key))
                .and_then(Value::as_str)
        };
        for (_, definition) in selected {
            let Some(text) = definition.annotations.get(NODE_SELECTOR) else { continue };
            for (key, value) in text.split(',').filter_map(|pair| pair.split_once('=')) {
                let (key, value) = (key.trim(), value.trim());
                let known = own(key).or_else(|| wanted.get(key).map(String::as_str));
                match known {
                    Some(known) if known == value => {}
                    Some(known) => self.warnings.push(format!(
                        "network {} needs nodes with {key}={value}, and the pod selects {key}={known}",
                        definition.reference()
                    )),
                    None => {
                        wanted.insert(key.to_owned(), value.to_owned());
                    }
                }
            }
        }
        for (key, value) in wanted {
            self.add_member(object, &["spec", "nodeSelector"], &key, json!(value));
        }
    }

    fn resources(&mut self, object: &Value, pod: &Pod, selected: &[(Option<String>, &Definition)]) {
        let has_claims = object
            .pointer("/spec/resourceClaims")
            .and_then(Value::as_array)
            .is_some_and(|all| !all.is_empty());
        match pod.annotations.get(INJECT).map(String::as_str) {
            Some("false") => return,
            None if has_claims => return,
            _ => {}
        }
        let mut needed: BTreeMap<&str, u64> = BTreeMap::new();
        for resource in selected.iter().filter_map(|(resource, _)| resource.as_deref()) {
            *needed.entry(resource).or_default() += 1;
        }
        let mut has_added = false;
        if object.pointer("/spec/containers/0").is_none() {
            return;
        }
        for (resource, count) in needed {
            let missing = count.saturating_sub(requested(object, resource));
            if missing == 0 {
                continue;
            }
            let first = first_container(object, resource);
            let value = json!((first + missing).to_string());
            for kind in ["requests", "limits"] {
                if object.pointer("/spec/containers/0/resources").is_none() && !has_added {
                    self.add(&["spec", "containers", "0", "resources"], json!({}));
                }
                has_added = true;
                self.add_member(
                    object,
                    &["spec", "containers", "0", "resources", kind],
                    resource,
                    value.clone(),
                );
            }
        }
        if has_added {
            self.information_volume(object);
        }
    }

    /// Adds the volume with labels and annotations, which programs that use devices read.
    fn information_volume(&mut self, object: &Value) {
        let volumes = object.pointer("/spec/volumes").and_then(Value::as_array);
        if volumes.is_some_and(|volumes| volumes.iter().any(|volume| volume["name"] == INFO_VOLUME)) {
            return;
        }
        let item =
            |name: &str| json!({ "path": name, "fieldRef": { "fieldPath": format!("metadata.{name}") } });
        let volume =
            json!({ "name": INFO_VOLUME, "downwardAPI": { "items": [item("labels"), item("annotations")] } });
        self.add_element(object, &["spec", "volumes"], volume);
        let count = object.pointer("/spec/containers").and_then(Value::as_array).map_or(0, Vec::len);
        for index in 0..count {
            let index = index.to_string();
            let mount = json!({ "name": INFO_VOLUME, "mountPath": INFO_PATH, "readOnly": true });
            self.add_element(object, &["spec", "containers", &index, "volumeMounts"], mount);
        }
    }
}

/// Returns the selected networks whose definitions exist, each with the resource that an attachment to it uses.
fn selected<'a>(
    pod: &Pod,
    definitions: &'a BTreeMap<NetworkReference, Definition>,
) -> Vec<(Option<String>, &'a Definition)> {
    let text = pod.annotations.get(Annotation::Networks.key()).map_or("", String::as_str);
    let elements = Reading::of(Annotation::Networks, text, &pod.namespace).elements;
    let found = elements.into_iter().filter_map(|element| {
        let definition = definitions.get(&element.network)?;
        let resource = definition.resource().map(str::to_owned).or(element.resource);
        Some((resource, definition))
    });
    found.collect()
}

/// Returns how many of a resource all containers request.
fn requested(object: &Value, resource: &str) -> u64 {
    let containers = object.pointer("/spec/containers").and_then(Value::as_array);
    containers.into_iter().flatten().map(|container| of_container(container, resource)).sum()
}

fn first_container(object: &Value, resource: &str) -> u64 {
    object.pointer("/spec/containers/0").map_or(0, |container| of_container(container, resource))
}

fn of_container(container: &Value, resource: &str) -> u64 {
    let count = |kind: &str| {
        let value = container.get("resources")?.get(kind)?.get(resource)?;
        value.as_u64().or_else(|| value.as_str()?.parse().ok())
    };
    count("limits").or_else(|| count("requests")).unwrap_or_default()
}

#[cfg(test)]
mod tests;
