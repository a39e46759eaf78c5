//! Pods of a run of `weft test`: their manifests, their states, and their removal.
//!
//! - A pod has the restricted security context of the Pod Security Standards, no token, and small resources.
//! - Labels name the run. An annotation has the time after which the pod belongs to a killed run.
//! - The kubelet ends the pod at that time, so that a killed run leaves no address in use.
//!
//! Source: Kubernetes, «Pod Security Standards», Restricted; Pod v1, `activeDeadlineSeconds`, `terminationMessagePath`.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use npwg::status::{self, NETWORK_STATUS};
use serde::Deserialize;
use serde_json::{Value, json};

use super::targets::{Image, TestedNetwork};
use crate::pod_name::PodName;
use kube_support::events::EventReason;
use kube_support::resource;
use kube_support::resources::PodObject;

/// Label on all runs' pods; its value is the run's token.
pub(super) const RUN: &str = "weft.dev/test";
/// Prefix for pod names.
pub(super) const PREFIX: &str = "weft-test-";
/// Annotation that tells when a run ends, in seconds since 1970.
const EXPIRES: &str = "weft.dev/test-expires";
/// Key under which a pod selects networks.
const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// Interface that the tested network has in the pods.
pub(super) const INTERFACE: &str = "net1";
/// File from which the kubelet reads a container's last message.
const TERMINATION_LOG: &str = "/dev/termination-log";
/// User and group that the pods run as.
const USER: u32 = 65532;
/// Number of times that a network's plugins may fail before they are not waited for any more.
const ATTEMPTS: u32 = 4;
/// Grace period for the pods, in seconds.
const GRACE: u32 = 2;

/// Run, as far as pods need it.
#[derive(Clone, Debug)]
pub(super) struct Run {
    /// Token, which is part of every name and every packet.
    pub(super) token: String,
    /// When a pod must belong to a killed run, in seconds since 1970.
    pub(super) expires: u64,
    /// Time after which a kubelet ends a pod, in seconds.
    pub(super) deadline: u64,
    pub(super) image: Image,
}

/// Pod that is created.
#[derive(Clone, Debug)]
pub(super) struct NewPod<'a> {
    pub(super) name: &'a str,
    pub(super) node: &'a str,
    pub(super) network: &'a TestedNetwork,
    /// Addresses to which it sends; none if it answers.
    pub(super) to: &'a [String],
}

/// Pod in a run, reduced to the fields in use.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct TestPod {
    metadata: ObjectMeta,
    #[serde(default)]
    status: TestPodStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct TestPodStatus {
    phase: String,
    reason: String,
    message: String,
    container_statuses: Vec<ContainerStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerStatus {
    state: ContainerState,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ContainerState {
    waiting: Option<Explained>,
    running: Option<Value>,
    terminated: Option<Explained>,
}

/// Why a container is in a state, and what it said.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Explained {
    reason: String,
    message: String,
}

/// State of a pod, as far as a test depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PodState {
    /// It has not started. The text says why, as far as it is known.
    Waiting(String),
    /// The probe runs.
    Running,
    /// The probe ended, with this message.
    Ended(String),
    /// It failed, for this reason.
    Failed(String),
}

resource!(TestPod as PodObject);

/// Event, reduced to the fields in use.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodEvent {
    metadata: ObjectMeta,
    #[serde(default)]
    involved_object: InvolvedObject,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: String,
    #[serde(default)]
    series: Option<EventSeries>,
}

/// Series that equal Events form.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct EventSeries {
    count: u32,
}

/// Object that an Event is about.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct InvolvedObject {
    name: String,
}

resource!(PodEvent, k8s_openapi::NamespaceResourceScope, "Event", "events", "");

// === impl Run ===

