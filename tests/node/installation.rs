//! Weft comes to a node that is in use, is replaced under its pods, and goes again while pods of it run.
//!
//! ```text
//!   containerd ── default network ── pods │ + weft ── pods │ another weft ── pods │ default network ── pods
//! ```
//!
//! Source: the standard, 6.1; `docs/installation.md`, `docs/operations.md` («Update», «Remove»).

use rig::Node;
use rig::installation::INSTALLED;
use rig::parts::text;
use serde_json::{Value, json};
use testkit::{Feature, host};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
/// Somebody else's default network.
const DEFAULT: &str = "/etc/cni/net.d/10-default.conflist";
/// What takes weft away.
const REMOVAL: &str = "removal";

/// A node whose default network is somebody else's, with the image of weft.
macro_rules! node {
    () => {{
        let host = host!(Feature::Bridge, Feature::Veth, Feature::GoPlugins);
        let Some(node) = Node::new(host) else { return };
        node.import_weft();
        node.run(["mkdir", "-p", "/opt/cni/bin"]);
        for plugin in ["bridge", "host-local", "loopback"] {
            node.run(["ln", "-s", &format!("/usr/lib/cni/{plugin}"), &format!("/opt/cni/bin/{plugin}")]);
        }
        node.write(DEFAULT, network("default", 1).to_string());
        // As some installers have it: the directories are not root's.
        node.run(["chown", "1000", "/opt/cni/bin", "/etc/cni/net.d"]);
        node.until_ready(true);
        node
    }};
}

/// A network by the reference plugins.
fn network(name: &str, subnet: u8) -> Value {
    let ranges = json!([[{ "subnet": format!("10.{subnet}.0.0/24") }]]);
    let ipam = json!({ "type": "host-local", "ranges": ranges, "routes": [{ "dst": "0.0.0.0/0" }] });
    let bridge = format!("br-{name}");
    let plugin = json!({ "type": "bridge", "bridge": bridge, "isGateway": true, "ipam": ipam });
    json!({ "cniVersion": "1.0.0", "name": name, "plugins": [plugin] })
}

/// Defines the network `red`, which pods select.
fn define_red(node: &Node) {
    let mut red = network("red", 2);
    red["plugins"][0]["ipam"].as_object_mut().expect("a map").remove("routes");
    let definition = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "red", "namespace": "default" }, "spec": { "config": red.to_string() },
    });
    node.kube().apply(&definition.to_string());
}

fn template(networks: &str) -> Value {
    let container = json!({
        "name": "shell", "image": "busybox", "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "trap exit TERM; while :; do sleep 1 & wait; done"],
    });
    json!({
        "metadata": { "labels": { "app": "many" }, "annotations": { NETWORKS: networks } },
        "spec": { "containers": [container], "terminationGracePeriodSeconds": 1 },
    })
}

/// Makes a pod that selects `red`, whoever hears of it; waits until it is ready.
#[track_caller]
fn pod(node: &Node, name: &str) {
    let mut pod = template("red");
    (pod["apiVersion"], pod["kind"]) = (json!("v1"), json!("Pod"));
    (pod["metadata"]["name"], pod["metadata"]["namespace"]) = (json!(name), json!("default"));
    node.kube().apply(&pod.to_string());
    node.until_pods_ready(["-n", "default", name]);
}

#[track_caller]
fn delete(node: &Node, name: &str) {
    node.kube().kubectl(["delete", "pod", "-n", "default", name, "--wait=false", "--grace-period=1"]);
}

/// The interfaces of a pod.
#[track_caller]
fn links_of(node: &Node, pod: &str) -> Vec<String> {
    node.addresses("default", pod).into_iter().map(|(link, _)| link).collect()
}

/// The addresses that are held in a network.
fn held(node: &Node, network: &str) -> Vec<String> {
    let all = node.attempt(["ls", &format!("/var/lib/cni/networks/{network}")]).stdout;
    all.lines().filter(|name| name.starts_with("10.")).map(str::to_owned).collect()
}

#[track_caller]
fn until_held(node: &Node, network: &str, count: usize) {
    node.until(&format!("{count} addresses of {network} are held"), || {
        (held(node, network).len() == count).then_some(())
    });
}

