//! Addresses of virtual machines, with pods and objects as KubeVirt creates them: start, restart, migration and deletion.
//!
//! ```text
//!   VirtualMachine ─ VirtualMachineInstance ─ pod virt-launcher-… ─► weft-ipam ─► IPBlock, kept for the machine
//! ```

use rig::addresses::{Nodes, allocated, name, network, start_controllers};
use rig::machine::until;
use rig::{assert_refused, nodes};
use serde_json::{Value, json};
use testkit::{Attachment, Finished, Pod};

/// Group and version of KubeVirt objects.
const VERSION: &str = "kubevirt.io/v1";

/// Creates the definitions of KubeVirt without schemas, and the namespace.
fn prepare(nodes: &Nodes) {
    for (plural, kind) in
        [("virtualmachines", "VirtualMachine"), ("virtualmachineinstances", "VirtualMachineInstance")]
    {
        let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.kubevirt.io") },
            "spec": { "group": "kubevirt.io", "scope": "Namespaced",
                "names": { "plural": plural, "singular": kind.to_lowercase(), "kind": kind },
                "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } }] },
        });
        nodes.kube.apply(&definition.to_string());
    }
    nodes.kube.wait_until_served();
    nodes.kube.kubectl(["create", "namespace", "blue"]);
}

/// Creates a KubeVirt object; returns the uid.
fn create(nodes: &Nodes, kind: &str, name: &str) -> String {
    let object =
        json!({ "apiVersion": VERSION, "kind": kind, "metadata": { "name": name, "namespace": "blue" } });
    nodes.kube.apply(&object.to_string());
    let found = nodes.kube.json([&kind.to_lowercase(), "-n", "blue", name]);
    found["metadata"]["uid"].as_str().expect("a uid").to_owned()
}

/// Creates a machine's pod as KubeVirt does; `uid` is the instance's.
fn launcher<'a>(
    nodes: &'a Nodes,
    namespace: &Pod,
    (pod, node): (&str, usize),
    owners: &Value,
) -> Attachment<'a> {
    let object = json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": pod, "namespace": "blue", "ownerReferences": owners,
            "annotations": { "kubevirt.io/domain": "fedora" },
            "labels": { "kubevirt.io": "virt-launcher", "kubevirt.io/domain": "fedora", "vm.kubevirt.io/name": "fedora" } },
        "spec": { "nodeName": name(node), "containers": [{ "name": "compute", "image": "none" }] } });
    nodes.kube.attempt(["create", "-f", "-"], &object.to_string()).success();
    let uid = nodes.kube.json(["pod", "-n", "blue", pod])["metadata"]["uid"].clone();
    let mut attachment = nodes.attachment(namespace, pod);
    attachment.args = format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=blue;K8S_POD_NAME={pod};K8S_POD_UID={}",
        uid.as_str().expect("a uid")
    );
    attachment
}

fn owned_by(uid: &str) -> Value {
    json!([{ "apiVersion": VERSION, "kind": "VirtualMachineInstance", "name": "fedora", "uid": uid,
        "controller": true, "blockOwnerDeletion": true }])
}

/// Network as the plan of a virtual machine's pod has it.
fn conf(node: usize) -> Value {
    let mut conf = network(node, &json!({ "range": "10.25.0.0/28", "quarantine": 0 }));
    conf["args"] = json!({ "cni": { "weft.dev/virtual-machine": "fedora" } });
    conf
}

fn delete(nodes: &Nodes, kind: &str, name: &str) {
    nodes.kube.kubectl(["delete", kind, "-n", "blue", name, "--force", "--grace-period=0"]);
}

/// A machine that is started with another address keeps that one, and the earlier one is free.
#[test]
fn virtual_machine_keeps_the_address_of_its_last_pod() {
    let nodes = nodes!(2);
    prepare(&nodes);
    let namespace = nodes.machine.pod("a");
    create(&nodes, "VirtualMachine", "fedora");
    let named = |node: usize, ip: &str| {
        let mut conf = conf(node);
        conf["args"]["cni"]["ips"] = json!([ip]);
        conf
    };
    let claims = || {
        let blocks = nodes.blocks().into_iter().filter(|block| block["spec"]["claim"].is_string());
        let mut kept: Vec<String> =
            blocks.filter_map(|block| block["spec"]["range"].as_str().map(str::to_owned)).collect();
        kept.sort();
        kept
    };
    for (at, ip) in ["10.25.0.2", "10.25.0.3", "10.25.0.2"].into_iter().enumerate() {
        let node = at % 2;
        let instance = create(&nodes, "VirtualMachineInstance", "fedora");
        let pod = format!("virt-launcher-fedora-{at}");
        let launched = launcher(&nodes, &namespace, (&pod, node), &owned_by(&instance));
        assert_eq!(allocated(launched.add(&named(node, ip))), [ip]);
        until("the claim to keep this address alone", || (claims() == [format!("{ip}/32")]).then_some(()));
        launched.del(&conf(node)).success();
        delete(&nodes, "pod", &pod);
        delete(&nodes, "virtualmachineinstance", "fedora");
    }
}

