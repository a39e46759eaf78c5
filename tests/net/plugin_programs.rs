//! Tests for the program that serves a plugin: the one that made the attachment, whichever `weft-cni` copy is
//! called.
//!
//! ```text
//!   /opt/cni/bin   weft-cni, bridge and host-local of the Go plugins      target/debug   weft, weft-cni (another copy)
//!        └── ADD by the runtime                                                └── check, doctor, detach, tasks
//! ```
//!
//! Source: `crates/weft-cni/src/{plugin_invoker,program_file}.rs`; `crates/rpc/src/journal/programs.rs`.

use rig::cluster::{MANIFESTS, NAMESPACE, RECORD, bridge, configuration};
use rig::{Cluster, links, with};
use serde_json::{Value, json};
use testkit::{Attachment, Feature, Finished, Host, Pod, Snapshot, host};

/// Directory of Debian's Go plugins.
const GO: &str = "/usr/lib/cni";
/// Plugin directory of the runtime.
const PLUGINS: &str = "/opt/cni/bin";

/// Returns a host with the Go plugins in the runtime's directory.
fn go_plugins(host: &Host) {
    let copy = format!("mkdir -p {PLUGINS} /var/lib/cni /run/cni && cp {GO}/* {PLUGINS}");
    host.run(["sh", "-c", &copy]);
}

/// Copies `weft-cni` into the runtime's directory, as the installer does.
fn install_weft(host: &Host) {
    let program = testkit::binary("weft-cni").display().to_string();
    host.run(["cp", &program, &format!("{PLUGINS}/weft-cni")]);
    host.run(["ln", "-s", "weft-cni", &format!("{PLUGINS}/weft")]);
}

/// Runs `weft`, whose `weft-cni` is another copy than the installed one.
fn weft(host: &Host, line: &str) -> Finished {
    let _ = testkit::binary("weft-cni");
    host.command(testkit::binary("weft")).clean_environment().args(line.split_whitespace()).finish()
}

/// Bridge network with masquerading, in a version that most definitions have.
fn masqueraded(name: &str, subnet: u8) -> Value {
    let mut network = with(&bridge(name, subnet), &json!({ "cniVersion": "0.4.0" }));
    network["plugins"][0]["ipMasq"] = true.into();
    network
}

fn home() -> Value {
    with(&configuration(&masqueraded("home", 1)), &json!({ "cniVersion": "0.4.0" }))
}

/// Runs tasks by the other copy, as the executor does.
fn run_tasks(host: &Host, config: &Value, task: &Value) -> Finished {
    let batch =
        json!({ "version": 1, "taskBatch": { "configuration": config, "flavour": "weft", "tasks": [task] } });
    let text = batch.to_string().into_bytes();
    let length = u32::try_from(text.len()).expect("a length").to_be_bytes();
    let program = testkit::binary("weft-cni");
    host.command(program).args(["run-tasks"]).stdin([&length[..], &text].concat()).finish()
}

/// Returns the task that changes the sandbox of the pod `web` to what the manifest selects now.
fn change(host: &Host, config: &Value, pod: &Pod) -> Value {
    let request = json!({ "version": 1, "request": { "plan": {
        "pod": { "namespace": NAMESPACE, "name": "web", "uid": "" },
        "container": pod.container_id(), "ifname": "eth0", "began": 0,
        "node": { "configuration": config, "flavour": "weft", "files": [], "unreadable": [] },
    } } });
    let text = request.to_string().into_bytes();
    let length = u32::try_from(text.len()).expect("a length").to_be_bytes();
    let planner = host.command(testkit::binary("weft")).args(["plan", "--once", "-f", MANIFESTS]);
    let output = planner.stdin([&length[..], &text].concat()).finish().success().stdout;
    let (_, answer) = output.split_once('{').expect("an answer");
    let answer: Value = serde_json::from_str(&format!("{{{answer}")).expect("JSON");
    json!({ "change": { "plan": answer["response"]["plan"]["plan"] } })
}

/// Returns the recorded programs of an attachment.
fn programs(cluster: &Cluster<'_>, pod: &Pod, index: usize) -> Value {
    cluster.entry(pod).expect("an entry")["attachments"][index]["programs"].clone()
}

/// Returns a snapshot of the host. The next address of each range differs after every ADD, and is left out.
fn snapshot(host: &Host) -> Snapshot {
    host.run(["sh", "-c", "rm -f /var/lib/cni/networks/*/last_reserved_ip.0"]);
    host.snapshot()
}

