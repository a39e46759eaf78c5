//! Namespace state, normalized so that it is equal for two plugins that do the same.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use testkit::Netns;

/// Fields with the number of queues.
const QUEUES: [&str; 2] = ["num_tx_queues", "num_rx_queues"];

/// Fields that the kernel decides, the owner tag, and the length of an unused queue. Debian's plugins set it
/// to 0; later plugins and weft leave it to the kernel.
const LEFT_OUT: &[&str] = &[
    "ifindex",
    "link_index",
    "link_netnsid",
    "operstate",
    "ifalias",
    "protocol",
    "valid_life_time",
    "preferred_life_time",
    "tentative",
    "dadfailed",
    "bridge_id",
    "root_id",
    "designated_root",
    "state",
    "promiscuity",
    "allmulti",
    "topology_change_timer",
    "gc_timer",
    "hello_timer",
    "tcn_timer",
    "designated_bridge",
    "designated_port",
    "designated_cost",
    "port_id",
    "forward_delay_timer",
    "nodad",
    "hello_timer",
    "message_age_timer",
    "hold_timer",
    "ageing_time",
    "txqlen",
];

/// Returns the output of `ip`, `tc` and the savers of iptables.
#[track_caller]
pub(crate) fn kernel_state(netns: &Netns) -> Value {
    let links = netns.json(["ip", "-d", "-j", "address", "show"]);
    let routes = |family: &str| netns.json(["ip", family, "-j", "-d", "route", "show", "table", "all"]);
    let rules = |family: &str| netns.json(["ip", family, "-j", "rule", "show"]);
    let queues = netns.json(["tc", "-j", "qdisc", "show"]);
    let filters = |program: &str| {
        let saved = netns.attempt([program]);
        let lines = saved.stdout.lines().filter(|line| !line.starts_with('#') && !line.starts_with(':'));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let mut all = json!({
        "links": links,
        "routes": [routes("-4"), routes("-6")],
        "rules": [rules("-4"), rules("-6")],
        "queues": queues,
        "filters": [filters("iptables-save"), filters("ip6tables-save")],
    });
    tidy(&mut all);
    all
}

/// Whether the kernel adds this object by itself, with a delay.
fn is_own_business(value: &Value) -> bool {
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
    let local = |address: &str| address.starts_with("fe80:") || address.starts_with("ff00:");
    // These routes appear when duplicate address detection ends, if it runs.
    let detected = text("table") == "local" && (text("dst").contains(':') || text("type") == "anycast");
    detected
        || local(text("dst"))
        || local(text("local"))
        || text("type") == "multicast"
        || text("dst").starts_with("multicast")
}

fn tidy(value: &mut Value) {
    match value {
        Value::Array(items) => {
            items.retain(|item| !is_own_business(item) && item.as_object().is_none_or(|map| !map.is_empty()));
            items.iter_mut().for_each(tidy);
        }
        Value::Object(map) => tidy_object(map),
        _ => {}
    }
}

fn tidy_object(map: &mut Map<String, Value>) {
    LEFT_OUT.iter().for_each(|key| drop(map.shift_remove(*key)));
    // The kernel creates many queues and uses one; weft creates one (DEVIATIONS.md).
    if map.get("linkinfo").is_some_and(|info| info["info_kind"] == "veth") {
        QUEUES.iter().for_each(|key| drop(map.shift_remove(*key)));
    }
    // Removes the flags that depend on the carrier.
    if let Some(Value::Array(flags)) = map.get_mut("flags") {
        let carrier = ["LOWER_UP", "NO-CARRIER", "M-DOWN", "linkdown", "RUNNING"];
        flags.retain(|flag| flag.as_str().is_none_or(|flag| !carrier.contains(&flag)));
    }
    map.values_mut().for_each(tidy);
}

/// Placeholders for generated names and addresses, in the order of first occurrence.
#[derive(Default)]
pub(crate) struct Placeholders {
    known: BTreeMap<String, String>,
}

impl Placeholders {
    /// Returns the document as text, one field a line, with placeholders for generated names.
    pub(crate) fn text(&mut self, value: &Value) -> String {
        let text = serde_json::to_string_pretty(value).expect("JSON");
        let mut out = String::with_capacity(text.len());
        let mut word = String::new();
        for c in text.chars().chain(['\n']) {
            if c.is_ascii_alphanumeric() || c == ':' {
                word.push(c);
                continue;
            }
            out.push_str(&self.replaced(&word));
            word.clear();
            out.push(c);
        }
        out
    }

    fn replaced(&mut self, word: &str) -> String {
        let is_hex = |text: &str| text.chars().all(|c| c.is_ascii_hexdigit());
        let mac = word.len() == 17
            && word.split(':').count() == 6
            && word.split(':').all(|part| part.len() == 2 && is_hex(part));
        let made = mac
            && !word.starts_with("02:00:00")
            && !["ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00"].contains(&word);
        let veth = word.strip_prefix("veth").is_some_and(|rest| rest.len() == 8 && is_hex(rest));
        if !made && !veth {
            return word.to_owned();
        }
        let count = self.known.len();
        let name = if made { format!("MAC{count}") } else { format!("VETH{count}") };
        self.known.entry(word.to_owned()).or_insert(name).clone()
    }
}

/// Returns a result in a fixed order, without an empty `dns`, which the Go plugins add.
pub(crate) fn normalized_result(result: &Value) -> Value {
    let mut result = result.clone();
    result.sort_all_objects();
    if let Some(map) = result.as_object_mut() {
        map.retain(|key, value| key != "dns" || value.as_object().is_none_or(|dns| !dns.is_empty()));
    }
    result
}

/// Returns the lines that only one of two texts has.
pub(crate) fn difference(weft: &str, go: &str) -> String {
    let (a, b): (Vec<&str>, Vec<&str>) = (weft.lines().collect(), go.lines().collect());
    let mut lines_of_one = Vec::new();
    let only = |these: &[&str], those: &[&str], sign: &str, lines_of_one: &mut Vec<String>| {
        let mut left: Vec<&str> = those.to_vec();
        for line in these {
            match left.iter().position(|other| other == line) {
                Some(place) => drop(left.remove(place)),
                None => lines_of_one.push(format!("{sign} {line}")),
            }
        }
    };
    only(&a, &b, "weft", &mut lines_of_one);
    only(&b, &a, "go  ", &mut lines_of_one);
    lines_of_one.truncate(12);
    match lines_of_one.is_empty() {
        true => "another order".to_owned(),
        false => lines_of_one.join("\n"),
    }
}
