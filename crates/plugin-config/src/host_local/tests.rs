//! Tests of the configuration, without files.

use cni::config::Config;
use cni::environment::Environment;
use serde_json::{Value, json};

use super::*;

fn read_with(conf: &Value, args: &str) -> Result<Network, Error> {
    let mut whole = json!({ "cniVersion": "1.1.0", "name": "net" });
    for (key, value) in conf.as_object().unwrap() {
        whole[key] = value.clone();
    }
    let config = Config::read(whole.to_string().into_bytes(), Version::ALL)?;
    let environment = Environment { args: args.to_owned(), ..Environment::default() };
    Network::read(&Call { config, environment })
}

fn read(conf: &Value) -> Result<Network, Error> {
    read_with(conf, "")
}

fn sets(network: &Network) -> Vec<String> {
    network.sources.iter().map(|source| source.set.to_string()).collect()
}

#[test]
fn host_local_range_sets_have_the_order_runtime_flat_configured() {
    let network = read(&json!({
        "ipam": {
            "type": "host-local", "subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9",
            "ranges": [[{ "subnet": "10.2.0.0/24" }, { "subnet": "10.3.0.0/24", "rangeEnd": "10.3.0.7" }], [{ "subnet": "fd00::/64" }]],
        },
        "runtimeConfig": { "ipRanges": [[{ "Subnet": "10.4.0.0/30", "RangeStart": "", "RangeEnd": "", "Gateway": "10.4.0.2" }]] },
    }))
    .unwrap();
    let expected = [
        "10.4.0.1-10.4.0.2",
        "10.1.0.9-10.1.0.254",
        "10.2.0.1-10.2.0.254,10.3.0.1-10.3.0.7",
        "fd00::1-fd00::ffff:ffff:ffff:ffff",
    ];
    assert_eq!(sets(&network), expected);
    let gateways: Vec<String> = network
        .sources
        .iter()
        .flat_map(|source| source.set.ranges())
        .filter_map(|r| Some(r.gateway()?.to_string()))
        .collect();
    assert_eq!(gateways, ["10.4.0.2", "10.1.0.1", "10.2.0.1", "10.3.0.1", "fd00::1"]);
    assert_eq!(network.location.directory, Path::new("/var/lib/cni/networks/net"));
}

#[test]
fn host_local_empty_and_null_fields_are_absent() {
    let network = read(&json!({ "ipam": {
        "subnet": "::ffff:10.1.2.0/120", "gateway": "", "rangeStart": null, "ranges": null, "routes": null, "dataDir": "", "resolvConf": "",
    }}))
    .unwrap();
    assert_eq!(sets(&network), ["10.1.2.1-10.1.2.254"]);
    assert_eq!(network.resolv_conf, None);
}

#[test]
fn host_local_flat_range_without_subnet_is_ignored() {
    let network = read(
        &json!({ "ipam": { "gateway": "x", "rangeStart": "y", "ranges": [[{ "subnet": "10.2.0.0/24" }]] } }),
    )
    .unwrap();
    assert_eq!(sets(&network), ["10.2.0.1-10.2.0.254"]);
}

#[test]
fn host_local_same_request_from_every_source_counts_once() {
    let conf = json!({
        "ipam": { "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00::/64" }], [{ "subnet": "10.2.0.0/24" }]] },
        "args": { "cni": { "ips": ["10.1.0.5/24", "fd00::6"] } },
        "runtimeConfig": { "ips": ["10.1.0.5"] },
    });
    let network = read_with(&conf, "IP=10.1.0.5;K8S_POD_NAME=web").unwrap();
    let requests: Vec<Option<String>> =
        network.sources.iter().map(|s| s.request.as_ref().map(|r| format!("{}={}", r.key, r.ip))).collect();
    let expected =
        [Some("CNI_ARGS IP=10.1.0.5".to_owned()), Some("args.cni.ips[1]=fd00::6".to_owned()), None];
    assert_eq!(requests, expected);
}

