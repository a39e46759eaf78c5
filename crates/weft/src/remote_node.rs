//! Runs a command about a node inside weft's pod on that node, so that it can be used from any machine.
//!
//! ```text
//!   laptop: weft trace … ── pods/exec, as the caller ──► executor of the node ── weft trace … ──► output, exit code
//! ```
//!
//! - The caller needs the right `create` on `pods/exec` in the namespace of weft. The agent gets no right for it.
//! - A command that enters namespaces needs the executor, which is privileged; others also run in the agent.
//! - Without such a pod, the first line says on which node to run the command.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Stdio;

use clap::Args;
use serde_json::Value;

use crate::cluster_access::ClusterAccess;
use crate::kubectl::{self, Kubectl};
use crate::pod_name::PodName;
use cli_support::failure::{Exit, Failure};

/// Selector of weft's pods.
const SELECTOR: &str = "app.kubernetes.io/name=weft";
/// Containers with the program, the one that may enter namespaces first.
const EXECUTOR: &str = "executor";
const AGENT: &str = "agent";
/// Program in the image.
const PROGRAM: &str = "/weft";

/// Access that a command needs on the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// To enter namespaces.
    Namespaces,
    /// To read the files of weft.
    Files,
}

/// Option that selects the node.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct RemoteNode {
    /// Run the command on this node of the cluster, in weft's pod there (default: on this machine; with --context or
    /// --kubeconfig on the node of the pod)
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<String>,
}

/// Container on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Container {
    namespace: String,
    pod: String,
    container: &'static str,
}

impl RemoteNode {
    /// Runs this process's command on the right node; `None` if it is a command for this machine.
    ///
    /// # Errors
    /// The cluster cannot be read, no pod of weft on the node can run the command, or the command fails there.
    pub(crate) fn run(
        &self,
        access: &ClusterAccess,
        pod: Option<&PodName>,
        needs: Needs,
    ) -> Option<Result<(), Failure>> {
        if self.node.is_none() && (pod.is_none() || !access.is_given()) {
            return None;
        }
        Some(self.execute(access, pod, needs, None))
    }

    /// Like [`RemoteNode::run`], with standard output into a new file on this machine.
    ///
    /// # Errors
    /// As for [`RemoteNode::run`], or the file exists or cannot be created.
    pub(crate) fn run_into(
        &self,
        access: &ClusterAccess,
        pod: &PodName,
        file: Option<&Path>,
    ) -> Option<Result<(), Failure>> {
        if self.node.is_none() && !access.is_given() {
            return None;
        }
        Some(self.execute(access, Some(pod), Needs::Namespaces, file))
    }

    fn execute(
        &self,
        access: &ClusterAccess,
        pod: Option<&PodName>,
        needs: Needs,
        file: Option<&Path>,
    ) -> Result<(), Failure> {
        let kubectl = Kubectl::new(access);
        let node = match (&self.node, pod) {
            (Some(node), _) => node.clone(),
            (None, Some(pod)) => node_of(&kubectl, pod)?,
            (None, None) => return Err(Failure::new("no node is named").next("name it with --node")),
        };
        let words = words_there(std::env::args().skip(1));
        let target = find(&kubectl, &node, needs, &words)?;
        let mut command = kubectl.command(target.exec(&words));
        if let Some(path) = file {
            let created = File::options().write(true).create_new(true).mode(0o600).open(path);
            command
                .stdout(created.map_err(|cause| Failure::new(format!("write {}: {cause}", path.display())))?);
        }
        let status = command.stdin(Stdio::null()).status().map_err(|cause| kubectl::absent(&cause))?;
        match status.code() {
            Some(0) => Ok(()),
            // The command has printed why; kubectl, that its exit code is not zero.
            Some(2) => Err(Failure::quiet("wrong usage").exit(Exit::Usage)),
            Some(3) => Err(Failure::quiet("root required").exit(Exit::NeedsRoot)),
            _ => Err(Failure::quiet(format!("the command failed on node {node}"))),
        }
    }
}

