//! A node of Multus that changes over with its pods, as `docs/migrate-from-multus.md` says, command by command.
//!
//! ```text
//!   00-multus.conf, /opt/cni/bin/multus ── pods ──► the page ──► 00-weft.conflist, agent ── the same pods, and new ones
//! ```
//!
//! Where `PEERS` has the real Multus, it attaches the pods of before, thin and thick. No package offers it: without,
//! it is weft under its name that does, with its configuration and its rights, by the reference plugins; then what weft
//! remembers of one is put into the form in which Multus remembers it, and forgotten.
//!
//! Source: Multus `deployments/multus-daemonset.yml`, `pkg/types/types.go`; libcni `pkg/libcni/api.go` (cniCacheV1).

use rig::multus::{DAEMON, DAEMON_CONFIG, Form, MEMORY};
use rig::parts::{parts, text};
use rig::peers::peers;
use rig::{Multus, Node};
use serde_json::{Value, json};
use testkit::{Feature, host, workspace};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
/// In the place of `/root`, which is the machine's own.
const HOME: &str = "/etc/weft-test/root";
/// What a person's shell has; nobody needs sudo here.
const SHELL: &str =
    "export HOME=/etc/weft-test/root KUBECONFIG=$1; PATH=$2:/opt/weft:$PATH; sudo() { \"$@\"; }
    mkdir -p $HOME/migration; cd $HOME/migration; set -e; ";

/// The definitions of before.
fn definitions() -> String {
    let network = |name: &str, subnet: &str| {
        let ipam = json!({ "type": "host-local", "subnet": subnet });
        let config = json!({ "cniVersion": "0.3.1", "type": "bridge", "bridge": format!("br-{name}"), "isGateway": true, "ipam": ipam });
        json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": name, "namespace": "default" }, "spec": { "config": config.to_string() },
        })
    };
    json!({ "apiVersion": "v1", "kind": "List", "items": [network("red", "10.2.0.0/24"), network("blue", "10.3.0.0/24")] })
        .to_string()
}

/// What Multus's installation makes: its DaemonSet, which does nothing here, and its rights.
fn installation() -> String {
    let labels = json!({ "name": "multus" });
    let container = json!({ "name": "kube-multus", "image": "busybox", "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", "trap exit TERM; while :; do sleep 1 & wait; done"] });
    let set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": "kube-multus-ds", "namespace": "kube-system" },
        "spec": { "selector": { "matchLabels": labels }, "template": { "metadata": { "labels": labels },
            "spec": { "hostNetwork": true, "terminationGracePeriodSeconds": 1, "containers": [container] } } },
    });
    let mut items = rig::multus::rights();
    items.as_array_mut().expect("a list").push(set);
    json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()
}

/// A default network by the reference plugins.
fn default_network() -> Value {
    let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }]], "routes": [{ "dst": "0.0.0.0/0" }] });
    let plugin = json!({ "type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": ipam });
    json!({ "cniVersion": "0.3.1", "name": "default", "plugins": [plugin] })
}

/// A node with definitions, a default network and plugins, and all of Multus's installation but its programs.
fn prepare(node: &Node, plugins: &str) {
    node.run(["mkdir", "-p", "/opt/cni/bin", "/opt/weft", "/etc/cni/net.d/multus.d"]);
    for program in ["weft", "weft-cni"] {
        node.run(["cp", text(&testkit::binary(program)), "/opt/weft/"]);
    }
    for plugin in ["bridge", "host-local", "loopback"] {
        node.run(["ln", "-s", &format!("{plugins}/{plugin}"), &format!("/opt/cni/bin/{plugin}")]);
    }
    let crd = workspace().join("deploy/crds/network-attachment-definitions.k8s.cni.cncf.io.yaml");
    node.kube().kubectl(["apply", "-f", text(&crd)]);
    node.kube().wait_until_served();
    node.kube().apply(&installation());
    node.kube().apply(&definitions());
    node.write("/etc/cni/net.d/10-default.conflist", default_network().to_string());
}

/// A node as Multus's installation leaves it, weft in the place of Multus's program.
fn node_of_multus(node: &Node) {
    prepare(node, "/usr/lib/cni");
    node.run(["ln", "-s", "/opt/weft/weft-cni", "/opt/cni/bin/multus"]);
    configure_thin(node);
}

