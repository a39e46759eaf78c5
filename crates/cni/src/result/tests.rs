//! Tests for results in every version, and for conversions between them.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::address::{parse_cidr, parse_ip};

fn read(value: &Value, version: Version) -> Result<Success, Error> {
    Success::from_value(value, version).map(|(_, success)| success)
}

fn convert(value: &Value, version: Version) -> Result<Value, Error> {
    Success::from_value(value, Version::ABSENT)?.1.to_value(version)
}

/// Returns a result that uses every field that this version has.
fn full(version: &str) -> Value {
    match version {
        "0.1.0" | "0.2.0" => json!({
            "cniVersion": version,
            "ip4": {"ip": "10.1.2.3/24", "gateway": "10.1.2.1", "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.2.1"}, {"dst": "10.9.0.0/16"}]},
            "ip6": {"ip": "fd00::3/64", "gateway": "fd00::1", "routes": [{"dst": "::/0"}]},
            "dns": {"nameservers": ["10.1.2.1"], "domain": "d", "search": ["s"], "options": ["ndots:2"]}
        }),
        "0.3.0" | "0.3.1" | "0.4.0" => json!({
            "cniVersion": version,
            "interfaces": [{"name": "veth1", "mac": "00:11:22:33:44:55"}, {"name": "eth0", "mac": "00:11:22:33:44:66", "sandbox": "/run/netns/blue"}],
            "ips": [{"version": "4", "interface": 1, "address": "10.1.2.3/24", "gateway": "10.1.2.1"}, {"version": "6", "interface": 1, "address": "fd00::3/64"}],
            "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.2.1"}, {"dst": "fd01::/64"}],
            "dns": {"nameservers": ["10.1.2.1"], "domain": "d", "search": ["s"], "options": ["ndots:2"]}
        }),
        _ => json!({
            "cniVersion": version,
            "interfaces": [{"name": "eth0", "mac": "00:11:22:33:44:66", "mtu": 1400, "sandbox": "/run/netns/blue", "socketPath": "/run/s", "pciID": "0000:00:1f.6"}],
            "ips": [{"interface": 0, "address": "10.1.2.3/24", "gateway": "10.1.2.1"}],
            "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.2.1", "mtu": 1300, "advmss": 1260, "priority": 100, "table": 50, "scope": 253}],
            "dns": {"nameservers": ["10.1.2.1"], "domain": "d", "search": ["s"], "options": ["ndots:2"]}
        }),
    }
}

// Requirements: S2, S7, S35
#[test]
fn result_round_trip_in_every_version() -> Result<(), Error> {
    for version in Version::ALL {
        let value = full(version.as_str());
        let (own, success) = Success::from_value(&value, Version::ABSENT)?;
        assert_eq!(own, *version);
        assert_eq!(success.to_value(*version)?, value, "{version}");
    }
    Ok(())
}

// Requirements: S7
#[test]
fn result_of_ipam_has_no_interfaces() -> Result<(), Error> {
    let success = Success { ips: read(&full("1.0.0"), Version::V1_0_0)?.ips, ..Success::default() };
    for version in &Version::ALL[2..] {
        assert_eq!(success.to_value(*version)?.get("interfaces"), None);
    }
    Ok(())
}

// Requirements: S15
#[test]
fn result_misprint_of_0_3_0_is_read_and_not_written() -> Result<(), Error> {
    let misprint =
        json!({"cniVersion": "0.3.0", "ip": [{"version": "4", "address": "10.1.2.3/24"}], "dns": {}});
    let success = read(&misprint, Version::V0_3_0)?;
    assert_eq!(success.ips.len(), 1);
    let written = success.to_value(Version::V0_3_0)?;
    assert!(written.get("ip").is_none() && written["ips"].as_array().is_some_and(|ips| ips.len() == 1));
    Ok(())
}

// Requirements: S21, S22
#[test]
fn result_dns_and_interface_are_optional() -> Result<(), Error> {
    for version in &Version::ALL[2..] {
        let success = read(&json!({"ips": [{"address": "10.1.2.3/24", "gateway": ""}]}), *version)?;
        assert_eq!((success.ips[0].interface, success.ips[0].gateway), (None, None));
        assert!(success.dns.is_empty());
    }
    Ok(())
}

// Requirements: S23, trap 5
#[test]
fn result_address_version_only_in_0_3_x_and_0_4_0() -> Result<(), Error> {
    for version in &Version::ALL[2..] {
        let value = convert(&full("0.4.0"), *version)?;
        let said = value["ips"][1].get("version").and_then(Value::as_str);
        assert_eq!(said, (*version <= Version::V0_4_0).then_some("6"), "{version}");
    }
    Ok(())
}

