//! Tests for requests that the proxy relays to an agent; the test agent listens on a separate socket.

use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use cni::name::ContainerId;
use node_support::agent_server::AgentServer;
use node_support::journal_reader::Journal;
use node_support::sandboxes::Sandboxes;
use npwg::configuration::Flavour;
use npwg::plan::PodIdentity;
use rpc::plan::{AttachmentReport, PlanReport, Purpose};
use rpc::task::TaskKind;
use tokio::time::timeout;

use super::*;
use crate::fallback::Fallback;
use crate::network_store::Store;
use crate::plugins::Plugins;

/// Trace id that the agent exports.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
/// Pod name that the agent refuses.
const REFUSED: &str = "refused";

/// Sandbox that the agent has checked.
const CHECKED: &str = "checked";

/// Agent that traces each request, and sends a task with each plan.
struct TracingAgent {
    planner: Planner,
    metrics: Metrics,
    /// Containers whose results it received.
    results: Mutex<Vec<String>>,
}

impl RequestHandler for TracingAgent {
    async fn plan_sandbox(&self, request: &PlanRequest) -> Result<Planned, Refusal> {
        if request.pod.name == REFUSED {
            let error = Error::new(code::TRY_AGAIN_LATER, "no such definition");
            return Err(Refusal { error, trace: TRACE.to_owned() });
        }
        let mut planned = self.planner.plan_sandbox(request).await?;
        planned.response.trace = TRACE.to_owned();
        Ok(planned)
    }

    fn due_tasks(&self) -> Vec<Task> {
        vec![Task::Check { container: ContainerId::new(CHECKED).unwrap(), uid: "u".into() }]
    }

    async fn task_result(&self, result: &TaskResult) -> Result<(), Error> {
        self.results.lock().unwrap().push(result.container.to_string());
        Ok(())
    }

    fn metrics(&self) -> Option<&Metrics> {
        Some(&self.metrics)
    }
}

/// Agent, and the socket of a proxy in front of it; dropping this removes the files.
struct Relayed {
    directory: PathBuf,
    agent: Arc<TracingAgent>,
}

impl Relayed {
    /// Starts both on the calling test's runtime.
    fn new(name: &str) -> Relayed {
        let directory = std::env::temp_dir().join(format!("weft-relay-{name}-{}", std::process::id()));
        fs::create_dir_all(directory.join("net.d")).unwrap();
        fs::create_dir_all(directory.join("sandboxes")).unwrap();
        let list = r#"{"cniVersion":"1.0.0","name":"home","plugins":[{"type":"bridge"}]}"#;
        fs::write(directory.join("net.d/10-home.conflist"), list).unwrap();
        let server = AgentServer::bind(&directory.join("agent.sock")).unwrap();
        let agent = Arc::new(TracingAgent {
            planner: planner(&directory, None),
            metrics: Metrics::default(),
            results: Mutex::default(),
        });
        tokio::spawn(server.serve(Arc::clone(&agent), std::future::pending()));
        let server = AgentServer::bind(&directory.join("proxy.sock")).unwrap();
        let proxy = Arc::new(planner(&directory, Some(directory.join("agent.sock"))));
        tokio::spawn(server.serve(proxy, std::future::pending()));
        Relayed { directory, agent }
    }

    /// Sends a request to the proxy; returns the response and the open connection.
    async fn ask(&self, request: &AgentRequest) -> (Response, UnixStream) {
        let mut stream = UnixStream::connect(self.directory.join("proxy.sock")).await.unwrap();
        frame_io::write(&mut stream, request).await.unwrap();
        (frame_io::read(&mut stream, MESSAGE_MAX).await.unwrap(), stream)
    }

    async fn plan(&self, pod: &str) -> (Response, UnixStream) {
        self.ask(&AgentRequest::Plan(Box::new(plan_request(pod)))).await
    }
}

