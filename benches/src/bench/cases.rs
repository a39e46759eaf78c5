//! Benchmarks for single plugins, chains and pods, and the goals for them.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use linux::link::create::NewKind;
use serde_json::{Value, json};

use crate::call::{Container, Plugin, SETTLING, call, start as start_process};
use crate::{Setting, baseline};
use benches::Failure;
use benches::table::{Table, Times};

/// Times the start of weft-cni, and of the smallest possible program.
pub(crate) fn start(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    let (mut ours, mut bare, mut peer) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..setting.runs * 4 {
        ours.push(start_process(&setting.ours.join("bridge"), &[], "VERSION")?);
        bare.push(start_process(Path::new("/bin/true"), &[], "")?);
        if let Some(peers) = &setting.peers {
            peer.push(start_process(&peers.join("bridge"), &[], "VERSION")?);
        }
    }
    let ours = Times::new(ours);
    table.compare("start (VERSION)", &ours, "/bin/true", &Times::new(bare));
    if setting.peers.is_some() {
        table.compare("start (VERSION)", &ours, "Go", &Times::new(peer));
    }
    Ok(())
}

/// ADD and DEL times for one plugin chain, by weft, the peer and the kernel baseline in turn.
pub(crate) struct Comparison {
    pub(crate) ours: (Times, Times),
    pub(crate) peer: Option<(Times, Times)>,
    pub(crate) baseline: Option<(Times, Times)>,
}

/// Makes the same change in a container without a plugin process and times it; the number is the round's.
pub(crate) type Baseline<'a> = dyn FnMut(&Container, usize) -> Result<(Duration, Duration), Failure> + 'a;

pub(crate) fn compare(
    setting: &Setting,
    plugin: &str,
    config: impl Fn(&str) -> Value,
) -> Result<Comparison, Failure> {
    compare_with_baseline(setting, plugin, config, None)
}

/// Compares with the peer and, between the calls, with the kernel baseline.
pub(crate) fn compare_with_baseline(
    setting: &Setting,
    plugin: &str,
    config: impl Fn(&str) -> Value,
    mut baseline: Option<&mut Baseline<'_>>,
) -> Result<Comparison, Failure> {
    let candidates: Vec<(&Path, &str)> = std::iter::once((setting.ours.as_path(), "w"))
        .chain(setting.peers.as_deref().map(|peers| (peers, "g")))
        .collect();
    let mut files = Vec::new();
    for (_, tag) in &candidates {
        files.push(write(setting, &format!("{plugin}-{tag}.json"), &config(tag))?);
    }
    let mut times = vec![(Vec::new(), Vec::new()); candidates.len()];
    let mut below = (Vec::new(), Vec::new());
    // The first call creates shared objects, so it does not count.
    for run in 0..=setting.runs {
        for (index, (directory, tag)) in candidates.iter().enumerate() {
            let container = Container::new(format!("{tag}{run}"))?;
            let plugin = Plugin { directory, name: plugin, config: &files[index] };
            let add = call("ADD", plugin, &container)?;
            sleep(SETTLING);
            let del = call("DEL", plugin, &container)?;
            if run > 0 {
                times[index].0.push(add);
                times[index].1.push(del);
            }
        }
        if let Some(baseline) = &mut baseline {
            let (add, del) = baseline(&Container::new(format!("f{run}"))?, run)?;
            if run > 0 {
                below.0.push(add);
                below.1.push(del);
            }
        }
    }
    let sort = |(add, del)| (Times::new(add), Times::new(del));
    let mut sorted = times.into_iter().map(sort);
    let ours = sorted.next().ok_or("no plugin was timed")?;
    Ok(Comparison { ours, peer: sorted.next(), baseline: baseline.map(|_| sort(below)) })
}

pub(crate) fn bridge(setting: &Setting, tag: &str, masquerade: bool) -> Value {
    let network = format!("bench-{tag}-{masquerade}");
    let third = u8::from(masquerade) * 2 + u8::from(tag == "g");
    json!({
        "cniVersion": "1.0.0", "name": network, "type": "bridge", "bridge": format!("b{third}{tag}"),
        "isDefaultGateway": true, "ipMasq": masquerade,
        "ipam": {"type": "host-local", "subnet": format!("10.25{third}.0.0/16"), "dataDir": setting.scratch.join("addresses")},
    })
}

