//! Tests for crash recovery in tasks, as `weft executor` runs them: after `kill -9` before any step, the same
//! task completes the work, and a DEL at any moment finds everything.
//!
//! ```text
//!   attached: eth0 bridge br1, a0 bridge br2 ─┬─ change ──► eth0, b0 bridge br3 ─────┬─ detached
//!                                             └─ change ──► eth0, a0, b0 bridge br3 ─┘
//! ```
//!
//! `crash_recovery.rs` walks the plugins' steps. This file covers the steps between them: the journal, the
//! locks, and what a killed task leaves to the next.
//!
//! Source: the invariants of `crates/weft-cni/src/meta_plugin/{tasks,change}.rs`.

use rig::cluster::{MANIFESTS, NAMESPACE, bridge, configuration};
use rig::machine::until;
use rig::{Cluster, assert_nothing_left, assert_pod_unchanged, with};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Finished, Host, Pod, Snapshot, host};

/// Agent that sends one response, `/run/response`, and writes the report that follows to `/run/report`.
const AGENT: &str = "
import os, socket, struct
def receive(stream):
    return stream.recv(struct.unpack('>I', stream.recv(4, socket.MSG_WAITALL))[0], socket.MSG_WAITALL)
server = socket.socket(socket.AF_UNIX)
server.bind('/run/weft/new.sock')
server.listen()
os.rename('/run/weft/new.sock', '/run/weft/agent.sock')
stream = server.accept()[0]
receive(stream)
stream.sendall(open('/run/response', 'rb').read())
open('/run/report', 'wb').write(receive(stream))
";
/// Exit code of the killer if it killed the program.
const KILLED: i32 = 200;
/// Upper bound for the steps in a task.
const STEPS_MAX: usize = 500;
const ATTACHED: &str = "net-a@a0";
/// Selections of another network, and of both.
const OTHER: &str = "net-b@b0";
const MORE: &str = "net-a@a0,net-b@b0";

