//! Tests for the command `weft` on a host without Kubernetes: attach, list, check, detach, and how they fail.
//!
//! ```text
//!   host ─┬─ weft0 ─┬─ eth0  my-pod, my-partner     (examples/)
//!         ├─ weft-a ┼─ net1, net4
//!         ├─ weft-b ┼─ net2, blue
//!         └─ ptp ───┴─ net3
//! ```

use std::path::Path;
use std::time::{Duration, Instant};

use rig::{assert_nothing_left, cluster, links};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use testkit::{Feature, Finished, Host, host, workspace};

const JOURNAL: &str = "/var/lib/weft/sandboxes";
const POD: &str = "my-namespace/my-pod";
const PARTNER: &str = "my-namespace/my-partner";
const NETNS: &str = "weft-my-namespace_my-pod";

// Exit codes as in `weft --help`.
pub(crate) const FAILED: Option<i32> = Some(1);
const NEEDS_ROOT: Option<i32> = Some(3);
const INTERRUPTED: Option<i32> = Some(130);

fn weft(host: &Host) -> testkit::Command {
    // `weft` runs the program beside it for every change.
    let _ = testkit::binary("weft-cni");
    host.command(testkit::binary("weft")).clean_environment()
}

pub(crate) fn run(host: &Host, line: &str) -> Finished {
    weft(host).args(line.split_whitespace()).finish()
}

fn examples() -> String {
    workspace().join("examples").display().to_string()
}

fn attach(host: &Host, pod: &str) -> Finished {
    run(host, &format!("attach -f {} --pod {pod}", examples()))
}

pub(crate) fn list(host: &Host) -> Value {
    run(host, "list -o json").success().json()
}

/// Returns the JSON of `ip` in a namespace that weft created.
fn ip(host: &Host, netns: &str, words: &[&str]) -> Value {
    host.json(["ip", "-n", netns, "-j"].iter().chain(words))
}

#[track_caller]
pub(crate) fn assert_failed(finished: &Finished, code: Option<i32>, words: &[&str]) {
    assert_eq!(finished.code, code, "{finished}");
    assert!(finished.stderr.lines().any(|line| line.starts_with("weft: ")), "{finished}");
    for word in words {
        assert!(finished.stderr.contains(word), "{word:?} is missing: {finished}");
    }
}

/// Attaches and detaches once, so that the objects that remain (bridges, tables) exist.
fn settled(host: &Host) -> testkit::Snapshot {
    for pod in [POD, PARTNER] {
        attach(host, pod).success();
    }
    for pod in [POD, PARTNER] {
        run(host, &format!("detach --pod {pod}")).success();
    }
    host.snapshot()
}

// === success ===

#[test]
fn attach_list_check_and_detach_a_pod() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let before = settled(&host);
    let attached = attach(&host, POD).success();
    let lines: Vec<&str> = attached.stdout.lines().filter(|line| line.starts_with("  attached ")).collect();
    assert_eq!(lines.len(), 5, "{attached}");
    for heading in ["NETWORK", "INTERFACE", "MAC", "ADDRESSES", "GATEWAY", "PLUGINS", "MS"] {
        assert!(attached.stdout.contains(heading), "{attached}");
    }
    assert!(attached.stdout.contains("  k8s.v1.cni.cncf.io/network-status: |\n"), "{attached}");
    assert_eq!(attached.stderr, "", "{attached}");

    // The output matches the kernel.
    let listed = list(&host);
    let [sandbox] = listed.as_array().unwrap().as_slice() else { panic!("{listed}") };
    assert_eq!(sandbox["pod"], json!({"namespace": "my-namespace", "name": "my-pod", "uid": ""}));
    assert_eq!(sandbox["netns"], format!("/run/netns/{NETNS}"));
    assert_eq!(sandbox["containerId"], "my-namespace_my-pod");
    assert_shows_the_kernel(&host, sandbox);
    run(&host, &format!("check --pod {POD}")).success();

    let detached = run(&host, &format!("detach --pod {POD}")).success();
    assert!(detached.stdout.contains(&format!("removed /run/netns/{NETNS}")), "{detached}");
    assert_nothing_left("detach", &host, &before);
    assert_eq!(list(&host), json!([]));
    assert_eq!(run(&host, "list").success().stdout, "no attachments\n");
}

