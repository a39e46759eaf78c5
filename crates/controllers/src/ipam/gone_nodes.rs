//! What nodes have that are gone for good, and how it is made sure of that they are.
//!
//! ```text
//!   object gone, or out-of-service ──grace──► no pod bound? ──► liveness probe in each of its IPBlocks ──patience──► unchanged? ──► taken
//!                                                                    └── removed by its agent: it is alive ──► grace again
//! ```
//!
//! Rules: a node whose agent answers keeps what it has, whatever is said of it; what was read is taken only if it is as it was; a
//! node that came back in between has changed what it has, and keeps it. The probe is written with the object and taken back
//! by its version, so one compare-and-swap decides between the agent's answer and the controller.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ipam::{IpBlock, reclaim};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use prometheus_client::metrics::counter::Counter;
use tracing::{info, warn};

use crate::ipam::round_error::RoundError;
use ipam_api::api_registry::ApiRegistry;
use ipam_api::clock::now;
use ipam_api::cluster_snapshot::ClusterSnapshot;
use ipam_api::ip_objects::BlockObject;
use kube_support::resources::{NodeObject, PodObject};

/// How long an agent may take to answer a notice: its watch may have to be begun anew.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is known of nodes that seem to be gone.
pub(super) struct Dead {
    client: Client,
    /// How long a node must have been gone.
    grace: Duration,
    requests: Counter,
    gone: BTreeMap<String, Instant>,
    /// By the name of the object: its version with the notice, and since when.
    asked: BTreeMap<String, (String, Instant)>,
}

/// What came of a look at an object of a node that seems to be gone.
enum Look {
    /// It is asked, or was just now.
    Waits,
    /// Somebody changed it since: the node is alive.
    Changed,
    /// Nobody answered.
    Silent,
}

impl Dead {
    /// Who waits so long.
    pub(super) fn new(client: Client, grace: Duration, requests: Counter) -> Dead {
        Dead { client, grace, requests, gone: BTreeMap::new(), asked: BTreeMap::new() }
    }

    /// Takes back what nodes have that have been gone for a while; how much it was.
    pub(super) async fn take(&mut self, snapshot: &ClusterSnapshot) -> Result<u64, RoundError> {
        let holding: BTreeSet<&str> = snapshot.blocks.iter().map(|block| block.spec.node.as_str()).collect();
        let off = |node: &&str| !node.is_empty() && snapshot.is_off(node);
        let off: BTreeSet<&str> = holding.into_iter().filter(off).collect();
        self.gone.retain(|node, _| off.contains(node.as_str()));
        let named =
            |block: &BlockObject| block.metadata.name.clone().filter(|_| off.contains(&*block.spec.node));
        let names: BTreeSet<String> = snapshot.blocks.iter().filter_map(named).collect();
        self.asked.retain(|name, _| names.contains(name));
        let mut taken = 0;
        for node in off {
            let since = *self.gone.entry(node.to_owned()).or_insert_with(Instant::now);
            if since.elapsed() < self.grace {
                continue;
            }
            match self.is_off_now(node).await? {
                true => taken += self.take_of(snapshot, node).await?,
                false => drop(self.gone.remove(node)),
            }
        }
        Ok(taken)
    }

    /// Asks the node, and takes what it does not answer for.
    async fn take_of(&mut self, snapshot: &ClusterSnapshot, node: &str) -> Result<u64, RoundError> {
        let mut silent = Vec::new();
        for block in snapshot.blocks.iter().filter(|block| block.spec.node == node) {
            let Some(object) = block.object() else { continue };
            match self.look(block, &object).await {
                Ok(Look::Waits) => {}
                Ok(Look::Silent) => silent.push((block.spec.pool.as_str(), object)),
                // What is wrong with one block is nothing to the others.
                Err(why) => warn!(node, why = why.to_string(), "the node cannot be asked for it"),
                Ok(Look::Changed) => {
                    info!(node, block = %object.net, "it seems to be gone, and its agent answers");
                    self.gone.remove(node);
                    for block in snapshot.blocks.iter().filter(|block| block.spec.node == node) {
                        self.asked.remove(block.metadata.name.as_deref().unwrap_or_default());
                    }
                    return Ok(0);
                }
            }
        }
        let mut taken = 0;
        for (name, object) in silent {
            let registry =
                snapshot.pool(name).and_then(|pool| ApiRegistry::of(&self.client, pool, &self.requests));
            let Some(registry) = registry else { continue };
            let net = object.net;
            match reclaim(&registry, object, now()).await {
                Ok(()) => {
                    info!(pool = name, block = %net, node, "taken back from a node that is gone");
                    taken += 1;
                }
                Err(fault) => warn!(pool = name, block = %net, node, %fault, "not taken back"),
            }
        }
        Ok(taken)
    }

    /// Writes the notice, if it is not there; else whether it was answered.
    async fn look(&mut self, block: &BlockObject, object: &IpBlock) -> Result<Look, RoundError> {
        let name = block.metadata.name.clone().unwrap_or_default();
        if let Some((version, since)) = self.asked.get(&name) {
            return Ok(match *version == object.version {
                false => Look::Changed,
                true if since.elapsed() < self.grace.min(PATIENCE) => Look::Waits,
                true => Look::Silent,
            });
        }
        let mut asking = block.clone();
        asking.set_probe(Timestamp::now());
        let blocks: Api<BlockObject> = Api::all(self.client.clone());
        self.requests.inc();
        match blocks.replace(&name, &PostParams::default(), &asking).await {
            Ok(written) => {
                let version = written.metadata.resource_version.unwrap_or_default();
                self.asked.insert(name, (version, Instant::now()));
                Ok(Look::Waits)
            }
            // The next round sees what it is now.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(Look::Waits),
            Err(error) => Err(RoundError::Probe { block: name, error }),
        }
    }

    /// The node's object and its pods, as they are at this moment. Of a node that is out of service those stay bound that
    /// tolerate this.
    async fn is_off_now(&self, node: &str) -> Result<bool, RoundError> {
        let failed = |error| RoundError::Node { node: node.to_owned(), error };
        let nodes: Api<NodeObject> = Api::all(self.client.clone());
        let found = nodes.get_opt(node).await.map_err(failed)?;
        let is_marked = found.is_some();
        if found.is_some_and(|node| !node.is_out_of_service()) {
            return Ok(false);
        }
        let pods: Api<PodObject> = Api::all(self.client.clone());
        let own = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let bound = pods.list(&own).await.map_err(failed)?.items;
        Ok(bound.iter().all(|pod| is_marked && pod.stays_out_of_service()))
    }
}
