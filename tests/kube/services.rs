//! Services on additional networks: a real API server, and `weft controller --services` with the shipped RBAC.
//!
//! ```text
//!   the test, as kubelets and agents ─► pods, Services ─► kube-apiserver ◄─► weft controller --services
//! ```
//!
//! Source: EndpointSlices as Kubernetes' own controller writes them; multus-service for the annotation.

use std::collections::BTreeMap;
use std::sync::Arc;

use rig::Machine;
use rig::kube::{Kube, files};
use rig::machine::until;
use rig::parts::text;
use serde_json::{Value, json};
use testkit::{Feature, Host, host, workspace};

const CONTROLLER: &str = "controller";
const NETWORK: &str = "k8s.v1.cni.cncf.io/service-network";
const SELECTOR: &str = "weft.dev/service-selector";
const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
const LISTEN: &str = "127.0.0.1:9465";

/// Cluster with a Services controller.
struct Cluster {
    kube: Kube,
    machine: Arc<Machine>,
    account: String,
}

impl Cluster {
    fn new(host: Host) -> Option<Cluster> {
        Kube::new(Machine::new(host, "control").into()).map(Cluster::on)
    }

    fn on(kube: Kube) -> Cluster {
        let machine = kube.machine();
        kube.apply(&files(&["deploy/services/rbac.yaml"]));
        let account = kube.service_account("kube-system", "weft-controller-services");
        let cluster = Cluster { kube, machine, account };
        cluster.start();
        cluster
    }

    fn start(&self) {
        let program = testkit::binary("weft");
        let words = ["controller", "--services", "--listen", LISTEN, "--kubeconfig", &self.account];
        self.machine.start(CONTROLLER, [text(&program)].into_iter().chain(words));
        self.machine.wait(CONTROLLER, "is ready", || {
            let asked = self.machine.attempt(["curl", "-sf", &format!("http://{LISTEN}/readyz")]);
            asked.code.filter(|code| *code == 0)
        });
    }

    fn metric(&self, name: &str) -> u64 {
        let page = self.machine.attempt(["curl", "-s", &format!("http://{LISTEN}/metrics")]).stdout;
        let found = page.lines().find_map(|line| line.strip_prefix(name));
        found.and_then(|text| text.trim().parse().ok()).expect("a metric")
    }

    fn service(&self, name: &str, annotations: Value, spec: &Value) {
        let mut service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": "default" },
            "spec": { "clusterIP": "None" } });
        service["metadata"]["annotations"] = annotations;
        for (key, value) in spec.as_object().expect("an object") {
            service["spec"][key] = value.clone();
        }
        self.kube.apply(&service.to_string());
    }

    /// Creates a pod in the network `storage`, and the Service `web` that lists it.
    fn list_one(&self) {
        self.kube.apply(&pod("a", &[("default/storage", &["10.1.0.1"])]).to_string());
        self.condition("a", true);
        self.service("web", selects_network("storage"), &one_port());
        self.until_listed("the pod is listed", "web", &[("10.1.0.1", true)]);
    }

    /// Sets a label of a slice.
    fn relabel(&self, slice: &str, label: &str) {
        self.kube.kubectl(["label", "--overwrite", "endpointslice", "-n", "default", slice, label]);
    }

    /// Sets a pod's Ready condition, as the kubelet does.
    fn condition(&self, name: &str, ready: bool) {
        let path = format!("/api/v1/namespaces/default/pods/{name}/status");
        let mut pod = self.kube.json(["pod", "-n", "default", name]);
        let status = if ready { "True" } else { "False" };
        pod["status"] = json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": status }] });
        self.kube.attempt(["replace", "--raw", &path, "-f", "-"], &pod.to_string()).success();
    }

    fn slices(&self, service: &str) -> Vec<Value> {
        let label = format!("kubernetes.io/service-name={service}");
        let slices = self.kube.json(["endpointslices", "-n", "default", "-l", &label]);
        slices["items"].as_array().expect("a list").clone()
    }

    /// Address and readiness of each endpoint in a Service.
    fn listed(&self, service: &str) -> BTreeMap<String, bool> {
        let slices = self.slices(service);
        let endpoints =
            slices.iter().flat_map(|slice| slice["endpoints"].as_array().cloned().unwrap_or_default());
        let listed = endpoints.map(|endpoint| {
            let address = endpoint["addresses"][0].as_str().expect("an address").to_owned();
            (address, endpoint["conditions"]["ready"] == true)
        });
        listed.collect()
    }

    #[track_caller]
    fn until_listed(&self, condition: &str, service: &str, expected: &[(&str, bool)]) {
        let expected: BTreeMap<_, _> =
            expected.iter().map(|(address, ready)| ((*address).to_owned(), *ready)).collect();
        self.machine.wait(CONTROLLER, condition, || (self.listed(service) == expected).then_some(()));
    }

    /// Events about a Service.
    fn events(&self, service: &str) -> Vec<String> {
        let events = self.kube.json(["events.events.k8s.io", "-n", "default"]);
        let events = events["items"].as_array().expect("a list");
        let of = events.iter().filter(|event| event["regarding"]["name"] == service);
        of.map(|event| format!("{} {}", event["reason"].as_str().unwrap_or_default(), event["note"]))
            .collect()
    }
}

