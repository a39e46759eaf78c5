//! `weft cri-proxy` in front of a real containerd.
//!
//! ```text
//!   the test ── CRI ── weft cri-proxy ── CRI ── containerd ── CNI ── weft
//! ```

use std::collections::BTreeMap;
use std::ops::Deref;
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};
use testkit::{Finished, Host};

use crate::containerd::{self, Containerd};
use crate::cri::{Cri, PodSandboxConfig, PodSandboxNetworkConfig};
use crate::parts::{parts, text};

/// Proxy socket.
pub const SOCKET: &str = "/run/weft/cri.sock";
/// Directory in which the runtime finds the proxy's conflist.
pub const RUNTIME_NETWORKS: &str = "/etc/cni/weft";
const SERVICE: &str = "cri-proxy";

/// Machine with a runtime, and a proxy in front of it.
#[derive(Debug)]
pub struct Proxy {
    node: Containerd,
    words: Vec<&'static str>,
}

// === impl Proxy ===

impl Proxy {
    /// Starts the proxy in front of a runtime.
    #[must_use]
    #[track_caller]
    pub fn before(node: Containerd) -> Proxy {
        Proxy::with(node, &[])
    }

    /// Starts runtime and proxy; the proxy manages networks but has none yet.
    #[must_use]
    #[track_caller]
    pub fn with_networks(host: Host) -> Option<Proxy> {
        let node = Containerd::with_network_directory(host, RUNTIME_NETWORKS)?;
        Some(Proxy::with_plugins_on(node))
    }

    /// Starts containerd 2.x and a proxy that manages networks.
    #[must_use]
    #[track_caller]
    pub fn with_networks_on_newest(host: Host) -> Option<Proxy> {
        let node = Containerd::newest(host, RUNTIME_NETWORKS)?;
        Some(Proxy::with_plugins_on(node))
    }

    #[track_caller]
    fn with_plugins_on(node: Containerd) -> Proxy {
        crate::install(&node);
        node.install(&testkit::binary("weft-test-plugin"), &["one", "two", "three"]);
        Proxy::with_networks_on(node)
    }

    /// Starts runtime and proxy with the log level used in production, for benchmarks.
    #[must_use]
    #[track_caller]
    pub fn with_production_log(host: Host) -> Option<Proxy> {
        let node = Containerd::with_network_directory(host, RUNTIME_NETWORKS)?;
        crate::install(&node);
        let mut proxy = Proxy::with_networks_on(node);
        proxy.relaunch(&["--log", "info"]);
        Some(proxy)
    }

    /// Returns the proxy's resident memory in kilobytes.
    #[must_use]
    #[track_caller]
    pub fn resident_memory(&self) -> u64 {
        let script = format!("grep VmRSS /proc/$(cat /run/services/{SERVICE}.pid)/status");
        let line = self.node.run(["sh", "-c", &script]);
        line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
    }

    /// Starts the proxy in front of a runtime that reads [`RUNTIME_NETWORKS`] and has the plugins for it.
    #[must_use]
    #[track_caller]
    pub fn with_networks_on(node: Containerd) -> Proxy {
        let proxy = Proxy::with(node, &["--runtime-networks", RUNTIME_NETWORKS]);
        proxy.node.wait("containerd", "reads the list of the proxy", || {
            let (_, info) = proxy.node.cri().status().ok()?;
            info.get("cniconfig")?.contains("weft-cri").then_some(())
        });
        proxy
    }

    #[track_caller]
    fn with(node: Containerd, words: &[&'static str]) -> Proxy {
        let proxy = Proxy { node, words: words.to_vec() };
        proxy.launch();
        proxy
    }

    /// Runs `weft network …` on the machine, with `stdin`.
    #[track_caller]
    pub fn network(&self, words: &[&str], stdin: &str) -> Finished {
        let weft = testkit::binary("weft");
        self.node.write("/run/stdin", stdin);
        let script = "exec \"$0\" network \"$@\" </run/stdin";
        self.node.command("sh").args(["-c", script, text(&weft)]).args(words.iter().copied()).finish()
    }

    /// Stores a network, which must succeed.
    #[track_caller]
    pub fn set(&self, network: &Value) {
        self.network(&["set", "-f", "-"], &network.to_string()).success();
    }

    /// Lists all networks by name, as `weft network list -o json` prints them.
    #[must_use]
    #[track_caller]
    pub fn networks(&self) -> BTreeMap<String, Value> {
        let all = self.network(&["list", "-o", "json"], "").success().json();
        let name =
            |network: &Value| network["config"]["metadata"]["name"].as_str().expect("a name").to_owned();
        all.as_array().expect("a list").iter().map(|network| (name(network), network.clone())).collect()
    }

    /// Returns the proxy's responses to calls from a client in another language, see `lanes/containerd/client.py`. If
    /// that client is not available, the test is skipped and the result is `None`.
    #[must_use]
    #[track_caller]
    pub fn calls(&self, calls: &Value) -> Option<Vec<Value>> {
        let client = parts("python-client")?;
        self.node.write("/run/calls", calls.to_string());
        let script = "exec \"$0\" \"$1\" \"$2\" </run/calls";
        let (python, program) = (client.join("bin/python"), client.join("client.py"));
        let words = ["-c", script, text(&python), text(&program), SOCKET];
        let answers = self.node.command("sh").args(words).finish().success().json();
        Some(answers.as_array().expect("a list").clone())
    }

    /// Returns a pod configuration in the form that the Python client takes.
    #[must_use]
    pub fn pod_in_json(&self, name: &str, networks: &Value) -> Value {
        json!({
            "metadata": { "name": name, "uid": format!("uid-of-{name}"), "namespace": crate::cluster::NAMESPACE },
            "hostname": name,
            "linux": { "cgroup_parent": self.node.group() },
            "networks": networks,
        })
    }

    /// Lists what `weft doctor` finds.
    #[must_use]
    #[track_caller]
    pub fn findings(&self) -> Vec<String> {
        let weft = testkit::binary("weft");
        let found = self.node.command(text(&weft)).args(["doctor", "-o", "json"]).finish().json();
        let text = |found: &Value| format!("{}: {}", found["what"], found["why"]);
        found.as_array().expect("a list").iter().map(text).collect()
    }

    /// Whether the proxy runs.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.node.is_running(SERVICE)
    }

