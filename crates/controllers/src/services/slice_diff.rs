//! Difference between a Service's slices and the desired ones: the fewest writes that remove it.
//!
//! - An address stays in the same slice. A new one goes into a slice that is written anyway, else into one with room.
//! - A slice has at most 100 addresses, so that when one pod changes, every watcher gets a small update.
//! - Slices that are empty, have other ports, or belong to a Service without a request are deleted.
//! - Fields that an old API server drops are not a difference.
//! - A new slice gets the first free name, so that a create whose response was lost is repeated with the same
//!   name. Names that other controllers' slices have are not free.
//!
//! Source: Kubernetes `pkg/controller/endpointslice/reconciler.go`, `--max-endpoints-per-slice`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::services::desired_slices::{Group, identity};
use crate::services::service_objects::{
    Conditions, Endpoint, MANAGED_BY, MANAGER, Port, SERVICE_NAME, Service, Slice,
};

/// Maximum number of addresses in a slice.
const ENDPOINTS_MAX: usize = 100;
/// Label on slices for headless Services, as Kubernetes' own controller sets it.
const HEADLESS: &str = "service.kubernetes.io/headless";

/// Change to make with one write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SliceChange {
    /// Create the slice.
    Create(Slice),
    /// Replaces the slice whose resource version it has.
    Replace(Slice),
    /// Delete the slice.
    Delete(Slice),
}

impl SliceChange {
    /// Returns the slice.
    pub(crate) fn slice(&self) -> &Slice {
        let (SliceChange::Create(slice) | SliceChange::Replace(slice) | SliceChange::Delete(slice)) = self;
        slice
    }

    /// Returns the slice's name.
    pub(crate) fn name(&self) -> &str {
        self.slice().metadata.name.as_deref().unwrap_or_default()
    }
}

/// Returns the writes for a Service whose own slices are `present`. Names in `taken` belong to other controllers.
pub(crate) fn slice_changes(
    service: &Service,
    groups: &[Group],
    present: &[Arc<Slice>],
    mut taken: BTreeSet<String>,
) -> Vec<SliceChange> {
    taken.extend(present.iter().filter_map(|slice| slice.metadata.name.clone()));
    let mut changes = Vec::new();
    let of =
        |group: &Group, slice: &Slice| slice.family == group.family && sorted(&slice.ports) == group.ports;
    for group in groups {
        let own: Vec<&Slice> = present.iter().map(AsRef::as_ref).filter(|slice| of(group, slice)).collect();
        changes.extend(of_group(service, group, &own, &mut taken));
    }
    let others = present.iter().filter(|slice| !groups.iter().any(|group| of(group, slice)));
    changes.extend(others.map(|slice| SliceChange::Delete(slice.as_ref().clone())));
    changes
}

/// Existing slice and the desired endpoints in it.
struct Filled<'a> {
    slice: &'a Slice,
    endpoints: Vec<Endpoint>,
    changed: bool,
}

fn of_group(
    service: &Service,
    group: &Group,
    present: &[&Slice],
    taken: &mut BTreeSet<String>,
) -> Vec<SliceChange> {
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
    // Sorted by the names of their pods, like the group.
    let mut new = group.endpoints.iter().filter(|endpoint| left.contains_key(&identity(endpoint))).peekable();
    filled.sort_by_key(|one| (!one.changed, one.endpoints.len()));
    for one in &mut filled {
        // An empty slice is filled before a new one is created; otherwise it is deleted.
        while one.endpoints.len() < ENDPOINTS_MAX && new.peek().is_some() {
            one.endpoints.extend(new.next().cloned());
            one.changed = true;
        }
    }
    let mut changes: Vec<SliceChange> =
        filled.into_iter().filter_map(|one| one.change(service, group)).collect();
    while new.peek().is_some() {
        let endpoints = new.by_ref().take(ENDPOINTS_MAX).cloned().collect();
        let metadata = ObjectMeta { name: Some(free(service, taken)), ..ObjectMeta::default() };
        changes.push(SliceChange::Create(slice(service, group, metadata, endpoints)));
    }
    changes
}

impl Filled<'_> {
    fn change(self, service: &Service, group: &Group) -> Option<SliceChange> {
        let Filled { slice: present, endpoints, changed } = self;
        if endpoints.is_empty() {
            Some(SliceChange::Delete(present.clone()))
        } else if changed {
            Some(SliceChange::Replace(slice(service, group, present.metadata.clone(), endpoints)))
        } else {
            None
        }
    }
}

/// Returns a slice with the Service's labels and owner.
fn slice(service: &Service, group: &Group, metadata: ObjectMeta, endpoints: Vec<Endpoint>) -> Slice {
    let mut labels = metadata.labels.unwrap_or_default();
    labels.extend(own_labels(service));
    let metadata = ObjectMeta {
        namespace: Some(service.namespace.clone()),
        labels: Some(labels),
        owner_references: Some(vec![owner(service)]),
        ..metadata
    };
    Slice { metadata, family: group.family.to_owned(), endpoints, ports: group.ports.clone() }
}

fn own_labels(service: &Service) -> [(String, String); 3] {
    [(SERVICE_NAME, service.name.as_str()), (MANAGED_BY, MANAGER), (HEADLESS, "")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
}

/// Returns the owner reference: the garbage collector deletes the slice with the Service.
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
    let marked =
        own_labels(service).iter().all(|(key, value)| labels.and_then(|all| all.get(key)) == Some(value));
    marked && slice.metadata.owner_references.as_deref() == Some(&[owner(service)])
}

/// Returns the first free name.
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

/// Whether the endpoints are equal, except for fields that the API server dropped. Kubernetes before 1.22 has neither serving nor
/// terminating, and v1beta1 has no node.
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