impl Run {
    /// Returns a pod's manifest.
    fn manifest(&self, pod: &NewPod<'_>) -> Value {
        let Run { token, expires, deadline, image } = self;
        let NewPod { name, node, network, to } = pod;
        let TestedNetwork { name: network, resource } = network;
        let selection =
            json!([{ "name": network.name, "namespace": network.namespace, "interface": INTERFACE }]);
        let mut command = vec!["/weft".to_owned(), "probe".to_owned()];
        command.extend([format!("--interface={INTERFACE}"), format!("--token={token}")]);
        command.extend(to.iter().map(|address| format!("--to={address}")));
        if !to.is_empty() {
            command.push(format!("--report={TERMINATION_LOG}"));
        }
        let mut resources = json!({
            "requests": { "cpu": "5m", "memory": "16Mi" }, "limits": { "cpu": "200m", "memory": "64Mi" },
        });
        if !resource.is_empty() {
            for kind in ["requests", "limits"] {
                resources[kind][resource] = json!("1");
            }
        }
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": network.namespace,
                "labels": { "app.kubernetes.io/name": "weft", "app.kubernetes.io/component": "test", RUN: token },
                "annotations": { NETWORKS: selection.to_string(), EXPIRES: expires.to_string() },
            },
            "spec": {
                "nodeName": node,
                "restartPolicy": "Never",
                "activeDeadlineSeconds": deadline,
                "terminationGracePeriodSeconds": GRACE,
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "tolerations": [{ "operator": "Exists" }],
                "securityContext": {
                    "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER,
                    "seccompProfile": { "type": "RuntimeDefault" },
                },
                "containers": [{
                    "name": "probe",
                    "image": image.name,
                    "imagePullPolicy": image.pull_policy,
                    "command": command,
                    "resources": resources,
                    "terminationMessagePath": TERMINATION_LOG,
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "securityContext": {
                        "allowPrivilegeEscalation": false,
                        "readOnlyRootFilesystem": true,
                        "capabilities": { "drop": ["ALL"] },
                    },
                }],
            },
        })
    }

    /// Creates a pod. It is no error if it exists.
    pub(super) async fn create(&self, client: &Client, pod: &NewPod<'_>) -> Result<(), kube::Error> {
        let created: DynamicObject =
            serde_json::from_value(self.manifest(pod)).map_err(kube::Error::SerdeError)?;
        let (namespace, kind) = (&pod.network.name.namespace, ApiResource::erase::<PodObject>(&()));
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
        match api.create(&PostParams::default(), &created).await {
            // An earlier request reached the server, and its response was lost.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            result => result.map(|_| ()),
        }
    }

    /// Returns the run's pods in these namespaces, by name.
    pub(super) async fn pods(
        &self,
        client: &Client,
        namespaces: &BTreeSet<String>,
    ) -> Result<BTreeMap<String, TestPod>, kube::Error> {
        let selector = format!("{RUN}={}", self.token);
        let pods = list(client, namespaces, &selector).await?;
        Ok(pods.into_iter().map(|pod| (pod.name_any(), pod)).collect())
    }
}

async fn list(
    client: &Client,
    namespaces: &BTreeSet<String>,
    selector: &str,
) -> Result<Vec<TestPod>, kube::Error> {
    let mut pods = Vec::new();
    for namespace in namespaces {
        let api: Api<TestPod> = Api::namespaced(client.clone(), namespace);
        pods.extend(api.list(&ListParams::default().labels(selector)).await?.items);
    }
    Ok(pods)
}

/// Deletes pods that runs created, and returns the names of those that still exist. `token` selects one run,
/// else all runs.
pub(super) async fn delete(
    client: &Client,
    namespaces: &BTreeSet<String>,
    token: Option<&str>,
    is_selected: impl Fn(&TestPod) -> bool,
) -> Result<Vec<String>, kube::Error> {
    let selector = token.map_or_else(|| RUN.to_owned(), |token| format!("{RUN}={token}"));
    let mut remaining = Vec::new();
    for pod in list(client, namespaces, &selector).await? {
        if !pod.is_of_weft() || !is_selected(&pod) {
            continue;
        }
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        remaining.push(format!("{namespace}/{name}"));
        if pod.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let api: Api<TestPod> = Api::namespaced(client.clone(), &namespace);
        match api.delete(&name, &DeleteParams::default().grace_period(GRACE)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            result => result.map(|_| ())?,
        }
    }
    Ok(remaining)
}

/// Returns the pods that will not get their network, each with the reason: weft refused the plan, or the plugins failed
/// several times.
pub(super) async fn hopeless(
    client: &Client,
    namespaces: &BTreeSet<String>,
) -> Result<BTreeMap<String, String>, kube::Error> {
    let mut events = Vec::new();
    for namespace in namespaces {
        let api: Api<PodEvent> = Api::namespaced(client.clone(), namespace);
        for reason in [EventReason::NetworkRefused, EventReason::NoNetworkFound, EventReason::AttachFailed] {
            let fields = format!("involvedObject.kind=Pod,type=Warning,reason={}", reason.as_str());
            events.extend(api.list(&ListParams::default().fields(&fields)).await?.items);
        }
    }
    Ok(hopeless_of(events))
}

