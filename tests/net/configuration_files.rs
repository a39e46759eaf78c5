//! Tests for the command line with the runtime's configuration: where it is, which journal it names, which
//! manifests it reads, and how the commands report a configuration that is damaged or renamed.

use rig::cluster;
use serde_json::{Value, json};
use testkit::host;

use crate::command_line::{FAILED, assert_failed, list, recording, run};

#[test]
fn manifest_dir_file_that_is_unreadable_is_skipped_and_named() {
    let host = host!();
    let cluster = recording(&host, &json!({}));
    let pod = host.pod("web");
    let config = cluster::configuration(&cluster::recording("home", "three", &json!({})));
    let file = format!("{}/0-broken.yaml", cluster::MANIFESTS);
    let text = "\u{feff}kind: ConfigMap\nmetadata: {name: x}\n";
    let utf16: Vec<u8> = text.encode_utf16().flat_map(u16::to_be_bytes).collect();
    let latin1 = b"# \xe4\n".to_vec();
    for content in [utf16, latin1, "# x\n".repeat(300_000).into_bytes()] {
        host.write(&file, content);
        let attachment = cluster.attachment(&pod);
        let added = attachment.add(&config).success();
        assert!(added.stderr.contains(&file), "{added}");
        attachment.del(&config).success();
        host.write("/etc/cni/weft.conf", config.to_string());
        let explained = run(&host, "explain -n blue web --config /etc/cni/weft.conf").success();
        assert!(explained.stderr.contains(&file), "{explained}");
    }
    // A definition in the skipped file is missing.
    host.run(["rm", &format!("{}/net-first.json", cluster::MANIFESTS)]);
    rig::assert_refused("no network", &cluster.attachment(&pod).add(&config), 7, &["first", &file]);
}

#[test]
fn command_line_uses_the_runtimes_configuration_and_its_cni_dir() {
    let host = host!();
    let cluster = recording(&host, &json!({}));
    host.run(["rm", &format!("{}/weft.conf", cluster::MANIFESTS)]);
    let weft_conf = json!({"type": "weft", "cniDir": "/var/lib/weft/elsewhere", "manifestDir": cluster::MANIFESTS,
        "delegates": [cluster::recording("home", "three", &json!({}))]});
    let chain = json!({"cniVersion": "1.1.0", "name": "w", "plugins": [weft_conf, {"type": "portmap"}]});
    host.write("/etc/cni/net.d/00-weft.conflist", chain.to_string());
    let attached = run(&host, "attach --pod blue/web").success();
    assert!(
        attached.stdout.contains("skipped plugins after weft in /etc/cni/net.d/00-weft.conflist: portmap"),
        "{attached}"
    );
    assert!(host.read("/var/lib/weft/elsewhere/sandboxes/blue_web.json").is_some());
    assert_eq!(list(&host).as_array().unwrap().len(), 1);
    // Without the configuration the journal is not found; with `--config` it is.
    host.run(["mv", "/etc/cni/net.d/00-weft.conflist", "/etc/cni/weft.conflist"]);
    assert_eq!(list(&host), json!([]));
    let listed = run(&host, "list -o json --config /etc/cni/weft.conflist").success().json();
    assert_eq!(listed[0]["containerId"], "blue_web");
    run(&host, "check --pod blue/web --config /etc/cni/weft.conflist").success();
    run(&host, "detach --pod blue/web --config /etc/cni/weft.conflist").success();
    let verbs: Vec<String> = cluster.calls().iter().map(|call| call.command.clone()).collect();
    assert_eq!(verbs, ["ADD", "ADD", "ADD", "CHECK", "CHECK", "CHECK", "DEL", "DEL", "DEL"]);
}

#[test]
fn check_uses_the_cni_version_of_each_network() {
    let host = host!();
    let cluster = recording(&host, &json!({}));
    host.run(["rm", &format!("{}/weft.conf", cluster::MANIFESTS)]);
    let weft_conf = json!({"type": "weft", "manifestDir": cluster::MANIFESTS,
        "delegates": [cluster::recording("home", "three", &json!({}))]});
    // The meta-plugin's own version has no CHECK.
    let chain = json!({"cniVersion": "0.3.1", "name": "w", "plugins": [weft_conf]});
    host.write("/etc/cni/net.d/00-weft.conflist", chain.to_string());
    run(&host, "attach --pod blue/web").success();
    run(&host, "check --pod blue/web").success();
    let checks = || cluster.calls().iter().filter(|call| call.command == "CHECK").count();
    assert_eq!(checks(), 3);
    let found = run(&host, "doctor -o json").json();
    let changed = |finding: &Value| finding["what"].as_str().is_some_and(|what| what.starts_with("sandbox"));
    assert!(!found.as_array().expect("a list").iter().any(changed), "{found}");
    assert_eq!(checks(), 3);
    run(&host, "detach --pod blue/web").success();
}

#[test]
fn list_and_detach_work_with_a_broken_runtime_configuration() {
    let host = host!();
    let _cluster = recording(&host, &json!({}));
    run(&host, &format!("attach -f {} --pod blue/web", cluster::MANIFESTS)).success();
    host.write(
        "/etc/cni/net.d/00-weft.conflist",
        r#"{"cniVersion":"1.0.0","name":"w","plugins":[{"type":"weft","x":1}]}"#,
    );
    assert_eq!(list(&host).as_array().unwrap().len(), 1);
    run(&host, "detach --pod blue/web").success();
}

