//! Caches whose lists or watches stop, although new connections work.
//!
//! ```text
//!   kube-apiserver ◄── proxy (passes, stops in the middle of a list, freezes) ◄── weft controller --policy
//! ```
//!
//! - The proxy acknowledges what it receives: TCP alone does not notice that a frozen connection is dead.
//! - In the other test packets are dropped, which HTTP/2 alone would notice, too; with them also HTTP/1.1
//!   connections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rig::Machine;
use rig::kube::{Kube, files, namespace};
use rig::machine::until;
use rig::parts::text;
use serde_json::{Value, json};
use testkit::{Feature, Host, host};

const HEALTH: &str = "127.0.0.1:9465";
const PROXY: &str = "7443";
const MODE: &str = "/etc/weft-test/proxy-mode";
/// Proxy of TCP connections: arguments are the proxy's port, the server's port, and the file with the mode.
const PROGRAM: &str = r#"
import os, socket, sys, threading, time
listen, server, mode = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
def limit(opened):
    word, _, number = open(mode).read().partition(" ")
    frozen = word == "freeze" and opened < os.stat(mode).st_mtime
    return 0 if frozen else int(number) if word == "stop" else None
def pump(source, target, opened, counts):
    sent = 0
    while data := source.recv(1024):
        most = limit(opened)
        if most == 0 or counts and most is not None and sent >= most:
            while source.recv(1 << 16): pass
            return
        target.sendall(data)
        sent += len(data)
    target.close()
def accept(client):
    opened = time.time()
    upstream = socket.create_connection(("127.0.0.1", server))
    threading.Thread(target=pump, args=(client, upstream, opened, False), daemon=True).start()
    threading.Thread(target=pump, args=(upstream, client, opened, True), daemon=True).start()
listener = socket.create_server(("127.0.0.1", listen))
while True:
    accept(listener.accept()[0])
"#;

/// Cluster with a policy controller behind a proxy.
struct Cluster {
    kube: Kube,
    machine: Arc<Machine>,
}

impl Cluster {
    fn new(host: Host) -> Option<Cluster> {
        let kube = Kube::new(Machine::new(host, "control").into())?;
        let objects = files(&[
            "deploy/crds/ipblocks.weft.dev.yaml",
            "deploy/crds/network-attachment-definitions.k8s.cni.cncf.io.yaml",
            "deploy/policy/policyaddresssets.weft.dev.yaml",
            "deploy/policy/multi-networkpolicies.k8s.cni.cncf.io.yaml",
            "deploy/components/policy/rbac.yaml",
        ]);
        kube.apply(&(objects + &namespace("x")));
        kube.wait_until_served();
        let machine = kube.machine();
        Some(Cluster { kube, machine })
    }

    fn mode(&self, mode: &str) {
        self.machine.write(MODE, mode);
    }

    /// Starts the proxy, and the controller behind it.
    fn start(&self) {
        let account = self.kube.service_account("kube-system", "weft-controller-policy");
        let known = self.machine.read(&account).expect("a kubeconfig");
        let mut document: Value = serde_json::from_str(&known).expect("JSON");
        let server = document["clusters"][0]["cluster"]["server"].take();
        let port = server.as_str().expect("a URL").rsplit(':').next().expect("a port").to_owned();
        document["clusters"][0]["cluster"]["server"] = json!(format!("https://127.0.0.1:{PROXY}"));
        self.machine.write("/etc/weft-test/proxied", document.to_string());
        self.machine.start("proxy", ["/usr/bin/python3", "-c", PROGRAM, PROXY, &port, MODE]);
        let program = testkit::binary("weft");
        let words = ["controller", "--policy", "--listen", HEALTH, "--kubeconfig", "/etc/weft-test/proxied"];
        self.machine.start("controller", [text(&program)].into_iter().chain(words));
    }

    fn page(&self, path: &str) -> String {
        self.machine.attempt(["curl", "-s", &format!("http://{HEALTH}{path}")]).stdout
    }

    fn wait_until_ready(&self) {
        self.machine
            .wait("controller", "is ready", || self.page("/readyz").starts_with("ok\n").then_some(()));
    }

