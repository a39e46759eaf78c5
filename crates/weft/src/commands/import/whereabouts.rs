//! `weft import whereabouts`: reserves in IP pools the addresses that whereabouts allocated to running pods.
//!
//! ```text
//!   IPPool.spec.allocations, OverlappingRangeIPReservation, NodeSlicePool ┐
//!   network-status of pods on networks with this IPAM ────────────────────┴─► owners ─► plan
//!   plan ─► --apply: IPPool, and an IPBlock for each address, kept until its pod is deleted
//!        ─► --verify: what runs, what whereabouts recorded and what weft holds, side by side
//! ```
//!
//! - Objects of whereabouts are not changed. Existing objects of weft are kept, so the command may be repeated.
//! - An unreadable object is named, and nothing is created before all objects were read.
//! - Nothing is created while two pods have the same address.
//! - A failed request is the outcome of one address; after some in a row the others are not tried.
//!
//! Source: whereabouts v0.9 `pkg/api/whereabouts.cni.cncf.io/v1alpha1`, `pkg/storage/kubernetes`.

mod apply;
mod networks;
mod objects;
mod outcome;
mod owners;
mod verify;

use clap::Args;
use kube::Client;

use crate::cluster_access::{ClusterAccess, snapshot_failure};
use cli_support::async_runtime::runtime;
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output::Output;
use ipam_api::cluster_snapshot::{ClusterSnapshot, SnapshotError};
use networks::{SharedNetworks, ShownAddress};
use objects::{Allocation, WhereaboutsObjects};
use owners::{OwnedAddress, owners};

/// Arguments of `weft import whereabouts`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft import whereabouts
  weft import whereabouts --apply
  weft import whereabouts --verify

Without --apply nothing is written. docs/migrate-from-whereabouts.md describes the migration.

{EXIT_CODES} An address that cannot be kept or failed, and a difference, are failures."))]
pub(crate) struct Arguments {
    /// Create the pools and the addresses (default: only show them)
    #[arg(long, conflicts_with = "verify")]
    apply: bool,
    /// Compare what pods show, what whereabouts recorded and what weft holds
    #[arg(long)]
    verify: bool,
    /// Namespace of the whereabouts objects (default: all namespaces)
    #[arg(long, value_name = "NAMESPACE")]
    from_namespace: Option<String>,
    #[command(flatten)]
    cluster: ClusterAccess,
    #[command(flatten)]
    output: Output,
}

/// Objects in the cluster, as read once.
struct ClusterState {
    snapshot: ClusterSnapshot,
    records: Vec<Allocation>,
    shown: Vec<ShownAddress>,
    addresses: Vec<OwnedAddress>,
}

/// Runs `weft import whereabouts`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { apply, verify, from_namespace, cluster, output: Output { format } } = arguments;
    runtime()?.block_on(async {
        let client = cluster.client().await?;
        let objects = WhereaboutsObjects::list(&client, from_namespace.as_deref()).await?;
        if objects.is_empty() && *apply {
            let place = from_namespace.as_ref().map_or("any namespace".to_owned(), |one| format!("namespace {one}"));
            let why = format!("whereabouts has no object in {place}: nothing was imported");
            return Err(Failure::new(why).next(
                "if whereabouts runs in this cluster, use the kubeconfig of this cluster, with the right to list its objects",
            ));
        }
        let state = ClusterState::read(&client, &objects).await?;
        if *verify {
            return verify::print(&verify::differences(&state), *format);
        }
        let planned = outcome::plan(&state);
        if !*apply {
            return outcome::print_plan(&state, &planned, *format);
        }
        if state.addresses.iter().any(|address| !address.rivals.is_empty()) {
            outcome::print_plan(&state, &planned, *format)?;
        }
        let outcomes = apply::import(&client, &state).await;
        outcome::print_result(&state, &outcomes, *format)
    })
}

impl ClusterState {
    async fn read(client: &Client, objects: &WhereaboutsObjects) -> Result<ClusterState, Failure> {
        let unreadable = |error: objects::ReadError| Failure::new(error.to_string());
        let (records, ranges) =
            (objects.allocations().map_err(unreadable)?, objects.ranges().map_err(unreadable)?);
        let snapshot = match ClusterSnapshot::take(client).await {
            // A plan needs no IPPools.
            Err(SnapshotError::List { kind: "ippools" | "ipblocks", error: kube::Error::Api(status) })
                if status.code == 404 =>
            {
                ClusterSnapshot::of_pods(client).await
            }
            taken => taken,
        };
        let snapshot = snapshot.map_err(|error| snapshot_failure(&error))?;
        let shown = SharedNetworks::list(client).await?.shown(&snapshot);
        let exists = |pod: &str| find_pod(&snapshot, pod).is_some();
        let addresses = owners(&records, &shown, &ranges, exists);
        // An address that only its pod shows needs no import if weft allocated it.
        let addresses = addresses
            .into_iter()
            .filter(|one| {
                let is_recorded = !one.allocation.recorded_in.is_empty() || !one.rivals.is_empty();
                is_recorded || outcome::holding(&snapshot, &one.allocation) != outcome::Holding::OfPod
            })
            .collect();
        Ok(ClusterState { snapshot, records, shown, addresses })
    }
}

/// Returns the pod `namespace/name`, if it exists.
fn find_pod<'a>(snapshot: &'a ClusterSnapshot, pod: &str) -> Option<&'a ipam_api::cluster_snapshot::Holder> {
    let (namespace, name) = pod.split_once('/')?;
    snapshot.pods.get(&(namespace.to_owned(), name.to_owned()))
}
