//! Tests for the meta-plugin's network selection: which networks a pod gets, in which order, and what each
//! plugin receives.
//!
//! ```text
//!   runtime ── weft ─┬─ eth0  the default network
//!                    ├─ net1  networks that the pod selects, from manifests
//!                    └─ net2 …
//! ```
//!
//! Source: the multi-network specification (NPWG) v1.0–v1.3, sections 4, 6, 7; Device Information Specification v1.1.0.

use std::time::Duration;

use rig::cluster::{bridge, configuration, recording, step};
use rig::{
    Cluster, VERSIONS, addresses, addresses_on, assert_nothing_left, assert_pod_unchanged, assert_refused,
    in_version, link, links, refusal, routes, with,
};
use serde_json::{Value, json};
use testkit::{Call, Feature, Host, Pod, host};

fn default_network() -> Value {
    recording("default", "one", &json!({}))
}

/// Returns `PLUGIN IFNAME` of each call.
fn steps(calls: &[Call]) -> Vec<String> {
    calls.iter().map(|call| format!("{} {}", call.program, call.environment("CNI_IFNAME"))).collect()
}

/// Returns a field of each call's configuration.
fn members(calls: &[Call], key: &str) -> Vec<String> {
    calls.iter().map(|call| call.config()[key].as_str().unwrap_or_default().to_owned()).collect()
}

// Requirements: NPWG1-4.2-1, NPWG1-6.2-1
#[test]
fn networks_are_attached_in_order_and_detached_in_reverse() {
    let host = host!();
    let cluster = Cluster::new(&host);
    cluster.recording("a", "two", &json!({}));
    cluster.definition(
        "b",
        &json!({ "cniVersion": "0.4.0", "plugins": [step("two", &json!({})), step("three", &json!({}))] }),
    );
    cluster.pod("web", "a, b,blue/a");
    let pod = host.pod("web");
    let before = host.snapshot();
    let weft = cluster.attachment(&pod);
    let config = configuration(&default_network());
    let result = weft.add(&config).success().json();
    assert_eq!(result["cniVersion"], "1.1.0", "NPWG1-7.1-2: the version of the meta-plugin's configuration");
    assert_eq!(result["interfaces"][0]["name"], "eth0", "the default network's result");
    let added = cluster.calls();
    assert_eq!(steps(&added), ["one eth0", "two net1", "two net2", "three net2", "two net3"]);
    assert_eq!(
        members(&added, "name"),
        ["default", "a", "b", "b", "a"],
        "NPWG1-3.4.2-1: the definition's name if the configuration has none"
    );
    for call in &added {
        assert_eq!(call.command, "ADD");
        assert_eq!(call.environment("CNI_CONTAINERID"), pod.container_id());
        assert_eq!(call.environment("CNI_NETNS"), pod.path().to_str().unwrap());
        assert_eq!(call.environment("CNI_PATH"), "/opt/cni/bin");
        assert_eq!(
            call.environment("CNI_ARGS"),
            format!(
                "IgnoreUnknown=1;K8S_POD_NAMESPACE=blue;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID={}",
                pod.container_id()
            )
        );
    }
    assert_eq!(members(&added, "cniVersion"), ["1.1.0", "1.1.0", "0.4.0", "0.4.0", "1.1.0"], "NPWG1-7.1-1");
    let previous: Vec<bool> = added.iter().map(|c| c.config().get("prevResult").is_some()).collect();
    assert_eq!(previous, [false, false, false, true, false], "NPWG1-7.1-1: only within a chain");

    weft.check(&with(&config, &json!({ "prevResult": result }))).success();
    let checked = cluster.calls();
    assert_eq!(steps(&checked), steps(&added), "CHECK of all attachments");
    assert!(
        checked.iter().all(
            |call| call.config()["prevResult"]["interfaces"][0]["name"] == call.environment("CNI_IFNAME")
        )
    );

    weft.del(&config).success();
    let gone = cluster.calls();
    assert_eq!(steps(&gone), ["two net3", "three net2", "two net2", "two net1", "one eth0"]);
    for call in &gone {
        assert_eq!(call.config()["prevResult"]["interfaces"][0]["name"], call.environment("CNI_IFNAME"));
        assert_eq!(call.environment("CNI_NETNS"), pod.path().to_str().unwrap());
    }
    host.write(rig::cluster::RECORD, "");
    assert_journal_only(&host, &before);
    weft.del(&config).success();
    assert!(cluster.calls().is_empty(), "the journal has no entry");
}

