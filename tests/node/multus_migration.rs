//! Migrates a node with pods from Multus, by the commands in `docs/migrate-from-multus.md`.
//!
//! ```text
//!   00-multus.conf, /opt/cni/bin/multus ── pods ──► the page ──► 00-weft.conflist, agent ── the same pods, and new ones
//! ```
//!
//! If `PEERS` has the real Multus, thin and thick, it attaches the first pods. No package contains it.
//! Without it, weft under the name `multus`, with Multus's configuration and RBAC, attaches them with the
//! reference plugins. Then one sandbox's journal entry is converted into Multus's cache and deleted.
//!
//! Source: Multus `deployments/multus-daemonset.yml`, `pkg/types/types.go`; libcni `pkg/libcni/api.go` (cniCacheV1).

use rig::multus::{CACHE_DIRECTORY, DAEMON, DAEMON_CONFIG, Form};
use rig::parts::text;
use rig::peers::peers;
use rig::{Multus, Node};
use serde_json::{Value, json};
use testkit::{Feature, host, workspace};

const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
/// Replacement for `/root`, which belongs to the real machine.
const HOME: &str = "/etc/weft-test/root";
/// Environment of the commands; sudo is a no-op.
const SHELL: &str =
    "export HOME=/etc/weft-test/root KUBECONFIG=$1; PATH=$2:/opt/weft:$PATH; sudo() { \"$@\"; }
    mkdir -p $HOME/migration; cd $HOME/migration; set -e; ";

/// Network definitions that exist before the migration.
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

/// Objects of the Multus installation: a DaemonSet without function, and RBAC.
fn installation() -> String {
    let labels = json!({ "name": "multus" });
    let container = json!({ "name": "kube-multus", "image": "busybox", "imagePullPolicy": "IfNotPresent", "command": ["sh", "-c", "trap exit TERM; while :; do sleep 1 & wait; done"] });
    let set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": "kube-multus-ds", "namespace": "kube-system" },
        "spec": { "selector": { "matchLabels": labels }, "template": { "metadata": { "labels": labels },
            "spec": { "hostNetwork": true, "terminationGracePeriodSeconds": 1, "containers": [container] } } },
    });
    let mut items = rig::multus::rbac_objects();
    items.as_array_mut().expect("a list").push(set);
    json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string()
}

/// Default network of the reference plugins.
fn default_network() -> Value {
    let ipam = json!({ "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }]], "routes": [{ "dst": "0.0.0.0/0" }] });
    let plugin = json!({ "type": "bridge", "bridge": "cni0", "isGateway": true, "ipam": ipam });
    json!({ "cniVersion": "0.3.1", "name": "default", "plugins": [plugin] })
}

/// Prepares a node with definitions, a default network, plugins, and Multus's objects without the programs.
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

/// Prepares a node as Multus's installation leaves it, with weft in place of Multus's program.
fn node_of_multus(node: &Node) {
    prepare(node, "/usr/lib/cni");
    node.run(["ln", "-s", "/opt/weft/weft-cni", "/opt/cni/bin/multus"]);
    configure_thin(node);
}

/// Writes the configuration of thin Multus.
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

/// Prepares a node with the real Multus.
fn node_of_real_multus(node: &Node, form: Form, programs: std::path::PathBuf) {
    prepare(node, text(&programs));
    let multus = Multus::new(&node.machine(), node.kube(), programs);
    let link = format!("/opt/cni/bin/{}", form.plugin());
    node.run(["ln", "-s", &multus.program(form.plugin()), &link]);
    if form == Form::Thin {
        return configure_thin(node);
    }
    multus.start_daemon(&node.machine(), rig::node::NAME, "/etc/cni/net.d");
    let config = node.read(DAEMON_CONFIG).expect("the configuration of the daemon");
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "multus-daemon-config", "namespace": "kube-system" },
        "data": { "daemon-config.json": config },
    });
    node.kube().apply(&map.to_string());
    node.until("the daemon's configuration", || node.read("/etc/cni/net.d/00-multus.conf"));
    node.until_ready(true);
}

/// Creates a pod that selects these networks.
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

/// Container id, journal entry, and the results of each network in a pod.
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

