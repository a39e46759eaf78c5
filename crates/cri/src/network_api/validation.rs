//! Validates a network before it is stored: every check that does not need a plugin.
//!
//! Only the first error is returned, with the path in the message and the value. Nothing is corrected silently, except
//! that an empty name gets the documented default.

use std::collections::BTreeSet;

use cni::Version;
use cni::name::{NetworkName, PluginType};
use cni::network::Network;
use cni::object::{DOCUMENT_MAX, Object};
use ipam::{Range, RangeSet};
use ipnet::IpNet;
use npwg::definition::META_PLUGINS;
use npwg::metadata::{definition_name_fault, label_fault};
use tonic::Status;

use super::conflist::{self, RESERVED};
use super::{CniConfig, CniPlugin, FALLBACK, IpRange, Name, NetworkConfig, NetworkMetadata};

/// Capability that a plugin must declare to receive `ip_ranges`.
pub const IP_RANGES: &str = "ipRanges";
/// Maximum number of plugins in a network.
const PLUGINS_MAX: usize = 32;
/// Maximum number of ranges in a network.
const RANGES_MAX: usize = 64;
/// Maximum number of capabilities in a plugin.
const CAPABILITIES_MAX: usize = 32;
/// Maximum length of uids and capability names, in bytes.
const WORD_MAX: usize = 253;

/// Network that passed validation.
#[derive(Clone, Debug)]
pub struct Checked {
    /// Configuration as received.
    pub config: NetworkConfig,
    /// Name that sandboxes use.
    pub name: Name,
    /// Configuration list to execute.
    pub network: Network,
    /// Plugins that must be installed for this list.
    pub needs: Vec<PluginType>,
    /// `ipRanges` value for each sandbox: one set per address family, in the order received.
    pub ranges: Vec<Vec<IpNet>>,
}

/// Returns an INVALID_ARGUMENT error: path, value (at most 200 characters) and reason.
pub fn fault(path: &str, value: impl std::fmt::Debug, why: impl std::fmt::Display) -> Status {
    let value: String = format!("{value:?}").chars().take(200).collect();
    Status::invalid_argument(format!("{path}: {value}: {why}"))
}

/// Validates network metadata and returns the network name; `path` leads to the metadata in the message.
pub fn name(metadata: Option<&NetworkMetadata>, path: &str) -> Result<Name, Status> {
    let Some(metadata) = metadata else {
        return Err(Status::invalid_argument(format!("{path}: missing")));
    };
    let NetworkMetadata { name, namespace, uid, generation: _ } = metadata;
    if name == FALLBACK {
        let why = "this network comes from the CNI configuration directory: change its file there";
        return Err(fault(&format!("{path}.name"), name, why));
    }
    if let Some(why) = definition_name_fault(name) {
        return Err(fault(&format!("{path}.name"), name, why));
    }
    if let Some(why) = label_fault(namespace).filter(|_| !namespace.is_empty()) {
        return Err(fault(&format!("{path}.namespace"), namespace, why));
    }
    if uid.len() > WORD_MAX || uid.chars().any(char::is_control) {
        let why = format!("must be at most {WORD_MAX} characters, none of them a control character");
        return Err(fault(&format!("{path}.uid"), uid, why));
    }
    Ok(Name::of(metadata))
}

/// Validates a network.
///
/// # Errors
/// INVALID_ARGUMENT with the path to the first invalid field.
pub fn check(config: Option<NetworkConfig>) -> Result<Checked, Status> {
    let Some(config) = config else { return Err(Status::invalid_argument("config: missing")) };
    let name = name(config.metadata.as_ref(), "config.metadata")?;
    let NetworkConfig { metadata: _, ip_ranges, network_type, cniv1_config } = &config;
    if *network_type != 0 {
        return Err(fault("config.network_type", network_type, "must be 0: CNIv1"));
    }
    let Some(cni) = cniv1_config else {
        return Err(Status::invalid_argument(
            "config.cniv1_config: missing: it contains the plugins to execute",
        ));
    };
    check_list(cni, &name)?;
    let path = "config.cniv1_config";
    let text = conflist::render(cni, &name.name).map_err(|error| fault(path, "", error))?;
    if text.len() > DOCUMENT_MAX {
        return Err(fault(path, text.len(), format_args!("must be at most {DOCUMENT_MAX} bytes as JSON")));
    }
    let network =
        Network::parse(text.as_bytes(), path).map_err(|error| Status::invalid_argument(error.to_string()))?;
    for (index, plugin) in network.plugins.iter().enumerate() {
        check_ipam(plugin, index)?;
    }
    let capabilities = network.capabilities().map_err(|error| Status::invalid_argument(error.to_string()))?;
    let ranges = check_ranges(ip_ranges, &capabilities)?;
    let needs = network.needs().map_err(|error| Status::invalid_argument(error.to_string()))?;
    Ok(Checked { name, network, needs, ranges, config })
}

