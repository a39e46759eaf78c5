//! Tests for the CRI Network API with failures: changed attachments, and processes that are killed in any
//! order.
//!
//! Source: docs/cri-networks.md; ARCHITECTURE.md, "Invariants".

use rig::cluster::recording;
use rig::containerd::NETWORKS;
use rig::proxy::{SOCKET, bridge};
use rig::{Containerd, Proxy, assert_nothing_left, links};
use serde_json::json;
use testkit::{Feature, host};

const BOTH: [(&str, &str); 2] = [("", "red"), ("", "blue")];

/// Returns a runtime with a proxy before it, two networks, and the objects that a sandbox leaves on them.
macro_rules! proxy {
    () => {{
        let host = host!(Feature::Bridge, Feature::Veth);
        let Some(proxy) = Proxy::with_networks(host) else { return };
        proxy.set(&bridge("red", 1));
        proxy.set(&bridge("blue", 2));
        let early = proxy.cri().run_pod_sandbox(&proxy.pod_on("early", &BOTH)).expect("a pod");
        proxy.remove(&early);
        proxy
    }};
}

#[test]
fn network_api_connectivity_and_doctor_report_a_change() {
    let proxy = proxy!();
    assert_eq!(proxy.findings(), [""; 0]);
    let web = proxy.cri().run_pod_sandbox(&proxy.pod_on("web", &BOTH)).expect("a pod");
    let connected = || {
        let networks = proxy.networks();
        ["red", "blue"].map(|name| networks[name]["status"]["connectivity"].as_bool().expect("a truth"))
    };
    assert_eq!(connected(), [true, true]);
    let inside = proxy.node().inside(&web);
    inside.run(["ip", "link", "delete", "net1"]);
    // The proxy caches the result of a plugin for a few seconds.
    rig::machine::until("the proxy reports that blue is disconnected", || {
        (connected() == [true, false]).then_some(())
    });
    let found = proxy.findings();
    assert!(found.iter().any(|finding| finding.contains("network blue")), "{found:?}");
    proxy.remove(&web);
    assert_eq!(connected(), [true, true], "a removed sandbox is not disconnected");
    // A missing plugin makes its networks not ready.
    proxy.run([
        "sh",
        "-c",
        "cd /opt/cni/bin && rm bridge && printf '#!/bin/sh\nexit 1\n' >bridge && chmod 755 bridge",
    ]);
    assert_eq!(proxy.networks()["red"]["status"]["sandbox_management"], false);
    let why = proxy.ready().expect_err("no network is ready");
    assert!(why.contains("red"), "{why}");
    let found = proxy.findings();
    assert!(found.iter().any(|finding| finding.contains("accepts no sandboxes")), "{found:?}");
    proxy.stop("KILL");
    proxy.remove_stale_files();
    // A proxy that ended properly removes its socket, and doctor reports it as well.
    for signal in ["TERM", "KILL"] {
        proxy.launch();
        proxy.stop(signal);
        let found = proxy.findings();
        assert!(found.iter().any(|finding| finding.contains("cri-proxy")), "{signal}: {found:?}");
    }
    // The proxy runs, and the runtime behind it has ended.
    proxy.remove_stale_files();
    proxy.launch();
    proxy.node().stop("containerd", "KILL");
    let found = proxy.findings();
    let why = format!("runtime {}", rig::containerd::SOCKET);
    assert!(found.iter().any(|finding| finding.contains(&why)), "{found:?}");
}

#[test]
fn network_api_readiness_follows_the_status_of_plugins() {
    let host = host!(Feature::Bridge, Feature::Veth);
    let Some(proxy) = Proxy::with_networks(host) else { return };
    proxy.write(rig::cluster::RECORD, "");
    let fail = json!({ "STATUS": [{ "do": "fail", "code": 50, "message": "no room at all" }] });
    proxy.network(&["set", "-f", "-"], &recording("full", "one", &fail).to_string()).success();
    assert_eq!(proxy.networks()["full"]["status"]["sandbox_management"], false);
    let why = proxy.ready().expect_err("the only network is not ready");
    assert!(why.contains("network full") && why.contains("no room at all"), "{why}");
    // A plugin that hangs is ended, and other plugins are called meanwhile.
    let hang = json!({ "STATUS": [{ "do": "hang" }] });
    proxy.network(&["set", "-f", "-"], &recording("slow", "two", &hang).to_string()).success();
    let started = std::time::Instant::now();
    proxy.ready().expect_err("neither is ready");
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
    proxy.set(&bridge("red", 1));
    proxy.ready().expect("one ready network is sufficient");
}

