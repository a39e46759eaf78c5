//! `weft status`, `weft list -A` and the reports of agents, with a real API server and the shipped RBAC.
//!
//! ```text
//!   weft agent ── WeftNode ──► kube-apiserver ◄── weft status, weft list -A (a reader's kubeconfig)
//!   weft-cni ── journal ──┘
//! ```

use rig::agent::{Agent, NAMESPACE, NODE, node_configuration};
use rig::machine::until;
use rig::parts::text;
use serde_json::{Value, json};
use testkit::{Finished, host};

use rig::Machine;

/// Runs `weft` with the kubeconfig of a user.
fn weft(agent: &Agent, configuration: &str, words: &[&str]) -> Finished {
    let program = testkit::binary("weft");
    let command = agent.machine.command(text(&program)).env("KUBECONFIG", configuration).args(words);
    command.deadline(rig::machine::TIMEOUT).finish()
}

/// Creates Node objects, and a user that may read what `weft status` needs, and nothing else. Returns the kubeconfig.
fn reader(agent: &Agent, nodes: &[&str]) -> String {
    for name in nodes {
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name } });
        agent.kube.apply(&node.to_string());
    }
    agent.kube.apply(&rig::kube::files(&["deploy/crds/weftnodes.weft.dev.yaml"]));
    agent.kube.wait_until_served();
    let configuration = agent.kube.service_account("default", "reader");
    agent.kube.kubectl(
        "create clusterrole reader --verb=list,watch --resource=nodes,pods,weftnodes.weft.dev".split(' '),
    );
    let bind = "create clusterrolebinding reader --clusterrole=reader --serviceaccount=default:reader";
    agent.kube.kubectl(bind.split(' '));
    configuration
}

fn rows(finished: &Finished) -> Vec<Value> {
    finished.json().as_array().expect("a list").clone()
}

/// Fails unless a pod that is named is listed alone.
#[track_caller]
fn list_shows_one_pod(agent: &Agent, configuration: &str) {
    let one = rows(&weft(agent, configuration, &["list", "-n", NAMESPACE, "web", "-o", "json"]));
    assert_eq!((one.len(), &one[0]["name"]), (1, &json!("web")));
    // An option of the cluster takes the place of -n.
    let named = format!("{NAMESPACE}/web");
    let with_option = weft(agent, "", &["list", &named, "--kubeconfig", configuration, "-o", "json"]);
    assert_eq!(rows(&with_option), one);
    let absent = weft(agent, configuration, &["list", "-n", NAMESPACE, "absent"]);
    assert!(absent.code == Some(1) && absent.stderr.contains("pod blue/absent: not found"), "{absent}");
}

