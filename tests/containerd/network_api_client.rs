//! Tests for the CRI Network API with an independent client: Python, with code generated from the shipped
//! `.proto`.
//!
//! ```text
//!   client.py ── gRPC ── weft cri-proxy ── CRI ── containerd
//! ```
//!
//! Source: the proposal "CRI Network API"; docs/cri-networks.md, "The calls".

use rig::proxy::bridge;
use rig::{Proxy, assert_nothing_left};
use serde_json::{Value, json};
use testkit::{Feature, host};

/// Returns a runtime with a proxy before it, without networks.
macro_rules! proxy {
    () => {{
        let host = host!(Feature::Bridge, Feature::Veth);
        let Some(proxy) = Proxy::with_networks(host) else { return };
        proxy
    }};
}

/// Returns the answers to calls.
macro_rules! calls {
    ($proxy:expr, $calls:expr) => {{
        let Some(answers) = $proxy.calls(&$calls) else { return };
        answers
    }};
}

/// Returns a network in the JSON form of protobuf, in which parameters are strings.
fn network(name: &str, subnet: u8) -> Value {
    let mut network = bridge(name, subnet);
    let parameters = &mut network["cniv1_config"]["plugins"][0]["parameters"];
    for value in parameters.as_object_mut().expect("parameters").values_mut() {
        if !value.is_string() {
            *value = value.to_string().into();
        }
    }
    network
}

/// Returns `network` with one field changed.
fn with(network: &Value, place: &str, value: Value) -> Value {
    let mut network = network.clone();
    match network.pointer_mut(place) {
        Some(found) => *found = value,
        None => {
            let (parent, key) = place.rsplit_once('/').expect("a place");
            network.pointer_mut(parent).expect("its parent")[key] = value;
        }
    }
    network
}

#[test]
fn network_api_client_sets_uses_and_removes_networks() {
    let proxy = proxy!();
    let set =
        |name, subnet| json!({ "method": "SetPodNetwork", "request": { "config": network(name, subnet) } });
    let both = json!([{ "network_name": "red" }, { "network_name": "blue", "interface_name": "storage",
        "parameters": { "ips": "[\"10.2.0.77/24\"]" } }]);
    let run = json!({ "method": "RunPodSandbox", "request": { "config": proxy.pod_in_json("web", &both) } });
    let sandbox = |method| json!({ "method": method, "request": { "pod_sandbox_id": "$3.pod_sandbox_id" } });
    let remove = |name| json!({ "method": "RemovePodNetwork", "request": { "metadata": { "name": name } } });
    let list = json!({ "method": "ListPodNetwork" });
    let answers = calls!(
        proxy,
        json!([
            set("red", 1),
            set("blue", 2),
            list,
            run,
            sandbox("PodSandboxStatus"),
            remove("red"),
            sandbox("StopPodSandbox"),
            sandbox("RemovePodSandbox"),
            remove("red"),
            remove("red"),
            remove("blue"),
            list,
            { "method": "NoSuchMethod" },
            { "method": "/runtime.v1.ImageService/ListImages" },
            { "method": "Version" },
        ])
    );
    let codes: Vec<&str> = answers.iter().map(|answer| answer["code"].as_str().expect("a code")).collect();
    let mut expected = vec!["OK"; 15];
    expected[5] = "FAILED_PRECONDITION";
    expected[12] = "UNIMPLEMENTED";
    assert_eq!(codes, expected, "{answers:#?}");
    assert_eq!(answers[0]["reply"]["network"]["config"]["metadata"]["generation"], 1);
    let named: Vec<&Value> = answers[2]["reply"]["networks"].as_array().expect("networks").iter().collect();
    assert_eq!(named.len(), 2);
    let status = &answers[4]["reply"]["status"];
    assert!(status["network"]["ip"].as_str().expect("an address").starts_with("10.1.0."));
    assert_eq!(status["network"]["additional_ips"], json!([{ "ip": "10.2.0.77", "network_name": "blue" }]));
    assert_eq!(status["annotations"], json!({}));
    assert!(answers[5]["message"].as_str().expect("a text").contains("(blue/web)"));
    assert_eq!(answers[11]["reply"]["networks"], json!([]));
    assert!(
        answers[12]["message"].as_str().expect("a text").contains("NoSuchMethod"),
        "the message of the runtime"
    );
    assert_eq!(answers[14]["reply"]["runtime_name"], "containerd");
}

