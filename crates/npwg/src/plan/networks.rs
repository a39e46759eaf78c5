//! Which networks a pod gets, in which order, and why.
//!
//! 1. the default network: what the pod's default-network annotation names, else what the node is configured with;
//! 2. what the node gives to every pod (`delegates[1..]`, and `defaultNetworks` outside the system namespaces);
//! 3. what the pod selects, in the order of its annotation;
//! 4. the auxiliary chain, if there are files in its directory.
//!
//! Source: the standard, 4.2, 6 and 6.2; Multus `k8sclient.go`, `multus.go`.

use std::collections::BTreeSet;

use cni::network::Network;

use super::{CONFIGURATIONS_MAX, Decision, Request, Role, access, reference_fault, too_large};
use crate::configuration::{DefaultNetwork, InvalidAnnotation, NodeConfiguration, Place};
use crate::definition::{self, OnDisk, Origin, Resolved};
use crate::metadata::{NetworkReference, Pod};
use crate::refusal::{Fault, KeyPath, Reason, Refusal, Warning};
use crate::request::DefaultRoute;
use crate::rule::Rule;
use crate::selection::{Annotation, Element, Reading};

/// A network that was chosen, before anything is said about how it is attached.
pub(super) struct Draft {
    /// As the status names it.
    pub(super) label: String,
    /// Why it is attached.
    pub(super) role: Role,
    /// The plugins.
    pub(super) network: Network,
    /// How messages name it.
    pub(super) subject: String,
    /// The device-plugin resource it consumes.
    pub(super) resource: Option<String>,
    /// What was asked of it, if a pod asked.
    pub(super) asked: Option<Asked>,
    named_by: String,
    origin: String,
}

/// An element, and the annotation it stands in.
pub(super) struct Asked {
    pub(super) annotation: Annotation,
    pub(super) element: Element,
}

impl Asked {
    /// A fault of this element's `key`.
    pub(super) fn fault(&self, rule: Rule, key: &str, reason: impl Into<String>) -> Fault {
        let path = KeyPath::root().index(self.element.index).key(key);
        Fault::new(rule, self.annotation.subject(), reason).at(path)
    }
}

impl Draft {
    /// What was asked of it.
    pub(super) fn element(&self) -> Option<&Element> {
        self.asked.as_ref().map(|asked| &asked.element)
    }

    pub(super) fn default_route(&self) -> &DefaultRoute {
        self.element().map_or(&DefaultRoute::Unasked, |element| &element.default_route)
    }

    /// Why it is attached.
    pub(super) fn because(&self) -> Decision {
        Decision::new("network", &self.label, self.named_by.clone())
    }

    /// Where its configuration stands.
    pub(super) fn origin(&self) -> Decision {
        Decision::new("config", &self.network.name, self.origin.clone())
    }
}

/// The definitions a plan for `pod` will ask for: fetch these first where a look-up is not at hand.
///
/// What an invalid annotation names is left out.
pub fn wanted(pod: &Pod, node: &NodeConfiguration) -> BTreeSet<NetworkReference> {
    let mut wanted = BTreeSet::new();
    for annotation in [Annotation::DefaultNetwork, Annotation::Networks] {
        let Some(text) = pod.annotations.get(annotation.key()) else { continue };
        if let Ok(selection) = Reading::of(annotation, text, home(annotation, pod, node)).settle() {
            wanted.extend(selection.elements.into_iter().map(|element| element.network));
        }
    }
    let default_network = match &node.default_network {
        DefaultNetwork::Named(place) => Some(place),
        DefaultNetwork::Written { .. } => None,
    };
    for place in default_network.into_iter().chain(&node.default_networks) {
        if let Place::Name(name) = place {
            wanted.insert(NetworkReference::new(&node.multus_namespace, name));
        }
    }
    wanted
}

/// The namespace of an element that names none.
fn home<'a>(annotation: Annotation, pod: &'a Pod, node: &'a NodeConfiguration) -> &'a str {
    match annotation {
        Annotation::Networks => &pod.namespace,
        Annotation::DefaultNetwork => &node.multus_namespace,
    }
}

