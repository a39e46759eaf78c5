//! Collects a namespace's state from the tools, without volatile members.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Map, Value, json};

use super::Entries;
use crate::netns::Netns;

/// Members that change without a test, in any object.
const VOLATILE: [&str; 26] = [
    "ifindex",
    "link_index",
    "operstate",
    "handle",
    "metainfo",
    "bytes",
    "packets",
    "refcnt",
    "expires",
    "tentative",
    "dadfailed",
    "optimistic",
    "valid_life_time",
    "preferred_life_time",
    "bridge_id",
    "root_id",
    "state",
    "topology_change",
    "topology_change_detected",
    "topology_change_ack",
    "config_pending",
    "fdb_n_learned",
    "designated_port",
    "designated_cost",
    "carrier_changes",
    "promiscuity",
];

/// Link and route flags that follow from the carrier.
const VOLATILE_FLAGS: [&str; 5] = ["LOWER_UP", "NO-CARRIER", "M-DOWN", "linkdown", "RUNNING"];

/// Sysctls of a namespace that do not belong to a link.
const SYSCTLS: [&str; 5] = [
    "net/ipv4/ip_forward",
    "net/ipv4/ip_local_reserved_ports",
    "net/bridge/bridge-nf-call-iptables",
    "net/bridge/bridge-nf-call-ip6tables",
    "net/netfilter/nf_conntrack_max",
];

#[track_caller]
pub(super) fn network(netns: &Netns, entries: &mut Entries) {
    let script = "addr show\nroute show table all\nrule show\nneigh show nud permanent\n";
    let answer =
        netns.command("ip").args(["-d", "-j", "-batch", "-"]).stdin(script).finish().success().stdout;
    let mut documents = serde_json::Deserializer::from_str(&answer).into_iter::<Vec<Value>>();
    let mut next =
        || documents.next().map_or_else(Vec::new, |document| document.expect("JSON of `ip -j -batch`"));
    links(netns, next(), entries);
    plain("route", &["table", "type", "dst", "dev", "via", "gateway", "metric"], next(), entries);
    plain("rule", &["priority", "src", "table"], next(), entries);
    plain("neighbour", &["dst", "dev"], next(), entries);
    plain("rule6", &["priority", "src", "table"], list(netns.json(["ip", "-6", "-j", "rule"])), entries);
    plain("qdisc", &["dev", "kind", "parent"], list(netns.json(["tc", "-j", "qdisc"])), entries);
    for dev in devices_with_filters(entries) {
        let filters = list(netns.json(["tc", "-j", "filter", "show", "dev", &dev, "ingress"]));
        plain(&format!("filter {dev}"), &["protocol", "pref", "kind"], filters, entries);
    }
    tables(netns, entries);
    netns.within(|| {
        for name in SYSCTLS {
            if let Ok(value) = fs::read_to_string(Path::new("/proc/sys").join(name)) {
                entries.add(&format!("sysctl {}", name.replace('/', ".")), json!(value.trim_end()));
            }
        }
        for scope in ["all", "default"] {
            entries.add(&format!("sysctls of {scope} links"), link_sysctls(scope));
        }
    });
}

/// Adds links with sysctls, and the addresses on them.
fn links(netns: &Netns, links: Vec<Value>, entries: &mut Entries) {
    for mut link in links {
        let name = text(&link, "ifname");
        for mut address in list(link["addr_info"].take()) {
            strip(&mut address);
            entries.add(
                &format!("address {name} {}/{}", text(&address, "local"), text(&address, "prefixlen")),
                address,
            );
        }
        strip(&mut link);
        link["sysctl"] = netns.within(|| link_sysctls(&name));
        entries.add(&format!("link {name}"), link);
    }
}

/// Returns all of `net.ipv4.conf.LINK` and `net.ipv6.conf.LINK`.
fn link_sysctls(link: &str) -> Value {
    let mut all = Map::new();
    for family in ["ipv4", "ipv6"] {
        let Ok(directory) = fs::read_dir(format!("/proc/sys/net/{family}/conf/{link}")) else { continue };
        for file in directory.flatten() {
            // Some cannot be read, for example a stable_secret that was never set.
            if let Ok(value) = fs::read_to_string(file.path()) {
                all.insert(
                    format!("{family}.{}", file.file_name().to_string_lossy()),
                    json!(value.trim_end()),
                );
            }
        }
    }
    all.sort_keys();
    Value::Object(all)
}

