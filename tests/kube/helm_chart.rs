//! Helm chart compared with the kustomizations, with Helm's own code and a real API server.
//!
//! ```text
//!   deploy/helm/weft ── Helm ──┐
//!                              ├── the same objects ──► kube-apiserver
//!   deploy/{base,…} ── kubectl kustomize ──┘
//! ```
//!
//! Every value of the chart has a row in the table of values, and must change the output.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use rig::parts::{parts, text};
use rig::{Kube, Machine};
use serde_json::{Value, json};
use testkit::{Finished, Host, host, workspace};

/// Machine on which Helm runs, without network and without privileges.
pub(super) struct Helm {
    pub(super) machine: Arc<Machine>,
    interpreter: PathBuf,
}

impl Helm {
    pub(super) fn new(host: Host) -> Option<Helm> {
        let interpreter = parts("helm")?.join("bin/python");
        Some(Helm { machine: Arc::new(Machine::new(host, "control")), interpreter })
    }

    /// Runs `helm COMMAND CHART WORDS`.
    fn run(&self, command: &str, words: &[&str], stdin: &str) -> Finished {
        let bare = ["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"];
        let (script, chart) = (workspace().join("lanes/kube/helm"), workspace().join("deploy/helm/weft"));
        let helm = self.machine.command("setpriv").args(bare).args([text(&self.interpreter), text(&script)]);
        // HOME contains its discovery cache.
        let helm = helm.env("HOME", rig::machine::CONFIGURATIONS).args([command, text(&chart)]).args(words);
        helm.stdin(stdin).deadline(rig::machine::TIMEOUT).finish()
    }

    /// Renders the chart with each of these values: objects as YAML, or an error.
    pub(super) fn template(&self, values: &[Value]) -> Vec<Result<String, String>> {
        let answers = self.run("template", &[], &json!(values).to_string()).success().json();
        let answers = answers.as_array().expect("a list").clone();
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let answer =
            |value: Value| text(&value["objects"]).ok_or(text(&value["refused"]).unwrap_or_default());
        answers.into_iter().map(answer).collect()
    }
}

/// Parses a YAML document with kubectl: objects by kind and name.
pub(super) fn objects(kube: &Kube, yaml: &str) -> BTreeMap<String, Value> {
    let read = kube.attempt(["create", "--dry-run=client", "-o", "json", "-f", "-"], yaml).success().stdout;
    let objects = serde_json::Deserializer::from_str(&read).into_iter::<Value>().map(|object| {
        let object = object.expect("JSON");
        let name = |key: &str| object["metadata"][key].as_str().unwrap_or_default();
        let kind = object["kind"].as_str().expect("a kind");
        (format!("{kind} {}/{}", name("namespace"), name("name")), object.clone())
    });
    objects.collect()
}

/// Labels that only a release of Helm has.
const RELEASE_LABELS: [&str; 6] = [
    "app.kubernetes.io/name",
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/part-of",
    "app.kubernetes.io/managed-by",
    "helm.sh/chart",
];

/// Removes the labels of a release, after a look at each, so that the object can be compared with that of kustomize.
fn without_release_labels(mut object: Value, kustomized: &Value) -> Value {
    let labels = object["metadata"]["labels"].as_object_mut().expect("labels");
    for label in RELEASE_LABELS {
        let is_of_both = !kustomized["metadata"]["labels"][label].is_null();
        assert!(labels.contains_key(label), "no label {label}");
        if !is_of_both {
            labels.remove(label);
        }
    }
    if labels.is_empty() {
        object["metadata"].as_object_mut().expect("metadata").remove("labels");
    }
    object
}

