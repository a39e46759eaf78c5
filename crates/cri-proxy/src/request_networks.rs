//! Networks that a sandbox requests, in the configuration or in an annotation: validated, with all defaults applied.
//!
//! - Invalid requests are rejected before the runtime receives them.
//! - An annotation cannot name devices or ranges, because the pod's author writes it and could name another pod's.
//! - The resolved attachments travel through the runtime in a second annotation, which clients must not set and never
//!   see.
//!
//! Source: «CRI Network API», «Defaulting and initialization».

use std::collections::{BTreeMap, BTreeSet};

use cni::capability::{DEVICE_ID, IP_RANGES};
use cni::name::{IfName, ifname_fault};
use cni::{fold, wording};
use npwg::metadata::{definition_name_fault, label_fault};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use tonic::Status;

use super::networks::Networks;
use super::parameters;
use cri::messages::PodSandboxConfig;
use cri::network_api::validation::fault;
use cri::network_api::{FALLBACK, Name, SandboxNetwork, conflist};

/// Annotation with the requested networks, for clients that cannot send the field, for example
/// `[{"network_name": "red"}]`.
pub(crate) const NETWORKS: &str = "weft.dev/networks";
/// Annotation in which the attachments travel through the runtime.
pub(crate) const ATTACHMENTS: &str = "weft.dev/attachments";
/// Interface that every sandbox has.
pub(crate) const PRIMARY: &str = "eth0";

/// Maximum number of networks in a sandbox.
const NETWORKS_MAX: usize = 32;
/// Maximum annotation size in bytes.
const ANNOTATION_MAX: usize = 256 << 10;

/// Resolved attachment for a sandbox.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Attachment {
    /// Interface name in the sandbox.
    pub(crate) interface: IfName,
    /// Network, under the name that the sandbox used.
    pub(crate) network: String,
    /// Parameters by capability.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) parameters: BTreeMap<String, Box<RawValue>>,
}

/// Attachment in an annotation that a person wrote: values are JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Annotated<V = Box<RawValue>> {
    #[serde(default, alias = "interfaceName")]
    interface_name: String,
    #[serde(default, alias = "networkName")]
    network_name: String,
    #[serde(default = "BTreeMap::new")]
    parameters: BTreeMap<String, V>,
}

/// Requested networks and the path in the request.
struct Source {
    path: String,
    asked: Vec<(String, String, BTreeMap<String, Box<RawValue>>)>,
}

/// Resolves the attachments that a sandbox requests; an empty list means the default network.
pub(crate) fn attachments(config: &PodSandboxConfig, networks: &Networks) -> Result<Vec<Attachment>, Status> {
    if config.annotations.contains_key(ATTACHMENTS) {
        let why = format!(
            "is reserved for the proxy: request networks with the field or the annotation {NETWORKS}"
        );
        return Err(Status::invalid_argument(format!("config.annotations[{ATTACHMENTS:?}]: {why}")));
    }
    let Some(Source { path, asked }) = source(config)? else { return Ok(Vec::new()) };
    if config.is_on_host() {
        let why = "the sandbox uses the host network: no network can be attached to it";
        return Err(Status::invalid_argument(format!("{path}: {why}")));
    }
    if asked.len() > NETWORKS_MAX {
        return Err(fault(&path, asked.len(), format_args!("must be at most {NETWORKS_MAX} networks")));
    }
    let interfaces = interfaces(&path, asked.iter().map(|(interface, _, _)| interface.as_str()))?;
    let mut attachments = Vec::with_capacity(asked.len());
    let mut room = parameters::BYTES_MAX;
    for (index, ((_, network, wanted), interface)) in asked.into_iter().zip(interfaces).enumerate() {
        let path = format!("{path}[{index}]");
        let at = format!("{path}.network_name");
        let usable = networks.find(&name(&network, &at)?, &at)?;
        parameters::check(&wanted, &usable, &path, &mut room)?;
        attachments.push(Attachment { interface, network, parameters: wanted });
    }
    Ok(attachments)
}

/// Parses the network name at `path`.
fn name(written: &str, path: &str) -> Result<Name, Status> {
    if written.is_empty() {
        return Err(fault(path, written, "names no network"));
    }
    let name = Name::read(written);
    let namespaced = written.contains('/');
    let illegal = label_fault(&name.namespace).filter(|_| namespaced);
    let illegal = illegal.or_else(|| definition_name_fault(&name.name).filter(|_| name.name != FALLBACK));
    match illegal {
        None => Ok(name),
        Some(why) => Err(fault(path, written, format_args!("is not a network name: {why}"))),
    }
}

