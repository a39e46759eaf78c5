//! Agent between a real API server and the meta-plugin: plans, network-status, Events, RBAC, admission policy.
//!
//! ```text
//!   kube-apiserver ◄── agent ◄── weft-cni ADD/DEL ◄── the test, as container runtime
//! ```
//!
//! Source: multi-network specification (NPWG), sections 4–7.

use rig::agent::{NAMESPACE, node_configuration};
use rig::cluster::bridge;
use rig::machine::until;
use rig::{Agent, Machine, addresses_on, assert_nothing_left, assert_refused};
use serde_json::{Value, json};
use testkit::{Feature, host};

const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

/// First minor version of Kubernetes whose tokens contain the pod's node.
const NODE_IN_TOKEN_MINOR: u32 = 30;

/// Starts a node with an agent and two definitions.
macro_rules! node {
    () => {{
        let Some(agent) = Agent::with_networks(host!(Feature::Bridge), ["net-a", "net-b"]) else { return };
        agent
    }};
}

fn select(networks: &str) -> Value {
    json!({ NETWORKS: networks })
}

// Requirements: NPWG1-5-1
#[test]
fn network_status_and_events_are_written_with_the_shipped_rbac() {
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
    // One Event for the whole ADD.
    let sentence =
        |(name, interface, address): &(_, _, _)| format!("Add {interface} [{address}] from {name}");
    let wanted = format!("AddedInterface {}", expected.iter().map(sentence).collect::<Vec<_>>().join("; "));
    until("the Event", || agent.events("web").contains(&wanted).then_some(()));
    assert_eq!(agent.events("web"), [wanted]);
    // One write for the whole ADD, and no request for cached objects.
    assert_eq!(agent.metric("weft_status_updates_total{outcome=\"written\"}"), Some(1.0));
    assert_eq!(agent.metric("weft_plan_requests_total{outcome=\"planned\"}"), Some(1.0));
    let attached = "weft_attachments_total{plugin=\"bridge\",outcome=\"attached\"}";
    until("the report", || agent.metric(attached).filter(|count| *count >= 3.0));
    // Bridges stay for the next attachment; everything else is removed.
    eth0.del(&node_configuration()).success();
    let before = agent.machine.snapshot();
    eth0.add(&node_configuration()).success();
    // Same pod and interface: the Event names the current address.
    let again = addresses("net1");
    assert_ne!(again, expected[1].2, "host-local continues with the next address");
    let wanted = format!("Add net1 [{again}] from blue/net-a");
    let is_sent = || agent.events("web").iter().any(|event| event.contains(&wanted)).then_some(());
    until("an Event of the new address", is_sent);
    eth0.del(&node_configuration()).success();
    assert_nothing_left("DEL", &agent.machine, &before);
}

// Requirements: NPWG1-3.4.1-rule4
#[test]
fn missing_definition_is_an_event_and_leaves_nothing() {
    let agent = node!();
    let uid = agent.pod("web", &select("nowhere"));
    let sandbox = agent.machine.pod("web");
    let before = agent.machine.snapshot();
    let refused = agent.attachment(&sandbox, "web", &uid).add(&node_configuration());
    assert_refused("ADD", &refused, 7, &["blue/nowhere", "no such NetworkAttachmentDefinition"]);
    assert_nothing_left("a refusal", &agent.machine, &before);
    let events = until("an Event", || Some(agent.events("web")).filter(|events| !events.is_empty()));
    assert!(events[0].starts_with("NoNetworkFound ") && events[0].contains("blue/nowhere"), "{events:?}");
    // The pod is attached as soon as the definition exists.
    agent.definition("nowhere", &json!({}), &bridge("nowhere", 13));
    agent.attachment(&sandbox, "web", &uid).add(&node_configuration()).success();
}

