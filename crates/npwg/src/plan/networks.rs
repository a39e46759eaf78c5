//! Choice and order of a pod's networks.
//!
//! 1. The default network, from the pod's default-network annotation, else from the node configuration.
//! 2. The networks that every pod gets (`delegates[1..]`, and `defaultNetworks` outside the system
//!    namespaces).
//! 3. The networks that the pod selects, in annotation order.
//! 4. The auxiliary chain, if the directory has files.
//!
//! Source: multi-network specification, 4.2, 6 and 6.2; Multus `k8sclient.go`, `multus.go`.

use std::collections::BTreeSet;

use cni::name::IfName;
use cni::network::Network;

use super::{
    CONFIGURATIONS_MAX, Decision, RefusedNetwork, Request, Role, access, reference_fault, too_large,
};
use crate::configuration::{DefaultNetwork, InvalidAnnotation, NodeConfiguration, Place};
use crate::definition::{self, OnDisk, Origin, Resolved};
use crate::metadata::{Definition, NetworkReference, Pod};
use crate::refusal::{Fault, KeyPath, Reason, Refusal, Warning, quote};
use crate::request::DefaultRoute;
use crate::rule::Rule;
use crate::selection::{Annotation, Element, Reading};

/// A pod's networks, collected from all sources.
pub(super) struct Collected {
    /// Networks that can be attached as far as the definitions show, in order.
    pub(super) drafts: Vec<Draft>,
    /// Selected networks that cannot be attached.
    pub(super) refused: Vec<RefusedNetwork>,
    /// Interface names that these request.
    pub(super) reserved: Vec<IfName>,
    /// Number of networks, including those that cannot be attached.
    pub(super) count: usize,
}

/// Chosen network, before interface name, device and requests are decided.
pub(super) struct Draft {
    /// Name in the status.
    pub(super) label: String,
    /// Reason why it is attached.
    pub(super) role: Role,
    /// Index among all networks for the pod, including those that cannot be attached.
    pub(super) index: usize,
    /// Plugins to execute.
    pub(super) network: Network,
    /// Name in messages.
    pub(super) subject: String,
    /// Device-plugin resource that an attachment uses.
    pub(super) resource: Option<String>,
    /// Annotation element, if a pod selects the network.
    pub(super) asked: Option<Asked>,
    named_by: String,
    origin: String,
}

/// Element and the annotation that contains it.
pub(super) struct Asked {
    pub(super) annotation: Annotation,
    pub(super) element: Element,
}

impl Asked {
    /// Returns a fault at this element's `key`.
    pub(super) fn fault(&self, rule: Rule, key: &str, reason: impl Into<String>) -> Fault {
        let path = KeyPath::root().index(self.element.index).key(key);
        Fault::new(rule, self.annotation.subject(), reason).at(path)
    }
}

impl Draft {
    /// Returns the element, if a pod selects the network.
    pub(super) fn element(&self) -> Option<&Element> {
        self.asked.as_ref().map(|asked| &asked.element)
    }

    /// Returns the draft as a network that cannot be attached.
    ///
    /// # Errors
    /// The refusal itself, unless only this network, which the pod selects, is concerned.
    pub(super) fn refused(&self, refusal: Refusal) -> Result<RefusedNetwork, Refusal> {
        match refusal {
            Refusal::AttachmentFailed(fault) if self.role == Role::Selected => {
                Ok(RefusedNetwork { network: self.label.clone(), fault: *fault })
            }
            refusal => Err(refusal),
        }
    }

    pub(super) fn default_route(&self) -> &DefaultRoute {
        self.element().map_or(&DefaultRoute::NotRequested, |element| &element.default_route)
    }

    /// Returns the decision to attach this network.
    pub(super) fn because(&self) -> Decision {
        Decision::new("network", &self.label, self.named_by.clone())
    }

    /// Returns the decision that names where the configuration comes from.
    pub(super) fn origin(&self) -> Decision {
        Decision::new("config", &self.network.name, self.origin.clone())
    }
}

/// Returns the definitions that a plan for `pod` needs, so that the caller can fetch them first.
///
/// Definitions in an invalid annotation are left out.
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

/// Returns the namespace for an element that names none.
fn home<'a>(annotation: Annotation, pod: &'a Pod, node: &'a NodeConfiguration) -> &'a str {
    match annotation {
        Annotation::Networks => &pod.namespace,
        Annotation::DefaultNetwork => &node.multus_namespace,
    }
}

/// Returns every network for the pod, in order.
pub(super) fn collect(request: &Request<'_>, warnings: &mut Vec<Warning>) -> Result<Collected, Refusal> {
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
    let (mut refused, mut reserved) = (Vec::new(), Vec::new());
    // The size is checked after each selected network, so that a pod cannot accumulate configurations beyond the limit.
    let mut room = CONFIGURATIONS_MAX;
    let mut count = drafts.len();
    for (index, draft) in drafts.iter_mut().enumerate() {
        draft.index = index;
    }
    for element in selection {
        let (network, interface) = (element.network.to_string(), element.interface.clone());
        match of_element(request, Annotation::Networks, element) {
            Ok(draft) => {
                let left = room.checked_sub(draft.network.bytes().len());
                room = left.ok_or_else(|| too_large(&draft.subject))?;
                drafts.push(Draft { index: count, ..draft });
            }
            Err(Refusal::AttachmentFailed(fault)) => {
                refused.push(RefusedNetwork { network, fault: *fault });
                reserved.extend(interface);
            }
            Err(refusal) => return Err(refusal),
        }
        count += 1;
    }
    if let Some(draft) = auxiliary(request)? {
        drafts.push(Draft { index: count, ..draft });
        count += 1;
    }
    Ok(Collected { drafts, refused, reserved, count })
}