/// Writes a pod's journal entry as Multus would cache it, and deletes the entry.
fn cache_as_multus(node: &Node, pod: &str) {
    let (container, entry, results) = entry(node, pod);
    let base64 = |text: &str| node.command("base64").args(["-w0"]).stdin(text).finish().success().stdout;
    let arguments =
        entry["args"].as_str().expect("args").split(';').map(|pair| pair.split('=').collect::<Vec<_>>());
    let arguments: Vec<Vec<&str>> = arguments.collect();
    node.run(["mkdir", "-p", &format!("{CACHE_DIRECTORY}/results")]);
    let mut delegates = Vec::new();
    for (delegate, result) in entry["plan"]["delegates"].as_array().expect("delegates").iter().zip(&results) {
        let config = delegate["config"].as_str().expect("its bytes");
        let (name, ifname) =
            (delegate["configName"].as_str().expect("a name"), delegate["ifname"].as_str().expect("a name"));
        let cached = json!({
            "kind": "cniCacheV1", "containerId": container, "config": base64(config), "ifName": ifname,
            "networkName": name, "cniArgs": arguments, "capabilityArgs": {}, "result": result,
        });
        node.write(format!("{CACHE_DIRECTORY}/results/{name}-{container}-{ifname}"), cached.to_string());
        delegates.push(json!({
            "Conf": { "cniVersion": "0.3.1", "name": name }, "ConfList": { "Plugins": null }, "Name": delegate["network"],
            "IsFilterV4Gateway": false, "IsFilterV6Gateway": false, "Bytes": base64(config),
        }));
    }
    assert_eq!(delegates.len(), 3);
    node.write(format!("{CACHE_DIRECTORY}/{container}"), Value::from(delegates).to_string());
    node.run(["rm", &format!("/var/lib/weft/sandboxes/{container}.json")]);
}

/// Code blocks in `language` in a section of the document.
fn blocks(page: &str, section: &str, language: &str) -> Vec<String> {
    let from = page.find(&format!("\n## {section}")).unwrap_or_else(|| panic!("section {section}"));
    let end = page[from + 1..].find("\n## ").map_or(page.len(), |end| from + 1 + end);
    let fence = format!("```{language}\n");
    let after = page[from..end].split(&fence).skip(1);
    after.map(|block| block.split("```").next().unwrap_or_default().to_owned()).collect()
}

/// Runs the commands in a section, except those that contain one of these strings; returns the output.
#[track_caller]
fn run_section(node: &Node, page: &str, section: &str, excluded: &[&str]) -> String {
    let kube = node.kube().newer_kubectl();
    let mut output = String::new();
    for block in blocks(page, section, "console") {
        for line in block.lines().filter_map(|line| line.strip_prefix("$ ")) {
            if excluded.iter().any(|word| line.contains(word)) {
                continue;
            }
            let script =
                format!("{SHELL}{}", line.replace("worker-1", rig::node::NAME).replace("/root", HOME));
            let finished =
                node.machine().command("bash").args(["-c", &script, "bash", &node.kube().admin(), &kube]);
            let finished = finished.deadline(rig::machine::TIMEOUT).finish();
            assert_eq!(finished.code, Some(0), "$ {line}\n{finished}");
            output.push_str(&finished.stdout);
            output.push_str(&finished.stderr);
        }
    }
    output
}

/// Fails unless pods look as with Multus, when weft runs under Multus's name with Multus's configuration and RBAC.
#[track_caller]
fn assert_pods_look_as_with_multus(node: &Node) {
    let status = status(node, "before");
    let shown: Vec<(&Value, &Value)> =
        status.iter().map(|entry| (&entry["name"], &entry["interface"])).collect();
    let expected = [("default", "eth0"), ("default/red", "net1"), ("default/blue", "net2")];
    assert_eq!(json!(shown), json!(expected));
    // Only Multus writes this field.
    assert_eq!(status[0]["gateway"], json!(["10.1.0.1"]));
    let object = node.kube().json(["pod", "-n", "default", "before"]);
    assert_eq!(object["metadata"]["annotations"][NETWORKS], "red,blue", "other annotations are kept");
    pod(node, "typo", "red,");
    node.until("the pod with an invalid annotation fails", || {
        let events = node.kube().json(["events", "-n", "default"]);
        let of = |event: &Value| {
            event["involvedObject"]["name"] == "typo" && event["reason"] == "FailedCreatePodSandBox"
        };
        events["items"].as_array()?.iter().any(of).then_some(())
    });
    delete(node, "typo");
}

