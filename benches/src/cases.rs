//! What is timed, and what it should come to.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use linux::link::create::NewKind;
use serde_json::{Value, json};

use crate::call::{Container, Plugin, SETTLING, call, start as start_process};
use crate::table::{Table, Times};
use crate::{Failure, Setting, floor};

/// The start of weft-cni over the start of the smallest program there is.
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

/// ADD and DEL of one plugin chain, ours, the peer's and the floor in turn.
pub(crate) struct Duel {
    pub(crate) ours: (Times, Times),
    pub(crate) peer: Option<(Times, Times)>,
    pub(crate) floor: Option<(Times, Times)>,
}

/// The same work without a process, in a container of its own; the number is that of the round.
pub(crate) type Floor<'a> = dyn FnMut(&Container, usize) -> Result<(Duration, Duration), Failure> + 'a;

pub(crate) fn duel(setting: &Setting, plugin: &str, config: impl Fn(&str) -> Value) -> Result<Duel, Failure> {
    duel_above(setting, plugin, config, None)
}

/// A duel in which the floor is measured between the calls, too.
pub(crate) fn duel_above(
    setting: &Setting,
    plugin: &str,
    config: impl Fn(&str) -> Value,
    mut floor: Option<&mut Floor<'_>>,
) -> Result<Duel, Failure> {
    let contestants: Vec<(&Path, &str)> = std::iter::once((setting.ours.as_path(), "w"))
        .chain(setting.peers.as_deref().map(|peers| (peers, "g")))
        .collect();
    let mut files = Vec::new();
    for (_, tag) in &contestants {
        files.push(write(setting, &format!("{plugin}-{tag}.json"), &config(tag))?);
    }
    let mut times = vec![(Vec::new(), Vec::new()); contestants.len()];
    let mut below = (Vec::new(), Vec::new());
    // The first call of each makes what all calls share: it is not counted.
    for run in 0..=setting.runs {
        for (index, (directory, tag)) in contestants.iter().enumerate() {
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
        if let Some(floor) = &mut floor {
            let (add, del) = floor(&Container::new(format!("f{run}"))?, run)?;
            if run > 0 {
                below.0.push(add);
                below.1.push(del);
            }
        }
    }
    let sort = |(add, del)| (Times::new(add), Times::new(del));
    let mut sorted = times.into_iter().map(sort);
    let ours = sorted.next().ok_or("nobody was timed")?;
    Ok(Duel { ours, peer: sorted.next(), floor: floor.map(|_| sort(below)) })
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

/// Single plugins beside the peer's and the kernel's floor.
pub(crate) fn plugins(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    let mut with_exec = Vec::new();
    let mut floor = |container: &Container, run| {
        let (add, del) = floor::bridge_port(container, run)?;
        with_exec.push(add + start_process(Path::new("/bin/true"), &[], "")?);
        Ok((add, del))
    };
    let Duel { ours, peer, floor } =
        duel_above(setting, "bridge", |tag| bridge(setting, tag, false), Some(&mut floor))?;
    let floor = floor.ok_or("no floor was measured")?;
    table.compare("bridge + host-local ADD", &ours.0, "kernel floor", &floor.0, "at most 2 ms, at most 2x");
    let with_exec = Times::new(with_exec);
    table.compare("bridge + host-local ADD", &ours.0, "the floor and a bare exec", &with_exec, "");
    table.compare("bridge + host-local DEL", &ours.1, "kernel floor", &floor.1, "at most 2 ms more");
    if let Some(peer) = &peer {
        table.compare("bridge + host-local ADD", &ours.0, "Go", &peer.0, "at least 5x faster");
        table.compare("bridge + host-local DEL", &ours.1, "Go", &peer.1, "");
    }
    let Duel { ours, peer, .. } = duel(setting, "bridge", |tag| bridge(setting, tag, true))?;
    match &peer {
        Some(peer) => {
            table.compare("… with ipMasq ADD", &ours.0, "Go", &peer.0, "at least 8x faster, at most 3 ms");
            table.compare("… with ipMasq DEL", &ours.1, "Go", &peer.1, "at most 20 ms");
        }
        None => table.compare("… with ipMasq ADD", &ours.0, "kernel floor", &floor.0, "at most 3 ms"),
    }
    Ok(())
}

/// ADD and DEL of a plugin that stands behind another one: our bridge, made and removed outside the clock.
fn duel_behind_bridge(setting: &Setting, plugin: &str, keys: &Value) -> Result<Duel, Failure> {
    let contestants: Vec<(&Path, &str)> = std::iter::once((setting.ours.as_path(), "w"))
        .chain(setting.peers.as_deref().map(|peers| (peers, "g")))
        .collect();
    let front = write(setting, &format!("{plugin}-front.json"), &bridge(setting, "w", false))?;
    let front = Plugin { directory: &setting.ours, name: "bridge", config: &front };
    let mut times = vec![(Vec::new(), Vec::new()); contestants.len()];
    for run in 0..=setting.runs {
        for (index, (directory, tag)) in contestants.iter().enumerate() {
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
    let ours = sorted.next().ok_or("nobody was timed")?;
    Ok(Duel { ours, peer: sorted.next(), floor: None })
}

fn behind_bridge(setting: &Setting, table: &mut Table, plugin: &str, keys: &Value) -> Result<(), Failure> {
    let Duel { ours, peer, .. } = duel_behind_bridge(setting, plugin, keys)?;
    if let Some(peer) = &peer {
        table.compare(&format!("{plugin} ADD"), &ours.0, "Go", &peer.0, "at least 4x faster");
        table.compare(&format!("{plugin} DEL"), &ours.1, "Go", &peer.1, "");
    }
    Ok(())
}

/// Plugins behind another one beside the peer's.
pub(crate) fn chained(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    behind_bridge(setting, table, "bandwidth", &limits())?;
    for backend in ["nftables", "iptables"] {
        let Duel { ours, peer, .. } = duel(setting, "firewall", |tag| firewall(tag, backend))?;
        if let Some(peer) = &peer {
            let name = format!("firewall, {backend}");
            table.compare(&format!("{name} ADD"), &ours.0, "Go, iptables", &peer.0, "at least 4x faster");
            table.compare(&format!("{name} DEL"), &ours.1, "Go, iptables", &peer.1, "");
        }
    }
    for (backend, target) in [("nftables", "at least 10x faster"), ("iptables", "at least 4x faster")] {
        let Duel { ours, peer, .. } = duel(setting, "portmap", |tag| portmap(tag, backend))?;
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

/// The chained plugin that needs a kind of link which few kernels here have.
pub(crate) fn vrf(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    match floor::can_make("vrf", NewKind::Vrf { table: 4000 })? {
        true => behind_bridge(setting, table, "vrf", &json!({ "vrfname": "blue" })),
        false => Ok(()),
    }
}

/// One address of each family; who is compared with the Go plugin may have another backend.
fn firewall(tag: &str, backend: &str) -> Value {
    let backend = if tag == "g" { "iptables" } else { backend };
    json!({
        "cniVersion": "1.0.0", "name": format!("bench-firewall-{tag}"), "type": "firewall", "backend": backend,
        "prevResult": { "cniVersion": "1.0.0", "ips": [{ "address": "10.200.0.2/24" }, { "address": "fd00:200::2/64" }] },
    })
}

/// Two ports of one address; who is compared with the Go plugin may have another backend.
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

/// A pod through the meta-plugin: one network, and the default network with three more.
pub(crate) fn pods(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    let one = pod(setting, 0, &[])?;
    let four = pod(setting, 3, &[])?;
    let limited = pod(setting, 0, &[with_type("bandwidth", limits())])?;
    table.compare("pod, default + 3 networks ADD", &four.0, "default only", &one.0, "at most 6 ms");
    table.compare("pod, default + 3 networks DEL", &four.1, "default only", &one.1, "at most 1.5x");
    table.compare("pod, default with bandwidth DEL", &limited.1, "default only", &one.1, "at most 1.3x");
    Ok(())
}

/// Rates for both directions.
fn limits() -> Value {
    json!({"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000})
}

fn with_type(plugin: &str, mut keys: Value) -> Value {
    keys["type"] = json!(plugin);
    keys
}

/// A pod with so many networks beside the default one, behind whose bridge other plugins may stand.
fn pod(setting: &Setting, networks: usize, behind: &[Value]) -> Result<(Times, Times), Failure> {
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
            "ipam": {"type": "host-local", "subnet": format!("10.24{number}.0.0/16"), "dataDir": setting.scratch.join("addresses")},
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
    let tag = format!("{networks}-{}", behind.len());
    let config = write(setting, &format!("weft-{tag}.json"), &config)?;
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

/// Size on disk, and in memory.
pub(crate) fn size(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    let bytes = fs::metadata(setting.ours.join("weft-cni"))?.len();
    table.state("weft-cni", &format!("{:.2} MB, one file", bytes as f64 / 1e6), "at most 3 MB");
    let largest = resident(setting)?;
    table.state(
        "weft-cni, pod with 4 networks",
        &format!("{:.1} MB resident", largest as f64 / 1e3),
        "at most 4 MB",
    );
    Ok(())
}

/// The largest resident size of an ADD, in kilobytes, as time(1) reports it.
fn resident(setting: &Setting) -> Result<u64, Failure> {
    let container = Container::new("rss".to_owned())?;
    let config = setting.scratch.join("weft-3-0.json");
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
    let last = text.lines().last().ok_or("time(1) said nothing")?;
    Ok(last.trim().parse()?)
}

pub(crate) fn write(setting: &Setting, name: &str, config: &Value) -> Result<PathBuf, Failure> {
    let path = setting.scratch.join(name);
    fs::write(&path, config.to_string())?;
    Ok(path)
}
