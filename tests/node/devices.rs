//! Devices of a real kubelet: a device plugin tells it of some, a pod asks for one, and the network gets that one.
//!
//! ```text
//!   device plugin ◄── Allocate ── kubelet ── PodResources ──► agent ── plan ──► weft-cni ──► plugin (deviceID)
//! ```
//!
//! The same with a driver of Dynamic Resource Allocation, whose devices the scheduler allocates to ResourceClaims.
//!
//! Source: kubelet device plugins v1beta1, dra v1, PodResources v1; the standard's `k8s.v1.cni.cncf.io/resourceName`.

use std::path::Path;

use rig::Node;
use rig::parts::{parts, text};
use serde_json::{Value, json};
use testkit::{Call, Feature, Host, host, workspace};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const RESOURCE: &str = "example.com/nic";
const DEVICES: [&str; 2] = ["0000:00:1e.1", "0000:00:1e.2"];

/// A driver of Dynamic Resource Allocation, and its devices as plugins know them; the last one is of all nodes.
const DRIVER: &str = "nic.example.com";
const NICS: [&str; 4] = ["0000:00:1f.1", "0000:00:1f.2", "0000:00:1f.3", "fabric-7"];
/// The version of Kubernetes, 1.x, from which on this is there for everybody.
const DYNAMIC_MINOR: u32 = 34;

/// A node with weft in one of its ways, and a network whose plugin writes down what it is told.
fn prepare(node: &Node, way: &str) {
    node.run(["mkdir", "-p", "/opt/cni/bin"]);
    for plugin in ["bridge", "host-local", "loopback"] {
        node.run(["ln", "-s", &format!("/usr/lib/cni/{plugin}"), &format!("/opt/cni/bin/{plugin}")]);
    }
    node.write(
        "/etc/cni/net.d/10-default.conflist",
        rig::in_version(&rig::cluster::bridge("default", 1), "1.0.0").to_string(),
    );
    node.import_weft();
    node.apply_weft_as(way);
    node.until_weft_is_installed();
    node.install(&testkit::binary("weft-test-plugin"), &["one"]);
    node.write(rig::cluster::RECORD, "");
    let mut config = rig::in_version(&rig::cluster::recording("fast", "one", &json!({})), "1.0.0");
    config["plugins"][0]["capabilities"] = json!({ "deviceID": true });
    let definition = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "fast", "namespace": "default", "annotations": { "k8s.v1.cni.cncf.io/resourceName": RESOURCE } },
        "spec": { "config": config.to_string() },
    });
    node.kube().apply(&definition.to_string());
}

/// Two devices of a device plugin.
fn start_device_plugin(node: &Node, client: &Path) {
    let (interpreter, script) = (client.join("bin/python"), workspace().join("lanes/node/device-plugin"));
    let path = format!("PYTHONPATH={}", text(client));
    let line = ["env", &path, text(&interpreter), text(&script), RESOURCE].into_iter().chain(DEVICES);
    node.machine().start("device-plugin", line);
    node.until("the node has devices", || {
        let found = node.kube().json(["node", rig::node::NAME]);
        (found["status"]["allocatable"][RESOURCE] == "2").then_some(())
    });
}

/// A device as its driver publishes it.
fn published(name: &str, kind: &str, id: Option<&str>) -> Value {
    let mut attributes = json!({ "kind": { "string": kind } });
    if let Some(id) = id {
        attributes["k8s.cni.cncf.io/resourceName"] = json!({ "string": RESOURCE });
        attributes["k8s.cni.cncf.io/deviceID"] = json!({ "string": id });
    }
    json!({ "name": name, "attributes": attributes })
}

