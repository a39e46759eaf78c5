//! Real containerd with runc on a test machine; see `lanes/containerd/prepare` and `release`.
//!
//! State, images and containers are in memory and disappear with the machine. All paths are containerd's defaults.

mod release;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;

use serde_json::{Value, json};
use testkit::{Host, Netns};

use crate::cluster::{Cluster, bridge, configuration as configuration_of};
use crate::cri::{Cri, LinuxPodSandboxConfig, PodSandboxConfig, PodSandboxMetadata, Sandbox};
use crate::machine::Machine;
use crate::parts::{parts, text};

pub use release::Release;

/// containerd's socket.
pub const SOCKET: &str = "/run/containerd/containerd.sock";
/// Path of containerd's configuration.
const CONFIGURATION: &str = "/etc/weft-test/containerd.toml";
/// CNI configuration directory.
pub const NETWORKS: &str = "/etc/cni/net.d";
/// Pause container image.
pub const PAUSE: &str = "weft.test/pause:1";
/// Minor version of the first Kubernetes whose kubelet refuses containerd 1.x.
const KUBELET_OF_TWO: u32 = 36;

/// Machine on which containerd runs.
#[derive(Debug)]
pub struct Containerd {
    machine: Arc<Machine>,
    release: Release,
    runc: String,
    busybox: String,
}

// === impl Containerd ===

impl Containerd {
    /// Starts containerd on `host`. If the lane was not prepared, the test is skipped and the result is `None`.
    ///
    /// # Panics
    /// containerd does not start.
    #[must_use]
    #[track_caller]
    pub fn new(host: Host) -> Option<Containerd> {
        Containerd::with_network_directory(host, NETWORKS)
    }

    /// Starts containerd with another CNI configuration directory.
    ///
    /// # Panics
    /// containerd does not start.
    #[must_use]
    #[track_caller]
    pub fn with_network_directory(host: Host, directory: &str) -> Option<Containerd> {
        let release = Release::chosen(&parts("containerd")?);
        Containerd::released(host, "node", directory, release)
    }

    /// Starts containerd on a host that gets this host name, for the kubelet of Kubernetes 1.`minor`; `None`, and the test
    /// is skipped, if the lane was not prepared.
    ///
    /// # Panics
    /// containerd does not start.
    #[must_use]
    #[track_caller]
    pub fn for_kubelet(host: Host, name: &str, minor: u32) -> Option<Containerd> {
        let parts = parts("containerd")?;
        let release = match minor < KUBELET_OF_TWO {
            true => Release::chosen(&parts),
            false => Release::newest(&parts)?,
        };
        Containerd::released(host, name, NETWORKS, release)
    }

    /// Starts containerd 2.x. If there is none, the test is skipped and the result is `None`.
    ///
    /// # Panics
    /// containerd does not start.
    #[must_use]
    #[track_caller]
    pub fn newest(host: Host, directory: &str) -> Option<Containerd> {
        let release = Release::newest(&parts("containerd")?)?;
        Containerd::released(host, "node", directory, release)
    }

    #[track_caller]
    fn released(host: Host, name: &str, directory: &str, release: Release) -> Option<Containerd> {
        let parts = parts("containerd")?;
        let machine = Arc::new(Machine::new(host, name));
        machine.run(["mkdir", "-p", NETWORKS, directory]);
        let runc = text(&parts.join("root/usr/sbin")).to_owned();
        machine.write(CONFIGURATION, release.configuration(&format!("{runc}/runc"), directory));
        let busybox = text(&parts.join("busybox.tar")).to_owned();
        let containerd = Containerd { machine, release, runc, busybox };
        containerd.launch();
        containerd.import(text(&parts.join("pause.tar")));
        Some(containerd)
    }

    /// Starts containerd with `weft`, a default network, and the networks `red`, `blue` and `wire`, which the pods
    /// `names` and `early` select. The pod `early` has already run, so the bridges and directories that stay on a node
    /// exist.
    #[must_use]
    #[track_caller]
    pub fn with_networks(host: Host, names: &[&str]) -> Option<Containerd> {
        let node = Containerd::new(host)?;
        define_networks(&node, names);
        node.configure(&configuration_of(&bridge("default", 1)));
        let early = node.cri().run_pod_sandbox(&node.pod("early", &[])).expect("a pod");
        node.remove(&early);
        Some(node)
    }