/// Asserts that at most the journal's directory was created.
#[track_caller]
fn assert_journal_only(host: &Host, before: &testkit::Snapshot) {
    let changes = rig::changes(before, &host.snapshot());
    let left: Vec<&str> =
        changes.lines().filter(|line| !line.starts_with("+ directory /var/lib/weft")).collect();
    assert!(left.is_empty(), "{}", left.join("\n"));
}

/// Returns a network whose first plugin declares all capabilities and returns the requested addresses; the second
/// plugin declares none.
fn capable_network() -> Value {
    let mut network = recording(
        "a",
        "two",
        &json!({ "ADD": [{ "do": "result", "value": {
        "cniVersion": "1.1.0",
        "interfaces": [{ "name": "wan0", "mac": "02:00:00:00:00:07", "sandbox": "/run/netns/web" }],
        "ips": [{ "interface": 0, "address": "10.2.0.7/24" }],
    } }] }),
    );
    network["plugins"][0]["capabilities"] =
        json!({ "ips": true, "mac": true, "portMappings": true, "bandwidth": true });
    network["plugins"][0]["args"] = json!({ "cni": { "colour": "green", "size": 1 }, "other": true });
    network["plugins"].as_array_mut().unwrap().push(step("three", &json!({})));
    network
}

// Requirements: NPWG1-4.1.2.1.3.2-1, NPWG1-4.1.2.1.4.2-1
#[test]
fn network_request_reaches_the_plugin_in_every_channel() {
    let host = host!();
    let cluster = Cluster::new(&host);
    let network = capable_network();
    cluster.definition("a", &network);
    cluster.pod(
        "web",
        json!([{
            "name": "a", "interface": "wan0", "ips": ["10.2.0.7/24"], "mac": "02:00:00:00:00:07",
            "cni-args": { "colour": "blue" },
            "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }],
            "bandwidth": { "ingressRate": 2048, "ingressBurst": 1600 },
        }]),
    );
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    let config = configuration(&default_network());
    weft.add(&config).success();
    let calls = cluster.calls();
    let two = calls[1].config();
    assert_eq!(calls[1].environment("CNI_IFNAME"), "wan0", "NPWG1-4.1.2.1.5.1-1");
    assert_eq!(
        two["runtimeConfig"],
        json!({
            "ips": ["10.2.0.7/24"], "mac": "02:00:00:00:00:07",
            "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }],
            "bandwidth": { "ingressRate": 2048, "ingressBurst": 1600, "egressRate": 0, "egressBurst": 0 },
        }),
        "V11-4.1.2.1.3.2-1, V11-4.1.2.1.7.2-1, V11-4.1.2.1.8.2-1"
    );
    assert_eq!(two["args"]["cni"]["ips"], json!(["10.2.0.7/24"]), "NPWG1-4.1.2.1.3.2-1");
    assert_eq!(two["args"]["cni"]["mac"], "02:00:00:00:00:07", "NPWG1-4.1.2.1.4.2-1");
    assert_eq!(
        two["args"]["cni"]["colour"], "blue",
        "V11-4.1.2.1.6.2-1: the pod's value overrides the definition's"
    );
    assert_eq!((&two["args"]["cni"]["size"], &two["args"]["other"]), (&json!(1), &json!(true)));
    assert_eq!(two.get("capabilities"), None);
    let three = calls[2].config();
    assert_eq!(three.get("runtimeConfig"), None, "the plugin declares no capability");
    assert_eq!(three["args"]["cni"]["ips"], json!(["10.2.0.7/24"]), "each plugin gets args");
    for call in &calls[1..] {
        let args = call.environment("CNI_ARGS");
        assert!(args.contains(";IP=10.2.0.7/24") && args.contains(";MAC=02:00:00:00:00:07"), "{args}");
    }
    assert!(!calls[0].environment("CNI_ARGS").contains("IP="), "the request is not for the default network");
    let status = &cluster.entry(&pod).unwrap()["networkStatus"];
    assert_eq!(status[0]["default"], true, "{status}");
    assert_eq!(status[1]["name"], "blue/a");
    assert_eq!(
        (&status[1]["interface"], &status[1]["ips"]),
        (&json!("wan0"), &json!(["10.2.0.7"])),
        "{status}"
    );
}

