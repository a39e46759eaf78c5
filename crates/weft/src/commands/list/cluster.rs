//! `weft list` with a cluster option: lists the networks that pods in the cluster have, from the network-status.
//!
//! - It reads pods from the API server, so it works from any machine, and also shows pods of nodes without weft.
//! - A status that cannot be read is shown as such, and hides no other pod.

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::ListParams;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource, ResourceExt};
use npwg::status::{self, NETWORK_STATUS};
use serde::{Deserialize, Serialize};
use tokio::time::MissedTickBehavior;

use crate::cluster_access::ClusterAccess;
use crate::pod_name::PodName;
use crate::watched_table::{Watch, WatchedTable, show_once};
use cli_support::async_runtime::runtime;
use cli_support::failure::Failure;
use cli_support::output::{self, Format};
use cli_support::table;
use cli_support::timestamp::{age_of, parse_utc};
use kube_support::resources::PodObject;
use kube_support::{api_error, resource};

/// Number of the columns that name a network of a pod: namespace, pod, node, interface.
const SUBJECT: usize = 4;
/// Column with the age.
const AGE: usize = 6;
/// Interval between two looks with `-w`: changes in between are printed together.
const INTERVAL: Duration = Duration::from_millis(500);
/// Number of pods in one API server response.
pub(super) const PAGE: u32 = 500;

/// Pod, reduced to the fields in use.
#[derive(Clone, Debug, Deserialize)]
struct ListedPod {
    metadata: ObjectMeta,
    #[serde(default)]
    spec: ListedPodSpec,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListedPodSpec {
    node_name: String,
}

resource!(ListedPod as PodObject);

/// Pods that are listed.
#[derive(Clone, Copy, Debug)]
pub(super) enum ListedPods<'a> {
    /// Those of all namespaces.
    All,
    /// Those of a namespace.
    OfNamespace(&'a str),
    /// One pod.
    Named(&'a PodName),
}

/// Document of a pod for `-o json`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PodDocument {
    namespace: String,
    name: String,
    node: String,
    /// Time of creation, in seconds since 1970.
    #[serde(skip)]
    created: Option<u64>,
    network_status: Vec<status::Entry>,
    #[serde(skip_serializing_if = "String::is_empty")]
    error: String,
}

/// Lists pods of the cluster.
pub(super) fn list(
    access: &ClusterAccess,
    listed: ListedPods<'_>,
    format: Format,
    watch: Watch,
) -> Result<(), Failure> {
    if watch.watch {
        return runtime()?.block_on(async { watch_pods(access.client().await?, listed, format).await });
    }
    let pods = runtime()?.block_on(async { pods(access.client().await?, listed).await })?;
    if let (ListedPods::Named(pod), true) = (listed, pods.is_empty()) {
        return Err(Failure::new(format!("pod {pod}: not found, or it has no network-status")).next(
            format!(
                "kubectl get pod -n {} {} shows it, and its Events why it does not start",
                pod.namespace, pod.name
            ),
        ));
    }
    if format.is_document() {
        return output::print_document(format, &pods);
    }
    if pods.is_empty() {
        return output::print("no pod has a network-status\n");
    }
    output::print(&lay_out(&pods, format))
}

/// Prints the pods' networks, and later those that change, until the process is interrupted or the reader is gone. A
/// failure ends it before the first list; later only if the API server refuses the user.
async fn watch_pods(client: Client, listed: ListedPods<'_>, format: Format) -> Result<(), Failure> {
    let api: Api<ListedPod> = listed.api(client);
    let config = watcher::Config { field_selector: listed.field_selector(), ..watcher::Config::default() };
    let mut events = pin!(watcher::watcher(api, config).default_backoff());
    let mut table = WatchedTable::new(SUBJECT, AGE);
    let mut known = BTreeMap::new();
    // Whether `known` is a whole list, whether any list was whole, and whether the table can have changed.
    let (mut is_listed, mut was_listed, mut is_new) = (false, false, false);
    let (mut shown, mut looks) = (String::new(), tokio::time::interval(INTERVAL));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let name = |pod: &ListedPod| (pod.namespace().unwrap_or_default(), pod.name_any());
    while output::has_reader() {
        let event = tokio::select! {
            event = events.next() => event,
            _ = looks.tick() => {
                if is_listed && is_new {
                    let (headings, rows) = (headings(format), rows(known.values(), format));
                    output::print(&table.changes(&headings, &rows))?;
                    is_new = false;
                }
                continue;
            }
        };
        is_new = true;
        let Some(event) = event else { break };
        match event {
            // The whole list follows.
            Ok(Event::Init) => (known, is_listed) = (BTreeMap::new(), false),
            Ok(Event::InitApply(pod) | Event::Apply(pod)) => match document(&pod) {
                Some(document) => drop(known.insert(name(&pod), document)),
                None => drop(known.remove(&name(&pod))),
            },
            Ok(Event::InitDone) => {
                (is_listed, was_listed) = (true, true);
                shown.clear();
            }
            Ok(Event::Delete(pod)) => drop(known.remove(&name(&pod))),
            Err(error) => {
                let failure = Failure::new(format!("watch pods: {}", api_error::describe_watch(&error)));
                if !was_listed || api_error::is_refusal(&error) {
                    return Err(failure);
                }
                // The watcher continues.
                show_once(&failure, &mut shown);
            }
        }
    }
    Ok(())
}

impl ListedPods<'_> {
    /// Returns the API for these pods, or for other objects in the same namespaces.
    pub(super) fn api<K>(self, client: Client) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        match self {
            ListedPods::All => Api::all(client),
            ListedPods::OfNamespace(namespace) => Api::namespaced(client, namespace),
            ListedPods::Named(pod) => Api::namespaced(client, &pod.namespace),
        }
    }

    pub(super) fn field_selector(self) -> Option<String> {
        match self {
            ListedPods::Named(pod) => Some(format!("metadata.name={}", pod.name)),
            ListedPods::All | ListedPods::OfNamespace(_) => None,
        }
    }
}