/// Returns the nodes with a weft pod, each with the line that runs a command there, sorted by name.
///
/// # Errors
/// The pods cannot be read.
pub(crate) fn all_nodes(kubectl: &Kubectl, words: &[String]) -> Result<Vec<(String, Vec<String>)>, Failure> {
    let pods = kubectl.get(&["pods", "-A", "-l", SELECTOR, "--field-selector", "status.phase=Running"])?;
    let items = pods["items"].as_array().cloned().unwrap_or_default();
    let mut names: Vec<&str> = items.iter().filter_map(|pod| pod["spec"]["nodeName"].as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let of = |node: &str| {
        let there: Vec<Value> = items.iter().filter(|pod| pod["spec"]["nodeName"] == node).cloned().collect();
        Some((node.to_owned(), container(&there, Needs::Files)?.exec(words)))
    };
    Ok(names.into_iter().filter_map(of).collect())
}

/// Returns the words for the node: without the options that select cluster and node.
fn words_there(words: impl Iterator<Item = String>) -> Vec<String> {
    // The file of a capture is written on this machine.
    const OPTIONS: [&str; 5] = ["--node", "--kubeconfig", "--context", "-w", "--write"];
    let (mut kept, mut skips) = (Vec::new(), false);
    for word in words {
        if std::mem::take(&mut skips) {
            continue;
        }
        skips = OPTIONS.contains(&word.as_str());
        let is_joined =
            OPTIONS.iter().any(|option| word.strip_prefix(option).is_some_and(|rest| rest.starts_with('=')));
        if !skips && !is_joined {
            kept.push(word);
        }
    }
    kept
}

fn node_of(kubectl: &Kubectl, pod: &PodName) -> Result<String, Failure> {
    let object = kubectl.get(&["pod", "-n", &pod.namespace, &pod.name])?;
    match object["spec"]["nodeName"].as_str() {
        Some(node) if !node.is_empty() => Ok(node.to_owned()),
        _ => Err(Failure::new(format!("pod {pod} is not scheduled to a node"))
            .next(format!("kubectl describe pod -n {} {} shows the reason", pod.namespace, pod.name))),
    }
}

fn find(kubectl: &Kubectl, node: &str, needs: Needs, words: &[String]) -> Result<Container, Failure> {
    let fields = format!("spec.nodeName={node},status.phase=Running");
    let pods = kubectl.get(&["pods", "-A", "-l", SELECTOR, "--field-selector", &fields])?;
    let items = pods["items"].as_array().cloned().unwrap_or_default();
    let command = words.first().map_or("", String::as_str);
    container(&items, needs).ok_or_else(|| {
        let why = match (items.is_empty(), needs) {
            (true, _) => format!("weft {command} must run on node {node}: no pod of weft runs there"),
            (false, _) => format!(
                "weft {command} must run on node {node} itself: it enters network namespaces, and no executor runs there"
            ),
        };
        let line = format!("sudo weft {}", words.join(" "));
        Failure::new(why).next(format!("run `{line}` on node {node}, or install deploy/hot-plug, which has the executor"))
    })
}

/// Returns the container that can run a command: the executor, or the agent for one that only reads files.
fn container(pods: &[Value], needs: Needs) -> Option<Container> {
    let names: &[&'static str] = if needs == Needs::Namespaces { &[EXECUTOR] } else { &[EXECUTOR, AGENT] };
    names.iter().find_map(|name| {
        let has = |pod: &&Value| {
            let containers = pod["spec"]["containers"].as_array();
            containers.is_some_and(|all| all.iter().any(|one| one["name"] == **name))
        };
        let metadata = &pods.iter().find(has)?["metadata"];
        let text = |key: &str| metadata[key].as_str().unwrap_or_default().to_owned();
        Some(Container { namespace: text("namespace"), pod: text("name"), container: name })
    })
}

// === impl Container ===

impl Container {
    /// Returns the words of kubectl that execute a command of weft here.
    fn exec(&self, words: &[String]) -> Vec<String> {
        let Container { namespace, pod, container } = self;
        let mut all =
            ["exec", "-n", namespace, pod, "-c", container, "--", PROGRAM].map(str::to_owned).to_vec();
        all.extend(words.iter().cloned());
        all
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn remote_command_loses_the_options_of_cluster_and_node() {
        let line = "trace --node w1 a b --network data --context=blue --kubeconfig k -o json --node=w1";
        let words = words_there(line.split(' ').map(str::to_owned));
        assert_eq!(words.join(" "), "trace a b --network data -o json");
    }

    #[test]
    fn remote_command_that_enters_namespaces_needs_the_executor() {
        let pod = |name: &str, container: &str| json!({ "metadata": { "name": name, "namespace": "net" }, "spec": { "containers": [{ "name": container }] } });
        let (agent, executor) = (pod("a", AGENT), pod("e", EXECUTOR));
        assert_eq!(container(std::slice::from_ref(&agent), Needs::Namespaces), None);
        let found = |pods: &[Value], needs| container(pods, needs).map(|found| found.pod);
        assert_eq!(found(std::slice::from_ref(&agent), Needs::Files).as_deref(), Some("a"));
        for needs in [Needs::Files, Needs::Namespaces] {
            assert_eq!(found(&[agent.clone(), executor.clone()], needs).as_deref(), Some("e"));
        }
        let line = container(&[executor], Needs::Files).unwrap().exec(&["doctor".to_owned()]);
        assert_eq!(line.join(" "), "exec -n net e -c executor -- /weft doctor");
    }
}
