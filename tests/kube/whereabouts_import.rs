//! `weft import whereabouts` with objects as whereabouts writes them, in any namespace: plan, import and comparison.
//!
//! ```text
//!   IPPool in kube-system, openshift-multus ─► weft import whereabouts ─► IPBlock, kept for pod and interface
//! ```

use rig::addresses::{
    Nodes, allocated, define_whereabouts, last_byte, name, network, start_controllers, weft,
};
use rig::machine::until;
use rig::parts::text;
use rig::{assert_refused, nodes};
use serde_json::{Value, json};
use testkit::{Attachment, Finished, Pod};

/// Group of whereabouts objects.
const GROUP: &str = "whereabouts.cni.cncf.io";

/// Creates the definitions of whereabouts without schemas, the namespaces, and a network with whereabouts IPAM.
fn prepare(nodes: &Nodes, range: &str) {
    define_whereabouts(nodes);
    for namespace in ["blue", "openshift-multus"] {
        nodes.kube.kubectl(["create", "namespace", namespace]);
    }
    let config = json!({ "cniVersion": "1.0.0", "name": "data", "type": "macvlan",
        "ipam": { "type": "whereabouts", "range": range } });
    let definition = json!({ "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "data", "namespace": "blue" }, "spec": { "config": config.to_string() } });
    nodes.kube.apply(&definition.to_string());
}

fn pool(nodes: &Nodes, namespace: &str, range: &str, allocations: &Value) {
    let object = json!({ "apiVersion": format!("{GROUP}/v1alpha1"), "kind": "IPPool",
        "metadata": { "name": range.replace('/', "-"), "namespace": namespace },
        "spec": { "range": range, "allocations": allocations } });
    nodes.kube.apply(&object.to_string());
}

/// Creates a pod on the first node that shows an address on `blue/data`; returns the uid.
fn pod(nodes: &Nodes, pod: &str, address: &str) -> String {
    let status = json!([{ "name": "blue/data", "interface": "net1", "ips": [address] }]).to_string();
    let object = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": pod, "namespace": "blue",
        "annotations": { "k8s.v1.cni.cncf.io/network-status": status } },
        "spec": { "nodeName": name(0), "containers": [{ "name": "c", "image": "none" }] } });
    nodes.kube.apply(&object.to_string());
    nodes.kube.json(["pod", "-n", "blue", pod])["metadata"]["uid"].as_str().expect("a uid").to_owned()
}

