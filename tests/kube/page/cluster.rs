//! Cluster with many pods and networks, and a page with the permissions that the chart gives it.

use std::fs;
use std::sync::Arc;

use rig::Machine;
use rig::kube::{Kube, files, namespace};
use rig::parts::text;
use serde_json::{Value, json};
use testkit::workspace;

/// Service that serves the page.
pub(crate) const PAGE: &str = "page";
/// Address with a token, and address without one.
pub(crate) const PROTECTED: &str = "192.0.2.1:9467";
pub(crate) const OPEN: &str = "127.0.0.1:9467";
const HEALTH: &str = "127.0.0.1:9465";
pub(crate) const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
pub(crate) const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
/// Text that is dangerous in a terminal, in HTML and beside text of the other direction.
pub(crate) const HOSTILE: &str = "<img src=x onerror=\"window.broken=1\">\u{1b}[2J\u{202e}gnp";

/// API server with the custom resources of weft.
pub(crate) struct PageCluster {
    pub(crate) kube: Kube,
    pub(crate) machine: Arc<Machine>,
    account: String,
}

/// Response of the page.
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// Header lines in lower case.
    pub(crate) headers: String,
    pub(crate) body: String,
}

impl PageCluster {
    /// Prepares a cluster; the page is not started yet.
    pub(crate) fn on(kube: Kube) -> PageCluster {
        let machine = kube.machine();
        let mut crds: Vec<String> = Vec::new();
        for entry in fs::read_dir(workspace().join("deploy/crds")).expect("the definitions").flatten() {
            let name = entry.file_name().into_string().expect("a name");
            if name.ends_with(".yaml") {
                crds.push(format!("deploy/crds/{name}"));
            }
        }
        kube.apply(&files(&crds.iter().map(String::as_str).collect::<Vec<_>>()));
        kube.apply(&(role() + &namespace("blue") + &namespace("red")));
        let account = kube.service_account("kube-system", "weft-page");
        let bind = "create clusterrolebinding weft-page --clusterrole=weft-page --serviceaccount=kube-system:weft-page";
        kube.kubectl(bind.split(' '));
        kube.wait_until_served();
        machine.run(["ip", "address", "replace", "192.0.2.1/32", "dev", "lo"]);
        PageCluster { kube, machine, account }
    }

    /// Serves the page at an address.
    pub(crate) fn start(&self, address: &str) {
        let program = testkit::binary("weft");
        let words = ["controller", "--page", address, "--listen", HEALTH, "--kubeconfig", &self.account];
        self.machine.start(PAGE, [text(&program)].into_iter().chain(words));
        self.machine.wait(PAGE, "is ready", || {
            let asked = self.machine.attempt(["curl", "-sf", &format!("http://{HEALTH}/readyz")]);
            asked.code.filter(|code| *code == 0)
        });
    }

    /// Value of a metric on the page.
    pub(crate) fn metric(&self, name: &str) -> u64 {
        let page = self.machine.attempt(["curl", "-s", &format!("http://{HEALTH}/metrics")]).stdout;
        let found = page.lines().find_map(|line| line.strip_prefix(name));
        found.and_then(|text| text.trim().parse().ok()).expect("a metric")
    }

    /// Resident memory of the page, in kB.
    pub(crate) fn memory(&self) -> u64 {
        let pid = self.machine.run(["cat", "/run/services/page.pid"]);
        let status = self.machine.run(["cat", &format!("/proc/{}/status", pid.trim())]);
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a field");
        line.split_whitespace().next().expect("a number").parse().expect("a number")
    }

