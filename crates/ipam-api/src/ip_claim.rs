//! IPAMClaims: addresses that a workload keeps, whichever of its pods has them, as the multi-network standard writes them.
//!
//! ```text
//!   pod: ipam-claim-reference ──► IPAMClaim, read ──► its interface? its addresses, if it has any
//!                                     ▲                     └──► leased with the claim's name ──┐
//!                                     └──── status: ips, ownerPod, conditions ◄─────────────────┘
//! ```
//!
//! Rules: a claim that is not there, or is of another interface, gives no address; what its status says it has is what it
//! gets, or nothing; an address is the claim's until the claim is gone, whatever becomes of its pods. That the
//! status could not be written fails no pod: the next one writes it.
//!
//! Source: the standard 1.3, 8; k8snetworkplumbingwg/ipamclaims v1alpha1.

use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use rpc::allocate::AllocateRequest;
use serde::Deserialize;
use serde_json::{Value, json};
use thiserror::Error;
use tokio::time::timeout;
use tracing::warn;

use kube_support::api_error;
use kube_support::custom_resources::{IPAMClaim, IPAMClaimSpec, IPAMClaimStatus, OwnerPod};
use kube_support::lookup::ASK_MAX;
use kube_support::resource;

/// What the name of a claim's lease begins with.
pub const OF_CLAIM: &str = "claim/";
/// Whether addresses were given, in the status.
const CONDITION: &str = "IPsAllocated";

/// A claim as it comes from the API.
#[derive(Clone, Debug, Deserialize)]
pub struct ClaimObject {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: IPAMClaimSpec,
    #[serde(default)]
    status: IPAMClaimStatus,
}

resource!(ClaimObject as IPAMClaim);

/// Reason why a claim gives no address.
#[derive(Debug, Error)]
#[error("ipamclaim {namespace}/{name}: {fault}")]
pub struct ClaimError {
    /// The namespace of the claim.
    pub namespace: String,
    /// The name of the claim.
    pub name: String,
    /// The fault of the claim.
    pub fault: ClaimFault,
}

/// Fault of a claim.
#[derive(Debug, Error)]
pub enum ClaimFault {
    /// There is no such object.
    #[error("not there: its workload's controller makes it")]
    Missing,
    /// The API server refuses, or cannot be reached.
    #[error("{}", api_error::describe(.0))]
    Api(kube::Error),
    /// The API server does not answer in time.
    #[error("the API server does not answer")]
    Late,
    /// The claim is of another interface than the one that the pod asks for.
    #[error("spec.interface: {interface}: the pod asks with it for {asked}")]
    Interface {
        /// The interface of the claim.
        interface: String,
        /// The interface that the pod asks for.
        asked: String,
    },
    /// An entry of its status is no address.
    #[error("status.ips: {0:?}: not an address")]
    Address(String),
}

/// The claim of a demand.
pub struct Claim {
    api: Api<ClaimObject>,
    namespace: String,
    name: String,
    object: ClaimObject,
}

impl Claim {
    /// The claim that a demand names; nothing if what keeps its address is none.
    ///
    /// # Errors
    /// It is not there, or of another interface.
    pub async fn of(client: &Client, demand: &AllocateRequest) -> Result<Option<Claim>, ClaimError> {
        let Some((namespace, name)) =
            demand.claim.strip_prefix(OF_CLAIM).and_then(|claim| claim.split_once('/'))
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
        let own = demand.owner.rsplit('/').next().unwrap_or_default();
        let interface = object.spec.interface.as_str();
        if !interface.is_empty() && interface != own {
            let (interface, asked) = (interface.to_owned(), own.to_owned());
            return Err(failed(ClaimFault::Interface { interface, asked }));
        }
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        Ok(Some(Claim { api, namespace, name, object }))
    }

    /// Its name, for people.
    pub fn name(&self) -> String {
        format!("ipamclaim {}/{}", self.namespace, self.name)
    }

    /// The address of a pool that its status says it has.
    ///
    /// # Errors
    /// An entry that is no address.
    pub fn address(&self, range: IpNet) -> Result<Option<IpAddr>, ClaimError> {
        for text in &self.object.status.ips {
            let read = text.parse::<IpNet>().map(|net| net.addr()).or_else(|_| text.parse::<IpAddr>());
            let ip = read.map_err(|_| ClaimError {
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

    /// Writes what came of it into the status, if that is news.
    pub async fn tell(&self, range: IpNet, pod: &str, outcome: Result<IpAddr, &str>) {
        let IPAMClaimStatus { ips, owner_pod, conditions } = &self.object.status;
        let address = |text: &String| text.split('/').next().and_then(|ip| ip.parse::<IpAddr>().ok());
        let mut told = ips.clone();
        let (status, reason, message) = match outcome {
            Ok(ip) => {
                // Those of other ranges are of the same interface's other addresses.
                told.retain(|text| address(text).is_none_or(|known| !range.contains(&known)));
                told.push(IpNet::new(ip, range.prefix_len()).unwrap_or(IpNet::from(ip)).to_string());
                ("True", "SuccessfulAllocation", "the addresses are the claim's".to_owned())
            }
            Err(why) => ("False", "AllocationFailed", why.to_owned()),
        };
        let known = conditions.iter().find(|known| known["type"] == CONDITION);
        let is_known = known.is_some_and(|known| known["status"] == status && known["message"] == message);
        let owner = OwnerPod { name: pod.to_owned() };
        let same_ips = told.len() == ips.len() && told.iter().all(|ip| ips.contains(ip));
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
        let mut written = json!({ "ips": told, "conditions": all });
        if outcome.is_ok() {
            written["ownerPod"] = json!({ "name": pod });
        }
        let patch = Patch::Merge(json!({ "status": written }));
        let parameters = PatchParams::default();
        let patched = self.api.patch_status(&self.name, &parameters, &patch);
        let failed = match timeout(ASK_MAX, patched).await {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => api_error::describe(&error),
            Err(_) => "the API server does not answer".to_owned(),
        };
        warn!(claim = self.name(), why = failed, "its status was not written");
    }
}
