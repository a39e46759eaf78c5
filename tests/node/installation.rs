//! Installs weft on a node in use, replaces it and removes it while pods run.
//!
//! ```text
//!   containerd ── default network ── pods │ + weft ── pods │ another weft ── pods │ default network ── pods
//! ```
//!
//! Source: multi-network specification (NPWG), section 6.1; `docs/installation.md`, `docs/operations.md` ("Update", "Remove").

use rig::Node;
use rig::installation::INSTALLED;
use rig::parts::text;
use serde_json::{Value, json};
use testkit::{Feature, host};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
/// Another project's configuration for the default network.
const DEFAULT: &str = "/etc/cni/net.d/10-default.conflist";
/// Service that removes weft.
const REMOVAL: &str = "removal";

/// Starts a node with the default network of another project and the image of weft.
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
        // Some installers leave directories that do not belong to root.
        node.run(["chown", "1000", "/opt/cni/bin", "/etc/cni/net.d"]);
        node.until_ready(true);
        node
    }};
}

/// Network of the reference plugins.
fn network(name: &str, subnet: u8) -> Value {
    let ranges = json!([[{ "subnet": format!("10.{subnet}.0.0/24") }]]);
    let ipam = json!({ "type": "host-local", "ranges": ranges, "routes": [{ "dst": "0.0.0.0/0" }] });
    let bridge = format!("br-{name}");
    let plugin = json!({ "type": "bridge", "bridge": bridge, "isGateway": true, "ipam": ipam });
    json!({ "cniVersion": "1.0.0", "name": name, "plugins": [plugin] })
}

/// Creates the network `red`, which pods select.
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

/// Creates a pod that selects `red`, whether or not weft is installed; waits until it is ready.
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

/// Interfaces of a pod.
#[track_caller]
fn links_of(node: &Node, pod: &str) -> Vec<String> {
    node.addresses("default", pod).into_iter().map(|(link, _)| link).collect()
}

/// Held addresses of a network.
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
fn install_and_remove_on_a_node_in_use_leave_nothing() {
    let node = node!();
    let weft = testkit::binary("weft");
    // The runtime attaches it without weft; weft is called for its DEL.
    pod(&node, "early");
    assert_eq!(links_of(&node, "early"), ["eth0"]);
    node.apply_weft();
    node.until_weft_is_installed();
    define_red(&node);
    pod(&node, "web");
    assert_eq!(links_of(&node, "web"), ["eth0", "net1"]);
    node.assert_pings("default", "early", "web");
    until_held(&node, "default", 2);
    // Only the agent can report the missing network.
    node.until("the missing networks are reported", || {
        let events = node.kube().json(["events", "-n", "default"]);
        let missing = events["items"].as_array()?.iter().filter(|event| event["reason"] == "NetworksMissing");
        let of: Vec<&str> = missing.filter_map(|event| event["involvedObject"]["name"].as_str()).collect();
        (!of.is_empty()).then(|| assert_eq!(of, ["early"]))
    });
    delete(&node, "early");
    until_held(&node, "default", 1);
    let known = "ls /var/lib/cni/results | grep -c '^default-' || true";
    assert_eq!(node.run(["sh", "-c", known]).trim(), "0", "no cached result remains");

    // After the removal, new pods have the default network; earlier pods keep their networks.
    let refused = node.attempt([text(&weft), "install", "--remove"]);
    assert_eq!(refused.code, Some(1), "{refused}");
    assert!(refused.stderr.contains("1 sandbox") && refused.stderr.contains("--wait"), "{refused}");
    assert!(node.read(INSTALLED).is_some());
    node.machine().start(REMOVAL, [text(&weft), "install", "--remove", "--wait"]);
    node.until("the configuration is removed", || node.read(INSTALLED).is_none().then_some(()));
    node.containerd().until_configured(&node.read(DEFAULT).expect("the default network"));
    node.until_ready(true);
    pod(&node, "late");
    assert_eq!(links_of(&node, "late"), ["eth0"]);
    assert_eq!(links_of(&node, "web"), ["eth0", "net1"]);
    node.assert_pings("default", "web", "late");
    assert!(node.machine().is_running(REMOVAL), "{}", node.machine().log(REMOVAL));
    delete(&node, "web");
    node.until("the removal ends", || (!node.machine().is_running(REMOVAL)).then_some(()));
    let log = node.machine().log(REMOVAL);
    assert!(log.contains("no remaining sandboxes"), "{log}");
    assert_eq!((held(&node, "red").len(), held(&node, "default").len()), (0, 1));
    node.kube().kubectl(["delete", "-k", text(&testkit::workspace().join("deploy/base"))]);

    // weft is installed again, while a pod from the time between runs.
    node.apply_weft();
    node.until_weft_is_installed();
    pod(&node, "again");
    assert_eq!(links_of(&node, "again"), ["eth0", "net1"]);
    delete(&node, "late");
    delete(&node, "again");
    node.until_no_pod_runs();
    assert_eq!((held(&node, "red").len(), held(&node, "default").len()), (0, 0));
}

