//! What is to be done so that a Service's slices are what they should be: as few writes as it takes.
//!
//! Rules:
//! - an address stays in the slice that it is in; new ones go where something is written anyway, then where there is room;
//! - a slice has at most a hundred addresses, so that the change of one pod is a small one for whoever watches;
//! - a slice that is empty, of other ports, or of a Service that asks for nothing, goes;
//! - what the server drops of a slice because it does not know it is no difference;
//! - names are the first free ones: who did not hear that his slice was made tries to make the same one; what somebody else has
//!   is not free.
//!
//! Source: Kubernetes `pkg/controller/endpointslice/reconciler.go`, `--max-endpoints-per-slice`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::services::desired_slices::{Group, identity};
use crate::services::service_objects::{
    Conditions, Endpoint, MANAGED_BY, MANAGER, Port, SERVICE_NAME, Service, Slice,
};

/// Most addresses of a slice.
const ENDPOINTS_MAX: usize = 100;
/// Label of slices whose Service has no address of its own, as Kubernetes' own controller sets it.
const HEADLESS: &str = "service.kubernetes.io/headless";

/// Something to be done.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Deed {
    /// Make it.
    Create(Slice),
    /// Write it in the place of the one whose version it has.
    Replace(Slice),
    /// Take it away.
    Delete(Slice),
}

impl Deed {
    /// The slice.
    pub(crate) fn slice(&self) -> &Slice {
        let (Deed::Create(slice) | Deed::Replace(slice) | Deed::Delete(slice)) = self;
        slice
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        self.slice().metadata.name.as_deref().unwrap_or_default()
    }
}

/// What is to be done about the slices of ours that a Service has; names that are `taken` are others'.
pub(crate) fn deeds(
    service: &Service,
    groups: &[Group],
    present: &[Arc<Slice>],
    mut taken: BTreeSet<String>,
) -> Vec<Deed> {
    taken.extend(present.iter().filter_map(|slice| slice.metadata.name.clone()));
    let mut deeds = Vec::new();
    let of =
        |group: &Group, slice: &Slice| slice.family == group.family && sorted(&slice.ports) == group.ports;
    for group in groups {
        let own: Vec<&Slice> = present.iter().map(AsRef::as_ref).filter(|slice| of(group, slice)).collect();
        deeds.extend(of_group(service, group, &own, &mut taken));
    }
    let others = present.iter().filter(|slice| !groups.iter().any(|group| of(group, slice)));
    deeds.extend(others.map(|slice| Deed::Delete(slice.as_ref().clone())));
    deeds
}

/// A slice that is there, and what it should hold.
struct Filled<'a> {
    slice: &'a Slice,
    endpoints: Vec<Endpoint>,
    changed: bool,
}

fn of_group(service: &Service, group: &Group, present: &[&Slice], taken: &mut BTreeSet<String>) -> Vec<Deed> {
    let mut left: BTreeMap<_, &Endpoint> =
        group.endpoints.iter().map(|endpoint| (identity(endpoint), endpoint)).collect();
    let mut filled: Vec<Filled<'_>> = present
        .iter()
        .map(|slice| {
            let stays = slice.endpoints.iter().filter_map(|there| left.remove(&identity(there)));
            let endpoints: Vec<Endpoint> = stays.take(ENDPOINTS_MAX).cloned().collect();
            let changed = !is_same(&slice.endpoints, &endpoints) || !is_marked(service, slice);
            Filled { slice, endpoints, changed }
        })
        .collect();
    // In the order of their pods' names, which is theirs in the group.
    let mut new = group.endpoints.iter().filter(|endpoint| left.contains_key(&identity(endpoint))).peekable();
    filled.sort_by_key(|one| (!one.changed, one.endpoints.len()));
    for one in &mut filled {
        // An empty one goes, if it is not needed.
        while one.endpoints.len() < ENDPOINTS_MAX && new.peek().is_some() {
            one.endpoints.extend(new.next().cloned());
            one.changed = true;
        }
    }
    let mut deeds: Vec<Deed> = filled.into_iter().filter_map(|one| one.deed(service, group)).collect();
    while new.peek().is_some() {
        let endpoints = new.by_ref().take(ENDPOINTS_MAX).cloned().collect();
        let metadata = ObjectMeta { name: Some(free(service, taken)), ..ObjectMeta::default() };
        deeds.push(Deed::Create(slice(service, group, metadata, endpoints)));
    }
    deeds
}

impl Filled<'_> {
    fn deed(self, service: &Service, group: &Group) -> Option<Deed> {
        let Filled { slice: present, endpoints, changed } = self;
        match () {
            () if endpoints.is_empty() => Some(Deed::Delete(present.clone())),
            () if changed => Some(Deed::Replace(slice(service, group, present.metadata.clone(), endpoints))),
            () => None,
        }
    }
}

/// A slice with our marks.
fn slice(service: &Service, group: &Group, metadata: ObjectMeta, endpoints: Vec<Endpoint>) -> Slice {
    let mut labels = metadata.labels.unwrap_or_default();
    labels.extend(marks(service));
    let metadata = ObjectMeta {
        namespace: Some(service.namespace.clone()),
        labels: Some(labels),
        owner_references: Some(vec![owner(service)]),
        ..metadata
    };
    Slice { metadata, family: group.family.to_owned(), endpoints, ports: group.ports.clone() }
}

fn marks(service: &Service) -> [(String, String); 3] {
    [(SERVICE_NAME, service.name.as_str()), (MANAGED_BY, MANAGER), (HEADLESS, "")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
}

/// With its Service it goes.
fn owner(service: &Service) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Service".to_owned(),
        name: service.name.clone(),
        uid: service.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

fn is_marked(service: &Service, slice: &Slice) -> bool {
    let labels = slice.metadata.labels.as_ref();
    let marked = marks(service).iter().all(|(key, value)| labels.and_then(|all| all.get(key)) == Some(value));
    marked && slice.metadata.owner_references.as_deref() == Some(&[owner(service)])
}

/// The first name that nothing has.
fn free(service: &Service, taken: &mut BTreeSet<String>) -> String {
    let mut number = 0_u64;
    loop {
        let name = format!("{}-weft-{number}", service.name);
        if taken.insert(name.clone()) {
            return name;
        }
        number += 1;
    }
}

fn sorted(ports: &[Port]) -> Vec<Port> {
    let mut ports = ports.to_vec();
    ports.sort();
    ports
}

/// Is it what it should be, but for what the server does not keep? (Before 1.22 it knew neither serving nor terminating, and in
/// v1beta1 no node.)
fn is_same(there: &[Endpoint], wanted: &[Endpoint]) -> bool {
    fn kept<T: PartialEq>(there: Option<&T>, wanted: Option<&T>) -> bool {
        there.is_none() || there == wanted
    }
    there.len() == wanted.len()
        && there.iter().zip(wanted).all(|(there, wanted)| {
            let (Conditions { ready, serving, terminating }, of) = (&there.conditions, &wanted.conditions);
            there.addresses == wanted.addresses
                && there.hostname == wanted.hostname
                && there.target_ref == wanted.target_ref
                && *ready == of.ready
                && kept(serving.as_ref(), of.serving.as_ref())
                && kept(terminating.as_ref(), of.terminating.as_ref())
                && kept(there.node_name.as_ref(), wanted.node_name.as_ref())
        })
}

#[cfg(test)]
mod tests;
