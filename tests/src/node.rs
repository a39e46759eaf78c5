//! Complete Kubernetes cluster with one or two nodes: etcd, API server, controllers, scheduler, and for each node a
//! kubelet and containerd; see `lanes/node/prepare`.
//!
//! ```text
//!   outside ── up0 192.0.2.2 ─┬─ up0 192.0.2.1 ── node: pods, API server 6443, kubelet 10250
//!                             └─ up0 192.0.2.3 ── node-2: pods, kubelet 10250 ([`Node::join`])
//! ```
//!
//! - The real machine is not changed: sysctls that a kubelet writes go to files mounted over them, and other files are
//!   in memory.
//! - All protection stays on: control groups for each pod, RBAC, the Node authorizer, service accounts, probes, exec.
//! - There is no kube-proxy and no DNS. The only Service is `kubernetes`; one rule lets pods reach the API server.
//! - The API server can also be reached at port 6443 on the second node, because the test forwards those connections.
//!
//! - The kubelet of a Kubernetes that needs containerd 2 gets it, whatever release the other lanes use.
//!
//! Source: kubelet 1.20 and 1.36 `cmd/kubelet/app/server.go`; kube-controller-manager(8), kube-scheduler(8).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{Finished, Host, Pod};

use crate::containerd::{self, Containerd, NETWORKS};
use crate::kube::{self, Accounts, Kube};
use crate::links;
use crate::machine::{CONFIGURATIONS, Machine};
use crate::parts::{parts, text};
use crate::traffic::{self, OUTSIDE, UPLINK};

/// Node name.
pub const NAME: &str = "node";
/// Maximum time for any node or pod change, because a kubelet works in intervals of ten seconds and more.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Directory for the kubelet's static pods.
pub const STATIC_PODS: &str = "/etc/weft-test/static-pods";

/// Sysctls that a kubelet requires, with values.
const KERNEL: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Rules for the Service `kubernetes`, in place of kube-proxy; `ADDRESS` stands for the node's address.
const SERVICE: &str = "table ip kubernetes {
    chain prerouting { type nat hook prerouting priority -100; ip daddr 10.96.0.1 tcp dport 443 dnat to ADDRESS:6443; }
    chain output { type nat hook output priority -100; ip daddr 10.96.0.1 tcp dport 443 dnat to ADDRESS:6443; }
}";

/// Node name, address and certificate.
#[derive(Debug)]
struct NodeIdentity {
    name: &'static str,
    address: &'static str,
    /// Name of the kubelet's certificate, which `lanes/kube/prepare` issued for this name and address.
    certificate: &'static str,
}

/// Node that every cluster has.
const FIRST: NodeIdentity = NodeIdentity { name: NAME, address: UPLINK[0], certificate: "kubelet" };
/// Node that joins.
const SECOND: NodeIdentity = NodeIdentity { name: "node-2", address: "192.0.2.3", certificate: "kubelet-2" };

/// Cluster node. The first one also runs the control plane.
#[derive(Debug)]
pub struct Node {
    identity: NodeIdentity,
    kube: Kube,
    containerd: Containerd,
    outside: Arc<Pod>,
    /// Runtime socket that the kubelet uses.
    runtime: String,
}

// === impl Node ===

impl Node {
    /// Starts a cluster on `host` without a pod network. If the lane was not prepared, the test is skipped and the
    /// result is `None`.
    ///
    /// # Panics
    /// The cluster does not start.
    #[must_use]
    #[track_caller]
    pub fn new(host: Host) -> Option<Node> {
        let outside = Arc::new(traffic::outside(&host));
        let containerd = Node::start_runtime(host, &FIRST)?;
        let kube = Kube::prepare(containerd.machine(), Accounts::Required)?;
        let runtime = containerd::SOCKET.to_owned();
        let node = Node { identity: FIRST, kube, containerd, outside, runtime };
        node.launch();
        node.until_registered();
        node.until_service_account_exists("default");
        Some(node)
    }

    /// Starts a second node for this cluster, `node-2`, on another host.
    ///
    /// # Panics
    /// The node does not start, or the lane was prepared without the node's certificate.
    #[must_use]
    #[track_caller]
    pub fn join(&self, host: Host) -> Option<Node> {
        let pki = PathBuf::from(self.kube.pki(""));
        if let Some(missing) = missing_certificate(&pki, SECOND.certificate) {
            panic!("{missing}");
        }
        traffic::connect(&self.outside, &host, SECOND.address);
        let containerd = Node::start_runtime(host, &SECOND)?;
        let kube = self.kube.reached_from(&containerd.machine());
        let (outside, runtime) = (Arc::clone(&self.outside), containerd::SOCKET.to_owned());
        let node = Node { identity: SECOND, kube, containerd, outside, runtime };
        node.launch();
        node.until_registered();
        Some(node)
    }