fn source(config: &PodSandboxConfig) -> Result<Option<Source>, Status> {
    let annotation = config.annotations.get(NETWORKS);
    let at = format!("config.annotations[{NETWORKS:?}]");
    match (config.networks.as_slice(), annotation) {
        ([], None) => Ok(None),
        ([], Some(text)) => {
            if text.len() > ANNOTATION_MAX {
                return Err(fault(&at, text.len(), format_args!("must be at most {ANNOTATION_MAX} bytes")));
            }
            let asked = annotated(&at, text)?;
            refuse_assigned_parameters(&at, &asked)?;
            let asked = asked.into_iter().map(|one| (one.interface_name, one.network_name, one.parameters));
            let asked: Vec<_> = asked.collect();
            if asked.is_empty() {
                return Err(fault(&at, text, "requests no network: omit it for the default network"));
            }
            Ok(Some(Source { path: at, asked }))
        }
        (_, Some(text)) => Err(fault(&at, text, "config.networks requests networks as well: keep one")),
        (written, None) => {
            let asked = written.iter().map(|SandboxNetwork { interface_name, network_name, parameters }| {
                let parameters = parameters
                    .iter()
                    .map(|(key, text)| Ok((key.clone(), conflist::value(text)?)))
                    .collect::<Result<_, cni::Error>>()
                    .map_err(|error| Status::invalid_argument(error.to_string()))?;
                Ok((interface_name.clone(), network_name.clone(), parameters))
            });
            let asked = asked.collect::<Result<_, Status>>()?;
            Ok(Some(Source { path: "config.networks".to_owned(), asked }))
        }
    }
}

/// Decodes the annotation at `at`. It is decoded twice: only the strict decoder reports paths, but it does not keep the
/// exact text of parameter values.
fn annotated(at: &str, text: &str) -> Result<Vec<Annotated>, Status> {
    let _: Vec<Annotated<Value>> = fold::strict_from_slice(text.as_bytes(), at)
        .map_err(|error| Status::invalid_argument(error.to_string()))?;
    let why = |cause| wording::syntax_error(text.as_bytes(), &cause);
    serde_json::from_str(text).map_err(|cause| fault(at, text, why(cause)))
}

/// Rejects devices and ranges in an annotation. The pod's author writes the annotation and the kubelet passes it on, so
/// it could name any device on the node, even another pod's, and any range. A CRI client can set them in the field
/// instead.
fn refuse_assigned_parameters(at: &str, asked: &[Annotated]) -> Result<(), Status> {
    for (index, one) in asked.iter().enumerate() {
        for key in [DEVICE_ID, IP_RANGES] {
            if let Some(value) = one.parameters.get(key) {
                let at = format!("{at}[{index}].parameters[{key:?}]");
                return Err(fault(&at, value.get(), "cannot be set in an annotation: use config.networks"));
            }
        }
    }
    Ok(())
}

