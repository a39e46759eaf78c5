//! The meta-plugin's own configuration: every key of Multus with Multus's meaning, and ours.
//!
//! The table of keys is at [`NodeConfiguration`].
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

/// The capability under which container runtimes pass a pod's annotations (V11).
const POD_ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

pub use mode::{Builtin, Flavour, InvalidAnnotation, IpRequestPolicy, LogLevel, VifStore};

/// What the meta-plugin was configured to do on this node.
///
/// | key | default | meaning |
/// |---|---|---|
/// | `delegates` | – | configurations; the first is the default network, the others are attached to every pod |
/// | `clusterNetwork` | – | instead of `delegates`: a definition in `multusNamespace`, else a network by name in `confDir`; with `/` a file or directory |
/// | `defaultNetworks` | `[]` | further networks of every pod, named in the same ways; not for pods in `systemNamespaces` |
/// | `systemNamespaces` | `["kube-system"]` | see above |
/// | `multusNamespace` | `kube-system` | where `clusterNetwork`, `defaultNetworks` and a bare default-network annotation look |
/// | `namespaceIsolation`, `globalNamespaces` | `false`, `default` | a pod may only select definitions of its own namespace and of these |
/// | `confDir`, `binDir` | `/etc/cni/multus/net.d`, `/opt/cni/bin` | networks on disk; plugins |
/// | `cniDir` | `/var/lib/weft` | the journal |
/// | `kubeconfig`, `readinessindicatorfile`, `auxiliaryCNIChainName` | – | as in Multus |
/// | `logFile`, `logLevel`, `logToStderr`, `logOptions` | –, `error`, `true` | as in Multus |
/// | `retryDeleteOnError` | `false` | accepted; a failed DEL is always kept for another try |
/// | `builtin` | `auto` | `auto`: built-in unless a foreign plugin of the name comes first; `always`; `never` |
/// | `agentSocket`, `manifestDir` | `/run/weft/agent.sock`, – | where a plan comes from |
/// | `invalidAnnotation` | `ignore`; as `multus` `fail` | what follows from an invalid annotation (C3) |
/// | `statusAddresses`, `statusKeys` | `bare`, `standard`; as `multus` `multus` | how the status is written |
/// | `ipRequestPolicy` | `result` | how requested addresses are enforced (C1), see [`IpRequestPolicy`] |
/// | `podResources` | the kubelet's own, by its default directory | the socket that tells a pod's devices, where no agent asks it |
/// | `vifStore` | both, a KuryrPort first | where a pod's ports are looked for, where no agent does: `annotation`, `kuryrport` |
/// | `delegateTimeout` | 60 | seconds for one call of a delegate, 1–3600 |
#[derive(Clone, Debug)]
pub struct NodeConfiguration {
    /// Under which name it was called.
    pub flavour: Flavour,
    /// The protocol version the runtime speaks with us.
    pub version: Version,
    /// The default network of every pod.
    pub default_network: DefaultNetwork,
    /// Further networks of every pod outside the system namespaces.
    pub default_networks: Vec<Place>,
    /// Namespaces whose pods get no `default_networks`.
    pub system_namespaces: Vec<String>,
    /// The namespace of what the administrator names without one.
    pub multus_namespace: String,
    /// Which namespaces a pod may select definitions from.
    pub isolation: Isolation,
    /// Directory of networks on disk.
    pub conf_dir: String,
    /// Directory of the journal; `None` is our own.
    pub cni_dir: Option<String>,
    /// Directory of plugins, searched before `CNI_PATH`.
    pub bin_dir: String,
    /// Credentials for the API server, if there are any on the node.
    pub kubeconfig: Option<String>,
    /// A file that says by its presence that the default network is ready.
    pub readiness_file: Option<String>,
    /// Name of a chain of files that follows every pod's networks.
    pub auxiliary_chain: Option<String>,
    /// Where and how much to log.
    pub logging: Logging,
    /// Accepted for Multus's sake: a failed DEL is always kept for another try.
    pub retry_delete_on_error: bool,
    /// When a plugin is called in process.
    pub builtin: Builtin,
    /// The agent's socket.
    pub agent_socket: String,
    /// Directory of manifests to plan from instead of an agent.
    pub manifest_dir: Option<String>,
    /// What follows from an invalid annotation.
    pub invalid_annotation: InvalidAnnotation,
    /// How the status is written.
    pub status: StatusStyle,
    /// How requested addresses are enforced.
    pub ip_request_policy: IpRequestPolicy,
    /// The kubelet's socket that tells a pod's devices, if it is not where a kubelet has it by itself.
    pub pod_resources: Option<String>,
    /// Where alone a pod's Neutron ports are looked for.
    pub vif_store: Option<VifStore>,
    /// Time for one call of a delegate.
    pub delegate_timeout: Duration,
    /// What the runtime passed for the default network.
    pub runtime_config: Object,
    /// The capabilities declared to the runtime.
    pub capabilities: BTreeSet<String>,
    /// What was odd and accepted: unknown keys under the name `multus`.
    pub warnings: Vec<Warning>,
}

