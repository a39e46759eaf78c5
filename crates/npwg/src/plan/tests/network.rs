//! Tests of the networks of a pod and their configurations.

use super::*;

// Requirements: NPWG1-1.1.5-1, NPWG1-6-1
#[test]
fn default_network_is_in_every_plan() {
    let plan = World::new().plan();
    assert_eq!(shape(&plan), pairs(&[("base", "eth0")]));
    assert_eq!(plan.delegates[0].role, Role::Default);
    let plan = World::new().networks("plain").plan();
    assert_eq!(shape(&plan)[0], ("base".to_owned(), "eth0".to_owned()));
}

// Requirements: NPWG1-6.2-1
#[test]
fn default_network_is_first_and_selected_ones_keep_their_order() {
    let plan =
        World::new().networks("capable,plain,other/plain").node(r#""defaultNetworks":["plain"]"#).plan();
    let networks: Vec<&str> = plan.delegates.iter().map(|d| d.network.as_str()).collect();
    assert_eq!(networks, ["base", "kube-system/plain", "home/capable", "home/plain", "other/plain"]);
    let roles: Vec<Role> = plan.delegates.iter().map(|d| d.role).collect();
    assert_eq!(roles, [Role::Default, Role::Every, Role::Selected, Role::Selected, Role::Selected]);
}

// Requirements: NPWG1-6-1
#[test]
fn cluster_network_is_a_definition_a_name_on_disk_or_a_path() {
    let mut world = World::new();
    world.define("kube-system/base", r#"{"cniVersion":"1.0.0","name":"from-definition","type":"x"}"#);
    let plan = world.plan();
    assert_eq!(
        (plan.delegates[0].network.as_str(), plan.delegates[0].config_name.as_str()),
        ("kube-system/base", "from-definition")
    );

    let mut world = World::new();
    world.file(
        "/etc/cni/net.d/05-path.conflist",
        r#"{"cniVersion":"1.0.0","name":"by-path","plugins":[{"type":"x"}]}"#,
    );
    world.keys = r#""clusterNetwork":"/etc/cni/net.d/05-path.conflist""#.into();
    assert_eq!(world.plan().delegates[0].network, "by-path");
    world.keys = r#""clusterNetwork":"/etc/cni/net.d""#.into();
    assert_eq!(world.plan().delegates[0].network, "by-path");

    world.keys = r#""clusterNetwork":"missing""#.into();
    let fault = world.fails();
    assert_eq!((fault.rule, fault.subject.as_str()), (Rule::UnknownNodeNetwork, "clusterNetwork"));
    assert!(fault.value.contains("missing") && !fault.reason.contains("could not be read"), "{fault}");
    world.disk.unreadable.push("/etc/cni/x.conf: not JSON".into());
    assert!(world.fails().reason.contains("could not be read: /etc/cni/x.conf"));
}

#[test]
fn delegates_of_the_configuration_are_in_every_plan() {
    let mut world = World::new().networks("plain");
    world.keys = format!(r#""delegates":[{PLAIN},{CAPABLE}]"#);
    let plan = world.plan();
    assert_eq!(shape(&plan), pairs(&[("plain", "eth0"), ("capable", "net1"), ("home/plain", "net2")]));
    assert_eq!(plan.delegates[1].config, CAPABLE);
    let named: Vec<&str> = plan.delegates.iter().map(|d| d.because[0].why.as_str()).collect();
    assert_eq!(named, ["delegates[0]", "delegates[1]", "annotation k8s.v1.cni.cncf.io/networks: [0]"]);
}

#[test]
fn default_networks_are_not_for_system_namespaces() {
    let mut world = World::new().node(r#""defaultNetworks":["plain"]"#);
    assert_eq!(world.plan().delegates.len(), 2);
    world.pod.namespace = "kube-system".into();
    assert_eq!(world.plan().delegates.len(), 1);
    let world = world.node(r#""systemNamespaces":["other"]"#);
    assert_eq!(world.plan().delegates.len(), 2);
}

#[test]
fn default_network_annotation_replaces_only_the_first_network() {
    let mut world = World::new().default_network("plain").networks("home/plain");
    world.keys = format!(r#""delegates":[{PLAIN},{CAPABLE}]"#);
    let plan = world.plan();
    assert_eq!(
        shape(&plan),
        pairs(&[("kube-system/plain", "eth0"), ("capable", "net1"), ("home/plain", "net2")])
    );
    assert_eq!(plan.delegates[0].role, Role::Default);
    let elsewhere = World::new().default_network("other/plain").plan();
    assert_eq!(shape(&elsewhere), pairs(&[("other/plain", "eth0")]));
    assert_eq!(World::new().default_network(" ").plan().delegates[0].network, "base");
}

#[test]
fn auxiliary_chain_is_last_if_it_has_files() {
    let mut world = World::new().networks("plain");
    world.file("/etc/cni/net.d/05.conf", r#"{"cniVersion":"1.0.0","name":"first","type":"x"}"#);
    world.keys = r#""clusterNetwork":"/etc/cni/net.d/05.conf","auxiliaryCNIChainName":"aux""#.into();
    assert_eq!(world.plan().delegates.len(), 2);
    world.file("/etc/cni/net.d/aux/10.conf", r#"{"cniVersion":"1.0.0","name":"a","type":"sbr"}"#);
    assert_eq!(world.plan().delegates.len(), 3);
    world.file("/etc/cni/net.d/aux/20.conf", r#"{"cniVersion":"1.0.0","name":"b","type":"tuning"}"#);
    let plan = world.plan();
    assert_eq!((plan.delegates[2].network.as_str(), plan.delegates[2].ifname.as_str()), ("aux", "net2"));
    let config = config(&plan.delegates[2]);
    let types: Vec<&str> =
        config["plugins"].as_array().unwrap().iter().map(|p| p["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["passthru", "sbr", "tuning"]);
    assert_eq!(config["loadOnlyInlinedPlugins"], json!(true));
}

// Requirements: NPWG1-3.4.1-rule4, NPWG1-7.2-1
#[test]
fn missing_definition_fails_the_pod() {
    let fault = World::new().networks("plain,nowhere/none").fails();
    assert_eq!(fault.rule, Rule::UnknownNetwork);
    assert_eq!((fault.path.to_string().as_str(), fault.value.as_str()), ("[1]", "\"nowhere/none\""));
    let mut world = World::new().networks("home/empty");
    world.define("home/empty", "");
    assert_eq!(world.fails().subject, "network-attachment-definition home/empty");
}

// Requirements: NPWG1-3.2-5
#[test]
fn unchanged_configuration_keeps_its_bytes() {
    let plan = World::new().networks("capable").plan();
    assert_eq!(plan.delegates[1].config, CAPABLE);
    assert_eq!(plan.delegates[1].config_name.as_str(), "capable");
}

// Requirements: M27
#[test]
fn unknown_fields_are_kept_when_requests_are_added() {
    let mut world = World::new().networks(r#"[{"name":"odd","cni-args":{"a":1}}]"#);
    let odd = r#"{"name":"odd","cniVersion":"0.3.1","kubernetes":{ "kubeconfig":"/k" },"plugins":[{"type":"calico","mtu":1.0e3}]}"#;
    world.define("home/odd", odd);
    assert_eq!(
        world.plan().delegates[1].config,
        r#"{"name":"odd","cniVersion":"0.3.1","kubernetes":{ "kubeconfig":"/k" },"plugins":[{"type":"calico","mtu":1.0e3,"args":{"cni":{"a":1}}}]}"#
    );
}

// Requirements: NPWG1-4.1.2.1.5.1-1
#[test]
fn interface_request_becomes_cni_ifname() {
    let plan = World::new().networks("plain@data0,other/plain").plan();
    assert_eq!(names(&plan), ["eth0", "data0", "net2"]);
    assert!(plan.delegates[1].because.iter().any(|d| d.what == "interface" && d.why == "requested"));
}

// Requirements: NPWG1-4.1.2.1.5-3
#[test]
fn interface_request_in_use_fails_the_attachment() {
    let fault = World::new().networks("plain@a,other/plain@a").fails();
    assert_eq!(
        (fault.rule, fault.path.to_string().as_str()),
        (Rule::DuplicateInterfaceName, "[1].interface")
    );
    assert_eq!(World::new().networks("plain@eth0").fails().rule, Rule::DefaultInterfaceName);
    assert_eq!(World::new().networks("plain@lo").fails().rule, Rule::DuplicateInterfaceName);
    let mut world = World::new().networks("plain@ens3");
    world.ifname = "ens3".into();
    assert_eq!(world.fails().rule, Rule::DefaultInterfaceName);
}

// Requirements: M23, NPWG1-4.2.1-2
#[test]
fn interface_names_generated_avoid_requested_ones() {
    assert_eq!(names(&World::new().networks("plain,plain,plain").plan()), ["eth0", "net1", "net2", "net3"]);
    // A later element requests the name.
    assert_eq!(
        names(&World::new().networks("plain,plain@net1,plain").plan()),
        ["eth0", "net4", "net1", "net3"]
    );
    assert_eq!(
        names(&World::new().networks("plain,plain@net1,plain,plain@net5,plain@net3").plan()),
        ["eth0", "net6", "net1", "net7", "net5", "net3"]
    );
    let mut world = World::new().networks("plain");
    world.ifname = "net1".into();
    assert_eq!(names(&world.plan()), ["net1", "net2"]);
}

// Requirements: NPWG1-4.2-1, NPWG1-4.2.1-1
#[test]
fn network_selected_twice_has_two_attachments() {
    let plan = World::new().networks("plain,plain").plan();
    assert_eq!(shape(&plan)[1..], pairs(&[("home/plain", "net1"), ("home/plain", "net2")])[..]);
    // The identity of each attachment is in the plan: every operation reads it from there.
    let tuples: std::collections::BTreeSet<(&str, &str)> =
        plan.delegates.iter().map(|d| (d.config_name.as_str(), d.ifname.as_str())).collect();
    assert_eq!(tuples.len(), plan.delegates.len());
    assert_eq!(plan.container.as_str(), "c1");
}

// Requirements: NPWG1-4-1
#[test]
fn default_network_can_be_selected_again() {
    let mut world = World::new().networks("kube-system/base");
    world.define("kube-system/base", PLAIN);
    let plan = world.plan();
    assert_eq!(shape(&plan), pairs(&[("kube-system/base", "eth0"), ("kube-system/base", "net1")]));
    let defaults = plan.delegates.iter().filter(|d| d.role == Role::Default).count();
    assert_eq!(defaults, 1);
}

#[test]
fn unknown_default_network_names_where_it_was_searched() {
    let fault = World::new().default_network("capable").fails();
    assert_eq!(fault.rule, Rule::UnknownNetwork);
    let expected = "a name without a namespace is searched in kube-system; \
                    write home/capable for the one of the pod's namespace";
    assert_eq!(fault.hint, expected);
    let known = World::new().default_network("capable").networks("capable").fails();
    assert_eq!(known.hint, format!("{expected}, which exists"));
    let other = World::new().default_network("home/nowhere").fails();
    assert!(other.hint.contains("kubectl get network-attachment-definitions -n home"), "{other}");
}
