//! Random chains of plugins from a seed, and what happens to them.

use serde_json::{Map, Value, json};

use crate::options::{
    ADDRESSES, CHAINED, CHANGES, CNI_ARGS, FuzzOption, INTERFACES, IPAM_OPTIONS, InterfacePlugin, RANGES,
    REQUESTS, ROUTES, Values,
};

/// Case: a chain of plugins, and what happens to the attachment.
pub(crate) struct Case {
    /// CNI version of all plugins.
    pub(crate) version: String,
    /// Configurations in the order of an ADD, each complete.
    pub(crate) plugins: Vec<Value>,
    /// Interface of the pod.
    pub(crate) ifname: &'static str,
    /// `CNI_ARGS`; empty if it is not set.
    pub(crate) args: &'static str,
    /// Change between two CHECKs; empty for none.
    pub(crate) change: &'static str,
    /// Form of the DEL.
    pub(crate) del: Del,
}

/// Form of a DEL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Del {
    /// After an ADD, with the result.
    Usual,
    /// Without an ADD.
    WithoutAdd,
    /// Without `prevResult`, as after an ADD whose result was lost.
    WithoutResult,
    /// After the network namespace is gone, with the path.
    WithoutNetns,
    /// Without `CNI_NETNS`.
    WithoutPath,
    /// After a GC that names the attachment as valid, which changes nothing.
    AfterGc,
}

const DELS: &[Del] =
    &[Del::WithoutAdd, Del::WithoutResult, Del::WithoutNetns, Del::WithoutPath, Del::AfterGc];

impl Case {
    /// Returns the case as text: what happens, then one configuration a line.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("CNI_ARGS={:?} change={:?} del={:?}", self.args, self.change, self.del);
        self.plugins.iter().for_each(|plugin| text.push_str(&format!("\n{plugin}")));
        text
    }
}

/// Number generator of a case (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((mixed ^ (mixed >> 31)) % bound as u64).expect("less than the bound")
    }

    fn of<'a, T: ?Sized>(&mut self, list: &[&'a T]) -> &'a T {
        list[self.below(list.len())]
    }

    /// Returns a valid value, or sometimes one that is nearly valid.
    fn value(&mut self, [valid, nearly]: Values) -> Value {
        let is_valid = nearly.is_empty() || !valid.is_empty() && !self.one_in(14);
        parse(self.of(if is_valid { valid } else { nearly }))
    }

    /// Whether an event with the probability of one in `count` occurs.
    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    /// Sets each of the options with the probability of one in `count`.
    fn set(&mut self, config: &mut Value, options: &[FuzzOption], count: usize) {
        for (option, valid, nearly) in options {
            // An option without a valid value is rare.
            if self.one_in(count) && (!valid.is_empty() || self.one_in(6)) {
                config[*option] = self.value([valid, nearly]);
            }
        }
    }

    /// Returns values of the families.
    fn list(&mut self, families: &[usize], values: [Values; 2], least: usize, more: usize) -> Value {
        let count = least + self.below(more);
        (0..count)
            .map(|_| {
                let family = families[self.below(families.len())];
                self.value(values[family])
            })
            .collect()
    }
}

/// Address families of a network.
const FAMILIES: [&[usize]; 5] = [&[0], &[0], &[1], &[0, 1], &[0, 1]];

/// Returns the case of a seed, with plugins of this list.
pub(crate) fn generate(seed: u64, available: &[&str]) -> Case {
    let mut random = Random(seed);
    let is_newest = available.contains(&"tap");
    let versions: &[&str] = if is_newest {
        &["0.3.1", "0.4.0", "1.0.0", "1.0.0", "1.1.0", "1.1.0"]
    } else {
        &["0.2.0", "0.3.0", "0.3.1", "0.4.0", "0.4.0", "1.0.0", "1.0.0"]
    };
    let version = random.of(versions).to_owned();
    let mut plugins = vec![interface(&mut random, available)];
    // Versions before 0.3.0 have no chains, and nothing follows on the interface lo.
    if version.as_str() >= "0.3.0" && plugins[0]["type"] != "loopback" {
        let count = random.below(3) + usize::from(random.one_in(4));
        for _ in 0..count {
            let plugin = random.value(CHAINED);
            // A runtime gives two plugins of one type the same arguments.
            if plugins.iter().all(|other| other["type"] != plugin["type"]) {
                plugins.push(plugin);
            }
        }
        if random.one_in(12) {
            plugins.insert(0, json!({ "type": "loopback" }));
        }
    }
    if !is_newest {
        plugins.iter_mut().for_each(without_newer_options);
    }
    for plugin in &mut plugins {
        plugin["cniVersion"] = version.clone().into();
        plugin["name"] = json!("net");
    }
    if random.one_in(8) {
        let index = random.below(plugins.len());
        spoil(&mut random, &mut plugins[index]);
    }
    let args = if random.one_in(12) { random.of(CNI_ARGS) } else { "" };
    let change = if random.one_in(2) { random.of(CHANGES) } else { "" };
    let mut del = if random.one_in(3) { DELS[random.below(DELS.len())] } else { Del::Usual };
    // A device does not disappear with the namespace.
    let has_device = plugins.iter().any(|plugin| plugin["type"] == "host-device");
    if has_device && matches!(del, Del::WithoutNetns | Del::WithoutPath) {
        del = Del::Usual;
    }
    let ifname = if plugins.len() == 1 && plugins[0]["type"] == "loopback" { "lo" } else { "eth0" };
    Case { version, plugins, ifname, args, change, del }
}