#[test]
fn virtual_machine_keeps_its_address_over_restart_and_migration() {
    let nodes = nodes!(2);
    prepare(&nodes);
    start_controllers(&nodes, &[("controller", 9600)]);
    let namespace = nodes.machine.pod("a");
    create(&nodes, "VirtualMachine", "fedora");
    let first = create(&nodes, "VirtualMachineInstance", "fedora");
    let start = launcher(&nodes, &namespace, ("virt-launcher-fedora-a", 0), &owned_by(&first));
    let ip = allocated(start.add(&conf(0)));

    // Labels, another controller, or a reference to another instance do not make a pod one of the machine.
    let other = json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "fedora", "uid": first, "controller": true }]);
    for (pod, owners, word) in [
        ("labelled", json!([]), "not the pod's controller"),
        ("replica", other, "not the pod's controller"),
        (
            "forged",
            owned_by("00000000-0000-0000-0000-000000000000"),
            "no VirtualMachineInstance of this name and uid",
        ),
    ] {
        let refused = launcher(&nodes, &namespace, (pod, 1), &owners).add(&conf(1));
        assert_refused(pod, &refused, 11, &[&format!("pod blue/{pod}: virtual machine fedora"), word]);
        delete(&nodes, "pod", pod);
    }

    // The machine is stopped, and started on the other node.
    start.del(&conf(0)).success();
    delete(&nodes, "pod", "virt-launcher-fedora-a");
    delete(&nodes, "virtualmachineinstance", "fedora");
    let plain = |container: &str, node: usize| -> Finished {
        nodes
            .attachment(&namespace, container)
            .add(&network(node, &json!({ "range": "10.25.0.0/28", "quarantine": 0 })))
    };
    let others: Vec<String> =
        (0..6).map(|at| allocated(plain(&format!("c{at}"), at % 2))[0].clone()).collect();
    assert!(!others.contains(&ip[0]), "{others:?}");
    let second = create(&nodes, "VirtualMachineInstance", "fedora");
    let source = launcher(&nodes, &namespace, ("virt-launcher-fedora-b", 1), &owned_by(&second));
    assert_eq!(allocated(source.add(&conf(1))), ip);

    // A migration that fails, and one that succeeds: two pods have the address meanwhile.
    let failed = launcher(&nodes, &namespace, ("virt-launcher-fedora-c", 0), &owned_by(&second));
    assert_eq!(allocated(failed.add(&conf(0))), ip);
    failed.del(&conf(0)).success();
    delete(&nodes, "pod", "virt-launcher-fedora-c");
    source.check(&conf(1)).success();
    let target = launcher(&nodes, &namespace, ("virt-launcher-fedora-d", 0), &owned_by(&second));
    assert_eq!(allocated(target.add(&conf(0))), ip);
    source.check(&conf(1)).success();
    source.del(&conf(1)).success();
    delete(&nodes, "pod", "virt-launcher-fedora-b");
    target.check(&conf(0)).success();

    // Deleting the machine frees the address.
    let claim = || {
        let blocks = nodes.blocks();
        let range = format!("{}/32", ip[0]);
        let block = blocks.into_iter().find(|block| block["spec"]["range"] == range.as_str())?;
        block["spec"]["claim"].as_str().filter(|claim| !claim.is_empty()).map(str::to_owned)
    };
    target.del(&conf(0)).success();
    delete(&nodes, "pod", "virt-launcher-fedora-d");
    delete(&nodes, "virtualmachineinstance", "fedora");
    assert_eq!(claim().as_deref(), Some("vm/blue/fedora/net/eth0"));
    delete(&nodes, "virtualmachine", "fedora");
    until("the address of the deleted machine is free", || claim().is_none().then_some(()));
}