// Requirements: V11-7.5-1
#[test]
fn runtime_config_is_for_the_default_network_only() {
    let host = host!();
    let cluster = Cluster::new(&host);
    let capable = |name: &str, plugin: &str| {
        let mut network = recording(name, plugin, &json!({}));
        network["plugins"][0]["capabilities"] = json!({ "portMappings": true, "dns": true });
        network
    };
    cluster.definition("a", &capable("a", "two"));
    cluster.pod("web", "a");
    let pod = host.pod("web");
    let from_runtime = json!({ "portMappings": [{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }], "dns": { "servers": ["10.0.0.1"] } });
    let config = with(&configuration(&capable("default", "one")), &json!({ "runtimeConfig": from_runtime }));
    cluster.attachment(&pod).add(&config).success();
    let calls = cluster.calls();
    assert_eq!(calls[0].config()["runtimeConfig"], from_runtime);
    assert_eq!(calls[1].config().get("runtimeConfig"), None);
    // CNI_ARGS of the runtime are for the default network, too.
    let other = host.pod("web2");
    cluster.pod("web2", "a");
    let mut weft = cluster.attachment(&other);
    weft.args.push_str(";IP=10.9.9.9");
    weft.add(&config).success();
    let calls = cluster.calls();
    assert!(calls[0].environment("CNI_ARGS").contains("IP=10.9.9.9"));
    assert!(!calls[1].environment("CNI_ARGS").contains("IP="), "{}", calls[1].environment("CNI_ARGS"));
}

