//! The CRI Network API when something goes wrong: attachments that change, processes that die, whoever dies first.
//!
//! Source: docs/cri-networks.md; ARCHITECTURE.md, «Invariants».

use rig::cluster::recording;
use rig::containerd::NETWORKS;
use rig::proxy::{SOCKET, bridge};
use rig::{Containerd, Proxy, assert_nothing_left, links};
use serde_json::json;
use testkit::{Feature, host};

const BOTH: [(&str, &str); 2] = [("", "red"), ("", "blue")];

/// A runtime, a proxy before it, two networks, and a sandbox that was on them.
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
fn an_attachment_that_changed_is_told_by_its_network_and_by_doctor() {
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
    // What a plugin said counts for a few seconds.
    rig::machine::until("blue is not as it was", || (connected() == [true, false]).then_some(()));
    let found = proxy.findings();
    assert!(found.iter().any(|finding| finding.contains("network blue")), "{found:?}");
    proxy.remove(&web);
    assert_eq!(connected(), [true, true], "who is not there is not disconnected");
    // A plugin that goes takes its networks' readiness along.
    proxy.run([
        "sh",
        "-c",
        "cd /opt/cni/bin && rm bridge && printf '#!/bin/sh\nexit 1\n' >bridge && chmod 755 bridge",
    ]);
    assert_eq!(proxy.networks()["red"]["status"]["sandbox_management"], false);
    let why = proxy.ready().expect_err("no network is ready");
    assert!(why.contains("red"), "{why}");
    proxy.stop("KILL");
    proxy.bury();
    // One that ended properly takes its socket along, and is missed as much.
    for signal in ["TERM", "KILL"] {
        proxy.launch();
        proxy.stop(signal);
        let found = proxy.findings();
        assert!(found.iter().any(|finding| finding.contains("cri-proxy")), "{signal}: {found:?}");
    }
}

#[test]
fn a_plugin_that_is_not_ready_takes_its_network_s_readiness_along_and_hangs_nobody() {
    let host = host!(Feature::Bridge, Feature::Veth);
    let Some(proxy) = Proxy::with_networks(host) else { return };
    proxy.write(rig::cluster::RECORD, "");
    let fail = json!({ "STATUS": [{ "do": "fail", "code": 50, "message": "no room at all" }] });
    proxy.network(&["set", "-f", "-"], &recording("full", "one", &fail).to_string()).success();
    assert_eq!(proxy.networks()["full"]["status"]["sandbox_management"], false);
    let why = proxy.ready().expect_err("the only network is not ready");
    assert!(why.contains("network full") && why.contains("no room at all"), "{why}");
    // Who hangs has an end, and others are asked meanwhile.
    let hang = json!({ "STATUS": [{ "do": "hang" }] });
    proxy.network(&["set", "-f", "-"], &recording("slow", "two", &hang).to_string()).success();
    let asked = std::time::Instant::now();
    proxy.ready().expect_err("neither is ready");
    assert!(asked.elapsed().as_secs() < 20, "{:?}", asked.elapsed());
    proxy.set(&bridge("red", 1));
    proxy.ready().expect("one that is ready is enough");
}

#[test]
fn sandboxes_outlive_proxy_and_runtime_in_any_order_and_go_without_a_trace() {
    let proxy = proxy!();
    let before = proxy.node().snapshot();
    let run = |name| proxy.cri().run_pod_sandbox(&proxy.pod_on(name, &BOTH)).expect("a pod");
    let [a, b, c, d] = ["a", "b", "c", "d"].map(run);
    proxy.stop("KILL");
    // Without the proxy the runtime takes sandboxes down by itself, from the journal.
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
    assert_eq!(proxy.networks().len(), 2, "networks need no runtime");
    proxy.node().launch();
    assert_eq!(proxy.cri().pod_sandbox_status(&c).expect("a status").networks, ["", "blue"]);
    for id in [&c, &d] {
        proxy.remove(id);
    }
    assert_nothing_left("restarts in every state", proxy.node(), &before);
}