/// Log of a container.
fn log_of(node: &Node, label: &str, container: &str) -> String {
    let words = ["logs", "-n", "kube-system", "-l", label, "-c", container];
    node.kube().attempt(words, "").stdout
}

/// Has the program `weft` installed on the node, as `deploy/components/command` does.
#[track_caller]
fn install_command(node: &Node, directory: &str) {
    let patch = testkit::workspace().join("deploy/components/command/agent.yaml");
    let patch = std::fs::read_to_string(patch).expect("a patch").replace("/usr/local/bin", directory);
    let words = ["patch", "daemonset", "weft-agent", "-n", "kube-system", "--type=json", "-p", &patch];
    node.kube().kubectl(words);
    node.until_weft_is_installed();
    node.until("the command is installed", || {
        node.attempt(["test", "-x", &format!("{directory}/weft")]).code.filter(|code| *code == 0)
    });
    node.until_agent_is_ready();
}

#[test]
fn removal_daemonset_waits_for_pods_and_leaves_nothing() {
    let node = node!();
    // Copies of the reference plugins under names that weft does not provide: they use the node's iptables.
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
    install_command(&node, "/run/tools");
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
    let written = node.read(INSTALLED).expect("the configuration");
    let deploy = testkit::workspace().join("deploy");
    let [base, removal] = ["base", "removal"].map(|variant| deploy.join(variant));
    node.kube().kubectl(["apply", "-k", text(&removal)]);
    node.kube().kubectl(["delete", "-k", text(&base)]);
    node.until("the configuration is removed", || node.read(INSTALLED).is_none().then_some(()));
    node.containerd().until_configured(&node.read(DEFAULT).expect("the default network"));
    node.until_ready(true);
    // The earlier pod keeps its networks, and the removal waits for it.
    pod(&node, "late");
    assert_eq!(links_of(&node, "late"), ["eth0"]);
    node.assert_pings("default", "web", "late");
    let label = "app.kubernetes.io/component=removal";
    node.until("the removal waits", || {
        log_of(&node, label, "remove").contains("waiting for 1 sandbox").then_some(())
    });
    assert_eq!(node.run(["ls", "/run/tools"]), "", "the command is removed at once");
    let set = || node.kube().json(["daemonset", "-n", "kube-system", "weft-removal"]);
    assert_eq!(set()["status"]["numberReady"], 0);
    delete(&node, "web");
    node.until("the removal is complete", || (set()["status"]["numberReady"] == 1).then_some(()));
    assert_eq!((held(&node, "red").len(), held(&node, "default").len()), (0, 1));
    assert!(!rules().contains(&sandbox) && !rules().contains("CNI-DN-"), "{}", rules());
    assert!(log_of(&node, label, "stay").contains("no remaining sandboxes"));
    // The configuration is written again while the removal runs: its container reports that and ends.
    node.write(INSTALLED, written);
    node.until("the conflict is reported", || {
        let words = ["logs", "-n", "kube-system", "-l", label, "-c", "stay", "--previous"];
        node.kube().attempt(words, "").stdout.contains("another installer has written it again").then_some(())
    });
    node.until("the configuration is removed again", || node.read(INSTALLED).is_none().then_some(()));
    node.kube().kubectl(["delete", "-k", text(&removal)]);
    delete(&node, "late");
    node.until_no_pod_runs();
    assert_eq!(held(&node, "default"), [""; 0]);
}

