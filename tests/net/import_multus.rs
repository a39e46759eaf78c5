//! Tests for `weft import multus`: a node with Multus is taken over while pods run, and weft detaches the networks.
//!
//! ```text
//!   /var/lib/cni/multus/<container id>      delegates ─┐
//!   /var/lib/cni/multus/results/…           libcni ────┴─► weft import multus ─► /var/lib/weft/sandboxes
//! ```
//!
//! The test creates the same state as Multus: interfaces by the plugins themselves, libcni's cache by a
//! caller that writes it like libcni, and the delegates in Multus's format.
//!
//! Source: Multus `pkg/multus/multus.go`, `pkg/types/types.go`; M27.

use rig::cluster::bridge;
use rig::{assert_nothing_left, links};
use serde_json::{Value, json};
use testkit::{Feature, Finished, Host, Pod, host};

const MULTUS: &str = "/var/lib/cni/multus";
const JOURNAL: &str = "/var/lib/weft/sandboxes";
const ARGS: &str =
    "IgnoreUnknown=1;K8S_POD_NAMESPACE=blue;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=x;K8S_POD_UID=u-1";

fn weft(host: &Host) -> testkit::Command {
    let _ = testkit::binary("weft-cni");
    host.command(testkit::binary("weft")).clean_environment()
}

fn import(host: &Host, words: &[&str]) -> Finished {
    weft(host).args(["import", "multus"]).args(words).finish()
}

/// Returns the pod's networks: the default network, one with a requested interface name, one with an
/// argument.
fn networks() -> [(&'static str, &'static str, Value); 3] {
    let mut red = bridge("red", 2);
    red["plugins"].as_array_mut().unwrap().push(json!({ "type": "tuning", "mtu": 1400 }));
    red["plugins"][0]["x-unknown"] = "kept".into();
    let range = json!({ "type": "host-local", "subnet": "10.3.0.0/24" });
    let blue =
        json!({ "cniVersion": "0.3.1", "name": "blue", "type": "bridge", "bridge": "br3", "ipam": range });
    [("home", "eth0", bridge("home", 1)), ("blue/red", "front", red), ("blue/blue", "net2", blue)]
}

/// Creates the state that Multus has of a pod. Returns the container id.
#[track_caller]
fn attached_by_multus(host: &Host, pod: &Pod) -> String {
    let mut delegates = Vec::new();
    for (index, (label, ifname, config)) in networks().into_iter().enumerate() {
        let name = config["name"].as_str().unwrap().to_owned();
        let end = if config.get("plugins").is_some() { "conflist" } else { "conf" };
        host.write(format!("/etc/cni/multus/net.d/{name}.{end}"), config.to_string());
        let args = if index == 2 { format!("{ARGS};MAC=02:00:00:00:00:07") } else { ARGS.to_owned() };
        let add = weft(host).env("NETCONFPATH", "/etc/cni/multus/net.d").env("CNI_PATH", "/opt/cni/bin");
        let netns = pod.path().display().to_string();
        add.env("CNI_ARGS", args).args(["cni", "add", &name, &netns, "--ifname", ifname]).finish().success();
        let bytes = host.command("base64").args(["-w0"]).stdin(config.to_string()).finish().success().stdout;
        let mut delegate = json!({
            "Conf": { "cniVersion": config["cniVersion"], "name": name }, "ConfList": { "Plugins": null },
            "Name": label, "IsFilterV4Gateway": false, "IsFilterV6Gateway": false, "Bytes": bytes,
        });
        if ifname == "front" {
            delegate["ifnameRequest"] = ifname.into();
        }
        delegates.push(delegate);
    }
    host.run(["mkdir", "-p", &format!("{MULTUS}/results")]);
    host.run(["sh", "-c", &format!("mv /var/lib/cni/results/* {MULTUS}/results/")]);
    let cache = host.run(["ls", &format!("{MULTUS}/results")]);
    let name = cache.lines().next().expect("a cache entry");
    let container = name.strip_prefix("blue-").and_then(|rest| rest.strip_suffix("-net2")).expect("its name");
    host.write(format!("{MULTUS}/{container}"), Value::from(delegates).to_string());
    container.to_owned()
}

/// Returns a host with weft and Multus's configuration.
macro_rules! node {
    () => {{
        let host = host!(Feature::Bridge, Feature::Veth);
        rig::install(&host);
        let config = json!({
            "cniVersion": "0.3.1", "name": "multus-cni-network", "type": "multus-shim", "logLevel": "verbose",
            "capabilities": { "portMappings": true },
            "clusterNetwork": "/host/etc/cni/multus/net.d/home.conflist",
        });
        host.write("/etc/cni/net.d/00-multus.conf", config.to_string());
        host
    }};
}

