//! Tests for networks that no plugin can attach: they are refused before the journal is written, or DEL succeeds.
//!
//! ```text
//!   weft ─┬─ eth0  bridge br1
//!         └─ net1  a plugin that calls itself, weft under another name, or a program that the kernel cannot execute
//! ```
//!
//! Source: CNI 1.1.0 §2 "DEL": plugins should complete a DEL without error even if some resources are missing.

use std::os::unix::net::UnixDatagram;

use rig::cluster::{bridge, configuration, entry_path, step};
use rig::{Cluster, assert_nothing_left, assert_pod_unchanged, links, refusal};
use serde_json::{Value, json};
use testkit::{Feature, Host, Pod, host};

/// Creates the bridge of the default network and the directories that remain on the host.
fn world(host: &Host) -> (Cluster<'_>, Value) {
    let cluster = Cluster::new(host);
    let config = configuration(&bridge("default", 1));
    cluster.pod("prime", "");
    let pod = host.pod("prime");
    cluster.attachment(&pod).add(&config).success();
    cluster.attachment(&pod).del(&config).success();
    pod.remove();
    (cluster, config)
}

fn network(plugins: &[Value]) -> Value {
    json!({ "cniVersion": "1.1.0", "name": "odd", "plugins": plugins })
}

/// Asserts that ADD is refused with this word and leaves nothing, and that each form of DEL succeeds.
#[track_caller]
fn assert_ends(label: &str, host: &Host, cluster: &Cluster<'_>, config: &Value, word: &str) {
    cluster.pod("web", "odd");
    let pod = host.pod("web");
    let (before, inside) = (host.snapshot(), pod.snapshot());
    let weft = cluster.attachment(&pod);
    let (_, message) = refusal(&weft.add(config));
    assert!(message.contains(word), "{label}: {word:?} is missing in: {message}");
    assert_eq!(cluster.entry(&pod), None, "{label}");
    assert_pod_unchanged(label, &pod, &inside);
    let _ = cluster.calls();
    assert_nothing_left(label, host, &before);
    weft.del(config).success();
    let mut gone = cluster.attachment(&pod);
    gone.netns.clear();
    gone.del(config).success();
    pod.remove();
    let _ = cluster.calls();
}

/// Asserts that GC collects a stale sandbox after an ADD of the network `odd` was refused.
#[track_caller]
fn assert_collected(host: &Host, cluster: &Cluster<'_>, config: &Value) {
    cluster.pod("stale", "");
    let (pod, stale) = (host.pod("web"), host.pod("stale"));
    cluster.attachment(&stale).add(config).success();
    let weft = cluster.attachment(&pod);
    let _ = refusal(&weft.add(config));
    rig::gc(&weft, config, Some(&[])).success();
    assert!(links(&stale).is_empty(), "GC collects the sandbox beside it");
}

// Requirements: S30
#[test]
fn ipam_type_of_an_interface_plugin_is_refused() {
    let host = host!(Feature::Bridge);
    let (cluster, config) = world(&host);
    host.run(["ln", "-s", "weft-cni", "/opt/cni/bin/other"]);
    for (kind, ipam) in [
        ("bridge", "bridge"),
        ("bridge", "ptp"),
        ("ptp", "tuning"),
        ("bridge", "cnv-bridge"),
        ("bridge", "other"),
    ] {
        let plugin = json!({ "type": kind, "bridge": "x", "ipam": { "type": ipam } });
        cluster.definition("odd", &network(&[plugin]));
        assert_ends(&format!("{kind} {ipam}"), &host, &cluster, &config, "ipam.type");
    }
    assert_collected(&host, &cluster, &config);
}

#[test]
fn delegate_that_is_weft_cni_under_any_name_is_refused() {
    let host = host!(Feature::Bridge);
    let (cluster, config) = world(&host);
    host.run(["ln", "-s", "weft-cni", "/opt/cni/bin/link"]);
    host.run(["ln", "-s", "weft", "/opt/cni/bin/further"]);
    host.run(["sh", "-c", "cp $(readlink -f /opt/cni/bin/weft-cni) /opt/cni/bin/copy"]);
    host.run(["ln", "/opt/cni/bin/copy", "/opt/cni/bin/hard"]);
    host.write("/opt/cni/bin/wrapper", "#!/bin/sh\nexec /opt/cni/bin/weft\n");
    host.write("/opt/cni/bin/unnamed", "#!/bin/sh\nexec /opt/cni/bin/weft-cni\n");
    host.run(["chmod", "755", "/opt/cni/bin/wrapper", "/opt/cni/bin/unnamed"]);
    for (kind, word) in [
        ("weft-cni", "without end"),
        ("weft", "without end"),
        ("multus", "without end"),
        ("link", "no plugin with this name"),
        ("further", "no plugin with this name"),
        ("copy", "no plugin with this name"),
        ("hard", "no plugin with this name"),
        ("unnamed", "no plugin with this name"),
        ("wrapper", "calls the meta-plugin"),
    ] {
        cluster.definition("odd", &network(&[json!({ "type": kind })]));
        assert_ends(kind, &host, &cluster, &config, word);
    }
    assert_collected(&host, &cluster, &config);
}

