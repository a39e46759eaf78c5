//! Network policies for this node's pods: the part of the API server's objects that these pods need.
//!
//! ```text
//!   MultiNetworkPolicies (all) ─────────────────────┐
//!   PolicyAddressSets, one watch for each namespace ┼─► compile ─► plan of an ADD, update of a running pod
//!   labels and ports of the pod (pod cache) ────────┘
//! ```
//!
//! - A policy is validated once, when it arrives.
//! - Policies select only pods in the same namespace. So the agent watches the sets in namespaces that have policies
//!   and a pod on this node: one list and one watch for each. The watch begins when the pod is bound to the node, not
//!   at the ADD.
//! - An ADD waits for a list that was not read yet and fails with code 11, so no pod starts without policies.
//! - A rule names the set by what it selects. A set that is missing allows nothing, and an update follows. For a
//!   running pod the same applies to sets that were not read yet.
//! - Without the API server the last known state counts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cni::{Error, code};
use kube::runtime::watcher::Config;
use kube::{Api, Client};
use npwg::metadata::{NetworkReference, Pod};
use npwg::network_policy::{AttachmentPolicy, Direction, IsolatedDirection, NetworkPolicy, PolicyAddresses};
use npwg::plan::{Decision, Plan};
use npwg::pod_policies::{self, encoded_size, own_attachment};
use npwg::refusal::Refusal;
use policy_api::address_set::{AddressSet, AddressSetObject, CurrentAddresses, current_addresses};
use policy_api::policy_object::WatchedPolicy;
use policy_api::policy_watch::follow_policies;
use tokio::sync::watch::{Receiver, Sender};
use tokio::task::AbortHandle;
use tokio::time::timeout_at;
use tracing::warn;

use kube_support::cache::changed_keys::{Changed, ChangedKeys};
use kube_support::cache::{Cache, follow};

/// Maximum time that an ADD waits until the namespace's sets are read for the first time.
const SETS_MAX: Duration = Duration::from_secs(5);
/// Number of address sets in one response: they have up to 1 MiB, and a page is in memory as a whole.
const SETS_PAGE: u32 = 10;
/// Time for which changes of pods and policies are collected before watches begin and end.
const GATHER: Duration = Duration::from_millis(20);

/// Cluster policies, and the address sets in namespaces that have pods on this node.
pub(crate) struct NetworkPolicies {
    client: Client,
    /// Every policy of the cluster.
    pub(crate) policies: Arc<Cache<WatchedPolicy>>,
    namespaces: Mutex<BTreeMap<String, NamespaceSets>>,
    /// Number of changes to sets.
    changes: Arc<Sender<u64>>,
}

/// Watch on one namespace's address sets; it ends when it is dropped.
struct NamespaceSets {
    cache: Arc<Cache<AddressSet>>,
    changed: ChangedKeys,
    tasks: [AbortHandle; 2],
}

/// Policies that may select a pod, and the peer addresses.
pub(crate) struct PodPolicies {
    policies: Vec<NetworkPolicy>,
    addresses: BTreeMap<String, PolicyAddresses>,
    /// Whether a policy waits for a rule's set.
    pub(crate) is_waiting: bool,
    /// Reason why the sets of the namespace are not known, if they are needed.
    pub(crate) unread_sets: Option<String>,
}

/// Policies of one attachment.
pub(crate) struct CompiledPolicy {
    pub(crate) policy: Option<AttachmentPolicy>,
    pub(crate) because: Option<Decision>,
    /// Reason why the attachment has no rules: the policies are too large.
    pub(crate) fault: Option<String>,
}

// === impl NetworkPolicies ===

impl NetworkPolicies {
    /// Starts to follow the policies of the cluster.
    pub(crate) fn new(client: &Client) -> NetworkPolicies {
        let policies = Arc::new(Cache::new("multi-networkpolicies"));
        tokio::spawn(follow_policies(client.clone(), Arc::clone(&policies)));
        NetworkPolicies {
            client: client.clone(),
            policies,
            namespaces: Mutex::default(),
            changes: Arc::new(Sender::new(0)),
        }
    }