/// Assigns interface names: as requested, otherwise `eth0` for the first network and `net1`, `net2`, … for the others.
fn interfaces<'a>(path: &str, asked: impl Iterator<Item = &'a str> + Clone) -> Result<Vec<IfName>, Status> {
    let mut taken: BTreeSet<String> = BTreeSet::new();
    for (index, name) in asked.clone().enumerate().filter(|(_, name)| !name.is_empty()) {
        let at = format!("{path}[{index}].interface_name");
        if let Some(why) = ifname_fault(name) {
            return Err(fault(&at, name, why));
        }
        if name == "lo" {
            return Err(fault(&at, name, "is reserved for the loopback interface"));
        }
        if !taken.insert(name.to_owned()) {
            return Err(fault(&at, name, "is a duplicate"));
        }
    }
    let mut names = Vec::new();
    for (index, name) in asked.enumerate() {
        let free =
            || (index.max(1)..).map(|number| format!("net{number}")).find(|name| !taken.contains(name));
        let name = match name {
            "" if index == 0 && !taken.contains(PRIMARY) => PRIMARY.to_owned(),
            "" => free().unwrap_or_default(),
            name => name.to_owned(),
        };
        taken.insert(name.clone());
        names.push(IfName::new(&name).map_err(|error| fault(path, name, error))?);
    }
    match names.iter().any(|name| name.as_str() == PRIMARY) {
        true => Ok(names),
        false => {
            let why = format!("no network is attached as {PRIMARY}, which every sandbox has");
            Err(Status::invalid_argument(format!("{path}: {why}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(asked: &[&str]) -> Result<Vec<String>, String> {
        let names = interfaces("networks", asked.iter().copied());
        names
            .map(|names| names.iter().map(ToString::to_string).collect())
            .map_err(|status| status.message().to_owned())
    }

    #[test]
    fn interface_names_are_as_requested_or_eth0_net1_net2() {
        for (asked, expected) in [
            (&["", "", ""][..], &["eth0", "net1", "net2"][..]),
            (&["", "net1", ""], &["eth0", "net1", "net2"]),
            (&["wire", "eth0"], &["wire", "eth0"]),
            (&["", "eth0"], &["net1", "eth0"]),
            (&["", "", "net1"], &["eth0", "net2", "net1"]),
            (&["123456789012345", "eth0"], &["123456789012345", "eth0"]),
        ] {
            assert_eq!(
                named(asked).as_deref(),
                Ok(expected.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>().as_slice()),
                "{asked:?}"
            );
        }
        for (asked, word) in [
            (&["net1"][..], "no network is attached as eth0"),
            (&["eth0", "eth0"], "[1].interface_name: \"eth0\": is a duplicate"),
            (&["eth0", "lo"], "[1].interface_name: \"lo\""),
            (&["eth0", "1234567890123456"], "[1].interface_name"),
            (&["eth0", "a/b"], "[1].interface_name"),
            (&["eth0", "."], "[1].interface_name"),
            (&["eth0", "x%d"], "[1].interface_name: \"x%d\""),
            (&["eth0", "a%%"], "[1].interface_name: \"a%%\""),
            (&["eth0", "all"], "[1].interface_name: \"all\""),
            (&["eth0", "default"], "[1].interface_name: \"default\""),
        ] {
            let error = named(asked).unwrap_err();
            assert!(error.contains(word), "{asked:?}: {error}");
        }
    }

    #[test]
    fn annotation_of_networks_that_is_no_list_is_explained() {
        for (text, expected) in [
            (
                "[{\"network_name\":\"a\",}]",
                "not valid JSON: there is a comma before }: remove the comma at line 1",
            ),
            ("{}", "{}: expected a list"),
            ("[7]", "[0]: 7: expected an object"),
            ("[{\"network_name\":7}]", "[0].network_name: 7: expected a string"),
            ("[{\"parameters\":[]}]", "[0].parameters: []: expected an object"),
            ("[{\"network\":\"a\"}]", "unknown key \"network\"; the keys are interfaceName, "),
            ("[{\"network_name\":null}]", "a value does not have the expected form at line 1"),
        ] {
            let annotations = [(NETWORKS.to_owned(), text.to_owned())].into_iter().collect();
            let error = source(&PodSandboxConfig { annotations, ..PodSandboxConfig::default() }).err();
            let error = error.expect("a refusal").message().to_owned();
            assert!(error.starts_with("config.annotations[\"weft.dev/networks\"]"), "{error}");
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn devices_and_ranges_are_refused_in_an_annotation() {
        for (key, value) in
            [("deviceID", r#""0000:00:1f.6""#), ("ipRanges", r#"[[{"subnet":"10.0.0.0/8"}]]"#)]
        {
            let text = format!(
                r#"[{{"network_name":"red"}},{{"network_name":"fast","parameters":{{"{key}":{value}}}}}]"#
            );
            let annotations = [(NETWORKS.to_owned(), text)].into_iter().collect();
            let error = source(&PodSandboxConfig { annotations, ..PodSandboxConfig::default() }).err();
            let error = error.expect("a refusal").message().to_owned();
            assert!(error.contains(&format!("[1].parameters[{key:?}]: ")), "{error}");
            assert!(error.ends_with("cannot be set in an annotation: use config.networks"), "{error}");
            let parameters = [(key.to_owned(), value.to_owned())].into_iter().collect();
            let network =
                SandboxNetwork { network_name: "fast".into(), parameters, ..SandboxNetwork::default() };
            let networks = vec![network];
            assert!(source(&PodSandboxConfig { networks, ..PodSandboxConfig::default() }).is_ok());
        }
    }
}
