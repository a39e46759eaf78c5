//! Hot-plug and drift: networks that a running pod selects later, and interfaces that vanish. Tasks are executed by
//! `weft executor`.

use rig::agent::{NAMESPACE, node_configuration};
use rig::cluster::bridge;
use rig::machine::until;
use rig::{Agent, addresses_on, assert_nothing_left, link};
use serde_json::{Value, json};
use testkit::{Feature, Pod, host};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const EXECUTOR: &str = "executor";
const CONFIGURATION: &str = "/etc/cni/net.d/00-weft.conf";

/// Starts a node with an agent and two definitions; the words are further arguments of the agent.
macro_rules! node {
    ($($word:literal),*) => {{
        let Some(agent) = Agent::with_networks(host!(Feature::Bridge), ["net-a", "net-b"]) else { return };
        agent.stop("TERM");
        agent.start(&[$($word),*]);
        agent.wait_until_ready();
        agent.machine.write(CONFIGURATION, &node_configuration().to_string());
        agent
    }};
}

fn start_executor(agent: &Agent) {
    let weft = testkit::binary("weft");
    agent.machine.start(EXECUTOR, [weft.to_str().unwrap(), "executor", "--config", CONFIGURATION]);
}

/// Creates a pod that selects `networks`, and attaches it.
fn attached(agent: &Agent, name: &str, networks: &str) -> (Pod, String) {
    let uid = agent.pod(name, &json!({ NETWORKS: networks }));
    let sandbox = agent.machine.pod(name);
    agent.attachment(&sandbox, name, &uid).add(&node_configuration()).success();
    (sandbox, uid)
}

fn select(agent: &Agent, name: &str, networks: &str) {
    let annotation = match networks {
        "" => format!("{NETWORKS}-"),
        some => format!("{NETWORKS}={some}"),
    };
    agent.kube.kubectl(["annotate", "pod", "-n", NAMESPACE, name, "--overwrite", &annotation]);
}

/// Waits until network-status has these networks and interfaces.
fn wait_for_status(agent: &Agent, name: &str, expected: &[(&str, &str)]) {
    agent.machine.wait(EXECUTOR, "changes the status", || {
        let status = agent.status(name);
        let shown: Vec<(&str, &str)> = status
            .iter()
            .map(|entry| (entry["name"].as_str().unwrap(), entry["interface"].as_str().unwrap()))
            .collect();
        (shown == expected).then_some(())
    });
}

/// Waits for an Event of the pod that begins with this text.
fn wait_for_event(agent: &Agent, pod: &str, start: &str) -> String {
    agent.machine.wait(EXECUTOR, "causes an Event", || {
        agent.events(pod).into_iter().find(|event| event.starts_with(start))
    })
}

#[test]
fn hot_plug_attaches_and_detaches_selected_networks() {
    let agent = node!("--hot-plug");
    start_executor(&agent);
    let (sandbox, uid) = attached(&agent, "web", "net-a");
    let kept = addresses_on(&sandbox, "net1");
    select(&agent, "web", "net-b@blue0,net-a");
    let home = ("home", "eth0");
    wait_for_status(&agent, "web", &[home, ("blue/net-b", "blue0"), ("blue/net-a", "net1")]);
    // The remaining attachment is not changed.
    assert_eq!(addresses_on(&sandbox, "net1"), kept);
    let address = addresses_on(&sandbox, "blue0")[0].split('/').next().unwrap().to_owned();
    wait_for_event(&agent, "web", &format!("AddedInterface Add blue0 [{address}] from blue/net-b"));
    sandbox.run(["ping", "-c", "1", "-W", "2", "10.12.0.1"]);
    // One network is removed; the other keeps its generated interface name.
    select(&agent, "web", "net-a");
    wait_for_status(&agent, "web", &[home, ("blue/net-a", "net1")]);
    assert!(link(&sandbox, "blue0").is_none());
    wait_for_event(&agent, "web", "RemovedInterface Remove blue0 from blue/net-b");
    // Without the annotation, the pod has the default network only. The DEL removes the current attachments.
    select(&agent, "web", "");
    wait_for_status(&agent, "web", &[home]);
    let web = agent.attachment(&sandbox, "web", &uid);
    web.check(&with_result(&agent, &sandbox)).success();
    select(&agent, "web", "net-b,net-b");
    wait_for_status(&agent, "web", &[home, ("blue/net-b", "net1"), ("blue/net-b", "net2")]);
    web.del(&node_configuration()).success();
    assert!(["eth0", "net1", "net2"].iter().all(|name| link(&sandbox, name).is_none()));
    let held = agent.machine.run(["sh", "-c", "ls /var/lib/cni/networks/*/10.* 2>/dev/null || true"]);
    assert_eq!(held, "", "addresses are held");
    assert_eq!(agent.machine.run(["sh", "-c", "ls /var/lib/weft/sandboxes"]), "");
}