// Requirements: trap 5
#[test]
fn result_dns_is_always_printed_up_to_0_4_0() -> Result<(), Error> {
    let empty = Success::default();
    assert_eq!(empty.print(Version::V0_4_0)?, b"{\n    \"cniVersion\": \"0.4.0\",\n    \"dns\": {}\n}");
    assert_eq!(empty.print(Version::V1_0_0)?, b"{\n    \"cniVersion\": \"1.0.0\"\n}");
    Ok(())
}

// Requirements: trap 4
#[test]
fn result_without_version_is_in_the_expected_one() -> Result<(), Error> {
    for version in Version::ALL {
        for absent in [json!({}), json!({"cniVersion": ""}), json!({"cniVersion": null}), Value::Null] {
            assert_eq!(Success::from_value(&absent, *version)?, (*version, Success::default()));
        }
    }
    let error = Success::from_value(&json!({"cniVersion": "7.0.0"}), Version::V1_0_0).unwrap_err();
    assert_eq!(error.code, 1);
    Ok(())
}

// Requirements: R1
#[test]
fn result_of_0_1_0_and_0_2_0_are_the_same() -> Result<(), Error> {
    assert_eq!(convert(&full("0.1.0"), Version::V0_2_0)?, full("0.2.0"));
    assert_eq!(convert(&full("0.2.0"), Version::V0_1_0)?, full("0.1.0"));
    Ok(())
}

// Requirements: R2
#[test]
fn result_from_0_2_0_has_ip4_before_ip6() -> Result<(), Error> {
    let up = convert(&full("0.2.0"), Version::V0_4_0)?;
    assert_eq!(up.get("interfaces"), None);
    assert_eq!(
        up["ips"],
        json!([{"version": "4", "address": "10.1.2.3/24", "gateway": "10.1.2.1"}, {"version": "6", "address": "fd00::3/64", "gateway": "fd00::1"}])
    );
    assert_eq!(
        up["routes"],
        json!([{"dst": "0.0.0.0/0", "gw": "10.1.2.1"}, {"dst": "10.9.0.0/16"}, {"dst": "::/0"}])
    );
    assert_eq!(up["dns"]["options"], json!(["ndots:2"]));
    Ok(())
}

// Requirements: R3
#[test]
fn result_of_0_3_0_0_3_1_and_0_4_0_are_the_same() -> Result<(), Error> {
    for from in ["0.3.0", "0.3.1", "0.4.0"] {
        for to in [Version::V0_3_0, Version::V0_3_1, Version::V0_4_0] {
            assert_eq!(convert(&full(from), to)?, full(to.as_str()));
        }
    }
    Ok(())
}

// Requirements: R4
#[test]
fn result_to_1_0_0_drops_only_the_address_version() -> Result<(), Error> {
    let mut expected = full("0.4.0");
    expected["cniVersion"] = "1.0.0".into();
    for ip in expected["ips"].as_array_mut().unwrap() {
        ip.as_object_mut().unwrap().remove("version");
    }
    assert_eq!(convert(&full("0.4.0"), Version::V1_0_0)?, expected);
    Ok(())
}

// Requirements: R5
#[test]
fn result_from_1_x_down_keeps_route_fields_only() -> Result<(), Error> {
    let mut value = full("1.1.0");
    value["ips"][0]["address"] = "::ffff:10.1.2.3/120".into();
    let down = convert(&value, Version::V0_3_1)?;
    assert_eq!(
        down["interfaces"],
        json!([{"name": "eth0", "mac": "00:11:22:33:44:66", "sandbox": "/run/netns/blue"}])
    );
    assert_eq!(
        down["ips"],
        json!([{"version": "4", "interface": 0, "address": "10.1.2.3/24", "gateway": "10.1.2.1"}])
    );
    assert_eq!(down["routes"], value["routes"]);
    assert_eq!(convert(&down, Version::V1_1_0)?["routes"], value["routes"], "and back");
    Ok(())
}

#[test]
fn result_without_a_sandbox_has_the_interface_of_cni_ifname() -> Result<(), Error> {
    let inside = |interfaces: Value| -> Result<Vec<String>, Error> {
        let success = read(&json!({"cniVersion": "1.0.0", "interfaces": interfaces}), Version::ABSENT)?;
        let inside = success.interfaces.iter().filter(|interface| success.is_inside(interface, "eth0"));
        Ok(inside.map(|interface| interface.name.clone()).collect())
    };
    assert_eq!(inside(json!([{"name": "br0"}, {"name": "eth0"}]))?, ["eth0"]);
    assert_eq!(inside(json!([{"name": "br0"}, {"name": "net1"}]))?, [""; 0]);
    assert_eq!(inside(json!([{"name": "eth0"}, {"name": "net1", "sandbox": "/run/netns/a"}]))?, ["net1"]);
    Ok(())
}

