//! Tests for each convention, in the documented form and as runtimes send it.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::config::Config;
use crate::error::Error;
use crate::version::Version;

fn config(extra: &Value) -> Config {
    let mut value = json!({"cniVersion": "1.0.0", "name": "n", "type": "x"});
    for (key, given) in extra.as_object().unwrap() {
        value[key] = given.clone();
    }
    Config::read(value.to_string().into_bytes(), Version::ALL).unwrap()
}

fn capability<T: serde::de::DeserializeOwned>(name: &str, value: &Value) -> Result<Option<T>, Error> {
    config(&json!({"runtimeConfig": {name: value}})).capability(name)
}

// Requirements: V1, trap 1
#[test]
fn capability_port_mappings_documented_and_of_containerd() -> Result<(), Error> {
    let documented = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    let containerd = json!([{"HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": ""}]);
    let expected = PortMapping { host_port: 8080, container_port: 80, protocol: "tcp".into(), host_ip: None };
    for form in [&documented, &containerd] {
        assert_eq!(capability::<Vec<PortMapping>>(PORT_MAPPINGS, form)?, Some(vec![expected.clone()]));
    }
    assert_eq!(json!([expected]), documented);
    let bound = json!([{"hostPort": 1, "containerPort": 2, "protocol": "UDP", "hostIP": "::ffff:127.0.0.1"}]);
    let read = capability::<Vec<PortMapping>>(PORT_MAPPINGS, &bound)?.unwrap_or_default();
    assert_eq!(read[0].host_ip, parse_ip("127.0.0.1"));
    for bad in
        [json!([{"hostPort": 65536}]), json!([{"hostPort": "80"}]), json!([{"hostIP": "x"}]), json!({})]
    {
        let error = capability::<Vec<PortMapping>>(PORT_MAPPINGS, &bad).unwrap_err();
        assert!(error.code == 7 && error.msg.starts_with("runtimeConfig: portMappings"), "{error}");
    }
    Ok(())
}

// Requirements: V2, trap 1
#[test]
fn capability_ip_ranges_documented_and_of_containerd() -> Result<(), Error> {
    let documented = json!([[{"subnet": "10.1.2.0/24", "rangeStart": "10.1.2.3", "gateway": "10.1.2.254"}]]);
    let containerd = json!([[{"Subnet": "10.1.2.0/24", "RangeStart": "10.1.2.3", "RangeEnd": "", "Gateway": "10.1.2.254"}]]);
    for form in [&documented, &containerd] {
        let read = capability::<Vec<Vec<IpRange>>>(IP_RANGES, form)?.unwrap_or_default();
        assert_eq!(json!(read), documented);
        assert_eq!(read[0][0].range_end, None);
    }
    let error =
        capability::<Vec<Vec<IpRange>>>(IP_RANGES, &json!([[{"subnet": "10.01.0.0/16"}]])).unwrap_err();
    assert!(error.msg.contains("[0][0].subnet: \"10.01.0.0/16\""), "{error}");
    assert!(capability::<Vec<Vec<IpRange>>>(IP_RANGES, &json!([[{}]])).is_err());
    Ok(())
}

// Requirements: V3, trap 1
#[test]
fn capability_bandwidth_in_bits_as_cri_o_sends_it() -> Result<(), Error> {
    let expected =
        Bandwidth { ingress_rate: 2048, ingress_burst: 1600, egress_rate: 4096, egress_burst: u64::MAX };
    let crio =
        json!({"IngressRate": 2048, "IngressBurst": 1600, "EgressRate": 4096, "EgressBurst": u64::MAX});
    assert_eq!(capability(BANDWIDTH, &crio)?, Some(expected));
    // An integration test in the reference plugins uses this spelling.
    let odd = config(&json!({"runtimeConfig": {"bandWidth": crio}}));
    assert_eq!(odd.capability(BANDWIDTH)?, Some(expected));
    assert_eq!(json!(expected)["ingressRate"], 2048);
    assert!(capability::<Bandwidth>(BANDWIDTH, &json!({"ingressRate": -1})).is_err());
    assert!(capability::<Bandwidth>(BANDWIDTH, &json!({"ingressRate": 1e3})).is_err());
    Ok(())
}

