//! Conversion from the configuration as written to [`NodeConfiguration`].
//!
//! Keys are matched as Go's JSON decoder matches them. `delegates` and `runtimeConfig` are passed on, so the bytes are
//! kept.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use cni::error::{Context, Error, code};
use cni::fold;
use cni::name::NetworkName;
use cni::network::Network;
use cni::object::Object;
use cni::version::Version;
use cni::wording;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::mode::Mode;
use super::{
    Builtin, DefaultNetwork, Flavour, InvalidAnnotation, IpRequestPolicy, Isolation, LogLevel, Logging,
    NodeConfiguration, Place, Rotation, StatusAddresses, StatusKeys, StatusStyle,
};
use crate::metadata::label_fault;
use crate::nearest::hint;
use crate::refusal::{Fault, KeyPath, Reason, Warning, quote};
use crate::rule::Rule;

impl Mode for StatusAddresses {
    const WORDS: &'static [(&'static str, Self)] =
        &[("bare", StatusAddresses::Bare), ("cidr", StatusAddresses::Cidr)];
}

impl Mode for StatusKeys {
    const WORDS: &'static [(&'static str, Self)] =
        &[("standard", StatusKeys::Standard), ("multus", StatusKeys::Multus)];
}

/// Known keys that are not in [`Conf`]: other code reads them, or CNI defines them.
const OTHER_KEYS: &[&str] = &[
    "cniVersions",
    "name",
    "type",
    "args",
    "ipam",
    "dns",
    "prevResult",
    "disableCheck",
    "disableGC",
    "delegates",
    "runtimeConfig",
];

