//! Whose program a delegate is: one of ours is run in this process or as a program, and says the same bytes.
//!
//! Source: SPEC 1.1.0 §4 (S30, L1); the key `builtin`; `crates/weft-cni/src/plugin_invoker.rs`.

use rig::cluster::{RECORD, bridge, configuration};
use rig::{Cluster, assert_refused, links, with};
use serde_json::{Value, json};
use testkit::{Feature, Finished, Host, Pod, host};

/// Networks of every built-in plugin there is, in a chain and alone.
fn world(host: &Host) -> Cluster<'_> {
    let cluster = Cluster::new(host);
    std::mem::forget(rig::traffic::outside(host));
    let mut red = bridge("red", 2);
    red["plugins"][0]["ipMasq"] = true.into();
    red["plugins"].as_array_mut().expect("plugins").push(json!({ "type": "tuning", "mtu": 1400 }));
    cluster.definition("red", &red);
    let fixed = json!({ "type": "static", "addresses": [{ "address": "192.0.2.50/24" }] });
    cluster.definition(
        "flat",
        &json!({ "cniVersion": "1.1.0", "type": "macvlan", "master": "up0", "ipam": fixed }),
    );
    let range = json!({ "type": "host-local", "subnet": "10.4.0.0/24" });
    cluster.definition("wire", &json!({ "cniVersion": "0.3.1", "type": "ptp", "ipam": range }));
    cluster.pod("web", "red,flat,wire");
    cluster
}

/// What does not depend on chance: hardware addresses do, and names and times.
fn told(finished: &Finished) -> String {
    let text = finished.stdout.lines().filter(|line| !line.contains("\"mac\""));
    text.collect::<Vec<_>>().join("\n")
}

fn status(cluster: &Cluster<'_>, pod: &Pod) -> Value {
    let mut status = cluster.entry(pod).map_or(Value::Null, |entry| entry["networkStatus"].clone());
    for entry in status.as_array_mut().into_iter().flatten() {
        entry.as_object_mut().expect("an entry").remove("mac");
    }
    status
}

#[test]
fn s30_in_process_and_as_programs_all_built_in_plugins_say_the_same() {
    let host = host!(Feature::Bridge, Feature::Macvlan, Feature::NftMasquerade);
    let cluster = world(&host);
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    let mut said = Vec::new();
    for builtin in ["always", "never", "auto"] {
        host.run(["rm", "-rf", "/var/lib/cni/networks"]);
        let config = with(&configuration(&bridge("default", 1)), &json!({ "builtin": builtin }));
        let result = weft.add(&config).success();
        assert_eq!(links(&pod), ["eth0", "net1", "net2", "net3"], "{builtin}");
        weft.check(&with(&config, &json!({ "prevResult": result.json() }))).success();
        said.push((told(&result), status(&cluster, &pod)));
        weft.call("STATUS", config.to_string()).success();
        rig::gc(&weft, &config, Some(&[(&pod.container_id(), "eth0")])).success();
        assert_eq!(links(&pod), ["eth0", "net1", "net2", "net3"], "{builtin}: GC of what is valid");
        weft.del(&config).success();
        assert!(links(&pod).is_empty(), "{builtin}");
    }
    assert_eq!(said[0], said[1], "always and never");
    assert_eq!(said[0], said[2], "always and auto");
    // A refusal says the same, too.
    let bad = json!({ "type": "host-local", "subnet": "10.5.0.0/31" });
    cluster.definition("wire", &json!({ "cniVersion": "0.3.1", "type": "ptp", "ipam": bad }));
    let refusals = ["always", "never"].map(|builtin| {
        let config = with(&configuration(&bridge("default", 1)), &json!({ "builtin": builtin }));
        let refused = weft.add(&config);
        assert_ne!(refused.code, Some(0));
        refused.stdout
    });
    assert_eq!(refusals[0], refusals[1]);
}

#[test]
fn l1_a_foreign_program_of_the_name_that_stands_earlier_is_run() {
    let host = host!(Feature::Bridge, Feature::Macvlan);
    let cluster = world(&host);
    host.run(["mkdir", "-p", "/run/cni/foreign"]);
    let program = testkit::binary("weft-test-plugin").display().to_string();
    host.run(["ln", "-s", &program, "/run/cni/foreign/bridge"]);
    cluster.pod("web", "");
    let pod = host.pod("web");
    let mut weft = cluster.attachment(&pod);
    let mut network = bridge("default", 1);
    network["plugins"][0]["testPlugin"] = json!({ "record": RECORD });
    let mut run = |bin_dir: &str, path: &str, builtin: &str| {
        weft.path = path.to_owned();
        let config = with(&configuration(&network), &json!({ "binDir": bin_dir, "builtin": builtin }));
        weft.add(&config).success();
        weft.del(&config).success();
        cluster.calls().len()
    };
    assert_eq!(run("/run/cni/foreign", "/opt/cni/bin", "auto"), 2, "it comes first");
    assert_eq!(run("/opt/cni/bin", "/run/cni/foreign", "auto"), 0, "we come first");
    assert_eq!(run("/run/cni/foreign", "/opt/cni/bin", "always"), 0, "told so");
    assert_eq!(run("/run/cni/foreign", "/opt/cni/bin", "never"), 2, "told so");
}

