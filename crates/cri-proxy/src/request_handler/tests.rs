//! Tests of plan requests that the proxy relays to an agent, which listens on its own socket.

use std::fs;
use std::path::Path;
use std::time::Duration;

use cni::name::ContainerId;
use node_support::agent_server::AgentServer;
use node_support::journal_reader::Journal;
use node_support::sandboxes::Sandboxes;
use npwg::configuration::Flavour;
use npwg::plan::PodIdentity;
use rpc::plan::Purpose;

use super::*;
use crate::fallback::Fallback;
use crate::network_store::Store;
use crate::plugins::Plugins;

/// Id of the trace that the agent exports.
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
/// Name of the pod that the agent refuses.
const REFUSED: &str = "refused";

/// Agent that traces each request.
struct TracingAgent(Planner);

impl RequestHandler for TracingAgent {
    async fn plan_sandbox(&self, request: &PlanRequest) -> Result<PlanResponse, Refusal> {
        if request.pod.name == REFUSED {
            let error = Error::new(code::TRY_AGAIN_LATER, "no such definition");
            return Err(Refusal { error, trace: TRACE.to_owned() });
        }
        let planned = self.0.plan_sandbox(request).await?;
        Ok(PlanResponse { trace: TRACE.to_owned(), ..planned })
    }

    fn due_tasks(&self) -> Vec<Task> {
        Vec::new()
    }

    fn metrics(&self) -> Option<&Metrics> {
        None
    }
}

/// Returns a planner of a node whose default network is on disk.
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
    let directory = std::env::temp_dir().join(format!("weft-relay-{}", std::process::id()));
    fs::create_dir_all(directory.join("net.d")).unwrap();
    fs::create_dir_all(directory.join("sandboxes")).unwrap();
    let list = r#"{"cniVersion":"1.0.0","name":"home","plugins":[{"type":"bridge"}]}"#;
    fs::write(directory.join("net.d/10-home.conflist"), list).unwrap();
    let [agent, proxy] = ["agent.sock", "proxy.sock"].map(|name| directory.join(name));
    let server = AgentServer::bind(&agent).unwrap();
    let handler = Arc::new(TracingAgent(planner(&directory, None)));
    tokio::spawn(server.serve(handler, std::future::pending()));
    let server = AgentServer::bind(&proxy).unwrap();
    let handler = Arc::new(planner(&directory, Some(agent)));
    tokio::spawn(server.serve(handler, std::future::pending()));
    let respond = async |pod: &str| {
        let mut stream = UnixStream::connect(&proxy).await.unwrap();
        let request = AgentRequest::Plan(Box::new(plan_request(pod)));
        frame_io::write(&mut stream, &request).await.unwrap();
        frame_io::read::<Response>(&mut stream, MESSAGE_MAX).await.unwrap()
    };
    let Response::Plan(planned) = respond("web").await else { panic!("the pod is refused") };
    assert_eq!((planned.trace.as_str(), planned.plan.delegates.len()), (TRACE, 1));
    let Response::Refused(refusal) = respond(REFUSED).await else { panic!("the pod is not refused") };
    assert_eq!((refusal.trace.as_str(), refusal.error.msg.as_str()), (TRACE, "no such definition"));
    fs::remove_dir_all(&directory).unwrap();
}
