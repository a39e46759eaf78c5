//! Tests for network policies on running pods: tasks that replace the rules, a kill at every step, and rules
//! that another program changed.
//!
//! ```text
//!   db 10.9.0.11 ──┬── network "data" (fd00:9::11, …)      policies: in the tasks, as `weft executor` runs them
//!   web 10.9.0.12 ─┘
//! ```
//!
//! Source: the invariants of `crates/weft-cni/src/meta_plugin/policy_update.rs`.

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rig::cluster::NAMESPACE;
use rig::traffic::{Transport, outside, reached};
use rig::{Cluster, assert_nothing_left, assert_pod_unchanged, refusal};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Finished, Host, Netns, Pod, host};

use crate::network_policy::{ROWS, assert_rows, attach, network, policies, weft};

/// Pods in address order; addresses begin with 10.9.0.11.
const PODS: [&str; 2] = ["db", "web"];
const DB: &str = "10.9.0.11";
const WEB: &str = "10.9.0.12";
/// Address of no pod.
const OTHER: &str = "10.9.0.99";
/// Exit code of the killer if it killed the program.
const KILLED: i32 = 200;
/// Upper bound for the steps in a task.
const STEPS_MAX: usize = 200;
/// Number of updates during which packets are sent.
const UPDATES: usize = 50;

/// Two attached pods.
struct Pods<'a> {
    host: &'a Host,
    cluster: Cluster<'a>,
    db: Pod,
    web: Pod,
}

impl<'a> Pods<'a> {
    fn new(host: &'a Host, plugin: &str) -> Pods<'a> {
        let cluster = Cluster::new(host);
        host.run(["sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"]);
        cluster.definition("data", &network(plugin));
        for (index, name) in PODS.iter().enumerate() {
            let ips = json!([format!("10.9.0.{}/24", 11 + index), format!("fd00:9::{}/64", 11 + index)]);
            cluster.pod(name, json!([{ "name": "data", "ips": ips }]));
        }
        let [db, web] = PODS.map(|name| host.pod(name));
        Pods { host, cluster, db, web }
    }

    fn attachment(&self, pod: &Pod) -> Attachment<'a> {
        self.cluster.attachment(pod)
    }

    fn attach(&self, pod: &Pod) {
        self.attachment(pod).add(&weft()).success();
        for family in ["-4", "-6"] {
            let shown = || pod.run(["ip", family, "-o", "address", "show", "dev", "net1"]);
            rig::machine::until("the addresses", || (!shown().contains("tentative")).then_some(()));
        }
    }

    /// Returns the task that gives the attachment of `db` these policies; null for none.
    fn update(&self, policy: &Value) -> Value {
        let attachment =
            json!({ "ifname": "net1", "network": format!("{NAMESPACE}/data"), "policy": policy });
        json!({ "updatePolicy": { "container": self.db.container_id(), "uid": "", "attachments": [attachment] } })
    }

    /// Returns the task that compares the rules of a pod.
    fn verification(&self) -> Value {
        verification(&self.db)
    }

    /// Runs a task through `words`, as `weft executor` does.
    fn run_through(&self, words: &[&str], task: &Value) -> Finished {
        run_through(self.host, words, task)
    }

    /// Runs a task, without an agent that receives a report.
    #[track_caller]
    fn run(&self, task: &Value) {
        let Finished { code, stderr, .. } = self.run_through(&[], task);
        let is_unreported =
            stderr.starts_with("weft-cni: agent /run/weft/agent.sock:") && !stderr.contains(';');
        assert!(code == Some(0) || is_unreported, "{task}: {code:?} {stderr}");
    }

    /// Kills a task before step `place`. Returns `None` if the task ended before.
    fn killed(&self, task: &Value, place: usize) -> Option<String> {
        let killer = testkit::binary("weft-test-killer").display().to_string();
        let Finished { code, stderr, .. } = self.run_through(&[&killer, &place.to_string()], task);
        (code == Some(KILLED)).then(|| format!("step {place}, {}", stderr.trim_end()))
    }

