//! Commands for a first try and for support: `weft init`, `weft bundle`, and what `weft doctor` checks on a
//! node.

use serde_json::{Value, json};
use testkit::{Feature, Finished, Host, host};

/// Secret that must not be in an archive.
const SECRET: &str = "hunter2";

fn run(host: &Host, line: &str) -> Finished {
    let _ = testkit::binary("weft-cni");
    let weft = host.command(testkit::binary("weft")).clean_environment();
    weft.args(line.split_whitespace()).finish()
}

#[test]
fn init_example_is_valid_and_can_be_attached() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    rig::install(&host);
    run(&host, "init /run/first").success();
    let linted = run(&host, "lint /run/first").success();
    assert!(!linted.stdout.contains("warning"), "{linted}");
    run(&host, "attach -f /run/first").success();
    let addresses = host.run(["ip", "-n", "weft-default_web", "-br", "address", "show", "net1"]);
    assert!(addresses.contains("10.77.0.2/24"), "{addresses}");
    run(&host, "detach web").success();
    let refused = run(&host, "init /run/first");
    assert!(refused.code == Some(1) && refused.stderr.contains("the file exists"), "{refused}");
}

#[test]
fn bundle_contains_the_node_and_no_planted_secret() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    rig::install(&host);
    let password = json!({ "password": SECRET });
    let delegate = json!({
        "cniVersion": "1.0.0", "name": "home", "type": "bridge", "bridge": "home0", "args": { "cni": password },
        "ipam": { "type": "host-local", "subnet": "10.9.0.0/24" },
    });
    let weft = json!({ "type": "weft", "manifestDir": "/run/m", "logFile": "/run/weft.log", "delegates": [delegate] });
    let list = json!({ "cniVersion": "1.0.0", "name": "w", "plugins": [weft] });
    host.write("/etc/cni/net.d/00-weft.conflist", list.to_string());
    host.write("/etc/cni/net.d/weft.kubeconfig", format!("users: [{{name: a, user: {{token: {SECRET}}}}}]"));
    host.write(
        "/run/weft.log",
        format!("2026 login with token={SECRET} at https://a:{SECRET}@host/\n2026 done\n"),
    );
    let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web", "namespace": "home" },
        "spec": { "containers": [{ "name": "c", "env": [{ "name": "PASSWORD", "value": SECRET }] }] } });
    host.write("/run/m/pod.json", pod.to_string());
    run(&host, "attach home/web").success();
    let weft = host.command(testkit::binary("weft")).clean_environment().env("API_TOKEN", SECRET);
    weft.args(["bundle", "--no-cluster", "--file", "/run/support.tar"]).finish().success();
    assert_eq!(host.run(["stat", "-c", "%a", "/run/support.tar"]).trim(), "600");
    host.run(["mkdir", "/run/unpacked"]);
    host.run(["tar", "-xf", "/run/support.tar", "-C", "/run/unpacked"]);
    let found = host.attempt(["grep", "-rl", SECRET, "/run/unpacked"]);
    assert_eq!(found.code, Some(1), "{found}");
    let file = |name: &str| host.read(format!("/run/unpacked/{name}")).unwrap_or_else(|| panic!("no {name}"));
    assert!(
        file("journal/home_web.json").contains("REDACTED") && file("journal/home_web.json").contains("home0")
    );
    assert!(file("configurations/00-weft.conflist").contains("REDACTED"));
    assert!(file("log.txt").contains("2026 done") && file("log.txt").contains("token=REDACTED"));
    assert!(file("version.json").contains("\"version\"") && file("weft-cni.txt").contains("weft-cni"));
    for name in ["doctor.json", "history.json"] {
        let document: Value = serde_json::from_str(&file(name)).expect("JSON");
        assert!(document.is_array(), "{name}: {document}");
    }
    assert!(host.read("/run/unpacked/configurations/weft.kubeconfig").is_none());
    let again = run(&host, "bundle --no-cluster --file /run/support.tar");
    assert!(again.code == Some(1) && again.stderr.contains("the file exists"), "{again}");
    run(&host, "detach home/web").success();
}

