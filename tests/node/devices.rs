//! Devices from a real kubelet: a device plugin registers devices, a pod requests one, and the pod's network gets that
//! one.
//!
//! ```text
//!   device plugin ◄── Allocate ── kubelet ── PodResources ──► agent ── plan ──► weft-cni ──► plugin (deviceID)
//! ```
//!
//! The same with a Dynamic Resource Allocation (DRA) driver, whose devices the scheduler allocates to
//! ResourceClaims.
//!
//! Source: kubelet device plugins v1beta1, dra v1, PodResources v1; `k8s.v1.cni.cncf.io/resourceName` of the multi-network
//! specification (NPWG).

use std::path::Path;

use rig::Node;
use rig::parts::{parts, text};
use serde_json::{Value, json};
use testkit::{Call, Feature, Host, host, workspace};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const RESOURCE: &str = "example.com/nic";
const DEVICES: [&str; 2] = ["0000:00:1e.1", "0000:00:1e.2"];

/// DRA driver, and the devices by the ids that plugins use; the last one belongs to all nodes.
const DRIVER: &str = "nic.example.com";
const NICS: [&str; 4] = ["0000:00:1f.1", "0000:00:1f.2", "0000:00:1f.3", "fabric-7"];
/// First minor version of Kubernetes in which DRA is stable.
const DYNAMIC_MINOR: u32 = 34;

