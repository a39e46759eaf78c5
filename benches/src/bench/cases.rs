//! Benchmarks of single plugins, chains and pods, with their goals.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use linux::link::create::NewKind;
use serde_json::{Value, json};

use crate::call::{Container, Plugin, SETTLING, call, start as start_process};
use crate::table::{Table, Times};
use crate::{Failure, Setting, baseline};

/// Times the start of weft-cni and of the smallest possible program.
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
    table.compare(
        "start (VERSION)",
        &ours,
        "/bin/true",
        &Times::new(bare),
        "at most 0.5 ms more than a bare exec",
    );
    if setting.peers.is_some() {
        table.compare("start (VERSION)", &ours, "Go", &Times::new(peer), "");
    }
    Ok(())
}

/// Times of ADD and DEL of one plugin chain, by weft, the peer and the kernel baseline in turn.
pub(crate) struct Comparison {
    pub(crate) ours: (Times, Times),
    pub(crate) peer: Option<(Times, Times)>,
    pub(crate) baseline: Option<(Times, Times)>,
}

/// Times of the same change without a plugin process, in a given container; the number is that of the round.
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
    // The first call creates shared objects and does not count.
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

fn bridge(setting: &Setting, tag: &str, masquerade: bool) -> Value {
    let network = format!("bench-{tag}-{masquerade}");
    let third = u8::from(masquerade) * 2 + u8::from(tag == "g");
    json!({
        "cniVersion": "1.0.0", "name": network, "type": "bridge", "bridge": format!("b{third}{tag}"),
        "isDefaultGateway": true, "ipMasq": masquerade,
        "ipam": {"type": "host-local", "subnet": format!("10.25{third}.0.0/16"), "dataDir": setting.scratch.join("addresses")},
    })
}

/// The bridge with a range of each family.
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
    table.compare(
        "bridge + host-local ADD",
        &ours.0,
        "kernel baseline",
        &baseline.0,
        "at most 2 ms, at most 2x",
    );
    let with_exec = Times::new(with_exec);
    table.compare("bridge + host-local ADD", &ours.0, "the baseline and a bare exec", &with_exec, "");
    table.compare("bridge + host-local DEL", &ours.1, "kernel baseline", &baseline.1, "at most 2 ms more");
    if let Some(peer) = &peer {
        table.compare("bridge + host-local ADD", &ours.0, "Go", &peer.0, "at least 5x faster");
        table.compare("bridge + host-local DEL", &ours.1, "Go", &peer.1, "");
    }
    let alone = ours.0;
    let Comparison { ours, peer, .. } = compare(setting, "bridge", |tag| bridge(setting, tag, true))?;
    match &peer {
        Some(peer) => {
            table.compare("… with ipMasq ADD", &ours.0, "Go", &peer.0, "at least 8x faster, at most 3 ms");
            table.compare("… with ipMasq DEL", &ours.1, "Go", &peer.1, "at most 20 ms");
        }
        None => table.compare("… with ipMasq ADD", &ours.0, "kernel baseline", &baseline.0, "at most 3 ms"),
    }
    let dual = compare(setting, "bridge", |tag| dual_stack(setting, tag))?;
    table.compare("… IPv4 and IPv6 ADD", &dual.ours.0, "IPv4 alone", &alone, "at most 1.3x");
    if let Some(peer) = &dual.peer {
        table.compare("… IPv4 and IPv6 ADD", &dual.ours.0, "Go", &peer.0, "");
    }
    Ok(())
}

/// Times ADD and DEL of a chained plugin behind weft's bridge, whose own calls are not timed.
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
        table.compare(&format!("{plugin} ADD"), &ours.0, "Go", &peer.0, "at least 4x faster");
        table.compare(&format!("{plugin} DEL"), &ours.1, "Go", &peer.1, "");
    }
    Ok(())
}