#[test]
fn network_api_sandboxes_survive_restarts_in_any_order() {
    let proxy = proxy!();
    let before = proxy.node().snapshot();
    let run = |name| proxy.cri().run_pod_sandbox(&proxy.pod_on(name, &BOTH)).expect("a pod");
    let [a, b, c, d] = ["a", "b", "c", "d"].map(run);
    proxy.stop("KILL");
    // Without the proxy, the runtime's DEL detaches sandboxes from the journal.
    proxy.node().remove(&a);
    proxy.launch();
    proxy.node().restart("KILL");
    assert_eq!(links(&proxy.node().inside(&b)), ["eth0", "net1"]);
    assert_eq!(proxy.cri().pod_sandbox_status(&b).expect("a status").networks, ["", "blue"]);
    proxy.remove(&b);
    proxy.stop("TERM");
    proxy.node().machine().stop("containerd", "KILL");
    proxy.launch();
    let error = proxy.cri().pod_sandbox_status(&c).expect_err("no runtime");
    assert!(error.contains("containerd.sock"), "{error}");
    assert_eq!(proxy.networks().len(), 2, "the proxy lists networks without the runtime");
    proxy.node().launch();
    assert_eq!(proxy.cri().pod_sandbox_status(&c).expect("a status").networks, ["", "blue"]);
    for id in [&c, &d] {
        proxy.remove(id);
    }
    assert_nothing_left("restarts in every state", proxy.node(), &before);
}

#[test]
fn network_api_killed_add_of_two_networks_leaves_nothing() {
    let proxy = proxy!();
    let before = proxy.node().snapshot();
    let killer = testkit::binary("weft-test-killer").display().to_string();
    proxy.run(["mkdir", "/opt/cni/real"]);
    proxy.run(["mv", "/opt/cni/bin/weft", "/opt/cni/real/weft"]);
    let mut killed = 0;
    for step in (1..).step_by(5) {
        // The process of ADD is killed, that of DEL is not.
        let script = format!(
            "#!/bin/sh\n[ \"$CNI_COMMAND\" = ADD ] && exec {killer} {step} /opt/cni/real/weft\nexec /opt/cni/real/weft\n"
        );
        proxy.write("/opt/cni/bin/.weft", script);
        proxy.run(["chmod", "755", "/opt/cni/bin/.weft"]);
        proxy.run(["mv", "/opt/cni/bin/.weft", "/opt/cni/bin/weft"]);
        match proxy.cri().run_pod_sandbox(&proxy.pod_on("web", &BOTH)) {
            Err(_) => killed += 1,
            Ok(web) => {
                proxy.remove(&web);
                break;
            }
        }
        assert_eq!(proxy.cri().list_pod_sandbox().expect("a list"), [], "killed at step {step}");
    }
    assert!(killed > 5, "weft was killed only {killed} times");
    proxy.run(["mv", "/opt/cni/real/weft", "/opt/cni/bin/weft"]);
    proxy.run(["rmdir", "/opt/cni/real"]);
    assert_nothing_left("killed repeatedly", proxy.node(), &before);
}