    /// Whether `web` reaches `db` at a UDP port, with IPv4 and IPv6.
    #[track_caller]
    fn reaches(&self, port: u16) -> bool {
        let [four, six] = [DB.to_owned(), "[fd00:9::11]".to_owned()].map(|address| {
            let at = format!("{address}:{port}");
            reached(Transport::Udp, &self.web, &at, &self.db, &at).is_some()
        });
        assert_eq!(four, six, "IPv4 and IPv6 differ at port {port}");
        four
    }

    /// Returns the namespace with the rules.
    fn namespace(&self, plugin: &str) -> &Netns {
        if plugin == "ptp" { self.host } else { &self.db }
    }

    /// Returns the chains of attachments, on the host and in the pod.
    fn chains(&self) -> Vec<String> {
        let list = |netns: &Netns| netns.command("nft").args(["list", "chains"]).finish().success().stdout;
        let both = list(self.host) + &list(&self.db);
        let chains = both.lines().filter_map(|line| line.trim().strip_prefix("chain "));
        chains
            .filter(|name| name.contains("gress-"))
            .map(|name| name.trim_end_matches(" {").to_owned())
            .collect()
    }

    /// Returns `db`'s policy in the journal, and whether an update is pending.
    fn recorded(&self) -> (Value, bool) {
        let entry = self.cluster.entry(&self.db).expect("an entry");
        let pending = entry["attachments"][1]["policyPending"].as_bool().unwrap_or_default();
        (entry["plan"]["delegates"][1]["policy"].clone(), pending)
    }
}

/// Runs a task through `words`, as `weft executor` does.
fn run_through(host: &Host, words: &[&str], task: &Value) -> Finished {
    let batch = json!({
        "version": 1,
        "taskBatch": { "configuration": weft(), "flavour": "weft", "tasks": [task] },
    })
    .to_string();
    let framed = [&u32::try_from(batch.len()).expect("a length").to_be_bytes(), batch.as_bytes()].concat();
    let weft_cni = testkit::binary("weft-cni").display().to_string();
    let mut line = words.iter().copied().chain([weft_cni.as_str(), "run-tasks"]);
    let command = host.command(line.next().expect("a program")).args(line);
    command.stdin(framed).finish()
}

/// Returns the task that compares the rules of a pod.
fn verification(pod: &Pod) -> Value {
    json!({ "verifyPolicy": { "container": pod.container_id(), "uid": "" } })
}

/// Compares the rules of a pod with the kernel's. Returns the report about restored rules, for which there is no agent.
pub(crate) fn verify(host: &Host, pod: &Pod) -> Finished {
    run_through(host, &[], &verification(pod))
}

/// Returns policies that isolate both directions. `ports` of `peers` are reachable, and everything may be sent to `peers`.
fn policy(peers: &[&str], ports: &[u16]) -> Value {
    let range = |port: &u16| json!({ "protocol": "UDP", "first": port, "last": port });
    let rule = |ports: Vec<Value>| {
        let mut rule = json!({ "policy": "blue/p", "rule": 0, "peers": { "only": { "set": "peers" } } });
        if !ports.is_empty() {
            rule["ports"] = ports.into();
        }
        rule
    };
    let six = peers.iter().map(|peer| peer.replace("10.9.0.", "fd00:9::"));
    let peers: Vec<String> = peers.iter().map(|peer| (*peer).to_owned()).chain(six).collect();
    json!({
        "ingress": { "rules": [rule(ports.iter().map(range).collect())] },
        "egress": { "rules": [rule(Vec::new())] },
        "sets": { "peers": peers },
    })
}

