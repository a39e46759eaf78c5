//! Findings about addresses in a cluster: pods with the same address, other data directories, objects that were edited manually.
//!
//! ```text
//!   kube-apiserver ◄── agents ◄── weft-ipam ADD/DEL ◄── the test, in the place of the runtimes
//!                  ◄── weft controller --ipam
//! ```

use std::collections::BTreeSet;

use rig::addresses::{assert_right, control, given, network, pool, rounds, weft};
use rig::{assert_refused, nodes};
use serde_json::{Value, json};

#[test]
fn two_pods_that_show_one_address_are_told_in_an_event_about_one_of_them() {
    let nodes = nodes!(1);
    let sandbox = nodes.machine.pod("a");
    nodes.kube.kubectl(["create", "namespace", "blue"]);
    let conf = network(0, &json!({ "range": "10.19.0.0/24", "quarantine": 0 }));
    let ips: Vec<String> =
        (0..2).map(|at| given(nodes.attachment(&sandbox, &format!("c{at}")).add(&conf))[0].clone()).collect();
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
    control(&nodes, &[("keeper", 9603)]);
    let events = || {
        let all = nodes.kube.json(["events", "-A"])["items"].as_array().cloned().unwrap_or_default();
        all.into_iter().filter(|event| event["reason"] == "AddressDoubled").collect::<Vec<Value>>()
    };
    nodes.machine.wait("keeper", "has looked", || (rounds(&nodes, 9603) > 1).then_some(()));
    assert_eq!(events(), Vec::<Value>::new(), "each has its own");
    let uid = make("twin", &ips[0]);
    let event = nodes.machine.wait("keeper", "tells that an address is doubled", || events().pop());
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
    let why = format!("{} of blue/net is blue/one's, too", ips[0]);
    assert!(event["message"].as_str().unwrap().contains(&why), "{event}");
    // It is told once.
    let before = rounds(&nodes, 9603);
    nodes.machine.wait("keeper", "has looked again", || (rounds(&nodes, 9603) > before + 2).then_some(()));
    assert_eq!(events().len(), 1);
    let found = weft(&nodes, &["ipam", "check"]);
    assert!(found.code == Some(1) && found.stdout.contains("doubled"), "{found:?}");
    // The one that went wrong is deleted: nothing is wrong any more.
    nodes.kube.kubectl(["delete", "pod", "-n", "blue", "twin", "--force", "--grace-period=0"]);
    assert_right(&nodes, &[]);
}

#[test]
fn a_ledger_in_another_directory_than_the_agents_shares_nothing_and_is_named_as_the_cause() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    let _ = pool(&nodes, "10.20.0.0/25", 3);
    // Three blocks in all.
    let range = json!({ "range": "10.20.0.8-10.20.0.31/25", "quarantine": 0 });
    let usual = network(0, &range);
    let mut other = usual.clone();
    other["ipam"]["dataDir"] = json!("/var/lib/weft/elsewhere");
    let add = |container: &str, conf: &Value| nodes.attachment(&sandbox, container).add(conf);
    let mut seen = BTreeSet::new();
    for at in 0..4 {
        for (name, conf) in [("u", &usual), ("o", &other)] {
            let ip = given(add(&format!("{name}{at}"), conf))[0].clone();
            assert!(seen.insert(ip.clone()), "{ip} twice");
        }
    }
    let found = weft(&nodes, &["ipam", "check"]);
    let words =
        ["elsewhere", "on node worker-0 is in /var/lib/weft/elsewhere (ipam.dataDir)", "--address-stores"];
    assert!(found.code == Some(1) && words.iter().all(|word| found.stdout.contains(word)), "{found:?}");
    // By its name it is not had on another node, and why is said at once.
    let theirs = given(add("o0", &other))[0].clone();
    let mut asking = network(1, &range);
    asking["args"] = json!({ "cni": { "ips": [theirs] } });
    let words = [theirs.as_str(), "leased by node worker-0", "/var/lib/weft/elsewhere (ipam.dataDir)"];
    // A node that is busy answers later; then it is asked again.
    let refused = nodes.machine.wait("agent-0", "says where it is", || {
        let ended = add("r1", &asking);
        ended.stdout.contains("ipam.dataDir").then_some(ended)
    });
    assert_refused("elsewhere", &refused, 11, &words);
    // When nothing is left the cause is named: what is free in the usual directory is not this network's.
    let refused = (4..30).find_map(|at| {
        let ended = add(&format!("o{at}"), &other);
        if ended.code != Some(0) {
            return Some(ended);
        }
        assert!(seen.insert(given(ended)[0].clone()), "twice");
        None
    });
    let words = [
        "pool 10.20.0.0-25",
        "no address is free",
        "ipam.dataDir /var/lib/weft/elsewhere is not its agent's --address-stores /var/lib/weft/ipam-0",
    ];
    assert_refused("full", &refused.expect("three blocks and no more"), 11, &words);
    // The usual one has what it has.
    for at in 0..4 {
        nodes.attachment(&sandbox, &format!("u{at}")).check(&usual).success();
        nodes.attachment(&sandbox, &format!("o{at}")).check(&other).success();
    }
}

