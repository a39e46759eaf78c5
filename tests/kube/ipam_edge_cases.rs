//! Addresses in a cluster where something is not as it should be: blocks leased ahead, ledgers in another directory, twins.
//!
//! ```text
//!   kube-apiserver ◄── agents ◄── weft-ipam ADD/DEL ◄── the test, in the place of the runtimes
//!                  ◄── weft controller --ipam
//! ```

use std::collections::BTreeSet;

use rig::addresses::{assert_right, control, given, last_byte, network, pool, rounds, weft};
use rig::{assert_refused, nodes};
use serde_json::{Value, json};

#[test]
fn an_address_of_a_block_that_was_leased_ahead_is_had_at_once_by_who_names_it() {
    let nodes = nodes!(1);
    let sandbox = nodes.machine.pod("a");
    let _ = pool(&nodes, "10.18.0.0/25", 3);
    // Whole blocks, none with an address that is no host's.
    let range = json!({ "range": "10.18.0.8-10.18.0.119/25", "quarantine": 0 });
    let conf = network(0, &range);
    let add = |container: &str| given(nodes.attachment(&sandbox, container).add(&conf))[0].clone();
    // With the seventh fewer than two are left, a quarter, in the block, and the agent leases another, which no ledger has yet.
    let mut seen: BTreeSet<String> = (0..7).map(|at| add(&format!("c{at}"))).collect();
    let ahead = nodes.machine.wait("agent-0", "leases a block ahead", || {
        let holds = |block: &Value| {
            let first = last_byte(block["spec"]["range"].as_str().unwrap().split('/').next().unwrap());
            seen.iter().any(|ip| (first..first + 8).contains(&last_byte(ip)))
        };
        nodes.blocks().into_iter().find(|block| !holds(block))
    });
    let first = ahead["spec"]["range"].as_str().unwrap().split('/').next().unwrap().to_owned();
    let named = format!("10.18.0.{}", last_byte(&first) + 5);
    let mut asking = conf.clone();
    asking["args"] = json!({ "cni": { "ips": [named] } });
    assert_eq!(given(nodes.attachment(&sandbox, "r1").add(&asking)), [named.as_str()], "at the first try");
    seen.insert(named);
    // The rest of both blocks is given as ever, and nothing is left of the question.
    for at in 7..15 {
        let ip = add(&format!("c{at}"));
        assert!(seen.insert(ip.clone()), "{ip} twice");
    }
    assert_eq!(seen.len(), 16);
    assert!(nodes.blocks().iter().all(|block| !block["spec"]["range"].as_str().unwrap().ends_with("/32")));
    assert_right(&nodes, &[]);
}

#[test]
fn a_block_that_was_leased_ahead_and_is_another_nodes_by_now_is_not_given() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    let _ = pool(&nodes, "10.23.0.0/27", 3);
    // Two whole blocks.
    let conf = |node| network(node, &json!({ "range": "10.23.0.8-10.23.0.23/27", "quarantine": 0 }));
    let add = |node: usize, at: usize| nodes.attachment(&sandbox, &format!("n{node}-{at}")).add(&conf(node));
    let mut all: BTreeSet<String> = (0..7).map(|at| given(add(0, at))[0].clone()).collect();
    let two = || Some(nodes.blocks_of(0)).filter(|blocks| blocks.len() == 2);
    let blocks = nodes.machine.wait("agent-0", "leases a block ahead", two);
    let is_ahead = |block: &&Value| {
        let first = last_byte(block["spec"]["range"].as_str().unwrap().split('/').next().unwrap());
        !all.iter().any(|ip| (first..first + 8).contains(&last_byte(ip)))
    };
    let ahead = blocks.iter().find(is_ahead).unwrap()["metadata"]["name"].as_str().unwrap().to_owned();
    nodes.lose(&ahead);
    for at in 0..8 {
        all.insert(given(add(1, at))[0].clone());
    }
    all.insert(given(add(0, 7))[0].clone());
    assert_eq!(all.len(), 16);
    assert_refused("all is given", &add(0, 8), 11, &["pool 10.23.0.0-27", "no address is free"]);
    assert_right(&nodes, &[]);
}