/// Returns the pods with a network-status, in the order of the API server, page by page.
async fn pods(client: Client, listed: ListedPods<'_>) -> Result<Vec<PodDocument>, Failure> {
    let api: Api<ListedPod> = listed.api(client);
    let (mut parameters, mut pods) = (ListParams::default().limit(PAGE), Vec::new());
    parameters.field_selector = listed.field_selector();
    loop {
        let page = api.list(&parameters).await;
        let page = page.map_err(|error| api_error::failure("list pods", &error))?;
        pods.extend(page.items.iter().filter_map(document));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => parameters = parameters.continue_token(&token),
            None => return Ok(pods),
        }
    }
}

/// Returns the document of a pod; `None` if it has no network-status.
fn document(pod: &ListedPod) -> Option<PodDocument> {
    let text = pod.annotations().get(NETWORK_STATUS)?;
    let (network_status, error) = match serde_json::from_str(text) {
        Ok(entries) => (entries, String::new()),
        Err(cause) => (Vec::new(), format!("{NETWORK_STATUS}: {cause}")),
    };
    let created = pod.meta().creation_timestamp.as_ref();
    let created = created.and_then(|time| parse_utc(serde_json::to_value(time).ok()?.as_str()?));
    Some(PodDocument {
        namespace: pod.namespace().unwrap_or_default(),
        name: pod.name_any(),
        node: pod.spec.node_name.clone(),
        created,
        network_status,
        error,
    })
}

/// Returns the headings of the table.
fn headings(format: Format) -> Vec<&'static str> {
    let mut headings = vec!["namespace", "pod", "node", "interface", "network", "addresses", "age"];
    if format == Format::Wide {
        headings.extend(["mac", "mtu"]);
    }
    headings
}

/// Returns the cells for each network that the pods have.
fn rows<'a>(pods: impl IntoIterator<Item = &'a PodDocument>, format: Format) -> Vec<Vec<String>> {
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let mut rows = Vec::new();
    for PodDocument { namespace, name, node, created, network_status, error } in pods {
        let age = created.map_or("-".to_owned(), age_of);
        let head = || vec![namespace.clone(), name.clone(), or_dash(node)];
        if !error.is_empty() {
            rows.push([head(), vec!["-".to_owned(), format!("unreadable: {error}")]].concat());
        }
        for entry in network_status {
            let status::Entry { name, interface, ips, mac, mtu, .. } = entry;
            let mut row = head();
            row.extend([or_dash(interface), or_dash(name), or_dash(&ips.join(",")), age.clone()]);
            if format == Format::Wide {
                row.extend([or_dash(mac), mtu.map_or("-".to_owned(), |mtu| mtu.to_string())]);
            }
            rows.push(row);
        }
    }
    rows
}

fn lay_out(pods: &[PodDocument], format: Format) -> String {
    table::lay_out(&headings(format), &rows(pods, format), 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn list_of_a_cluster_shows_pods_with_a_network_status() {
        let pod = |name: &str, status: &str| -> ListedPod {
            let annotations = json!({ NETWORK_STATUS: status });
            let metadata = json!({
                "name": name, "namespace": "blue", "annotations": annotations, "creationTimestamp": "2026-01-02T03:04:05Z",
            });
            serde_json::from_value(json!({ "metadata": metadata, "spec": { "nodeName": "worker-1" } }))
                .unwrap()
        };
        let status =
            r#"[{"name":"home","interface":"eth0","ips":["10.0.0.2"],"default":true},{"name":"blue/a"}]"#;
        let without: ListedPod = serde_json::from_value(json!({ "metadata": { "name": "c" } })).unwrap();
        let pods = [pod("a", status), pod("b", "{"), without];
        let documents: Vec<PodDocument> = pods.iter().filter_map(document).collect();
        assert_eq!((documents.len(), documents[0].created), (2, Some(1_767_323_045)));
        let text = lay_out(&documents, Format::Text);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("blue       a    worker-1  eth0       home "), "{text}");
        assert!(lines[2].contains("blue/a") && lines[3].contains("unreadable: k8s.v1.cni"), "{text}");
    }
}
