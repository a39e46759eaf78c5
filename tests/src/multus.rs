//! Real Multus, thin and thick, on a machine with an API server; see [`crate::peers`].
//!
//! ```text
//!   thin:   multus ─────────────────────────────► API server, plugins
//!   thick:  multus-shim ──► /run/multus/multus.sock ──► multus-daemon ──► API server, plugins
//! ```
//!
//! Delegates are the Go plugins in the same directory. The daemon runs directly on the machine instead of in a
//! container, so paths are the machine's.
//!
//! Source: Multus v4.3 `deployments/`, `docs/configuration.md`.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::kube::Kube;
use crate::machine::Machine;
use crate::parts::text;

/// Directory in which Multus caches a sandbox's networks.
pub const CACHE_DIRECTORY: &str = "/var/lib/cni/multus";
/// Daemon configuration file.
pub const DAEMON_CONFIG: &str = "/etc/weft-test/daemon-config.json";
/// Service name for the daemon.
pub const DAEMON: &str = "multus-daemon";
/// Directory in which a program in a pod finds the service account.
const RIGHTS: &str = "/run/secrets/kubernetes.io/serviceaccount";

/// Form in which Multus is deployed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// One program that does everything.
    Thin,
    /// A shim that forwards to a daemon.
    Thick,
}

/// Multus on a machine.
#[derive(Debug)]
pub struct Multus {
    programs: PathBuf,
    kubeconfig: String,
}

impl Form {
    /// Both forms.
    pub const ALL: [Form; 2] = [Form::Thin, Form::Thick];

    /// Returns the name that the documentation uses for this form.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Form::Thin => "Multus thin",
            Form::Thick => "Multus thick",
        }
    }

    /// Lists the programs that the peers' directory must contain.
    #[must_use]
    pub fn programs(self) -> &'static [&'static str] {
        match self {
            Form::Thin => &["multus", "bridge", "host-local"],
            Form::Thick => &["multus-shim", "multus-daemon", "bridge", "host-local"],
        }
    }

    /// Returns the plugin that the runtime calls: the `type` in the configuration.
    #[must_use]
    pub fn plugin(self) -> &'static str {
        match self {
            Form::Thin => "multus",
            Form::Thick => "multus-shim",
        }
    }
}

impl Multus {
    /// Creates Multus's service account with the RBAC from Multus's installation, and nothing else yet.
    #[must_use]
    #[track_caller]
    pub fn new(machine: &Machine, kube: &Kube, programs: PathBuf) -> Multus {
        kube.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": rbac_objects() }).to_string());
        let kubeconfig = kube.service_account("kube-system", "multus");
        let authority = machine.read(kube.pki("ca.crt")).expect("a certificate");
        machine.write(format!("{RIGHTS}/ca.crt"), authority);
        machine.write(format!("{RIGHTS}/token"), kube.token("kube-system", "multus"));
        Multus { programs, kubeconfig }
    }

    /// Returns the path of Multus's kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> &str {
        &self.kubeconfig
    }

    /// Returns the directory with Multus's programs and plugins.
    #[must_use]
    pub fn directory(&self) -> &str {
        text(&self.programs)
    }

    /// Returns the path of a Multus program.
    #[must_use]
    pub fn program(&self, name: &str) -> String {
        text(&self.programs.join(name)).to_owned()
    }

    /// Returns the configuration for a node with this default network.
    #[must_use]
    pub fn configuration(&self, form: Form, default: &Value) -> Value {
        let mut configuration = json!({
            "cniVersion": "1.0.0", "name": "multus-cni-network", "type": form.plugin(), "delegates": [default],
        });
        match form {
            Form::Thin => {
                configuration["kubeconfig"] = self.kubeconfig.as_str().into();
                configuration["binDir"] = self.directory().into();
            }
            // The remaining settings are in the daemon's configuration.
            Form::Thick => configuration["daemonSocketDir"] = "/run/multus".into(),
        }
        configuration
    }

    /// Starts the daemon for the node `name`. It writes `00-multus.conf` into `networks` when another network exists
    /// there, and follows changes to that network.
    #[track_caller]
    pub fn start_daemon(&self, machine: &Machine, name: &str, networks: &str) {
        // The version in Multus's default installation.
        let config = json!({
            "cniVersion": "0.3.1", "logLevel": "error", "logToStderr": true, "binDir": self.directory(),
            "cniConfigDir": networks, "multusAutoconfigDir": networks, "multusConfigFile": "auto",
            "socketDir": "/run/multus/",
        });
        machine.write(DAEMON_CONFIG, config.to_string());
        let words = [
            "env",
            "KUBERNETES_SERVICE_HOST=127.0.0.1",
            "KUBERNETES_SERVICE_PORT=6443",
            &format!("MULTUS_NODE_NAME={name}"),
            &self.program("multus-daemon"),
            "-config",
            DAEMON_CONFIG,
        ];
        machine.start(DAEMON, words);
        let ask = ["curl", "-sf", "--unix-socket", "/run/multus/multus.sock", "http://multus/healthz"];
        machine.wait(DAEMON, "answers", || machine.attempt(ask).code.filter(|code| *code == 0));
    }
}

/// Returns the service account and RBAC objects that Multus's installation creates.
#[must_use]
pub fn rbac_objects() -> Value {
    json!([
        { "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "multus", "namespace": "kube-system" } },
        { "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "multus" }, "rules": [
            { "apiGroups": ["k8s.cni.cncf.io"], "resources": ["*"], "verbs": ["*"] },
            { "apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["get", "list", "update", "watch"] },
            { "apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"] },
        ] },
        { "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": "multus" },
          "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "multus" },
          "subjects": [{ "kind": "ServiceAccount", "name": "multus", "namespace": "kube-system" }] },
    ])
}
