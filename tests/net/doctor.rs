//! Tests for `weft doctor`: it reports each fault, and nothing on a node without faults.

use rig::cluster;
use serde_json::{Value, json};
use testkit::{Feature, Finished, Host, Pod, host, workspace};

use crate::command_line::recording;
use crate::support::run_in_pod;

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
fn doctor_reports_changed_failed_and_orphaned_objects() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    rig::install(&host);
    let examples = workspace().join("examples");
    host.run(["mkdir", "-p", "/etc/cni/net.d"]);
    let configuration = std::fs::read_to_string(examples.join("10-weft.conflist")).expect("an example");
    // The configuration plans from these manifests, without an agent.
    let planned = format!("\"type\": \"weft\", \"manifestDir\": \"{}\",", examples.display());
    host.write("/etc/cni/net.d/10-weft.conflist", configuration.replace("\"type\": \"weft\",", &planned));
    run(&host, &format!("attach -f {} --pod my-namespace/my-pod", examples.display())).success();
    let quiet = run(&host, "doctor").success();
    assert!(quiet.stdout.contains("no findings; 1 sandbox"), "{quiet}");

    // The runtime uses the first file.
    host.write(
        "/etc/cni/net.d/05-other.conflist",
        r#"{"cniVersion":"1.0.0","name":"o","plugins":[{"type":"ptp"}]}"#,
    );
    let found = findings(&host);
    let [other] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(other["what"], "configuration /etc/cni/net.d/10-weft.conflist");
    assert!(other["why"].as_str().unwrap().starts_with("/etc/cni/net.d/05-other.conflist"), "{other}");
    host.run(["rm", "/etc/cni/net.d/05-other.conflist"]);

    // An interface was deleted.
    host.run(["ip", "-n", &format!("weft-{SANDBOX}"), "link", "delete", "net1"]);
    let found = findings(&host);
    let [changed] = found.as_slice() else { panic!("{found:?}") };
    assert!(changed["why"].as_str().unwrap().contains("net1"), "{changed}");

    // The journal entry is lost, so its objects have no owner.
    let entry = format!("/var/lib/weft/sandboxes/{SANDBOX}.json");
    let kept = host.read(&entry).expect("an entry");
    host.run(["rm", &entry]);
    let found = findings(&host);
    let whats: Vec<&str> = found.iter().map(|finding| finding["what"].as_str().unwrap()).collect();
    assert!(whats.iter().filter(|what| what.starts_with("link veth")).count() >= 3, "{whats:?}");
    assert!(whats.contains(&"element of inet weft_masquerade sources4"), "{whats:?}");
    assert!(found.iter().all(|finding| finding["why"].as_str().unwrap().contains(SANDBOX)), "{found:?}");

    // The entry cannot be read; then it can, and its namespace is deleted.
    host.write(&entry, "{");
    assert!(findings(&host).iter().any(|finding| finding["what"] == format!("journal entry {SANDBOX}")));
    host.write(&entry, kept);
    host.run(["ip", "netns", "delete", &format!("weft-{SANDBOX}")]);
    let found = findings(&host);
    assert!(found[0]["why"].as_str().unwrap().contains("no longer exists"), "{found:?}");
    run(&host, "detach --pod my-namespace/my-pod").success();
    run(&host, "doctor").success();
}

