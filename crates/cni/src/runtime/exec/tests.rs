//! Tests with real processes, both well-behaved and misbehaving.

use std::fs::{self, OpenOptions};

use super::*;
use crate::runtime::rig::{Rig, exec};
use crate::version::Verb;

fn environment(rig: &Rig) -> Environment {
    rig.parameters().environment(Verb::Add)
}

fn run(rig: &Rig, body: &str) -> Result<Output, Error> {
    exec().run(&rig.script("plugin", body), &environment(rig), b"{}")
}

/// Whether this process exists and is not a zombie.
fn alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}

// Requirements: L1, S1
#[test]
fn exec_finds_the_first_regular_file_in_cni_path() -> Result<(), Error> {
    let (first, second) = (Rig::new(), Rig::new());
    let name = PluginType::new("plugin")?;
    let path = format!("{}:/nowhere::{}", first.path(), second.path());
    let file = second.script("plugin", "");
    assert_eq!(find(&name, &path)?, file);
    fs::create_dir(first.directory().join("plugin")).unwrap();
    assert_eq!(find(&name, &path)?, file);
    fs::remove_dir(first.directory().join("plugin")).unwrap();
    let link = first.directory().join("plugin");
    std::os::unix::fs::symlink(&file, &link).unwrap();
    assert_eq!(find(&name, &path)?, link);

    let error = find(&PluginType::new("ghost")?, "/a:/b").unwrap_err();
    assert_eq!((error.code, error.msg.as_str()), (5, r#"failed to find plugin "ghost" in path [/a /b]"#));
    for nowhere in ["", ":", "::"] {
        assert!(find(&name, nowhere).unwrap_err().msg.contains("no paths provided"));
    }
    Ok(())
}

// Requirements: L1
#[test]
fn exec_file_that_cannot_be_run_is_an_error() {
    let rig = Rig::new();
    let file = rig.script("plugin", "");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let error = exec().run(&file, &environment(&rig), b"").unwrap_err();
    assert_eq!(error.code, code::NOT_EXECUTED);
    assert!(error.msg.starts_with(&format!("run {}: ", file.display())), "{error}");
}

// Requirements: L2
#[test]
fn exec_text_file_busy_is_retried() -> Result<(), Error> {
    let rig = Rig::new();
    let file = rig.directory().join("plugin");
    fs::copy("/bin/cat", &file).unwrap();
    let writer = OpenOptions::new().append(true).open(&file).unwrap();
    let busy = Command::new(&file).stdin(Stdio::null()).spawn();
    let busy = busy.map_err(|cause| cause.kind());
    if !matches!(busy, Err(io::ErrorKind::ExecutableFileBusy)) {
        eprintln!("skipped: this kernel lets a file be run while it is written");
        return Ok(());
    }
    let installer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        drop(writer);
    });
    let output = exec().run(&file, &environment(&rig), br#"{"ok":1}"#)?;
    assert_eq!(output.stdout, br#"{"ok":1}"#);
    installer.join().unwrap();

    // The deadline also limits the retries.
    let _writer = OpenOptions::new().append(true).open(&file).unwrap();
    let started = Instant::now();
    let soon = Exec::new(Duration::from_millis(100)).run(&file, &environment(&rig), b"").unwrap_err();
    assert!(soon.code == 5 && started.elapsed() < Duration::from_secs(3), "{soon}");
    Ok(())
}

// Requirements: L3
#[test]
fn exec_sets_six_variables_and_inherits_the_others() -> Result<(), Error> {
    let rig = Rig::new();
    let mut environment = environment(&rig);
    environment.netns_override = "1".into();
    environment.args = String::new();
    let file = rig.script("plugin", "env");
    let printed = String::from_utf8(exec().run(&file, &environment, b"")?.stdout).unwrap();
    let lines: Vec<&str> = printed.lines().collect();
    for line in ["CNI_COMMAND=ADD", "CNI_ARGS=", "CNI_IFNAME=eth0", "CNI_NETNS_OVERRIDE=1"] {
        assert!(lines.contains(&line), "{line} in {printed}");
    }
    assert!(lines.contains(&format!("PATH={}", std::env::var("PATH").unwrap()).as_str()));
    Ok(())
}

#[test]
fn exec_command_with_arguments_keeps_stderr_and_error() -> Result<(), Error> {
    let rig = Rig::new();
    let file = rig
        .script("many", r#"echo said >&2; printf '{"code":11,"msg":"%s %s"}' "$1" "$CNI_COMMAND"; exit 1"#);
    let mut command = Command::new(file);
    command.arg("plugin");
    let (output, failure) = exec().complete(command, &environment(&rig), b"{}")?;
    assert_eq!(failure, Some(Error::new(11, "plugin ADD")));
    assert_eq!(output.stderr, b"said\n");
    Ok(())
}

// Requirements: L4, S20, M19
#[test]
fn exec_passes_the_plugins_error_on() {
    let rig = Rig::new();
    let error =
        run(&rig, r#"echo noise >&2; echo '{"code":11,"msg":"later","details":"d"}'; exit 1"#).unwrap_err();
    assert_eq!(error, Error::new(11, "later").details("d"));
    let error = run(&rig, r#"echo '{"cniVersion":"1.0.0","code":3,"msg":"who?"}'; exit 7"#).unwrap_err();
    assert_eq!((error.code, error.cni_version.as_deref()), (3, Some("1.0.0")));
}

// Requirements: L4
#[test]
fn exec_failure_without_an_error_is_described() {
    let rig = Rig::new();
    for (body, says) in [
        ("exit 3", "netplugin failed with no error message: exit status 3"),
        ("echo 'out of cheese' >&2; exit 1", r#"netplugin failed: "out of cheese": exit status 1"#),
        ("kill -9 $$", "netplugin failed with no error message: killed by signal 9 (SIGKILL)"),
        ("echo gone >&2; kill -SEGV $$", r#"netplugin failed: "gone": killed by signal 11 (SIGSEGV)"#),
        ("echo oops; exit 1", r#"netplugin failed but error parsing its diagnostic message "oops\n""#),
        ("echo '{}'; exit 1", r#"netplugin failed but error parsing its diagnostic message "{}\n""#),
    ] {
        let error = run(&rig, body).unwrap_err();
        assert_eq!(error.code, 999, "{body}");
        assert!(error.msg.starts_with(says), "{body}: {error}");
    }
}

// Requirements: trap 8
#[test]
fn exec_result_followed_by_an_error_is_an_error() {
    let rig = Rig::new();
    let error =
        run(&rig, r#"echo '{"cniVersion":"1.0.0"}{"code":8,"msg":"own netns"}'; exit 1"#).unwrap_err();
    assert_eq!((error.code, error.msg.as_str()), (8, "own netns"));
}

#[test]
fn exec_deadline_kills_the_plugin_and_its_group() {
    let rig = Rig::new();
    let body = r#"sleep 300 & echo $! > "${0%/*}/child"; echo $$ > "${0%/*}/self"; echo waiting >&2; wait"#;
    let file = rig.script("plugin", body);
    let started = Instant::now();
    let error = Exec::new(Duration::from_millis(500)).run(&file, &environment(&rig), b"").unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(10));
    assert_eq!(error.code, 5);
    assert!(error.msg.ends_with("killed after 500ms without an answer"), "{error}");
    assert_eq!(error.details, "waiting");
    for name in ["child", "self"] {
        let pid = fs::read_to_string(rig.directory().join(name)).unwrap();
        // kill(2) delivers the signal at once, but the process ends a moment later.
        let gone = (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            !alive(&pid)
        });
        assert!(gone, "{name} {pid} is alive");
    }
}

#[test]
fn exec_output_of_100_megabytes_is_not_buffered() {
    let rig = Rig::new();
    let error = run(&rig, "head -c 100000000 /dev/zero; echo finished > \"${0%/*}/end\"").unwrap_err();
    assert_eq!(error.code, 5);
    assert!(error.msg.contains("killed: it printed more than 1048576 bytes"), "{error}");
    assert!(!rig.directory().join("end").exists());
}

#[test]
fn exec_keeps_the_end_of_stderr() -> Result<(), Error> {
    let rig = Rig::new();
    let output = run(&rig, "head -c 3000000 /dev/zero | tr '\\0' x >&2; echo end >&2; echo '{}'")?;
    assert_eq!(output.stderr.len(), STDERR_MAX);
    assert!(output.stderr.ends_with(b"xend\n"));
    let error = run(&rig, "head -c 3000000 /dev/zero | tr '\\0' x >&2; echo end >&2; exit 1").unwrap_err();
    assert!(error.msg.chars().count() < QUOTE_MAX + 200 && error.msg.contains("xend"), "{}", error.msg.len());
    Ok(())
}

#[test]
fn exec_plugin_that_reads_no_stdin_succeeds() -> Result<(), Error> {
    let rig = Rig::new();
    let large = vec![b' '; DOCUMENT_MAX];
    for body in ["exec <&-; sleep 0.05; echo '{}'", "echo '{}'"] {
        let file = rig.script("plugin", body);
        assert_eq!(exec().run(&file, &environment(&rig), &large)?.stdout, b"{}\n", "{body}");
    }
    // A plugin that reads all of stdin must get all of it, even while it prints.
    let file = rig.script("plugin", "wc -c");
    let output = exec().run(&file, &environment(&rig), &large)?;
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), DOCUMENT_MAX.to_string());
    Ok(())
}

#[test]
fn exec_daemon_of_a_plugin_survives_without_delay() -> Result<(), Error> {
    let rig = Rig::new();
    let started = Instant::now();
    let output = run(&rig, r#"sleep 30 & echo $! > "${0%/*}/child"; echo '{}'"#)?;
    assert_eq!(output.stdout, b"{}\n");
    assert!(started.elapsed() < Duration::from_secs(10));
    let pid = fs::read_to_string(rig.directory().join("child")).unwrap();
    assert!(alive(&pid));
    let killed = Command::new("kill").arg(pid.trim()).status().unwrap();
    assert!(killed.success());
    Ok(())
}