    /// Starts a node's container runtime, with the lane's images.
    #[track_caller]
    fn start_runtime(host: Host, identity: &NodeIdentity) -> Option<Containerd> {
        let images = parts("node")?;
        let NodeIdentity { name, address, certificate: _ } = identity;
        // There is no DNS server, so a lookup would wait for seconds.
        host.run(["rm", "-f", "/etc/resolv.conf", "/etc/hosts"]);
        host.write("/etc/resolv.conf", "");
        host.write("/etc/hosts", format!("127.0.0.1 localhost\n{address} {name}\n"));
        let containerd = Containerd::for_kubelet(host, name, kube::minor()?)?;
        containerd.import(text(&images.join("busybox.tar")));
        Some(containerd)
    }

    /// Returns the node name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.identity.name
    }

    #[track_caller]
    fn until_registered(&self) {
        self.until("the node is registered", || self.condition("Ready").map(|_| ()));
    }

    /// Starts all Kubernetes programs.
    #[track_caller]
    fn launch(&self) {
        self.run(["ip", "route", "replace", "default", "via", OUTSIDE[0]]);
        let service = SERVICE.replace("ADDRESS", self.identity.address);
        self.command("nft").args(["-f", "-"]).stdin(service).finish().success();
        self.shield_kernel();
        // Started first: it waits for the server, but its own start takes seconds.
        self.launch_kubelet();
        if self.identity.name == FIRST.name {
            self.kube.launch();
            self.kube.wait();
            self.launch_controllers();
        }
    }

    /// Reboots the node.
    #[track_caller]
    pub fn reboot(&self) {
        self.machine().reboot();
        self.containerd.launch();
        self.launch();
    }

    /// Mounts files with the required values over the sysctls that a kubelet would change on the real machine.
    fn shield_kernel(&self) {
        for (name, value) in KERNEL {
            let file = format!("{CONFIGURATIONS}/{}", name.replace('/', "."));
            self.write(&file, value);
            self.machine().run(["mount", "--bind", &file, &format!("/proc/sys/{name}")]);
        }
    }

    #[track_caller]
    fn launch_kubelet(&self) {
        let (kube, NodeIdentity { name, address, certificate }) = (&self.kube, &self.identity);
        let kubeconfig = kube.kubeconfig_for_certificate(certificate);
        let mut configuration = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": address,
            "tlsCertFile": kube.pki(&format!("{certificate}.crt")),
            "tlsPrivateKeyFile": kube.pki(&format!("{certificate}.key")),
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
            // The defaults are five requests a second and a status update every ten seconds.
            "nodeStatusUpdateFrequency": "1s",
            "kubeAPIQPS": 200,
            "kubeAPIBurst": 400,
            "eventRecordQPS": 200,
            "eventBurst": 400,
            // A deleted image could not be pulled again, because there is no registry.
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
            format!("--hostname-override={name}"),
            format!("--node-ip={address}"),
            "--oom-score-adj=0".to_owned(),
            "--volume-plugin-dir=/var/lib/kubelet/volume-plugins".to_owned(),
        ];
        if kube.minor() < 27 {
            words.push("--container-runtime=remote".to_owned());
            words.push(format!("--container-runtime-endpoint={endpoint}"));
            words.push(format!("--pod-infra-container-image={}", containerd::PAUSE));
        } else {
            configuration["containerRuntimeEndpoint"] = endpoint.into();
            // The real machine may only have cgroup v1.
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
            // Every controller must use its own account; otherwise it may not remove a node's taints.
            "--use-service-account-credentials=true".to_owned(),
            "--node-monitor-period=1s".to_owned(),
        ];
        self.machine().start(name, words.iter().map(String::as_str).chain(speed));
        let name = "kube-scheduler";
        let words = [kube.program(name), format!("--kubeconfig={}", kube.kubeconfig_for_certificate(name))];
        self.machine().start(name, words.iter().map(String::as_str).chain(speed));
    }

    /// Returns the cluster's API server.
    #[must_use]
    pub fn kube(&self) -> &Kube {
        &self.kube
    }

    /// Returns the node's container runtime.
    #[must_use]
    pub fn containerd(&self) -> &Containerd {
        &self.containerd
    }

    /// Returns the outside world.
    #[must_use]
    pub fn outside(&self) -> &Pod {
        &self.outside
    }

    /// Returns the machine that is the node.
    #[must_use]
    pub fn machine(&self) -> Arc<Machine> {
        self.containerd.machine()
    }

    /// Kills the kubelet and starts it again.
    #[track_caller]
    pub fn restart_kubelet(&self) {
        self.machine().stop("kubelet", "KILL");
        self.launch_kubelet();
    }

    /// Restarts the kubelet with another runtime socket, which it keeps from now on.
    #[track_caller]
    pub fn set_kubelet_runtime(&mut self, socket: &str) {
        socket.clone_into(&mut self.runtime);
        self.restart_kubelet();
    }

    /// Returns a node condition: whether it is true, and the message.
    #[must_use]
    pub fn condition(&self, kind: &str) -> Option<(bool, String)> {
        let finished = self.kube.attempt(["get", "node", self.identity.name, "-o", "json"], "");
        let node: Value = (finished.code == Some(0)).then(|| finished.json())?;
        let conditions = node["status"]["conditions"].as_array()?;
        let condition = conditions.iter().find(|condition| condition["type"] == kind)?;
        Some((condition["status"] == "True", condition["message"].as_str().unwrap_or_default().to_owned()))
    }

    /// Waits until the node is ready, or not ready.
    #[track_caller]
    pub fn until_ready(&self, wanted: bool) {
        let condition = if wanted { "the node is ready" } else { "the node is not ready" };
        self.until(condition, || self.condition("Ready").filter(|(holds, _)| *holds == wanted).map(|_| ()));
    }

    /// Waits until a namespace's service account exists, because pods are rejected before that.
    #[track_caller]
    pub fn until_service_account_exists(&self, namespace: &str) {
        let account = ["get", "serviceaccount", "default", "-n", namespace];
        self.until("the service account exists", || self.quiet(account));
    }

    /// Waits until pods are ready; `words` are additional arguments for `kubectl wait`.
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

    /// Returns a pod's interfaces and addresses, as a program in the pod sees them.
    #[must_use]
    #[track_caller]
    pub fn addresses(&self, namespace: &str, pod: &str) -> Vec<(String, String)> {
        let output = self.exec(namespace, pod, ["ip", "-o", "-4", "address"]).success().stdout;
        let lines = output.lines().filter_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let (link, address) = (words.next()?, words.nth(1)?.split('/').next()?);
            (link != "lo").then(|| (link.to_owned(), address.to_owned()))
        });
        lines.collect()
    }

    /// Fails unless a program in one pod can ping every address of another pod.
    #[track_caller]
    pub fn assert_pings(&self, namespace: &str, from: &str, to: &str) {
        for (link, address) in self.addresses(namespace, to) {
            let finished = self.exec(namespace, from, ["ping", "-c", "2", "-W", "2", &address]);
            assert!(finished.code == Some(0), "{from} does not reach {link} of {to}: {finished}");
        }
    }

    /// Waits until no pod outside the host network runs. A kubelet stops unwanted pods immediately, but removes them
    /// only a minute later.
    #[track_caller]
    pub fn until_no_pod_runs(&self) {
        self.until("no pod runs", || links(self).iter().all(|link| !link.contains("veth")).then_some(()));
        // Links are deleted first, then weft's journal entries, then the runtime's cache.
        self.until("no journal entry and no cached result remains", || {
            let known = "ls /var/lib/weft/sandboxes /var/lib/cni/results 2>/dev/null | grep -cE '[.]json$|-eth0$' || true";
            (self.run(["sh", "-c", known]).trim() == "0").then_some(())
        });
    }

    fn quiet<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Option<()> {
        (self.kube.attempt(words, "").code == Some(0)).then_some(())
    }

    /// Waits until `look` returns a value.
    ///
    /// # Panics
    /// At the timeout, with pods, Events and the kubelet's last errors.
    #[track_caller]
    pub fn until<T>(&self, condition: &str, mut look: impl FnMut() -> Option<T>) -> T {
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
                panic!("{condition}: not after {TIMEOUT:?}\n{pods}\n{events}\n{errors}");
            }
            sleep(Duration::from_millis(200));
        }
    }

    /// Removes the pod network's configuration.
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

/// Returns why a kubelet cannot start if certificate or key is missing: it would exit, and the node would not register.
fn missing_certificate(pki: &Path, name: &str) -> Option<String> {
    let mut files = ["crt", "key"].into_iter().map(|end| pki.join(format!("{name}.{end}")));
    let missing = files.find(|file| !file.exists())?;
    Some(format!("{} is not there: run `lanes/kube/prepare`, which issues it", missing.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn node_without_a_certificate_names_the_program_that_issues_it() {
        let pki = std::env::temp_dir().join(format!("weft-node-pki-{}", std::process::id()));
        fs::create_dir_all(&pki).unwrap();
        for missing in ["kubelet-2.crt", "kubelet-2.key"] {
            let why = missing_certificate(&pki, SECOND.certificate).unwrap();
            assert!(why.contains(missing) && why.contains("lanes/kube/prepare"), "{why}");
            fs::write(pki.join(missing), "").unwrap();
        }
        assert_eq!(missing_certificate(&pki, SECOND.certificate), None);
        fs::remove_dir_all(&pki).unwrap();
    }
}