#[test]
fn agent_shutdown_answers_the_waiting_executor() {
    let agent = node!("--hot-plug");
    start_executor(&agent);
    let (_sandbox, _) = attached(&agent, "web", "net-a");
    select(&agent, "web", "net-b");
    wait_for_status(&agent, "web", &[("home", "eth0"), ("blue/net-b", "net1")]);
    let began = std::time::Instant::now();
    agent.stop("TERM");
    // The agent sends pending status and Events for three seconds at most.
    assert!(began.elapsed() < std::time::Duration::from_secs(8), "{:?}", began.elapsed());
    assert!(agent.log().contains("agent stopped"), "{}", agent.log());
    // The executor connects to the next agent.
    agent.start(&["--hot-plug"]);
    select(&agent, "web", "net-a");
    wait_for_status(&agent, "web", &[("home", "eth0"), ("blue/net-a", "net1")]);
}

#[test]
fn hot_plug_ignores_edits_of_definitions() {
    let agent = node!("--hot-plug");
    start_executor(&agent);
    let definition = |declared: bool| {
        let mut config = bridge("edited", 15);
        config["plugins"][0]["capabilities"] = json!({ "mac": declared });
        agent.definition("edited", &json!({}), &config);
    };
    definition(false);
    let mut configuration = node_configuration();
    configuration["ipRequestPolicy"] = json!("permissive");
    agent.machine.write(CONFIGURATION, configuration.to_string());
    let uid = agent.pod("web", &json!({ NETWORKS: r#"[{"name":"edited","mac":"02:00:00:00:00:07"}]"# }));
    let sandbox = agent.machine.pod("web");
    agent.attachment(&sandbox, "web", &uid).add(&configuration).success();
    let (other, _) = attached(&agent, "other", "net-a");
    let (index, kept) =
        (link(&sandbox, "net1").expect("net1")["ifindex"].clone(), addresses_on(&sandbox, "net1"));
    definition(true);
    agent.stop("TERM");
    agent.start(&["--hot-plug"]);
    agent.wait_until_ready();
    // Pods are reconciled in turn: after a change of this pod, the other one had its turn, too.
    select(&agent, "other", "net-a,net-b");
    wait_for_status(&agent, "other", &[("home", "eth0"), ("blue/net-a", "net1"), ("blue/net-b", "net2")]);
    assert!(link(&other, "net2").is_some());
    select(&agent, "other", "net-a");
    wait_for_status(&agent, "other", &[("home", "eth0"), ("blue/net-a", "net1")]);
    assert_eq!(link(&sandbox, "net1").expect("net1")["ifindex"], index);
    assert_eq!(addresses_on(&sandbox, "net1"), kept);
}

#[test]
fn hot_plug_during_gc_keeps_the_new_address() {
    let agent = node!("--hot-plug");
    agent.machine.install(&testkit::binary("weft-test-plugin"), &["one"]);
    let slow = json!({ "GC": [{ "do": "sleep", "milliseconds": 4000 }] });
    agent.definition("a-slow", &json!({}), &rig::cluster::recording("a-slow", "one", &slow));
    start_executor(&agent);
    let (other, _) = attached(&agent, "other", "net-b");
    let (sandbox, uid) = attached(&agent, "web", "a-slow");
    let configuration = rig::in_version(&node_configuration(), "1.1.0");
    let valid = [(&other, "eth0"), (&sandbox, "eth0")].map(|(pod, ifname)| (pod.container_id(), ifname));
    let valid = valid.each_ref().map(|(container, ifname)| (container.as_ref(), *ifname));
    let held = || agent.machine.run(["sh", "-c", "ls /var/lib/cni/networks/net-b | grep -c '^10'"]);
    assert_eq!(held().trim(), "1");
    std::thread::scope(|scope| {
        let gc = scope.spawn(|| {
            rig::gc(&agent.attachment(&sandbox, "web", &uid), &configuration, Some(&valid)).success()
        });
        // GC is at the first network; the pod gets one that GC reaches later.
        let begun = || agent.machine.run(["cat", rig::cluster::RECORD]).contains("\"GC\"").then_some(());
        until("the GC has begun", begun);
        select(&agent, "web", "a-slow,net-b");
        let all = [("home", "eth0"), ("blue/a-slow", "net1"), ("blue/net-b", "net2")];
        wait_for_status(&agent, "web", &all);
        gc.join().expect("a GC");
    });
    assert_eq!(held().trim(), "2");
}

/// Returns the configuration with the result that a runtime passes to CHECK.
fn with_result(agent: &Agent, sandbox: &Pod) -> Value {
    let path = format!("/var/lib/weft/sandboxes/{}.json", sandbox.container_id());
    let entry = agent.machine.run(["cat", &path]);
    let mut values = serde_json::Deserializer::from_str(&entry).into_iter::<Value>();
    let entry = values.next().unwrap().unwrap();
    let mut configuration = node_configuration();
    configuration["prevResult"] = entry["attachments"][0]["result"].clone();
    configuration
}

#[test]
fn hot_plug_failure_is_an_event_and_changes_nothing() {
    let agent = node!("--hot-plug");
    start_executor(&agent);
    let (sandbox, _) = attached(&agent, "web", "net-a");
    let before = agent.machine.snapshot();
    // Invalid annotation.
    select(&agent, "web", r#"[{"name":"net-a","ips":["x"]}]"#);
    wait_for_event(&agent, "web", "NetworkChangeFailed nothing is changed: ");
    // Network that does not exist.
    select(&agent, "web", "net-a,nowhere");
    wait_for_event(&agent, "web", "NoNetworkFound ");
    // Network that this pod may not use.
    let closed = json!({ "weft.dev/access": r#"{"namespaces":["other"]}"# });
    agent.definition("closed", &closed, &bridge("closed", 14));
    select(&agent, "web", "net-a,closed");
    wait_for_event(&agent, "web", "NetworkRefused ");
    // Change of the default route.
    select(&agent, "web", r#"[{"name":"net-a"},{"name":"net-b","default-route":["10.12.0.1"]}]"#);
    wait_for_event(&agent, "web", "NetworkChangeFailed change: blue/net-b on net2: the default route");
    assert_nothing_left("refusals", &agent.machine, &before);
    // Plugin that fails: its ADD is undone, and repeated until it succeeds.
    let mut hollow = bridge("net-c", 13);
    hollow["plugins"][0]["bridge"] = json!("up0");
    agent.definition("net-c", &json!({}), &hollow);
    agent.machine.run(["ip", "link", "add", "up0", "type", "veth"]);
    select(&agent, "web", "net-a,net-c,net-b");
    wait_for_event(&agent, "web", "NetworkChangeFailed attach net2 (blue/net-c)");
    wait_for_status(&agent, "web", &[("home", "eth0"), ("blue/net-a", "net1"), ("blue/net-b", "net3")]);
    agent.machine.run(["ip", "link", "delete", "up0"]);
    let all = [("home", "eth0"), ("blue/net-a", "net1"), ("blue/net-c", "net2"), ("blue/net-b", "net3")];
    wait_for_status(&agent, "web", &all);
    assert!(link(&sandbox, "net2").is_some());
}

#[test]
fn hot_plug_missing_network_stops_no_other_and_comes_later() {
    let agent = node!("--hot-plug");
    start_executor(&agent);
    let (sandbox, _) = attached(&agent, "web", "net-a");
    // Missing at the first place, forbidden at the second, with a plugin that no node has at the third.
    let closed = json!({ "weft.dev/access": r#"{"namespaces":["other"]}"# });
    agent.definition("closed", &closed, &bridge("closed", 14));
    let mut absent = bridge("absent", 15);
    absent["plugins"][0]["type"] = json!("no-such-plugin");
    agent.definition("absent", &json!({}), &absent);
    select(&agent, "web", "later,closed,absent,net-b,net-a");
    let (home, own) = (("home", "eth0"), ("blue/net-a", "net1"));
    wait_for_status(&agent, "web", &[home, ("blue/net-b", "net4"), own]);
    wait_for_event(&agent, "web", "NoNetworkFound ");
    wait_for_event(&agent, "web", "NetworkRefused ");
    wait_for_event(&agent, "web", "NetworkChangeFailed attach net3 (blue/absent)");
    // The missing definition is created, the access is granted, the definition names a plugin that exists.
    agent.definition("later", &json!({}), &bridge("later", 16));
    agent.definition(
        "closed",
        &json!({ "weft.dev/access": r#"{"namespaces":["blue"]}"# }),
        &bridge("closed", 14),
    );
    agent.definition("absent", &json!({}), &bridge("absent", 15));
    let all =
        ["blue/later", "blue/closed", "blue/absent", "blue/net-b", "blue/net-a", "home"].map(str::to_owned);
    agent.machine.wait(EXECUTOR, "attaches the others", || {
        let status = agent.status("web");
        let shown: std::collections::BTreeSet<String> =
            status.iter().map(|entry| entry["name"].as_str().unwrap().to_owned()).collect();
        (shown == all.iter().cloned().collect()).then_some(())
    });
    // A definition that is deleted removes no network of a running pod.
    agent.kube.kubectl(["delete", "net-attach-def", "-n", NAMESPACE, "net-a"]);
    select(&agent, "web", "net-a,net-b");
    agent.machine.wait(EXECUTOR, "removes the others", || (agent.status("web").len() == 3).then_some(()));
    assert!(link(&sandbox, "net1").is_some() && link(&sandbox, "net4").is_some());
}

#[test]
fn hot_plug_does_not_enter_another_namespace_at_the_path() {
    let agent = node!("--hot-plug");
    let (sandbox, _) = attached(&agent, "web", "net-a");
    // The bind mount keeps the inode number of the first namespace in use.
    agent.machine.run(["sh", "-c", "touch /run/netns/kept && mount --bind /run/netns/web /run/netns/kept"]);
    sandbox.remove();
    agent.machine.run(["ip", "netns", "add", "web"]);
    let (other, _) = attached(&agent, "other", "net-a");
    select(&agent, "web", "net-b,net-a");
    select(&agent, "other", "net-b,net-a");
    start_executor(&agent);
    agent.machine.wait(EXECUTOR, "changes the other pod", || link(&other, "net3"));
    // Tasks are repeated until they succeed.
    std::thread::sleep(std::time::Duration::from_secs(7));
    let inside = agent.machine.run(["ip", "-n", "web", "-o", "link"]);
    assert_eq!(inside.lines().count(), 1, "{inside}");
}

// Requirements: M22
#[test]
fn executor_killed_during_hot_plug_continues_and_del_cleans_up() {
    let agent = node!("--hot-plug");
    let (sandbox, uid) = attached(&agent, "web", "net-a");
    let web = agent.attachment(&sandbox, "web", &uid);
    for round in 0..6 {
        start_executor(&agent);
        select(&agent, "web", if round % 2 == 0 { "net-b,net-b,net-b" } else { "net-a" });
        std::thread::sleep(std::time::Duration::from_millis(150 * round));
        agent.machine.stop(EXECUTOR, "KILL");
    }
    start_executor(&agent);
    select(&agent, "web", "net-b,net-a");
    agent.machine.wait(EXECUTOR, "attaches the selected networks", || {
        let names: Vec<String> =
            agent.status("web").iter().map(|entry| entry["name"].as_str().unwrap().to_owned()).collect();
        (names == ["home", "blue/net-b", "blue/net-a"]).then_some(())
    });
    agent.machine.stop(EXECUTOR, "TERM");
    web.del(&node_configuration()).success();
    assert!(rig::links(&sandbox).iter().all(|name| name == "lo"), "{:?}", rig::links(&sandbox));
    let held = agent.machine.run(["sh", "-c", "ls /var/lib/cni/networks/*/10.* 2>/dev/null || true"]);
    assert_eq!(held, "", "addresses are held");
}

#[test]
fn drift_of_a_deleted_interface_is_an_event_and_a_metric() {
    let agent = node!("--check-interval", "1");
    start_executor(&agent);
    let (sandbox, _) = attached(&agent, "web", "net-a");
    let drifted = || agent.metric("weft_drifted_sandboxes ");
    // Checks run, and no Event is sent without a change.
    let checks = || agent.metric("weft_tasks_total{task=\"check\"} ").filter(|count| *count >= 4.0);
    agent.machine.wait(EXECUTOR, "checks the sandbox", checks);
    assert!(
        !agent.events("web").iter().any(|event| event.starts_with("Interface")),
        "{:?}",
        agent.events("web")
    );
    assert_eq!(drifted(), Some(0.0));
    sandbox.run(["ip", "link", "delete", "net1"]);
    let event = wait_for_event(&agent, "web", "InterfaceDrifted ");
    assert!(event.contains("net1"), "{event}");
    until("the metric", || drifted().filter(|count| *count > 0.0));
    assert_eq!(drifted(), Some(1.0));
    // The next agent knows the earlier result of the check.
    agent.stop("TERM");
    agent.start(&["--check-interval", "1"]);
    agent.wait_until_ready();
    until("the metric of the next agent", || drifted().filter(|count| *count == 1.0));
}

/// Attack: pods select networks whose plans together are larger than a message. Another pod's change is not lost with them.
#[test]
fn hot_plug_of_large_plans_does_not_block_other_pods() {
    let agent = node!("--hot-plug");
    let large: Vec<String> = (0..5).map(|number| format!("large-{number}")).collect();
    for (number, name) in large.iter().enumerate() {
        let mut config = bridge(name, 40 + u8::try_from(number).unwrap());
        config["padding"] = "x".repeat(700_000).into();
        let definition = json!({ "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": name, "namespace": NAMESPACE }, "spec": { "config": config.to_string() } });
        // Not `apply`, which stores a copy in an annotation.
        agent.kube.attempt(["create", "-f", "-"], &definition.to_string()).success();
    }
    let names: Vec<String> = (0..6).map(|number| format!("a-{number}")).collect();
    let sandboxes: Vec<_> = names.iter().map(|name| attached(&agent, name, "net-a")).collect();
    let (other, _) = attached(&agent, "other", "net-a");
    for name in &names {
        select(&agent, name, &large.join(","));
    }
    select(&agent, "other", "net-a,net-b");
    start_executor(&agent);
    wait_for_status(&agent, "other", &[("home", "eth0"), ("blue/net-a", "net1"), ("blue/net-b", "net2")]);
    assert!(link(&other, "net2").is_some());
    for (name, (sandbox, _)) in names.iter().zip(&sandboxes) {
        agent.machine.wait(EXECUTOR, "attaches all networks", || link(sandbox, "net5").map(drop));
        assert_eq!(agent.status(name).len(), 6, "{name}");
    }
}

/// Attack: a running pod selects the maximum number of networks whose plugin never answers.
#[test]
fn hot_plug_of_slow_networks_does_not_block_other_pods() {
    let agent = node!("--hot-plug");
    let own = rig::with(&node_configuration(), &json!({ "delegateTimeout": 1 }));
    agent.machine.write(CONFIGURATION, own.to_string());
    let program = testkit::binary("weft-test-plugin").display().to_string();
    agent.machine.run(["ln", "-s", &program, "/opt/cni/bin/slow"]);
    agent.definition(
        "slow",
        &json!({}),
        &rig::cluster::recording("slow", "slow", &json!({ "ADD": [{ "do": "hang" }] })),
    );
    // Its container sorts first.
    let (_greedy, _) = attached(&agent, "a-greedy", "net-a");
    let (other, _) = attached(&agent, "other", "net-a");
    select(&agent, "a-greedy", &["slow"; 60].join(","));
    select(&agent, "other", "net-a,net-b");
    let began = std::time::Instant::now();
    start_executor(&agent);
    wait_for_status(&agent, "other", &[("home", "eth0"), ("blue/net-a", "net1"), ("blue/net-b", "net2")]);
    assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
    assert!(link(&other, "net2").is_some());
    wait_for_event(&agent, "a-greedy", "NetworkChangeFailed ");
}
