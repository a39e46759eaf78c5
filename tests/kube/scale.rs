//! Resources that an agent needs: memory with many definitions and pods, requests for each ADD, and recovery when the
//! API server has compacted the history or rejects a token.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use rig::agent::{NAMESPACE, configuration};
use rig::cluster::bridge;
use rig::machine::until;
use rig::{Agent, Machine};
use serde_json::{Value, json};
use testkit::{Feature, host};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const DEFINITIONS: usize = 1_000;
const PODS: usize = 110;
const REQUESTS: usize = 10_000;
/// Allowance for memory that allocators keep, in kB.
const SLACK: u64 = 2_048;

/// Anonymous memory and resident memory of the agent, in kB.
fn memory(agent: &Agent) -> (u64, u64) {
    let pid = agent.machine.run(["cat", "/run/services/agent.pid"]);
    let status = agent.machine.run(["cat", &format!("/proc/{}/status", pid.trim())]);
    let field = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a field");
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    (field("RssAnon:"), field("VmRSS:"))
}

/// Sends a plan request as weft-cni does; returns whether the response is a plan.
fn ask(agent: &Agent, pod: &str, uid: &str, container: &str) -> bool {
    let request = json!({ "version": 1, "request": { "plan": {
        "pod": { "namespace": NAMESPACE, "name": pod, "uid": uid }, "container": container, "ifname": "eth0", "began": 0,
        "node": { "configuration": configuration(&bridge("home", 10)), "flavour": "weft", "files": [], "unreadable": [] },
    } } });
    let text = request.to_string();
    let mut stream = UnixStream::connect(agent.machine.reach("/run/weft/agent.sock")).expect("the socket");
    stream.write_all(&u32::try_from(text.len()).unwrap().to_be_bytes()).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    let mut length = [0; 4];
    stream.read_exact(&mut length).expect("a reply");
    let mut reply = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut reply).expect("a whole reply");
    let reply: Value = serde_json::from_slice(&reply).unwrap();
    reply["response"]["plan"].is_object()
}

#[test]
fn agent_memory_is_small_and_constant_with_many_definitions() {
    let Some(agent) = Agent::new(Machine::new(host!(Feature::Bridge), "node")) else { return };
    let definition = |number: usize| {
        json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": format!("net-{number}"), "namespace": NAMESPACE },
            "spec": { "config": bridge(&format!("net-{number}"), 11).to_string() },
        })
    };
    let all: Vec<Value> = (0..DEFINITIONS).map(definition).collect();
    agent.kube.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": all }).to_string());
    let names: Vec<String> = (0..PODS).map(|number| format!("p{number}")).collect();
    let uids = agent.pods(&names, &json!({ NETWORKS: "net-1,net-2,net-3" }));
    let known = |resource: &str, count: usize| {
        let line = format!("weft_cache_objects{{resource=\"{resource}\"}}");
        until(resource, || agent.metric(&line).filter(|known| *known >= count as f64));
    };
    known("network-attachment-definitions", DEFINITIONS);
    known("pods", PODS);
    let requests = |count: usize| {
        for number in 0..count {
            let place = number % PODS;
            assert!(ask(&agent, &names[place], &uids[place], &format!("c{number}")), "request {number}");
        }
    };
    requests(REQUESTS / 10);
    let (before, _) = memory(&agent);
    requests(REQUESTS);
    let (after, whole) = memory(&agent);
    eprintln!(
        "{DEFINITIONS} definitions, {PODS} pods, {REQUESTS} requests: {before} kB, then {after} kB; resident {whole} kB"
    );
    assert!(after < before + SLACK, "{before} kB, then {after} kB");
    // Programs with debug assertions are larger, but use no more memory.
    assert!(after < 25_000, "{after} kB");
}

