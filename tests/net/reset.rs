//! Tests for `weft reset`: what trials left is removed, and a container runtime's sandboxes stay.

use rig::Cluster;
use rig::cluster::{bridge, configuration};
use serde_json::{Value, json};
use testkit::{Feature, Finished, Host, host, workspace};

fn run(host: &Host, line: &str) -> Finished {
    let _ = testkit::binary("weft-cni");
    let weft = host.command(testkit::binary("weft")).clean_environment();
    weft.args(line.split_whitespace()).finish()
}

/// Names of the leftovers by kind.
fn leftovers(finished: &Finished) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let document = finished.json();
    let all = document["leftovers"].as_array().expect("a list").iter();
    all.map(|one| (text(&one["kind"]), text(&one["name"]), text(&one["state"]))).collect()
}

#[test]
fn reset_removes_trials_and_keeps_sandboxes_of_a_runtime() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    // A pod of a container runtime, whose interfaces must stay.
    let cluster = Cluster::new(&host);
    cluster.definition("red", &bridge("red", 2));
    cluster.pod("web", "red");
    let pod = host.pod("web");
    let config = configuration(&bridge("home", 1));
    let of_runtime = cluster.attachment(&pod);
    of_runtime.add(&config).success();

    let examples = workspace().join("examples");
    let files = format!("-f {}", examples.display());
    host.run(["ip", "netns", "add", "mine"]);
    run(&host, &format!("attach my-namespace/my-pod {files}")).success();
    run(&host, &format!("attach my-namespace/my-partner {files} --netns /run/netns/mine")).success();
    // An attach and a demonstration that were killed: a namespace without a sandbox, and directories without a lock.
    host.run(["ip", "netns", "add", "weft-blue_lost"]);
    host.run(["ip", "netns", "add", "weft-blue_busy"]);
    host.run(["ip", "netns", "add", "weft-demo-1f-00a3c-host"]);
    host.run(["mkdir", "-m", "700", "/run/weft-attach-blue_lost", "/run/weft-demo-1f-00a3c"]);
    let busy = host.command("ip").args(["netns", "exec", "weft-blue_busy", "sleep", "600"]).start_tied();
    rig::machine::until("the process runs", || {
        let found = host.attempt(["ip", "netns", "pids", "weft-blue_busy"]);
        (!found.stdout.trim().is_empty()).then_some(())
    });

    // The plan changes nothing.
    let planned = host.snapshot();
    let expected = [
        ("sandbox", "my-namespace_my-partner"),
        ("sandbox", "my-namespace_my-pod"),
        ("namespace", "/run/netns/weft-blue_lost"),
        ("demo", "weft-demo-1f-00a3c"),
        ("directory", "weft-attach-blue_lost"),
    ];
    let with_state = |state: &str| -> Vec<(String, String, String)> {
        expected.iter().map(|(kind, name)| ((*kind).into(), (*name).into(), state.into())).collect()
    };
    let plan = run(&host, "reset -o json").success();
    assert_eq!(leftovers(&plan), with_state("planned"), "{plan}");
    let kept = plan.json()["kept"].to_string();
    assert!(kept.contains("1 sandbox of a container runtime"), "{kept}");
    assert!(kept.contains("weft-blue_busy: process"), "{kept}");
    let text = run(&host, "reset").success();
    assert!(text.stdout.contains("nothing was changed; weft reset --yes"), "{text}");
    host.assert_unchanged(&planned);

    let done = run(&host, "reset --yes -o json").success();
    assert_eq!(leftovers(&done), with_state("removed"), "{done}");
    busy.kill();
    assert_eq!(host.attempt(["ip", "-n", "mine", "link", "show", "eth0"]).code, Some(1), "detached");
    run(&host, "reset --yes").success();
    assert!(host.read("/run/netns/weft-blue_busy").is_none());
    let again = run(&host, "reset --yes").success();
    assert!(again.stdout.contains("no trial left anything"), "{again}");

    // Only bridges and empty directories of addresses remain, which no DEL removes.
    host.run(["ip", "netns", "delete", "mine"]);
    assert!(rig::link(&pod, "net1").is_some());
    of_runtime.check(&config).success();
    let names: Vec<String> = rig::links(&host);
    let ports = |snapshot: &[String]| snapshot.iter().filter(|name| name.starts_with("veth")).count();
    assert_eq!(ports(&names), 2, "{names:?}");
}

#[test]
fn reset_keeps_namespaces_that_no_killed_attach_left() {
    let host = host!(Feature::Bridge);
    // An attach whose journal reset does not know.
    let delegate = json!({ "cniVersion": "1.0.0", "name": "home", "type": "bridge", "bridge": "home0" });
    let weft =
        json!({ "type": "weft", "manifestDir": "/run/m", "cniDir": "/run/moved", "delegates": [delegate] });
    let list = json!({ "cniVersion": "1.0.0", "name": "w", "plugins": [weft] });
    host.write("/run/moved.conflist", list.to_string());
    let metadata = json!({ "name": "moved", "namespace": "blue" });
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata });
    host.write("/run/m/moved.json", pod.to_string());
    run(&host, "attach blue/moved -f /run/m --config /run/moved.conflist").success();
    // A namespace of a user, and one of a killed attach in a Kubernetes namespace demo-….
    host.run(["ip", "netns", "add", "weft-lab"]);
    host.run(["ip", "netns", "add", "weft-demo-lab_web"]);
    let done = run(&host, "reset --yes -o json").success();
    let removed = ("namespace".into(), "/run/netns/weft-demo-lab_web".into(), "removed".into());
    assert_eq!(leftovers(&done), [removed], "{done}");
    let kept = done.json()["kept"].to_string();
    for words in ["weft-blue_moved: it contains link eth0", "weft-lab: no killed command has this name"] {
        assert!(kept.contains(words), "{words}: {kept}");
    }
    for name in ["weft-lab", "weft-blue_moved"] {
        host.run(["ip", "-n", name, "link", "show", "lo"]);
    }
    run(&host, "detach blue/moved --config /run/moved.conflist").success();
    host.run(["ip", "netns", "delete", "weft-lab"]);
}
