//! Pod that runs one command of weft's image with the files of a node, and is deleted afterwards.
//!
//! It uses the host's network, so that it needs no network plugin, and has the capabilities of the installer only.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Options;
use crate::kubectl::Kubectl;
use cli_support::failure::Failure;

/// Interval between two looks at the pod.
const PAUSE: Duration = Duration::from_secs(1);
/// Path of Multus's daemon configuration in the pod.
pub(super) const DAEMON_CONFIG: &str = "/daemon-config/daemon-config.json";
/// Directories of the node that the commands read and write, beside those of the runtime.
const DIRECTORIES: [(&str, &str); 3] =
    [("state", "/var/lib/cni"), ("journal", "/var/lib/weft"), ("run", "/run")];

/// Command on a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeJob<'a> {
    pub(super) kubectl: &'a Kubectl,
    pub(super) options: &'a Options,
    pub(super) image: &'a str,
    pub(super) node: &'a str,
}

impl NodeJob<'_> {
    /// Runs a command to completion, and returns what it printed.
    ///
    /// # Errors
    /// The pod cannot be created, does not end in time, or the command fails; the error has the output.
    pub(super) fn run(&self, command: &[&str]) -> Result<String, Failure> {
        let NodeJob { kubectl, options: Options { namespace, timeout, .. }, .. } = self;
        let name = self.name();
        // One that an interrupted command has left.
        self.delete()?;
        kubectl.run(&["create", "-f", "-"], Some(&self.object(&name, command).to_string()))?;
        let deadline = Instant::now() + Duration::from_secs(*timeout);
        let outcome = loop {
            let pod = kubectl.get(&["pod", "-n", namespace, &name])?;
            match pod["status"]["phase"].as_str() {
                Some("Succeeded") => break Ok(()),
                Some("Failed") => break Err("failed".to_owned()),
                _ if Instant::now() >= deadline => break Err(waiting(&pod)),
                _ => sleep(PAUSE),
            }
        };
        let output = kubectl.run(&["logs", "-n", namespace, &name], None).unwrap_or_default();
        self.delete()?;
        outcome
            .map(|()| output.clone())
            .map_err(|why| Failure::new(format!("{} {why}:\n{}", command.join(" "), output.trim())))
    }

    fn name(&self) -> String {
        format!("weft-migrate-{}", self.node)
    }

    fn delete(&self) -> Result<(), Failure> {
        let NodeJob { kubectl, options: Options { namespace, .. }, .. } = self;
        let name = self.name();
        kubectl.run(
            &["delete", "pod", "-n", namespace, &name, "--ignore-not-found", "--grace-period=1"],
            None,
        )?;
        Ok(())
    }

    fn object(&self, name: &str, command: &[&str]) -> Value {
        let NodeJob { options, image, node, .. } = self;
        let Options { namespace, conf_dir, bin_dir, daemon_config, .. } = options;
        let mut volumes = vec![
            json!({ "name": "networks", "hostPath": { "path": conf_dir } }),
            json!({ "name": "plugins", "hostPath": { "path": bin_dir } }),
            json!({ "name": "daemon-config", "configMap": { "name": daemon_config, "optional": true } }),
        ];
        let mut mounts = vec![
            json!({ "name": "networks", "mountPath": conf_dir }),
            json!({ "name": "plugins", "mountPath": bin_dir }),
            json!({ "name": "daemon-config", "mountPath": "/daemon-config", "readOnly": true }),
        ];
        for (volume, path) in DIRECTORIES {
            let kind = if path == "/run" { "Directory" } else { "DirectoryOrCreate" };
            volumes.push(json!({ "name": volume, "hostPath": { "path": path, "type": kind } }));
            mounts.push(json!({ "name": volume, "mountPath": path, "mountPropagation": "HostToContainer" }));
        }
        mounts.push(json!({ "name": "run", "mountPath": "/var/run", "mountPropagation": "HostToContainer" }));
        let container = json!({
            "name": "migrate", "image": image, "imagePullPolicy": "IfNotPresent", "command": command, "volumeMounts": mounts,
            "securityContext": {
                "runAsUser": 0, "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
                "capabilities": { "drop": ["ALL"], "add": ["DAC_OVERRIDE"] },
            },
        });
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": namespace, "labels": { "app.kubernetes.io/component": "migrate" } },
            "spec": {
                "nodeName": node, "hostNetwork": true, "restartPolicy": "Never", "automountServiceAccountToken": false,
                "priorityClassName": "system-node-critical", "tolerations": [{ "operator": "Exists" }],
                "containers": [container], "volumes": volumes,
            },
        })
    }
}

/// Returns why a pod has not ended.
fn waiting(pod: &Value) -> String {
    let state = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
    let reason = state["reason"].as_str().unwrap_or_default();
    let message = state["message"].as_str().unwrap_or_default();
    format!(
        "did not end in time ({} {reason} {message})",
        pod["status"]["phase"].as_str().unwrap_or("no phase")
    )
}