/// Adds objects, whose titles are built from some members.
fn plain(kind: &str, title: &[&str], objects: Vec<Value>, entries: &mut Entries) {
    for mut object in objects {
        strip(&mut object);
        let mut name = kind.to_owned();
        for member in title {
            let value = text(&object, member);
            if !value.is_empty() {
                name.push(' ');
                name.push_str(&value);
            }
        }
        entries.add(&name, object);
    }
}

/// Adds packet filters, both nftables and legacy iptables.
fn tables(netns: &Netns, entries: &mut Entries) {
    let mut ruleset = netns.json(["nft", "-j", "list", "ruleset"]);
    for object in list(ruleset["nftables"].take()) {
        let Value::Object(members) = object else { continue };
        for (kind, mut value) in members {
            strip(&mut value);
            let mut title = format!("nft {kind}");
            for member in ["family", "table", "chain", "name", "comment"] {
                let word = text(&value, member);
                if !word.is_empty() {
                    title.push(' ');
                    title.push_str(&word);
                }
            }
            if kind != "metainfo" {
                entries.add(&title, value);
            }
        }
    }
    // Legacy tables are read only if this namespace has any, because reading would create them.
    for (names, save) in
        [("ip_tables_names", "iptables-legacy-save"), ("ip6_tables_names", "ip6tables-legacy-save")]
    {
        let present = netns.within(|| fs::read_to_string(format!("/proc/net/{names}")).unwrap_or_default());
        if !present.is_empty() {
            let rules = netns.run([save]);
            let rules: Vec<&str> = rules.lines().filter(|line| line.starts_with('-')).collect();
            entries.add(save, json!(rules));
        }
    }
}

/// Lists links that have a queueing discipline for ingress filters.
fn devices_with_filters(entries: &Entries) -> Vec<String> {
    let disciplines = entries.0.iter().filter(|(title, _)| title.starts_with("qdisc "));
    disciplines
        .filter(|(_, value)| matches!(text(value, "kind").as_str(), "ingress" | "clsact"))
        .map(|(_, value)| text(value, "dev"))
        .collect()
}

/// Call history, to which every call appends, as to a log.
const HISTORY: &str = "/var/lib/weft/history";

/// Adds every file below `directory`, with mode and content or link target. A missing directory adds nothing.
pub(super) fn files(directory: &Path, entries: &mut Entries) {
    let Ok(found) = fs::read_dir(directory) else { return };
    entries.add(&format!("directory {}", directory.display()), mode(directory));
    let mut paths: Vec<_> = found.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let title = format!("file {}", path.display());
        if path == Path::new(HISTORY) {
            continue;
        }
        if path.is_symlink() {
            let target = fs::read_link(&path).map(|target| target.display().to_string()).unwrap_or_default();
            entries.add(&title, json!({ "link": target }));
        } else if path.is_dir() {
            files(&path, entries);
        } else if path.starts_with("/run/netns") {
            // A mounted namespace: reading it fails with EINVAL.
            entries.add(&title, json!({}));
        } else if path.is_file() {
            let content = fs::read(&path).unwrap_or_default();
            entries.add(&title, json!({ "mode": mode(&path), "content": String::from_utf8_lossy(&content) }));
        } else {
            entries.add(&title, json!({ "special": true }));
        }
    }
}

fn mode(path: &Path) -> Value {
    json!(
        fs::symlink_metadata(path)
            .map(|meta| format!("{:o}", meta.permissions().mode() & 0o7777))
            .unwrap_or_default()
    )
}

/// Removes volatile members.
fn strip(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|name, _| !VOLATILE.contains(&name.as_str()) && !name.ends_with("_timer"));
            members.values_mut().for_each(strip);
        }
        Value::Array(items) => {
            items.retain(|item| !item.as_str().is_some_and(|flag| VOLATILE_FLAGS.contains(&flag)));
            items.iter_mut().for_each(strip);
        }
        _ => {}
    }
}

fn list(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items,
        _ => Vec::new(),
    }
}

/// Returns a member as a string; empty if it does not exist.
fn text(value: &Value, member: &str) -> String {
    match value.get(member) {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}