/// Returns the bridge configuration with one range per family.
fn dual_stack(setting: &Setting, tag: &str) -> Value {
    let mut config = bridge(setting, tag, false);
    let third = 4 + u8::from(tag == "g");
    config["name"] = json!(format!("bench-{tag}-dual"));
    config["bridge"] = json!(format!("b{third}{tag}"));
    config["ipam"] = json!({
        "type": "host-local", "dataDir": setting.scratch.join("addresses"),
        "ranges": [[{ "subnet": format!("10.25{third}.0.0/16") }], [{ "subnet": format!("fd00:25{third}::/64") }]],
    });
    config
}

/// Compares single plugins with the peer and with the kernel baseline.
pub(crate) fn plugins(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    let mut with_exec = Vec::new();
    let mut baseline = |container: &Container, run| {
        let (add, del) = baseline::bridge_port(container, run)?;
        with_exec.push(add + start_process(Path::new("/bin/true"), &[], "")?);
        Ok((add, del))
    };
    let Comparison { ours, peer, baseline } =
        compare_with_baseline(setting, "bridge", |tag| bridge(setting, tag, false), Some(&mut baseline))?;
    let baseline = baseline.ok_or("no kernel baseline was measured")?;
    let (add, del) = ("bridge + host-local ADD", "bridge + host-local DEL");
    table.compare(add, &ours.0, "kernel baseline", &baseline.0);
    table.compare(add, &ours.0, "kernel baseline and a bare exec", &Times::new(with_exec));
    table.compare(del, &ours.1, "kernel baseline", &baseline.1);
    if let Some(peer) = &peer {
        table.compare(add, &ours.0, "Go", &peer.0);
        table.compare(del, &ours.1, "Go", &peer.1);
    }
    let alone = ours.0;
    let Comparison { ours, peer, .. } = compare(setting, "bridge", |tag| bridge(setting, tag, true))?;
    match &peer {
        Some(peer) => {
            table.compare("bridge with ipMasq ADD", &ours.0, "Go", &peer.0);
            table.compare("bridge with ipMasq DEL", &ours.1, "Go", &peer.1);
        }
        None => table.compare("bridge with ipMasq ADD", &ours.0, "kernel baseline", &baseline.0),
    }
    let dual = compare(setting, "bridge", |tag| dual_stack(setting, tag))?;
    table.compare("bridge, IPv4 and IPv6 ADD", &dual.ours.0, "IPv4 alone", &alone);
    if let Some(peer) = &dual.peer {
        table.compare("bridge, IPv4 and IPv6 ADD", &dual.ours.0, "Go", &peer.0);
    }
    Ok(())
}

/// Times ADD and DEL for a chained plugin behind weft's bridge, whose own calls are not timed.
fn compare_behind_bridge(setting: &Setting, plugin: &str, keys: &Value) -> Result<Comparison, Failure> {
    let candidates: Vec<(&Path, &str)> = std::iter::once((setting.ours.as_path(), "w"))
        .chain(setting.peers.as_deref().map(|peers| (peers, "g")))
        .collect();
    let front = write(setting, &format!("{plugin}-front.json"), &bridge(setting, "w", false))?;
    let front = Plugin { directory: &setting.ours, name: "bridge", config: &front };
    let mut times = vec![(Vec::new(), Vec::new()); candidates.len()];
    for run in 0..=setting.runs {
        for (index, (directory, tag)) in candidates.iter().enumerate() {
            let container = Container::new(format!("{plugin}{tag}{run}"))?;
            call("ADD", front, &container)?;
            let previous: Value = serde_json::from_slice(&fs::read(front.config.with_extension("answer"))?)?;
            let mut config = keys.clone();
            config["cniVersion"] = json!("1.0.0");
            config["name"] = json!("bench-chain");
            config["type"] = json!(plugin);
            config["prevResult"] = previous;
            let config = write(setting, &format!("{plugin}-{tag}.json"), &config)?;
            let behind = Plugin { directory, name: plugin, config: &config };
            let (add, del) = (call("ADD", behind, &container)?, call("DEL", behind, &container)?);
            call("DEL", front, &container)?;
            if run > 0 {
                times[index].0.push(add);
                times[index].1.push(del);
            }
        }
    }
    let mut sorted = times.into_iter().map(|(add, del)| (Times::new(add), Times::new(del)));
    let ours = sorted.next().ok_or("no plugin was timed")?;
    Ok(Comparison { ours, peer: sorted.next(), baseline: None })
}

