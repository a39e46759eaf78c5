//! Errors for which a built-in plugin's ADD refuses the configuration.
//!
//! The linter calls the function with which the plugin itself reads the configuration. After each error it
//! leaves out the invalid value and reads again, so that it finds several errors at once.

use cni::config::Config;
use cni::environment::Environment;
use cni::error::{Error, InvalidKey};
use cni::invocation::Call;
use cni::name::NetworkName;
use cni::version::Version;
use plugin_config::Provided;
use serde_json::{Map, Value};

use super::chain::{Chain, fault, find};
use npwg::refusal::{KeyPath, Step};
use npwg::rule::Rule;

/// Maximum number of errors for one plugin.
const ERRORS_MAX: usize = 16;
/// Keys that the runtime writes, whatever the configuration contains.
const OF_RUNTIME: [&str; 2] = ["runtimeConfig", "prevResult"];

/// Function that reads the configuration as ADD does; `None` for a plugin that is not built in.
type Check<'a> = &'a dyn Fn(&Call, Provided) -> Option<Result<(), Error>>;

impl Chain<'_, '_> {
    /// Reports why ADD refuses the plugin at `path`.
    pub(super) fn refused(&mut self, map: &Map<String, Value>, path: &KeyPath, check: Check<'_>) {
        let mut value = self.as_executed(map);
        let provided = self.provided(map);
        let mut known: Vec<KeyPath> = Vec::new();
        while known.len() < ERRORS_MAX {
            let Ok(config) = Config::read(value.to_string().into_bytes(), Version::ALL) else { return };
            let call = Call { config, environment: Environment::default() };
            let Some(Err(error)) = check(&call, provided) else { return };
            let Some(key) = error.invalid_key.as_deref() else {
                self.say(fault(Rule::InvalidValue, path, error.to_string()));
                return;
            };
            let InvalidKey { path: name, value: shown, why } = key;
            let place = locate(&value, name);
            if known.contains(&place.path) {
                return;
            }
            // A key may only be missing because its invalid value was left out.
            if shown.is_empty() && !known.is_empty() {
                return;
            }
            let at = joined(path, &place.path);
            self.say(match (shown.is_empty(), place.rest.is_empty()) {
                (true, false) => fault(Rule::MissingKey, &at, format!("{name} is {why}")),
                (true, true) => fault(Rule::InvalidValue, &at, why),
                (false, true) => fault(Rule::InvalidValue, &at, why).showing(shown),
                (false, false) => fault(Rule::InvalidValue, &at, format!("{name}: {shown}: {why}")),
            });
            if !place.rest.is_empty() || !clear(&mut value, &place.path) {
                return;
            }
            known.push(place.path);
        }
    }

    /// Returns a plugin's configuration as the runtime passes it with ADD.
    fn as_executed(&self, map: &Map<String, Value>) -> Value {
        let mut map = map.clone();
        map.retain(|key, _| !OF_RUNTIME.iter().any(|other| cni::fold::same(key, other)));
        let text = |key: &str| find(self.whole, key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let name = Some(text("name")).filter(|name| NetworkName::new(name).is_ok());
        let version = match text("cniVersion").as_str() {
            "" if find(self.whole, "cniVersions").is_none() => Version::V0_1_0,
            text => Version::from_wire(text).unwrap_or(Version::LATEST),
        };
        for key in ["name", "cniVersion"] {
            map.retain(|other, _| !cni::fold::same(key, other));
        }
        map.insert("name".to_owned(), name.unwrap_or_else(|| "network".to_owned()).into());
        map.insert("cniVersion".to_owned(), version.as_str().into());
        Value::Object(map)
    }

    fn provided(&self, map: &Map<String, Value>) -> Provided {
        let capabilities = find(map, "capabilities").and_then(Value::as_object);
        let has =
            |name: &str| capabilities.is_some_and(|declared| declared.get(name) == Some(&Value::Bool(true)));
        Provided { ranges: has("ipRanges"), device: has("deviceID") || self.subject.has_resource }
    }
}

/// Where a key is that an error names.
struct Place<'a> {
    /// Part of the path that the configuration contains.
    path: KeyPath,
    /// The part that the configuration lacks.
    rest: &'a str,
}

/// Finds the key with the path `text`, such as `ipam.ranges[0][0].subnet`; a key may contain dots.
fn locate<'a>(value: &Value, text: &'a str) -> Place<'a> {
    let mut place = Place { path: KeyPath::root(), rest: text };
    let mut value = value;
    loop {
        let text = place.rest.strip_prefix('.').unwrap_or(place.rest);
        let (step, inner, rest) = match value {
            Value::Object(map) => {
                let named = map.iter().filter_map(|(key, inner)| {
                    let (head, rest) = text.split_at_checked(key.len())?;
                    let ends = rest.is_empty() || rest.starts_with(['.', '[']);
                    (ends && cni::fold::same(head, key)).then_some((key, inner, rest))
                });
                let Some((key, inner, rest)) = named.max_by_key(|(key, ..)| key.len()) else { return place };
                (Step::Key(key.clone()), inner, rest)
            }
            Value::Array(list) => {
                let Some((index, rest)) = text.strip_prefix('[').and_then(|text| text.split_once(']')) else {
                    return place;
                };
                let Ok(index) = index.parse::<usize>() else { return place };
                let Some(inner) = list.get(index) else { return place };
                (Step::Index(index), inner, rest)
            }
            _ => return place,
        };
        place = Place { path: extended(&place.path, &step), rest };
        value = inner;
        if rest.is_empty() {
            return place;
        }
    }
}

fn extended(path: &KeyPath, step: &Step) -> KeyPath {
    match step {
        Step::Key(key) => path.key(key),
        Step::Index(index) => path.index(*index),
    }
}

/// Returns `path` below `base`.
pub(super) fn joined(base: &KeyPath, path: &KeyPath) -> KeyPath {
    path.steps().iter().fold(base.clone(), |base, step| extended(&base, step))
}

/// Sets the value at `path` to `null`, which counts as absent; returns whether there is one.
fn clear(value: &mut Value, path: &KeyPath) -> bool {
    let mut value = value;
    for step in path.steps() {
        let inner = match step {
            Step::Key(key) => value.get_mut(key),
            Step::Index(index) => value.get_mut(index),
        };
        let Some(inner) = inner else { return false };
        value = inner;
    }
    *value = Value::Null;
    !path.is_root()
}
