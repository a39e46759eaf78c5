//! Tests for the meta-plugin with an agent that answers with a hostile plan, or does not answer.
//!
//! The agent is a thread in the test that speaks the protocol (`docs/design/rpc.md`).

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

use rig::cluster::{configuration, recording};
use rig::{Cluster, assert_nothing_left, assert_refused, with};
use serde_json::{Value, json};
use testkit::{Host, host};

const SOCKET: &str = "/run/agent.sock";

/// Receives one message of a connection.
fn receive(stream: &mut UnixStream) -> Option<Value> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut envelope = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut envelope).ok()?;
    serde_json::from_slice(&envelope).ok()
}

/// Returns the bytes of an answer with a plan.
fn answer(plan: &Value) -> Vec<u8> {
    let envelope = json!({ "version": 1, "response": { "plan": { "plan": plan, "tasks": [] } } }).to_string();
    let length = u32::try_from(envelope.len()).expect("a short answer");
    [&length.to_be_bytes(), envelope.as_bytes()].concat()
}

fn listen(host: &Host) -> UnixListener {
    host.within(|| UnixListener::bind(SOCKET)).expect("a socket")
}

#[test]
fn agent_reply_with_a_hostile_plan_is_refused_before_any_effect() {
    let host = host!();
    let cluster = Cluster::new(&host);
    cluster.definition("extra", &recording("extra", "two", &json!({})));
    cluster.pod("web", "extra");
    let pod = host.pod("web");
    let attachment = cluster.attachment(&pod);
    let by_manifests = configuration(&recording("default", "one", &json!({})));
    attachment.add(&by_manifests).success();
    let plan = cluster.entry(&pod).expect("an entry")["plan"].clone();
    attachment.del(&by_manifests).success();
    let mut config = with(&by_manifests, &json!({ "agentSocket": SOCKET }));
    config.as_object_mut().expect("an object").remove("manifestDir");
    let listener = listen(&host);
    assert!(!cluster.calls().is_empty(), "the calls up to here");
    let before = host.snapshot();
    let add = |plan: &Value| {
        std::thread::scope(|scope| {
            let agent = scope.spawn(|| {
                let (mut stream, _) = listener.accept().expect("a connection");
                assert!(receive(&mut stream).is_some(), "a request");
                stream.write_all(&answer(plan)).expect("send the plan");
                // The report, or the end of the connection.
                receive(&mut stream)
            });
            let added = attachment.add(&config);
            agent.join().expect("the agent");
            added
        })
    };
    let device = |key: &str, path: &str| {
        let network = plan["delegates"][1]["network"].as_str().expect("a name").replace('/', "-");
        let own = format!("/var/run/k8s.cni.cncf.io/devinfo/cni/{network}-{}_net1", pod.container_id());
        let mut file = json!({ "path": own });
        file[key] = path.into();
        file
    };
    let itself = r#"{"cniVersion":"1.0.0","name":"extra","plugins":[{"type":"weft"}]}"#;
    for (pointer, value, words) in [
        ("/container", json!("other"), ["container", "other"]),
        ("/pod/name", json!("other"), ["pod.name", "other"]),
        ("/delegates/1/ifname", json!("eth0"), ["delegates[1].ifname", "eth0"]),
        ("/delegates/1/config", json!(itself), ["delegates[1].config", "weft"]),
        ("/delegates/1/deviceInfo", device("path", "/etc/cron.d/x"), ["deviceInfo.path", "/etc/cron.d/x"]),
        (
            "/delegates/1/deviceInfo",
            device("copyFrom", "/etc/passwd"),
            ["deviceInfo.copyFrom", "/etc/passwd"],
        ),
    ] {
        let mut hostile = plan.clone();
        let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
        hostile.pointer_mut(parent).expect(pointer)[key] = value;
        assert_refused(pointer, &add(&hostile), 6, &[SOCKET, words[0], words[1]]);
        assert_nothing_left(pointer, &host, &before);
        assert!(cluster.calls().is_empty(), "{pointer}: a plugin was called");
    }
    add(&plan).success();
    attachment.del(&config).success();
}

#[test]
fn agent_that_never_answers_delays_no_pod_without_networks() {
    let host = host!();
    let cluster = Cluster::new(&host);
    let pod = host.pod("web");
    let attachment = cluster.attachment(&pod);
    let base = configuration(&recording("default", "one", &json!({})));
    let keys = json!({
        "agentSocket": SOCKET, "runtimeConfig": { "io.kubernetes.cri.pod-annotations": { "app": "web" } },
        "capabilities": { "io.kubernetes.cri.pod-annotations": true },
    });
    let mut config = with(&base, &keys);
    config.as_object_mut().expect("an object").remove("manifestDir");
    // Connections wait in the backlog and are accepted by the kernel alone.
    let _listener = listen(&host);
    attachment.add(&config).success();
    attachment.del(&config).success();
}