fn behind_bridge(setting: &Setting, table: &mut Table, plugin: &str, keys: &Value) -> Result<(), Failure> {
    let Comparison { ours, peer, .. } = compare_behind_bridge(setting, plugin, keys)?;
    if let Some(peer) = &peer {
        table.compare(&format!("{plugin} ADD"), &ours.0, "Go", &peer.0);
        table.compare(&format!("{plugin} DEL"), &ours.1, "Go", &peer.1);
    }
    Ok(())
}

/// Compares chained plugins with the peer's.
pub(crate) fn chained(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    behind_bridge(setting, table, "bandwidth", &limits())?;
    for backend in ["nftables", "iptables"] {
        let Comparison { ours, peer, .. } = compare(setting, "firewall", |tag| firewall(tag, backend))?;
        if let Some(peer) = &peer {
            let name = format!("firewall, {backend}");
            table.compare(&format!("{name} ADD"), &ours.0, "Go, iptables", &peer.0);
            table.compare(&format!("{name} DEL"), &ours.1, "Go, iptables", &peer.1);
        }
    }
    // The same backend on both sides, and the one that the Go plugins use unless configured otherwise.
    for (backend, beside) in [("nftables", "nftables"), ("nftables", "iptables"), ("iptables", "iptables")] {
        if beside == "nftables" && !setting.peer_has_nftables()? {
            continue;
        }
        let Comparison { ours, peer, .. } = compare(setting, "portmap", |tag| portmap(tag, backend, beside))?;
        if let Some(peer) = &peer {
            let (name, beside) = (format!("portmap, {backend}"), format!("Go, {beside}"));
            table.compare(&format!("{name} ADD"), &ours.0, &beside, &peer.0);
            table.compare(&format!("{name} DEL"), &ours.1, &beside, &peer.1);
        }
    }
    behind_bridge(setting, table, "sbr", &json!({}))?;
    behind_bridge(
        setting,
        table,
        "tuning",
        &json!({"mtu": 1400, "sysctl": {"net.ipv4.conf.all.log_martians": "1"}}),
    )?;
    Ok(())
}

/// Compares the plugin vrf, whose kind of link only few kernels have.
pub(crate) fn vrf(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    match baseline::can_make("vrf", NewKind::Vrf { table: 4000 })? {
        true => behind_bridge(setting, table, "vrf", &json!({ "vrfname": "blue" })),
        false => Ok(()),
    }
}

/// Returns a configuration with one address per family. The Go plugin only has the iptables backend.
fn firewall(tag: &str, backend: &str) -> Value {
    let backend = if tag == "g" { "iptables" } else { backend };
    json!({
        "cniVersion": "1.0.0", "name": format!("bench-firewall-{tag}"), "type": "firewall", "backend": backend,
        "prevResult": { "cniVersion": "1.0.0", "ips": [{ "address": "10.200.0.2/24" }, { "address": "fd00:200::2/64" }] },
    })
}

/// Returns a configuration with two ports on one address, with a backend for each program.
fn portmap(tag: &str, backend: &str, beside: &str) -> Value {
    let (port, backend) = if tag == "g" { (9000, beside) } else { (8000, backend) };
    json!({
        "cniVersion": "1.0.0", "name": format!("bench-portmap-{tag}"), "type": "portmap", "backend": backend,
        "prevResult": { "cniVersion": "1.0.0", "ips": [{ "address": "10.200.0.2/24" }] },
        "runtimeConfig": { "portMappings": [
            { "hostPort": port, "containerPort": 80, "protocol": "tcp" },
            { "hostPort": port + 1, "containerPort": 81, "protocol": "tcp" },
        ] },
    })
}

/// Returns rate limits for both directions.
pub(crate) fn limits() -> Value {
    json!({"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000})
}

pub(crate) fn write(setting: &Setting, name: &str, config: &Value) -> Result<PathBuf, Failure> {
    let path = setting.scratch.join(name);
    fs::write(&path, config.to_string())?;
    Ok(path)
}
