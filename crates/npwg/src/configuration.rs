//! Meta-plugin configuration: every Multus option with the meaning it has there, and weft's own options.
//!
//! The table at [`NodeConfiguration`] lists them.
//!
//! Source: Multus `pkg/types/types.go`, `conf.go`; conflicts C1, C3.

mod conf;
mod mode;

use std::collections::BTreeSet;
use std::time::Duration;

use cni::error::Error;
use cni::network::Network;
use cni::object::Object;
use cni::version::Version;
use serde::{Deserialize, Serialize};

use crate::metadata::{Pod, PodIdentity};
use crate::refusal::Warning;

/// Capability under which container runtimes pass a pod's annotations (V11).
const POD_ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

pub use mode::{Builtin, Flavour, InvalidAnnotation, IpRequestPolicy, LogLevel, VifStore};

/// Options that DEL needs; it must work even if one is invalid.
const OF_DEL: [&str; 8] =
    ["cniDir", "binDir", "builtin", "delegateTimeout", "logFile", "logLevel", "logToStderr", "logOptions"];

/// Validated configuration of the meta-plugin on a node.
///
/// | option | default | meaning |
/// |---|---|---|
/// | `delegates` | – | configurations; the first is the default network, the others are attached to every pod |
/// | `clusterNetwork` | – | instead of `delegates`: a definition in `multusNamespace`, else a network by name in `confDir`; with `/` a file or directory |
/// | `defaultNetworks` | `[]` | further networks of every pod, named as in `clusterNetwork`; not for pods in `systemNamespaces` |
/// | `systemNamespaces` | `["kube-system"]` | namespaces whose pods get no `defaultNetworks` |
/// | `multusNamespace` | `kube-system` | namespace of definitions in `clusterNetwork`, `defaultNetworks` and a default-network annotation without one |
/// | `namespaceIsolation`, `globalNamespaces` | `false`, `default` | a pod may only select definitions of its own namespace and of these |
/// | `confDir`, `binDir` | `/etc/cni/multus/net.d`, `/opt/cni/bin` | networks on disk; plugins |
/// | `cniDir` | `/var/lib/weft` | the journal |
/// | `kubeconfig`, `readinessindicatorfile`, `auxiliaryCNIChainName` | – | as in Multus |
/// | `logFile`, `logLevel`, `logToStderr`, `logOptions` | –, `error`, `true` | as in Multus; rotated files are not compressed |
/// | `retryDeleteOnError` | `false` | accepted without effect; a failed DEL is always kept for another attempt |
/// | `builtin` | `auto` | `auto`: built-in unless another plugin of that name comes first in `CNI_PATH`; `always`; `never` |
/// | `agentSocket`, `manifestDir` | `/run/weft/agent.sock`, – | source of the plan: the node agent, or a directory of manifests |
/// | `invalidAnnotation` | `ignore`; as `multus` `fail` | consequence of an invalid annotation (C3) |
/// | `statusAddresses`, `statusKeys` | `bare`, `standard`; as `multus` `multus` | form of the network status |
/// | `ipRequestPolicy` | `result` | how requested addresses are enforced (C1), see [`IpRequestPolicy`] |
/// | `podResources` | the kubelet's default path | socket of the kubelet that lists a pod's devices, if no agent is used |
/// | `vifStore` | both, a KuryrPort first | place of a pod's Neutron ports, if no agent is used: `annotation`, `kuryrport` |
/// | `delegateTimeout` | 60 | seconds for one call of a delegate, 1–3600 |
/// | `networkPolicies` | `false` | whether a pod gets a network of a definition only with its network policies; requires an agent with `--policy` |
#[derive(Clone, Debug)]
pub struct NodeConfiguration {
    /// Name by which the meta-plugin was called.
    pub flavour: Flavour,
    /// CNI version that the runtime uses with the meta-plugin.
    pub version: Version,
    /// Default network for every pod.
    pub default_network: DefaultNetwork,
    /// Further networks that every pod outside the system namespaces gets.
    pub default_networks: Vec<Place>,
    /// Namespaces whose pods get no `default_networks`.
    pub system_namespaces: Vec<String>,
    /// Namespace in which a definition is looked up if the administrator names it without one.
    pub multus_namespace: String,
    /// Namespaces that a pod may select definitions from.
    pub isolation: Isolation,
    /// Directory with network configurations on disk.
    pub conf_dir: String,
    /// Journal directory; `None` for the default.
    pub cni_dir: Option<String>,
    /// Plugin directory, searched before `CNI_PATH`.
    pub bin_dir: String,
    /// Kubeconfig path on the node, if there is one.
    pub kubeconfig: Option<String>,
    /// File whose existence means that the default network is ready.
    pub readiness_file: Option<String>,
    /// Directory name for configurations that are chained after every pod's networks.
    pub auxiliary_chain: Option<String>,
    /// Where the log goes, and how much is logged.
    pub logging: Logging,
    /// Accepted for compatibility with Multus: a failed DEL is always kept for another attempt.
    pub retry_delete_on_error: bool,
    /// When a plugin runs in process.
    pub builtin: Builtin,
    /// Path to the agent's socket.
    pub agent_socket: String,
    /// Manifest directory that replaces the agent, for example on a node without Kubernetes.
    pub manifest_dir: Option<String>,
    /// Consequence that an invalid annotation has.
    pub invalid_annotation: InvalidAnnotation,
    /// Style in which the network status is written.
    pub status: StatusStyle,
    /// Enforcement for requested addresses.
    pub ip_request_policy: IpRequestPolicy,
    /// Kubelet socket that lists a pod's devices, if it is not at the default path.
    pub pod_resources: Option<String>,
    /// If set, the only place in which a pod's Neutron ports are looked up.
    pub vif_store: Option<VifStore>,
    /// Timeout for one delegate call.
    pub delegate_timeout: Duration,
    /// Whether attachments to definitions are refused unless network policies are enforced. Policies in a manifest
    /// directory are always enforced.
    pub network_policies: bool,
    /// `runtimeConfig` from the runtime, for the default network.
    pub runtime_config: Object,
    /// Capabilities declared to the runtime.
    pub capabilities: BTreeSet<String>,
    /// Network name; empty if there is none.
    pub network: String,
    /// Unknown and ignored options, which are accepted under the name `multus`.
    pub warnings: Vec<Warning>,
}