/// Multus's configuration without a daemon.
fn configure_thin(node: &Node) {
    let rights = node.kube().service_account("kube-system", "multus");
    node.run(["cp", &rights, "/etc/cni/net.d/multus.d/multus.kubeconfig"]);
    let multus = json!({
        "cniVersion": "0.3.1", "name": "multus-cni-network", "type": "multus",
        "capabilities": { "portMappings": true },
        "kubeconfig": "/etc/cni/net.d/multus.d/multus.kubeconfig", "delegates": [default_network()],
    });
    node.write("/etc/cni/net.d/00-multus.conf", multus.to_string());
    node.until_ready(true);
}

/// A node of the real Multus.
fn node_of_real_multus(node: &Node, form: Form, programs: std::path::PathBuf) {
    prepare(node, text(&programs));
    let multus = Multus::new(&node.machine(), node.kube(), programs);
    let link = format!("/opt/cni/bin/{}", form.plugin());
    node.run(["ln", "-s", &multus.program(form.plugin()), &link]);
    if form == Form::Thin {
        return configure_thin(node);
    }
    multus.start_daemon(&node.machine(), rig::node::NAME, "/etc/cni/net.d");
    let config = node.read(DAEMON_CONFIG).expect("the daemon's");
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "multus-daemon-config", "namespace": "kube-system" },
        "data": { "daemon-config.json": config },
    });
    node.kube().apply(&map.to_string());
    node.until("the daemon's configuration", || node.read("/etc/cni/net.d/00-multus.conf"));
    node.until_ready(true);
}

/// Makes a pod, and waits for its status unless it is to fail.
#[track_caller]
fn pod(node: &Node, name: &str, networks: &str) {
    let container = json!({
        "name": "shell", "image": "busybox", "imagePullPolicy": "IfNotPresent",
        "command": ["sh", "-c", "trap exit TERM; while :; do sleep 1 & wait; done"],
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": "default", "annotations": { NETWORKS: networks } },
        "spec": { "containers": [container], "terminationGracePeriodSeconds": 1, "tolerations": [{ "operator": "Exists" }] },
    });
    node.kube().apply(&pod.to_string());
}

#[track_caller]
fn status(node: &Node, name: &str) -> Vec<Value> {
    node.until_pods_ready(["-n", "default", name]);
    node.until(&format!("network-status of {name}"), || {
        let pod = node.kube().json(["pod", "-n", "default", name]);
        serde_json::from_str(pod["metadata"]["annotations"][STATUS].as_str()?).ok()
    })
}

#[track_caller]
fn delete(node: &Node, name: &str) {
    node.kube().kubectl(["delete", "pod", "-n", "default", name, "--wait=false", "--grace-period=1"]);
}

/// The journal's entry of a pod, and what came of each network: container id, entry, results.
fn entry(node: &Node, pod: &str) -> (String, Value, Vec<Value>) {
    let names = node.run(["ls", "/var/lib/weft/sandboxes"]);
    let read = |name: &str| -> Option<(String, Value, Vec<Value>)> {
        let bytes = node.read(format!("/var/lib/weft/sandboxes/{name}"))?;
        let mut values =
            serde_json::Deserializer::from_str(&bytes).into_iter::<Value>().map_while(Result::ok);
        let entry = values.next().filter(|entry| entry["plan"]["pod"]["name"] == pod)?;
        let results = values
            .filter_map(|value| value.get("attachment").map(|found| found["attachment"]["result"].clone()));
        Some((entry["containerId"].as_str()?.to_owned(), entry.clone(), results.collect()))
    };
    names.lines().find_map(read).expect("the pod is in the journal")
}