/// Pod with these addresses on networks.
fn pod(name: &str, networks: &[(&str, &[&str])]) -> Value {
    let status: Vec<_> = networks.iter().map(|(name, ips)| json!({ "name": name, "ips": ips })).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default", "labels": { "app": "web" },
            "annotations": { STATUS: json!(status).to_string() } },
        "spec": { "nodeName": "worker", "containers": [{ "name": "c", "image": "none",
            "ports": [{ "name": "http", "containerPort": 8080 }] }] },
    })
}

fn selects_network(network: &str) -> Value {
    json!({ NETWORK: network, SELECTOR: "app=web" })
}

#[test]
fn service_slices_follow_pods_and_annotations() {
    let Some(cluster) = Cluster::new(host!(Feature::Root)) else { return };
    let kube = &cluster.kube;
    for (name, ips) in [("a", ["10.1.0.1", "fd01::1"]), ("b", ["10.1.0.2", "fd01::2"])] {
        let on_both: [(&str, &[&str]); 3] =
            [("default-network", &["10.0.0.9"]), ("default/storage", &ips), ("other/backup", &["10.2.0.1"])];
        kube.apply(&pod(name, &on_both).to_string());
        cluster.condition(name, true);
    }
    // Slice of another controller, of the same Service.
    let mut foreign = json!({ "kind": "EndpointSlice", "addressType": "IPv4", "ports": [],
        "metadata": { "name": "web-foreign", "namespace": "default", "labels": { "kubernetes.io/service-name": "web",
            "endpointslice.kubernetes.io/managed-by": "other" } },
        "endpoints": [{ "addresses": ["10.9.9.9"], "conditions": { "ready": true } }] });
    foreign["apiVersion"] = json!(discovery(kube));
    kube.apply(&foreign.to_string());
    let ports = json!({ "ports": [{ "name": "web", "port": 80, "targetPort": "http" }] });
    cluster.service("web", selects_network("storage"), &ports);
    let foreign_endpoint = ("10.9.9.9", true);
    let all =
        [("10.1.0.1", true), ("10.1.0.2", true), ("fd01::1", true), ("fd01::2", true), foreign_endpoint];
    cluster.until_listed("both pods are listed", "web", &all);
    let slices = cluster.slices("web");
    let ours: Vec<_> = slices.iter().filter(|slice| slice["metadata"]["name"] != "web-foreign").collect();
    assert_eq!(ours.len(), 2, "{ours:?}");
    let uid = kube.json(["service", "-n", "default", "web"])["metadata"]["uid"].clone();
    for slice in &ours {
        assert_eq!(slice["ports"], json!([{ "name": "web", "port": 8080, "protocol": "TCP" }]));
        assert_eq!(slice["metadata"]["ownerReferences"][0]["uid"], uid);
        assert_eq!(slice["endpoints"][0]["targetRef"]["name"], "a");
    }
    cluster.condition("a", false);
    cluster.until_listed(
        "a pod is not ready",
        "web",
        &[("10.1.0.1", false), ("10.1.0.2", true), ("fd01::1", false), ("fd01::2", true), foreign_endpoint],
    );
    kube.kubectl(["delete", "pod", "-n", "default", "b", "--wait=false"]);
    cluster.until_listed(
        "the other pod terminates",
        "web",
        &[("10.1.0.1", false), ("10.1.0.2", false), ("fd01::1", false), ("fd01::2", false), foreign_endpoint],
    );
    kube.kubectl(["delete", "pod", "-n", "default", "b", "--force", "--grace-period=0"]);
    cluster.until_listed(
        "the pod is deleted",
        "web",
        &[("10.1.0.1", false), ("fd01::1", false), foreign_endpoint],
    );
    // The pod loses its label; the Service selects another network; then none.
    kube.kubectl(["label", "pod", "-n", "default", "a", "app-"]);
    cluster.until_listed("the Service selects no pod", "web", &[foreign_endpoint]);
    kube.kubectl(["label", "pod", "-n", "default", "a", "app=web"]);
    cluster.service("web", selects_network("other/backup"), &ports);
    cluster.until_listed("the other network's address", "web", &[("10.2.0.1", false), foreign_endpoint]);
    cluster.service("web", json!({ SELECTOR: "app=web" }), &ports);
    cluster.until_listed("without the annotation no address is listed", "web", &[foreign_endpoint]);
    // Example of the documentation.
    let page = std::fs::read_to_string(workspace().join("docs/services.md")).expect("a file of this tree");
    let example = page.split("```").find_map(|block| block.strip_prefix("yaml\n")).expect("an example");
    kube.apply(example);
    cluster.until_listed("the page's example", "web-storage", &[("10.1.0.1", false), ("fd01::1", false)]);
    assert_eq!(cluster.metric("weft_services_endpointslice_write_failures_total "), 0);
}