#[test]
fn import_whereabouts_reads_all_namespaces_and_names_conflicts() {
    let nodes = nodes!(1);
    let none = weft(&nodes, &["import", "whereabouts", "--apply"]);
    assert!(none.code == Some(1) && none.stderr.contains("no object in any namespace"), "{none}");
    prepare(&nodes, "10.71.0.0/24");
    let none = weft(&nodes, &["import", "whereabouts", "--apply"]);
    assert!(none.code == Some(1) && none.stderr.contains("no object in any namespace"), "{none}");

    let entry = |pod: &str| json!({ "id": pod, "podref": format!("blue/{pod}"), "ifname": "net1" });
    pool(
        &nodes,
        "openshift-multus",
        "10.71.0.0/24",
        &json!({ "1": entry("a"), "2": entry("b"), "9": entry("gone") }),
    );
    pool(&nodes, "kube-system", "10.71.0.0/24", &json!({ "2": entry("c"), "3": entry("c") }));
    for (name, address) in [("a", "10.71.0.1"), ("b", "10.71.0.2"), ("c", "10.71.0.3"), ("lost", "10.71.0.7")]
    {
        pod(&nodes, name, address);
    }
    let plan = weft(&nodes, &["import", "whereabouts"]);
    let line = |text: &str, address: &str| {
        text.lines().find(|line| line.starts_with(&format!("{address} "))).unwrap_or_default().to_owned()
    };
    assert_eq!(plan.code, Some(1), "{plan}");
    assert!(plan.stdout.contains("would be created"), "{plan}");
    assert!(line(&plan.stdout, "10.71.0.1").ends_with("would be kept"), "{plan}");
    assert!(line(&plan.stdout, "10.71.0.7").ends_with("would be kept"), "lost by whereabouts: {plan}");
    assert!(line(&plan.stdout, "10.71.0.9").ends_with("its pod no longer exists"), "{plan}");
    for owner in
        ["pod blue/b (net1), by ippool openshift-multus/", "pod blue/c (net1), by ippool kube-system/"]
    {
        assert!(line(&plan.stdout, "10.71.0.2").contains(owner), "{plan}");
    }
    let refused = weft(&nodes, &["import", "whereabouts", "--apply"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("nothing was changed"), "{refused}");
    assert_eq!(nodes.blocks().len(), 0, "nothing is created while two pods have an address");
    let before = weft(&nodes, &["import", "whereabouts", "--verify"]);
    assert!(line(&before.stdout, "10.71.0.1").contains("weft does not hold it"), "{before}");

    // One of the two records is corrected, as an operator does.
    pool(&nodes, "kube-system", "10.71.0.0/24", &json!({ "2": null, "3": entry("c") }));
    weft(&nodes, &["import", "whereabouts", "--apply"]).success();
    let verified = weft(&nodes, &["import", "whereabouts", "--verify"]).success().stdout;
    assert_eq!(verified.matches(" same").count(), 4, "{verified}");
    // A pod that starts with an address of another one is found.
    pod(&nodes, "late", "10.71.0.1");
    let after = weft(&nodes, &["import", "whereabouts", "--verify"]);
    assert_eq!(after.code, Some(1), "{after}");
    assert!(line(&after.stdout, "10.71.0.1").ends_with("two pods have it: blue/a, blue/late"), "{after}");
}

/// Creates a pod on a node; returns the uid.
fn plain_pod(nodes: &Nodes, pod: &str, node: usize) -> String {
    let object = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": pod, "namespace": "blue" },
        "spec": { "nodeName": name(node), "containers": [{ "name": "c", "image": "none" }] } });
    nodes.kube.apply(&object.to_string());
    nodes.kube.json(["pod", "-n", "blue", pod])["metadata"]["uid"].as_str().expect("a uid").to_owned()
}

/// Pod sandbox in a separate container.
fn sandbox<'a>(nodes: &'a Nodes, namespace: &Pod, pod: &str, uid: &str, container: &str) -> Attachment<'a> {
    let mut attachment = nodes.attachment(namespace, container);
    attachment.args = format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=blue;K8S_POD_NAME={pod};K8S_POD_INFRA_CONTAINER_ID={container};K8S_POD_UID={uid}"
    );
    attachment
}

