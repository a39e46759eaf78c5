//! Claim for a KubeVirt virtual machine: it keeps an address when the machine restarts or migrates live.
//!
//! ```text
//!   vm/NAMESPACE/MACHINE/NETWORK/INTERFACE
//!   pod ── controller reference ──► VirtualMachineInstance of this name and uid? ── yes ──► address of the claim
//! ```
//!
//! - The namespace is that of the pod, so no pod reaches an address of another namespace.
//! - A label or annotation decides nothing. The pod's controller reference must name the machine, with the uid of the
//!   existing VirtualMachineInstance. KubeVirt recognizes the machine's pods in the same way.
//! - Several pods may have the address at a time, as during a live migration.
//! - The claim ends when there is neither a VirtualMachine nor a VirtualMachineInstance of the name, and no pod shows the address.
//!
//! Source: kubevirt/kubevirt, API `kubevirt.io/v1` and pods `virt-launcher-…`.

use std::collections::BTreeSet;

use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::{Api, Client};
use npwg::metadata::Pod;
use rpc::allocate::AllocateRequest;
use thiserror::Error;
use tokio::time::timeout;

use kube_support::api_error;
use kube_support::lookup::{ASK_MAX, LookupError, ask};
use kube_support::resources::PodObject;

/// Prefix that the claim's name has in a lease.
pub const OF_MACHINE: &str = "vm/";

/// Claim for a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MachineClaim {
    /// Namespace with the machine and the pods.
    pub namespace: String,
    /// Machine name.
    pub machine: String,
}

/// Why a pod does not get a virtual machine's address.
#[derive(Debug, Error)]
#[error("pod {namespace}/{pod}: virtual machine {machine}: {fault}")]
pub struct MachineError {
    /// Namespace that the pod is in.
    pub namespace: String,
    /// Pod name.
    pub pod: String,
    /// Machine name.
    pub machine: String,
    /// Error with place and reason.
    pub fault: MachineFault,
}

/// Reason why a pod does not count as running a virtual machine.
#[derive(Debug, Error)]
pub enum MachineFault {
    /// The pod could not be read.
    #[error("read the pod: {0}")]
    ReadPod(LookupError),
    /// There is no such pod.
    #[error("the pod does not exist")]
    NoPod,
    /// Another controller, or none, created the pod.
    #[error("metadata.ownerReferences: the machine is not the pod's controller")]
    NotItsController,
    /// The VirtualMachineInstance is missing, or has another uid.
    #[error("metadata.ownerReferences: uid: there is no VirtualMachineInstance of this name and uid")]
    NotItsUid,
    /// The API server refuses, or cannot be reached.
    #[error("read the VirtualMachineInstance: {}", api_error::describe(.0))]
    Api(kube::Error),
    /// The API server did not answer in time.
    #[error("read the VirtualMachineInstance: the API server did not answer in time")]
    Late,
}

impl MachineClaim {
    /// Reads a claim's name; `None` for another kind of claim.
    pub fn parse(claim: &str) -> Option<MachineClaim> {
        let (namespace, rest) = claim.strip_prefix(OF_MACHINE)?.split_once('/')?;
        let (machine, _) = rest.split_once('/')?;
        let (namespace, machine) = (namespace.to_owned(), machine.to_owned());
        Some(MachineClaim { namespace, machine }).filter(|claim| !claim.machine.is_empty())
    }

    /// Checks that the pod in a request runs the machine. `pod` is the pod, if the agent knows it.
    ///
    /// # Errors
    /// The pod does not run the machine, or that is unknown.
    pub async fn verify(
        &self,
        client: &Client,
        request: &AllocateRequest,
        pod: Option<&Pod>,
    ) -> Result<(), MachineError> {
        let failed = |fault| MachineError {
            namespace: request.pod.namespace.clone(),
            pod: request.pod.name.clone(),
            machine: self.machine.clone(),
            fault,
        };
        let read;
        let pod = match pod {
            Some(pod) => pod,
            None => {
                let pods: Api<PodObject> = Api::namespaced(client.clone(), &request.pod.namespace);
                let found = ask(pods, &request.pod.name).await;
                read = found.map_err(|error| failed(MachineFault::ReadPod(error)))?;
                let is_same = |pod: &&Pod| request.pod.uid.is_empty() || request.pod.uid == pod.uid;
                read.as_ref().filter(is_same).ok_or_else(|| failed(MachineFault::NoPod))?
            }
        };
        let uid = self.uid_named_by(pod).ok_or_else(|| failed(MachineFault::NotItsController))?;
        let instances = instances(client, &self.namespace);
        let found = timeout(ASK_MAX, instances.get_metadata_opt(&self.machine)).await;
        let found = found.map_err(|_| failed(MachineFault::Late))?;
        let found = found.map_err(|error| failed(MachineFault::Api(error)))?;
        match found.and_then(|instance| instance.metadata.uid).is_some_and(|known| known == uid) {
            true => Ok(()),
            false => Err(failed(MachineFault::NotItsUid)),
        }
    }