#[test]
fn list_watch_prints_attached_and_detached_networks() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let program = testkit::binary("weft");
    host.run(["mkdir", "-p", "/run/test"]);
    let line = format!("exec {} list --watch >/run/test/watched", program.display());
    let watch = host.command("sh").args(["-c", &line]).start();
    let lines = |expected: &str| {
        rig::machine::until(expected, || {
            let text = host.read("/run/test/watched").unwrap_or_default();
            let found: Vec<String> =
                text.lines().filter(|line| line.contains(expected)).map(str::to_owned).collect();
            (!found.is_empty()).then_some(found)
        })
    };
    assert_eq!(lines("CONTAINER").len(), 1);
    attach(&host, POD).success();
    assert!(lines("attached")[0].starts_with(POD));
    run(&host, &format!("detach {POD}")).success();
    assert!(lines("removed")[0].starts_with(POD));
    watch.kill();
    assert_eq!(lines("CONTAINER").len(), 1, "the headings are printed once");
    assert_failed(&run(&host, "list -w -o json"), Some(2), &["-w", "omit -o"]);
}

/// Asserts that every attachment and every status entry matches `ip -j`.
#[track_caller]
fn assert_shows_the_kernel(host: &Host, sandbox: &Value) {
    let name = sandbox["netns"].as_str().unwrap().trim_start_matches("/run/netns/").to_owned();
    let attachments = sandbox["attachments"].as_array().unwrap();
    let status = sandbox["networkStatus"].as_array().unwrap();
    let shown = ip(host, &name, &["address"]);
    let links: Vec<&Value> = shown.as_array().unwrap().iter().filter(|link| link["ifname"] != "lo").collect();
    assert_eq!((links.len(), status.len()), (attachments.len(), attachments.len()), "{shown}");
    for (attachment, status) in attachments.iter().zip(status) {
        let interface = attachment["interface"].as_str().unwrap();
        let link = links.iter().find(|link| link["ifname"] == interface).unwrap();
        let addresses: Vec<Value> = link["addr_info"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|a| a["scope"] == "global")
            .cloned()
            .collect();
        let with_prefix: Vec<String> = addresses
            .iter()
            .map(|a| format!("{}/{}", a["local"].as_str().unwrap(), a["prefixlen"]))
            .collect();
        let bare: Vec<&str> = addresses.iter().map(|a| a["local"].as_str().unwrap()).collect();
        assert_eq!(attachment["state"], "attached");
        let result = &attachment["result"];
        let own = result["interfaces"].as_array().unwrap().iter().find(|i| i["name"] == interface).unwrap();
        assert_eq!((&own["mac"], &own["sandbox"]), (&link["address"], &sandbox["netns"]), "{attachment}");
        let in_result: Vec<&str> =
            result["ips"].as_array().unwrap().iter().map(|ip| ip["address"].as_str().unwrap()).collect();
        assert_eq!(in_result, with_prefix, "{attachment}");
        assert_eq!(status["name"], attachment["network"]);
        assert_eq!((&status["interface"], &status["mac"]), (&attachment["interface"], &link["address"]));
        assert_eq!(status["ips"], json!(bare));
        assert_eq!(status["default"], json!(interface == "eth0"));
    }
}

#[test]
fn attach_json_selection_and_json_output_has_no_other_text() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    attach(&host, POD).success();
    let attached = run(&host, &format!("attach -f {} --pod {PARTNER} -o json", examples())).success();
    let sandbox = attached.json();
    assert_eq!(
        attached.stderr.lines().filter(|line| line.starts_with("  attached ")).count(),
        4,
        "{attached}"
    );
    assert_shows_the_kernel(&host, &sandbox);
    let blue = ip(&host, "weft-my-namespace_my-partner", &["address", "show", "dev", "blue"]);
    assert_eq!(
        (&blue[0]["address"], &blue[0]["addr_info"][0]["local"]),
        (&json!("aa:bb:cc:dd:ee:ff"), &json!("10.101.2.44"))
    );
    // The attachments of the first pod are unchanged after the second joined its networks.
    let listed = list(&host);
    assert_eq!(listed.as_array().unwrap().len(), 2);
    assert_eq!(listed[0], sandbox);
    for pod in [POD, PARTNER] {
        run(&host, &format!("check --pod {pod}")).success();
    }
    // The annotation is in the JSON output, too.
    let names: Vec<String> =
        listed[1]["networkStatus"].as_array().unwrap().iter().map(|e| e["name"].to_string()).collect();
    assert_eq!(names.len(), 5);
}