    fn apply_policy(&self, name: &str) {
        let policy = json!({
            "apiVersion": "k8s.cni.cncf.io/v1beta1", "kind": "MultiNetworkPolicy",
            "metadata": { "name": name, "namespace": "x",
                "annotations": { "k8s.v1.cni.cncf.io/policy-for": "net" } },
            "spec": { "podSelector": {}, "ingress": [{ "from": [{ "podSelector": {} }] }] },
        });
        self.kube.apply(&policy.to_string());
    }

    /// Waits until the controller knows `count` policies, and returns the time that it took.
    fn time_until_policies(&self, count: u32) -> Duration {
        let (began, line) = (Instant::now(), format!("weft_policy_policies {count}\n"));
        self.machine
            .wait("controller", "has the policy", || self.page("/metrics").contains(&line).then_some(()));
        began.elapsed()
    }
}

#[test]
fn cache_list_stopped_in_its_body_is_noticed_and_repeated() {
    let Some(cluster) = Cluster::new(host!(Feature::Root)) else { return };
    let pod = |number| {
        json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": format!("large-{number}"), "namespace": "x",
                "annotations": { "filler": "x".repeat(8 << 10) } },
            "spec": { "containers": [{ "name": "c", "image": "i" }] } })
    };
    let pods: Vec<Value> = (0..40).map(pod).collect();
    cluster.kube.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": pods }).to_string());
    cluster.mode("stop 40000");
    cluster.start();
    until("readyz tells that the list stopped", || {
        let page = cluster.page("/readyz");
        (page.starts_with("waiting for: ") && page.contains("the list stopped ")).then_some(())
    });
    until("the stopped list is an error", || {
        cluster.page("/readyz").contains(" bytes: no data for 30 s").then_some(())
    });
    assert!(cluster.machine.log("controller").contains("failed to watch resource"));
    let metrics = cluster.page("/metrics");
    let age =
        metrics.lines().find_map(|line| line.strip_prefix("weft_cache_age_seconds{resource=\"pods\"} "));
    assert!(age.and_then(|age| age.parse::<f64>().ok()).is_some_and(|age| age > 25.0), "{metrics}");
    cluster.mode("pass");
    cluster.wait_until_ready();
    assert_eq!(cluster.page("/readyz"), "ok\n");
}

#[test]
fn cache_watch_frozen_by_a_proxy_is_noticed_in_45_s() {
    let Some(cluster) = Cluster::new(host!(Feature::Root)) else { return };
    cluster.mode("pass");
    cluster.start();
    cluster.wait_until_ready();
    cluster.apply_policy("before");
    cluster.time_until_policies(1);
    cluster.mode("freeze");
    cluster.apply_policy("after");
    let took = cluster.time_until_policies(2);
    eprintln!("the watch was repeated after {took:?}");
    assert!(took < Duration::from_secs(45), "{took:?}");
    let metrics = cluster.page("/metrics");
    assert!(metrics.contains("weft_cache_failures_total{resource=\"multi-networkpolicies\"} "), "{metrics}");
    assert!(
        !metrics.contains("weft_cache_failures_total{resource=\"multi-networkpolicies\"} 0\n"),
        "{metrics}"
    );
}

#[test]
fn cache_watch_without_packets_is_noticed_in_45_s() {
    let Some(cluster) = Cluster::new(host!(Feature::Root)) else { return };
    cluster.mode("pass");
    cluster.start();
    cluster.wait_until_ready();
    cluster.apply_policy("before");
    cluster.time_until_policies(1);
    // Only the connections that exist now: their ports are those of the client.
    let open = cluster.machine.run(["ss", "-Htn", "dst", &format!("127.0.0.1:{PROXY}")]);
    let ports: Vec<&str> =
        open.lines().filter_map(|line| line.split_whitespace().nth(3)?.rsplit(':').next()).collect();
    assert!(!ports.is_empty(), "{open}");
    let ports = ports.join(",");
    cluster.machine.run(["nft", "add table inet silence"]);
    cluster.machine.run(["nft", "add chain inet silence input { type filter hook input priority 0; }"]);
    for (client, server) in [("sport", "dport"), ("dport", "sport")] {
        let rule =
            format!("add rule inet silence input tcp {client} {{ {ports} }} tcp {server} {PROXY} drop");
        cluster.machine.run(["nft", &rule]);
    }
    cluster.apply_policy("after");
    let took = cluster.time_until_policies(2);
    eprintln!("the watch was repeated after {took:?}");
    assert!(took < Duration::from_secs(45), "{took:?}");
}