/// Puts what weft remembers of a pod where Multus would have it, and forgets it.
fn remember_as_multus(node: &Node, pod: &str) {
    let (container, entry, results) = entry(node, pod);
    let base64 = |text: &str| node.command("base64").args(["-w0"]).stdin(text).finish().success().stdout;
    let arguments =
        entry["args"].as_str().expect("args").split(';').map(|pair| pair.split('=').collect::<Vec<_>>());
    let arguments: Vec<Vec<&str>> = arguments.collect();
    node.run(["mkdir", "-p", &format!("{MEMORY}/results")]);
    let mut delegates = Vec::new();
    for (delegate, result) in entry["plan"]["delegates"].as_array().expect("delegates").iter().zip(&results) {
        let config = delegate["config"].as_str().expect("its bytes");
        let (name, ifname) =
            (delegate["configName"].as_str().expect("a name"), delegate["ifname"].as_str().expect("a name"));
        let cached = json!({
            "kind": "cniCacheV1", "containerId": container, "config": base64(config), "ifName": ifname,
            "networkName": name, "cniArgs": arguments, "capabilityArgs": {}, "result": result,
        });
        node.write(format!("{MEMORY}/results/{name}-{container}-{ifname}"), cached.to_string());
        delegates.push(json!({
            "Conf": { "cniVersion": "0.3.1", "name": name }, "ConfList": { "Plugins": null }, "Name": delegate["network"],
            "IsFilterV4Gateway": false, "IsFilterV6Gateway": false, "Bytes": base64(config),
        }));
    }
    assert_eq!(delegates.len(), 3);
    node.write(format!("{MEMORY}/{container}"), Value::from(delegates).to_string());
    node.run(["rm", &format!("/var/lib/weft/sandboxes/{container}.json")]);
}

/// The blocks of a page that are written in `language`, of the section that begins so.
fn blocks(page: &str, section: &str, language: &str) -> Vec<String> {
    let from = page.find(&format!("\n## {section}")).unwrap_or_else(|| panic!("section {section}"));
    let end = page[from + 1..].find("\n## ").map_or(page.len(), |end| from + 1 + end);
    let fence = format!("```{language}\n");
    let after = page[from..end].split(&fence).skip(1);
    after.map(|block| block.split("```").next().unwrap_or_default().to_owned()).collect()
}

/// Types the commands of a section, but for those with one of these words; what they said. With a daemon its
/// configuration is given to every import.
#[track_caller]
fn follow(node: &Node, page: &str, section: &str, passed_over: &[&str]) -> String {
    let kube = text(&parts("kube").expect("it runs").join("bin")).to_owned();
    let mut said = String::new();
    for block in blocks(page, section, "console") {
        for line in block.lines().filter_map(|line| line.strip_prefix("$ ")) {
            if passed_over.iter().any(|word| line.contains(word)) {
                continue;
            }
            let script =
                format!("{SHELL}{}", line.replace("worker-1", rig::node::NAME).replace("/root", HOME));
            let finished =
                node.machine().command("bash").args(["-c", &script, "bash", &node.kube().admin(), &kube]);
            let finished = finished.deadline(rig::machine::PATIENCE).finish();
            assert_eq!(finished.code, Some(0), "$ {line}\n{finished}");
            said.push_str(&finished.stdout);
            said.push_str(&finished.stderr);
        }
    }
    said
}

/// Under Multus's name, with its configuration and rights, pods are what they are with Multus.
#[track_caller]
fn assert_it_is_a_multus(node: &Node) {
    let status = status(node, "before");
    let shown: Vec<(&Value, &Value)> =
        status.iter().map(|entry| (&entry["name"], &entry["interface"])).collect();
    let expected = [("default", "eth0"), ("default/red", "net1"), ("default/blue", "net2")];
    assert_eq!(json!(shown), json!(expected));
    // A key that only Multus writes.
    assert_eq!(status[0]["gateway"], json!(["10.1.0.1"]));
    let object = node.kube().json(["pod", "-n", "default", "before"]);
    assert_eq!(object["metadata"]["annotations"][NETWORKS], "red,blue", "others' annotations are kept");
    pod(node, "typo", "red,");
    node.until("an annotation that is wrong fails the pod", || {
        let events = node.kube().json(["events", "-n", "default"]);
        let of = |event: &Value| {
            event["involvedObject"]["name"] == "typo" && event["reason"] == "FailedCreatePodSandBox"
        };
        events["items"].as_array()?.iter().any(of).then_some(())
    });
    delete(node, "typo");
}