#[test]
fn multus_migration_by_the_document_keeps_pods() {
    let host = host!(Feature::Bridge, Feature::Veth, Feature::GoPlugins);
    let Some(node) = Node::new(host) else { return };
    node.import_weft();
    node_of_multus(&node);
    pod(&node, "before", "red,blue");
    pod(&node, "between", "blue");
    assert_pods_look_as_with_multus(&node);
    let _ = status(&node, "between");
    cache_as_multus(&node, "before");
    node.run(["rm", "-r", "/opt/cni/bin/multus"]);

    let daemon = ["daemon-config"];
    let (page, output) = run_first_steps(&node, &daemon);
    assert!(
        output.contains("eth0 default, net1 default/red, net2 default/blue: would be imported"),
        "{output}"
    );
    let output = run_section(&node, &page, "3. Move the nodes", &["weft migrate"]);
    assert!(output.contains(": imported"), "{output}");
    assert_pods_stay_and_leave_nothing(&node, &page);
}

#[test]
fn multus_migration_back_gives_the_node_to_multus_again() {
    let host = host!(Feature::Bridge, Feature::Veth, Feature::GoPlugins);
    let Some(node) = Node::new(host) else { return };
    node.import_weft();
    node_of_multus(&node);
    node.run(["mkdir", "-p", CACHE_DIRECTORY]);
    let (page, _) = run_first_steps(&node, &["daemon-config"]);
    run_section(&node, &page, "3. Move the nodes", &["weft migrate"]);
    node.until_weft_is_installed();
    pod(&node, "of-weft", "red");
    assert_eq!(status(&node, "of-weft").len(), 2);

    // A pod without a controller is deleted for ever.
    run_section(&node, &page.replace("--ignore-daemonsets", "--ignore-daemonsets --force"), "Back", &[]);
    node.until("the agent of weft has left the node", || {
        let pods = node.kube().json(["pods", "-n", "kube-system", "-l", "app.kubernetes.io/component=agent"]);
        pods["items"].as_array().is_some_and(Vec::is_empty).then_some(())
    });
    assert_eq!(node.read(rig::installation::INSTALLED), None);
    node.until_ready(true);
    pod(&node, "of-multus", "blue");
    let status = status(&node, "of-multus");
    // Only Multus writes this field.
    assert_eq!((status.len(), &status[0]["gateway"]), (2, &json!(["10.1.0.1"])), "{status:?}");
    let held = node.run(["sh", "-c", "ls /var/lib/cni/networks/red"]);
    assert_eq!(held.matches("10.").count(), 0, "the pod of weft left {held}");
    delete(&node, "of-multus");
    node.until_no_pod_runs();
}

/// Runs the first two steps of the document; returns the document and the output of the first import.
#[track_caller]
fn run_first_steps(node: &Node, excluded: &[&str]) -> (String, String) {
    let page = std::fs::read_to_string(workspace().join("docs/migrate-from-multus.md")).expect("the page");
    let output = run_section(node, &page, "1. Look", excluded);
    let directory = format!("{HOME}/migration");
    node.run(["mkdir", &format!("{directory}/weft")]);
    node.run(["cp", "-r", text(&workspace().join("deploy")), &format!("{directory}/weft/")]);
    let files = blocks(&page, "2. Prepare", "yaml");
    for (file, name) in files.iter().zip(["kustomization.yaml", "daemonset.yaml"]) {
        assert!(file.starts_with(&format!("# {name}\n")), "{file}");
        node.write(format!("{directory}/{name}"), file);
    }
    run_section(node, &page, "2. Prepare", &[]);
    (page, output)
}

