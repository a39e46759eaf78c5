//! Benchmarks a node that starts: many concurrent pods, each with an address, host ports and rate limits.
//!
//! For weft, each pod is one call to the meta-plugin. The Go plugins are called one after the other, as a runtime does
//! it: each plugin with the previous one's result, and DEL in reverse order.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Setting;
use crate::call::{Container, Plugin, at_once, call};
use crate::cases::write;
use benches::Failure;
use benches::table::{Table, Times, milliseconds};

/// Default pod limit in a kubelet.
const PODS: usize = 110;
/// Number of pods that are removed one after the other; the rest are removed concurrently.
const ONE_BY_ONE: usize = 20;

/// Times for each pod, and for all of them together.
struct Outcome {
    adds: Times,
    whole: Duration,
    dels: Times,
    gone: Duration,
}

/// A pod's plugins and configurations, in order.
struct Chain {
    directory: PathBuf,
    plugins: Vec<(&'static str, PathBuf)>,
    container: Container,
}

/// Times bridge + portmap + bandwidth for many concurrent pods.
pub(crate) fn concurrency(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    let ours = run(&chains(setting, &setting.ours, "w")?)?;
    let peer = setting.peers.as_deref().map(|peers| run(&chains(setting, peers, "g")?)).transpose()?;
    let all = "110 pods at once, until all are";
    let (added, removed) = (milliseconds(ours.whole), milliseconds(ours.gone));
    match &peer {
        Some(peer) => {
            let what = "110 pods at once, bridge + portmap + bandwidth";
            table.compare(&format!("{what} ADD"), &ours.adds, "Go", &peer.adds);
            table.compare(&format!("{what} DEL, one by one"), &ours.dels, "Go", &peer.dels);
            table.contrast(&format!("{all} attached"), "ms", added, "Go", milliseconds(peer.whole));
            table.contrast(&format!("{all} detached"), "ms", removed, "Go", milliseconds(peer.gone));
        }
        None => {
            table.state(&format!("{all} attached"), "ms", added);
            table.state(&format!("{all} detached"), "ms", removed);
        }
    }
    Ok(())
}

fn run(chains: &[Chain]) -> Result<Outcome, Failure> {
    let (adds, whole) = at_once(chains, timed(Chain::add))?;
    let (first, rest) = chains.split_at(ONE_BY_ONE);
    let mut dels = Vec::new();
    for chain in first {
        let started = Instant::now();
        chain.del()?;
        dels.push(started.elapsed());
    }
    let (_, gone) = at_once(rest, Chain::del)?;
    Ok(Outcome { adds: Times::new(adds), whole, dels: Times::new(dels), gone })
}

fn timed(work: impl Fn(&Chain) -> Result<(), Failure>) -> impl Fn(&Chain) -> Result<Duration, Failure> {
    move |chain| {
        let started = Instant::now();
        work(chain).map(|()| started.elapsed())
    }
}

fn chains(setting: &Setting, directory: &Path, tag: &str) -> Result<Vec<Chain>, Failure> {
    let is_ours = tag == "w";
    let third = if is_ours { 0 } else { 1 };
    let bridge = json!({
        "type": "bridge", "bridge": format!("many{tag}"), "isDefaultGateway": true,
        "ipam": { "type": "host-local", "subnet": format!("10.23{third}.0.0/16"), "dataDir": setting.scratch.join("addresses") },
    });
    let limits = json!({ "type": "bandwidth", "ingressRate": 800_000_000_u64, "ingressBurst": 8_000_000_u64,
        "egressRate": 800_000_000_u64, "egressBurst": 8_000_000_u64 });
    let manifests = setting.scratch.join("concurrent");
    std::fs::create_dir_all(&manifests)?;
    let pod =
        json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "namespace": "bench", "name": "pod" } });
    std::fs::write(manifests.join("pod.json"), pod.to_string())?;
    let mut chains = Vec::with_capacity(PODS);
    for number in 0..PODS {
        let port = 20_000 + number + third * 1_000;
        let mapping = json!([{ "hostPort": port, "containerPort": 80, "protocol": "tcp" }]);
        let ports = json!({ "type": "portmap", "capabilities": { "portMappings": true },
            "runtimeConfig": { "portMappings": mapping } });
        let name = format!("concurrent-{tag}");
        let plugins: Vec<(&'static str, Value)> = match is_ours {
            true => {
                let mut plain = ports;
                plain.as_object_mut().map(|ports| ports.remove("runtimeConfig"));
                let list = json!({ "cniVersion": "1.0.0", "name": name, "plugins": [bridge, plain, limits] });
                let weft = json!({ "type": "weft", "manifestDir": manifests,
                    "cniDir": setting.scratch.join("state"), "binDir": directory, "delegates": [list],
                    "capabilities": { "portMappings": true }, "runtimeConfig": { "portMappings": mapping } });
                vec![("weft", weft)]
            }
            false => vec![("bridge", bridge.clone()), ("portmap", ports), ("bandwidth", limits.clone())],
        };
        let mut files = Vec::new();
        for (plugin, mut config) in plugins {
            config["cniVersion"] = json!("1.0.0");
            config["name"] = json!(name);
            files.push((
                plugin,
                write(setting, &format!("concurrent-{tag}-{number}-{plugin}.json"), &config)?,
            ));
        }
        let container = Container::new(format!("concurrent{tag}{number}"))?;
        chains.push(Chain { directory: directory.to_owned(), plugins: files, container });
    }
    Ok(chains)
}

impl Chain {
    fn plugin<'a>(&'a self, name: &'a str, config: &'a Path) -> Plugin<'a> {
        Plugin { directory: &self.directory, name, config }
    }

    fn add(&self) -> Result<(), Failure> {
        let mut last: Option<Value> = None;
        for (name, config) in &self.plugins {
            if let Some(last) = last {
                set_previous_result(config, &last)?;
            }
            call("ADD", self.plugin(name, config), &self.container)?;
            last = Some(serde_json::from_slice(&std::fs::read(config.with_extension("answer"))?)?);
        }
        for (_, config) in self.plugins.iter().filter(|_| self.plugins.len() > 1) {
            set_previous_result(config, last.as_ref().ok_or("there is no result")?)?;
        }
        Ok(())
    }

    fn del(&self) -> Result<(), Failure> {
        for (name, config) in self.plugins.iter().rev() {
            call("DEL", self.plugin(name, config), &self.container)?;
        }
        Ok(())
    }
}

/// Sets `prevResult` in a configuration.
fn set_previous_result(config: &Path, result: &Value) -> Result<(), Failure> {
    let mut object: Value = serde_json::from_slice(&std::fs::read(config)?)?;
    object["prevResult"] = result.clone();
    Ok(std::fs::write(config, object.to_string())?)
}