#[test]
fn a_node_changes_over_by_the_page_and_its_pods_stay() {
    let host = host!(Feature::Bridge, Feature::Veth, Feature::GoPlugins);
    let Some(node) = Node::new(host) else { return };
    node.import_weft();
    node_of_multus(&node);
    pod(&node, "before", "red,blue");
    pod(&node, "between", "blue");
    assert_it_is_a_multus(&node);
    let _ = status(&node, "between");
    remember_as_multus(&node, "before");
    node.run(["rm", "-r", "/opt/cni/bin/multus"]);

    let daemon = ["daemon-config"];
    let (page, said) = look_and_prepare(&node, &daemon);
    assert!(said.contains("eth0 default, net1 default/red, net2 default/blue: would be imported"), "{said}");
    let said = follow(&node, &page, "3. Change over", &[]);
    assert!(said.contains(": imported"), "{said}");
    assert_pods_stay_and_go(&node, &page);
}

/// The page's first two steps; the page, and what the first import said.
#[track_caller]
fn look_and_prepare(node: &Node, passed_over: &[&str]) -> (String, String) {
    let page = std::fs::read_to_string(workspace().join("docs/migrate-from-multus.md")).expect("the page");
    let said = follow(node, &page, "1. Look", passed_over);
    let directory = format!("{HOME}/migration");
    node.run(["mkdir", &format!("{directory}/weft")]);
    node.run(["cp", "-r", text(&workspace().join("deploy")), &format!("{directory}/weft/")]);
    let files = blocks(&page, "2. Prepare", "yaml");
    for (file, name) in files.iter().zip(["kustomization.yaml", "daemonset.yaml"]) {
        assert!(file.starts_with(&format!("# {name}\n")), "{file}");
        node.write(format!("{directory}/{name}"), file);
    }
    follow(node, &page, "2. Prepare", &[]);
    (page, said)
}

/// The page's last step: pods of before and after reach each other, and nothing stays of any.
#[track_caller]
fn assert_pods_stay_and_go(node: &Node, page: &str) {
    node.until_weft_is_installed();
    pod(node, "after", "red,blue");
    assert_eq!(status(node, "after").len(), 3);
    node.assert_pings("default", "after", "before");
    follow(node, page, "4. When the last", &[]);
    for name in ["before", "between", "after"] {
        delete(node, name);
    }
    node.until_no_pod_runs();
    for network in ["default", "red", "blue"] {
        let held = node.run(["sh", "-c", &format!("ls /var/lib/cni/networks/{network}")]);
        assert_eq!(held.matches("10.").count(), 0, "{network}: {held}");
    }
}

/// A node of the real Multus changes over, and nothing stays of its pods.
fn change_over(form: Form) {
    let host = host!(Feature::Bridge, Feature::Veth);
    let programs: Vec<&str> = form.programs().iter().copied().chain(["loopback"]).collect();
    let Some(programs) = peers(&programs) else { return };
    let Some(node) = Node::new(host) else { return };
    node.import_weft();
    node_of_real_multus(&node, form, programs);
    pod(&node, "before", "red,blue");
    pod(&node, "between", "blue");
    let names = |status: &[Value]| status.iter().map(|entry| entry["name"].clone()).collect::<Vec<_>>();
    assert_eq!(names(&status(&node, "before")), ["default", "default/red", "default/blue"]);
    let _ = status(&node, "between");

    let without: &[&str] = if form == Form::Thin { &["daemon-config"] } else { &[] };
    let (page, said) = look_and_prepare(&node, without);
    assert!(said.contains("eth0 default, net1 default/red, net2 default/blue: would be imported"), "{said}");
    let page = match form {
        Form::Thin => page,
        Form::Thick => {
            page.replace("weft import multus --", "weft import multus --daemon-config daemon-config.json --")
        }
    };
    follow(&node, &page, "3. Change over", &["rm -f", "--config /root", "uncordon"]);
    if form == Form::Thick {
        // Its pod leaves the node with the label.
        node.machine().stop(DAEMON, "TERM");
    }
    let said = follow(
        &node,
        &page,
        "3. Change over",
        &["kubectl cordon", "sudo cp", "multus --apply", "json --apply", "label node"],
    );
    assert_eq!(said.matches(": already in the journal").count(), 2, "{said}");
    assert_pods_stay_and_go(&node, &page);
}

#[test]
fn a_node_of_the_real_multus_thin_changes_over_by_the_page() {
    change_over(Form::Thin);
}

#[test]
fn a_node_of_the_real_multus_thick_changes_over_by_the_page() {
    change_over(Form::Thick);
}