/// Three devices of the node and one of all nodes that networks can ask for, and one that they cannot.
fn slices() -> Value {
    let slice = |pool: &str, devices: Value| {
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": { "name": pool },
            "spec": { "driver": DRIVER, "devices": devices,
                      "pool": { "name": pool, "generation": 1, "resourceSliceCount": 1 } },
        })
    };
    let nic = |index: usize, kind: &str| published(&format!("nic-{index}"), kind, Some(NICS[index]));
    let of_node = json!([published("clock", "clock", None), nic(0, "nic"), nic(1, "nic"), nic(2, "nic")]);
    let mut of_node = slice(rig::node::NAME, of_node);
    of_node["spec"]["nodeName"] = json!(rig::node::NAME);
    let mut of_all = slice("fabric", json!([nic(3, "fabric")]));
    of_all["spec"]["allNodes"] = json!(true);
    json!({ "apiVersion": "v1", "kind": "List", "items": [of_node, of_all] })
}

/// A driver with its devices, and templates of claims for them.
fn start_driver(node: &Node, client: &Path) {
    let class = |kind: &str| {
        let expression =
            format!("device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].kind == '{kind}'");
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": { "name": kind },
            "spec": { "selectors": [{ "cel": { "expression": expression } }] },
        })
    };
    let mut nics = class("nic");
    nics["spec"]["extendedResourceName"] = json!("example.com/extended");
    let claim = |name: &str, class: &str, count: usize| {
        let request = json!({ "name": "r", "exactly": { "deviceClassName": class, "count": count } });
        json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
            "metadata": { "name": name, "namespace": "default" },
            "spec": { "spec": { "devices": { "requests": [request] } } },
        })
    };
    let single = ["nic", "fabric", "clock"].map(|class| claim(class, class, 1));
    for object in [nics, class("fabric"), class("clock"), claim("two", "nic", 2)].iter().chain(&single) {
        node.kube().apply(&object.to_string());
    }
    let (interpreter, script) = (client.join("bin/python"), workspace().join("lanes/node/dra-driver"));
    let (path, admin) =
        (format!("PYTHONPATH={}", text(client)), format!("KUBECONFIG={}", node.kube().admin()));
    let (kubectl, slices) = (node.kube().program("kubectl"), slices().to_string());
    let line = ["env", &path, &admin, text(&interpreter), text(&script), &kubectl, DRIVER, &slices];
    node.machine().start("dra-driver", line);
    node.until("the devices are published", || {
        node.machine().log("dra-driver").contains("published").then_some(())
    });
}

/// A pod that selects networks.
fn selecting(name: &str, networks: &str) -> Value {
    let container = json!({
        "name": "shell", "image": "busybox", "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "trap exit TERM; while :; do sleep 1 & wait; done"],
    });
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default", "annotations": { NETWORKS: networks } },
        "spec": { "containers": [container], "terminationGracePeriodSeconds": 1 },
    })
}

/// Makes a pod that asks for so many devices of a resource.
fn pod_of(node: &Node, name: &str, networks: &str, (resource, devices): (&str, usize)) {
    let mut pod = selecting(name, networks);
    if devices > 0 {
        pod["spec"]["containers"][0]["resources"] = json!({ "limits": { resource: devices } });
    }
    node.kube().apply(&pod.to_string());
}

/// Makes a pod that asks for so many devices.
fn pod(node: &Node, name: &str, networks: &str, devices: usize) {
    pod_of(node, name, networks, (RESOURCE, devices));
}

/// Makes a pod with a claim of a template, which a container uses or none.
fn claiming(node: &Node, name: &str, networks: &str, (template, used): (&str, bool)) {
    let mut pod = selecting(name, networks);
    pod["spec"]["resourceClaims"] = json!([{ "name": "nic", "resourceClaimTemplateName": template }]);
    if used {
        pod["spec"]["containers"][0]["resources"] = json!({ "claims": [{ "name": "nic" }] });
    }
    node.kube().apply(&pod.to_string());
}

/// Ends pods, at once.
fn end(node: &Node, names: &[&str]) {
    for name in names {
        let line = ["delete", "pod", "-n", "default", name, "--wait=false", "--grace-period=0", "--force"];
        node.kube().kubectl(line);
    }
}

