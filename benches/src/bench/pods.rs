//! Benchmarks pods with several networks, attached by weft and by the Go plugins.
//!
//! - For weft, each pod is one call to the meta-plugin, which reads pod and networks from manifests.
//! - For the Go plugins, each network is one call to `bridge`, one after the other. Multus makes the same calls and
//!   adds other work, so this is the lower limit for Multus.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use benches::Failure;
use benches::table::{Table, Times, milliseconds};
use serde_json::{Value, json};

use crate::Setting;
use crate::call::{Container, Plugin, SETTLING, call_in};
use crate::cases::{bridge, limits, write};

/// Numbers of networks in addition to the default one.
const NETWORKS: [usize; 5] = [0, 1, 3, 10, 30];
/// Maximum number of calls for the largest pods.
const RUNS_MAX: usize = 20;

/// Program that attaches pods with a given number of networks.
pub(crate) struct PodCaller {
    directory: PathBuf,
    /// Plugin, configuration and interface for each call.
    calls: Vec<(&'static str, PathBuf, String)>,
}

// === impl PodCaller ===

impl PodCaller {
    /// Returns weft's calls, with plugins behind the default network's bridge and files below `files`.
    pub(crate) fn weft(
        setting: &Setting,
        networks: usize,
        behind: &[Value],
        files: &Path,
    ) -> Result<PodCaller, Failure> {
        let tag = files.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let names: Vec<String> = (1..=networks).map(|number| format!("net-{number}")).collect();
        let mut items = vec![json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "bench", "name": "pod", "annotations": {"k8s.v1.cni.cncf.io/networks": names.join(",")}},
        })];
        for (number, name) in names.iter().enumerate() {
            let config = network(name, &format!("pod{number}"), 160 + number, files);
            items.push(json!({
                "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
                "metadata": {"namespace": "bench", "name": name}, "spec": {"config": config.to_string()},
            }));
        }
        PodCaller::of_objects(setting, &format!("{tag}-{networks}-{}", behind.len()), &items, behind, files)
    }

    /// Returns weft's calls, with the objects in a manifest directory; `tag` names the files in it.
    pub(crate) fn of_objects(
        setting: &Setting,
        tag: &str,
        items: &[Value],
        behind: &[Value],
        files: &Path,
    ) -> Result<PodCaller, Failure> {
        let manifests = setting.scratch.join(format!("manifests-{tag}"));
        fs::create_dir_all(&manifests)?;
        let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
        fs::write(manifests.join("pod.json"), list.to_string())?;
        let mut default = default_network(setting, "w", files);
        default["bridge"] = json!("podbr");
        let plugins: Vec<Value> = std::iter::once(default).chain(behind.iter().cloned()).collect();
        let default = json!({"cniVersion": "1.0.0", "name": "bench-pod", "plugins": plugins});
        let config = json!({
            "cniVersion": "1.0.0", "name": "weft", "type": "weft", "manifestDir": manifests,
            "cniDir": files.join("state"), "binDir": setting.ours, "delegates": [default],
        });
        let file = write(setting, &format!("weft-{tag}.json"), &config)?;
        Ok(PodCaller { directory: setting.ours.clone(), calls: vec![("weft", file, "eth0".to_owned())] })
    }

    /// Returns the Go plugins' calls.
    pub(crate) fn go(
        setting: &Setting,
        peers: &Path,
        networks: usize,
        files: &Path,
    ) -> Result<PodCaller, Failure> {
        let tag = files.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut default = default_network(setting, "g", files);
        default["name"] = json!("bench-pod-g");
        default["bridge"] = json!("gopodbr");
        let mut calls =
            vec![("bridge", write(setting, &format!("go-pod-{tag}.json"), &default)?, "eth0".to_owned())];
        for number in 0..networks {
            let (name, link) = (format!("go-net-{number}"), format!("gopod{number}"));
            let config = network(&name, &link, 200 + number, files);
            let file = write(setting, &format!("go-pod-{tag}-{number}.json"), &config)?;
            calls.push(("bridge", file, format!("net{}", number + 1)));
        }
        Ok(PodCaller { directory: peers.to_owned(), calls })
    }

    /// Attaches a pod; returns the time that all calls took.
    pub(crate) fn add(&self, container: &Container) -> Result<Duration, Failure> {
        self.calls.iter().map(|call| self.call("ADD", call, container)).sum()
    }

    /// Detaches a pod.
    pub(crate) fn del(&self, container: &Container) -> Result<Duration, Failure> {
        self.calls.iter().rev().map(|call| self.call("DEL", call, container)).sum()
    }

    fn call(
        &self,
        verb: &str,
        (name, config, ifname): &(&'static str, PathBuf, String),
        container: &Container,
    ) -> Result<Duration, Failure> {
        let plugin = Plugin { directory: &self.directory, name, config };
        let answer = config.with_extension(format!("{}.answer", container.id));
        call_in(verb, plugin, [&container.id, &container.netns, ifname], &answer)
    }
}

fn default_network(setting: &Setting, tag: &str, files: &Path) -> Value {
    let mut default = bridge(setting, tag, false);
    let second = if tag == "w" { 249 } else { 248 };
    default["ipam"]["subnet"] = json!(format!("10.{second}.0.0/16"));
    default["ipam"]["dataDir"] = json!(files.join("addresses"));
    default
}

fn network(name: &str, bridge: &str, second: usize, files: &Path) -> Value {
    json!({
        "cniVersion": "1.0.0", "name": name, "type": "bridge", "bridge": bridge,
        "ipam": {"type": "host-local", "subnet": format!("10.{second}.0.0/16"), "dataDir": files.join("addresses")},
    })
}

