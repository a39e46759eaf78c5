//! Tests for the plugin that runs for a delegate: a built-in plugin in process or a program, with the same
//! output.
//!
//! Source: SPEC 1.1.0 §4 (S30, L1); the option `builtin`; `crates/weft-cni/src/plugin_invoker.rs`.

use rig::cluster::{RECORD, bridge, configuration};
use rig::{Cluster, assert_refused, links, with};
use serde_json::{Value, json};
use testkit::{Feature, Finished, Host, Pod, host};

/// Creates networks of every built-in plugin, in a chain and alone.
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

/// Returns the output without the lines that depend on chance, which are hardware addresses.
fn stable_output(finished: &Finished) -> String {
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

// Requirements: S30
#[test]
fn delegate_with_a_name_of_openshift_is_built_in() {
    let host = host!(Feature::Bridge);
    let cluster = Cluster::new(&host);
    let plugins = json!([{ "type": "cnv-bridge", "bridge": "br9" }, { "type": "cnv-tuning", "mtu": 1400 }]);
    cluster.definition("red", &json!({ "cniVersion": "0.3.1", "name": "red", "plugins": plugins }));
    cluster.pod("web", "red");
    let pod = host.pod("web");
    let config = configuration(&bridge("default", 1));
    cluster.attachment(&pod).add(&config).success();
    assert_eq!(rig::link(&pod, "net1").expect("a link")["mtu"], 1400);
    let ports = host.run(["ip", "-j", "link", "show", "master", "br9"]);
    assert_eq!(ports.parse::<Value>().expect("JSON").as_array().map(Vec::len), Some(1));
    cluster.attachment(&pod).del(&config).success();
    assert!(links(&pod).is_empty());
}

#[test]
fn delegate_built_in_and_as_program_have_equal_output() {
    let host = host!(Feature::Bridge, Feature::Macvlan, Feature::NftMasquerade);
    let cluster = world(&host);
    let pod = host.pod("web");
    let weft = cluster.attachment(&pod);
    let mut outputs = Vec::new();
    for builtin in ["always", "never", "auto"] {
        host.run(["rm", "-rf", "/var/lib/cni/networks"]);
        let config = with(&configuration(&bridge("default", 1)), &json!({ "builtin": builtin }));
        let result = weft.add(&config).success();
        assert_eq!(links(&pod), ["eth0", "net1", "net2", "net3"], "{builtin}");
        weft.check(&with(&config, &json!({ "prevResult": result.json() }))).success();
        outputs.push((stable_output(&result), status(&cluster, &pod)));
        weft.call("STATUS", config.to_string()).success();
        rig::gc(&weft, &config, Some(&[(&pod.container_id(), "eth0")])).success();
        assert_eq!(links(&pod), ["eth0", "net1", "net2", "net3"], "{builtin}: GC of a valid attachment");
        weft.del(&config).success();
        assert!(links(&pod).is_empty(), "{builtin}");
    }
    assert_eq!(outputs[0], outputs[1], "always and never");
    assert_eq!(outputs[0], outputs[2], "always and auto");
    // Refusals are equal, too.
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

// Requirements: L1
#[test]
fn delegate_program_of_a_built_in_name_runs_if_earlier_in_path() {
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
    assert_eq!(run("/run/cni/foreign", "/opt/cni/bin", "auto"), 2, "the other program's directory is first");
    assert_eq!(run("/opt/cni/bin", "/run/cni/foreign", "auto"), 0, "the directory of weft is first");
    assert_eq!(run("/run/cni/foreign", "/opt/cni/bin", "always"), 0, "builtin=always");
    assert_eq!(run("/run/cni/foreign", "/opt/cni/bin", "never"), 2, "builtin=never");
}

// Requirements: S30
#[test]
fn delegate_ipam_of_go_plugins_serves_built_in_plugins() {
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
    // bridge and host-local of the Go plugins run, because their directory is first.
    let result = weft.add(&config).success().json();
    assert_eq!(rig::addresses(&result), ["10.1.0.2/24"]);
    weft.check(&with(&config, &json!({ "prevResult": result }))).success();
    // The built-in plugins take it down.
    let built_in = with(&config, &json!({ "binDir": "/opt/cni/bin" }));
    weft.del(&built_in).success();
    assert!(links(&pod).is_empty());
    assert_eq!(host.read("/var/lib/cni/networks/default/10.1.0.2"), None);
}

#[test]
fn delegate_ipam_type_of_a_foreign_plugin_is_its_own() {
    let host = host!(Feature::Bridge, Feature::Macvlan);
    let cluster = world(&host);
    host.run(["ln", "-s", &testkit::binary("weft-test-plugin").display().to_string(), "/opt/cni/bin/acme"]);
    for (number, ipam) in
        [json!({ "type": "acme-internal" }), json!({ "type": ["a", "b"] })].iter().enumerate()
    {
        let foreign = json!({ "cniVersion": "1.0.0", "type": "acme", "ipam": ipam, "testPlugin": { "record": RECORD } });
        cluster.definition(&format!("own{number}"), &foreign);
        cluster.pod("web", format!("own{number}"));
        let pod = host.pod("web");
        let weft = cluster.attachment(&pod);
        let config = configuration(&bridge("default", 1));
        weft.add(&config).success();
        weft.del(&config).success();
        pod.remove();
    }
    // A built-in plugin calls the program of its `ipam.type`, which is missing.
    let missing = json!({ "cniVersion": "1.0.0", "type": "ptp", "ipam": { "type": "acme-internal" } });
    cluster.definition("missing", &missing);
    cluster.pod("web", "missing");
    let refused = cluster.attachment(&host.pod("web")).add(&configuration(&bridge("default", 1)));
    assert_refused("a missing IPAM plugin", &refused, 7, &["acme-internal", "/opt/cni/bin"]);
}

#[test]
fn delegate_plugin_not_found_names_the_searched_directories() {
    let host = host!(Feature::Bridge, Feature::Macvlan);
    let cluster = world(&host);
    cluster.definition("typo", &json!({ "cniVersion": "1.0.0", "type": "brigde" }));
    cluster.pod("web", "red,typo");
    let pod = host.pod("web");
    let refused = cluster.attachment(&pod).add(&configuration(&bridge("default", 1)));
    assert_refused("a misspelt type", &refused, 7, &["brigde", "blue/typo", "/opt/cni/bin"]);
    assert!(links(&pod).is_empty() && !links(&host).contains(&"br1".to_owned()), "no plugin was executed");
}

/// Attack: a definition has a plugin call the meta-plugin with the `binDir` and `delegates` of the
/// definition.
#[test]
fn delegate_cannot_call_the_meta_plugin_with_its_definition() {
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