/// Ends the senders of a test, also if it fails.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn update_and_release(host: &Host, plugin: &str) {
    let pods = Pods::new(host, plugin);
    pods.attach(&pods.web);
    // The objects that all pods share, and the table.
    pods.attach(&pods.db);
    pods.run(&pods.update(&policy(&[WEB], &[1])));
    pods.attachment(&pods.db).del(&weft()).success();
    let (before, inside) = (host.snapshot(), pods.db.snapshot());
    pods.attach(&pods.db);
    let check = || pods.attachment(&pods.db).check(&weft());
    assert!(pods.reaches(53) && pods.chains().is_empty(), "{plugin}: no policy");
    pods.run(&pods.update(&policy(&[WEB], &[53])));
    check().success();
    assert!(pods.reaches(53) && !pods.reaches(54), "{plugin}: isolated");
    assert_eq!(pods.recorded(), (policy(&[WEB], &[53]), false));
    // Another port is another rule; another peer is another content of the same set.
    pods.run(&pods.update(&policy(&[WEB], &[54])));
    assert!(!pods.reaches(53) && pods.reaches(54), "{plugin}: another rule");
    pods.run(&pods.update(&policy(&[OTHER], &[54])));
    check().success();
    assert!(!pods.reaches(54), "{plugin}: another peer");
    pods.run(&pods.update(&policy(&[WEB, OTHER], &[54])));
    assert!(pods.reaches(54), "{plugin}: one peer more");
    // One direction less, then none.
    let mut one = policy(&[], &[]);
    one.as_object_mut().expect("an object").remove("ingress");
    pods.run(&pods.update(&one));
    check().success();
    assert!(pods.reaches(54) && pods.chains().len() == 1, "{plugin}: {:?}", pods.chains());
    pods.run(&pods.update(&Value::Null));
    check().success();
    assert!(pods.reaches(53) && pods.chains().is_empty(), "{plugin}: {:?}", pods.chains());
    assert_eq!(pods.recorded(), (Value::Null, false));
    pods.run(&pods.update(&policy(&[WEB], &[53])));
    pods.attachment(&pods.db).del(&weft()).success();
    assert_nothing_left(plugin, host, &before);
    assert_pod_unchanged(plugin, &pods.db, &inside);
}

#[test]
fn network_policy_update_isolates_and_releases_on_bridge() {
    update_and_release(&host!(Feature::Bridge, Feature::NftInet), "bridge");
}

#[test]
fn network_policy_update_isolates_and_releases_on_ptp() {
    update_and_release(&host!(Feature::Veth, Feature::Bridge, Feature::NftInet), "ptp");
}

#[test]
fn network_policy_update_isolates_and_releases_on_macvlan() {
    let host = host!(Feature::Macvlan, Feature::Bridge, Feature::NftInet);
    let _outside = outside(&host);
    update_and_release(&host, "macvlan");
}

/// A rule gets an IPv6 set with the first IPv6 peer. The set stays after the last one, so that a peer that restarts
/// causes no further change of rules.
#[test]
fn network_policy_update_adds_and_removes_ipv6_peers() {
    for plugin in ["ptp", "bridge"] {
        let host = host!(Feature::Veth, Feature::Bridge, Feature::NftInet);
        let pods = Pods::new(&host, plugin);
        pods.attach(&pods.web);
        pods.attach(&pods.db);
        let both = policy(&[WEB], &[53]);
        let mut four = both.clone();
        four["sets"]["peers"] = json!([WEB]);
        let reaches = || {
            [DB.to_owned(), "[fd00:9::11]".to_owned()].map(|address| {
                let at = format!("{address}:53");
                reached(Transport::Udp, &pods.web, &at, &pods.db, &at).is_some()
            })
        };
        // Handles of the rules: a rule that is written again has another one.
        let handles = || {
            let table =
                pods.namespace(plugin).run(["nft", "-a", "-s", "list", "table", "inet", "weft-policy"]);
            let rules = table.lines().filter(|line| line.contains("comment \"#"));
            rules.filter_map(|line| Some(line.rsplit_once("# handle ")?.1.to_owned())).collect::<Vec<_>>()
        };
        let mut known = Vec::new();
        let rounds = [
            (&four, [true, false], false),
            (&both, [true, true], true),
            (&four, [true, false], true),
            (&both, [true, true], true),
        ];
        for (round, (policy, expected, has_set)) in rounds.into_iter().enumerate() {
            pods.run(&pods.update(policy));
            pods.attachment(&pods.db).check(&weft()).success();
            assert_eq!(reaches(), expected, "{plugin}: {policy}");
            assert_eq!(listed(&pods, plugin).contains("pods6"), has_set, "{plugin}: {policy}");
            let before = std::mem::replace(&mut known, handles());
            assert!(!known.is_empty() && (before != known) == (round < 2), "{plugin}: {before:?} {known:?}");
        }
        // Another rule is written with the sets that it needs.
        let mut other = policy(&[WEB], &[54]);
        other["sets"]["peers"] = json!([WEB]);
        pods.run(&pods.update(&other));
        pods.attachment(&pods.db).check(&weft()).success();
        assert!(!listed(&pods, plugin).contains("pods6"), "{plugin}");
        pods.attachment(&pods.db).del(&weft()).success();
        assert!(pods.chains().is_empty(), "{plugin}: {:?}", pods.chains());
    }
}