#[test]
fn network_api_client_generation_orders_writers_of_a_network() {
    let proxy = proxy!();
    let set = |uid: &str, generation: u32, subnet| {
        let mut config = network("red", subnet);
        config["metadata"] = json!({ "name": "red", "uid": uid, "generation": generation });
        json!({ "method": "SetPodNetwork", "request": { "config": config } })
    };
    let remove = |uid: &str| json!({ "method": "RemovePodNetwork", "request": { "metadata": { "name": "red", "uid": uid } } });
    let calls = json!([
        set("a", 5, 1),
        set("a", 4, 2),
        set("a", 5, 2),
        set("a", 5, 1),
        set("a", 6, 2),
        remove("b"),
        { "method": "ListPodNetwork" },
        remove("a"),
        { "method": "ListPodNetwork" },
    ]);
    let answers = calls!(proxy, calls);
    let codes: Vec<&str> = answers.iter().map(|answer| answer["code"].as_str().expect("a code")).collect();
    let (ok, refused) = ("OK", "FAILED_PRECONDITION");
    assert_eq!(codes, [ok, refused, refused, ok, ok, refused, ok, ok, ok], "{answers:#?}");
    let message = |place: usize| answers[place]["message"].as_str().expect("a text");
    assert!(
        message(1).starts_with("config.metadata.generation: 4: older than the stored generation 5"),
        "{}",
        message(1)
    );
    assert!(message(2).starts_with("config.metadata.generation: 5: is already stored"), "{}", message(2));
    assert!(message(5).contains("has uid \"a\", not \"b\""), "{}", message(5));
    let left = &answers[6]["reply"]["networks"][0]["config"]["metadata"];
    assert_eq!((&left["uid"], &left["generation"]), (&json!("a"), &json!(6)));
    assert_eq!(answers[8]["reply"]["networks"], json!([]));
}

/// Returns networks with invalid metadata, each with the path in the error.
fn wrong_metadata() -> Vec<(Value, &'static str)> {
    let good = network("red", 1);
    let long = "x".repeat(300);
    vec![
        (Value::Null, "config"),
        (json!({}), "config.metadata"),
        (with(&good, "/metadata/name", json!("")), "config.metadata.name"),
        (with(&good, "/metadata/name", json!("_fallback")), "config.metadata.name"),
        (with(&good, "/metadata/name", json!("a/b")), "config.metadata.name"),
        (with(&good, "/metadata/name", json!("../../etc")), "config.metadata.name"),
        (with(&good, "/metadata/name", json!(long)), "config.metadata.name"),
        (with(&good, "/metadata/namespace", json!("A")), "config.metadata.namespace"),
        (with(&good, "/metadata/uid", json!(long)), "config.metadata.uid"),
        (with(&good, "/metadata/uid", json!("a\nb")), "config.metadata.uid"),
        (with(&good, "/network_type", json!(7)), "config.network_type"),
        (with(&good, "/metadata/name", json!("a b")), "config.metadata.name"),
        (with(&good, "/metadata/name", json!("\u{0}")), "config.metadata.name"),
        (with(&good, "/metadata/namespace", json!("../etc")), "config.metadata.namespace"),
        (with(&good, "/metadata/namespace", json!("x".repeat(64))), "config.metadata.namespace"),
        (with(&good, "/network_type", json!(-1)), "config.network_type"),
    ]
}

/// Returns networks with an invalid list of plugins.
fn wrong_lists() -> Vec<(Value, &'static str)> {
    let good = network("red", 1);
    let list = "/cniv1_config";
    let plugin = "/cniv1_config/plugins/0";
    vec![
        (with(&good, list, Value::Null), "config.cniv1_config"),
        (with(&good, "/cniv1_config/cni_version", json!("")), "config.cniv1_config.cni_version"),
        (with(&good, "/cniv1_config/cni_version", json!("9.9.9")), "config.cniv1_config.cni_version"),
        (with(&good, "/cniv1_config/network_name", json!("_x")), "config.cniv1_config.network_name"),
        (with(&good, "/cniv1_config/network_name", json!("a b")), "config.cniv1_config.network_name"),
        (with(&good, "/cniv1_config/plugins", json!([])), "config.cniv1_config.plugins"),
        (with(&good, &format!("{plugin}/type"), json!("absent")), "config.cniv1_config"),
        (with(&good, "/cniv1_config/cni_version", json!("1.0.0 ")), "config.cniv1_config.cni_version"),
        (with(&good, "/cniv1_config/network_name", json!("_fallback")), "config.cniv1_config.network_name"),
        (
            with(&good, "/cniv1_config/plugins", Value::from(vec![json!({ "type": "bridge" }); 33])),
            "config.cniv1_config.plugins",
        ),
        (
            with(&good, &format!("{plugin}/parameters/note"), json!("x".repeat(3 << 20))),
            "config.cniv1_config",
        ),
    ]
}

