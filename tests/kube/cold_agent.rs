//! Node agent that never had an answer of the API server: an ADD through weft-cni tells what the server does.
//!
//! ```text
//!   weft-cni ── agent ── proxy (429, 503, closes, hangs) ── kube-apiserver
//! ```

use rig::agent::node_configuration;

use rig::machine::until;
use rig::parts::text;
use rig::{Agent, Machine, refusal};
use serde_json::json;
use testkit::{Feature, host};

use crate::api_proxy;

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";

#[test]
fn cold_agent_tells_how_the_api_server_fails() {
    let Some(agent) = Agent::new(Machine::new(host!(Feature::Bridge), "node")) else { return };
    agent.define(["net-a"]);
    let uid = agent.pod("web", &json!({ NETWORKS: "net-a" }));
    let web = agent.machine.pod("web");
    agent.stop("TERM");
    let kubeconfig = api_proxy::start(&agent.machine, agent.configuration(), "pass");
    let program = testkit::binary("weft");
    let start = || {
        let words = ["agent", "--node-name", "node", "--kubeconfig", kubeconfig];
        agent.machine.start("agent", [text(&program)].into_iter().chain(words));
    };
    let add = || agent.attachment(&web, "web", &uid).add(&node_configuration());
    for (mode, words) in [
        ("429", &["429"][..]),
        ("503", &["503"]),
        ("close", &["closed"]),
        ("hang", &["has not answered the list", "does not answer", "no response within"]),
    ] {
        api_proxy::answer(&agent.machine, mode);
        start();
        // Until the first list failed, nothing is known about the server; a server that hangs fails no list for a while.
        until("the agent had an answer", || {
            let page = agent.page("/readyz");
            let is_known = words.iter().any(|word| page.contains(word));
            (is_known || mode == "hang" && page.contains("waiting for")).then_some(())
        });
        let (code, message) = refusal(&add());
        eprintln!("{mode}: {code}: {message}");
        assert_eq!(code, 11, "{mode}: {message}");
        assert!(words.iter().any(|word| message.contains(word)), "{mode}: {message}");
        agent.stop("TERM");
    }
    // The same agent recovers without a restart.
    api_proxy::answer(&agent.machine, "503");
    start();
    until("the agent had an answer", || agent.page("/readyz").contains("503").then_some(()));
    api_proxy::answer(&agent.machine, "pass");
    agent.wait_until_ready();
    add().success();
}
