//! `weft doctor`: it finds what is wrong, and nothing where nothing is.

#![cfg(test)]

use serde_json::{Value, json};
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

    // The runtime takes the first file.
    host.write(
        "/etc/cni/net.d/05-other.conflist",
        r#"{"cniVersion":"1.0.0","name":"o","plugins":[{"type":"ptp"}]}"#,
    );
    let found = findings(&host);
    let [other] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(other["what"], "configuration /etc/cni/net.d/10-weft.conflist");
    assert!(other["why"].as_str().unwrap().starts_with("/etc/cni/net.d/05-other.conflist"), "{other}");
    host.run(["rm", "/etc/cni/net.d/05-other.conflist"]);

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

/// What of the findings is about things that nobody knows.
fn orphans(host: &Host) -> Vec<String> {
    let found = findings(host);
    let own = found.iter().filter(|finding| finding["why"].as_str().unwrap().contains("which nobody knows"));
    own.map(|finding| finding["what"].as_str().unwrap().to_owned()).collect()
}

/// Two devices as the kernel leaves them when their container ends, under their names there: what was written down of net8 is
/// in a file, of net1, by an earlier version, in its alias. The container that had net8.
fn leave_devices(host: &Host) -> String {
    host.run("ip link add net1 type veth peer name far1".split(' '));
    host.run(["ip", "link", "set", "net1", "alias", "weft/host-device/lan/c9/net1 dev0 up rack 7 / port 3"]);
    host.run("ip link add dev8 type veth peer name far8".split(' '));
    let card = host.pod("card");
    let moved = json!({ "cniVersion": "1.0.0", "name": "lan", "type": "host-device", "device": "dev8" });
    host.attachment("host-device", &card, "net8").add(&moved).success();
    host.run(["sh", "-c", "ip -n card link set net8 netns $$"]);
    card.container_id()
}

#[test]
fn whatever_a_plugin_makes_on_the_host_is_found_when_nobody_knows_its_container() {
    let host = host!(
        Feature::Bridge,
        Feature::NftBridge,
        Feature::NftFib,
        Feature::NftMasquerade,
        Feature::Ifb,
        Feature::Tbf,
        Feature::Mirred,
        Feature::IptablesNft
    );
    rig::install(&host);
    let pod = host.pod("a");
    // Longer than a comment has room for.
    let network = format!("n{}", "-long".repeat(15));
    let call = |plugin: &str, keys: Value| {
        let base = json!({ "cniVersion": "1.0.0", "name": network, "type": plugin });
        host.attachment(plugin, &pod, "eth0").add(&rig::with(&base, &keys)).success().json()
    };
    let result = call(
        "bridge",
        json!({
            "bridge": "br0", "isGateway": true, "ipMasq": true, "macspoofchk": true,
            "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.1.0.0/24" }], [{ "subnet": "fd01::/64" }]] },
        }),
    );
    let rates = json!({ "ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000 });
    call("bandwidth", rig::with(&rates, &json!({ "prevResult": result })));
    let ports = json!([{ "hostPort": 8080, "containerPort": 80, "protocol": "tcp" }]);
    call("portmap", json!({ "prevResult": result, "runtimeConfig": { "portMappings": ports } }));
    call("firewall", json!({ "prevResult": result, "backend": "nftables", "ingressPolicy": "isolated" }));
    call("firewall", json!({ "prevResult": result, "backend": "iptables" }));
    let card = leave_devices(&host);

    let found = orphans(&host);
    for what in [
        "link veth",
        "link bwp",
        "link net1",
        "link net8",
        "element of inet weft_masquerade sources4",
        "element of inet weft_masquerade sources6",
        "element of bridge weft_spoofing checked",
        "element of inet weft_portmap ports4",
        "element of inet weft_firewall",
        "element of bridge weft_firewall",
        "iptables -A CNI-FORWARD -s 10.1.0.2/32",
        "iptables -A CNI-FORWARD -s fd01::2/128",
    ] {
        assert!(found.iter().any(|found| found.starts_with(what)), "{what}: {found:#?}");
    }
    // The runtime's own memory is enough, also where a comment has not all of the network's name.
    host.run(["mkdir", "-p", "/var/lib/cni/results"]);
    host.write(format!("/var/lib/cni/results/{network}-{}-eth0", pod.container_id()), "{}");
    assert_eq!(orphans(&host), ["link net1", "link net8"]);
    host.write("/var/lib/cni/results/lan-c9-net1", "{}");
    host.write(format!("/var/lib/cni/results/lan-{card}-net8"), "{}");
    assert!(orphans(&host).is_empty());
}