/// Returns networks with an invalid plugin.
fn wrong_plugins() -> Vec<(Value, &'static str)> {
    let good = network("red", 1);
    let plugin = "/cniv1_config/plugins/0";
    let many: Vec<String> = (0..33).map(|number| format!("c{number}")).collect();
    vec![
        (with(&good, &format!("{plugin}/type"), json!("")), "config.cniv1_config.plugins[0].type"),
        (with(&good, &format!("{plugin}/type"), json!("../bridge")), "config.cniv1_config.plugins[0].type"),
        (with(&good, &format!("{plugin}/type"), json!("weft")), "config.cniv1_config.plugins[0].type"),
        (
            with(&good, &format!("{plugin}/capabilities"), json!([""])),
            "config.cniv1_config.plugins[0].capabilities[0]",
        ),
        (
            with(&good, &format!("{plugin}/capabilities"), json!(["a", "a"])),
            "config.cniv1_config.plugins[0].capabilities[1]",
        ),
        (
            with(&good, &format!("{plugin}/parameters/type"), json!("x")),
            "config.cniv1_config.plugins[0].parameters",
        ),
        (
            with(&good, &format!("{plugin}/parameters/prevResult"), json!("{}")),
            "config.cniv1_config.plugins[0].parameters",
        ),
        (
            with(&good, &format!("{plugin}/parameters/ipam"), json!("host-local")),
            "config.cniv1_config.plugins[0].parameters[\"ipam\"]",
        ),
        (
            with(&good, &format!("{plugin}/parameters/ipam"), json!("{\"type\":\"../x\"}")),
            "config.cniv1_config.plugins[0].parameters[\"ipam\"]",
        ),
        (with(&good, "/cniv1_config/plugins", json!([{}])), "config.cniv1_config.plugins[0].type"),
        (with(&good, &format!("{plugin}/type"), json!("multus")), "config.cniv1_config.plugins[0].type"),
        (
            with(&good, &format!("{plugin}/capabilities"), json!(many)),
            "config.cniv1_config.plugins[0].capabilities",
        ),
        (
            with(&good, &format!("{plugin}/capabilities"), json!(["a b"])),
            "config.cniv1_config.plugins[0].capabilities[0]",
        ),
        (
            with(&good, &format!("{plugin}/parameters"), json!({ "": "1" })),
            "config.cniv1_config.plugins[0].parameters",
        ),
        (
            with(&good, &format!("{plugin}/parameters"), json!({ "a\nb": "1" })),
            "config.cniv1_config.plugins[0].parameters",
        ),
        (
            with(&good, &format!("{plugin}/parameters"), json!({ "RuntimeConfig": "{}" })),
            "config.cniv1_config.plugins[0].parameters",
        ),
    ]
}

/// Returns networks with invalid address ranges.
fn wrong_ranges() -> Vec<(Value, &'static str)> {
    let good = network("red", 1);
    vec![
        (with(&good, "/ip_ranges", json!([{ "cidr": "10.7.0.0/24" }])), "config.ip_ranges"),
        (ranges(&good, &["x"]), "config.ip_ranges[0].cidr"),
        (ranges(&good, &["10.7.0.9/24"]), "config.ip_ranges[0].cidr"),
        (ranges(&good, &["10.7.0.0/32"]), "config.ip_ranges[0].cidr"),
        (ranges(&good, &["10.7.0.0/24", "10.7.0.0/25"]), "config.ip_ranges[1].cidr"),
        (ranges(&good, &[""]), "config.ip_ranges[0].cidr"),
        (ranges(&good, &["fd00::/129"]), "config.ip_ranges[0].cidr"),
        (ranges(&good, &["10.7.0.0/24"; 65]), "config.ip_ranges"),
    ]
}