#[test]
fn delegate_wrapper_that_calls_itself_ends_in_time() {
    let host = host!(Feature::Bridge);
    let (cluster, config) = world(&host);
    host.write("/opt/cni/bin/again", "#!/bin/sh\nCNI_IFNAME=n$$ exec /opt/cni/bin/bridge\n");
    host.run(["chmod", "755", "/opt/cni/bin/again"]);
    let plugin = json!({ "type": "bridge", "bridge": "br1", "ipam": { "type": "again" } });
    cluster.definition("odd", &network(&[plugin]));
    assert_ends("again", &host, &cluster, &config, "without end");
}

/// Programs that the kernel does not execute: name, and the script that writes `/opt/cni/bin/odd`.
const UNEXECUTABLE: [(&str, &str); 4] = [
    (
        "of another architecture",
        r"printf '\177ELF\002\001\001\000\000\000\000\000\000\000\000\000\002\000\377\000' > $0",
    ),
    ("without interpreter", r"printf '#!/nonexistent/sh\n' > $0"),
    ("without a format", r"printf 'MZ no program' > $0"),
    ("not executable", r"printf '#!/bin/sh\n' > $0; chmod 644 $0"),
];

fn write_program(host: &Host, script: &str) {
    let whole = format!("rm -f $0; {script}; test \"${{1:-}}\" || true");
    let chmod = if script.contains("chmod") { "" } else { "; chmod 755 $0" };
    host.run(["sh", "-c", &format!("{whole}{chmod}"), "/opt/cni/bin/odd"]);
}

#[test]
fn delegate_that_cannot_be_executed_leaves_nothing() {
    let host = host!(Feature::Bridge);
    let (cluster, config) = world(&host);
    for (label, script) in UNEXECUTABLE {
        write_program(&host, script);
        for plugins in
            [vec![json!({ "type": "odd" })], vec![step("one", &json!({})), json!({ "type": "odd" })]]
        {
            cluster.definition("odd", &network(&plugins));
            assert_ends(label, &host, &cluster, &config, "odd");
        }
        let addressed = json!({ "type": "bridge", "bridge": "br1", "ipam": { "type": "odd" } });
        cluster.definition("odd", &network(&[addressed]));
        assert_ends(label, &host, &cluster, &config, "odd");
    }
    host.run(["sh", "-c", "rm /opt/cni/bin/odd; mkdir /opt/cni/bin/odd"]);
    cluster.definition("odd", &network(&[json!({ "type": "odd" })]));
    assert_ends("a directory", &host, &cluster, &config, "odd");
    assert_collected(&host, &cluster, &config);
}

#[test]
fn data_directory_that_leads_nowhere_ends_with_del() {
    let host = host!(Feature::Bridge);
    let (cluster, config) = world(&host);
    host.run(["ln", "-s", "/run/cni/loop", "/run/cni/loop"]);
    host.write("/run/cni/file", "");
    let long = format!("/run/{}", "d".repeat(300));
    let deep = format!("/run{}", "/dddd".repeat(1000));
    let bridge = |ipam: Value| json!({ "type": "bridge", "bridge": "br1", "ipam": ipam });
    for directory in [&long, &deep, "/run/cni/loop/d", "/run/cni/loop", "/run/cni/file/d", "/run/cni/file"] {
        let ranges = json!({ "type": "host-local", "subnet": "10.60.0.0/24", "dataDir": directory });
        cluster.definition("odd", &network(&[bridge(ranges)]));
        let label = format!("host-local {}", &directory[..directory.len().min(20)]);
        assert_ends(&label, &host, &cluster, &config, "");
        let ranges = json!({ "type": "weft-ipam", "range": "10.61.0.0/24", "dataDir": directory });
        cluster.definition("odd", &network(&[bridge(ranges)]));
        assert_ends(&label.replace("host-local", "weft-ipam"), &host, &cluster, &config, "");
        let tuned = json!({ "type": "tuning", "promisc": true, "dataDir": directory });
        cluster.definition("odd", &network(&[bridge(json!({})), tuned]));
        assert_ends(&label.replace("host-local", "tuning"), &host, &cluster, &config, "");
    }
    host.within(|| drop(UnixDatagram::bind("/run/cni/datagram").expect("bind a socket")));
    for socket in ["/run/cni/loop", "/run/cni/file", "/run/cni/file/d", "/run/cni", "/run/cni/datagram"] {
        let leased = json!({ "type": "dhcp", "daemonSocketPath": socket });
        cluster.definition("odd", &network(&[bridge(leased)]));
        assert_ends(&format!("dhcp {socket}"), &host, &cluster, &config, "");
    }
}

