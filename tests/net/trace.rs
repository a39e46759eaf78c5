//! Tests for `weft trace`: each defect on the path between two pods is found at the right step.
//!
//! ```text
//!   pod web net1 ── port ── bridge br2 of the host ── port ── net1 pod db
//! ```
//!
//! The fault is made with `ip`, `bridge` and `nft`, as an operator or a process in a pod would.

use std::time::{Duration, Instant};

use rig::Cluster;
use rig::cluster::{bridge, configuration};
use serde_json::{Value, json};
use testkit::{Feature, Finished, Host, Pod, Running, host};

/// Two attached pods of the network `red`.
struct Path<'a> {
    host: &'a Host,
    web: Pod,
    db: Pod,
}

impl<'a> Path<'a> {
    fn new(host: &'a Host, red: &Value) -> Path<'a> {
        let cluster = Cluster::new(host);
        cluster.definition("red", red);
        let config = configuration(&bridge("home", 1));
        let _ = testkit::binary("weft-cni");
        let [web, db] = ["web", "db"].map(|name| {
            cluster.pod(name, "red");
            let pod = host.pod(name);
            cluster.attachment(&pod).add(&config).success();
            pod
        });
        Path { host, web, db }
    }

    fn run(&self, words: &str) -> Finished {
        let weft = self.host.command(testkit::binary("weft")).clean_environment();
        let fixed = ["trace", "-n", "blue", "--network", "red"];
        weft.args(fixed).args(words.split_whitespace()).deadline(Duration::from_secs(60)).finish()
    }

    /// Returns the steps from `web` to `db`.
    fn trace(&self, words: &str) -> Vec<Value> {
        let finished = self.run(&format!("web db -o json {words}"));
        let document = finished.json();
        let steps = document["steps"].as_array().expect("steps").clone();
        let is_faulty = steps.iter().any(|step| step["result"] == "error");
        assert_eq!(document["result"], if is_faulty { "error" } else { "ok" }, "{document}");
        assert_eq!(finished.code, Some(i32::from(is_faulty)), "{finished}");
        steps
    }

    /// Asserts that each fault has a next step, that these steps are faulty, and that the first one is described by `words`.
    #[track_caller]
    fn assert_faults(&self, options: &str, steps: &[(&str, &str)], words: &[&str]) {
        let all = self.trace(options);
        let faults: Vec<&Value> = all.iter().filter(|step| step["result"] == "error").collect();
        let text = |step: &Value, key: &str| step[key].as_str().unwrap_or_default().to_owned();
        let found: Vec<(String, String)> =
            faults.iter().map(|step| (text(step, "step"), text(step, "place"))).collect();
        let expected: Vec<(String, String)> =
            steps.iter().map(|(step, place)| ((*step).to_owned(), (*place).to_owned())).collect();
        assert_eq!(found, expected, "{all:#?}");
        assert!(faults.iter().all(|step| !text(step, "hint").is_empty()), "{all:#?}");
        let first = text(faults[0], "found");
        for word in words {
            assert!(first.contains(word), "{word}: {first}");
        }
    }

    /// Returns one end of the path as `weft` passes it to `weft-cni`; without a sandbox it is on another node.
    fn end(&self, pod: &Pod, sandbox: bool) -> Value {
        let entry = Cluster::on(self.host).entry(pod).expect("an entry");
        let own = json!({ "netns": entry["netns"], "namespace": entry["namespace"] });
        json!({
            "pod": format!("blue/{}", pod.name()), "interface": "net1", "addresses": [self.address(pod)],
            "container": if sandbox { entry["containerId"].clone() } else { "".into() },
            "sandbox": if sandbox { own } else { Value::Null },
        })
    }

    /// Returns the steps from `web` to another end. The lane `vm` has no program `weft`.
    fn steps(&self, to: &Value) -> Vec<Value> {
        let request = json!({ "from": self.end(&self.web, true), "to": to, "tcp": null });
        let command = self.host.command(testkit::binary("weft-cni")).args(["sandbox", "trace"]);
        let all =
            command.stdin(request.to_string()).deadline(Duration::from_secs(60)).finish().success().json();
        all.as_array().expect("steps").clone()
    }

    /// Asserts that the path works, and that the step `vlan` has these words.
    #[track_caller]
    fn assert_vlan(&self, words: &str) {
        let all = self.steps(&self.end(&self.db, true));
        assert!(all.iter().all(|step| step["result"] == "ok"), "{all:#?}");
        let vlan = all.iter().find(|step| step["step"] == "vlan").expect("the step vlan");
        assert!(vlan["found"].as_str().expect("a text").contains(words), "{words}: {vlan}");
    }

    /// Asserts that the VLANs are the cause of lost packets, with these words in the finding and in the hint.
    #[track_caller]
    fn assert_vlan_fault(&self, found: &str, hint: &str) {
        // The neighbour was resolved while the VLANs were equal.
        self.web.run(["ip", "neigh", "flush", "all"]);
        self.db.run(["ip", "neigh", "flush", "all"]);
        let all = self.steps(&self.end(&self.db, true));
        let faults: Vec<&Value> = all.iter().filter(|step| step["result"] == "error").collect();
        let names: Vec<&str> = faults.iter().map(|step| step["step"].as_str().expect("a name")).collect();
        assert_eq!(names, ["neighbour", "vlan", "probe"], "{all:#?}");
        let text = |key: &str| faults[1][key].as_str().expect("a text").to_owned();
        assert!(
            text("found").contains(found) && text("hint").contains(hint),
            "{found}, {hint}: {}",
            faults[1]
        );
    }

    /// Name of the host end of a pod's interface `net1`.
    fn port(&self, pod: &Pod) -> String {
        let index =
            pod.json(["ip", "-j", "link", "show", "net1"])[0]["link_index"].as_u64().expect("an index");
        let all = self.host.json(["ip", "-j", "link"]);
        let port =
            all.as_array().expect("links").iter().find(|link| link["ifindex"] == index).expect("a port");
        port["ifname"].as_str().expect("a name").to_owned()
    }

    fn address(&self, pod: &Pod) -> String {
        let all = rig::addresses_on(pod, "net1");
        let own = all.iter().find(|ip| ip.starts_with("10.")).expect("an address");
        own.split('/').next().expect("an address").to_owned()
    }

    /// Starts a process in `db` that accepts connections.
    fn serve(&self, port: u16) -> Running {
        let script = format!(
            "import socket\ns = socket.socket()\ns.bind(('0.0.0.0', {port}))\ns.listen()\nwhile True: s.accept()[0].close()"
        );
        let server = self.db.command("python3").args(["-c", &script]).start_tied();
        rig::machine::until("the server listens", || {
            let listening = self.db.run(["ss", "-Hltn"]);
            listening.contains(&format!(":{port}")).then_some(())
        });
        server
    }
}

#[test]
fn trace_of_a_working_path_has_every_step() {
    let host = host!(Feature::Bridge);
    let path = Path::new(&host, &bridge("red", 2));
    let _server = path.serve(5432);
    let before = path.db.snapshot();
    for options in ["", "--tcp 5432"] {
        let steps = path.trace(options);
        let names: Vec<&str> = steps.iter().map(|step| step["step"].as_str().unwrap()).collect();
        let expected = [
            "attachment",
            "attachment",
            "interface",
            "interface",
            "address",
            "route",
            "address",
            "route",
            "neighbour",
            "mtu",
            "port",
            "port",
            "firewall",
            "probe",
        ];
        assert_eq!(names, expected);
        assert!(steps.iter().all(|step| step["result"] == "ok"), "{steps:#?}");
    }
    rig::assert_pod_unchanged("trace", &path.db, &before);
    let text = path.run("web db").success().stdout;
    assert!(text.starts_with("STEP        AT        RESULT  FOUND\n"), "{text}");
    assert!(text.contains("answered in"), "{text}");
    // From the other side, by qualified names.
    path.run("blue/db blue/web").success();
}

#[test]
fn trace_finds_missing_attachment_pod_and_interface() {
    let host = host!(Feature::Bridge);
    let path = Path::new(&host, &bridge("red", 2));
    let refused = path.run("none db");
    assert!(refused.code == Some(1) && refused.stderr.contains("not attached on this node"), "{refused}");
    let remote = path.run("web none -o json");
    assert_eq!(remote.code, Some(1), "{remote}");
    assert!(remote.stdout.contains("cannot be read"), "{remote}");
    let weft = host.command(testkit::binary("weft")).clean_environment();
    let other = weft.args(["trace", "-n", "blue", "web", "db", "--network", "green"]).finish();
    assert!(other.code == Some(1) && other.stdout.contains("attached to home, blue/red"), "{other}");
    path.db.run(["ip", "link", "set", "net1", "down"]);
    path.assert_faults("", &[("interface", "blue/db")], &["net1 is down"]);
    path.db.run(["ip", "link", "delete", "net1"]);
    path.assert_faults("", &[("interface", "blue/db")], &["net1 does not exist"]);
}

#[test]
fn trace_finds_missing_address_and_route() {
    let host = host!(Feature::Bridge);
    let path = Path::new(&host, &bridge("red", 2));
    // The default route of the pod's first network leads elsewhere.
    path.web.run(["ip", "route", "delete", "10.2.0.0/24"]);
    path.web.attempt(["ip", "route", "delete", "default"]);
    path.assert_faults("", &[("route", "blue/web"), ("probe", "blue/db")], &["no route to"]);
    // The host forwards between its networks, so the answer alone would not show the fault.
    path.web.run(["ip", "route", "add", "default", "via", "10.1.0.1", "dev", "eth0"]);
    path.assert_faults("", &[("route", "blue/web")], &["leave by eth0 via 10.1.0.1"]);
    path.web.run(["ip", "route", "add", "10.2.0.0/24", "dev", "net1"]);
    path.run("web db").success();
    let address = path.address(&path.db);
    path.db.run(["ip", "address", "delete", &format!("{address}/24"), "dev", "net1"]);
    path.web.run(["ip", "neigh", "flush", "all"]);
    let faults =
        [("address", "blue/db"), ("route", "blue/db"), ("neighbour", "blue/web"), ("probe", "blue/db")];
    path.assert_faults("", &faults, &["net1 lost 10.2.0."]);
}

#[test]
fn trace_finds_a_smaller_mtu_on_the_path() {
    let host = host!(Feature::Bridge);
    let path = Path::new(&host, &bridge("red", 2));
    let port = path.port(&path.db);
    host.run(["ip", "link", "set", &port, "mtu", "1400"]);
    path.assert_faults(
        "",
        &[("mtu", "host")],
        &["packets over 1400 bytes are lost", &format!("{port} 1400")],
    );
}

/// Bridge network of a VLAN.
fn vlan(id: u16) -> Value {
    let mut network = bridge("red", 2);
    network["plugins"][0]["vlan"] = id.into();
    network
}

#[test]
fn trace_names_ports_and_vlans_of_a_filtering_bridge() {
    let host = host!(Feature::Bridge, Feature::BridgeVlan);
    let path = Path::new(&host, &vlan(100));
    let [web, db] = [&path.web, &path.db].map(|pod| path.port(pod));
    path.assert_vlan(&format!("ports {web} of blue/web and {db} of blue/db share VLAN 100"));
    // The port of `db` is moved to another VLAN, as a definition with another `vlan` does.
    host.run(["bridge", "vlan", "del", "dev", &db, "vid", "100"]);
    host.run(["bridge", "vlan", "add", "dev", &db, "vid", "200", "pvid", "untagged"]);
    let hint = format!("bridge vlan add dev {db} vid 100 pvid untagged");
    let apart = format!("port {web} of blue/web is in VLAN 100, and port {db} of blue/db is not");
    path.assert_vlan_fault(&format!("{apart}: it has VLANs 200 (untagged)"), &hint);
    // A trunk without the VLAN, then with the VLAN, whose frames leave it tagged.
    for id in ["300", "301", "302"] {
        host.run(["bridge", "vlan", "add", "dev", &db, "vid", id]);
    }
    path.assert_vlan_fault(&format!("{apart}: it has VLANs 200 (untagged), 300-302 (tagged)"), &hint);
    host.run(["bridge", "vlan", "add", "dev", &db, "vid", "100"]);
    path.assert_vlan_fault(&format!("its frames leave port {db} of blue/db tagged"), &hint);
    // Requests arrive, and replies belong to the other VLAN.
    host.run(["bridge", "vlan", "add", "dev", &db, "vid", "100", "untagged"]);
    let back = format!("port {db} of blue/db is in VLAN 200, and port {web} of blue/web is not");
    path.assert_vlan_fault(&back, &format!("bridge vlan add dev {web} vid 200 pvid untagged"));
    // A port without a VLAN for untagged frames.
    host.run(["bridge", "vlan", "del", "dev", &web, "vid", "100"]);
    path.assert_vlan_fault(
        &format!("untagged frames of port {web} of blue/web belong to no VLAN: it has no VLAN"),
        &format!("bridge vlan add dev {web} vid ID pvid untagged"),
    );
    // The hints work.
    host.run(["bridge", "vlan", "add", "dev", &web, "vid", "100", "pvid", "untagged"]);
    host.run(["bridge", "vlan", "add", "dev", &db, "vid", "100", "pvid", "untagged"]);
    path.assert_vlan("share VLAN 100");
}

#[test]
fn trace_finds_an_uplink_without_the_vlan_of_the_pod() {
    let host = host!(Feature::Bridge, Feature::BridgeVlan, Feature::Veth);
    let path = Path::new(&host, &vlan(100));
    // A pod on another node, whose address `db` has here.
    let far = path.end(&path.db, false);
    // It does not answer from this node.
    path.db.run(["ip", "link", "set", "net1", "down"]);
    let steps = |name: &str| {
        let all = path.steps(&far);
        let own = all.iter().filter(|step| step["step"] == name);
        own.map(|step| format!("{} {}", step["result"].as_str().unwrap(), step["found"].as_str().unwrap()))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        steps("port").last().expect("a port"),
        "error bridge br2 has no port that leads to another node"
    );
    host.run(["ip", "link", "add", "eth1", "type", "veth", "peer", "name", "far1"]);
    host.run(["ip", "link", "set", "eth1", "master", "br2"]);
    let down = "error no port of bridge br2 to other nodes is up, has a carrier and forwards: eth1";
    assert_eq!(steps("port").last().expect("a port"), down);
    host.run(["ip", "link", "set", "eth1", "up"]);
    host.run(["ip", "link", "set", "far1", "up"]);
    assert_eq!(steps("port").last().expect("a port"), "ok bridge br2 leads to other nodes by eth1");
    let without = "error no port to other nodes is in VLAN 100: eth1 has VLANs 1 (untagged)";
    assert_eq!(steps("vlan"), [without]);
    host.run(["bridge", "vlan", "add", "dev", "eth1", "vid", "100"]);
    assert_eq!(steps("vlan"), ["ok VLAN 100 leaves this node by eth1 (tagged)"]);
}

#[test]
fn trace_finds_port_that_is_down_and_silent_neighbour() {
    let host = host!(Feature::Bridge);
    let path = Path::new(&host, &bridge("red", 2));
    let port = path.port(&path.db);
    host.run(["ip", "link", "set", &port, "down"]);
    let faults =
        [("interface", "blue/db"), ("neighbour", "blue/web"), ("port", "host"), ("probe", "blue/db")];
    path.assert_faults("", &faults, &["net1 is up, but has no carrier"]);
    host.run(["ip", "link", "set", &port, "up"]);
    host.run(["ip", "link", "set", &port, "nomaster"]);
    path.web.run(["ip", "neigh", "flush", "all"]);
    let all = path.trace("");
    let fault = |step: &str| all.iter().find(|one| one["step"] == step && one["result"] == "error").is_some();
    assert!(fault("neighbour") && fault("port") && fault("probe"), "{all:#?}");
    host.run(["ip", "link", "set", &port, "master", "br2"]);
    // The pod does not answer address resolution.
    path.db.run(["ip", "link", "set", "net1", "arp", "off"]);
    path.web.run(["ip", "neigh", "flush", "all"]);
    let faults = [("neighbour", "blue/web"), ("probe", "blue/db")];
    path.assert_faults("", &faults, &["does not answer address resolution"]);
}

#[test]
fn trace_finds_packets_that_the_host_drops() {
    let host = host!(Feature::Bridge, Feature::NftBridge);
    let path = Path::new(&host, &bridge("red", 2));
    let rules = "table bridge filter { chain forward { type filter hook forward priority 0; policy accept;
        ip protocol icmp drop\ntcp dport 5432 drop\n}\n}\n";
    host.command("nft").args(["-f", "-"]).stdin(rules).finish().success();
    let faults = [("firewall", "host"), ("probe", "blue/db")];
    path.assert_faults("", &faults, &["the host drops them", "bridge filter forward (2 rules)"]);
    path.assert_faults("--tcp 5432", &faults, &["the host drops them"]);
}