// Requirements: R6
#[test]
fn result_of_1_0_0_and_1_1_0_are_the_same() -> Result<(), Error> {
    assert_eq!(convert(&full("1.1.0"), Version::V1_0_0)?, full("1.0.0"));
    assert_eq!(convert(&full("1.0.0"), Version::V1_1_0)?, full("1.1.0"));
    Ok(())
}

// Requirements: R7
#[test]
fn result_to_0_2_0_keeps_the_first_address_of_a_family() -> Result<(), Error> {
    let value = json!({
        "cniVersion": "1.0.0",
        "interfaces": [{"name": "eth0"}],
        "ips": [{"address": "10.1.2.3/24", "gateway": "10.1.2.1"}, {"address": "10.9.9.9/24"}],
        "routes": [{"dst": "::/0", "gw": "fd00::1"}, {"dst": "10.0.0.0/8", "gw": "10.1.2.1", "mtu": 1300}]
    });
    assert_eq!(
        convert(&value, Version::V0_2_0)?,
        json!({
            "cniVersion": "0.2.0",
            "ip4": {"ip": "10.1.2.3/24", "gateway": "10.1.2.1", "routes": [{"dst": "10.0.0.0/8", "gw": "10.1.2.1", "mtu": 1300}]},
            "dns": {}
        })
    );
    let none = convert(&json!({"cniVersion": "1.0.0", "interfaces": [{"name": "eth0"}]}), Version::V0_1_0);
    assert!(none.unwrap_err().msg.contains("no valid IP addresses"));
    Ok(())
}

// Requirements: S2, trap 2
#[test]
fn result_error_has_field_and_value() {
    for (value, says) in [
        (json!({"ips": [{"address": "10.1.2.3"}]}), "10.1.2.3"),
        (json!({"ips": [{"address": "10.01.2.3/8"}]}), "10.01.2.3/8"),
        (json!({"routes": [{"dst": "10.0.0.0/8", "gw": "x"}]}), "routes.gw"),
        (json!({"ips": [{"address": "10.1.2.3/8", "interface": 1.5}]}), "interface"),
        (json!({"interfaces": {}}), "interfaces"),
    ] {
        let error = read(&value, Version::V1_0_0).unwrap_err();
        assert!(error.code == 7 && error.msg.contains(says), "{error}");
    }
}

// Requirements: trap 1
#[test]
fn result_keys_match_without_case() -> Result<(), Error> {
    let value = json!({"CNIVersion": "0.4.0", "IPs": [{"Address": "10.1.2.3/24", "Interface": 0}], "Interfaces": [{"Name": "eth0"}]});
    let (version, success) = Success::from_value(&value, Version::V1_0_0)?;
    assert_eq!(
        (version, success.ips.len(), success.interfaces[0].name.as_str()),
        (Version::V0_4_0, 1, "eth0")
    );
    Ok(())
}

// === properties ===

fn address() -> impl Strategy<Value = IpNet> {
    let v4 = (any::<[u8; 4]>(), 0u8..=32).prop_map(|(ip, length)| IpNet::new(ip.into(), length).unwrap());
    let v6 = (any::<[u8; 16]>(), 0u8..=128).prop_map(|(ip, length)| IpNet::new(ip.into(), length).unwrap());
    // After parsing, an IPv4-mapped address is always IPv4.
    prop_oneof![v4, v6].prop_filter_map("mapped", |net| parse_cidr(&net.to_string()))
}

fn gateway() -> impl Strategy<Value = Option<IpAddr>> {
    proptest::option::of(any::<IpAddr>().prop_filter_map("mapped", |ip| parse_ip(&ip.to_string())))
}

prop_compose! {
    fn interface()(name in "[a-z]{1,15}", mac in "|00:11:22:33:44:55", sandbox in "|/run/netns/x",
                   socket_path in "|/run/s", pci_id in "|0000:00:1f.6", mtu in proptest::option::of(1u32..)) -> Interface {
        Interface { name, mac, mtu, sandbox, socket_path, pci_id }
    }
}

prop_compose! {
    fn ip()(interface in proptest::option::of(any::<i32>()), address in address(), gateway in gateway()) -> IpConfig {
        IpConfig { interface, address, gateway }
    }
}

prop_compose! {
    fn route()(dst in address(), gw in gateway(), mtu in proptest::option::of(1u32..), advmss in proptest::option::of(1u32..),
               priority in proptest::option::of(1u32..), table in any::<Option<u32>>(), scope in any::<Option<u8>>()) -> Route {
        Route { dst, gw, mtu, advmss, priority, table, scope }
    }
}