#[test]
fn a_node_in_use_takes_weft_and_gives_it_back_and_no_pod_leaves_anything() {
    let node = node!();
    let weft = testkit::binary("weft");
    // Attached by the runtime alone; weft is asked for its end.
    pod(&node, "early");
    assert_eq!(links_of(&node, "early"), ["eth0"]);
    node.apply_weft();
    node.until_weft_is_installed();
    define_red(&node);
    pod(&node, "web");
    assert_eq!(links_of(&node, "web"), ["eth0", "net1"]);
    node.assert_pings("default", "early", "web");
    until_held(&node, "default", 2);
    // Nobody but the agent can tell that it lacks something.
    node.until("it is told what early lacks", || {
        let events = node.kube().json(["events", "-n", "default"]);
        let missing = events["items"].as_array()?.iter().filter(|event| event["reason"] == "NetworksMissing");
        let of: Vec<&str> = missing.filter_map(|event| event["involvedObject"]["name"].as_str()).collect();
        (!of.is_empty()).then(|| assert_eq!(of, ["early"]))
    });
    delete(&node, "early");
    until_held(&node, "default", 1);
    let known = "ls /var/lib/cni/results | grep -c '^default-' || true";
    assert_eq!(node.run(["sh", "-c", known]).trim(), "0", "nobody remembers it");

    // Gone at once: pods that are made now have the default network; the one of before keeps what it has.
    let refused = node.attempt([text(&weft), "install", "--remove"]);
    assert_eq!(refused.code, Some(1), "{refused}");
    assert!(refused.stderr.contains("1 sandboxes") && refused.stderr.contains("--wait"), "{refused}");
    assert!(node.read(INSTALLED).is_some());
    node.machine().start(REMOVAL, [text(&weft), "install", "--remove", "--wait"]);
    node.until("the configuration is gone", || node.read(INSTALLED).is_none().then_some(()));
    node.containerd().until_configured(&node.read(DEFAULT).expect("it is there"));
    node.until_ready(true);
    pod(&node, "late");
    assert_eq!(links_of(&node, "late"), ["eth0"]);
    assert_eq!(links_of(&node, "web"), ["eth0", "net1"]);
    node.assert_pings("default", "web", "late");
    assert!(node.machine().lives(REMOVAL), "{}", node.machine().log(REMOVAL));
    delete(&node, "web");
    node.until("what it left is taken down", || (!node.machine().lives(REMOVAL)).then_some(()));
    let said = node.machine().log(REMOVAL);
    assert!(said.contains("no remaining sandboxes"), "{said}");
    assert_eq!((held(&node, "red").len(), held(&node, "default").len()), (0, 1));
    node.kube().kubectl(["delete", "-k", text(&testkit::workspace().join("deploy/base"))]);

    // And anew, with a pod of the time between.
    node.apply_weft();
    node.until_weft_is_installed();
    pod(&node, "again");
    assert_eq!(links_of(&node, "again"), ["eth0", "net1"]);
    delete(&node, "late");
    delete(&node, "again");
    node.until_no_pod_runs();
    assert_eq!((held(&node, "red").len(), held(&node, "default").len()), (0, 0));
}

/// What a pod's container said.
fn said_by(node: &Node, label: &str, container: &str) -> String {
    let words = ["logs", "-n", "kube-system", "-l", label, "-c", container];
    node.kube().attempt(words, "").stdout
}