/// Scales the pods that select `red`.
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

/// Adds the follower container to the agent's pod, as the chart does.
#[track_caller]
fn follow(node: &Node) {
    let agent = node.kube().json(["daemonset", "-n", "kube-system", "weft-agent"]);
    let mut follow = agent["spec"]["template"]["spec"]["initContainers"][0].clone();
    follow["name"] = "follow".into();
    follow["command"] = json!(["/weft", "install", "--wait", "--follow"]);
    let patch = json!([{ "op": "add", "path": "/spec/template/spec/containers/-", "value": follow }]);
    let words = ["patch", "daemonset", "weft-agent", "-n", "kube-system", "--type=json", "-p"];
    node.kube().kubectl(words.into_iter().chain([patch.to_string().as_str()]));
    node.until("the follower is ready", || {
        let pods = node.kube().json(["pods", "-n", "kube-system", "-l", "app.kubernetes.io/name=weft"]);
        let containers = pods["items"][0]["status"]["containerStatuses"].as_array()?;
        (containers.len() == 2 && containers.iter().all(|one| one["ready"] == true)).then_some(())
    });
}

#[test]
fn upgrade_disturbs_no_pod_and_follows_the_default_network() {
    const PODS: usize = 10;
    let node = node!();
    node.import_weft_as("0.1.1");
    node.apply_weft();
    node.until_weft_is_installed();
    define_red(&node);
    scale(&node, PODS / 2);
    until_all_are_ready(&node, PODS / 2);
    let addresses = node.addresses("default", "many-0");
    assert_eq!(addresses.len(), 2);
    // Program and agent are replaced while half of the pods start.
    scale(&node, PODS);
    let images = ["install=ghcr.io/weft-net/weft:0.1.1", "agent=ghcr.io/weft-net/weft:0.1.1"];
    let words = ["set", "image", "daemonset", "weft-agent", "-n", "kube-system"];
    node.kube().kubectl(words.into_iter().chain(images));
    until_all_are_ready(&node, PODS);
    node.until("the program is replaced", || {
        let end = node.run(["tail", "-c", "5", "/opt/cni/bin/weft-cni"]);
        (end == "0.1.1").then_some(())
    });
    node.until_agent_is_ready();
    assert_eq!(node.addresses("default", "many-0"), addresses, "addresses are unchanged");
    node.assert_pings("default", "many-0", &format!("many-{}", PODS - 1));
    node.until("every pod has its network-status", || {
        let pods = node.kube().json(["pods", "-n", "default", "-l", "app=many"]);
        let has_status = |pod: &Value| pod["metadata"]["annotations"][STATUS].is_string();
        pods["items"].as_array()?.iter().all(has_status).then_some(())
    });

    // The file of the default network is renamed.
    follow(&node);
    let renamed = DEFAULT.replace("10-", "20-");
    node.run(["mv", DEFAULT, &renamed]);
    let written = node.until("the configuration names the file", || {
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
fn thin_node_plans_with_the_installed_credentials() {
    let node = node!();
    node.apply_weft_as("thin");
    node.until_weft_is_installed();
    define_red(&node);
    let credentials = "/etc/cni/net.d/weft.d/kubeconfig";
    assert_eq!(node.run(["stat", "-c", "%a %u", credentials]).trim(), "600 0");
    assert!(node.read("/run/weft/agent.sock").is_none(), "no agent runs");
    pod(&node, "web");
    assert_eq!(links_of(&node, "web"), ["eth0", "net1"]);
    let status: Vec<Value> = node.until("network-status", || {
        let pod = node.kube().json(["pod", "-n", "default", "web"]);
        serde_json::from_str(pod["metadata"]["annotations"][STATUS].as_str()?).ok()
    });
    assert_eq!(status[1]["name"], "default/red");
    // The credentials are deleted by mistake: they are written again, as a rotated token is.
    node.run(["rm", credentials]);
    node.until("the credentials are written again", || {
        node.read(credentials).filter(|text| text.contains("token"))
    });
    delete(&node, "web");
    node.until_no_pod_runs();
    assert_eq!((held(&node, "red").len(), held(&node, "default").len()), (0, 0));
}
