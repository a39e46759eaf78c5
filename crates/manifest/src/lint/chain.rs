//! Linter for a CNI configuration: a single plugin or a list, on disk or inside a definition.
//!
//! The checks go key by key, so that each error has a position. Finally the same reader as for plans checks the whole
//! configuration and reports anything these checks miss.

use cni::name::NetworkName;
use cni::network::Network;
use cni::version::{Triple, Version};
use cni::wording;
use serde_json::{Map, Value};

use super::{Knowledge, Place, Report};
use npwg::definition::{inline, refuse_meta_plugin};
use npwg::nearest::nearest;
use npwg::refusal::{Fault, KeyPath, Step, quote};
use npwg::rule::{Rule, Severity};

/// Keys in a list. Plugins may read others, so only a near miss is reported.
const LIST_KEYS: &[&str] =
    &["cniVersion", "cniVersions", "name", "plugins", "disableCheck", "disableGC", "loadOnlyInlinedPlugins"];

/// Configuration to check.
pub(super) struct Subject<'a> {
    /// Name in messages.
    pub(super) name: &'a str,
    /// Name of the definition that contains it.
    pub(super) owner: Option<&'a str>,
    /// Whether the definition names a resource, whose devices the plugins get.
    pub(super) has_resource: bool,
    /// Place in the file.
    pub(super) place: Place<'a>,
}

pub(super) fn look(report: &mut Report<'_>, subject: &Subject<'_>, text: &str, knowledge: &Knowledge) {
    let value: Value = match serde_json::from_str(text) {
        Ok(value) => value,
        Err(cause) => {
            let at = wording::offset(text.as_bytes(), cause.line(), cause.column());
            let why = wording::syntax_error(text.as_bytes(), &cause);
            let fault = Fault::new(Rule::MalformedConfig, subject.name, format!("is not JSON: {why}"));
            report.add_inside(subject.place, text, at, fault);
            return;
        }
    };
    let none = Map::new();
    let whole = value.as_object().unwrap_or(&none);
    let mut chain = Chain { report, subject, text, knowledge, whole, errors: 0 };
    match &value {
        Value::Object(map) => {
            chain.duplicates();
            chain.object(map);
        }
        other => {
            let fault = fault(Rule::MalformedConfig, &KeyPath::root(), "is not a JSON object");
            let is_quoted = other.as_str().is_some_and(|text| text.trim_start().starts_with('{'));
            let hint = if is_quoted { "remove the quotation marks around the object" } else { "" };
            chain.say(fault.showing(&shown(other)).hint(hint));
        }
    }
    chain.as_the_plan_reads_it();
}

/// Returns the value at `key`, matched exactly or else without case, as plugins do.
pub(super) fn find<'a>(map: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    let folded = || map.iter().rev().find(|(k, _)| cni::fold::same(k, key)).map(|(_, value)| value);
    map.get(key).or_else(folded).filter(|value| !value.is_null())
}

/// Returns a fault at `path`; [`Chain::say`] adds the subject.
pub(super) fn fault(rule: Rule, path: &KeyPath, reason: impl Into<String>) -> Fault {
    Fault::new(rule, "", reason).at(path.clone())
}

/// Returns a value shortened for a message.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Null | Value::Object(_) | Value::Array(_) => String::new(),
        other => other.to_string(),
    }
}

/// Linter for one configuration.
pub(super) struct Chain<'a, 'b> {
    report: &'a mut Report<'b>,
    pub(super) subject: &'a Subject<'a>,
    text: &'a str,
    pub(super) knowledge: &'a Knowledge,
    /// The whole configuration, as parsed.
    pub(super) whole: &'a Map<String, Value>,
    errors: usize,
}

impl Chain<'_, '_> {
    pub(super) fn say(&mut self, fault: Fault) {
        let fault = Fault { subject: self.subject.name.to_owned(), ..fault };
        self.errors += usize::from(fault.rule.severity() == Severity::Error);
        self.report.add_at_path(self.subject.place, self.text, fault);
    }

    fn object(&mut self, map: &Map<String, Value>) {
        let root = KeyPath::root();
        self.name(map);
        self.version(map);
        match find(map, "plugins") {
            Some(Value::Array(plugins)) => {
                self.near_misses(map, LIST_KEYS, &root);
                if plugins.is_empty() {
                    self.say(fault(Rule::MissingPlugin, &root.key("plugins"), "lists no plugin"));
                }
                let at = |index: usize| root.key("plugins").index(index);
                let each: Vec<_> = plugins.iter().enumerate().map(|(index, one)| (at(index), one)).collect();
                for (path, plugin) in &each {
                    self.plugin(path, plugin);
                }
                self.order(&each);
            }
            Some(other) => {
                self.say(
                    fault(Rule::MalformedPluginList, &root.key("plugins"), "must be a list")
                        .showing(&shown(other)),
                );
            }
            None if find(map, "type").is_some() => {
                let plugin = Value::Object(map.clone());
                self.plugin(&root, &plugin);
                self.order(&[(root, &plugin)]);
            }
            None => {
                let fault = fault(Rule::MissingPlugin, &root, "names no plugin");
                let near = |key: &&String| nearest(key, &["type", "plugins"]).is_some();
                let hint = match map.keys().find(near) {
                    Some(key) => {
                        let meant = nearest(key, &["type", "plugins"]).unwrap_or_default();
                        format!("the key is {key:?}: did you mean {meant:?}?")
                    }
                    None => "write \"type\" for one plugin, or \"plugins\" for a list".to_owned(),
                };
                self.say(fault.hint(hint));
            }
        }
    }