/// A sandbox and the tasks about it.
pub(crate) struct Walk<'a> {
    host: &'a Host,
    pub(crate) cluster: Cluster<'a>,
    pod: &'a Pod,
    pub(crate) attachment: Attachment<'a>,
    pub(crate) config: Value,
    before: Snapshot,
    inside: Snapshot,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(host: &'a Host, pod: &'a Pod) -> Walk<'a> {
        let cluster = Cluster::new(host);
        cluster.definition("net-a", &bridge("net-a", 2));
        cluster.definition("net-b", &bridge("net-b", 3));
        let (inside, config) = (pod.snapshot(), configuration(&bridge("home", 1)));
        let attachment = cluster.attachment(pod);
        let before = host.snapshot();
        let mut walk = Walk { host, cluster, pod, attachment, config, before, inside };
        // Creates the objects that all pods share.
        walk.attach();
        walk.run(&walk.change(OTHER));
        walk.attachment.del(&walk.config).success();
        walk.cluster.pod("web", ATTACHED);
        walk.before = host.snapshot();
        walk
    }

    /// Attaches the pod with the first selection.
    pub(crate) fn attach(&self) {
        self.cluster.pod("web", ATTACHED);
        self.attachment.add(&self.config).success();
    }

    /// Returns the task that gives the sandbox the networks in `selected`, with the planner's plan.
    pub(crate) fn change(&self, selected: &str) -> Value {
        self.cluster.pod("web", selected);
        let answer = self.planned("web", self.pod);
        self.cluster.pod("web", ATTACHED);
        json!({ "change": { "plan": answer["response"]["plan"]["plan"] } })
    }

    /// Returns the planner's response for the pod `name`.
    fn planned(&self, name: &str, pod: &Pod) -> Value {
        let request = json!({ "version": 1, "request": { "plan": {
            "pod": { "namespace": NAMESPACE, "name": name, "uid": "" },
            "container": pod.container_id(), "ifname": "eth0", "began": 0,
            "node": { "configuration": self.config, "flavour": "weft", "files": [], "unreadable": [] },
        } } });
        let weft = testkit::binary("weft");
        let planner = self.host.command(weft).args(["plan", "--once", "-f", MANIFESTS]);
        let output = planner.stdin(framed(&request)).finish().success().stdout;
        let (_, answer) = output.split_once('{').expect("an answer");
        serde_json::from_str(&format!("{{{answer}")).expect("JSON")
    }

    fn take_down(&self) -> Value {
        json!({ "takeDown": { "container": self.pod.container_id(), "uid": "", "certainty": "gone" } })
    }

    /// Runs a task through `words`, as `weft executor` does.
    pub(crate) fn run_through(&self, words: &[&str], task: &Value) -> Finished {
        let weft_cni = testkit::binary("weft-cni").display().to_string();
        let mut line = words.iter().copied().chain([weft_cni.as_str(), "run-tasks"]);
        let command = self.host.command(line.next().expect("a program")).args(line);
        command.stdin(self.task_batch(task)).finish()
    }

    /// Returns a batch with one task, framed.
    fn task_batch(&self, task: &Value) -> Vec<u8> {
        framed(&json!({
            "version": 1,
            "taskBatch": { "configuration": self.config, "flavour": "weft", "tasks": [task] },
        }))
    }

    /// Runs a task, without an agent that receives a report.
    fn run(&self, task: &Value) {
        let Finished { code, stderr, .. } = self.run_through(&[], task);
        let unreported = stderr.starts_with("weft-cni: agent /run/weft/agent.sock:") && !stderr.contains(';');
        assert!(code == Some(0) || unreported, "{task}: {code:?} {stderr}");
    }

    /// Kills a task before step `place`. Returns `None` if the task ended before.
    fn killed(&self, task: &Value, place: usize) -> Option<String> {
        let killer = testkit::binary("weft-test-killer").display().to_string();
        let Finished { code, stderr, .. } = self.run_through(&[&killer, &place.to_string()], task);
        (code == Some(KILLED)).then(|| format!("step {place}, {}", stderr.trim_end()))
    }

    /// Calls DEL, after which nothing is left.
    fn detach(&self, label: &str) {
        let deleted = self.attachment.del(&self.config);
        assert_eq!(deleted.code, Some(0), "{label}, then DEL: {deleted}");
        // The lock file of all changes; the next change, or a GC, removes it.
        self.host.run(["rm", "-f", "/var/lib/weft/sandboxes/changes.lock"]);
        self.assert_nothing_left(label);
    }

    fn assert_nothing_left(&self, label: &str) {
        assert_nothing_left(label, self.host, &self.before);
        assert_pod_unchanged(label, self.pod, &self.inside);
    }

    /// Asserts that the sandbox has these networks, on interfaces of these names.
    fn assert_changed(&self, label: &str, names: &[(&str, &str)]) {
        let (networks, interfaces): (Vec<_>, Vec<_>) = names.iter().copied().unzip();
        assert_eq!(rig::links(self.pod), [&interfaces[..], &["eth0"]].concat(), "{label}");
        let entry = self.cluster.entry(self.pod).expect("an entry");
        let status = entry["networkStatus"].as_array().expect("a list");
        let shown: Vec<_> = status.iter().filter_map(|one| one["interface"].as_str()).collect();
        assert_eq!(
            (&entry["complete"], shown),
            (&json!(true), [&["eth0"], &interfaces[..]].concat()),
            "{label}"
        );
        let held = self.host.run(["sh", "-c", "cd /var/lib/cni/networks; ls -d */10.*"]);
        let of: Vec<_> = held.lines().filter_map(|line| line.split('/').next()).collect();
        assert_eq!(of, [&["home"], &networks[..]].concat(), "{label}");
        let result = entry["attachments"][0]["result"].clone();
        let checked = self.attachment.check(&with(&self.config, &json!({ "prevResult": result })));
        assert_eq!(checked.code, Some(0), "{label}, then CHECK: {checked}");
    }
}

/// Returns a framed message: the length as four bytes, big-endian, then the JSON.
fn framed(message: &Value) -> Vec<u8> {
    let text = message.to_string();
    [&u32::try_from(text.len()).expect("a length").to_be_bytes(), text.as_bytes()].concat()
}

#[test]
fn crash_recovery_change_task_killed_at_every_step() {
    let host = host!(Feature::Bridge);
    let pod = host.pod("web");
    let walk = Walk::new(&host, &pod);
    let (other, more) = (walk.change(OTHER), walk.change(MORE));
    for place in 1..STEPS_MAX {
        // The agent sends the task again.
        walk.attach();
        let replaced = walk.killed(&other, place);
        let label = replaced.clone().unwrap_or_else(|| "at its end".to_owned());
        walk.run(&other);
        walk.assert_changed(&label, &[("net-b", "b0")]);
        walk.detach(&label);
        // The runtime calls DEL first.
        walk.attach();
        let added = walk.killed(&more, place);
        let label = added.clone().unwrap_or_else(|| "at its end".to_owned());
        if added.is_none() {
            walk.assert_changed(&label, &[("net-a", "a0"), ("net-b", "b0")]);
        }
        walk.detach(&label);
        if replaced.is_none() && added.is_none() {
            assert!(place > 30, "only {place} steps: does the killer see all steps?");
            return;
        }
    }
    panic!("a change takes more than {STEPS_MAX} steps")
}

