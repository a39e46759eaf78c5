//! Agent and a real container runtime: information that the runtime passes, and what it reports when the API
//! server or the agent is unavailable.
//!
//! ```text
//!   API server ◄── agent ◄── weft-cni ◄── containerd ◄── CRI ── the test, as kubelet
//! ```
//!
//! Source: containerd 1.6 `pkg/cri/server/sandbox_run.go` (`io.kubernetes.cri.pod-annotations`); `docs/operations.md`,
//! "The agent".

use rig::agent::configuration;
use rig::cluster::bridge;
use rig::machine::until;
use rig::{Agent, Containerd, Proxy, assert_nothing_left, links};
use serde_json::{Value, json};
use testkit::{Feature, host};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

/// Starts a runtime, an agent and two definitions; an earlier pod created what remains on a node.
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

/// Creates a pod in the API; returns the sandbox configuration as a kubelet sends it.
#[track_caller]
fn known(agent: &Agent, node: &Containerd, name: &str, networks: &str) -> rig::cri::PodSandboxConfig {
    let uid = agent.pod(name, &json!({ NETWORKS: networks }));
    let mut pod = node.pod(name, &[(NETWORKS, networks)]);
    pod.metadata.as_mut().expect("metadata").uid = uid;
    pod
}

#[test]
fn api_outage_annotations_from_the_runtime_suffice() {
    let (node, agent) = node!();
    let before = node.snapshot();
    agent.kube.stop("kube-apiserver", "KILL");
    // Only the runtime knows these pods.
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
fn agent_outage_pods_are_deleted_and_new_ones_wait() {
    let (node, agent) = node!();
    let before = node.snapshot();
    let web = node.cri().run_pod_sandbox(&known(&agent, &node, "web", "net-a")).expect("a pod");
    let status: Vec<Value> = agent.status("web");
    let shown: Vec<&Value> = status.iter().map(|entry| &entry["interface"]).collect();
    assert_eq!(shown, ["eth0", "net1"]);
    agent.stop("KILL");
    let late = known(&agent, &node, "late", "net-b");
    let refused = node.cri().run_pod_sandbox(&late).expect_err("no agent answers");
    assert!(refused.contains("start the agent"), "{refused}");
    // A pod without selected networks does not wait: the runtime passes its annotations. A kubelet's pods always have some.
    let mut plain = node.pod("plain", &[("kubernetes.io/config.source", "api")]);
    plain.metadata.as_mut().expect("metadata").uid = agent.pod("plain", &json!({}));
    let plain = node.cri().run_pod_sandbox(&plain).expect("a pod");
    assert_eq!(links(&node.inside(&plain)), ["eth0"]);
    // A restart of the runtime does not affect attachments.
    node.restart("KILL");
    node.remove(&web);
    agent.start(&[]);
    agent.wait_until_ready();
    assert_eq!(agent.status("plain").len(), 1, "its status follows later");
    node.remove(&plain);
    let late = until("the next attempt of the runtime", || node.cri().run_pod_sandbox(&late).ok());
    assert_eq!(links(&node.inside(&late)), ["eth0", "net1"]);
    node.remove(&late);
    assert_nothing_left("without the agent", &node, &before);
}

#[test]
fn orphaned_sandbox_lost_by_the_runtime_is_removed() {
    let (node, agent) = node!();
    let before = node.snapshot();
    agent.stop("TERM");
    agent.start(&["--orphan-grace", "1", "--runtime-endpoint", "unix:///run/containerd/containerd.sock"]);
    agent.wait_until_ready();
    let mut web = known(&agent, &node, "web", "net-a");
    let lost = node.cri().run_pod_sandbox(&web).expect("a pod");
    let netns = node.sandbox(&lost).netns();
    // A sandbox in the same journal that the runtime never had, and whose pod is deleted.
    let (own, uid) = (agent.machine.pod("own"), agent.pod("own", &json!({})));
    let manual = agent.attachment(&own, "own", &uid);
    manual.add(&configuration(&bridge("default", 1))).success();
    agent.delete_pod("own");
    node.forget_sandbox(&lost);
    web.metadata.as_mut().expect("metadata").attempt = 1;
    let web = node.cri().run_pod_sandbox(&web).expect("a pod");
    let entry = |id: &str| node.read(format!("/var/lib/weft/sandboxes/{id}.json"));
    assert!(entry(&lost).is_some() && entry(&web).is_some());
    let next = known(&agent, &node, "next", "net-b");
    // The runtime may be creating the sandbox, so the agent waits fifteen seconds.
    until("the lost sandbox is removed", || {
        node.remove(&node.cri().run_pod_sandbox(&next).expect("a pod"));
        entry(&lost).is_none().then_some(())
    });
    assert!(entry(&web).is_some() && rig::link(&own, "eth0").is_some(), "existing sandboxes are kept");
    assert_eq!(links(&node.inside(&web)), ["eth0", "net1"]);
    manual.del(&configuration(&bridge("default", 1))).success();
    node.remove(&web);
    // The runtime leaves the namespace and its cached results.
    node.run(["sh", "-c", &format!("rm /var/lib/cni/results/*-{lost}-*")]);
    node.run(["sh", "-c", &format!("umount /run/netns/{netns} && rm /run/netns/{netns}")]);
    own.remove();
    assert_nothing_left("lost sandbox", &node, &before);
}

#[test]
fn sync_networks_stores_definitions_in_the_proxy() {
    let host = host!(Feature::Bridge, Feature::Veth);
    let Some(node) = Containerd::with_network_directory(host, rig::proxy::RUNTIME_NETWORKS) else { return };
    let Some(agent) = Agent::own(node.machine()) else { return };
    let proxy = Proxy::with_networks_on(node);
    agent.definition("before", &json!({}), &bridge("before", 11));
    agent.stop("TERM");
    agent.start(&["--sync-networks"]);
    agent.wait_until_ready();
    let names = || proxy.networks().into_keys().collect::<Vec<_>>();
    until("the existing definition is stored", || (names() == ["before"]).then_some(()));
    agent.definition("after", &json!({}), &bridge("after", 12));
    until("the new definition is stored", || (names() == ["after", "before"]).then_some(()));
    // An invalid definition is skipped, and a network of another client is not changed.
    agent.definition("broken", &json!({}), &json!({ "cniVersion": "1.0.0", "type": "missing" }));
    proxy.set(&rig::proxy::bridge("mine", 13));
    let pod = proxy.pod_on("web", &[("", "blue/before"), ("", "blue/after")]);
    let web = proxy.cri().run_pod_sandbox(&pod).expect("a pod");
    let seen = proxy.cri().pod_sandbox_status(&web).expect("a status");
    assert_eq!(seen.networks, ["", "blue/after"]);
    // A change is followed, also one made while the proxy is stopped.
    proxy.stop("KILL");
    agent.definition("before", &json!({}), &bridge("before", 14));
    proxy.launch();
    until("the change is stored", || {
        let bridge =
            proxy.networks()["before"]["config"]["cniv1_config"]["plugins"][0]["parameters"]["bridge"]
                .clone();
        (bridge == "\"br14\"").then_some(())
    });
    // A network in use is drained.
    agent.kube.kubectl(["delete", "net-attach-def", "-n", rig::agent::NAMESPACE, "after", "before"]);
    until("the network is draining", || {
        let networks = proxy.networks();
        (networks.get("after")?["status"]["draining"] == true).then_some(())
    });
    // A network that is created again meanwhile (`kubectl replace --force`) stays, and accepts sandboxes immediately.
    agent.definition("after", &json!({}), &bridge("after", 12));
    until("the network accepts sandboxes", || {
        (proxy.networks().get("after")?["status"]["sandbox_management"] == true).then_some(())
    });
    let db = proxy.cri().run_pod_sandbox(&proxy.pod_on("db", &[("", "blue/after")])).expect("a pod");
    proxy.remove(&db);
    agent.kube.kubectl(["delete", "net-attach-def", "-n", rig::agent::NAMESPACE, "after"]);
    proxy.remove(&web);
    until("only the network of the other client remains", || (names() == ["mine"]).then_some(()));
}

#[test]
fn cri_proxy_and_agent_share_one_node() {
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
    assert_eq!(agent.status("web").len(), 2, "the agent writes its status");
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
    // A stored network is the default network: the agent's plan has its addresses, and the proxy knows the sandboxes that use it.
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
    assert_eq!(agent.status("late")[0]["name"], "podnet", "name of the network in the status");
    let refused = proxy.network(&["rm", "infra/pods"], "");
    assert!(refused.stderr.contains(&format!("infra/pods is in use by sandbox {late}")), "{refused}");
    inside.run(["ip", "link", "delete", "eth0"]);
    until("the network reports lost connectivity", || {
        (proxy.networks()["pods"]["status"]["connectivity"] == false).then_some(())
    });
    proxy.remove(&late);
    proxy.network(&["rm", "infra/pods"], "").success();
}