#[test]
fn network_api_client_invalid_fields_are_refused_by_path() {
    let proxy = proxy!();
    let wrong = [wrong_metadata(), wrong_lists(), wrong_plugins(), wrong_ranges()].concat();
    let set = |config: &Value| match config {
        Value::Null => json!({ "method": "SetPodNetwork", "request": {} }),
        config => json!({ "method": "SetPodNetwork", "request": { "config": config } }),
    };
    let calls: Vec<Value> = wrong.iter().map(|(config, _)| set(config)).collect();
    let answers = calls!(proxy, Value::from(calls));
    for ((config, path), answer) in wrong.iter().zip(&answers) {
        assert_eq!(answer["code"], "INVALID_ARGUMENT", "{config}: {answer}");
        let message = answer["message"].as_str().expect("a text");
        assert!(message.starts_with(&format!("{path}: ")), "{path}: {message}");
    }
    let metadata = |metadata: Value| json!({ "method": "RemovePodNetwork", "request": metadata });
    let answers = calls!(
        proxy,
        json!([
            metadata(json!({})),
            metadata(json!({ "metadata": { "name": "_fallback" } })),
            metadata(json!({ "metadata": { "name": "" } })),
            { "method": "ListPodNetwork" },
        ])
    );
    assert!(answers[..3].iter().all(|answer| answer["code"] == "INVALID_ARGUMENT"), "{answers:#?}");
    assert_eq!(answers[3]["reply"]["networks"], json!([]), "nothing is stored");
    assert_eq!(proxy.run(["ls", "/var/lib/weft/networks"]), "");
}

/// Returns `network` with ranges, and a plugin with the capability.
fn ranges(network: &Value, cidrs: &[&str]) -> Value {
    let taking = with(network, "/cniv1_config/plugins/0/capabilities", json!(["ipRanges"]));
    let ranges: Vec<Value> = cidrs.iter().map(|cidr| json!({ "cidr": cidr })).collect();
    with(&taking, "/ip_ranges", Value::from(ranges))
}

/// Returns sandboxes with impossible requests, each with the code and words of the error.
fn impossible_sandboxes(proxy: &Proxy) -> Vec<(Value, &'static str, &'static str)> {
    let one =
        |interface: &str, network: &str| json!({ "interface_name": interface, "network_name": network });
    let on = |networks: Value| proxy.pod_in_json("web", &networks);
    let mut host_network = on(json!([one("", "red")]));
    host_network["linux"]["security_context"] = json!({ "namespace_options": { "network": 2 } });
    let mut annotated = on(json!([]));
    let mut reserved = on(json!([]));
    reserved["annotations"] = json!({ "weft.dev/attachments": "[]" });
    let mut both = on(json!([one("", "red")]));
    both["annotations"] = json!({ "weft.dev/networks": "[{\"network_name\":\"red\"}]" });
    annotated["annotations"] = json!({ "weft.dev/networks": "[{\"network\":\"red\"}]" });
    let many: Vec<Value> = (0..40).map(|_| one("", "red")).collect();
    vec![
        (on(json!([one("", "")])), "INVALID_ARGUMENT", "config.networks[0].network_name"),
        (on(json!([one("", "absent")])), "NOT_FOUND", "config.networks[0].network_name: \"absent\""),
        (on(json!([one("", "_fallback")])), "NOT_FOUND", "config.networks[0].network_name: _fallback"),
        (on(json!([one("net1", "red")])), "INVALID_ARGUMENT", "no network is attached as eth0"),
        (
            on(json!([one("", "red"), one("lo", "blue")])),
            "INVALID_ARGUMENT",
            "config.networks[1].interface_name",
        ),
        (
            on(json!([one("", "red"), one("1234567890123456", "blue")])),
            "INVALID_ARGUMENT",
            "config.networks[1].interface_name",
        ),
        (
            on(json!([one("eth0", "red"), one("eth0", "blue")])),
            "INVALID_ARGUMENT",
            "config.networks[1].interface_name: \"eth0\": is a duplicate",
        ),
        (
            on(json!([{ "network_name": "red", "parameters": { "bandwidth": "{}" } }])),
            "INVALID_ARGUMENT",
            "config.networks[0].parameters[\"bandwidth\"]",
        ),
        (on(Value::from(many)), "INVALID_ARGUMENT", "config.networks"),
        (host_network, "INVALID_ARGUMENT", "uses the host network"),
        (reserved, "INVALID_ARGUMENT", "config.annotations[\"weft.dev/attachments\"]"),
        (both, "INVALID_ARGUMENT", "config.annotations[\"weft.dev/networks\"]"),
        (annotated, "INVALID_ARGUMENT", "config.annotations[\"weft.dev/networks\"]"),
    ]
}