/// Installs weft in one of its deployment variants, and a network whose plugin records calls.
fn prepare(node: &Node, variant: &str) {
    node.run(["mkdir", "-p", "/opt/cni/bin"]);
    for plugin in ["bridge", "host-local", "loopback"] {
        node.run(["ln", "-s", &format!("/usr/lib/cni/{plugin}"), &format!("/opt/cni/bin/{plugin}")]);
    }
    node.write(
        "/etc/cni/net.d/10-default.conflist",
        rig::in_version(&rig::cluster::bridge("default", 1), "1.0.0").to_string(),
    );
    node.import_weft();
    node.apply_weft_as(variant);
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

/// Starts a device plugin with two devices.
fn start_device_plugin(node: &Node, client: &Path) {
    let (interpreter, script) = (client.join("bin/python"), workspace().join("lanes/node/device-plugin"));
    let path = format!("PYTHONPATH={}", text(client));
    let line = ["env", &path, text(&interpreter), text(&script), RESOURCE].into_iter().chain(DEVICES);
    node.machine().start("device-plugin", line);
    node.until("the devices are allocatable", || {
        let found = node.kube().json(["node", rig::node::NAME]);
        (found["status"]["allocatable"][RESOURCE] == "2").then_some(())
    });
}

/// Device in a ResourceSlice as the driver publishes it.
fn published(name: &str, kind: &str, id: Option<&str>) -> Value {
    let mut attributes = json!({ "kind": { "string": kind } });
    if let Some(id) = id {
        attributes["k8s.cni.cncf.io/resourceName"] = json!({ "string": RESOURCE });
        attributes["k8s.cni.cncf.io/deviceID"] = json!({ "string": id });
    }
    json!({ "name": name, "attributes": attributes })
}

/// Three devices of the node and one of all nodes that networks can use, and one device that they cannot.
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

/// Starts a driver with devices, and creates claim templates for them.
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

/// Pod that selects networks.
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

/// Creates a pod that requests a number of devices from a resource.
fn pod_of(node: &Node, name: &str, networks: &str, (resource, devices): (&str, usize)) {
    let mut pod = selecting(name, networks);
    if devices > 0 {
        pod["spec"]["containers"][0]["resources"] = json!({ "limits": { resource: devices } });
    }
    node.kube().apply(&pod.to_string());
}

/// Creates a pod that requests a number of devices.
fn pod(node: &Node, name: &str, networks: &str, devices: usize) {
    pod_of(node, name, networks, (RESOURCE, devices));
}

/// Creates a pod with a claim of a template, which a container uses or not.
fn claiming(node: &Node, name: &str, networks: &str, (template, used): (&str, bool)) {
    let mut pod = selecting(name, networks);
    pod["spec"]["resourceClaims"] = json!([{ "name": "nic", "resourceClaimTemplateName": template }]);
    if used {
        pod["spec"]["containers"][0]["resources"] = json!({ "claims": [{ "name": "nic" }] });
    }
    node.kube().apply(&pod.to_string());
}

/// Deletes pods immediately.
fn delete_at_once(node: &Node, names: &[&str]) {
    for name in names {
        let line = ["delete", "pod", "-n", "default", name, "--wait=false", "--grace-period=0", "--force"];
        node.kube().kubectl(line);
    }
}

/// Device ids that were allocated to the claims of a pod.
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

/// Device ids that the recording plugin received for a pod with `verb`.
fn devices_given(node: &Node, pod: &str, verb: &str) -> Vec<String> {
    let record = node.read(rig::cluster::RECORD).unwrap_or_default();
    let calls = record.lines().map(|line| serde_json::from_str::<Call>(line).expect("a record"));
    let of_pod = calls.filter(|call| {
        call.command == verb && call.environment("CNI_ARGS").contains(&format!("K8S_POD_NAME={pod}"))
    });
    let device =
        |call: Call| call.config()["runtimeConfig"]["deviceID"].as_str().unwrap_or_default().to_owned();
    of_pod.map(device).collect()
}

/// Waits for an Event of a pod that contains all these strings.
#[track_caller]
fn until_refused(node: &Node, pod: &str, words: &[&str]) {
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
fn device_of_the_kubelet_is_passed_to_the_network() {
    let host = host!(Feature::Bridge, Feature::Veth, Feature::GoPlugins);
    let Some(client) = parts("python-client") else { return };
    let Some(node) = Node::new(host) else { return };
    prepare(&node, "hot-plug");
    start_device_plugin(&node, &client);
    pod(&node, "one", "fast", 1);
    node.until_pods_ready(["-n", "default", "one"]);
    let of_kubelet = node.exec("default", "one", ["sh", "-c", "echo $DEVICES"]).success().stdout;
    assert_eq!(devices_given(&node, "one", "ADD"), [of_kubelet.trim()]);
    // The kubelet allocated it no device: it must not get the free one.
    pod(&node, "none", "fast", 0);
    until_refused(&node, "none", &[RESOURCE, "default/fast"]);
    // One device, and two networks that need one each.
    pod(&node, "half", "fast,fast", 1);
    until_refused(&node, "half", &[RESOURCE]);
    for name in ["none", "half"] {
        assert_eq!(devices_given(&node, name, "ADD"), [""; 0], "{name}");
    }
    delete_at_once(&node, &["none", "half"]);
    node.kube().kubectl(["delete", "pod", "-n", "default", "one", "--wait=false", "--grace-period=1"]);
    node.until_no_pod_runs();
    assert_eq!(devices_given(&node, "one", "DEL"), [of_kubelet.trim()]);
    // Two devices for two networks.
    pod(&node, "two", "fast,fast", 2);
    node.until_pods_ready(["-n", "default", "two"]);
    let mut both = devices_given(&node, "two", "ADD");
    both.sort();
    assert_eq!(both, DEVICES);
    // A new agent reconciles every pod; the kubelet lists its devices in another order each time.
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
        assert_eq!(
            (devices_given(&node, "two", "DEL").len(), devices_given(&node, "two", "ADD").len()),
            (0, 2),
            "{round}"
        );
    }
}

/// Starts a node with weft and a driver; `None`, and the test is skipped, if Kubernetes is too old.
#[track_caller]
fn with_driver(host: Host, variant: &str) -> Option<Node> {
    let client = parts("python-client")?;
    let node = Node::new(host)?;
    if node.kube().minor() < DYNAMIC_MINOR {
        let why = format!("needs Kubernetes 1.{DYNAMIC_MINOR} or newer: KUBEBUILDER_ASSETS");
        testkit::record_skip(&testkit::test_name(), &why);
        return None;
    }
    prepare(&node, variant);
    start_driver(&node, &client);
    Some(node)
}

#[test]
fn device_of_a_resource_claim_is_passed_to_the_network() {
    let host = host!(Feature::Bridge, Feature::Veth, Feature::GoPlugins);
    let Some(node) = with_driver(host, "base") else { return };
    // The kubelet reports the first claim; only the API has the second, which no container uses; the third is requested as
    // an extended resource; the device of the last is in no slice of this node.
    claiming(&node, "used", "fast", ("nic", true));
    claiming(&node, "unused", "fast", ("nic", false));
    pod_of(&node, "extended", "fast", ("example.com/extended", 1));
    claiming(&node, "fabric", "fast", ("fabric", true));
    let names = ["used", "unused", "extended", "fabric"];
    node.until_pods_ready(["-n", "default"].into_iter().chain(names));
    for name in names {
        let devices = devices_given(&node, name, "ADD");
        assert_eq!((devices.len(), &devices), (1, &allocated(&node, name)), "{name}");
    }
    // Its claim is for a device that networks cannot use.
    claiming(&node, "clock", "fast", ("clock", true));
    until_refused(&node, "clock", &[RESOURCE, "default/fast"]);
    assert_eq!(devices_given(&node, "clock", "ADD"), [""; 0]);
    delete_at_once(&node, &["clock"]);
    for name in names {
        node.kube().kubectl(["delete", "pod", "-n", "default", name, "--wait=false", "--grace-period=1"]);
    }
    node.until_no_pod_runs();
    for name in names {
        assert_eq!(devices_given(&node, name, "DEL"), devices_given(&node, name, "ADD"), "{name}");
    }
    // Two devices of one claim, in its order.
    claiming(&node, "two", "fast,fast", ("two", true));
    node.until_pods_ready(["-n", "default", "two"]);
    let devices = devices_given(&node, "two", "ADD");
    assert_eq!((devices.len(), &devices), (2, &allocated(&node, "two")));
}

#[test]
fn device_of_a_resource_claim_is_passed_without_an_agent() {
    let host = host!(Feature::Bridge, Feature::Veth, Feature::GoPlugins);
    let Some(node) = with_driver(host, "thin") else { return };
    claiming(&node, "used", "fast", ("nic", true));
    claiming(&node, "unused", "fast", ("fabric", false));
    node.until_pods_ready(["-n", "default", "used", "unused"]);
    for name in ["used", "unused"] {
        let devices = devices_given(&node, name, "ADD");
        assert_eq!((devices.len(), &devices), (1, &allocated(&node, name)), "{name}");
    }
}