#[test]
fn a_claim_that_names_an_address_of_its_nodes_own_block_has_it_at_the_first_try() {
    let nodes = nodes!(1);
    let sandbox = nodes.machine.pod("a");
    nodes.kube.kubectl(["create", "namespace", "blue"]);
    let conf = network(0, &json!({ "range": "10.22.0.0/22", "quarantine": 0 }));
    let first = given(nodes.attachment(&sandbox, "c0").add(&conf))[0].clone();
    let (around, _) = first.rsplit_once('.').unwrap();
    let named = format!("{around}.{}", last_byte(&first) ^ 64);
    // Two machines that were restored: one whose address is free, and one whose address a pod has meanwhile.
    let read = |name: &str| nodes.kube.json(["ipamclaims.k8s.cni.cncf.io", "-n", "blue", name]);
    let make = |name: &str| {
        let spec = json!({ "network": "net", "interface": "eth0" });
        let claim = json!({ "apiVersion": "k8s.cni.cncf.io/v1alpha1", "kind": "IPAMClaim",
            "metadata": { "name": name, "namespace": "blue" }, "spec": spec });
        nodes.kube.apply(&claim.to_string());
        read(name)
    };
    let restore = |name: &str, ip: &str| {
        let mut claim = make(name);
        claim["status"] = json!({ "ips": [format!("{ip}/22")] });
        let path = format!("/apis/k8s.cni.cncf.io/v1alpha1/namespaces/blue/ipamclaims/{name}/status");
        nodes.kube.attempt(["replace", "--raw", &path, "-f", "-"], &claim.to_string()).success();
    };
    restore("free.net", &named);
    restore("taken.net", &first);
    let call = |verb: &str, container: &str, claim: &str| {
        let mut conf = conf.clone();
        conf["args"] = json!({ "cni": { "ipam-claim-reference": claim } });
        nodes.attachment(&sandbox, container).call(verb, conf.to_string())
    };
    assert_eq!(given(call("ADD", "p1", "free.net")), [named.as_str()], "at the first try");
    let words = [format!("pod blue/c0, eth0 of net, holds {first}")];
    assert_refused("taken", &call("ADD", "p2", "taken.net"), 11, &words.each_ref().map(String::as_str));
    // Nobody else is given it out of the block, neither while it is held nor later.
    let others = |from: u8| {
        let add = |at: u8| given(nodes.attachment(&sandbox, &format!("d{at}")).add(&conf))[0].clone();
        (from..from + 100).map(add).collect::<BTreeSet<String>>()
    };
    assert!(!others(0).contains(&named));
    call("DEL", "p1", "free.net").success();
    assert!(!others(100).contains(&named));
    assert_eq!(given(call("ADD", "p3", "free.net")), [named.as_str()]);
    assert_right(&nodes, &[]);
    // A pod that names an address besides: its claim has that one, or none.
    let asking = |container: &str, claim: &str, ip: &str| {
        let mut conf = conf.clone();
        conf["args"] = json!({ "cni": { "ipam-claim-reference": claim, "ips": [ip] } });
        nodes.attachment(&sandbox, container).add(&conf)
    };
    let _ = make("asked.net");
    let words = ["ipamclaim blue/free.net", &named, "the pod asks for 10.22.3.250"];
    assert_refused("another", &asking("p4", "free.net", "10.22.3.250"), 11, &words);
    assert_eq!(given(asking("p5", "asked.net", "10.22.3.250")), ["10.22.3.250"]);
    assert_eq!(read("asked.net")["status"]["ips"], json!(["10.22.3.250/22"]));
}

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
    let words = ["elsewhere", "on node worker-0 is in /var/lib/weft/elsewhere (ipam.dataDir)", "--ledgers"];
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
        "ipam.dataDir /var/lib/weft/elsewhere is not its agent's --ledgers /var/lib/weft/ipam-0",
    ];
    assert_refused("full", &refused.expect("three blocks and no more"), 11, &words);
    // The usual one has what it has.
    for at in 0..4 {
        nodes.attachment(&sandbox, &format!("u{at}")).check(&usual).success();
        nodes.attachment(&sandbox, &format!("o{at}")).check(&other).success();
    }
}