#[test]
fn attach_to_an_existing_netns_keeps_the_netns() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let pod = host.pod("blue");
    settled(&host);
    let (before, inside) = (host.snapshot(), pod.snapshot());
    let line =
        format!("attach -f {} --pod {POD} --netns /run/netns/../netns/blue --container-id c-1", examples());
    run(&host, &line).success();
    assert_eq!(links(&pod).len(), 5);
    assert_eq!(list(&host)[0]["containerId"], "c-1");
    // The sandbox is found by the pod's name, too.
    run(&host, &format!("check --pod {POD}")).success();
    run(&host, &format!("detach --pod {POD}")).success();
    assert_nothing_left("detach", &host, &before);
    assert!(rig::changes(&inside, &pod.snapshot()).is_empty());
}

#[test]
fn detach_of_a_pod_with_several_sandboxes_needs_an_id() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let attach = |id: &str| run(&host, &format!("attach -f {} --pod {POD} --container-id {id}", examples()));
    attach("one").success();
    attach("two").success();
    assert_failed(
        &run(&host, &format!("detach --pod {POD}")),
        FAILED,
        &["2 sandboxes: one, two", "--container-id"],
    );
    assert_failed(
        &run(&host, "detach --pod other/pod --container-id one"),
        FAILED,
        &["container one belongs to pod my-namespace/my-pod, not to other/pod"],
    );
    run(&host, "detach --container-id one").success();
    run(&host, &format!("detach --pod {POD}")).success();
    assert_eq!(list(&host), json!([]));
}

// === refusals ===

#[test]
fn detach_and_check_accept_the_short_container_id_of_crictl() {
    let host = host!();
    let _cluster = recording(&host, &json!({}));
    let ids = ["3248917cd160aa", "3248917cd160bb", "blue_web", "blue_web2"].map(str::to_owned);
    for id in &ids {
        run(&host, &format!("attach -f {} --pod blue/web --container-id {id}", cluster::MANIFESTS)).success();
    }
    let ids_left = || -> Vec<String> {
        let listed = list(&host);
        let ids =
            listed.as_array().expect("a list").iter().map(|sandbox| sandbox["containerId"].as_str().unwrap());
        ids.map(str::to_owned).collect()
    };
    assert_eq!(ids_left(), ids);
    let ambiguous = run(&host, "detach --container-id 3248917cd160");
    assert_failed(&ambiguous, FAILED, &["2 sandboxes", &ids[0], &ids[1]]);
    assert_failed(&run(&host, "detach --container-id 3248917cd160a --pod blue/other"), FAILED, &["blue/web"]);
    run(&host, "check --container-id 3248917cd160a").success();
    run(&host, "detach --container-id 3248917cd160a").success();
    assert_eq!(ids_left(), ids[1..]);
    // The id of one pod may begin with that of another, which is not its short form.
    run(&host, "detach --container-id blue_web").success();
    run(&host, "detach --container-id blue_web").success();
    assert_eq!(ids_left(), [ids[1].as_str(), ids[3].as_str()]);
    let long = "a".repeat(500);
    let refused = run(&host, &format!("detach --container-id {long}"));
    assert!(refused.stderr.contains("500 bytes, the maximum is 200"), "{refused}");
}

#[test]
fn attach_twice_is_refused_and_detach_twice_finds_nothing() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    attach(&host, POD).success();
    let before = host.snapshot();
    assert_failed(&attach(&host, POD), FAILED, &["already attached", "weft detach"]);
    assert_nothing_left("a second attach", &host, &before);
    run(&host, &format!("detach --pod {POD}")).success();
    let again = run(&host, &format!("detach --pod {POD}")).success();
    assert_eq!(again.stdout, "pod my-namespace/my-pod: no attachments\n");
    assert_failed(&run(&host, &format!("check --pod {POD}")), FAILED, &["no attachments"]);
}