#[test]
fn doctor_reports_another_build_broken_links_and_cilium() {
    let host = host!(Feature::Bridge);
    let program = testkit::binary("weft-cni").display().to_string();
    let install = || host.run([&program, "install", "/opt/cni/bin", "--names", "weft,loopback,bridge"]);
    install();
    let delegate = json!({ "cniVersion": "1.0.0", "name": "home", "type": "bridge", "bridge": "home0" });
    let weft = json!({ "cniVersion": "1.0.0", "name": "w", "type": "weft", "manifestDir": "/run", "delegates": [delegate] });
    host.write("/etc/cni/net.d/04-weft.conf", weft.to_string());
    run(&host, "doctor").success();

    // Another build answers VERSION like this one.
    host.run(["cp", "--remove-destination", &program, "/opt/cni/bin/weft-cni"]);
    host.run(["sh", "-c", "echo >>/opt/cni/bin/weft-cni"]);
    host.run(["ln", "-s", "weft-old", "/opt/cni/bin/macvlan-old"]);
    host.write(
        "/etc/cni/net.d/05-cilium.conflist",
        r#"{"cniVersion":"1.0.0","name":"c","plugins":[{"type":"ptp"}]}"#,
    );
    host.write("/etc/cni/net.d/10-flannel.conflist.cilium_bak", "{}");
    let finished = run(&host, "doctor -o json");
    let findings = finished.json().as_array().expect("a list").clone();
    let hint = |what: &str| {
        let found = findings.iter().find(|finding| finding["what"] == what);
        found.unwrap_or_else(|| panic!("{what}: {findings:?}"))["hint"].as_str().expect("text").to_owned()
    };
    assert_eq!(hint("plugin /opt/cni/bin/weft"), "weft install");
    assert!(hint("configuration /etc/cni/net.d/10-flannel.conflist.cilium_bak").contains("cni-exclusive"));
    // The hints are true: both files are as they should be afterwards.
    let link = hint("plugin /opt/cni/bin/macvlan-old");
    host.run(["sh", "-c", &link]);
    host.run(["rm", "/etc/cni/net.d/10-flannel.conflist.cilium_bak"]);
    install();
    run(&host, "doctor").success();
}

/// Runs `weft` as in the container of an agent: root without capabilities, with the variables of a pod.
pub(crate) fn run_in_pod(host: &Host, line: &str) -> Finished {
    let bare = ["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"];
    let weft = testkit::binary("weft").display().to_string();
    let command = host.command("setpriv").clean_environment().args(bare).args(["env", "NODE_NAME=worker-1"]);
    command.args(["KUBERNETES_SERVICE_HOST=10.96.0.1", &weft]).args(line.split_whitespace()).finish()
}

#[test]
fn agent_container_lists_pods_and_names_the_node_for_checks() {
    let host = host!(Feature::Bridge, Feature::NftMasquerade);
    rig::install(&host);
    run(&host, "init /run/first").success();
    run(&host, "attach -f /run/first").success();
    let listed = run_in_pod(&host, "list").success();
    assert!(listed.stdout.contains("default/web") && listed.stdout.contains("net1"), "{listed}");
    assert!(run_in_pod(&host, "history").success().stdout.contains("default/web"));
    let refused = run_in_pod(&host, "check web");
    assert_eq!(refused.code, Some(3), "{refused}");
    assert!(refused.stderr.contains("ssh worker-1 sudo weft check web"), "{refused}");
    // A pod cannot follow a link to another directory of the host.
    host.run(["ln", "-s", "/nowhere/bridge", "/opt/cni/bin/elsewhere"]);
    let diagnosed = run_in_pod(&host, "doctor");
    assert_eq!(diagnosed.code, Some(1), "{diagnosed}");
    assert!(!diagnosed.stdout.contains("elsewhere"), "{diagnosed}");
    for words in [
        "agent /run/weft/agent.sock: no agent answers",
        "spec.nodeName=worker-1",
        "ssh worker-1 sudo weft doctor",
    ] {
        assert!(diagnosed.stdout.contains(words), "{words}: {diagnosed}");
    }
    run(&host, "detach web").success();
}