/// API version of EndpointSlices.
fn discovery(kube: &Kube) -> &'static str {
    if kube.minor() < 21 { "discovery.k8s.io/v1beta1" } else { "discovery.k8s.io/v1" }
}

#[test]
fn service_failure_is_an_event_and_recovers() {
    let Some(cluster) = Cluster::new(host!(Feature::Root)) else { return };
    let kube = &cluster.kube;
    kube.apply(&pod("a", &[("default/storage", &["10.1.0.1"])]).to_string());
    let port = json!({ "ports": [{ "port": 80 }] });
    let with = |key: &str, value: Value| {
        let mut spec = port.clone();
        spec[key] = value;
        spec
    };
    let refused = [
        (
            "selects",
            selects_network("storage"),
            with("selector", json!({ "app": "web" })),
            "spec.selector: app=web",
        ),
        ("addressed", selects_network("storage"), with("clusterIP", Value::Null), "spec.clusterIP: None"),
        ("lost", json!({ NETWORK: "storage" }), port.clone(), "weft.dev/service-selector is missing"),
        ("odd", json!({ NETWORK: "storage", SELECTOR: "app in (web)" }), port.clone(), "app in (web)"),
        ("nowhere", selects_network("a/b/c"), port.clone(), "a/b/c"),
    ];
    for (name, annotations, spec, _) in &refused {
        cluster.service(name, annotations.clone(), spec);
    }
    for (name, _, _, word) in &refused {
        until(&format!("{name} is refused"), || {
            let events = cluster.events(name);
            events
                .iter()
                .any(|event| event.starts_with("NetworkAddressesRefused ") && event.contains(word))
                .then_some(())
        });
        assert_eq!(cluster.listed(name), BTreeMap::new(), "{name}");
    }
    assert_eq!(cluster.metric("weft_services_refused "), 5);
    cluster.service(
        "odd",
        selects_network("storage"),
        &json!({ "ports": [{ "port": 80 }], "publishNotReadyAddresses": true }),
    );
    cluster.until_listed("the fixed Service", "odd", &[("10.1.0.1", true)]);
    // An invalid selector removes the listed addresses, and an Event reports it.
    cluster.service("odd", json!({ NETWORK: "storage", SELECTOR: "app" }), &port);
    cluster.until_listed("the invalid selector", "odd", &[]);
    until("the invalid selector is reported", || {
        cluster.events("odd").iter().any(|event| event.contains("has no =")).then_some(())
    });
}

