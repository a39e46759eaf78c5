//! Tests for the call history, and for the trace context that the meta-plugin passes on.
//!
//! ```text
//!   weft-cni ──► /var/lib/weft/history/{failures,successes}.jsonl ──► weft history
//! ```

use rig::cluster::{configuration, recording};
use rig::{Cluster, assert_refused, links};
use serde_json::{Value, json};
use testkit::{Finished, Host, host};

const HISTORY: &str = "/var/lib/weft/history";

fn history(host: &Host, words: &str) -> Finished {
    let command = host.command(testkit::binary("weft")).clean_environment().args(["history"]);
    command.args(words.split_whitespace()).finish().success()
}

fn failing(message: &str) -> Value {
    json!({ "ADD": [{ "do": "fail", "code": 123, "message": message }] })
}

#[test]
fn history_has_failures_and_successes_of_a_pod() {
    let host = host!();
    let cluster = Cluster::new(&host);
    let config = configuration(&recording("home", "one", &json!({})));
    cluster.recording("bad", "two", &failing("no\u{1b}[2J room"));
    cluster.pod("web", "bad");
    let pod = host.pod("web");
    let call = cluster.attachment(&pod);
    assert_refused("ADD", &call.add(&config), 123, &["room"]);
    let records = history(&host, "-n blue web -o json").json();
    assert_eq!(records.as_array().map(Vec::len), Some(1), "{records}");
    let failed = &records[0];
    assert_eq!(failed["pod"]["namespace"], "blue", "{failed}");
    assert_eq!((&failed["verb"], &failed["failedStage"]), (&json!("ADD"), &json!("two")), "{failed}");
    assert_eq!(failed["error"]["code"], 123, "{failed}");
    assert!(failed["error"]["msg"].as_str().unwrap().contains("no [2J room"), "{failed}");
    let networks = json!([
        { "network": "home", "interface": "eth0", "plugin": "one" },
        { "network": "blue/bad", "interface": "net1", "plugin": "two" },
    ]);
    assert_eq!(failed["networks"], networks);
    // The cause is removed.
    cluster.recording("bad", "two", &json!({}));
    call.add(&config).success();
    call.del(&config).success();
    let records = history(&host, "-n blue web -o json").json();
    let verbs: Vec<&str> = records.as_array().unwrap().iter().map(|r| r["verb"].as_str().unwrap()).collect();
    assert_eq!(verbs, ["ADD", "ADD", "DEL"]);
    assert!(records[1].get("error").is_none() && records[1]["microseconds"].as_u64() > Some(0), "{records}");
    let table = history(&host, "").stdout;
    assert!(
        table.contains("failed (two): ") && table.contains("eth0 home (one), net1 blue/bad (two)"),
        "{table}"
    );
    assert!(!table.contains('\u{1b}'), "{table:?}");
    assert_eq!(history(&host, "--failed").stdout.lines().count(), 2, "heading and failure");
    let timeline = history(&host, "-n blue web --timeline").stdout;
    let stages: Vec<&str> =
        timeline.lines().skip(2).filter_map(|line| line.split("  ").next()).map(str::trim).collect();
    assert_eq!(
        stages,
        [
            "configuration",
            "ready",
            "lock",
            "leftovers",
            "plan",
            "journal",
            "one ADD eth0",
            "two ADD net1",
            "verify"
        ]
    );
    let yaml = history(&host, "-n blue web -o yaml --last 1").stdout;
    assert!(yaml.contains("verb: DEL") && !yaml.contains("verb: ADD"), "{yaml}");
    assert_eq!(history(&host, "-n red web").stdout, "no calls of pod red/web are recorded\n");
    let mode = |path: &str| host.run(["stat", "-c", "%a", path]);
    assert_eq!(
        (mode(HISTORY).as_str(), mode(&format!("{HISTORY}/failures.jsonl")).as_str()),
        ("700\n", "600\n")
    );
}