/// Listens on a socket as a daemon that is not of weft: what it does with each connection.
const DAEMONS: [(&str, &str); 4] = [
    ("closes", "pass"),
    ("answers HTTP", "c.recv(65536); c.send(b'HTTP/1.1 400 Bad Request\\r\\n\\r\\n')"),
    ("answers JSON", "c.recv(65536); c.send(b'\\0\\0\\0\\2[]')"),
    ("answers nothing", "c.recv(65536); c.send(b'\\0\\0\\0\\5ab')"),
];

#[test]
fn dhcp_socket_of_another_daemon_ends_with_del() {
    let host = host!(Feature::Bridge);
    let (cluster, config) = world(&host);
    let leased = json!({ "type": "dhcp", "daemonSocketPath": "/run/cni/other.sock" });
    for (label, answer) in DAEMONS {
        let script = format!(
            "import socket, os\ns = socket.socket(socket.AF_UNIX)\ns.bind('/run/cni/other.sock')\ns.listen(9)\n\
             while True:\n    c, _ = s.accept()\n    {answer}\n    c.close()\n"
        );
        let daemon = host.command("/usr/bin/python3").args(["-c", &script]).start();
        let listens = || host.attempt(["test", "-S", "/run/cni/other.sock"]).code == Some(0);
        rig::machine::until("the daemon listens", || listens().then_some(()));
        let plugin = json!({ "type": "bridge", "bridge": "br1", "ipam": leased });
        cluster.definition("odd", &network(&[plugin]));
        assert_ends(label, &host, &cluster, &config, "dhcp");
        // After a killed ADD, too.
        cluster.definition("odd", &network(&[json!({ "type": "bridge", "bridge": "br1" })]));
        cluster.pod("web", "odd");
        let pod = host.pod("web");
        let weft = cluster.attachment(&pod);
        weft.add(&config).success();
        let entry = host.read(entry_path(&pod)).expect("an entry");
        let plan = entry.lines().next().expect("a plan");
        let own = r#"\"type\":\"bridge\""#;
        let (head, rest) = plan.rsplit_once(own).expect("the network");
        let ipam = r#",\"ipam\":{\"type\":\"dhcp\",\"daemonSocketPath\":\"/run/cni/other.sock\"}"#;
        host.write(entry_path(&pod), format!("{head}{own}{ipam}{rest}"));
        rig::gc(&weft, &config, Some(&[])).success();
        weft.del(&config).success();
        pod.remove();
        drop(daemon);
        host.run(["rm", "-f", "/run/cni/other.sock"]);
    }
}

/// Writes the entry that a killed ADD of the pod leaves before the first network is attached.
#[track_caller]
fn leave_killed_add(host: &Host, pod: &Pod) {
    let text = host.read(entry_path(pod)).expect("an entry");
    let entry = text.lines().next().expect("a plan");
    host.write(entry_path(pod), entry);
}

#[test]
fn killed_add_of_a_program_that_never_ran_ends_with_del() {
    let host = host!(Feature::Bridge);
    let (cluster, config) = world(&host);
    for (label, script) in UNEXECUTABLE {
        host.run(["ln", "-sf", "one", "/opt/cni/bin/odd"]);
        cluster.definition("odd", &network(&[step("odd", &json!({}))]));
        cluster.pod("web", "odd");
        let pod = host.pod("web");
        let weft = cluster.attachment(&pod);
        weft.add(&config).success();
        leave_killed_add(&host, &pod);
        write_program(&host, script);
        weft.del(&config).success();
        assert_eq!(cluster.entry(&pod), None, "{label}");
        pod.remove();
    }
}

#[test]
fn failed_add_excuses_plugins_that_it_did_not_reach() {
    let host = host!(Feature::Bridge);
    let (cluster, config) = world(&host);
    let refuses = json!({ "ADD": [{ "do": "fail", "code": 11, "message": "no room" }] });
    let broken = json!({ "DEL": [{ "do": "fail", "code": 111, "message": "stuck" }] });
    cluster.definition("odd", &network(&[step("one", &refuses), step("two", &broken)]));
    assert_ends("not reached", &host, &cluster, &config, "no room");
    // The one that ran is not excused.
    let both = json!({ "ADD": refuses["ADD"], "DEL": broken["DEL"] });
    cluster.definition("odd", &network(&[step("one", &both), step("two", &json!({}))]));
    cluster.pod("web", "odd");
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    let (_, message) = refusal(&weft.add(&config));
    assert!(message.contains("not undone") && message.contains("stuck"), "{message}");
    assert_ne!(weft.del(&config).code, Some(0));
}
