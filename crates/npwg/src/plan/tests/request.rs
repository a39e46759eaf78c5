//! Tests of how requests reach the plugins and are enforced.

use super::*;
use crate::metadata::PodController;

// Requirements: NPWG1-4.1.2.1.3.2-1, V11-4.1.2.1.3.2-1
#[test]
fn ips_request_is_in_args_cni_and_runtime_config() {
    let plan = asked(r#""ips":["10.2.2.42/24","2001:db8::5"]"#).plan();
    let delegate = &plan.delegates[1];
    let config = config(delegate);
    for plugin in config["plugins"].as_array().unwrap() {
        assert_eq!(plugin["args"]["cni"]["ips"], json!(["10.2.2.42/24", "2001:db8::5"]), "{plugin}");
    }
    assert_eq!(runtime_config(delegate), json!({"ips": ["10.2.2.42/24", "2001:db8::5"]}));
}

// Requirements: NPWG1-4.1.2.1.4.2-1, V11-4.1.2.1.4.2-1
#[test]
fn mac_request_is_in_args_cni_and_runtime_config() {
    let plan = asked(r#""mac":"02-23-45-67-89-01""#).plan();
    let delegate = &plan.delegates[1];
    assert_eq!(config(delegate)["plugins"][1]["args"], json!({"cni": {"mac": "02:23:45:67:89:01"}}));
    assert_eq!(runtime_config(delegate), json!({"mac": "02:23:45:67:89:01"}));
    assert_eq!(delegate.args, pairs(&[("MAC", "02:23:45:67:89:01")]));
}

// Requirements: M20
#[test]
fn cni_args_have_an_ip_only_if_one_is_requested() {
    assert_eq!(asked(r#""ips":["10.0.0.1"]"#).plan().delegates[1].args, pairs(&[("IP", "10.0.0.1")]));
    assert_eq!(asked(r#""ips":["10.0.0.1/24"]"#).plan().delegates[1].args, pairs(&[("IP", "10.0.0.1/24")]));
    assert!(asked(r#""ips":["10.0.0.1","::1"]"#).plan().delegates[1].args.is_empty());
}

// Requirements: NPWG1-4.1.2.1.3-3, conflict C1
#[test]
fn ip_request_policy_default_verifies_the_result() {
    let plan = asked_plain(r#""ips":["10.0.0.1"],"mac":"02:00:00:00:00:01""#).plan();
    let verify = &plan.delegates[1].verify;
    assert_eq!(verify.ips.len(), 1);
    assert!(verify.mac.is_some());
    let missing: Vec<Rule> = plan
        .warnings
        .iter()
        .filter(|warning| warning.event == Reason::CapabilityMissing)
        .map(|warning| warning.fault.rule)
        .collect();
    assert_eq!(missing, [Rule::MissingCapability, Rule::MissingCapability]);
    assert_eq!(runtime_config(&plan.delegates[1]), json!({}));
    assert_eq!(config(&plan.delegates[1])["plugins"][0]["args"]["cni"]["ips"], json!(["10.0.0.1"]));
}

// Requirements: V11-4.1.2.1.3.2-2, V11-4.1.2.1.4.2-2
#[test]
fn ip_request_policy_can_require_the_capability() {
    for policy in ["capability", "both"] {
        let node = format!(r#""ipRequestPolicy":"{policy}""#);
        let fault = asked_plain(r#""ips":["10.0.0.1"]"#).node(&node).fails();
        assert_eq!((fault.rule, fault.path.to_string().as_str()), (Rule::MissingCapability, "[0].ips"));
        assert!(fault.hint.contains("capabilities"), "{fault}");
        let fault = asked_plain(r#""mac":"02:00:00:00:00:01""#).node(&node).fails();
        assert_eq!(fault.rule, Rule::MissingCapability);
        assert!(asked(r#""ips":["10.0.0.1"],"mac":"02:00:00:00:00:01""#).node(&node).try_plan().is_ok());
    }
}

#[test]
fn ip_request_policy_applies_to_cni_args_as_well() {
    for policy in ["capability", "both"] {
        let node = format!(r#""ipRequestPolicy":"{policy}""#);
        // Plugins in Go read keys in any case.
        for args in [
            r#"{"ips":["10.0.0.1"]}"#,
            r#"{"mac":"02:00:00:00:00:01"}"#,
            r#"{"other":1,"IPs":["10.0.0.1"]}"#,
            r#"{"ip\u017f":["10.0.0.1"]}"#,
            r#"{"ips":"no list"}"#,
        ] {
            let keys = format!(r#""cni-args":{args}"#);
            let fault = asked_plain(&keys).node(&node).fails();
            assert_eq!(
                (fault.rule, fault.path.to_string().as_str()),
                (Rule::MissingCapability, "[0].cni-args")
            );
            assert!(asked(&keys).node(&node).try_plan().is_ok(), "{keys}");
            assert!(asked_plain(&keys).try_plan().is_ok(), "{keys}: the default");
        }
        assert!(asked_plain(r#""cni-args":{"ipset":1}"#).node(&node).try_plan().is_ok());
    }
}

#[test]
fn conflicting_cni_args_are_found_in_any_case() {
    for args in [r#"{"ips":["10.0.0.2"]}"#, r#"{"IPS":["10.0.0.2"]}"#, r#"{"ips":["10.0.0.1"],"Ips":[]}"#] {
        let fault = asked(&format!(r#""ips":["10.0.0.1"],"cni-args":{args}"#)).fails();
        assert_eq!(fault.rule, Rule::ConflictingCniArgs, "{args}");
    }
    assert!(asked(r#""ips":["10.0.0.1"],"cni-args":{"IPS":["10.0.0.1"]}"#).try_plan().is_ok());
}

// Requirements: conflict C1
#[test]
fn ip_request_policy_decides_what_is_verified() {
    let verify = |policy: &str| {
        let world = asked(r#""ips":["10.0.0.1"]"#).node(&format!(r#""ipRequestPolicy":"{policy}""#));
        !world.plan().delegates[1].verify.ips.is_empty()
    };
    assert_eq!(["capability", "result", "both", "permissive"].map(verify), [false, true, true, false]);
    let permissive = asked_plain(r#""ips":["10.0.0.1"]"#).node(r#""ipRequestPolicy":"permissive""#).plan();
    assert_eq!(permissive.warnings.len(), 1);
}

// Requirements: M6
#[test]
fn requests_are_never_silently_dropped_by_a_plan() {
    // If no plugin declares the capability, the plan refuses the request, verifies the result, or warns.
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

// Requirements: V11-4.1.2.1.7-2, V11-4.1.2.1.7.2-1, V11-4.1.2.1.7.2-2
#[test]
fn port_mappings_request_needs_the_capability() {
    let mapping = r#""portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"TCP"}]"#;
    let plan = asked(mapping).plan();
    assert_eq!(
        runtime_config(&plan.delegates[1]),
        json!({"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]})
    );
    assert_eq!(asked_plain(mapping).fails().rule, Rule::MissingCapability);
}

// Requirements: V11-4.1.2.1.8.2-1, V11-4.1.2.1.8.2-2
#[test]
fn bandwidth_request_needs_the_capability() {
    let plan = asked(r#""bandwidth":{"egressRate":8000,"egressBurst":200}"#).plan();
    assert_eq!(
        runtime_config(&plan.delegates[1]),
        json!({"bandwidth": {"ingressRate": 0, "ingressBurst": 0, "egressRate": 8000, "egressBurst": 200}})
    );
    assert_eq!(asked_plain(r#""bandwidth":{"egressRate":8000}"#).fails().rule, Rule::MissingCapability);
}

// Requirements: V12-4.1.2.1.10.2-1, V12-4.1.2.1.10.2-2
#[test]
fn guid_request_needs_the_capability() {
    let plan = asked(r#""infiniband-guid":"24:8a:07:03:00:8d:ae:2f""#).plan();
    assert_eq!(runtime_config(&plan.delegates[1]), json!({"infinibandGUID": "24:8a:07:03:00:8d:ae:2f"}));
    let fault = asked_plain(r#""infiniband-guid":"24:8a:07:03:00:8d:ae:2f""#).fails();
    assert_eq!(
        (fault.rule, fault.path.to_string().as_str()),
        (Rule::MissingCapability, "[0].infiniband-guid")
    );
}

// Requirements: conflict C2
#[test]
fn mac_of_20_bytes_becomes_a_guid_for_plugins_without_mac() {
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
    // A plugin with both capabilities gets the whole address, and the result is compared with all of it.
    let both = asked(r#""mac":"80:00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff:00:11:22""#).plan();
    assert_eq!(both.delegates[1].runtime_config.iter().map(|(key, _)| key).collect::<Vec<_>>(), ["mac"]);
    assert!(both.delegates[1].verify.mac.is_some() && both.delegates[1].verify.guid.is_none());
}

// Requirements: V11-4.1.2.1.6.2-1, conflict C7
#[test]
fn cni_args_of_the_pod_override_args_of_the_plugin() {
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

// Requirements: M9, conflict C7
#[test]
fn args_not_an_object_are_refused_if_requests_are_added() {
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
            (fault.rule, fault.path.to_string().as_str()),
            (Rule::MalformedArgs, "plugins[1].args"),
            "{bad}"
        );
        assert_eq!(fault.subject, "network-attachment-definition home/bad");
    }
}

// Requirements: conflict C8
#[test]
fn cni_args_contradicting_a_request_are_refused() {
    let plan = asked(r#""ips":["10.0.0.1"],"cni-args":{"ips":["10.0.0.1"]}"#).plan();
    assert_eq!(config(&plan.delegates[1])["plugins"][0]["args"]["cni"], json!({"ips": ["10.0.0.1"]}));
    let fault = asked(r#""ips":["10.0.0.1"],"cni-args":{"ips":["10.0.0.2"]}"#).fails();
    assert_eq!((fault.rule, fault.path.to_string().as_str()), (Rule::ConflictingCniArgs, "[0].ips"));
    assert_eq!(
        asked(r#""mac":"02:00:00:00:00:01","cni-args":{"MAC":"02:00:00:00:00:02"}"#).fails().rule,
        Rule::ConflictingCniArgs
    );
}

// Requirements: V13-4.1.2.1.11-2, V13-4.1.2.1.11-4
#[test]
fn ipam_claim_reference_is_passed_without_a_capability() {
    let plan = asked_plain(r#""ipam-claim-reference":"vm.net""#).plan();
    assert_eq!(
        config(&plan.delegates[1])["plugins"][0]["args"],
        json!({"cni": {"ipam-claim-reference": "vm.net"}})
    );
    assert!(plan.warnings.is_empty() && plan.delegates[1].verify.is_empty());
    let twice = r#""ipam-claim-reference":"vm.net","cni-args":{"ipam-claim-reference":"CLAIM"}"#;
    assert!(asked_plain(&twice.replace("CLAIM", "vm.net")).try_plan().is_ok());
    assert_eq!(asked_plain(twice).fails().rule, Rule::ConflictingCniArgs);
}

// Requirements: V11-7.5-1, conflict C9, M5
#[test]
fn runtime_config_is_only_for_the_default_network() {
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

// Requirements: M26
#[test]
fn capabilities_all_reach_the_default_network() {
    let plan =
        World::new().node(r#""runtimeConfig":{"dns":{"servers":[]},"ipRanges":[],"aliases":[]}"#).plan();
    assert_eq!(
        plan.delegates[0].runtime_config.to_json(),
        r#"{"dns":{"servers":[]},"ipRanges":[],"aliases":[]}"#
    );
}

// Requirements: M7
#[test]
fn requests_for_the_default_network_are_in_its_runtime_config() {
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

#[test]
fn virtual_machine_is_named_to_the_ipam_plugin_of_its_pod_alone() {
    let kept = r#"{"cniVersion":"1.0.0","name":"kept","type":"macvlan","ipam":{"type":"weft-ipam","range":"10.0.0.0/24"}}"#;
    let denied = kept.replace(r#""type":"macvlan""#, r#""type":"macvlan","allowPersistentIPs":false"#);
    let forged = r#"[{"name":"kept","cni-args":{"weft.dev/virtual-machine":"debian"}},"denied","plain"]"#;
    let forged = forged.replace(r#""denied","plain""#, r#"{"name":"denied"},{"name":"plain"}"#);
    let args = |controller: Option<PodController>| {
        let mut world = World::new().networks(&forged);
        world.define("home/kept", kept);
        world.define("home/denied", &denied);
        world.pod.controller = controller;
        let plan = world.plan();
        let args =
            |delegate| config(delegate)["plugins"][0]["args"]["cni"]["weft.dev/virtual-machine"].clone();
        plan.delegates[1..].iter().map(args).collect::<Vec<Value>>()
    };
    let owner = |kind: &str, version: &str| {
        let (api_version, kind) = (version.to_owned(), kind.to_owned());
        Some(PodController { api_version, kind, name: "fedora".into(), uid: "u".into() })
    };
    let machine = owner("VirtualMachineInstance", "kubevirt.io/v1");
    assert_eq!(args(machine), [json!("fedora"), Value::Null, Value::Null]);
    for other in [None, owner("ReplicaSet", "apps/v1"), owner("VirtualMachineInstance", "example.com/v1")] {
        assert_eq!(args(other), [Value::Null, Value::Null, Value::Null]);
    }
}
