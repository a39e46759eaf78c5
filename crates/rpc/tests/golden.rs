//! Test of one exchange of each kind, as `docs/design/rpc.md` shows it: the files of `testdata/messages`.
//!
//! Each file is the JSON of an envelope, indented. A message that changes its form fails here, with the new JSON in the
//! output.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test helpers may panic")]

use std::path::Path;

use cni::error::{Error, code};
use cni::name::{ContainerId, IfName};
use ipam::{AddressFilter, AllocationKind, BlockLease, LeaseResponse, Range};
use manifest::{Collection, Manifest};
use npwg::configuration::Flavour;
use npwg::plan::PodIdentity;
use rpc::allocate::{AllocateRequest, AllocateResponse, Operation, PoolReference};
use rpc::frame::{self, Message};
use rpc::message::{Refusal, Request, Response};
use rpc::node_input::NodeInput;
use rpc::plan::{AttachmentReport, PlanReport, PlanRequest, PlanResponse, PluginCall, Purpose};
use rpc::task::{Certainty, PollTasks, Task, TaskBatch, TaskKind, TaskResult};
use serde_json::Value;
use serde_json::value::RawValue;

const CONFIGURATION: &str = r#"{"cniVersion":"1.0.0","name":"weft","type":"weft","delegates":[{"cniVersion":"1.0.0","name":"home","type":"bridge"}]}"#;

const MANIFESTS: &str = r#"
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: { name: storage, namespace: blue }
spec: { config: '{"cniVersion":"1.0.0","name":"storage","type":"macvlan","master":"eth1"}' }
---
apiVersion: v1
kind: Pod
metadata:
  name: web
  namespace: blue
  annotations: { k8s.v1.cni.cncf.io/networks: storage }
"#;