fn attach<'a>(cluster: &Cluster<'a>, pod: &Pod) -> Attachment<'a> {
    let attachment = cluster.attachment(pod);
    attachment.add(&home()).success();
    attachment
}

#[test]
fn plugin_program_of_the_add_serves_every_copy_of_weft() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade, Feature::GoPlugins);
    go_plugins(&host);
    install_weft(&host);
    let cluster = Cluster::on(&host);
    cluster.definition("red", &masqueraded("red", 2));
    cluster.pod("web", "red");
    let pod = host.pod("web");
    host.write("/etc/cni/net.d/10-weft.conf", home().to_string());
    // Creates the objects that all pods share.
    attach(&cluster, &pod).del(&home()).success();
    let before = snapshot(&host);
    attach(&cluster, &pod);
    let built_in = json!({ "bridge": "builtIn", "host-local": "builtIn" });
    assert_eq!((programs(&cluster, &pod, 0), programs(&cluster, &pod, 1)), (built_in.clone(), built_in));
    let id = pod.container_id();
    let checked = weft(&host, &format!("check --container-id {id}")).success();
    assert!(checked.stdout.contains("unchanged"), "{checked}");
    weft(&host, "doctor").success();
    weft(&host, &format!("detach --container-id {id}")).success();
    assert!(links(&pod).is_empty(), "{:?}", links(&pod));
    assert_eq!(before.changes(&snapshot(&host)), "");
}

#[test]
fn plugin_program_of_the_add_serves_the_removal() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade, Feature::GoPlugins);
    go_plugins(&host);
    install_weft(&host);
    let cluster = Cluster::on(&host);
    cluster.definition("red", &masqueraded("red", 2));
    cluster.pod("web", "red");
    let pod = host.pod("web");
    attach(&cluster, &pod).del(&home()).success();
    let before = snapshot(&host);
    attach(&cluster, &pod);
    // The removal deletes the programs of weft from the runtime's directory; Go's remain.
    host.run(["rm", &format!("{PLUGINS}/weft"), &format!("{PLUGINS}/weft-cni")]);
    let task = json!({ "takeDown": { "container": pod.container_id(), "uid": "", "certainty": "gone" } });
    run_tasks(&host, &home(), &task).success();
    assert!(cluster.entry(&pod).is_none());
    install_weft(&host);
    assert_eq!(before.changes(&snapshot(&host)), "");
}

#[test]
fn plugin_program_of_hot_plug_is_that_of_an_add() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade, Feature::GoPlugins);
    go_plugins(&host);
    install_weft(&host);
    let cluster = Cluster::on(&host);
    cluster.definition("red", &masqueraded("red", 2));
    cluster.pod("web", "");
    let pod = host.pod("web");
    attach(&cluster, &pod);
    cluster.pod("web", "red");
    run_tasks(&host, &home(), &change(&host, &home(), &pod));
    assert_eq!(links(&pod), ["eth0", "net1"]);
    assert_eq!(programs(&cluster, &pod, 1)["bridge"], "builtIn");
    cluster.pod("web", "");
    run_tasks(&host, &home(), &change(&host, &home(), &pod));
    assert_eq!(links(&pod), ["eth0"]);
}

/// Nearly every definition of Multus has a version without CHECK.
#[test]
fn check_finds_changes_in_versions_without_check() {
    let host = host!(Feature::Bridge, Feature::GoPlugins);
    go_plugins(&host);
    install_weft(&host);
    let cluster = Cluster::on(&host);
    let old = |name: &str, subnet: u8| with(&bridge(name, subnet), &json!({ "cniVersion": "0.3.1" }));
    cluster.definition("red", &old("red", 2));
    cluster.pod("web", "red");
    let pod = host.pod("web");
    for (builtin, partly) in [("auto", 0), ("never", 2)] {
        let own = json!({ "cniVersion": "0.4.0", "builtin": builtin });
        let config = with(&configuration(&old("home", 1)), &own);
        host.write("/etc/cni/net.d/10-weft.conf", config.to_string());
        let attachment = cluster.attachment(&pod);
        attachment.add(&config).success();
        let check = format!("check --container-id {} -o json", pod.container_id());
        let intact = weft(&host, &check).success().json();
        assert_eq!(intact["unchanged"], true, "{builtin}: {intact}");
        assert_eq!(intact["unchecked"].as_array().map(Vec::len), Some(partly), "{builtin}: {intact}");
        let text = weft(&host, &check.replace(" -o json", "")).success().stdout;
        assert_eq!(text.contains("not checked: net1 (blue/red): plugin bridge"), partly > 0, "{text}");
        pod.run(["ip", "address", "flush", "dev", "net1"]);
        let changed = weft(&host, &check);
        assert!(changed.code == Some(1) && changed.stdout.contains("net1"), "{builtin}: {changed}");
        pod.run(["ip", "link", "delete", "net1"]);
        let missing = weft(&host, &check);
        assert!(missing.code == Some(1) && missing.json()["unchanged"] == false, "{builtin}: {missing}");
        attachment.del(&config).success();
    }
}

