//! An agent between a real API server and the meta-plugin: plans, status, Events, rights.
//!
//! ```text
//!   kube-apiserver ◄── agent ◄── weft-cni ADD/DEL ◄── the test, in the place of a runtime
//! ```
//!
//! Source: the standard, 4–7; DESIGN §4.

use rig::agent::{NAMESPACE, node_configuration};
use rig::cluster::bridge;
use rig::machine::until;
use rig::{Agent, Machine, addresses_on, assert_nothing_left, assert_refused};
use serde_json::{Value, json};
use testkit::{Feature, host};

const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

/// Since then a token says of which node its pod is.
const NODE_IN_TOKEN_MINOR: u32 = 30;

/// A node with an agent and two definitions.
macro_rules! node {
    () => {{
        let Some(agent) = Agent::with_networks(host!(Feature::Bridge), ["net-a", "net-b"]) else { return };
        agent
    }};
}

fn select(networks: &str) -> Value {
    json!({ NETWORKS: networks })
}

#[test]
fn npwg1_5_1_a_pod_is_planned_attached_and_told_of_with_the_shipped_rights() {
    let agent = node!();
    let uid = agent.pod("web", &json!({ NETWORKS: "net-a,net-b@blue0", "example.org/other": "kept" }));
    let sandbox = agent.machine.pod("web");
    let eth0 = agent.attachment(&sandbox, "web", &uid);
    eth0.add(&node_configuration()).success();
    let addresses = |link: &str| addresses_on(&sandbox, link)[0].split('/').next().unwrap().to_owned();
    let status = agent.status("web");
    let shown: Vec<(&str, &str, String)> = status
        .iter()
        .map(|entry| {
            let text = |key: &str| entry[key].as_str().unwrap();
            (text("name"), text("interface"), entry["ips"][0].as_str().unwrap().to_owned())
        })
        .collect();
    let expected = [
        ("home", "eth0", addresses("eth0")),
        ("blue/net-a", "net1", addresses("net1")),
        ("blue/net-b", "blue0", addresses("blue0")),
    ];
    assert_eq!(shown, expected);
    assert_eq!(agent.annotation("web", "example.org/other").as_deref(), Some("kept"));
    let events = until("Events", || Some(agent.events("web")).filter(|events| events.len() >= 3));
    for (name, interface, address) in &expected {
        let wanted = format!("AddedInterface Add {interface} [{address}] from {name}");
        assert!(events.contains(&wanted), "{wanted} is not in {events:?}");
    }
    // One write for the whole ADD, and nothing was asked for that was known.
    assert_eq!(agent.figure("weft_status_updates_total{outcome=\"written\"}"), Some(1.0));
    assert_eq!(agent.figure("weft_plan_requests_total{outcome=\"planned\"}"), Some(1.0));
    let attached = "weft_attachments_total{plugin=\"bridge\",outcome=\"attached\"}";
    until("the report", || agent.figure(attached).filter(|count| *count >= 3.0));
    // Bridges stay for the next one, and nothing else does.
    eth0.del(&node_configuration()).success();
    let before = agent.machine.snapshot();
    eth0.add(&node_configuration()).success();
    // The same pod, the same interface: what is told is the address that it has now.
    let again = addresses("net1");
    assert_ne!(again, expected[1].2, "host-local goes on with the next one");
    let wanted = format!("AddedInterface Add net1 [{again}] from blue/net-a");
    until("an Event of the new address", || agent.events("web").contains(&wanted).then_some(()));
    eth0.del(&node_configuration()).success();
    assert_nothing_left("DEL", &agent.machine, &before);
}

#[test]
fn npwg1_3_4_1_rule4_a_network_that_is_not_there_is_an_event_and_leaves_nothing() {
    let agent = node!();
    let uid = agent.pod("web", &select("nowhere"));
    let sandbox = agent.machine.pod("web");
    let before = agent.machine.snapshot();
    let refused = agent.attachment(&sandbox, "web", &uid).add(&node_configuration());
    assert_refused("ADD", &refused, 7, &["blue/nowhere", "no such NetworkAttachmentDefinition"]);
    assert_nothing_left("a refusal", &agent.machine, &before);
    let events = until("an Event", || Some(agent.events("web")).filter(|events| !events.is_empty()));
    assert!(events[0].starts_with("NoNetworkFound ") && events[0].contains("blue/nowhere"), "{events:?}");
    // Made a moment later, it is there at once.
    agent.definition("nowhere", &json!({}), &bridge("nowhere", 13));
    agent.attachment(&sandbox, "web", &uid).add(&node_configuration()).success();
}