#[test]
fn weft_is_taken_away_from_every_node_of_a_cluster_as_pods_of_before_go() {
    let node = node!();
    // Plugins of others by names that weft does not have: they run the node's iptables.
    for plugin in ["bridge", "portmap"] {
        node.run(["cp", &format!("/usr/lib/cni/{plugin}"), &format!("/opt/cni/bin/go-{plugin}")]);
    }
    let mut default = network("default", 1);
    default["plugins"][0]["type"] = json!("go-bridge");
    default["plugins"][0]["ipMasq"] = json!(true);
    let ports = json!({ "type": "go-portmap", "capabilities": { "portMappings": true } });
    default["plugins"].as_array_mut().expect("a list").push(ports);
    node.write(DEFAULT, default.to_string());
    node.containerd().until_configured(&default.to_string());
    node.apply_weft();
    node.until_weft_is_installed();
    define_red(&node);
    let mut web = template("red");
    (web["apiVersion"], web["kind"]) = (json!("v1"), json!("Pod"));
    (web["metadata"]["name"], web["metadata"]["namespace"]) = (json!("web"), json!("default"));
    web["spec"]["containers"][0]["ports"] = json!([{ "containerPort": 80, "hostPort": 8080 }]);
    node.kube().apply(&web.to_string());
    node.until_pods_ready(["-n", "default", "web"]);
    let entries = node.run(["ls", "/var/lib/weft/sandboxes"]);
    let sandbox = entries.split('.').next().expect("an entry").to_owned();
    let rules = || node.run(["iptables-save", "-t", "nat"]);
    assert!(rules().contains(&sandbox) && rules().contains("CNI-DN-"), "{}", rules());
    let written = node.read(INSTALLED).expect("it is installed");
    let deploy = testkit::workspace().join("deploy");
    let [base, removal] = ["base", "removal"].map(|way| deploy.join(way));
    node.kube().kubectl(["apply", "-k", text(&removal)]);
    node.kube().kubectl(["delete", "-k", text(&base)]);
    node.until("the configuration is gone", || node.read(INSTALLED).is_none().then_some(()));
    node.containerd().until_configured(&node.read(DEFAULT).expect("it is there"));
    node.until_ready(true);
    // The one of before keeps what it has, and is waited for.
    pod(&node, "late");
    assert_eq!(links_of(&node, "late"), ["eth0"]);
    node.assert_pings("default", "web", "late");
    let label = "app.kubernetes.io/component=removal";
    node.until("it is waited for", || {
        said_by(&node, label, "remove").contains("waiting: 1 sandboxes").then_some(())
    });
    let set = || node.kube().json(["daemonset", "-n", "kube-system", "weft-removal"]);
    assert_eq!(set()["status"]["numberReady"], 0);
    delete(&node, "web");
    node.until("nothing is left", || (set()["status"]["numberReady"] == 1).then_some(()));
    assert_eq!((held(&node, "red").len(), held(&node, "default").len()), (0, 1));
    assert!(!rules().contains(&sandbox) && !rules().contains("CNI-DN-"), "{}", rules());
    assert!(said_by(&node, label, "stay").contains("no remaining sandboxes"));
    // Somebody installs it beside: the two do not work against each other in silence.
    node.write(INSTALLED, written);
    node.until("it is told", || {
        let words = ["logs", "-n", "kube-system", "-l", label, "-c", "stay", "--previous"];
        node.kube().attempt(words, "").stdout.contains("another installer has written it again").then_some(())
    });
    node.until("it is gone again", || node.read(INSTALLED).is_none().then_some(()));
    node.kube().kubectl(["delete", "-k", text(&removal)]);
    delete(&node, "late");
    node.until_no_pod_runs();
    assert_eq!(held(&node, "default"), [""; 0]);
}

/// So many pods that select `red`.
#[track_caller]
fn scale(node: &Node, count: usize) {
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": { "name": "many", "namespace": "default" },
        "spec": {
            "replicas": count, "podManagementPolicy": "Parallel", "serviceName": "many",
            "selector": { "matchLabels": { "app": "many" } }, "template": template("red"),
        },
    });
    node.kube().apply(&set.to_string());
}

#[track_caller]
fn until_all_are_ready(node: &Node, count: usize) {
    node.until("all pods are ready", || {
        let set = node.kube().json(["statefulset", "-n", "default", "many"]);
        (set["status"]["readyReplicas"] == count).then_some(())
    });
}