/// Returns sandboxes with malformed requests.
fn malformed_sandboxes(proxy: &Proxy) -> Vec<(Value, &'static str, &'static str)> {
    let one =
        |interface: &str, network: &str| json!({ "interface_name": interface, "network_name": network });
    let on = |networks: Value| proxy.pod_in_json("web", &networks);
    let long = "x".repeat(100_000);
    let with_parameter =
        |key: &str, text: &str| on(json!([{ "network_name": "red", "parameters": { key: text } }]));
    let in_annotation = |parameters: &str| {
        let mut pod = on(json!([]));
        let request = format!(r#"[{{"network_name":"red","parameters":{parameters}}}]"#);
        pod["annotations"] = json!({ "weft.dev/networks": request });
        pod
    };
    vec![
        (on(json!([one("", "a/b/c")])), "INVALID_ARGUMENT", "config.networks[0].network_name"),
        (on(json!([one("", "/red")])), "INVALID_ARGUMENT", "config.networks[0].network_name"),
        (on(json!([one("", "red\n")])), "INVALID_ARGUMENT", "config.networks[0].network_name"),
        (on(json!([one("", &long)])), "INVALID_ARGUMENT", "config.networks[0].network_name"),
        (on(json!([one("a/b", "red")])), "INVALID_ARGUMENT", "config.networks[0].interface_name"),
        (on(json!([one(&long, "red")])), "INVALID_ARGUMENT", "config.networks[0].interface_name"),
        (with_parameter("ips", "10.1.0.9"), "INVALID_ARGUMENT", "config.networks[0].parameters[\"ips\"]: "),
        (with_parameter("ips", "[7]"), "INVALID_ARGUMENT", "config.networks[0].parameters[\"ips\"][0]: "),
        (
            with_parameter("ips", "[\"10.1.0.9\",\"x\"]"),
            "INVALID_ARGUMENT",
            "config.networks[0].parameters[\"ips\"][1]: ",
        ),
        (with_parameter("mac", "x"), "INVALID_ARGUMENT", "config.networks[0].parameters[\"mac\"]: "),
        (
            with_parameter("mac", "01:00:5e:00:00:01"),
            "INVALID_ARGUMENT",
            "config.networks[0].parameters[\"mac\"]: ",
        ),
        (with_parameter("mac", &long), "INVALID_ARGUMENT", "config.networks[0].parameters[\"mac\"]: "),
        (with_parameter(&long, "1"), "INVALID_ARGUMENT", "config.networks[0].parameters"),
        (
            in_annotation("{\"mac\":7}"),
            "INVALID_ARGUMENT",
            "config.annotations[\"weft.dev/networks\"][0].parameters[\"mac\"]: ",
        ),
        (
            in_annotation(&format!("{{\"{long}\":7}}")),
            "INVALID_ARGUMENT",
            "config.annotations[\"weft.dev/networks\"]",
        ),
    ]
}

#[test]
fn network_api_client_invalid_sandbox_never_reaches_the_runtime() {
    let proxy = proxy!();
    proxy.set(&bridge("red", 1));
    proxy.set(&bridge("blue", 2));
    let before = proxy.node().snapshot();
    let cases = [impossible_sandboxes(&proxy), malformed_sandboxes(&proxy)].concat();
    // In both versions of CRI: the older version must not bypass the checks.
    let run = |method: &'static str| {
        let call = move |(config, _, _): &(Value, _, _)| json!({ "method": method, "request": { "config": config } });
        cases.iter().map(call)
    };
    let older = run("/runtime.v1alpha2.RuntimeService/RunPodSandbox");
    let calls: Vec<Value> = run("RunPodSandbox").chain(older).collect();
    let answers = calls!(proxy, Value::from(calls));
    for ((config, code, words), answer) in cases.iter().chain(&cases).zip(&answers) {
        assert_eq!(answer["code"], *code, "{config}: {answer}");
        assert!(answer["message"].as_str().expect("a text").contains(words), "{words}: {answer}");
    }
    assert_eq!(proxy.node().cri().list_pod_sandbox().expect("a list"), [], "the runtime has no sandbox");
    assert_nothing_left("requests that were refused", proxy.node(), &before);
}