#[test]
fn list_check_and_detach_have_the_pod_and_formats_of_kubectl() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    for pod in [POD, PARTNER] {
        attach(&host, pod).success();
    }
    let listed = run(&host, &format!("list {PARTNER} -o json")).success().json();
    let [partner] = listed.as_array().unwrap().as_slice() else { panic!("{listed}") };
    assert_eq!(partner["pod"]["name"], "my-partner");
    let table = run(&host, &format!("list {POD}")).success().stdout;
    assert!(table.contains(POD) && !table.contains(PARTNER), "{table}");
    let absent = run(&host, "list absent");
    assert_failed(&absent, FAILED, &["pod default/absent: no attachments", "weft list -n default absent"]);
    assert_eq!(run(&host, &format!("list -A {POD}")).code, Some(2));

    let checked = run(&host, "check -n my-namespace my-pod -o json").success().json();
    assert_eq!((&checked["unchanged"], &checked["pod"]["name"]), (&json!(true), &json!("my-pod")));
    let interfaces = |attachments: &Value| -> Vec<String> {
        let names = attachments.as_array().unwrap().iter().map(|one| one["interface"].as_str().unwrap());
        names.map(str::to_owned).collect()
    };
    assert_eq!(interfaces(&checked["attachments"]), ["eth0", "net1", "net2", "net3", "net4"]);
    assert!(run(&host, &format!("check {POD} -o yaml")).success().stdout.contains("unchanged: true\n"));
    host.run(["ip", "-n", NETNS, "link", "delete", "net1"]);
    let changed = run(&host, &format!("check {POD} -o json"));
    assert_failed(&changed, FAILED, &["net1"]);
    assert_eq!(changed.json()["unchanged"], false);
    assert!(changed.json()["error"].as_str().unwrap().contains("net1"), "{changed}");

    // Progress is beside the document, not in it.
    let detached = run(&host, &format!("detach {POD} -o json")).success();
    assert!(detached.stderr.contains("  detached eth0 from "), "{detached}");
    let document = detached.json();
    assert_eq!(interfaces(&document["detached"]), ["net4", "net3", "net2", "net1", "eth0"]);
    assert_eq!(document["removedNamespace"], format!("/run/netns/{NETNS}"));
    let again = run(&host, &format!("detach {POD} -o json")).success().json();
    assert_eq!((&again["pod"], &again["detached"]), (&Value::Null, &json!([])));
}

#[test]
fn attach_of_a_pod_and_a_network_needs_no_configuration() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    rig::install(&host);
    let pod = |name: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "home",
            "annotations": {"k8s.v1.cni.cncf.io/networks": "lab"}}})
        .to_string()
    };
    let ipam = json!({"type": "host-local", "subnet": "10.77.0.0/24"});
    let config = json!({"cniVersion": "1.0.0", "type": "bridge", "bridge": "lab0", "ipam": ipam}).to_string();
    let network = json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": "lab", "namespace": "home"}, "spec": {"config": config}});
    host.write("/run/test/network.json", network.to_string());
    host.write("/run/test/pod.json", pod("web"));
    let explained = run(&host, "explain -f /run/test -n home web").success();
    assert!(explained.stdout.contains("default-network"), "{explained}");
    // The only pod of the manifests.
    run(&host, "attach -f /run/test").success();
    let addresses = host.run(["ip", "-n", "weft-home_web", "-br", "address"]);
    assert!(addresses.contains("10.101.0.2/24") && addresses.contains("10.77.0."), "{addresses}");
    let table = run(&host, "list").success().stdout;
    assert!(table.contains("home/web") && table.contains("AGE") && table.contains("home/lab"), "{table}");
    let wide = run(&host, "list -o wide").success().stdout;
    assert!(wide.contains("/run/netns/weft-home_web") && wide.contains("host-local"), "{wide}");
    let yaml = run(&host, "list -o yaml").success().stdout;
    assert!(yaml.contains("containerId: home_web"), "{yaml}");
    run(&host, "check home/web").success();
    run(&host, "detach -n home web").success();
    assert!(host.attempt(["ip", "-n", "weft-home_web", "link"]).code != Some(0), "the namespace is removed");
    // Several pods must be named.
    host.write("/run/test/second.json", pod("db"));
    let refused = run(&host, "attach -f /run/test");
    assert!(refused.code == Some(2) && refused.stderr.contains("home/web, home/db"), "{refused}");
}

