//! Tests for the meta-plugin's `logFile`, `logLevel`, `logToStderr` and `logOptions`.
//!
//! ```text
//!   weft ── lines ──┬─► stderr (logToStderr)
//!                   └─► logFile ── maxSize ──► NAME-TIME.log, removed by maxBackups and maxAge
//! ```
//!
//! Source: Multus `docs/configuration.md`, "Logging options"; the invariants in `crates/plugin-support/src/log_file.rs`.

use rig::Cluster;
use rig::cluster::{configuration, recording};
use rig::{assert_refused, with};
use serde_json::{Value, json};
use testkit::{Attachment, Host, host};

const LOG: &str = "/var/log/multus.log";

/// Creates a pod with two networks of recording plugins; returns attachment and configuration.
fn attachment(host: &Host) -> (Attachment<'_>, Value) {
    let cluster = Cluster::new(host);
    cluster.recording("red", "two", &json!({}));
    cluster.pod("web", "red");
    let mut weft = cluster.attachment(&host.pod("web"));
    weft.plugin = "multus".to_owned();
    (weft, configuration(&recording("default", "one", &json!({}))))
}

#[test]
fn log_file_has_the_lines_of_its_level() {
    for (level, words, absent) in [
        ("", &[][..], &["DEL"][..]),
        ("panic", &[], &["DEL", "zzz", "unknown"]),
        ("error", &["[error] weft: ", "zzz"], &["[verbose]", "[debug]"]),
        (
            "Verbose",
            &["[verbose] weft: pod blue/web (", "net1: network blue/red", "eth0: succeeded"],
            &["[debug]"],
        ),
        ("debug", &["[debug] weft: two ADD net1: succeeded after ", "[debug] weft: net1: network "], &[]),
    ] {
        let host = host!();
        let (weft, config) = attachment(&host);
        let config =
            with(&config, &json!({ "logFile": LOG, "logLevel": level, "zzz": 1, "logToStderr": false }));
        let added = weft.add(&config).success();
        assert_eq!(added.stderr, "", "{level}: logToStderr is false");
        weft.del(&config).success();
        let text = host.read(LOG).expect("the log file");
        for word in words {
            assert!(text.contains(word), "{level}: {word}: {text}");
        }
        for word in absent {
            assert!(!text.contains(word), "{level}: {word}: {text}");
        }
        assert_eq!(host.run(["stat", "-c", "%a %u", LOG]).trim(), "600 0", "{level}");
    }
}

#[test]
fn log_file_contains_the_error_of_a_call() {
    let host = host!();
    let (weft, config) = attachment(&host);
    let config = with(&config, &json!({ "logFile": LOG }));
    host.run(["rm", "/opt/cni/bin/two"]);
    assert_refused("ADD", &weft.add(&config), 7, &["\"two\""]);
    let text = host.read(LOG).expect("the log file");
    assert!(text.contains("[error] weft: ADD ") && text.contains("\"two\""), "{text}");
    // DEL also writes to it if the configuration is otherwise invalid.
    let invalid = with(&config, &json!({ "delegates": 7, "logLevel": "verbose" }));
    weft.del(&invalid).success();
    assert!(host.read(LOG).is_some_and(|text| text.contains("weft: DEL ")), "{:?}", host.read(LOG));
}

#[test]
fn log_file_that_cannot_be_written_fails_no_call() {
    let host = host!();
    let (weft, config) = attachment(&host);
    let config = with(&config, &json!({ "logFile": LOG, "logLevel": "debug", "logToStderr": false }));
    host.run(["mkdir", "-p", "/var/log", "/var/full"]);
    host.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", "/var/full"]);
    host.run(["sh", "-c", "head -c 4096 /dev/zero >/var/full/all"]);
    host.write("/var/log/victim", "kept");
    for (label, spoil) in [
        ("a symbolic link", "ln -s /var/log/victim $0"),
        ("a hard link", "ln /var/log/victim $0"),
        ("a directory", "mkdir $0"),
        ("a pipe", "mkfifo $0"),
        ("a full disk", "mount --bind /var/full /var/log"),
        ("a directory that is read-only", "mount -o remount,ro,bind /var/log"),
    ] {
        host.run(["sh", "-c", &format!("rm -rf $0; {spoil}"), LOG]);
        let added = weft.add(&config).success();
        weft.del(&config).success();
        let is_mounted = label.contains("disk") || label.contains("read-only");
        assert!(is_mounted || host.read("/var/log/victim").as_deref() == Some("kept"), "{label}");
        // A full disk takes the file, but no line.
        assert_eq!(
            added.stderr.contains("logFile: \"/var/log/multus.log\": "),
            label != "a full disk",
            "{label}: {added}"
        );
    }
}

#[test]
fn log_options_limit_size_and_number_of_files() {
    let host = host!();
    let (weft, config) = attachment(&host);
    let options = json!({ "maxSize": 1, "maxBackups": 1, "maxAge": 5, "compress": false });
    let config = with(&config, &json!({ "logFile": LOG, "logLevel": "verbose", "logOptions": options }));
    let old = "/var/log/multus-2001-01-01T00-00-00.000.log";
    host.write(old, "old");
    for round in 0..2 {
        host.run(["sh", "-c", "head -c 1048570 /dev/zero >$0", LOG]);
        weft.add(&config).success();
        weft.del(&config).success();
        let names = host.run(["ls", "/var/log"]);
        let names: Vec<&str> = names.lines().filter(|name| name.starts_with("multus")).collect();
        assert_eq!(names.len(), 2, "round {round}: {names:?}");
        assert!(!names.contains(&"multus-2001-01-01T00-00-00.000.log"), "round {round}: {names:?}");
        assert!(
            host.read(LOG).is_some_and(|text| text.contains("ADD") && text.contains("DEL")),
            "round {round}"
        );
    }
}
