//! Linter of one plugin's configuration, in a list or alone.

use cni::capability;
use cni::name::PluginType;
use serde_json::{Map, Value};

use super::chain::{Chain, fault, find, shown};
use super::plugins;
use super::values::{self, Form};
use npwg::configuration::{Flavour, NodeConfiguration};
use npwg::nearest::hint;
use npwg::refusal::KeyPath;
use npwg::rule::Rule;

/// Keys of every plugin's configuration.
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
];

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
                self.say(fault(Rule::MissingPlugin, path, "names no plugin").cure("add \"type\""));
            }
        }
        self.args(map, path);
        self.capabilities(map, path);
        if let Some(value) = find(map, "runtimeConfig") {
            let reason = "is filled in by the runtime; a value written here is replaced or dropped";
            let cure = "declare \"capabilities\" instead";
            self.say(
                fault(Rule::StaticRuntimeConfig, &path.key("runtimeConfig"), reason)
                    .showing(&shown(value))
                    .cure(cure),
            );
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
            if !on.is_boolean() {
                self.say(
                    fault(Rule::InvalidCapabilities, &path.key(name), "must be true or false")
                        .showing(&shown(on)),
                );
            } else if !capability::ALL.contains(&name.as_str()) && !name.contains('.') {
                let near = hint(name, capability::ALL);
                self.say(
                    fault(Rule::UnknownCapability, &path.key(name), "is not a known capability")
                        .showing(&shown(on))
                        .cure(near),
                );
            }
        }
    }

    /// Checks the plugin's keys and those of its `ipam`, for plugins of the tables.
    fn keys_of(&mut self, name: &str, map: &Map<String, Value>, path: &KeyPath) {
        let knowledge = self.knowledge;
        match knowledge.plugin_keys.get(plugins::canonical(name)) {
            Some(own) => {
                self.unknown_keys(name, own, PLUGIN_KEYS, map, path);
                if let Some(row) = plugins::plugin(name) {
                    self.values(row.options, map, path);
                    self.missing(row.missing(map), name, path);
                }
            }
            None => self.unknown_type(name, knowledge.plugin_keys.keys(), path),
        }
        let Some(Value::Object(ipam)) = find(map, "ipam") else { return };
        let Some(name) = find(ipam, "type").and_then(Value::as_str) else { return };
        let path = path.key("ipam");
        match knowledge.ipam_keys.get(name) {
            Some(own) => {
                self.unknown_keys(name, own, &["type"], ipam, &path);
                if let Some(row) = plugins::address_manager(name) {
                    self.values(row.options, ipam, &path);
                }
                self.missing(plugins::missing_range(name, ipam, map), name, &path);
            }
            None => self.unknown_type(name, knowledge.ipam_keys.keys(), &path),
        }
    }

    /// Checks the values of the options.
    fn values(&mut self, rows: &[(&str, Form)], map: &Map<String, Value>, path: &KeyPath) {
        for (key, value) in map.iter().filter(|(_, value)| !value.is_null()) {
            let form = rows.iter().find(|(known, _)| cni::fold::same(known, key)).map(|(_, form)| *form);
            form.into_iter().for_each(|form| self.value(form, value, &path.key(key)));
        }
    }

    fn value(&mut self, form: Form, value: &Value, path: &KeyPath) {
        match (form, value) {
            (Form::Each(form), Value::Array(list)) => {
                list.iter().enumerate().for_each(|(at, value)| self.value(*form, value, &path.index(at)));
            }
            (Form::Fields(rows), Value::Object(map)) => self.values(rows, map, path),
            _ => {
                if let Some(reason) = values::fault_of(form, value) {
                    self.say(fault(Rule::InvalidValue, path, reason).showing(&shown(value)));
                }
            }
        }
    }

    fn missing(&mut self, missing: Option<(&str, &str)>, name: &str, path: &KeyPath) {
        if let Some((key, why)) = missing {
            self.say(fault(Rule::MissingKey, path, format!("{name} has no {key}: {why}")));
        }
    }

    /// Reports a probable misspelling of a plugin's name.
    fn unknown_type<'k>(&mut self, name: &str, known: impl Iterator<Item = &'k String>, path: &KeyPath) {
        let known: Vec<&str> = known.map(String::as_str).chain(OTHERS.iter().copied()).collect();
        if known.contains(&name) {
            return;
        }
        let near = hint(name, &known);
        if !near.is_empty() {
            let reason = "is not a known plugin";
            let fault = fault(Rule::UnknownPluginType, &path.key("type"), reason);
            self.say(fault.showing(&shown(&Value::from(name))).cure(near));
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
            self.say(fault(Rule::UnknownKey, &path.key(key), reason).cure(hint(key, &known)));
        }
    }

    /// Checks the meta-plugin's configuration with its own reader.
    fn meta_plugin(&mut self, name: &str, map: &Map<String, Value>, path: &KeyPath) {
        let flavour = if name == "multus" { Flavour::Multus } else { Flavour::Weft };
        let text = Value::Object(map.clone()).to_string();
        match NodeConfiguration::read(text.as_bytes(), flavour) {
            Err(error) => self.say(fault(Rule::InvalidNodeConfiguration, path, error.to_string())),
            Ok(node) => {
                for warning in node.warnings {
                    let at = warning.fault.path.steps().iter().fold(path.clone(), |path, step| match step {
                        npwg::refusal::Step::Key(key) => path.key(key),
                        npwg::refusal::Step::Index(index) => path.index(*index),
                    });
                    self.say(fault(warning.fault.rule, &at, warning.fault.reason).cure(warning.fault.cure));
                }
            }
        }
    }
}