/// Every network of the pod, in order.
pub(super) fn collect(request: &Request<'_>, warnings: &mut Vec<Warning>) -> Result<Vec<Draft>, Refusal> {
    let node = request.node;
    let mut chosen = selected(request, Annotation::DefaultNetwork, warnings)?.into_iter();
    let selection = selected(request, Annotation::Networks, warnings)?;
    let mut drafts = Vec::new();
    match chosen.next() {
        Some(element) => drafts.push(of_element(request, Annotation::DefaultNetwork, element)?),
        None => drafts.push(match &node.default_network {
            DefaultNetwork::Written { first, .. } => written(first, Role::Default, 0)?,
            DefaultNetwork::Named(place) => named(request, place, Role::Default, "clusterNetwork")?,
        }),
    }
    if let DefaultNetwork::Written { others, .. } = &node.default_network {
        for (index, network) in others.iter().enumerate() {
            drafts.push(written(network, Role::Every, index + 1)?);
        }
    }
    if !node.system_namespaces.contains(&request.pod.namespace) {
        for (index, place) in node.default_networks.iter().enumerate() {
            drafts.push(named(request, place, Role::Every, &format!("defaultNetworks[{index}]"))?);
        }
    }
    // What a pod selects is counted as it comes, so that it cannot pile up what will be refused anyway.
    let mut room = CONFIGURATIONS_MAX;
    for element in selection {
        let draft = of_element(request, Annotation::Networks, element)?;
        room = room.checked_sub(draft.network.bytes().len()).ok_or_else(|| too_large(&draft.subject))?;
        drafts.push(draft);
    }
    drafts.extend(auxiliary(request)?);
    Ok(drafts)
}

/// The elements of an annotation, or none if it is absent, or invalid and to be ignored.
fn selected(
    request: &Request<'_>,
    annotation: Annotation,
    warnings: &mut Vec<Warning>,
) -> Result<Vec<Element>, Refusal> {
    let Some(text) = request.pod.annotations.get(annotation.key()) else { return Ok(Vec::new()) };
    let home = home(annotation, request.pod, request.node);
    match Reading::of(annotation, text, home).settle() {
        Ok(mut selection) => {
            warnings.append(&mut selection.warnings);
            Ok(selection.elements)
        }
        Err(Refusal::AnnotationInvalid(fault))
            if request.node.invalid_annotation == InvalidAnnotation::Ignore =>
        {
            warnings.push(Warning::new(Reason::AnnotationIgnored, *fault));
            Ok(Vec::new())
        }
        Err(refusal) => Err(refusal),
    }
}

fn of_element(request: &Request<'_>, annotation: Annotation, element: Element) -> Result<Draft, Refusal> {
    let network = element.network.clone();
    let path = KeyPath::root().index(element.index);
    let fault = |rule: Rule, reason: &str| {
        reference_fault(rule, &annotation.subject(), &network, reason).at(path.clone())
    };
    access::check(request, &network, fault(Rule::NetworkNotAllowed, ""))?;
    let Some(definition) = request.definitions.find(&network) else {
        let fault = fault(Rule::UnknownNetwork, "there is no such NetworkAttachmentDefinition");
        return Err(Refusal::failed(fault));
    };
    let resolved = definition::resolve(definition, request.disk, &request.node.conf_dir)?;
    let role = match annotation {
        Annotation::DefaultNetwork => Role::Default,
        Annotation::Networks => Role::Selected,
    };
    Ok(Draft {
        label: network.to_string(),
        role,
        subject: definition::subject(&network),
        origin: origin(&resolved, &network),
        network: resolved.network,
        resource: definition.resource().map(str::to_owned),
        named_by: format!("{}: {path}", annotation.subject()),
        asked: Some(Asked { annotation, element }),
    })
}

fn origin(resolved: &Resolved, network: &NetworkReference) -> String {
    match &resolved.origin {
        Origin::Definition => format!("spec.config of {network}"),
        Origin::List(path) | Origin::Single(path) => format!("{path}, by its name"),
    }
}