/// Number of packets that the processors dropped before any rule, because the receive queue was full. The sender of
/// forbidden packets may fill it. Source: `Documentation/networking/scaling.rst`, `/proc/net/softnet_stat`.
fn dropped_by_full_queues() -> u64 {
    let text = std::fs::read_to_string("/proc/net/softnet_stat").expect("the queues");
    let dropped = |line: &str| u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok();
    text.lines().map(|line| dropped(line).expect("a hexadecimal number")).sum()
}

/// Counts the packets that arrive until no more are sent. It reads all the time, because the queue of the socket is short.
fn received_until(is_over: &AtomicBool, socket: &UdpSocket) -> u64 {
    let (mut count, mut is_last) = (0, false);
    loop {
        match socket.recv(&mut [0; 64]) {
            Ok(_) => count += 1,
            Err(_) if is_last => return count,
            Err(_) => is_last = is_over.load(Ordering::Relaxed),
        }
    }
}

/// Sends packets to `db` during updates: 16 every 0.1 ms to a port that no policy allows, and numbered packets to a port that
/// all of them allow.
fn updates_under_load(host: &Host, plugin: &str) {
    let pods = Pods::new(host, plugin);
    pods.attach(&pods.web);
    pods.attach(&pods.db);
    pods.run(&pods.update(&policy(&[WEB], &[53])));
    let socket = |pod: &Pod, at: String| pod.within(move || UdpSocket::bind(at)).expect("a socket");
    let [forbidden, allowed] = [9999, 53].map(|port| socket(&pods.db, format!("0.0.0.0:{port}")));
    forbidden.set_nonblocking(true).expect("not to wait");
    allowed.set_read_timeout(Some(Duration::from_millis(300))).expect("a timeout");
    let [from, numbered] = [0, 0].map(|port: u16| socket(&pods.web, format!("0.0.0.0:{port}")));
    let is_over = AtomicBool::new(false);
    let full_queues = dropped_by_full_queues();
    let (sent, received) = std::thread::scope(|scope| {
        let (is_over, numbered, from, allowed) = (&is_over, &numbered, &from, &allowed);
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                for _ in 0..16 {
                    let _ = from.send_to(b"forbidden", (DB, 9999));
                }
                // The queue of received packets has a thousand places for all.
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let sender = scope.spawn(move || {
            let mut count = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                count += u64::from(numbered.send_to(&count.to_be_bytes(), (DB, 53)).is_ok());
                std::thread::sleep(Duration::from_millis(1));
            }
            count
        });
        let receiver = scope.spawn(move || received_until(is_over, allowed));
        let end = End(is_over);
        for round in 0..UPDATES {
            let next = match round % 4 {
                0 => policy(&[WEB, OTHER], &[53]),
                1 => policy(&[WEB], &[53, 54]),
                2 => policy(&[OTHER, WEB], &[53, 55]),
                _ => policy(&[WEB], &[53]),
            };
            pods.run(&pods.update(&next));
        }
        drop(end);
        (sender.join().expect("a number"), receiver.join().expect("a number"))
    });
    let passed = std::iter::from_fn(|| forbidden.recv(&mut [0; 64]).ok()).count();
    assert_eq!(passed, 0, "{plugin}: forbidden packets passed");
    assert!(sent > UPDATES as u64, "{plugin}: {sent} packets were sent");
    let queues = dropped_by_full_queues() - full_queues;
    let lost = sent - received;
    // The kernel itself loses a packet now and then at the moment of a commit (docs/design/policy.md, "Running pods"). Other
    // tests fill queues, too.
    let bound = 2 + queues.min(3);
    assert!(lost <= bound, "{plugin}: {lost} allowed packets were dropped, {queues} packets by full queues");
    pods.run(&pods.update(&Value::Null));
    assert!(pods.reaches(9998), "{plugin}: the packets reach the pod without a policy");
}