#[test]
fn import_whereabouts_gives_addresses_back_to_their_pods() {
    let nodes = nodes!(2);
    start_controllers(&nodes, &[("controller", 9600)]);
    prepare(&nodes, "10.72.0.0/29");
    let namespace = nodes.machine.pod("a");
    let entry = |pod: &str| json!({ "id": pod, "podref": format!("blue/{pod}"), "ifname": "eth0" });
    let pods = ["web-0", "web-1", "web-2", "web-3", "web-4"];
    let uids: Vec<String> = pods.iter().enumerate().map(|(at, pod)| plain_pod(&nodes, pod, at % 2)).collect();
    let allocations: serde_json::Map<String, Value> =
        pods.iter().enumerate().map(|(at, pod)| ((at + 2).to_string(), entry(pod))).collect();
    pool(&nodes, "kube-system", "10.72.0.0/29", &Value::Object(allocations));
    weft(&nodes, &["import", "whereabouts", "--apply"]).success();
    let conf = |node| {
        let mut conf = network(node, &json!({ "range": "10.72.0.0/29", "quarantine": 0 }));
        conf["ipam"]["type"] = json!("whereabouts");
        conf
    };
    // A pod without an imported address gets the only free one; a further one gets none.
    assert_eq!(allocated(nodes.attachment(&namespace, "new").add(&conf(0))), ["10.72.0.1"]);
    assert_refused("full", &nodes.attachment(&namespace, "late").add(&conf(1)), 11, &["no address is free"]);

    // The sandbox of each pod is created again, on its node, twice.
    for round in 0..2 {
        for (at, (pod, uid)) in pods.iter().zip(&uids).enumerate() {
            let container = format!("{pod}-{round}");
            let ip = allocated(sandbox(&nodes, &namespace, pod, uid, &container).add(&conf(at % 2)));
            assert_eq!(ip, [format!("10.72.0.{}", at + 2)], "{pod}");
            if round == 0 {
                sandbox(&nodes, &namespace, pod, uid, &container).del(&conf(at % 2)).success();
            }
        }
    }
    // A pod of the same name on the other node.
    sandbox(&nodes, &namespace, "web-0", &uids[0], "web-0-1").del(&conf(0)).success();
    nodes.kube.kubectl(["delete", "pod", "-n", "blue", "web-0", "--force", "--grace-period=0"]);
    let moved = plain_pod(&nodes, "web-0", 1);
    assert_eq!(allocated(sandbox(&nodes, &namespace, "web-0", &moved, "moved").add(&conf(1))), ["10.72.0.2"]);
    sandbox(&nodes, &namespace, "web-0", &moved, "moved").del(&conf(1)).success();
    assert_eq!(allocated(sandbox(&nodes, &namespace, "web-0", &moved, "again").add(&conf(1))), ["10.72.0.2"]);

    // The address of a pod that is deleted for good returns to the pool.
    sandbox(&nodes, &namespace, "web-1", &uids[1], "web-1-1").del(&conf(1)).success();
    nodes.kube.kubectl(["delete", "pod", "-n", "blue", "web-1", "--force", "--grace-period=0"]);
    let late = || (nodes.attachment(&namespace, "late").add(&conf(0)).code == Some(0)).then_some(());
    nodes.machine.wait("controller", "releases the address", late);
    nodes.attachment(&namespace, "late").check(&conf(0)).success();
    // Without imported addresses, no store is marked, so no ADD asks for them.
    for pod in ["web-0", "web-2", "web-3", "web-4"] {
        nodes.kube.kubectl(["delete", "pod", "-n", "blue", pod, "--force", "--grace-period=0"]);
    }
    for (node, pod, container) in
        [(1, "web-0", "again"), (0, "web-2", "web-2-1"), (1, "web-3", "web-3-1"), (0, "web-4", "web-4-1")]
    {
        sandbox(&nodes, &namespace, pod, "", container).del(&conf(node)).success();
    }
    let marks = || -> Vec<String> {
        let found = nodes.machine.attempt(["find", "/var/lib/weft", "-name", "imported"]).stdout;
        found.lines().map(str::to_owned).collect()
    };
    assert_eq!(marks().len(), 2);
    until("the agents remove the marks", || marks().is_empty().then_some(()));
}

#[test]
fn import_whereabouts_marks_a_pool_that_is_in_use() {
    let nodes = nodes!(2);
    prepare(&nodes, "10.73.0.0/24");
    let namespace = nodes.machine.pod("a");
    let conf = |node| network(node, &json!({ "range": "10.73.0.0/24", "quarantine": 0 }));
    let first = allocated(nodes.attachment(&namespace, "first").add(&conf(0)))[0].clone();
    // An address outside of the block of the first node.
    let host = last_byte(&first) ^ 128;
    let (old, uid) = (format!("10.73.0.{host}"), plain_pod(&nodes, "old", 0));
    pool(
        &nodes,
        "kube-system",
        "10.73.0.0/24",
        &json!({ host.to_string(): { "id": "c", "podref": "blue/old" } }),
    );
    weft(&nodes, &["import", "whereabouts", "--apply"]).success();
    nodes.machine.wait("agent-0", "marks the store", || {
        let mark = "/var/lib/weft/ipam-0/10.73.0.0-24/imported";
        (nodes.machine.attempt(["test", "-e", mark]).code == Some(0)).then_some(())
    });
    assert_eq!(allocated(sandbox(&nodes, &namespace, "old", &uid, "again").add(&conf(0))), [old.as_str()]);
    // Other pods get addresses of the block as before.
    let other = allocated(nodes.attachment(&namespace, "second").add(&conf(0)))[0].clone();
    assert_eq!(last_byte(&other) & 128, last_byte(&first) & 128);
    // Without the agent, the pool is known to have imported addresses.
    nodes.stop(0, "KILL");
    assert_refused(
        "no agent",
        &nodes.attachment(&namespace, "third").add(&conf(0)),
        11,
        &["pool 10.73.0.0-24"],
    );
    nodes.start(0);
    nodes.machine.wait("agent-0", "answers", || {
        (nodes.attachment(&namespace, "third").add(&conf(0)).code == Some(0)).then_some(())
    });
}