fn hopeless_of(events: Vec<PodEvent>) -> BTreeMap<String, String> {
    let (mut reasons, mut attempts) = (BTreeMap::new(), BTreeMap::<String, u32>::new());
    for event in events {
        let PodEvent { metadata: _, involved_object: InvolvedObject { name }, reason, message, series } =
            event;
        if !name.starts_with(PREFIX) {
            continue;
        }
        if reason != EventReason::AttachFailed.as_str() {
            reasons.insert(name, format!("weft refuses the pod: {message}"));
            continue;
        }
        let failed = attempts.entry(name.clone()).or_default();
        *failed = failed.saturating_add(series.map_or(1, |series| series.count.max(1)));
        if *failed >= ATTEMPTS {
            reasons.entry(name).or_insert_with(|| format!("{failed} attempts failed: {message}"));
        }
    }
    reasons
}

/// Returns the newest warning about a pod, if there is one.
pub(super) async fn warning(client: &Client, pod: &PodName) -> Option<String> {
    let PodName { namespace, name } = pod;
    let api: Api<PodEvent> = Api::namespaced(client.clone(), namespace);
    let fields = format!("involvedObject.name={name},type=Warning");
    let events = api.list(&ListParams::default().fields(&fields)).await.ok()?.items;
    let newest = events.into_iter().max_by_key(|event| event.metadata.creation_timestamp.clone())?;
    Some(format!("{}: {}", newest.reason, newest.message))
}

// === impl TestPod ===

impl TestPod {
    /// Whether `weft test` created it: another pod may have the label.
    fn is_of_weft(&self) -> bool {
        self.annotations().contains_key(EXPIRES) || self.name_any().starts_with(PREFIX)
    }

    /// Whether the run that made it has ended without removing it.
    pub(super) fn is_expired(&self, now: u64) -> bool {
        let expires = self.annotations().get(EXPIRES).and_then(|text| text.parse::<u64>().ok());
        expires.is_none_or(|expires| expires <= now)
    }

    /// Returns how far it is.
    pub(super) fn state(&self) -> PodState {
        let TestPodStatus { phase, reason, message, container_statuses } = &self.status;
        let state = container_statuses.first().map(|status| status.state.clone()).unwrap_or_default();
        let ContainerState { waiting, running, terminated } = state;
        match (phase.as_str(), terminated) {
            ("Failed", ended) => {
                let Explained { reason: why, message: last } = ended.unwrap_or_default();
                let texts = [reason.clone(), message.clone(), why, last];
                let texts: Vec<String> = texts.into_iter().filter(|text| !text.is_empty()).collect();
                PodState::Failed(texts.join(": "))
            }
            (_, Some(ended)) => PodState::Ended(ended.message),
            (_, None) if running.is_some() => PodState::Running,
            (_, None) => {
                let Explained { reason, message } = waiting.unwrap_or_default();
                let texts = [reason, message].into_iter().filter(|text| !text.is_empty());
                PodState::Waiting(texts.collect::<Vec<_>>().join(": "))
            }
        }
    }

