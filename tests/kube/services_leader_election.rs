//! Leader election of two Services controllers with a real API server: the leader is killed or stopped during writes,
//! and the other controller continues. The server's audit log shows which of them wrote.
//!
//! ```text
//!   one ── 127.0.0.1 ──► kube-apiserver ─► audit log        the Lease weft-services names the leader
//!   two ── 192.0.2.1 ──►
//! ```
//!
//! Source: `crates/kube-support/src/leader_election.rs`; Kubernetes, "Auditing".

use std::sync::Arc;

use rig::Machine;
use rig::kube::{Accounts, Kube, files};
use rig::machine::until;
use rig::parts::text;
use serde_json::{Value, json};
use testkit::{Feature, Host, host};

/// The two controllers: name, source address, and listen address for metrics.
const ONE: (&str, &str, &str) = ("one", "127.0.0.1", "127.0.0.1:9465");
const TWO: (&str, &str, &str) = ("two", "192.0.2.1", "127.0.0.1:9466");
const AUDIT: &str = "/run/audit.log";
const POLICY: &str = "/etc/kubernetes/audit.json";

/// Cluster whose audit log records writes of slices; a pod on a network, and Services that list it.
struct Cluster {
    kube: Kube,
    machine: Arc<Machine>,
    account: String,
}

impl Cluster {
    fn new(host: Host) -> Option<Cluster> {
        Cluster::with(host, &[])
    }