#[test]
fn network_api_proxy_killed_at_any_step_stores_whole_networks() {
    let proxy = proxy!();
    let killer = testkit::binary("weft-test-killer").display().to_string();
    let mut killed = 0;
    let mut expected = vec!["blue".to_owned(), "red".to_owned()];
    let mut red = 1;
    for step in 1.. {
        proxy.stop("KILL");
        proxy.remove_stale_files();
        let number = step.to_string();
        proxy.launch_under(&[&killer, &number]);
        rig::machine::until("the proxy listens, or has ended", || {
            (proxy.reach(SOCKET).exists() || !proxy.is_running()).then_some(())
        });
        let name = format!("n{step}");
        let set = proxy.network(&["set", "-f", "-"], &bridge(&name, 9).to_string());
        let removed = proxy.network(&["rm", &name], "");
        let other = if red == 1 { 3 } else { 1 };
        let replaced = proxy.network(&["set", "-f", "-"], &bridge("red", other).to_string());
        let survived = proxy.cri().version().is_ok();
        if survived {
            proxy.stop("KILL");
        }
        rig::machine::until("the proxy has ended", || (!proxy.is_running()).then_some(()));
        proxy.remove_stale_files();
        // The next proxy reads the stored networks.
        proxy.launch();
        let there: Vec<String> = proxy.networks().into_keys().collect();
        let is_there = there.contains(&name);
        match (set.code, removed.code) {
            (Some(0), Some(0)) => assert!(!is_there, "step {step}: the network was removed, and exists"),
            (Some(0), _) => {}
            // The network may have been stored completely, without an answer to the client.
            _ if is_there => assert_eq!(proxy.networks()[&name]["status"]["sandbox_management"], true),
            _ => {}
        }
        // A replaced network is stored completely: either the previous one or the new one.
        let shown = proxy.networks()["red"].clone();
        assert_eq!(shown["status"]["sandbox_management"], true, "step {step}");
        let bridge_of_red = shown["config"]["cniv1_config"]["plugins"][0]["parameters"]["bridge"].clone();
        let is_other = bridge_of_red == format!("br{other}");
        assert!(is_other || bridge_of_red == format!("br{red}"), "step {step}: {shown}");
        assert!(
            is_other || replaced.code != Some(0),
            "step {step}: the network was replaced, and has not changed"
        );
        red = if is_other { other } else { red };
        if is_there {
            expected.push(name);
            expected.sort();
        }
        assert_eq!(there, expected, "step {step}");
        if survived {
            break;
        }
        killed += 1;
    }
    assert!(
        killed >= 8,
        "the proxy was killed only {killed} times: binding, storing and removing are more steps"
    );
    let leftovers = proxy.run(["sh", "-c", "ls /var/lib/weft/networks | grep -vc json || true"]);
    assert_eq!(leftovers.trim(), "0", "the next proxy removes temporary files");
}

#[test]
fn network_api_failed_network_fails_the_sandbox_and_undoes_it() {
    let proxy = proxy!();
    proxy.write(rig::cluster::RECORD, "");
    let before = proxy.node().snapshot();
    let fail = json!({ "ADD": [{ "do": "fail", "code": 123, "message": "no room" }] });
    let full = recording("full", "one", &fail).to_string();
    proxy.network(&["set", "-f", "-"], &full).success();
    let pod = proxy.pod_on("web", &[("", "red"), ("", "blue"), ("", "full")]);
    let error = proxy.cri().run_pod_sandbox(&pod).expect_err("a network that fails");
    assert!(error.contains("no room") && error.contains("net2"), "{error}");
    assert_eq!(proxy.cri().list_pod_sandbox().expect("a list"), []);
    proxy.network(&["rm", "full"], "").success();
    proxy.write(rig::cluster::RECORD, "");
    assert_nothing_left("a network that fails", proxy.node(), &before);
    // No network is left in the runtime's directory.
    assert_eq!(proxy.run(["ls", NETWORKS]), "");
}

