//! Findings about addresses: pods with the same address, other data directories, objects that were edited manually.
//!
//! ```text
//!   kube-apiserver ◄── agents ◄── weft-ipam ADD/DEL ◄── the test, as container runtime
//!                  ◄── weft controller --ipam
//! ```

use std::collections::BTreeSet;

use rig::addresses::{
    allocated, assert_ipam_consistent, network, pool, reconciliations, start_controllers, weft,
};
use rig::machine::until;
use rig::{assert_refused, nodes};
use serde_json::{Value, json};

#[test]
fn duplicate_address_of_two_pods_is_an_event() {
    let nodes = nodes!(1);
    let sandbox = nodes.machine.pod("a");
    nodes.kube.kubectl(["create", "namespace", "blue"]);
    let conf = network(0, &json!({ "range": "10.19.0.0/24", "quarantine": 0 }));
    let ips: Vec<String> = (0..2)
        .map(|at| allocated(nodes.attachment(&sandbox, &format!("c{at}")).add(&conf))[0].clone())
        .collect();
    let make = |name: &str, ip: &str| {
        let status = json!([{ "name": "blue/net", "interface": "net1", "ips": [ip] }]).to_string();
        let annotations = json!({ "k8s.v1.cni.cncf.io/network-status": status });
        let pod = json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": "blue", "annotations": annotations },
            "spec": { "nodeName": "worker-0", "containers": [{ "name": "c", "image": "none" }] } });
        nodes.kube.attempt(["create", "-f", "-"], &pod.to_string()).success();
        nodes.kube.json(["pod", "-n", "blue", name])["metadata"]["uid"].clone()
    };
    make("one", &ips[0]);
    make("other", &ips[1]);
    start_controllers(&nodes, &[("controller", 9603)]);
    let events = || {
        let all = nodes.kube.json(["events", "-A"])["items"].as_array().cloned().unwrap_or_default();
        all.into_iter().filter(|event| event["reason"] == "AddressDuplicate").collect::<Vec<Value>>()
    };
    nodes.machine.wait("controller", "has reconciled", || (reconciliations(&nodes, 9603) > 1).then_some(()));
    assert_eq!(events(), Vec::<Value>::new(), "each pod has its own address");
    let uid = make("twin", &ips[0]);
    let event = nodes.machine.wait("controller", "reports the doubled address", || events().pop());
    let about = &event["involvedObject"];
    assert_eq!(
        (&about["kind"], &about["name"], &about["uid"]),
        (&json!("Pod"), &json!("twin"), &uid),
        "{event}"
    );
    assert_eq!(
        (&event["metadata"]["namespace"], &event["type"]),
        (&json!("blue"), &json!("Warning")),
        "{event}"
    );
    let why = format!("{} of blue/net is also an address of blue/one", ips[0]);
    assert!(event["message"].as_str().unwrap().contains(&why), "{event}");
    // The Event is sent once.
    let before = reconciliations(&nodes, 9603);
    nodes.machine.wait("controller", "has reconciled again", || {
        (reconciliations(&nodes, 9603) > before + 2).then_some(())
    });
    assert_eq!(events().len(), 1);
    let found = weft(&nodes, &["ipam", "check"]);
    assert!(found.code == Some(1) && found.stdout.contains("duplicate"), "{found:?}");
    // After the deletion of the pod, there is no finding.
    nodes.kube.kubectl(["delete", "pod", "-n", "blue", "twin", "--force", "--grace-period=0"]);
    assert_ipam_consistent(&nodes, &[]);
}