#[test]
fn bundle_has_two_journals_under_two_names() {
    let host = host!(Feature::Bridge);
    rig::install(&host);
    let delegate = json!({ "cniVersion": "1.0.0", "name": "home", "type": "bridge", "bridge": "home0" });
    let configure = |directory: Option<&str>| {
        let mut weft = json!({ "type": "weft", "manifestDir": "/run/m", "delegates": [delegate] });
        if let Some(directory) = directory {
            weft["cniDir"] = directory.into();
        }
        let list = json!({ "cniVersion": "1.0.0", "name": "w", "plugins": [weft] });
        host.write("/etc/cni/net.d/00-weft.conflist", list.to_string());
    };
    for name in ["web", "db"] {
        let metadata = json!({ "name": name, "namespace": "home" });
        let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata });
        host.write(format!("/run/m/{name}.json"), pod.to_string());
    }
    configure(None);
    run(&host, "attach home/web").success();
    configure(Some("/run/moved"));
    run(&host, "attach home/db").success();
    run(&host, "bundle --no-cluster --file /run/support.tar").success();
    let listed = host.run(["tar", "-tf", "/run/support.tar"]);
    let mut names: Vec<&str> = listed.lines().collect();
    for name in ["journal/home_db.json", "history.json", "journal-2/home_web.json", "history-2.json"] {
        assert!(names.contains(&name), "{name}: {listed}");
    }
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "{listed}");
    run(&host, "detach home/db").success();
    run(&host, "detach home/web").success();
}

#[test]
fn doctor_reports_kernel_cilium_and_a_read_only_directory() {
    let host = host!(Feature::Bridge);
    let program = testkit::binary("weft-cni").display().to_string();
    host.run([&program, "install", "/opt/cni/bin", "--names", "weft,loopback,bridge"]);
    let delegate = json!({ "cniVersion": "1.0.0", "name": "home", "type": "bridge", "bridge": "home0" });
    host.write("/etc/cni/net.d/10-home.conf", delegate.to_string());
    host.run(["sh", "-c", "mkdir -p /run/readonly /run/m && mount -t tmpfs -o ro tmpfs /run/readonly"]);
    let manifests = ["install", "--set", "manifestDir=/run/m", "--command=/run/readonly"];
    let weft = host.command(testkit::binary("weft")).clean_environment().args(manifests);
    let installed = weft.finish().success();
    assert!(installed.stdout.contains("/run/readonly/weft: not installed: Read-only"), "{installed}");

    let network = |name: &str, plugin: &str| {
        let config = json!({ "cniVersion": "1.0.0", "type": plugin, "master": "eth0" }).to_string();
        json!({
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": { "name": name, "namespace": "blue" }, "spec": { "config": config },
        })
    };
    host.write("/run/m/a.json", network("a", "bridge").to_string());
    host.write("/run/m/b.json", network("b", "vrf").to_string());
    // A kernel with modules may load it, as far as is known here.
    let has_modules = std::path::Path::new("/proc/modules").exists();
    let has_vrf = host.attempt("ip link add try type vrf table 5".split(' ')).code == Some(0);
    // Cilium's ConfigMap, as the kubelet mounts it.
    let mounted = "/var/lib/kubelet/pods/u-1/volumes/kubernetes.io~configmap/cilium-config-path";
    host.write(format!("{mounted}/cni-exclusive"), "true");
    let finished = run(&host, "doctor -o json");
    let findings = finished.json().as_array().expect("a list").clone();
    let mut expected =
        vec![("ConfigMap cilium-config", "cni-exclusive"), ("command /run/readonly/weft", "Read-only")];
    if !has_vrf && !has_modules {
        expected.push(("kernel", "no VRFs (module vrf), which these networks need: blue/b"));
    }
    for (what, why) in &expected {
        let found = findings.iter().find(|finding| finding["what"] == *what);
        let found = found.unwrap_or_else(|| panic!("{what}: {findings:?}"));
        assert!(found["why"].as_str().is_some_and(|text| text.contains(why)), "{found}");
    }
    assert_eq!(findings.len(), expected.len(), "{findings:?}");
    // The hints are true.
    host.write(format!("{mounted}/cni-exclusive"), "false");
    host.run(["rm", "/run/m/b.json"]);
    let elsewhere = ["install", "--set", "manifestDir=/run/m", "--command=/run/writable"];
    host.command(testkit::binary("weft")).clean_environment().args(elsewhere).finish().success();
    run(&host, "doctor").success();
}