#[test]
fn command_line_faults_name_the_next_step() {
    let host = host!();
    host.write("/run/test/broken.json", "{");
    host.write("/run/test/pod.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\n");
    let cases = [
        ("attach -f /run/test/broken.json", 2, "the manifests contain no pod", "weft init writes an example"),
        (
            "attach -f /run/test/pod.yaml db",
            1,
            "default/db is not in the manifests",
            "available pods: default/web",
        ),
        ("detach a/b/c", 2, "weft: pod \"a/b/c\": ", "only a-z, 0-9"),
        ("check A/b", 2, "weft: pod \"A/b\": ", "only a-z, 0-9"),
        ("init /run/test/pod.yaml", 1, "/run/test/pod.yaml: it is a file", "name a directory"),
        ("bundle --no-cluster --file /run/test/pod.yaml", 1, "the file exists", "name another file"),
        ("install --set x", 2, "--set x: not KEY=VALUE", "docs/plugins/weft.md"),
        (
            "install",
            1,
            "no default network is configured",
            "install the default network of the cluster first",
        ),
        (
            "network set -f /run/test/pod.yaml",
            2,
            "pod.yaml: not a network",
            "expected metadata and cniv1_config",
        ),
    ];
    for (line, code, why, next) in cases {
        assert_failed(&run(&host, line), Some(code), &[why, next]);
    }
    let skipped = run(&host, "attach -f /run/test/broken.json");
    assert!(skipped.stderr.contains("weft: skipped: /run/test/broken.json"), "{skipped}");
    // With another network in the directory, the name can only be wrong.
    let lan = json!({ "cniVersion": "1.0.0", "name": "lan", "plugins": [{ "type": "bridge" }] });
    host.write("/etc/cni/net.d/10-lan.conflist", lan.to_string());
    let unknown = run(&host, "install --default-network wan");
    assert_failed(&unknown, FAILED, &["with the name wan", "networks there: lan"]);
    let history = run(&host, "history blue/web").success();
    assert_eq!(history.stdout, "no calls of pod blue/web are recorded\n");
}

#[test]
fn attach_that_cannot_be_planned_changes_nothing() {
    let host = host!(Feature::Bridge);
    let file = |name: &str, text: &str| {
        host.write(format!("/run/test/{name}"), text);
    };
    let conflist = |plugin: &str| {
        json!({"cniVersion": "1.0.0", "name": "w", "plugins": [{"type": "weft",
            "delegates": [{"cniVersion": "1.0.0", "name": "home", "type": plugin}]}]})
        .to_string()
    };
    let pod = |networks: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": "home",
            "annotations": {"k8s.v1.cni.cncf.io/networks": networks}}})
        .to_string()
    };
    let definition = json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": "net-a", "namespace": "home"}, "spec": {"config": r#"{"cniVersion":"1.0.0","type":"no-such-plugin"}"#}});
    file("good.conflist", &conflist("bridge"));
    file("other.conflist", &conflist("bridge"));
    file("missing.conflist", &conflist("no-such-plugin"));
    file("none.conflist", &conflist("bridge").replace("weft", "bridge"));
    file("wrong.conflist", &conflist("bridge").replace("delegates", "delegate"));
    file("plain.json", &pod(""));
    file("unknown.json", &pod("net-z"));
    file("misspelt.json", &pod("net-a"));
    file("net-a.json", &definition.to_string());
    let before = host.snapshot();
    for (words, expected) in [
        (
            "-f plain.json -f good.conflist --pod home/other",
            &["pod home/other is not in the manifests", "available pods: home/web"][..],
        ),
        ("-f unknown.json -f good.conflist --pod home/web", &["home/net-z"]),
        (
            "-f misspelt.json -f net-a.json -f good.conflist --pod home/web",
            &["no-such-plugin", "all changes were undone"],
        ),
        ("-f plain.json -f missing.conflist --pod home/web", &["no-such-plugin"]),
        (
            "-f plain.json -f none.conflist --pod home/web",
            &["no configuration of the meta-plugin", "--config"],
        ),
        ("-f plain.json --config none.conflist --pod home/web", &["none.conflist", "of type weft"]),
        ("-f plain.json -f wrong.conflist --pod home/web", &["wrong.conflist", "did you mean delegates?"]),
        ("-f plain.json -f good.conflist -f other.conflist --pod home/web", &["both configure", "--config"]),
        ("-f nowhere.json --pod home/web", &["nowhere.json", "No such file"]),
        ("--config good.conflist --pod home/web", &["no manifests", "-f FILE|DIR"]),
        ("-f plain.json -f good.conflist --pod home/web --netns /run/test/absent", &["/run/test/absent"]),
        ("-f plain.json -f good.conflist --pod home/web --netns /etc/hostname", &["/etc/hostname"]),
    ] {
        let words = words.split(' ').map(|word| match word.contains('.') && !word.starts_with('/') {
            true => format!("/run/test/{word}"),
            false => word.to_owned(),
        });
        let refused = weft(&host).args(["attach"]).args(words).finish();
        assert_failed(&refused, FAILED, expected);
        let changes = rig::changes(&before, &host.snapshot());
        let changes: Vec<&str> =
            changes.lines().filter(|line| !line.contains("directory /var/lib/weft")).collect();
        assert!(changes.is_empty(), "{refused}: {changes:?}");
    }
}

