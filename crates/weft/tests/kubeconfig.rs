//! Behaviour of commands when the cluster does not respond, and the sources of credentials.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test helpers may panic")]

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Returns a kubeconfig for a server that does not exist, and the URL of that server.
fn kubeconfig(name: &str) -> (PathBuf, String) {
    // A port that was just released has no listener.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = format!("https://127.0.0.1:{port}");
    let path = std::env::temp_dir().join(format!("weft-kubeconfig-{}-{name}", std::process::id()));
    let text = format!(
        r#"{{"apiVersion":"v1","kind":"Config","current-context":"c",
            "clusters":[{{"name":"c","cluster":{{"server":"{server}"}}}}],
            "users":[{{"name":"u","user":{{"token":"t"}}}}],
            "contexts":[{{"name":"c","context":{{"cluster":"c","user":"u"}}}}]}}"#
    );
    fs::write(&path, text).unwrap();
    (path, server)
}

fn weft(words: &[&str]) -> Command {
    let mut command = Command::new(testkit::binary("weft"));
    for variable in ["KUBECONFIG", "HOME", "KUBERNETES_SERVICE_HOST", "CNI_PATH"] {
        command.env_remove(variable);
    }
    command.args(words);
    command
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn api_server_unreachable_is_named_with_the_cause() {
    let (path, server) = kubeconfig("refused");
    let output = weft(&["ipam", "show", "-o", "json", "--kubeconfig"]).arg(&path).output().unwrap();
    let output = (output.status.code(), stderr(&output));
    assert_eq!(output.0, Some(1), "{}", output.1);
    assert!(output.1.starts_with(&format!("weft: list ippools: {server}: ")), "{}", output.1);
    assert!(output.1.contains("Connection refused"), "{}", output.1);
    assert!(!output.1.contains("ServiceError") && !output.1.contains("client error"), "{}", output.1);
    fs::remove_file(path).unwrap();
}

#[test]
fn kubeconfig_is_found_as_by_kubectl() {
    let (path, server) = kubeconfig("found");
    let home = path.with_extension("home");
    fs::create_dir_all(home.join(".kube")).unwrap();
    fs::copy(&path, home.join(".kube/config")).unwrap();
    let listed = format!("/nowhere/config:{}", path.display());
    for (variable, value) in [("HOME", home.to_str().unwrap()), ("KUBECONFIG", &listed)] {
        let output = weft(&["ipam", "show"]).env(variable, value).output().unwrap();
        assert!(stderr(&output).contains(&server), "{variable}: {}", stderr(&output));
    }
    // An empty variable counts as unset.
    let output = weft(&["ipam", "show"]).env("KUBECONFIG", "").env("HOME", &home).output().unwrap();
    assert!(stderr(&output).contains(&server), "{}", stderr(&output));
    fs::remove_dir_all(home).unwrap();
    fs::remove_file(path).unwrap();
}

#[test]
fn controller_without_a_role_names_the_roles() {
    let output = weft(&["controller"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("--neutron") && stderr(&output).contains("--ipam"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn kubeconfig_namespace_of_the_context_is_the_default() {
    let (path, _) = kubeconfig("namespace");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace(r#""user":"u"}"#, r#""user":"u","namespace":"blue"}"#)).unwrap();
    for (line, expected) in [
        ("test", "list networks of namespace blue: "),
        ("test -n red", "list networks of namespace red: "),
        ("explain web", "pod blue/web: "),
        ("explain red/web", "pod red/web: "),
        ("explain -n red web", "pod red/web: "),
        ("list -n red web", "list pods: "),
    ] {
        let words: Vec<&str> = line.split(' ').chain(["--kubeconfig"]).collect();
        let output = weft(&words).arg(&path).output().unwrap();
        assert!(stderr(&output).starts_with(&format!("weft: {expected}")), "{line}: {}", stderr(&output));
    }
    fs::remove_file(path).unwrap();
}

/// Runs a line of which `FILE` stands for the kubeconfig. Returns its output, and whether it tried to reach the server.
fn tries_server(line: &str, file: &Path, variable: Option<&Path>) -> (Output, bool) {
    let words: Vec<String> =
        line.split(' ').map(|word| word.replace("FILE", file.to_str().unwrap())).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut command = weft(&words);
    command.envs(variable.map(|path| ("KUBECONFIG", path)));
    let output = command.output().unwrap();
    let is_refused = stderr(&output).contains("Connection refused");
    (output, is_refused)
}

#[test]
fn list_with_a_context_or_kubeconfig_asks_the_api_server() {
    let (file, _) = kubeconfig("list");
    for line in [
        "list --kubeconfig FILE",
        "list web --kubeconfig FILE",
        "list web --kubeconfig FILE --context c",
        "list red/web --kubeconfig FILE",
        "list -n red web --kubeconfig FILE",
        "list -A --kubeconfig FILE --context c",
    ] {
        let (output, is_tried) = tries_server(line, &file, None);
        assert!(is_tried && output.status.code() == Some(1), "{line}: {}", stderr(&output));
    }
    let (output, is_tried) = tries_server("list web --context c", &file, Some(&file));
    assert!(is_tried, "{}", stderr(&output));

    // The variable alone is set in the shell of many nodes: without an option the journal is read.
    for line in ["list", "list web", "list blue/web"] {
        let (output, is_tried) = tries_server(line, &file, Some(&file));
        assert!(!is_tried, "{line}: {}", stderr(&output));
    }
    let (output, is_tried) = tries_server("list --policies --kubeconfig FILE", &file, None);
    assert_eq!((output.status.code(), is_tried), (Some(2), false), "{}", stderr(&output));
    assert!(stderr(&output).contains("--policies lists the counters of this node"), "{}", stderr(&output));
    fs::remove_file(file).unwrap();
}

#[test]
fn explain_with_a_context_reads_the_cluster_not_manifests() {
    let (file, _) = kubeconfig("explain");
    let directory = file.with_extension("manifests");
    fs::create_dir_all(&directory).unwrap();
    let pod = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","namespace":"default"}}"#;
    fs::write(directory.join("pod.json"), pod).unwrap();
    let config = file.with_extension("conf");
    let delegate = r#"{"cniVersion":"1.0.0","name":"home","type":"bridge"}"#;
    let text = format!(
        r#"{{"cniVersion":"1.0.0","name":"w","type":"weft","manifestDir":"{}","delegates":[{delegate}]}}"#,
        directory.display()
    );
    fs::write(&config, text).unwrap();
    let explain = format!("explain --config {} web", config.display());

    // The configuration of this machine names manifests.
    let (output, is_tried) = tries_server(&explain, &file, Some(&file));
    assert!(output.status.success() && !is_tried, "{}", stderr(&output));
    for options in ["--kubeconfig FILE", "--kubeconfig FILE --context c", "-n blue --kubeconfig FILE"] {
        let (output, is_tried) = tries_server(&format!("{explain} {options}"), &file, None);
        assert!(is_tried && !output.status.success(), "{options}: {}", stderr(&output));
    }
    // Manifests of an option are those of the command line, too.
    let line = format!("{explain} -f {} --kubeconfig FILE", directory.display());
    let (output, is_tried) = tries_server(&line, &file, None);
    assert!(output.status.success() && !is_tried, "{}", stderr(&output));
    fs::remove_dir_all(directory).unwrap();
    for path in [file, config] {
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn kubeconfig_faults_name_the_next_step() {
    let (path, _) = kubeconfig("faults");
    let given = path.to_str().unwrap();
    let without = path.with_extension("without");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&without, text.replace(r#""current-context":"c","#, "")).unwrap();
    let other = path.with_extension("other");
    fs::write(&other, "apiVersion: v1\nkind: Pod\n").unwrap();
    let [without, other] = [&without, &other].map(|path| path.to_str().unwrap());
    let cases: [(&[&str], &str, &str); 6] = [
        (&[], "no cluster: ", "set --kubeconfig"),
        (&["--kubeconfig", "/nowhere"], "kubeconfig /nowhere: No such file", "set --kubeconfig"),
        (&["--kubeconfig", given, "--context", "x"], "has no context \"x\"", "its contexts: c"),
        (&["--kubeconfig", without], "it has no current context", "its contexts: c"),
        (&["--kubeconfig", other], "it has no current context", "is it a kubeconfig?"),
        (&["--kubeconfig", given], "Connection refused", "kubectl cluster-info"),
    ];
    for (words, why, next) in cases {
        for command in [&["list", "-A"][..], &["status"], &["ipam", "show"], &["test"], &["explain", "a/b"]] {
            let output = weft(&[command, words].concat()).output().unwrap();
            let (code, text) = (output.status.code(), stderr(&output));
            let lines: Vec<&str> = text.lines().collect();
            assert_eq!((code, lines.len()), (Some(1), 2), "{command:?} {words:?}: {text}");
            assert!(lines[0].contains(why), "{command:?} {words:?}: {text}");
            // Manifests take the place of a cluster.
            let is_next = lines[1].contains(next) || (command[0] == "explain" && lines[1].contains("add -f"));
            assert!(is_next, "{command:?} {words:?}: {text}");
        }
    }
    for path in [given, without, other] {
        fs::remove_file(path).unwrap();
    }
}