/// Alternative for each value, used with all components enabled.
fn alternatives() -> Vec<(&'static str, Value)> {
    let (resources, words) = (json!({ "limits": { "memory": "64Mi" } }), json!({ "a": "b" }));
    let tolerations = json!([{ "key": "a", "operator": "Exists" }]);
    [
        ("image.repository", json!("registry.example/weft")),
        ("image.tag", json!("1.2.3")),
        ("image.digest", json!(format!("sha256:{}", "0".repeat(64)))),
        ("image.pullPolicy", json!("Always")),
        ("imagePullSecrets", json!([{ "name": "a" }])),
        ("paths.configurations", json!("/var/lib/rancher/k3s/agent/etc/cni/net.d")),
        ("paths.plugins", json!("/var/lib/rancher/k3s/data/cni")),
        ("paths.podResources", json!("/var/snap/kubelet/pod-resources")),
        ("install.fileName", json!("000-weft.conflist")),
        ("install.readyFile", json!("/run/flannel/subnet.env")),
        ("install.follow", json!(true)),
        ("install.thin", json!(true)),
        ("install.defaultNetwork", json!("cbr0")),
        ("install.set", json!({ "namespaceIsolation": true, "globalNamespaces": "shared" })),
        ("install.configuration", json!(r#"{"networkPolicies": true}"#)),
        ("install.command", json!("/usr/local/bin")),
        ("install.resources", resources.clone()),
        ("agent.log", json!("debug")),
        ("agent.policy", json!("always")),
        ("admission.policy", json!("always")),
        ("agent.logFormat", json!("json")),
        ("agent.listen.address", json!("0.0.0.0")),
        ("agent.listen.port", json!(9999)),
        ("agent.orphanGrace", json!(0)),
        ("agent.checkInterval", json!(0)),
        ("agent.runtimeEndpoint", json!("/run/containerd/containerd.sock")),
        ("agent.syncNetworks", json!(true)),
        ("agent.traces.endpoint", json!("http://127.0.0.1:4318")),
        ("agent.extraEnv", json!([{ "name": "OTEL_EXPORTER_OTLP_PROTOCOL", "value": "grpc" }])),
        ("agent.extraArgs", json!(["--journal=/var/lib/cni/multus"])),
        ("agent.resources", resources.clone()),
        ("agent.nodeSelector", words.clone()),
        ("agent.affinity", json!({ "nodeAffinity": {} })),
        ("agent.tolerations", tolerations),
        ("agent.priorityClassName", json!("")),
        ("agent.serviceAccount.create", json!(false)),
        ("agent.serviceAccount.name", json!("mine")),
        ("agent.maxUnavailable", json!(1)),
        ("agent.podAnnotations", words.clone()),
        ("agent.podLabels", words),
        ("agent.securityContext", json!({ "seLinuxOptions": { "type": "spc_t" } })),
        ("podDisruptionBudget.enabled", json!(true)),
        ("extraObjects", extra_objects()),
        ("hotPlug.enabled", json!(false)),
        ("hotPlug.listen", json!("127.0.0.1:9466")),
        ("hotPlug.resources", resources.clone()),
        ("dhcp.enabled", json!(false)),
        ("dhcp.extraArgs", json!(["-broadcast"])),
        ("dhcp.resources", resources.clone()),
        ("removal.enabled", json!(true)),
        ("removal.resources", resources),
    ]
    .into_iter()
    .chain(alternatives_of_monitoring())
    .chain(alternatives_of_controllers().into_iter().chain(alternatives_of_admission()))
    .chain(CONTROLLER_ARGUMENTS.map(|path| (path, json!(["--log=debug"]))))
    .collect()
}

/// Values with further arguments of a controller.
const CONTROLLER_ARGUMENTS: [&str; 6] = [
    "ipam.extraArgs",
    "services.extraArgs",
    "policy.extraArgs",
    "neutron.extraArgs",
    "page.extraArgs",
    "admission.extraArgs",
];

/// Alternatives for the values of alerts, metrics and dashboard.
fn alternatives_of_monitoring() -> [(&'static str, Value); 6] {
    [
        ("monitoring.rules.enabled", json!(true)),
        ("monitoring.rules.labels", json!({ "prometheus": "main" })),
        ("monitoring.podMonitor.enabled", json!(true)),
        ("monitoring.podMonitor.labels", json!({ "prometheus": "main" })),
        ("monitoring.dashboard.enabled", json!(true)),
        ("monitoring.dashboard.labels.grafana_dashboard", json!("yes")),
    ]
}

/// Alternatives for the values of the admission webhook.
fn alternatives_of_admission() -> [(&'static str, Value); 11] {
    [
        ("admission.enabled", json!(false)),
        ("admission.replicas", json!(1)),
        ("admission.missingNetworks", json!("deny")),
        ("admission.failurePolicy", json!("Fail")),
        ("admission.resources", json!({ "limits": { "memory": "64Mi" } })),
        ("admission.nodeSelector", json!({ "a": "b" })),
        ("admission.tolerations", json!([{ "key": "a", "operator": "Exists" }])),
        ("admission.priorityClassName", json!("")),
        ("admission.affinity", json!({ "nodeAffinity": {} })),
        ("admission.serviceAccount.create", json!(false)),
        ("admission.serviceAccount.name", json!("mine")),
    ]
}

/// Object that a user adds to the release.
fn extra_objects() -> Value {
    let metadata = json!({ "name": "weft-extra", "namespace": "{{ .Release.Namespace }}" });
    json!([{ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": { "a": "b" } }])
}

/// Alternatives for the values of controllers.
fn alternatives_of_controllers() -> [(&'static str, Value); 54] {
    let (resources, words) = (json!({ "limits": { "memory": "64Mi" } }), json!({ "a": "b" }));
    let tolerations = json!([{ "key": "a", "operator": "Exists" }]);
    [
        ("networkPolicy.enabled", json!(false)),
        ("networkPolicy.metricsFrom", json!([{ "podSelector": {} }])),
        ("ipam.enabled", json!(false)),
        ("ipam.replicas", json!(1)),
        ("ipam.resources", resources.clone()),
        ("ipam.nodeSelector", words.clone()),
        ("ipam.tolerations", tolerations.clone()),
        ("ipam.priorityClassName", json!("")),
        ("ipam.affinity", json!({ "nodeAffinity": {} })),
        ("ipam.serviceAccount.create", json!(false)),
        ("ipam.serviceAccount.name", json!("mine")),
        ("services.enabled", json!(false)),
        ("services.replicas", json!(1)),
        ("services.resources", resources.clone()),
        ("services.nodeSelector", words.clone()),
        ("services.tolerations", tolerations.clone()),
        ("services.priorityClassName", json!("")),
        ("services.affinity", json!({ "nodeAffinity": {} })),
        ("services.serviceAccount.create", json!(false)),
        ("services.serviceAccount.name", json!("mine")),
        ("policy.enabled", json!(false)),
        ("policy.replicas", json!(1)),
        ("policy.resources", resources.clone()),
        ("policy.nodeSelector", words.clone()),
        ("policy.tolerations", tolerations.clone()),
        ("policy.priorityClassName", json!("")),
        ("policy.affinity", json!({ "nodeAffinity": {} })),
        ("policy.serviceAccount.create", json!(false)),
        ("policy.serviceAccount.name", json!("mine")),
        ("neutron.enabled", json!(false)),
        ("neutron.replicas", json!(1)),
        ("neutron.vifStore", json!("kuryrport")),
        ("neutron.policy", json!("always")),
        ("neutron.configuration.cloud.name", json!("other")),
        ("neutron.configuration.cloud.file", json!("/other")),
        ("neutron.configuration.neutron", json!({ "portDebug": true })),
        ("neutron.cloudsSecret", json!("other")),
        ("neutron.resources", resources.clone()),
        ("neutron.nodeSelector", words.clone()),
        ("neutron.tolerations", tolerations.clone()),
        ("neutron.priorityClassName", json!("")),
        ("neutron.affinity", json!({ "nodeAffinity": {} })),
        ("page.enabled", json!(false)),
        ("page.replicas", json!(2)),
        ("page.from", json!([{ "podSelector": {} }])),
        ("page.resources", resources),
        ("page.nodeSelector", words),
        ("page.tolerations", tolerations),
        ("page.priorityClassName", json!("system-cluster-critical")),
        ("page.affinity", json!({ "nodeAffinity": {} })),
        ("page.serviceAccount.create", json!(false)),
        ("page.serviceAccount.name", json!("mine")),
        ("neutron.serviceAccount.create", json!(false)),
        ("neutron.serviceAccount.name", json!("mine")),
    ]
}

/// Values that enable all components.
fn all() -> Value {
    let on = json!({ "enabled": true });
    json!({ "hotPlug": on, "dhcp": on, "ipam": on, "services": on, "policy": on, "neutron": on })
}

/// Returns `values` with one of them set.
fn with(values: &Value, path: &str, value: &Value) -> Value {
    let mut values = values.clone();
    let place = path.split('.').fold(&mut values, |place, key| &mut place[key]);
    *place = value.clone();
    values
}

/// Collects the paths of values that are not maps; some maps count as one value.
fn leaves(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    let is_whole = ["resources", "nodeSelector", "securityContext"].iter().any(|end| path.ends_with(end));
    match value.as_object().filter(|map| !map.is_empty() && !is_whole) {
        None => drop(found.insert(path.to_owned())),
        Some(map) => map.iter().for_each(|(key, value)| {
            let dot = if path.is_empty() { "" } else { "." };
            leaves(value, &format!("{path}{dot}{key}"), found);
        }),
    }
}

#[test]
fn helm_chart_renders_the_same_objects_as_kustomize() {
    let Some(helm) = Helm::new(host!()) else { return };
    let Some(kube) = Kube::new(Arc::clone(&helm.machine)) else { return };
    let found = helm.run("lint", &[], "").success().stdout;
    assert_eq!(found, "1 Chart.yaml icon is recommended\n");
    let variants: [(Value, &[&str]); 12] = [
        (json!({}), &["base"]),
        (json!({ "install": { "thin": true } }), &["thin"]),
        (json!({ "hotPlug": { "enabled": true } }), &["hot-plug"]),
        (json!({ "dhcp": { "enabled": true } }), &["base", "dhcp"]),
        (json!({ "page": { "enabled": true } }), &["base", "page"]),
        (json!({ "admission": { "enabled": true } }), &["base", "webhook"]),
        (json!({ "ipam": { "enabled": true } }), &["base", "ipam"]),
        (json!({ "services": { "enabled": true } }), &["base", "services"]),
        (json!({ "neutron": { "enabled": true } }), &["base", "neutron"]),
        (json!({ "hotPlug": { "enabled": true }, "policy": { "enabled": true } }), &["network-policy"]),
        (json!({ "hotPlug": { "enabled": true }, "removal": { "enabled": true } }), &["removal"]),
        (all(), &["network-policy", "dhcp", "ipam", "services", "neutron"]),
    ];
    let values: Vec<Value> = variants.iter().map(|(values, _)| values.clone()).collect();
    for ((values, directories), made) in variants.iter().zip(helm.template(&values)) {
        let made = objects(&kube, &made.unwrap_or_else(|why| panic!("{values}: {why}")));
        let kustomized = directories.iter().map(|directory| kube.kustomize(directory));
        let kustomized = objects(&kube, &kustomized.collect::<Vec<_>>().join("\n---\n"));
        let names = |of: &BTreeMap<String, Value>| of.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&made), names(&kustomized), "{directories:?}");
        for (name, object) in &kustomized {
            let made = without_release_labels(made[name].clone(), object);
            assert_eq!(&made, object, "{directories:?}: {name}");
        }
    }
}

/// Roles of the chart without values. The second one belongs to the admission policies.
fn default_roles(kube: &Kube) -> Vec<String> {
    let names = ["weft-agent", "weft-ipam-admin"].into_iter().take(if kube.minor() < 30 { 1 } else { 2 });
    names.map(|name| format!("clusterrole.rbac.authorization.k8s.io/{name}")).collect()
}

#[test]
fn helm_install_upgrade_and_uninstall_keep_the_crds() {
    let Some(helm) = Helm::new(host!()) else { return };
    let Some(kube) = Kube::new(Arc::clone(&helm.machine)) else { return };
    let ours = |kind: &str| {
        let names = kube.kubectl(["get", kind, "-A", "-o", "name"]);
        names.lines().filter(|name| name.contains("/weft-")).map(str::to_owned).collect::<Vec<_>>()
    };
    let admin = kube.admin();
    let install = |values: &Value| helm.run("install", &[&admin], &values.to_string()).success().stdout;
    assert_eq!(install(&json!({})), "1 deployed\n");
    assert_eq!(ours("daemonset"), ["daemonset.apps/weft-agent"]);
    assert_eq!(ours("clusterrole"), default_roles(&kube));
    let definitions = kube.kubectl(["get", "crd", "-o", "name"]);
    let shipped = std::fs::read_dir(workspace().join("deploy/crds")).expect("the definitions").flatten();
    let shipped =
        shipped.filter(|file| file.path().extension().is_some_and(|extension| extension == "yaml")).count();
    assert_eq!(definitions.lines().count(), shipped, "{definitions}");
    // The server accepts every alternative value, except those that disable a component and those that an old server lacks.
    let mut values = all();
    let is_excluded = |path: &str| {
        path.ends_with("enabled")
            || path.starts_with("monitoring.")
            || ["install.thin", "install.configuration", "agent.policy", "admission.policy", "neutron.policy"]
                .contains(&path)
    };
    for (path, value) in alternatives().iter().filter(|(path, _)| !is_excluded(path)) {
        values = with(&values, path, value);
    }
    values = with(&values, "podDisruptionBudget.enabled", &json!(true));
    assert_eq!(install(&values), "2 deployed\n");
    assert_eq!(ours("poddisruptionbudget").len(), 4);
    assert_eq!(ours("serviceaccount"), [""; 0], "existing accounts are used");
    let binding = kube.json(["clusterrolebinding", "weft-agent"]);
    assert_eq!(binding["subjects"][0]["name"], "mine");
    assert_eq!(kube.json(["configmap", "-n", "kube-system", "weft-extra"])["data"]["a"], "b");
    let on_nodes = ["agent", "dhcp", "executor"].map(|name| format!("daemonset.apps/weft-{name}"));
    assert_eq!(ours("daemonset"), on_nodes);
    let controllers = ["controller-ipam", "controller-policy", "controller-services", "neutron"];
    assert_eq!(ours("deployment"), controllers.map(|name| format!("deployment.apps/weft-{name}")));
    let agent = kube.json(["daemonset", "-n", "kube-system", "weft-agent"]);
    let words = agent["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
    for word in ["--hot-plug", "--listen=0.0.0.0:9999", "--orphan-grace=0", "--journal=/var/lib/cni/multus"] {
        assert!(words.contains(word), "{word}: {words}");
    }
    // Without values, Helm would reuse the previous ones.
    assert_eq!(install(&json!({ "hotPlug": { "enabled": false } })), "3 deployed\n");
    assert_eq!(ours("daemonset"), ["daemonset.apps/weft-agent"]);
    assert_eq!(install(&json!({ "removal": { "enabled": true } })), "4 deployed\n");
    assert_eq!(ours("daemonset"), ["daemonset.apps/weft-removal"]);
    assert_eq!(ours("clusterrole"), [""; 0]);
    helm.run("uninstall", &[&admin], "").success();
    for kind in [
        "daemonset",
        "deployment",
        "configmap",
        "serviceaccount",
        "clusterrole",
        "clusterrolebinding",
        "role",
    ] {
        assert_eq!(ours(kind), [""; 0], "{kind}");
    }
    assert_eq!(kube.kubectl(["get", "crd", "-o", "name"]), definitions, "definitions outlive the chart");
}

#[test]
fn helm_listen_address_and_probes_support_ipv4_and_ipv6() {
    let Some(helm) = Helm::new(host!()) else { return };
    let addresses = [
        ("0.0.0.0", "--listen=0.0.0.0:9464", "host: 127.0.0.1\n"),
        ("::", "--listen=[::]:9464", "host: ::1\n"),
        ("fd00::7", "--listen=[fd00::7]:9464", "host: fd00::7\n"),
    ];
    let values = addresses.map(|(address, ..)| with(&json!({}), "agent.listen.address", &json!(address)));
    for ((address, listen, probed), made) in addresses.into_iter().zip(helm.template(&values)) {
        let made = made.unwrap_or_else(|why| panic!("{address}: {why}"));
        assert!(made.contains(listen) && made.matches(probed).count() == 2, "{address}: {made}");
    }
}

#[test]
fn helm_vif_store_reaches_the_agent_or_the_thin_node() {
    let Some(helm) = Helm::new(host!()) else { return };
    let neutron = json!({ "enabled": true, "vifStore": "kuryrport" });
    let mut made = helm
        .template(&[
            json!({ "neutron": neutron }),
            json!({ "neutron": neutron, "install": { "thin": true } }),
            json!({ "neutron": neutron, "install": { "thin": true, "set": { "vifStore": "annotation" } } }),
        ])
        .into_iter()
        .map(|made| made.expect("objects"));
    let (agent, thin, otherwise) = (made.next().unwrap(), made.next().unwrap(), made.next().unwrap());
    assert!(agent.contains("- --vif-store=kuryrport\n") && !agent.contains("--set=vifStore"), "{agent}");
    assert!(thin.contains("- --set=vifStore=kuryrport\n"), "{thin}");
    // The last argument wins.
    let places = ["- --set=vifStore=kuryrport\n", "- --set=vifStore=\"annotation\"\n"]
        .map(|word| otherwise.find(word));
    assert!(places[0].is_some() && places[0] < places[1], "{otherwise}");
}

#[test]
fn helm_pod_resources_path_reaches_a_thin_node() {
    let Some(helm) = Helm::new(host!()) else { return };
    let elsewhere = json!({ "podResources": "/var/lib/k0s/kubelet/pod-resources" });
    let made = helm
        .template(&[
            json!({ "paths": elsewhere, "install": { "thin": true } }),
            json!({ "paths": elsewhere }),
            json!({ "install": { "thin": true } }),
        ])
        .into_iter()
        .map(|made| made.expect("objects"))
        .collect::<Vec<_>>();
    let argument = "- --set=podResources=/var/lib/k0s/kubelet/pod-resources/kubelet.sock\n";
    // The init container and the follower.
    assert_eq!(made[0].matches(argument).count(), 2, "{}", made[0]);
    for others in &made[1..] {
        assert!(!others.contains("podResources="), "{others}");
    }
}

/// Compares text, because servers before 1.30 have no such policies.
#[test]
fn helm_admission_policies_equal_the_kustomizations() {
    const WORDS: [&str; 3] = ["auto", "always", "never"];
    let Some(helm) = Helm::new(host!()) else { return };
    let policy = |path: &str| {
        let policy = std::fs::read_to_string(workspace().join("deploy").join(path)).expect("the policy");
        policy[policy.find("apiVersion").expect("an object")..].to_owned()
    };
    // The other policies are off in the cases of one.
    let (never, on) = (json!({ "policy": "never" }), |word| json!({ "enabled": true, "policy": word }));
    let ports = WORDS.map(|word| json!({ "agent": never, "admission": never, "neutron": on(word) }));
    let agents = WORDS.map(|word| json!({ "agent": { "policy": word }, "admission": never }));
    let objects = WORDS.map(|word| json!({ "agent": never, "admission": { "policy": word } }));
    let values: Vec<Value> = ports.into_iter().chain(agents).chain(objects).collect();
    let made = helm.template(&values);
    // The labels of a release are all that the objects of the kustomization lack.
    let is_label = |line: &&str| {
        *line == "  labels:" || RELEASE_LABELS.iter().any(|label| line.contains(&format!("    {label}: ")))
    };
    let plain =
        |made: String| made.lines().filter(|line| !is_label(line)).collect::<Vec<_>>().join("\n") + "\n";
    let made = made.into_iter().map(|made| plain(made.expect("objects"))).collect::<Vec<_>>();
    let policies = [
        "components/neutron-policy/policy.yaml",
        "components/agent-policy/policy.yaml",
        "admission/policies.yaml",
    ];
    for (index, path) in policies.into_iter().enumerate() {
        let [auto, always, never] = [0, 1, 2].map(|word| &made[3 * index + word]);
        assert!(always.contains(&policy(path)), "{path}: {always}");
        assert!(
            !auto.contains("ValidatingAdmissionPolicy") && !never.contains("ValidatingAdmissionPolicy"),
            "{path}"
        );
    }
}

/// Compares text, because the server has no PrometheusRules.
#[test]
fn helm_alerts_and_dashboard_equal_the_kustomization() {
    let Some(helm) = Helm::new(host!()) else { return };
    let on = json!({ "enabled": true });
    let values = json!({ "monitoring": { "rules": on, "dashboard": on } });
    let made = helm.template(&[values]).remove(0).expect("objects");
    let read = |file: &str| std::fs::read_to_string(workspace().join("deploy").join(file)).expect("a file");
    let rule = read("monitoring/prometheus-rule.yaml");
    let groups = &rule[rule.find("  groups:").expect("groups")..];
    assert!(made.contains(groups), "{made}");
    let dashboard: String =
        read("monitoring/dashboard.json").lines().map(|line| format!("    {line}\n")).collect();
    assert!(made.contains(&format!("  weft.json: |\n{dashboard}")), "{made}");
    assert!(made.contains("    grafana_dashboard: \"1\"\n"), "{made}");
}

#[test]
fn helm_values_each_change_the_output() {
    let Some(helm) = Helm::new(host!()) else { return };
    let mut values_of_chart = BTreeSet::new();
    leaves(&helm.run("values", &[], "").success().json(), "", &mut values_of_chart);
    let tried: BTreeSet<String> = alternatives().iter().map(|(path, _)| (*path).to_owned()).collect();
    assert_eq!(values_of_chart, tried, "values of the chart, and values that are tried");
    let all = &with(&with(&all(), "page.enabled", &json!(true)), "admission.enabled", &json!(true));
    let removing = with(all, "removal.enabled", &json!(true));
    let bare = json!({});
    let without_policies = with(all, "policy.enabled", &json!(false));
    let on = json!({ "enabled": true });
    let monitoring = json!({ "monitoring": { "rules": on, "podMonitor": on, "dashboard": on } });
    let without = |path: &str| match path {
        "monitoring.rules.labels"
        | "monitoring.podMonitor.labels"
        | "monitoring.dashboard.labels.grafana_dashboard" => &monitoring,
        "removal.resources" => &removing,
        "install.thin" => &bare,
        "hotPlug.enabled" => &without_policies,
        _ => all,
    };
    let values = alternatives().into_iter().flat_map(|(path, value)| {
        let plain = without(path);
        [plain.clone(), with(plain, path, &value)]
    });
    let made = helm.template(&values.collect::<Vec<_>>());
    for ((path, value), made) in alternatives().iter().zip(made.chunks(2)) {
        let [plain, changed] = [&made[0], &made[1]]
            .map(|made| made.as_ref().unwrap_or_else(|why| panic!("{path}: {value}: {why}")));
        assert_ne!(changed, plain, "{path}: {value} changes nothing");
    }
}

#[test]
fn helm_invalid_values_are_refused_by_name() {
    let Some(helm) = Helm::new(host!()) else { return };
    let wrong = [
        ("agents", json!({}), "agents"),
        ("agent.loglevel", json!("debug"), "loglevel"),
        ("agent.orphanGrace", json!(-1), "/agent/orphanGrace"),
        ("agent.listen.port", json!(70000), "/agent/listen/port"),
        ("agent.listen.address", json!("node"), "/agent/listen/address"),
        ("agent.logFormat", json!("xml"), "/agent/logFormat"),
        ("agent.traces.endpoint", json!("127.0.0.1"), "/agent/traces/endpoint"),
        ("agent.securityContext", json!("spc_t"), "/agent/securityContext"),
        ("agent.extraEnv", json!([{ "value": "grpc" }]), "/agent/extraEnv"),
        ("image.digest", json!("latest"), "/image/digest"),
        ("image.pullPolicy", json!("Sometimes"), "/image/pullPolicy"),
        ("paths.plugins", json!("opt/cni/bin"), "/paths/plugins"),
        ("install.fileName", json!("../00-weft.conflist"), "/install/fileName"),
        ("install.fileName", json!("00-weft.yaml"), "/install/fileName"),
        ("hotPlug.enabled", json!("yes"), "/hotPlug/enabled"),
        ("neutron.vifStore", json!("etcd"), "/neutron/vifStore"),
        ("admission.failurePolicy", json!("Warn"), "/admission/failurePolicy"),
        ("admission.missingNetworks", json!(true), "/admission/missingNetworks"),
        ("ipam.replicas", json!(-1), "/ipam/replicas"),
        ("page.from", json!({}), "/page/from"),
        ("ipam.serviceAccount.name", json!("Mine"), "/ipam/serviceAccount/name"),
        ("install.set.namespaceIsolaton", json!(true), "namespaceIsolaton"),
        ("install.set.delegateTimeout", json!(0), "/install/set/delegateTimeout"),
        ("extraObjects", json!([{ "kind": "ConfigMap" }]), "/extraObjects"),
    ];
    let together = [
        json!({ "install": { "configuration": "{}", "set": { "builtin": "never" } } }),
        json!({ "install": { "configuration": "{}", "defaultNetwork": "cbr0" } }),
        json!({ "install": { "command": "/opt/cni/bin" } }),
        json!({ "install": { "thin": true }, "hotPlug": { "enabled": true } }),
        json!({ "install": { "thin": true }, "ipam": { "enabled": true } }),
        json!({ "policy": { "enabled": true } }),
    ];
    let reasons = [
        "install.command is",
        "install.configuration is",
        "install.thin has",
        "policy.enabled needs the executor",
    ];
    for (values, made) in together.iter().zip(helm.template(&together)) {
        let why = made.expect_err(&format!("{values} is accepted"));
        assert!(reasons.iter().any(|reason| why.contains(reason)), "{values}: {why}");
    }
    let values: Vec<Value> = wrong.iter().map(|(path, value, _)| with(&json!({}), path, value)).collect();
    for ((path, value, word), made) in wrong.iter().zip(helm.template(&values)) {
        let why = made.expect_err(&format!("{path}: {value} is accepted"));
        assert!(why.contains(word), "{path}: {value}: {why}");
    }
}