#[test]
fn trace_tells_refused_from_dropped_tcp_connections() {
    let host = host!(Feature::Bridge, Feature::NftInet);
    let path = Path::new(&host, &bridge("red", 2));
    path.assert_faults("--tcp 5432", &[("probe", "blue/db")], &["refused; the path itself works"]);
    let _server = path.serve(5432);
    path.run("web db --tcp 5432").success();
    let rules =
        "table inet own { chain input { type filter hook input priority 0; tcp dport 5432 drop\n}\n}\n";
    path.db.command("nft").args(["-f", "-"]).stdin(rules).finish().success();
    let words = ["no answer, but", "answers pings: a packet filter drops the port"];
    path.assert_faults("--tcp 5432", &[("probe", "blue/db")], &words);
    path.run("web db").success();
    // The pod drops everything: its packets arrive, so the host is not to blame.
    path.db.run(["nft", "add", "rule", "inet", "own", "input", "drop"]);
    path.assert_faults("", &[("probe", "blue/db")], &["no answer"]);
}

#[test]
fn trace_of_hostile_pods_is_bounded_and_ends_in_time() {
    let host = host!(Feature::Bridge, Feature::Veth);
    let path = Path::new(&host, &bridge("red", 2));
    let mut script: String = (0..200).map(|n| format!("link add x{n} type veth peer y{n}\n")).collect();
    script += &(0..20_000)
        .map(|n| format!("route add 172.{}.{}.0/28 dev net1\n", n / 256, n % 256))
        .collect::<String>();
    path.db.command("ip").args(["-force", "-batch", "-"]).stdin(script).finish();
    let began = Instant::now();
    path.run("web db").success();
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    // The namespace at the path is another one.
    let refused = path.run("web/../db db");
    assert_eq!(refused.code, Some(2), "{refused}");
}