/// What plugins know the devices by that the claims of a pod were allocated.
fn allocated(node: &Node, pod: &str) -> Vec<String> {
    let claims = node.kube().json(["resourceclaims", "-n", "default"]);
    let of_pod = claims["items"]
        .as_array()
        .expect("claims")
        .iter()
        .filter(|claim| claim["status"]["reservedFor"][0]["name"] == pod);
    let results = of_pod.flat_map(|claim| {
        claim["status"]["allocation"]["devices"]["results"].as_array().cloned().unwrap_or_default()
    });
    let index = |result: Value| result["device"].as_str()?.strip_prefix("nic-")?.parse::<usize>().ok();
    results.map(|result| NICS[index(result).expect("nic-INDEX")].to_owned()).collect()
}

/// The devices that the recording plugin was given for a pod, by `verb`.
fn given(node: &Node, pod: &str, verb: &str) -> Vec<String> {
    let record = node.read(rig::cluster::RECORD).unwrap_or_default();
    let calls = record.lines().map(|line| serde_json::from_str::<Call>(line).expect("a record"));
    let of_pod = calls.filter(|call| {
        call.command == verb && call.environment("CNI_ARGS").contains(&format!("K8S_POD_NAME={pod}"))
    });
    let device =
        |call: Call| call.config()["runtimeConfig"]["deviceID"].as_str().unwrap_or_default().to_owned();
    of_pod.map(device).collect()
}

/// Waits for an event of a pod with these words.
#[track_caller]
fn until_told(node: &Node, pod: &str, words: &[&str]) {
    node.until(&format!("{pod} is refused: {words:?}"), || {
        let events = node.kube().json(["events", "-n", "default"]);
        let fits = |event: &Value| {
            let message = event["message"].as_str().unwrap_or_default();
            event["reason"] == "FailedCreatePodSandBox"
                && event["involvedObject"]["name"] == pod
                && words.iter().all(|word| message.contains(word))
        };
        events["items"].as_array()?.iter().any(fits).then_some(())
    });
}

#[test]
fn a_network_gets_the_device_that_the_kubelet_gave_to_the_pod_and_no_other() {
    let host = host!(Feature::Bridge, Feature::Veth, Feature::GoPlugins);
    let Some(client) = parts("python-client") else { return };
    let Some(node) = Node::new(host) else { return };
    prepare(&node, "hot-plug");
    start_device_plugin(&node, &client);
    pod(&node, "one", "fast", 1);
    node.until_pods_ready(["-n", "default", "one"]);
    let of_kubelet = node.exec("default", "one", ["sh", "-c", "echo $DEVICES"]).success().stdout;
    assert_eq!(given(&node, "one", "ADD"), [of_kubelet.trim()]);
    // Nobody gave it one: it is not the one that is left.
    pod(&node, "none", "fast", 0);
    until_told(&node, "none", &[RESOURCE, "default/fast"]);
    // One device, and two networks that want one each.
    pod(&node, "half", "fast,fast", 1);
    until_told(&node, "half", &[RESOURCE]);
    for name in ["none", "half"] {
        assert_eq!(given(&node, name, "ADD"), [""; 0], "{name}");
    }
    end(&node, &["none", "half"]);
    node.kube().kubectl(["delete", "pod", "-n", "default", "one", "--wait=false", "--grace-period=1"]);
    node.until_no_pod_runs();
    assert_eq!(given(&node, "one", "DEL"), [of_kubelet.trim()]);
    // Both of them.
    pod(&node, "two", "fast,fast", 2);
    node.until_pods_ready(["-n", "default", "two"]);
    let mut both = given(&node, "two", "ADD");
    both.sort();
    assert_eq!(both, DEVICES);
    // An agent that comes looks at every pod anew; the kubelet tells its devices in another order each time.
    let agent = || {
        let agents = ["pods", "-n", "kube-system", "-l", "app.kubernetes.io/component=agent"];
        let pods = node.kube().json(agents)["items"].take();
        let ready = |pod: &&Value| pod["status"]["containerStatuses"][0]["ready"] == true;
        pods.as_array()?.iter().find(ready)?["metadata"]["name"].as_str().map(str::to_owned)
    };
    for round in 0..3 {
        let old = agent().expect("an agent");
        node.kube().kubectl(["delete", "pod", "-n", "kube-system", &old, "--wait=false"]);
        node.until("another agent is ready", || agent().filter(|name| *name != old));
        std::thread::sleep(std::time::Duration::from_secs(3));
        assert_eq!((given(&node, "two", "DEL").len(), given(&node, "two", "ADD").len()), (0, 2), "{round}");
    }
}

