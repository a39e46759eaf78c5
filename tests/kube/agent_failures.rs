//! Failures on a node with a real API server: the API server is unavailable, the agent is killed or replaced, many pods start
//! at once, clients misbehave.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use rig::agent::node_configuration;
use rig::cluster::{bridge, recording};
use rig::machine::until;
use rig::{Agent, Machine, assert_refused};
use serde_json::{Value, json};
use testkit::{Feature, Pod, host};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

/// Starts a node with an agent and a definition; with `own`, the API server is dedicated and may be stopped.
macro_rules! node {
    () => {
        node!(new)
    };
    ($which:ident) => {{
        let Some(agent) = Agent::$which(Machine::new(host!(Feature::Bridge), "node")) else { return };
        agent.define(["net-a"]);
        agent
    }};
}

fn select(networks: &str) -> Value {
    json!({ NETWORKS: networks })
}

/// Creates `count` pods in the cluster, and a namespace on the node for each: name, uid and sandbox.
fn pods(agent: &Agent, count: usize) -> Vec<(String, String, Pod)> {
    let names: Vec<String> = (0..count).map(|number| format!("p{number}")).collect();
    let uids = agent.pods(&names, &select("net-a"));
    names
        .into_iter()
        .zip(uids)
        .map(|(name, uid)| {
            let pod = agent.machine.pod(&name);
            (name, uid, pod)
        })
        .collect()
}

/// Creates the pod `web` with this selection and waits until the agent's cache has it; returns the uid.
fn cached_pod(agent: &Agent, networks: &str) -> String {
    let uid = agent.pod("web", &select(networks));
    let known = "weft_cache_objects{resource=\"pods\"}";
    until("the pod is cached", || agent.metric(known).filter(|count| *count >= 1.0));
    uid
}

/// Sends the API server a signal: `STOP` or `CONT`.
fn signal_api(agent: &Agent, signal: &str) {
    let id = agent.machine.run(["cat", "/run/services/kube-apiserver.pid"]);
    agent.machine.run(["kill", "-s", signal, id.trim()]);
}

/// Returns the configuration with annotations of a pod that the runtime passes.
fn with_annotations(annotations: &Value) -> Value {
    let mut configuration = node_configuration();
    configuration["capabilities"] = json!({ "io.kubernetes.cri.pod-annotations": true });
    configuration["runtimeConfig"] = json!({ "io.kubernetes.cri.pod-annotations": annotations });
    configuration
}

fn remove_api(agent: &Agent) {
    agent.machine.stop("kube-apiserver", "KILL");
    let age = "weft_cache_age_seconds{resource=\"pods\"}";
    until("the agent notices", || agent.metric(age).filter(|age| *age > 0.0));
}

#[test]
fn api_outage_pods_are_planned_from_caches_and_deleted() {
    let agent = node!(own);
    let uid = cached_pod(&agent, "net-a");
    remove_api(&agent);
    let web = agent.machine.pod("web");
    agent.attachment(&web, "web", &uid).add(&node_configuration()).success();
    // The agent does not know this pod: the ADD needs the annotations from the runtime, or it is refused.
    let other = agent.machine.pod("other");
    let refused = agent.attachment(&other, "other", "u-9").add(&node_configuration());
    assert_refused("unknown", &refused, 11, &["blue/other"]);
    let passed = with_annotations(&select("net-a"));
    let attachment = agent.attachment(&other, "other", "u-9");
    attachment.add(&passed).success();
    assert!(rig::link(&other, "net1").is_some());
    attachment.del(&passed).success();
    agent.kube.launch();
    agent.kube.wait();
    assert_eq!(agent.status("web")[1]["name"], "blue/net-a");
    remove_api(&agent);
    agent.attachment(&web, "web", &uid).del(&node_configuration()).success();
}