// Requirements: NPWG1-4.1.2.1.3.2-2, NPWG1-4.1.2.1.4.2-2
#[test]
fn network_request_not_in_the_result_fails_and_is_undone() {
    for (key, value) in [("ips", json!(["10.2.0.7"])), ("mac", json!("02:00:00:00:00:07"))] {
        let host = host!(Feature::Bridge);
        let cluster = Cluster::new(&host);
        cluster.definition("real", &bridge("real", 5));
        cluster.recording("ignoring", "two", &json!({ "ADD": [{ "do": "result", "value": {
            "cniVersion": "1.1.0",
            "interfaces": [{ "name": "host0" }, { "name": "net2", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/web" }],
            "ips": [{ "interface": 0, "address": "10.2.0.7/24" }, { "interface": 1, "address": "10.2.0.8/24" }],
        } }] }));
        let mut element = json!({ "name": "ignoring" });
        element[key] = value;
        cluster.pod("web", json!([{ "name": "real" }, element, { "name": "real" }]));
        let pod = host.pod("web");
        let weft = cluster.attachment(&pod);
        let config = configuration(&default_network());
        prime(&host, &cluster, &config, "real");
        let before = host.snapshot();
        let refused = weft.add(&config);
        let (code, message) = refusal(&refused);
        assert_eq!(code, 7, "{message}");
        assert!(message.contains("blue/ignoring") && message.contains("net2"), "{message}");
        assert_eq!(cluster.order(), ["ADD eth0", "ADD net2", "DEL net2", "DEL eth0"], "{key}");
        assert!(links(&pod).is_empty(), "{:?}", links(&pod));
        assert_nothing_left(key, &host, &before);
    }
}

/// Creates the objects that remain on the host: bridges, the journal's directory and the directories of
/// host-local.
#[track_caller]
fn prime(host: &Host, cluster: &Cluster<'_>, config: &Value, networks: &str) {
    cluster.pod("prime", networks);
    let pod = host.pod("prime");
    let weft = cluster.attachment(&pod);
    weft.add(config).success();
    weft.del(config).success();
    pod.remove();
    let _ = cluster.calls();
}

// Requirements: NPWG1-4.1.2.1.3-3
#[test]
fn network_requested_ips_and_mac_are_on_the_interface() {
    let host = host!(Feature::Bridge, Feature::Ping);
    let cluster = Cluster::new(&host);
    let mut network = bridge("red", 2);
    network["plugins"][0]["capabilities"] = json!({ "mac": true, "ips": true });
    cluster.definition("red", &network);
    cluster.pod(
        "web",
        json!([
            { "name": "red", "ips": ["10.2.0.77/24"], "mac": "02:00:00:00:00:77", "interface": "wan0" },
            { "name": "red" },
        ]),
    );
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    let config = configuration(&bridge("default", 1));
    let result = weft.add(&config).success().json();
    assert_eq!(addresses(&result), ["10.1.0.2/24"]);
    assert_eq!(links(&pod), ["eth0", "net2", "wan0"]);
    assert_eq!(addresses_on(&pod, "wan0"), ["10.2.0.77/24"]);
    assert_eq!(link(&pod, "wan0").unwrap()["address"], "02:00:00:00:00:77");
    assert_eq!(addresses_on(&pod, "net2").len(), 1, "NPWG1-4.2-1: the same network twice");
    assert!(pod.pings("10.1.0.1") && pod.pings("10.2.0.1"));
    weft.check(&with(&config, &json!({ "prevResult": result }))).success();
    pod.run(["ip", "link", "set", "net2", "mtu", "1400"]);
    pod.run(["ip", "address", "delete", "10.2.0.77/24", "dev", "wan0"]);
    assert_refused(
        "CHECK sees every attachment",
        &weft.check(&with(&config, &json!({ "prevResult": result }))),
        999,
        &["wan0", "10.2.0.77/24"],
    );
    // Another pod requests the address and is refused; the first pod keeps the address.
    cluster.pod("late", json!([{ "name": "red", "ips": ["10.2.0.77/24"] }]));
    let late = host.pod("late");
    let (code, message) = refusal(&cluster.attachment(&late).add(&config));
    assert!(code == 11 && message.contains("10.2.0.77"), "{code} {message}");
    assert!(links(&late).is_empty());
    weft.del(&config).success();
    assert!(links(&pod).is_empty());
    cluster.attachment(&late).add(&config).success();
    assert_eq!(addresses_on(&late, "net1"), ["10.2.0.77/24"]);
}

/// Returns a network of both families whose plugin adds default routes.
fn with_default_routes(name: &str, subnet: u8) -> Value {
    let mut network = bridge(name, subnet);
    network["plugins"][0]["isDefaultGateway"] = true.into();
    network["plugins"][0]["ipam"]["ranges"] =
        json!([[{ "subnet": format!("10.{subnet}.0.0/24") }], [{ "subnet": format!("fd0{subnet}::/64") }]]);
    network
}

fn default_routes(pod: &Pod) -> Vec<String> {
    let mut all = routes(pod, &["route", "show", "default"]);
    // The kernel sets a metric for IPv6 if none is given.
    all.extend(
        routes(pod, &["-6", "route", "show", "default"]).iter().map(|r| r.replace(" metric 1024", "")),
    );
    all
}

// Requirements: M1, M2, V11-4.1.2.1.9-2
#[test]
fn default_route_moves_by_family_and_is_read_back() {
    let cases: [(&str, Value, &[&str]); 6] = [
        ("no request", json!(null), &["default via 10.1.0.1 dev eth0", "default via fd01::1 dev eth0"]),
        (
            "C13: IPv4",
            json!(["10.2.0.1"]),
            &["default via 10.2.0.1 dev net1", "default via fd01::1 dev eth0"],
        ),
        ("C13: IPv6", json!(["fd02::1"]), &["default via 10.1.0.1 dev eth0", "default via fd02::1 dev net1"]),
        (
            "both",
            json!(["10.2.0.9", "fd02::9"]),
            &["default via 10.2.0.9 dev net1", "default via fd02::9 dev net1"],
        ),
        (
            "C14: several",
            json!(["10.2.0.8", "10.2.0.9"]),
            &[
                "default via 10.2.0.8 dev net1 metric 100",
                "default via 10.2.0.9 dev net1 metric 101",
                "default via fd01::1 dev eth0",
            ],
        ),
        // The network's own plugins add no default route: there is nothing to keep, and no other network
        // loses its route.
        (
            "C12: keep without a route of its own",
            json!([]),
            &["default via 10.1.0.1 dev eth0", "default via fd01::1 dev eth0"],
        ),
    ];
    for (label, request, expected) in cases {
        let host = host!(Feature::Bridge, Feature::Ipv6);
        let cluster = Cluster::new(&host);
        let mut red = with_default_routes("red", 2);
        red["plugins"][0]["isDefaultGateway"] = false.into();
        cluster.definition("red", &red);
        cluster.definition("green", &with_default_routes("green", 3));
        let mut element = json!({ "name": "red" });
        if !request.is_null() {
            element["default-route"] = request;
        }
        cluster.pod("web", json!([element]));
        let pod = host.pod("web");
        let weft = cluster.attachment(&pod);
        let config = configuration(&with_default_routes("default", 1));
        let result = weft.add(&config).success().json();
        assert_eq!(default_routes(&pod), expected, "{label}");
        let own = result["routes"].as_array().map_or(0, Vec::len);
        let left = expected.iter().filter(|route| route.contains("eth0")).count();
        assert_eq!(own, left, "{label}: the result has the routes of the interface: {result}");
        weft.check(&with(&config, &json!({ "prevResult": result }))).success();
        weft.del(&config).success();
        assert!(links(&pod).is_empty(), "{label}");
    }
}

// Requirements: V11-4.1.2.1.9-2
#[test]
fn default_route_is_removed_from_the_other_networks() {
    let host = host!(Feature::Bridge, Feature::Ipv6);
    let cluster = Cluster::new(&host);
    cluster.definition("red", &with_default_routes("red", 2));
    cluster.definition("green", &with_default_routes("green", 3));
    let config = configuration(&with_default_routes("default", 1));
    for (name, elements, expected) in [
        (
            "keep",
            json!([{ "name": "red" }, { "name": "green", "default-route": [] }]),
            ["default via 10.3.0.1 dev net2", "default via fd03::1 dev net2"],
        ),
        (
            "via",
            json!([{ "name": "red", "default-route": ["10.2.0.1", "fd02::1"] }, { "name": "green" }]),
            ["default via 10.2.0.1 dev net1", "default via fd02::1 dev net1"],
        ),
    ] {
        cluster.pod(name, elements);
        let pod = host.pod(name);
        let weft = cluster.attachment(&pod);
        let result = weft.add(&config).success().json();
        assert_eq!(default_routes(&pod), expected, "{name}");
        weft.check(&with(&config, &json!({ "prevResult": result }))).success();
        let status = cluster.entry(&pod).unwrap()["networkStatus"].clone();
        let holders: Vec<&Value> =
            status.as_array().unwrap().iter().filter(|entry| entry.get("default-route").is_some()).collect();
        assert_eq!(holders.len(), 1, "V11-5.3.6.4-1: {status}");
        weft.del(&config).success();
    }
}

// Requirements: M21
#[test]
fn default_route_that_cannot_be_set_undoes_the_add() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    cluster.definition("red", &bridge("red", 2));
    let config = configuration(&bridge("default", 1));
    prime(&host, &cluster, &config, "red");
    cluster.pod("web", json!([{ "name": "red", "default-route": ["198.51.100.1"] }]));
    let pod = host.pod("web");
    let (before, inside) = (host.snapshot(), pod.snapshot());
    assert_refused("unreachable", &cluster.attachment(&pod).add(&config), 5, &["default route", "net1"]);
    assert_nothing_left("unreachable", &host, &before);
    assert_pod_unchanged("unreachable", &pod, &inside);
}

/// The kernel accepts some of these gateways, and the packets go nowhere.
#[test]
fn default_route_by_the_pod_itself_or_its_subnet_is_refused() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    cluster.definition("red", &with_default_routes("red", 2));
    let config = configuration(&bridge("default", 1));
    prime(&host, &cluster, &config, "red");
    let cases = [
        ("10.2.0.2", "the address of the pod itself on net1 (10.2.0.2/24)"),
        ("fd02::2", "the address of the pod itself on net1 (fd02::2/64)"),
        ("10.2.0.0", "the address of the network on net1"),
        ("10.2.0.255", "the broadcast address on net1"),
    ];
    for (index, (gateway, why)) in cases.into_iter().enumerate() {
        host.run(["sh", "-c", "rm -f /var/lib/cni/networks/*/last_reserved_ip.*"]);
        let name = format!("web-{index}");
        cluster.pod(&name, json!([{ "name": "red", "default-route": ["10.2.0.1", gateway] }]));
        let pod = host.pod(&name);
        let (before, inside) = (host.snapshot(), pod.snapshot());
        let words = ["default route: blue/red on net1", "default-route", gateway, why];
        assert_refused(gateway, &cluster.attachment(&pod).add(&config), 7, &words);
        assert_nothing_left(gateway, &host, &before);
        assert_pod_unchanged(gateway, &pod, &inside);
    }
    // The first address of an IPv6 subnet is that of its routers.
    cluster.pod("web", json!([{ "name": "red", "default-route": ["fd02::"] }]));
    let pod = host.pod("web");
    cluster.attachment(&pod).add(&config).success();
    assert!(default_routes(&pod).contains(&"default via fd02:: dev net1".to_owned()));
}