fn files(host: &Host, directory: &str) -> String {
    host.attempt(["sh", "-c", &format!("cd {directory} && find . -type f | sort | xargs -r sha256sum")])
        .stdout
}

/// Attaches and detaches one pod, so that bridges and directories that remain on a node exist.
#[track_caller]
fn settle(host: &Host) {
    let early = host.pod("early");
    attached_by_multus(host, &early);
    for (name, ifname) in [("blue", "net2"), ("red", "front"), ("home", "eth0")] {
        let del = weft(host).env("NETCONFPATH", "/etc/cni/multus/net.d").env("CNI_PATH", "/opt/cni/bin");
        del.args(["cni", "del", name, "/run/netns/early", "--ifname", ifname]).finish().success();
    }
    early.remove();
    host.run(["rm", "-r", MULTUS]);
}

/// Asserts that the status is what Multus would have written, and matches the interfaces.
#[track_caller]
fn assert_status_shows(host: &Host, pod: &Pod) {
    let listed = weft(host).args(["list", "-o", "json"]).finish().success().json();
    let sandbox = &listed[0];
    assert_eq!(sandbox["pod"], json!({ "namespace": "blue", "name": "web", "uid": "u-1" }));
    for (entry, (label, ifname, _)) in sandbox["networkStatus"].as_array().unwrap().iter().zip(networks()) {
        assert_eq!((&entry["name"], &entry["interface"]), (&json!(label), &json!(ifname)));
        let address = format!("{}/24", entry["ips"][0].as_str().unwrap());
        assert_eq!(rig::addresses_on(pod, ifname), [address]);
        assert_eq!(entry["mac"], rig::link(pod, ifname).unwrap()["address"]);
    }
    assert_eq!(sandbox["networkStatus"].as_array().map(Vec::len), Some(3));
}

