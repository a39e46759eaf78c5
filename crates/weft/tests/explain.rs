//! `weft explain` and `weft plan --once` as programs: without root, without a cluster.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test helpers may panic")]

use std::io::Write;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use testkit::workspace;

fn weft(line: &str) -> Command {
    let mut command = Command::new(testkit::binary("weft"));
    command.args(line.split_whitespace());
    command
}

fn examples() -> String {
    workspace().join("examples").display().to_string()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn explain_prints_the_source_of_each_decision() {
    let output = weft(&format!("explain -n my-namespace my-partner -f {}", examples())).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        "eth0  default-network  bridge+host-local  (the default network)",
        "blue  my-namespace/net-b  bridge+weft-ipam → tuning  (selected by the pod)",
        "      network       my-namespace/net-b  (annotation k8s.v1.cni.cncf.io/networks: [1])",
        "      ips           10.101.2.44  (requested; verified in the result)",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
}

#[test]
fn explain_separates_long_labels_from_their_values() {
    let file = std::env::temp_dir().join(format!("weft-explain-{}.yaml", std::process::id()));
    let manifest = r#"
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {name: ib}
spec: {config: '{"cniVersion": "1.0.0", "name": "ib", "type": "ib-sriov", "capabilities": {"infinibandGUID": true}}'}
---
apiVersion: v1
kind: Pod
metadata:
  name: a
  annotations:
    k8s.v1.cni.cncf.io/networks: '[{"name": "ib", "infiniband-guid": "24:8a:07:03:00:8d:ae:2f"}]'
"#;
    std::fs::write(&file, manifest).unwrap();
    let output = weft(&format!("explain a -f {}", file.display())).output().unwrap();
    std::fs::remove_file(&file).unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    for line in ["      infiniband-guid  24:8a:07:03:00:8d:ae:2f", "      network          default/ib"] {
        assert!(text.lines().any(|found| found.starts_with(line)), "{line} in\n{text}");
    }
}

#[test]
fn explain_prints_links_to_the_page() {
    let line = format!("explain -n my-namespace my-partner -f {}", examples());
    let output = weft(&format!("{line} --page http://weft.example:8080/")).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    for line in [
        "page: http://weft.example:8080/pod/my-namespace/my-partner",
        "      page          http://weft.example:8080/network/my-namespace/net-b",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
    let output = weft(&format!("{line} -o json")).env("WEFT_PAGE", "https://weft.example").output().unwrap();
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plan["page"], "https://weft.example/pod/my-namespace/my-partner");
    // A network of a file of the node has no page, and neither has a pod without the option.
    assert!(!text.contains("network/default-network"), "{text}");
    let output = weft(&line).env("WEFT_PAGE", "").output().unwrap();
    assert!(output.status.success() && !String::from_utf8_lossy(&output.stdout).contains("page: "));
    let refused = weft(&format!("{line} --page weft.example")).output().unwrap();
    assert!(stderr(&refused).contains("expected http://HOST[:PORT]"), "{}", stderr(&refused));
}

#[test]
fn explain_json_output_has_all_networks() {
    let output = weft(&format!("explain -n my-namespace my-pod -o json -f {}", examples())).output().unwrap();
    let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(plan["pod"]["name"], "my-pod");
    let rows: Vec<Value> = plan["networks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| json!([row["interface"], row["network"], row["role"], row["chain"], row["configName"]]))
        .collect();
    assert_eq!(
        rows[0],
        json!(["eth0", "default-network", "default", ["bridge+host-local"], "default-network"])
    );
    assert_eq!(rows[3], json!(["net3", "other-ns/net-c", "selected", ["ptp+host-local"], "net-c"]));
    assert_eq!(rows[4], json!(["net4", "my-namespace/net-a", "selected", ["bridge+host-local"], "net-a"]));
}

#[test]
fn explain_unknown_pod_lists_available_pods() {
    let output = weft(&format!("explain -n my-namespace missing -f {}", examples())).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let error = stderr(&output);
    assert!(
        error.starts_with("weft: explain my-namespace/missing: pod my-namespace/missing is not in"),
        "{error}"
    );
    assert!(error.contains("available pods: my-namespace/my-pod, my-namespace/my-partner"), "{error}");
    let output = weft(&format!("explain -n My-Namespace x -f {}", examples())).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

/// Runs one exchange with `weft plan --once`: a length (four bytes, big-endian) and JSON, in both directions.
fn exchange(words: &str, plan_request: &[u8]) -> (Option<i32>, Value, String) {
    let mut child = weft(&format!("plan --once {words}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(&u32::try_from(plan_request.len()).unwrap().to_be_bytes()).unwrap();
    pipe.write_all(plan_request).unwrap();
    drop(pipe);
    let output = child.wait_with_output().unwrap();
    let response = match output.stdout.split_first_chunk::<4>() {
        Some((length, body)) => {
            assert_eq!(u32::from_be_bytes(*length) as usize, body.len());
            serde_json::from_slice(body).unwrap()
        }
        None => Value::Null,
    };
    (output.status.code(), response, stderr(&output))
}

fn plan_request(pod: &str) -> Value {
    json!({ "version": 1, "request": { "plan": {
        "pod": {"namespace": "my-namespace", "name": pod, "uid": "u-1"},
        "container": "c1",
        "ifname": "ext0",
        "node": { "flavour": "weft", "files": [], "unreadable": [],
            "configuration": {"cniVersion": "1.0.0", "name": "w", "type": "weft",
                "delegates": [{"cniVersion": "1.0.0", "name": "home", "type": "bridge"}]} },
        "began": 0,
    } } })
}

#[test]
fn plan_once_responds_with_a_plan() {
    let words = format!("-f {}", examples());
    let (code, response, error) = exchange(&words, plan_request("my-pod").to_string().as_bytes());
    assert_eq!((code, error.as_str()), (Some(0), ""));
    let plan = &response["response"]["plan"]["plan"];
    assert_eq!((&plan["container"], &plan["pod"]["uid"]), (&"c1".into(), &"u-1".into()));
    let names: Vec<&str> =
        plan["delegates"].as_array().unwrap().iter().map(|d| d["ifname"].as_str().unwrap()).collect();
    assert_eq!(names, ["ext0", "net1", "net2", "net3", "net4"]);
}

#[test]
fn plan_once_refusal_is_a_response() {
    let words = format!("-f {}", examples());
    let (code, response, _) = exchange(&words, plan_request("missing").to_string().as_bytes());
    assert_eq!(code, Some(0));
    assert!(
        response["response"]["refused"]["msg"]
            .as_str()
            .unwrap()
            .contains("my-namespace/missing is in no manifest"),
        "{response}"
    );
    let (code, response, _) = exchange("", plan_request("my-pod").to_string().as_bytes());
    assert_eq!((code, &response["response"]["refused"]["code"]), (Some(0), &11.into()));
    assert!(
        response["response"]["refused"]["details"].as_str().unwrap().contains("manifestDir"),
        "{response}"
    );
    let mut newer = plan_request("my-pod");
    newer["version"] = 2.into();
    let (_, response, _) = exchange(&words, newer.to_string().as_bytes());
    assert!(response["response"]["refused"]["msg"].as_str().unwrap().contains("version 2"), "{response}");
    let (_, response, _) = exchange("-f /nonexistent", plan_request("my-pod").to_string().as_bytes());
    assert!(response["response"]["refused"]["msg"].as_str().unwrap().contains("/nonexistent"), "{response}");
}

#[test]
fn plan_once_fails_on_invalid_input() {
    for bytes in [&b"{"[..], b"[]", b""] {
        let (code, response, error) = exchange("", bytes);
        assert_eq!((code, response), (Some(1), Value::Null));
        assert!(error.starts_with("weft: ") && error.contains(" message: "), "{error}");
    }
}

/// A definition of Kuryr has an annotation and no configuration. The command completes it as the node agent does.
#[test]
fn explain_kuryr_definition_uses_the_neutron_plugin() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("kuryr.yaml");
    let manifests = "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata:\n  name: net-k\n  \
        namespace: my-namespace\n  annotations:\n    openstack.org/kuryr-config: '{\"subnetId\": \"s\"}'\n---\napiVersion: v1\n\
        kind: Pod\nmetadata:\n  name: of-kuryr\n  namespace: my-namespace\n  annotations:\n    \
        k8s.v1.cni.cncf.io/networks: net-k\n";
    std::fs::write(&path, manifests).unwrap();
    let line = format!("explain -n my-namespace of-kuryr -f {} -f {}", examples(), path.display());
    let output = weft(&line).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("net1  my-namespace/net-k  neutron  (selected by the pod)"),
        "{text}{}",
        stderr(&output)
    );
}

/// The kubelet allocates devices on the node. Files have only the limits of the pod.
#[test]
fn explain_pod_with_devices_says_that_the_node_knows_them() {
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("devices.yaml");
    let definition = |name: &str, resource: &str, kind: &str| {
        json!({ "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": name, "namespace": "my-namespace", "annotations": { "k8s.v1.cni.cncf.io/resourceName": resource } },
            "spec": { "config": json!({ "cniVersion": "1.0.0", "name": name, "type": kind }).to_string() } })
    };
    let limits = |vfs: u32| json!({ "intel.com/vf": vfs.to_string(), "example.com/br1": 1, "cpu": "2" });
    let selects = |name: &str, vfs: u32, networks: &str| {
        json!({ "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": "my-namespace", "annotations": { "k8s.v1.cni.cncf.io/networks": networks } },
            "spec": { "containers": [{ "name": "main", "resources": { "limits": limits(vfs) } }] } })
    };
    let pod = |name: &str, vfs: u32| selects(name, vfs, "vf,vf,marked");
    let named = r#"[{"name":"vf"},{"name":"vf","deviceID":"0000:04:00.5"}]"#;
    let twice = r#"[{"name":"vf","deviceID":"0000:04:00.5"},{"name":"vf","deviceID":"0000:04:00.5"}]"#;
    let all = [
        selects("named", 2, named),
        selects("twice", 2, twice),
        definition("vf", "intel.com/vf", "sriov"),
        definition("marked", "example.com/br1", "bridge"),
        pod("enough", 2),
        pod("few", 1),
    ];
    let text: Vec<String> = all.iter().map(Value::to_string).collect();
    std::fs::write(&path, text.join("\n---\n")).unwrap();
    let explain = |pod: &str| {
        weft(&format!("explain -n my-namespace {pod} -f {} -f {}", examples(), path.display()))
            .output()
            .unwrap()
    };
    let output = explain("enough");
    let shown = String::from_utf8_lossy(&output.stdout);
    let known = "      device        known on the node only  (a device of intel.com/vf, allocated to main)";
    assert_eq!(shown.matches(known).count(), 2, "{shown}{}", stderr(&output));
    assert!(shown.contains("device        none  (example.com/br1 has no devices"), "{shown}");
    assert!(!shown.contains("placeholder"), "{shown}");
    let output = explain("named");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert_eq!(shown.matches(known).count(), 1, "{shown}{}", stderr(&output));
    assert!(
        shown.contains("device        0000:04:00.5  (requested by the pod; whether the kubelet"),
        "{shown}"
    );
    let error = stderr(&explain("twice"));
    assert!(
        error.contains("is not a device of intel.com/vf that is allocated to the pod and free"),
        "{error}"
    );
    let refused = explain("few");
    assert_eq!(refused.status.code(), Some(1));
    let error = stderr(&refused);
    assert!(
        error.contains("needs one more device of intel.com/vf than the 1 allocated to the pod"),
        "{error}"
    );
    let words = format!("attach --pod my-namespace/enough -f {} -f {}", examples(), path.display());
    let error = stderr(&weft(&words).output().unwrap());
    let is_root = !error.contains("root");
    assert!(!is_root || error.contains("only the kubelet allocates devices"), "{error}");
}

/// Three pods on one network; only `front` may reach `db`, at one port.
const POLICIES: &str = r#"
apiVersion: v1
kind: Pod
metadata:
  name: db
  namespace: prod
  labels: {app: db}
  annotations: {k8s.v1.cni.cncf.io/networks: '[{"name":"net-a","ips":["10.0.0.1/24"]}]'}
spec:
  containers: [{name: main, ports: [{name: sql, containerPort: 5432}]}]
---
apiVersion: v1
kind: Pod
metadata:
  name: front
  namespace: prod
  labels: {app: front}
  annotations: {k8s.v1.cni.cncf.io/networks: net-a}
---
apiVersion: v1
kind: Pod
metadata:
  name: other
  namespace: prod
  annotations: {k8s.v1.cni.cncf.io/networks: net-a}
---
apiVersion: k8s.cni.cncf.io/v1beta2
kind: MultiNetworkPolicy
metadata:
  name: db
  namespace: prod
  annotations: {k8s.v1.cni.cncf.io/policy-for: net-a}
spec:
  podSelector: {matchLabels: {app: db}}
  policyTypes: [Ingress]
  ingress:
    - from: [{ipBlock: {cidr: 192.0.2.0/24}}]
    - from: [{podSelector: {matchLabels: {app: front}}}]
      ports: [{port: sql}]
"#;

fn explain_connection(policies: &str, arguments: &str) -> Output {
    let mut command = weft(&format!("explain -f /dev/stdin -n prod --network net-a {arguments}"));
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(policies.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn explain_network_policy_verdict_and_deciding_rule() {
    let text = |arguments: &str| {
        let output = explain_connection(POLICIES, arguments);
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(
        text("--from front --to prod/db --tcp 5432"),
        "TCP 5432 from prod/front (prod/net-a) to prod/db (prod/net-a 10.0.0.1): allowed\n  \
         egress   allowed: no policy selects the pod\n  \
         ingress  allowed by prod/db: spec.ingress[1]\n  \
         note     prod/db: spec.ingress[0]: has an address block; the addresses of the pod are not known\n"
    );
    assert!(
        text("--from other --to db --tcp 5432").contains("ingress  denied: no rule of prod/db allows it")
    );
    assert!(text("--from front --to db --udp 5432").contains(": denied\n"));
    assert!(
        text("--from 192.0.2.7 --to db --sctp 1").contains("ingress  allowed by prod/db: spec.ingress[0]")
    );
    assert!(text("--from db --to 198.51.100.1 --tcp 80").contains(": allowed\n"));
    let json: Value = serde_json::from_str(&text("--from other --to db --tcp 5432 -o json")).unwrap();
    assert_eq!((&json["allowed"], &json["ingress"]), (&json!(false), &json!({"denied": ["prod/db"]})));
}

#[test]
fn explain_network_policy_that_is_invalid_denies() {
    let invalid = POLICIES.replace("port: sql", "port: 0");
    let output = explain_connection(&invalid, "--from front --to db --tcp 5432");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(": denied\n"), "{text}");
    let fault = "invalid  prod/db denies all it selects: multi-network-policy prod/db: \
                 spec.ingress[1].ports[0].port: 0: is not a port from 1 to 65535";
    assert!(text.contains(fault), "{text}");
}

/// A policy for one family, and an end that is the address of a pod.
#[test]
fn explain_network_policy_answers_for_each_address_family() {
    let dual = POLICIES.replace(r#""ips":["10.0.0.1/24"]"#, r#""ips":["10.0.0.1/24","fd00::1/64"]"#).replace(
        "{k8s.v1.cni.cncf.io/networks: net-a}",
        r#"{k8s.v1.cni.cncf.io/networks: '[{"name":"net-a","ips":["192.0.2.7/24","fd00::7/64"]}]'}"#,
    );
    let text = |arguments: &str| {
        let output = explain_connection(&dual, arguments);
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(
        text("--from other --to db --tcp 80"),
        "TCP 80 from prod/other (prod/net-a 192.0.2.7 fd00::7) to prod/db (prod/net-a 10.0.0.1 fd00::1): \
         not allowed for all addresses\n  \
         IPv4 192.0.2.7 to 10.0.0.1: allowed\n    \
         egress   allowed: no policy selects the pod\n    \
         ingress  allowed by prod/db: spec.ingress[0]\n  \
         IPv6 fd00::7 to fd00::1: denied\n    \
         egress   allowed: no policy selects the pod\n    \
         ingress  denied: no rule of prod/db allows it\n"
    );
    for (to, word) in [("10.0.0.1", "allowed"), ("fd00::1", "denied")] {
        let shown = text(&format!("--from other --to {to} --tcp 80"));
        assert!(shown.contains(&format!("to prod/db (prod/net-a {to}): {word}")), "{shown}");
    }
    let json: Value = serde_json::from_str(&text("--from other --to db --tcp 80 -o json")).unwrap();
    let families: Vec<(&Value, &Value)> =
        json["connections"].as_array().unwrap().iter().map(|one| (&one["family"], &one["allowed"])).collect();
    assert_eq!(families, [(&json!("IPv4"), &json!(true)), (&json!("IPv6"), &json!(false))], "{json}");
    assert_eq!(json["allowed"], json!(false));
}

#[test]
fn explain_connection_of_unknown_pods_is_an_error() {
    for (arguments, words) in [
        ("--from gone --to db --tcp 1", "pod prod/gone is not in the manifests"),
        ("--from front --to db", "one of --tcp, --udp and --sctp is required"),
        ("--from 10.0.0.8 --to 10.0.0.9 --tcp 1", "--from or --to must be a pod"),
        ("--from front --to db --tcp 0", "0 is not in 1..=65535"),
        ("--from front --tcp 1", "--to"),
    ] {
        let output = explain_connection(POLICIES, arguments);
        assert!(
            !output.status.success() && stderr(&output).contains(words),
            "{arguments}: {}",
            stderr(&output)
        );
    }
    let output = explain_connection(
        &POLICIES.replace("networks: net-a", "networks: net-b"),
        "--from front --to db --tcp 1",
    );
    assert!(stderr(&output).contains("it selects prod/net-b"), "{}", stderr(&output));
}