#[test]
fn network_api_refuses_sandboxes_if_the_runtime_skips_the_proxy() {
    let host = host!(Feature::Bridge, Feature::Veth);
    // The runtime uses the administrator's directory instead of the proxy's.
    let Some(node) = Containerd::new(host) else { return };
    rig::install(&node);
    let admins = rig::with(&rig::cluster::bridge("admins", 1), &json!({ "cniVersion": "1.0.0" })).to_string();
    node.write("/tmp/10-admins.conflist", &admins);
    node.run(["mv", "/tmp/10-admins.conflist", &format!("{NETWORKS}/10-admins.conflist")]);
    node.until_configured(&admins);
    let mut proxy = Proxy::before(node);
    proxy.relaunch(&[]);
    assert_eq!(proxy.findings(), [""; 0], "no network is requested");
    // The runtime creates this sandbox as without the proxy.
    let plain = proxy.cri().run_pod_sandbox(&proxy.node().pod("plain", &[])).expect("a pod");
    proxy.set(&bridge("red", 1));
    proxy.set(&bridge("blue", 2));
    let before = proxy.node().snapshot();
    let error = proxy
        .cri()
        .run_pod_sandbox(&proxy.pod_on("web", &BOTH))
        .expect_err("the runtime does not call the proxy");
    for word in ["did not call the list of weft cri-proxy", "conf_dir", "to /etc/cni/weft"] {
        assert!(error.contains(word), "{word:?} is missing in: {error}");
    }
    assert_eq!(
        proxy.cri().list_pod_sandbox().expect("a list"),
        [(plain.clone(), true)],
        "the sandbox is removed again"
    );
    assert_nothing_left("a sandbox without its networks", proxy.node(), &before);
    let found = proxy.findings();
    assert!(found.iter().any(|finding| finding.contains("no sandbox gets blue, red")), "{found:?}");
    rig::machine::until("the proxy logs it", || {
        proxy.log().contains("runtime does not call the proxy").then_some(())
    });
    proxy.remove(&plain);
    // A runtime without a network is not ready, whatever the status of the proxy's networks.
    proxy.run(["rm", &format!("{NETWORKS}/10-admins.conflist")]);
    rig::machine::until("the runtime has no network", || proxy.node().network_ready().err());
    let why = proxy.ready().expect_err("no sandbox can be created");
    assert_eq!(why, proxy.node().network_ready().expect_err("the same"), "the message of the runtime");
}

