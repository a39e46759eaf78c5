//! IPAMClaims from the multi-network specification: addresses that a workload keeps when pods are replaced.
//!
//! ```text
//!   pod: ipam-claim-reference ──► IPAMClaim, read ──► its interface? its addresses, if it has any
//!                                     ▲                     └──► leased with the claim's name ──┐
//!                                     └──── status: ips, ownerPod, conditions ◄─────────────────┘
//! ```
//!
//! - A claim that does not exist, or is of another interface, yields no address.
//! - If the status of a claim contains an address, the claim gets this address or none. An address outside of the
//!   network's range is refused, and the condition says so.
//! - A claim keeps the address until the claim is deleted, independent of pods.
//! - A failed update of the status fails no pod: the next pod writes it.
//!
//! Source: the multi-network specification 1.3, 8; k8snetworkplumbingwg/ipamclaims v1alpha1.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use rpc::allocate::AllocateRequest;
use serde::Deserialize;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::time::timeout;
use tracing::warn;

use crate::ip_objects::{BlockObject, CLAIM_LABEL, label};
use kube_support::api_error;
use kube_support::custom_resources::{IPAMClaim, IPAMClaimSpec, IPAMClaimStatus, OwnerPod};
use kube_support::lookup::ASK_MAX;
use kube_support::resource;

/// Prefix that a claim's name has in a lease.
pub const OF_CLAIM: &str = "claim/";
/// Condition type that tells whether addresses are allocated.
const CONDITION: &str = "IPsAllocated";

/// Claim as it comes from the API.
#[derive(Clone, Debug, Deserialize)]
pub struct ClaimObject {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: IPAMClaimSpec,
    #[serde(default)]
    status: IPAMClaimStatus,
}

resource!(ClaimObject as IPAMClaim);

/// Reason why a claim yields no address.
#[derive(Debug, Error)]
#[error("ipamclaim {namespace}/{name}: {fault}")]
pub struct ClaimError {
    /// Namespace that the claim is in.
    pub namespace: String,
    /// Claim name.
    pub name: String,
    /// Why it cannot be used.
    pub fault: ClaimFault,
}

/// Why a claim cannot be used.
#[derive(Debug, Error)]
pub enum ClaimFault {
    /// There is no such object.
    #[error("not found: the controller of its workload creates it")]
    Missing,
    /// The API server refuses, or cannot be reached.
    #[error("{}", api_error::describe(.0))]
    Api(kube::Error),
    /// The API server did not answer in time.
    #[error("the API server did not answer in time")]
    Late,
    /// The claim is for another interface than the pod requests.
    #[error("spec.interface: {interface}: the pod requests it for {asked}")]
    Interface {
        /// Interface in the claim.
        interface: String,
        /// Interface that the pod requests.
        asked: String,
    },
    /// An entry in the status is not an address.
    #[error("status.ips: {0:?}: not an address")]
    Address(String),
}

/// Claim that an allocation request names.
pub struct Claim {
    api: Api<ClaimObject>,
    namespace: String,
    name: String,
    object: ClaimObject,
}

/// Reads an address with or without a prefix length.
fn parse(text: &str) -> Option<IpAddr> {
    text.parse::<IpNet>().map(|net| net.addr()).or_else(|_| text.parse::<IpAddr>()).ok()
}

impl Claim {
    /// Reads the claim that a request names; `None` if the request names no IPAMClaim.
    ///
    /// # Errors
    /// The claim does not exist, or is for another interface.
    pub async fn of(client: &Client, request: &AllocateRequest) -> Result<Option<Claim>, ClaimError> {
        let Some((namespace, name)) =
            request.claim.strip_prefix(OF_CLAIM).and_then(|claim| claim.split_once('/'))
        else {
            return Ok(None);
        };
        let api: Api<ClaimObject> = Api::namespaced(client.clone(), namespace);
        let failed = |fault| ClaimError { namespace: namespace.to_owned(), name: name.to_owned(), fault };
        let object = match timeout(ASK_MAX, api.get_opt(name)).await {
            Ok(Ok(Some(object))) => object,
            Ok(Ok(None)) => return Err(failed(ClaimFault::Missing)),
            Ok(Err(error)) => return Err(failed(ClaimFault::Api(error))),
            Err(_) => return Err(failed(ClaimFault::Late)),
        };
        let own = request.owner.rsplit('/').next().unwrap_or_default();
        let interface = object.spec.interface.as_str();
        if !interface.is_empty() && interface != own {
            let (interface, asked) = (interface.to_owned(), own.to_owned());
            return Err(failed(ClaimFault::Interface { interface, asked }));
        }
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Ok(Some(Claim { api, namespace, name, object }))
    }

