//! `weft doctor`: it finds what is wrong, and nothing where nothing is.

#![cfg(test)]

use serde_json::Value;
use testkit::{Feature, Finished, Host, host, workspace};

const SANDBOX: &str = "my-namespace_my-pod";

fn run(host: &Host, line: &str) -> Finished {
    let _ = testkit::binary("weft-cni");
    let weft = host.command(testkit::binary("weft")).clean_environment();
    weft.args(line.split_whitespace()).finish()
}

fn findings(host: &Host) -> Vec<Value> {
    let finished = run(host, "doctor -o json");
    let found = finished.json().as_array().expect("a list").clone();
    assert_eq!(finished.code, Some(i32::from(!found.is_empty())), "{finished}");
    found
}

#[test]
fn it_finds_what_changed_what_failed_and_what_is_nobodys() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    let examples = workspace().join("examples");
    host.run(["mkdir", "-p", "/etc/cni/net.d"]);
    let configuration = std::fs::read_to_string(examples.join("10-weft.conflist")).expect("an example");
    host.write("/etc/cni/net.d/10-weft.conflist", configuration);
    run(&host, &format!("attach -f {} --pod my-namespace/my-pod", examples.display())).success();
    let quiet = run(&host, "doctor").success();
    assert!(quiet.stdout.contains("nothing is wrong; 1 sandboxes"), "{quiet}");

    // Somebody took an interface away.
    host.run(["ip", "-n", &format!("weft-{SANDBOX}"), "link", "delete", "net1"]);
    let found = findings(&host);
    let [changed] = found.as_slice() else { panic!("{found:?}") };
    assert!(changed["why"].as_str().unwrap().contains("net1"), "{changed}");

    // The journal is lost: what is left is nobody's.
    let entry = format!("/var/lib/weft/sandboxes/{SANDBOX}.json");
    let kept = host.read(&entry).expect("an entry");
    host.run(["rm", &entry]);
    let found = findings(&host);
    let whats: Vec<&str> = found.iter().map(|finding| finding["what"].as_str().unwrap()).collect();
    assert!(whats.iter().filter(|what| what.starts_with("link veth")).count() >= 3, "{whats:?}");
    assert!(whats.contains(&"element of inet weft_masquerade sources4"), "{whats:?}");
    assert!(found.iter().all(|finding| finding["why"].as_str().unwrap().contains(SANDBOX)), "{found:?}");

    // It cannot be read; then it can, and its namespace is gone.
    host.write(&entry, "{");
    assert!(findings(&host).iter().any(|finding| finding["what"] == format!("journal entry {SANDBOX}")));
    host.write(&entry, kept);
    host.run(["ip", "netns", "delete", &format!("weft-{SANDBOX}")]);
    let found = findings(&host);
    assert!(found[0]["why"].as_str().unwrap().contains("is gone"), "{found:?}");
    run(&host, "detach --pod my-namespace/my-pod").success();
    run(&host, "doctor").success();
}
