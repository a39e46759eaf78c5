//! A whole Kubernetes of one node: etcd, API server, controllers, scheduler, kubelet, containerd; see
//! `lanes/node/prepare`.
//!
//! ```text
//!   outside ── up0 192.0.2.2 ── up0 192.0.2.1 ── node: pods, API server 6443, kubelet 10250
//! ```
//!
//! Rules: nothing of the machine is changed: what a kubelet writes into its kernel goes to files laid over it; what
//! it writes elsewhere is in memory. No privilege is switched off: control groups per pod, RBAC and the Node
//! authorizer, service accounts, probes, exec.
//!
//! There is no kube-proxy and no DNS. Of Services there is `kubernetes`, by one rule: pods reach the API server.
//!
//! Source: kubelet 1.20 and 1.36 `cmd/kubelet/app/server.go`; kube-controller-manager(8), kube-scheduler(8).

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{Finished, Host, Pod, Snapshot};

use crate::containerd::{self, Containerd, NETWORKS};
use crate::kube::{Accounts, Kube};
use crate::links;
use crate::machine::{CONFIGURATIONS, Machine};
use crate::parts::{parts, text};
use crate::traffic::{self, OUTSIDE, UPLINK};

/// The node's name.
pub const NAME: &str = "node";
/// How long a change of a node or a pod may take: a kubelet has clocks of ten seconds and more.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Where the kubelet reads pods that no API server has told it of.
pub const STATIC_PODS: &str = "/etc/weft-test/static-pods";

/// What a kubelet sets in the kernel of its node, or refuses to start.
const KERNEL: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// The Service `kubernetes`, without kube-proxy.
const SERVICE: &str = "table ip kubernetes {
    chain prerouting { type nat hook prerouting priority -100; ip daddr 10.96.0.1 tcp dport 443 dnat to 192.0.2.1:6443; }
    chain output { type nat hook output priority -100; ip daddr 10.96.0.1 tcp dport 443 dnat to 192.0.2.1:6443; }
}";

/// A cluster of one node.
#[derive(Debug)]
pub struct Node {
    kube: Kube,
    containerd: Containerd,
    outside: Pod,
    /// The socket that the kubelet finds its runtime at.
    runtime: String,
}

// === impl Node ===

impl Node {
    /// Starts one on `host`, with no network yet; nothing, and the test is skipped, if the lane was not made ready.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    #[track_caller]
    pub fn new(host: Host) -> Option<Node> {
        let images = parts("node")?;
        let outside = traffic::outside(&host);
        // Nobody answers names here, and waiting for that takes seconds.
        host.run(["rm", "-f", "/etc/resolv.conf", "/etc/hosts"]);
        host.write("/etc/resolv.conf", "");
        host.write("/etc/hosts", format!("127.0.0.1 localhost\n{} {NAME}\n", UPLINK[0]));
        let containerd = Containerd::new(host)?;
        let kube = Kube::prepare(containerd.machine(), Accounts::Required)?;
        let node = Node { kube, containerd, outside, runtime: containerd::SOCKET.to_owned() };
        node.containerd.import(text(&images.join("busybox.tar")));
        node.launch();
        node.until("the node is registered", || node.condition("Ready").map(|_| ()));
        node.until_service_account_exists("default");
        Some(node)
    }

    /// Starts all of Kubernetes.
    #[track_caller]
    fn launch(&self) {
        self.run(["ip", "route", "replace", "default", "via", OUTSIDE[0]]);
        self.command("nft").args(["-f", "-"]).stdin(SERVICE).finish().success();
        self.shield_kernel();
        // First: it waits for the server, but spends its first seconds on itself.
        self.launch_kubelet();
        self.kube.launch();
        self.kube.wait();
        self.launch_controllers();
    }

    /// The node loses power and is started again.
    #[track_caller]
    pub fn reboot(&self) {
        self.machine().reboot();
        self.containerd.launch();
        self.launch();
    }

    /// Files over what a kubelet would change on the whole machine: they say what it wants to see.
    fn shield_kernel(&self) {
        for (name, value) in KERNEL {
            let file = format!("{CONFIGURATIONS}/{}", name.replace('/', "."));
            self.write(&file, value);
            self.machine().run(["mount", "--bind", &file, &format!("/proc/sys/{name}")]);
        }
    }