#[test]
fn command_line_usage_error_has_exit_code_2() {
    let host = host!();
    for line in [
        "attach a b",
        "attach --pod a",
        "attach --pod A/b -f x",
        "detach",
        "list -o xml",
        "frob",
        "plan",
        "explain",
        "explain -n A b -f x",
        "lint",
        "attach --pod a/b --container-id -x",
    ] {
        assert_eq!(run(&host, line).code, Some(2), "{line}");
    }
}

#[test]
fn command_line_without_root_names_the_sudo_command() {
    let host = host!();
    host.write(format!("{JOURNAL}/x.json"), "{}");
    host.run(["chmod", "0700", "/var/lib/weft"]);
    let program = testkit::binary("weft").display().to_string();
    let _ = testkit::binary("weft-cni");
    host.run(["mkdir", "-p", "-m", "0700", "/run/roots"]);
    host.write("/run/roots/there", "");
    let socket = "import socket; socket.socket(socket.AF_UNIX).bind('/run/roots.sock')";
    host.run(["python3", "-c", &format!("{socket}; import os; os.chmod('/run/roots.sock', 0o600)")]);
    for line in [
        "attach --pod a/b -f /x",
        "detach --pod a/b",
        "check --pod a/b",
        "list",
        "demo",
        "install --bin-dir /run/roots",
        "cri-proxy --journal /run/roots/a --store /run/roots/b --runtime /run/c.sock",
        "network list --socket /run/roots.sock",
    ] {
        let words = line.split(' ');
        let unprivileged = ["--reuid=65534", "--regid=65534", "--clear-groups", &program];
        let refused = host.command("setpriv").args(unprivileged).args(words).finish();
        assert_failed(&refused, NEEDS_ROOT, &[&format!("run it as: sudo {program} {line}")]);
    }
    let explain = format!("explain -n my-namespace my-pod -f {}", examples());
    let unprivileged = ["--reuid=65534", "--regid=65534", "--clear-groups", &program];
    host.command("setpriv").args(unprivileged).args(explain.split(' ')).finish().success();
}

// === failures ===

#[test]
fn list_shows_a_broken_journal_entry_and_all_others() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    attach(&host, POD).success();
    let newer = r#"{"version":99,"anything":[]}"#;
    for (name, text) in [("newer", newer), ("half", r#"{"version":1,"netw"#), ("empty", ""), ("a b", "{}")] {
        host.write(format!("{JOURNAL}/{name}.json"), text);
    }
    host.write(format!("{JOURNAL}/.half.new"), "{");
    let entry = host.read(format!("{JOURNAL}/my-namespace_my-pod.json")).unwrap();
    host.write(format!("{JOURNAL}/copied.json"), entry);
    let listed = run(&host, "list -o json");
    assert_eq!((listed.code, listed.stderr.as_str()), (FAILED, ""), "{listed}");
    let listed = listed.json();
    let broken: Vec<&str> = listed
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row.get("error").is_some())
        .map(|row| row["containerId"].as_str().unwrap())
        .collect();
    assert_eq!(broken, ["a b", "copied", "empty", "half", "newer"], "{listed}");
    let good = listed.as_array().unwrap().iter().find(|row| row.get("pod").is_some()).unwrap();
    assert_shows_the_kernel(&host, good);
    let people = run(&host, "list");
    assert_eq!(people.code, FAILED);
    assert!(
        people.stdout.contains("newer") && people.stdout.contains("version 99: this release reads up to 1"),
        "{people}"
    );

    // The good entry can be detached. The broken entry gives an error, and stays.
    assert_failed(&run(&host, "detach --container-id newer"), FAILED, &["version 99", "docs/operations.md"]);
    assert_eq!(host.read(format!("{JOURNAL}/newer.json")).unwrap(), newer);
    run(&host, &format!("detach --pod {POD}")).success();
}