#[test]
fn status_shows_agent_plugin_and_sandboxes_of_each_node() {
    let Some(agent) = Agent::with_networks(host!(), ["a"]) else { return };
    let configuration = reader(&agent, &[NODE, "worker-2"]);
    let uid = agent.pod("web", &json!({ "k8s.v1.cni.cncf.io/networks": "a" }));
    let pod = agent.machine.pod("p");
    let attachment = agent.attachment(&pod, "web", &uid);
    attachment.add(&node_configuration()).success();
    agent.stop("TERM");
    agent.start(&["--plugins", "/opt/cni/bin"]);
    agent.wait_until_ready();
    let row = until("the report has the sandbox", || {
        let finished = weft(&agent, &configuration, &["status", "-o", "json"]);
        rows(&finished).into_iter().find(|row| row["node"] == NODE && row["sandboxes"] == 1)
    });
    assert_eq!((&row["agent"], &row["plugin"]), (&json!("ready"), &json!("Current")), "{row}");
    assert_eq!((&row["defaultNetwork"], &row["failedCalls"]), (&json!("home"), &json!(0)), "{row}");
    assert_eq!(row["version"], env!("CARGO_PKG_VERSION"));
    // A watch prints the table, and later changes.
    let program = testkit::binary("weft");
    let kubeconfig = format!("KUBECONFIG={configuration}");
    let watches = [("nodes", vec!["status", "-w"]), ("pods", vec!["list", "-A", "-w"])];
    for (service, words) in &watches {
        agent
            .machine
            .start(service, ["env", &kubeconfig, text(&program)].into_iter().chain(words.iter().copied()));
    }
    let shown = |service: &str, word: &str| {
        agent
            .machine
            .wait(service, "prints a row", || agent.machine.log(service).contains(word).then_some(()));
    };
    shown("nodes", "worker-2  missing");
    shown("pods", "blue/a");
    // A node without an agent is a failure, and --wait ends at its timeout.
    let finished = weft(&agent, &configuration, &["status", "--wait", "--timeout", "1"]);
    assert_eq!(finished.code, Some(1), "{finished}");
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert!(lines[0].starts_with("NODE") && lines[1].starts_with("worker-1  ready"), "{finished}");
    assert!(lines[2].starts_with("worker-2  missing"), "{finished}");
    let finished = weft(&agent, &configuration, &["status", "--wait", NODE, "-o", "wide"]).success();
    assert!(finished.stdout.contains("COMMIT") && !finished.stdout.contains("worker-2"), "{finished}");
    // The object belongs to its node, and kubectl shows it.
    let object = agent.kube.json(["weftnode", NODE]);
    assert_eq!(object["metadata"]["ownerReferences"][0]["kind"], "Node", "{object}");
    assert!(agent.kube.kubectl(["get", "wnode"]).contains("Current"));

    let listed = weft(&agent, &configuration, &["list", "-A", "-o", "json"]);
    let listed = rows(&listed);
    assert_eq!((listed.len(), &listed[0]["name"], &listed[0]["node"]), (1, &json!("web"), &json!(NODE)));
    assert_eq!(listed[0]["networkStatus"][1]["name"], format!("{NAMESPACE}/a"));
    let table = weft(&agent, &configuration, &["list", "-n", NAMESPACE]).success();
    assert!(table.stdout.contains("net1") && table.stdout.contains(NODE), "{table}");
    list_shows_one_pod(&agent, &configuration);
    agent.delete_pod("web");
    shown("pods", "removed");
    assert_eq!(agent.machine.log("pods").matches("NAMESPACE").count(), 1);
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "worker-3" } });
    agent.kube.apply(&node.to_string());
    shown("nodes", "worker-3");
    assert!(agent.machine.log("nodes").lines().last().is_some_and(|line| line.starts_with("worker-3")));
    for (service, _) in watches {
        agent.machine.stop(service, "TERM");
    }
    attachment.del(&node_configuration()).success();
}

