//! Cluster objects that decide about a connection: the pods, and the policies and labels in the pods' namespaces.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::Arc;

use cli_support::async_runtime::runtime;
use cli_support::failure::Failure;
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use kube_support::api_error;
use kube_support::lookup::ask;
use kube_support::resources::{NamespaceObject, PodObject, Reduced};
use manifest::Collection;
use npwg::metadata::Pod;
use npwg::network_policy::PolicyAddresses;
use npwg::pod_policies::PodNetworks;
use policy_api::address_set::{AddressSet, AddressSetObject, current_addresses};
use policy_api::policy_object::{PolicyObject, WatchedPolicy};
use serde::de::DeserializeOwned;

use crate::cluster_access::ClusterAccess;
use crate::pod_name::PodName;

/// Number of objects in one API server response.
const PAGE: u32 = 500;

/// Cluster objects, and the addresses that the policy controller wrote, which the agents enforce.
pub(super) struct ClusterObjects {
    pub(super) collection: Collection,
    /// Peer addresses for each policy with a current address set.
    pub(super) addresses: BTreeMap<String, PolicyAddresses>,
}

/// Reads the pods, those with one of the addresses, and the policies and labels in those namespaces. Pods that do not
/// exist are left out.
pub(super) fn read(
    access: &ClusterAccess,
    pods: &[PodName],
    addresses: &[IpAddr],
) -> Result<ClusterObjects, Failure> {
    runtime()?.block_on(async {
        let client = access.client().await?;
        let mut objects = ClusterObjects { collection: Collection::default(), addresses: BTreeMap::new() };
        if !addresses.is_empty() {
            objects.collection.pods.extend(pods_with(&client, addresses).await?);
        }
        for pod in pods {
            let found = ask(Api::<PodObject>::namespaced(client.clone(), &pod.namespace), &pod.name).await;
            let found = found.map_err(|why| Failure::new(format!("pod {pod}: {why}")))?;
            objects.collection.pods.extend(found);
        }
        let namespaces: BTreeSet<String> =
            objects.collection.pods.iter().map(|pod| pod.namespace.clone()).collect();
        for namespace in namespaces {
            let labels = ask(Api::<NamespaceObject>::all(client.clone()), &namespace).await;
            let labels = labels.map_err(|why| Failure::new(format!("namespace {namespace}: {why}")))?;
            objects.collection.namespaces.extend(labels.map(|labels| (namespace.clone(), labels)));
            objects.add_policies(&client, &namespace).await?;
        }
        Ok(objects)
    })
}

impl ClusterObjects {
    async fn add_policies(&mut self, client: &Client, namespace: &str) -> Result<(), Failure> {
        let mut policies: Option<Vec<WatchedPolicy>> = list::<PolicyObject<false>>(client, namespace).await?;
        if policies.is_none() {
            policies = list::<PolicyObject<true>>(client, namespace).await?;
        }
        let Some(policies) = policies else {
            let why = "the API server has no MultiNetworkPolicies";
            return Err(Failure::new(why).next("name manifests with -f, or apply deploy/policy"));
        };
        // Without this kind no controller writes sets, and no selector allows anything.
        let sets: Vec<AddressSet> = list::<AddressSetObject>(client, namespace).await?.unwrap_or_default();
        let sets: BTreeMap<String, Arc<AddressSet>> =
            sets.into_iter().map(|set| (set.name.clone(), Arc::new(set))).collect();
        for policy in policies {
            let current = current_addresses(&policy, |name| sets.get(name).cloned());
            self.addresses.insert(policy.policy.to_string(), current.addresses);
            let key = (policy.policy.namespace.clone(), policy.policy.name.clone());
            self.collection.policies.insert(key, policy.policy);
        }
        Ok(())
    }
}

/// Returns the pods that have one of the addresses on a network.
async fn pods_with(client: &Client, addresses: &[IpAddr]) -> Result<Vec<Pod>, Failure> {
    let mut pods = Vec::new();
    let keep = |pod: Pod| {
        let networks = PodNetworks::of(&pod).networks;
        if networks.iter().any(|(_, own)| own.iter().any(|address| addresses.contains(address))) {
            pods.push(pod);
        }
    };
    // A pod that has ended keeps its network-status.
    let running = ListParams::default().fields("status.phase!=Succeeded,status.phase!=Failed");
    each::<PodObject>(Api::all(client.clone()), running, keep).await?;
    Ok(pods)
}

/// Returns the objects of a kind in a namespace; `None` if the server does not have the kind.
async fn list<K>(client: &Client, namespace: &str) -> Result<Option<Vec<K::Form>>, Failure>
where
    K: Reduced + Resource<Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let mut all = Vec::new();
    let is_known =
        each::<K>(Api::namespaced(client.clone(), namespace), ListParams::default(), |one| all.push(one))
            .await?;
    Ok(is_known.then_some(all))
}

/// Calls `take` with each object, page by page. Returns whether the server has the kind.
async fn each<K>(api: Api<K>, parameters: ListParams, mut take: impl FnMut(K::Form)) -> Result<bool, Failure>
where
    K: Reduced + Resource<Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let mut parameters = parameters.limit(PAGE);
    loop {
        let page = match api.list(&parameters).await {
            Ok(page) => page,
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(false),
            Err(error) => {
                let what = K::plural(&());
                return Err(api_error::failure(format_args!("list {what}"), &error));
            }
        };
        page.items.into_iter().map(K::reduce).for_each(&mut take);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok(true),
        }
    }
}