    #[track_caller]
    fn launch_kubelet(&self) {
        let kube = &self.kube;
        let kubeconfig = kube.kubeconfig_for_certificate("kubelet");
        let mut configuration = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": UPLINK[0],
            "tlsCertFile": kube.pki("kubelet.crt"),
            "tlsPrivateKeyFile": kube.pki("kubelet.key"),
            "authentication": { "anonymous": { "enabled": false }, "x509": { "clientCAFile": kube.pki("ca.crt") } },
            "authorization": { "mode": "Webhook" },
            "cgroupDriver": "cgroupfs",
            "staticPodPath": STATIC_PODS,
            "cgroupRoot": self.machine().group(),
            "failSwapOn": false,
            "makeIPTablesUtilChains": false,
            "hairpinMode": "none",
            "clusterDomain": "cluster.local",
            "clusterDNS": ["10.96.0.10"],
            "resolvConf": "",
            "maxOpenFiles": 4096,
            // By itself it speaks five times a second at most, and looks every ten seconds.
            "nodeStatusUpdateFrequency": "1s",
            "kubeAPIQPS": 200,
            "kubeAPIBurst": 400,
            "eventRecordQPS": 200,
            "eventBurst": 400,
            // No registry can give back an image that it takes away.
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "evictionHard": { "memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%" },
            "volumeStatsAggPeriod": "-1s",
        });
        let endpoint = format!("unix://{}", self.runtime);
        let mut words = vec![
            kube.program("kubelet"),
            format!("--kubeconfig={kubeconfig}"),
            format!("--config={CONFIGURATIONS}/kubelet.json"),
            format!("--hostname-override={NAME}"),
            format!("--node-ip={}", UPLINK[0]),
            "--oom-score-adj=0".to_owned(),
            "--volume-plugin-dir=/var/lib/kubelet/volume-plugins".to_owned(),
        ];
        if kube.minor() < 27 {
            words.push("--container-runtime=remote".to_owned());
            words.push(format!("--container-runtime-endpoint={endpoint}"));
            words.push(format!("--pod-infra-container-image={}", containerd::PAUSE));
        } else {
            configuration["containerRuntimeEndpoint"] = endpoint.into();
            // This machine may have no other control groups than the old ones.
            configuration["failCgroupV1"] = false.into();
        }
        self.write(format!("{CONFIGURATIONS}/kubelet.json"), configuration.to_string());
        self.run(["mkdir", "-p", STATIC_PODS]);
        self.machine().make_group();
        let path = self.containerd.path();
        self.machine().start("kubelet", ["env", &path].into_iter().chain(words.iter().map(String::as_str)));
    }

    #[track_caller]
    fn launch_controllers(&self) {
        let kube = &self.kube;
        let speed =
            ["--leader-elect=false", "--kube-api-qps=200", "--kube-api-burst=400", "--profiling=false"];
        let name = "kube-controller-manager";
        let words = [
            kube.program(name),
            format!("--kubeconfig={}", kube.kubeconfig_for_certificate(name)),
            format!("--service-account-private-key-file={}", kube.pki("accounts.key")),
            format!("--root-ca-file={}", kube.pki("ca.crt")),
            // Each controller with its own rights, or it may not take a node's taints away.
            "--use-service-account-credentials=true".to_owned(),
            "--node-monitor-period=1s".to_owned(),
        ];
        self.machine().start(name, words.iter().map(String::as_str).chain(speed));
        let name = "kube-scheduler";
        let words = [kube.program(name), format!("--kubeconfig={}", kube.kubeconfig_for_certificate(name))];
        self.machine().start(name, words.iter().map(String::as_str).chain(speed));
    }

    /// Its API.
    #[must_use]
    pub fn kube(&self) -> &Kube {
        &self.kube
    }

    /// Its runtime.
    #[must_use]
    pub fn containerd(&self) -> &Containerd {
        &self.containerd
    }

    /// What is beyond the node.
    #[must_use]
    pub fn outside(&self) -> &Pod {
        &self.outside
    }

    /// The machine that it runs on.
    #[must_use]
    pub fn machine(&self) -> Arc<Machine> {
        self.containerd.machine()
    }

    /// Kills a program of it and starts it again.
    #[track_caller]
    pub fn restart_kubelet(&self) {
        self.machine().stop("kubelet", "KILL");
        self.launch_kubelet();
    }

    /// The kubelet is started again, and finds its runtime at this socket from now on.
    #[track_caller]
    pub fn set_kubelet_runtime(&mut self, socket: &str) {
        socket.clone_into(&mut self.runtime);
        self.restart_kubelet();
    }

    /// The node's condition of that kind: whether it holds, and the message.
    #[must_use]
    pub fn condition(&self, kind: &str) -> Option<(bool, String)> {
        let finished = self.kube.attempt(["get", "node", NAME, "-o", "json"], "");
        let node: Value = (finished.code == Some(0)).then(|| finished.json())?;
        let conditions = node["status"]["conditions"].as_array()?;
        let condition = conditions.iter().find(|condition| condition["type"] == kind)?;
        Some((condition["status"] == "True", condition["message"].as_str().unwrap_or_default().to_owned()))
    }

    /// Waits until the node is ready, or is not.
    #[track_caller]
    pub fn until_ready(&self, wanted: bool) {
        let what = if wanted { "the node is ready" } else { "the node is not ready" };
        self.until(what, || self.condition("Ready").filter(|(holds, _)| *holds == wanted).map(|_| ()));
    }

    /// Waits until a namespace has its service account: without it, pods are refused.
    #[track_caller]
    pub fn until_service_account_exists(&self, namespace: &str) {
        let account = ["get", "serviceaccount", "default", "-n", namespace];
        self.until("pods can be made", || self.quiet(account));
    }

    /// Waits until pods are ready: `kubectl wait` with these words.
    #[track_caller]
    pub fn until_pods_ready<'a>(&self, words: impl IntoIterator<Item = &'a str>) {
        let words: Vec<&str> =
            ["wait", "--for=condition=Ready", "--timeout=1s", "pod"].into_iter().chain(words).collect();
        self.until(&format!("{words:?}"), || self.quiet(words.iter().copied()));
    }

    /// Runs a program in a pod's first container.
    #[track_caller]
    pub fn exec<'a>(
        &self,
        namespace: &'a str,
        pod: &'a str,
        line: impl IntoIterator<Item = &'a str>,
    ) -> Finished {
        let words = ["exec", "-n", namespace, pod, "--"].into_iter().chain(line);
        self.kube.attempt(words, "")
    }

    /// The addresses of a pod's interfaces as a program in it sees them: interface and address.
    #[must_use]
    #[track_caller]
    pub fn addresses(&self, namespace: &str, pod: &str) -> Vec<(String, String)> {
        let told = self.exec(namespace, pod, ["ip", "-o", "-4", "address"]).success().stdout;
        let lines = told.lines().filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let (link, address) = (words.next()?, words.nth(1)?.split('/').next()?);
            (link != "lo").then(|| (link.to_owned(), address.to_owned()))
        });
        lines.collect()
    }

    /// Fails unless a program in one pod reaches another pod by every one of its addresses.
    #[track_caller]
    pub fn assert_pings(&self, namespace: &str, from: &str, to: &str) {
        for (link, address) in self.addresses(namespace, to) {
            let finished = self.exec(namespace, from, ["ping", "-c", "2", "-W", "2", &address]);
            assert!(finished.code == Some(0), "{from} does not reach {link} of {to}: {finished}");
        }
    }

    /// Waits until no pod that has a network of its own runs. A kubelet stops what it does not want any more at
    /// once, and forgets it a minute later.
    #[track_caller]
    pub fn until_no_pod_runs(&self) {
        self.until("no pod runs", || links(self).iter().all(|link| !link.contains("veth")).then_some(()));
        // Links go first: after them our journal, then the runtime's cache.
        self.until("nobody knows of one", || {
            let known = "ls /var/lib/weft/sandboxes /var/lib/cni/results 2>/dev/null | grep -cE '[.]json$|-eth0$' || true";
            (self.run(["sh", "-c", known]).trim() == "0").then_some(())
        });
    }

    /// Waits until the node is as it was: a kubelet takes its time to notice what it has to take down.
    ///
    /// # Panics
    /// If it is not, with the difference.
    #[track_caller]
    pub fn until_unchanged(&self, what: &str, before: &Snapshot) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let changes = crate::changes(before, &self.snapshot());
            if changes.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "{what}: the node is not as it was:\n{changes}");
            sleep(Duration::from_millis(200));
        }
    }

    fn quiet<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Option<()> {
        (self.kube.attempt(words, "").code == Some(0)).then_some(())
    }

    /// Waits for something.
    ///
    /// # Panics
    /// If it takes too long, with what the cluster says about pods, and what the kubelet complained of last.
    #[track_caller]
    pub fn until<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(found) = look() {
                return found;
            }
            if Instant::now() > deadline {
                let pods = self.kube.attempt(["get", "pods", "-A", "-o", "wide"], "").stdout;
                let events = self.kube.attempt(["get", "events", "-A"], "").stdout;
                let log = self.machine().log("kubelet");
                let errors: Vec<&str> = log.lines().filter(|line| line.starts_with('E')).collect();
                let errors = errors[errors.len().saturating_sub(15)..].join("\n");
                panic!("{what}: not after {TIMEOUT:?}\n{pods}\n{events}\n{errors}");
            }
            sleep(Duration::from_millis(200));
        }
    }

    /// Takes the network's configuration away.
    #[track_caller]
    pub fn unconfigure(&self) {
        self.run(["rm", &format!("{NETWORKS}/00-weft.conflist")]);
    }
}

impl std::ops::Deref for Node {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.containerd
    }
}