/// Removes the runtime's sandboxes, as a kubelet does, and creates sandboxes until the journal has no other
/// entry.
#[track_caller]
fn clear(proxy: &Proxy) {
    let entries = || proxy.run(["sh", "-c", "ls /var/lib/weft/sandboxes | grep json || true"]);
    rig::machine::until("sandboxes unknown to the runtime are detached", || {
        for (id, _) in proxy.cri().list_pod_sandbox().expect("a list") {
            // Another process may be removing it.
            let _ = proxy.cri().stop_pod_sandbox(&id).and_then(|()| proxy.cri().remove_pod_sandbox(&id));
        }
        if let Ok(next) = proxy.cri().run_pod_sandbox(&proxy.pod_on("next", &BOTH)) {
            proxy.remove(&next);
        }
        entries().is_empty().then_some(())
    });
    assert_eq!(proxy.cri().list_pod_sandbox().expect("a list"), []);
    // Removes what a runtime leaves of a sandbox that it lost: its namespace and its cached results.
    let forgotten = "for place in /run/netns/cni-*; do [ ! -e $place ] || { umount $place; rm $place; }; done
        rm -f /var/lib/cni/results/*";
    proxy.run(["sh", "-c", forgotten]);
}

#[test]
fn network_api_proxy_killed_during_sandbox_setup_leaves_nothing() {
    let proxy = proxy!();
    let before = proxy.node().snapshot();
    let killer = testkit::binary("weft-test-killer").display().to_string();
    let (mut early, mut midway) = (0, 0);
    for step in 1.. {
        proxy.stop("KILL");
        proxy.remove_stale_files();
        let number = step.to_string();
        proxy.launch_under(&[&killer, &number]);
        rig::machine::until("the proxy listens, or has ended", || {
            (proxy.reach(SOCKET).exists() || !proxy.is_running()).then_some(())
        });
        let listens = proxy.is_running();
        let answer = proxy.cri().run_pod_sandbox(&proxy.pod_on("web", &BOTH));
        let survived = proxy.cri().version().is_ok();
        if survived {
            proxy.stop("KILL");
        }
        rig::machine::until("the proxy has ended", || (!proxy.is_running()).then_some(()));
        proxy.remove_stale_files();
        proxy.launch();
        if listens && answer.is_err() {
            midway += 1;
        } else {
            early += 1;
        }
        // A confirmed sandbox exists. An unconfirmed one may exist, and is removed like the others.
        let listed = proxy.node().cri().list_pod_sandbox().expect("a list");
        if let Ok(web) = &answer {
            assert!(listed.contains(&(web.clone(), true)), "step {step}: {listed:?}");
        }
        clear(&proxy);
        if survived {
            break;
        }
    }
    assert!(midway >= 5, "killed {midway} times during the setup of a sandbox, {early} times before");
    assert_nothing_left("a killed proxy", proxy.node(), &before);
}

#[test]
fn network_api_runtime_killed_during_sandbox_leaves_nothing() {
    let mut proxy = proxy!();
    proxy.relaunch(&["--orphan-grace", "1"]);
    let before = proxy.node().snapshot();
    proxy.run(["mkdir", "/opt/cni/real"]);
    proxy.run(["mv", "/opt/cni/bin/weft", "/opt/cni/real/weft"]);
    let die = "kill -9 $(cat /run/services/containerd.pid)";
    let real = "/opt/cni/real/weft";
    // Before anything is attached, after everything is attached, before DEL, and after DEL.
    for (verb, steps) in [
        ("ADD", format!("{die}; exec {real}")),
        ("ADD", format!("{real} >/run/result; code=$?; {die}; cat /run/result; exit $code")),
        ("DEL", format!("{die}; exec {real}")),
        ("DEL", format!("{real}; {die}")),
    ] {
        let script = format!("#!/bin/sh\n[ \"$CNI_COMMAND\" = {verb} ] || exec {real}\n{steps}\n");
        proxy.write("/opt/cni/bin/.weft", script);
        proxy.run(["chmod", "755", "/opt/cni/bin/.weft"]);
        proxy.run(["mv", "/opt/cni/bin/.weft", "/opt/cni/bin/weft"]);
        let answer = proxy.cri().run_pod_sandbox(&proxy.pod_on("web", &BOTH));
        if let Ok(web) = &answer {
            assert_eq!(verb, "DEL");
            proxy.cri().stop_pod_sandbox(web).expect_err("the runtime is killed");
        }
        rig::machine::until("the runtime has ended", || {
            (!proxy.node().is_running("containerd")).then_some(())
        });
        proxy.run(["rm", "-f", "/opt/cni/bin/weft", "/run/result", "/run/services/containerd.pid"]);
        proxy.run(["cp", real, "/opt/cni/bin/weft"]);
        proxy.node().launch();
        clear(&proxy);
    }
    proxy.run(["mv", real, "/opt/cni/bin/weft"]);
    proxy.run(["rmdir", "/opt/cni/real"]);
    assert_nothing_left("a killed runtime", proxy.node(), &before);
}

#[test]
fn network_api_lost_sandbox_frees_networks_and_addresses() {
    let mut proxy = proxy!();
    proxy.relaunch(&["--orphan-grace", "1"]);
    let before = proxy.node().snapshot();
    let lost = proxy.cri().run_pod_sandbox(&proxy.pod_on("lost", &BOTH)).expect("a pod");
    let web = proxy.cri().run_pod_sandbox(&proxy.pod_on("web", &BOTH)).expect("a pod");
    proxy.node().forget_sandbox(&lost);
    let entry = |id: &str| proxy.read(format!("/var/lib/weft/sandboxes/{id}.json"));
    let next = proxy.pod_on("next", &[("", "red")]);
    rig::machine::until("the lost sandbox is detached", || {
        proxy.remove(&proxy.cri().run_pod_sandbox(&next).expect("a pod"));
        entry(&lost).is_none().then_some(())
    });
    assert!(entry(&web).is_some(), "an existing sandbox is not changed");
    assert_eq!(links(&proxy.node().inside(&web)), ["eth0", "net1"]);
    proxy.remove(&web);
    proxy.network(&["rm", "blue"], "").success();
    proxy.set(&bridge("blue", 2));
    clear(&proxy);
    assert_nothing_left("a lost sandbox", proxy.node(), &before);
}