#[test]
fn api_timeout_is_not_a_missing_definition() {
    let agent = node!(own);
    let uid = cached_pod(&agent, "net-new");
    let web = agent.machine.pod("web");
    let add = || agent.attachment(&web, "web", &uid).add(&node_configuration());
    assert_refused("missing", &add(), 7, &["net-new"]);
    signal_api(&agent, "STOP");
    let refused = add();
    signal_api(&agent, "CONT");
    assert_refused("not known", &refused, 11, &["net-new", "not known: blue/net-new: "]);
}

#[test]
fn released_addresses_delay_no_add_while_the_api_hangs() {
    let agent = node!(own);
    for name in ["ippools.weft.dev", "ipblocks.weft.dev"] {
        let path = testkit::workspace().join(format!("deploy/crds/{name}.yaml"));
        agent.kube.apply(&std::fs::read_to_string(path).expect("a file of this tree"));
    }
    agent.kube.wait_until_served();
    let pool = json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "IPPool", "metadata": { "name": "p" },
        "spec": { "range": "10.82.0.0/24", "blockBits": 6 } });
    agent.kube.apply(&pool.to_string());
    let ipam = json!({ "type": "weft-ipam", "range": "10.82.0.0/24", "pool": "p", "quarantine": 0 });
    let conf = json!({ "cniVersion": "1.1.0", "name": "net", "type": "macvlan", "ipam": ipam });
    let sandbox = agent.machine.pod("a");
    let attachment = |container: &str| {
        let mut attachment = agent.machine.attachment("weft-ipam", &sandbox, "eth0");
        attachment.container_id = container.to_owned();
        attachment
    };
    for at in 0..45 {
        attachment(&format!("c{at}")).add(&conf).success();
    }
    // An address outside of the node's block is returned by its DEL, and every later DEL retries.
    let blocks = agent.kube.json(["ipblocks.weft.dev"]);
    let first = blocks["items"][0]["spec"]["range"] == "10.82.0.0/26";
    let mut named = conf.clone();
    named["args"] = json!({ "cni": { "ips": [if first { "10.82.0.200" } else { "10.82.0.20" }] } });
    attachment("named").add(&named).success();
    let uid = cached_pod(&agent, "net-a");
    signal_api(&agent, "STOP");
    attachment("named").del(&named).success();
    let begun = thread::scope(|scope| {
        for at in 0..40 {
            let (attachment, conf) = (&attachment, &conf);
            scope.spawn(move || attachment(&format!("c{at}")).del(conf).success());
        }
        thread::sleep(Duration::from_secs(1));
        let begun = Instant::now();
        attachment("new").add(&conf).success();
        let web = agent.machine.pod("web");
        agent.attachment(&web, "web", &uid).add(&node_configuration()).success();
        begun.elapsed()
    });
    signal_api(&agent, "CONT");
    assert!(begun < Duration::from_secs(6), "{begun:?}");
}

#[test]
fn agent_killed_after_the_plan_status_follows_from_successor() {
    let agent = node!();
    let slow = recording("slow", "one", &json!({ "ADD": [{ "do": "sleep", "milliseconds": 2000 }] }));
    agent.machine.install(&testkit::binary("weft-test-plugin"), &["one"]);
    agent.machine.write(rig::cluster::RECORD, "");
    agent.definition("slow", &json!({}), &slow);
    let uid = agent.pod("web", &select("slow"));
    let web = agent.machine.pod("web");
    thread::scope(|scope| {
        let adding = scope.spawn(|| agent.attachment(&web, "web", &uid).add(&node_configuration()).success());
        let planned = "weft_plan_requests_total{outcome=\"planned\"}";
        until("the plan", || agent.metric(planned).filter(|count| *count >= 1.0));
        agent.stop("KILL");
        adding.join().expect("the ADD");
    });
    agent.start(&[]);
    agent.wait_until_ready();
    assert_eq!(agent.status("web").len(), 2);
}