    /// Starts the API server with further arguments.
    fn with(host: Host, further: &[&str]) -> Option<Cluster> {
        let machine = Arc::new(Machine::new(host, "control"));
        machine.run(["ip", "address", "add", "192.0.2.1/32", "dev", "lo"]);
        let kube = Kube::prepare(Arc::clone(&machine), Accounts::Absent)?;
        let policy = json!({ "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [
            { "level": "Metadata", "verbs": ["create", "update", "delete"],
                "resources": [{ "group": "discovery.k8s.io", "resources": ["endpointslices"] }] },
            { "level": "None" },
        ] });
        machine.write(POLICY, policy.to_string());
        kube.launch_etcd();
        let audit = [format!("--audit-policy-file={POLICY}"), format!("--audit-log-path={AUDIT}")];
        let words: Vec<&str> = audit.iter().map(String::as_str).chain(further.iter().copied()).collect();
        kube.launch_server_with(&words);
        kube.wait();
        kube.apply(&files(&["deploy/services/rbac.yaml"]));
        let account = kube.service_account("kube-system", "weft-controller-services");
        Some(Cluster { kube, machine, account })
    }

    fn start(&self, (name, address, listen): (&str, &str, &str)) {
        let account = format!("{}-{name}", self.account);
        let known = self.machine.run(["cat", &self.account]);
        self.machine.write(&account, known.replace("127.0.0.1", address));
        let program = testkit::binary("weft");
        let words =
            ["controller", "--services", "--identity", name, "--listen", listen, "--kubeconfig", &account];
        self.machine.start(name, [text(&program)].into_iter().chain(words));
    }

    /// Starts both; the first one leads.
    fn start_both(&self) {
        self.start(ONE);
        self.machine
            .wait(ONE.0, "leads", || self.machine.log(ONE.0).contains("acquired leadership").then_some(()));
        self.start(TWO);
        self.machine.wait(TWO.0, "is ready", || {
            let asked = self.machine.attempt(["curl", "-sf", &format!("http://{}/readyz", TWO.2)]);
            asked.code.filter(|code| *code == 0)
        });
    }

    fn signal(&self, name: &str, signal: &str) {
        let id = self.machine.run(["cat", &format!("/run/services/{name}.pid")]);
        self.machine.run(["kill", "-s", signal, id.trim()]);
    }

    /// Creates Services `web-0`, `web-1`… and the pod that they list.
    fn create(&self, count: usize) {
        let status = json!([{ "name": "default/storage", "ips": ["10.1.0.1"] }]).to_string();
        let pod = json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "a", "namespace": "default", "labels": { "app": "web" },
                "annotations": { "k8s.v1.cni.cncf.io/network-status": status } },
            "spec": { "nodeName": "worker", "containers": [{ "name": "c", "image": "none" }] } });
        let services = (0..count).map(|number| {
            json!({ "apiVersion": "v1", "kind": "Service",
                "metadata": { "name": format!("web-{number}"), "namespace": "default", "annotations": {
                    "k8s.v1.cni.cncf.io/service-network": "storage", "weft.dev/service-selector": "app=web" } },
                "spec": { "clusterIP": "None", "ports": [{ "port": 80 }] } })
        });
        let items: Vec<Value> = [pod].into_iter().chain(services).collect();
        let all = json!({ "apiVersion": "v1", "kind": "List", "items": items });
        self.kube.attempt(["create", "-f", "-"], &all.to_string()).success();
        self.make_ready("True");
    }

    /// Sets the pod's Ready condition, as the kubelet does.
    fn make_ready(&self, ready: &str) {
        let mut pod = self.kube.json(["pod", "-n", "default", "a"]);
        pod["status"] = json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": ready }] });
        let words = ["replace", "--raw", "/api/v1/namespaces/default/pods/a/status", "-f", "-"];
        self.kube.attempt(words, &pod.to_string()).success();
    }

    /// Number of slices, and number of those in which the pod is ready.
    fn listed(&self) -> (usize, usize) {
        let slices = self.kube.json(["endpointslices", "-n", "default"]);
        let slices = slices["items"].as_array().expect("a list");
        let is_ready = |slice: &&Value| slice["endpoints"][0]["conditions"]["ready"] == true;
        let ours: Vec<_> = slices.iter().filter(|slice| named(slice).starts_with("web-")).collect();
        (ours.len(), ours.iter().copied().filter(is_ready).count())
    }

    /// Source address and slice name of each write, in the order of the server.
    fn written(&self) -> Vec<(String, String)> {
        let log = self.machine.attempt(["cat", AUDIT]).stdout;
        let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let done =
            events.filter(|event| event["responseStatus"]["code"].as_u64().is_some_and(|code| code < 300));
        let ours =
            done.filter(|event| event["user"]["username"].as_str().unwrap_or_default().contains("weft"));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        ours.map(|event| (text(&event["sourceIPs"][0]), text(&event["objectRef"]["name"]))).collect()
    }

    /// Occupies the server's slots for requests of ordinary accounts with requests whose bodies never end.
    fn flood(&self) {
        self.kube.kubectl("create clusterrole flood --verb create --resource configmaps".split(' '));
        let bind = "create clusterrolebinding flood --clusterrole flood --serviceaccount default:flood";
        self.kube.kubectl(bind.split(' '));
        self.kube.service_account("default", "flood");
        let script = format!(
            "mkfifo /run/hold && exec 3<>/run/hold
            for number in $(seq {FLOOD}); do
                while :; do
                    curl -s -o /dev/null --cacert \"$1\" -H \"Authorization: Bearer $2\" \
                        -H 'Content-Type: application/json' -X POST -T - \"$3\" <&3; sleep 0.2
                done &
            done; wait"
        );
        let url = format!("{}/api/v1/namespaces/default/configmaps", rig::kube::SERVER);
        let words = [&self.kube.pki("ca.crt"), &self.kube.token("default", "flood"), &url];
        let line = ["bash", "-c", &script, "bash"].into_iter().chain(words.into_iter().map(String::as_str));
        self.machine.start("flood", line);
    }

    /// Sum of an API server metric over the lines that contain these labels.
    fn server_metric(&self, name: &str, labels: &[&str]) -> f64 {
        let all = self.kube.kubectl(["get", "--raw", "/metrics"]);
        let lines = all.lines().filter(|line| line.starts_with(&format!("{name}{{")));
        let lines = lines.filter(|line| labels.iter().all(|label| line.contains(label)));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Holder of the lease and the time of the last renewal.
    fn lease(&self) -> (String, String) {
        let lease = self.kube.json(["lease", "-n", "kube-system", "weft-services"]);
        let text = |name: &str| lease["spec"][name].as_str().unwrap_or_default().to_owned();
        (text("holderIdentity"), text("renewTime"))
    }

    /// Number of slices that this controller wrote.
    fn count(&self, (_, address, _): (&str, &str, &str)) -> usize {
        self.written().iter().filter(|(by, _)| by == address).count()
    }
}

/// Requests at a time of [`Cluster::flood`].
const FLOOD: usize = 40;

fn named(object: &Value) -> &str {
    object["metadata"]["name"].as_str().expect("a name")
}

