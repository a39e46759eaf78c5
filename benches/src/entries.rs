//! Whether a call gets slower with the pods that are there: a node's mappings and its let-through addresses are
//! elements of maps and sets, and the thousandth should cost what the first did.
//!
//! One container's namespace stands for all of them: what is timed is the host's side, where they meet.

use serde_json::{Value, json};

use crate::call::{Container, Plugin, call, call_in};
use crate::cases::write;
use crate::table::{Table, Times};
use crate::{Failure, Setting};

/// More than any node has.
const PODS: usize = 1000;
/// How many stand for the first and for the last.
const SOME: usize = 50;

/// ADD of portmap and of firewall with nobody there, and with a thousand.
pub(crate) fn entries(setting: &Setting, table: &mut Table) -> Result<(), Failure> {
    for plugin in ["portmap", "firewall"] {
        let times = fill(setting, plugin)?;
        let few = Times::new(times[..SOME].to_vec());
        let many = Times::new(times[PODS - SOME..].to_vec());
        let what = format!("{plugin} ADD, {PODS} pods there");
        table.compare(&what, &many, "the first fifty", &few, "at most 1.3x");
    }
    Ok(())
}

/// The time of each ADD, in order; what they made is removed.
fn fill(setting: &Setting, plugin: &str) -> Result<Vec<std::time::Duration>, Failure> {
    let all = Container::new(format!("entries-{plugin}"))?;
    let answer = setting.scratch.join(format!("entries-{plugin}.answer"));
    // What all share is made by one that is not counted.
    let first = write(setting, &format!("entries-{plugin}-shared.json"), &config(plugin, PODS))?;
    call("ADD", Plugin { directory: &setting.ours, name: plugin, config: &first }, &all)?;
    let mut times = Vec::with_capacity(PODS);
    let mut files = Vec::with_capacity(PODS);
    for pod in 0..PODS {
        files.push(write(setting, &format!("entries-{plugin}-{pod}.json"), &config(plugin, pod))?);
        let called = Plugin { directory: &setting.ours, name: plugin, config: &files[pod] };
        times.push(call_in("ADD", called, [&format!("entry{pod}"), &all.netns], &answer)?);
    }
    for (pod, file) in files.iter().enumerate() {
        let called = Plugin { directory: &setting.ours, name: plugin, config: file };
        call_in("DEL", called, [&format!("entry{pod}"), &all.netns], &answer)?;
    }
    call("DEL", Plugin { directory: &setting.ours, name: plugin, config: &first }, &all)?;
    Ok(times)
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