/// Covers a kill while the agent plans, writes the status, receives the report and sends Events.
#[test]
fn agent_killed_at_any_moment_harms_no_pod() {
    const MOMENTS: u64 = 16;
    let agent = node!();
    let config = node_configuration();
    let mut earlier = 0;
    for (moment, (name, uid, pod)) in (0..MOMENTS).zip(pods(&agent, MOMENTS as usize)) {
        // The moments are spread over the duration of an ADD and of the work after it.
        let killed = thread::scope(|scope| {
            let adding = scope.spawn(|| agent.attachment(&pod, &name, &uid).add(&config));
            thread::sleep(Duration::from_millis(moment * moment / 2));
            agent.stop("KILL");
            adding.join().expect("the ADD")
        });
        let before = match killed.code {
            Some(0) => "attached",
            _ => {
                earlier += 1;
                assert_eq!(rig::refusal(&killed).0, 11, "code 11: try again later: {killed}");
                assert_eq!(addresses(&pod), [""; 0], "no address remains");
                "refused"
            }
        };
        // Without an agent, the pod can be deleted; it is attached when an agent runs.
        if before == "attached" && moment % 2 == 0 {
            agent.attachment(&pod, &name, &uid).del(&config).success();
            assert_eq!(addresses(&pod), [""; 0], "DEL needs no agent");
        }
        agent.start(&[]);
        agent.wait_until_ready();
        if addresses(&pod).is_empty() {
            agent.attachment(&pod, &name, &uid).add(&config).success();
        }
        // Until the new status is written, the pod has that of an earlier sandbox.
        until(&format!("status of {name}, {before} at the kill, matches its interfaces"), || {
            let status = agent.status(&name);
            let shown: Vec<&str> = status.iter().filter_map(|entry| entry["ips"][0].as_str()).collect();
            (shown == addresses(&pod)).then_some(())
        });
        agent.attachment(&pod, &name, &uid).del(&config).success();
    }
    assert!(earlier > 0, "the agent was never killed before its response");
}

/// IPv4 addresses of the pod's interfaces, in order.
fn addresses(pod: &Pod) -> Vec<String> {
    let links = ["eth0", "net1"].into_iter().filter(|name| rig::link(pod, name).is_some());
    let of = links.flat_map(|name| rig::addresses_on(pod, name));
    of.filter(|address| !address.contains(':'))
        .map(|address| address.split('/').next().unwrap_or_default().to_owned())
        .collect()
}

/// Repeats an ADD as a kubelet does, while it fails with code 11 (try again later).
#[track_caller]
fn add_until_success(agent: &Agent, config: &Value, (name, uid, pod): (&String, &String, &Pod)) {
    until("the ADD", || {
        let finished = agent.attachment(pod, name, uid).add(config);
        if finished.code != Some(0) {
            assert_eq!(rig::refusal(&finished).0, 11, "{finished}");
            thread::sleep(Duration::from_millis(200));
        }
        finished.code.filter(|code| *code == 0)
    });
}

#[test]
fn agent_replaced_during_fifty_adds_fails_none_after_retry() {
    let agent = node!();
    let all = pods(&agent, 50);
    let config = node_configuration();
    thread::scope(|scope| {
        let (agent, config) = (&agent, &config);
        for (name, uid, pod) in &all {
            scope.spawn(move || add_until_success(agent, config, (name, uid, pod)));
        }
        scope.spawn(|| {
            for signal in ["TERM", "KILL"] {
                thread::sleep(Duration::from_millis(150));
                agent.stop(signal);
                agent.start(&[]);
                agent.wait_until_ready();
            }
        });
    });
    for (name, ..) in &all {
        assert_eq!(agent.status(name).len(), 2, "{name}");
    }
    for (name, uid, pod) in &all {
        agent.attachment(pod, name, uid).del(&config).success();
    }
}

#[test]
fn agent_that_has_just_started_serves_128_pods_at_once() {
    let agent = node!();
    let all = pods(&agent, 128);
    let config = node_configuration();
    agent.stop("KILL");
    thread::scope(|scope| {
        let (agent, config) = (&agent, &config);
        // As after a reboot: all pods exist before the agent.
        for (name, uid, pod) in &all {
            scope.spawn(move || add_until_success(agent, config, (name, uid, pod)));
        }
        agent.start(&[]);
        agent.wait_until_ready();
    });
    for (name, ..) in &all {
        assert_eq!(agent.status(name).len(), 2, "{name}");
    }
    // One write for each pod, and no GET.
    assert_eq!(agent.metric("weft_status_updates_total{outcome=\"written\"}"), Some(128.0));
    assert_eq!(agent.metric("weft_status_updates_total{outcome=\"failed\"}"), Some(0.0));
}

