//! Gone nodes: finds nodes that are off for good and reclaims their blocks.
//!
//! ```text
//!   node deleted or out-of-service ──grace──► no pod bound? ──► liveness probe in each of its IPBlocks ──30 s──► unchanged? ──► reclaimed
//!                                                                    └── removed by the node's agent: alive ──► grace again
//! ```
//!
//! - A node whose agent answers keeps all blocks, whatever the Node object says.
//! - A block is reclaimed only if it is unchanged since the probe. A node that returned has changed it and keeps it.
//! - The probe is written to the object, and the block is reclaimed by resource version. So one compare-and-swap
//!   decides between the agent's answer and the controller.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ipam::IpBlock;
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

/// Time for the agent to answer a probe: the agent's watch may have to reconnect.
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum length of a node name, in bytes.
const NODE_NAME_MAX: usize = 253;

/// State of the nodes that seem to be gone.
pub(super) struct GoneNodes {
    client: Client,
    /// Time for which a node must have been gone.
    grace: Duration,
    requests: Counter,
    gone: BTreeMap<String, Instant>,
    /// Name of the probed object, the resource version with the probe, and the time of the probe.
    probed: BTreeMap<String, (String, Instant)>,
}

/// State of an object's probe.
enum ProbeState {
    /// The agent may still answer.
    Waiting,
    /// The object has changed since the probe: the node is alive.
    Answered,
    /// The agent did not answer in time.
    TimedOut,
}

impl GoneNodes {
    /// Returns a state in which no node is gone yet.
    pub(super) fn new(client: Client, grace: Duration, requests: Counter) -> GoneNodes {
        GoneNodes { client, grace, requests, gone: BTreeMap::new(), probed: BTreeMap::new() }
    }

    /// Reclaims the blocks of nodes that have been gone for the grace period. Returns the number of reclaimed objects.
    pub(super) async fn reclaim(&mut self, snapshot: &ClusterSnapshot) -> Result<u64, RoundError> {
        let holding: BTreeSet<&str> = snapshot.blocks.iter().map(|block| block.spec.node.as_str()).collect();
        let off = |node: &&str| !node.is_empty() && snapshot.is_off(node);
        let off: BTreeSet<&str> = holding.into_iter().filter(off).collect();
        self.gone.retain(|node, _| off.contains(node.as_str()));
        let named =
            |block: &BlockObject| block.metadata.name.clone().filter(|_| off.contains(&*block.spec.node));
        let names: BTreeSet<String> = snapshot.blocks.iter().filter_map(named).collect();
        self.probed.retain(|name, _| names.contains(name));
        let mut reclaimed = 0;
        for node in off {
            let since = *self.gone.entry(node.to_owned()).or_insert_with(Instant::now);
            if since.elapsed() < self.grace {
                continue;
            }
            if self.is_off_now(node).await? {
                reclaimed += self.reclaim_of(snapshot, node).await?;
            } else {
                self.gone.remove(node);
            }
        }
        Ok(reclaimed)
    }

    /// Probes a node and reclaims the blocks for which it does not answer.
    async fn reclaim_of(&mut self, snapshot: &ClusterSnapshot, node: &str) -> Result<u64, RoundError> {
        let mut timed_out = Vec::new();
        for block in snapshot.blocks.iter().filter(|block| block.spec.node == node) {
            let Some(object) = block.object() else { continue };
            match self.probe(block, &object).await {
                Ok(ProbeState::Waiting) => {}
                Ok(ProbeState::TimedOut) => timed_out.push((block.spec.pool.as_str(), object)),
                // A failure with one block does not affect the others.
                Err(error) => warn!(node, error = error.to_string(), "failed to probe the node"),
                Ok(ProbeState::Answered) => {
                    info!(node, block = %object.net, "node seems to be gone, but its agent answered the liveness probe; its blocks are kept");
                    self.gone.remove(node);
                    for block in snapshot.blocks.iter().filter(|block| block.spec.node == node) {
                        self.probed.remove(block.metadata.name.as_deref().unwrap_or_default());
                    }
                    return Ok(0);
                }
            }
        }
        let mut reclaimed = 0;
        for (name, object) in timed_out {
            let registry =
                snapshot.pool(name).and_then(|pool| ApiRegistry::of(&self.client, pool, &self.requests));
            let Some(registry) = registry else { continue };
            let net = object.net;
            match ipam::reclaim(&registry, object, now()).await {
                Ok(()) => {
                    info!(pool = name, block = %net, node, "reclaimed block of a gone node");
                    reclaimed += 1;
                }
                Err(error) => {
                    warn!(pool = name, block = %net, node, %error, "failed to reclaim block of a gone node");
                }
            }
        }
        Ok(reclaimed)
    }

    /// Writes the probe if it is not written yet; otherwise returns whether it was answered.
    async fn probe(&mut self, block: &BlockObject, object: &IpBlock) -> Result<ProbeState, RoundError> {
        let name = block.metadata.name.clone().unwrap_or_default();
        if let Some((version, since)) = self.probed.get(&name) {
            return Ok(if *version != object.version {
                ProbeState::Answered
            } else if since.elapsed() < self.grace.min(PROBE_TIMEOUT) {
                ProbeState::Waiting
            } else {
                ProbeState::TimedOut
            });
        }
        let mut probed = block.clone();
        probed.set_probe(Timestamp::now());
        let blocks: Api<BlockObject> = Api::all(self.client.clone());
        self.requests.inc();
        match blocks.replace(&name, &PostParams::default(), &probed).await {
            Ok(written) => {
                let version = written.metadata.resource_version.unwrap_or_default();
                self.probed.insert(name, (version, Instant::now()));
                Ok(ProbeState::Waiting)
            }
            // After a conflict the next round reads the object again.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(ProbeState::Waiting),
            Err(error) => Err(RoundError::Probe { block: name, error }),
        }
    }

    /// Whether the node is off now, according to the Node object and the pods. Pods that tolerate the taint stay bound
    /// to a node that is out of service.
    ///
    /// No node can have a name that is invalid, for example in an object that was edited manually. The API server would
    /// refuse the requests, and so end every round.
    async fn is_off_now(&self, node: &str) -> Result<bool, RoundError> {
        if !is_node_name(node) {
            return Ok(true);
        }
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

/// Whether a node can have this name (DNS subdomain).
fn is_node_name(name: &str) -> bool {
    let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let is_inner = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(byte);
    let bytes = name.as_bytes();
    bytes.len() <= NODE_NAME_MAX
        && bytes.iter().all(is_inner)
        && is_end(bytes.first())
        && is_end(bytes.last())
}

#[cfg(test)]
mod tests {
    use kube::Config;

    use super::*;

    #[tokio::test]
    async fn gone_node_with_an_invalid_name_causes_no_request() {
        // Nothing listens there, so every request fails.
        let client = Client::try_from(Config::new("http://127.0.0.1:1".parse().unwrap())).unwrap();
        let nodes = GoneNodes::new(client, Duration::ZERO, Counter::default());
        for name in ["a b", "n1,metadata.name=n2", "../pods", "..", "N1", "n1?watch=1", &"n".repeat(254)] {
            assert!(matches!(nodes.is_off_now(name).await, Ok(true)), "{name}");
        }
        for name in ["n1", "ip-10-0-0-1.eu-central-1.compute.internal", &"n".repeat(253)] {
            assert!(nodes.is_off_now(name).await.is_err(), "{name}");
        }
    }
}