/// A file that is neither this copy nor under a name of weft, but weft.
#[test]
fn plugin_program_of_another_version_of_weft_is_weft() {
    let host = host!(Feature::Bridge, Feature::GoPlugins);
    go_plugins(&host);
    let mut program = std::fs::read(testkit::binary("weft-cni")).expect("weft-cni");
    let id = b"GNU\0weft-cni";
    let place = program.windows(id.len()).position(|window| window == id).expect("a build id") + id.len();
    program[place..place + 12].copy_from_slice(b"another one\0");
    host.write(format!("{PLUGINS}/weft-cni"), program);
    host.run(["chmod", "755", &format!("{PLUGINS}/weft-cni")]);
    let cluster = Cluster::on(&host);
    cluster.pod("web", "");
    let pod = host.pod("web");
    let run = |plugin: &str| {
        let mut attachment = cluster.attachment(&pod);
        attachment.plugin = plugin.to_owned();
        host.write("/run/cni/weft-cni", std::fs::read(testkit::binary("weft-cni")).expect("weft-cni"));
        host.run(["chmod", "755", "/run/cni/weft-cni"]);
        host.run(["ln", "-sf", "weft-cni", "/run/cni/weft"]);
        attachment.add(&home()).success();
        let found = programs(&cluster, &pod, 0)["bridge"].clone();
        attachment.del(&home()).success();
        found
    };
    assert_eq!(run("/run/cni/weft"), "builtIn", "beside the other version");
    host.run(["mv", &format!("{PLUGINS}/weft-cni"), &format!("{PLUGINS}/bridge")]);
    assert_eq!(run("/run/cni/weft"), "builtIn", "the other version under the name of the plugin");
    host.run(["cp", &format!("{GO}/bridge"), &format!("{PLUGINS}/bridge")]);
    let external = run("/run/cni/weft");
    assert_eq!(external["external"]["path"], format!("{PLUGINS}/bridge"), "{external}");
}

#[test]
fn plugin_program_external_serves_after_weft_is_installed() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade, Feature::GoPlugins);
    let cluster = Cluster::new(&host);
    host.run(["sh", "-c", "rm -f /opt/cni/bin/weft-cni /opt/cni/bin/weft /opt/cni/bin/multus"]);
    let program = testkit::binary("weft-test-plugin").display().to_string();
    host.run(["ln", "-sf", &program, &format!("{PLUGINS}/bridge")]);
    cluster.pod("web", "");
    let pod = host.pod("web");
    let mut network = bridge("home", 1);
    network["plugins"][0]["testPlugin"] = json!({ "record": RECORD });
    let config = configuration(&network);
    let mut attachment = cluster.attachment(&pod);
    host.run(["mkdir", "-p", "/run/weft-bin"]);
    host.run(["ln", "-s", &testkit::binary("weft-cni").display().to_string(), "/run/weft-bin/weft"]);
    attachment.plugin = "/run/weft-bin/weft".to_owned();
    attachment.add(&config).success();
    assert_eq!(programs(&cluster, &pod, 0)["bridge"]["external"]["path"], format!("{PLUGINS}/bridge"));
    // From now on new attachments are served by weft, this one by the program that made it.
    install_weft_over(&host);
    attachment.plugin = "weft".to_owned();
    let _ = attachment.check(&config);
    rig::gc(&attachment, &config, Some(&[(&pod.container_id(), "eth0")])).success();
    attachment.del(&config).success();
    let order = cluster.order();
    assert_eq!(order, ["ADD eth0", "CHECK eth0", "GC ", "DEL eth0"]);
    // Its file is replaced by a newer one: that one serves.
    attachment.plugin = "/run/weft-bin/weft".to_owned();
    host.run(["sh", "-c", &format!("rm -f {PLUGINS}/weft {PLUGINS}/weft-cni")]);
    attachment.add(&config).success();
    host.run(["sh", "-c", &format!("rm {PLUGINS}/bridge && cp {program} {PLUGINS}/bridge")]);
    attachment.del(&config).success();
    assert_eq!(cluster.order(), ["ADD eth0", "DEL eth0"]);
}