#[test]
fn network_policy_update_never_leaves_a_packet_without_rules() {
    for plugin in ["bridge", "ptp"] {
        updates_under_load(&host!(Feature::Veth, Feature::Bridge, Feature::NftInet), plugin);
    }
}

/// Runs an update from one policy to another that is killed before each step. The old or the new rules are in force,
/// the same task completes, and a DEL leaves nothing.
fn kill_at_every_step(plugin: &str, old: &Value, new: &Value) {
    let host = host!(Feature::Veth, Feature::Bridge, Feature::NftInet);
    let pods = Pods::new(&host, plugin);
    pods.attach(&pods.db);
    pods.run(&pods.update(&policy(&[WEB], &[1])));
    pods.attachment(&pods.db).del(&weft()).success();
    let (before, inside) = (host.snapshot(), pods.db.snapshot());
    let [is_old, is_new] = [old, new].map(|policy| rules(&pods, plugin, policy));
    for place in 1..STEPS_MAX {
        for repeats in [true, false] {
            pods.attachment(&pods.db).add(&weft()).success();
            pods.run(&pods.update(old));
            let killed = pods.killed(&pods.update(new), place);
            let label = killed.clone().unwrap_or_else(|| "at its end".to_owned());
            let shown = listed(&pods, plugin);
            assert!(shown == is_old || shown == is_new, "{plugin}, {label}: {shown}");
            let (recorded, is_pending) = pods.recorded();
            let is_open = |policy: &Value| policy.get("ingress").is_none();
            if shown != is_old {
                assert!(recorded == *new || (is_pending && is_open(&recorded)), "{label}: {recorded}");
            }
            if repeats {
                pods.run(&pods.update(new));
                assert_eq!((pods.recorded(), listed(&pods, plugin)), ((new.clone(), false), is_new.clone()));
                pods.attachment(&pods.db).check(&weft()).success();
            } else if is_pending {
                let (_, message) = refusal(&pods.attachment(&pods.db).check(&weft()));
                assert!(message.contains("an update of the rules has not ended"), "{label}: {message}");
            }
            pods.attachment(&pods.db).del(&weft()).success();
            assert_nothing_left(&label, &host, &before);
            assert_pod_unchanged(&label, &pods.db, &inside);
            if killed.is_none() && !repeats {
                assert!(place > 8, "only {place} steps: does the killer see all steps?");
                return;
            }
        }
    }
    panic!("an update takes more than {STEPS_MAX} steps")
}

/// Returns the rules that a policy gives `db`.
fn rules(pods: &Pods<'_>, plugin: &str, policy: &Value) -> String {
    pods.attachment(&pods.db).add(&weft()).success();
    pods.run(&pods.update(policy));
    let listed = listed(pods, plugin);
    pods.attachment(&pods.db).del(&weft()).success();
    listed
}

/// Returns the chains and sets of attachments, without counters, sorted: the kernel lists sets in the order in which
/// they were created.
fn listed(pods: &Pods<'_>, plugin: &str) -> String {
    let table = ["-s", "list", "table", "inet", "weft-policy"];
    let listed = pods.namespace(plugin).command("nft").args(table).finish();
    // The base chains stay on the host after the last attachment.
    let objects = listed.stdout.replace("table inet weft-policy {\n", "").replace("\n}\n", "\n");
    let parts = objects.split("\n\n").filter(|part| part.contains("gress-")).map(str::trim_end);
    let mut parts: Vec<&str> = parts.collect();
    parts.sort_unstable();
    parts.join("\n")
}

