//! Calls a plugin as a container runtime does: environment, configuration on standard input, exit code.
//!
//! Source: CNI specification 1.1.0, section 2.

use std::path::Path;

use serde_json::Value;

use crate::command::Finished;
use crate::host::{Host, PLUGINS, Pod};

/// Container interface, and the plugin to call for it.
///
/// The fields become the environment. A test can change them to make an unusual call.
#[derive(Debug)]
pub struct Attachment<'a> {
    host: &'a Host,
    /// Name of a plugin that was installed with [`Host::install`], or an absolute path.
    pub plugin: String,
    /// `CNI_CONTAINERID`; empty: not set.
    pub container_id: String,
    /// `CNI_NETNS`; empty: not set.
    pub netns: String,
    /// `CNI_IFNAME`; empty: not set.
    pub ifname: String,
    /// `CNI_ARGS`; empty: not set.
    pub args: String,
    /// `CNI_PATH`.
    pub path: String,
    /// Command that runs the plugin; empty to run it directly.
    pub through: Vec<String>,
}

impl Host {
    /// Returns the parameters that a runtime would use for interface `ifname` in `pod`.
    #[must_use]
    pub fn attachment(&self, plugin: &str, pod: &Pod, ifname: &str) -> Attachment<'_> {
        Attachment {
            host: self,
            plugin: plugin.to_owned(),
            container_id: pod.container_id(),
            netns: pod.path().display().to_string(),
            ifname: ifname.to_owned(),
            args: String::new(),
            path: PLUGINS.to_owned(),
            through: Vec::new(),
        }
    }
}

impl Attachment<'_> {
    /// Calls `ADD` with a configuration. If it succeeds, a `CHECK` with the result must succeed, too.
    ///
    /// # Panics
    /// That `CHECK` fails.
    #[track_caller]
    pub fn add(&self, config: &Value) -> Finished {
        let added = self.call("ADD", config.to_string());
        if self.is_checked(config) && added.code == Some(0) {
            let mut known = config.clone();
            known["prevResult"] = added.json();
            let checked = self.check(&known);
            assert_eq!(checked.code, Some(0), "CHECK after an ADD that succeeded: {checked}\n{known}");
        }
        added
    }

    /// Whether `CHECK` should follow `ADD`: not if the test counts the calls, if another program is called, or if the
    /// version has no `CHECK`.
    fn is_checked(&self, config: &Value) -> bool {
        let has_check = config["cniVersion"].as_str().is_some_and(|version| version >= "0.4.0");
        let counts_calls = config.to_string().contains("testPlugin");
        has_check && !counts_calls && self.through.is_empty() && !self.plugin.starts_with('/')
    }

    /// Calls `CHECK` with a configuration.
    #[track_caller]
    pub fn check(&self, config: &Value) -> Finished {
        self.call("CHECK", config.to_string())
    }

    /// Calls `DEL` with a configuration.
    #[track_caller]
    pub fn del(&self, config: &Value) -> Finished {
        self.call("DEL", config.to_string())
    }

    /// Calls any verb with any input, valid or not.
    #[track_caller]
    pub fn call(&self, verb: &str, stdin: impl Into<Vec<u8>>) -> Finished {
        let Attachment { host, plugin, container_id, netns, ifname, args, path, through } = self;
        let program = if plugin.starts_with('/') { plugin.into() } else { Path::new(PLUGINS).join(plugin) };
        let command = match through.split_first() {
            None => host.command(program),
            Some((first, rest)) => host.command(first).args(rest).args([program]),
        };
        let mut command = command.clean_environment().env("CNI_COMMAND", verb).env("CNI_PATH", path);
        let optional = [
            ("CNI_CONTAINERID", container_id),
            ("CNI_NETNS", netns),
            ("CNI_IFNAME", ifname),
            ("CNI_ARGS", args),
        ];
        for (name, value) in optional {
            if !value.is_empty() {
                command = command.env(name, value);
            }
        }
        command.stdin(stdin).finish()
    }
}