#[test]
fn import_whereabouts_refusal_leaves_no_object() {
    let nodes = nodes!(1);
    prepare(&nodes, "10.74.0.0/24");
    let namespace = nodes.machine.pod("a");
    let conf = network(0, &json!({ "range": "10.74.0.0/24", "quarantine": 0 }));
    let first = last_byte(&allocated(nodes.attachment(&namespace, "first").add(&conf))[0]);
    let block = nodes.blocks_of(0)[0]["spec"]["range"].as_str().expect("a range").to_owned();
    let base = last_byte(block.split('/').next().expect("an address"));
    // An address inside of the block, whose node may allocate it at any moment.
    let host = if first == base + 5 { base + 6 } else { base + 5 };
    let _ = plain_pod(&nodes, "old", 0);
    let entry = json!({ "id": "c", "podref": "blue/old", "ifname": "eth0" });
    pool(&nodes, "kube-system", "10.74.0.0/24", &json!({ host.to_string(): entry }));
    let refused = weft(&nodes, &["import", "whereabouts", "--apply"]);
    assert!(refused.code == Some(1) && refused.stdout.contains("has already leased its block"), "{refused}");
    let ranges: Vec<Value> = nodes.blocks().iter().map(|block| block["spec"]["range"].clone()).collect();
    assert_eq!(ranges, [json!(block)], "the refused address has no object");
    let label =
        &nodes.kube.json(["ippools.weft.dev", "10.74.0.0-24"])["metadata"]["labels"]["weft.dev/imported"];
    assert_eq!(*label, Value::Null, "no ADD has to ask for imported addresses");
}

#[test]
fn import_whereabouts_without_interfaces_serves_two_of_a_pod() {
    let nodes = nodes!(1);
    prepare(&nodes, "10.75.0.0/29");
    let namespace = nodes.machine.pod("a");
    let uid = plain_pod(&nodes, "web-0", 0);
    let entry = json!({ "id": "c", "podref": "blue/web-0" });
    pool(&nodes, "kube-system", "10.75.0.0/29", &json!({ "2": entry, "3": entry }));
    weft(&nodes, &["import", "whereabouts", "--apply"]).success();
    let conf = network(0, &json!({ "range": "10.75.0.0/29", "quarantine": 0 }));
    let add = |container: &str, ifname: &str| {
        let mut attachment = sandbox(&nodes, &namespace, "web-0", &uid, container);
        attachment.ifname = ifname.to_owned();
        allocated(attachment.add(&conf))[0].clone()
    };
    let both = [add("one", "net1"), add("one", "net2")];
    assert_eq!(both, ["10.75.0.2", "10.75.0.3"]);
    for ifname in ["net1", "net2"] {
        let mut attachment = sandbox(&nodes, &namespace, "web-0", &uid, "one");
        attachment.ifname = ifname.to_owned();
        attachment.del(&conf).success();
    }
    // In another order, each interface gets one of them again.
    let mut again = [add("two", "net2"), add("two", "net1")];
    again.sort();
    assert_eq!(again, both);
}