#[test]
fn s30_address_management_of_another_maker_serves_our_plugins() {
    let host = host!(Feature::Bridge, Feature::GoPlugins);
    let cluster = world(&host);
    cluster.pod("web", "");
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    let mut network = bridge("default", 1);
    network["cniVersion"] = "1.0.0".into();
    let config = with(
        &configuration(&network),
        &json!({ "cniVersion": "1.0.0", "binDir": "/usr/lib/cni", "builtin": "auto", "delegates": [{
            "cniVersion": "1.0.0", "name": "default", "type": "bridge", "bridge": "br1",
            "ipam": { "type": "host-local", "subnet": "10.1.0.0/24" },
        }] }),
    );
    // All of it is theirs: bridge and host-local of the directory that comes first.
    let result = weft.add(&config).success().json();
    assert_eq!(rig::addresses(&result), ["10.1.0.2/24"]);
    weft.check(&with(&config, &json!({ "prevResult": result }))).success();
    // And ours takes it down.
    let ours = with(&config, &json!({ "binDir": "/opt/cni/bin" }));
    weft.del(&ours).success();
    assert!(links(&pod).is_empty());
    assert_eq!(host.read("/var/lib/cni/networks/default/10.1.0.2"), None);
}

#[test]
fn a_plugin_that_is_nowhere_is_named_with_the_places_that_were_searched() {
    let host = host!(Feature::Bridge, Feature::Macvlan);
    let cluster = world(&host);
    cluster.definition("typo", &json!({ "cniVersion": "1.0.0", "type": "brigde" }));
    cluster.pod("web", "red,typo");
    let pod = host.pod("web");
    let refused = cluster.attachment(&pod).add(&configuration(&bridge("default", 1)));
    assert_refused("a misspelt type", &refused, 7, &["brigde", "blue/typo", "/opt/cni/bin"]);
    assert!(links(&pod).is_empty() && !links(&host).contains(&"br1".to_owned()), "nothing was begun");
}

/// The attack: a definition has a plugin call the meta-plugin, with the `binDir` and `delegates` that stand in the definition.
#[test]
fn no_plugin_of_a_definition_calls_the_meta_plugin_with_what_the_definition_says() {
    let host = host!(Feature::Bridge, Feature::Macvlan);
    let cluster = world(&host);
    for directory in ["/run/outside", "/run/cni/foreign"] {
        host.run(["mkdir", "-p", directory]);
    }
    let script = |path: &str, text: &str| {
        host.write(path, text);
        host.run(["chmod", "755", path]);
    };
    script("/run/outside/program", "#!/bin/sh\ntouch /run/outside/was-run\nexit 1\n");
    host.write(
        "/run/outside/manifests/pod.yaml",
        "{ apiVersion: v1, kind: Pod, metadata: { name: web, namespace: blue } }",
    );
    let weft = testkit::binary("weft-cni").display().to_string();
    script("/run/cni/foreign/caller", &format!("#!/bin/sh\nexec {weft} weft\n"));
    let smuggled = json!({
        "cniVersion": "1.0.0", "binDir": "/run/outside", "cniDir": "/run/outside/state", "manifestDir": "/run/outside/manifests",
        "delegates": [{ "cniVersion": "1.0.0", "name": "inner", "type": "program" }],
    });
    let keys = |keys: Value| with(&smuggled, &keys);
    cluster.definition("itself", &keys(json!({ "type": "weft" })));
    cluster.definition(
        "manager",
        &keys(json!({ "type": "macvlan", "master": "up0", "ipam": { "type": "multus" } })),
    );
    cluster.definition("other", &keys(json!({ "type": "caller" })));
    let pod = host.pod("web");
    for (network, builtin) in
        [("itself", "auto"), ("manager", "auto"), ("manager", "never"), ("other", "auto")]
    {
        cluster.pod("web", network);
        let own = json!({ "builtin": builtin, "binDir": "/opt/cni/bin:/run/cni/foreign" });
        let refused = cluster.attachment(&pod).add(&with(&configuration(&bridge("default", 1)), &own));
        let again = "attach the pod's networks again";
        assert_refused(&format!("{network}, {builtin}"), &refused, 7, &[again]);
        assert!(links(&pod).is_empty());
        for path in ["/run/outside/was-run", "/run/outside/state"] {
            assert_ne!(host.attempt(["test", "-e", path]).code, Some(0), "{network}, {builtin}: {path}");
        }
    }
}