#[test]
fn weft_killed_at_every_fifth_step_of_a_sandbox_on_two_networks_leaves_nothing_behind() {
    let proxy = proxy!();
    let before = proxy.node().snapshot();
    let killer = testkit::binary("weft-test-killer").display().to_string();
    proxy.run(["mkdir", "/opt/cni/real"]);
    proxy.run(["mv", "/opt/cni/bin/weft", "/opt/cni/real/weft"]);
    let mut killed = 0;
    for step in (1..).step_by(5) {
        // What the runtime calls ADD for is killed; its DEL is not.
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
    assert!(killed > 5, "it was killed {killed} times only");
    proxy.run(["mv", "/opt/cni/real/weft", "/opt/cni/bin/weft"]);
    proxy.run(["rmdir", "/opt/cni/real"]);
    assert_nothing_left("killed and killed again", proxy.node(), &before);
}

#[test]
fn a_proxy_killed_at_any_step_has_stored_what_it_said_and_nothing_by_half() {
    let proxy = proxy!();
    let killer = testkit::binary("weft-test-killer").display().to_string();
    let mut killed = 0;
    let mut expected = vec!["blue".to_owned(), "red".to_owned()];
    let mut red = 1;
    for step in 1.. {
        proxy.stop("KILL");
        proxy.bury();
        let number = step.to_string();
        proxy.launch_under(&[&killer, &number]);
        rig::machine::until("it listens, or is dead", || {
            (proxy.reach(SOCKET).exists() || !proxy.lives()).then_some(())
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
        rig::machine::until("it is dead", || (!proxy.lives()).then_some(()));
        proxy.bury();
        // The next one reads what is there.
        proxy.launch();
        let there: Vec<String> = proxy.networks().into_keys().collect();
        let is_there = there.contains(&name);
        match (set.code, removed.code) {
            (Some(0), Some(0)) => assert!(!is_there, "step {step}: it was removed, and is there"),
            (Some(0), _) => {}
            // It may have been stored, and whole; nobody was told.
            _ if is_there => assert_eq!(proxy.networks()[&name]["status"]["sandbox_management"], true),
            _ => {}
        }
        // One in another's place is there whole, and what was there before is, or it.
        let shown = proxy.networks()["red"].clone();
        assert_eq!(shown["status"]["sandbox_management"], true, "step {step}");
        let bridge_of_red = shown["config"]["cniv1_config"]["plugins"][0]["parameters"]["bridge"].clone();
        let is_other = bridge_of_red == format!("br{other}");
        assert!(is_other || bridge_of_red == format!("br{red}"), "step {step}: {shown}");
        assert!(is_other || replaced.code != Some(0), "step {step}: it was replaced, and is as before");
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
    assert!(killed >= 8, "it was killed {killed} times only: binding, storing and removing are more steps");
    let leftovers = proxy.run(["sh", "-c", "ls /var/lib/weft/networks | grep -vc json || true"]);
    assert_eq!(leftovers.trim(), "0", "what was not renamed is removed by the next one");
}

#[test]
fn a_network_that_fails_fails_the_sandbox_and_the_others_are_undone() {
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
    // And a file that is nobody's default.
    assert_eq!(proxy.run(["ls", NETWORKS]), "");
}

#[test]
fn a_runtime_that_does_not_call_the_proxy_is_told_and_makes_no_sandbox_without_its_networks() {
    let host = host!(Feature::Bridge, Feature::Veth);
    // Its directory is the administrator's, and not the one that the proxy is told of.
    let Some(node) = Containerd::new(host) else { return };
    rig::install(&node);
    let admins = rig::with(&rig::cluster::bridge("admins", 1), &json!({ "cniVersion": "1.0.0" })).to_string();
    node.write("/tmp/10-admins.conflist", &admins);
    node.run(["mv", "/tmp/10-admins.conflist", &format!("{NETWORKS}/10-admins.conflist")]);
    node.until_configured(&admins);
    let mut proxy = Proxy::before(node);
    proxy.relaunch(&[]);
    assert_eq!(proxy.findings(), [""; 0], "nobody asks for networks");
    // As without the proxy: the runtime makes it.
    let plain = proxy.cri().run_pod_sandbox(&proxy.node().pod("plain", &[])).expect("a pod");
    proxy.set(&bridge("red", 1));
    proxy.set(&bridge("blue", 2));
    let before = proxy.node().snapshot();
    let error = proxy.cri().run_pod_sandbox(&proxy.pod_on("web", &BOTH)).expect_err("nobody asked the proxy");
    for word in ["did not call the list of weft cri-proxy", "conf_dir", "to /etc/cni/weft"] {
        assert!(error.contains(word), "{word:?} is missing in: {error}");
    }
    assert_eq!(proxy.cri().list_pod_sandbox().expect("a list"), [(plain.clone(), true)], "it is taken back");
    assert_nothing_left("a sandbox without its networks", proxy.node(), &before);
    let found = proxy.findings();
    assert!(found.iter().any(|finding| finding.contains("no sandbox gets blue, red")), "{found:?}");
    rig::machine::until("it says so by itself", || {
        proxy.log().contains("runtime does not call the proxy").then_some(())
    });
    proxy.remove(&plain);
    // A runtime that has no network is not ready, whatever the proxy's are.
    proxy.run(["rm", &format!("{NETWORKS}/10-admins.conflist")]);
    rig::machine::until("the runtime has no network", || proxy.node().network_ready().err());
    let why = proxy.ready().expect_err("no sandbox can be made");
    assert_eq!(why, proxy.node().network_ready().expect_err("the same"), "the runtime's words");
}

/// Takes down what the runtime has, as a kubelet does that finds it, and makes sandboxes until nothing else is in the journal.
#[track_caller]
fn clear(proxy: &Proxy) {
    let entries = || proxy.run(["sh", "-c", "ls /var/lib/weft/sandboxes | grep json || true"]);
    rig::machine::until("what the runtime does not know is taken down", || {
        for (id, _) in proxy.cri().list_pod_sandbox().expect("a list") {
            // Another one may be at it.
            let _ = proxy.cri().stop_pod_sandbox(&id).and_then(|()| proxy.cri().remove_pod_sandbox(&id));
        }
        if let Ok(next) = proxy.cri().run_pod_sandbox(&proxy.pod_on("next", &BOTH)) {
            proxy.remove(&next);
        }
        entries().is_empty().then_some(())
    });
    assert_eq!(proxy.cri().list_pod_sandbox().expect("a list"), []);
    // What a runtime leaves of a sandbox that it forgot: its namespace, and the results it had.
    let forgotten = "for place in /run/netns/cni-*; do [ ! -e $place ] || { umount $place; rm $place; }; done
        rm -f /var/lib/cni/results/*";
    proxy.run(["sh", "-c", forgotten]);
}

#[test]
fn a_proxy_killed_at_any_step_of_a_sandbox_leaves_nothing_once_the_next_one_is_asked() {
    let proxy = proxy!();
    let before = proxy.node().snapshot();
    let killer = testkit::binary("weft-test-killer").display().to_string();
    let (mut early, mut midway) = (0, 0);
    for step in 1.. {
        proxy.stop("KILL");
        proxy.bury();
        let number = step.to_string();
        proxy.launch_under(&[&killer, &number]);
        rig::machine::until("it listens, or is dead", || {
            (proxy.reach(SOCKET).exists() || !proxy.lives()).then_some(())
        });
        let listens = proxy.lives();
        let answer = proxy.cri().run_pod_sandbox(&proxy.pod_on("web", &BOTH));
        let survived = proxy.cri().version().is_ok();
        if survived {
            proxy.stop("KILL");
        }
        rig::machine::until("it is dead", || (!proxy.lives()).then_some(()));
        proxy.bury();
        proxy.launch();
        if listens && answer.is_err() {
            midway += 1;
        } else {
            early += 1;
        }
        // What was said to be there is there; what was not may be, and goes like it.
        let listed = proxy.node().cri().list_pod_sandbox().expect("a list");
        if let Ok(web) = &answer {
            assert!(listed.contains(&(web.clone(), true)), "step {step}: {listed:?}");
        }
        clear(&proxy);
        if survived {
            break;
        }
    }
    assert!(midway >= 5, "killed {midway} times while a sandbox was made, {early} times before");
    assert_nothing_left("a proxy that died midway", proxy.node(), &before);
}

#[test]
fn a_runtime_killed_while_a_sandbox_is_made_leaves_nothing_in_the_end() {
    let mut proxy = proxy!();
    proxy.relaunch(&["--orphan-grace", "1"]);
    let before = proxy.node().snapshot();
    proxy.run(["mkdir", "/opt/cni/real"]);
    proxy.run(["mv", "/opt/cni/bin/weft", "/opt/cni/real/weft"]);
    let die = "kill -9 $(cat /run/services/containerd.pid)";
    let real = "/opt/cni/real/weft";
    // Before anything is attached, when all of it is, and when the networks were just taken away again.
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
        let told = proxy.cri().run_pod_sandbox(&proxy.pod_on("web", &BOTH));
        if let Ok(web) = &told {
            assert_eq!(verb, "DEL");
            proxy.cri().stop_pod_sandbox(web).expect_err("the runtime dies");
        }
        rig::machine::until("the runtime is dead", || (!proxy.node().lives("containerd")).then_some(()));
        proxy.run(["rm", "-f", "/opt/cni/bin/weft", "/run/result", "/run/services/containerd.pid"]);
        proxy.run(["cp", real, "/opt/cni/bin/weft"]);
        proxy.node().launch();
        clear(&proxy);
    }
    proxy.run(["mv", real, "/opt/cni/bin/weft"]);
    proxy.run(["rmdir", "/opt/cni/real"]);
    assert_nothing_left("a runtime that died midway", proxy.node(), &before);
}

#[test]
fn a_sandbox_that_the_runtime_lost_frees_its_networks_and_its_addresses() {
    let mut proxy = proxy!();
    proxy.relaunch(&["--orphan-grace", "1"]);
    let before = proxy.node().snapshot();
    let lost = proxy.cri().run_pod_sandbox(&proxy.pod_on("lost", &BOTH)).expect("a pod");
    let web = proxy.cri().run_pod_sandbox(&proxy.pod_on("web", &BOTH)).expect("a pod");
    proxy.node().lose(&lost);
    let entry = |id: &str| proxy.read(format!("/var/lib/weft/sandboxes/{id}.json"));
    let next = proxy.pod_on("next", &[("", "red")]);
    rig::machine::until("what was lost is taken down", || {
        proxy.remove(&proxy.cri().run_pod_sandbox(&next).expect("a pod"));
        entry(&lost).is_none().then_some(())
    });
    assert!(entry(&web).is_some(), "what is there is left alone");
    assert_eq!(links(&proxy.node().inside(&web)), ["eth0", "net1"]);
    proxy.remove(&web);
    proxy.network(&["rm", "blue"], "").success();
    proxy.set(&bridge("blue", 2));
    clear(&proxy);
    assert_nothing_left("what was lost", proxy.node(), &before);
}