#[test]
fn crash_recovery_change_task_killed_repeatedly_completes() {
    let host = host!(Feature::Bridge);
    let pod = host.pod("web");
    let walk = Walk::new(&host, &pod);
    let task = walk.change(OTHER);
    walk.attach();
    let kills = (1..STEPS_MAX).take_while(|place| walk.killed(&task, *place).is_some()).count();
    assert!(kills > 10, "only {kills} kills: does the killer see all steps?");
    walk.assert_changed("killed again and again", &[("net-b", "b0")]);
    walk.detach("killed again and again");
}

/// `weft executor` may be killed while it writes a task batch.
#[test]
fn crash_recovery_truncated_task_batch_changes_nothing() {
    let host = host!(Feature::Bridge);
    let pod = host.pod("web");
    let walk = Walk::new(&host, &pod);
    walk.attach();
    let before = (host.snapshot(), pod.snapshot());
    let whole = walk.task_batch(&walk.change(OTHER));
    for length in [0, 3, 4, whole.len() / 2, whole.len() - 1] {
        let part = host.command(testkit::binary("weft-cni")).args(["run-tasks"]).stdin(&whole[..length]);
        assert_eq!(part.finish().code, Some(1), "{length} bytes");
        assert_nothing_left("a truncated task batch", &host, &before.0);
        assert_pod_unchanged("a truncated task batch", &pod, &before.1);
    }
}

#[test]
fn crash_recovery_take_down_task_killed_at_every_step() {
    let host = host!(Feature::Bridge);
    let pod = host.pod("web");
    let walk = Walk::new(&host, &pod);
    let task = walk.take_down();
    for place in 1..STEPS_MAX {
        walk.attach();
        let killed = walk.killed(&task, place);
        let label = killed.clone().unwrap_or_else(|| "at its end".to_owned());
        walk.run(&task);
        walk.assert_nothing_left(&label);
        if killed.is_none() {
            assert!(place > 15, "only {place} steps: does the killer see all steps?");
            return;
        }
    }
    panic!("a take-down takes more than {STEPS_MAX} steps")
}

#[test]
fn task_process_waits_for_the_exit_of_its_parent() {
    let host = host!(Feature::Bridge);
    let pod = host.pod("web");
    let walk = Walk::new(&host, &pod);
    walk.attach();
    host.write("/run/batch", walk.task_batch(&walk.take_down()));
    let weft_cni = testkit::binary("weft-cni").display().to_string();
    let parent =
        "\"$0\" run-tasks --after $$ </run/batch >/dev/null 2>&1 & sleep 2; ls /var/lib/weft/sandboxes";
    let listed = host.run(["sh", "-c", parent, &weft_cni]);
    assert!(listed.contains(&pod.container_id()), "detached before the parent's exit: {listed}");
    until("the task is executed", || walk.cluster.entry(&pod).is_none().then_some(()));
    walk.detach("detached");
}

#[test]
fn tasks_of_a_plan_are_executed_and_the_plan_is_reported() {
    let host = host!(Feature::Bridge);
    let (pod, other) = (host.pod("web"), host.pod("db"));
    let walk = Walk::new(&host, &pod);
    walk.attach();
    walk.cluster.pod("db", "net-b@b0");
    let mut response = walk.planned("db", &other);
    response["response"]["plan"]["tasks"] = json!([{ "dance": {} }, walk.take_down()]);
    host.write("/run/response", framed(&response));
    host.run(["mkdir", "-p", "/run/weft"]);
    let mut agent = host.command("/usr/bin/python3").args(["-c", AGENT]).start();
    until("the agent listens", || host.run(["ls", "/run/weft"]).contains("agent.sock").then_some(()));
    let mut config = walk.config.clone();
    config.as_object_mut().expect("an object").remove("manifestDir");
    walk.cluster.attachment(&other).add(&config).success();
    until("the task is executed", || walk.cluster.entry(&pod).is_none().then_some(()));
    let report = until("the report", || host.read("/run/report").filter(|report| report.ends_with('}')));
    let report: Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["request"]["planReport"]["attachments"].as_array().map(Vec::len), Some(2), "{report}");
    agent.end();
    walk.cluster.attachment(&other).del(&config).success();
    host.run(["rm", "/run/weft/agent.sock", &format!("{MANIFESTS}/pod-db.json")]);
    walk.assert_nothing_left("both pods are detached");
}