#[test]
fn an_ignored_annotation_is_a_warning() {
    let agent = node!();
    let uid = agent.pod("web", &select(r#"[{"name":"net-a","ips":["x"]}]"#));
    let sandbox = agent.machine.pod("web");
    agent.attachment(&sandbox, "web", &uid).add(&node_configuration()).success();
    assert_eq!(agent.status("web").len(), 1);
    let events = until("a warning", || {
        Some(agent.events("web"))
            .filter(|events| events.iter().any(|event| event.starts_with("AnnotationIgnored")))
    });
    assert!(events.iter().any(|event| event.contains("[0].ips[0]")), "{events:?}");
}

#[test]
fn m13_pods_are_known_by_their_uid() {
    let agent = node!();
    let sandbox = agent.machine.pod("web");
    let old = agent.pod("web", &select("net-a"));
    agent.delete_pod("web");
    // Until it hears of that a moment passes in which the pod is there.
    let gone = until("the end is heard of", || {
        let attachment = agent.attachment(&sandbox, "web", &old);
        let finished = attachment.add(&node_configuration());
        if finished.code == Some(0) {
            attachment.del(&node_configuration()).success();
        }
        (finished.code != Some(0)).then_some(finished)
    });
    assert_refused("deleted before ADD", &gone, 3, &["blue/web", "not in the cluster"]);
    let new = agent.pod("web", &select("net-b"));
    let other = agent.attachment(&sandbox, "web", &old).add(&node_configuration());
    assert_refused("created anew", &other, 3, &["blue/web", &old, &new]);
    // Of the old one's sandbox nothing is written to the new one.
    agent.attachment(&sandbox, "web", &new).add(&node_configuration()).success();
    assert_eq!(agent.status("web")[1]["name"], "blue/net-b");
}

#[test]
fn a_policy_on_a_definition_says_who_may_use_it() {
    let agent = node!();
    let access = |rules: &str| json!({ "weft.dev/access": rules });
    agent.definition(
        "of-db",
        &access(r#"{"podSelector":{"matchLabels":{"app":"db"}}}"#),
        &bridge("of-db", 14),
    );
    agent.definition(
        "of-team",
        &access(r#"{"namespaceSelector":{"matchLabels":{"team":"net"}}}"#),
        &bridge("of-team", 15),
    );
    agent.definition("broken", &access(r#"{"podselector":{}}"#), &bridge("broken", 16));
    let web = agent.machine.pod("web");
    for (network, word) in
        [("of-db", "does not admit"), ("of-team", "does not admit"), ("broken", "podselector")]
    {
        let uid = agent.pod("web", &select(network));
        let refused = agent.attachment(&web, "web", &uid).add(&node_configuration());
        assert_refused(network, &refused, 7, &[&format!("blue/{network}"), word]);
        // It holds for the default network's annotation, too (M14).
        agent.delete_pod("web");
        let chosen = json!({ "v1.multus-cni.io/default-network": format!("{NAMESPACE}/{network}") });
        let uid = agent.pod("web", &chosen);
        let refused = agent.attachment(&web, "web", &uid).add(&node_configuration());
        assert_refused(network, &refused, 7, &[&format!("blue/{network}"), word]);
        agent.delete_pod("web");
    }
    agent.kube.kubectl(["label", "namespace", NAMESPACE, "team=net"]);
    let db = agent.machine.pod("db");
    let uid = agent.pod("db", &select("of-db,of-team"));
    let attachment = agent.attachment(&db, "db", &uid);
    until("the label is heard of", || {
        let finished = attachment.add(&node_configuration());
        (finished.code == Some(0)).then_some(())
    });
    assert_eq!(agent.status("db").len(), 3);
}

/// A pod with a service account; its uid.
fn pod_of(agent: &Agent, account: &str, name: &str, annotations: &Value) -> String {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": NAMESPACE, "annotations": annotations },
        "spec": { "nodeName": rig::agent::NODE, "serviceAccountName": account, "containers": [{ "name": "c", "image": "none" }] },
    });
    agent.kube.apply(&pod.to_string());
    agent.kube.json(["pod", "-n", NAMESPACE, name])["metadata"]["uid"].as_str().unwrap().to_owned()
}

#[test]
fn m14_isolation_and_accounts_hold_for_both_annotations_with_an_agent_and_without() {
    let agent = node!();
    for (namespace, subnet) in [("green", 21), ("shared", 22)] {
        agent.kube.kubectl(["create", "namespace", namespace]);
        let config = bridge(namespace, subnet).to_string();
        let metadata = json!({ "name": "net", "namespace": namespace });
        let definition = json!({ "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": metadata, "spec": { "config": config } });
        agent.kube.apply(&definition.to_string());
    }
    let rule = r#"{"serviceAccounts":["blue/robot"]}"#;
    agent.definition("of-robot", &json!({ "weft.dev/access": rule }), &bridge("of-robot", 23));
    let isolated = json!({ "namespaceIsolation": true, "globalNamespaces": "shared" });
    let mut config = rig::with(&node_configuration(), &isolated);
    let web = agent.machine.pod("web");
    for way in ["an agent", "no agent"] {
        if way == "no agent" {
            agent.stop("TERM");
            config["kubeconfig"] = agent.configuration().into();
        }
        for (network, account, why) in [
            ("green/net", "robot", Some("may not use definitions of namespace green")),
            ("shared/net", "robot", None),
            ("blue/of-robot", "robot", None),
            ("blue/of-robot", "", Some("does not admit it")),
        ] {
            for key in [NETWORKS, "v1.multus-cni.io/default-network"] {
                let what = format!("{way}: {key}={network} of {account:?}");
                let uid = pod_of(&agent, account, "web", &json!({ key: network }));
                let attachment = agent.attachment(&web, "web", &uid);
                let added = attachment.add(&config);
                match why {
                    Some(why) => assert_refused(&what, &added, 7, &[network, why]),
                    None => assert_eq!(added.code, Some(0), "{what}: {added}"),
                }
                attachment.del(&config).success();
                agent.delete_pod("web");
            }
        }
    }
}

#[test]
fn m17_a_status_that_is_lost_is_written_again() {
    let agent = node!();
    let uid = agent.pod("web", &select("net-a"));
    let sandbox = agent.machine.pod("web");
    agent.attachment(&sandbox, "web", &uid).add(&node_configuration()).success();
    let status = agent.status("web");
    // Somebody who is slower than we are overwrites it.
    std::thread::sleep(std::time::Duration::from_secs(6));
    agent.kube.kubectl(["annotate", "pod", "-n", NAMESPACE, "web", "--overwrite", &format!("{STATUS}=[]")]);
    let again = until("it is there again", || Some(agent.status("web")).filter(|status| !status.is_empty()));
    assert_eq!(again, status);
}

#[test]
fn an_agent_that_comes_back_writes_what_it_missed_and_nothing_twice() {
    let agent = node!();
    let uid = agent.pod("web", &select("net-a"));
    let sandbox = agent.machine.pod("web");
    agent.attachment(&sandbox, "web", &uid).add(&node_configuration()).success();
    let status = agent.status("web");
    agent.stop("KILL");
    agent.kube.kubectl(["annotate", "pod", "-n", NAMESPACE, "web", &format!("{STATUS}-")]);
    // Without an agent a pod waits, and one that runs can go.
    let other = agent.machine.pod("other");
    let other_uid = agent.pod("other", &select("net-a"));
    let refused = agent.attachment(&other, "other", &other_uid).add(&node_configuration());
    assert_refused("ADD without an agent", &refused, 11, &["plan --once", "start the agent"]);
    agent.start(&[]);
    agent.wait_until_ready();
    assert_eq!(agent.status("web"), status);
    agent.attachment(&other, "other", &other_uid).add(&node_configuration()).success();
    agent.stop("TERM");
    agent.attachment(&other, "other", &other_uid).del(&node_configuration()).success();
    agent.start(&[]);
    agent.wait_until_ready();
    assert_eq!(agent.figure("weft_status_updates_total{outcome=\"written\"}"), None);
}

#[test]
fn an_agent_that_is_ended_loses_no_event() {
    let agent = node!();
    let names: Vec<String> = (0..12).map(|number| format!("web-{number}")).collect();
    let uids = agent.pods(&names, &select("net-a"));
    std::thread::scope(|scope| {
        for (name, uid) in names.iter().zip(&uids) {
            let agent = &agent;
            scope.spawn(move || {
                let sandbox = agent.machine.pod(name);
                agent.attachment(&sandbox, name, uid).add(&node_configuration()).success();
            });
        }
    });
    // Most of it is still to be told.
    agent.stop("TERM");
    agent.start(&[]);
    agent.wait_until_ready();
    for name in &names {
        let told = || Some(agent.events(name)).filter(|events| events.len() >= 2);
        until(&format!("Events of {name}"), told);
    }
}

#[test]
fn what_is_wrong_with_one_definition_is_nothing_to_the_others() {
    let agent = node!();
    let metadata = json!({ "name": "odd", "namespace": NAMESPACE });
    let odd = json!({ "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": metadata, "spec": { "config": "{" } });
    agent.kube.apply(&odd.to_string());
    let sandbox = agent.machine.pod("web");
    let uid = agent.pod("web", &select("odd"));
    let refused = agent.attachment(&sandbox, "web", &uid).add(&node_configuration());
    assert_refused("malformed", &refused, 7, &["blue/odd", "spec.config"]);
    agent.delete_pod("web");
    let uid = agent.pod("web", &select("net-a"));
    agent.attachment(&sandbox, "web", &uid).add(&node_configuration()).success();
}

#[test]
fn a_thin_node_plans_and_publishes_without_an_agent() {
    let agent = node!();
    agent.stop("TERM");
    let mut config = node_configuration();
    config["kubeconfig"] = agent.configuration().into();
    let uid = agent.pod("web", &select("net-a"));
    let sandbox = agent.machine.pod("web");
    agent.attachment(&sandbox, "web", &uid).add(&config).success();
    assert_eq!(agent.status("web")[1]["name"], "blue/net-a");
    until("Events", || {
        Some(agent.events("web"))
            .filter(|events| events.iter().any(|event| event.contains("from blue/net-a")))
    });
    let nobody = agent.attachment(&sandbox, "nobody", "").add(&config);
    assert_refused("a pod that is not there", &nobody, 4, &["attached already"]);
    agent.attachment(&sandbox, "web", &uid).del(&config).success();
    let nobody = agent.attachment(&sandbox, "nobody", "").add(&config);
    assert_refused("a pod that is not there", &nobody, 3, &["blue/nobody", "not in the cluster"]);
}

#[test]
fn a_network_that_fails_is_counted_and_those_behind_it_are_not() {
    let agent = node!();
    agent.definition(
        "bad",
        &json!({}),
        &json!({ "cniVersion": "1.0.0", "type": "macvlan", "master": "nowhere" }),
    );
    let uid = agent.pod("web", &select("bad,net-a"));
    let web = agent.machine.pod("web");
    let refused = agent.attachment(&web, "web", &uid).add(&node_configuration());
    assert_refused("no parent", &refused, 7, &["master", "nowhere"]);
    let figure = |plugin: &str, outcome: &str| {
        agent.figure(&format!("weft_attachments_total{{plugin=\"{plugin}\",outcome=\"{outcome}\"}}"))
    };
    assert_eq!(until("the report", || figure("macvlan", "failed")), 1.0);
    assert_eq!(
        (figure("bridge", "attached"), figure("bridge", "failed")),
        (Some(1.0), None),
        "{}",
        agent.page("/metrics")
    );
}

#[test]
fn m25_v13_8_2_1_the_shipped_roles_allow_nothing_that_is_somebody_elses() {
    let Some(agent) = Agent::new(Machine::new(host!(), "node")) else { return };
    for file in ["crds/ipamclaims.k8s.cni.cncf.io.yaml", "ipam/rbac.yaml", "neutron/rbac.yaml"] {
        let path = testkit::workspace().join("deploy").join(file);
        agent.kube.kubectl(["apply", "-f", path.to_str().expect("a path")]);
    }
    let may = |account: &str, words: &str| {
        let who = format!("--as=system:serviceaccount:kube-system:{account}");
        let line = ["auth", "can-i", "-n", "kube-system", &who].into_iter().chain(words.split(' '));
        agent.kube.attempt(line, "").stdout.trim() == "yes"
    };
    for (account, words) in [
        ("weft-agent", "patch pods --subresource=status"),
        ("weft-agent", "patch ipamclaims.k8s.cni.cncf.io --subresource=status"),
        ("weft-controller-ipam", "update leases/weft-ipam"),
        ("weft-neutron", "update leases/weft-neutron"),
    ] {
        until("the rights are known", || may(account, words).then_some(()));
    }
    let of_nobody = [
        "* *",
        "get secrets",
        "get configmaps",
        "create pods",
        "create pods --subresource=exec",
        "delete pods",
        "update nodes",
        "create network-attachment-definitions.k8s.cni.cncf.io",
        "list leases",
        "get leases/kube-scheduler",
        "update leases/kube-controller-manager",
        "delete leases",
        "create clusterroles",
        "impersonate users",
    ];
    for account in ["weft-agent", "weft-controller-ipam", "weft-neutron"] {
        for words in of_nobody {
            assert!(!may(account, words), "{account}: {words}");
        }
    }
    for (account, words) in [
        ("weft-agent", "patch pods"),
        ("weft-agent", "patch ipamclaims.k8s.cni.cncf.io"),
        ("weft-agent", "create leases"),
        ("weft-agent", "get leases/weft-ipam"),
        ("weft-controller-ipam", "patch pods"),
        ("weft-controller-ipam", "update leases/weft-neutron"),
        ("weft-neutron", "delete ipblocks.weft.dev"),
        ("weft-neutron", "update leases/weft-ipam"),
    ] {
        assert!(!may(account, words), "{account}: {words}");
    }
}

/// A token of an agent's pod on this node, and the kubeconfig of who took it.
fn taken_from(kube: &rig::Kube, node: &str) -> String {
    kube.apply(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": node } }).to_string());
    let name = format!("weft-agent-{node}");
    let uid = bound_pod(kube, "kube-system", &name, node);
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
        "spec": { "boundObjectRef": { "kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid } },
    });
    let path = "/api/v1/namespaces/kube-system/serviceaccounts/weft-agent/token";
    let answer = kube.attempt(["create", "--raw", path, "-f", "-"], &request.to_string()).success().json();
    kube.configuration(&name, &json!({ "token": answer["status"]["token"] }))
}

/// Makes a pod of a node, with labels and annotations; its uid.
fn bound_pod(kube: &rig::Kube, namespace: &str, name: &str, node: &str) -> Value {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": namespace, "labels": { "app": "db" }, "annotations": { "a": "b" },
        },
        "spec": {
            "nodeName": node, "serviceAccountName": "weft-agent", "automountServiceAccountToken": false,
            "containers": [{ "name": "c", "image": "i" }],
        },
    });
    kube.apply(&pod.to_string());
    kube.json(["pod", "-n", namespace, name])["metadata"]["uid"].clone()
}

/// A change of one annotation.
fn annotation(key: &str, value: Option<&str>) -> Value {
    json!({ "metadata": { "annotations": { key: value } } })
}

/// A cluster with the agent's rights and its policy; nothing, and the test is skipped, where tokens do not say their node.
fn with_policy(host: testkit::Host) -> Option<rig::Kube> {
    let kube = rig::Kube::prepare(Machine::new(host, "node").into(), rig::kube::Accounts::Absent)?;
    if kube.minor() < NODE_IN_TOKEN_MINOR {
        let why = format!("Kubernetes 1.{NODE_IN_TOKEN_MINOR} or newer is not there: KUBEBUILDER_ASSETS");
        testkit::record_skip(&testkit::test_name(), &why);
        return None;
    }
    kube.launch();
    kube.wait();
    kube.service_account("kube-system", "weft-agent");
    for file in ["rbac.yaml", "policy.yaml"] {
        let path = testkit::workspace().join("deploy/base").join(file);
        kube.kubectl(["apply", "-f", path.to_str().expect("a path")]);
    }
    // kubectl reads what it patches.
    for words in [
        "create clusterrole reader --verb get --resource pods/status",
        "create clusterrolebinding reader --clusterrole reader --serviceaccount kube-system:weft-agent",
    ] {
        kube.kubectl(words.split(' '));
    }
    Some(kube)
}

/// The attack: a token that was taken on one node changes pods of all.
#[test]
fn by_the_policy_the_token_of_an_agent_writes_network_status_of_pods_of_its_node_alone() {
    let Some(kube) = with_policy(host!()) else { return };
    let token = taken_from(&kube, "one");
    for (name, node) in [("near", "one"), ("far", "two")] {
        bound_pod(&kube, "kube-system", name, node);
    }
    let patch = |pod: &str, patch: &Value| {
        let words = "patch -n kube-system pod POD --subresource status --type merge -p".replace("POD", pod);
        let patch = patch.to_string();
        kube.attempt_as(&token, words.split(' ').chain([patch.as_str()]), "")
    };
    until("the policy holds", || {
        let refused = patch("far", &annotation(STATUS, Some("[1]")));
        refused.stderr.contains("only of pods on its own node").then_some(())
    });
    for value in [Some("[]"), Some("[{}]"), None] {
        patch("near", &annotation(STATUS, value)).success();
    }
    for (what, word) in [
        (annotation(NETWORKS, Some("net-a")), "alone"),
        (annotation("a", Some("c")), "alone"),
        (annotation("a", None), "alone"),
        (json!({ "metadata": { "labels": { "app": "web" } } }), "nothing of a pod but"),
        (json!({ "metadata": { "finalizers": ["example.org/never"] } }), "nothing of a pod but"),
        (json!({ "status": { "podIP": "10.0.0.1" } }), "nothing of a pod but"),
    ] {
        let refused = patch("near", &what);
        assert!(refused.code != Some(0) && refused.stderr.contains(word), "{what}: {}", refused.stderr);
    }
    // It is the agent's policy, and nobody else's.
    kube.kubectl(["annotate", "-n", "kube-system", "pod", "near", "example.org/own=1"]);
}