#[test]
fn leader_election_successor_continues_without_rewrites() {
    let Some(cluster) = Cluster::new(host!(Feature::Root)) else { return };
    cluster.create(3);
    cluster.start_both();
    cluster.machine.wait(ONE.0, "lists all", || (cluster.listed() == (3, 3)).then_some(()));
    cluster.machine.stop(ONE.0, "KILL");
    // Change while no controller leads.
    cluster.make_ready("False");
    cluster.machine.wait(TWO.0, "continues", || (cluster.listed() == (3, 0)).then_some(()));
    let written = cluster.written();
    // Created by the first controller, written once by the second: no correct slice is written again.
    assert_eq!((cluster.count(ONE), cluster.count(TWO)), (3, 3), "{written:?}");
    assert!(written[3..].iter().all(|(by, _)| by == TWO.1), "{written:?}");
}

/// Covers a stopped leader, which does not know how much time has passed: another controller leads meanwhile.
#[test]
fn leader_election_stalled_leader_begins_no_write() {
    const COUNT: usize = 100;
    let Some(cluster) = Cluster::new(host!(Feature::Root)) else { return };
    cluster.create(COUNT);
    cluster.start_both();
    cluster.machine.wait(ONE.0, "lists all", || (cluster.listed() == (COUNT, COUNT)).then_some(()));
    // A fast controller may complete its writes before it is stopped; then the test repeats with the opposite condition.
    let (mut now, mut next) = ("False", "True");
    loop {
        let written = cluster.count(ONE);
        cluster.make_ready(now);
        until("the controller is writing", || (cluster.count(ONE) > written).then_some(()));
        cluster.signal(ONE.0, "STOP");
        if cluster.count(ONE) - written < COUNT - 1 {
            break;
        }
        cluster.signal(ONE.0, "CONT");
        (now, next) = (next, now);
    }
    cluster.make_ready(next);
    let expected = (COUNT, if next == "True" { COUNT } else { 0 });
    cluster.machine.wait(TWO.0, "continues", || (cluster.listed() == expected).then_some(()));
    assert!(cluster.count(TWO) > 0);
    cluster.signal(ONE.0, "CONT");
    until("the first controller ends", || (!cluster.machine.is_running(ONE.0)).then_some(()));
    let written = cluster.written();
    let first = written.iter().position(|(by, _)| by == TWO.1).expect("a write");
    // A request that was already passed to its connection is sent in any case, and the successor corrects its effect.
    let late = written[first..].iter().filter(|(by, _)| by != TWO.1).count();
    assert!(late <= 1, "{:?}", &written[first..]);
    cluster.machine.wait(TWO.0, "keeps the slices", || (cluster.listed() == expected).then_some(()));
    assert!(
        cluster.machine.log(ONE.0).contains("another controller takes over"),
        "{}",
        cluster.machine.log(ONE.0)
    );
}

/// API Priority and Fairness gives lease requests from kube-system accounts separate slots, if a program sends them as
/// the control plane does. A program that uses another verb or namespace loses the lease when others flood the server.
#[test]
fn leader_election_continues_while_others_flood_the_server() {
    let few = ["--max-requests-inflight=10", "--max-mutating-requests-inflight=10"];
    let Some(cluster) = Cluster::with(host!(Feature::Root), &few) else { return };
    cluster.create(3);
    cluster.start_both();
    cluster.flood();
    let waiting =
        || cluster.server_metric("apiserver_flowcontrol_current_inqueue_requests", &["\"workload-low\""]);
    until("requests of ordinary accounts wait", || (waiting() > 0.0).then_some(()));
    let (leader, mut renewed) = cluster.lease();
    for renewal in 0..4 {
        cluster.machine.wait(ONE.0, "renews its lease", || {
            let (holder, now) = cluster.lease();
            assert_eq!(holder, leader, "renewal {renewal}");
            (now != renewed).then(|| renewed = now)
        });
    }
    assert!(waiting() > 0.0, "the flood ended too early");
    let name = "apiserver_flowcontrol_dispatched_requests_total";
    let own = cluster.server_metric(name, &["\"leader-election\"", "\"system-leader-election\""]);
    assert!(own > 0.0, "leases of weft have no slots of their own");
    // Its other requests have slots of their own, too.
    cluster.make_ready("False");
    cluster.machine.wait(ONE.0, "continues to write", || (cluster.listed() == (3, 0)).then_some(()));
    assert!(cluster.machine.is_running(ONE.0) && cluster.machine.is_running(TWO.0));
}
