//! Tests for configurations as distributions ship them: `tests/net/testdata`, with the same keys and no more.
//! [`SOURCES`] names the file in each project that has these keys.
//!
//! ```text
//!   weft ── built-in plugins                             kind, minikube, podman, CRI-O, containerd, Nomad, OpenShift, …
//!        └─ a foreign plugin ── portmap, bandwidth       flannel, Calico, Cilium, AWS, Azure, Terway, Antrea
//! ```
//!
//! A foreign plugin that comes first is [`FOREIGN`], a script that makes a real link. One inside a chain
//! passes on the previous result.

use std::path::{Path, PathBuf};

use rig::cluster::configuration;
use rig::{Cluster, assert_nothing_left, assert_pod_unchanged, links, with};
use serde_json::{Value, json};
use testkit::{Feature, Host, host, workspace};

/// Plugin of another project: a veth pair, one address, a default route.
const FOREIGN: &str = r#"#!/bin/sh
PATH=/usr/sbin:/usr/bin:/sbin:/bin
version=$(sed -n 's/.*"cniVersion":"\([^"]*\)".*/\1/p')
pod=${CNI_NETNS##*/}
case $CNI_COMMAND in
ADD)
  ip link add foreign0 type veth peer name "$CNI_IFNAME" netns "$pod" || exit 1
  ip address add 10.66.0.1/24 dev foreign0 && ip link set foreign0 up || exit 1
  ip -n "$pod" address add 10.66.0.2/24 dev "$CNI_IFNAME" && ip -n "$pod" link set "$CNI_IFNAME" up || exit 1
  ip -n "$pod" route add default via 10.66.0.1 || exit 1
  cat <<END
{"cniVersion":"$version","interfaces":[{"name":"foreign0"},{"name":"$CNI_IFNAME","sandbox":"$CNI_NETNS"}],
"ips":[{"version":"4","interface":1,"address":"10.66.0.2/24","gateway":"10.66.0.1"}],"routes":[{"dst":"0.0.0.0/0"}]}
END
  ;;
CHECK) ip -n "$pod" link show "$CNI_IFNAME" >/dev/null ;;
DEL) ip link delete foreign0 2>/dev/null; exit 0 ;;
esac
"#;

/// File in `tests/net/testdata`, and the project's file that has these keys.
const SOURCES: &[(&str, &str)] = &[
    ("antrea", "antrea-io/antrea build/yamls/base/conf/antrea-cni.conflist"),
    ("aws", "aws/amazon-vpc-cni-k8s misc/10-aws.conflist"),
    (
        "azure",
        "Azure/azure-container-networking: /etc/cni/net.d/10-azure.conflist of AKS nodes, transparent mode",
    ),
    ("calico", "projectcalico/calico manifests/calico.yaml: cni_network_config"),
    ("cilium-portmap", "cilium/cilium cni.chainingMode=portmap: 05-cilium.conflist"),
    ("concourse", "concourse/concourse worker/runtime/cni_network.go"),
    ("containerd", "containerd/containerd script/setup/install-cni: 10-containerd-net.conflist"),
    ("crio-bridge", "cri-o/cri-o contrib/cni/10-crio-bridge.conflist"),
    ("crio-ipv4-bridge", "cri-o/cri-o contrib/cni/11-crio-ipv4-bridge.conflist"),
    ("harvester", "harvester/network-controller-harvester: definitions of VLAN networks"),
    ("k3s-flannel", "k3s-io/k3s pkg/agent/flannel/setup_linux.go: 10-flannel.conflist"),
    ("kind", "kubernetes-sigs/kind images/kindnetd: 10-kindnet.conflist"),
    ("kube-flannel", "flannel-io/flannel Documentation/kube-flannel.yml: cni-conf.json"),
    ("minikube-bridge", "kubernetes/minikube pkg/minikube/cni/bridge.go: 1-k8s.conflist"),
    ("nerdctl", "containerd/nerdctl docs/cni.md: the network bridge"),
    ("nomad", "hashicorp/nomad client/allocrunner/networking_bridge_linux.go"),
    ("openshift-cnv", "OpenShift Virtualization documentation: «Connecting to a Linux bridge network»"),
    ("podman", "containers/podman cni/87-podman-bridge.conflist"),
    ("terway", "AliyunContainerService/terway: merged configuration of datapathv2"),
];

/// Foreign plugins that come first in a list, and those in the middle.
const FIRST: [&str; 7] = ["flannel", "calico", "aws-cni", "azure-vnet", "terway", "antrea", "cilium-cni"];
const MIDDLE: [&str; 2] = ["egress-cni", "cilium-cni"];

fn files() -> Vec<PathBuf> {
    let directory = workspace().join("tests/net/testdata");
    let entries =
        std::fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    files
}

