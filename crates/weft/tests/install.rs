//! `weft install` as a program: when the configuration is written, its content, and when it is removed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test helpers may panic")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Configuration and plugin directory of a runtime, and a journal.
struct Runtime(PathBuf);

impl Runtime {
    fn new(name: &str) -> Runtime {
        assert!(testkit::binary("weft-cni").exists(), "weft-cni is not built");
        let path = std::env::temp_dir().join(format!("weft-runtime-{}-{name}", std::process::id()));
        for directory in ["conf", "bin", "journal/sandboxes"] {
            fs::create_dir_all(path.join(directory)).unwrap();
        }
        Runtime(path)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(testkit::binary("weft"));
        command.arg("install").arg("--conf-dir").arg(self.0.join("conf"));
        command.arg("--bin-dir").arg(self.0.join("bin")).args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn install(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn write(&self, file: &str, content: &impl ToString) {
        fs::write(self.0.join(file), content.to_string()).unwrap();
    }

    fn written(&self) -> Option<Value> {
        let text = fs::read_to_string(self.0.join("conf/00-weft.conflist")).ok()?;
        Some(serde_json::from_str(&text).expect("incomplete file"))
    }

    /// Writes a default network whose plugin is not built into weft-cni.
    fn default_network(&self) {
        let plugins = json!([
            { "type": "flannel", "delegate": {} },
            { "type": "portmap", "capabilities": { "portMappings": true } },
        ]);
        self.write(
            "conf/10-flannel.conflist",
            &json!({ "cniVersion": "0.3.1", "name": "cbr0", "plugins": plugins }),
        );
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
fn assert_refused(output: &Output, arguments: &[&str]) {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    for word in arguments {
        assert!(stderr(output).contains(word), "{word:?} is not in {}", stderr(output));
    }
}

/// Waits until a process exits. Kills it after 20 s.
fn wait_for_exit(mut child: Child) -> Output {
    let deadline = Instant::now() + Duration::from_secs(20);
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("still running: {:?}", child.wait_with_output());
        }
        sleep(Duration::from_millis(20));
    }
    child.wait_with_output().unwrap()
}

// Requirements: NPWG1-6.1-2
// Requirements: NPWG1-6.1-2
#[test]
fn install_status_decides_readiness_of_the_default_network() {
    let runtime = Runtime::new("status");
    let mode = runtime.0.join("ready");
    let plugin = format!(
        "#!/bin/sh\ncase $CNI_COMMAND in VERSION) echo '{{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"1.1.0\"]}}';;\n\
         STATUS) [ -e {} ] || {{ echo '{{\"cniVersion\":\"1.1.0\",\"code\":50,\"msg\":\"no lease yet\"}}'; exit 1; }};; esac\n",
        mode.display()
    );
    runtime.write("bin/flannel", &plugin);
    fs::set_permissions(runtime.0.join("bin/flannel"), fs::Permissions::from_mode(0o755)).unwrap();
    let list = json!({ "cniVersion": "1.1.0", "name": "cbr0", "plugins": [{ "type": "flannel" }] });
    runtime.write("conf/10-flannel.conflist", &list);
    assert_refused(&runtime.install(&["--status"]), &["default network cbr0 is not ready", "no lease yet"]);
    assert_eq!(runtime.written(), None);
    let waiting = runtime.command(&["--wait", "--status"]).spawn().unwrap();
    sleep(Duration::from_millis(700));
    assert_eq!(runtime.written(), None);
    fs::write(&mode, "").unwrap();
    assert!(wait_for_exit(waiting).status.success());
    assert!(runtime.written().is_some());
    // Versions before 1.1.0 have no STATUS, and built-in plugins are not asked.
    for older in [
        json!({ "cniVersion": "1.0.0", "name": "cbr0", "plugins": [{ "type": "flannel" }] }),
        json!({ "cniVersion": "1.1.0", "name": "cbr0", "plugins": [{ "type": "bridge" }] }),
    ] {
        fs::remove_file(&mode).ok();
        runtime.write("conf/10-flannel.conflist", &older);
        assert!(runtime.install(&["--status"]).status.success(), "{older}");
    }
}

// Requirements: NPWG1-6.1-1, M24
// Requirements: NPWG1-6.1-1, M24
#[test]
fn install_waits_until_the_default_network_is_ready() {
    let runtime = Runtime::new("waits");
    assert_refused(&runtime.install(&[]), &["no default network is configured in"]);
    let ready = runtime.0.join("ready");
    let waiting = runtime.command(&["--wait", "--ready-file", ready.to_str().unwrap()]).spawn().unwrap();
    let assert_not_written = |what: &str| {
        sleep(Duration::from_millis(700));
        assert_eq!(runtime.written(), None, "{what}");
    };
    assert_not_written("no default network");
    runtime.default_network();
    assert_not_written("flannel is missing");
    runtime.write("bin/flannel", &"");
    assert_not_written("the ready file is missing");
    fs::write(&ready, "").unwrap();
    let output = wait_for_exit(waiting);
    assert!(output.status.success(), "{output:?}");
    let written = runtime.written().expect("configuration is written");
    assert_eq!(written["cniVersion"], "0.3.1", "the version of the default network");
    let plugin = &written["plugins"][0];
    assert_eq!(plugin["clusterNetwork"], runtime.0.join("conf/10-flannel.conflist").to_str().unwrap());
    assert_eq!(plugin["readinessindicatorfile"], ready.to_str().unwrap());
    assert_eq!(
        plugin["capabilities"],
        json!({ "io.kubernetes.cri.pod-annotations": true, "portMappings": true })
    );
    let names: Vec<_> =
        ["weft", "weft-cni", "loopback"].map(|name| runtime.0.join("bin").join(name).exists()).into();
    assert_eq!(names, [true; 3]);
    assert_eq!(fs::read_dir(runtime.0.join("conf")).unwrap().count(), 2, "no temporary file remains");
    // A second run changes nothing.
    let before = fs::metadata(runtime.0.join("conf/00-weft.conflist")).unwrap().modified().unwrap();
    let again = runtime.install(&["--ready-file", ready.to_str().unwrap()]);
    let output_text = String::from_utf8_lossy(&again.stdout).into_owned();
    assert!(
        again.status.success() && output_text.lines().all(|line| line.ends_with(": up to date")),
        "{output_text}"
    );
    assert_eq!(fs::metadata(runtime.0.join("conf/00-weft.conflist")).unwrap().modified().unwrap(), before);
}

#[test]
fn install_refuses_meta_plugins_and_earlier_files() {
    let runtime = Runtime::new("multus");
    let multus = json!({ "cniVersion": "0.3.1", "name": "m", "type": "multus", "clusterNetwork": "/x" });
    runtime.write("conf/00-multus.conf", &multus);
    runtime.write("conf/05-weft.conf", &multus.to_string().replace("multus", "weft"));
    runtime.write("conf/07-broken.conflist", &"{");
    assert_refused(&runtime.install(&[]), &["no default network is configured", "07-broken.conflist"]);
    let bridge =
        json!({ "cniVersion": "1.0.0", "name": "home", "type": "bridge", "ipam": { "type": "host-local" } });
    runtime.write("conf/10-home.conf", &bridge);
    assert_refused(&runtime.install(&[]), &["00-multus.conf sorts before", "weft migrate multus"]);
    assert_eq!(runtime.written(), None);
    fs::rename(runtime.0.join("conf/00-multus.conf"), runtime.0.join("conf/00-other.conf")).unwrap();
    let other = bridge.to_string().replace("home", "other");
    runtime.write("conf/00-other.conf", &other);
    assert_refused(
        &runtime.install(&["--default-network", "home"]),
        &["00-other.conf sorts before", "--file-name"],
    );
    fs::remove_file(runtime.0.join("conf/00-other.conf")).unwrap();
    assert!(runtime.install(&[]).status.success(), "bridge is built in");
    let written = runtime.written().unwrap();
    assert!(written["plugins"][0]["clusterNetwork"].as_str().unwrap().ends_with("/10-home.conf"));
}

#[test]
fn install_validates_a_given_configuration() {
    let runtime = Runtime::new("given");
    let given = runtime.0.join("given.conflist");
    let with = |key: &str| {
        let delegate = json!({ "cniVersion": "1.0.0", "name": "home", "type": "bridge" });
        let plugin = json!({ "type": "weft", key: [delegate] });
        fs::write(&given, json!({ "cniVersion": "1.0.0", "name": "n", "plugins": [plugin] }).to_string())
            .unwrap();
        runtime.install(&["--config", given.to_str().unwrap()])
    };
    assert_refused(&with("delegtaes"), &["given.conflist", "did you mean delegates?"]);
    assert_eq!(runtime.written(), None);
    assert!(with("delegates").status.success());
    assert_eq!(runtime.written().unwrap()["plugins"][0]["delegates"][0]["name"], "home");
    for name in ["../x.conflist", ".hidden.conflist", "no-extension", "a/b.conf"] {
        assert_refused(&runtime.install(&["--file-name", name]), &[name, "container runtimes do not read"]);
    }
}

#[test]
fn install_remove_is_refused_while_weft_is_needed() {
    let runtime = Runtime::new("remove");
    let given = runtime.0.join("given.conflist");
    let plugin = json!({ "type": "weft", "clusterNetwork": "/x", "cniDir": runtime.0.join("journal") });
    fs::write(&given, json!({ "cniVersion": "1.0.0", "name": "n", "plugins": [plugin] }).to_string())
        .unwrap();
    assert!(runtime.install(&["--config", given.to_str().unwrap()]).status.success());
    assert_refused(&runtime.install(&["--remove"]), &["no other network in"]);
    runtime.default_network();
    runtime.write("journal/sandboxes/abc.json", &"");
    assert_refused(&runtime.install(&["--remove"]), &["1 sandbox in", "drain the node first"]);
    assert!(runtime.written().is_some());
    fs::remove_file(runtime.0.join("journal/sandboxes/abc.json")).unwrap();
    for _ in 0..2 {
        assert!(runtime.install(&["--remove"]).status.success());
        assert_eq!(runtime.written(), None);
    }
    assert!(runtime.0.join("bin/weft").exists(), "the runtime may still call DEL");
    // A path that cannot be checked is not treated as missing.
    let written = runtime.0.join("conf/00-weft.conflist");
    std::os::unix::fs::symlink(&written, &written).unwrap();
    assert_refused(&runtime.install(&["--remove"]), &["stat ", "00-weft.conflist", "symbolic link"]);
}

#[test]
fn install_remove_wait_restarted_uses_the_same_journal() {
    let runtime = Runtime::new("again");
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        return testkit::record_skip(&testkit::test_name(), "requires root");
    }
    let given = runtime.0.join("given.conflist");
    let plugin = json!({ "type": "weft", "clusterNetwork": "/x", "cniDir": runtime.0.join("journal") });
    fs::write(&given, json!({ "cniVersion": "1.0.0", "name": "n", "plugins": [plugin] }).to_string())
        .unwrap();
    assert!(runtime.install(&["--config", given.to_str().unwrap()]).status.success());
    runtime.default_network();
    runtime.write("journal/sandboxes/abc.json", &"");
    for _ in 0..2 {
        assert_refused(
            &runtime.install(&["--remove", "--wait"]),
            &["unreadable journal entries remain: abc"],
        );
        assert_eq!(runtime.written(), None);
    }
    fs::remove_file(runtime.0.join("journal/sandboxes/abc.json")).unwrap();
    for _ in 0..2 {
        assert!(runtime.install(&["--remove", "--wait"]).status.success());
        assert!(!runtime.0.join("conf/weft.d/00-weft.conflist").exists());
    }
}

#[test]
fn install_thin_copies_program_and_renewed_credentials() {
    let runtime = Runtime::new("thin");
    let path = |file: &str| runtime.0.join(file);
    let account = path("account");
    fs::create_dir(&account).unwrap();
    runtime.default_network();
    runtime.write("bin/flannel", &"");
    let thin = |arguments: &[&str]| {
        let mut command = runtime.command(&["--thin", "--service-account", account.to_str().unwrap()]);
        command.env("KUBERNETES_SERVICE_HOST", "fd00::1").env("KUBERNETES_SERVICE_PORT", "443");
        command.args(["--set", &format!("cniDir={}", path("journal").display())]).args(arguments);
        command
    };
    assert_refused(&thin(&[]).output().unwrap(), &["account/token", "deploy/thin"]);
    runtime.write("account/ca.crt", &"AUTHORITY");
    runtime.write("account/token", &"one\n");
    let outside = thin(&[]).env_remove("KUBERNETES_SERVICE_HOST").output().unwrap();
    assert_refused(&outside, &["KUBERNETES_SERVICE_HOST", "not running in a pod"]);
    assert_eq!(runtime.written(), None, "the configuration is written last");
    let mut following = thin(&["--wait", "--follow"]).spawn().unwrap();
    let credentials = path("conf/weft.d/kubeconfig");
    let token = || {
        // The file is never incomplete.
        let text = fs::read_to_string(&credentials).ok()?;
        let document: Value = serde_json::from_str(&text).expect("JSON is YAML");
        let cluster = &document["clusters"][0]["cluster"];
        assert_eq!(cluster["server"], "https://[fd00::1]:443");
        assert_eq!(cluster["certificate-authority-data"], "QVVUSE9SSVRZ");
        document["users"][0]["user"]["token"].as_str().map(str::to_owned)
    };
    for expected in ["one", "two"] {
        // The kubelet also replaces the file by a rename.
        runtime.write("account/.new", &expected);
        fs::rename(account.join(".new"), account.join("token")).unwrap();
        until(expected, || token().filter(|token| token == expected));
        assert_eq!(fs::metadata(&credentials).unwrap().permissions().mode() & 0o777, 0o600);
    }
    until("the configuration", || runtime.written());
    assert_eq!(runtime.written().unwrap()["plugins"][0]["kubeconfig"], credentials.to_str().unwrap());
    let directory = fs::metadata(path("conf/weft.d")).unwrap();
    assert_eq!(directory.permissions().mode() & 0o777, 0o700);
    let program = path("bin/weft.d/weft");
    assert_eq!(fs::read(&program).unwrap().len(), fs::read(testkit::binary("weft")).unwrap().len());
    assert!(Command::new(&program).arg("--version").output().unwrap().status.success());
    fs::remove_file(&program).unwrap();
    until("the program is back", || program.exists().then_some(()));
    following.kill().unwrap();
    following.wait().unwrap();
    // An unchanged file is not rewritten. The credentials are removed with the configuration.
    let before = fs::metadata(&credentials).unwrap().modified().unwrap();
    let again = thin(&[]).output().unwrap();
    assert!(again.status.success(), "{again:?}");
    assert_eq!(fs::metadata(&credentials).unwrap().modified().unwrap(), before);
    let removed = runtime.install(&["--remove"]);
    assert!(removed.status.success(), "{removed:?}");
    assert!(!credentials.exists() && runtime.written().is_none());
    for arguments in [["--thin", "--remove"].as_slice(), &["--remove", "--wait", "--root", "/tmp"]] {
        assert_eq!(runtime.install(arguments).status.code(), Some(2), "{arguments:?}");
    }
}

#[test]
fn install_root_keeps_path_names_and_confines_links() {
    let runtime = Runtime::new("root");
    let root = runtime.0.join("image");
    // An image whose directories are absolute links: outside of the root they would name directories of this machine.
    for directory in ["etc/cni", "opt", "var/lib/networks", "run"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    std::os::unix::fs::symlink("/var/lib/networks", root.join("etc/cni/net.d")).unwrap();
    std::os::unix::fs::symlink("../../../../var/lib/cni-bin", root.join("opt/cni")).unwrap();
    let bridge = json!({ "cniVersion": "1.0.0", "name": "home", "type": "bridge" });
    runtime.write("image/var/lib/networks/10-home.conf", &bridge);
    let install = |arguments: &[&str]| {
        let mut command = Command::new(testkit::binary("weft"));
        command.args(["install", "--root", root.to_str().unwrap()]).args(arguments).output().unwrap()
    };
    let dangling = install(&[]);
    assert_refused(&dangling, &["--root", "/opt/cni: dangling link"]);
    fs::create_dir_all(root.join("var/lib/cni-bin")).unwrap();
    assert_refused(&install(&["--ready-file", "/run/ready"]), &["/run/ready does not exist"]);
    runtime.write("image/run/ready", &"");
    let done = install(&["--ready-file", "/run/ready"]);
    assert!(done.status.success(), "{done:?}");
    let output_text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(output_text.contains("/etc/cni/net.d/00-weft.conflist: written"), "{output_text}");
    let written = fs::read_to_string(root.join("var/lib/networks/00-weft.conflist")).unwrap();
    assert!(
        !written.contains(root.to_str().unwrap()),
        "path of the installer in the configuration: {written}"
    );
    let plugin: Value = serde_json::from_str(&written).unwrap();
    let plugin = &plugin["plugins"][0];
    assert_eq!(plugin["clusterNetwork"], "/etc/cni/net.d/10-home.conf");
    assert_eq!(plugin["binDir"], "/opt/cni/bin");
    assert_eq!(plugin["readinessindicatorfile"], "/run/ready");
    assert!(root.join("var/lib/cni-bin/bin/weft").exists());
    fs::create_dir_all(root.join("var/lib/weft/sandboxes")).unwrap();
    runtime.write("image/var/lib/weft/sandboxes/one.json", &"{}");
    assert_refused(&install(&["--remove"]), &["1 sandbox in /var/lib/weft/sandboxes"]);
    fs::remove_file(root.join("var/lib/weft/sandboxes/one.json")).unwrap();
    assert!(install(&["--remove"]).status.success());
    assert!(!root.join("var/lib/networks/00-weft.conflist").exists());
    assert_refused(&install(&["--conf-dir", "/../../etc/cni/net.d"]), &["not an absolute path"]);
    let nowhere =
        Command::new(testkit::binary("weft")).args(["install", "--root", "/nowhere"]).output().unwrap();
    assert_refused(&nowhere, &["--root /nowhere", "No such file"]);
}

#[test]
fn install_options_default_network_and_set() {
    let runtime = Runtime::new("said");
    for (file, name) in [("10-one.conf", "one"), ("20-two.conf", "two")] {
        let bridge = json!({ "cniVersion": "1.0.0", "name": name, "type": "bridge" });
        runtime.write(&format!("conf/{file}"), &bridge);
    }
    let of = |arguments: &[&str]| {
        let done = runtime.install(arguments);
        assert!(done.status.success(), "{done:?}");
        runtime.written().unwrap()["plugins"][0].clone()
    };
    for (name, file) in [("two", "20-two.conf"), ("20-two.conf", "20-two.conf"), ("one", "10-one.conf")] {
        let default = of(&["--default-network", name])["clusterNetwork"].as_str().unwrap().to_owned();
        assert!(default.ends_with(file), "{name}: {default}");
    }
    assert_refused(&runtime.install(&["--default-network", "three"]), &["no default network", "three"]);
    let arguments = ["--set", "namespaceIsolation=true", "--set", "globalNamespaces=shared,kube-system"];
    let plugin = of(&arguments);
    assert_eq!(
        (&plugin["namespaceIsolation"], &plugin["globalNamespaces"]),
        (&json!(true), &json!("shared,kube-system"))
    );
    let before = runtime.written();
    let refused = runtime.install(&["--set", "logLevel=debug", "--set", "namespaceisolaton=true"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    for word in ["--set namespaceisolaton=true: ", "did you mean namespaceIsolation?"] {
        assert!(stderr(&refused).contains(word), "{}", stderr(&refused));
    }
    let early = runtime.install(&["--on-host"]);
    assert_eq!(early.status.code(), Some(2), "{}", stderr(&early));
    assert_eq!(runtime.install(&["--set", "namespaceIsolation"]).status.code(), Some(2));
    assert_eq!(runtime.written(), before, "a usage error changes nothing");
}

/// Waits until the written configuration names this file as the default network.
#[track_caller]
fn until_default(runtime: &Runtime, file: &str) {
    until(&format!("{file} is the default network"), || {
        let written = runtime.written()?;
        written["plugins"][0]["clusterNetwork"].as_str()?.ends_with(file).then_some(())
    });
}

#[track_caller]
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: timeout");
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn install_follow_tracks_changes_of_the_default_network() {
    let runtime = Runtime::new("follows");
    let path = |file: &str| runtime.0.join(file);
    let bridge = |version: &str, capability: &str| json!({ "cniVersion": version, "name": "home", "plugins": [{ "type": "bridge", "capabilities": { capability: true } }] });
    let following = runtime.command(&["--wait", "--follow"]).spawn().unwrap();
    until("the program exists", || path("bin/weft").exists().then_some(()));
    assert_eq!(runtime.written(), None, "no default network yet");
    runtime.write("conf/10-home.conflist", &bridge("0.4.0", "mac"));
    until_default(&runtime, "10-home.conflist");
    // The installer of the default network renames its file, as some do with each release.
    fs::rename(path("conf/10-home.conflist"), path("conf/20-home.conflist")).unwrap();
    until_default(&runtime, "20-home.conflist");
    // Another network sorts first, so the runtime itself would use it.
    runtime.write("conf/15-other.conflist", &bridge("1.0.0", "ips").to_string().replace("home", "other"));
    until_default(&runtime, "15-other.conflist");
    assert_eq!(runtime.written().unwrap()["cniVersion"], "1.0.0");
    // The network changes: the written configuration must have its capabilities.
    runtime.write(
        "conf/15-other.conflist",
        &bridge("1.0.0", "portMappings").to_string().replace("home", "other"),
    );
    until("capabilities", || runtime.written()?["plugins"][0]["capabilities"].get("portMappings").map(drop));
    // Program and configuration are deleted, and are installed again.
    fs::remove_file(path("bin/weft")).unwrap();
    until("the program is back", || path("bin/weft").exists().then_some(()));
    fs::remove_file(path("conf/00-weft.conflist")).unwrap();
    until_default(&runtime, "15-other.conflist");
    // Without any default network the written configuration stays, for existing pods; also after the command exits.
    fs::remove_file(path("conf/15-other.conflist")).unwrap();
    until_default(&runtime, "20-home.conflist");
    fs::remove_file(path("conf/20-home.conflist")).unwrap();
    sleep(Duration::from_millis(1500));
    until_default(&runtime, "20-home.conflist");
    // A file that sorts first is reported and does not end the command.
    runtime.write("conf/20-home.conflist", &bridge("1.0.0", "mac"));
    runtime.write("conf/00-first.conflist", &bridge("1.0.0", "mac"));
    sleep(Duration::from_millis(1500));
    fs::remove_file(path("conf/00-first.conflist")).unwrap();
    runtime.write("conf/30-last.conflist", &bridge("1.0.0", "mac"));
    fs::remove_file(path("conf/20-home.conflist")).unwrap();
    until_default(&runtime, "30-last.conflist");
    Command::new("kill").arg(following.id().to_string()).status().unwrap();
    let output = wait_for_exit(following);
    assert!(output.status.success(), "{output:?}");
    assert!(runtime.written().is_some(), "the configuration stays after the command exits");
    let output_text = String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output);
    assert!(output_text.contains("00-first.conflist sorts before"), "{output_text}");
    assert!(output_text.lines().count() < 60, "repeated messages: {output_text}");
}

#[test]
fn install_unreadable_file_prevents_another_default_network() {
    let runtime = Runtime::new("unread");
    runtime.default_network();
    let other = json!({ "cniVersion": "1.0.0", "name": "other", "plugins": [{ "type": "bridge" }] });
    runtime.write("conf/20-other.conflist", &other);
    for plugin in ["flannel", "portmap", "bridge"] {
        runtime.write(&format!("bin/{plugin}"), &"");
    }
    assert!(runtime.install(&[]).status.success());
    let before = runtime.written();
    // A link to itself is unreadable, even for root.
    let (own, kept) = (runtime.0.join("conf/10-flannel.conflist"), runtime.0.join("kept"));
    fs::rename(&own, &kept).unwrap();
    std::os::unix::fs::symlink(&own, &own).unwrap();
    assert_refused(&runtime.install(&[]), &["the default network is unknown", "10-flannel"]);
    assert_eq!(runtime.written(), before);
    assert!(runtime.install(&["--default-network", "other"]).status.success(), "the network is named");
    fs::rename(&kept, &own).unwrap();
    assert!(runtime.install(&[]).status.success());
    assert_eq!(runtime.written(), before);
}

#[test]
fn install_replaces_another_plugin_only_if_requested() {
    let runtime = Runtime::new("replace");
    let list = json!({ "cniVersion": "1.0.0", "name": "home", "plugins": [{ "type": "bridge" }] });
    runtime.write("conf/10-home.conflist", &list);
    runtime.write("bin/weft", &json!("another plugin"));
    assert_refused(&runtime.install(&[]), &["bin/weft: a plugin of another project", "--replace"]);
    assert_eq!(runtime.written(), None);
    let replaced = runtime.install(&["--replace"]);
    assert!(replaced.status.success(), "{}", stderr(&replaced));
    assert_eq!(fs::read_link(runtime.0.join("bin/weft")).unwrap(), Path::new("weft-cni"));
    assert!(runtime.written().is_some());
}

#[test]
fn install_command_is_recorded_replaced_and_removed() {
    let runtime = Runtime::new("command");
    runtime.default_network();
    runtime.write("bin/flannel", &"");
    let path = |file: &str| runtime.0.join(file);
    let program = path("tools/weft");
    let option = format!("--command={}", path("tools").display());
    let installed = runtime.install(&[&option]);
    assert!(installed.status.success(), "{installed:?}");
    let version = Command::new(&program).arg("--version").output().unwrap();
    assert!(version.status.success(), "{version:?}");
    assert_eq!(fs::metadata(&program).unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(fs::read_dir(path("tools")).unwrap().count(), 1, "no temporary file remains");
    assert!(!path("bin/weft.d").exists(), "the directory of the plugins has no program");
    let inode = fs::metadata(&program).unwrap().ino();
    let again = String::from_utf8(runtime.install(&[&option]).stdout).unwrap();
    assert!(!again.contains("tools/weft") && fs::metadata(&program).unwrap().ino() == inode, "{again}");

    // Another release replaces a file that it installed, by a rename: a running process keeps the old one.
    let record = path("conf/weft.d/command.json");
    let text = fs::read_to_string(&record).unwrap();
    let own = serde_json::from_str::<Value>(&text).unwrap()["installed"][0]["sha256"].clone();
    fs::write(&program, "older").unwrap();
    let older = Command::new("sha256sum").arg(&program).output().unwrap();
    let older = String::from_utf8(older.stdout).unwrap().split(' ').next().unwrap().to_owned();
    fs::write(&record, text.replace(own.as_str().unwrap(), &older)).unwrap();
    assert!(runtime.install(&[&option]).status.success());
    assert_ne!(fs::read(&program).unwrap(), b"older");
    assert_eq!(fs::read_to_string(&record).unwrap(), text);

    // A file that weft did not install stays, and the installation goes on.
    fs::write(&program, "mine").unwrap();
    let refused = runtime.install(&[&option]);
    let lines = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert!(refused.status.success() && lines.contains("tools/weft: not installed: another file"), "{lines}");
    let removed = runtime.install(&["--remove"]);
    let lines = String::from_utf8_lossy(&removed.stdout).into_owned();
    assert!(lines.contains("tools/weft: kept") && fs::read(&program).unwrap() == b"mine", "{lines}");

    fs::remove_file(&program).unwrap();
    assert!(runtime.install(&[&option]).status.success());
    let removed = runtime.install(&["--remove"]);
    assert!(removed.status.success() && !program.exists(), "{removed:?}");
    assert!(!path("conf/weft.d").exists(), "no record remains");
}

#[test]
fn install_command_damaged_record_is_never_replaced() {
    let runtime = Runtime::new("command-record");
    runtime.default_network();
    runtime.write("bin/flannel", &"");
    let path = |file: &str| runtime.0.join(file);
    let (program, record) = (path("tools/weft"), path("conf/weft.d/command.json"));
    let option = format!("--command={}", path("tools").display());
    assert!(runtime.install(&[&option]).status.success());
    let whole = fs::read_to_string(&record).unwrap();
    for damaged in ["", "{", "{}", r#"{"installed":7}"#, &whole[..whole.len() / 2]] {
        fs::write(&record, damaged).unwrap();
        fs::write(&program, "older").unwrap();
        let refused = runtime.install(&[&option]);
        let lines = String::from_utf8_lossy(&refused.stdout).into_owned();
        let why = "tools/weft: not installed: ";
        assert!(refused.status.success() && lines.contains(why), "{damaged}: {lines}");
        let (named, hint) = (format!("{}: damaged record", record.display()), "restore the record");
        assert!(lines.contains(&named) && lines.contains(hint), "{damaged}: {lines}");
        // The networks are removed, and the record stays.
        let removed = runtime.install(&["--remove"]);
        assert_refused(&removed, &["not removed", &named, hint]);
        assert_eq!(runtime.written(), None);
        assert_eq!(fs::read_to_string(&record).unwrap(), damaged);
        assert_eq!(fs::read_to_string(&program).unwrap(), "older");
    }
    fs::write(&record, &whole).unwrap();
    let removed = runtime.install(&["--remove"]);
    let lines = String::from_utf8_lossy(&removed.stdout).into_owned();
    assert!(removed.status.success() && lines.contains("tools/weft: kept"), "{lines}");
}

#[test]
fn install_command_never_uses_a_directory_of_the_runtime() {
    let runtime = Runtime::new("command-directory");
    runtime.default_network();
    runtime.write("bin/flannel", &"");
    std::os::unix::fs::symlink(runtime.0.join("bin"), runtime.0.join("link")).unwrap();
    for directory in ["bin", "link", "conf"] {
        let option = format!("--command={}", runtime.0.join(directory).display());
        let refused = runtime.install(&[&option]);
        assert_eq!(refused.status.code(), Some(2), "{directory}: {refused:?}");
        assert!(stderr(&refused).contains("directory of the runtime"), "{refused:?}");
    }
    assert_eq!(runtime.written(), None);
    // A directory that cannot be created is a line, and the pods get their networks.
    runtime.write("file", &"");
    let failed = runtime.install(&[&format!("--command={}", runtime.0.join("file/below").display())]);
    let lines = String::from_utf8_lossy(&failed.stdout).into_owned();
    assert!(failed.status.success() && lines.contains("below/weft: not installed: "), "{lines}");
    assert!(runtime.written().is_some());
}

/// Root of a node as a container mounts it: links lead to the node's own paths.
struct NodeRoot(Runtime);

impl NodeRoot {
    fn new(name: &str) -> NodeRoot {
        NodeRoot(Runtime::new(name))
    }

    fn write(&self, path: &str, content: &str) {
        let path = self.0.0.join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn link(&self, path: &str, target: &str) {
        let path = self.0.0.join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(target, path).unwrap();
    }

    fn install(&self, conf_dir: &str, bin_dir: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new(testkit::binary("weft"));
        command.args(["install", "--root"]).arg(&self.0.0);
        command.args(["--conf-dir", conf_dir, "--bin-dir", bin_dir]).args(arguments).output().unwrap()
    }
}

const FLANNEL: &str =
    r#"{"cniVersion":"1.0.0","name":"cbr0","plugins":[{"type":"flannel"},{"type":"portmap"}]}"#;

// Requirements: M3
#[test]
fn install_follows_links_of_each_distribution_below_the_root() {
    let data = "/var/lib/rancher/k3s/data";
    let k3s = NodeRoot::new("k3s");
    let k3s_conf = "/var/lib/rancher/k3s/agent/etc/cni/net.d";
    k3s.write(&format!("{k3s_conf}/10-flannel.conflist"), FLANNEL);
    k3s.write(&format!("{data}/0a1b/bin/flannel"), "program");
    for name in ["flannel", "loopback"] {
        k3s.link(&format!("{data}/cni/{name}"), &format!("{data}/0a1b/bin/flannel"));
    }
    // Before 2024-10: a directory of the release, found through a link.
    let old_k3s = NodeRoot::new("old-k3s");
    old_k3s.write(&format!("{k3s_conf}/10-flannel.conflist"), FLANNEL);
    old_k3s.write(&format!("{data}/0a1b/bin/flannel"), "program");
    old_k3s.link(&format!("{data}/current"), &format!("{data}/0a1b"));
    let rke2 = NodeRoot::new("rke2");
    rke2.write("/etc/cni/net.d/10-canal.conflist", FLANNEL);
    rke2.write("/opt/cni/bin/flannel", "program");
    // Configurations and plugins are links into the store, over a link of the whole directory.
    let nixos = NodeRoot::new("nixos");
    nixos.write("/nix/store/1-etc/etc/cni/net.d/11-flannel.conf", FLANNEL);
    nixos.link("/etc/static", "/nix/store/1-etc/etc");
    nixos.link("/etc/cni/net.d/11-flannel.conf", "/etc/static/cni/net.d/11-flannel.conf");
    nixos.write("/nix/store/2-plugins/bin/flannel", "program");
    nixos.link("/opt/cni/bin/flannel", "/nix/store/2-plugins/bin/flannel");
    let microk8s = NodeRoot::new("microk8s");
    microk8s.write("/var/snap/microk8s/6000/args/cni-network/10-calico.conflist", FLANNEL);
    microk8s.write("/var/snap/microk8s/6000/opt/cni/bin/flannel", "program");
    microk8s.link("/var/snap/microk8s/current", "6000");
    let talos = NodeRoot::new("talos");
    talos.write("/system/state/cni/10-flannel.conflist", FLANNEL);
    talos.link("/etc/cni/net.d", "/system/state/cni");
    talos.write("/opt/cni/bin/flannel", "program");
    for (root, conf_dir, bin_dir) in [
        (&k3s, k3s_conf, "/var/lib/rancher/k3s/data/cni"),
        (&old_k3s, k3s_conf, "/var/lib/rancher/k3s/data/current/bin"),
        (&rke2, "/etc/cni/net.d", "/opt/cni/bin"),
        (&nixos, "/etc/cni/net.d", "/opt/cni/bin"),
        (&microk8s, "/var/snap/microk8s/current/args/cni-network", "/var/snap/microk8s/current/opt/cni/bin"),
        (&talos, "/etc/cni/net.d", "/opt/cni/bin"),
    ] {
        let looked = root.install(conf_dir, bin_dir, &["--dry-run"]);
        assert!(looked.status.success(), "{conf_dir}: {looked:?}");
        let installed = root.install(conf_dir, bin_dir, &[]);
        assert!(installed.status.success(), "{conf_dir}: {installed:?}");
        let again = root.install(conf_dir, bin_dir, &["--dry-run"]);
        let text = String::from_utf8_lossy(&again.stdout).into_owned();
        assert!(text.contains("00-weft.conflist: up to date"), "{text}");
    }
    // The loopback of k3s stays, although its link leads nowhere in this container.
    let kept = fs::read_link(k3s.0.0.join(data.trim_start_matches('/')).join("cni/loopback")).unwrap();
    assert!(kept.ends_with("0a1b/bin/flannel"), "{kept:?}");
    // A link that leads nowhere on the node is no plugin.
    let dangling = NodeRoot::new("dangling");
    dangling.write("/etc/cni/net.d/10-flannel.conflist", FLANNEL);
    dangling.link("/opt/cni/bin/flannel", "/nix/store/gone/bin/flannel");
    assert_refused(&dangling.install("/etc/cni/net.d", "/opt/cni/bin", &[]), &["plugin flannel: not found"]);
    let looked = dangling.install("/etc/cni/net.d", "/opt/cni/bin", &["--dry-run"]);
    let text = String::from_utf8_lossy(&looked.stdout).into_owned();
    assert!(text.contains("leads to /nix/store/gone/bin/flannel, which does not exist"), "{text}");
}

// Requirements: M6
#[test]
fn install_prefers_any_network_to_those_of_the_runtime() {
    let runtime = Runtime::new("crio");
    let loopback = json!({ "cniVersion": "1.0.0", "name": "loopback", "plugins": [{ "type": "loopback" }] });
    runtime.write("conf/99-loopback.conflist", &loopback);
    assert_refused(&runtime.install(&[]), &["no default network is configured"]);
    let single = json!({ "cniVersion": "1.0.0", "name": "lo", "type": "loopback" });
    runtime.write("conf/200-loopback.conf", &single);
    assert_refused(&runtime.install(&[]), &["no default network is configured"]);
    let bridge = json!({ "cniVersion": "1.0.0", "name": "crio", "plugins": [{ "type": "bridge" }] });
    for name in ["11-crio-ipv4-bridge", "100-crio-bridge", "10-containerd-net", "87-podman", "nerdctl-bridge"]
    {
        let file = format!("conf/{name}.conflist");
        runtime.write(&file, &bridge);
        let chosen = runtime.install(&[]);
        let text = String::from_utf8_lossy(&chosen.stdout).into_owned();
        assert!(
            chosen.status.success() && text.contains("a bridge that the container runtime ships"),
            "{name}: {text}"
        );
        let network = json!({ "cniVersion": "1.0.0", "name": "home", "type": "bridge", "ipam": {} });
        runtime.write("conf/zz-home.conf", &network);
        assert!(runtime.install(&[]).status.success());
        let used = runtime.written().unwrap()["plugins"][0]["clusterNetwork"].clone();
        assert!(used.as_str().unwrap().ends_with("zz-home.conf"), "{name}: {used}");
        // A network that is named is used, whatever it is.
        assert!(runtime.install(&["--default-network", "crio"]).status.success());
        let used = runtime.written().unwrap()["plugins"][0]["clusterNetwork"].clone();
        assert!(used.as_str().unwrap().contains(name), "{name}: {used}");
        fs::remove_file(runtime.0.join(&file)).unwrap();
        fs::remove_file(runtime.0.join("conf/zz-home.conf")).unwrap();
        fs::remove_file(runtime.0.join("conf/00-weft.conflist")).unwrap();
    }
}

#[test]
fn install_dry_run_says_what_it_found_and_changes_nothing() {
    let runtime = Runtime::new("dry");
    runtime.default_network();
    let loopback = json!({ "cniVersion": "1.0.0", "name": "loopback", "plugins": [{ "type": "loopback" }] });
    runtime.write("conf/99-loopback.conflist", &loopback);
    let looked = runtime.install(&["--dry-run"]);
    assert_refused(&looked, &["an installation would wait", "plugin flannel: not found"]);
    let text = String::from_utf8_lossy(&looked.stdout).into_owned();
    for line in [
        "10-flannel.conflist: network cbr0: default network",
        "99-loopback.conflist: network loopback: loopback alone",
    ] {
        assert!(text.contains(line), "{text}");
    }
    runtime.write("bin/flannel", &"");
    let looked = runtime.install(&["--dry-run"]);
    let text = String::from_utf8_lossy(&looked.stdout).into_owned();
    assert!(looked.status.success(), "{looked:?}");
    for line in ["found plugin flannel: ", "would install ", "00-weft.conflist:", "\"clusterNetwork\""] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert_eq!(runtime.written(), None);
    assert_eq!(fs::read_dir(runtime.0.join("bin")).unwrap().count(), 1, "only flannel");
}

// Requirements: N10
#[test]
fn install_beside_multus_names_the_migration() {
    for (file, plugin) in [("00-multus.conf", "multus"), ("00-multus.conflist", "multus-shim")] {
        let runtime = Runtime::new(plugin);
        runtime.default_network();
        runtime.write("bin/flannel", &"");
        let single = json!({ "cniVersion": "0.3.1", "name": "m", "type": plugin });
        let list = json!({ "cniVersion": "0.3.1", "name": "m", "plugins": [{ "type": plugin }] });
        runtime.write(&format!("conf/{file}"), if file.ends_with("conf") { &single } else { &list });
        for arguments in [[].as_slice(), &["--dry-run"]] {
            let refused = runtime.install(arguments);
            assert_refused(&refused, &[file, "weft migrate multus", "docs/migrate-from-multus.md"]);
            assert!(!stderr(&refused).contains("remove that file, or"), "{}", stderr(&refused));
        }
    }
}