/// A node with weft and a driver; nothing, and the test is skipped, where Kubernetes is too old.
#[track_caller]
fn with_driver(host: Host, way: &str) -> Option<Node> {
    let client = parts("python-client")?;
    let node = Node::new(host)?;
    if node.kube().minor() < DYNAMIC_MINOR {
        let why = format!("Kubernetes 1.{DYNAMIC_MINOR} or newer is not there: KUBEBUILDER_ASSETS");
        testkit::record_skip(&testkit::test_name(), &why);
        return None;
    }
    prepare(&node, way);
    start_driver(&node, &client);
    Some(node)
}

#[test]
fn a_network_gets_the_device_that_a_claim_of_the_pod_was_allocated_and_no_other() {
    let host = host!(Feature::Bridge, Feature::Veth, Feature::GoPlugins);
    let Some(node) = with_driver(host, "base") else { return };
    // The kubelet tells of the first; of the second, which no container uses, only the API does; the third is a
    // resource by its old name; the last is in no slice of this node.
    claiming(&node, "used", "fast", ("nic", true));
    claiming(&node, "unused", "fast", ("nic", false));
    pod_of(&node, "extended", "fast", ("example.com/extended", 1));
    claiming(&node, "fabric", "fast", ("fabric", true));
    let names = ["used", "unused", "extended", "fabric"];
    node.until_pods_ready(["-n", "default"].into_iter().chain(names));
    for name in names {
        let devices = given(&node, name, "ADD");
        assert_eq!((devices.len(), &devices), (1, &allocated(&node, name)), "{name}");
    }
    // It has a claim, of something else.
    claiming(&node, "clock", "fast", ("clock", true));
    until_told(&node, "clock", &[RESOURCE, "default/fast"]);
    assert_eq!(given(&node, "clock", "ADD"), [""; 0]);
    end(&node, &["clock"]);
    for name in names {
        node.kube().kubectl(["delete", "pod", "-n", "default", name, "--wait=false", "--grace-period=1"]);
    }
    node.until_no_pod_runs();
    for name in names {
        assert_eq!(given(&node, name, "DEL"), given(&node, name, "ADD"), "{name}");
    }
    // Two of one claim, in its order.
    claiming(&node, "two", "fast,fast", ("two", true));
    node.until_pods_ready(["-n", "default", "two"]);
    let devices = given(&node, "two", "ADD");
    assert_eq!((devices.len(), &devices), (2, &allocated(&node, "two")));
}

#[test]
fn without_an_agent_a_network_gets_the_device_that_a_claim_of_the_pod_was_allocated() {
    let host = host!(Feature::Bridge, Feature::Veth, Feature::GoPlugins);
    let Some(node) = with_driver(host, "thin") else { return };
    claiming(&node, "used", "fast", ("nic", true));
    claiming(&node, "unused", "fast", ("fabric", false));
    node.until_pods_ready(["-n", "default", "used", "unused"]);
    for name in ["used", "unused"] {
        let devices = given(&node, name, "ADD");
        assert_eq!((devices.len(), &devices), (1, &allocated(&node, name)), "{name}");
    }
}
