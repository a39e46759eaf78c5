//! Tests of results with and without the requested values.

use cni::version::Version;

use super::*;
use crate::fixture::World;

fn delegate(keys: &str) -> Delegate {
    let plan = World::new().networks(&format!(r#"[{{"name":"capable",{keys}}}]"#)).plan();
    plan.delegates[1].clone()
}

fn result(text: &str) -> Success {
    Success::read(text.as_bytes(), Version::V1_0_0).unwrap().1
}

/// Returns the result of a bridge plugin: bridge and veth on the host, net1 in the pod.
fn bridge(mac: &str, ips: &str) -> Success {
    result(&format!(
        r#"{{"cniVersion":"1.0.0","interfaces":[{{"name":"br0","mac":"02:00:00:00:00:aa"}},{{"name":"veth1","mac":"02:00:00:00:00:bb"}},{{"name":"net1","mac":"{mac}","sandbox":"/n"}}],"ips":[{ips}]}}"#
    ))
}

fn broken(delegate: &Delegate, result: &Success) -> Option<Rule> {
    verify(delegate, result).err().map(|refusal| {
        assert!(matches!(refusal, Refusal::AttachmentFailed(_)));
        refusal.fault().rule
    })
}

// Requirements: NPWG1-4.1.2.1.3.2-2
#[test]
fn verify_requires_every_address_on_the_interface() {
    let asked = delegate(r#""ips":["10.2.2.42","2001:db8::5/64"]"#);
    let given = r#"{"interface":2,"address":"10.2.2.42/24"},{"interface":2,"address":"2001:DB8::5/120"}"#;
    assert_eq!(broken(&asked, &bridge("", given)), None);
    let fails = |ips: &str| {
        assert_eq!(broken(&asked, &bridge("", ips)), Some(Rule::AddressNotAssigned), "{ips}");
    };
    fails(r#"{"interface":2,"address":"10.2.2.42/24"}"#);
    fails(r#"{"interface":0,"address":"10.2.2.42/24"},{"interface":2,"address":"2001:db8::5/64"}"#);
    fails(r#"{"address":"10.2.2.42/24"},{"interface":2,"address":"2001:db8::5/64"}"#);
    fails("");
    assert_eq!(broken(&asked, &Success::default()), Some(Rule::AddressNotAssigned));
}

#[test]
fn verify_accepts_any_interface_in_the_sandbox() {
    let asked = delegate(r#""ips":["10.128.0.77"],"mac":"0a:58:0a:80:00:4d""#);
    let ovn = |mac: &str, sandbox: &str| {
        result(&format!(
            r#"{{"cniVersion":"1.0.0","interfaces":[{{"name":"eth0","mac":"0a:58:0a:f4:00:05","sandbox":"/n"}},{{"name":"ovn-udn1","mac":"{mac}","sandbox":"{sandbox}"}}],"ips":[{{"interface":0,"address":"10.244.0.5/24"}},{{"interface":1,"address":"10.128.0.77/24","gateway":"10.128.0.1"}}]}}"#
        ))
    };
    assert_eq!(broken(&asked, &ovn("0a:58:0a:80:00:4d", "/n")), None);
    assert_eq!(broken(&asked, &ovn("0a:58:0a:80:00:4e", "/n")), Some(Rule::MacNotAssigned));
    assert_eq!(broken(&asked, &ovn("0a:58:0a:80:00:4d", "")), Some(Rule::AddressNotAssigned), "on the host");
}

// Requirements: NPWG1-4.1.2.1.3.2-2
#[test]
fn verify_accepts_addresses_without_interface() {
    let asked = delegate(r#""ips":["10.2.2.42"]"#);
    assert_eq!(broken(&asked, &result(r#"{"ips":[{"address":"10.2.2.42/24"}]}"#)), None);
    assert_eq!(broken(&asked, &result(r#"{"ips":[{"interface":-1,"address":"10.2.2.42/24"}]}"#)), None);
    let old =
        Success::read(br#"{"cniVersion":"0.2.0","ip4":{"ip":"10.2.2.42/24"}}"#, Version::V0_2_0).unwrap().1;
    assert_eq!(broken(&asked, &old), None);
}

// Requirements: NPWG1-4.1.2.1.4.2-2
#[test]
fn verify_compares_the_mac_by_its_bytes() {
    let asked = delegate(r#""mac":"02-AB-00-00-00-01""#);
    assert_eq!(broken(&asked, &bridge("02:ab:00:00:00:01", "")), None);
    assert_eq!(broken(&asked, &bridge("02:AB:00:00:00:01", "")), None);
    for other in ["02:ab:00:00:00:02", "", "garbage"] {
        assert_eq!(broken(&asked, &bridge(other, "")), Some(Rule::MacNotAssigned), "{other:?}");
    }
}

#[test]
fn verify_prefers_the_interface_with_the_attachments_name() {
    let asked = delegate(r#""mac":"02:00:00:00:00:01""#);
    let two = result(
        r#"{"interfaces":[{"name":"other","mac":"02:00:00:00:00:09","sandbox":"/n"},{"name":"net1","mac":"02:00:00:00:00:01","sandbox":"/n"}]}"#,
    );
    assert_eq!(broken(&asked, &two), None);
}

// Requirements: V12-4.1.2.1.10-1
#[test]
fn verify_compares_a_guid_if_the_result_has_one() {
    let asked = delegate(r#""infiniband-guid":"bb:cc:dd:ee:ff:00:11:22""#);
    let long = "80:00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff:00:11:22";
    assert_eq!(broken(&asked, &bridge(long, "")), None);
    assert_eq!(broken(&asked, &bridge("", "")), None);
    assert_eq!(broken(&asked, &bridge("02:00:00:00:00:01", "")), None);
    let other = "80:00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff:00:11:23";
    assert_eq!(broken(&asked, &bridge(other, "")), Some(Rule::GuidNotAssigned));
}

#[test]
fn verify_without_requests_accepts_any_result() {
    assert_eq!(broken(&delegate(r#""cni-args":{}"#), &Success::default()), None);
}

#[test]
fn verify_error_names_the_assigned_address() {
    let asked = delegate(r#""ips":["10.2.2.42"]"#);
    let refusal = verify(&asked, &bridge("", r#"{"interface":2,"address":"10.2.2.7/24"}"#)).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "result of home/capable on net1: \"10.2.2.42\": the requested address was not assigned, but 10.2.2.7/24: use plugins that honour the request"
    );
}