/// Runs the last step of the document: pods from before and after reach each other, and leave nothing when deleted.
#[track_caller]
fn assert_pods_stay_and_leave_nothing(node: &Node, page: &str) {
    node.until_weft_is_installed();
    pod(node, "after", "red,blue");
    assert_eq!(status(node, "after").len(), 3);
    node.assert_pings("default", "after", "before");
    run_section(node, page, "4. When the last", &[]);
    for name in ["before", "between", "after"] {
        delete(node, name);
    }
    node.until_no_pod_runs();
    for network in ["default", "red", "blue"] {
        let held = node.run(["sh", "-c", &format!("ls /var/lib/cni/networks/{network}")]);
        assert_eq!(held.matches("10.").count(), 0, "{network}: {held}");
    }
}

/// Migrates a node with the real Multus, whose pods leave nothing.
fn migrate(form: Form) {
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
    let (page, output) = run_first_steps(&node, without);
    assert!(
        output.contains("eth0 default, net1 default/red, net2 default/blue: would be imported"),
        "{output}"
    );
    let page = match form {
        Form::Thin => page,
        Form::Thick => {
            page.replace("weft import multus --", "weft import multus --daemon-config daemon-config.json --")
        }
    };
    // `weft migrate` is a test of its own.
    run_section(&node, &page, "3. Move the nodes", &["weft migrate", "--remove", "uncordon"]);
    if form == Form::Thick {
        // The pod of Multus leaves the node with the label.
        node.machine().stop(DAEMON, "TERM");
    }
    let output = run_section(
        &node,
        &page,
        "3. Move the nodes",
        &["weft migrate", "kubectl cordon", "--apply >", "label node"],
    );
    assert_eq!(output.matches(": already in the journal").count(), 2, "{output}");
    assert_pods_stay_and_leave_nothing(&node, &page);
}

/// `weft migrate multus` moves a node of the real Multus, whose runtime file has another name, and back.
#[test]
fn multus_migration_by_one_command_and_back() {
    let host = host!(Feature::Bridge, Feature::Veth);
    let programs: Vec<&str> = Form::Thin.programs().iter().copied().chain(["loopback"]).collect();
    let Some(programs) = peers(&programs) else { return };
    let Some(node) = Node::new(host) else { return };
    node.import_weft();
    node_of_real_multus(&node, Form::Thin, programs);
    // As the thin entrypoint of Multus 4.2 writes it: a list under another name.
    let single = node.read("/etc/cni/net.d/00-multus.conf").expect("the configuration of Multus");
    let plugin: Value = serde_json::from_str(&single).expect("JSON");
    let list = json!({ "cniVersion": plugin["cniVersion"], "name": plugin["name"], "plugins": [plugin] });
    node.write("/etc/cni/net.d/00-multus.conflist", list.to_string());
    node.run(["rm", "/etc/cni/net.d/00-multus.conf"]);
    node.until_ready(true);
    pod(&node, "before", "red,blue");
    let _ = status(&node, "before");
    let (page, _) = run_first_steps(&node, &["daemon-config"]);
    let moved = run_section(&node, &page, "3. Move the nodes", &["sudo", "kubectl"]);
    assert!(moved.contains("00-multus.conflist: removed") && moved.contains("moved to weft"), "{moved}");
    node.until_weft_is_installed();
    // A repeated command has nothing to do.
    let again = run_section(&node, &page, "3. Move the nodes", &["sudo", "kubectl", "check"]);
    assert!(again.contains("nothing to do"), "{again}");
    pod(&node, "after", "red,blue");
    assert_eq!(status(&node, "after").len(), 3);
    node.assert_pings("default", "after", "before");
    for name in ["before", "after"] {
        delete(&node, name);
    }
    node.until_no_pod_runs();
    let back = "\n## Back\n```console\n$ weft migrate multus worker-1 --back\n```\n";
    let output = run_section(&node, back, "Back", &[]);
    assert!(output.contains("given back to Multus"), "{output}");
    assert!(node.read("/etc/cni/net.d/00-multus.conflist").is_some());
    assert_eq!(node.read(rig::installation::INSTALLED), None);
}

#[test]
fn multus_migration_from_the_real_multus_thin() {
    migrate(Form::Thin);
}

#[test]
fn multus_migration_from_the_real_multus_thick() {
    migrate(Form::Thick);
}