    /// Returns the name for messages.
    pub fn name(&self) -> String {
        format!("ipamclaim {}/{}", self.namespace, self.name)
    }

    /// Returns the pool address that the status contains.
    ///
    /// # Errors
    /// An entry is not an address.
    pub fn address(&self, range: IpNet) -> Result<Option<IpAddr>, ClaimError> {
        for text in &self.object.status.ips {
            let ip = parse(text).ok_or_else(|| ClaimError {
                namespace: self.namespace.clone(),
                name: self.name.clone(),
                fault: ClaimFault::Address(text.clone()),
            })?;
            if range.contains(&ip) {
                return Ok(Some(ip));
            }
        }
        Ok(None)
    }

    /// Returns an address in the status that the requesting network cannot allocate: it has the same family
    /// as the network's range, but is outside and was not allocated to the claim from another range on the
    /// same interface.
    ///
    /// # Errors
    /// An entry is not an address, or the IPBlocks cannot be read.
    pub async fn foreign_address(
        &self,
        client: &Client,
        request: &AllocateRequest,
    ) -> Result<Option<IpAddr>, ClaimError> {
        let range = request.pool.range;
        let failed = |fault| ClaimError { namespace: self.namespace.clone(), name: self.name.clone(), fault };
        let mut outside = Vec::new();
        for text in &self.object.status.ips {
            let ip = parse(text).ok_or_else(|| failed(ClaimFault::Address(text.clone())))?;
            if ip.is_ipv4() == range.addr().is_ipv4() && !range.contains(&ip) {
                outside.push(ip);
            }
        }
        if outside.is_empty() {
            return Ok(None);
        }
        let blocks: Api<BlockObject> = Api::all(client.clone());
        let selector = format!("{CLAIM_LABEL}={}", label(&request.claim));
        let listed = timeout(ASK_MAX, blocks.list(&ListParams::default().labels(&selector))).await;
        let listed = listed.map_err(|_| failed(ClaimFault::Late))?;
        let listed = listed.map_err(|error| failed(ClaimFault::Api(error)))?.items;
        let objects: Vec<_> = listed.iter().filter_map(BlockObject::object).collect();
        let is_allocated = |ip: &IpAddr| {
            objects.iter().any(|object| object.holder.claim == request.claim && object.net.addr() == *ip)
        };
        Ok(outside.into_iter().find(|ip| !is_allocated(ip)))
    }

    /// Writes the allocation's outcome into the status, if it changes the status.
    pub async fn update_status(&self, range: IpNet, pod: &str, outcome: Result<IpAddr, &str>) {
        let IPAMClaimStatus { ips, owner_pod, conditions } = &self.object.status;
        let address = |text: &String| text.split('/').next().and_then(|ip| ip.parse::<IpAddr>().ok());
        let mut all_ips = ips.clone();
        let (status, reason, message) = match outcome {
            Ok(ip) => {
                // Addresses of other ranges are the further addresses of the same interface.
                all_ips.retain(|text| address(text).is_none_or(|known| !range.contains(&known)));
                all_ips.push(IpNet::new(ip, range.prefix_len()).unwrap_or(IpNet::from(ip)).to_string());
                ("True", "SuccessfulAllocation", "the addresses are allocated to the claim".to_owned())
            }
            Err(why) => ("False", "AllocationFailed", why.to_owned()),
        };
        let known = conditions.iter().find(|known| known["type"] == CONDITION);
        let is_known = known.is_some_and(|known| known["status"] == status && known["message"] == message);
        let owner = OwnerPod { name: pod.to_owned() };
        let same_ips = all_ips.len() == ips.len() && all_ips.iter().all(|ip| ips.contains(ip));
        if is_known && same_ips && (outcome.is_err() || owner_pod.as_ref() == Some(&owner)) {
            return;
        }
        let since = match known {
            Some(known) if known["status"] == status => known["lastTransitionTime"].clone(),
            _ => json!(Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
        };
        let mut all: Vec<Value> =
            conditions.iter().filter(|known| known["type"] != CONDITION).cloned().collect();
        all.push(json!({ "type": CONDITION, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": since, "observedGeneration": self.object.metadata.generation.unwrap_or(0) }));
        let mut written = json!({ "ips": all_ips, "conditions": all });
        if outcome.is_ok() {
            written["ownerPod"] = json!({ "name": pod });
        }
        let patch = Patch::Merge(json!({ "status": written }));
        let parameters = PatchParams::default();
        let patched = self.api.patch_status(&self.name, &parameters, &patch);
        let failed = match timeout(ASK_MAX, patched).await {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => api_error::describe(&error),
            Err(_) => "the API server did not answer in time".to_owned(),
        };
        warn!(claim = self.name(), error = failed, "failed to update claim status");
    }
}