/// Network name for which the CRI proxy plans instead of the node agent.
pub const PROXY_NETWORK: &str = "weft-cri";

/// Where the default network comes from.
#[derive(Clone, Debug)]
pub enum DefaultNetwork {
    /// `delegates`: configurations; the first is the default network. There is at least one.
    Written {
        /// Default network.
        first: Box<Network>,
        /// Further networks that every pod gets.
        others: Vec<Network>,
    },
    /// `clusterNetwork`: a name or path.
    Named(Place),
}

/// Network as an administrator names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A definition in `multusNamespace`, else a network with that name on disk.
    Name(String),
    /// Absolute path to a file, or to a directory whose first file is used.
    Path(String),
}

/// Namespaces that a pod may select definitions from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// A pod may select definitions from all namespaces.
    Open,
    /// The pod's own namespace and these.
    Isolated {
        /// `globalNamespaces`: namespaces that every pod may use.
        global: Vec<String>,
    },
}

/// Where the log goes, and how much is logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logging {
    /// Log file, in addition to stderr.
    pub file: Option<String>,
    /// Least severe level that is logged.
    pub level: LogLevel,
    /// Whether to log to stderr.
    pub to_stderr: bool,
    /// When the log file is rotated.
    pub rotation: Rotation,
}

/// When a log file is rotated, and how long rotated files are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Maximum age for a rotated file, in days.
    pub max_age: u32,
    /// Maximum log file size, in megabytes.
    pub max_size: u32,
    /// Maximum number of rotated files to keep.
    pub max_backups: u32,
    /// Whether rotated files are compressed.
    pub compress: bool,
}