    /// Returns a pod configuration that requests networks, each with an interface and a network name.
    #[must_use]
    pub fn pod_on(&self, name: &str, networks: &[(&str, &str)]) -> PodSandboxConfig {
        let network = |(interface, network): &(&str, &str)| PodSandboxNetworkConfig {
            interface_name: (*interface).to_owned(),
            network_name: (*network).to_owned(),
            parameters: BTreeMap::new(),
        };
        PodSandboxConfig { networks: networks.iter().map(network).collect(), ..self.node.pod(name, &[]) }
    }

    /// Checks that the proxy reports the network as ready.
    ///
    /// # Errors
    /// The condition's message if it is false.
    #[track_caller]
    pub fn ready(&self) -> Result<(), String> {
        let (conditions, _) = self.cri().status().expect("the runtime's status");
        let condition = conditions.into_iter().find(|condition| condition.kind == "NetworkReady");
        let condition = condition.expect("every runtime reports NetworkReady");
        if condition.holds { Ok(()) } else { Err(condition.message) }
    }

    /// Starts the proxy if it does not run.
    #[track_caller]
    pub fn launch(&self) {
        self.launch_under(&[]);
        self.node.wait(SERVICE, "listens", || UnixStream::connect(self.node.reach(SOCKET)).ok());
    }

    /// Removes the files that a killed proxy has left.
    #[track_caller]
    pub fn remove_stale_files(&self) {
        self.node.run(["rm", "-f", SOCKET, &format!("/run/services/{SERVICE}.pid")]);
    }

    /// Restarts the proxy with these additional arguments, which it keeps from now on.
    #[track_caller]
    pub fn relaunch(&mut self, words: &[&'static str]) {
        self.relaunch_as(&[&["--runtime-networks", RUNTIME_NETWORKS], words].concat());
    }

    /// Restarts the proxy with only these arguments: without `--runtime-networks` it does not manage the runtime's
    /// networks.
    #[track_caller]
    pub fn relaunch_as(&mut self, words: &[&'static str]) {
        self.stop("TERM");
        self.words = words.to_vec();
        self.launch();
    }

    /// Starts the proxy through another program, and does not wait for it.
    #[track_caller]
    pub fn launch_under(&self, program: &[&str]) {
        let weft = testkit::binary("weft");
        let words = [text(&weft), "cri-proxy", "--runtime", containerd::SOCKET];
        let log: &[&str] = if self.words.contains(&"--log") { &[] } else { &["--log", "debug,h2=info"] };
        let words = words.into_iter().chain(log.iter().copied()).chain(self.words.iter().copied());
        self.node.start(SERVICE, program.iter().copied().chain(words));
    }

    /// Stops the proxy with a signal.
    #[track_caller]
    pub fn stop(&self, signal: &str) {
        self.node.stop(SERVICE, signal);
    }

    /// Returns the proxy's log.
    #[must_use]
    pub fn log(&self) -> String {
        self.node.log(SERVICE)
    }

    /// Returns the runtime behind the proxy.
    #[must_use]
    pub fn node(&self) -> &Containerd {
        &self.node
    }

    /// Returns a CRI client that talks to the proxy, like the one in a kubelet.
    #[must_use]
    pub fn cri(&self) -> Cri {
        Cri::new(&self.node.reach(SOCKET))
    }
}

impl Deref for Proxy {
    type Target = Containerd;

    fn deref(&self) -> &Containerd {
        &self.node
    }
}

/// Returns a CRI Network API network: a bridge with addresses from `10.SUBNET.0.0/24`.
#[must_use]
pub fn bridge(name: &str, subnet: u8) -> Value {
    json!({ "metadata": { "name": name }, "cniv1_config": { "cni_version": "1.0.0", "plugins": [{
        "type": "bridge", "capabilities": ["ips", "mac"],
        "parameters": {
            "bridge": format!("br{subnet}"), "isGateway": true,
            "ipam": { "type": "host-local", "ranges": [[{ "subnet": format!("10.{subnet}.0.0/24") }]] },
        },
    }] } })
}