fn written(network: &Network, role: Role, index: usize) -> Result<Draft, Refusal> {
    let named_by = format!("delegates[{index}]");
    definition::refuse_ourselves(network, &named_by)?;
    Ok(Draft {
        label: network.name.to_string(),
        role,
        network: network.clone(),
        subject: named_by.clone(),
        resource: None,
        asked: None,
        origin: "written there".to_owned(),
        named_by,
    })
}

/// What an administrator names: a definition, else a network on disk.
fn named(request: &Request<'_>, place: &Place, role: Role, key: &str) -> Result<Draft, Refusal> {
    let on_disk = match place {
        Place::Path(path) => (request.disk.at(path), path.as_str()),
        Place::Name(name) => {
            let reference = NetworkReference::new(&request.node.multus_namespace, name);
            if let Some(definition) = request.definitions.find(&reference) {
                let resolved = definition::resolve(definition, request.disk, &request.node.conf_dir)?;
                return Ok(Draft {
                    label: reference.to_string(),
                    role,
                    subject: definition::subject(&reference),
                    origin: origin(&resolved, &reference),
                    network: resolved.network,
                    resource: definition.resource().map(str::to_owned),
                    asked: None,
                    named_by: key.to_owned(),
                });
            }
            (request.disk.find(&request.node.conf_dir, name), name.as_str())
        }
    };
    let (Some(OnDisk { path, network, .. }), _) = on_disk else {
        return Err(Refusal::failed(missing(request, place, key)));
    };
    definition::refuse_ourselves(network, path)?;
    Ok(Draft {
        label: network.name.to_string(),
        role,
        network: network.clone(),
        subject: path.clone(),
        resource: None,
        asked: None,
        named_by: key.to_owned(),
        origin: path.clone(),
    })
}

fn missing(request: &Request<'_>, place: &Place, key: &str) -> Fault {
    let node = request.node;
    let (value, mut reason) = match place {
        Place::Path(path) => (path, "there is no network in this file or directory".to_owned()),
        Place::Name(name) => {
            let wherever = format!(
                "neither a NetworkAttachmentDefinition of namespace {} nor a network in {} has this name",
                node.multus_namespace, node.conf_dir
            );
            (name, wherever)
        }
    };
    if !request.disk.unreadable.is_empty() {
        reason.push_str(&format!(" (could not be read: {})", request.disk.unreadable.join("; ")));
    }
    Fault::new(Rule::UnknownNodeNetwork, key, reason).showing(&format!("{value:?}"))
}

/// Multus's auxiliary chain: a no-op, and every file of its directory after it.
fn auxiliary(request: &Request<'_>) -> Result<Option<Draft>, Refusal> {
    let (Some(name), Some(directory)) = (&request.node.auxiliary_chain, request.node.auxiliary_directory())
    else {
        return Ok(None);
    };
    let key = "auxiliaryCNIChainName";
    let fault = |error: cni::Error| {
        Refusal::failed(
            Fault::new(Rule::InvalidAuxiliaryChain, key, error.to_string())
                .showing(&format!("{directory:?}")),
        )
    };
    let version = request.node.version;
    let head = format!(
        r#"{{"cniVersion":"{version}","name":"{name}","plugins":[{{"type":"passthru","name":"passthru-cni"}}]}}"#
    );
    let mut network = Network::parse(head.as_bytes(), key).map_err(fault)?;
    for on_disk in request.disk.within(&directory) {
        for plugin in &on_disk.network.plugins {
            network.append(plugin.clone()).map_err(fault)?;
        }
    }
    if network.plugins.len() < 2 {
        return Ok(None);
    }
    definition::refuse_ourselves(&network, key)?;
    Ok(Some(Draft {
        label: network.name.to_string(),
        role: Role::Every,
        network,
        subject: key.to_owned(),
        resource: None,
        asked: None,
        named_by: key.to_owned(),
        origin: directory,
    }))
}