    fn namespaces(&self) -> MutexGuard<'_, BTreeMap<String, NamespaceSets>> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a receiver for changes to address sets.
    pub(crate) fn changes(&self) -> Receiver<u64> {
        self.changes.subscribe()
    }

    /// Returns the namespaces whose address sets changed since the last call.
    pub(crate) fn changed_namespaces(&self) -> BTreeSet<String> {
        let namespaces = self.namespaces();
        let changed = namespaces.iter().filter(|(_, sets)| match sets.changed.take() {
            Changed::All => true,
            Changed::Keys(keys) => !keys.is_empty(),
        });
        changed.map(|(namespace, _)| namespace.clone()).collect()
    }

    /// Watches the address sets in the namespaces of `pods` that have policies, until the agent ends.
    pub(crate) async fn follow_namespaces(self: Arc<Self>, pods: Arc<Cache<Pod>>) {
        let (mut pod_changes, mut policy_changes) = (pods.changes(), self.policies.changes());
        loop {
            if self.policies.is_synced() && pods.is_synced() {
                self.watch_exactly(&pods);
            }
            // The caches keep the senders.
            tokio::select! {
                _ = pod_changes.changed() => {}
                _ = policy_changes.changed() => {}
            }
            tokio::time::sleep(GATHER).await;
        }
    }

    /// Begins and ends watches, so that there is one for each namespace that needs it.
    fn watch_exactly(&self, pods: &Cache<Pod>) {
        let of_pods: BTreeSet<String> =
            pods.all().iter().filter(|pod| !pod.host_network).map(|pod| pod.namespace.clone()).collect();
        let needed: BTreeSet<String> = of_pods
            .into_iter()
            .filter(|namespace| {
                self.policies.of_namespace(namespace).iter().any(|one| !one.selections.is_empty())
            })
            .collect();
        self.namespaces().retain(|namespace, _| needed.contains(namespace));
        for namespace in needed {
            drop(self.watch(&namespace));
        }
    }

    /// Returns the cache of a namespace's address sets; the first call begins the watch.
    fn watch(&self, namespace: &str) -> Arc<Cache<AddressSet>> {
        let mut namespaces = self.namespaces();
        let sets = namespaces.entry(namespace.to_owned()).or_insert_with(|| {
            let cache = Arc::new(Cache::new("policyaddresssets"));
            let of = namespace.to_owned();
            let api = move |client| Api::<AddressSetObject>::namespaced(client, &of);
            let following =
                follow(self.client.clone(), api, Config::default().page_size(SETS_PAGE), Arc::clone(&cache));
            let followed = tokio::spawn(following);
            let (mut own, all) = (cache.changes(), Arc::clone(&self.changes));
            let forwarded = tokio::spawn(async move {
                while own.changed().await.is_ok() {
                    all.send_modify(|count| *count += 1);
                }
            });
            let tasks = [followed.abort_handle(), forwarded.abort_handle()];
            NamespaceSets { changed: cache.changed_keys(), cache, tasks }
        });
        Arc::clone(&sets.cache)
    }

