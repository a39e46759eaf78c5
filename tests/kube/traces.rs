//! ADD traces at a receiver with OpenTelemetry's own messages, and a receiver that is unreachable, stalls or
//! refuses.
//!
//! ```text
//!   weft-cni ADD ── plan request, report ──► agent ── OTLP (gRPC, HTTP) ──► collector.py ── a line a span ──► the test
//! ```
//!
//! Source: OpenTelemetry, "OTLP exporter configuration", trace.proto.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rig::agent::node_configuration;
use rig::machine::until;
use rig::parts::{parts, text};
use rig::{Agent, assert_refused};
use serde_json::{Value, json};
use testkit::{Feature, host};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const GRPC: &str = "4317";
const HTTP: &str = "4318";
const COLLECTOR: &str = "collector";
/// Environment variable that shortens the export interval, so that tests need not wait.
const SOON: &str = "OTEL_BSP_SCHEDULE_DELAY=100";

/// Starts a node with an agent and a definition, and returns the receiver of traces.
macro_rules! node {
    () => {{
        let Some(receiver) = parts("collector") else { return };
        let Some(agent) = Agent::with_networks(host!(Feature::Bridge), ["net-a"]) else { return };
        (agent, receiver)
    }};
}

fn receive(agent: &Agent, receiver: &Path, mode: &str) {
    receive_with(agent, receiver, mode, &[]);
}

/// Starts the receiver with TLS files.
fn receive_with(agent: &Agent, receiver: &Path, mode: &str, files: &[&str]) {
    let python = receiver.join("bin/python");
    let program = receiver.join("collector.py");
    let line = [text(&python), text(&program), GRPC, HTTP, mode];
    agent.machine.start(COLLECTOR, line.into_iter().chain(files.iter().copied()));
    agent
        .machine
        .wait(COLLECTOR, "listens", || agent.machine.log(COLLECTOR).contains("listens").then_some(()));
}

/// Restarts the agent with this environment and these arguments.
fn restart(agent: &Agent, environment: &[&str], words: &[&str]) {
    agent.stop("TERM");
    agent.start_with_environment(environment, words);
    agent.wait_until_ready();
}

/// Spans of one trace.
struct Tree(Vec<Value>);

impl Tree {
    /// Returns the trace of a pod's ADD, once the status was written or the ADD failed.
    fn of(agent: &Agent, pod: &str) -> Tree {
        until(&format!("a trace of {pod}"), || {
            let spans: Vec<Value> = agent
                .machine
                .log(COLLECTOR)
                .lines()
                .filter_map(|line| serde_json::from_str(line).ok())
                .filter(|value: &Value| value.get("traceId").is_some())
                .collect();
            let root = spans.iter().find(|span| span["attributes"]["k8s.pod.name"] == pod)?.clone();
            let own: Vec<Value> =
                spans.into_iter().filter(|span| span["traceId"] == root["traceId"]).collect();
            let is_whole = own.iter().any(|span| span["name"] == "network-status")
                || root["status"]["code"] == "STATUS_CODE_ERROR";
            is_whole.then_some(Tree(own))
        })
    }

    fn root(&self) -> &Value {
        let roots: Vec<&Value> = self.0.iter().filter(|span| span.get("parentSpanId").is_none()).collect();
        assert_eq!(roots.len(), 1, "one root: {:?}", self.0);
        roots[0]
    }

    /// Child spans in the order in which they started.
    fn below<'a>(&'a self, parent: &Value) -> Vec<&'a Value> {
        let mut below: Vec<&Value> =
            self.0.iter().filter(|span| span["parentSpanId"] == parent["spanId"]).collect();
        below.sort_by_key(|span| time(span, "startTimeUnixNano"));
        below
    }

    /// Names of child spans, with the children's children in brackets.
    fn shape(&self, parent: &Value) -> String {
        let names = self.below(parent).into_iter().filter(|span| span["name"] != "network-status");
        let names = names.map(|span| {
            let ifname = span["attributes"]["cni.ifname"].as_str().unwrap_or_default();
            let below = self.shape(span);
            let below = if below.is_empty() { below } else { format!(" [{below}]") };
            format!("{} {ifname}{below}", text_of(&span["name"])).replace("  ", " ").trim().to_owned()
        });
        names.collect::<Vec<_>>().join(", ")
    }
}

