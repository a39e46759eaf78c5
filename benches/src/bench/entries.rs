//! Benchmarks portmap and firewall with a thousand pods. Port mappings and permitted addresses are elements in maps and
//! sets, so the thousandth should cost as much as the first.
//!
//! Two namespaces stand for two hosts, one with a thousand pods and one with a single pod. They are called in turn, and
//! only the host side is timed, where pods share tables.

use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use linux::Netns;
use serde_json::{Value, json};

use crate::Setting;
use crate::call::{Container, Plugin, call_in};
use crate::cases::write;
use benches::Failure;
use benches::table::{Table, Times};

/// Number of pods, more than any node has.
const PODS: usize = 1000;
/// Pause after a DEL, because a transaction shortly after a removal waits until the kernel has freed what was removed.
const PAUSE: Duration = Duration::from_millis(40);

/// Times ADD for portmap and firewall, on a host with one pod and on one with a thousand.
pub(crate) fn entries(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    for plugin in ["portmap", "firewall"] {
        let (many, few) = (Node::new(setting, plugin, PODS)?, Node::new(setting, plugin, 1)?);
        let (mut late, mut early) = (Vec::new(), Vec::new());
        for _ in 0..setting.runs * 2 {
            for (node, times) in [(&many, &mut late), (&few, &mut early)] {
                times.push(node.call("ADD", PODS)?);
                node.call("DEL", PODS)?;
                sleep(PAUSE);
            }
        }
        let what = format!("{plugin} ADD, {PODS} pods there");
        table.compare(&what, &Times::new(late), "one there", &Times::new(early));
    }
    Ok(())
}

/// Host, with the configurations for all other pods and for the pod that is timed.
struct Node<'a> {
    directory: &'a Path,
    plugin: &'a str,
    host: Container,
    pod: Container,
    files: Vec<PathBuf>,
}

impl<'a> Node<'a> {
    /// Creates a host with this many pods.
    fn new(setting: &'a Setting, plugin: &'a str, pods: usize) -> Result<Node<'a>, Failure> {
        let host = Container::new(format!("entries-{plugin}-{pods}"))?;
        let pod = Container::new(format!("entries-{plugin}-{pods}-pod"))?;
        let file = |pod| write(setting, &format!("entries-{plugin}-{pod}.json"), &config(plugin, pod));
        let files = (0..=PODS).map(file).collect::<Result<_, _>>()?;
        let node = Node { directory: &setting.ours, plugin, host, pod, files };
        for pod in 0..pods {
            node.call("ADD", pod)?;
        }
        Ok(node)
    }

    /// Calls the plugin on the host for one pod; all pods share one namespace.
    fn call(&self, verb: &str, pod: usize) -> Result<Duration, Failure> {
        let called = Plugin { directory: self.directory, name: self.plugin, config: &self.files[pod] };
        let answer = self.files[pod].with_extension("answer");
        let host = Netns::open(Path::new(&self.host.netns))?;
        host.run(|| call_in(verb, called, [&format!("entry{pod}"), &self.pod.netns, "eth0"], &answer))?
    }
}

fn config(plugin: &str, pod: usize) -> Value {
    let address = format!("10.220.{}.{}/16", pod / 250, pod % 250 + 2);
    let mapping = json!({ "hostPort": 20_000 + pod, "containerPort": 80, "protocol": "tcp" });
    json!({
        "cniVersion": "1.0.0", "name": "bench-entries", "type": plugin, "backend": "nftables",
        "prevResult": { "cniVersion": "1.0.0", "ips": [{ "address": address }] },
        "runtimeConfig": { "portMappings": [mapping] },
    })
}