/// Compares chained plugins with those of the peer.
pub(crate) fn chained(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    behind_bridge(setting, table, "bandwidth", &limits())?;
    for backend in ["nftables", "iptables"] {
        let Comparison { ours, peer, .. } = compare(setting, "firewall", |tag| firewall(tag, backend))?;
        if let Some(peer) = &peer {
            let name = format!("firewall, {backend}");
            table.compare(&format!("{name} ADD"), &ours.0, "Go, iptables", &peer.0, "at least 4x faster");
            table.compare(&format!("{name} DEL"), &ours.1, "Go, iptables", &peer.1, "");
        }
    }
    for (backend, target) in [("nftables", "at least 10x faster"), ("iptables", "at least 4x faster")] {
        let Comparison { ours, peer, .. } = compare(setting, "portmap", |tag| portmap(tag, backend))?;
        if let Some(peer) = &peer {
            table.compare(&format!("portmap, {backend} ADD"), &ours.0, "Go, iptables", &peer.0, target);
            table.compare(&format!("portmap, {backend} DEL"), &ours.1, "Go, iptables", &peer.1, "");
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

/// Compares the plugin vrf, whose kind of link few kernels have.
pub(crate) fn vrf(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    match baseline::can_make("vrf", NewKind::Vrf { table: 4000 })? {
        true => behind_bridge(setting, table, "vrf", &json!({ "vrfname": "blue" })),
        false => Ok(()),
    }
}

/// Configuration with one address of each family. The Go plugin has only the backend iptables.
fn firewall(tag: &str, backend: &str) -> Value {
    let backend = if tag == "g" { "iptables" } else { backend };
    json!({
        "cniVersion": "1.0.0", "name": format!("bench-firewall-{tag}"), "type": "firewall", "backend": backend,
        "prevResult": { "cniVersion": "1.0.0", "ips": [{ "address": "10.200.0.2/24" }, { "address": "fd00:200::2/64" }] },
    })
}

/// Configuration with two ports of one address. The Go plugin has only the backend iptables.
fn portmap(tag: &str, backend: &str) -> Value {
    let (port, backend) = if tag == "g" { (9000, "iptables") } else { (8000, backend) };
    json!({
        "cniVersion": "1.0.0", "name": format!("bench-portmap-{tag}"), "type": "portmap", "backend": backend,
        "prevResult": { "cniVersion": "1.0.0", "ips": [{ "address": "10.200.0.2/24" }] },
        "runtimeConfig": { "portMappings": [
            { "hostPort": port, "containerPort": 80, "protocol": "tcp" },
            { "hostPort": port + 1, "containerPort": 81, "protocol": "tcp" },
        ] },
    })
}

/// Times a pod through the meta-plugin: default network only, and with three more networks.
pub(crate) fn pods(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    let one = pod(setting, 0, &[])?;
    let four = pod(setting, 3, &[])?;
    let ten = pod(setting, 10, &[])?;
    let thirty = pod(setting, 30, &[])?;
    let limited = pod(setting, 0, &[with_type("bandwidth", limits())])?;
    table.compare("pod, default + 3 networks ADD", &four.0, "default only", &one.0, "at most 6 ms");
    table.compare("pod, default + 3 networks DEL", &four.1, "default only", &one.1, "at most 1.5x");
    for (networks, times) in [(10, &ten), (30, &thirty)] {
        table.compare(
            &format!("pod, default + {networks} networks ADD"),
            &times.0,
            "default only",
            &one.0,
            "",
        );
        table.compare(
            &format!("pod, default + {networks} networks DEL"),
            &times.1,
            "default only",
            &one.1,
            "",
        );
    }
    table.compare("pod, default with bandwidth DEL", &limited.1, "default only", &one.1, "at most 1.3x");
    Ok(())
}

/// Rate limits for both directions.
fn limits() -> Value {
    json!({"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000})
}

fn with_type(plugin: &str, mut keys: Value) -> Value {
    keys["type"] = json!(plugin);
    keys
}

/// Writes the configuration and the manifests of a pod with a number of networks besides the default one, and plugins chained
/// behind its bridge. Returns the path of the configuration.
fn pod_configuration(setting: &Setting, networks: usize, behind: &[Value]) -> Result<PathBuf, Failure> {
    let manifests = setting.scratch.join(format!("manifests-{networks}"));
    fs::create_dir_all(&manifests)?;
    let names: Vec<String> = (1..=networks).map(|number| format!("net-{number}")).collect();
    let mut items = vec![json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "bench", "name": "pod", "annotations": {"k8s.v1.cni.cncf.io/networks": names.join(",")}},
    })];
    for (number, name) in names.iter().enumerate() {
        let config = json!({
            "cniVersion": "1.0.0", "name": name, "type": "bridge", "bridge": format!("pod{number}"),
            "ipam": {"type": "host-local", "subnet": format!("10.{}.0.0/16", 160 + number), "dataDir": setting.scratch.join("addresses")},
        });
        items.push(json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"namespace": "bench", "name": name}, "spec": {"config": config.to_string()},
        }));
    }
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    fs::write(manifests.join("pod.json"), list.to_string())?;
    let mut default = bridge(setting, "w", false);
    default["bridge"] = json!("podbr");
    default["ipam"]["subnet"] = json!("10.249.0.0/16");
    let plugins: Vec<Value> = std::iter::once(default).chain(behind.iter().cloned()).collect();
    let default = json!({"cniVersion": "1.0.0", "name": "bench-pod", "plugins": plugins});
    let config = json!({
        "cniVersion": "1.0.0", "name": "weft", "type": "weft", "manifestDir": manifests,
        "cniDir": setting.scratch.join("state"), "binDir": setting.ours, "delegates": [default],
    });
    write(setting, &format!("weft-{networks}-{}.json", behind.len()), &config)
}

