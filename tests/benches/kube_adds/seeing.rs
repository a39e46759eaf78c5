//! Cost of history, metrics of interfaces and the page with a client. The same pods are attached with them and without them,
//! call by call.
//!
//! ```text
//!   with      weft executor --listen ◄── a scrape every 5 s, weft controller --page ◄── a stream, and the history
//!   without   the same programs, stopped (SIGSTOP); the history cannot be written
//! ```
//!
//! - Events and metrics of the agent have no switch. The agent sends Events after the call, with and without the rest.
//! - In a cluster, the page runs on one node of many. Here it has the same processors as the calls.
//! - The row compares the fastest calls, because other work on the machine changes medians by more than the goal.
//! - The memory of the agent is measured with watched policies, too. They apply to other networks: the pods get no rules.

use std::thread::sleep;
use std::time::Duration;

use benches::table::{Table, Times, milliseconds};
use rig::Agent;
use rig::kube::files;
use rig::machine::until;
use rig::parts::text;
use serde_json::{Value, json};

use super::{AT_ONCE, DEFINITIONS, Subject, definitions, memory, settle, together};

/// Default number of turns.
pub(crate) const TURNS: usize = 6;
/// Number of pods that are timed in a turn.
const TIMED: usize = 40;
/// Time in which the page sends changes that it has gathered before.
const PAUSE: Duration = Duration::from_millis(400);
const HISTORY: &str = "/var/lib/weft/history";
const CONFIGURATION: &str = "/etc/cni/net.d/00-weft.conf";
const PAGE: &str = "127.0.0.1:9467";
const INTERFACES: &str = "127.0.0.1:9466";
/// Services that run besides the agent.
const SERVICES: [&str; 4] = ["executor", "page", "scrape", "viewer"];
/// Resources of policies, for which the agent needs rights besides those of `deploy/base`.
const POLICIES: [&str; 2] = ["multi-networkpolicies.k8s.cni.cncf.io", "policyaddresssets.weft.dev"];

/// Whether policies are required.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policies {
    Required,
    Unused,
}

/// Times ADDs with and without, call by call; then measures the memory of the agent with all pods attached.
pub(crate) fn measure(agent: &Agent, subjects: &[Subject], turns: usize, table: &mut Table) {
    prepare(agent);
    start_services(agent);
    let [mut with, mut without]: [Vec<Duration>; 2] = Default::default();
    let timed = |subject: &Subject| {
        sleep(PAUSE);
        let took = add(agent, subject, Policies::Unused);
        settle(agent);
        del(agent, subject, Policies::Unused);
        settle(agent);
        took
    };
    for turn in 0..turns {
        for (place, subject) in subjects.iter().take(TIMED).enumerate() {
            for is_on in [(turn + place) % 2 == 0, (turn + place) % 2 == 1] {
                if is_on {
                    resume(agent);
                    with.push(timed(subject));
                } else {
                    suspend(agent);
                    without.push(timed(subject));
                }
            }
        }
    }
    let [with, without] = [with, without].map(Times::new);
    let [median, other] = [&with, &without].map(|times| milliseconds(times.median()));
    println!("median ADD: {median} ms with history, interface metrics and page, {other} ms without them");
    let what = "fastest ADD of a pod with 3 networks more, with history, interface metrics and page";
    let [fastest, other] = [&with, &without].map(|times| milliseconds(times.fastest()));
    table.contrast(what, "ms", fastest, "without them", other);
    resume(agent);
    agent.stop("TERM");
    agent.start(&["--policy"]);
    agent.wait_until_ready();
    until_definitions_are_known(agent);
    together(AT_ONCE, subjects, |subject| add(agent, subject, Policies::Required));
    settle(agent);
    let what =
        format!("memory of the agent with {} pods, {DEFINITIONS} definitions and all of it", subjects.len());
    table.state(&what, "MB", memory(agent).0);
    together(AT_ONCE, subjects, |subject| del(agent, subject, Policies::Required));
}

