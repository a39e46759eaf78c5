//! Runs kubectl, for steps that kubectl has already: a command in a container, cordon, drain, labels.
//!
//! It runs with the rights of the caller, and with the caller's kubeconfig and context.

use std::ffi::OsStr;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::cluster_access::ClusterAccess;
use cli_support::failure::Failure;

/// Program.
const PROGRAM: &str = "kubectl";

/// kubectl with the options that select the cluster.
#[derive(Clone, Debug)]
pub(crate) struct Kubectl {
    options: Vec<std::ffi::OsString>,
}

impl Kubectl {
    /// Returns kubectl for a cluster.
    pub(crate) fn new(access: &ClusterAccess) -> Kubectl {
        Kubectl { options: access.kubectl_options() }
    }

    /// Returns a command line.
    pub(crate) fn command<I: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = I>) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(&self.options).args(words);
        command
    }

    /// Runs kubectl, with `input` as standard input, and returns what it printed.
    ///
    /// # Errors
    /// kubectl cannot be executed, or fails; the error has the message.
    pub(crate) fn run(&self, words: &[&str], input: Option<&str>) -> Result<String, Failure> {
        let mut command = self.command(words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
        let mut child = command.spawn().map_err(|cause| absent(&cause))?;
        if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
            // kubectl that ends early says why.
            let _ = stdin.write_all(input.as_bytes());
        }
        let output = child.wait_with_output().map_err(|cause| absent(&cause))?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => {
                let why = String::from_utf8_lossy(&output.stderr);
                Err(Failure::new(format!("kubectl {}: {}", words.join(" "), why.trim())))
            }
        }
    }

    /// Returns the JSON of a `kubectl get`.
    ///
    /// # Errors
    /// As for [`Kubectl::run`].
    pub(crate) fn get(&self, words: &[&str]) -> Result<Value, Failure> {
        let text = self.run(&[&["get", "-o", "json"], words].concat(), None)?;
        serde_json::from_str(&text)
            .map_err(|cause| Failure::new(format!("kubectl get {}: no JSON: {cause}", words.join(" "))))
    }
}

/// Returns the failure to execute kubectl.
pub(crate) fn absent(cause: &std::io::Error) -> Failure {
    Failure::new(format!("execute kubectl: {cause}")).next("install kubectl, or add its directory to PATH")
}