    /// Returns the network-status for a network; `None` if the pod has none yet.
    pub(super) fn attachment(&self, network: &PodName) -> Option<status::Entry> {
        let text = self.annotations().get(NETWORK_STATUS)?;
        let entries: Vec<status::Entry> = serde_json::from_str(text).ok()?;
        let name = network.to_string();
        let mut of_network = entries.into_iter().filter(|entry| entry.name == name);
        let first = of_network.next()?;
        let found = of_network.find(|entry| entry.interface == INTERFACE);
        Some(if first.interface == INTERFACE { first } else { found.unwrap_or(first) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> Run {
        let image = Image { name: "weft:1".into(), pull_policy: "Never".into() };
        Run { token: "1f-0a".into(), expires: 1000, deadline: 60, image }
    }

    fn network(resource: &str) -> TestedNetwork {
        TestedNetwork { name: "blue/data".parse().unwrap(), resource: resource.into() }
    }

    #[test]
    fn test_pod_is_restricted_and_ends_by_itself() {
        let (network, to) = (network("example.com/vf"), ["10.0.0.2".to_owned()]);
        let pod = NewPod { name: "weft-test-1", node: "a", network: &network, to: &to };
        let pod = run().manifest(&pod);
        let (spec, container) = (&pod["spec"], &pod["spec"]["containers"][0]);
        assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
        assert_eq!(spec["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
        assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
        assert_eq!((&spec["activeDeadlineSeconds"], &spec["restartPolicy"]), (&json!(60), &json!("Never")));
        assert_eq!(spec["automountServiceAccountToken"], false);
        assert_eq!(container["resources"]["limits"]["example.com/vf"], "1");
        let selection: Value =
            serde_json::from_str(pod["metadata"]["annotations"][NETWORKS].as_str().unwrap()).unwrap();
        assert_eq!(selection, json!([{ "name": "data", "namespace": "blue", "interface": "net1" }]));
        let command = container["command"].to_string();
        assert!(command.contains("--to=10.0.0.2") && command.contains("--report=/dev/term"), "{command}");
    }

    fn pod(status: &Value) -> TestPod {
        let metadata = json!({ "name": "p", "namespace": "blue", "annotations": {
            EXPIRES: "1000",
            NETWORK_STATUS: r#"[{"name":"home","interface":"eth0"},{"name":"blue/data","interface":"net2"},
                {"name":"blue/data","interface":"net1","ips":["10.0.0.2"]}]"#,
        } });
        serde_json::from_value(json!({ "metadata": metadata, "status": status })).unwrap()
    }

    #[test]
    fn test_pod_state_has_the_reason_of_a_failure() {
        let state = |phase: &str, state: Value| {
            pod(&json!({ "phase": phase, "containerStatuses": [{ "state": state }] })).state()
        };
        let waiting =
            state("Pending", json!({ "waiting": { "reason": "ImagePullBackOff", "message": "no" } }));
        assert_eq!(waiting, PodState::Waiting("ImagePullBackOff: no".into()));
        assert_eq!(state("Running", json!({ "running": {} })), PodState::Running);
        let ended = state("Succeeded", json!({ "terminated": { "message": "{}", "reason": "Completed" } }));
        assert_eq!(ended, PodState::Ended("{}".into()));
        let failed = state("Failed", json!({ "terminated": { "message": "no", "reason": "Error" } }));
        assert_eq!(failed, PodState::Failed("Error: no".into()));
        let evicted = pod(&json!({ "phase": "Failed", "reason": "OutOfcpu" })).state();
        assert_eq!(evicted, PodState::Failed("OutOfcpu".into()));
    }

    #[test]
    fn test_pod_is_hopeless_after_a_refusal_or_four_attempts() {
        let event = |name: &str, reason: &str, count: Option<u32>| {
            let series = count.map(|count| json!({ "count": count }));
            let object = json!({ "metadata": {}, "involvedObject": { "name": name }, "reason": reason, "message": "m", "series": series });
            serde_json::from_value::<PodEvent>(object).unwrap()
        };
        let reasons = hopeless_of(vec![
            event("weft-test-refused", "NetworkRefused", None),
            event("weft-test-unknown", "NoNetworkFound", None),
            event("weft-test-three", "AttachFailed", Some(3)),
            event("weft-test-four", "AttachFailed", Some(2)),
            event("weft-test-four", "AttachFailed", None),
            event("weft-test-four", "AttachFailed", Some(0)),
            event("other", "NetworkRefused", None),
        ]);
        let reasons: Vec<(&str, &str)> =
            reasons.iter().map(|(name, why)| (name.as_str(), why.as_str())).collect();
        let refused = "weft refuses the pod: m";
        assert_eq!(
            reasons,
            [
                ("weft-test-four", "4 attempts failed: m"),
                ("weft-test-refused", refused),
                ("weft-test-unknown", refused),
            ]
        );
    }

    #[test]
    fn test_pod_of_a_killed_run_expires() {
        let pod = pod(&json!({}));
        assert!(!pod.is_expired(999) && pod.is_expired(1000));
        let attachment = pod.attachment(&"blue/data".parse().unwrap()).unwrap();
        assert_eq!((attachment.interface.as_str(), attachment.ips.len()), ("net1", 1));
        assert_eq!(pod.attachment(&"blue/other".parse().unwrap()), None);
    }

    #[test]
    fn test_pod_without_annotation_and_prefix_is_kept() {
        let mut pod = pod(&json!({}));
        assert!(pod.is_of_weft());
        pod.metadata.annotations = None;
        assert!(!pod.is_of_weft());
        pod.metadata.name = Some("weft-test-1f-0a-0-a".into());
        assert!(pod.is_of_weft() && pod.is_expired(0));
    }
}