#[test]
fn definition_changed_or_deleted_before_del_has_no_effect() {
    let agent = node!();
    let uid = agent.pod("web", &select("net-a"));
    let web = agent.machine.pod("web");
    let attachment = agent.attachment(&web, "web", &uid);
    attachment.add(&node_configuration()).success();
    agent.definition("net-a", &json!({}), &bridge("another", 99));
    attachment.del(&node_configuration()).success();
    assert_eq!(agent.machine.run(["ls", "/var/lib/cni/networks/net-a"]).matches("10.11.").count(), 0);
    attachment.add(&node_configuration()).success();
    agent.kube.kubectl(["delete", "net-attach-def", "-n", rig::agent::NAMESPACE, "net-a"]);
    attachment.del(&node_configuration()).success();
    assert_eq!(agent.machine.run(["ls", "/var/lib/cni/networks/another"]).matches("10.99.").count(), 0);
}

#[test]
fn orphaned_sandbox_is_removed_after_its_namespace() {
    let agent = node!();
    agent.stop("TERM");
    agent.start(&["--orphan-grace", "1"]);
    agent.wait_until_ready();
    let config = node_configuration();
    let uid = agent.pod("lost", &select("net-a"));
    let alive = agent.pod("alive", &select("net-a"));
    let (lost, kept) = (agent.machine.pod("lost"), agent.machine.pod("kept"));
    agent.attachment(&lost, "lost", &uid).add(&config).success();
    agent.attachment(&kept, "alive", &alive).add(&config).success();
    let _ = agent.status("lost");
    agent.delete_pod("lost");
    // Its namespace exists, so the agent waits for a DEL of the runtime.
    let next = |number: usize| {
        let name = format!("next{number}");
        let (pod, uid) = (agent.machine.pod(&name), agent.pod(&name, &json!({})));
        agent.attachment(&pod, &name, &uid).add(&config).success();
        agent.attachment(&pod, &name, &uid).del(&config).success();
    };
    next(1);
    thread::sleep(Duration::from_millis(1500));
    next(2);
    thread::sleep(Duration::from_millis(500));
    assert!(rig::link(&lost, "net1").is_some());
    let entry = rig::cluster::entry_path(&lost);
    lost.remove();
    let mut number = 3;
    until("the sandbox is taken down", || {
        next(number);
        number += 1;
        thread::sleep(Duration::from_millis(500));
        agent.machine.read(&entry).is_none().then_some(())
    });
    let held = agent.machine.run(["ls", "/var/lib/cni/networks/net-a"]);
    assert_eq!(held.lines().filter(|line| line.starts_with("10.11.")).count(), 1, "{held}");
    assert!(rig::link(&kept, "net1").is_some(), "a sandbox whose pod exists is kept");
}