#[test]
fn network_policy_update_killed_at_every_step() {
    for plugin in ["bridge", "ptp"] {
        kill_at_every_step(plugin, &policy(&[WEB], &[53]), &policy(&[OTHER], &[53, 54]));
    }
}

#[test]
fn network_policy_update_of_sets_killed_at_every_step() {
    kill_at_every_step("ptp", &policy(&[WEB], &[53]), &policy(&[OTHER, WEB], &[53]));
}

#[test]
fn network_policy_first_update_killed_at_every_step() {
    for plugin in ["bridge", "ptp"] {
        kill_at_every_step(plugin, &Value::Null, &policy(&[WEB], &[53]));
    }
}

#[test]
fn network_policy_last_update_killed_at_every_step() {
    for plugin in ["bridge", "ptp"] {
        kill_at_every_step(plugin, &policy(&[WEB], &[53]), &Value::Null);
    }
}

#[test]
fn network_policy_update_ends_established_connections() {
    for plugin in ["bridge", "ptp"] {
        let host = host!(Feature::Veth, Feature::Bridge, Feature::NftInet);
        let pods = Pods::new(&host, plugin);
        pods.attach(&pods.web);
        pods.attach(&pods.db);
        let allowed = json!({ "ingress": { "rules": [
            { "policy": "blue/p", "rule": 0, "peers": { "only": { "set": "peers" } } },
        ] }, "sets": { "peers": [WEB] } });
        pods.run(&pods.update(&allowed));
        let listener = |port: u16| pods.db.within(move || TcpListener::bind((DB, port))).expect("a listener");
        let connect = |port: u16| {
            let (listener, to) = (listener(port), (DB, port));
            let client = pods.web.within(move || TcpStream::connect(to)).expect("a connection");
            let (server, _) = listener.accept().expect("a client");
            server.set_read_timeout(Some(Duration::from_millis(700))).expect("a timeout");
            (client, server)
        };
        let exchange = |(client, server): &mut (TcpStream, TcpStream)| {
            use std::io::{Read, Write};
            client.write_all(b"a").expect("sent");
            server.read(&mut [0; 8]).is_ok()
        };
        let (mut ended, mut kept) = (connect(5432), connect(80));
        assert!(exchange(&mut ended) && exchange(&mut kept), "{plugin}");
        let mut narrow = allowed;
        narrow["ingress"]["rules"][0]["ports"] = json!([{ "protocol": "TCP", "first": 80, "last": 80 }]);
        pods.run(&pods.update(&narrow));
        assert!(exchange(&mut kept), "{plugin}: an allowed connection continues");
        assert!(!exchange(&mut ended), "{plugin}: a forbidden connection continues");
    }
}

/// Returns the commands that write a base chain and the rule in it again, at another hook.
fn other_base(chain: &str, hook: &str) -> String {
    let (table, field) = ("inet weft-policy", if chain == "prerouting" { "iifname" } else { "oifname" });
    let map = if chain == "prerouting" { "links-in" } else { "links-out" };
    format!(
        "flush chain {table} {chain}; delete chain {table} {chain}; \
         add chain {table} {chain} {{ type filter hook {hook}; policy accept; }}; \
         add rule {table} {chain} {field} vmap @{map} comment \"links with network policies\""
    )
}