#[test]
fn network_api_client_floods_and_malformed_messages_are_refused() {
    let proxy = proxy!();
    proxy.set(&bridge("red", 1));
    let raw = |method: &str, bytes: &str| json!({ "method": method, "raw": bytes });
    let answers = calls!(
        proxy,
        json!([
            raw("SetPodNetwork", "0a"),
            raw("SetPodNetwork", "0aff"),
            raw("SetPodNetwork", "ffffffffffffffffffffff"),
            raw("RunPodSandbox", "0a05ca3e02"),
            raw("RunPodSandbox", "0f"),
            { "method": "SetPodNetwork", "large": 17 << 20 },
            { "method": "RunPodSandbox", "large": 17 << 20 },
            { "flood": 1000 },
            { "flood": 200 },
            { "method": "Version", "timeout": 5 },
            { "method": "ListPodNetwork", "timeout": 5 },
            { "noise": 7, "rounds": 200 },
            { "method": "ListPodNetwork", "timeout": 5 },
        ])
    );
    for answer in &answers[..5] {
        assert_eq!(answer["code"], "INVALID_ARGUMENT", "{answer}");
    }
    for answer in &answers[5..7] {
        assert_eq!(answer["code"], "RESOURCE_EXHAUSTED", "{answer}");
    }
    for index in [9, 10, 12] {
        assert_eq!(answers[index]["code"], "OK", "{}", answers[index]);
    }
    assert_eq!(answers[12]["reply"]["networks"][0]["config"]["metadata"]["name"], "red");
    assert_eq!(proxy.node().cri().list_pod_sandbox().expect("a list"), []);
}

#[test]
fn network_api_client_exec_and_port_forward_pass_the_proxy() {
    let proxy = proxy!();
    proxy.set(&bridge("red", 1));
    proxy.import_busybox();
    let mut pod = proxy.pod_in_json("web", &json!([{ "network_name": "red" }]));
    pod["log_directory"] = "/run/logs".into();
    let script = "echo it runs; while true; do echo hello from the pod | nc -l -p 8080; done";
    let container = json!({ "metadata": { "name": "c" }, "image": { "image": "weft.test/busybox:1" },
        "command": ["/bin/sh", "-c", script], "log_path": "c.log" });
    let id = "$1.container_id";
    let answers = calls!(
        proxy,
        json!([
            { "method": "RunPodSandbox", "request": { "config": pod } },
            { "method": "CreateContainer", "request":
                { "pod_sandbox_id": "$0.pod_sandbox_id", "config": container, "sandbox_config": pod } },
            { "method": "StartContainer", "request": { "container_id": id } },
            { "method": "ExecSync", "request": { "container_id": id, "cmd": ["/bin/cat", "/proc/self/comm"] } },
            { "method": "Exec", "request":
                { "container_id": id, "cmd": ["/bin/sh", "-c", "echo out; ip address show eth0"], "stdout": true, "stderr": true } },
            { "read": "$4.url" },
            { "method": "PortForward", "request": { "pod_sandbox_id": "$0.pod_sandbox_id", "port": [8080] } },
            { "forward": "$6.url", "port": 8080, "send": "hello from the pod" },
        ])
    );
    assert!(answers.iter().all(|answer| answer["code"] == "OK"), "{answers:#?}");
    assert_eq!(answers[3]["reply"]["stdout"], "Y2F0Cg==", "cat, in base64");
    let shown = answers[5]["text"].as_str().expect("a text");
    assert!(shown.starts_with("out\n") && shown.contains("inet 10.1.0."), "{shown}");
    assert!(answers[7]["text"].as_str().expect("a text").contains("hello from the pod"), "{}", answers[7]);
    assert!(proxy.run(["cat", "/run/logs/c.log"]).contains("stdout F it runs"));
    let web = answers[0]["reply"]["pod_sandbox_id"].as_str().expect("an id");
    proxy.remove(web);
}
