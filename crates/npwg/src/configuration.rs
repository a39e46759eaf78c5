//! Configuration of the meta-plugin: every option of Multus with its meaning there, and the options of weft.
//!
//! The options are listed at [`NodeConfiguration`].
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

/// Options that DEL needs, each of which may be invalid.
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
    /// The default network of every pod.
    pub default_network: DefaultNetwork,
    /// Further networks of every pod outside the system namespaces.
    pub default_networks: Vec<Place>,
    /// Namespaces whose pods get no `default_networks`.
    pub system_namespaces: Vec<String>,
    /// Namespace of definitions that the administrator names without one.
    pub multus_namespace: String,
    /// Namespaces that a pod may select definitions from.
    pub isolation: Isolation,
    /// Directory of networks on disk.
    pub conf_dir: String,
    /// Directory of the journal; `None` for the default.
    pub cni_dir: Option<String>,
    /// Directory of plugins, searched before `CNI_PATH`.
    pub bin_dir: String,
    /// Path of a kubeconfig on the node, if there is one.
    pub kubeconfig: Option<String>,
    /// File whose existence means that the default network is ready.
    pub readiness_file: Option<String>,
    /// Name of a directory of configurations that are chained after the networks of every pod.
    pub auxiliary_chain: Option<String>,
    /// Destination and level of the log.
    pub logging: Logging,
    /// Accepted for compatibility with Multus: a failed DEL is always kept for another attempt.
    pub retry_delete_on_error: bool,
    /// When a plugin runs in process.
    pub builtin: Builtin,
    /// Path of the agent's socket.
    pub agent_socket: String,
    /// Directory of manifests that replaces the agent.
    pub manifest_dir: Option<String>,
    /// Consequence of an invalid annotation.
    pub invalid_annotation: InvalidAnnotation,
    /// Form of the network status.
    pub status: StatusStyle,
    /// Enforcement of requested addresses.
    pub ip_request_policy: IpRequestPolicy,
    /// Socket of the kubelet that lists a pod's devices, if it is not at the default path.
    pub pod_resources: Option<String>,
    /// The only place of a pod's Neutron ports, if set.
    pub vif_store: Option<VifStore>,
    /// Timeout of one call of a delegate.
    pub delegate_timeout: Duration,
    /// Whether attachments to definitions are refused unless their network policies are enforced. A directory of manifests
    /// enforces those in it in any case.
    pub network_policies: bool,
    /// `runtimeConfig` of the runtime, for the default network.
    pub runtime_config: Object,
    /// Capabilities declared to the runtime.
    pub capabilities: BTreeSet<String>,
    /// Name of the network; empty if there is none.
    pub network: String,
    /// Unknown and ignored options, which are accepted under the name `multus`.
    pub warnings: Vec<Warning>,
}

/// Name of the network whose planner is the CRI proxy instead of the node agent.
pub const PROXY_NETWORK: &str = "weft-cri";

/// Source of the default network.
#[derive(Clone, Debug)]
pub enum DefaultNetwork {
    /// `delegates`: configurations; the first is the default network. There is at least one.
    Written {
        /// The default network.
        first: Box<Network>,
        /// Further networks of every pod.
        others: Vec<Network>,
    },
    /// `clusterNetwork`: a name or path.
    Named(Place),
}

/// Network as an administrator names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A definition in `multusNamespace`, else a network of that name on disk.
    Name(String),
    /// An absolute path of a file, or of a directory whose first file is used.
    Path(String),
}

/// Namespaces that a pod may select definitions from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// All namespaces.
    Open,
    /// The pod's own namespace and these.
    Isolated {
        /// `globalNamespaces`.
        global: Vec<String>,
    },
}

/// Destination and level of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logging {
    /// Additional log file.
    pub file: Option<String>,
    /// Level.
    pub level: LogLevel,
    /// Whether to log to stderr.
    pub to_stderr: bool,
    /// Rotation of the log file.
    pub rotation: Rotation,
}

/// Rotation of the log file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Maximum age of a rotated file, in days.
    pub max_age: u32,
    /// Maximum size of a file, in megabytes.
    pub max_size: u32,
    /// Maximum number of rotated files.
    pub max_backups: u32,
    /// Whether rotated files are compressed.
    pub compress: bool,
}

/// Form of the network-status annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusStyle {
    /// Form of the addresses.
    pub addresses: StatusAddresses,
    /// Fields of an entry.
    pub keys: StatusKeys,
}

/// Form of the addresses in a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StatusAddresses {
    /// `10.0.0.1`: as Multus writes them and all known consumers read them.
    Bare,
    /// `10.0.0.1/24`: as in the example of the specification.
    Cidr,
}

/// Fields of a status entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StatusKeys {
    /// Fields of the specification, and fields of weft whose names contain a dot.
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

    /// Reads only the options that DEL needs from a configuration that is otherwise invalid: the paths of journal and plugins,
    /// and how plugins are called. Invalid options among these get their default.
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

    /// Returns every place on disk that may contain a network of a plan. The caller loads them in this order into a
    /// [`crate::definition::Disk`].
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

    /// Returns the pod as the runtime describes it by the annotations it passes (V11); `None` if it passes none.
    ///
    /// # Errors
    /// Code 7: the annotations are not a map of strings.
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

    /// Returns the directory of `auxiliaryCNIChainName`, which is beside the file of the default network.
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
