//! Tests for names that a pod chooses, in the output that every command shows: ESC, HTML, and right-to-left
//! text.
//!
//! ```text
//!   pod web  <b>x ── bridge br2 ── <b>x  pod db
//!            <b>CSI 2J, a link of a process in the pod
//! ```
//!
//! A selection may not name an interface with control characters; a process in the pod may.

use std::time::Duration;

use rig::Cluster;
use rig::cluster::{MANIFESTS, bridge, configuration, recording};
use serde_json::{Value, json};
use testkit::{Feature, Finished, Host, host};

/// Text that an annotation, a plugin or a process in a pod may choose.
const HOSTILE: &str = "<b>\u{1b}[2J\u{202e}y";
/// Name of an interface that a selection may choose.
const INTERFACE: &str = "<b>x";
/// Part of both texts that is shown.
const SHOWN: &str = "<b>";

fn weft(host: &Host, line: &str) -> Finished {
    let command = host.command(testkit::binary("weft")).clean_environment();
    command.args(line.split_whitespace()).deadline(Duration::from_secs(60)).finish()
}

/// Asserts that a command shows the name, and no character that controls a terminal.
#[track_caller]
fn assert_plain(finished: &Finished) {
    let is_hostile = |c: char| c != '\n' && (c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c));
    for text in [&finished.stdout, &finished.stderr] {
        assert!(!text.contains(is_hostile), "{text:?}");
    }
    assert!(finished.stdout.contains(SHOWN) || finished.stderr.contains(SHOWN), "{finished}");
}

#[test]
fn hostile_names_are_plain_text_in_the_output_of_commands() {
    let host = host!(Feature::Bridge, Feature::Veth);
    let cluster = Cluster::new(&host);
    let _ = testkit::binary("weft-cni");
    cluster.definition("red", &bridge("red", 2));
    let config = configuration(&bridge("home", 1));
    // The planner refuses the name, and says so.
    cluster.pod("odd", json!([{ "name": "red", "interface": HOSTILE }]).to_string());
    for line in ["explain -n blue odd", "explain -n blue odd -o json"] {
        let explained = weft(&host, &format!("{line} -f {MANIFESTS}"));
        assert!(explained.stdout.contains("is not an interface name"), "{explained}");
        assert_plain(&explained);
    }
    let selection = json!([{ "name": "red", "interface": INTERFACE }]);
    let [web, db] = ["web", "db"].map(|name| {
        cluster.pod(name, selection.to_string());
        let pod = host.pod(name);
        cluster.attachment(&pod).add(&config).success();
        pod
    });
    for line in [
        "list",
        "list -o json",
        "list -o yaml",
        "history -n blue web",
        "history -n blue web --timeline",
        "history -n blue web -o json",
        "history -n blue web -o yaml",
        &format!("explain -n blue web -f {MANIFESTS}"),
        &format!("explain -n blue web -f {MANIFESTS} -o json"),
        "trace -n blue web db --network red",
        "trace -n blue web db --network red -o json",
    ] {
        assert_plain(&weft(&host, line).success());
    }
    // A process in the pod leads packets to a link of its own.
    let address =
        rig::addresses_on(&db, INTERFACE).into_iter().find(|ip| ip.starts_with("10.")).expect("an address");
    let address = address.split('/').next().expect("an address");
    let own = format!("{SHOWN}\u{9b}2J\u{202e}y");
    web.run(["ip", "link", "add", &own, "type", "veth", "peer", "name", "p"]);
    web.run(["ip", "link", "set", &own, "up"]);
    web.run(["ip", "route", "add", address, "dev", &own]);
    for line in ["trace -n blue web db --network red", "trace -n blue web db --network red -o yaml"] {
        let traced = weft(&host, line);
        assert!(traced.code == Some(1) && traced.stdout.contains("leave by <b>"), "{traced}");
        assert_plain(&traced);
    }
    db.run(["ip", "link", "set", INTERFACE, "down"]);
    db.run(["ip", "link", "set", INTERFACE, "name", &own]);
    for line in ["doctor", "doctor -o json", "trace -n blue web db --network red"] {
        let found = weft(&host, line);
        assert_eq!(found.code, Some(1), "{found}");
        assert_plain(&found);
    }
}

#[test]
fn hostile_message_of_a_plugin_is_plain_text_in_the_history() {
    let host = host!();
    let cluster = Cluster::new(&host);
    let message: Value = json!({ "ADD": [{ "do": "fail", "code": 123, "message": HOSTILE }] });
    cluster.recording("bad", "two", &message);
    cluster.pod("web", "bad");
    let pod = host.pod("web");
    let refused = cluster.attachment(&pod).add(&configuration(&recording("home", "one", &json!({}))));
    assert_ne!(refused.code, Some(0), "{refused}");
    for line in
        ["history", "history --failed -o json", "history --failed -o yaml", "history -n blue web --timeline"]
    {
        assert_plain(&weft(&host, line).success());
    }
}