fn text(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// Asserts that the message has this JSON form and that the form decodes to the message.
fn assert_form<M: Message>(name: &str, message: &M) {
    let (path, sent) = (format!("testdata/messages/{name}.json"), frame::encode(message).unwrap());
    let value: Value = serde_json::from_slice(&sent[4..]).unwrap();
    let expected = text(&path);
    assert_eq!(serde_json::to_string_pretty(&value).unwrap() + "\n", expected, "{path}");
    let read: M = frame::decode(expected.as_bytes()).unwrap();
    assert_eq!(serde_json::to_value(&read).unwrap(), value[M::FIELD], "{path}");
}

fn pod() -> PodIdentity {
    PodIdentity { namespace: "blue".into(), name: "web".into(), uid: "7d1c".into() }
}

fn configuration() -> Box<RawValue> {
    RawValue::from_string(CONFIGURATION.to_owned()).unwrap()
}

fn node() -> NodeInput {
    NodeInput {
        configuration: configuration(),
        flavour: Flavour::Weft,
        files: Vec::new(),
        unreadable: Vec::new(),
    }
}

fn container() -> ContainerId {
    ContainerId::new("8a3c1f").unwrap()
}

fn ifname(name: &str) -> IfName {
    IfName::new(name).unwrap()
}

#[test]
fn rpc_plan_messages_have_the_documented_form() {
    let request = PlanRequest {
        pod: pod(),
        container: container(),
        ifname: ifname("eth0"),
        node: node(),
        began: 1_764_072_000_000_000,
        trace_parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".into(),
        purpose: Purpose::Attach,
    };
    let mut manifests = Collection::default();
    manifests.add("pod.yaml", Manifest::parse(MANIFESTS));
    let node = request.node.configuration().unwrap();
    let mut plan = manifests.plan(&node, &request.node.disk(), &request.pod, &request.sandbox()).unwrap();
    // The explanations are longer than the plan.
    plan.delegates.iter_mut().for_each(|delegate| delegate.because.clear());
    let lost = ContainerId::new("51be07").unwrap();
    let take_down = Task::TakeDown { container: lost, uid: "03aa".into(), certainty: Certainty::PodGone };
    let call = |plugin: &str, began, microseconds, depth| PluginCall {
        plugin: plugin.into(),
        verb: "ADD".into(),
        began,
        microseconds,
        depth,
        failed: false,
    };
    let attachment = |network: &str, plugin: &str, name, steps| AttachmentReport {
        network: network.into(),
        plugin: plugin.into(),
        ifname: ifname(name),
        microseconds: Some(900),
        steps,
    };
    let report = PlanReport {
        microseconds: 2600,
        attachments: vec![
            attachment("home", "bridge", "eth0", vec![call("bridge", 700, 900, 0)]),
            attachment("blue/storage", "macvlan", "net1", vec![call("macvlan", 1600, 900, 0)]),
        ],
        error: None,
    };
    assert_form("plan-request", &Request::Plan(Box::new(request)));
    let response =
        PlanResponse { plan, tasks: vec![take_down], trace: "4bf92f3577b34da6a3ce929d0e0e4736".into() };
    assert_form("plan-response", &Response::Plan(Box::new(response)));
    assert_form("plan-report", &Request::PlanReport(report));
    let refused = Error::new(code::UNKNOWN_CONTAINER, "pod blue/web is not in the cluster");
    let refused = Refusal { error: refused, trace: "4bf92f3577b34da6a3ce929d0e0e4736".into() };
    assert_form("refused", &Response::Refused(Box::new(refused)));
}

#[test]
fn rpc_task_messages_have_the_documented_form() {
    let check = Task::Check { container: container(), uid: "7d1c".into() };
    let result = TaskResult {
        kind: TaskKind::Check,
        container: container(),
        uid: "7d1c".into(),
        changes: Vec::new(),
        error: Some(Error::internal("check net1 (blue/storage): macvlan: interface net1 is missing")),
        wrong: vec![ifname("net1")],
        is_locked: false,
    };
    let batch =
        TaskBatch { configuration: configuration(), flavour: Flavour::Weft, tasks: vec![check.clone()] };
    assert_form("poll-tasks", &Request::PollTasks(PollTasks { node: node() }));
    assert_form("tasks", &Response::Tasks(vec![check]));
    assert_form("task-batch", &batch);
    assert_form("task-result", &Request::TaskResult(result));
    assert_form("accepted", &Response::Accepted);
}

#[test]
fn rpc_allocate_messages_have_the_documented_form() {
    let range = "10.8.0.0/16".parse().unwrap();
    let request = AllocateRequest {
        pool: PoolReference { name: "10.8.0.0-16".into(), must_exist: false, network: String::new(), range },
        filter: AddressFilter::new(Range::between(range, None, None).unwrap(), &[]),
        store: "10.8.0.0-16".into(),
        directory: "/var/lib/weft/ipam".into(),
        blocks: Vec::new(),
        operation: Operation::Allocate(AllocationKind::Any),
        pod: pod(),
        owner: "7d1c/8a3c1f/net1".into(),
        claim: String::new(),
        shares_claim: false,
        quarantine: 60_000,
    };
    let lease = BlockLease {
        net: "10.8.3.0/28".parse().unwrap(),
        id: "5b0e.1".into(),
        single_owner: false,
        reserved: Vec::new(),
    };
    let lease = LeaseResponse { leases: vec![lease], ..LeaseResponse::default() };
    assert_form("allocate-request", &Request::AllocateBlocks(Box::new(request)));
    assert_form("probe-client", &Response::ProbeClient);
    assert_form("client-alive", &Request::ClientAlive);
    assert_form(
        "blocks",
        &Response::Blocks(Box::new(AllocateResponse { lease, ..AllocateResponse::default() })),
    );
}

#[test]
fn rpc_page_shows_every_message() {
    let page = text("../../docs/design/rpc.md");
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/messages");
    let mut shown = 0;
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let message = std::fs::read_to_string(&path).unwrap();
        assert!(page.contains(&format!("```json\n{message}```")), "{} is not in the page", path.display());
        shown += 1;
    }
    assert_eq!(shown, page.matches("```json\n").count(), "the page shows a message that no file has");
}