/// HTTP proxy of the API server. Arguments: port, server, its certificate authority, certificate and key of the
/// administrator, effect, word. The effect `delete` deletes the pool at the path `word` when the first IPBlock has been
/// created; `fail` answers every request that creates an IPBlock whose name contains `word` with status 500.
const FAULTY_PROXY: &str = "
import http.client, http.server, json, ssl, sys
port, server, authority, certificate, key, effect, word = sys.argv[1:]
context = ssl.create_default_context(cafile=authority)
context.load_cert_chain(certificate, key)
def request(method, path, body=None, headers={}):
    connection = http.client.HTTPSConnection(server, context=context)
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    return response.status, response.getheader('Content-Type'), response.read()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    is_deleted = False
    def forward(self):
        body = self.rfile.read(int(self.headers.get('Content-Length', 0)))
        kept = ('Content-Type', 'Accept')
        headers = {name: self.headers[name] for name in kept if self.headers[name]}
        objects = '/ippools' if effect == 'fail-pool' else '/ipblocks'
        creates = self.command == 'POST' and objects in self.path
        if creates and effect in ('fail', 'fail-pool') and word.encode() in body:
            failure = dict(kind='Status', apiVersion='v1', status='Failure', message='storage is full', code=500)
            status, kind, text = 500, 'application/json', json.dumps(failure).encode()
        else:
            status, kind, text = request(self.command, self.path, body, headers)
        if creates and effect == 'delete' and not Handler.is_deleted:
            # A pool in use is held by its finalizer, so the pool of this case is gone at once.
            free = json.dumps(dict(metadata=dict(finalizers=None))).encode()
            request('PATCH', word, free, {'Content-Type': 'application/merge-patch+json'})
            Handler.is_deleted = request('DELETE', word)[0] == 200
        self.send_response(status)
        self.send_header('Content-Type', kind)
        self.send_header('Content-Length', str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = forward
http.server.ThreadingHTTPServer(('127.0.0.1', int(port)), Handler).serve_forever()
";

/// Starts a proxy with this effect on the first node, and runs the import through it.
#[track_caller]
fn import_through_proxy(nodes: &Nodes, port: u16, [effect, word]: [&str; 2]) -> Finished {
    let (kube, machine) = (&nodes.kube, &nodes.machine);
    let server = rig::kube::SERVER.strip_prefix("https://").expect("a URL");
    let files = ["ca.crt", "admin.crt", "admin.key"].map(|file| kube.pki(file));
    let (service, number) = (format!("proxy-{port}"), port.to_string());
    let line = ["python3", "-c", FAULTY_PROXY, &number, server].into_iter();
    let line = line.chain(files.iter().map(String::as_str));
    machine.start(&service, line.chain([effect, word]));
    let listens = || machine.run(["ss", "-Hltn"]).contains(&format!(":{port} ")).then_some(());
    machine.wait(&service, "listens", listens);
    let configuration = json!({ "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "contexts": [{ "name": "it", "context": { "cluster": "it", "user": "it" } }],
        "clusters": [{ "name": "it", "cluster": { "server": format!("http://127.0.0.1:{port}") } }],
        "users": [{ "name": "it", "user": {} }] });
    let path = format!("/run/through-{service}");
    machine.write(&path, configuration.to_string());
    let program = testkit::binary("weft");
    let import = machine.command(text(&program)).env("KUBECONFIG", &path);
    import.args(["import", "whereabouts", "--apply"]).finish()
}

#[test]
fn import_whereabouts_refuses_addresses_of_a_changed_pool() {
    let nodes = nodes!(1);
    prepare(&nodes, "10.76.0.0/24");
    let _ = plain_pod(&nodes, "web-0", 0);
    let entry = json!({ "id": "c", "podref": "blue/web-0", "ifname": "eth0" });
    pool(&nodes, "kube-system", "10.76.0.0/24", &json!({ "5": entry }));
    let effect = ["delete", "/apis/weft.dev/v1alpha1/ippools/10.76.0.0-24"];
    let refused = import_through_proxy(&nodes, 8099, effect);
    assert_eq!(refused.code, Some(1), "{refused}");
    assert!(refused.stdout.contains("its pool was changed concurrently; run the command again"), "{refused}");
    assert_eq!(nodes.blocks(), [] as [Value; 0], "the refused address has no object");
    // The next run creates the pool again.
    weft(&nodes, &["import", "whereabouts", "--apply"]).success();
    let kept: Vec<Value> = nodes.blocks().iter().map(|block| block["spec"]["range"].clone()).collect();
    assert_eq!(kept, [json!("10.76.0.5/32")]);
}

#[test]
fn import_whereabouts_continues_after_a_failed_address() {
    let nodes = nodes!(1);
    prepare(&nodes, "10.77.0.0/24");
    let mut allocations = json!({});
    for number in 5..11 {
        let _ = plain_pod(&nodes, &format!("web-{number}"), 0);
        allocations[number.to_string()] =
            json!({ "id": format!("c{number}"), "podref": format!("blue/web-{number}"), "ifname": "eth0" });
    }
    pool(&nodes, "kube-system", "10.77.0.0/24", &allocations);
    let count = |finished: &Finished, outcome: &str| {
        finished.stdout.lines().filter(|line| line.contains(outcome)).count()
    };
    // No object can be created: the import gives up, and names each address.
    let down = import_through_proxy(&nodes, 8098, ["fail", "10.77.0"]);
    assert_eq!(down.code, Some(1), "{down}");
    assert_eq!((count(&down, "failed: "), count(&down, "not tried: ")), (3, 3), "{down}");
    assert!(down.stdout.contains("storage is full"), "{down}");
    assert!(down.stderr.contains("6 of 6 addresses were not kept: 3 failed, 3 were not tried"), "{down}");
    assert_eq!(nodes.blocks(), [] as [Value; 0]);
    // One object cannot be created: all others are.
    let some = import_through_proxy(&nodes, 8099, ["fail", "10.77.0.6-32"]);
    assert_eq!((some.code, count(&some, "failed: ")), (Some(1), 1), "{some}");
    assert_eq!(count(&some, "kept in pool 10.77.0.0-24"), 5, "{some}");
    assert!(some.stderr.contains("run the command again"), "{some}");
    let labels = &nodes.kube.json(["ippool", "10.77.0.0-24"])["metadata"]["labels"];
    assert!(labels["weft.dev/imported"].is_string(), "{labels}");
    // A repeated run completes the import.
    let rest = weft(&nodes, &["import", "whereabouts", "--apply"]).success();
    assert_eq!((count(&rest, "kept in pool"), nodes.blocks().len()), (6, 6), "{rest}");
}

#[test]
fn import_whereabouts_makes_no_pool_inside_a_range_that_failed() {
    let nodes = nodes!(1);
    prepare(&nodes, "10.78.0.0/24");
    for (number, range) in [(40, "10.78.0.0/24"), (5, "10.78.0.16/28")] {
        let _ = plain_pod(&nodes, &format!("web-{number}"), 0);
        let entry =
            json!({ "id": format!("c{number}"), "podref": format!("blue/web-{number}"), "ifname": "eth0" });
        pool(&nodes, "kube-system", range, &json!({ number.to_string(): entry }));
    }
    let failed = import_through_proxy(&nodes, 8098, ["fail-pool", "10.78.0.0-24"]);
    assert_eq!(failed.code, Some(1), "{failed}");
    assert!(failed.stdout.contains("the pool of range 10.78.0.0/24 around it: "), "{failed}");
    let pools = || {
        let all = nodes.kube.json(["ippools.weft.dev"])["items"].clone();
        all.as_array()
            .expect("a list")
            .iter()
            .map(|pool| pool["metadata"]["name"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(pools(), [] as [Value; 0]);
    // A repeated run keeps both addresses in one pool.
    weft(&nodes, &["import", "whereabouts", "--apply"]).success();
    assert_eq!(pools(), ["10.78.0.0-24"]);
    let kept: std::collections::BTreeSet<String> = nodes
        .blocks()
        .iter()
        .map(|block| block["spec"]["range"].as_str().expect("a range").to_owned())
        .collect();
    assert_eq!(kept, ["10.78.0.21/32", "10.78.0.40/32"].map(str::to_owned).into());
}