#[test]
fn host_local_request_outside_the_ranges_is_refused() {
    let ask = |ips: Value| json!({ "ipam": { "subnet": "10.1.0.0/24" }, "runtimeConfig": { "ips": ips } });
    assert_refused([
        (
            ask(json!(["10.9.0.5"])),
            "runtimeConfig.ips[0]: 10.9.0.5: in none of the range sets 10.1.0.1-10.1.0.254",
        ),
        (ask(json!(["10.1.0.1"])), "runtimeConfig.ips[0]: 10.1.0.1: the gateway's address"),
        (
            ask(json!(["10.1.0.5", "10.1.0.6"])),
            "runtimeConfig.ips[1]: 10.1.0.6: range set 10.1.0.1-10.1.0.254 has one address, and runtimeConfig.ips[0] requests 10.1.0.5",
        ),
        (ask(json!(["10.1.0.0"])), "runtimeConfig.ips[0]: 10.1.0.0: in none"),
    ]);
}

/// Returns a configuration with one range.
fn one(range: &Value) -> Value {
    json!({ "ipam": { "ranges": [[range]] } })
}

fn assert_refused<const N: usize>(cases: [(Value, &str); N]) {
    for (conf, expected) in cases {
        let error = read(&conf).map(|_| ()).unwrap_err();
        assert_eq!(error.code, 7, "{conf}: {error}");
        assert!(error.msg.contains(expected), "{conf}:\n{error}\nlacks\n{expected}");
    }
}

#[test]
fn host_local_invalid_range_is_reported_by_field_and_value() {
    let subnet = |text: &str| one(&json!({ "subnet": text }));
    let cases = [
        (json!({}), "ipam: missing"),
        (json!({ "ipam": {} }), "ipam.ranges: missing"),
        (json!({ "ipam": { "ranges": [] } }), "ipam.ranges: missing"),
        (json!({ "ipam": { "ranges": [[]] } }), "ipam.ranges[0]: []: an empty range set"),
        (json!({ "ipam": { "ranges": {} } }), "ipam.ranges: {}"),
        (
            json!({ "ipam": { "ranges": [{ "subnet": "10.0.0.0/8" }] } }),
            "ipam.ranges[0]: {\"subnet\":\"10.0.0.0/8\"}",
        ),
        (json!({ "ipam": [] }), "ipam: []"),
        (json!({ "ipam": { "subnet": 10 } }), "ipam.subnet: 10"),
        (
            json!({ "ipam": { "subnet": "10.1.0.0/24", "rangeEnd": "10.1.1.9" } }),
            "ipam.rangeEnd: 10.1.1.9: not in subnet",
        ),
        (one(&json!({})), "ipam.ranges[0][0].subnet: \"\""),
        (subnet("10.1.2.0"), "ipam.ranges[0][0].subnet: \"10.1.2.0\""),
        (subnet("10.01.2.0/24"), "ipam.ranges[0][0].subnet: \"10.01.2.0/24\""),
        (subnet("10.1.2.3/24"), "ipam.ranges[0][0].subnet: 10.1.2.3/24: has host bits set"),
        (subnet("10.1.2.0/31"), "ipam.ranges[0][0].subnet: 10.1.2.0/31: too small"),
        (subnet("fd00::1/128"), "ipam.ranges[0][0].subnet: fd00::1/128: too small"),
        (one(&json!({ "subnet": "10.1.0.0/24", "rangeStart": "x" })), "ipam.ranges[0][0].rangeStart: \"x\""),
        (
            one(&json!({ "subnet": "10.1.0.0/24", "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.8" })),
            "ipam.ranges[0][0].rangeEnd: 10.1.0.8",
        ),
        (
            one(&json!({ "subnet": "10.1.0.0/24", "rangeStart": "10.1.0.255" })),
            "ipam.ranges[0][0].rangeStart: 10.1.0.255",
        ),
        (
            one(&json!({ "subnet": "10.1.0.0/24", "gateway": "fd00::1" })),
            "ipam.ranges[0][0].gateway: fd00::1",
        ),
        (
            json!({ "ipam": { "ranges": [[{ "subnet": "10.1.0.0/24" }, { "subnet": "fd00::/64" }]] } }),
            "ipam.ranges[0][1]: fd00::1-fd00::ffff:ffff:ffff:ffff: not of the family of ipam.ranges[0][0] 10.1.0.1-10.1.0.254",
        ),
        (
            json!({ "ipam": { "ranges": [[{ "subnet": "10.1.0.0/24" }, { "subnet": "10.1.0.0/16" }]] } }),
            "ipam.ranges[0][1]: 10.1.0.1-10.1.255.254: overlaps ipam.ranges[0][0] 10.1.0.1-10.1.0.254",
        ),
        (
            json!({ "ipam": { "subnet": "10.1.0.0/24", "ranges": [[{ "subnet": "10.1.0.0/25" }]] } }),
            "ipam.ranges[0]: 10.1.0.1-10.1.0.126: overlaps ipam 10.1.0.1-10.1.0.254",
        ),
        (
            json!({ "ipam": { "subnet": "10.1.0.0/24" }, "runtimeConfig": { "ipRanges": [[{ "subnet": "x" }]] } }),
            "runtimeConfig.ipRanges[0][0].subnet: \"x\"",
        ),
    ];
    assert_refused(cases);
}