#[test]
fn list_and_detach_fail_if_the_journal_cannot_be_located() {
    let host = host!();
    let _cluster = recording(&host, &json!({}));
    host.run(["rm", &format!("{}/weft.conf", cluster::MANIFESTS)]);
    let weft_conf = json!({"cniVersion": "1.1.0", "name": "w", "type": "weft", "cniDir": "/var/lib/weft/elsewhere",
        "manifestDir": cluster::MANIFESTS, "delegates": [cluster::recording("home", "three", &json!({}))]});
    host.write("/etc/cni/net.d/20-weft.conf", weft_conf.to_string());
    run(&host, "attach --pod blue/web").success();
    let attached = list(&host);
    // The configuration is unreadable, or an earlier file that may be one.
    let hide = "mv 20-weft.conf ../kept; ln -s 20-weft.conf 20-weft.conf";
    let show = "mv ../kept 20-weft.conf";
    for (damage, repair) in [(hide, show), ("ln -s 10-other.conf 10-other.conf", "rm 10-other.conf")] {
        let inside = |script: &str| host.run(["sh", "-e", "-c", &format!("cd /etc/cni/net.d; {script}")]);
        inside(damage);
        for line in ["detach --pod blue/web", "check --pod blue/web", "list", "list -o json"] {
            let refused = run(&host, line);
            assert_failed(&refused, FAILED, &["the directory of the journal is unknown", "symbolic links"]);
            assert!(!refused.stdout.contains("no attachments"), "{refused}");
        }
        let found = run(&host, "doctor -o json").json();
        let reported =
            found.as_array().expect("a list").iter().filter(|finding| finding["what"] == "configuration");
        assert_eq!(reported.count(), 1, "{found}");
        inside(repair);
        assert_eq!(list(&host), attached);
    }
    // An attach leaves this directory if it cannot remove it.
    host.run(["mkdir", "-p", "/run/weft-attach-blue_web/manifests"]);
    run(&host, "detach --pod blue/web").success();
    assert_eq!(list(&host), json!([]));
    assert_eq!(host.run(["find", "/run", "-name", "weft-attach-*"]), "");
}

#[test]
fn list_and_detach_fail_if_the_configuration_is_not_valid() {
    let host = host!();
    let _cluster = recording(&host, &json!({}));
    host.run(["rm", &format!("{}/weft.conf", cluster::MANIFESTS)]);
    let weft_conf = json!({"cniVersion": "1.1.0", "name": "w", "type": "weft", "cniDir": "/var/lib/weft/elsewhere",
        "manifestDir": cluster::MANIFESTS, "delegates": [cluster::recording("home", "three", &json!({}))]});
    let (file, text) = ("/etc/cni/net.d/20-weft.conf", weft_conf.to_string());
    host.write(file, &text);
    run(&host, "attach --pod blue/web").success();
    let attached = list(&host);
    let files = || host.run(["sh", "-c", "find /run/netns /var/lib/weft -name '*blue_web*' | sort"]);
    let before = files();
    for (damaged, says) in [
        (String::new(), "not a JSON object"),
        (text[..text.len() / 2].to_owned(), "not a JSON object"),
        (text.replace("\"w\"", "\"w\","), "not a JSON object"),
        (format!("\u{feff}{text}"), "byte order mark"),
        (text.replace("\"type\"", "\"typ\""), "missing"),
        (text.replace("\"weft\"", "\"wetf\""), "did you mean weft?"),
    ] {
        host.write(file, &damaged);
        for line in ["detach --pod blue/web", "check --pod blue/web", "list", "list -o json"] {
            let refused = run(&host, line);
            assert_failed(&refused, FAILED, &["the directory of the journal is unknown", file, says]);
            assert!(!refused.stdout.contains("no attachments"), "{refused}");
        }
        assert_eq!(files(), before);
        let found = run(&host, "doctor -o json").json();
        assert!(found[0]["what"] == "configuration" && found[0]["why"].to_string().contains(file), "{found}");
    }
    // A later valid file does not hide that the first one may be the right one.
    host.write(file, "{\"type\": \"weft\"");
    host.write("/etc/cni/net.d/30-weft.conf", text.replace("elsewhere", "other"));
    assert_failed(&run(&host, "list"), FAILED, &[file]);
    // An invalid file of another plugin does not matter beside a valid configuration.
    host.write("/etc/cni/net.d/10-other.conf", "{\"type\": \"bridge\"");
    host.run(["rm", "/etc/cni/net.d/30-weft.conf"]);
    host.write(file, &text);
    assert_eq!(list(&host), attached);
    // Cilium renames the files of other plugins.
    host.run(["rm", "/etc/cni/net.d/10-other.conf"]);
    host.run(["mv", file, &format!("{file}.cilium_bak")]);
    let found = run(&host, "doctor -o json").json();
    assert_eq!(found[0]["what"], format!("configuration {file}.cilium_bak"));
    assert!(found[0]["hint"].to_string().contains("cni.exclusive"), "{found}");
    assert_eq!(list(&host), attached);
    run(&host, "detach --pod blue/web").success();
    assert_eq!(list(&host), json!([]));
}

#[test]
fn attach_calls_plugins_with_the_runtimes_variables() {
    let host = host!();
    let cluster = recording(&host, &json!({}));
    run(&host, &format!("attach -f {} --pod blue/web --path /opt/cni/bin", cluster::MANIFESTS)).success();
    run(&host, "detach --pod blue/web").success();
    let calls = cluster.calls();
    for call in &calls {
        assert_eq!(call.environment("CNI_CONTAINERID"), "blue_web");
        assert_eq!(call.environment("CNI_NETNS"), "/run/netns/weft-blue_web");
        assert_eq!(call.environment("CNI_PATH"), "/opt/cni/bin");
        let args = call.environment("CNI_ARGS");
        assert!(args.starts_with("IgnoreUnknown=1;K8S_POD_NAMESPACE=blue;K8S_POD_NAME=web;"), "{args}");
    }
    assert_eq!(calls.len(), 6);
}