fn interface(random: &mut Random, available: &[&str]) -> Value {
    let known: Vec<&InterfacePlugin> =
        INTERFACES.iter().filter(|plugin| available.contains(&plugin.name)).collect();
    // Most networks are bridges.
    let plugin = if random.one_in(3) { known[0] } else { known[random.below(known.len())] };
    let mut first = parse(plugin.required);
    first["type"] = plugin.name.into();
    random.set(&mut first, plugin.options, plugin.options.len().min(6));
    random.set(&mut first, REQUESTS, 8);
    if !random.one_in(8) {
        first["ipam"] = ipam(random);
    }
    first
}

fn ipam(random: &mut Random) -> Value {
    let families = FAMILIES[random.below(FAMILIES.len())];
    let mut ipam = match random.below(12) {
        0 => return json!({}),
        1..=6 => host_local(random, families),
        // One address of each family, sometimes more.
        _ => {
            let mut addresses: Vec<Value> =
                families.iter().map(|family| random.value(ADDRESSES[*family])).collect();
            if random.one_in(4) {
                addresses.push(random.value(ADDRESSES[families[0]]));
            }
            json!({ "type": "static", "addresses": addresses })
        }
    };
    if !random.one_in(3) {
        let families = if random.one_in(12) { &[0, 1] } else { families };
        ipam["routes"] = random.list(families, ROUTES, 0, 4);
    }
    random.set(&mut ipam, IPAM_OPTIONS, 24);
    ipam
}

fn host_local(random: &mut Random, families: &[usize]) -> Value {
    if random.one_in(3) {
        let mut range = random.value(RANGES[families[0]]);
        range["type"] = "host-local".into();
        return range;
    }
    let more = if random.one_in(4) { 2 } else { 1 };
    let sets: Vec<Value> = families.iter().map(|family| random.list(&[*family], RANGES, 1, more)).collect();
    json!({ "type": "host-local", "ranges": sets })
}

/// Options that the Go plugins of Debian's stable release do not have.
const NEWER: &[&str] = &[
    "ipMasqBackend",
    "vlanTrunk",
    "preserveDefaultVlan",
    "disableContainerInterface",
    "portIsolation",
    "bcqueuelen",
    "table",
    "scope",
    "priority",
    "advmss",
];

/// Removes newer options from a configuration, and the MTU of routes.
fn without_newer_options(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(without_newer_options),
        Value::Object(map) => {
            NEWER.iter().for_each(|option| drop(map.shift_remove(*option)));
            if map.contains_key("dst") {
                map.shift_remove("mtu");
            }
            map.values_mut().for_each(without_newer_options);
        }
        _ => {}
    }
}

/// Values of any type, for any field.
const STRANGE: &[&str] =
    &["null", "\"\"", "0", "-1", "1.5", "1e3", "4294967296", "\"x\"", "true", "[]", "{}", "[null]", "\" 1\""];

/// Makes one field of a configuration nearly valid: a strange value, the name in another case, or an unknown field.
fn spoil(random: &mut Random, plugin: &mut Value) {
    let mut paths = Vec::new();
    collect(plugin, &mut Vec::new(), &mut paths);
    paths.retain(|path| !matches!(path.last().map(String::as_str), Some("cniVersion" | "name" | "type")));
    let kind = random.below(4);
    if paths.is_empty() || kind == 0 {
        plugin["unknown"] = parse(random.of(STRANGE));
        return;
    }
    let path = paths.swap_remove(random.below(paths.len()));
    let (last, parents) = path.split_last().expect("a path has a field");
    let parent = parents.iter().fold(plugin, |value, step| match step.parse::<usize>() {
        Ok(index) if value.is_array() => &mut value[index],
        _ => &mut value[step.as_str()],
    });
    match parent {
        Value::Object(map) if kind == 1 => {
            let renamed = |name: &String| if name == last { name.to_uppercase() } else { name.clone() };
            *map = map.iter().map(|(name, value)| (renamed(name), value.clone())).collect::<Map<_, _>>();
        }
        Value::Object(map) => drop(map.insert(last.clone(), parse(random.of(STRANGE)))),
        Value::Array(list) => {
            list[last.parse::<usize>().expect("an index")] = parse(random.of(STRANGE));
        }
        _ => {}
    }
}

/// Collects the paths of all fields and elements.
fn collect(value: &Value, at: &mut Vec<String>, paths: &mut Vec<Vec<String>>) {
    let children: Vec<(String, &Value)> = match value {
        Value::Object(map) => map.iter().map(|(name, value)| (name.clone(), value)).collect(),
        Value::Array(list) => {
            list.iter().enumerate().map(|(index, value)| (index.to_string(), value)).collect()
        }
        _ => Vec::new(),
    };
    for (step, child) in children {
        at.push(step);
        paths.push(at.clone());
        collect(child, at, paths);
        at.pop();
    }
}

fn parse(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}
