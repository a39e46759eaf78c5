//! Tests for the network namespaces that `weft attach` creates: one with the same name that no killed attach
//! left is neither used nor deleted.

use serde_json::json;
use testkit::{Feature, Finished, Host, host, workspace};

use crate::command_line::{FAILED, assert_failed, run};

const POD: &str = "my-namespace/my-pod";
const NETNS: &str = "weft-my-namespace_my-pod";

fn attach(host: &Host, words: &str) -> Finished {
    run(host, &format!("attach {POD} -f {} {words}", workspace().join("examples").display()))
}

fn exists(host: &Host, name: &str) -> bool {
    host.attempt(["ip", "-n", name, "link", "show", "lo"]).code == Some(0)
}

/// Starts a process in a namespace, which ends with the returned value.
fn process_in(host: &Host, name: &str) -> impl Sized + use<> {
    let running = host.command("ip").args(["netns", "exec", name, "sleep", "600"]).start_tied();
    rig::machine::until("the process runs", || {
        let found = host.attempt(["ip", "netns", "pids", name]);
        (!found.stdout.trim().is_empty()).then_some(())
    });
    running
}

#[test]
fn attach_replaces_a_netns_that_a_killed_attach_left() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    host.run(["ip", "netns", "add", NETNS]);
    let found = attach(&host, "").success();
    assert!(found.stdout.contains(&format!("removed /run/netns/{NETNS}, left by an interrupted")), "{found}");
    run(&host, &format!("detach {POD}")).success();
    assert!(!exists(&host, NETNS));
    host.run(["ip", "netns", "add", NETNS]);
    run(&host, &format!("detach {POD}")).success();
    assert!(!exists(&host, NETNS));
    // An attach that was killed before its namespace was mounted.
    host.write(format!("/run/netns/{NETNS}"), "");
    attach(&host, "").success();
    run(&host, &format!("detach {POD}")).success();
    assert!(host.read(format!("/run/netns/{NETNS}")).is_none());
}

#[test]
fn attach_and_detach_keep_a_netns_with_content_or_a_process() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    host.run(["ip", "netns", "add", NETNS]);
    host.run(["ip", "-n", NETNS, "link", "add", "mine", "type", "bridge"]);
    let before = host.snapshot();
    let refused = attach(&host, "");
    let words =
        [&format!("attach {POD}: namespace /run/netns/{NETNS} already exists"), "link mine", "--netns"];
    assert_failed(&refused, FAILED, &words);
    let kept = run(&host, &format!("detach {POD}")).success();
    assert!(kept.stdout.contains(&format!("kept /run/netns/{NETNS}: it contains link mine")), "{kept}");
    host.run(["ip", "-n", NETNS, "link", "show", "mine"]);

    host.run(["ip", "-n", NETNS, "link", "delete", "mine"]);
    let running = process_in(&host, NETNS);
    assert_failed(&attach(&host, ""), FAILED, &["already exists: process "]);
    let kept = run(&host, &format!("detach {POD}")).success();
    assert!(kept.stdout.contains(": process "), "{kept}");
    assert!(exists(&host, NETNS));
    drop(running);
    host.run(["ip", "-n", NETNS, "link", "add", "mine", "type", "bridge"]);
    host.assert_unchanged(&before);
    host.run(["ip", "netns", "delete", NETNS]);
}

#[test]
fn attach_and_detach_keep_a_netns_of_another_name_or_sandbox() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    // The name is none of a pod.
    host.run(["ip", "netns", "add", "weft-lab"]);
    let unknown = "no killed command has this name";
    assert_failed(&attach(&host, "--container-id lab"), FAILED, &["/run/netns/weft-lab", unknown]);
    let kept = run(&host, "detach --container-id lab").success();
    assert!(kept.stdout.contains(unknown), "{kept}");
    assert!(exists(&host, "weft-lab"));

    // Another sandbox uses it, without an interface in it.
    host.run(["ip", "netns", "add", NETNS]);
    attach(&host, &format!("--container-id c-1 --netns /run/netns/{NETNS}")).success();
    let kept = run(&host, "detach --container-id my-namespace_my-pod").success();
    assert!(kept.stdout.contains("a sandbox of the journal uses it"), "{kept}");
    assert_failed(&attach(&host, ""), FAILED, &["a sandbox of the journal uses it"]);
    run(&host, "check --container-id c-1").success();
    run(&host, "detach --container-id c-1").success();
    for name in [NETNS, "weft-lab"] {
        host.run(["ip", "netns", "delete", name]);
    }
}

#[test]
fn detach_keeps_a_netns_that_replaced_the_one_of_the_sandbox() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    attach(&host, "").success();
    let path = format!("/run/netns/{NETNS}");
    // The kernel usually gives the inode of the first namespace to the second one.
    host.run(["ip", "netns", "delete", NETNS]);
    host.run(["ip", "netns", "add", NETNS]);
    host.run(["ip", "-n", NETNS, "link", "add", "mine", "type", "bridge"]);
    let kept = run(&host, &format!("detach {POD}")).success();
    assert!(
        kept.stdout.contains(&format!("kept {path}: another namespace: it contains link mine")),
        "{kept}"
    );
    host.run(["ip", "-n", NETNS, "link", "show", "mine"]);
    assert_eq!(run(&host, "list -o json").success().json(), json!([]));
    host.run(["ip", "netns", "delete", NETNS]);
}