#[test]
fn doctor_reports_a_plugin_file_that_is_overwritten() {
    let host = host!();
    let weft_cni = testkit::binary("weft-cni").display().to_string();
    let install = || host.run([&weft_cni, "install", "/opt/cni/bin", "--names", "weft,loopback"]);
    install();
    let config = json!({ "cniVersion": "1.0.0", "name": "w", "type": "weft", "clusterNetwork": "home" });
    host.write("/etc/cni/net.d/00-weft.conf", config.to_string());
    let is_damaged =
        |finding: &Value| finding["why"].as_str().unwrap().contains("/opt/cni/bin/weft-cni is damaged");
    assert!(!findings(&host).iter().any(is_damaged));

    // The copy is written through the link, onto every plugin.
    host.run(["cp", &testkit::binary("weft").display().to_string(), "/opt/cni/bin/"]);
    for (plugin, verb) in [("weft", "ADD"), ("weft", "DEL"), ("loopback", "DEL"), ("weft", "VERSION")] {
        let call =
            host.command(format!("/opt/cni/bin/{plugin}")).clean_environment().env("CNI_COMMAND", verb);
        let refused = call.stdin(config.to_string()).finish();
        let error = refused.json();
        assert_eq!(
            (refused.code, &error["code"], &error["cniVersion"]),
            (Some(1), &json!(4), &json!("1.0.0"))
        );
        assert!(error["msg"].as_str().unwrap().contains(plugin), "{refused}");
        assert!(error["details"].as_str().unwrap().contains("weft install"), "{refused}");
    }
    assert!(findings(&host).iter().any(is_damaged));
    let itself = host.command("/opt/cni/bin/weft").clean_environment().env("PATH", "/nonexistent");
    let refused = itself.args(["doctor"]).finish();
    assert!(refused.stderr.contains("weft-cni not found"), "{refused}");
    install();
    assert!(!findings(&host).iter().any(is_damaged));
}

/// Returns the findings about objects without a known container.
fn orphans(host: &Host) -> Vec<String> {
    let found = findings(host);
    let own = found.iter().filter(|finding| {
        finding["why"].as_str().unwrap().contains("which neither the journal nor the runtime knows")
    });
    own.map(|finding| finding["what"].as_str().unwrap().to_owned()).collect()
}

/// Leaves a device on the host as the kernel does when a container ends, with the name that it had there. Returns the
/// container's id.
fn leave_device(host: &Host) -> String {
    host.run("ip link add dev8 type veth peer name far8".split(' '));
    let card = host.pod("card");
    let moved = json!({ "cniVersion": "1.0.0", "name": "lan", "type": "host-device", "device": "dev8" });
    host.attachment("host-device", &card, "net8").add(&moved).success();
    host.run(["sh", "-c", "ip -n card link set net8 netns $$"]);
    card.container_id()
}

/// Creates a pod whose masquerading and ports are rules of iptables.
fn behind_iptables(host: &Host) -> Pod {
    let behind = host.pod("b");
    let eth0 = |plugin: &str, keys: Value| {
        let base = json!({ "cniVersion": "1.0.0", "name": "old", "type": plugin });
        host.attachment(plugin, &behind, "eth0").add(&rig::with(&base, &keys)).success().json()
    };
    let result = eth0(
        "bridge",
        json!({
            "bridge": "br1", "ipMasq": true, "ipMasqBackend": "iptables",
            "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.2.0.0/24" }]] },
        }),
    );
    let ports = json!([{ "hostPort": 8081, "containerPort": 80, "protocol": "tcp" }]);
    eth0(
        "portmap",
        json!({ "backend": "iptables", "prevResult": result, "runtimeConfig": { "portMappings": ports } }),
    );
    behind
}

#[test]
fn doctor_reports_orphaned_objects_of_every_plugin() {
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
    // Longer than a comment of a rule can be.
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
    let behind = behind_iptables(&host);
    let card = leave_device(&host);

    let found = orphans(&host);
    for what in [
        "link veth",
        "link bwp",
        "link net8",
        "element of inet weft_masquerade sources4",
        "element of inet weft_masquerade sources6",
        "element of bridge weft_spoofing checked",
        "element of inet weft_portmap ports4",
        "element of inet weft_firewall",
        "element of bridge weft_firewall",
        "iptables -A CNI-FORWARD -s 10.1.0.2/32",
        "iptables -A CNI-FORWARD -s fd01::2/128",
        "iptables -A CNI-HOSTPORT-DNAT -p tcp",
        "iptables -A POSTROUTING -s 10.2.0.2/32",
    ] {
        assert!(found.iter().any(|found| found.starts_with(what)), "{what}: {found:#?}");
    }
    // The runtime's cache is sufficient, also where a comment has only a part of the network's name.
    host.run(["mkdir", "-p", "/var/lib/cni/results"]);
    host.write(format!("/var/lib/cni/results/{network}-{}-eth0", pod.container_id()), "{}");
    host.write(format!("/var/lib/cni/results/old-{}-eth0", behind.container_id()), "{}");
    assert_eq!(orphans(&host), ["link net8"]);
    host.write(format!("/var/lib/cni/results/lan-{card}-net8"), "{}");
    assert!(orphans(&host).is_empty());
}

