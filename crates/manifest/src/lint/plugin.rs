//! Linter for one plugin's configuration, in a list or alone.

use std::collections::BTreeMap;

use cni::capability;
use cni::name::PluginType;
use serde_json::{Map, Value};

use super::Programs;
use super::chain::{Chain, fault, find, shown};
use super::plugins;
use crate::{NetworkRange, network_ranges};
use npwg::configuration::{Flavour, NodeConfiguration};
use npwg::nearest::hint;
use npwg::refusal::KeyPath;
use npwg::rule::Rule;

/// Keys that every plugin's configuration can have.
const PLUGIN_KEYS: &[&str] = &[
    "cniVersion",
    "cniVersions",
    "name",
    "type",
    "capabilities",
    "args",
    "ipam",
    "dns",
    "runtimeConfig",
    "prevResult",
    // Read by weft for pods of virtual machines, and by kubevirt/ipam-extensions.
    "allowPersistentIPs",
];

/// Minimum number of addresses for each node; a cluster-wide pool with fewer is reported, as by `weft ipam
/// check`.
const ADDRESSES_FOR_NODE: u128 = 4;

/// Plugins that attach further networks.
const META_PLUGINS: &[&str] = &["multus", "multus-shim", "weft"];

/// Known plugins whose options are not in the tables.
const OTHERS: &[&str] = &[
    "bond",
    "ipvtap",
    "macvtap",
    "multus",
    "multus-shim",
    "ovs",
    "route-override",
    "sriov",
    "vxlan",
    "weft",
];

impl Chain<'_, '_> {
    /// Checks the plugin at `path`.
    pub(super) fn plugin(&mut self, path: &KeyPath, plugin: &Value) {
        let Value::Object(map) = plugin else {
            self.say(fault(Rule::MalformedPluginList, path, "is not a JSON object").showing(&shown(plugin)));
            return;
        };
        match find(map, "type") {
            Some(Value::String(name)) if PluginType::new(name).is_ok() => {
                self.keys_of(name, map, path);
                if matches!(name.as_str(), "weft" | "multus") && self.subject.owner.is_none() {
                    self.meta_plugin(name, map, path);
                }
            }
            Some(other) => {
                let reason = "is not a plugin: it must be the name of a file";
                self.say(fault(Rule::InvalidPluginType, &path.key("type"), reason).showing(&shown(other)));
            }
            None => {
                self.say(fault(Rule::MissingPlugin, path, "names no plugin").hint("add \"type\""));
            }
        }
        self.args(map, path);
        self.capabilities(map, path);
        self.persistent_addresses(map, path);
        self.address_windows(map, path);
        if let Some(value) = find(map, "runtimeConfig") {
            let reason = "is filled in by the runtime; a value written here is replaced or dropped";
            let hint = "declare \"capabilities\" instead";
            self.say(
                fault(Rule::StaticRuntimeConfig, &path.key("runtimeConfig"), reason)
                    .showing(&shown(value))
                    .hint(hint),
            );
        }
    }

    fn persistent_addresses(&mut self, map: &Map<String, Value>, path: &KeyPath) {
        if let Some(value) = find(map, "allowPersistentIPs").filter(|value| !value.is_boolean()) {
            let reason = "must be true or false: whether virtual machines keep their addresses";
            self.say(
                fault(Rule::InvalidValue, &path.key("allowPersistentIPs"), reason).showing(&shown(value)),
            );
        }
    }

    /// Reports range sets with few addresses for that many nodes.
    fn address_windows(&mut self, map: &Map<String, Value>, path: &KeyPath) {
        let Some(nodes) = self.knowledge.nodes.map(u128::from) else { return };
        let mut sets: BTreeMap<usize, (u128, Vec<String>)> = BTreeMap::new();
        for NetworkRange { set, filter, .. } in network_ranges(&Value::Object(map.clone()).to_string()) {
            let (size, ranges) = sets.entry(set).or_default();
            *size = size.saturating_add(filter.count());
            ranges.push(filter.range.to_string());
        }
        for (size, ranges) in sets.into_values().filter(|(size, _)| *size < ADDRESSES_FOR_NODE * nodes) {
            let ranges = ranges.join(", ");
            let effect = if size < nodes {
                format!("at most {size} pods have one at a time")
            } else {
                "each ADD and DEL sends requests to the API server".to_owned()
            };
            let reason = format!(
                "{ranges} has {size} addresses for {nodes} nodes, fewer than {ADDRESSES_FOR_NODE} for each: {effect}"
            );
            self.say(fault(Rule::FewAddresses, &path.key("ipam"), reason).hint("enlarge the range"));
        }
    }

    fn args(&mut self, map: &Map<String, Value>, path: &KeyPath) {
        let Some(args) = find(map, "args") else { return };
        let path = path.key("args");
        match args {
            Value::Object(args) => match find(args, "cni") {
                None | Some(Value::Object(_)) => {}
                Some(other) => self.say(
                    fault(Rule::MalformedArgs, &path.key("cni"), "must be an object").showing(&shown(other)),
                ),
            },
            other => {
                self.say(fault(Rule::MalformedArgs, &path, "must be an object").showing(&shown(other)));
            }
        }
    }

