//! `weft lint` as a program: what it prints, how it ends, and what `--fix` does to a file.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test helpers may panic")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use testkit::workspace;

/// A directory of a test's own, gone when it ends.
struct Room(PathBuf);

impl Room {
    fn new(name: &str) -> Room {
        let path = std::env::temp_dir().join(format!("weft-lint-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Room(path)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn lint<A: AsRef<std::ffi::OsStr>>(words: impl IntoIterator<Item = A>) -> Output {
    Command::new(testkit::binary("weft")).arg("lint").args(words).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn standard(name: &str) -> PathBuf {
    workspace().join("crates/manifest/testdata/standard").join(name)
}

fn definition(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: k8s.cni.cncf.io/v1\nkind: NetworkAttachmentDefinition\nmetadata:\n  name: {name}\nspec:\n{spec}"
    )
}

#[test]
fn the_examples_are_clean() {
    let output = lint([workspace().join("examples")]);
    assert!(output.status.success());
    assert_eq!(text(&output), "3 files: nothing to report\n");
    assert_eq!(output.stderr, b"");
}

#[test]
fn npwg1_3_1_2_the_standards_own_examples_as_maps_are_corrected_in_the_file() {
    let room = Room::new("standard");
    for name in ["3.2.1", "3.2.2", "3.2.3", "3.4.2.1"] {
        let file = room.0.join(format!("{name}.yaml"));
        fs::copy(standard(&format!("{name}-as-map.yaml")), &file).unwrap();
        let refused = lint([&file]);
        assert_eq!(refused.status.code(), Some(1));
        let said = text(&refused);
        assert!(said.contains("the API server refuses the object [config-not-a-string]"), "{said}");
        assert!(said.contains("the object as it should read:") && said.contains("|   config: |"), "{said}");
        assert!(said.contains("\nweft lint --fix writes the corrected form of 1 of them\n"), "{said}");

        let fixed = lint([Path::new("--fix"), &file]);
        assert!(fixed.status.success(), "{}", text(&fixed));
        let said = text(&fixed);
        assert!(
            said.contains(&format!("{}: fixed network-attachment-definition ", file.display())),
            "{said}"
        );
        let again = lint([&file]);
        assert!(!text(&again).contains("error"), "{}", text(&again));
    }
}

#[test]
fn a_fixed_file_keeps_its_mode_its_links_and_everything_else_in_it() {
    let room = Room::new("fix");
    let before = format!(
        "# of ours\n{}",
        definition(
            "a",
            "  config: {\"cniVersion\": \"1.0.0\", \"name\": \"a\", \"type\": \"dummy\"} # odd\n"
        )
    );
    let file = room.file("real.yaml", &before);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let link = room.0.join("link.yaml");
    symlink("real.yaml", &link).unwrap();
    assert!(lint([Path::new("--fix"), &link]).status.success());
    let config = "  config: |\n    {\"cniVersion\": \"1.0.0\", \"name\": \"a\", \"type\": \"dummy\"}\n";
    assert_eq!(fs::read_to_string(&file).unwrap(), format!("# of ours\n{}", definition("a", config)));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read_dir(&room.0).unwrap().count(), 2, "no temporary file is left");
    // A second time there is nothing to do.
    let modified = fs::metadata(&file).unwrap().modified().unwrap();
    assert!(lint([Path::new("--fix"), &link]).status.success());
    assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), modified);
}

