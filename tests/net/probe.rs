//! Tests for `weft probe`, the program that runs in the pods which `weft test` creates, without privilege.
//!
//! ```text
//!   pod db: weft probe ── net1 ── bridge br2 of the host ── net1 ── pod web: weft probe --to
//! ```

use std::time::Duration;

use rig::Cluster;
use rig::cluster::{bridge, configuration};
use serde_json::{Value, json};
use testkit::{Command, Feature, Host, Pod, host};

const TOKEN: &str = "1f-00a3c";
const REPORT: &str = "/run/report";

/// Attaches two pods to the network `red`, whose pods have both families.
fn attached(host: &Host) -> [Pod; 2] {
    let cluster = Cluster::new(host);
    let mut red = bridge("red", 2);
    red["plugins"][0]["ipam"]["ranges"] = json!([[{ "subnet": "10.2.0.0/24" }], [{ "subnet": "fd02::/64" }]]);
    cluster.definition("red", &red);
    let _ = testkit::binary("weft-cni");
    ["db", "web"].map(|name| {
        cluster.pod(name, "red");
        let pod = host.pod(name);
        cluster.attachment(&pod).add(&configuration(&bridge("home", 1))).success();
        pod
    })
}

/// Runs `weft probe` in a pod as the user of `weft test`, without any capability.
fn probe_with(token: &str, pod: &Pod, words: &[&str]) -> Command {
    let user = ["--reuid=65532", "--regid=65532", "--clear-groups", "--bounding-set=-all", "--no-new-privs"];
    let weft = testkit::binary("weft").display().to_string();
    let fixed = [weft.as_str(), "probe", "--interface=net1", "--token", token];
    pod.command("setpriv")
        .clean_environment()
        .args(user)
        .args(fixed)
        .args(words)
        .deadline(Duration::from_secs(60))
}

fn probe(pod: &Pod, words: &[&str]) -> Command {
    probe_with(TOKEN, pod, words)
}

fn addresses(pod: &Pod) -> Vec<String> {
    let all = rig::addresses_on(pod, "net1").into_iter().filter(|address| !address.starts_with("fe80"));
    all.map(|address| address.split('/').next().unwrap_or_default().to_owned()).collect()
}

/// Sends to all addresses of `db`, and returns the report.
fn report(web: &Pod, db: &Pod) -> Value {
    let to: Vec<String> = addresses(db).iter().map(|address| format!("--to={address}")).collect();
    let words: Vec<&str> = to.iter().map(String::as_str).collect();
    probe(web, &words).finish().success().json()
}

#[test]
fn probe_replies_measure_time_and_mtu_without_privilege() {
    let host = host!(Feature::Bridge, Feature::Veth);
    let [db, web] = attached(&host);
    let mut answering = probe(&db, &[]).start_tied();
    let found = report(&web, &db);
    assert_eq!(found["mtu"], 1500, "{found}");
    let replies = found["replies"].as_array().expect("replies");
    assert_eq!(replies.len(), 2, "{found}");
    for reply in replies {
        assert!(reply["microseconds"].as_u64().is_some_and(|time| time > 0), "{found}");
        assert_eq!(reply["largest"], 1500, "{found}");
    }
    // The report is also written to a file that exists, as the kubelet provides it.
    host.write(REPORT, "");
    host.run(["chmod", "666", REPORT]);
    let to = format!("--to={}", addresses(&db)[0]);
    probe(&web, &[&to, "--report", REPORT]).finish().success();
    let written: Value = serde_json::from_str(&host.read(REPORT).expect("a report")).expect("JSON");
    assert_eq!(written["replies"][0]["largest"], 1500, "{written}");
    // Another run is not answered.
    let other = probe_with("another", &web, &[&to]).finish().success().json();
    assert!(other["replies"][0]["microseconds"].is_null(), "{other}");
    answering.end();
}

#[test]
fn probe_reports_a_path_with_a_smaller_mtu() {
    let host = host!(Feature::Bridge, Feature::Veth);
    let [db, web] = attached(&host);
    let mut answering = probe(&db, &[]).start_tied();
    // The port of the host drops larger frames without a message.
    let link = &db.json(["ip", "-j", "link", "show", "net1"])[0];
    let port = link["link_index"].as_u64().expect("the other end");
    let all = host.json(["ip", "-j", "link"]);
    let name = all.as_array().expect("links").iter().find(|link| link["ifindex"] == port).expect("the port");
    host.run(["ip", "link", "set", name["ifname"].as_str().expect("a name"), "mtu", "1400"]);
    let found = report(&web, &db);
    for reply in found["replies"].as_array().expect("replies") {
        assert!(reply["microseconds"].is_u64() && reply["largest"].is_null(), "{found}");
    }
    answering.end();
    // Nothing answers any more.
    let found = report(&web, &db);
    assert!(found["replies"][0]["microseconds"].is_null(), "{found}");
}
