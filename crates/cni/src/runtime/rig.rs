//! Directory with real plugins for tests: shell scripts that record the input and answer from files.
//!
//! For each verb, a script prints `NAME.VERB.out`; the exit code is 1 if `NAME.VERB.fail` exists.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;

use super::chain::Parameters;
use super::exec::Exec;
use crate::invocation::Attachment;
use crate::name::{ContainerId, IfName};
use crate::network::Network;
use crate::object::Object;

const RECORD: &str = r#"
here=${0%/*}; name=${0##*/}
call="$here/calls/$(printf %03d "$(ls "$here/calls" | wc -l)")"; mkdir "$call"
cat > "$call/stdin"; env > "$call/env"; printf %s "$name" > "$call/name"
"#;

const ANSWER: &str = r#"
[ ! -e "$here/$name.$CNI_COMMAND.out" ] || cat "$here/$name.$CNI_COMMAND.out"
[ ! -e "$here/$name.$CNI_COMMAND.fail" ]
"#;

pub(super) struct Rig {
    directory: PathBuf,
}

/// Plugin call, as the plugin received it.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) plugin: String,
    pub(super) stdin: String,
    pub(super) environment: Vec<String>,
}

impl Call {
    pub(super) fn config(&self) -> Value {
        serde_json::from_str(&self.stdin).unwrap()
    }

    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        self.environment.iter().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
    }

    pub(super) fn verb(&self) -> &str {
        self.variable("CNI_COMMAND").unwrap_or_default()
    }
}

impl Rig {
    pub(super) fn new() -> Rig {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("weft-cni-rig-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(directory.join("calls")).unwrap();
        Rig { directory }
    }

    /// Returns a rig that has recording plugins with these names, whose ADD prints an empty result.
    pub(super) fn with(plugins: &[&str]) -> Rig {
        let rig = Rig::new();
        for plugin in plugins {
            rig.script(plugin, &format!("{RECORD}{ANSWER}"));
            rig.prints(plugin, "ADD", "{}");
        }
        rig
    }

    pub(super) fn script(&self, name: &str, body: &str) -> PathBuf {
        let file = self.directory.join(name);
        fs::write(&file, format!("#!/bin/sh\n{body}")).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        file
    }

    pub(super) fn prints(&self, plugin: &str, verb: &str, output: &str) {
        fs::write(self.directory.join(format!("{plugin}.{verb}.out")), output).unwrap();
    }

    pub(super) fn fails(&self, plugin: &str, verb: &str, output: &str) {
        self.prints(plugin, verb, output);
        fs::write(self.directory.join(format!("{plugin}.{verb}.fail")), "").unwrap();
    }

    /// Makes a plugin succeed again.
    pub(super) fn recovers(&self, plugin: &str, verb: &str) {
        for ending in ["out", "fail"] {
            fs::remove_file(self.directory.join(format!("{plugin}.{verb}.{ending}"))).unwrap();
        }
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn path(&self) -> String {
        self.directory.to_str().unwrap().to_owned()
    }

    /// Returns the calls since the last query, in order.
    pub(super) fn calls(&self) -> Vec<Call> {
        let calls = self.directory.join("calls");
        let mut list: Vec<PathBuf> = fs::read_dir(&calls).unwrap().map(|e| e.unwrap().path()).collect();
        list.sort();
        let read = |path: &Path, name: &str| fs::read_to_string(path.join(name)).unwrap();
        let seen = list
            .iter()
            .map(|path| Call {
                plugin: read(path, "name"),
                stdin: read(path, "stdin"),
                environment: read(path, "env").lines().map(str::to_owned).collect(),
            })
            .collect();
        fs::remove_dir_all(&calls).unwrap();
        fs::create_dir(&calls).unwrap();
        seen
    }

    /// Returns `plugin VERB` for each call since the last query.
    pub(super) fn order(&self) -> Vec<String> {
        self.calls().iter().map(|call| format!("{} {}", call.plugin, call.verb())).collect()
    }

    pub(super) fn parameters(&self) -> Parameters {
        Parameters {
            who: Attachment {
                container: ContainerId::new("c1").unwrap(),
                ifname: IfName::new("eth0").unwrap(),
            },
            netns: "/run/netns/blue".into(),
            args: "IgnoreUnknown=1;A=b".into(),
            capability_args: Object::default(),
            args_cni: Object::default(),
            path: self.path(),
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

pub(super) fn exec() -> Exec {
    Exec::new(Duration::from_secs(60))
}

pub(super) fn object(text: &str) -> Object {
    Object::parse(text.as_bytes(), "test").unwrap()
}

/// Returns a list whose plugins have no options.
pub(super) fn network(version: &str, plugins: &[&str]) -> Network {
    let plugins: Vec<String> = plugins.iter().map(|name| format!(r#"{{"type":"{name}"}}"#)).collect();
    let text = format!(r#"{{"cniVersion":"{version}","name":"net","plugins":[{}]}}"#, plugins.join(","));
    Network::parse(text.as_bytes(), "test").unwrap()
}