#[test]
fn list_failed_has_one_row_for_each_failing_pod() {
    let Some(agent) = Agent::with_networks(host!(), ["a"]) else { return };
    let configuration = reader(&agent, &[NODE]);
    let broken =
        json!({ "cniVersion": "1.0.0", "type": "macvlan", "master": "eth9", "ipam": { "type": "static" } });
    agent.definition("no-master", &json!({}), &broken);
    let machine_pod = agent.machine.pod("p");
    let attempts = |name: &str, networks: &str, count: usize| {
        let uid = agent.pod(name, &json!({ "k8s.v1.cni.cncf.io/networks": networks }));
        for _ in 0..count {
            let refused = agent.attachment(&machine_pod, name, &uid).add(&node_configuration());
            assert_ne!(refused.code, Some(0), "{refused}");
        }
        uid
    };
    attempts("no-network", "missing", 3);
    let recovers = attempts("no-interface", "a,no-master", 4);
    attempts("waits", "a", 0);
    let finished = weft(&agent, &configuration, &["list", "--failed", "-A"]);
    assert!(
        finished.code == Some(1) && finished.stderr.contains("events"),
        "the right is missing: {finished}"
    );
    agent.kube.kubectl("create clusterrole events --verb=list --resource=events".split(' '));
    let bind = "create clusterrolebinding events --clusterrole=events --serviceaccount=default:reader";
    agent.kube.kubectl(bind.split(' '));
    let failed = until("both pods have their Events", || {
        let listed = rows(&weft(&agent, &configuration, &["list", "--failed", "-A", "-o", "json"]));
        let counts: Vec<u64> = listed.iter().filter_map(|row| row["failures"].as_u64()).collect();
        (listed.len() == 2 && counts.iter().all(|count| *count >= 2)).then_some(listed)
    });
    let row = |name: &str| failed.iter().find(|row| row["name"] == name).expect("the pod").clone();
    let row_of_network = row("no-network");
    assert_eq!(
        (&row_of_network["reason"], &row_of_network["networks"]),
        (&json!("NoNetworkFound"), &json!([format!("{NAMESPACE}/missing")])),
        "{row_of_network}"
    );
    let row_of_interface = row("no-interface");
    assert_eq!(row_of_interface["networks"], json!([format!("{NAMESPACE}/no-master")]), "{row_of_interface}");
    let message = row_of_interface["message"].as_str().unwrap_or_default();
    assert!(message.contains("eth9") && row_of_interface["reason"] == "AttachFailed", "{message}");
    let series = agent.events("no-interface").iter().filter(|text| text.contains("eth9")).count();
    assert_eq!(series, 1, "the attempts are one Event: {:?}", agent.events("no-interface"));
    until("the metric has both pods", || {
        (agent.page("/metrics").matches("\nweft_failing_pods{").count() == 2).then_some(())
    });
    let text = weft(&agent, &configuration, &["list", "--failed", "-n", NAMESPACE]);
    assert_eq!((text.code, text.stdout.lines().count()), (Some(1), 3), "{text}");
    // A pod that is attached afterwards is no longer listed.
    let repaired = json!({ "k8s.v1.cni.cncf.io/networks": "a" });
    let patch = json!({ "metadata": { "annotations": repaired } }).to_string();
    agent.kube.kubectl(["-n", NAMESPACE, "patch", "pod", "no-interface", "--type=merge", "-p", &patch]);
    until("the pod is attached", || {
        let attached = agent.attachment(&machine_pod, "no-interface", &recovers).add(&node_configuration());
        (attached.code == Some(0)).then_some(())
    });
    until("only one pod fails", || {
        let listed = rows(&weft(&agent, &configuration, &["list", "--failed", "-A", "-o", "json"]));
        (listed.len() == 1 && listed[0]["name"] == "no-network").then_some(())
    });
    agent.attachment(&machine_pod, "no-interface", &recovers).del(&node_configuration()).success();
}

#[test]
fn status_of_an_agent_without_sandboxes_is_ready() {
    let Some(agent) = Agent::new(Machine::new(host!(), "node")) else { return };
    let configuration = reader(&agent, &[NODE]);
    agent.stop("TERM");
    agent.start(&[]);
    agent.wait_until_ready();
    let row = agent.machine.wait("agent", "has a report", || {
        let finished = weft(&agent, &configuration, &["status", "-o", "json"]);
        rows(&finished).into_iter().find(|row| row["agent"] == "ready")
    });
    assert_eq!((&row["plugin"], &row["sandboxes"]), (&json!("Current"), &json!(0)), "{row}");
    weft(&agent, &configuration, &["status", "--wait", "--timeout", "1"]).success();
}