/// Returns an annotation's elements; none if it is absent, or invalid and ignored.
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
        return Err(Refusal::failed(fault.hint(hint_of_unknown(request, annotation, &network))));
    };
    let resolved = definition::resolve(definition, request.disk, &request.node.conf_dir)?;
    let role = match annotation {
        Annotation::DefaultNetwork => Role::Default,
        Annotation::Networks => Role::Selected,
    };
    let asked = Asked { annotation, element };
    Ok(Draft {
        index: 0,
        label: network.to_string(),
        role,
        subject: definition::subject(&network),
        origin: origin(&resolved, &network),
        network: resolved.network,
        resource: resource(&asked, definition)?,
        named_by: format!("{}: {path}", annotation.subject()),
        asked: Some(asked),
    })
}

/// Returns the resource for a selected network: the one that the definition names, else the one that the pod
/// requests.
fn resource(asked: &Asked, definition: &Definition) -> Result<Option<String>, Refusal> {
    let own = definition.resource();
    let Some(requested) = asked.element.resource.as_deref() else { return Ok(own.map(str::to_owned)) };
    let subject = definition::subject(&definition.reference());
    let reason = match own {
        Some(own) if own == requested => None,
        Some(own) => Some(format!("{subject} has resource {own}")),
        None => definition
            .allowed_resources()
            .filter(|allowed| !allowed.contains(&requested))
            .map(|allowed| format!("{subject} allows {}", allowed.join(", "))),
    };
    match reason {
        None => Ok(Some(requested.to_owned())),
        Some(reason) => {
            let fault = asked.fault(Rule::ResourceNotAllowed, "resourceName", reason);
            Err(Refusal::failed(
                fault.showing(&quote(requested)).hint("request that resource, or remove the key"),
            ))
        }
    }
}

/// Returns the device-plugin resources that a pod's networks may use, so that the caller can fetch the devices first.
pub fn resources<'a>(
    pod: &Pod,
    node: &NodeConfiguration,
    definitions: impl IntoIterator<Item = &'a Definition>,
) -> BTreeSet<String> {
    let own = definitions.into_iter().filter_map(Definition::resource).map(str::to_owned);
    let elements = [Annotation::DefaultNetwork, Annotation::Networks].into_iter().flat_map(|annotation| {
        let read = pod.annotations.get(annotation.key());
        let read =
            read.and_then(|text| Reading::of(annotation, text, home(annotation, pod, node)).settle().ok());
        read.into_iter().flat_map(|selection| selection.elements)
    });
    own.chain(elements.filter_map(|element| element.resource)).collect()
}

/// Returns the next step for a network without a definition.
fn hint_of_unknown(request: &Request<'_>, annotation: Annotation, network: &NetworkReference) -> String {
    let NetworkReference { namespace, name } = network;
    let own = NetworkReference::new(&request.pod.namespace, name);
    let searched = &request.node.multus_namespace;
    match annotation {
        Annotation::DefaultNetwork if namespace == searched && own.namespace != *namespace => {
            // Only definitions that the pod names are looked up.
            let is_named = wanted(request.pod, request.node).contains(&own);
            let is_there = is_named && request.definitions.find(&own).is_some();
            let there = if is_there { ", which exists" } else { "" };
            format!(
                "a name without a namespace is searched in {searched}; write {own} for the one of the pod's namespace{there}"
            )
        }
        _ => format!("kubectl get network-attachment-definitions -n {namespace} lists those that there are"),
    }
}

fn origin(resolved: &Resolved, network: &NetworkReference) -> String {
    match &resolved.origin {
        Origin::Definition => format!("spec.config of {network}"),
        Origin::List(path) | Origin::Single(path) => format!("{path}, by its name"),
    }
}

fn written(network: &Network, role: Role, index: usize) -> Result<Draft, Refusal> {
    let named_by = format!("delegates[{index}]");
    definition::refuse_meta_plugin(network, &named_by)?;
    Ok(Draft {
        index: 0,
        label: network.name.to_string(),
        role,
        network: network.clone(),
        subject: named_by.clone(),
        resource: None,
        asked: None,
        origin: "inline".to_owned(),
        named_by,
    })
}

/// Returns the network that an administrator names: a definition, else a network on disk.
fn named(request: &Request<'_>, place: &Place, role: Role, key: &str) -> Result<Draft, Refusal> {
    let on_disk = match place {
        Place::Path(path) => (request.disk.at(path), path.as_str()),
        Place::Name(name) => {
            let reference = NetworkReference::new(&request.node.multus_namespace, name);
            if let Some(definition) = request.definitions.find(&reference) {
                let resolved = definition::resolve(definition, request.disk, &request.node.conf_dir)?;
                return Ok(Draft {
                    index: 0,
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
    definition::refuse_meta_plugin(network, path)?;
    Ok(Draft {
        index: 0,
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

/// Returns Multus's auxiliary chain: a plugin without effect, followed by every file in the directory.
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
    definition::refuse_meta_plugin(&network, key)?;
    Ok(Some(Draft {
        index: 0,
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