#[test]
fn import_multus_attachments_are_listed_checked_and_detached() {
    let host = node!();
    settle(&host);
    let pod = host.pod("web");
    let (before_host, before_pod) = (host.snapshot(), pod.snapshot());
    let container = attached_by_multus(&host, &pod);
    let (memory, attached) = (files(&host, MULTUS), links(&pod));
    assert_eq!(attached, ["eth0", "front", "net2"]);

    let shown = host.snapshot();
    let tried = import(&host, &[]).success();
    let line =
        format!("blue/web ({container}): eth0 home, front blue/red, net2 blue/blue: would be imported");
    assert!(tried.stderr.contains(&line), "{tried}");
    assert_nothing_left("dry run", &host, &shown);

    let done = import(&host, &["--apply"]).success();
    assert!(done.stderr.contains(": imported\n1 sandbox in /var/lib/cni/multus"), "{done}");
    assert_eq!(
        (files(&host, MULTUS), links(&pod)),
        (memory, attached),
        "the files of Multus and the pod are unchanged"
    );
    let written = files(&host, JOURNAL);
    let again = import(&host, &["--apply"]).success();
    assert!(again.stderr.contains(": already in the journal"), "{again}");
    assert_eq!(files(&host, JOURNAL), written);

    assert_status_shows(&host, &pod);
    // weft accepts the printed configuration, also for DEL.
    let list: Value = serde_json::from_str(&done.stdout).expect("the configuration");
    let mut config = list["plugins"][0].clone();
    config["cniVersion"] = list["cniVersion"].clone();
    config["name"] = list["name"].clone();
    let mut attachment = host.attachment("weft", &pod, "eth0");
    attachment.container_id = container;
    attachment.args = ARGS.to_owned();
    let mut checked = config.clone();
    checked["cniVersion"] = "1.0.0".into();
    attachment.check(&checked).success();
    host.run(["rm", "-r", MULTUS, "/etc/cni/multus"]);
    attachment.del(&config).success();
    attachment.del(&config).success();
    rig::assert_pod_unchanged("DEL", &pod, &before_pod);
    assert_eq!(files(&host, JOURNAL), "");
    let changes = rig::changes(&before_host, &host.snapshot());
    let left: Vec<&str> = changes
        .lines()
        .filter(|line| !line.contains("/etc/cni/multus") && !line.contains("/var/lib/weft"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn import_multus_names_what_it_leaves_out() {
    let host = node!();
    let pod = host.pod("web");
    let container = attached_by_multus(&host, &pod);
    host.write(format!("{MULTUS}/half"), r#"[{"Name": "a", "By"#);
    host.write(format!("{MULTUS}/empty"), "[]");
    host.write(format!("{MULTUS}/no-bytes"), r#"[{"Name": "a"}]"#);
    host.write(
        format!("{MULTUS}/no-result"),
        format!(
            "[{}]",
            json!({ "Name": "a", "Bytes": "eyJjbmlWZXJzaW9uIjoiMS4wLjAiLCJuYW1lIjoiYSIsInR5cGUiOiJhIn0=" })
        ),
    );
    host.write(format!("{MULTUS}/-hostile;id"), "[]");
    let configured = host.read("/etc/cni/net.d/00-multus.conf").expect("the configuration of Multus");
    host.write("/etc/cni/net.d/00-multus.conf", configured.replacen("{", "{\"namespaceIsolatoin\":true,", 1));
    host.write(format!("{MULTUS}/results/red-x-eth0"), "\u{1b}[31m");
    let done = import(&host, &["--apply"]);
    assert_eq!(done.code, Some(1), "{done}");
    for says in [
        "not imported: half: not the delegates of a sandbox",
        "not imported: empty: an empty list of delegates",
        "not imported: no-bytes: [0] a: Bytes: missing",
        "not imported: container no-result: not in libcni's cache",
        "not imported: -hostile;id: ",
        "not imported: results/red-x-eth0: not an entry of libcni's cache",
        "not imported: configuration: namespaceIsolatoin: unknown option, ignored by Multus: did you mean namespaceIsolation?",
        "7 sandboxes or fields of Multus were not imported",
    ] {
        assert!(done.stderr.contains(says), "{says:?}: {done}");
    }
    assert!(files(&host, JOURNAL).contains(&format!("./{container}.json")), "{done}");
    assert!(!done.stderr.contains('\u{1b}'));

    // An unreadable entry is not overwritten.
    host.write(format!("{JOURNAL}/{container}.json"), "not an entry");
    let refused = import(&host, &["--apply"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("unreadable"), "{refused}");
    assert_eq!(host.read(format!("{JOURNAL}/{container}.json")).as_deref(), Some("not an entry"));
}

#[test]
fn import_multus_includes_interfaces_added_to_a_running_pod() {
    let host = node!();
    let pod = host.pod("web");
    let container = attached_by_multus(&host, &pod);
    // Multus's delegates do not contain an interface that was added later; libcni's cache does.
    let delegates: Value =
        serde_json::from_str(&host.read(format!("{MULTUS}/{container}")).unwrap()).unwrap();
    host.write(format!("{MULTUS}/{container}"), json!([delegates[0], delegates[1]]).to_string());
    let tried = import(&host, &[]).success();
    assert!(tried.stderr.contains("eth0 home, front blue/red, net2 blue: would be"), "{tried}");
    // The interface is found without the delegates, too.
    host.run(["rm", &format!("{MULTUS}/{container}")]);
    let tried = import(&host, &[]).success();
    assert!(tried.stderr.contains("eth0 home, front red, net2 blue: would be"), "{tried}");
}

/// Gives the pod's last network whereabouts as IPAM, in libcni's cache.
#[track_caller]
fn use_whereabouts(host: &Host, container: &str) {
    let file = format!("{MULTUS}/results/blue-{container}-net2");
    let mut entry: Value = serde_json::from_str(&host.read(&file).expect("a cache entry")).expect("JSON");
    let base64 = |words: &[&str], text: &str| {
        host.command("base64").args(words.iter().copied()).stdin(text).finish().success().stdout
    };
    let config = base64(&["-d"], entry["config"].as_str().expect("the configuration"));
    entry["config"] = json!(base64(&["-w0"], &config.replace("host-local", "whereabouts")));
    host.write(&file, entry.to_string());
}

#[test]
fn import_multus_names_the_program_of_whereabouts() {
    let host = node!();
    let container = attached_by_multus(&host, &host.pod("web"));
    use_whereabouts(&host, &container);
    let program = "/opt/cni/bin/whereabouts";
    host.run(["rm", "-f", program]);
    let missing = import(&host, &[]);
    assert_eq!(missing.code, Some(1), "{missing}");
    let subject = "whereabouts: 1 sandbox with its addresses";
    let because = format!("not imported: {subject}: no program of this name is in /opt/cni/bin");
    assert!(missing.stderr.contains(&because), "{missing}");
    host.write(program, "program of whereabouts");
    let foreign = import(&host, &[]).success();
    assert!(foreign.stderr.contains(&format!("{subject}: weft continues to execute {program}")), "{foreign}");
    host.run(["rm", program]);
    host.install(&testkit::binary("weft-cni"), &["whereabouts"]);
    let own = import(&host, &[]).success();
    assert!(own.stderr.contains(&format!("{subject}: {program} is weft")), "{own}");
}

#[test]
fn import_multus_converts_configuration_and_names_losses() {
    let host = node!();
    let daemon = json!({
        "chrootDir": "/hostroot", "socketDir": "/host/run/multus/", "multusConfigFile": "auto", "logLevel": "debug",
        "cniVersion": "0.3.1", "namespaceIsolation": true, "perNodeCertificate": { "enabled": true },
        "readinessindicatorfile": "/host/run/flannel/subnet.env",
    });
    host.write("/etc/cni/daemon-config.json", daemon.to_string());
    let done = import(&host, &["--daemon-config", "/etc/cni/daemon-config.json"]).success();
    let list: Value = serde_json::from_str(&done.stdout).unwrap();
    assert_eq!(
        list,
        json!({
            "cniVersion": "1.0.0", "name": "multus-cni-network", "plugins": [{
                "type": "weft", "logLevel": "debug", "namespaceIsolation": true,
                "clusterNetwork": "/etc/cni/multus/net.d/home.conflist",
                "readinessindicatorfile": "/run/flannel/subnet.env",
                "invalidAnnotation": "fail", "statusKeys": "multus",
                "capabilities": { "portMappings": true, "io.kubernetes.cri.pod-annotations": true },
            }],
        })
    );
    for key in ["chrootDir", "socketDir", "multusConfigFile", "perNodeCertificate"] {
        assert!(done.stderr.contains(&format!("configuration: {key} is left out")), "{key}: {done}");
    }
    assert!(done.stderr.contains("cniVersion: 0.3.1 becomes 1.0.0"), "{done}");
    let unknown =
        json!({ "cniVersion": "1.0.0", "name": "m", "type": "multus", "clusterNetwork": "a", "retries": 3 });
    host.write("/etc/cni/m.conf", unknown.to_string());
    let without = import(&host, &["--config", "/etc/cni/m.conf", "--apply"]);
    assert!(
        without.code == Some(1) && without.stderr.contains("not imported: configuration: retries"),
        "{without}"
    );
    assert!(
        without.json()["plugins"][0]["clusterNetwork"] == "a" && !without.stdout.contains("retries"),
        "{without}"
    );
    let both = json!({
        "cniVersion": "1.0.0", "name": "m", "type": "multus", "clusterNetwork": "a", "logLevel": "Verbose",
        "systemNamespaces": [""], "delegates": [{ "name": "b", "type": "bridge" }],
    });
    host.write("/etc/cni/m.conf", both.to_string());
    let ignored = import(&host, &["--config", "/etc/cni/m.conf"]).success();
    assert!(ignored.stderr.contains("delegates: left out"), "{ignored}");
    assert!(ignored.json()["plugins"][0].get("delegates").is_none(), "{ignored}");
    let refusals = [
        (json!({ "cniVersion": "1.0.0", "name": "m", "type": "multus" }), "clusterNetwork: missing"),
        (json!({ "cniVersion": "1.0.0", "name": "m", "type": "bridge" }), "neither multus nor multus-shim"),
    ];
    for (config, says) in refusals {
        host.write("/etc/cni/m.conf", config.to_string());
        let refused = import(&host, &["--config", "/etc/cni/m.conf", "--apply"]);
        assert!(refused.code == Some(1) && refused.stderr.contains(says), "{says}: {refused}");
        assert_eq!((refused.stdout.as_str(), files(&host, JOURNAL).as_str()), ("", ""));
    }
}

#[test]
fn import_multus_names_default_network_of_one_node_by_its_file() {
    let host = node!();
    let own = json!({
        "cniVersion": "1.0.0", "name": "kindnet",
        "plugins": [{ "type": "ptp", "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.244.1.0/24" }]] } }],
    });
    let written = |delegates: &Value| {
        let multus = json!({
            "cniVersion": "0.3.1", "name": "multus-cni-network", "type": "multus", "delegates": delegates,
        });
        host.write("/etc/cni/net.d/00-multus.conf", multus.to_string());
        let done = import(&host, &[]).success();
        (done.stdout.parse::<Value>().unwrap()["plugins"][0].clone(), done.stderr)
    };
    // It is unknown whether other nodes have the same network.
    let (plugin, warnings) = written(&json!([own]));
    assert_eq!(plugin["delegates"], json!([own]));
    assert!(warnings.contains("delegates: contains the default network of this node"), "{warnings}");
    // The file has the fields in another order.
    host.write(
        "/etc/cni/net.d/10-kindnet.conflist",
        format!("{{\"plugins\": {}, \"name\": \"kindnet\", \"cniVersion\": \"1.0.0\"}}", own["plugins"]),
    );
    let (plugin, warnings) = written(&json!([own]));
    assert_eq!(plugin.get("delegates"), None);
    assert_eq!(plugin["clusterNetwork"], "/etc/cni/net.d/10-kindnet.conflist");
    assert!(warnings.contains("each node has its own"), "{warnings}");
}
