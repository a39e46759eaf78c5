//! An agent and a real container runtime, and nobody between them: what the runtime says by itself, and what it is
//! told when somebody is away.
//!
//! ```text
//!   API server ◄── agent ◄── weft-cni ◄── containerd ◄── CRI ── the test, in the place of a kubelet
//! ```
//!
//! Source: containerd 1.6 `pkg/cri/server/sandbox_run.go` (`io.kubernetes.cri.pod-annotations`); the promises in
//! `docs/operations.md`, «The agent».

use rig::agent::configuration;
use rig::cluster::bridge;
use rig::machine::until;
use rig::{Agent, Containerd, Proxy, assert_nothing_left, links};
use serde_json::{Value, json};
use testkit::{Feature, host};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

/// A runtime that asks an agent, which knows two definitions; a pod was there before.
macro_rules! node {
    () => {{
        let host = host!(Feature::Bridge, Feature::Veth);
        let Some(node) = Containerd::new(host) else { return };
        let Some(agent) = Agent::own(node.machine()) else { return };
        for (name, subnet) in [("net-a", 11), ("net-b", 12)] {
            agent.definition(name, &json!({}), &bridge(name, subnet));
        }
        node.configure(&configuration(&bridge("default", 1)));
        let early = node.cri().run_pod_sandbox(&known(&agent, &node, "early", "net-a,net-b")).expect("a pod");
        node.remove(&early);
        (node, agent)
    }};
}

/// A pod that the API knows, as a kubelet tells its runtime of it.
#[track_caller]
fn known(agent: &Agent, node: &Containerd, name: &str, networks: &str) -> rig::cri::PodSandboxConfig {
    let uid = agent.pod(name, &json!({ NETWORKS: networks }));
    let mut pod = node.pod(name, &[(NETWORKS, networks)]);
    pod.metadata.as_mut().expect("metadata").uid = uid;
    pod
}

#[test]
fn what_the_runtime_says_of_a_pod_is_enough_while_the_api_is_away() {
    let (node, agent) = node!();
    let before = node.snapshot();
    agent.kube.stop("kube-apiserver", "KILL");
    // Nobody but the runtime has ever heard of it.
    let web =
        node.cri().run_pod_sandbox(&node.pod("web", &[(NETWORKS, "net-a,net-b@blue0")])).expect("a pod");
    assert_eq!(links(&node.inside(&web)), ["blue0", "eth0", "net1"]);
    let db = node.cri().run_pod_sandbox(&node.pod("db", &[(NETWORKS, "net-b")])).expect("a pod");
    let to = rig::addresses_on(&node.inside(&db), "net1").concat();
    assert!(node.inside(&web).pings(to.split('/').next().expect("an address")));
    let refused =
        node.cri().run_pod_sandbox(&node.pod("typo", &[(NETWORKS, "net-c")])).expect_err("no such network");
    assert!(refused.contains("net-c"), "{refused}");
    for id in [&web, &db] {
        node.remove(id);
    }
    assert_nothing_left("without the API", &node, &before);
}

#[test]
fn without_its_agent_a_pod_goes_and_the_next_waits_for_it() {
    let (node, agent) = node!();
    let before = node.snapshot();
    let web = node.cri().run_pod_sandbox(&known(&agent, &node, "web", "net-a")).expect("a pod");
    let status: Vec<Value> = agent.status("web");
    let shown: Vec<&Value> = status.iter().map(|entry| &entry["interface"]).collect();
    assert_eq!(shown, ["eth0", "net1"]);
    agent.stop("KILL");
    let late = known(&agent, &node, "late", "net-b");
    let told = node.cri().run_pod_sandbox(&late).expect_err("nobody answers");
    assert!(told.contains("start the agent"), "{told}");
    // One that asks for nothing does not wait: the runtime says so. A kubelet's pods have annotations always.
    let mut plain = node.pod("plain", &[("kubernetes.io/config.source", "api")]);
    plain.metadata.as_mut().expect("metadata").uid = agent.pod("plain", &json!({}));
    let plain = node.cri().run_pod_sandbox(&plain).expect("a pod");
    assert_eq!(links(&node.inside(&plain)), ["eth0"]);
    // Nor does the runtime's restart hurt what is attached.
    node.restart("KILL");
    node.remove(&web);
    agent.start(&[]);
    agent.wait_until_ready();
    assert_eq!(agent.status("plain").len(), 1, "its status comes later");
    node.remove(&plain);
    let late = until("the runtime's next try", || node.cri().run_pod_sandbox(&late).ok());
    assert_eq!(links(&node.inside(&late)), ["eth0", "net1"]);
    node.remove(&late);
    assert_nothing_left("without the agent", &node, &before);
}