#[test]
fn check_fails_after_a_change() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    attach(&host, POD).success();
    host.run(["ip", "-n", NETNS, "address", "flush", "dev", "net2"]);
    assert_failed(
        &run(&host, &format!("check --pod {POD}")),
        FAILED,
        &["check pod my-namespace/my-pod: check net2"],
    );
    run(&host, &format!("detach --pod {POD}")).success();
}

/// Creates manifests of pod `blue/web` with recording plugins; `actions` are actions of the last one.
pub(crate) fn recording<'a>(host: &'a Host, actions: &Value) -> rig::Cluster<'a> {
    let cluster = rig::Cluster::new(host);
    cluster.recording("first", "one", &json!({}));
    cluster.recording("last", "two", actions);
    cluster.pod("web", "first,last");
    let config = json!({"cniVersion": "1.1.0", "name": "w", "type": "weft",
        "delegates": [cluster::recording("home", "three", &json!({}))]});
    host.write(format!("{}/weft.conf", cluster::MANIFESTS), config.to_string());
    cluster
}

#[test]
fn attach_plugin_failure_undoes_everything_and_names_the_plugin() {
    let host = host!();
    let cluster = recording(
        &host,
        &json!({"ADD": [{"do": "stderr", "text": "disk on\u{1b}[31m fire"}, {"do": "fail", "code": 11, "message": "not now"}]}),
    );
    let before = host.snapshot();
    let failed = run(&host, &format!("attach -f {} --pod blue/web", cluster::MANIFESTS));
    assert_failed(&failed, FAILED, &["weft: attach blue/web net2: ", "not now", "all changes were undone"]);
    assert!(failed.stdout.contains("attached net1 on blue/first"), "{failed}");
    assert!(!failed.stdout.contains("attached net2"), "{failed}");
    assert!(!failed.stderr.contains('\u{1b}'), "{failed}");
    let calls: Vec<String> = cluster
        .calls()
        .iter()
        .map(|call| format!("{} {}", call.command, call.environment("CNI_IFNAME")))
        .collect();
    assert_eq!(calls, ["ADD eth0", "ADD net1", "ADD net2", "DEL net2", "DEL net1", "DEL eth0"]);
    let changes = rig::changes(&before, &host.snapshot());
    let changes: Vec<&str> = changes
        .lines()
        .filter(|line| !line.contains("directory /var/lib/weft") && !line.contains(cluster::RECORD))
        .collect();
    assert!(changes.is_empty(), "{changes:?}");
}