    /// Adds the policies to a pod's plan.
    ///
    /// # Errors
    /// `Ok(Err(_))`: the policies cannot be enforced. Code 11: policies or sets were not read yet.
    pub(crate) async fn add_to_plan(
        &self,
        plan: &mut Plan,
        pod: &Pod,
        latest: tokio::time::Instant,
    ) -> Result<Result<(), Refusal>, Error> {
        let networks: Vec<NetworkReference> =
            plan.delegates.iter().filter_map(pod_policies::reference).collect();
        if networks.is_empty() {
            return Ok(Ok(()));
        }
        if timeout_at(latest, self.policies.synced()).await.is_err() {
            return Err(unread(&self.policies.waited().unwrap_or_default()));
        }
        let candidates = self.candidates(pod, &networks);
        if candidates.iter().any(|one| !one.selections.is_empty()) {
            let sets = self.watch(&pod.namespace);
            let deadline = latest.min(tokio::time::Instant::now() + SETS_MAX);
            if timeout_at(deadline, sets.synced()).await.is_err() {
                return Err(unread(&sets.waited().unwrap_or_default()));
            }
        }
        // The policies may have changed while the sets were read.
        let Some(found) = self.of_pod(pod, &networks) else { return Err(unread("multi-networkpolicies")) };
        let PodPolicies { policies, addresses, is_waiting: _, unread_sets } = found;
        if let Some(what) = unread_sets {
            return Err(unread(&what));
        }
        Ok(pod_policies::add_resolved_to_plan(plan, pod, &policies, &addresses))
    }

    /// Returns the policies that may select a pod's attachment to these networks, with peer addresses as far as they
    /// were read. Returns `None` if the policies were not read yet.
    pub(crate) fn of_pod(&self, pod: &Pod, networks: &[NetworkReference]) -> Option<PodPolicies> {
        if !self.policies.is_synced() {
            return None;
        }
        let candidates = self.candidates(pod, networks);
        let mut found = PodPolicies {
            policies: Vec::new(),
            addresses: BTreeMap::new(),
            is_waiting: false,
            unread_sets: None,
        };
        let mut sets: Option<Arc<Cache<AddressSet>>> = None;
        for policy in candidates {
            if !policy.selections.is_empty() {
                let sets = sets.get_or_insert_with(|| self.watch(&pod.namespace));
                if found.unread_sets.is_none() {
                    found.unread_sets = sets.waited();
                }
                let key = |name: &str| (policy.policy.namespace.clone(), name.to_owned());
                let CurrentAddresses { addresses, is_waiting } =
                    current_addresses(&policy, |name| sets.find(&key(name)));
                found.addresses.insert(policy.policy.to_string(), addresses);
                found.is_waiting |= is_waiting;
            }
            found.policies.push(policy.policy.clone());
        }
        Some(found)
    }

    /// Returns the policies that select the pod's attachment to one of these networks, or may do so if the pod's labels
    /// are unknown.
    fn candidates(&self, pod: &Pod, networks: &[NetworkReference]) -> Vec<Arc<WatchedPolicy>> {
        let mut policies = self.policies.of_namespace(&pod.namespace);
        policies.retain(|one| {
            networks.iter().any(|network| match pod.described_by_runtime {
                true => one.policy.networks.contains(network),
                false => one.policy.selects(&own_attachment(network, pod)),
            })
        });
        policies
    }
}

// === impl NamespaceSets ===

impl Drop for NamespaceSets {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

// === impl PodPolicies ===

impl PodPolicies {
    /// Returns the policies for one of the pod's attachments. If they are too large, or larger than `room` in bytes,
    /// they allow nothing.
    pub(crate) fn compile(&self, pod: &Pod, network: &NetworkReference, room: usize) -> CompiledPolicy {
        let why = match pod_policies::attachment_policy(network, pod, &self.policies, &self.addresses) {
            Ok(Some((policy, _))) if encoded_size(&policy) > room => {
                "the rules of its policies are too large".to_owned()
            }
            Ok(compiled) => {
                let (policy, because) = compiled.unzip();
                return CompiledPolicy { policy, because, fault: None };
            }
            Err(error) => error.to_string(),
        };
        let own = own_attachment(network, pod);
        let isolated = |direction| {
            let mut selecting = self.policies.iter().filter(|policy| policy.selects(&own));
            selecting.any(|policy| policy.rules(direction).isolates).then(IsolatedDirection::default)
        };
        let policy = AttachmentPolicy {
            ingress: isolated(Direction::Ingress),
            egress: isolated(Direction::Egress),
            sets: BTreeMap::new(),
        };
        let fault = Some(format!("network {network}: {why}; no traffic passes"));
        CompiledPolicy { policy: Some(policy), because: None, fault }
    }
}

fn unread(what: &str) -> Error {
    warn!(resource = what, "a pod waits for network policies that were not read yet");
    let why = format!("agent: network policies are not read yet: {what}");
    let hint = "check that the API server is reachable, the custom resources of deploy/policy are installed, and the \
                agent may read them";
    Error::new(code::TRY_AGAIN_LATER, why).details(hint)
}

#[cfg(test)]
mod tests {
    use kube::Config as ClientConfig;
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const GROUP: &str = "/apis/k8s.cni.cncf.io/v1beta2";