impl Drop for Relayed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Returns a planner for a node whose default network is on disk.
fn planner(directory: &Path, agent: Option<PathBuf>) -> Planner {
    let store = Store::open(&directory.join("store")).unwrap();
    let fallback = Fallback::of(&directory.join("net.d"));
    let journal = Journal::at(&directory.join("sandboxes"));
    let networks = Networks::open(store, Plugins::in_path(""), fallback, None, journal).unwrap();
    let sandboxes = Arc::new(Sandboxes::of(&directory.join("sandboxes")));
    Planner {
        networks: Arc::new(networks),
        runtime: directory.join("runtime.sock"),
        agent,
        sandbox_gc: SandboxGc::new(sandboxes, Arc::default(), Duration::ZERO),
    }
}

fn plan_request(pod: &str) -> PlanRequest {
    let configuration = r#"{"cniVersion":"1.0.0","name":"weft-cri","type":"weft","clusterNetwork":"default",
        "capabilities":{"io.kubernetes.cri.pod-annotations":true}}"#;
    PlanRequest {
        pod: PodIdentity { namespace: "blue".into(), name: pod.into(), uid: "u".into() },
        container: ContainerId::new("c").unwrap(),
        ifname: IfName::new("eth0").unwrap(),
        node: NodeInput {
            configuration: RawValue::from_string(configuration.into()).unwrap(),
            flavour: Flavour::Weft,
            files: Vec::new(),
            unreadable: Vec::new(),
        },
        began: 0,
        trace_parent: String::new(),
        purpose: Purpose::Attach,
    }
}

#[tokio::test]
async fn trace_id_of_the_agent_passes_the_cri_proxy() {
    let relayed = Relayed::new("trace");
    let Response::Plan(planned) = relayed.plan("web").await.0 else { panic!("the pod is refused") };
    assert_eq!((planned.trace.as_str(), planned.plan.delegates.len()), (TRACE, 1));
    let Response::Refused(refusal) = relayed.plan(REFUSED).await.0 else { panic!("the pod is not refused") };
    assert_eq!((refusal.trace.as_str(), refusal.error.msg.as_str()), (TRACE, "no such definition"));
}

#[tokio::test]
async fn plan_report_passes_the_cri_proxy_to_the_agent() {
    let relayed = Relayed::new("report");
    let (_, mut stream) = relayed.plan("web").await;
    let attached = AttachmentReport {
        network: "home".into(),
        plugin: "bridge".into(),
        ifname: IfName::new("eth0").unwrap(),
        microseconds: Some(900),
        steps: Vec::new(),
    };
    let report = PlanReport { microseconds: 2600, attachments: vec![attached], error: None };
    frame_io::write(&mut stream, &AgentRequest::PlanReport(report)).await.unwrap();
    let counted = r#"weft_attachments_total{plugin="bridge",outcome="attached"} 1"#;
    let is_counted = async {
        while !relayed.agent.metrics.page().contains(counted) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(60), is_counted).await.unwrap();
}

#[tokio::test]
async fn tasks_of_the_agent_and_their_results_pass_the_cri_proxy() {
    let relayed = Relayed::new("tasks");
    let (Response::Plan(planned), _) = relayed.plan("web").await else { panic!("the pod is refused") };
    assert_eq!(planned.tasks, relayed.agent.due_tasks());
    let result = TaskResult {
        kind: TaskKind::Check,
        container: ContainerId::new(CHECKED).unwrap(),
        uid: "u".into(),
        changes: Vec::new(),
        error: None,
        wrong: Vec::new(),
        is_locked: false,
    };
    let request = AgentRequest::TaskResult(result);
    assert!(matches!(relayed.ask(&request).await.0, Response::Accepted));
    assert_eq!(*relayed.agent.results.lock().unwrap(), [CHECKED]);
    // An agent that does not answer has not received the result, so the proxy must not accept it.
    fs::remove_file(relayed.directory.join("agent.sock")).unwrap();
    let Response::Refused(refusal) = relayed.ask(&request).await.0 else { panic!("the result is accepted") };
    assert!(refusal.error.code == code::TRY_AGAIN_LATER && refusal.error.msg.contains("agent.sock"));
}