#[test]
fn address_store_in_another_directory_is_named_as_the_cause() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    let _ = pool(&nodes, "10.20.0.0/25", 3);
    // The range contains three blocks.
    let range = json!({ "range": "10.20.0.8-10.20.0.31/25", "quarantine": 0 });
    let usual = network(0, &range);
    let mut other = usual.clone();
    other["ipam"]["dataDir"] = json!("/var/lib/weft/elsewhere");
    let add = |container: &str, conf: &Value| nodes.attachment(&sandbox, container).add(conf);
    let mut seen = BTreeSet::new();
    for at in 0..4 {
        for (name, conf) in [("u", &usual), ("o", &other)] {
            let ip = allocated(add(&format!("{name}{at}"), conf))[0].clone();
            assert!(seen.insert(ip.clone()), "{ip} twice");
        }
    }
    let found = weft(&nodes, &["ipam", "check"]);
    let words =
        ["elsewhere", "on node worker-0 is in /var/lib/weft/elsewhere (ipam.dataDir)", "--address-stores"];
    assert!(found.code == Some(1) && words.iter().all(|word| found.stdout.contains(word)), "{found:?}");
    // The other node cannot get the address, and the refusal gives the reason.
    let elsewhere = allocated(add("o0", &other))[0].clone();
    let mut requesting = network(1, &range);
    requesting["args"] = json!({ "cni": { "ips": [elsewhere] } });
    let words = [elsewhere.as_str(), "leased by node worker-0", "/var/lib/weft/elsewhere (ipam.dataDir)"];
    // A busy node answers later; then the request is repeated.
    let refused = nodes.machine.wait("agent-0", "names the other directory", || {
        let ended = add("r1", &requesting);
        ended.stdout.contains("ipam.dataDir").then_some(ended)
    });
    assert_refused("elsewhere", &refused, 11, &words);
    // When the pool is full, the refusal gives the cause: addresses in the usual directory are not available to this network.
    let refused = (4..30).find_map(|at| {
        let ended = add(&format!("o{at}"), &other);
        if ended.code != Some(0) {
            return Some(ended);
        }
        assert!(seen.insert(allocated(ended)[0].clone()), "twice");
        None
    });
    let words = [
        "pool 10.20.0.0-25",
        "no address is free",
        "ipam.dataDir /var/lib/weft/elsewhere is not the agent's --address-stores /var/lib/weft/ipam-0",
    ];
    assert_refused("full", &refused.expect("three blocks and no more"), 11, &words);
    // Both directories keep their addresses.
    for at in 0..4 {
        nodes.attachment(&sandbox, &format!("u{at}")).check(&usual).success();
        nodes.attachment(&sandbox, &format!("o{at}")).check(&other).success();
    }
}

