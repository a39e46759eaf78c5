//! Tests of the writes, with a simulated API server.

use proptest::prelude::*;

use super::*;
use crate::services::service_objects::Target;

fn service() -> Service {
    Service { namespace: "n".into(), name: "web".into(), uid: "s".into(), request: None }
}

fn endpoint(pod: u16, ready: bool) -> Endpoint {
    let [high, low] = pod.to_be_bytes();
    Endpoint {
        addresses: vec![format!("10.0.{high}.{low}")],
        conditions: Conditions { ready: Some(ready), serving: Some(ready), terminating: Some(false) },
        hostname: None,
        node_name: Some("w".into()),
        target_ref: Target {
            kind: "Pod".into(),
            namespace: "n".into(),
            name: format!("p{pod:05}"),
            uid: format!("u{pod}"),
        },
    }
}

fn group(pods: impl IntoIterator<Item = (u16, bool)>) -> Group {
    let endpoints = pods.into_iter().map(|(pod, ready)| endpoint(pod, ready)).collect();
    let ports = vec![Port { protocol: "TCP".into(), port: 80, ..Port::default() }];
    Group { family: "IPv4", ports, endpoints }
}

/// Applies changes like an API server. An old one drops fields that it does not know.
fn apply(present: &mut Vec<Arc<Slice>>, changes: Vec<SliceChange>, old: bool) {
    let name = |slice: &Slice| slice.metadata.name.clone().expect("a name");
    for change in changes {
        let slice = change.slice();
        let before = present.len();
        present.retain(|there| name(there) != name(slice));
        assert_eq!(
            before - present.len(),
            usize::from(!matches!(change, SliceChange::Create(_))),
            "{}",
            name(slice)
        );
        if let SliceChange::Create(mut slice) | SliceChange::Replace(mut slice) = change {
            slice.metadata.resource_version = Some("1".into());
            for endpoint in slice.endpoints.iter_mut().filter(|_| old) {
                endpoint.node_name = None;
                endpoint.conditions =
                    Conditions { ready: endpoint.conditions.ready, ..Conditions::default() };
            }
            present.push(Arc::new(slice));
        }
    }
}

fn pods(present: &[Arc<Slice>]) -> Vec<Endpoint> {
    let mut all: Vec<_> = present.iter().flat_map(|slice| slice.endpoints.clone()).collect();
    all.sort_by(|one, other| one.target_ref.name.cmp(&other.target_ref.name));
    all
}

#[test]
fn endpoint_slices_hold_100_addresses_and_change_minimally() {
    let mut present = Vec::new();
    let made =
        slice_changes(&service(), &[group((0..250).map(|pod| (pod, true)))], &present, BTreeSet::new());
    assert_eq!(made.len(), 3);
    apply(&mut present, made, false);
    let sizes: Vec<_> = present.iter().map(|slice| slice.endpoints.len()).collect();
    assert_eq!(sizes, [100, 100, 50]);
    let names: Vec<_> = present.iter().filter_map(|slice| slice.metadata.name.clone()).collect();
    assert_eq!(names, ["web-weft-0", "web-weft-1", "web-weft-2"]);
    // One address is added before all others, one is removed, and one is no longer ready.
    let now = (1..251).map(|pod| (pod, pod != 120));
    let written = slice_changes(&service(), &[group(now.clone())], &present, BTreeSet::new());
    assert_eq!(written.len(), 2, "the slice with the removed address takes the new one: {written:?}");
    apply(&mut present, written, false);
    assert_eq!(slice_changes(&service(), &[group(now)], &present, BTreeSet::new()), []);
    // All addresses are removed.
    let gone = slice_changes(&service(), &[], &present, BTreeSet::new());
    assert!(
        gone.len() == 3 && gone.iter().all(|change| matches!(change, SliceChange::Delete(_))),
        "{gone:?}"
    );
}

#[test]
fn endpoint_slices_follow_ports_and_owner_of_the_service() {
    let mut present = Vec::new();
    apply(&mut present, slice_changes(&service(), &[group([(1, true)])], &[], BTreeSet::new()), false);
    let mut other = group([(1, true)]);
    other.ports[0].port = 81;
    let written = slice_changes(&service(), &[other], &present, BTreeSet::new());
    let [SliceChange::Create(made), SliceChange::Delete(gone)] = written.as_slice() else {
        panic!("{written:?}")
    };
    assert_eq!((made.ports[0].port, gone.ports[0].port), (81, 80));
    assert_ne!(made.metadata.name, gone.metadata.name, "both exist for a moment");
    let recreated = Service { uid: "t".into(), ..service() };
    let written = slice_changes(&recreated, &[group([(1, true)])], &present, BTreeSet::new());
    let [SliceChange::Replace(slice)] = written.as_slice() else { panic!("{written:?}") };
    assert_eq!(slice.metadata.owner_references.as_ref().unwrap()[0].uid, "t");
    assert_eq!(slice.metadata.resource_version.as_deref(), Some("1"), "another writer is not overwritten");
}

proptest! {
    /// After each round every desired address is in one slice, and a second comparison finds no difference.
    #[test]
    fn endpoint_slices_converge_and_need_no_further_write(
        rounds in proptest::collection::vec(proptest::collection::btree_map(0_u16..400, any::<bool>(), 0..350), 1..5),
        old in any::<bool>(),
    ) {
        let mut present = Vec::new();
        for round in rounds {
            let groups = if round.is_empty() { Vec::new() } else { vec![group(round.clone())] };
            let first = slice_changes(&service(), &groups, &present, BTreeSet::new());
            apply(&mut present, first, old);
            prop_assert_eq!(slice_changes(&service(), &groups, &present, BTreeSet::new()), []);
            prop_assert!(present.iter().all(|slice| (1..=ENDPOINTS_MAX).contains(&slice.endpoints.len())));
            let listed = pods(&present);
            prop_assert_eq!(listed.len(), round.len());
            for (endpoint, (pod, ready)) in listed.iter().zip(round) {
                prop_assert_eq!(&endpoint.target_ref.uid, &format!("u{pod}"));
                prop_assert_eq!(endpoint.conditions.ready, Some(ready));
            }
        }
    }
}