#[test]
fn status_without_the_rights_or_the_definition_says_so() {
    let Some(agent) = Agent::new(Machine::new(host!(), "node")) else { return };
    let bare = agent.kube.service_account("default", "bare");
    let refused = weft(&agent, &bare, &["status"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("list nodes: "), "{refused}");
    let finished = weft(&agent, &agent.kube.admin(), &["status"]);
    assert!(finished.stderr.contains("weftnodes.weft.dev of deploy/crds"), "{finished}");
    let unknown = weft(&agent, &agent.kube.admin(), &["status", "nowhere"]);
    assert!(unknown.code == Some(1) && unknown.stderr.contains("node nowhere: "), "{unknown}");
    let context = weft(&agent, &agent.kube.admin(), &["status", "--context", "other"]);
    assert!(context.code == Some(1) && context.stderr.contains("other"), "{context}");
}

#[test]
fn status_wait_continues_while_the_api_server_is_away() {
    let Some(agent) = Agent::own(Machine::new(host!(), "node")) else { return };
    let configuration = reader(&agent, &["worker-2"]);
    agent.kube.stop("kube-apiserver", "KILL");
    let weft_program = testkit::binary("weft");
    let kubeconfig = format!("KUBECONFIG={configuration}");
    let words = ["env", &kubeconfig, text(&weft_program), "status", "--wait", "--timeout", "40"];
    agent.machine.start("wait", words);
    until("the error is shown", || agent.machine.log("wait").contains("trying again").then_some(()));
    agent.kube.launch_server();
    agent.kube.wait();
    // The node has no agent, so the command ends at its timeout, with what the server says then.
    until("the command has ended", || (!agent.machine.is_running("wait")).then_some(()));
    let log = agent.machine.log("wait");
    assert!(log.lines().any(|line| line.starts_with("worker-2  missing")), "{log}");
    assert_eq!(log.matches("Connection refused").count(), 1, "{log}");
    // Without a server, it ends at its timeout, with the error.
    agent.kube.stop("kube-apiserver", "KILL");
    let finished = weft(&agent, &configuration, &["status", "--wait", "--timeout", "1"]);
    assert!(finished.code == Some(1) && finished.stderr.contains("list nodes: "), "{finished}");
}

#[test]
fn explain_reads_pod_and_definitions_from_the_cluster() {
    let Some(agent) = Agent::with_networks(host!(), ["a"]) else { return };
    let _ = reader(&agent, &[NODE]);
    agent.pod("web", &json!({ "k8s.v1.cni.cncf.io/networks": "a@data" }));
    let configuration = agent.kube.service_account("default", "explainer");
    let explain = |words: &[&str]| {
        weft(&agent, &configuration, &[&["explain", "-n", NAMESPACE, "web"], words].concat())
    };
    let refused = explain(&[]);
    assert!(refused.code == Some(1) && refused.stderr.contains("pod blue/web: "), "{refused}");
    let kube = &agent.kube;
    kube.kubectl([
        "create",
        "role",
        "-n",
        NAMESPACE,
        "explainer",
        "--verb=get,list",
        "--resource=pods,network-attachment-definitions.k8s.cni.cncf.io",
    ]);
    kube.kubectl([
        "create",
        "rolebinding",
        "-n",
        NAMESPACE,
        "explainer",
        "--role=explainer",
        "--serviceaccount=default:explainer",
    ]);
    // With the rights in this namespace only, and without the configuration of a node.
    let finished = explain(&["-o", "json"]).success();
    let document = finished.json();
    assert_eq!(document["networks"][1]["interface"], "data", "{document}");
    assert_eq!(document["networks"][1]["network"], "blue/a", "{document}");
    assert!(document["configuration"].as_str().is_some_and(|text| text.contains("assumed")), "{document}");
    assert!(finished.stderr.contains("definitions of other namespaces than blue are unknown"), "{finished}");
    // With that of a node, and the same plan as the agent makes.
    agent.machine.write("/etc/weft-test/00-weft.conf", node_configuration().to_string());
    let finished = explain(&["--config", "/etc/weft-test/00-weft.conf"]).success();
    assert!(finished.stdout.contains("eth0  home  bridge+host-local"), "{finished}");
    let missing = weft(&agent, &agent.kube.admin(), &["explain", "-n", NAMESPACE, "nowhere"]);
    assert!(missing.code == Some(1) && missing.stderr.contains("nowhere"), "{missing}");
}
