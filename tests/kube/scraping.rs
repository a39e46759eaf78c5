//! Tests for the chart's PodMonitor: Prometheus finds each component's metrics.
//!
//! ```text
//!   chart ── PodMonitor ── relabelings ──► scrape configuration ── promtool check service-discovery ──► targets
//! ```
//!
//! The Prometheus operator translates each endpoint in a PodMonitor into such a configuration: the pods that the
//! selector matches, and the relabelings under other key names. Debian's promtool cannot discover pods, so the
//! configuration lists what the discovery returns.
//!
//! Source: Prometheus operator, `PodMetricsEndpoint`; Prometheus, `kubernetes_sd_config`, role `pod`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rig::Kube;
use rig::machine::until;
use serde_json::{Value, json};
use testkit::{Feature, host};

use super::helm_chart::{Helm, objects};

/// Component, container and address of a pod, and the address and instance at which its metrics are read.
type Row = (&'static str, &'static str, &'static str, Option<(&'static str, &'static str)>);

/// Pods of weft.
const PODS: [Row; 7] = [
    ("agent", "agent", "192.0.2.7", Some(("192.0.2.7:9999", "worker"))),
    ("executor", "executor", "192.0.2.8", Some(("192.0.2.8:9466", "worker"))),
    ("controller-ipam", "controller", "fd00::9", Some(("[fd00::9]:9465", "controller-ipam"))),
    ("page", "page", "10.0.0.10", Some(("10.0.0.10:9465", "page"))),
    ("admission", "webhook", "10.0.0.13", Some(("10.0.0.13:9465", "admission"))),
    ("neutron", "controller", "192.0.2.11", None),
    ("dhcp", "daemon", "192.0.2.12", None),
];

/// A pod's targets as Prometheus discovery lists them: one for the container, one for the init container.
fn discovered([component, container, address]: [&str; 3]) -> [Value; 2] {
    [container, "install"].map(|container| {
        // A container without a port has an address without one; page and webhook declare theirs.
        let place = match container {
            "page" => format!("{address}:9467"),
            "webhook" => format!("{address}:9468"),
            _ => address.to_owned(),
        };
        json!({ "targets": [place], "labels": {
            "__meta_kubernetes_pod_name": component,
            "__meta_kubernetes_pod_ip": address,
            "__meta_kubernetes_pod_node_name": "worker",
            "__meta_kubernetes_pod_container_name": container,
            "__meta_kubernetes_pod_label_app_kubernetes_io_name": "weft",
            "__meta_kubernetes_pod_label_app_kubernetes_io_component": component,
        } })
    })
}

/// Translates a PodMonitor relabeling into a Prometheus one.
fn translate(relabeling: &Value) -> Value {
    let names = [("sourceLabels", "source_labels"), ("targetLabel", "target_label")];
    let name = |key: &str| names.iter().find(|(from, _)| *from == key).map_or(key, |(_, to)| *to).to_owned();
    let fields = relabeling.as_object().expect("a relabeling").iter();
    Value::Object(fields.map(|(key, value)| (name(key), value.clone())).collect())
}

/// Creates the CRD of PodMonitors, without a schema.
fn define_pod_monitors(kube: &Kube) {
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "podmonitors.monitoring.coreos.com" },
        "spec": {
            "group": "monitoring.coreos.com", "scope": "Namespaced",
            "names": { "plural": "podmonitors", "singular": "podmonitor", "kind": "PodMonitor" },
            "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }],
        },
    });
    kube.apply(&definition.to_string());
    kube.wait_until_served();
}

/// Targets that Prometheus keeps with these relabelings: address and instance by the component of the pod.
fn targets(kube: &Kube, relabelings: &[Value]) -> BTreeMap<String, (String, String)> {
    let pods = PODS
        .iter()
        .flat_map(|(component, container, address, _)| discovered([*component, *container, *address]));
    let job = json!({
        "job_name": "weft", "static_configs": pods.collect::<Vec<_>>(), "relabel_configs": relabelings,
    });
    let machine = kube.machine();
    machine.write("/etc/weft-test/prometheus.yml", json!({ "scrape_configs": [job] }).to_string());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let component = |target: &Value| {
        text(&target["discoveredLabels"]["__meta_kubernetes_pod_label_app_kubernetes_io_component"])
    };
    // It ends when nothing was discovered for this time, which a busy machine may need for the first target.
    let words = ["check", "service-discovery", "--timeout=2s", "/etc/weft-test/prometheus.yml", "weft"];
    let all = until("Prometheus has found every pod", || {
        let checked = machine.command("promtool").args(words).deadline(rig::machine::TIMEOUT).finish();
        let targets: Vec<Value> = serde_json::from_str(&checked.stdout).ok()?;
        let pods: BTreeSet<String> = targets.iter().map(component).collect();
        PODS.iter().all(|(pod, ..)| pods.contains(*pod)).then_some(targets)
    });
    let found = all.iter().filter_map(|target| {
        let labels = target["labels"].as_object().filter(|labels| !labels.is_empty())?;
        Some((component(target), (text(labels.get("__address__")?), text(labels.get("instance")?))))
    });
    found.collect()
}

#[test]
fn pod_monitor_finds_the_metrics_of_each_component() {
    let host = host!(Feature::Promtool);
    let Some(helm) = Helm::new(host) else { return };
    let Some(kube) = Kube::new(Arc::clone(&helm.machine)) else { return };
    let monitoring = json!({ "podMonitor": { "enabled": true } });
    let everywhere = json!({ "address": "0.0.0.0", "port": 9999 });
    let made = helm.template(&[
        json!({ "monitoring": monitoring, "agent": { "listen": everywhere }, "hotPlug": { "enabled": true, "listen": "0.0.0.0:9466" } }),
        json!({ "monitoring": monitoring, "hotPlug": { "enabled": true, "listen": "127.0.0.1:9466" } }),
    ]);
    let [all, local]: [_; 2] = made.try_into().expect("both");
    let local = local.expect("objects");
    assert!(local.contains("kind: PodMonitor") && !local.contains("regex: agent\n"), "{local}");
    assert!(!local.contains("regex: executor\n"), "{local}");

    define_pod_monitors(&kube);
    let all = all.expect("objects");
    let monitor =
        all.split("---\n").find(|object| object.contains("kind: PodMonitor")).expect("a PodMonitor");
    let monitor = &objects(&kube, monitor)["PodMonitor kube-system/weft"];
    assert_eq!(monitor["spec"]["selector"]["matchLabels"], json!({ "app.kubernetes.io/name": "weft" }));
    let endpoints = monitor["spec"]["podMetricsEndpoints"].as_array().expect("endpoints");
    assert_eq!(endpoints.len(), 5);
    let mut found = BTreeMap::new();
    for endpoint in endpoints {
        assert_eq!(endpoint["honorLabels"], true, "metrics have labels `pod` and `namespace` of their own");
        let relabelings: Vec<Value> =
            endpoint["relabelings"].as_array().expect("relabelings").iter().map(translate).collect();
        found.extend(targets(&kube, &relabelings));
    }
    let expected = PODS.iter().filter_map(|(component, _, _, place)| {
        place.map(|(address, instance)| ((*component).to_owned(), (address.to_owned(), instance.to_owned())))
    });
    assert_eq!(found, expected.collect::<BTreeMap<_, _>>());
}