/// Rules that the pod adds elsewhere do not lengthen a comparison. Rules that it adds among weft's are found without
/// being read.
#[test]
fn network_policy_comparison_is_bounded_in_a_hostile_pod() {
    const RULES: usize = 100_000;
    let host = host!(Feature::Macvlan, Feature::Bridge, Feature::NftInet);
    let _outside = outside(&host);
    // The rules are in the pod on every kernel.
    let pods = Pods::new(&host, "macvlan");
    pods.attach(&pods.web);
    pods.attach(&pods.db);
    pods.run(&pods.update(&policy(&[WEB], &[53])));
    let table = "inet weft-policy";
    let chain = pods.chains().into_iter().find(|name| name.starts_with("ingress-")).expect("a chain");
    let set = format!("{}-ingress-0-pods4", chain.trim_start_matches("ingress-"));
    let fill = |chain: &str| {
        let rules = (0..RULES).map(|_| format!("add rule {chain} counter accept\n")).collect::<String>();
        pods.db.command("nft").args(["-f", "-"]).stdin(rules).finish().success();
    };
    let check = || pods.attachment(&pods.db).check(&weft());
    pods.db.run(["nft", "add table inet own; add chain inet own web"]);
    fill("inet own web");
    check().success();
    assert_eq!(pods.run_through(&[], &pods.verification()).code, Some(0), "rules of another table");
    let elements: Vec<String> = (0..2 * 65_536_u32)
        .map(|number| std::net::Ipv4Addr::from(0x0a4d_0000 + number).to_string())
        .collect();
    let elements = format!("add element {table} {set} {{ {} }}", elements.join(", "));
    type Attack<'a> = &'a dyn Fn();
    let in_chain = || fill(&format!("{table} {chain}"));
    let in_base = || fill(&format!("{table} prerouting"));
    let in_set = || drop(pods.db.command("nft").args(["-f", "-"]).stdin(elements.clone()).finish().success());
    for (what, attack) in [("chain", &in_chain as Attack<'_>), ("base chain", &in_base), ("set", &in_set)] {
        attack();
        let (_, why) = refusal(&check());
        assert!(why.contains("network policy: list ") && why.contains("bytes"), "{what}: {why}");
        let restored = pods.run_through(&[], &pods.verification());
        assert!(restored.stderr.contains("agent"), "{what}: no report: {restored}");
        check().success();
        assert!(pods.reaches(53) && !pods.reaches(54), "{what}");
    }
    // An update replaces what it cannot read.
    in_chain();
    pods.run(&pods.update(&policy(&[WEB], &[54])));
    check().success();
    assert!(!pods.reaches(53) && pods.reaches(54));
    in_base();
    pods.run(&pods.update(&Value::Null));
    assert!(pods.reaches(53) && pods.chains().is_empty(), "{:?}", pods.chains());
    pods.attachment(&pods.db).del(&weft()).success();
}

#[test]
fn network_policy_changed_rules_are_restored() {
    for plugin in ["bridge", "ptp"] {
        let host = host!(Feature::Veth, Feature::Bridge, Feature::NftInet);
        let pods = Pods::new(&host, plugin);
        pods.attach(&pods.web);
        pods.attach(&pods.db);
        pods.run(&pods.update(&policy(&[WEB], &[53])));
        let netns = pods.namespace(plugin);
        let chain = pods.chains().into_iter().find(|name| name.starts_with("ingress-")).expect("a chain");
        let table = "inet weft-policy";
        let mut attacks = vec![
            format!("flush chain {table} {chain}"),
            format!("insert rule {table} prerouting accept; insert rule {table} postrouting accept"),
            format!("add rule {table} {chain} accept"),
            format!("add chain {table} prerouting {{ policy drop; }}"),
            // The same rule at another place: after or before the rules that it should follow.
            other_base("prerouting", "prerouting priority 7"),
            other_base("prerouting", "input priority 0"),
            other_base("postrouting", "postrouting priority -300"),
        ];
        if plugin == "bridge" {
            attacks.extend([
                "flush ruleset".to_owned(),
                format!("delete table {table}"),
                format!("add chain {table} ingress-x; insert rule {table} ingress-x jump {chain}; \
                         flush chain {table} prerouting"),
                format!("delete element {table} links-in {{ net1 }}; add element {table} links-in {{ net1 : accept }}"),
            ]);
        }
        for attack in attacks {
            netns.run(["nft", &attack]);
            let (_, why) = refusal(&pods.attachment(&pods.db).check(&weft()));
            assert!(why.contains("network policy"), "{plugin}, {attack}: {why}");
            let finished = pods.run_through(&[], &pods.verification());
            assert!(finished.stderr.contains("agent"), "{plugin}, {attack}: no report: {finished}");
            pods.attachment(&pods.db).check(&weft()).success();
            assert!(pods.reaches(53) && !pods.reaches(54), "{plugin}, {attack}");
            // Without a change there is no report.
            assert_eq!(pods.run_through(&[], &pods.verification()).code, Some(0), "{plugin}, {attack}");
        }
        pods.attachment(&pods.db).del(&weft()).success();
    }
}

/// The kernel lacks an object of a base chain that a list shows as intact. It answers as if another program had removed the
/// object between the list and the commit.
#[test]
fn network_policy_update_writes_absent_objects_of_the_host() {
    let host = host!(Feature::Veth, Feature::Bridge, Feature::NftInet);
    let pods = Pods::new(&host, "ptp");
    pods.attach(&pods.web);
    pods.attach(&pods.db);
    let [before, after] = [53, 54].map(|port| policy(&[WEB], &[port]));
    let mut ingress = after.clone();
    ingress.as_object_mut().expect("an object").remove("egress");
    for (loss, other) in [
        (
            "flush chain inet weft-policy prerouting; delete map inet weft-policy links-in; \
             add rule inet weft-policy prerouting counter comment \"links with network policies\""
                .to_owned(),
            after,
        ),
        (
            "flush chain inet weft-policy tracking; delete set inet weft-policy owners4; ".to_owned()
                + &"add rule inet weft-policy tracking counter comment \"addresses of isolated pods\"; "
                    .repeat(4),
            ingress,
        ),
    ] {
        for (task, port, forbidden) in [(pods.update(&other), 54, 53), (pods.verification(), 53, 54)] {
            pods.run(&pods.update(&before));
            host.run(["nft", &loss]);
            // The report about restored rules reaches no agent.
            pods.run_through(&[], &task);
            pods.attachment(&pods.db).check(&weft()).success();
            assert!(pods.reaches(port) && !pods.reaches(forbidden), "{loss}, {task}");
            assert!(!pods.recorded().1, "{loss}: the update is pending");
        }
    }
    pods.attachment(&pods.db).del(&weft()).success();
    assert!(pods.chains().is_empty(), "{:?}", pods.chains());
}

#[test]
fn network_policy_update_of_another_pod_or_network_does_nothing() {
    let host = host!(Feature::Veth, Feature::Bridge, Feature::NftInet);
    let pods = Pods::new(&host, "ptp");
    pods.attach(&pods.db);
    let before = pods.cluster.entry(&pods.db);
    for (key, value) in [("uid", "other"), ("container", "other")] {
        let mut task = pods.update(&policy(&[WEB], &[53]));
        task["updatePolicy"][key] = value.into();
        pods.run(&task);
    }
    for (key, value) in [("network", "blue/other"), ("ifname", "net2")] {
        let mut task = pods.update(&policy(&[WEB], &[53]));
        task["updatePolicy"]["attachments"][0][key] = value.into();
        pods.run(&task);
    }
    assert!(pods.chains().is_empty() && pods.cluster.entry(&pods.db) == before);
}

#[test]
fn network_policy_on_the_host_end_survives_a_hostile_pod() {
    let host = host!(Feature::Veth, Feature::NftInet);
    let cluster = Cluster::new(&host);
    host.run(["sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"]);
    cluster.definition("data", &network("ptp"));
    policies(&host);
    let pods = attach(&host, &cluster);
    for (pod, _) in &pods {
        pod.run(["nft", "flush", "ruleset"]);
    }
    assert_rows("flushed", &pods, &ROWS[..2]);
    // The pod has only the rules that bind its addresses to the interface.
    let (_, why) = refusal(&pods[0].1.check(&weft()));
    assert!(why.contains("chain inet weft-policy addresses"), "{why}");
    verify(&host, &pods[0].0);
    pods[0].1.check(&weft()).success();
}
