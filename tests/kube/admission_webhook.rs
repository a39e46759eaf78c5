//! Admission webhook with a real API server: denials, warnings, completed pods, the certificate, and a webhook that is away.
//!
//! ```text
//!   kubectl ─► kube-apiserver ──https on loopback──► weft controller --admission (account and RBAC of deploy/webhook)
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use rig::Machine;
use rig::kube::{Kube, files, namespace};
use rig::machine::until;
use serde_json::{Value, json};
use testkit::{Finished, Host, host, workspace};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const ACCOUNT: &str = "weft-admission";

/// Cluster whose API server calls webhooks.
struct Cluster {
    kube: Kube,
    machine: Arc<Machine>,
    account: String,
}

impl Cluster {
    /// Returns a cluster without a running webhook. The API server calls one at each of these ports of its own host.
    fn new(host: Host, ports: &[u16], failure_policy: &str) -> Option<Cluster> {
        // A server of the pool cannot reach a webhook on this machine.
        let kube = Kube::own(Machine::new(host, "control").into())?;
        let objects =
            ["deploy/crds/network-attachment-definitions.k8s.cni.cncf.io.yaml", "deploy/webhook/rbac.yaml"];
        kube.apply(&(files(&objects) + &namespace("blue")));
        kube.wait_until_served();
        for object in webhooks(&kube, ports, failure_policy) {
            kube.apply(&object.to_string());
        }
        let (machine, account) = (kube.machine(), kube.service_account("kube-system", ACCOUNT));
        Some(Cluster { kube, machine, account })
    }

    /// Starts a replica, with further arguments, and waits until it is ready.
    fn start(&self, name: &str, port: u16, further: &[&str]) {
        let weft = testkit::binary("weft").display().to_string();
        let (listen, health) = (format!("127.0.0.1:{port}"), format!("127.0.0.1:{}", port + 1000));
        let words = [
            weft.as_str(),
            "controller",
            "--admission",
            &listen,
            "--listen",
            &health,
            "--webhook-name",
            "127.0.0.1",
            "--kubeconfig",
            &self.account,
        ];
        self.machine.start(name, words.into_iter().chain(further.iter().copied()));
        let ready = format!("http://{health}/readyz");
        self.machine.wait(name, "is ready", || {
            self.machine.command("curl").args(["-sf", &ready]).finish().code.filter(|code| *code == 0)
        });
    }

    fn apply(&self, object: &Value) -> Finished {
        self.kube.attempt(["apply", "-f", "-"], &object.to_string())
    }

    /// Applies an object until the API server has the webhook's certificate and calls it.
    #[track_caller]
    fn until_denied(&self, object: &Value, reason: &str) -> Finished {
        until(&format!("a denial with {reason:?}"), || {
            let finished = self.kube.attempt(["apply", "--dry-run=server", "-f", "-"], &object.to_string());
            (finished.code != Some(0) && finished.stderr.contains(reason)).then_some(finished)
        })
    }
}

/// Returns the shipped webhook configurations, with one webhook for each port of loopback.
fn webhooks(kube: &Kube, ports: &[u16], failure_policy: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(workspace().join("deploy/webhook/webhooks.yaml")).expect("a file");
    let list = kube.attempt(["create", "--dry-run=client", "-o", "json", "-f", "-"], &text).success().stdout;
    let documents = serde_json::Deserializer::from_str(&list).into_iter::<Value>();
    let objects =
        documents.map(|object| object.expect("an object")).flat_map(|object| match object.get("items") {
            Some(items) => items.as_array().expect("a list").clone(),
            None => vec![object],
        });
    let local = |mut object: Value| {
        let shipped = object["webhooks"][0].clone();
        let path = shipped["clientConfig"]["service"]["path"].as_str().expect("a path").to_owned();
        let webhook = |port: &u16| {
            let mut webhook = shipped.clone();
            webhook["name"] = json!(format!("p{port}.{}", shipped["name"].as_str().expect("a name")));
            webhook["clientConfig"] = json!({ "url": format!("https://127.0.0.1:{port}{path}") });
            webhook["failurePolicy"] = json!(failure_policy);
            webhook
        };
        object["webhooks"] = ports.iter().map(webhook).collect();
        object
    };
    objects.map(local).collect()
}