#[test]
fn ignored_annotation_is_a_warning_event() {
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

// Requirements: M13
#[test]
fn pod_uid_identifies_a_recreated_pod() {
    let agent = node!();
    let sandbox = agent.machine.pod("web");
    let old = agent.pod("web", &select("net-a"));
    agent.delete_pod("web");
    // Until the agent observes the deletion, an ADD still succeeds.
    let gone = until("the deletion is observed", || {
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
    assert_refused("recreated", &other, 3, &["blue/web", &old, &new]);
    // The new pod gets no status of the old pod's sandbox.
    agent.attachment(&sandbox, "web", &new).add(&node_configuration()).success();
    assert_eq!(agent.status("web")[1]["name"], "blue/net-b");
}

#[test]
fn access_policy_of_a_definition_is_enforced() {
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
        // The policy also applies to the annotation of the default network (M14).
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
    until("the label is observed", || {
        let finished = attachment.add(&node_configuration());
        (finished.code == Some(0)).then_some(())
    });
    assert_eq!(agent.status("db").len(), 3);
}

/// Creates a pod with a service account; returns its uid.
fn pod_of(agent: &Agent, account: &str, name: &str, annotations: &Value) -> String {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": NAMESPACE, "annotations": annotations },
        "spec": { "nodeName": rig::agent::NODE, "serviceAccountName": account, "containers": [{ "name": "c", "image": "none" }] },
    });
    agent.kube.apply(&pod.to_string());
    agent.kube.json(["pod", "-n", NAMESPACE, name])["metadata"]["uid"].as_str().unwrap().to_owned()
}

// Requirements: M14
#[test]
fn namespace_isolation_and_accounts_hold_with_and_without_agent() {
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
    for mode in ["an agent", "no agent"] {
        if mode == "no agent" {
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
                let case = format!("{mode}: {key}={network} of {account:?}");
                let uid = pod_of(&agent, account, "web", &json!({ key: network }));
                let attachment = agent.attachment(&web, "web", &uid);
                let added = attachment.add(&config);
                match why {
                    Some(why) => assert_refused(&case, &added, 7, &[network, why]),
                    None => assert_eq!(added.code, Some(0), "{case}: {added}"),
                }
                attachment.del(&config).success();
                agent.delete_pod("web");
            }
        }
    }
}

// Requirements: M17
#[test]
fn network_status_is_written_again_after_it_was_overwritten() {
    let agent = node!();
    let uid = agent.pod("web", &select("net-a"));
    let sandbox = agent.machine.pod("web");
    agent.attachment(&sandbox, "web", &uid).add(&node_configuration()).success();
    let status = agent.status("web");
    // Another client overwrites the status later.
    std::thread::sleep(std::time::Duration::from_secs(6));
    agent.kube.kubectl(["annotate", "pod", "-n", NAMESPACE, "web", "--overwrite", &format!("{STATUS}=[]")]);
    let again = until("the status is written again", || {
        Some(agent.status("web")).filter(|status| !status.is_empty())
    });
    assert_eq!(again, status);
}

#[test]
fn agent_restart_writes_missed_status_once() {
    let agent = node!();
    let uid = agent.pod("web", &select("net-a"));
    let sandbox = agent.machine.pod("web");
    agent.attachment(&sandbox, "web", &uid).add(&node_configuration()).success();
    let status = agent.status("web");
    agent.stop("KILL");
    agent.kube.kubectl(["annotate", "pod", "-n", NAMESPACE, "web", &format!("{STATUS}-")]);
    // Without an agent, an ADD is refused and a DEL succeeds.
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
    assert_eq!(agent.metric("weft_status_updates_total{outcome=\"written\"}"), Some(0.0));
}

#[test]
fn agent_shutdown_loses_no_event() {
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
    // Most Events are not sent yet.
    agent.stop("TERM");
    agent.start(&[]);
    agent.wait_until_ready();
    for name in &names {
        let sent = || agent.events(name).first().filter(|event| event.contains("from blue/net-a")).cloned();
        until(&format!("the Event of {name}"), sent);
    }
}

