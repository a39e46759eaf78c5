//! Claims of cluster-wide IPAM: addresses that a claim requests by name, keeps for its pods, and shares between them.
//!
//! ```text
//!   kube-apiserver ◄── agents ◄── weft-ipam ADD/DEL ◄── the test, in the place of the runtimes
//!                  ◄── weft controller --ipam
//! ```

use std::collections::BTreeSet;

use rig::addresses::{assert_right, control, given, last_byte, network, pool, rounds};
use rig::{assert_refused, nodes};
use serde_json::{Value, json};

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
    let words = ["ipamclaim blue/free.net", &named, "the pod requests 10.22.3.250"];
    assert_refused("another", &asking("p4", "free.net", "10.22.3.250"), 11, &words);
    assert_eq!(given(asking("p5", "asked.net", "10.22.3.250")), ["10.22.3.250"]);
    assert_eq!(read("asked.net")["status"]["ips"], json!(["10.22.3.250/22"]));
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