fn text_of(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn time(span: &Value, key: &str) -> u64 {
    text_of(&span[key]).parse().expect("a time")
}

/// Duration of a span in microseconds.
fn length(span: &Value) -> u64 {
    (time(span, "endTimeUnixNano") - time(span, "startTimeUnixNano")) / 1000
}

/// Attaches a pod to a bridge and a bridge with tuning; returns the trace, after a comparison with the duration of the ADD.
fn traced(agent: &Agent, pod: &str) -> Tree {
    let mut chain = rig::cluster::bridge("chain", 14);
    chain["plugins"].as_array_mut().expect("a list").push(json!({ "type": "tuning" }));
    agent.definition("chain", &json!({}), &chain);
    let uid = agent.pod(pod, &json!({ NETWORKS: "net-a,chain" }));
    let sandbox = agent.machine.pod(pod);
    let before = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let finished = agent.attachment(&sandbox, pod, &uid).add(&node_configuration()).success();
    let after = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let tree = Tree::of(agent, pod);
    let root = tree.root();
    assert_eq!(
        tree.shape(root),
        "plan, bridge ADD eth0 [host-local ADD eth0], bridge ADD net1 [host-local ADD net1], \
         bridge ADD net2 [host-local ADD net2], tuning ADD net2"
    );
    let expected = BTreeMap::from([
        ("k8s.namespace.name", "blue".to_owned()),
        ("k8s.pod.name", pod.to_owned()),
        ("k8s.pod.uid", uid),
        ("container.id", sandbox.container_id()),
        ("cni.command", "ADD".to_owned()),
        ("cni.ifname", "eth0".to_owned()),
    ]);
    assert_eq!(root["attributes"], json!(expected));
    assert_eq!(root["resource"]["k8s.node.name"], rig::agent::NODE);
    // The root span lies within the call, and child spans follow one after the other.
    let (start, end) = (time(root, "startTimeUnixNano"), time(root, "endTimeUnixNano"));
    assert!(before.as_nanos() <= u128::from(start) && u128::from(end) <= after.as_nanos(), "{root}");
    assert!(length(root) <= finished.took.as_micros() as u64, "{root}");
    let mut earlier = start;
    for span in tree.below(root).into_iter().filter(|span| span["name"] != "network-status") {
        let (from, until) = (time(span, "startTimeUnixNano"), time(span, "endTimeUnixNano"));
        assert!(earlier <= from && from < until && until <= end, "{span} in {root} after {earlier}");
        earlier = until;
        for part in tree.below(span) {
            let inside = (time(part, "startTimeUnixNano"), time(part, "endTimeUnixNano"));
            assert!(from <= inside.0 && inside.0 < inside.1 && inside.1 <= until, "{part} in {span}");
        }
    }
    let networks = tree.0.iter().filter_map(|span| span["attributes"]["cni.network"].as_str());
    let networks: std::collections::BTreeSet<&str> = networks.collect();
    assert_eq!(networks.into_iter().collect::<Vec<_>>(), ["blue/chain", "blue/net-a", "home"]);
    agent
        .attachment(&sandbox, pod, text_of(&root["attributes"]["k8s.pod.uid"]))
        .del(&node_configuration())
        .success();
    tree
}

/// Requests that the receiver logged.
fn requests(agent: &Agent) -> Vec<Value> {
    let log = agent.machine.log(COLLECTOR);
    let all = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    all.filter(|value| value.get("request").is_some()).collect()
}

#[test]
fn trace_of_an_add_contains_plan_and_plugins_over_http() {
    let (agent, receiver) = node!();
    receive(&agent, &receiver, "take");
    let headers = "OTEL_EXPORTER_OTLP_HEADERS=x-tenant=blue";
    restart(&agent, &[SOON, headers], &["--otlp-endpoint", &format!("http://127.0.0.1:{HTTP}")]);
    let tree = traced(&agent, "web");
    assert_eq!(tree.root()["resource"]["service.name"], "weft-agent");
    let id = hex(&tree.root()["traceId"]);
    assert!(agent.log().contains(&format!("trace=\"{id}\"")), "{id} is not in {}", agent.log());
    let requests = requests(&agent);
    assert!(requests.iter().all(|request| request["request"] == "http"), "{requests:?}");
    assert!(requests.iter().all(|request| request["headers"]["x-tenant"] == "blue"), "{requests:?}");
    let sent = "weft_trace_spans_total{outcome=\"exported\"}";
    until("metrics", || agent.metric(sent).filter(|count| *count >= tree.0.len() as f64));
}

/// Records of a pod in the history of the node.
fn history(agent: &Agent, pod: &str, words: &[&str]) -> String {
    let weft = testkit::binary("weft");
    let line = [text(&weft), "history", "-n", "blue", pod];
    agent.machine.run(line.into_iter().chain(words.iter().copied()))
}

#[test]
fn trace_id_is_in_the_history_and_in_the_trace_of_the_runtime() {
    let (agent, receiver) = node!();
    receive(&agent, &receiver, "take");
    restart(&agent, &[SOON], &["--otlp-endpoint", &format!("http://127.0.0.1:{HTTP}")]);
    let uid = agent.pod("web", &json!({ NETWORKS: "net-a" }));
    let sandbox = agent.machine.pod("web");
    agent.attachment(&sandbox, "web", &uid).add(&node_configuration()).success();
    let id = hex(&Tree::of(&agent, "web").root()["traceId"]);
    let shown = history(&agent, "web", &["--timeline"]);
    assert!(shown.lines().any(|line| line == format!("trace {id}")), "{id} is not in {shown}");

    // The runtime traces the call: the spans of the agent are children of its span.
    let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let add = |pod: &str, flags: &str| {
        let uid = agent.pod(pod, &json!({ NETWORKS: "net-a" }));
        let sandbox = agent.machine.pod(pod);
        let mut call = agent.attachment(&sandbox, pod, &uid);
        let wrapped = ["env".to_owned(), format!("TRACEPARENT=00-{trace}-{span}-{flags}")];
        call.through = call.through.into_iter().chain(wrapped).collect();
        call.add(&node_configuration()).success();
    };
    add("traced", "01");
    let tree = Tree::of(&agent, "traced");
    assert!(tree.0.iter().all(|span| hex(&span["traceId"]) == trace), "{:?}", tree.0);
    let adds: Vec<&Value> = tree.0.iter().filter(|span| span["name"] == "CNI ADD").collect();
    assert_eq!(adds.iter().map(|add| hex(&add["parentSpanId"])).collect::<Vec<_>>(), [span]);
    assert!(history(&agent, "traced", &["--timeline"]).contains(&format!("trace {trace}")));

    // A trace that the runtime does not sample is not exported, and its id is that of the runtime.
    add("unsampled", "00");
    work(&agent, "later", 1);
    Tree::of(&agent, "later");
    assert!(!agent.machine.log(COLLECTOR).contains("\"unsampled\""), "{}", agent.machine.log(COLLECTOR));
    assert!(history(&agent, "unsampled", &["--timeline"]).contains(&format!("trace {trace}")));
}

#[test]
fn trace_id_of_a_refused_and_of_a_failed_add_is_in_the_history() {
    let (agent, receiver) = node!();
    receive(&agent, &receiver, "take");
    restart(&agent, &[SOON], &["--otlp-endpoint", &format!("http://127.0.0.1:{HTTP}")]);
    let bad = json!({ "cniVersion": "1.0.0", "type": "macvlan", "master": "nowhere" });
    agent.definition("bad", &json!({}), &bad);
    // The agent refuses the plan of the first pod, and a plugin fails for the second one.
    for (pod, network, word) in [("refused", "missing", "blue/missing"), ("failed", "bad", "nowhere")] {
        let uid = agent.pod(pod, &json!({ NETWORKS: network }));
        let sandbox = agent.machine.pod(pod);
        let finished = agent.attachment(&sandbox, pod, &uid).add(&node_configuration());
        assert_refused(pod, &finished, 7, &[word]);
        let id = hex(&Tree::of(&agent, pod).root()["traceId"]);
        let shown = history(&agent, pod, &["--timeline"]);
        assert!(shown.lines().any(|line| line == format!("trace {id}")), "{id} is not in {shown}");
        let records: Value =
            serde_json::from_str(&history(&agent, pod, &["--failed", "-o", "json"])).unwrap();
        assert_eq!(records[0]["trace"], id, "{records}");
    }
    // Without an exporter there is no id.
    restart(&agent, &[], &[]);
    let uid = agent.pod("untraced", &json!({ NETWORKS: "missing" }));
    let sandbox = agent.machine.pod("untraced");
    let refused = agent.attachment(&sandbox, "untraced", &uid).add(&node_configuration());
    assert_refused("no network", &refused, 7, &["blue/missing"]);
    assert!(!history(&agent, "untraced", &["--timeline"]).contains("trace "));
}

/// Converts an id: protobuf's JSON has base64, OpenTelemetry writes hexadecimal digits.
fn hex(base64: &Value) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: String = text_of(base64)
        .bytes()
        .filter_map(|byte| DIGITS.iter().position(|digit| *digit == byte))
        .map(|digit| format!("{digit:06b}"))
        .collect();
    let bytes = bits.as_bytes().chunks_exact(8);
    bytes
        .map(|byte| byte.iter().fold(0_u8, |sum, bit| sum << 1 | (bit - b'0')))
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[test]
fn trace_environment_variables_and_failed_spans() {
    let (agent, receiver) = node!();
    receive(&agent, &receiver, "take");
    let endpoint = format!("OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:{GRPC}");
    let grpc = "OTEL_EXPORTER_OTLP_PROTOCOL=grpc";
    restart(&agent, &[SOON, &endpoint, grpc, "OTEL_SERVICE_NAME=networks"], &[]);
    let tree = traced(&agent, "web");
    assert_eq!(tree.root()["resource"]["service.name"], "networks");
    assert!(requests(&agent).iter().all(|request| request["request"] == "grpc"));

    // The second of three networks fails: it and the previous ones are undone, and the third is not attempted.
    let bad = json!({ "cniVersion": "1.0.0", "type": "macvlan", "master": "nowhere" });
    agent.definition("bad", &json!({}), &bad);
    let uid = agent.pod("worse", &json!({ NETWORKS: "bad,net-a" }));
    let sandbox = agent.machine.pod("worse");
    let failed = agent.attachment(&sandbox, "worse", &uid).add(&node_configuration());
    assert_refused("no parent", &failed, 7, &["master", "nowhere"]);
    let tree = Tree::of(&agent, "worse");
    let root = tree.root();
    assert_eq!(
        tree.shape(root),
        "plan, bridge ADD eth0 [host-local ADD eth0], macvlan ADD net1, macvlan DEL net1, \
         bridge DEL eth0 [host-local DEL eth0]"
    );
    let failures: Vec<&Value> =
        tree.0.iter().filter(|span| span["status"]["code"] == "STATUS_CODE_ERROR").collect();
    let mut names: Vec<&str> = failures.iter().map(|span| text_of(&span["name"])).collect();
    names.sort_unstable();
    assert_eq!(names, ["CNI ADD", "macvlan ADD"]);
    assert!(
        failures.iter().all(|span| text_of(&span["status"]["message"]).contains("nowhere")),
        "{failures:?}"
    );
    assert_eq!(root["attributes"]["cni.code"], 7);

    // The trace of a refused ADD has a failed plan only.
    let uid = agent.pod("worst", &json!({ NETWORKS: "missing" }));
    let sandbox = agent.machine.pod("worst");
    let refused = agent.attachment(&sandbox, "worst", &uid).add(&node_configuration());
    assert_refused("no network", &refused, 7, &["blue/missing"]);
    let tree = Tree::of(&agent, "worst");
    assert_eq!(tree.shape(tree.root()), "plan");
    assert!(
        tree.0.iter().all(|span| text_of(&span["status"]["message"]).contains("blue/missing")),
        "{:?}",
        tree.0
    );
}

/// Attaches and detaches a pod a number of times, regardless of spans.
fn work(agent: &Agent, pod: &str, times: usize) {
    let uid = agent.pod(pod, &json!({ NETWORKS: "net-a" }));
    let sandbox = agent.machine.pod(pod);
    for _ in 0..times {
        agent.attachment(&sandbox, pod, &uid).add(&node_configuration()).success();
        agent.attachment(&sandbox, pod, &uid).del(&node_configuration()).success();
    }
}

#[test]
fn trace_collector_unreachable_or_refusing_is_logged_once() {
    let (agent, receiver) = node!();
    let endpoint = format!("http://127.0.0.1:{HTTP}");
    restart(&agent, &[SOON], &["--otlp-endpoint", &endpoint]);
    let failed = || agent.metric("weft_trace_spans_total{outcome=\"failed\"}").unwrap_or_default();
    work(&agent, "away", 3);
    let lost = until("spans are lost", || Some(failed()).filter(|count| *count >= 3.0));
    receive(&agent, &receiver, "refuse");
    work(&agent, "refused", 3);
    until("more are lost", || (failed() > lost).then_some(()));
    let warned = |log: &str| log.matches("failed to export traces").count();
    assert_eq!(warned(&agent.log()), 1, "{}", agent.log());
    agent.machine.stop(COLLECTOR, "TERM");
    receive(&agent, &receiver, "take");
    work(&agent, "taken", 1);
    Tree::of(&agent, "taken");
    until("the recovery is logged", || agent.log().contains("traces are exported again").then_some(()));
    assert_eq!(warned(&agent.log()), 1, "{}", agent.log());
}

#[test]
fn trace_collector_stalled_delays_no_pod_and_no_shutdown() {
    let (agent, receiver) = node!();
    receive(&agent, &receiver, "stall");
    for protocol in ["grpc", "http/protobuf"] {
        let port = if protocol == "grpc" { GRPC } else { HTTP };
        let protocol = format!("OTEL_EXPORTER_OTLP_PROTOCOL={protocol}");
        let endpoint = format!("http://127.0.0.1:{port}");
        // Longer than any timeout of the test, with a short queue.
        let timeout = "OTEL_EXPORTER_OTLP_TIMEOUT=600000";
        let environment =
            [SOON, &protocol, timeout, "OTEL_BSP_MAX_QUEUE_SIZE=8", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE=4"];
        restart(&agent, &environment, &["--otlp-endpoint", &endpoint]);
        work(&agent, &format!("pod-{port}"), 20);
        assert_eq!(agent.metric("weft_trace_spans_total{outcome=\"exported\"}"), Some(0.0));
        assert_eq!(agent.metric("weft_plan_requests_total{outcome=\"planned\"}"), Some(20.0));
        assert!(agent.machine.log(COLLECTOR).lines().count() == 1, "{}", agent.machine.log(COLLECTOR));
    }
    // The agent shuts down although its spans are not accepted.
    agent.stop("TERM");
}

#[test]
fn trace_export_over_tls_verifies_both_sides() {
    let (agent, receiver) = node!();
    let pki = |name: &str| agent.kube.pki(name);
    let files = [pki("server.crt"), pki("server.key"), pki("ca.crt")];
    receive_with(&agent, &receiver, "take", &files.each_ref().map(String::as_str));
    let authority = format!("OTEL_EXPORTER_OTLP_CERTIFICATE={}", pki("ca.crt"));
    let certificate = format!("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE={}", pki("admin.crt"));
    let key = format!("OTEL_EXPORTER_OTLP_CLIENT_KEY={}", pki("admin.key"));
    // Certificate authority that did not sign the collector's certificate.
    let other = "OTEL_EXPORTER_OTLP_CERTIFICATE=/run/other.crt";
    let line = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=other -keyout /dev/null";
    agent.machine.run(["sh", "-c", &format!("{line} -out /run/other.crt 2>/dev/null")]);
    for (protocol, port) in [("grpc", GRPC), ("http/protobuf", HTTP)] {
        let endpoint = format!("OTEL_EXPORTER_OTLP_ENDPOINT=https://127.0.0.1:{port}");
        let protocol = format!("OTEL_EXPORTER_OTLP_PROTOCOL={protocol}");
        let name = |pod: &str| format!("{pod}-{port}");
        restart(&agent, &[SOON, &endpoint, &protocol, &authority, &certificate, &key], &[]);
        work(&agent, &name("known"), 1);
        Tree::of(&agent, &name("known"));
        for (pod, environment) in [
            ("unknown-collector", [other, &certificate, &key].as_slice()),
            ("unknown-agent", [authority.as_str()].as_slice()),
        ] {
            let environment: Vec<&str> =
                [SOON, &endpoint, &protocol].into_iter().chain(environment.iter().copied()).collect();
            restart(&agent, &environment, &[]);
            work(&agent, &name(pod), 1);
            let failed = "weft_trace_spans_total{outcome=\"failed\"}";
            let lost = || agent.metric(failed).filter(|count| *count >= 1.0);
            until(&format!("{pod} over {protocol}: spans are lost"), lost);
            assert_eq!(
                agent.metric("weft_trace_spans_total{outcome=\"exported\"}"),
                Some(0.0),
                "{pod} over {protocol}"
            );
        }
    }
    assert!(!agent.machine.log(COLLECTOR).contains("unknown-"), "{}", agent.machine.log(COLLECTOR));
}

#[test]
fn trace_export_is_off_by_default_and_errors_name_the_setting() {
    let (agent, receiver) = node!();
    // The receiver listens on the default ports of a collector.
    receive(&agent, &receiver, "take");
    work(&agent, "unasked", 1);
    let endpoint = format!("OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:{HTTP}");
    for off in ["OTEL_SDK_DISABLED=true", "OTEL_TRACES_EXPORTER=none"] {
        restart(&agent, &[SOON, &endpoint, off], &[]);
        work(&agent, if off.contains("none") { "none" } else { "disabled" }, 1);
    }
    assert_eq!(agent.machine.log(COLLECTOR).lines().count(), 1, "{}", agent.machine.log(COLLECTOR));
    assert!(!agent.log().contains("traces are exported"));
    let weft = testkit::binary("weft");
    for wrong in [
        "OTEL_EXPORTER_OTLP_PROTOCOL=http/json",
        "OTEL_TRACES_EXPORTER=zipkin",
        "OTEL_EXPORTER_OTLP_TIMEOUT=soon",
        "OTEL_EXPORTER_OTLP_CERTIFICATE=/nowhere.pem",
        "OTEL_EXPORTER_OTLP_CLIENT_KEY=/etc/hostname",
    ] {
        let line = [
            "env",
            &endpoint,
            wrong,
            text(&weft),
            "agent",
            "--node-name",
            "n",
            "--socket",
            "/run/other.sock",
        ];
        let refused = agent.machine.attempt(line);
        assert_eq!(refused.code, Some(2), "{refused}");
        let name = wrong.split('=').next().unwrap_or_default();
        assert!(refused.stderr.contains(name), "{wrong}: {refused}");
    }
}