#[test]
fn service_slices_are_full_and_written_only_on_change() {
    let Some(kube) = Kube::own(Machine::new(host!(Feature::Root), "control").into()) else { return };
    let cluster = Cluster::on(kube);
    let kube = &cluster.kube;
    let pods: Vec<Value> = (0..250)
        .map(|number| {
            let mut pod =
                pod(&format!("web-{number}"), &[("default/storage", &[&format!("10.1.{number}.1")])]);
            pod["spec"]["hostname"] = json!(format!("web-{number}"));
            pod["spec"]["subdomain"] = json!("web");
            pod
        })
        .collect();
    let all = json!({ "apiVersion": "v1", "kind": "List", "items": pods });
    kube.attempt(["create", "-f", "-"], &all.to_string()).success();
    let published = json!({ "ports": [{ "port": 80 }], "publishNotReadyAddresses": true });
    cluster.service("web", selects_network("storage"), &published);
    cluster.machine.wait(CONTROLLER, "all are listed", || (cluster.listed("web").len() == 250).then_some(()));
    let slices = cluster.slices("web");
    let sizes: Vec<_> =
        slices.iter().map(|slice| slice["endpoints"].as_array().map_or(0, Vec::len)).collect();
    assert_eq!(sizes, [100, 100, 50]);
    assert!(cluster.metric("weft_services_endpointslice_writes_total ") < 20);
    for endpoint in slices.iter().flat_map(|slice| slice["endpoints"].as_array().expect("a list")) {
        assert_eq!(endpoint["hostname"], endpoint["targetRef"]["name"], "DNS name of each pod");
    }
    let versions = || {
        let of =
            |slice: &Value| (slice["metadata"]["name"].clone(), slice["metadata"]["resourceVersion"].clone());
        cluster.slices("web").iter().map(of).collect::<Vec<_>>()
    };
    let before = versions();
    // The controller is killed and started again, and so is the server.
    cluster.machine.stop(CONTROLLER, "KILL");
    cluster.start();
    cluster.service("bell", selects_network("storage"), &json!({ "publishNotReadyAddresses": true }));
    cluster.machine.wait(CONTROLLER, "continues", || (cluster.listed("bell").len() == 250).then_some(()));
    assert_eq!(versions(), before);
    kube.stop("kube-apiserver", "KILL");
    kube.launch();
    kube.wait();
    // One pod is deleted: one slice is written or deleted.
    kube.kubectl(["delete", "pod", "-n", "default", "web-7", "--force", "--grace-period=0"]);
    cluster
        .machine
        .wait(CONTROLLER, "observes the deletion", || (cluster.listed("web").len() == 249).then_some(()));
    let after = versions();
    let same = before.iter().filter(|slice| after.contains(slice)).count();
    assert_eq!((after.len(), same), (3, 2), "{before:?} {after:?}");
    // After the Service is deleted, garbage collection or the controller deletes its slices.
    kube.kubectl(["delete", "service", "-n", "default", "web"]);
    cluster.machine.wait(CONTROLLER, "deletes the slices", || cluster.slices("web").is_empty().then_some(()));
}

fn one_port() -> Value {
    json!({ "ports": [{ "port": 80 }] })
}

/// EndpointSlice that was created manually.
fn manual_slice(kube: &Kube, name: &str, labels: Value, ports: Value) -> Value {
    let mut slice = json!({ "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": name, "namespace": "default" },
        "endpoints": [{ "addresses": ["10.9.9.9"], "conditions": { "ready": true } }] });
    slice["apiVersion"] = json!(discovery(kube));
    slice["metadata"]["labels"] = labels;
    slice["ports"] = ports;
    slice
}