/// Style in which the network-status annotation is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusStyle {
    /// Whether addresses have a prefix length.
    pub addresses: StatusAddresses,
    /// Which fields an entry has.
    pub keys: StatusKeys,
}

/// Whether addresses in a status have a prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StatusAddresses {
    /// `10.0.0.1`: as Multus writes them and all known consumers read them.
    Bare,
    /// `10.0.0.1/24`: as in the specification's example.
    Cidr,
}

/// Which fields a status entry has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StatusKeys {
    /// Fields from the specification, and weft's own fields, whose names contain a dot.
    Standard,
    /// Additionally Multus's `gateway`, `mtu` and `dns.options`.
    Multus,
}

impl NodeConfiguration {
    /// Reads the configuration that the runtime passes on stdin.
    ///
    /// # Errors
    /// Code 6: not a JSON object. Code 7: an option is unknown (except under the name `multus`), invalid, missing or
    /// contradicts another; the error names option and value.
    pub fn read(bytes: &[u8], flavour: Flavour) -> Result<NodeConfiguration, Error> {
        conf::read(bytes, flavour)
    }

    /// Reads only what DEL needs from a configuration that is otherwise invalid: where journal and plugins
    /// are, and how plugins are called. If one of these options is invalid, it gets the default.
    ///
    /// # Errors
    /// Code 6: not a JSON object. Code 7: `cniVersion`, `name` or `type` is invalid.
    pub fn of_journal(bytes: &[u8], flavour: Flavour) -> Result<NodeConfiguration, Error> {
        let all = Object::parse(bytes, "configuration")?;
        let mut some = Object::default();
        for key in ["cniVersion", "name", "type"] {
            if let Some(value) = all.get(key) {
                some.set_raw(key, value.to_owned());
            }
        }
        some.set("clusterNetwork", "unknown")?;
        let mut read = conf::read(some.to_json().as_bytes(), flavour)?;
        for key in OF_DEL {
            let Some(value) = all.get(key) else { continue };
            let before = some.clone();
            some.set_raw(key, value.to_owned());
            match conf::read(some.to_json().as_bytes(), flavour) {
                Ok(better) => read = better,
                Err(_) => some = before,
            }
        }
        Ok(read)
    }

    /// Returns every place on disk that may contain a planned network. The caller loads them in this order
    /// into a [`crate::definition::Disk`].
    pub fn places(&self) -> Vec<Place> {
        let mut places = vec![Place::Path(self.conf_dir.clone())];
        let named = match &self.default_network {
            DefaultNetwork::Named(place) => Some(place),
            DefaultNetwork::Written { .. } => None,
        };
        places.extend(named.into_iter().chain(&self.default_networks).filter(|p| p.is_path()).cloned());
        places.extend(self.auxiliary_directory().map(Place::Path));
        places
    }

    /// Returns the pod as the runtime describes it in the annotations that it passes (V11); `None` if it
    /// passes none.
    ///
    /// # Errors
    /// Code 7: the annotations are not a map with string values.
    pub fn pod_of_runtime(&self, named: &PodIdentity) -> Result<Option<Pod>, Error> {
        let PodIdentity { namespace, name, uid } = named.clone();
        let annotations = self.runtime_config.read(POD_ANNOTATIONS)?;
        Ok(annotations.map(|annotations| Pod {
            namespace,
            name,
            uid,
            annotations,
            described_by_runtime: true,
            ..Pod::default()
        }))
    }

    /// Returns the directory for `auxiliaryCNIChainName`, which is beside the default network's file.
    /// [`NodeConfiguration::read`] ensures that this file is configured.
    pub fn auxiliary_directory(&self) -> Option<String> {
        let name = self.auxiliary_chain.as_deref()?;
        match &self.default_network {
            DefaultNetwork::Named(Place::Path(path)) => {
                let (directory, _) = path.rsplit_once('/')?;
                Some(format!("{directory}/{name}"))
            }
            _ => None,
        }
    }
}

impl Place {
    fn is_path(&self) -> bool {
        matches!(self, Place::Path(_))
    }
}

#[cfg(test)]
mod tests;