// Requirements: DI-2, DI-4, DI-5
#[test]
fn device_info_file_is_offered_read_and_removed() {
    let host = host!();
    let cluster = Cluster::new(&host);
    let mut network = recording("dev", "two", &json!({}));
    network["plugins"][0]["capabilities"] = json!({ "CNIDeviceInfoFile": true });
    cluster.definition("dev", &network);
    cluster.pod("web", "dev");
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    let config = configuration(&default_network());
    weft.add(&config).success();
    let file = cluster.calls()[1].config()["runtimeConfig"]["CNIDeviceInfoFile"].as_str().unwrap().to_owned();
    assert!(file.starts_with("/var/run/k8s.cni.cncf.io/devinfo/cni/"), "{file}");
    weft.del(&config).success();
    let info = json!({ "type": "memif", "version": "1.1.0", "memif": { "role": "master", "path": "/x", "mode": "ip" } });
    host.write(&file, info.to_string());
    weft.add(&config).success();
    assert_eq!(cluster.entry(&pod).unwrap()["networkStatus"][1]["device-info"], info);
    weft.del(&config).success();
    assert_eq!(host.read(&file), None, "DI-5");
    // An invalid file removes one field from the status.
    host.write(&file, "{");
    weft.add(&config).success();
    assert_eq!(cluster.entry(&pod).unwrap()["networkStatus"][1].get("device-info"), None);
}