#[test]
fn service_slice_name_conflict_is_resolved() {
    let Some(cluster) = Cluster::new(host!(Feature::Root)) else { return };
    let kube = &cluster.kube;
    let foreign_labels =
        json!({ "kubernetes.io/service-name": "web", "endpointslice.kubernetes.io/managed-by": "other" });
    for name in ["web-weft-0", "web-weft-1"] {
        kube.apply(&manual_slice(kube, name, foreign_labels.clone(), json!([])).to_string());
    }
    kube.apply(&pod("a", &[("default/storage", &["10.1.0.1"])]).to_string());
    cluster.condition("a", true);
    cluster.service("web", selects_network("storage"), &one_port());
    let foreign_endpoint = ("10.9.9.9", true);
    cluster.until_listed("the pod is listed", "web", &[("10.1.0.1", true), foreign_endpoint]);
    // A slice that was manually assigned to another manager stays unchanged, and the controller creates another one.
    cluster.relabel("web-weft-2", "endpointslice.kubernetes.io/managed-by=other");
    until("another slice is created", || (cluster.slices("web").len() == 4).then_some(()));
    assert_eq!(
        cluster.listed("web"),
        BTreeMap::from([("10.1.0.1".to_owned(), true), (foreign_endpoint.0.to_owned(), true)])
    );
}

#[test]
fn service_failure_does_not_delay_other_services() {
    let Some(cluster) = Cluster::new(host!(Feature::Root)) else { return };
    let kube = &cluster.kube;
    // The webhook has no server, so no slice of this Service can be created.
    let refuses = json!({ "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": "refuses" }, "webhooks": [{ "name": "refuses.weft.dev", "sideEffects": "None",
            "admissionReviewVersions": ["v1"], "clientConfig": { "url": "https://127.0.0.1:9/" },
            "objectSelector": { "matchLabels": { "kubernetes.io/service-name": "refused" } },
            "rules": [{ "apiGroups": ["discovery.k8s.io"], "apiVersions": ["*"], "operations": ["*"],
                "resources": ["endpointslices"] }] }] });
    kube.apply(&refuses.to_string());
    cluster.list_one();
    cluster.service("refused", selects_network("storage"), &one_port());
    // Attempts follow after 1, 2, 4 and 8 s; the next one would follow after 16 s.
    until("the write has failed repeatedly", || {
        (cluster.metric("weft_services_endpointslice_write_failures_total ") >= 5).then_some(())
    });
    let began = std::time::Instant::now();
    cluster.condition("a", false);
    cluster.until_listed("the change is written", "web", &[("10.1.0.1", false)]);
    assert!(began.elapsed() < std::time::Duration::from_secs(6), "{:?}", began.elapsed());
    kube.kubectl(["delete", "validatingwebhookconfiguration", "refuses"]);
    cluster.until_listed("the refused Service is written, too", "refused", &[("10.1.0.1", false)]);
}

#[test]
fn service_slices_with_invalid_content_are_tolerated() {
    let Some(cluster) = Cluster::new(host!(Feature::Root)) else { return };
    let kube = &cluster.kube;
    cluster.list_one();
    let ours = json!({ "kubernetes.io/service-name": "web",
        "endpointslice.kubernetes.io/managed-by": "weft-controller-services" });
    for (name, port) in [("high", json!(70000)), ("low", json!(-1)), ("none", Value::Null)] {
        let slice = manual_slice(kube, name, ours.clone(), json!([{ "port": port }]));
        kube.apply(&slice.to_string());
    }
    cluster.until_listed("invalid slices are deleted", "web", &[("10.1.0.1", true)]);
    // The slices also exist when the controller starts.
    cluster.machine.stop(CONTROLLER, "KILL");
    for (name, port) in [("high", json!(70000)), ("low", json!(-1))] {
        kube.apply(&manual_slice(kube, name, ours.clone(), json!([{ "port": port }])).to_string());
    }
    cluster.start();
    cluster.condition("a", false);
    cluster.until_listed("the controller continues", "web", &[("10.1.0.1", false)]);
}