/// Where the default network comes from.
#[derive(Clone, Debug)]
pub enum DefaultNetwork {
    /// `delegates`: written out; the first is the default network, at least one is there.
    Written {
        /// The default network.
        first: Box<Network>,
        /// Networks of every pod after it.
        others: Vec<Network>,
    },
    /// `clusterNetwork`: named.
    Named(Place),
}

/// How an administrator names a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A definition in `multusNamespace`, else a network of that name on disk.
    Name(String),
    /// An absolute path: of a file, or of a directory whose first file counts.
    Path(String),
}

/// Which namespaces a pod may select definitions from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Any.
    Open,
    /// Its own and these.
    Isolated {
        /// `globalNamespaces`.
        global: Vec<String>,
    },
}

/// Where and how much to log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logging {
    /// Log to this file too.
    pub file: Option<String>,
    /// How much.
    pub level: LogLevel,
    /// Log to stderr.
    pub to_stderr: bool,
    /// Rotation of the file.
    pub rotation: Rotation,
}

/// Rotation of the log file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Oldest file kept, in days.
    pub max_age: u32,
    /// Largest file, in megabytes.
    pub max_size: u32,
    /// Most files kept.
    pub max_backups: u32,
    /// Compress old files.
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
    /// `10.0.0.1`: what Multus writes and every consumer reads.
    Bare,
    /// `10.0.0.1/24`: as in the standard's example.
    Cidr,
}

/// Fields of a status entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StatusKeys {
    /// The standard's, and ours with a dot in them.
    Standard,
    /// And Multus's `gateway`, `mtu` and `dns.options`.
    Multus,
}

impl NodeConfiguration {
    /// Reads the configuration that the runtime gave on stdin.
    ///
    /// # Errors
    /// 6 not a JSON object · 7 a key is unknown (except under the name `multus`), of the wrong form, missing or
    /// contradicts another; the error names key and value.
    pub fn read(bytes: &[u8], flavour: Flavour) -> Result<NodeConfiguration, Error> {
        conf::read(bytes, flavour)
    }

    /// Of one that cannot be read, what a teardown needs: where journal and plugins are, and how these are called. The rest is
    /// nobody's.
    ///
    /// # Errors
    /// As for [`NodeConfiguration::read`], if it is no configuration at all.
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
        for key in ["cniDir", "binDir", "builtin", "delegateTimeout"] {
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

    /// Every place on disk a plan may need a network from: load these, in this order, into a
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

    /// The pod as the runtime tells of it: by the annotations it passes (V11).
    ///
    /// # Errors
    /// Code 7 if they are no map of texts.
    pub fn pod_of_runtime(&self, named: &PodIdentity) -> Result<Option<Pod>, Error> {
        let PodIdentity { namespace, name, uid } = named.clone();
        let told = self.runtime_config.read(POD_ANNOTATIONS)?;
        Ok(told.map(|annotations| Pod { namespace, name, uid, annotations, hearsay: true, ..Pod::default() }))
    }

    /// The directory of the files of `auxiliaryCNIChainName`: beside the default network's own file.
    /// [`NodeConfiguration::read`] has made sure that it has one.
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