    fn name(&mut self, map: &Map<String, Value>) {
        let path = KeyPath::root().key("name");
        let owner = self.subject.owner;
        match (find(map, "name"), owner) {
            (Some(Value::String(name)), _) if !name.is_empty() => {
                let value = Value::from(name.as_str());
                if NetworkName::new(name).is_err() {
                    let reason =
                        "is not a network name: letters, digits, _ . and -, beginning with a letter or digit";
                    self.say(fault(Rule::InvalidConfigName, &path, reason).showing(&shown(&value)));
                } else if let Some(owner) = owner.filter(|owner| owner != name) {
                    let reason = format!(
                        "differs from the definition's name {owner}, which the specification advises against"
                    );
                    self.say(fault(Rule::NameMismatch, &path, reason).showing(&shown(&value)));
                }
            }
            (Some(other), _) if !other.is_string() => {
                self.say(fault(Rule::InvalidConfigName, &path, "must be a string").showing(&shown(other)));
            }
            (_, Some(owner)) => {
                let reason = format!("has no name: plugins get the name of the definition, {owner:?}");
                self.say(fault(Rule::UnnamedConfig, &KeyPath::root(), reason));
            }
            (_, None) => {
                self.say(
                    fault(Rule::MissingConfigName, &KeyPath::root(), "has no name").hint("add \"name\""),
                );
            }
        }
    }

    fn version(&mut self, map: &Map<String, Value>) {
        let path = KeyPath::root().key("cniVersion");
        let several = find(map, "cniVersions").is_some();
        match find(map, "cniVersion") {
            Some(Value::String(text)) if !text.is_empty() => {
                let value = Value::from(text.as_str());
                let newest = Version::LATEST;
                if Version::from_wire(text).is_some() || several {
                    return;
                }
                let reason = match Triple::parse(text) {
                    Some(version) if version > newest.triple() => {
                        format!("is newer than {newest}, the newest there is")
                    }
                    _ => "is not a CNI version".to_owned(),
                };
                self.say(
                    fault(Rule::InvalidCniVersion, &path, reason)
                        .showing(&shown(&value))
                        .hint(format!("write {newest:?}", newest = newest.as_str())),
                );
            }
            Some(other) if !other.is_string() => {
                self.say(
                    fault(Rule::InvalidCniVersion, &path, "must be a string")
                        .showing(&shown(other))
                        .hint("write it in quotes"),
                );
            }
            _ if several => {}
            _ => {
                let reason =
                    "has no cniVersion: plugins read it as 0.1.0, which has no interfaces and no CHECK";
                let hint = format!("add \"cniVersion\": \"{}\"", Version::LATEST);
                self.say(fault(Rule::MissingCniVersion, &KeyPath::root(), reason).hint(hint));
            }
        }
    }

    /// Reports keys that occur twice in one object. In `tuning`'s `sysctl` the plugin refuses them.
    fn duplicates(&mut self) {
        for (path, offset) in crate::position::duplicate_keys(self.text) {
            let is_sysctl = matches!(path.steps(), [.., Step::Key(outer), _] if outer == "sysctl");
            let fault = match is_sysctl {
                true => fault(Rule::InvalidValue, &path, "the key occurs twice"),
                false => fault(Rule::DuplicateKey, &path, "occurs twice: only the last value counts"),
            };
            let fault =
                Fault { subject: self.subject.name.to_owned(), ..fault }.hint("remove one of the two");
            self.errors += usize::from(is_sysctl);
            self.report.add_inside(self.subject.place, self.text, offset, fault);
        }
    }

    fn near_misses(&mut self, map: &Map<String, Value>, known: &[&str], path: &KeyPath) {
        for key in map.keys().filter(|key| !known.iter().any(|known| cni::fold::same(known, key))) {
            if let Some(near) = nearest(key, known) {
                let reason = "is not a key of a list";
                self.say(
                    fault(Rule::UnknownKey, &path.key(key), reason).hint(format!("did you mean {near}?")),
                );
            }
        }
    }

    /// Checks the whole configuration with the same reader as for plans.
    fn as_the_plan_reads_it(&mut self) {
        let read = match self.subject.owner {
            Some(owner) => inline(owner, self.text),
            None => Network::parse(self.text.as_bytes(), "configuration"),
        };
        match read {
            Err(error) if self.errors == 0 => {
                let reason = quote(&error.to_string());
                self.say(fault(Rule::MalformedConfig, &KeyPath::root(), reason.trim_matches('"')));
            }
            Ok(network) if self.subject.owner.is_some() => {
                if let Err(refusal) = refuse_meta_plugin(&network, self.subject.name) {
                    let mut fault = refusal.fault().clone();
                    // The list around a single configuration is generated; the path in the file is the root.
                    if !self.text.contains("plugins") {
                        fault.path = KeyPath::root().key("type");
                    }
                    self.report.add_at_path(self.subject.place, self.text, fault);
                }
            }
            _ => {}
        }
    }
}