/// Creates the definitions of networks and policies, rights, and the configuration for the executor.
fn prepare(agent: &Agent) {
    let paths = POLICIES.map(|name| format!("deploy/policy/{name}.yaml"));
    agent.kube.apply(&files(&paths.each_ref().map(String::as_str)));
    agent.kube.wait_until_served();
    let resources = format!("--resource={}", POLICIES.join(","));
    agent.kube.kubectl(["create", "clusterrole", "policies", "--verb=list,watch", &resources]);
    let account = "--serviceaccount=kube-system:weft-agent";
    agent.kube.kubectl(["create", "clusterrolebinding", "policies", "--clusterrole=policies", account]);
    definitions::create(agent, DEFINITIONS);
    let policies = (0..20).map(|number| {
        json!({
            "apiVersion": "k8s.cni.cncf.io/v1beta1", "kind": "MultiNetworkPolicy",
            "metadata": { "name": format!("policy-{number}"), "namespace": rig::agent::NAMESPACE,
                "annotations": { "k8s.v1.cni.cncf.io/policy-for": format!("net-{number}") } },
            "spec": { "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}] },
        })
    });
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": policies.collect::<Vec<_>>() });
    agent.kube.apply(&list.to_string());
}

/// Configuration of the meta-plugin. An agent with policies serves no pod whose configuration does not require them.
fn configuration(policies: Policies) -> Value {
    let mut configuration = rig::agent::node_configuration();
    if policies == Policies::Required {
        configuration["networkPolicies"] = true.into();
    }
    configuration
}

fn add(agent: &Agent, Subject { name, uid, pod }: &Subject, policies: Policies) -> Duration {
    // Without the CHECK that follows an ADD in tests.
    agent.attachment(pod, name, uid).call("ADD", configuration(policies).to_string()).success().took
}

fn del(agent: &Agent, Subject { name, uid, pod }: &Subject, policies: Policies) -> Duration {
    agent.attachment(pod, name, uid).del(&configuration(policies)).success().took
}

/// Starts executor, page and the clients.
fn start_services(agent: &Agent) {
    let machine = &agent.machine;
    machine.write(CONFIGURATION, configuration(Policies::Unused).to_string());
    let (program, admin) = (testkit::binary("weft"), agent.kube.admin());
    let weft = text(&program);
    machine.start("executor", [weft, "executor", "--config", CONFIGURATION, "--listen", INTERFACES]);
    let listen = ["--listen", "127.0.0.1:9468", "--kubeconfig", &admin];
    machine.start("page", [weft, "controller", "--page", PAGE].into_iter().chain(listen));
    until("the page", || {
        let asked = machine.attempt(["curl", "-sf", "http://127.0.0.1:9468/readyz"]);
        asked.code.filter(|code| *code == 0)
    });
    let scrape = format!("while :; do curl -s http://{INTERFACES}/metrics; sleep 5; done >/dev/null");
    machine.start("scrape", ["sh", "-c", &scrape]);
    machine.start("viewer", ["sh", "-c", &format!("exec curl -sN http://{PAGE}/api/stream >/dev/null")]);
}

fn signal(agent: &Agent, name: &str) {
    let pids = SERVICES.map(|service| format!("/run/services/{service}.pid")).join(" ");
    agent.machine.run(["sh", "-c", &format!("kill -{name} $(cat {pids})")]);
}

/// Continues all services, and makes the history writable.
fn resume(agent: &Agent) {
    agent.machine.run(["rm", "-rf", HISTORY]);
    signal(agent, "CONT");
}

/// Stops all services. A file in place of the history's directory loses records, and no call fails.
fn suspend(agent: &Agent) {
    signal(agent, "STOP");
    agent.machine.run(["rm", "-rf", HISTORY]);
    agent.machine.write(HISTORY, "");
}

fn until_definitions_are_known(agent: &Agent) {
    let known = "weft_cache_objects{resource=\"network-attachment-definitions\"}";
    until("definitions", || agent.metric(known).filter(|known| *known >= DEFINITIONS as f64));
}