    /// Stops and removes a sandbox.
    #[track_caller]
    pub fn remove(&self, id: &str) {
        self.cri().stop_pod_sandbox(id).unwrap_or_else(|error| panic!("{error}"));
        self.cri().remove_pod_sandbox(id).unwrap_or_else(|error| panic!("{error}"));
    }

    /// Imports an image.
    #[track_caller]
    pub fn import(&self, file: &str) {
        let ctr = format!("{}/ctr", self.release.programs());
        self.run([&ctr, "-n", "k8s.io", "images", "import", file]);
    }

    /// Imports an image for every architecture.
    #[track_caller]
    pub fn import_all(&self, file: &str) {
        let ctr = format!("{}/ctr", self.release.programs());
        self.run([&ctr, "-n", "k8s.io", "images", "import", "--all-platforms", file]);
    }

    /// Lists the images whose names begin with `prefix`.
    #[must_use]
    #[track_caller]
    pub fn image_names(&self, prefix: &str) -> Vec<String> {
        let ctr = format!("{}/ctr", self.release.programs());
        let names = self.run([&ctr, "-n", "k8s.io", "images", "ls", "-q"]);
        names.lines().filter(|name| name.starts_with(prefix)).map(str::to_owned).collect()
    }

    /// Removes an image.
    #[track_caller]
    pub fn remove_image(&self, name: &str) {
        let ctr = format!("{}/ctr", self.release.programs());
        self.run([&ctr, "-n", "k8s.io", "images", "rm", name]);
    }

    /// Imports an image that contains a shell: `weft.test/busybox:1`.
    #[track_caller]
    pub fn import_busybox(&self) {
        self.import(&self.busybox);
    }

    /// Stops containerd with a signal and starts it again; sandboxes stay.
    #[track_caller]
    pub fn restart(&self, signal: &str) {
        self.machine.stop("containerd", signal);
        self.launch();
    }

    /// Makes containerd forget a sandbox, as if the stored state were older: the container ends, the runtime calls no
    /// DEL, and the namespace stays.
    #[track_caller]
    pub fn forget_sandbox(&self, id: &str) {
        let ctr = format!("{}/ctr", self.release.programs());
        self.run([&ctr, "-n", "k8s.io", "tasks", "kill", "--signal", "KILL", id]);
        self.machine.wait("containerd", "deletes a container", || {
            self.attempt([&ctr, "-n", "k8s.io", "containers", "rm", id]).code.filter(|code| *code == 0)
        });
        if let Release::Two(_) = self.release {
            // containerd stores sandboxes separately from their containers.
            self.run([&ctr, "-n", "k8s.io", "sandboxes", "rm", "--force", id]);
        }
        self.restart("KILL");
        assert!(self.cri().pod_sandbox_status(id).is_err(), "{id} is lost");
    }

    /// Returns the `PATH` with which the runtime finds programs.
    #[must_use]
    pub fn path(&self) -> String {
        format!("PATH={}:{}:/usr/sbin:/usr/bin:/sbin:/bin", self.release.programs(), self.runc)
    }

    /// Returns the containerd release that runs.
    #[must_use]
    pub fn release(&self) -> &Release {
        &self.release
    }

    /// Starts containerd if it does not run.
    #[track_caller]
    pub fn launch(&self) {
        let path = self.path();
        let words = ["env", &path, "containerd", "--config", CONFIGURATION];
        self.machine.start("containerd", words);
        self.machine.wait("containerd", "answers", || self.cri().status().ok());
    }

    /// Returns the machine on which containerd runs.
    #[must_use]
    pub fn machine(&self) -> Arc<Machine> {
        Arc::clone(&self.machine)
    }

    /// Returns a CRI client like the one in a kubelet.
    #[must_use]
    pub fn cri(&self) -> Cri {
        Cri::new(&self.machine.reach(SOCKET))
    }

