//! Objects of a cluster that decide about a connection: its pods, and the policies and labels of their namespaces.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
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
use policy_api::address_set::{AddressSet, AddressSetObject, current_addresses};
use policy_api::policy_object::{PolicyObject, WatchedPolicy};
use serde::de::DeserializeOwned;

use crate::cluster_access::ClusterAccess;
use crate::pod_name::PodName;

/// Number of objects in one response of the API server.
const PAGE: u32 = 500;

/// Objects of a cluster, and the policies whose addresses its controller has not written yet.
pub(super) struct ClusterObjects {
    pub(super) collection: Collection,
    pub(super) without_set: BTreeSet<String>,
}

/// Reads the pods, and the policies and labels of their namespaces. Pods that do not exist are left out.
pub(super) fn read(access: &ClusterAccess, pods: &[PodName]) -> Result<ClusterObjects, Failure> {
    runtime()?.block_on(async {
        let client = access.client().await?;
        let mut objects = ClusterObjects { collection: Collection::default(), without_set: BTreeSet::new() };
        for pod in pods {
            let found = ask(Api::<PodObject>::namespaced(client.clone(), &pod.namespace), &pod.name).await;
            let found = found.map_err(|why| Failure::new(format!("pod {pod}: {why}")))?;
            objects.collection.pods.extend(found);
        }
        let namespaces: BTreeSet<&String> = pods.iter().map(|pod| &pod.namespace).collect();
        for namespace in namespaces {
            let labels = ask(Api::<NamespaceObject>::all(client.clone()), namespace).await;
            let labels = labels.map_err(|why| Failure::new(format!("namespace {namespace}: {why}")))?;
            objects.collection.namespaces.extend(labels.map(|labels| (namespace.clone(), labels)));
            objects.add_policies(&client, namespace).await?;
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
        // Without this kind no controller writes sets; the verdict does not depend on them.
        let sets: Vec<AddressSet> = list::<AddressSetObject>(client, namespace).await?.unwrap_or_default();
        let sets: BTreeMap<String, Arc<AddressSet>> =
            sets.into_iter().map(|set| (set.name.clone(), Arc::new(set))).collect();
        for policy in policies {
            let current = current_addresses(&policy, |name| sets.get(name).cloned());
            if current.is_waiting {
                self.without_set.insert(policy.policy.to_string());
            }
            let key = (policy.policy.namespace.clone(), policy.policy.name.clone());
            self.collection.policies.insert(key, policy.policy);
        }
        Ok(())
    }
}

/// Returns the objects of a kind in a namespace, page by page; `None` if the server does not have the kind.
async fn list<K>(client: &Client, namespace: &str) -> Result<Option<Vec<K::Form>>, Failure>
where
    K: Reduced + Resource<Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let (mut parameters, mut all) = (ListParams::default().limit(PAGE), Vec::new());
    loop {
        let page = match api.list(&parameters).await {
            Ok(page) => page,
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
            Err(error) => {
                let what = K::plural(&());
                return Err(api_error::failure(format_args!("list {what}"), &error));
            }
        };
        all.extend(page.items.into_iter().map(K::reduce));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok(Some(all)),
        }
    }
}
