//! `weft lint` as a program: output, exit codes, and the files that `--fix` rewrites.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test helpers may panic")]

use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use testkit::workspace;

/// Directory of one test, removed when the test ends.
struct TestDirectory(PathBuf);

impl TestDirectory {
    fn new(name: &str) -> TestDirectory {
        let path = std::env::temp_dir().join(format!("weft-lint-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        TestDirectory(path)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for TestDirectory {
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
fn lint_has_no_findings_on_the_examples() {
    let output = lint([workspace().join("examples")]);
    assert!(output.status.success());
    assert_eq!(text(&output), "3 files: no findings\n");
    assert_eq!(output.stderr, b"");
}

#[test]
fn lint_reads_files_of_the_option_and_stdin() {
    let examples = workspace().join("examples");
    let output = lint([Path::new("-f"), &examples]);
    assert_eq!(text(&output), "3 files: no findings\n");
    let manifest = fs::File::open(examples.join("pods.yaml")).unwrap();
    let weft = Command::new(testkit::binary("weft"))
        .args(["lint", "-f", "-", "-o", "json"])
        .stdin(manifest)
        .output();
    let document: Value = serde_json::from_slice(&weft.unwrap().stdout).unwrap();
    assert_eq!(document["files"], 1, "{document}");
    assert_eq!(lint::<&str>([]).status.code(), Some(2), "a file is required");
}

// Requirements: NPWG1-3.1-2
// Requirements: NPWG1-3.1-2
#[test]
fn lint_fix_converts_config_maps_to_strings() {
    let directory = TestDirectory::new("standard");
    for name in ["3.2.1", "3.2.2", "3.2.3", "3.4.2.1"] {
        let file = directory.0.join(format!("{name}.yaml"));
        fs::copy(standard(&format!("{name}-as-map.yaml")), &file).unwrap();
        let refused = lint([&file]);
        assert_eq!(refused.status.code(), Some(1));
        let output_text = text(&refused);
        assert!(
            output_text.contains("the API server refuses the object [config-not-a-string]"),
            "{output_text}"
        );
        assert!(
            output_text.contains("the object as it should read:") && output_text.contains("|   config: |"),
            "{output_text}"
        );
        assert!(
            output_text.contains("\nweft lint --fix writes the corrected form of 1 of them\n"),
            "{output_text}"
        );

        let fixed = lint([Path::new("--fix"), &file]);
        assert!(fixed.status.success(), "{}", text(&fixed));
        let output_text = text(&fixed);
        assert!(
            output_text.contains(&format!("{}: fixed network-attachment-definition ", file.display())),
            "{output_text}"
        );
        let again = lint([&file]);
        assert!(!text(&again).contains("error"), "{}", text(&again));
    }
}

#[test]
fn lint_fix_keeps_mode_links_and_other_content() {
    let directory = TestDirectory::new("fix");
    let before = format!(
        "# comment\n{}",
        definition(
            "a",
            "  config: {\"cniVersion\": \"1.0.0\", \"name\": \"a\", \"type\": \"bridge\"} # odd\n"
        )
    );
    let file = directory.file("real.yaml", &before);
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    let link = directory.0.join("link.yaml");
    symlink("real.yaml", &link).unwrap();
    assert!(lint([Path::new("--fix"), &link]).status.success());
    let config = "  config: |\n    {\"cniVersion\": \"1.0.0\", \"name\": \"a\", \"type\": \"bridge\"}\n";
    assert_eq!(fs::read_to_string(&file).unwrap(), format!("# comment\n{}", definition("a", config)));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 2, "no temporary file is left");
    // A second --fix changes nothing.
    let modified = fs::metadata(&file).unwrap().modified().unwrap();
    assert!(lint([Path::new("--fix"), &link]).status.success());
    assert_eq!(fs::metadata(&file).unwrap().modified().unwrap(), modified);
}

#[test]
fn lint_fix_never_writes_another_meaning() {
    let directory = TestDirectory::new("anchors");
    let config = "  config: &cfg\n    type: dummy\n    name: a\n    cniVersion: 1.0.0\n";
    let text = format!("{}  other: *cfg\n", definition("a", config));
    let file = directory.file("a.yaml", &text);
    let refused = lint([Path::new("--fix"), &file]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(!self::text(&refused).contains("fixed"), "{}", self::text(&refused));
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
}

#[test]
fn lint_checks_every_file_and_prints_positions() {
    let directory = TestDirectory::new("several");
    directory.file("a.yaml", "kind: [\n");
    directory.file(
        "b.yaml",
        &definition(
            "b",
            "  config: '{\"cniVersion\":\"1.0.0\",\"name\":\"b\",\"type\":\"bridge\",\"isGatway\":true}'\n",
        ),
    );
    directory.file("c.conflist", "{\"cniVersion\":\"1.0.0\",\"name\":\"c\",\n \"plugins\":[{\"type\":\"weft\",\"clusterNetwrok\":\"x\"}]}");
    directory.file("d.json", r#"{"cniVersion":"9.0.0","name":"d","type":"bridge"}"#);
    directory.file("e.json", r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","annotations":{"k8s.v1.cni.cncf.io/networks":"A"}}}"#);
    directory.file("notes.txt", "kind: [");
    let output = lint([&directory.0]);
    assert_eq!(output.status.code(), Some(1));
    let output_text = text(&output);
    let here = directory.0.display();
    for beginning in [
        format!("{here}/a.yaml:"),
        format!("{here}/b.yaml:6:72: warning: network-attachment-definition default/b: isGatway"),
        format!("{here}/c.conflist:2:13: error: configuration: plugins[0]: "),
        format!("{here}/d.json:1:15: error: configuration: cniVersion: \"9.0.0\""),
        format!("{here}/e.json:1:"),
    ] {
        assert!(
            output_text.lines().any(|line| line.starts_with(&beginning)),
            "{beginning} in\n{output_text}"
        );
    }
    assert!(
        output_text.contains("did you mean isGateway?")
            && output_text.contains("did you mean clusterNetwork?"),
        "{output_text}"
    );
    assert!(output_text.contains("\n5 files: 4 errors, 1 warning\n"), "{output_text}");
    assert!(!output_text.contains('\u{1b}'), "colours are for terminals");
}

#[test]
fn lint_few_addresses_depend_on_the_number_of_nodes() {
    let directory = TestDirectory::new("few");
    let network = |ipam: &str| {
        let spec = format!(
            "  config: |\n    {{\"cniVersion\": \"1.0.0\", \"name\": \"a\", \"type\": \"macvlan\", \"ipam\": {ipam}}}\n"
        );
        definition("a", &spec)
    };
    let small = r#"{"type": "whereabouts", "range": "10.9.0.0/28", "exclude": ["10.9.0.8/29"]}"#;
    let file = directory.file("small.yaml", &network(small));
    let file = file.to_str().unwrap();
    for (words, reason) in [
        (vec![file], ""),
        (vec!["--nodes", "1", file], ""),
        (
            vec!["--nodes", "2", file],
            "has 7 addresses for 2 nodes, fewer than 4 for each: each ADD and DEL sends",
        ),
        (
            vec!["--nodes", "9", file],
            "has 7 addresses for 9 nodes, fewer than 4 for each: at most 7 pods have one",
        ),
    ] {
        let output = lint(&words);
        let printed = text(&output);
        assert!(output.status.success(), "a warning is no failure: {printed}");
        assert_eq!(printed.contains("few-addresses"), !reason.is_empty(), "{words:?}: {printed}");
        assert!(printed.contains(reason), "{words:?}: {printed}");
    }
    // A store of one host is not shared by nodes.
    let local = r#"{"type": "weft-ipam", "store": "file", "range": "10.9.0.0/28"}"#;
    let file = directory.file("local.yaml", &network(local));
    assert!(!text(&lint(["--nodes", "9", file.to_str().unwrap()])).contains("few-addresses"));
    // A cluster that does not answer is no failure.
    let output = Command::new(testkit::binary("weft"))
        .args(["lint", file.to_str().unwrap(), "--kubeconfig", "/nonexistent/kubeconfig"])
        .output()
        .unwrap();
    assert!(output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("networks with few addresses are not searched"));
}

#[test]
fn lint_json_output_has_rules_and_positions() {
    let directory = TestDirectory::new("json");
    let file = directory.file(
        "a.yaml",
        &definition("a", "  config: {\"cniVersion\": \"1.0.0\", \"name\": \"a\", \"type\": \"bridge\"}\n"),
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
fn lint_reads_a_pipe_but_cannot_fix_it() {
    let map =
        definition("a", "  config: {\"cniVersion\": \"1.0.0\", \"name\": \"a\", \"type\": \"bridge\"}\n");
    for (words, code, output_text) in [
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
        assert!(both.contains(output_text), "{both}");
    }
}

#[test]
fn lint_streams_a_long_list_with_positions() {
    let directory = TestDirectory::new("long");
    let item = |number: usize, networks: &str| {
        format!(
            "- apiVersion: v1\n  kind: Pod\n  metadata:\n    annotations:\n      k8s.v1.cni.cncf.io/networks: {networks}\n    \
             name: p{number}\n    namespace: n\n  spec:\n    containers:\n    - image: {}\n      name: c\n",
            "x".repeat(1000)
        )
    };
    let count = 5000;
    let items: String =
        (0..count).map(|number| item(number, if number == 4321 { "A_b" } else { "a" })).collect();
    let text = format!("apiVersion: v1\nitems:\n{items}kind: List\nmetadata:\n  resourceVersion: \"\"\n");
    assert!(text.len() > 4 << 20);
    let file = directory.file("long.yaml", &text);
    let found = lint([Path::new("-o"), Path::new("json"), &file]);
    let report: Value = serde_json::from_slice(&found.stdout).unwrap();
    let findings = report["findings"].as_array().unwrap();
    assert_eq!((findings.len(), found.status.code()), (1, Some(1)), "{report}");
    let line = text.lines().position(|line| line.ends_with("A_b")).unwrap() + 1;
    assert_eq!(findings[0]["position"]["line"], line, "{report}");
    let refused = lint([Path::new("--fix"), &file]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("larger than"), "{refused:?}");
}

#[test]
fn lint_unreadable_input_is_named() {
    let directory = TestDirectory::new("nothing");
    for (path, output_text) in [
        (directory.0.clone(), "no manifest and no CNI configuration"),
        (directory.0.join("x.yaml"), "No such file"),
    ] {
        let output = lint([&path]);
        assert_eq!(output.status.code(), Some(1));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            error.starts_with("weft: ")
                && error.contains(output_text)
                && error.contains(&path.display().to_string()),
            "{error}"
        );
    }
    let large = directory.file("large.conf", &"# x\n".repeat(300_000));
    let error = String::from_utf8_lossy(&lint([large]).stderr).into_owned();
    assert!(error.contains("larger than"), "{error}");
}

#[test]
fn lint_output_has_no_control_characters_of_the_file() {
    let directory = TestDirectory::new("hostile");
    let file = directory.file(
        "a.conf",
        "{\"cniVersion\":\"\\u001b[31m\\u0007\",\"name\":\"a\u{9b}\",\"type\":\"\\u001b]0;x\"}",
    );
    let output_text = text(&lint([file]));
    assert!(output_text.contains("error"), "{output_text}");
    assert!(!output_text.contains(|c: char| c.is_control() && c != '\n'), "{output_text:?}");
}

#[test]
fn lint_explain_prints_a_rule_with_its_examples() {
    let output = lint(["--explain", "invalid-mac"]);
    assert!(output.status.success());
    let output_text = text(&output);
    assert!(
        output_text.starts_with("invalid-mac: error, checked by weft lint\nmac is not an Ethernet address"),
        "{output_text}"
    );
    let (wrong, right) = output_text.split_once("\nRight:\n").unwrap();
    assert!(
        wrong.contains("\nWrong:\n    [{\"name\": \"net-a\", \"mac\": \"02:00:00:01\"}]\n"),
        "{output_text}"
    );
    assert!(
        right.starts_with("    [{\"name\": \"net-a\", \"mac\": \"02:00:00:00:00:01\"}]\n"),
        "{output_text}"
    );
    assert!(
        output_text.ends_with(
            "\nSource: multi-network specification v1.3, section 4.1.2.1.4\nSee docs/lint.md#invalid-mac\n"
        ),
        "{output_text}"
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