macro_rules! conf {
    ($($field:ident $key:literal: $type:ty,)*) => {
        /// Keys as written. A `null` value counts as absent.
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Conf {
            $(#[serde(rename = $key)] $field: $type,)*
        }

        /// JSON names for all keys in [`Conf`].
        const CONF_KEYS: &[&str] = &[$($key),*];
    };
}

conf! {
    cni_version "cniVersion": String,
    cluster_network "clusterNetwork": String,
    default_networks "defaultNetworks": Vec<String>,
    system_namespaces "systemNamespaces": Option<Vec<String>>,
    multus_namespace "multusNamespace": String,
    namespace_isolation "namespaceIsolation": bool,
    global_namespaces "globalNamespaces": String,
    conf_dir "confDir": String,
    cni_dir "cniDir": String,
    bin_dir "binDir": String,
    kubeconfig "kubeconfig": String,
    readiness_file "readinessindicatorfile": String,
    auxiliary_chain "auxiliaryCNIChainName": String,
    log_file "logFile": String,
    log_level "logLevel": String,
    log_to_stderr "logToStderr": Option<bool>,
    log_options "logOptions": LogOptions,
    retry_delete_on_error "retryDeleteOnError": bool,
    capabilities "capabilities": BTreeMap<String, bool>,
    builtin "builtin": String,
    agent_socket "agentSocket": String,
    manifest_dir "manifestDir": String,
    invalid_annotation "invalidAnnotation": String,
    status_addresses "statusAddresses": String,
    status_keys "statusKeys": String,
    ip_request_policy "ipRequestPolicy": String,
    pod_resources "podResources": String,
    vif_store "vifStore": String,
    delegate_timeout "delegateTimeout": Option<u32>,
    network_policies "networkPolicies": bool,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct LogOptions {
    max_age: Option<u32>,
    max_size: Option<u32>,
    max_backups: Option<u32>,
    compress: Option<bool>,
}

pub(super) fn read(bytes: &[u8], flavour: Flavour) -> Result<NodeConfiguration, Error> {
    let object = Object::parse(bytes, "network configuration")?;
    let mut warnings = unknown_keys(&object, flavour)?;
    let value: Value = serde_json::from_slice(bytes).map_err(|cause| {
        Error::config(format!("network configuration: {}", wording::syntax_error(bytes, &cause)))
    })?;
    let mut conf: Conf = fold::from_value(&value, "")?;
    if flavour == Flavour::Multus
        && let Err(unknown) = LogLevel::parse(&conf.log_level.to_lowercase())
        && !conf.log_level.is_empty()
    {
        // Multus keeps its default level, too.
        let fault = Fault::new(Rule::UnknownKey, "network configuration", unknown.to_string());
        let fault = fault.at(KeyPath::root().key("logLevel")).showing(&quote(&conf.log_level));
        warnings.push(Warning::new(Reason::UnknownKey, fault.hint("the level is error")));
        conf.log_level.clear();
    }
    let runtime_config = object.read_object("runtimeConfig")?.unwrap_or_default();
    let default_network = default_network(&object, &conf.cluster_network, flavour, &mut warnings)?;
    let mut configuration = conf.settle(flavour, default_network, runtime_config)?;
    configuration.network = object.text("name").ok().flatten().unwrap_or_default();
    configuration.warnings = warnings;
    Ok(configuration)
}

/// Refuses unknown keys; under the name `multus` they are warnings. A key with a dot belongs to another component.
fn unknown_keys(object: &Object, flavour: Flavour) -> Result<Vec<Warning>, Error> {
    let known: Vec<&str> = CONF_KEYS.iter().chain(OTHER_KEYS).copied().collect();
    let mut warnings = Vec::new();
    for (key, value) in object.iter() {
        if key.contains('.') || known.iter().any(|known| fold::same(known, key)) {
            continue;
        }
        let hint = hint(key, &known);
        if flavour == Flavour::Weft {
            let why = if hint.is_empty() { "unknown key".to_owned() } else { format!("unknown key: {hint}") };
            return Err(Error::key(quote(key), quote(value.get()), why));
        }
        let fault = Fault::new(Rule::UnknownKey, "network configuration", "unknown key; it has no effect");
        warnings.push(Warning::new(Reason::UnknownKey, fault.at(KeyPath::root().key(key)).hint(hint)));
    }
    Ok(warnings)
}

/// Reads `delegates` or `clusterNetwork`; exactly one must be set. Under the name `multus`, `clusterNetwork`
/// takes precedence, as in Multus.
fn default_network(
    object: &Object,
    cluster_network: &str,
    flavour: Flavour,
    warnings: &mut Vec<Warning>,
) -> Result<DefaultNetwork, Error> {
    if flavour == Flavour::Multus && !cluster_network.is_empty() {
        let ignored = object.get("delegates").filter(|raw| !matches!(raw.get(), "null" | "[]"));
        warnings.extend(ignored.map(|_| {
            let reason = "is ignored, because clusterNetwork names the default network";
            let fault = Fault::new(Rule::UnknownKey, "network configuration", reason);
            Warning::new(Reason::Questionable, fault.at(KeyPath::root().key("delegates")))
        }));
        return place("clusterNetwork", cluster_network).map(DefaultNetwork::Named);
    }
    let delegates: Vec<Box<RawValue>> = match object.get("delegates").filter(|raw| raw.get() != "null") {
        None => Vec::new(),
        Some(raw) => serde_json::from_str(raw.get())
            .map_err(|_| Error::key("delegates", quote(raw.get()), "expected a list of configurations"))?,
    };
    let named = (!cluster_network.is_empty()).then_some(cluster_network);
    let mut networks = delegates.iter().enumerate().map(|(index, raw)| {
        let what = format!("delegates[{index}]");
        Network::parse(raw.get().as_bytes(), &what)
    });
    match (networks.next(), named) {
        (Some(_), Some(named)) => Err(Error::key(
            "clusterNetwork",
            quote(named),
            "delegates already names the default network: keep one of the two",
        )),
        (None, None) => Err(Error::config(
            "clusterNetwork: missing: name the default network in clusterNetwork or write it into delegates",
        )),
        (None, Some(named)) => place("clusterNetwork", named).map(DefaultNetwork::Named),
        (Some(first), None) => {
            let others = networks.collect::<Result<_, _>>();
            Ok(DefaultNetwork::Written { first: Box::new(first?), others: others? })
        }
    }
}

/// Reads a network name, or a path if the text contains `/`.
fn place(key: &str, text: &str) -> Result<Place, Error> {
    if text.contains('/') {
        return path(key, text).map(Place::Path);
    }
    NetworkName::new(text).context(key).map(|name| Place::Name(name.as_str().to_owned()))
}

fn path(key: &str, text: &str) -> Result<String, Error> {
    match text.starts_with('/') && !text.contains('\0') {
        true => Ok(text.to_owned()),
        false => Err(Error::key(key, quote(text), "must be an absolute path")),
    }
}

/// Reads an optional path; an empty string counts as absent.
fn optional_path(key: &str, text: &str) -> Result<Option<String>, Error> {
    (!text.is_empty()).then(|| path(key, text)).transpose()
}

fn path_or(key: &str, text: &str, default: &str) -> Result<String, Error> {
    Ok(optional_path(key, text)?.unwrap_or_else(|| default.to_owned()))
}

/// Reads a word; an empty string counts as absent.
fn mode<M: Mode>(key: &str, text: &str) -> Result<Option<M>, Error> {
    let word = (!text.is_empty()).then_some(text);
    word.map(M::parse).transpose().map_err(|why| Error::key(key, quote(text), why))
}

fn mode_or<M: Mode>(key: &str, text: &str, default: M) -> Result<M, Error> {
    Ok(mode(key, text)?.unwrap_or(default))
}

fn version(text: &str) -> Result<Version, Error> {
    Version::from_wire(text).ok_or_else(|| {
        let known: Vec<&str> = Version::ALL.iter().map(|version| version.as_str()).collect();
        let why = format!("cniVersion: {}: must be one of {}", quote(text), known.join(", "));
        Error::new(code::INCOMPATIBLE_VERSION, why)
    })
}

fn namespace(key: &str, text: &str) -> Result<String, Error> {
    match label_fault(text) {
        None => Ok(text.to_owned()),
        Some(fault) => Err(Error::key(key, quote(text), format!("not a namespace: it {fault}"))),
    }
}

impl Conf {
    fn settle(
        self,
        flavour: Flavour,
        default_network: DefaultNetwork,
        runtime_config: Object,
    ) -> Result<NodeConfiguration, Error> {
        let (invalid_annotation, keys) = match flavour {
            Flavour::Weft => (InvalidAnnotation::Ignore, StatusKeys::Standard),
            Flavour::Multus => (InvalidAnnotation::Fail, StatusKeys::Multus),
        };
        let capabilities = self.capabilities.iter().filter(|(_, on)| **on).map(|(name, _)| name.clone());
        Ok(NodeConfiguration {
            flavour,
            version: version(&self.cni_version)?,
            auxiliary_chain: self.auxiliary_chain(&default_network)?,
            default_network,
            default_networks: places(&self.default_networks)?,
            system_namespaces: self.system_namespaces()?,
            multus_namespace: match self.multus_namespace.as_str() {
                "" => "kube-system".to_owned(),
                text => namespace("multusNamespace", text)?,
            },
            isolation: self.isolation()?,
            conf_dir: path_or("confDir", &self.conf_dir, "/etc/cni/multus/net.d")?,
            cni_dir: optional_path("cniDir", &self.cni_dir)?,
            bin_dir: path_or("binDir", &self.bin_dir, "/opt/cni/bin")?,
            kubeconfig: optional_path("kubeconfig", &self.kubeconfig)?,
            readiness_file: optional_path("readinessindicatorfile", &self.readiness_file)?,
            logging: self.logging()?,
            retry_delete_on_error: self.retry_delete_on_error,
            builtin: mode_or("builtin", &self.builtin, Builtin::Auto)?,
            agent_socket: path_or("agentSocket", &self.agent_socket, "/run/weft/agent.sock")?,
            manifest_dir: optional_path("manifestDir", &self.manifest_dir)?,
            invalid_annotation: mode_or("invalidAnnotation", &self.invalid_annotation, invalid_annotation)?,
            status: StatusStyle {
                addresses: mode_or("statusAddresses", &self.status_addresses, StatusAddresses::Bare)?,
                keys: mode_or("statusKeys", &self.status_keys, keys)?,
            },
            ip_request_policy: mode_or("ipRequestPolicy", &self.ip_request_policy, IpRequestPolicy::Result)?,
            pod_resources: optional_path("podResources", &self.pod_resources)?,
            vif_store: mode("vifStore", &self.vif_store)?,
            delegate_timeout: match self.delegate_timeout {
                None => Duration::from_secs(60),
                Some(seconds @ 1..=3600) => Duration::from_secs(seconds.into()),
                Some(seconds) => {
                    return Err(Error::key("delegateTimeout", seconds, "must be from 1 to 3600 seconds"));
                }
            },
            network_policies: self.network_policies,
            runtime_config,
            capabilities: capabilities.collect::<BTreeSet<_>>(),
            network: String::new(),
            warnings: Vec::new(),
        })
    }

    fn system_namespaces(&self) -> Result<Vec<String>, Error> {
        // As in Multus, an empty list and a list of an empty name exempt no namespace.
        let Some(list) = &self.system_namespaces else { return Ok(vec!["kube-system".to_owned()]) };
        let named = list.iter().filter(|text| !text.is_empty());
        named.map(|text| namespace("systemNamespaces", text)).collect()
    }

    /// Reads `auxiliaryCNIChainName`. The directory is beside the default network's file, so there must be
    /// such a file.
    fn auxiliary_chain(&self, default_network: &DefaultNetwork) -> Result<Option<String>, Error> {
        let key = "auxiliaryCNIChainName";
        match (self.auxiliary_chain.as_str(), default_network) {
            ("", _) => Ok(None),
            (text, DefaultNetwork::Named(Place::Path(_))) => {
                Ok(Some(NetworkName::new(text).context(key)?.as_str().to_owned()))
            }
            (text, _) => Err(Error::key(key, quote(text), "needs a clusterNetwork that is a path")),
        }
    }

    /// Reads the isolation as Multus does: `globalNamespaces` replaces the built-in `default`; blanks around commas are ignored.
    fn isolation(&self) -> Result<Isolation, Error> {
        if !self.namespace_isolation {
            return Ok(Isolation::Open);
        }
        let named = self.global_namespaces.split(',').map(str::trim).filter(|text| !text.is_empty());
        let mut global =
            named.map(|text| namespace("globalNamespaces", text)).collect::<Result<Vec<_>, _>>()?;
        if global.is_empty() {
            global.push("default".to_owned());
        }
        Ok(Isolation::Isolated { global })
    }

    fn logging(&self) -> Result<Logging, Error> {
        let LogOptions { max_age, max_size, max_backups, compress } = &self.log_options;
        Ok(Logging {
            file: optional_path("logFile", &self.log_file)?,
            level: mode_or("logLevel", &self.log_level.to_lowercase(), LogLevel::Error)?,
            to_stderr: self.log_to_stderr.unwrap_or(true),
            rotation: Rotation {
                max_age: max_age.unwrap_or(5),
                // As in lumberjack, 0 is the default.
                max_size: max_size.filter(|size| *size > 0).unwrap_or(100),
                max_backups: max_backups.unwrap_or(5),
                compress: compress.unwrap_or(true),
            },
        })
    }
}

fn places(names: &[String]) -> Result<Vec<Place>, Error> {
    let named = names.iter().enumerate();
    named.map(|(index, text)| place(&format!("defaultNetworks[{index}]"), text)).collect()
}
