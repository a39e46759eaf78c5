//! Tests of the two annotations.

use super::*;
use crate::refusal::KeyPath;

fn reading(text: &str) -> Reading {
    Reading::of(Annotation::Networks, text, "home")
}

fn select(text: &str) -> Vec<Element> {
    reading(text).settle().unwrap().elements
}

fn names(text: &str) -> Vec<String> {
    select(text).iter().map(|element| element.network.to_string()).collect()
}

/// Asserts that the annotation is invalid because of this rule at this path.
fn invalid(text: &str, rule: Rule, path: &str) {
    match reading(text).settle() {
        Err(Refusal::AnnotationInvalid(fault)) => {
            assert_eq!((fault.rule, fault.path.to_string().as_str()), (rule, path), "{text}");
        }
        other => panic!("{text}: {other:?}"),
    }
}

/// Asserts that an attachment fails because of this rule at this path.
fn fails(text: &str, rule: Rule, path: &str) {
    match reading(text).settle() {
        Err(Refusal::AttachmentFailed(fault)) => {
            assert_eq!((fault.rule, fault.path.to_string().as_str()), (rule, path), "{text}");
        }
        other => panic!("{text}: {other:?}"),
    }
}

/// Returns an annotation with one element `net-b` and these further keys.
fn with(keys: &str) -> String {
    format!(r#"[{{"name":"net-b",{keys}}}]"#)
}

// Requirements: NPWG1-4.1-1
#[test]
fn annotation_keys() {
    assert_eq!(Annotation::Networks.key(), "k8s.v1.cni.cncf.io/networks");
    assert_eq!(Annotation::DefaultNetwork.key(), "v1.multus-cni.io/default-network");
}

// Requirements: NPWG1-4.1-2
#[test]
fn annotation_forms_are_equivalent() {
    let expected = ["home/net-a", "home/net-b", "other-ns/net-c"];
    assert_eq!(names("net-a,net-b,other-ns/net-c"), expected);
    assert_eq!(
        names(r#"[{"name":"net-a"},{"name":"net-b"},{"name":"net-c","namespace":"other-ns"}]"#),
        expected
    );
}

// Requirements: NPWG1-4.1.1-1
#[test]
fn reference_is_name_or_namespace_and_name() {
    assert_eq!(names(" net-a ,\n other-ns/net-c\t"), ["home/net-a", "other-ns/net-c"]);
    let two = select("net-a@first,other/net-a@second");
    assert_eq!(two[0].interface.as_ref().map(IfName::as_str), Some("first"));
    assert_eq!(two[1].interface.as_ref().map(IfName::as_str), Some("second"));
    for bad in ["net-a,", ",net-a", "a,,b", "a/b/c", "a/", "A", "a b", "-a", "net_a"] {
        let reading = reading(bad);
        assert!(!reading.refusals.is_empty(), "{bad:?}");
    }
    fails("net-a,a/b/c", Rule::MalformedNetworkReference, "[1]");
    assert_eq!(reading("net-a,a/b/c").settle().unwrap_err().fault().value, "\"a/b/c\"");
}

// Requirements: NPWG1-4.1.2.1-1
#[test]
fn unknown_key_without_a_dot_is_a_warning() {
    let reading = reading(&with(r#""example.com/colour":"red","io.example.key":1,"macc":"x","ipps":[]"#));
    assert!(reading.refusals.is_empty());
    let unknown: Vec<(Reason, String, &str)> = reading
        .warnings
        .iter()
        .map(|warning| (warning.event, warning.fault.path.to_string(), warning.fault.hint.as_str()))
        .collect();
    assert_eq!(
        unknown,
        [
            (Reason::UnknownKey, "[0].macc".to_owned(), "did you mean mac?"),
            (Reason::UnknownKey, "[0].ipps".to_owned(), "did you mean ips?"),
        ]
    );
}

// Requirements: NPWG1-4.1.2.1.1-1
#[test]
fn name_is_required_and_namespace_defaults_to_the_pods() {
    assert_eq!(
        names(r#"[{"name":"a"},{"name":"b","namespace":""},{"name":"c","namespace":null}]"#),
        ["home/a", "home/b", "home/c"]
    );
    fails(r#"[{"namespace":"x"}]"#, Rule::MissingNetworkName, "[0]");
    fails(r#"[{"name":null}]"#, Rule::MissingNetworkName, "[0]");
    fails(r#"[{"name":""}]"#, Rule::InvalidNetworkName, "[0].name");
    fails(r#"[{"name":5}]"#, Rule::InvalidNetworkName, "[0].name");
    fails(r#"[{"name":"a/b"}]"#, Rule::InvalidNetworkName, "[0].name");
}

// Requirements: NPWG1-3.3-1, NPWG1-4.1.2.1.2-1
#[test]
fn name_and_namespace_are_checked_in_json() {
    for bad in ["A", "-a", "a-", "a_b"] {
        fails(&format!(r#"[{{"name":"{bad}"}}]"#), Rule::InvalidNetworkName, "[0].name");
        fails(&format!(r#"[{{"name":"a","namespace":"{bad}"}}]"#), Rule::InvalidNamespace, "[0].namespace");
    }
    assert_eq!(names(r#"[{"name":"1a","namespace":"0"}]"#), ["0/1a"]);
    fails(r#"[{"name":"a","namespace":["x"]}]"#, Rule::InvalidNamespace, "[0].namespace");
}

// Requirements: NPWG1-4.1.2.1.3-1, NPWG1-4.1.2.1.3-2
#[test]
fn ips_have_at_least_one_valid_address() {
    let ips = |text: &str| select(&with(text))[0].ips.iter().map(|ip| ip.to_string()).collect::<Vec<_>>();
    assert_eq!(ips(r#""ips":["10.2.2.42","2001:db8::5"]"#), ["10.2.2.42", "2001:db8::5"]);
    assert_eq!(ips(r#""ips":["10.2.2.42","10.2.2.42"]"#), ["10.2.2.42"]);
    assert_eq!(ips(r#""ips":null"#), [""; 0]);
    invalid(&with(r#""ips":[]"#), Rule::InvalidIps, "[0].ips");
    invalid(&with(r#""ips":["x"]"#), Rule::InvalidIps, "[0].ips[0]");
    invalid(&with(r#""ips":["10.0.0.1","10.0.0.256"]"#), Rule::InvalidIps, "[0].ips[1]");
    invalid(&with(r#""ips":"10.0.0.1""#), Rule::InvalidIps, "[0].ips");
    invalid(&with(r#""ips":[10]"#), Rule::InvalidIps, "[0].ips[0]");
    invalid(&with(r#""ips":[""]"#), Rule::InvalidIps, "[0].ips[0]");
}

// Requirements: V11-4.1.2.1.3-1
#[test]
fn ips_can_have_a_prefix_length() {
    let element = &select(&with(r#""ips":["10.2.2.42/24","2001:db8::5/64"]"#))[0];
    assert_eq!(element.ips.iter().map(|ip| ip.prefix).collect::<Vec<_>>(), [Some(24), Some(64)]);
    invalid(&with(r#""ips":["10.2.2.42/33"]"#), Rule::InvalidIps, "[0].ips[0]");
}

// Requirements: NPWG1-4.1.2.1.4-1, NPWG1-4.1.2.1.4-2, conflict C2
#[test]
fn mac_has_6_or_20_bytes() {
    let mac = |text: &str| select(&with(text))[0].mac.as_ref().map(|mac| mac.to_string());
    assert_eq!(mac(r#""mac":"AA-BB-CC-dd-ee-ff""#).as_deref(), Some("aa:bb:cc:dd:ee:ff"));
    let long = "80:00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff:00:11:22";
    assert_eq!(mac(&format!(r#""mac":"{long}""#)).as_deref(), Some(long));
    assert_eq!(mac(r#""mac":"0223.4567.8901""#).as_deref(), Some("02:23:45:67:89:01"));
    for bad in [r#""aa:bb:cc:dd:ee""#, r#""aa:bb:cc:dd:ee:ff:00:11""#, r#""aabb.ccdd""#, r#"" ""#, "7", "[]"]
    {
        invalid(&with(&format!(r#""mac":{bad}"#)), Rule::InvalidMac, "[0].mac");
    }
}

// Requirements: V12-4.1.2.1.4-1
#[test]
fn mac_of_6_bytes_is_valid_in_every_version() {
    // v1.2 removed 20-byte addresses. weft reads both lengths (C2), so every address that is valid in v1.2 is valid here.
    let element = &select(&with(r#""mac":"02:23:45:67:89:01""#))[0];
    assert_eq!(element.mac.as_ref().map(|mac| mac.bytes().len()), Some(6));
}

// Requirements: NPWG1-4.1.2.1.5-1, NPWG1-4.1.2.1.5-2
#[test]
fn interface_name_must_be_valid_for_the_kernel() {
    let interface = |text: &str| select(&with(text))[0].interface.clone().map(|name| name.to_string());
    assert_eq!(interface(r#""interface":"exactly15bytes_""#).as_deref(), Some("exactly15bytes_"));
    for bad in ["\\ud800", "sixteen-bytes---", ".", "..", "a/b", "a:b", "a b", "a\\u0000b"] {
        invalid(&with(&format!(r#""interface":"{bad}""#)), Rule::InvalidInterfaceName, "[0].interface");
    }
    invalid(&with(r#""interface":1"#), Rule::InvalidInterfaceName, "[0].interface");
    invalid("net-a@sixteen-bytes---", Rule::InvalidInterfaceName, "[0]");
}

#[test]
fn empty_values_count_as_absent_with_a_warning() {
    let keys = r#""interface":"","interfaceRequest":"","mac":"","infiniband-guid":"","ipam-claim-reference":"","portMappings":[],"bandwidth":{}"#;
    let read = reading(&with(keys));
    let rules: Vec<Rule> = read.warnings.iter().map(|warning| warning.fault.rule).collect();
    assert_eq!(rules, [Rule::EmptyValue; 7]);
    let element = &read.settle().unwrap().elements[0];
    assert!(element.interface.is_none() && element.mac.is_none() && element.guid.is_none());
    assert!(element.requests().is_empty(), "{:?}", element.requests());
    for (text, interface, warnings) in
        [("net-a@", None, 1), ("/net-a", None, 1), ("/net-a@", None, 2), ("net-a @ net7", Some("net7"), 0)]
    {
        let read = reading(text);
        assert_eq!(read.warnings.len(), warnings, "{text}");
        let elements = read.settle().unwrap().elements;
        assert_eq!(elements[0].network.to_string(), "home/net-a", "{text}");
        assert_eq!(elements[0].interface.as_ref().map(IfName::as_str), interface, "{text}");
    }
}

#[test]
fn interface_request_is_the_old_name_of_interface() {
    let element = &select(&with(r#""interfaceRequest":"old0""#))[0];
    assert_eq!(element.interface.as_ref().map(IfName::as_str), Some("old0"));
    assert!(reading(&with(r#""interfaceRequest":"a","interface":"a""#)).settle().is_ok());
    fails(
        &with(r#""interfaceRequest":"a","interface":"b""#),
        Rule::ConflictingInterfaceNames,
        "[0].interfaceRequest",
    );
}

// Requirements: V11-4.1.2.1.6-1
#[test]
fn cni_args_is_an_object_and_keeps_its_bytes() {
    let element = &select(&with(r#""cni-args":{ "b":12345678901234567890123, "a":{ "x" : 1.0 } }"#))[0];
    assert_eq!(element.cni_args.to_json(), r#"{"b":12345678901234567890123,"a":{ "x" : 1.0 }}"#);
    assert!(select(&with(r#""cni-args":null"#))[0].cni_args.is_empty());
    for bad in ["[]", "1", "\"x\"", "true"] {
        invalid(&with(&format!(r#""cni-args":{bad}"#)), Rule::InvalidCniArgs, "[0].cni-args");
    }
}

// Requirements: V11-4.1.2.1.7-1
#[test]
fn port_mappings_values_and_errors() {
    let text = r#""portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"},{"hostPort":1,"containerPort":65535,"protocol":"SCTP","hostIP":"10.0.0.1"},{"hostPort":53,"containerPort":53,"protocol":"Udp"},{"hostPort":2,"containerPort":2}]"#;
    let json = serde_json::to_string(&select(&with(text))[0].port_mappings).unwrap();
    assert_eq!(
        json,
        concat!(
            r#"[{"hostPort":8080,"containerPort":80,"protocol":"tcp"},"#,
            r#"{"hostPort":1,"containerPort":65535,"protocol":"sctp","hostIP":"10.0.0.1"},"#,
            r#"{"hostPort":53,"containerPort":53,"protocol":"udp"},"#,
            r#"{"hostPort":2,"containerPort":2,"protocol":"tcp"}]"#
        )
    );
    let bad = |value: &str, path: &str| {
        invalid(
            &with(&format!(r#""portMappings":{value}"#)),
            Rule::InvalidPortMapping,
            &format!("[0].portMappings{path}"),
        );
    };
    bad("{}", "");
    bad("[1]", "[0]");
    bad(r#"[{"hostPort":1}]"#, "[0]");
    bad(r#"[{"hostPort":0,"containerPort":1}]"#, "[0].hostPort");
    bad(r#"[{"hostPort":65536,"containerPort":1}]"#, "[0].hostPort");
    bad(r#"[{"hostPort":1,"containerPort":-1}]"#, "[0].containerPort");
    bad(r#"[{"hostPort":1.5,"containerPort":1}]"#, "[0].hostPort");
    bad(r#"[{"hostPort":"80","containerPort":1}]"#, "[0].hostPort");
    bad(r#"[{"hostPort":1,"containerPort":1,"protocol":"icmp"}]"#, "[0].protocol");
    bad(r#"[{"hostPort":1,"containerPort":1,"hostIP":"x"}]"#, "[0].hostIP");
}

// Requirements: V11-4.1.2.1.8-1, V11-4.1.2.1.8.2-1
#[test]
fn bandwidth_values_and_errors() {
    let element =
        &select(&with(r#""bandwidth":{"ingressRate":2048,"ingressBurst":1600,"egressRate":4096}"#))[0];
    let json = serde_json::to_string(&element.bandwidth).unwrap();
    assert_eq!(
        json,
        r#"{"ingressRate":2048,"ingressBurst":1600,"egressRate":4096,"egressBurst":2147483647}"#
    );
    let bad = |value: &str, path: &str| {
        invalid(
            &with(&format!(r#""bandwidth":{value}"#)),
            Rule::InvalidBandwidth,
            &format!("[0].bandwidth{path}"),
        );
    };
    bad("[]", "");
    bad(r#"{"ingressRate":0}"#, ".ingressRate");
    bad(r#"{"ingressRate":-1}"#, ".ingressRate");
    bad(r#"{"ingressRate":"1M"}"#, ".ingressRate");
    bad(r#"{"ingressBurst":5}"#, "");
    bad(r#"{"ingressRate":5,"egressBurst":5}"#, "");
    bad(r#"{"egressRate":5,"egressBurst":0}"#, ".egressBurst");
}

// Requirements: V11-4.1.2.1.9-1
#[test]
fn default_route_is_requested_by_at_most_one_element() {
    let one = &select(r#"[{"name":"a"},{"name":"b","default-route":["10.0.0.1","2001:db8::1"]}]"#)[1];
    assert!(matches!(&one.default_route, DefaultRoute::Via(list) if list.len() == 2));
    invalid(
        r#"[{"name":"a","default-route":[]},{"name":"b","default-route":["10.0.0.1"]}]"#,
        Rule::DuplicateDefaultRoute,
        "[1].default-route",
    );
    invalid(&with(r#""default-route":["10.0.0.1/24"]"#), Rule::InvalidDefaultRoute, "[0].default-route[0]");
    invalid(&with(r#""default-route":"10.0.0.1""#), Rule::InvalidDefaultRoute, "[0].default-route");
}

#[test]
fn default_route_by_an_address_of_its_own_is_invalid() {
    for (ips, gateway) in [("10.0.0.2/24", "10.0.0.2"), ("10.0.0.2", "10.0.0.2"), ("fd00::2/64", "fd00::2")] {
        let keys = format!(r#""ips":["192.0.2.1","{ips}"],"default-route":["{gateway}"]"#);
        invalid(&with(&keys), Rule::InvalidDefaultRoute, "[0].default-route");
    }
    let other = with(r#""ips":["10.0.0.2/24"],"default-route":["10.0.0.1"]"#);
    assert!(select(&other)[0].default_route.is_requested());
}

// Requirements: conflict C12
#[test]
fn default_route_empty_list_is_a_request() {
    assert_eq!(select(&with(r#""default-route":[]"#))[0].default_route, DefaultRoute::FromPlugins);
    assert_eq!(select(&with(r#""default-route":null"#))[0].default_route, DefaultRoute::NotRequested);
}

// Requirements: conflict C14
#[test]
fn default_route_gateways_keep_their_order() {
    let element = &select(&with(r#""default-route":["10.0.0.2","10.0.0.1","10.0.0.2"]"#))[0];
    let DefaultRoute::Via(gateways) = &element.default_route else { panic!("{element:?}") };
    assert_eq!(gateways.iter().map(|gw| gw.to_string()).collect::<Vec<_>>(), ["10.0.0.2", "10.0.0.1"]);
}

// Requirements: V12-4.1.2.1.10-1
#[test]
fn guid_has_8_bytes() {
    let element = &select(&with(r#""infiniband-guid":"24:8A:07:03:00:8d:ae:2f""#))[0];
    assert_eq!(
        element.guid.as_ref().map(|guid| guid.to_string()).as_deref(),
        Some("24:8a:07:03:00:8d:ae:2f")
    );
    for bad in ["24:8a:07:03:00:8d", "80:00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff:00:11:22", "x"] {
        invalid(
            &with(&format!(r#""infiniband-guid":"{bad}""#)),
            Rule::InvalidInfinibandGuid,
            "[0].infiniband-guid",
        );
    }
}

// Requirements: conflict C11
#[test]
fn mac_and_guid_must_match() {
    let mac = r#""mac":"80:00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff:00:11:22""#;
    assert!(
        reading(&with(&format!(r#"{mac},"infiniband-guid":"bb:cc:dd:ee:ff:00:11:22""#))).settle().is_ok()
    );
    let other = format!(r#"{mac},"infiniband-guid":"bb:cc:dd:ee:ff:00:11:23""#);
    invalid(&with(&other), Rule::MacGuidMismatch, "[0].infiniband-guid");
    let ethernet = r#""mac":"02:23:45:67:89:01","infiniband-guid":"bb:cc:dd:ee:ff:00:11:22""#;
    invalid(&with(ethernet), Rule::MacGuidMismatch, "[0].infiniband-guid");
}

// Requirements: V13-4.1.2.1.11-1
#[test]
fn ipam_claim_reference_values_and_errors() {
    let element = &select(&with(r#""ipam-claim-reference":"vm123.tenantblue""#))[0];
    assert_eq!(element.ipam_claim.as_deref(), Some("vm123.tenantblue"));
    fails(
        &with(r#""ipam-claim-reference":"Not A Name""#),
        Rule::InvalidIpamClaim,
        "[0].ipam-claim-reference",
    );
    fails(&with(r#""ipam-claim-reference":1"#), Rule::InvalidIpamClaim, "[0].ipam-claim-reference");
}

// Requirements: V13-4.1.2.1.11-3
#[test]
fn ipam_claim_reference_with_ips_fails_the_attachment() {
    let text = with(r#""ips":["10.0.0.1"],"ipam-claim-reference":"claim""#);
    fails(&text, Rule::IpsWithIpamClaim, "[0].ipam-claim-reference");
}

/// OVN-Kubernetes writes both for the primary network of a virtual machine.
#[test]
fn ipam_claim_beside_ips_of_the_default_is_a_warning() {
    let text = r#"[{"name":"default","namespace":"ovn-kubernetes","mac":"0a:58:0a:80:00:4d","ips":["10.128.0.77/24"],"ipam-claim-reference":"vm-a.default"}]"#;
    let reading = Reading::of(Annotation::DefaultNetwork, text, "home");
    assert_eq!(
        reading.warnings.iter().map(|one| one.fault.rule).collect::<Vec<_>>(),
        [Rule::IpsWithIpamClaim]
    );
    let element = &reading.settle().unwrap().elements[0];
    assert!(element.ipam_claim.is_some() && element.ips.len() == 1);
}

#[test]
fn network_reference_with_two_interfaces_fails() {
    for text in ["ok@net1@net2", "ns/ok@net1@", "ok@@net1"] {
        fails(text, Rule::MalformedNetworkReference, "[0]");
    }
}

// Requirements: NPWG1-4.2-1
#[test]
fn network_can_be_selected_several_times() {
    assert_eq!(names("net-a,net-a"), ["home/net-a", "home/net-a"]);
    assert_eq!(select("net-a,net-a").iter().map(|element| element.index).collect::<Vec<_>>(), [0, 1]);
}

// Requirements: conflict C4
#[test]
fn invalid_annotation_is_reported_before_a_failing_attachment() {
    let text = r#"[{"name":"UPPER"},{"name":"b","ips":["1.1.1.1"],"ipam-claim-reference":"c"},{"name":"c","mac":"x"}]"#;
    assert_eq!(reading(text).refusals.len(), 3);
    invalid(text, Rule::InvalidMac, "[2].mac");
}

// Requirements: conflict C16
#[test]
fn annotation_form_is_decided_by_the_first_character() {
    assert!(select("").is_empty() && select(" \n ").is_empty() && select("[]").is_empty());
    assert_eq!(names("\n  [ {\"name\":\"a\"} ]\n"), ["home/a"]);
    fails(r#"{"name":"a"}"#, Rule::MalformedAnnotation, "");
    fails(r#""a""#, Rule::MalformedAnnotation, "");
    fails("[", Rule::MalformedAnnotation, "");
    fails(r#"[{"name":"a"},]"#, Rule::MalformedAnnotation, "");
    fails(r#"[{"name":"a"}] x"#, Rule::MalformedAnnotation, "");
    // A comma-form item that is not a name is refused wherever the bracket is.
    fails("a,[b]", Rule::MalformedNetworkReference, "[1]");
}

// Requirements: M9, conflict C16
#[test]
fn null_elements_and_empty_default_network_are_refused() {
    fails("[null]", Rule::MalformedAnnotation, "[0]");
    fails(r#"[{"name":"a"},"b"]"#, Rule::MalformedAnnotation, "[1]");
    let default = |text: &str| Reading::of(Annotation::DefaultNetwork, text, "kube-system").settle();
    assert!(
        matches!(default("[]"), Err(Refusal::AttachmentFailed(fault)) if fault.rule == Rule::DefaultNetworkCount)
    );
    assert!(
        matches!(default("a,b"), Err(Refusal::AttachmentFailed(fault)) if fault.rule == Rule::DefaultNetworkCount)
    );
    assert!(matches!(default("[null]"), Err(Refusal::AttachmentFailed(_))));
    assert_eq!(default("calico").unwrap().elements[0].network.to_string(), "kube-system/calico");
    let json = default(r#"[{"name":"calico","namespace":"net","ips":["10.0.0.9"]}]"#).unwrap();
    assert_eq!(json.elements[0].ips.len(), 1);
}

// Requirements: M8
#[test]
fn values_that_multus_accepts_by_mistake_are_invalid() {
    invalid(&with(r#""ips":[]"#), Rule::InvalidIps, "[0].ips");
    invalid(&with(r#""interface":"a/b""#), Rule::InvalidInterfaceName, "[0].interface");
    invalid(&with(r#""mac":"24:8a:07:03:00:8d:ae:2f""#), Rule::InvalidMac, "[0].mac");
    invalid(
        &with(r#""infiniband-guid":"24:8a:07:03:00:8d""#),
        Rule::InvalidInfinibandGuid,
        "[0].infiniband-guid",
    );
}

// Requirements: M26
#[test]
fn ipam_claim_reference_is_read() {
    assert!(select(&with(r#""ipam-claim-reference":"claim""#))[0].ipam_claim.is_some());
}

// Requirements: conflict C18
#[test]
fn definition_name_with_dots_is_read_in_both_forms() {
    assert_eq!(names("net.v2"), ["home/net.v2"]);
    assert_eq!(names(r#"[{"name":"net.v2"}]"#), ["home/net.v2"]);
}

#[test]
fn keys_are_matched_as_in_go() {
    let element = &select(r#"[{"Name":"a","IPs":["10.0.0.1"],"deviceid":"0000:01:02.3"}]"#)[0];
    assert_eq!(element.network.name, "a");
    assert_eq!(element.ips.len(), 1);
    assert_eq!(element.device_id.as_deref(), Some("0000:01:02.3"));
}

#[test]
fn annotation_size_is_limited() {
    let many = vec!["a"; ELEMENTS_MAX].join(",");
    assert_eq!(select(&many).len(), ELEMENTS_MAX);
    fails(&format!("{many},a"), Rule::AnnotationTooLarge, "");
    fails(&"a".repeat(ANNOTATION_MAX + 1), Rule::AnnotationTooLarge, "");
    let deep = format!(r#"[{{"name":"a","cni-args":{}1{}}}]"#, "{\"a\":".repeat(5000), "}".repeat(5000));
    assert!(reading(&deep).settle().is_err());
}

#[test]
fn fault_text_has_path_and_value() {
    let refusal = reading(&with(r#""ips":["10.0.0.256"]"#)).settle().unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "annotation k8s.v1.cni.cncf.io/networks: [0].ips[0]: \"10.0.0.256\": is not an IPv4 or IPv6 address, with or without a prefix length"
    );
    assert_eq!(refusal.fault().path, KeyPath::root().index(0).key("ips").index(0));
}

// Requirements: conflict C10
#[test]
fn device_id_values_and_errors() {
    assert_eq!(select(&with(r#""deviceID":"""#))[0].device_id, None);
    assert!(reading(&with(&format!(r#""deviceID":"{}""#, "x".repeat(253)))).settle().is_ok());
    for bad in [format!("\"{}\"", "x".repeat(254)), "\"a\\nb\"".to_owned(), "5".to_owned()] {
        fails(&with(&format!(r#""deviceID":{bad}"#)), Rule::InvalidDeviceId, "[0].deviceID");
    }
}

#[test]
fn resource_name_values_and_errors() {
    assert_eq!(select(&with(r#""resourceName":"a.b/c""#))[0].resource.as_deref(), Some("a.b/c"));
    assert_eq!(select(&with(r#""resourceName":"""#))[0].resource, None);
    for bad in ["\"vf\"", "5", "[\"a/b\"]"] {
        fails(&with(&format!(r#""resourceName":{bad}"#)), Rule::InvalidResourceName, "[0].resourceName");
    }
}

#[test]
fn warnings_are_limited_and_omit_long_keys() {
    let long = "x".repeat(65);
    let found = reading(&with(&format!(r#""{long}":1,"{}":1"#, &long[..64])));
    let paths: Vec<String> = found.warnings.iter().map(|warning| warning.fault.path.to_string()).collect();
    assert_eq!(paths, ["[0]".to_owned(), format!("[0].{}", &long[..64])]);
    let element = format!(
        r#"{{"name":"a",{}}}"#,
        (0..12).map(|n| format!(r#""k{n}":1"#)).collect::<Vec<_>>().join(",")
    );
    assert_eq!(reading(&format!("[{element},{element}]")).warnings.len(), WARNINGS_MAX);
}

#[test]
fn renamed_default_interface_is_a_warning() {
    let text = r#"[{"name":"a","interface":"x0"}]"#;
    let default = Reading::of(Annotation::DefaultNetwork, text, "kube-system");
    assert_eq!(default.warnings.iter().map(|w| w.event).collect::<Vec<_>>(), [Reason::Questionable]);
    assert!(reading(text).warnings.is_empty());
    assert!(Reading::of(Annotation::DefaultNetwork, r#"[{"name":"a"}]"#, "kube-system").warnings.is_empty());
}

// Requirements: conflict C16
#[test]
fn annotation_of_unknown_form_is_named() {
    let reason = |text: &str| reading(text).settle().unwrap_err().to_string();
    assert!(reason(r#"{"name":"a"}"#).contains("is a JSON object, not a list"));
    assert!(reason(r#""a""#).contains("is in quotation marks: remove"));
    // An annotation of the maximum length is parsed, one byte more is refused.
    fails(&"a".repeat(ANNOTATION_MAX), Rule::MalformedNetworkReference, "[0]");
}

#[test]
fn annotation_fault_names_the_hint() {
    for (text, hint) in [
        (r#""net-a""#, "remove the quotation marks around it"),
        ("'net-a'", "remove the quotation marks around it"),
        (r#""[{\"name\":\"a\"}]""#, "remove the quotation marks around it"),
        (r#"{"name":"a"}"#, "write [ in front of it and ] after it"),
        ("net-a,", "remove the comma"),
        ("net-a,,net-b", "remove the comma"),
        ("net-a;net-b", "separate the names of networks by commas"),
        ("net-a net-b", "separate the names of networks by commas"),
        ("net-a\nnet-b", "separate the names of networks by commas"),
        (r#"["net-a"]"#, "write {\"name\": …}"),
        (r#"[{"name":"default/net-a"}]"#, r#"write "namespace": "default" and "name": "net-a""#),
        (r#"[{"name":"net-a@net7"}]"#, r#"write "name": "net-a" and "interface": "net7""#),
        (r#"[{'name':'net-a'}]"#, "' is not a quotation mark in JSON"),
        (r#"[{“name”:“net-a”}]"#, "“ is a typographic quotation mark"),
        (r#"[{"name":"net-a",}]"#, "remove the comma"),
        (r#"[{"name":"net-a","ips":"10.0.0.5/24"}]"#, r#"must be a list: write ["10.0.0.5/24"]"#),
    ] {
        let why = reading(text).settle().unwrap_err().to_string();
        assert!(why.contains(hint), "{text}: {why}");
    }
    let warning = &reading(r#"[{"name":"a","gateway":["10.0.0.1"]}]"#).warnings[0];
    assert_eq!(warning.fault.hint, "did you mean default-route?");
}