// Requirements: M13
#[test]
fn unknown_pod_fails_add_and_leaves_nothing() {
    let host = host!();
    let cluster = Cluster::new(&host);
    let config = configuration(&default_network());
    cluster.pod("known", "nowhere");
    let (known, unknown) = (host.pod("known"), host.pod("unknown"));
    host.run(["mkdir", "-p", "-m", "700", "/var/lib/weft/sandboxes"]);
    let before = host.snapshot();
    assert_refused("M13", &cluster.attachment(&unknown).add(&config), 3, &["blue/unknown"]);
    assert_nothing_left("M13", &host, &before);
    assert_refused("rule 4", &cluster.attachment(&known).add(&config), 7, &["nowhere"]);
    assert_nothing_left("NPWG1-3.4.1-rule4", &host, &before);
    let bad = with(&config, &json!({ "delegates": [recording("default", "absent", &json!({}))] }));
    cluster.pod("plain", "");
    let plain = host.pod("plain");
    let before = host.snapshot();
    assert_refused("no such plugin", &cluster.attachment(&plain).add(&bad), 7, &["absent"]);
    assert_nothing_left("no such plugin", &host, &before);
    assert_refused(
        "CHECK of nothing",
        &cluster.attachment(&plain).check(&with(&config, &json!({ "prevResult": {} }))),
        3,
        &["not attached"],
    );
    assert_nothing_left("CHECK of nothing", &host, &before);
    assert!(cluster.calls().is_empty());
}

// Requirements: S18
#[test]
fn attached_sandbox_is_not_attached_again() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    cluster.definition("red", &bridge("red", 2));
    cluster.pod("web", "red");
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    let config = configuration(&bridge("default", 1));
    let result = weft.add(&config).success().json();
    let (before, inside) = (host.snapshot(), pod.snapshot());
    assert_refused("S18", &weft.add(&config), 4, &["already attached", "DEL"]);
    assert_nothing_left("S18", &host, &before);
    assert_pod_unchanged("S18", &pod, &inside);
    weft.check(&with(&config, &json!({ "prevResult": result }))).success();
    weft.del(&config).success();
    weft.add(&config).success();
}

