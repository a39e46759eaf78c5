//! What commands say when the cluster gives no answer, and how options may stand.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A kubeconfig of a server that is nowhere, and that server.
fn kubeconfig(name: &str) -> (PathBuf, String) {
    // Nobody listens at a port that was just given back.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = format!("https://127.0.0.1:{port}");
    let path = std::env::temp_dir().join(format!("weft-answers-{}-{name}", std::process::id()));
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
fn a_server_that_is_not_there_is_named_with_the_cause() {
    let (path, server) = kubeconfig("refused");
    let said = weft(&["ipam", "show", "-o", "json", "--kubeconfig"]).arg(&path).output().unwrap();
    let said = (said.status.code(), stderr(&said));
    assert_eq!(said.0, Some(1), "{}", said.1);
    assert!(said.1.starts_with(&format!("weft: list ippools: {server}: ")), "{}", said.1);
    assert!(said.1.contains("Connection refused"), "{}", said.1);
    assert!(!said.1.contains("ServiceError") && !said.1.contains("client error"), "{}", said.1);
    fs::remove_file(path).unwrap();
}

#[test]
fn a_persons_credentials_are_found_as_kubectl_finds_them() {
    let (path, server) = kubeconfig("found");
    let home = path.with_extension("home");
    fs::create_dir_all(home.join(".kube")).unwrap();
    fs::copy(&path, home.join(".kube/config")).unwrap();
    let listed = format!("/nowhere/config:{}", path.display());
    for (variable, value) in [("HOME", home.to_str().unwrap()), ("KUBECONFIG", &listed)] {
        let said = weft(&["ipam", "show"]).env(variable, value).output().unwrap();
        assert!(stderr(&said).contains(&server), "{variable}: {}", stderr(&said));
    }
    // An empty variable is none.
    let said = weft(&["ipam", "show"]).env("KUBECONFIG", "").env("HOME", &home).output().unwrap();
    assert!(stderr(&said).contains(&server), "{}", stderr(&said));
    fs::remove_dir_all(home).unwrap();
    fs::remove_file(path).unwrap();
}

#[test]
fn a_controller_without_work_is_told_which_there_is() {
    let said = weft(&["controller"]).output().unwrap();
    assert_eq!(said.status.code(), Some(2));
    assert!(stderr(&said).contains("--neutron") && stderr(&said).contains("--ipam"), "{}", stderr(&said));
}