    /// Returns the uid that the pod's controller reference names, if it names the machine.
    fn uid_named_by<'a>(&self, pod: &'a Pod) -> Option<&'a str> {
        let owner = pod.controller.as_ref().filter(|owner| owner.is_virtual_machine())?;
        let is_it = pod.namespace == self.namespace && owner.name == self.machine && !owner.uid.is_empty();
        is_it.then_some(owner.uid.as_str())
    }
}

fn resource(kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("kubevirt.io", "v1", kind), plural)
}

fn instances(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let resource = resource("VirtualMachineInstance", "virtualmachineinstances");
    Api::namespaced_with(client.clone(), namespace, &resource)
}

/// Returns the machines in the cluster, running or not; none if it has no KubeVirt, `None` if it denies
/// access.
///
/// # Errors
/// The API server refuses the request for another reason, or cannot be reached.
pub async fn machines(client: &Client) -> Result<Option<BTreeSet<MachineClaim>>, kube::Error> {
    let mut all = BTreeSet::new();
    for (kind, plural) in
        [("VirtualMachine", "virtualmachines"), ("VirtualMachineInstance", "virtualmachineinstances")]
    {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource(kind, plural));
        match api.list_metadata(&ListParams::default()).await {
            Ok(found) => all.extend(found.items.into_iter().filter_map(|object| {
                Some(MachineClaim { namespace: object.metadata.namespace?, machine: object.metadata.name? })
            })),
            Err(kube::Error::Api(status)) if status.code == 403 => return Ok(None),
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Some(all))
}

#[cfg(test)]
mod tests {
    use kube_support::resources::Reduced;
    use serde_json::{Value, json};

    use super::*;

    /// Pod that KubeVirt creates for a machine, with these owner references.
    fn launcher(namespace: &str, owners: &Value) -> Pod {
        let object = json!({
            "metadata": {
                "namespace": namespace, "name": "virt-launcher-fedora-jk74x", "uid": "p",
                "annotations": { "kubevirt.io/domain": "fedora" },
                "labels": { "kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "u",
                    "kubevirt.io/domain": "fedora", "vm.kubevirt.io/name": "fedora" },
                "ownerReferences": owners,
            },
        });
        serde_json::from_value::<PodObject>(object).unwrap().reduce()
    }

    fn owner(version: &str, kind: &str, name: &str, controller: bool) -> Value {
        json!([{ "apiVersion": version, "kind": kind, "name": name, "uid": "u",
            "controller": controller, "blockOwnerDeletion": true }])
    }

    #[test]
    fn virtual_machine_is_named_by_the_controller_reference_alone() {
        let claim = MachineClaim::parse("vm/blue/fedora/net/pod1").unwrap();
        let own = owner("kubevirt.io/v1", "VirtualMachineInstance", "fedora", true);
        assert_eq!(claim.uid_named_by(&launcher("blue", &own)), Some("u"));
        for (why, namespace, owners) in [
            ("labels alone", "blue", json!([])),
            ("another namespace", "red", own),
            ("no controller", "blue", owner("kubevirt.io/v1", "VirtualMachineInstance", "fedora", false)),
            ("another machine", "blue", owner("kubevirt.io/v1", "VirtualMachineInstance", "debian", true)),
            ("another kind", "blue", owner("kubevirt.io/v1", "VirtualMachine", "fedora", true)),
            ("another group", "blue", owner("apps/v1", "VirtualMachineInstance", "fedora", true)),
            (
                "a similar group",
                "blue",
                owner("kubevirt.io.example/v1", "VirtualMachineInstance", "fedora", true),
            ),
        ] {
            assert_eq!(claim.uid_named_by(&launcher(namespace, &owners)), None, "{why}");
        }
    }

    #[test]
    fn virtual_machine_claim_is_read_from_its_name() {
        let parsed = MachineClaim::parse("vm/blue/fedora/net/pod1");
        assert_eq!(parsed, Some(MachineClaim { namespace: "blue".into(), machine: "fedora".into() }));
        for other in ["vm/blue", "vm/blue/fedora", "vm/blue//net/pod1", "claim/blue/fedora", ""] {
            assert_eq!(MachineClaim::parse(other), None, "{other}");
        }
    }
}