fn check_list(cni: &CniConfig, name: &Name) -> Result<(), Status> {
    let CniConfig { cni_version, network_name, disable_check: _, plugins } = cni;
    let path = "config.cniv1_config";
    if Version::from_wire(cni_version).is_none() || cni_version.is_empty() {
        let known: Vec<&str> = Version::ALL.iter().map(|version| version.as_str()).collect();
        let why = format!("must be one of {}", known.join(", "));
        return Err(fault(&format!("{path}.cni_version"), cni_version, why));
    }
    let (named, at) = match network_name.as_str() {
        "" => (name.name.as_str(), "config.metadata.name".to_owned()),
        named => (named, format!("{path}.network_name")),
    };
    NetworkName::new(named).map_err(|error| fault(&at, named, error))?;
    if plugins.is_empty() || plugins.len() > PLUGINS_MAX {
        let why = format!("must have 1 to {PLUGINS_MAX} plugins");
        return Err(fault(&format!("{path}.plugins"), plugins.len(), why));
    }
    plugins.iter().enumerate().try_for_each(|(index, plugin)| check_plugin(plugin, index))
}

fn check_plugin(plugin: &CniPlugin, index: usize) -> Result<(), Status> {
    let CniPlugin { r#type, capabilities, parameters } = plugin;
    let path = format!("config.cniv1_config.plugins[{index}]");
    PluginType::new(r#type).map_err(|error| fault(&format!("{path}.type"), r#type, error))?;
    if META_PLUGINS.contains(&r#type.as_str()) {
        let why = "would attach the sandbox's networks again, without end";
        return Err(fault(&format!("{path}.type"), r#type, why));
    }
    if capabilities.len() > CAPABILITIES_MAX {
        let why = format!("must be at most {CAPABILITIES_MAX} capabilities");
        return Err(fault(&format!("{path}.capabilities"), capabilities.len(), why));
    }
    let mut seen = BTreeSet::new();
    for (place, capability) in capabilities.iter().enumerate() {
        let at = format!("{path}.capabilities[{place}]");
        let legal = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        if capability.is_empty() || capability.len() > WORD_MAX || !capability.chars().all(legal) {
            return Err(fault(&at, capability, "is not a capability name"));
        }
        if !seen.insert(capability) {
            return Err(fault(&at, capability, "is a duplicate"));
        }
    }
    for key in parameters.keys() {
        if key.is_empty() || key.chars().any(char::is_control) {
            return Err(fault(&format!("{path}.parameters"), key, "is not a key"));
        }
        if let Some(reserved) = RESERVED.iter().find(|reserved| cni::fold::same(reserved, key)) {
            let why = format!(
                "{reserved} is not a field of the plugin: the message has a field, or the runtime sets it"
            );
            return Err(fault(&format!("{path}.parameters"), key, why));
        }
    }
    Ok(())
}

/// Checks that an `ipam` object names a plugin; an empty object means no IPAM.
fn check_ipam(plugin: &Object, index: usize) -> Result<(), Status> {
    let path = format!("config.cniv1_config.plugins[{index}].parameters[\"ipam\"]");
    let Some(written) = plugin.get("ipam") else { return Ok(()) };
    let refused = |why: &dyn std::fmt::Display| fault(&path, written.get(), why);
    let ipam = plugin.read_object("ipam").map_err(|error| refused(&error))?.unwrap_or_default();
    if ipam.is_empty() {
        return Ok(());
    }
    let named = ipam.text("type").map_err(|error| refused(&error))?;
    let Some(named) = named else { return Err(refused(&"it has no \"type\"")) };
    PluginType::new(&named).map(drop).map_err(|error| refused(&error))
}

fn check_ranges(written: &[IpRange], capabilities: &BTreeSet<String>) -> Result<Vec<Vec<IpNet>>, Status> {
    if written.is_empty() {
        return Ok(Vec::new());
    }
    if written.len() > RANGES_MAX {
        return Err(fault("config.ip_ranges", written.len(), format_args!("must be at most {RANGES_MAX}")));
    }
    if !capabilities.contains(IP_RANGES) {
        let why = "no plugin declares the capability ipRanges, so the ranges would have no effect";
        return Err(fault("config.ip_ranges", written.len(), why));
    }
    let (mut sets, mut ranges): (Vec<Vec<IpNet>>, Vec<Vec<Range>>) = (Vec::new(), Vec::new());
    for (index, IpRange { cidr }) in written.iter().enumerate() {
        let path = format!("config.ip_ranges[{index}].cidr");
        let subnet: IpNet =
            cidr.parse().map_err(|_| fault(&path, cidr, "must be a prefix, for example 10.1.0.0/24"))?;
        if subnet.addr() != subnet.network() {
            return Err(fault(&path, cidr, format_args!("has host bits: the prefix is {}", subnet.trunc())));
        }
        let range =
            Range::between(subnet, None, None).map_err(|refusal| fault(&path, cidr, refusal.reason))?;
        let is_v4 = subnet.addr().is_ipv4();
        let of_family = sets.iter().position(|set| set.iter().any(|known| known.addr().is_ipv4() == is_v4));
        let place = of_family.unwrap_or_else(|| {
            sets.push(Vec::new());
            ranges.push(Vec::new());
            sets.len() - 1
        });
        let overlapping = |known: &&IpNet| known.contains(&subnet) || subnet.contains(*known);
        if let Some(known) = sets.get(place).and_then(|set| set.iter().find(overlapping)) {
            return Err(fault(&path, cidr, format_args!("overlaps with {known}")));
        }
        sets.get_mut(place).into_iter().for_each(|set| set.push(subnet));
        ranges.get_mut(place).into_iter().for_each(|set| set.push(range.clone()));
    }
    for set in ranges {
        RangeSet::new(set)
            .map_err(|_| fault("config.ip_ranges", written.len(), "is not a valid set of ranges"))?;
    }
    Ok(sets)
}