fn read(file: &Path) -> Value {
    let text = std::fs::read_to_string(file).expect("a configuration");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

/// Installs the foreign plugins that a list needs.
fn install_foreign(host: &Host, list: &Value) {
    host.write("/opt/cni/bin/foreign", FOREIGN);
    for (place, plugin) in list["plugins"].as_array().expect("plugins").iter().enumerate() {
        let kind = plugin["type"].as_str().expect("a type");
        if place == 0 && FIRST.contains(&kind) {
            host.run(["mv", "/opt/cni/bin/foreign", &format!("/opt/cni/bin/{kind}")]);
            host.run(["chmod", "755", &format!("/opt/cni/bin/{kind}")]);
        } else if MIDDLE.contains(&kind) {
            host.install(&testkit::binary("weft-test-plugin"), &[kind]);
        }
    }
    host.run(["rm", "-f", "/opt/cni/bin/foreign"]);
}

/// Returns the configuration of the meta-plugin for a list, with the arguments that a runtime passes for a pod.
fn called_by_a_runtime(list: &Value) -> Value {
    let ports = json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }]);
    let limits = json!({ "ingressRate": 8_000_000, "ingressBurst": 800_000 });
    let passed = json!({ "capabilities": { "portMappings": true, "bandwidth": true },
        "runtimeConfig": { "portMappings": ports, "bandwidth": limits } });
    with(&configuration(list), &passed)
}

#[test]
fn conflists_of_distributions_are_attached_checked_and_detached() {
    let _ = host!(
        Feature::Bridge,
        Feature::NftMasquerade,
        Feature::NftBridge,
        Feature::IptablesNft,
        Feature::Tbf,
        Feature::Ifb
    );
    let has_vlans = Feature::BridgeVlan.is_present();
    for file in files() {
        let label = file.file_stem().and_then(|name| name.to_str()).expect("a name").to_owned();
        let mut list = read(&file);
        if !has_vlans {
            // The VLAN of a port is tested where the kernel has VLAN filtering.
            list["plugins"][0].as_object_mut().expect("a plugin").remove("vlan");
        }
        let host = Host::new();
        let cluster = Cluster::new(&host);
        install_foreign(&host, &list);
        for bridge in ["mgmt-br", "br1"] {
            host.run(["ip", "link", "add", bridge, "type", "bridge"]);
            if has_vlans {
                host.run(["ip", "link", "set", bridge, "type", "bridge", "vlan_filtering", "1"]);
            }
            host.run(["ip", "link", "set", bridge, "up"]);
        }
        // kube-proxy makes this chain.
        for program in ["iptables", "ip6tables"] {
            host.run([program, "-t", "nat", "-N", "KUBE-MARK-MASQ"]);
        }
        cluster.pod("web", "");
        let config = called_by_a_runtime(&list);
        let pod = host.pod("web");
        let weft = cluster.attachment(&pod);
        // Shared objects of the plugins stay after the first attachment.
        weft.add(&config).success();
        weft.del(&config).success();
        let (before, inside) = (host.snapshot(), pod.snapshot());
        // A CHECK follows each ADD that succeeds.
        let result = weft.add(&config).success().json();
        assert_eq!(links(&pod), ["eth0"], "{label}");
        let types: Vec<&str> = list["plugins"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|plugin| plugin["type"].as_str())
            .collect();
        if let Some(gateway) = result["ips"][0]["gateway"].as_str() {
            assert!(pod.pings(gateway), "{label}: {gateway}");
        }
        let rules = host.run(["nft", "list", "ruleset"]);
        assert_eq!(rules.contains("8080"), types.contains(&"portmap"), "{label}: {rules}");
        let queues = host.run(["tc", "qdisc", "show"]);
        assert_eq!(queues.contains("tbf"), types.contains(&"bandwidth"), "{label}: {queues}");
        weft.del(&with(&config, &json!({ "prevResult": result }))).success();
        assert_nothing_left(&label, &host, &before);
        assert_pod_unchanged(&label, &pod, &inside);
    }
}

#[test]
fn conflists_of_distributions_have_a_source() {
    let names: Vec<String> =
        files().iter().filter_map(|file| Some(file.file_stem()?.to_str()?.to_owned())).collect();
    let sources: Vec<&str> = SOURCES.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, sources);
}

#[test]
fn conflists_of_distributions_have_no_lint_errors() {
    for file in files() {
        let host = host!();
        let text = std::fs::read_to_string(&file).expect("a configuration");
        host.write("/run/net.conflist", text);
        let weft = host.command(testkit::binary("weft")).clean_environment();
        let found = weft.args(["lint", "-o", "json", "/run/net.conflist"]).finish().json();
        let findings = found["findings"].as_array().expect("findings");
        let errors: Vec<&Value> = findings.iter().filter(|found| found["severity"] == "error").collect();
        assert!(errors.is_empty(), "{}: {errors:?}", file.display());
    }
}