#[test]
fn detach_failure_is_kept_in_the_journal_and_retried() {
    let host = host!();
    let _cluster = recording(&host, &json!({"DEL": [{"do": "fail", "message": "not yet"}]}));
    run(&host, &format!("attach -f {} --pod blue/web", cluster::MANIFESTS)).success();
    let failed = run(&host, "detach --pod blue/web");
    assert_failed(&failed, FAILED, &["not yet", "run weft detach to try again"]);
    assert!(failed.stdout.contains("detached net1") && !failed.stdout.contains("detached net2"), "{failed}");
    let listed = list(&host);
    let states: Vec<&str> =
        listed[0]["attachments"].as_array().unwrap().iter().map(|a| a["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["detached", "detached", "attached"]);
    assert!(
        host.snapshot().titles("file /run/netns/").next().is_some(),
        "the namespace remains for the next detach"
    );
}

#[test]
fn attach_interrupted_is_undone() {
    let host = host!();
    let cluster = recording(&host, &json!({"ADD": [{"do": "sleep", "milliseconds": 1500}]}));
    let before = host.snapshot();
    let words = format!("attach -f {} --pod blue/web", cluster::MANIFESTS);
    let running = weft(&host).args(words.split(' ')).start();
    wait_for("the second network", || host.read(cluster::RECORD).unwrap_or_default().lines().count() >= 3);
    kill_process(Pid::from_raw(running.id().cast_signed()).unwrap(), Signal::INT).unwrap();
    assert_eq!(running.finish(Duration::from_secs(20)).code(), INTERRUPTED);
    let verbs: Vec<String> = cluster.calls().iter().map(|call| call.command.clone()).collect();
    assert_eq!(verbs, ["ADD", "ADD", "ADD", "DEL", "DEL", "DEL"]);
    let changes = rig::changes(&before, &host.snapshot());
    let changes: Vec<&str> = changes
        .lines()
        .filter(|line| !line.contains("directory /var/lib/weft") && !line.contains(cluster::RECORD))
        .collect();
    assert!(changes.is_empty(), "{changes:?}");
}

#[track_caller]
fn wait_for(what: &str, mut is_done: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !is_done() {
        assert!(Instant::now() < until, "timed out waiting for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn attach_of_two_processes_at_once_succeeds_once() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    settled(&host);
    for _ in 0..5 {
        let words = format!("attach -f {} --pod {POD}", examples());
        let start = || weft(&host).args(words.split(' ')).start();
        let codes: Vec<Option<i32>> =
            [start(), start()].into_iter().map(|one| one.finish(Duration::from_secs(20)).code()).collect();
        assert!(codes == [Some(0), FAILED] || codes == [FAILED, Some(0)], "{codes:?}");
        assert_shows_the_kernel(&host, &list(&host)[0]);
        run(&host, &format!("check --pod {POD}")).success();
        run(&host, &format!("detach --pod {POD}")).success();
    }
}

#[test]
fn attach_killed_at_any_time_is_removed_by_detach() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let before = settled(&host);
    let words = format!("attach -f {} --pod {POD}", examples());
    for delay in (0..200).step_by(20) {
        let running = weft(&host).args(words.split(' ')).start();
        std::thread::sleep(Duration::from_millis(delay));
        // `weft-cni` completes what it has begun. None is started between the call of `ps` and the kill.
        let pid = running.id().to_string();
        host.run(["kill", "-STOP", &pid]);
        let children = host.command("ps").args(["-o", "pid=", "--ppid", &pid]).finish().stdout;
        running.kill();
        for child in children.split_whitespace() {
            wait_for("the end of weft-cni", || !Path::new("/proc").join(child).exists());
        }
        run(&host, &format!("detach --pod {POD}")).success();
        // The next attach removes the temporary directory of the killed attach.
        attach(&host, POD).success();
        run(&host, &format!("detach --pod {POD}")).success();
        assert_nothing_left(&format!("killed after {delay} ms"), &host, &before);
    }
}

#[test]
fn detach_succeeds_if_the_netns_is_deleted() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let before = settled(&host);
    attach(&host, POD).success();
    host.run(["ip", "netns", "delete", NETNS]);
    run(&host, &format!("detach --pod {POD}")).success();
    assert_nothing_left("detach", &host, &before);
}

#[test]
fn attach_skips_unreadable_manifests_with_a_warning() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    host.write("/run/test/broken.yaml", "kind: [");
    let words = format!("attach -f {} -f /run/test/broken.yaml --pod {POD}", examples());
    let attached = run(&host, &words).success();
    assert!(attached.stderr.starts_with("weft: skipped: /run/test/broken.yaml:1:7: "), "{attached}");
    run(&host, &format!("detach --pod {POD}")).success();
}

#[test]
fn attach_without_weft_cni_says_where_to_install_it() {
    let host = host!();
    host.run(["cp", &testkit::binary("weft").display().to_string(), "/run/weft-alone"]);
    let alone = host.command("/run/weft-alone").clean_environment().env("PATH", "/nonexistent");
    let refused = alone.args(["attach", "--pod", "a/b", "-f", "/x"]).finish();
    assert_failed(&refused, FAILED, &["weft-cni not found", "/opt/cni/bin"]);
    // weft-cni is found in PATH, or in the plugin directory.
    rig::install(&host);
    for path in ["/nonexistent", "/opt/cni/bin"] {
        let found = host.command("/run/weft-alone").clean_environment().env("PATH", path);
        let refused = found.args(["attach", "--pod", "a/b", "-f", "/x"]).finish();
        assert_failed(&refused, FAILED, &["read /x: No such file"]);
    }
}

#[test]
fn plan_once_is_used_if_there_is_no_agent() {
    let host = host!();
    let cluster = recording(&host, &json!({}));
    let _ = testkit::binary("weft");
    let pod = host.pod("web");
    let mut config = cluster::configuration(&cluster::recording("home", "three", &json!({})));
    config.as_object_mut().unwrap().remove("manifestDir");
    rig::assert_refused(
        "no agent",
        &cluster.attachment(&pod).add(&config),
        11,
        &["weft plan --once", "in-cluster configuration", "manifestDir"],
    );
    assert_eq!(cluster.calls().len(), 0);
}