#[test]
fn host_local_invalid_option_is_reported_by_field_and_value() {
    let cases = [
        (
            json!({ "ipam": { "subnet": "10.1.0.0/24", "dataDir": "../x" } }),
            "ipam.dataDir: \"../x\": not an absolute path",
        ),
        (json!({ "ipam": { "subnet": "10.1.0.0/24", "dataDir": "/x\u{0}y" } }), "ipam.dataDir: "),
        (json!({ "ipam": { "subnet": "10.1.0.0/24", "dataDir": 5 } }), "ipam.dataDir: 5"),
        (json!({ "ipam": { "subnet": "10.1.0.0/24", "resolvConf": "/x\u{0}y" } }), "ipam.resolvConf: "),
        (
            json!({ "ipam": { "subnet": "10.1.0.0/24", "routes": [{ "dst": "x" }] } }),
            "ipam.routes[0].dst: \"x\"",
        ),
        (
            json!({ "ipam": { "subnet": "10.1.0.0/24" }, "args": { "cni": { "ips": ["x"] } } }),
            "args.cni.ips[0]: \"x\"",
        ),
    ];
    assert_refused(cases);
}

#[test]
fn host_local_unknown_cni_args_need_ignore_unknown() {
    let conf = json!({ "ipam": { "subnet": "10.1.0.0/24" } });
    assert_eq!(read_with(&conf, "FOO=1").map(|_| ()).unwrap_err().code, 4);
    assert!(read_with(&conf, "FOO=1;IgnoreUnknown=1").is_ok());
}

#[test]
fn host_local_before_0_3_0_allows_one_address_of_each_family() {
    let conf = |version: &str, ranges: Value| json!({ "cniVersion": version, "ipam": { "ranges": ranges } });
    let two = json!([[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "10.2.0.0/24" }]]);
    let both = json!([[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd00::/64" }]]);
    for version in ["", "0.1.0", "0.2.0"] {
        let error = read(&conf(version, two.clone())).map(|_| ()).unwrap_err();
        assert!(error.code == 7 && error.msg.starts_with("ipam.ranges: 2 addresses"), "{error}");
        assert!(read(&conf(version, both.clone())).is_ok());
    }
    assert!(read(&conf("0.3.0", two)).is_ok());
}

#[test]
fn host_local_network_name_cannot_leave_the_data_directory() {
    for name in ["..", ".", "a/../..", "/etc", "a\0", ""] {
        let whole = json!({ "cniVersion": "1.0.0", "name": name, "ipam": { "dataDir": "/data" } });
        assert!(Config::read(whole.to_string().into_bytes(), Version::ALL).is_err(), "{name:?}");
    }
}