    /// Answers one request of an API server that has one policy, and forbids to read address sets.
    async fn answer(mut stream: TcpStream) {
        let (mut head, mut piece) = (Vec::new(), [0; 1024]);
        while !head.ends_with(b"\r\n\r\n") {
            match stream.read(&mut piece).await {
                Ok(read) if read > 0 => head.extend_from_slice(&piece[..read]),
                _ => return,
            }
        }
        let head = String::from_utf8(head).unwrap();
        let target = head.split(' ').nth(1).unwrap();
        let (status, body): (u16, Value) = match target.split_once('?').unwrap_or((target, "")) {
            (_, query) if query.contains("watch=true") => return std::future::pending().await,
            (GROUP, _) => (
                200,
                json!({ "kind": "APIResourceList", "groupVersion": "k8s.cni.cncf.io/v1beta2",
                "resources": [{ "name": "multi-networkpolicies", "singularName": "", "namespaced": true,
                    "kind": "MultiNetworkPolicy", "verbs": [] }] }),
            ),
            (path, _) if path == format!("{GROUP}/multi-networkpolicies") => (
                200,
                json!({ "apiVersion": "k8s.cni.cncf.io/v1beta2", "kind": "MultiNetworkPolicyList",
                    "metadata": { "resourceVersion": "1" }, "items": [{
                        "metadata": { "namespace": "blue", "name": "p", "uid": "1", "generation": 1,
                            "annotations": { "k8s.v1.cni.cncf.io/policy-for": "data" } },
                        "spec": { "podSelector": {}, "ingress": [{ "from": [{ "podSelector": {} }] }] } }] }),
            ),
            (path, _) => {
                let code = if path.contains("policyaddresssets") { 403 } else { 404 };
                (
                    code,
                    json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
                    "message": "no", "reason": "no", "metadata": {} }),
                )
            }
        };
        let body = body.to_string();
        let length = body.len();
        let fields =
            format!("content-type: application/json\r\nconnection: close\r\ncontent-length: {length}");
        let _ = stream.write_all(format!("HTTP/1.1 {status} OK\r\n{fields}\r\n\r\n{body}").as_bytes()).await;
    }

    #[tokio::test]
    async fn network_policy_with_unread_sets_waits_for_them() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream));
            }
        });
        let client = Client::try_from(ClientConfig::new(server.parse().unwrap())).unwrap();
        let policies = NetworkPolicies::new(&client);
        let (pod, networks) =
            (Pod { namespace: "blue".into(), ..Pod::default() }, [NetworkReference::new("blue", "data")]);
        assert!(policies.of_pod(&pod, &networks).is_none(), "the policies are not read yet");
        policies.policies.synced().await;
        let found = policies.of_pod(&pod, &networks).unwrap();
        assert!(found.is_waiting && found.unread_sets.unwrap().starts_with("policyaddresssets"));
        let compiled = {
            let found = policies.of_pod(&pod, &networks).unwrap();
            found.compile(&pod, &networks[0], usize::MAX).policy.unwrap()
        };
        assert!(compiled.sets.values().all(Vec::is_empty) && compiled.ingress.is_some(), "it allows no pod");
        // Policies of other namespaces need no sets.
        let other = Pod { namespace: "red".into(), ..Pod::default() };
        let found = policies.of_pod(&other, &networks).unwrap();
        assert!(!found.is_waiting && found.unread_sets.is_none());
    }
}