    fn capabilities(&mut self, map: &Map<String, Value>, path: &KeyPath) {
        let Some(value) = find(map, "capabilities") else { return };
        let path = path.key("capabilities");
        let Value::Object(declared) = value else {
            self.say(fault(Rule::InvalidCapabilities, &path, "must be an object").showing(&shown(value)));
            return;
        };
        for (name, on) in declared {
            if !on.is_boolean() && !on.is_null() {
                self.say(
                    fault(Rule::InvalidCapabilities, &path.key(name), "must be true or false")
                        .showing(&shown(on)),
                );
            } else if !capability::ALL.contains(&name.as_str()) && !name.contains('.') {
                let near = hint(name, capability::ALL);
                self.say(
                    fault(Rule::UnknownCapability, &path.key(name), "is not a known capability")
                        .showing(&shown(on))
                        .hint(near),
                );
            }
        }
    }

    /// Checks a known plugin's keys and those in `ipam`.
    fn keys_of(&mut self, name: &str, map: &Map<String, Value>, path: &KeyPath) {
        let knowledge = self.knowledge;
        let plugin = plugins::canonical(name);
        match knowledge.plugin_keys.get(plugin) {
            Some(own) => {
                self.unknown_keys(name, own, PLUGIN_KEYS, map, path);
                self.refused(map, path, &|call, provided| plugin_config::check(plugin, call, provided));
            }
            None => self.unknown_type(name, knowledge.plugin_keys.keys(), path),
        }
        // A chained plugin never calls an IPAM plugin.
        let Some(Value::Object(ipam)) = find(map, "ipam") else { return };
        let Some(name) = find(ipam, "type").and_then(Value::as_str) else { return };
        if name.is_empty() || plugin_config::CHAINED.contains(&plugin) {
            return;
        }
        // A foreign plugin may complete or read its `ipam` in any way.
        if !knowledge.plugin_keys.contains_key(plugin) {
            return;
        }
        let place = path.key("ipam");
        match knowledge.ipam_keys.get(name) {
            Some(own) => {
                self.unknown_keys(name, own, &["type"], ipam, &place);
                self.refused(map, path, &|call, provided| plugin_config::check_ipam(name, call, provided));
            }
            None if knowledge.plugin_keys.contains_key(plugins::canonical(name)) => {
                let reason = "is not an IPAM plugin: it attaches interfaces or changes them";
                let hint = format!("name one of {}", plugin_config::IPAM_PLUGINS.join(", "));
                let value = shown(&Value::from(name));
                self.say(fault(Rule::InvalidValue, &place.key("type"), reason).showing(&value).hint(hint));
            }
            None => self.unknown_type(name, knowledge.ipam_keys.keys(), &place),
        }
    }

    /// Reports a plugin name that is probably misspelled.
    fn unknown_type<'k>(&mut self, name: &str, known: impl Iterator<Item = &'k String>, path: &KeyPath) {
        let known: Vec<&str> = known.map(String::as_str).chain(OTHERS.iter().copied()).collect();
        let near = if known.contains(&name) { String::new() } else { hint(name, &known) };
        let (at, value) = (path.key("type"), shown(&Value::from(name)));
        let missing = self.knowledge.programs.as_ref().filter(|programs| !programs.names.contains(name));
        match missing {
            _ if !near.is_empty() => {
                let fault = fault(Rule::UnknownPluginType, &at, "is not a known plugin");
                self.say(fault.showing(&value).hint(near));
            }
            Some(Programs { directories, names: _ }) if !META_PLUGINS.contains(&name) => {
                let reason = format!("there is no program of this name in {}", directories.join(", "));
                let hint = "install it on every node, or name its directory with --plugin-dir";
                self.say(fault(Rule::PluginNotFound, &at, reason).showing(&value).hint(hint));
            }
            _ => {}
        }
    }

    fn unknown_keys(
        &mut self,
        name: &str,
        own: &[String],
        of_all: &[&str],
        map: &Map<String, Value>,
        path: &KeyPath,
    ) {
        let known: Vec<&str> = own.iter().map(String::as_str).chain(of_all.iter().copied()).collect();
        let is_known = |key: &str| key.contains('.') || known.iter().any(|known| cni::fold::same(known, key));
        let unknown: Vec<&String> = map.keys().filter(|key| !is_known(key)).collect();
        for key in unknown {
            let reason = format!("is not a key of {name}; it has no effect");
            self.say(fault(Rule::UnknownKey, &path.key(key), reason).hint(hint(key, &known)));
        }
    }

    /// Checks the meta-plugin's configuration with the meta-plugin's reader.
    fn meta_plugin(&mut self, name: &str, map: &Map<String, Value>, path: &KeyPath) {
        let flavour = if name == "multus" { Flavour::Multus } else { Flavour::Weft };
        let text = Value::Object(map.clone()).to_string();
        match NodeConfiguration::read(text.as_bytes(), flavour) {
            Err(error) => self.say(fault(Rule::InvalidNodeConfiguration, path, error.to_string())),
            Ok(node) => {
                for warning in node.warnings {
                    let at = super::refused::joined(path, &warning.fault.path);
                    self.say(fault(warning.fault.rule, &at, warning.fault.reason).hint(warning.fault.hint));
                }
            }
        }
    }
}