/// Returns weft and, if they are installed, the Go plugins.
pub(crate) fn callers(setting: &Setting, networks: usize) -> Result<(PodCaller, Option<PodCaller>), Failure> {
    let ours = PodCaller::weft(setting, networks, &[], &setting.scratch)?;
    let theirs =
        setting.peers.as_deref().map(|peers| PodCaller::go(setting, peers, networks, &setting.scratch));
    Ok((ours, theirs.transpose()?))
}

/// Names a pod by the number of networks in addition to the default one.
pub(crate) fn named(networks: usize) -> String {
    match networks {
        0 => "pod, default network alone".to_owned(),
        1 => "pod with 1 network more".to_owned(),
        more => format!("pod with {more} networks more"),
    }
}

/// Times ADD and DEL for one pod after another, by each caller in turn. The first round does not count.
pub(crate) fn in_turns(callers: &[&PodCaller], tag: &str, runs: usize) -> Result<Vec<[Times; 2]>, Failure> {
    let mut times = vec![[Vec::new(), Vec::new()]; callers.len()];
    for run in 0..=runs {
        for (place, caller) in callers.iter().enumerate() {
            let container = Container::new(format!("{tag}-{place}-{run}"))?;
            let add = caller.add(&container)?;
            sleep(SETTLING);
            let del = caller.del(&container)?;
            if run > 0 {
                times[place][0].push(add);
                times[place][1].push(del);
            }
        }
    }
    Ok(times.into_iter().map(|both| both.map(Times::new)).collect())
}

/// Times pods with several numbers of networks.
pub(crate) fn pods(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    let mut alone: Option<[Times; 2]> = None;
    for networks in NETWORKS {
        let (ours, theirs) = callers(setting, networks)?;
        let all: Vec<&PodCaller> = std::iter::once(&ours).chain(&theirs).collect();
        let runs = if networks > 3 { setting.runs.min(RUNS_MAX) } else { setting.runs };
        let mut times = in_turns(&all, &format!("pod{networks}"), runs)?.into_iter();
        let [add, del] = times.next().ok_or("no pod was timed")?;
        let name = named(networks);
        table.point("networks", "weft", networks + 1, milliseconds(add.median()));
        if let Some([one_add, one_del]) = &alone {
            table.compare(&format!("{name} ADD"), &add, "default network alone", one_add);
            table.compare(&format!("{name} DEL"), &del, "default network alone", one_del);
        }
        if let Some([their_add, their_del]) = times.next() {
            table.point("networks", "Go plugins", networks + 1, milliseconds(their_add.median()));
            table.compare(&format!("{name} ADD"), &add, "Go", &their_add);
            table.compare(&format!("{name} DEL"), &del, "Go", &their_del);
        }
        alone.get_or_insert([add, del]);
    }
    let mut bandwidth = limits();
    bandwidth["type"] = json!("bandwidth");
    let limited = PodCaller::weft(setting, 0, &[bandwidth], &setting.scratch)?;
    let mut times = in_turns(&[&limited], "limited", setting.runs)?.into_iter();
    if let (Some([_, del]), Some([_, alone])) = (times.next(), &alone) {
        table.compare("pod with bandwidth DEL", &del, "default network alone", alone);
    }
    Ok(())
}

/// Names of the Go plugins.
const GO_PLUGINS: &[&str] = &[
    "bandwidth",
    "bridge",
    "dhcp",
    "dummy",
    "firewall",
    "host-device",
    "host-local",
    "ipvlan",
    "loopback",
    "macvlan",
    "portmap",
    "ptp",
    "sbr",
    "static",
    "tap",
    "tuning",
    "vlan",
    "vrf",
];

/// Records how large the plugins are on disk and in memory.
pub(crate) fn size(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    let ours = (fs::metadata(setting.ours.join("weft-cni"))?.len() as f64 / 1e4).round() / 1e2;
    match &setting.peers {
        Some(peers) => {
            // The directory may also contain other programs.
            let sizes = GO_PLUGINS.iter().filter_map(|name| fs::metadata(peers.join(name)).ok());
            let bytes: u64 = sizes.map(|file| file.len()).sum();
            let theirs = (bytes as f64 / 1e4).round() / 1e2;
            table.contrast("plugins on the node", "MB", ours, "Go", theirs);
        }
        None => table.state("plugins on the node", "MB", ours),
    }
    let largest = (resident(setting)? as f64 / 1e2).round() / 1e1;
    table.state("memory of weft-cni, pod with 4 networks", "MB", largest);
    Ok(())
}

/// Returns the largest resident size during an ADD in kilobytes, as time(1) reports it.
fn resident(setting: &Setting) -> Result<u64, Failure> {
    let container = Container::new("rss".to_owned())?;
    let caller = PodCaller::weft(setting, 3, &[], &setting.scratch)?;
    let (_, config, _) = caller.calls.first().ok_or("weft is not called")?;
    let output = Command::new("/usr/bin/time")
        .args(["-f", "%M"])
        .arg(setting.ours.join("weft"))
        .env_clear()
        .envs([("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", &container.id), ("CNI_NETNS", &container.netns)])
        .envs([("CNI_IFNAME", "eth0"), ("CNI_ARGS", "K8S_POD_NAMESPACE=bench;K8S_POD_NAME=pod")])
        .env("CNI_PATH", &setting.ours)
        .stdin(fs::File::open(config)?)
        .output()?;
    caller.del(&container)?;
    let text = String::from_utf8(output.stderr)?;
    let last = text.lines().last().ok_or("time(1) printed nothing")?;
    Ok(last.trim().parse()?)
}