// Requirements: V4
#[test]
fn capability_dns_of_the_pod() -> Result<(), Error> {
    let sent = json!({"Servers": ["8.8.8.8"], "Searches": ["corp.tyrell.net"], "Options": null});
    let read = capability::<Resolution>(DNS, &sent)?.unwrap_or_default();
    assert_eq!((read.servers.len(), read.searches.len(), read.options.len()), (1, 1, 0));
    Ok(())
}

// Requirements: V5
#[test]
fn capability_ips_with_and_without_a_prefix() -> Result<(), Error> {
    let given = json!(["192.168.0.1", "10.10.0.1/24", "3ffe:ffff:0:01ff::2", "3ffe:ffff:0:1ff::1/64"]);
    let read = capability::<Vec<RequestedIp>>(IPS, &given)?.unwrap_or_default();
    assert_eq!(
        read.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["192.168.0.1", "10.10.0.1/24", "3ffe:ffff:0:1ff::2", "3ffe:ffff:0:1ff::1/64"]
    );
    assert_eq!((read[0].prefix, read[1].prefix), (None, Some(24)));
    assert_eq!(json!(read[1]), "10.10.0.1/24");
    for bad in ["", "10.0.0.256", "10.0.0.1/33", "x"] {
        assert!(capability::<Vec<RequestedIp>>(IPS, &json!([bad])).is_err(), "{bad:?}");
    }
    Ok(())
}

// Requirements: V6, V7
#[test]
fn capability_mac_and_guid() -> Result<(), Error> {
    let mac = capability::<HardwareAddress>(MAC, &json!("C2-11-22-33-44-55"))?;
    assert_eq!(mac.map(|mac| mac.to_string()).as_deref(), Some("c2:11:22:33:44:55"));
    let guid = capability::<HardwareAddress>(INFINIBAND_GUID, &json!("c2:11:22:33:44:55:66:77"))?;
    assert_eq!(guid.map(|guid| guid.bytes().len()), Some(8));
    let error = capability::<HardwareAddress>(MAC, &json!("c2:11")).unwrap_err();
    assert!(error.msg.contains("\"c2:11\""), "{error}");
    Ok(())
}

// Requirements: V8, V9, V10, V11, V12
#[test]
fn capability_strings_lists_and_maps() -> Result<(), Error> {
    assert_eq!(capability::<String>(DEVICE_ID, &json!("0000:04:00.5"))?.as_deref(), Some("0000:04:00.5"));
    let aliases = capability::<Vec<String>>(ALIASES, &json!(["my-container", "primary-db"]))?;
    assert_eq!(aliases.map(|names| names.len()), Some(2));
    assert_eq!(
        capability::<String>(CGROUP_PATH, &json!("/kubelet.slice/x"))?.as_deref(),
        Some("/kubelet.slice/x")
    );
    let annotations: BTreeMap<String, String> =
        capability(POD_ANNOTATIONS, &json!({"k8s.v1.cni.cncf.io/networks": "a,b", "K": "1", "k": "2"}))?
            .unwrap_or_default();
    // The keys of such a map are the user's own, so they must match exactly.
    assert_eq!(annotations.len(), 3);
    assert!(capability::<String>(DEVICE_INFO_FILE, &json!("/var/run/x.json"))?.is_some());
    Ok(())
}

#[test]
fn capability_without_a_value_is_none() -> Result<(), Error> {
    for extra in [json!({}), json!({"runtimeConfig": null}), json!({"runtimeConfig": {"mac": null}})] {
        assert_eq!(config(&extra).capability::<HardwareAddress>(MAC)?, None);
    }
    assert!(
        config(&json!({"RuntimeConfig": {"MAC": "c2:11:22:33:44:55"}})).capability::<String>(MAC)?.is_some()
    );
    Ok(())
}

#[test]
fn capability_list_is_complete() {
    let mut names = ALL.to_vec();
    names.sort_unstable();
    names.dedup();
    assert_eq!((names.len(), ALL.len()), (12, 12));
}