prop_compose! {
    fn dns()(nameservers in proptest::collection::vec("[0-9.]{1,9}", 0..3), domain in "|d.example",
             search in proptest::collection::vec("[a-z.]{1,9}", 0..3), options in proptest::collection::vec("[a-z:]{1,9}", 0..3)) -> Dns {
        Dns { nameservers, domain, search, options }
    }
}

prop_compose! {
    fn success()(interfaces in proptest::collection::vec(interface(), 0..4), ips in proptest::collection::vec(ip(), 0..4),
                 routes in proptest::collection::vec(route(), 0..4), dns in dns()) -> Success {
        Success { interfaces, ips, routes, dns }
    }
}

/// Returns a result reduced to the fields that 0.3.0 and 0.4.0 have.
fn reduced(success: &Success) -> Success {
    let old = |i: &Interface| Interface {
        mtu: None,
        socket_path: String::new(),
        pci_id: String::new(),
        ..i.clone()
    };
    Success { interfaces: success.interfaces.iter().map(old).collect(), ..success.clone() }
}

proptest! {
    // Requirements: R4, R6, S35
    #[test]
    fn result_round_trip_in_1_x_is_lossless(success in success()) {
        for version in [Version::V1_0_0, Version::V1_1_0] {
            let bytes = success.print(version)?;
            prop_assert_eq!(Success::read(&bytes, Version::ABSENT)?, (version, success.clone()));
        }
    }

    // Requirements: R3, R5
    #[test]
    fn result_round_trip_in_0_3_and_0_4(success in success()) {
        for version in [Version::V0_3_0, Version::V0_3_1, Version::V0_4_0] {
            let bytes = success.print(version)?;
            let (own, read) = Success::read(&bytes, Version::ABSENT)?;
            prop_assert_eq!(own, version);
            prop_assert_eq!(&read, &reduced(&success));
            prop_assert_eq!(read.to_value(version)?, serde_json::from_slice::<Value>(&bytes).unwrap());
        }
    }

    // Requirements: R1, R2, R7
    #[test]
    fn result_round_trip_of_0_2_through_newer_versions(success in success()) {
        match success.to_value(Version::V0_2_0) {
            Err(error) => {
                prop_assert!(success.ips.is_empty(), "{}", error);
            }
            Ok(low) => {
                for version in Version::ALL {
                    let there = read(&low, Version::ABSENT)?.to_value(*version)?;
                    prop_assert_eq!(&read(&there, Version::ABSENT)?.to_value(Version::V0_2_0)?, &low);
                }
            }
        }
    }

    // Requirements: S29
    #[test]
    fn result_parser_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), text in "\\PC*") {
        for version in Version::ALL {
            let _ = Success::read(&bytes, *version);
            let _ = Success::read(text.as_bytes(), *version);
        }
    }
}

#[test]
fn result_after_a_log_line_quotes_that_line() {
    let output = b"time=now level=info msg=\"attached\"\n{\"cniVersion\":\"1.0.0\"}";
    let error = Success::read(output, Version::V1_0_0).unwrap_err();
    assert!(error.msg.contains(r#"begins with "time=now level=info"#), "{error}");
    assert!(error.details.contains("log lines on stderr"), "{error}");
    for output in [&b""[..], b"{", b"[1", b"{\"a\": b}"] {
        let error = Success::read(output, Version::V1_0_0).unwrap_err();
        assert!(error.msg.contains("not valid JSON"), "{error}");
    }
    let long = Success::read(&[b'x'; 5000], Version::V1_0_0).unwrap_err();
    assert!(long.msg.len() < 300, "{long}");
}

#[test]
fn result_address_index_beyond_the_interfaces_is_invalid() {
    let check = |ips: &str, interfaces: &str| {
        let text = format!(r#"{{"cniVersion":"1.0.0","interfaces":[{interfaces}],"ips":[{ips}]}}"#);
        Success::read(text.as_bytes(), Version::V1_0_0).unwrap().1.check_indexes()
    };
    let (one, beyond) = (r#"{"name":"eth0"}"#, r#"{"interface":4,"address":"10.1.0.2/24"}"#);
    let error = check(beyond, one).unwrap_err();
    assert!(error.code == 7 && error.msg.contains("result.ips[0].interface: 4: "), "{error}");
    for index in ["0", "-1"] {
        check(&beyond.replace('4', index).replace("/2-1", "/24").replace("/20", "/24"), one).unwrap();
    }
    check(beyond, "").unwrap();
}