#[test]
fn an_address_is_kept_though_every_block_is_leased_for_many_who_ask_at_once() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    nodes.kube.kubectl(["create", "namespace", "blue"]);
    let _ = pool(&nodes, "10.24.0.0/26", 4);
    // Four blocks of sixteen; each node takes two, of which the second is leased ahead and then used.
    let conf = |node, sticky: bool| {
        network(node, &json!({ "range": "10.24.0.0/26", "quarantine": 0, "sticky": sticky }))
    };
    let mut held = BTreeSet::new();
    for node in 0..2 {
        for at in 0..17 {
            let call = nodes.attachment(&sandbox, &format!("n{node}-{at}"));
            held.insert(given(call.add(&conf(node, false)))[0].clone());
        }
    }
    assert_eq!(held.len(), 34);
    nodes.machine.wait("agents", "all blocks are leased", || (nodes.blocks().len() == 4).then_some(()));
    let sticky = |node: usize, at: usize, try_: &str, verb: &str| {
        let mut attachment = nodes.attachment(&sandbox, &format!("s{at}{try_}"));
        attachment.args =
            format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=blue;K8S_POD_NAME=db-{at};K8S_POD_UID=u{at}{try_}");
        attachment.call(verb, conf(node, true).to_string())
    };
    let kept: Vec<String> = std::thread::scope(|scope| {
        let sticky = &sticky;
        let all: Vec<_> = (0..8).map(|at| scope.spawn(move || sticky(0, at, "a", "ADD"))).collect();
        all.into_iter().map(|call| given(call.join().unwrap())[0].clone()).collect()
    });
    held.extend(kept.iter().cloned());
    assert_eq!(held.len(), 42, "{kept:?}");
    // The next pod of that name has it, on the other node.
    for (at, ip) in kept.iter().enumerate() {
        sticky(0, at, "a", "DEL").success();
        assert_eq!(given(sticky(1, at, "b", "ADD")), [ip.as_str()]);
    }
    // So has one that names an address of its node's block, and is to keep it.
    let free = (1..63).map(|host| format!("10.24.0.{host}")).find(|ip| {
        let block = (last_byte(ip) / 16) * 16;
        !held.contains(ip) && held.contains(&format!("10.24.0.{}", block + 1 + u8::from(block == 0)))
    });
    let free = free.unwrap();
    let mut asking = conf(0, true);
    asking["args"] = json!({ "cni": { "ips": [free] } });
    let named = |uid: &str, conf: &Value| {
        let mut attachment = nodes.attachment(&sandbox, uid);
        attachment.args =
            format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=blue;K8S_POD_NAME=named;K8S_POD_UID={uid}");
        (given(attachment.add(conf))[0].clone(), attachment)
    };
    let (first, attachment) = named("v1", &asking);
    assert_eq!(first, free);
    attachment.del(&asking).success();
    assert_eq!(named("v2", &conf(1, true)).0, free, "it was kept");
    assert_right(&nodes, &[]);
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
        let own = ["--data-dir", "/var/lib/weft/ipam-0"];
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
    for (address, outcome) in
        [("10.22.0.5", "whereabouts does not say whose it is"), ("10.22.0.6", "its pod is gone: not kept")]
    {
        assert!(
            told.stdout.lines().any(|line| line.starts_with(address) && line.ends_with(outcome)),
            "{told:?}"
        );
    }
}

#[test]
fn what_a_claim_kept_is_kept_until_the_last_of_the_pods_that_share_it_has_gone() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    nodes.kube.kubectl(["create", "namespace", "blue"]);
    let claim = json!({ "apiVersion": "k8s.cni.cncf.io/v1alpha1", "kind": "IPAMClaim",
        "metadata": { "name": "vm.net", "namespace": "blue" }, "spec": { "network": "net", "interface": "eth0" } });
    nodes.kube.apply(&claim.to_string());
    let call = |verb: &str, node: usize, container: &str| {
        let mut conf = network(node, &json!({ "range": "10.23.0.0/24", "quarantine": 0 }));
        conf["args"] = json!({ "cni": { "ipam-claim-reference": "vm.net" } });
        nodes.attachment(&sandbox, container).call(verb, conf.to_string())
    };
    let kept = given(call("ADD", 0, "stays"))[0].clone();
    let status = json!([{ "name": "blue/net", "interface": "eth0", "ips": [kept] }]).to_string();
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "stays", "namespace": "blue",
        "annotations": { "k8s.v1.cni.cncf.io/network-status": status } },
        "spec": { "nodeName": "worker-0", "containers": [{ "name": "c", "image": "none" }] } });
    nodes.kube.attempt(["create", "-f", "-"], &pod.to_string()).success();
    // It would move, and does not: the address was the other one's last.
    assert_eq!(given(call("ADD", 1, "moved")), std::slice::from_ref(&kept));
    nodes.stop(0, "KILL");
    call("DEL", 1, "moved").success();
    nodes.kube.kubectl(["delete", "ipamclaim", "-n", "blue", "vm.net"]);
    control(&nodes, &[("keeper", 9604)]);
    nodes.machine.wait("keeper", "has looked", || (rounds(&nodes, 9604) > 3).then_some(()));
    let single = || nodes.blocks().into_iter().find(|block| block["spec"]["range"] == format!("{kept}/32"));
    assert_eq!(single().expect("it")["spec"]["claim"], "claim/blue/vm.net");
    nodes.kube.kubectl(["delete", "pod", "-n", "blue", "stays", "--force", "--grace-period=0"]);
    let is_over =
        || single().is_none_or(|block| block["spec"]["claim"].as_str().unwrap_or_default().is_empty());
    rig::machine::until("it to be kept for nobody", || is_over().then_some(()));
}