#[test]
fn hostile_annotation_is_refused_and_the_next_pod_served() {
    let agent = node!();
    let web = agent.machine.pod("web");
    // Largest annotation that the API server accepts: the limit counts all annotations of an object with their keys.
    let most = 256 * 1024 - NETWORKS.len();
    for (number, text) in [
        "[".repeat(most),
        format!("[{}]", vec!["{\"name\":\"net-a\"}"; most / 17 - 1].join(",")),
        vec!["net-a"; most / 6].join(","),
        format!("[{{\"name\":\"{}\"}}]", "x".repeat(most - 20)),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("hostile{number}");
        let uid = agent.pod(&name, &select(&text));
        let refused = agent.attachment(&web, &name, &uid).add(&node_configuration());
        let (code, why) = rig::refusal(&refused);
        assert!(code == 7 && why.len() < 2000, "{code}: {} bytes", why.len());
    }
    // No room remains for network-status: the pod is attached, and other pods still get their status.
    let filler = "x".repeat(most - "net-a".len() - "example.org/filler".len());
    let uid = agent.pod("full", &json!({ NETWORKS: "net-a", "example.org/filler": filler }));
    let full = agent.machine.pod("full");
    agent.attachment(&full, "full", &uid).add(&node_configuration()).success();
    let failed = "weft_status_updates_total{outcome=\"failed\"}";
    until("the status cannot be written", || agent.metric(failed).filter(|count| *count >= 1.0));
    let uid = agent.pod("web", &select("net-a"));
    agent.attachment(&web, "web", &uid).add(&node_configuration()).success();
    assert_eq!(agent.status("web").len(), 2);
    agent.attachment(&full, "full", &uid).del(&node_configuration()).success();
    assert_eq!(addresses(&full), [""; 0]);
}

#[test]
fn agent_socket_serves_pods_despite_misbehaving_clients() {
    let agent = node!();
    let path = agent.machine.reach("/run/weft/agent.sock");
    let connect = || UnixStream::connect(&path).expect("the socket");
    let mut stalled = Vec::new();
    for bytes in [&b""[..], b"\0", b"\xff\xff\xff\xff", b"\0\0\0\x05{}", b"\0\0\0\x02{}", b"\0\0\0\x02[]"] {
        let mut stream = connect();
        stream.write_all(bytes).expect("write");
        stalled.push(stream);
    }
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let mut stream = connect();
                    let _ = stream.write_all(b"\0\0\0\x10{\"version\":  99}");
                    let _ = stream.set_read_timeout(Some(Duration::from_millis(1)));
                    let _ = stream.read(&mut [0; 64]);
                }
            });
        }
        let uid = agent.pod("web", &select("net-a"));
        let web = agent.machine.pod("web");
        agent.attachment(&web, "web", &uid).add(&node_configuration()).success();
    });
    assert_eq!(agent.page("/healthz"), "ok\n");
    // Only root may connect.
    let mode = agent.machine.run(["stat", "-c", "%a %u", "/run/weft/agent.sock"]);
    assert_eq!(mode.trim(), "600 0");
    // Other users are rejected even if file modes permit the connection.
    agent.machine.run(["chmod", "755", "/run/weft"]);
    agent.machine.run(["chmod", "666", "/run/weft/agent.sock"]);
    let other_user = ["setpriv", "--reuid=65534", "--clear-groups", "curl", "-s", "--max-time", "5"];
    let ask = ["--unix-socket", "/run/weft/agent.sock", "http://weft/"];
    let _ = agent.machine.attempt(other_user.into_iter().chain(ask));
    until("the rejected connection is logged", || {
        agent.log().contains("rejected connection from another user").then_some(())
    });
    assert!(agent.log().contains("uid=65534"), "{}", agent.log());
}

#[test]
fn missing_crd_refuses_only_pods_that_select_networks() {
    let agent = node!();
    let uid = agent.pod("plain", &json!({}));
    let choosy = agent.pod("choosy", &select("net-a"));
    agent.stop("TERM");
    agent.kube.kubectl(["delete", "crd", "network-attachment-definitions.k8s.cni.cncf.io"]);
    agent.start(&[]);
    let reason = "network-attachment-definitions (the cluster does not have this custom resource; install it: weft crds";
    until("readiness gives the reason", || agent.page("/readyz").contains(reason).then_some(()));
    let plain = agent.machine.pod("plain");
    agent.attachment(&plain, "plain", &uid).add(&node_configuration()).success();
    let sandbox = agent.machine.pod("choosy");
    let refused = agent.attachment(&sandbox, "choosy", &choosy).add(&node_configuration());
    assert_refused("choosy", &refused, 11, &[reason]);
}