#[test]
fn what_a_hand_wrote_into_an_object_is_shown_plainly_and_leads_to_no_other_directory() {
    let nodes = nodes!(1);
    let sandbox = nodes.machine.pod("a");
    let _ = pool(&nodes, "10.21.0.0/25", 3);
    let mut conf = network(0, &json!({ "range": "10.21.0.0/25" }));
    conf["ipam"]["dataDir"] = json!("/var/lib/weft/elsewhere");
    let ip = given(nodes.attachment(&sandbox, "c").add(&conf))[0].clone();
    let obeyed = "\u{1b}[31m\u{9b}2J\u{7f}\u{202e}";
    let spec = json!({ "pool": "10.21.0.0-25", "range": "10.21.0.120/32", "node": obeyed, "owner": obeyed, "claim": obeyed,
        "addressStore": "../elsewhere/10.21.0.0-25" });
    nodes.kube.apply(
        &json!({ "apiVersion": "weft.dev/v1alpha1", "kind": "IPBlock", "metadata": { "name": "10.21.0.0-25.10.21.0.120-32" },
            "spec": spec })
        .to_string(),
    );
    let is_obeyed = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
    for words in [&["show", "--blocks"] as &[&str], &["who", "10.21.0.120"], &["who", &ip], &["check"]] {
        let all = ["ipam"].into_iter().chain(words.iter().copied());
        let own = ["--address-stores", "/var/lib/weft/ipam-0"];
        let for_people = weft(&nodes, &all.clone().chain(own).collect::<Vec<_>>());
        let for_programs = weft(&nodes, &all.chain(own).chain(["-o", "json"]).collect::<Vec<_>>());
        assert_eq!(for_people.code, for_programs.code, "{words:?}");
        for shown in [&for_people, &for_programs] {
            assert!(!shown.stdout.contains(is_obeyed) && !shown.stdout.contains("container c"), "{shown:?}");
        }
        assert!(!for_people.stdout.contains("ON THIS NODE"), "{}", for_people.stdout);
        let document: Value = serde_json::from_str(&for_programs.stdout).expect("JSON");
        let node = document[0]["node"].as_str().unwrap_or(obeyed);
        assert!(node == obeyed || words[1] == ip, "{document}");
    }
}

#[test]
fn an_address_of_which_whereabouts_names_no_pod_is_told_and_not_taken_for_one_that_nobody_has() {
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
    let told = weft(&nodes, &["import", "whereabouts", "--apply"]);
    assert_eq!(told.code, Some(1), "{told:?}");
    for (address, outcome) in [
        ("10.22.0.5", "whereabouts did not record its pod"),
        ("10.22.0.6", "not kept: its pod no longer exists"),
    ] {
        assert!(
            told.stdout.lines().any(|line| line.starts_with(address) && line.ends_with(outcome)),
            "{told:?}"
        );
    }
}
