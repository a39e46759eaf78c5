//! Claims in cluster IPAM: addresses that a claim requests by name, keeps for the pods, and shares between them.
//!
//! ```text
//!   kube-apiserver ◄── agents ◄── weft-ipam ADD/DEL ◄── the test, as container runtime
//!                  ◄── weft controller --ipam
//! ```

use std::collections::BTreeSet;

use rig::addresses::{
    allocated, assert_ipam_consistent, last_byte, network, pool, reconciliations, start_controllers,
};
use rig::{assert_refused, nodes};
use serde_json::{Value, json};

#[test]
fn claim_gets_an_address_of_its_nodes_block_at_once() {
    let nodes = nodes!(1);
    let sandbox = nodes.machine.pod("a");
    nodes.kube.kubectl(["create", "namespace", "blue"]);
    let conf = network(0, &json!({ "range": "10.22.0.0/22", "quarantine": 0 }));
    let first = allocated(nodes.attachment(&sandbox, "c0").add(&conf))[0].clone();
    let (around, _) = first.rsplit_once('.').unwrap();
    let named = format!("{around}.{}", last_byte(&first) ^ 64);
    // Two restored virtual machines: the address of one is free, that of the other is in use by a pod.
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
    assert_eq!(allocated(call("ADD", "p1", "free.net")), [named.as_str()], "at the first attempt");
    let words = [format!("pod blue/c0, eth0 of net, holds {first}")];
    assert_refused("taken", &call("ADD", "p2", "taken.net"), 11, &words.each_ref().map(String::as_str));
    // No other pod gets the address from the block, neither while it is held nor later.
    let others = |from: u8| {
        let add = |at: u8| allocated(nodes.attachment(&sandbox, &format!("d{at}")).add(&conf))[0].clone();
        (from..from + 100).map(add).collect::<BTreeSet<String>>()
    };
    assert!(!others(0).contains(&named));
    call("DEL", "p1", "free.net").success();
    assert!(!others(100).contains(&named));
    assert_eq!(allocated(call("ADD", "p3", "free.net")), [named.as_str()]);
    assert_ipam_consistent(&nodes, &[]);
    // A pod that also requests an address: it must be the address of its claim.
    let requesting = |container: &str, claim: &str, ip: &str| {
        let mut conf = conf.clone();
        conf["args"] = json!({ "cni": { "ipam-claim-reference": claim, "ips": [ip] } });
        nodes.attachment(&sandbox, container).add(&conf)
    };
    let _ = make("asked.net");
    let words = ["ipamclaim blue/free.net", &named, "the pod requests 10.22.3.250"];
    assert_refused("another", &requesting("p4", "free.net", "10.22.3.250"), 11, &words);
    assert_eq!(allocated(requesting("p5", "asked.net", "10.22.3.250")), ["10.22.3.250"]);
    assert_eq!(read("asked.net")["status"]["ips"], json!(["10.22.3.250/22"]));
}

#[test]
fn sticky_addresses_are_kept_when_all_blocks_are_leased() {
    let nodes = nodes!(2);
    let sandbox = nodes.machine.pod("a");
    nodes.kube.kubectl(["create", "namespace", "blue"]);
    let _ = pool(&nodes, "10.24.0.0/26", 4);
    // Four blocks of sixteen addresses; each node leases two, the second one by prefetch.
    let conf = |node, sticky: bool| {
        network(node, &json!({ "range": "10.24.0.0/26", "quarantine": 0, "sticky": sticky }))
    };
    let mut held = BTreeSet::new();
    for node in 0..2 {
        for at in 0..17 {
            let call = nodes.attachment(&sandbox, &format!("n{node}-{at}"));
            held.insert(allocated(call.add(&conf(node, false)))[0].clone());
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
        all.into_iter().map(|call| allocated(call.join().unwrap())[0].clone()).collect()
    });
    held.extend(kept.iter().cloned());
    assert_eq!(held.len(), 42, "{kept:?}");
    // The next pod of the same name gets the address, on the other node.
    for (at, ip) in kept.iter().enumerate() {
        sticky(0, at, "a", "DEL").success();
        assert_eq!(allocated(sticky(1, at, "b", "ADD")), [ip.as_str()]);
    }
    // A pod that requests an address in its node's block keeps it, too.
    let free = (1..63).map(|host| format!("10.24.0.{host}")).find(|ip| {
        let block = (last_byte(ip) / 16) * 16;
        !held.contains(ip) && held.contains(&format!("10.24.0.{}", block + 1 + u8::from(block == 0)))
    });
    let free = free.unwrap();
    let mut requesting = conf(0, true);
    requesting["args"] = json!({ "cni": { "ips": [free] } });
    let named = |uid: &str, conf: &Value| {
        let mut attachment = nodes.attachment(&sandbox, uid);
        attachment.args =
            format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=blue;K8S_POD_NAME=named;K8S_POD_UID={uid}");
        (allocated(attachment.add(conf))[0].clone(), attachment)
    };
    let (first, attachment) = named("v1", &requesting);
    assert_eq!(first, free);
    attachment.del(&requesting).success();
    assert_eq!(named("v2", &conf(1, true)).0, free, "the address was kept");
    assert_ipam_consistent(&nodes, &[]);
}

#[test]
fn deleted_claim_keeps_its_address_until_the_last_pod_is_gone() {
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
    let kept = allocated(call("ADD", 0, "stays"))[0].clone();
    let status = json!([{ "name": "blue/net", "interface": "eth0", "ips": [kept] }]).to_string();
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "stays", "namespace": "blue",
        "annotations": { "k8s.v1.cni.cncf.io/network-status": status } },
        "spec": { "nodeName": "worker-0", "containers": [{ "name": "c", "image": "none" }] } });
    nodes.kube.attempt(["create", "-f", "-"], &pod.to_string()).success();
    // The migration fails; the address remains with the first pod.
    assert_eq!(allocated(call("ADD", 1, "moved")), std::slice::from_ref(&kept));
    nodes.stop(0, "KILL");
    call("DEL", 1, "moved").success();
    nodes.kube.kubectl(["delete", "ipamclaim", "-n", "blue", "vm.net"]);
    start_controllers(&nodes, &[("controller", 9604)]);
    nodes.machine.wait("controller", "has reconciled", || (reconciliations(&nodes, 9604) > 3).then_some(()));
    let single = || nodes.blocks().into_iter().find(|block| block["spec"]["range"] == format!("{kept}/32"));
    assert_eq!(single().expect("the object")["spec"]["claim"], "claim/blue/vm.net");
    nodes.kube.kubectl(["delete", "pod", "-n", "blue", "stays", "--force", "--grace-period=0"]);
    let is_over =
        || single().is_none_or(|block| block["spec"]["claim"].as_str().unwrap_or_default().is_empty());
    rig::machine::until("the address to be kept for no claim", || is_over().then_some(()));
}