fn definition(name: &str, config: &str) -> Value {
    json!({ "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": name, "namespace": "blue" }, "spec": { "config": config } })
}

fn bridge(name: &str) -> Value {
    definition(
        name,
        &format!(
            r#"{{"cniVersion":"1.0.0","name":"{name}","type":"bridge","ipam":{{"type":"host-local","subnet":"10.1.0.0/24"}},"capabilities":{{"ips":true}}}}"#
        ),
    )
}

fn pod(name: &str, networks: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "blue", "annotations": { NETWORKS: networks } },
        "spec": { "containers": [{ "name": "main", "image": "weft.test/pause:1" }] } })
}

#[test]
fn admission_webhook_denies_errors_and_warns_of_the_rest() {
    let Some(cluster) = Cluster::new(host!(), &[9468], "Ignore") else { return };
    // Stored before the webhook exists.
    cluster.apply(&definition("old", "{")).success();
    cluster.start("webhook", 9468, &[]);
    let denied = cluster.until_denied(&definition("broken", "{"), "malformed-config");
    assert!(denied.stderr.contains("network-attachment-definition blue/broken"), "{denied}");
    let warned = cluster
        .apply(&definition("odd", r#"{"cniVersion":"1.0.0","name":"odd","type":"bridge","mtuu":1}"#))
        .success();
    assert!(warned.stderr.contains("Warning: ") && warned.stderr.contains("[unknown-key]"), "{warned}");
    cluster.apply(&bridge("lan")).success();
    // A label of an old object can be changed; its wrong configuration cannot become another wrong one.
    cluster.kube.kubectl(["label", "net-attach-def", "-n", "blue", "old", "a=b"]);
    assert_ne!(cluster.apply(&definition("old", "[")).code, Some(0));
    // Pods and templates.
    let twice = r#"[{"name":"lan","interface":"net1"},{"name":"lan","interface":"net1"}]"#;
    for (networks, reason) in [
        ("a b c", "[malformed-network-reference]"),
        (twice, "[duplicate-interface-name]"),
        (r#"[{"name":"lan","ips":["10.2.0.9"]}]"#, "[address-outside-range]"),
        (r#"[{"name":"lan","bandwidth":{"ingressRate":1000,"ingressBurst":1000}}]"#, "[missing-capability]"),
    ] {
        let finished = cluster.apply(&pod("wrong", networks));
        assert!(finished.code != Some(0) && finished.stderr.contains(reason), "{networks}: {finished}");
        let template = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "d", "namespace": "blue" },
            "spec": { "selector": { "matchLabels": { "a": "b" } }, "template": { "metadata": {
                "labels": { "a": "b" }, "annotations": { NETWORKS: networks } }, "spec": pod("", "")["spec"] } } });
        let finished = cluster.apply(&template);
        assert!(finished.code != Some(0) && finished.stderr.contains(reason), "{networks}: {finished}");
    }
    let missing = cluster.apply(&pod("early", "later")).success();
    assert!(
        missing.stderr.contains("Warning: ") && missing.stderr.contains("[unknown-network]"),
        "{missing}"
    );
    // A network in use.
    cluster.apply(&pod("user", "lan")).success();
    let delete = ["delete", "net-attach-def", "-n", "blue", "lan"];
    until("the webhook knows the pod", || {
        let finished = cluster.kube.attempt(delete.into_iter().chain(["--dry-run=server"]), "");
        finished.stderr.contains("network blue/lan is used by pod blue/user").then_some(())
    });
    let changed = definition("lan", r#"{"cniVersion":"1.0.0","name":"lan","type":"bridge","mtu":1400}"#);
    let changed = cluster.apply(&changed).success();
    assert!(changed.stderr.contains("keep the old configuration"), "{changed}");
    cluster.kube.kubectl(["annotate", "net-attach-def", "-n", "blue", "lan", "weft.dev/force=true"]);
    cluster.kube.kubectl(delete);
}

#[test]
fn admission_webhook_completes_pods_once() {
    let Some(cluster) = Cluster::new(host!(), &[9468], "Ignore") else { return };
    let mut device = bridge("vf");
    device["metadata"]["annotations"] = json!({
        "k8s.v1.cni.cncf.io/resourceName": "e.x/vf", "k8s.v1.cni.cncf.io/nodeSelector": "fabric=a",
    });
    cluster.apply(&device).success();
    cluster.kube.kubectl([
        "annotate",
        "namespace",
        "blue",
        "v1.multus-cni.io/default-network=kube-system/other",
    ]);
    cluster.start("webhook", 9468, &["--missing-networks", "deny"]);
    cluster.until_denied(&pod("missing", "later"), "[unknown-network]");
    cluster.apply(&pod("p", "vf,vf")).success();
    let found = cluster.kube.json(["pod", "-n", "blue", "p"]);
    let container = &found["spec"]["containers"][0];
    assert_eq!(
        container["resources"],
        json!({ "limits": { "e.x/vf": "2" }, "requests": { "e.x/vf": "2" } }),
        "{found}"
    );
    assert_eq!(found["spec"]["nodeSelector"], json!({ "fabric": "a" }));
    assert_eq!(found["metadata"]["annotations"]["v1.multus-cni.io/default-network"], "kube-system/other");
    assert!(
        container["volumeMounts"]
            .as_array()
            .expect("mounts")
            .iter()
            .any(|mount| mount["name"] == "podnetinfo")
    );
}

#[test]
fn admission_webhook_rotates_certificates_of_two_replicas() {
    // Every request calls both replicas, and fails if one of them does not answer.
    let Some(cluster) = Cluster::new(host!(), &[9468, 9469], "Fail") else { return };
    let short = ["--certificate-validity", "12"];
    cluster.start("first", 9468, &short);
    cluster.start("second", 9469, &short);
    let broken = definition("broken", "{");
    cluster.until_denied(&broken, "malformed-config");
    let (end, mut count) = (Instant::now() + Duration::from_secs(40), 0);
    while Instant::now() < end {
        let finished = cluster.kube.attempt(["apply", "--dry-run=server", "-f", "-"], &broken.to_string());
        assert!(finished.stderr.contains("malformed-config"), "request {count}: {finished}");
        count += 1;
    }
    let served = |name: &str| cluster.machine.log(name).matches("webhook serves a new certificate").count();
    assert!(count > 20 && served("first") >= 4 && served("second") >= 4, "{count} requests");
}

#[test]
fn admission_webhook_that_is_away_holds_no_pod_up() {
    let Some(cluster) = Cluster::new(host!(), &[9468], "Ignore") else { return };
    let create = |name: &str| {
        let began = Instant::now();
        cluster.apply(&pod(name, "a b c")).success();
        began.elapsed()
    };
    create("without-a-certificate");
    cluster.start("webhook", 9468, &[]);
    cluster.until_denied(&pod("x", "a b c"), "malformed-network-reference");
    // Slow: the shipped timeout is five seconds for each of the two webhooks.
    cluster.machine.signal("webhook", "STOP");
    assert!(create("slow") < Duration::from_secs(20));
    cluster.machine.stop("webhook", "KILL");
    create("down");
    // Another program serves the port, with a certificate that nobody trusts.
    let pki = |name: &str| cluster.kube.pki(name);
    let (certificate, key) = (pki("server.crt"), pki("server.key"));
    let words = ["openssl", "s_server", "-accept", "9468", "-cert", &certificate, "-key", &key, "-www"];
    cluster.machine.start("other", words);
    create("untrusted");
}