#[test]
fn malformed_definition_does_not_affect_others() {
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
fn thin_node_plans_and_writes_status_without_an_agent() {
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
    let missing = agent.attachment(&sandbox, "missing", "").add(&config);
    assert_refused("a pod that does not exist", &missing, 4, &["already attached"]);
    agent.attachment(&sandbox, "web", &uid).del(&config).success();
    let missing = agent.attachment(&sandbox, "missing", "").add(&config);
    assert_refused("a pod that does not exist", &missing, 3, &["blue/missing", "not in the cluster"]);
}

#[test]
fn failed_attachment_is_counted_in_metrics() {
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
    let attachments = |plugin: &str, outcome: &str| {
        agent.metric(&format!("weft_attachments_total{{plugin=\"{plugin}\",outcome=\"{outcome}\"}}"))
    };
    assert_eq!(until("the report", || attachments("macvlan", "failed")), 1.0);
    assert_eq!(
        (attachments("bridge", "attached"), attachments("bridge", "failed")),
        (Some(1.0), None),
        "{}",
        agent.page("/metrics")
    );
}

/// Rights that no component has.
const FORBIDDEN: [&str; 14] = [
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

/// Objects that the test of roles applies, below `deploy`.
const DEFINITIONS_AND_ROLES: [&str; 8] = [
    "crds/ipamclaims.k8s.cni.cncf.io.yaml",
    "policy/policyaddresssets.weft.dev.yaml",
    "ipam/rbac.yaml",
    "services/rbac.yaml",
    "neutron/rbac.yaml",
    "webhook/rbac.yaml",
    "components/policy/rbac.yaml",
    "components/policy/agent-rbac.yaml",
];
/// Accounts of all components.
const ACCOUNTS: [&str; 6] = [
    "weft-agent",
    "weft-controller-ipam",
    "weft-controller-services",
    "weft-controller-policy",
    "weft-neutron",
    "weft-admission",
];

// Requirements: M25, V13-8.2-1
#[test]
fn rbac_roles_grant_only_the_rights_of_each_component() {
    let Some(agent) = Agent::new(Machine::new(host!(), "node")) else { return };
    for file in DEFINITIONS_AND_ROLES {
        let path = testkit::workspace().join("deploy").join(file);
        agent.kube.kubectl(["apply", "-f", path.to_str().expect("a path")]);
    }
    let may = |account: &str, words: &str| {
        let user = format!("--as=system:serviceaccount:kube-system:{account}");
        let line = ["auth", "can-i", "-n", "kube-system", &user].into_iter().chain(words.split(' '));
        agent.kube.attempt(line, "").stdout.trim() == "yes"
    };
    for (account, words) in [
        ("weft-agent", "patch pods --subresource=status"),
        ("weft-agent", "patch ipamclaims.k8s.cni.cncf.io --subresource=status"),
        ("weft-controller-ipam", "update leases/weft-ipam"),
        ("weft-controller-services", "update leases/weft-services"),
        ("weft-controller-policy", "update leases/weft-policy"),
        ("weft-controller-policy", "patch policyaddresssets.weft.dev"),
        ("weft-agent", "watch policyaddresssets.weft.dev"),
        ("weft-neutron", "update leases/weft-neutron"),
        ("weft-neutron", "patch pods --subresource=status"),
        ("weft-admission", "patch validatingwebhookconfigurations/weft-admission"),
        ("weft-admission", "update secrets/weft-admission"),
    ] {
        until("the roles are effective", || may(account, words).then_some(()));
    }
    for account in ACCOUNTS {
        for words in FORBIDDEN {
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
        ("weft-controller-ipam", "patch ipamclaims.k8s.cni.cncf.io"),
        ("weft-controller-services", "patch pods"),
        ("weft-controller-services", "patch pods --subresource=status"),
        ("weft-controller-services", "update services"),
        ("weft-controller-services", "update leases/weft-ipam"),
        ("weft-controller-policy", "patch pods"),
        ("weft-controller-policy", "patch pods --subresource=status"),
        ("weft-controller-policy", "update leases/weft-ipam"),
        ("weft-agent", "patch policyaddresssets.weft.dev"),
        ("weft-agent", "get policyaddresssets.weft.dev"),
        ("weft-neutron", "patch pods"),
        ("weft-neutron", "update pods"),
        ("weft-neutron", "delete ipblocks.weft.dev"),
        ("weft-neutron", "update leases/weft-ipam"),
        ("weft-admission", "patch pods"),
        ("weft-admission", "patch pods --subresource=status"),
        ("weft-admission", "update secrets/other"),
        ("weft-admission", "patch validatingwebhookconfigurations/other"),
        ("weft-admission", "patch network-attachment-definitions.k8s.cni.cncf.io"),
    ] {
        assert!(!may(account, words), "{account}: {words}");
    }
}

/// Returns a kubeconfig with a token of the agent's pod on this node, as an attacker on that node has it.
fn stolen_token(kube: &rig::Kube, node: &str) -> String {
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

/// Creates a pod that is bound to a node, with labels and annotations; returns its uid.
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

/// Returns a merge patch of one annotation.
fn annotation(key: &str, value: Option<&str>) -> Value {
    json!({ "metadata": { "annotations": { key: value } } })
}

/// Starts a cluster with the RBAC and admission policy of an account, from a directory of `deploy`; `None`, and the test is
/// skipped, if the server has no such policies, or tokens contain no node.
fn with_policy(host: testkit::Host, account: &str, part: &str, policy: &str) -> Option<rig::Kube> {
    let kube = rig::Kube::prepare(Machine::new(host, "node").into(), rig::kube::Accounts::Absent)?;
    if kube.minor() < NODE_IN_TOKEN_MINOR {
        let why = format!("needs Kubernetes 1.{NODE_IN_TOKEN_MINOR} or newer: KUBEBUILDER_ASSETS");
        testkit::record_skip(&testkit::test_name(), &why);
        return None;
    }
    kube.launch();
    kube.wait();
    for account in ["weft-agent", account] {
        kube.service_account("kube-system", account);
    }
    kube.apply(&rig::kube::files(&[&format!("deploy/{part}/rbac.yaml")]));
    kube.apply(&kube.kustomize(&format!("components/{policy}")));
    // `kubectl patch` reads the object first.
    kube.kubectl("create clusterrole reader --verb get --resource pods/status".split(' '));
    let bind = "create clusterrolebinding reader --clusterrole reader --serviceaccount";
    let account = format!("kube-system:{account}");
    kube.kubectl(bind.split(' ').chain([account.as_str()]));
    Some(kube)
}

/// Attack: a token stolen from one node changes pods of all nodes.
#[test]
fn admission_policy_limits_agent_token_to_pods_of_its_node() {
    let Some(kube) = with_policy(host!(), "weft-agent", "base", "agent-policy") else { return };
    let token = stolen_token(&kube, "one");
    for (name, node) in [("near", "one"), ("far", "two")] {
        bound_pod(&kube, "kube-system", name, node);
    }
    let patch = |pod: &str, patch: &Value| {
        let words = "patch -n kube-system pod POD --subresource status --type merge -p".replace("POD", pod);
        let patch = patch.to_string();
        kube.attempt_as(&token, words.split(' ').chain([patch.as_str()]), "")
    };
    until("the policy is effective", || {
        let refused = patch("far", &annotation(STATUS, Some("[1]")));
        refused.stderr.contains("only of pods on its own node").then_some(())
    });
    for value in [Some("[]"), Some("[{}]"), None] {
        patch("near", &annotation(STATUS, value)).success();
    }
    for (change, word) in [
        (annotation(NETWORKS, Some("net-a")), "only the annotation"),
        (annotation("a", Some("c")), "only the annotation"),
        (annotation("a", None), "only the annotation"),
        (json!({ "metadata": { "labels": { "app": "web" } } }), "only an annotation of a pod"),
        (json!({ "metadata": { "finalizers": ["example.org/never"] } }), "only an annotation of a pod"),
        (json!({ "status": { "podIP": "10.0.0.1" } }), "only an annotation of a pod"),
    ] {
        let refused = patch("near", &change);
        assert!(refused.code != Some(0) && refused.stderr.contains(word), "{change}: {}", refused.stderr);
    }
    // The policy applies to the agent alone.
    kube.kubectl(["annotate", "-n", "kube-system", "pod", "near", "example.org/own=1"]);
}

/// Attack: a stolen token of the controller of Neutron ports changes pods.
#[test]
fn admission_policy_limits_neutron_token_to_its_annotation() {
    let Some(kube) = with_policy(host!(), "weft-neutron", "neutron", "neutron-policy") else { return };
    let token = kube.service_account("kube-system", "weft-neutron");
    bound_pod(&kube, "kube-system", "web", "one");
    let patch_by = |token: Option<&str>, words: &str, patch: &Value| {
        let patch = patch.to_string();
        let line = words.split(' ').chain(["--type", "merge", "-p", patch.as_str()]);
        match token {
            Some(token) => kube.attempt_as(token, line, ""),
            None => kube.attempt(line, ""),
        }
    };
    let patch =
        |patch: &Value| patch_by(Some(&token), "patch -n kube-system pod web --subresource status", patch);
    let finalizers = |names: &[&str]| json!({ "metadata": { "finalizers": names } });
    let (kuryr, other) = ("kuryr.openstack.org/pod-finalizer", "example.org/other");
    patch_by(None, "patch -n kube-system pod web", &finalizers(&[kuryr, other])).success();
    until("the policy is effective", || {
        patch(&annotation("a", Some("c"))).stderr.contains("only the annotation").then_some(())
    });
    for value in [Some("{}"), Some("[]"), None] {
        patch(&annotation("openstack.org/kuryr-vif", value)).success();
    }
    for (change, word) in [
        (annotation(NETWORKS, Some("net-a")), "only the annotation"),
        (annotation("a", None), "only the annotation"),
        (finalizers(&[kuryr]), "only the finalizer"),
        (finalizers(&[kuryr, other, "example.org/never"]), "only the finalizer"),
        (json!({ "metadata": { "labels": { "app": "web" } } }), "only an annotation and a finalizer"),
        (json!({ "status": { "podIP": "10.0.0.1" } }), "only an annotation and a finalizer"),
    ] {
        let refused = patch(&change);
        assert!(refused.code != Some(0) && refused.stderr.contains(word), "{change}: {}", refused.stderr);
    }
    patch(&finalizers(&[other])).success();
    // Another user cannot write the annotation.
    let words = "annotate -n kube-system pod web openstack.org/kuryr-vif=1";
    let refused = kube.attempt(words.split(' '), "");
    assert!(refused.stderr.contains("only the controller of Neutron ports"), "{}", refused.stderr);
    patch_by(None, "patch -n kube-system pod web", &finalizers(&[])).success();
}