    /// Sends a request with `curl` and these further words.
    pub(crate) fn ask(&self, address: &str, path: &str, words: &[&str]) -> Answer {
        let url = format!("http://{address}{path}");
        let line = ["curl", "-s", "-i", "--path-as-is", "--max-time", "3", &url];
        let finished = self.machine.attempt(line.into_iter().chain(words.iter().copied()));
        let (head, body) = finished.stdout.split_once("\r\n\r\n").unwrap_or((&finished.stdout, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_default();
        Answer { status, headers: head.to_lowercase(), body: body.to_owned() }
    }

    /// Reads the stream for three seconds. `token` is sent if it is not empty.
    pub(crate) fn stream(&self, address: &str, token: &str) -> Answer {
        let header = format!("Authorization: Bearer {token}");
        let words: &[&str] = if token.is_empty() { &[] } else { &["-N", "-H", &header] };
        self.ask(address, "/api/stream", words)
    }

    /// Creates a service account that may list resources in a namespace, or in all of them if it is empty. Returns the
    /// token.
    pub(crate) fn viewer(&self, name: &str, within: &str, resources: &str) -> String {
        self.kube.service_account("default", name);
        if !resources.is_empty() {
            let of = format!("--resource={resources}");
            self.kube.kubectl(["create", "clusterrole", name, "--verb=list", &of]);
            let account = format!("--serviceaccount=default:{name}");
            let role = format!("--clusterrole={name}");
            if within.is_empty() {
                self.kube.kubectl(["create", "clusterrolebinding", name, &role, &account]);
            } else {
                self.kube.kubectl(["create", "rolebinding", name, "-n", within, &role, &account]);
            }
        }
        self.kube.token("default", name)
    }

    /// Creates networks and pods: each pod has two networks of `blue` or `red`.
    pub(crate) fn fill(&self, networks: usize, pods: usize) {
        let definitions = (0..networks).map(|number| definition("blue", &format!("net-{number:02}"), number));
        self.apply_all(&definitions.collect::<Vec<_>>());
        let all = (0..pods).map(|number| {
            let namespace = if number % 4 == 3 { "red" } else { "blue" };
            let own = [number % networks, (number * 7 + 1) % networks];
            let networks = own.map(|network| format!("blue/net-{network:02}"));
            pod(
                namespace,
                &format!("pod-{number:04}"),
                &format!("worker-{:02}", number % 20),
                &networks,
                number,
            )
        });
        let all: Vec<Value> = all.collect();
        // kubectl creates one after the other, so four of them share the work. Each call has a deadline, which 250 pods keep on
        // a slow machine, too.
        for part in all.chunks(1000) {
            std::thread::scope(|scope| {
                for items in part.chunks(250) {
                    scope.spawn(|| self.apply_all(items));
                }
            });
        }
    }

    pub(crate) fn apply_all(&self, items: &[Value]) {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
        self.kube.attempt(["create", "--validate=false", "-f", "-"], &list.to_string()).success();
    }

    /// Sets a pod's phase, as the kubelet does.
    pub(crate) fn run_pod(&self, namespace: &str, name: &str) {
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/status");
        let mut pod = self.kube.json(["pod", "-n", namespace, name]);
        pod["status"] = json!({ "phase": "Running" });
        self.kube.attempt(["replace", "--raw", &path, "-f", "-"], &pod.to_string()).success();
    }
}

impl Answer {
    /// Rows that the stream set, by table.
    pub(crate) fn rows(&self, table: &str) -> Vec<Value> {
        let messages =
            self.body.split("\n\n").filter_map(|message| message.strip_prefix("event: rows\ndata: "));
        let sets = messages.map(|data| serde_json::from_str::<Value>(data).expect("JSON"));
        sets.flat_map(|data| data["set"][table].as_array().cloned().unwrap_or_default()).collect()
    }

    /// Data in the first event with this name.
    pub(crate) fn event(&self, name: &str) -> Option<Value> {
        let prefix = format!("event: {name}\ndata: ");
        let data = self.body.split("\n\n").find_map(|message| message.strip_prefix(&prefix))?;
        serde_json::from_str(data).ok()
    }
}

/// Role of the page, as the chart has it.
fn role() -> String {
    let chart =
        fs::read_to_string(workspace().join("deploy/helm/weft/templates/page.yaml")).expect("the template");
    let (_, after) = chart.split_once("\nrules:\n").expect("rules");
    let (rules, _) = after.split_once("\n---\n").expect("the end of the role");
    format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata:\n  name: weft-page\nrules:\n{rules}\n"
    )
}

pub(crate) fn definition(namespace: &str, name: &str, number: usize) -> Value {
    let range = format!("10.{}.0.0/16", 10 + number);
    let ipam = if number.is_multiple_of(3) {
        json!({ "type": "weft-ipam", "range": range })
    } else {
        json!({ "type": "host-local", "ranges": [[{ "subnet": range }]] })
    };
    let kind = ["bridge", "macvlan", "ipvlan", "vlan"][number % 4];
    let plugins = json!([{ "type": kind, "ipam": ipam }, { "type": "tuning", "mtu": 1400 }]);
    let config = json!({ "cniVersion": "1.0.0", "name": name, "plugins": plugins });
    json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": name, "namespace": namespace }, "spec": { "config": config.to_string() },
    })
}