#[test]
fn small_window_is_warned_of_and_usable_addresses_are_counted() {
    let nodes = nodes!(3);
    let sandbox = nodes.machine.pod("a");
    nodes.kube.kubectl(["create", "namespace", "blue"]);
    let ipam = json!({ "range": "10.25.0.0/29", "gateway": "10.25.0.1", "quarantine": 0 });
    let mut config = network(0, &ipam);
    config["name"] = json!("small");
    let definition = json!({ "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "small", "namespace": "blue" }, "spec": { "config": config.to_string() } });
    nodes.kube.apply(&definition.to_string());
    let warnings = || {
        let found = weft(&nodes, &["ipam", "-o", "json", "check"]).json();
        let found = found.as_array().cloned().expect("a list");
        let is_of_definition =
            |finding: &Value| finding["object"] == "network-attachment-definition blue/small";
        let found = found.into_iter().filter(is_of_definition);
        found.map(|finding| format!("{}: {}", finding["what"], finding["why"])).collect::<Vec<_>>().join(" ")
    };
    assert!(weft(&nodes, &["ipam", "check"]).code == Some(0), "a warning is no failure");
    let few = warnings();
    assert!(few.starts_with("\"few\"") && few.contains("has 5 addresses for 3 nodes"), "{few}");
    // The linter asks the cluster for the number of nodes.
    nodes.machine.write("/run/small.json", definition.to_string());
    let linted = weft(&nodes, &["lint", "-o", "json", "/run/small.json"]).success().json();
    let rules = linted["findings"].as_array().expect("a list").clone();
    let found = rules.iter().find(|finding| finding["rule"] == "few-addresses");
    let reason = found.map(|finding| finding["reason"].to_string()).unwrap_or_default();
    assert!(reason.contains("has 5 addresses for 3 nodes"), "{linted}");
    for at in 0..5 {
        let _ = allocated(nodes.attachment(&sandbox, &format!("c{at}")).add(&network(at % 3, &ipam)));
    }
    let full = warnings();
    assert!(full.starts_with("\"nearly-full\"") && full.contains("5 of the 5 addresses"), "{full}");
    let shown = weft(&nodes, &["ipam", "-o", "json", "show"]).success().json();
    // The pool has the gateway of this network as a usable address: another network may have another gateway.
    let counts = ["usableAddresses", "freeAddresses"].map(|name| shown[0][name].clone());
    assert_eq!(counts, ["6", "1"], "{shown}");
    start_controllers(&nodes, &[("one", 9603)]);
    let line = |name: &str, number: u64| format!("weft_ipam_pool_{name}{{pool=\"10.25.0.0-29\"}} {number}");
    let expected = [line("size", 6), line("used", 5), line("free", 1), line("quarantined", 0)];
    until("the metrics of the pool", || {
        let page = nodes.machine.attempt(["curl", "-s", "http://127.0.0.1:9603/metrics"]).stdout;
        expected.iter().all(|line| page.lines().any(|found| found == line)).then_some(())
    });
    // Without the API server the stores of a node say what they hold.
    let local = ["ipam", "-o", "json", "show", "--local", "--address-stores", "/var/lib/weft/ipam-0"];
    let stores = weft(&nodes, &local).success().json();
    assert_eq!(
        (&stores[0]["kind"], &stores[0]["held"], &stores[0]["usable"]),
        (&json!("cluster"), &json!(2), &json!("2")),
        "{stores}"
    );
}

#[test]
fn control_characters_in_objects_are_escaped_in_output() {
    let nodes = nodes!(1);
    let sandbox = nodes.machine.pod("a");
    let _ = pool(&nodes, "10.21.0.0/25", 3);
    let mut conf = network(0, &json!({ "range": "10.21.0.0/25" }));
    conf["ipam"]["dataDir"] = json!("/var/lib/weft/elsewhere");
    let ip = allocated(nodes.attachment(&sandbox, "c").add(&conf))[0].clone();
    let control = "\u{1b}[31m\u{9b}2J\u{7f}\u{202e}";
    let spec = json!({ "pool": "10.21.0.0-25", "range": "10.21.0.120/32", "node": control, "owner": control, "claim": control,
        "addressStore": "../elsewhere/10.21.0.0-25" });
    nodes.kube.apply(
        &json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "IPBlock", "metadata": { "name": "10.21.0.0-25.10.21.0.120-32" },
            "spec": spec })
        .to_string(),
    );
    let is_control = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
    for words in [&["show", "--blocks"] as &[&str], &["who", "10.21.0.120"], &["who", &ip], &["check"]] {
        let all = ["ipam"].into_iter().chain(words.iter().copied());
        let own = ["--address-stores", "/var/lib/weft/ipam-0"];
        let for_people = weft(&nodes, &all.clone().chain(own).collect::<Vec<_>>());
        let for_programs = weft(&nodes, &all.chain(own).chain(["-o", "json"]).collect::<Vec<_>>());
        assert_eq!(for_people.code, for_programs.code, "{words:?}");
        for shown in [&for_people, &for_programs] {
            assert!(!shown.stdout.contains(is_control) && !shown.stdout.contains("container c"), "{shown:?}");
        }
        assert!(!for_people.stdout.contains("ON THIS NODE"), "{}", for_people.stdout);
        let document: Value = serde_json::from_str(&for_programs.stdout).expect("JSON");
        let node = document[0]["node"].as_str().unwrap_or(control);
        assert!(node == control || words[1] == ip, "{document}");
    }
}

#[test]
fn whereabouts_address_without_pod_is_reported() {
    let nodes = nodes!(1);
    let version = json!({ "name": "v1alpha1", "served": true, "storage": true,
        "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } } });
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "ippools.whereabouts.cni.cncf.io" },
        "spec": { "group": "whereabouts.cni.cncf.io", "scope": "Namespaced", "versions": [version],
            "names": { "plural": "ippools", "singular": "ippool", "kind": "IPPool" } },
    });
    nodes.kube.apply(&definition.to_string());
    nodes.kube.wait_until_served();
    let given = json!({ "5": { "id": "c" }, "6": { "id": "d", "podref": "default/gone" } });
    let object = json!({ "apiVersion": "whereabouts.cni.cncf.io/v1alpha1", "kind": "IPPool",
        "metadata": { "name": "10.22.0.0-24", "namespace": "kube-system" },
        "spec": { "range": "10.22.0.0/24", "allocations": given } });
    nodes.kube.apply(&object.to_string());
    let imported = weft(&nodes, &["import", "whereabouts", "--apply"]);
    assert_eq!(imported.code, Some(1), "{imported:?}");
    for (address, outcome) in [
        ("10.22.0.5", "whereabouts did not record its pod"),
        ("10.22.0.6", "not kept: its pod no longer exists"),
    ] {
        assert!(
            imported.stdout.lines().any(|line| line.starts_with(address) && line.ends_with(outcome)),
            "{imported:?}"
        );
    }
}