#[test]
fn every_file_is_looked_at_and_each_finding_has_its_place() {
    let room = Room::new("several");
    room.file("a.yaml", "kind: [\n");
    room.file(
        "b.yaml",
        &definition(
            "b",
            "  config: '{\"cniVersion\":\"1.0.0\",\"name\":\"b\",\"type\":\"bridge\",\"isGatway\":true}'\n",
        ),
    );
    room.file("c.conflist", "{\"cniVersion\":\"1.0.0\",\"name\":\"c\",\n \"plugins\":[{\"type\":\"weft\",\"clusterNetwrok\":\"x\"}]}");
    room.file("d.json", r#"{"cniVersion":"9.0.0","name":"d","type":"bridge"}"#);
    room.file("e.json", r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","annotations":{"k8s.v1.cni.cncf.io/networks":"A"}}}"#);
    room.file("notes.txt", "kind: [");
    let output = lint([&room.0]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output);
    let here = room.0.display();
    for beginning in [
        format!("{here}/a.yaml:"),
        format!("{here}/b.yaml:6:72: warning: network-attachment-definition default/b: isGatway"),
        format!("{here}/c.conflist:2:13: error: configuration: plugins[0]: "),
        format!("{here}/d.json:1:15: error: configuration: cniVersion: \"9.0.0\""),
        format!("{here}/e.json:1:"),
    ] {
        assert!(said.lines().any(|line| line.starts_with(&beginning)), "{beginning} in\n{said}");
    }
    assert!(
        said.contains("did you mean isGateway?") && said.contains("did you mean clusterNetwork?"),
        "{said}"
    );
    assert!(said.contains("\n5 files: 4 errors, 1 warning\n"), "{said}");
    assert!(!said.contains('\u{1b}'), "colours are for terminals");
}

#[test]
fn programs_read_json() {
    let room = Room::new("json");
    let file = room.file(
        "a.yaml",
        &definition("a", "  config: {\"cniVersion\": \"1.0.0\", \"name\": \"a\", \"type\": \"dummy\"}\n"),
    );
    let read = |output: &Output| -> Value { serde_json::from_slice(&output.stdout).unwrap() };
    let found = lint([Path::new("-o"), Path::new("json"), &file]);
    assert_eq!(found.status.code(), Some(1));
    let found = read(&found);
    let finding = &found["findings"][0];
    assert_eq!((&finding["severity"], &finding["rule"]), (&"error".into(), &"config-not-a-string".into()));
    assert_eq!(finding["position"], serde_json::json!({"line": 6, "column": 11}));
    assert_eq!(finding["file"], file.display().to_string());
    assert!(finding["corrected"].as_str().unwrap().contains("config: |"));
    let fixed = read(&lint([Path::new("--fix"), Path::new("-o"), Path::new("json"), &file]));
    assert_eq!(
        (fixed["findings"].as_array().unwrap().len(), &fixed["fixed"][0]["rule"]),
        (0, &"config-not-a-string".into())
    );
}

#[test]
fn a_pipe_can_be_looked_at_and_not_be_fixed() {
    let map =
        definition("a", "  config: {\"cniVersion\": \"1.0.0\", \"name\": \"a\", \"type\": \"dummy\"}\n");
    for (words, code, said) in [
        (&["/dev/stdin"][..], 1, "/dev/stdin:6:11: error"),
        (&["-"], 1, "/dev/stdin:6:11: error"),
        (&["--fix", "/dev/stdin"], 1, "not a regular file"),
    ] {
        let mut child = Command::new(testkit::binary("weft"))
            .arg("lint")
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(map.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code));
        let both = format!("{}{}", text(&output), String::from_utf8_lossy(&output.stderr));
        assert!(both.contains(said), "{both}");
    }
}

#[test]
fn what_cannot_be_read_is_named() {
    let room = Room::new("nothing");
    for (path, said) in
        [(room.0.clone(), "no manifest and no CNI configuration"), (room.0.join("x.yaml"), "No such file")]
    {
        let output = lint([&path]);
        assert_eq!(output.status.code(), Some(1));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            error.starts_with("weft: ")
                && error.contains(said)
                && error.contains(&path.display().to_string()),
            "{error}"
        );
    }
    let large = room.file("large.yaml", &"# x\n".repeat(300_000));
    let error = String::from_utf8_lossy(&lint([large]).stderr).into_owned();
    assert!(error.contains("larger than"), "{error}");
}

#[test]
fn what_a_file_says_cannot_move_the_cursor() {
    let room = Room::new("hostile");
    let file = room.file(
        "a.conf",
        "{\"cniVersion\":\"\\u001b[31m\\u0007\",\"name\":\"a\u{9b}\",\"type\":\"\\u001b]0;x\"}",
    );
    let said = text(&lint([file]));
    assert!(said.contains("error"), "{said}");
    assert!(!said.contains(|c: char| c.is_control() && c != '\n'), "{said:?}");
}

#[test]
fn lint_explain_prints_a_rule_with_its_examples() {
    let output = lint(["--explain", "invalid-mac"]);
    assert!(output.status.success());
    let said = text(&output);
    assert!(
        said.starts_with("invalid-mac: error, checked by weft lint\nmac is not an Ethernet address"),
        "{said}"
    );
    let (wrong, right) = said.split_once("\nRight:\n").unwrap();
    assert!(wrong.contains("\nWrong:\n    [{\"name\": \"net-a\", \"mac\": \"02:00:00:01\"}]\n"), "{said}");
    assert!(right.starts_with("    [{\"name\": \"net-a\", \"mac\": \"02:00:00:00:00:01\"}]\n"), "{said}");
    assert!(
        said.ends_with(
            "\nSource: multi-network specification v1.3, section 4.1.2.1.4\nSee docs/lint.md#invalid-mac\n"
        ),
        "{said}"
    );
    let json: Value =
        serde_json::from_slice(&lint(["-o", "json", "--explain", "invalid-mac"]).stdout).unwrap();
    assert_eq!((&json["rule"], &json["stage"]), (&"invalid-mac".into(), &"file".into()));

    let unknown = lint(["--explain", "invalid-macs"]);
    assert_eq!(unknown.status.code(), Some(2));
    let error = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(error.contains("unknown rule: did you mean invalid-mac?"), "{error}");
    assert_eq!(lint(["--explain", "invalid-mac", "x.yaml"]).status.code(), Some(2));
}