/// Gives the agent's pod a second container that follows, as the chart has it.
#[track_caller]
fn follow(node: &Node) {
    let agent = node.kube().json(["daemonset", "-n", "kube-system", "weft-agent"]);
    let mut follow = agent["spec"]["template"]["spec"]["initContainers"][0].clone();
    follow["name"] = "follow".into();
    follow["command"] = json!(["/weft", "install", "--wait", "--follow"]);
    let patch = json!([{ "op": "add", "path": "/spec/template/spec/containers/-", "value": follow }]);
    let words = ["patch", "daemonset", "weft-agent", "-n", "kube-system", "--type=json", "-p"];
    node.kube().kubectl(words.into_iter().chain([patch.to_string().as_str()]));
    node.until("it follows", || {
        let pods = node.kube().json(["pods", "-n", "kube-system", "-l", "app.kubernetes.io/name=weft"]);
        let containers = pods["items"][0]["status"]["containerStatuses"].as_array()?;
        (containers.len() == 2 && containers.iter().all(|one| one["ready"] == true)).then_some(())
    });
}

#[test]
fn weft_is_replaced_under_pods_that_run_and_come_and_go_and_follows_the_default_network() {
    const PODS: usize = 10;
    let node = node!();
    node.import_weft_as("0.1.1");
    node.apply_weft();
    node.until_weft_is_installed();
    define_red(&node);
    scale(&node, PODS / 2);
    until_all_are_ready(&node, PODS / 2);
    let had = node.addresses("default", "many-0");
    assert_eq!(had.len(), 2);
    // Another program and another agent, while half of the pods are made.
    scale(&node, PODS);
    let images = ["install=ghcr.io/weft-net/weft:0.1.1", "agent=ghcr.io/weft-net/weft:0.1.1"];
    let words = ["set", "image", "daemonset", "weft-agent", "-n", "kube-system"];
    node.kube().kubectl(words.into_iter().chain(images));
    until_all_are_ready(&node, PODS);
    node.until("the program is the other one", || {
        let end = node.run(["tail", "-c", "5", "/opt/cni/bin/weft-cni"]);
        (end == "0.1.1").then_some(())
    });
    node.until_agent_is_ready();
    assert_eq!(node.addresses("default", "many-0"), had, "nobody noticed");
    node.assert_pings("default", "many-0", &format!("many-{}", PODS - 1));
    node.until("every pod has its network-status", || {
        let pods = node.kube().json(["pods", "-n", "default", "-l", "app=many"]);
        let is_told = |pod: &Value| pod["metadata"]["annotations"][STATUS].is_string();
        pods["items"].as_array()?.iter().all(is_told).then_some(())
    });

    // The default network's file gets another name.
    follow(&node);
    let renamed = DEFAULT.replace("10-", "20-");
    node.run(["mv", DEFAULT, &renamed]);
    let written = node.until("the configuration names it", || {
        node.read(INSTALLED).filter(|written| written.contains(&renamed))
    });
    node.containerd().until_configured(&written);
    node.until_agent_is_ready();
    pod(&node, "after");
    assert_eq!(links_of(&node, "after"), ["eth0", "net1"]);
    delete(&node, "after");
    scale(&node, 0);
    node.until_no_pod_runs();
    assert_eq!((held(&node, "red").len(), held(&node, "default").len()), (0, 0));
}

#[test]
fn a_node_without_an_agent_plans_with_the_credentials_that_were_installed() {
    let node = node!();
    node.apply_weft_as("thin");
    node.until_weft_is_installed();
    define_red(&node);
    let credentials = "/etc/cni/net.d/weft.d/kubeconfig";
    assert_eq!(node.run(["stat", "-c", "%a %u", credentials]).trim(), "600 0");
    assert!(node.read("/run/weft/agent.sock").is_none(), "there is no agent");
    pod(&node, "web");
    assert_eq!(links_of(&node, "web"), ["eth0", "net1"]);
    let status: Vec<Value> = node.until("network-status", || {
        let pod = node.kube().json(["pod", "-n", "default", "web"]);
        serde_json::from_str(pod["metadata"]["annotations"][STATUS].as_str()?).ok()
    });
    assert_eq!(status[1]["name"], "default/red");
    // Somebody's mistake is mended: it is kept as a token is, which is replaced while it is used.
    node.run(["rm", credentials]);
    node.until("the credentials are back", || node.read(credentials).filter(|text| text.contains("token")));
    delete(&node, "web");
    node.until_no_pod_runs();
    assert_eq!((held(&node, "red").len(), held(&node, "default").len()), (0, 0));
}
