//! Results that do and do not show what was asked for.

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

/// A bridge's result: bridge and veth on the host, net1 in the pod.
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
fn every_requested_address_is_on_the_attachments_interface() {
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

// Requirements: NPWG1-4.1.2.1.3.2-2
#[test]
fn where_no_interface_is_in_the_sandbox_unattributed_addresses_count() {
    let asked = delegate(r#""ips":["10.2.2.42"]"#);
    assert_eq!(broken(&asked, &result(r#"{"ips":[{"address":"10.2.2.42/24"}]}"#)), None);
    assert_eq!(broken(&asked, &result(r#"{"ips":[{"interface":-1,"address":"10.2.2.42/24"}]}"#)), None);
    let old =
        Success::read(br#"{"cniVersion":"0.2.0","ip4":{"ip":"10.2.2.42/24"}}"#, Version::V0_2_0).unwrap().1;
    assert_eq!(broken(&asked, &old), None);
}

// Requirements: NPWG1-4.1.2.1.4.2-2
#[test]
fn the_hardware_address_is_compared_by_its_bytes() {
    let asked = delegate(r#""mac":"02-AB-00-00-00-01""#);
    assert_eq!(broken(&asked, &bridge("02:ab:00:00:00:01", "")), None);
    assert_eq!(broken(&asked, &bridge("02:AB:00:00:00:01", "")), None);
    for other in ["02:ab:00:00:00:02", "", "garbage"] {
        assert_eq!(broken(&asked, &bridge(other, "")), Some(Rule::MacNotAssigned), "{other:?}");
    }
}

#[test]
fn the_interface_of_the_attachments_name_is_preferred_to_the_first() {
    let asked = delegate(r#""mac":"02:00:00:00:00:01""#);
    let two = result(
        r#"{"interfaces":[{"name":"other","mac":"02:00:00:00:00:09","sandbox":"/n"},{"name":"net1","mac":"02:00:00:00:00:01","sandbox":"/n"}]}"#,
    );
    assert_eq!(broken(&asked, &two), None);
}

// Requirements: V12-4.1.2.1.10-1
#[test]
fn a_guid_is_compared_where_the_result_shows_one() {
    let asked = delegate(r#""infiniband-guid":"bb:cc:dd:ee:ff:00:11:22""#);
    let long = "80:00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff:00:11:22";
    assert_eq!(broken(&asked, &bridge(long, "")), None);
    assert_eq!(broken(&asked, &bridge("", "")), None);
    assert_eq!(broken(&asked, &bridge("02:00:00:00:00:01", "")), None);
    let other = "80:00:11:22:33:44:55:66:77:88:99:aa:bb:cc:dd:ee:ff:00:11:23";
    assert_eq!(broken(&asked, &bridge(other, "")), Some(Rule::GuidNotAssigned));
}

#[test]
fn without_a_request_any_result_will_do() {
    assert_eq!(broken(&delegate(r#""cni-args":{}"#), &Success::default()), None);
}

#[test]
fn the_refusal_says_what_was_given_instead() {
    let asked = delegate(r#""ips":["10.2.2.42"]"#);
    let refusal = verify(&asked, &bridge("", r#"{"interface":2,"address":"10.2.2.7/24"}"#)).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "result of home/capable on net1: \"10.2.2.42\": the requested address was not given, but 10.2.2.7/24: use plugins that honour the request"
    );
}