pub(crate) fn pod(namespace: &str, name: &str, node: &str, networks: &[String], number: usize) -> Value {
    let home = json!({ "name": "home", "interface": "eth0", "default": true,
        "ips": [format!("10.244.{}.{}", number / 250, number % 250 + 2)], "mac": "02:42:00:00:00:01" });
    let further = networks.iter().enumerate().map(|(place, network)| {
        json!({ "name": network, "interface": format!("net{}", place + 1), "mtu": 1400,
            "ips": [format!("10.{}.{}.{}", 10 + place, number / 250, number % 250 + 2)], "mac": "02:42:00:00:01:02" })
    });
    let status: Vec<Value> = std::iter::once(home).chain(further).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": namespace,
            "annotations": { NETWORKS: networks.join(","), STATUS: json!(status).to_string() } },
        "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "none" }] },
    })
}

/// Event as weft publishes it.
pub(crate) fn event(namespace: &str, pod: &str, kind: &str, reason: &str, note: &str) -> Value {
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": { "name": format!("{pod}.{}", reason.to_lowercase()), "namespace": namespace },
        "eventTime": "2026-11-26T03:00:00.000000Z", "reportingController": "weft", "reportingInstance": "worker-01",
        "type": kind, "reason": reason, "action": "Attach", "note": note,
        "regarding": { "apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": pod },
    })
}

/// Report of a node.
pub(crate) fn node(name: &str, failed: u64, pod: &str) -> Value {
    let time = "2026-11-26T03:00:00Z";
    let mut node = json!({
        "apiVersion": "weft.dev/v1alpha1", "kind": "WeftNode", "metadata": { "name": name },
        "spec": {}, "status": { "reportedAt": time, "version": "0.1.0", "commit": "abcdef123456", "plugin": "Current",
            "defaultNetwork": "home", "sandboxes": 100, "incompleteSandboxes": 0, "failedCalls": failed,
            "pools": [{ "name": "10.10.0.0-16", "held": 40, "free": 24 }] },
    });
    if failed > 0 {
        node["status"]["lastFailure"] =
            json!({ "time": time, "verb": "ADD", "pod": pod, "message": "no such interface" });
    }
    node
}

/// Pool with counts, and blocks on nodes.
pub(crate) fn pool(kube: &Kube, range: &str, used: u64, leased: u64) {
    let name = range.replace('/', "-");
    let pool = json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "IPPool", "metadata": { "name": name }, "spec": { "range": range } });
    kube.apply(&pool.to_string());
    let mut pool = kube.json(["ippool", &name]);
    pool["status"] = json!({ "addresses": "65536", "blocks": "1024", "leasedBlocks": leased, "singleAddresses": 0,
        "nodes": 8, "usedAddresses": used, "leasedPercent": leased * 100 / 1024 });
    let path = format!("/apis/weft.dev/v1alpha1/ippools/{name}/status");
    kube.attempt(["replace", "--raw", &path, "-f", "-"], &pool.to_string()).success();
    let block = |number: u64| {
        json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "IPBlock",
            "metadata": { "name": format!("{name}.{number}") },
            "spec": { "pool": name, "range": format!("10.10.{number}.0/26"), "node": format!("worker-{:02}", number % 8) } })
    };
    let blocks: Vec<Value> = (0..leased.min(40)).map(block).collect();
    kube.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": blocks }).to_string());
}