    /// Checks that the condition `NetworkReady` is true.
    ///
    /// # Errors
    /// The condition's message if it is false.
    #[track_caller]
    pub fn network_ready(&self) -> Result<(), String> {
        let (conditions, _) = self.cri().status().expect("the runtime's status");
        let condition = conditions.into_iter().find(|condition| condition.kind == "NetworkReady");
        let condition = condition.expect("every runtime reports NetworkReady");
        if condition.holds { Ok(()) } else { Err(condition.message) }
    }

    /// Returns a pod configuration as a kubelet sends it, in namespace `blue`.
    #[must_use]
    pub fn pod(&self, name: &str, annotations: &[(&str, &str)]) -> PodSandboxConfig {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: name.to_owned(),
                uid: format!("uid-of-{name}"),
                namespace: crate::cluster::NAMESPACE.to_owned(),
                attempt: 0,
            }),
            hostname: name.to_owned(),
            port_mappings: Vec::new(),
            annotations: annotations.iter().map(owned).collect::<BTreeMap<_, _>>(),
            linux: Some(LinuxPodSandboxConfig {
                cgroup_parent: self.machine.group(),
                security_context: None,
            }),
            networks: Vec::new(),
        }
    }

    /// Returns the status of a sandbox, which must exist.
    #[must_use]
    #[track_caller]
    pub fn sandbox(&self, id: &str) -> Sandbox {
        self.cri().pod_sandbox_status(id).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns a sandbox's network namespace.
    #[must_use]
    #[track_caller]
    pub fn inside(&self, id: &str) -> Netns {
        self.netns(&self.sandbox(id).netns())
    }

    /// Writes the CNI configuration as an installation does, under a temporary name that is then renamed, and waits
    /// until the runtime has loaded it.
    #[track_caller]
    pub fn configure(&self, plugin: &Value) {
        let list = network_list(plugin).to_string();
        self.write(format!("{NETWORKS}/.weft"), &list);
        self.run(["mv", &format!("{NETWORKS}/.weft"), &format!("{NETWORKS}/00-weft.conflist")]);
        self.until_configured(&list);
    }

    /// Waits until the runtime has loaded a configuration.
    #[track_caller]
    pub fn until_configured(&self, list: &str) {
        let knows = || {
            let (_, info) = self.cri().status().ok()?;
            let known: Value = serde_json::from_str(info.get("cniconfig")?).ok()?;
            let networks = known["Networks"].as_array()?;
            networks.iter().any(|network| network["Config"]["Source"] == list).then_some(())
        };
        self.machine.wait("containerd", "reads the network's configuration", knows);
    }
}

impl Deref for Containerd {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.machine
    }
}

/// Defines three networks with different plugins, and pods that select them.
fn define_networks(host: &Host, names: &[&str]) {
    let cluster = Cluster::new(host);
    let mut red = bridge("red", 2);
    red["plugins"][0]["ipMasq"] = true.into();
    red["plugins"].as_array_mut().expect("plugins").push(json!({ "type": "tuning", "mtu": 1400 }));
    cluster.definition("red", &red);
    cluster.definition("blue", &bridge("blue", 3));
    let range = json!({ "type": "host-local", "subnet": "10.4.0.0/24" });
    cluster.definition("wire", &json!({ "cniVersion": "0.3.1", "type": "ptp", "ipam": range }));
    for name in names.iter().chain(&["early"]) {
        cluster.pod(name, "red,blue,wire");
    }
}

/// Returns a conflist with only `plugin` and all capabilities declared, in the newest version that containerd 1.6
/// supports.
#[must_use]
pub fn network_list(plugin: &Value) -> Value {
    let mut plugin = plugin.clone();
    plugin["cniVersion"] = "1.0.0".into();
    plugin["capabilities"] =
        json!({ "portMappings": true, "bandwidth": true, "io.kubernetes.cri.pod-annotations": true });
    json!({ "cniVersion": "1.0.0", "name": "weft-net", "plugins": [plugin] })
}