#[test]
fn history_that_is_damaged_or_unwritable_fails_no_call() {
    let host = host!();
    let cluster = Cluster::new(&host);
    let config = configuration(&recording("home", "one", &json!({})));
    cluster.pod("web", "");
    let pod = host.pod("web");
    for damage in [
        "touch history",
        "mkdir history; mkfifo history/successes.jsonl history/failures.jsonl",
        "mkdir -p history/successes.jsonl history/failures.jsonl",
        "ln -s /nowhere/else history",
        "mkdir history; head -c 2000000 /dev/urandom >history/successes.jsonl",
    ] {
        host.run([
            "sh",
            "-ec",
            &format!("mkdir -p /var/lib/weft; cd /var/lib/weft; rm -rf history; {damage}"),
        ]);
        let call = cluster.attachment(&pod);
        call.add(&config).success();
        assert_refused(damage, &call.add(&config), 4, &["already attached"]);
        call.del(&config).success();
        assert!(links(&pod).is_empty(), "{damage}");
    }
    // The file without records was replaced, and the history continues.
    let records = history(&host, "-o json").json();
    assert_eq!(records.as_array().map(Vec::len), Some(3), "{records}");
}

#[test]
fn history_on_a_full_disk_fails_no_call_and_continues() {
    let host = host!();
    let cluster = Cluster::new(&host);
    let config = configuration(&recording("home", "one", &json!({})));
    cluster.pod("web", "");
    let pod = host.pod("web");
    host.run(["mkdir", "-p", HISTORY]);
    host.run(["mount", "-t", "tmpfs", "-o", "size=16k,mode=700", "history", HISTORY]);
    let cycle = |refusals: usize| {
        let call = cluster.attachment(&pod);
        call.add(&config).success();
        (0..refusals).for_each(|_| assert_refused("full", &call.add(&config), 4, &["already attached"]));
        call.del(&config).success();
        assert!(links(&pod).is_empty());
    };
    let count = |words: &str| history(&host, words).json().as_array().map_or(0, Vec::len);
    cycle(1);
    assert_eq!(count("-o json"), 3);
    // The disk is full after a part of a record.
    host.attempt(["sh", "-c", &format!("head -c 100000 /dev/zero >{HISTORY}/filler")]);
    assert_eq!(host.run(["stat", "-fc", "%f", HISTORY]).trim(), "0", "free blocks");
    for _ in 0..12 {
        cycle(2);
    }
    // The last page of each file takes some records, and a record that is cut is skipped.
    let kept = count("-o json --last 1000");
    assert!((3..40).contains(&kept), "{kept}");
    host.run(["rm", &format!("{HISTORY}/filler")]);
    cycle(1);
    assert_eq!(count("-o json --last 1000"), kept + 3);
}

#[test]
fn trace_context_of_the_runtime_reaches_delegates() {
    let host = host!();
    let cluster = Cluster::new(&host);
    let config = configuration(&recording("home", "one", &json!({})));
    cluster.pod("web", "");
    let pod = host.pod("web");
    let mut call = cluster.attachment(&pod);
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let context = [
        ("TRACEPARENT", format!("00-{trace}-00f067aa0ba902b7-01")),
        ("TRACESTATE", "vendor=a".to_owned()),
        ("BAGGAGE", "user=b".to_owned()),
    ];
    call.through = std::iter::once("env".to_owned())
        .chain(context.iter().map(|(name, value)| format!("{name}={value}")))
        .collect();
    call.add(&config).success();
    call.del(&config).success();
    let calls = cluster.calls();
    assert_eq!(calls.len(), 2);
    for made in &calls {
        for (name, value) in &context {
            assert_eq!(made.environment(name), value, "{name} of {}", made.command);
        }
    }
    let records = history(&host, "-n blue web -o json").json();
    assert_eq!((&records[0]["trace"], &records[1]["trace"]), (&json!(trace), &json!(trace)), "{records}");
}