// Requirements: M12, S32
#[test]
fn gc_detaches_stale_sandboxes_and_calls_every_network() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    cluster.recording("a", "two", &json!({}));
    cluster.definition("red", &bridge("red", 2));
    let config = configuration(&bridge("default", 1));
    let pods = ["web", "stale"].map(|name| {
        cluster.pod(name, "a,red");
        let pod = host.pod(name);
        cluster.attachment(&pod).add(&config).success();
        pod
    });
    let [web, stale] = pods;
    // A sandbox of another configuration is not this configuration's concern.
    cluster.pod("foreign", "red");
    let foreign = host.pod("foreign");
    let other = with(&config, &json!({ "name": "other-net" }));
    cluster.attachment(&foreign).add(&other).success();
    let _ = cluster.calls();
    let weft = cluster.attachment(&web);
    let full = host.snapshot();
    rig::gc(&weft, &config, None).success();
    assert_nothing_left("no list", &host, &full);

    rig::gc(&weft, &config, Some(&[(&web.container_id(), "eth0")])).success();
    assert!(cluster.entry(&stale).is_none() && links(&stale).is_empty(), "{:?}", links(&stale));
    assert_eq!(
        links(&web),
        ["eth0", "net1", "net2"]
            .iter()
            .filter(|n| **n != "net1")
            .map(|s| (*s).to_owned())
            .collect::<Vec<_>>()
    );
    assert_eq!(links(&foreign), ["eth0", "net1"], "another network's sandbox");
    let calls = cluster.calls();
    let deleted: Vec<&str> =
        calls.iter().filter(|c| c.command == "DEL").map(|c| c.environment("CNI_CONTAINERID")).collect();
    assert_eq!(deleted, [stale.container_id()]);
    let gc_lists: Vec<Value> = calls
        .iter()
        .filter(|c| c.command == "GC")
        .map(|c| c.config()["cni.dev/valid-attachments"].clone())
        .collect();
    assert_eq!(gc_lists.len(), 1, "M12: GC of a selected network, too");
    assert!(
        gc_lists[0]
            .as_array()
            .unwrap()
            .contains(&json!({ "containerID": web.container_id(), "ifname": "net1" })),
        "{gc_lists:?}"
    );
    weft.check(&with(&config, &json!({ "prevResult": {} }))).success();

    rig::gc(&weft, &config, Some(&[])).success();
    assert!(cluster.entry(&web).is_none() && links(&web).is_empty());
    assert_eq!(links(&foreign), ["eth0", "net1"], "an empty list is for this network alone");
}

// Requirements: S33
#[test]
fn status_covers_the_default_network() {
    let host = host!();
    let cluster = Cluster::new(&host);
    let weft = cluster.attachment(&host.pod("web"));
    let status = |config: &Value| weft.call("STATUS", config.to_string());
    assert_refused("no manifests", &status(&configuration(&default_network())), 50, &["manifestDir"]);
    cluster.pod("web", "");
    status(&configuration(&default_network())).success();
    assert_eq!(cluster.calls()[0].command, "STATUS");
    let failing = recording(
        "default",
        "one",
        &json!({ "STATUS": [{ "do": "fail", "code": 51, "message": "limping" }] }),
    );
    assert_refused("the plugin's code", &status(&configuration(&failing)), 51, &["limping"]);
    let missing = recording("default", "absent", &json!({}));
    assert_refused("no plugin", &status(&configuration(&missing)), 50, &["absent"]);
    let unready =
        with(&configuration(&default_network()), &json!({ "readinessindicatorfile": "/run/cni/ready" }));
    assert_refused("NPWG1-6.1.2-2", &status(&unready), 50, &["/run/cni/ready"]);
    host.write("/run/cni/ready", "");
    status(&unready).success();
}

// Requirements: S33
#[test]
fn status_covers_networks_of_every_pod_but_no_selected_one() {
    let host = host!();
    let cluster = Cluster::new(&host);
    let weft = cluster.attachment(&host.pod("web"));
    let fail = |code: u32| json!({ "STATUS": [{ "do": "fail", "code": code, "message": "limping" }] });
    let config = |second: &Value| {
        let keys = json!({
            "delegates": [default_network(), recording("second", "two", second)],
            "defaultNetworks": ["red"], "multusNamespace": "blue",
        });
        with(&configuration(&default_network()), &keys)
    };
    let status = |config: &Value| weft.call("STATUS", config.to_string());
    // A network of every pod has no definition: no pod could start.
    cluster.pod("web", "");
    assert_refused("no definition", &status(&config(&json!({}))), 7, &["red"]);
    cluster.recording("red", "three", &json!({}));
    cluster.recording("selected", "three", &fail(50));
    cluster.pod("web", "selected");
    status(&config(&json!({}))).success();
    let calls = cluster.calls();
    let called: Vec<String> = calls.iter().map(|call| format!("{} {}", call.command, call.program)).collect();
    assert_eq!(called, ["STATUS one", "STATUS two", "STATUS three"]);
    assert_refused(
        "the plugin's code",
        &status(&config(&fail(51))),
        51,
        &["network second of every pod", "limping"],
    );
    cluster.recording("red", "three", &fail(50));
    assert_refused(
        "a network of a definition",
        &status(&config(&json!({}))),
        50,
        &["network red of every pod", "limping"],
    );
    cluster.recording("red", "absent", &json!({}));
    assert_refused("no plugin", &status(&config(&json!({}))), 50, &["network red", "absent"]);
}