#[test]
fn a_sandbox_that_the_runtime_lost_is_taken_down_while_its_pod_lives_on_in_the_next() {
    let (node, agent) = node!();
    let before = node.snapshot();
    agent.stop("TERM");
    agent.start(&["--orphan-grace", "1", "--runtime-endpoint", "unix:///run/containerd/containerd.sock"]);
    agent.wait_until_ready();
    let mut web = known(&agent, &node, "web", "net-a");
    let lost = node.cri().run_pod_sandbox(&web).expect("a pod");
    let netns = node.sandbox(&lost).netns();
    // Somebody's own, by the same journal: the runtime has never had it, and its pod is gone.
    let (own, uid) = (agent.machine.pod("own"), agent.pod("own", &json!({})));
    let by_hand = agent.attachment(&own, "own", &uid);
    by_hand.add(&configuration(&bridge("default", 1))).success();
    agent.delete_pod("own");
    node.forget_sandbox(&lost);
    web.metadata.as_mut().expect("metadata").attempt = 1;
    let web = node.cri().run_pod_sandbox(&web).expect("a pod");
    let entry = |id: &str| node.read(format!("/var/lib/weft/sandboxes/{id}.json"));
    assert!(entry(&lost).is_some() && entry(&web).is_some());
    let next = known(&agent, &node, "next", "net-b");
    // It may just be making it: fifteen seconds are passed over.
    until("what was lost is taken down", || {
        node.remove(&node.cri().run_pod_sandbox(&next).expect("a pod"));
        entry(&lost).is_none().then_some(())
    });
    assert!(entry(&web).is_some() && rig::link(&own, "eth0").is_some(), "what is there is left alone");
    assert_eq!(links(&node.inside(&web)), ["eth0", "net1"]);
    by_hand.del(&configuration(&bridge("default", 1))).success();
    node.remove(&web);
    // What the runtime itself left of what it lost: the namespace, and its results.
    node.run(["sh", "-c", &format!("rm /var/lib/cni/results/*-{lost}-*")]);
    node.run(["sh", "-c", &format!("umount /run/netns/{netns} && rm /run/netns/{netns}")]);
    own.remove();
    assert_nothing_left("what was lost", &node, &before);
}

#[test]
fn definitions_are_networks_of_the_runtime_as_long_as_they_are_there() {
    let host = host!(Feature::Bridge, Feature::Veth);
    let Some(node) = Containerd::with_network_directory(host, rig::proxy::RUNTIME_NETWORKS) else { return };
    let Some(agent) = Agent::own(node.machine()) else { return };
    let proxy = Proxy::with_networks_on(node);
    agent.definition("before", &json!({}), &bridge("before", 11));
    agent.stop("TERM");
    agent.start(&["--sync-networks"]);
    agent.wait_until_ready();
    let names = || proxy.networks().into_keys().collect::<Vec<_>>();
    until("what was there is set", || (names() == ["before"]).then_some(()));
    agent.definition("after", &json!({}), &bridge("after", 12));
    until("what comes is set", || (names() == ["after", "before"]).then_some(()));
    // A definition that is no network is passed over, and somebody else's network is left alone.
    agent.definition("broken", &json!({}), &json!({ "cniVersion": "1.0.0", "type": "nobody" }));
    proxy.set(&rig::proxy::bridge("mine", 13));
    let pod = proxy.pod_on("web", &[("", "blue/before"), ("", "blue/after")]);
    let web = proxy.cri().run_pod_sandbox(&pod).expect("a pod");
    let seen = proxy.cri().pod_sandbox_status(&web).expect("a status");
    assert_eq!(seen.networks, ["", "blue/after"]);
    // A change is followed, also one that came while the proxy was away.
    proxy.stop("KILL");
    agent.definition("before", &json!({}), &bridge("before", 14));
    proxy.launch();
    until("the change is set", || {
        let bridge =
            proxy.networks()["before"]["config"]["cniv1_config"]["plugins"][0]["parameters"]["bridge"]
                .clone();
        (bridge == "\"br14\"").then_some(())
    });
    // One in use drains.
    agent.kube.kubectl(["delete", "net-attach-def", "-n", rig::agent::NAMESPACE, "after", "before"]);
    until("it drains", || {
        let networks = proxy.networks();
        (networks.get("after")?["status"]["draining"] == true).then_some(())
    });
    // One that comes back meanwhile stays, as `kubectl replace --force` has it, and takes sandboxes at once.
    agent.definition("after", &json!({}), &bridge("after", 12));
    until("it does not drain any more", || {
        (proxy.networks().get("after")?["status"]["sandbox_management"] == true).then_some(())
    });
    let db = proxy.cri().run_pod_sandbox(&proxy.pod_on("db", &[("", "blue/after")])).expect("a pod");
    proxy.remove(&db);
    agent.kube.kubectl(["delete", "net-attach-def", "-n", rig::agent::NAMESPACE, "after"]);
    proxy.remove(&web);
    until("only somebody else's is left", || (names() == ["mine"]).then_some(()));
}