#[test]
fn watch_expired_is_followed_by_a_new_list() {
    let Some(agent) = Agent::own(Machine::new(host!(Feature::Bridge), "node")) else { return };
    agent.definition("net-a", &json!({}), &bridge("net-a", 11));
    // While the agent is stopped, objects change, and the history that it will request is compacted.
    let pid = agent.machine.run(["cat", "/run/services/agent.pid"]);
    agent.machine.run(["kill", "-s", "STOP", pid.trim()]);
    let restart = || {
        agent.machine.stop("kube-apiserver", "KILL");
        agent.kube.launch_server();
        agent.kube.wait();
    };
    // Data on an open connection would be read after the stop, so the server is restarted.
    restart();
    agent.definition("net-b", &json!({}), &bridge("net-b", 12));
    let revision = "curl -s http://127.0.0.1:2379/v3/kv/range -d '{\"key\":\"AA==\"}' | sed 's/.*\"revision\":\"\\([0-9]*\\)\".*/\\1/'";
    let revision = agent.machine.run(["sh", "-c", revision]);
    let compact = format!("{{\"revision\":\"{}\",\"physical\":true}}", revision.trim());
    agent.machine.run(["curl", "-sf", "http://127.0.0.1:2379/v3/kv/compaction", "-d", &compact]);
    restart();
    let listed =
        || agent.log().matches("resource listed resource=\"network-attachment-definitions\"").count();
    let before = listed();
    agent.machine.run(["kill", "-s", "CONT", pid.trim()]);
    until("definitions are listed again, not only watched", || (listed() > before).then_some(()));
    let uid = agent.pod("web", &json!({ NETWORKS: "net-a,net-b" }));
    until("the pod is planned", || ask(&agent, "web", &uid, "c1").then_some(()));
    let age = "weft_cache_age_seconds{resource=\"pods\"}";
    until("both caches are fresh", || agent.metric(age).filter(|age| *age == 0.0));
}

#[test]
fn rotated_token_is_read_again() {
    let Some(agent) = Agent::own(Machine::new(host!(Feature::Bridge), "node")) else { return };
    agent.definition("net-a", &json!({}), &bridge("net-a", 11));
    // As in a pod: the kubelet replaces the token file regularly.
    let token = agent.kube.token("kube-system", "weft-agent");
    agent.machine.write("/etc/weft-test/token", &token);
    let text = agent.machine.run(["cat", agent.configuration()]);
    let mut file: Value = serde_json::from_str(&text).expect("a kubeconfig in JSON");
    let user = &mut file["users"][0]["user"];
    *user = json!({ "tokenFile": "/etc/weft-test/token" });
    agent.machine.write(agent.configuration(), file.to_string());
    agent.stop("TERM");
    agent.start(&[]);
    agent.wait_until_ready();
    // The account is recreated, so the old token is invalid from now on.
    agent.kube.kubectl(["delete", "serviceaccount", "-n", "kube-system", "weft-agent"]);
    agent.kube.kubectl(["create", "serviceaccount", "-n", "kube-system", "weft-agent"]);
    let fresh = agent.kube.token("kube-system", "weft-agent");
    agent.machine.write("/etc/weft-test/token", &fresh);
    agent.machine.stop("kube-apiserver", "KILL");
    agent.kube.launch_server();
    agent.kube.wait();
    let with_old = ["-k", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-H"];
    let with_old = with_old.into_iter().map(str::to_owned);
    let with_old =
        with_old.chain([format!("Authorization: Bearer {token}"), "https://127.0.0.1:6443/api".to_owned()]);
    let words: Vec<String> = std::iter::once("curl".to_owned()).chain(with_old).collect();
    let code = agent.machine.run(words.iter().map(String::as_str));
    assert_eq!(code, "401", "the old token is invalid");
    let uid = agent.pod("web", &json!({ NETWORKS: "net-a" }));
    // A client reads its token again within a minute.
    let deadline = std::time::Instant::now() + Duration::from_secs(100);
    let sandbox = agent.machine.pod("web");
    let attachment = agent.attachment(&sandbox, "web", &uid);
    while attachment.add(&configuration(&bridge("home", 10))).code != Some(0) {
        assert!(std::time::Instant::now() < deadline, "{}", agent.log());
        thread::sleep(Duration::from_secs(1));
    }
    let status = until_status(&agent);
    assert_eq!(status[1]["name"], format!("{NAMESPACE}/net-a"));
}

fn until_status(agent: &Agent) -> Vec<Value> {
    let deadline = std::time::Instant::now() + Duration::from_secs(100);
    loop {
        if let Some(text) = agent.annotation("web", "k8s.v1.cni.cncf.io/network-status") {
            return serde_json::from_str(&text).unwrap();
        }
        assert!(std::time::Instant::now() < deadline, "{}", agent.log());
        thread::sleep(Duration::from_millis(200));
    }
}