#[test]
fn agent_start_without_api_reports_what_it_waits_for() {
    let agent = node!(own);
    agent.stop("TERM");
    agent.kube.stop("kube-apiserver", "KILL");
    let earlier = agent.log().len();
    agent.start(&["--log-format", "json"]);
    let waiting = until("the agent answers", || Some(agent.page("/readyz")).filter(|page| !page.is_empty()));
    assert!(waiting.starts_with("waiting for: ") && waiting.contains("pods"), "{waiting}");
    let code = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "http://127.0.0.1:9464/readyz"];
    assert_eq!(agent.machine.run(code), "503");
    assert_eq!(agent.page("/healthz"), "ok\n", "the agent is alive");
    // An agent without caches is no worse than no agent: a pod without selected networks does not wait for it.
    let began = Instant::now();
    let other = agent.machine.pod("other");
    let attachment = agent.attachment(&other, "other", "u-9");
    attachment.add(&with_annotations(&json!({ "a": "b" }))).success();
    attachment.call("STATUS", rig::in_version(&node_configuration(), "1.1.0").to_string()).success();
    attachment.del(&node_configuration()).success();
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let refused = attachment.add(&with_annotations(&select("net-a")));
    assert_refused("waits", &refused, 11, &["the caches are not filled yet: pods (", "definitions ("]);
    agent.kube.launch();
    agent.kube.wait();
    agent.wait_until_ready();
    let log = agent.log();
    let lines: Vec<Value> =
        log[earlier..].lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect();
    assert!(lines.iter().all(|line| line["level"].is_string() && line["timestamp"].is_string()), "{log}");
}

#[test]
fn failed_calls_are_logged_counted_and_events_of_the_pod() {
    let agent = node!();
    agent.machine.install(&testkit::binary("weft-test-plugin"), &["two"]);
    agent.machine.write(rig::cluster::RECORD, "");
    let failing = |verb: &str, message: &str| {
        let instructions = json!({ verb: [{ "do": "fail", "code": 123, "message": message }] });
        agent.definition(verb.to_lowercase().as_str(), &json!({}), &recording("x", "two", &instructions));
    };
    failing("ADD", "no room at all");
    failing("DEL", "cannot leave");
    let config = node_configuration();
    let event = |pod: &str, start: &str| {
        until(start, || agent.events(pod).into_iter().find(|event| event.starts_with(start)))
    };
    let pods = [("refused", "add"), ("stuck", "del"), ("missing", "nowhere")];
    let [refused, stuck, missing] =
        pods.map(|(name, network)| (agent.machine.pod(name), name, agent.pod(name, &select(network))));
    let call = |(pod, name, uid): &(Pod, &str, String)| agent.attachment(pod, name, uid);
    assert_refused("ADD", &call(&refused).add(&config), 123, &["no room at all"]);
    assert!(event("refused", "AttachFailed ").contains("no room at all"));
    call(&stuck).add(&config).success();
    assert_refused("DEL", &call(&stuck).del(&config), 123, &["cannot leave"]);
    assert!(event("stuck", "DetachFailed ").contains("cannot leave"));
    // A refused plan has one Event and one line in the log.
    assert_refused("plan", &call(&missing).add(&config), 7, &["blue/nowhere"]);
    let counted = |labels: &str| agent.metric(&format!("weft_failed_calls_total{{{labels}}} "));
    let plan = "verb=\"ADD\",code=\"7\",reason=\"plan\"";
    until("the refused plan is counted", || counted(plan).filter(|count| *count == 1.0));
    for verb in ["ADD", "DEL"] {
        assert_eq!(counted(&format!("verb=\"{verb}\",code=\"plugin\",reason=\"plugin\"")), Some(1.0));
    }
    let events = agent.events("missing");
    assert!(events.len() == 1 && events[0].starts_with("NoNetworkFound "), "{events:?}");
    let log = agent.log();
    let failures: Vec<&str> = log.lines().filter(|line| line.contains("call of weft-cni failed")).collect();
    assert_eq!(failures.len(), 2, "{failures:?}");
    assert!(failures[0].contains("WARN") && failures[0].contains("no room at all"), "{failures:?}");
}