/// Times ADD and DEL of a pod with a number of networks besides the default one, and plugins chained behind its bridge.
fn pod(setting: &Setting, networks: usize, behind: &[Value]) -> Result<(Times, Times), Failure> {
    let config = pod_configuration(setting, networks, behind)?;
    let tag = format!("{networks}-{}", behind.len());
    let plugin = Plugin { directory: &setting.ours, name: "weft", config: &config };
    let (mut adds, mut dels) = (Vec::new(), Vec::new());
    for run in 0..=setting.runs {
        let container = Container::new(format!("pod{tag}-{run}"))?;
        let (add, del) = (call("ADD", plugin, &container)?, call("DEL", plugin, &container)?);
        if run > 0 {
            adds.push(add);
            dels.push(del);
        }
    }
    Ok((Times::new(adds), Times::new(dels)))
}

/// States the size of weft-cni on disk and in memory.
pub(crate) fn size(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    let bytes = fs::metadata(setting.ours.join("weft-cni"))?.len();
    table.state("weft-cni", &format!("{:.2} MB, one file", bytes as f64 / 1e6), "at most 4 MB");
    let largest = resident(setting)?;
    table.state(
        "weft-cni, pod with 4 networks",
        &format!("{:.1} MB resident", largest as f64 / 1e3),
        "at most 4 MB",
    );
    Ok(())
}

/// Largest resident size of an ADD in kilobytes, as time(1) reports it.
fn resident(setting: &Setting) -> Result<u64, Failure> {
    let container = Container::new("rss".to_owned())?;
    let config = pod_configuration(setting, 3, &[])?;
    let output = std::process::Command::new("/usr/bin/time")
        .args(["-f", "%M"])
        .arg(setting.ours.join("weft"))
        .env_clear()
        .envs([("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", &container.id), ("CNI_NETNS", &container.netns)])
        .envs([("CNI_IFNAME", "eth0"), ("CNI_ARGS", "K8S_POD_NAMESPACE=bench;K8S_POD_NAME=pod")])
        .env("CNI_PATH", &setting.ours)
        .stdin(fs::File::open(&config)?)
        .output()?;
    let plugin = Plugin { directory: &setting.ours, name: "weft", config: &config };
    call("DEL", plugin, &container)?;
    let text = String::from_utf8(output.stderr)?;
    let last = text.lines().last().ok_or("time(1) printed nothing")?;
    Ok(last.trim().parse()?)
}

pub(crate) fn write(setting: &Setting, name: &str, config: &Value) -> Result<PathBuf, Failure> {
    let path = setting.scratch.join(name);
    fs::write(&path, config.to_string())?;
    Ok(path)
}