const WRITTEN: &str = "/etc/cni/net.d/00-weft.conflist";
const DEFAULT: &str = "/etc/cni/net.d/10-lan.conflist";

/// Creates a default network and weft on it, which plans from `/etc/weft`.
fn with_default_network(host: &Host) {
    rig::install(host);
    host.run(["mkdir", "-p", "/etc/cni/net.d", "/etc/weft"]);
    let lan = json!({ "cniVersion": "1.0.0", "name": "lan", "plugins": [
        { "type": "bridge", "ipam": { "type": "host-local", "subnet": "10.1.0.0/24" } }] });
    host.write(DEFAULT, lan.to_string());
    run(host, "install --set manifestDir=/etc/weft").success();
    run(host, "doctor").success();
}

/// Returns the only finding: what, why and hint in a line.
#[track_caller]
fn only_finding(host: &Host) -> String {
    let found = findings(host);
    let [only_finding] = found.as_slice() else { panic!("{found:#?}") };
    let text = |key: &str| only_finding[key].as_str().unwrap().to_owned();
    format!("{} | {} | {}", text("what"), text("why"), text("hint"))
}

#[test]
fn doctor_reports_a_node_on_which_no_pod_can_start() {
    let host = host!(Feature::Bridge);
    with_default_network(&host);
    let written = host.read(WRITTEN).expect("the configuration that weft installed");
    let lan = host.read(DEFAULT).expect("the default network");

    // The default network is removed, or its plugin does not exist.
    host.run(["rm", DEFAULT]);
    let gone = only_finding(&host);
    assert!(gone.contains("STATUS") && gone.contains(DEFAULT), "{gone}");
    host.write(DEFAULT, lan.replace("bridge", "nope"));
    let nope = only_finding(&host);
    assert!(nope.contains("STATUS") && nope.contains("nope"), "{nope}");
    host.write(DEFAULT, lan);

    // The runtime finds no weft, or weft finds no plugins.
    host.run(["mv", "/opt/cni/bin", "/opt/cni/away"]);
    host.run(["mkdir", "/opt/cni/bin"]);
    let emptied = only_finding(&host);
    assert!(emptied.contains("plugin weft: not found in /opt/cni/bin"), "{emptied}");
    host.run(["rmdir", "/opt/cni/bin"]);
    host.run(["mv", "/opt/cni/away", "/opt/cni/bin"]);
    host.write(WRITTEN, written.replace("\"/opt/cni/bin\"", "\"/nowhere\""));
    let nowhere = only_finding(&host);
    assert!(nowhere.contains("binDir /nowhere: No such file"), "{nowhere}");

    // There is no agent, and no other source of plans; credentials of no cluster do not help.
    let without = |keys: &str| written.replace("\"manifestDir\": \"/etc/weft\"", keys);
    host.write(WRITTEN, without(r#""agentSocket": "/run/none.sock""#));
    let alone = only_finding(&host);
    assert!(alone.starts_with("agent /run/none.sock | no agent answers (No such file"), "{alone}");
    host.write("/etc/weft.kubeconfig", "apiVersion: v1\nkind: Config\n");
    host.write(WRITTEN, without(r#""agentSocket": "/run/none.sock", "kubeconfig": "/etc/weft.kubeconfig""#));
    let unread = only_finding(&host);
    assert!(unread.contains("/etc/weft.kubeconfig"), "{unread}");
    host.write(WRITTEN, &written);
    run(&host, "doctor").success();
}

#[test]
fn doctor_reports_multus_configuration_and_lost_addresses() {
    let host = host!(Feature::Bridge);
    with_default_network(&host);
    // A configuration of Multus whose program exists.
    host.run(["rm", "-f", "/opt/cni/bin/multus"]);
    host.write("/opt/cni/bin/multus", "#!/bin/sh\n");
    let multus =
        r#"{"cniVersion":"0.3.1","name":"multus-cni-network","type":"multus","clusterNetwork":"lan"}"#;
    host.write("/etc/cni/net.d/00-multus.conf", multus);
    let first = only_finding(&host);
    assert!(first.contains("/etc/cni/net.d/00-multus.conf sorts before it"), "{first}");
    host.run(["rm", "/etc/cni/net.d/00-multus.conf"]);

    let held = "/var/lib/cni/networks/lan";
    host.run(["mkdir", "-p", held, "/var/lib/cni/results"]);
    for last in 2..=254 {
        host.write(format!("{held}/10.1.0.{last}"), format!("c{last}\r\neth0"));
    }
    run(&host, "doctor").success();
    host.run(["sh", "-c", &format!("touch -d '1 hour ago' {held}/*")]);
    host.write("/var/lib/cni/results/lan-c2-eth0", "{}");
    let lost = only_finding(&host);
    assert!(lost.starts_with("addresses of network lan | 252 addresses are allocated"), "{lost}");
    assert!(lost.contains("10.1.0.3 (container c3)"), "{lost}");
}

#[test]
fn doctor_reports_whereabouts_that_is_served_before_the_import() {
    let host = host!(Feature::Bridge);
    with_default_network(&host);
    let written = host.read(WRITTEN).expect("the configuration that weft installed");
    let always = "\"builtin\": \"always\", \"manifestDir\":";
    host.write(WRITTEN, written.replace("\"manifestDir\":", always));
    run(&host, "doctor").success();
    host.run(["rm", "-f", "/opt/cni/bin/whereabouts"]);
    host.write("/opt/cni/bin/whereabouts", "program of whereabouts");
    let served = only_finding(&host);
    assert!(served.contains("networks of whereabouts get addresses of weft-ipam"), "{served}");
    assert!(served.contains("until weft import whereabouts has imported its addresses"), "{served}");
    // weft executes the program of whereabouts.
    host.write(WRITTEN, written);
    run(&host, "doctor").success();
}

#[test]
fn doctor_reports_a_damaged_record_of_installed_programs() {
    const RECORD: &str = "/etc/cni/net.d/weft.d/command.json";
    let host = host!(Feature::Bridge);
    with_default_network(&host);
    let install = || run(&host, "install --set manifestDir=/etc/weft --command=/run/tools").success();
    install();
    run(&host, "doctor").success();
    let kept = host.read(RECORD).expect("the record");
    host.write(RECORD, &kept[..kept.len() / 2]);
    let damaged = only_finding(&host);
    assert!(damaged.starts_with("weft install --command | "), "{damaged}");
    assert!(damaged.contains(&format!("{RECORD}: damaged record of installed programs: ")), "{damaged}");
    assert!(damaged.contains(" | restore the record, or delete it together with the program"), "{damaged}");
    // Until then, nothing is replaced. Both hints are true.
    assert!(install().stdout.contains("/run/tools/weft: not installed: "));
    host.write(RECORD, &kept);
    run(&host, "doctor").success();
    host.write(RECORD, "{");
    host.run(["rm", RECORD, "/run/tools/weft"]);
    run(&host, "doctor").success();
    assert!(install().stdout.contains("/run/tools/weft: installed"));
    // A record that cannot be read is not an empty one.
    host.run(["ln", "-sf", "command.json", RECORD]);
    let unread = only_finding(&host);
    assert!(unread.starts_with("weft install --command | ") && unread.contains(RECORD), "{unread}");
}

/// Returns the hint of the finding about `what` whose reason contains `why`.
#[track_caller]
fn hint_of(found: &[Value], what: &str, why: &str) -> String {
    let is_it =
        |one: &&Value| one["what"] == what && one["why"].as_str().is_some_and(|text| text.contains(why));
    let one = found.iter().find(is_it).unwrap_or_else(|| panic!("{what}: {why}: {found:#?}"));
    one["hint"].as_str().expect("a hint").to_owned()
}

#[test]
fn doctor_reports_its_own_configuration_renamed_by_cilium() {
    const CILIUM: &str = "/etc/cni/net.d/05-cilium.conflist";
    let host = host!(Feature::Bridge);
    with_default_network(&host);
    // The default network is Cilium's.
    host.run(["mv", DEFAULT, CILIUM]);
    let install = || run(&host, "install --set manifestDir=/etc/weft").success();
    install();
    run(&host, "doctor").success();
    let written = host.read(WRITTEN).expect("the configuration that weft installed");

    let renamed = format!("{WRITTEN}.cilium_bak");
    host.run(["mv", WRITTEN, &renamed]);
    let found = only_finding(&host);
    let [what, why, hint] = found.split(" | ").collect::<Vec<_>>()[..] else { panic!("{found}") };
    assert_eq!(what, format!("configuration {renamed}"));
    assert!(why.starts_with("Cilium renamed it") && why.contains("the runtime does not use it"), "{why}");
    for part in ["set cni.exclusive to false", "run weft install", &format!("delete {renamed}")] {
        assert!(hint.contains(part), "{part}: {hint}");
    }
    // Each part of the hint is needed, and all of them are sufficient.
    install();
    assert_eq!(host.read(WRITTEN).as_ref(), Some(&written));
    let kept = only_finding(&host);
    assert!(kept.starts_with(&format!("configuration {renamed} | Cilium renamed this file")), "{kept}");
    assert!(kept.contains(&format!("then delete {renamed}, or give it its name back")), "{kept}");
    host.run(["rm", &renamed]);
    run(&host, "doctor").success();
}

#[test]
fn doctor_reports_a_namespace_that_cannot_be_checked() {
    let host = host!();
    let _cluster = recording(&host, &json!({}));
    host.run([
        "sh",
        "-e",
        "-c",
        "ip netns add kept; mkdir /run/pods; touch /run/pods/web; mount --bind /run/netns/kept /run/pods/web",
    ]);
    let attach = format!("attach -f {} --pod blue/web --netns /run/pods/web", cluster::MANIFESTS);
    run(&host, &attach).success();
    let sandbox = "sandbox blue_web of blue/web";
    let is_of_sandbox = |one: &Value| one["what"] == sandbox;
    assert!(!findings(&host).iter().any(is_of_sandbox));

    // A link to itself is unreadable, even for root.
    host.run(["sh", "-e", "-c", "mv /run/pods /run/away; ln -s pods /run/pods"]);
    let found = findings(&host);
    let hint =
        hint_of(&found, sandbox, "failed to check its network namespace /run/pods/web: Too many levels");
    assert_eq!(hint, "make it readable, then run weft doctor again");
    // It does not advise to detach: the namespace may exist.
    assert_eq!(found.iter().filter(|one| is_of_sandbox(one)).count(), 1, "{found:#?}");

    host.run(["sh", "-e", "-c", "rm /run/pods; mv /run/away /run/pods"]);
    assert!(!findings(&host).iter().any(is_of_sandbox));
    run(&host, "detach blue/web").success();
}

#[test]
fn doctor_names_the_network_that_detach_forget_gives_up() {
    let host = host!();
    let _cluster = recording(&host, &json!({ "DEL": [{ "do": "fail", "message": "not yet" }] }));
    run(&host, &format!("attach -f {} --pod blue/web", cluster::MANIFESTS)).success();
    assert_eq!(run(&host, "detach blue/web").code, Some(1));
    let found = findings(&host);
    let failed = found.iter().find_map(|one| one["why"].as_str().filter(|why| why.contains("not yet")));
    let (_, hint) = failed.and_then(|why| why.split_once("--forget ")).expect("a hint");
    let network = hint.split(' ').next().expect("a network");
    // Another network than the one that fails is not given up.
    assert_eq!(run(&host, "detach blue/web --forget blue/other").code, Some(1));
    let detached = run(&host, &format!("detach blue/web --forget {network}")).success();
    assert!(detached.stdout.contains(&format!("gave up {network}")), "{detached}");
    assert!(!findings(&host).iter().any(|one| one["what"] == "sandbox blue_web of blue/web"));
    let history = run(&host, "history -o json").success();
    assert!(history.stdout.contains("gave up net2") && history.stdout.contains("not yet"), "{history}");
    assert_eq!(host.run(["ls", "-A", "/var/lib/weft/sandboxes"]), "");
}

#[test]
fn doctor_lists_unreadable_entries_that_a_del_renamed() {
    let host = host!();
    let _cluster = recording(&host, &json!({}));
    run(&host, &format!("attach -f {} --pod blue/web", cluster::MANIFESTS)).success();
    let file = "/var/lib/weft/sandboxes/blue_web.json";
    host.run(["truncate", "-s", "100", file]);
    // `detach` of the pod does not say that nothing is attached, whether the file has the pod's name or a runtime's.
    let refused = run(&host, "detach blue/web");
    let unreadable = format!("{file}: unreadable");
    assert!(refused.code == Some(1) && refused.stderr.contains(&unreadable), "{refused}");
    assert!(refused.stderr.contains("A pod is not deleted"), "{refused}");
    let of_runtime = "/var/lib/weft/sandboxes/4f1c.json";
    host.run(["mv", file, of_runtime]);
    let refused = run(&host, "detach blue/web");
    assert!(refused.code == Some(1) && refused.stderr.contains("no readable entry"), "{refused}");
    host.run(["mv", of_runtime, file]);
    for (place, name) in [format!("{file}.unreadable"), format!("{file}.unreadable.1")].iter().enumerate() {
        host.run(["cp", file, name]);
        let found = findings(&host);
        let renamed = |one: &&Value| one["what"].as_str().is_some_and(|what| what.contains(".unreadable"));
        assert_eq!(found.iter().filter(renamed).count(), place + 1, "{found:?}");
        let hint = hint_of(&found, &format!("journal {name}"), "a DEL found this entry unreadable");
        assert!(hint.ends_with(&format!("sudo rm -r {name}")), "{hint}");
    }
}

#[test]
fn doctor_reports_a_failed_detach_and_what_it_cannot_read() {
    let host = host!();
    let _cluster = recording(&host, &json!({ "DEL": [{ "do": "fail", "message": "not yet" }] }));
    run(&host, &format!("attach -f {} --pod blue/web", cluster::MANIFESTS)).success();
    assert_eq!(run(&host, "detach blue/web").code, Some(1));
    let found = findings(&host);
    let (sandbox, failed) = ("sandbox blue_web of blue/web", "failed to detach net2: ");
    assert_eq!(hint_of(&found, sandbox, failed), "weft detach --container-id blue_web");
    assert!(found.iter().any(|one| one["why"].as_str().is_some_and(|text| text.contains("not yet"))));
    // The configuration is in a directory that the runtime does not read.
    assert_eq!(hint_of(&found, "configuration", "no file configures weft"), "run weft install");
    let of_pod = run_in_pod(&host, "doctor -o json").json();
    let of_pod = of_pod.as_array().expect("a list");
    let hint = "ssh worker-1 sudo weft detach --container-id blue_web";
    assert_eq!(hint_of(of_pod, sandbox, failed), hint);
    hint_of(of_pod, "agent /run/weft/agent.sock", "no agent answers");

    // A link to itself is unreadable, even for root.
    for cache in ["/var/lib/cni/results", "/var/lib/cni/cache/results"] {
        host.run(["mkdir", "-p", cache]);
        host.run(["rmdir", cache]);
        host.run(["ln", "-s", cache, cache]);
        hint_of(&findings(&host), cache, "failed to read the result cache");
        host.run(["rm", cache]);
    }
}
