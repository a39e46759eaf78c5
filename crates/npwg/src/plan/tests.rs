//! What a plan says, by requirement.

use serde_json::{Value, json};

use super::*;
use crate::configuration::Flavour;
use crate::fixture::{CAPABLE, PLAIN, World};
use crate::refusal::Reason;

/// Networks and interfaces, in order.
fn shape(plan: &Plan) -> Vec<(String, String)> {
    plan.delegates.iter().map(|d| (d.network.clone(), d.ifname.to_string())).collect()
}

fn names(plan: &Plan) -> Vec<&str> {
    plan.delegates.iter().map(|d| d.ifname.as_str()).collect()
}

fn config(delegate: &Delegate) -> Value {
    serde_json::from_str(&delegate.config).unwrap()
}

fn runtime_config(delegate: &Delegate) -> Value {
    serde_json::to_value(&delegate.runtime_config).unwrap()
}

/// The plan of a pod that asks this of `home/capable`.
fn asked(keys: &str) -> World {
    World::new().networks(&format!(r#"[{{"name":"capable",{keys}}}]"#))
}

/// The plan of a pod that asks this of `home/plain`, which declares nothing.
fn asked_plain(keys: &str) -> World {
    World::new().networks(&format!(r#"[{{"name":"plain",{keys}}}]"#))
}

fn pairs(list: &[(&str, &str)]) -> Vec<(String, String)> {
    list.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

// The default network.

#[test]
fn npwg1_1_1_5_1_npwg1_6_1_every_pod_gets_the_default_network() {
    let plan = World::new().plan();
    assert_eq!(shape(&plan), pairs(&[("base", "eth0")]));
    assert_eq!(plan.delegates[0].role, Role::Default);
    let plan = World::new().networks("plain").plan();
    assert_eq!(shape(&plan)[0], ("base".to_owned(), "eth0".to_owned()));
}

#[test]
fn npwg1_6_2_1_the_default_network_comes_first_and_the_selection_in_its_order() {
    let plan =
        World::new().networks("capable,plain,other/plain").node(r#""defaultNetworks":["plain"]"#).plan();
    let networks: Vec<&str> = plan.delegates.iter().map(|d| d.network.as_str()).collect();
    assert_eq!(networks, ["base", "kube-system/plain", "home/capable", "home/plain", "other/plain"]);
    let roles: Vec<Role> = plan.delegates.iter().map(|d| d.role).collect();
    assert_eq!(roles, [Role::Default, Role::Every, Role::Selected, Role::Selected, Role::Selected]);
}

#[test]
fn npwg1_6_1_a_cluster_network_is_a_definition_else_a_file_by_name_else_a_path() {
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
    assert_eq!((fault.requirement.as_str(), fault.subject.as_str()), ("NPWG1-6-1", "clusterNetwork"));
    assert!(fault.value.contains("missing"), "{fault}");
}

#[test]
fn the_delegates_of_the_configuration_go_to_every_pod() {
    let mut world = World::new().networks("plain");
    world.keys = format!(r#""delegates":[{PLAIN},{CAPABLE}]"#);
    let plan = world.plan();
    assert_eq!(shape(&plan), pairs(&[("plain", "eth0"), ("capable", "net1"), ("home/plain", "net2")]));
    assert_eq!(plan.delegates[1].config, CAPABLE);
}

#[test]
fn system_namespaces_get_no_default_networks() {
    let mut world = World::new().node(r#""defaultNetworks":["plain"]"#);
    assert_eq!(world.plan().delegates.len(), 2);
    world.pod.namespace = "kube-system".into();
    assert_eq!(world.plan().delegates.len(), 1);
    let world = world.node(r#""systemNamespaces":["other"]"#);
    assert_eq!(world.plan().delegates.len(), 2);
}

#[test]
fn the_default_network_annotation_replaces_the_first_network_only() {
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
fn the_auxiliary_chain_comes_last_if_it_has_files() {
    let mut world = World::new().networks("plain");
    world.file("/etc/cni/net.d/05.conf", r#"{"cniVersion":"1.0.0","name":"first","type":"x"}"#);
    world.keys = r#""clusterNetwork":"/etc/cni/net.d/05.conf","auxiliaryCNIChainName":"aux""#.into();
    assert_eq!(world.plan().delegates.len(), 2);
    world.file("/etc/cni/net.d/aux/10.conf", r#"{"cniVersion":"1.0.0","name":"a","type":"sbr"}"#);
    world.file("/etc/cni/net.d/aux/20.conf", r#"{"cniVersion":"1.0.0","name":"b","type":"tuning"}"#);
    let plan = world.plan();
    assert_eq!((plan.delegates[2].network.as_str(), plan.delegates[2].ifname.as_str()), ("aux", "net2"));
    let config = config(&plan.delegates[2]);
    let types: Vec<&str> =
        config["plugins"].as_array().unwrap().iter().map(|p| p["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["passthru", "sbr", "tuning"]);
    assert_eq!(config["loadOnlyInlinedPlugins"], json!(true));
}

// Definitions.

#[test]
fn npwg1_3_4_1_rule4_npwg1_7_2_1_a_missing_definition_fails_the_pod() {
    let fault = World::new().networks("plain,nowhere/none").fails();
    assert_eq!(fault.requirement, "NPWG1-3.4.1-rule4");
    assert_eq!((fault.path.to_string().as_str(), fault.value.as_str()), ("[1]", "\"nowhere/none\""));
    let mut world = World::new().networks("home/empty");
    world.define("home/empty", "");
    assert_eq!(world.fails().subject, "network-attachment-definition home/empty");
}

#[test]
fn npwg1_3_2_5_a_configuration_to_which_nothing_is_added_keeps_its_bytes() {
    let plan = World::new().networks("capable").plan();
    assert_eq!(plan.delegates[1].config, CAPABLE);
    assert_eq!(plan.delegates[1].config_name.as_str(), "capable");
}

#[test]
fn m27_lists_keep_what_nobody_knows_even_when_something_is_added() {
    let mut world = World::new().networks(r#"[{"name":"odd","cni-args":{"a":1}}]"#);
    let odd = r#"{"name":"odd","cniVersion":"0.3.1","kubernetes":{ "kubeconfig":"/k" },"plugins":[{"type":"calico","mtu":1.0e3}]}"#;
    world.define("home/odd", odd);
    assert_eq!(
        world.plan().delegates[1].config,
        r#"{"name":"odd","cniVersion":"0.3.1","kubernetes":{ "kubeconfig":"/k" },"plugins":[{"type":"calico","mtu":1.0e3,"args":{"cni":{"a":1}}}]}"#
    );
}

// Interface names.

#[test]
fn npwg1_4_1_2_1_5_1_1_an_asked_for_interface_is_cni_ifname() {
    let plan = World::new().networks("plain@data0,other/plain").plan();
    assert_eq!(names(&plan), ["eth0", "data0", "net2"]);
    assert!(plan.delegates[1].because.iter().any(|d| d.what == "interface" && d.why == "asked for"));
}

#[test]
fn npwg1_4_1_2_1_5_3_a_name_in_use_fails_the_attachment() {
    let fault = World::new().networks("plain@a,other/plain@a").fails();
    assert_eq!(
        (fault.requirement.as_str(), fault.path.to_string().as_str()),
        ("NPWG1-4.1.2.1.5-3", "[1].interface")
    );
    assert_eq!(World::new().networks("plain@eth0").fails().requirement, "NPWG1-4.1.2.1.5-3");
    assert_eq!(World::new().networks("plain@lo").fails().requirement, "NPWG1-4.1.2.1.5-3");
    let mut world = World::new().networks("plain@ens3");
    world.ifname = "ens3".into();
    assert_eq!(world.fails().requirement, "NPWG1-4.1.2.1.5-3");
}

#[test]
fn m23_npwg1_4_2_1_2_generated_names_go_around_those_asked_for() {
    assert_eq!(names(&World::new().networks("plain,plain,plain").plan()), ["eth0", "net1", "net2", "net3"]);
    // Asked for later, and still respected.
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

#[test]
fn npwg1_4_2_1_npwg1_4_2_1_1_the_same_network_twice_is_two_attachments() {
    let plan = World::new().networks("plain,plain").plan();
    assert_eq!(shape(&plan)[1..], pairs(&[("home/plain", "net1"), ("home/plain", "net2")])[..]);
    // The identity of each attachment is in the plan: every operation reads it from there.
    let tuples: std::collections::BTreeSet<(&str, &str)> =
        plan.delegates.iter().map(|d| (d.config_name.as_str(), d.ifname.as_str())).collect();
    assert_eq!(tuples.len(), plan.delegates.len());
    assert_eq!(plan.container.as_str(), "c1");
}

#[test]
fn npwg1_4_1_the_default_network_may_be_selected_again() {
    let mut world = World::new().networks("kube-system/base");
    world.define("kube-system/base", PLAIN);
    let plan = world.plan();
    assert_eq!(shape(&plan), pairs(&[("kube-system/base", "eth0"), ("kube-system/base", "net1")]));
    let defaults = plan.delegates.iter().filter(|d| d.role == Role::Default).count();
    assert_eq!(defaults, 1);
}

// Requests: transports.

#[test]
fn npwg1_4_1_2_1_3_2_1_v11_4_1_2_1_3_2_1_ips_travel_in_args_of_every_plugin_and_in_runtime_config() {
    let plan = asked(r#""ips":["10.2.2.42/24","2001:db8::5"]"#).plan();
    let delegate = &plan.delegates[1];
    let config = config(delegate);
    for plugin in config["plugins"].as_array().unwrap() {
        assert_eq!(plugin["args"]["cni"]["ips"], json!(["10.2.2.42/24", "2001:db8::5"]), "{plugin}");
    }
    assert_eq!(runtime_config(delegate), json!({"ips": ["10.2.2.42/24", "2001:db8::5"]}));
}

#[test]
fn npwg1_4_1_2_1_4_2_1_v11_4_1_2_1_4_2_1_a_mac_travels_both_ways_too() {
    let plan = asked(r#""mac":"02-23-45-67-89-01""#).plan();
    let delegate = &plan.delegates[1];
    assert_eq!(config(delegate)["plugins"][1]["args"], json!({"cni": {"mac": "02:23:45:67:89:01"}}));
    assert_eq!(runtime_config(delegate), json!({"mac": "02:23:45:67:89:01"}));
    assert_eq!(delegate.args, pairs(&[("MAC", "02:23:45:67:89:01")]));
}

#[test]
fn m20_cni_args_carry_an_address_only_if_it_is_one() {
    assert_eq!(asked(r#""ips":["10.0.0.1"]"#).plan().delegates[1].args, pairs(&[("IP", "10.0.0.1")]));
    assert_eq!(asked(r#""ips":["10.0.0.1/24"]"#).plan().delegates[1].args, pairs(&[("IP", "10.0.0.1/24")]));
    assert!(asked(r#""ips":["10.0.0.1","::1"]"#).plan().delegates[1].args.is_empty());
}

#[test]
fn npwg1_4_1_2_1_3_3_conflict_c1_by_default_the_result_must_show_what_was_asked_for() {
    let plan = asked_plain(r#""ips":["10.0.0.1"],"mac":"02:00:00:00:00:01""#).plan();
    let verify = &plan.delegates[1].verify;
    assert_eq!(verify.ips.len(), 1);
    assert!(verify.mac.is_some());
    let missing: Vec<&str> = plan
        .warnings
        .iter()
        .filter(|warning| warning.event == Reason::CapabilityMissing)
        .map(|warning| warning.fault.requirement.as_str())
        .collect();
    assert_eq!(missing, ["V11-4.1.2.1.3.2-2", "V11-4.1.2.1.4.2-2"]);
    assert_eq!(runtime_config(&plan.delegates[1]), json!({}));
    assert_eq!(config(&plan.delegates[1])["plugins"][0]["args"]["cni"]["ips"], json!(["10.0.0.1"]));
}

#[test]
fn v11_4_1_2_1_3_2_2_v11_4_1_2_1_4_2_2_the_policy_can_demand_the_capability() {
    for policy in ["capability", "both"] {
        let node = format!(r#""ipRequestPolicy":"{policy}""#);
        let fault = asked_plain(r#""ips":["10.0.0.1"]"#).node(&node).fails();
        assert_eq!(
            (fault.requirement.as_str(), fault.path.to_string().as_str()),
            ("V11-4.1.2.1.3.2-2", "[0].ips")
        );
        assert!(fault.cure.contains("capabilities"), "{fault}");
        let fault = asked_plain(r#""mac":"02:00:00:00:00:01""#).node(&node).fails();
        assert_eq!(fault.requirement, "V11-4.1.2.1.4.2-2");
        assert!(asked(r#""ips":["10.0.0.1"],"mac":"02:00:00:00:00:01""#).node(&node).try_plan().is_ok());
    }
}

#[test]
fn conflict_c1_each_policy_verifies_what_it_says() {
    let verify = |policy: &str| {
        let world = asked(r#""ips":["10.0.0.1"]"#).node(&format!(r#""ipRequestPolicy":"{policy}""#));
        !world.plan().delegates[1].verify.ips.is_empty()
    };
    assert_eq!(["capability", "result", "both", "permissive"].map(verify), [false, true, true, false]);
    let permissive = asked_plain(r#""ips":["10.0.0.1"]"#).node(r#""ipRequestPolicy":"permissive""#).plan();
    assert_eq!(permissive.warnings.len(), 1);
}

#[test]
fn m6_requests_are_never_silently_dropped() {
    // Of every request that no plugin declares, the plan refuses, verifies or warns.
    for keys in [
        r#""portMappings":[{"hostPort":1,"containerPort":1}]"#,
        r#""bandwidth":{"ingressRate":1}"#,
        r#""infiniband-guid":"24:8a:07:03:00:8d:ae:2f""#,
    ] {
        assert!(asked_plain(keys).try_plan().is_err(), "{keys}");
        let permissive = asked_plain(keys).node(r#""ipRequestPolicy":"permissive""#).plan();
        assert_eq!(permissive.warnings[0].event, Reason::CapabilityMissing, "{keys}");
    }
    let plan = asked_plain(r#""ips":["10.0.0.1"]"#).plan();
    assert!(!plan.delegates[1].verify.is_empty() && !plan.warnings.is_empty());
}

#[test]
fn v11_4_1_2_1_7_2_v11_4_1_2_1_7_2_1_v11_4_1_2_1_7_2_2_port_mappings_need_the_capability() {
    let mapping = r#""portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"TCP"}]"#;
    let plan = asked(mapping).plan();
    assert_eq!(
        runtime_config(&plan.delegates[1]),
        json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]})
    );
    assert_eq!(asked_plain(mapping).fails().requirement, "V11-4.1.2.1.7.2-2");
}

#[test]
fn v11_4_1_2_1_8_2_1_v11_4_1_2_1_8_2_2_bandwidth_needs_the_capability() {
    let plan = asked(r#""bandwidth":{"egressRate":8000,"egressBurst":200}"#).plan();
    assert_eq!(
        runtime_config(&plan.delegates[1]),
        json!({"bandwidth": {"ingressRate": 0, "ingressBurst": 0, "egressRate": 8000, "egressBurst": 200}})
    );
    assert_eq!(asked_plain(r#""bandwidth":{"egressRate":8000}"#).fails().requirement, "V11-4.1.2.1.8.2-2");
}

#[test]
fn v12_4_1_2_1_10_2_1_v12_4_1_2_1_10_2_2_a_guid_needs_the_capability() {
    let plan = asked(r#""infiniband-guid":"24:8a:07:03:00:8d:ae:2f""#).plan();
    assert_eq!(runtime_config(&plan.delegates[1]), json!({"infinibandGUID": "24:8a:07:03:00:8d:ae:2f"}));
    let fault = asked_plain(r#""infiniband-guid":"24:8a:07:03:00:8d:ae:2f""#).fails();
    assert_eq!(
        (fault.requirement.as_str(), fault.path.to_string().as_str()),
        ("V12-4.1.2.1.10.2-2", "[0].infiniband-guid")
    );
}

#[test]
fn conflict_c2_a_20_byte_mac_becomes_a_guid_where_only_guids_are_understood() {
    let mut world = World::new()
        .networks(r#"[{"name":"ib","mac":"80:00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff:00:11:22"}]"#);
    world.define(
        "home/ib",
        r#"{"cniVersion":"1.0.0","name":"ib","type":"ib-sriov","capabilities":{"infinibandGUID":true}}"#,
    );
    let plan = world.plan();
    assert_eq!(runtime_config(&plan.delegates[1]), json!({"infinibandGUID": "bb:cc:dd:ee:ff:00:11:22"}));
    assert!(plan.delegates[1].args.is_empty() && plan.warnings.is_empty());
    let verify = &plan.delegates[1].verify;
    assert_eq!(
        (&verify.mac, verify.guid.as_ref().map(ToString::to_string).as_deref()),
        (&None, Some("bb:cc:dd:ee:ff:00:11:22"))
    );
}

#[test]
fn v11_4_1_2_1_6_2_1_conflict_c7_the_pods_cni_args_win_and_the_rest_survives() {
    let mut world = World::new().networks(r#"[{"name":"args","cni-args":{"a":"pod","B":"pod"}}]"#);
    world.define(
        "home/args",
        r#"{"cniVersion":"1.0.0","name":"args","plugins":[{"type":"x","args":{"labels":{ "l":1 },"cni":{"a":"net","b":"net","keep":1.0}}},{"type":"y"}]}"#,
    );
    let config = &world.plan().delegates[1].config;
    assert_eq!(
        config,
        r#"{"cniVersion":"1.0.0","name":"args","plugins":[{"type":"x","args":{"labels":{ "l":1 },"cni":{"a":"pod","keep":1.0,"B":"pod"}}},{"type":"y","args":{"cni":{"a":"pod","B":"pod"}}}]}"#
    );
}

#[test]
fn m9_conflict_c7_args_of_the_wrong_form_are_refused_when_something_must_go_there() {
    for bad in [r#""args":[]"#, r#""args":"x""#, r#""args":{"cni":7}"#] {
        let mut world = World::new().networks(r#"[{"name":"bad","cni-args":{"a":1}}]"#);
        world.define(
            "home/bad",
            &format!(
                r#"{{"cniVersion":"1.0.0","name":"bad","plugins":[{{"type":"x"}},{{"type":"y",{bad}}}]}}"#
            ),
        );
        let fault = world.fails();
        assert_eq!(
            (fault.requirement.as_str(), fault.path.to_string().as_str()),
            ("C7", "plugins[1].args"),
            "{bad}"
        );
        assert_eq!(fault.subject, "network-attachment-definition home/bad");
    }
}

#[test]
fn conflict_c8_cni_args_must_not_say_something_else_than_the_key() {
    let plan = asked(r#""ips":["10.0.0.1"],"cni-args":{"ips":["10.0.0.1"]}"#).plan();
    assert_eq!(config(&plan.delegates[1])["plugins"][0]["args"]["cni"], json!({"ips": ["10.0.0.1"]}));
    let fault = asked(r#""ips":["10.0.0.1"],"cni-args":{"ips":["10.0.0.2"]}"#).fails();
    assert_eq!((fault.requirement.as_str(), fault.path.to_string().as_str()), ("C8", "[0].ips"));
    assert_eq!(
        asked(r#""mac":"02:00:00:00:00:01","cni-args":{"MAC":"02:00:00:00:00:02"}"#).fails().requirement,
        "C8"
    );
}

#[test]
fn v13_4_1_2_1_11_2_v13_4_1_2_1_11_4_a_claim_is_passed_on_and_nobody_must_understand_it() {
    let plan = asked_plain(r#""ipam-claim-reference":"vm.net""#).plan();
    assert_eq!(
        config(&plan.delegates[1])["plugins"][0]["args"],
        json!({"cni": {"ipam-claim-reference": "vm.net"}})
    );
    assert!(plan.warnings.is_empty() && plan.delegates[1].verify.is_empty());
}

// runtimeConfig of the runtime.

#[test]
fn v11_7_5_1_conflict_c9_m5_what_the_runtime_gave_goes_to_the_default_network_alone() {
    let given = r#""runtimeConfig":{"portMappings":[{"hostPort":1,"containerPort":2}],"bandwidth":{"ingressRate":1},"dns":{"servers":["9.9.9.9"]},"ipRanges":[[]],"aliases":["a"],"cgroupPath":"/x","io.kubernetes.cri.pod-annotations":{"k":"v"}}"#;
    let world = World::new()
        .networks(r#"[{"name":"capable"},{"name":"capable","bandwidth":{"ingressRate":7}}]"#)
        .node(given);
    let plan = world.plan();
    let all = runtime_config(&plan.delegates[0]);
    assert_eq!(all.as_object().unwrap().len(), 7, "{all}");
    assert_eq!(runtime_config(&plan.delegates[1]), json!({}));
    assert_eq!(runtime_config(&plan.delegates[2])["bandwidth"]["ingressRate"], json!(7));
}

#[test]
fn m26_every_well_known_capability_reaches_the_default_network() {
    let plan =
        World::new().node(r#""runtimeConfig":{"dns":{"servers":[]},"ipRanges":[],"aliases":[]}"#).plan();
    assert_eq!(
        plan.delegates[0].runtime_config.to_json(),
        r#"{"dns":{"servers":[]},"ipRanges":[],"aliases":[]}"#
    );
}

#[test]
fn m7_requests_on_the_default_network_are_put_into_its_runtime_config() {
    let mut world = World::new().default_network(r#"[{"name":"capable","namespace":"home","ips":["10.0.0.9"],"portMappings":[{"hostPort":5,"containerPort":6}]}]"#);
    world = world.node(
        r#""runtimeConfig":{"portMappings":[{"hostPort":1,"containerPort":2}],"mac":"02:00:00:00:00:09"}"#,
    );
    let delegate = &world.plan().delegates[0];
    assert_eq!(
        runtime_config(delegate),
        json!({
            "portMappings": [{"hostPort": 1, "containerPort": 2}, {"hostPort": 5, "containerPort": 6, "protocol": "tcp"}],
            "mac": "02:00:00:00:00:09",
            "ips": ["10.0.0.9"]
        })
    );
    assert_eq!(delegate.verify.ips.len(), 1);
}

// Access.

#[test]
fn npwg1_7_4_1_npwg1_7_4_2_what_a_pod_may_not_use_fails_the_pod() {
    let isolated = |networks: &str| World::new().networks(networks).node(r#""namespaceIsolation":true"#);
    assert!(isolated("plain,home/capable,default/plain").try_plan().is_ok());
    let fault = isolated("plain,other/plain").fails();
    assert_eq!((fault.requirement.as_str(), fault.path.to_string().as_str()), ("NPWG1-7.4-2", "[1]"));
    assert_eq!(fault.value, "\"other/plain\"");
    assert!(isolated("other/plain").node(r#""globalNamespaces":"other""#).try_plan().is_ok());
    assert!(isolated("default/plain").node(r#""globalNamespaces":"other""#).try_plan().is_err());
    let mut world = World::new().networks("plain");
    world
        .access
        .denied
        .insert(NetworkReference::new("home", "plain"), "service account web lacks use".into());
    let fault = world.fails();
    assert_eq!(fault.requirement, "NPWG1-7.4-2");
    assert!(fault.reason.contains("lacks use"), "{fault}");
}

#[test]
fn m14_isolation_holds_for_the_default_network_annotation_too() {
    for text in ["other/plain", "plain", r#"[{"name":"plain","namespace":"other"}]"#] {
        let fault = World::new().default_network(text).node(r#""namespaceIsolation":true"#).fails();
        assert_eq!(fault.requirement, "NPWG1-7.4-2", "{text}");
        assert!(fault.subject.contains("v1.multus-cni.io/default-network"), "{fault}");
    }
    let own = World::new().default_network("home/plain").node(r#""namespaceIsolation":true"#);
    assert_eq!(own.plan().delegates[0].network, "home/plain");
    let mut denied = World::new().default_network("home/plain");
    denied.access.denied.insert(NetworkReference::new("home", "plain"), "no".into());
    assert_eq!(denied.fails().requirement, "NPWG1-7.4-2");
    // A pod of a system namespace is held to it as well.
    let mut system = World::new().default_network("other/plain").node(r#""namespaceIsolation":true"#);
    system.pod.namespace = "kube-system".into();
    assert_eq!(system.fails().requirement, "NPWG1-7.4-2");
}

#[test]
fn isolation_does_not_concern_what_the_administrator_names() {
    let world = World::new().node(r#""defaultNetworks":["plain"],"namespaceIsolation":true"#);
    assert_eq!(world.plan().delegates[1].network, "kube-system/plain");
}

// Invalid annotations.

#[test]
fn conflict_c3_npwg1_4_1_2_1_3_2_an_invalid_annotation_is_ignored_with_a_warning() {
    let world = || World::new().networks(r#"[{"name":"plain"},{"name":"capable","ips":[]}]"#);
    let plan = world().plan();
    assert_eq!(shape(&plan), pairs(&[("base", "eth0")]));
    assert_eq!(plan.warnings[0].event, Reason::AnnotationIgnored);
    assert_eq!(plan.warnings[0].fault.requirement, "NPWG1-4.1.2.1.3-2");
    let refusal = world().node(r#""invalidAnnotation":"fail""#).try_plan().unwrap_err();
    assert!(matches!(refusal, Refusal::AnnotationInvalid(_)), "{refusal:?}");
    let mut multus = world();
    multus.flavour = Flavour::Multus;
    assert!(matches!(multus.try_plan(), Err(Refusal::AnnotationInvalid(_))));
}

#[test]
fn conflict_c4_a_failing_attachment_is_never_ignored() {
    for text in
        [r#"[{"name":"plain","ips":["1.1.1.1"],"ipam-claim-reference":"c"}]"#, "[null]", "a,,b", "UPPER", "["]
    {
        World::new().networks(text).fails();
    }
}

#[test]
fn an_invalid_default_network_annotation_leaves_the_nodes_default() {
    let plan = World::new().default_network(r#"[{"name":"plain","mac":"x"}]"#).networks("plain").plan();
    assert_eq!(shape(&plan), pairs(&[("base", "eth0"), ("home/plain", "net1")]));
    assert_eq!(plan.warnings[0].event, Reason::AnnotationIgnored);
}

// The default route.

fn wishes(world: &World) -> Vec<RouteWish> {
    world.plan().delegates.into_iter().map(|d| d.default_route).collect()
}

fn via(list: &[(&str, Option<u32>)]) -> RouteWish {
    let gateways =
        list.iter().map(|(address, metric)| Gateway { address: address.parse().unwrap(), metric: *metric });
    RouteWish::Via { gateways: gateways.collect() }
}

#[test]
fn v11_4_1_2_1_9_2_v11_4_1_2_1_9_3_v11_6_1_the_others_give_the_default_route_up() {
    let world = World::new()
        .networks(r#"[{"name":"plain"},{"name":"plain","default-route":["10.0.0.1","2001:db8::1"]}]"#);
    let give_up = RouteWish::Yield { to: 2, families: Families::Both };
    assert_eq!(wishes(&world), [give_up.clone(), give_up, via(&[("10.0.0.1", None), ("2001:db8::1", None)])]);
    assert_eq!(wishes(&World::new().networks("plain")), [RouteWish::Untouched, RouteWish::Untouched]);
}

#[test]
fn m3_conflict_c13_only_the_families_of_the_gateways_move() {
    let families = |gateway: &str| match &wishes(
        &World::new().networks(&format!(r#"[{{"name":"plain","default-route":["{gateway}"]}}]"#)),
    )[0]
    {
        RouteWish::Yield { families, to: 1 } => *families,
        other => panic!("{other:?}"),
    };
    assert_eq!((families("10.0.0.1"), families("2001:db8::1")), (Families::V4, Families::V6));
}

#[test]
fn conflict_c12_an_empty_list_leaves_the_gateway_to_the_plugins() {
    let world = World::new().networks(r#"[{"name":"plain","default-route":[]}]"#);
    assert_eq!(wishes(&world), [RouteWish::Yield { to: 1, families: Families::OfHolder }, RouteWish::Keep]);
}

#[test]
fn m4_conflict_c14_several_gateways_get_metrics_in_their_order() {
    let world =
        World::new().networks(r#"[{"name":"plain","default-route":["10.0.0.2","2001:db8::1","10.0.0.1"]}]"#);
    assert_eq!(
        wishes(&world)[1],
        via(&[("10.0.0.2", Some(100)), ("2001:db8::1", None), ("10.0.0.1", Some(101))])
    );
}

#[test]
fn conflict_c15_on_the_default_network_nothing_is_taken_from_anybody() {
    let world =
        World::new().default_network(r#"[{"name":"plain","default-route":["10.0.0.1"]}]"#).networks("plain");
    assert_eq!(wishes(&world), [via(&[("10.0.0.1", None)]), RouteWish::Untouched]);
    let both = World::new()
        .default_network(r#"[{"name":"plain","default-route":["10.0.0.1"]}]"#)
        .networks(r#"[{"name":"plain","default-route":["10.0.0.2"]}]"#);
    assert_eq!(both.fails().requirement, "C15");
}

// Devices.

fn sriov(networks: &str) -> World {
    let mut world = World::new().networks(networks);
    world.resource("home/device", "intel.com/sriov");
    world.device("intel.com/sriov", "0000:01:00.1");
    world.device("intel.com/sriov", "0000:01:00.2");
    world
}

#[test]
fn a_device_is_put_where_plugins_look_for_it() {
    let plan = sriov("device").plan();
    let delegate = &plan.delegates[1];
    for plugin in config(delegate)["plugins"].as_array().unwrap() {
        assert_eq!(
            (&plugin["deviceID"], &plugin["pciBusID"]),
            (&json!("0000:01:00.1"), &json!("0000:01:00.1"))
        );
    }
    assert_eq!(delegate.runtime_config.text("deviceID").unwrap().as_deref(), Some("0000:01:00.1"));
}

#[test]
fn di_1_di_2_di_3_the_device_information_file_is_named_and_told() {
    let plan = sriov("device").plan();
    let path = "/var/run/k8s.cni.cncf.io/devinfo/cni/home-device-c1_net1";
    let from = "/var/run/k8s.cni.cncf.io/devinfo/dp/intel.com-sriov-0000:01:00.1-device.json";
    let file = DeviceInfoFile { copy_from: Some(from.into()), path: path.into() };
    assert_eq!(plan.delegates[1].device_info, Some(file));
    assert_eq!(plan.delegates[1].runtime_config.text("CNIDeviceInfoFile").unwrap().as_deref(), Some(path));
    // DI-3: without a device a plugin may still write one, if it declares that it does.
    let without = World::new().networks("device,plain").plan();
    let path = "/var/run/k8s.cni.cncf.io/devinfo/cni/home-device-c1_net1".to_owned();
    assert_eq!(without.delegates[1].device_info, Some(DeviceInfoFile { copy_from: None, path }));
    assert_eq!(without.delegates[2].device_info, None);
}

#[test]
fn m15_no_device_is_given_twice_not_even_by_way_of_the_default_network() {
    let mut world = sriov("device,device");
    let ids = |world: &World| -> Vec<String> {
        let plan = world.plan();
        let ids = plan.delegates.iter().filter_map(|d| d.runtime_config.text("deviceID").unwrap());
        ids.collect()
    };
    assert_eq!(ids(&world), ["0000:01:00.1", "0000:01:00.2"]);
    world = World { pod: world.pod, ..sriov("device") }.default_network("home/device").networks("device");
    assert_eq!(ids(&world), ["0000:01:00.1", "0000:01:00.2"]);
    let third = world.networks("device,device").fails();
    assert!(third.reason.contains("one more device of intel.com/sriov than the 2"), "{third}");
}

#[test]
fn a_missing_device_is_said_so_before_anything_starts() {
    let mut world = World::new().networks("device");
    world.resource("home/device", "intel.com/sriov");
    let fault = world.fails();
    assert!(fault.to_string().contains("intel.com/sriov") && fault.cure.contains("resources"), "{fault}");
}

#[test]
fn conflict_c10_an_asked_for_device_must_be_one_the_pod_has() {
    let plan = sriov(r#"[{"name":"device","deviceID":"0000:01:00.2"},{"name":"device"}]"#).plan();
    let id = |i: usize| plan.delegates[i].runtime_config.text("deviceID").unwrap();
    assert_eq!((id(1).as_deref(), id(2).as_deref()), (Some("0000:01:00.2"), Some("0000:01:00.1")));
    let fault = sriov(r#"[{"name":"device","deviceID":"0000:09:00.9"}]"#).fails();
    assert_eq!((fault.requirement.as_str(), fault.path.to_string().as_str()), ("C10", "[0].deviceID"));
    let free = World::new().networks(r#"[{"name":"device","deviceID":"any"}]"#).plan();
    assert_eq!(free.delegates[1].runtime_config.text("deviceID").unwrap().as_deref(), Some("any"));
}

// The plan as a document.

#[test]
fn a_plan_survives_json_and_a_newer_one_is_left_alone() {
    let plan = sriov(
        r#"[{"name":"capable","ips":["10.0.0.1"],"default-route":["10.0.0.254"],"macc":1},{"name":"plain"}]"#,
    )
    .plan();
    let json = serde_json::to_vec(&plan).unwrap();
    assert_eq!(Plan::read(&json).unwrap(), plan);
    let mut newer: Value = serde_json::from_slice(&json).unwrap();
    newer["version"] = json!(PLAN_VERSION + 1);
    let error = Plan::read(newer.to_string().as_bytes()).unwrap_err();
    assert!(error.code == 6 && error.msg.contains("version 2"), "{error}");
    assert!(Plan::read(b"{}").is_err() && Plan::read(b"").is_err());
}

#[test]
fn a_pod_in_its_nodes_network_has_nothing_to_attach() {
    let mut world = World::new();
    world.pod.host_network = true;
    assert_eq!(world.fails().subject, "pod home/web");
}

#[test]
fn what_a_plan_will_ask_for_can_be_known_before() {
    let world = World::new()
        .networks("plain,other/plain")
        .default_network("home/capable")
        .node(r#""defaultNetworks":["extra","/etc/x"],"multusNamespace":"net""#);
    let wanted: Vec<String> =
        wanted(&world.pod, &world.configuration()).iter().map(ToString::to_string).collect();
    assert_eq!(wanted, ["home/capable", "home/plain", "net/base", "net/extra", "other/plain"]);
}

#[test]
fn warnings_of_the_configuration_and_of_the_annotation_are_in_the_plan() {
    let mut world = World::new().networks(r#"[{"name":"plain","colour":1}]"#).node(r#""socketDir":"/run""#);
    world.flavour = Flavour::Multus;
    let reasons: Vec<Reason> = world.plan().warnings.iter().map(|warning| warning.event).collect();
    assert_eq!(reasons, [Reason::UnknownKey, Reason::UnknownKey]);
}

#[test]
fn a_plan_is_bounded() {
    let large =
        format!(r#"{{"cniVersion":"1.0.0","name":"large","type":"x","pad":"{}"}}"#, "x".repeat(1_000_000));
    let mut world = World::new().networks("large,large,large,large,large");
    world.define("home/large", &large);
    assert_eq!(world.fails().requirement, "bounds");
    let many = format!(
        r#"{{"cniVersion":"1.0.0","name":"many","plugins":[{}{{"type":"x"}}]}}"#,
        r#"{"type":"x"},"#.repeat(20_000)
    );
    let mut world = World::new()
        .networks(&format!(r#"[{{"name":"many","cni-args":{{"a":"{}"}}}}]"#, "x".repeat(200_000)));
    world.define("home/many", &many);
    assert_eq!(world.fails().requirement, "bounds");
    let odd: Vec<String> = (0..5000).map(|number| format!(r#""k{number}{}":1"#, "y".repeat(30))).collect();
    let plan = World::new().networks(&format!(r#"[{{"name":"plain",{}}}]"#, odd.join(","))).plan();
    assert_eq!(plan.warnings.len(), crate::selection::WARNINGS_MAX);
}