#[test]
fn pods_that_select_definitions_and_sandboxes_that_ask_for_networks_live_on_one_node() {
    let host = host!(Feature::Bridge, Feature::Veth);
    let Some(node) = Containerd::with_network_directory(host, rig::proxy::RUNTIME_NETWORKS) else { return };
    let Some(agent) = Agent::own(node.machine()) else { return };
    agent.definition("net-a", &json!({}), &bridge("net-a", 11));
    node.write("/etc/cni/net.d/10-default.conflist", bridge("default", 1).to_string());
    let mut proxy = Proxy::with_networks_on(node);
    proxy.relaunch(&["--agent", "/run/weft/agent.sock"]);
    proxy.set(&rig::proxy::bridge("red", 21));
    let selecting = known(&agent, proxy.node(), "web", "net-a");
    let web = proxy.cri().run_pod_sandbox(&selecting).expect("a pod");
    assert_eq!(links(&proxy.node().inside(&web)), ["eth0", "net1"]);
    assert_eq!(agent.status("web").len(), 2, "the agent tells its status");
    let pod = proxy.pod_on("db", &[("", "_fallback"), ("", "red")]);
    let db = proxy.cri().run_pod_sandbox(&pod).expect("a pod");
    let seen = proxy.cri().pod_sandbox_status(&db).expect("a status");
    assert_eq!(seen.networks, ["", "red"]);
    assert!(
        proxy.node().inside(&db).pings(&proxy.cri().pod_sandbox_status(&web).expect("a status").addresses[0])
    );
    for id in [&web, &db] {
        proxy.remove(id);
    }
    // A network that was set is everybody's default: the agent's plan has its addresses, and the proxy knows who uses it.
    let mut pods = rig::proxy::bridge("pods", 31);
    pods["metadata"]["namespace"] = "infra".into();
    pods["ip_ranges"] = json!([{ "cidr": "10.32.0.0/24" }]);
    let list = &mut pods["cniv1_config"];
    list["network_name"] = "podnet".into();
    list["plugins"][0]["capabilities"] = json!(["ipRanges"]);
    list["plugins"][0]["parameters"]["ipam"] = json!({ "type": "host-local" });
    proxy.set(&pods);
    proxy.relaunch(&["--agent", "/run/weft/agent.sock", "--default-network", "infra/pods"]);
    let mut selecting = known(&agent, proxy.node(), "late", "net-a");
    selecting.metadata.as_mut().expect("metadata").attempt = 1;
    let late = proxy.cri().run_pod_sandbox(&selecting).expect("a pod");
    let inside = proxy.node().inside(&late);
    assert_eq!(links(&inside), ["eth0", "net1"]);
    assert!(rig::addresses_on(&inside, "eth0")[0].starts_with("10.32.0."));
    assert_eq!(agent.status("late")[0]["name"], "podnet", "as the agent calls it");
    let refused = proxy.network(&["rm", "infra/pods"], "");
    assert!(refused.stderr.contains(&format!("infra/pods is in use by sandbox {late}")), "{refused}");
    inside.run(["ip", "link", "delete", "eth0"]);
    until("its network is told that it is not as it was", || {
        (proxy.networks()["pods"]["status"]["connectivity"] == false).then_some(())
    });
    proxy.remove(&late);
    proxy.network(&["rm", "infra/pods"], "").success();
}