#[test]
fn service_slices_changed_manually_are_repaired() {
    let Some(cluster) = Cluster::new(host!(Feature::Root)) else { return };
    let kube = &cluster.kube;
    cluster.list_one();
    let slice = || cluster.slices("web")[0]["metadata"]["name"].as_str().expect("a name").to_owned();
    for round in 0..6 {
        kube.kubectl(["delete", "endpointslice", "-n", "default", &slice()]);
        if round % 2 == 0 {
            cluster.condition("a", round % 4 == 0);
        }
        cluster
            .machine
            .wait(CONTROLLER, "creates the slice again", || (cluster.listed("web").len() == 1).then_some(()));
    }
    let patch = r#"{"endpoints":[{"addresses":["10.6.6.6"],"conditions":{"ready":true}}],"metadata":{"ownerReferences":null}}"#;
    kube.kubectl(["patch", "endpointslice", "-n", "default", &slice(), "--type=merge", "-p", patch]);
    cluster.machine.wait(CONTROLLER, "repairs the slice", || {
        (cluster.listed("web").keys().eq(["10.1.0.1"])).then_some(())
    });
    // The slice is assigned to another Service of the controller: its name must not stay occupied.
    cluster.service("other", selects_network("none"), &one_port());
    cluster.relabel(&slice(), "kubernetes.io/service-name=other");
    cluster
        .machine
        .wait(CONTROLLER, "creates the slice again", || (cluster.listed("web").len() == 1).then_some(()));
    // Now the other Service lists a pod, too.
    cluster.service("other", selects_network("storage"), &one_port());
    cluster
        .machine
        .wait(CONTROLLER, "lists the other Service", || (cluster.listed("other").len() == 1).then_some(()));
    cluster.relabel(&slice(), "kubernetes.io/service-name=other");
    cluster.machine.wait(CONTROLLER, "both are listed", || {
        (cluster.listed("web").len() == 1 && cluster.listed("other").len() == 1).then_some(())
    });
}

#[test]
fn service_whose_selector_was_removed_works_once_recreated() {
    let Some(cluster) = Cluster::new(host!(Feature::Root)) else { return };
    let kube = &cluster.kube;
    let manager = "kube-controller-manager";
    let program = kube.program(manager);
    let account = format!("--kubeconfig={}", kube.kubeconfig_for_certificate("admin"));
    let which = "--controllers=endpoint,endpointslice,endpointslicemirroring,garbagecollector";
    kube.apply(r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"worker"}}"#);
    cluster.machine.start(manager, [&*program, &account, which, "--leader-elect=false"]);
    kube.apply(&pod("a", &[("default/storage", &["10.1.0.1"])]).to_string());
    cluster.condition("a", true);
    let path = "/api/v1/namespaces/default/pods/a/status";
    let mut pod = kube.json(["pod", "-n", "default", "a"]);
    pod["status"]["podIP"] = json!("10.0.0.9");
    pod["status"]["podIPs"] = json!([{ "ip": "10.0.0.9" }]);
    kube.attempt(["replace", "--raw", path, "-f", "-"], &pod.to_string()).success();
    let port = json!([{ "port": 80 }]);
    let selects = json!({ "ports": port, "selector": { "app": "web" } });
    cluster.service("web", selects_network("storage"), &selects);
    let listed = || cluster.listed("web").keys().eq(["10.0.0.9"]).then_some(());
    cluster.machine.wait(manager, "lists the pod address", listed);
    until("the selector is reported", || {
        cluster.events("web").iter().any(|event| event.contains("recreate the Service")).then_some(())
    });
    // Reason: slices that Kubernetes wrote stay.
    kube.kubectl([
        "patch",
        "service",
        "-n",
        "default",
        "web",
        "--type=merge",
        "-p",
        r#"{"spec":{"selector":null}}"#,
    ]);
    cluster.until_listed("both", "web", &[("10.0.0.9", true), ("10.1.0.1", true)]);
    kube.kubectl(["delete", "service", "-n", "default", "web"]);
    cluster.until_listed("no slice remains", "web", &[]);
    cluster.service("web", selects_network("storage"), &json!({ "ports": port }));
    cluster.until_listed("only the address of the network", "web", &[("10.1.0.1", true)]);
}