// Requirements: NPWG1-2.1-1, NPWG1-7.1-2, M28
#[test]
fn network_result_has_the_version_of_the_request() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    // The definition has another version than the request.
    cluster.definition("red", &with(&bridge("red", 2), &json!({ "cniVersion": "0.4.0" })));
    cluster.pod("web", "red");
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    let known = weft.call("VERSION", json!({ "cniVersion": "0.4.0" }).to_string()).success().json();
    assert_eq!(known, json!({ "cniVersion": "0.4.0", "supportedVersions": VERSIONS }));
    weft.add(&configuration(&bridge("default", 1))).success();
    weft.del(&configuration(&bridge("default", 1))).success();
    let (before, inside) = (host.snapshot(), pod.snapshot());
    for version in VERSIONS {
        let config = in_version(&configuration(&bridge("default", 1)), version);
        let result = weft.add(&config).success().json();
        assert_eq!(result["cniVersion"], version);
        assert_eq!(
            addresses(&result),
            addresses_on(&pod, "eth0"),
            "{version}: the addresses of the default network"
        );
        assert_eq!(addresses_on(&pod, "net1").len(), 1, "{version}");
        for (verb, since) in [("CHECK", "0.4.0"), ("STATUS", "1.1.0")] {
            let answer = weft.call(verb, config.to_string());
            match version < since {
                true => assert_refused(version, &answer, 1, &[verb]),
                false => assert_eq!(answer.success().stdout, "", "{version} {verb}"),
            }
        }
        let sweep = with(&config, &json!({ "cni.dev/valid-attachments": [] }));
        let swept = weft.call("GC", sweep.to_string());
        match version < "1.1.0" {
            true => assert_refused(version, &swept, 1, &["GC"]),
            false => {
                swept.success();
                assert_eq!(link(&pod, "net1"), None, "no attachment is valid");
            }
        }
        assert_eq!(weft.del(&config).success().stdout, "", "{version}");
        assert_nothing_left(version, &host, &before);
        assert_pod_unchanged(version, &pod, &inside);
    }
}

// Requirements: NPWG1-6.1.2-2, conflict C19
#[test]
fn readiness_file_delays_add_and_not_del() {
    let host = host!();
    let cluster = Cluster::new(&host);
    cluster.recording("red", "two", &json!({}));
    cluster.pod("web", "red");
    let weft = cluster.attachment(&host.pod("web"));
    let config =
        with(&configuration(&default_network()), &json!({ "readinessindicatorfile": "/run/cni/ready" }));
    std::thread::scope(|scope| {
        let add = scope.spawn(|| weft.add(&config));
        std::thread::sleep(Duration::from_millis(700));
        assert!(!add.is_finished(), "{:?}", add.join());
        assert_eq!(steps(&cluster.calls()), [""; 0], "nothing is attached before");
        host.write("/run/cni/ready", "");
        add.join().expect("an ADD").success();
    });
    assert_eq!(steps(&cluster.calls()), ["one eth0", "two net1"]);
    host.run(["rm", "/run/cni/ready"]);
    let ended = weft.del(&config);
    assert!(ended.stderr.contains("/run/cni/ready does not exist; detaching from the journal"), "{ended}");
    ended.success();
    assert_eq!(steps(&cluster.calls()), ["two net1", "one eth0"]);
}

#[test]
fn device_info_directory_does_not_depend_on_the_umask() {
    for umask in ["0000", "0077"] {
        let host = host!();
        let cluster = Cluster::new(&host);
        let mut extra = recording("extra", "two", &json!({}));
        extra["plugins"][0]["capabilities"] = json!({ "CNIDeviceInfoFile": true });
        cluster.definition("extra", &extra);
        cluster.pod("web", "extra");
        let pod = host.pod("web");
        let mut attachment = cluster.attachment(&pod);
        attachment.through = ["sh", "-c"].map(str::to_owned).to_vec();
        attachment.through.push(format!("umask {umask}; exec /opt/cni/bin/weft"));
        attachment.add(&configuration(&recording("default", "one", &json!({})))).success();
        for directory in ["/var/run/k8s.cni.cncf.io", "/var/run/k8s.cni.cncf.io/devinfo/cni"] {
            assert_eq!(host.run(["stat", "-c", "%a", directory]).trim(), "755", "{umask}: {directory}");
        }
    }
}