fn install_weft_over(host: &Host) {
    host.run(["sh", "-c", &format!("rm -f {PLUGINS}/weft {PLUGINS}/weft-cni")]);
    install_weft(host);
}

/// The Go plugins made the attachment, and they were removed or replaced by weft.
#[test]
fn plugin_program_that_was_removed_is_replaced_by_the_built_in() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade, Feature::GoPlugins);
    go_plugins(&host);
    install_weft(&host);
    let cluster = Cluster::on(&host);
    cluster.pod("web", "");
    let pod = host.pod("web");
    let mut network = masqueraded("home", 1);
    network["cniVersion"] = "1.0.0".into();
    let config = configuration(&network);
    let never = with(&config, &json!({ "cniVersion": "1.0.0", "builtin": "never" }));
    let attachment = cluster.attachment(&pod);
    attachment.add(&never).success();
    attachment.del(&never).success();
    let inside = pod.snapshot();
    let removal = format!("rm {PLUGINS}/bridge {PLUGINS}/host-local");
    let replacement =
        format!("{removal}; ln -s weft-cni {PLUGINS}/bridge; ln -s weft-cni {PLUGINS}/host-local");
    for step in [removal, replacement] {
        host.run(["sh", "-c", &format!("cp --remove-destination {GO}/* {PLUGINS}")]);
        let before = rules(&host);
        attachment.add(&never).success();
        assert_eq!(programs(&cluster, &pod, 0)["bridge"]["external"]["path"], format!("{PLUGINS}/bridge"));
        assert_ne!(rules(&host), before);
        host.run(["sh", "-c", &step]);
        attachment.del(&never).success();
        assert_eq!(pod.snapshot().changes(&inside), "", "{step}");
        assert_eq!(rules(&host), before, "{step}");
    }
}

/// Returns the host's links and packet filter without hardware addresses, indexes and counters.
fn rules(host: &Host) -> String {
    let links = host.run(["sh", "-c", "ip -br link show type veth | cut -d' ' -f1"]);
    let filters =
        host.run(["sh", "-c", "iptables-save -t nat 2>/dev/null | grep -v '^[#:]'; nft list ruleset"]);
    let own = filters.lines().filter(|line| line.contains("10.1.0.") && !line.contains("10.1.0.0/24"));
    format!("{links}{}", own.collect::<Vec<_>>().join("\n"))
}

#[test]
fn plugin_program_external_without_its_ipam_is_refused() {
    let host = host!(Feature::Bridge, Feature::GoPlugins);
    go_plugins(&host);
    install_weft(&host);
    let cluster = Cluster::on(&host);
    cluster.pod("web", "");
    let pod = host.pod("web");
    let mut network = bridge("home", 1);
    network["plugins"][0]["ipam"] = json!({ "type": "weft-ipam", "range": "10.1.0.0/24" });
    let config = with(&configuration(&network), &json!({ "builtin": "never" }));
    let refused = cluster.attachment(&pod).add(&config);
    let text = refused.stdout.clone();
    assert!(refused.code != Some(0) && text.contains("weft-cni install DIR --names weft-ipam"), "{refused}");
    assert!(text.contains(&format!("plugin bridge is {PLUGINS}/bridge, which executes")), "{refused}");
    assert!(cluster.entry(&pod).is_none() && links(&pod).is_empty());
}

/// nerdctl calls weft once for each `--network`.
#[test]
fn second_network_of_type_weft_is_refused_in_words() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    cluster.pod("web", "");
    let pod = host.pod("web");
    let mut attachment = attach(&cluster, &pod);
    attachment.ifname = "eth1".to_owned();
    let refused = attachment.add(&with(&home(), &json!({ "name": "other" })));
    let text =
        "already attached as eth0 by network weft-net; weft attaches all networks of a container in one call";
    assert!(refused.code == Some(1) && refused.stdout.contains(text), "{refused}");
    attachment.del(&home()).success();
    assert_eq!(links(&pod), ["eth0"], "the DEL after the refused ADD");
}
