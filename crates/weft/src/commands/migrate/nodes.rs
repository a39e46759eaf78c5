//! Nodes in a migration: the state in the cluster, and the steps that move one.
//!
//! The annotation is set before the first step and removed after the last one, so a repeated command knows a node that it
//! has begun. Each step can be repeated.

use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Options;
use super::node_job::{DAEMON_CONFIG, NodeJob};
use crate::kubectl::Kubectl;
use cli_support::failure::Failure;

/// Annotation of a node that is being moved: whether it was cordoned before.
const ANNOTATION: &str = "weft.dev/migration";
const WAS_CORDONED: &str = "was-cordoned";
const WAS_OPEN: &str = "was-open";
/// Selector and DaemonSet of the agents.
const AGENTS: &str = "app.kubernetes.io/name=weft,app.kubernetes.io/component=agent";
const AGENT: &str = "weft-agent";
/// Interval between two looks at the pods of a node.
const PAUSE: Duration = Duration::from_secs(1);

/// Migration of a cluster.
#[derive(Debug)]
pub(super) struct Migration<'a> {
    kubectl: &'a Kubectl,
    options: &'a Options,
    image: String,
    label: (String, String),
    has_daemon_config: bool,
}

/// State of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodeState {
    /// Name.
    pub(super) name: String,
    /// Whether Multus runs on it, by label.
    has_multus: bool,
    is_cordoned: bool,
    /// Annotation of a node that is being moved.
    begun: Option<String>,
}

impl<'a> Migration<'a> {
    /// Reads what the cluster says about the migration.
    ///
    /// # Errors
    /// The label is invalid, the cluster cannot be read, or no image is known.
    pub(super) fn new(kubectl: &'a Kubectl, options: &'a Options) -> Result<Migration<'a>, Failure> {
        let Options { namespace, image, label, daemon_config, .. } = options;
        let Some((key, value)) =
            label.split_once('=').filter(|(key, value)| !key.is_empty() && !value.is_empty())
        else {
            return Err(Failure::new(format!("--label {label}: not KEY=VALUE")));
        };
        let image = match image {
            Some(image) => image.clone(),
            None => image_of_agent(kubectl, namespace)?,
        };
        let maps = kubectl.get(&[
            "configmaps",
            "-n",
            namespace,
            "--field-selector",
            &format!("metadata.name={daemon_config}"),
        ])?;
        let has_daemon_config = maps["items"][0]["data"]["daemon-config.json"].is_string();
        let label = (key.to_owned(), value.to_owned());
        Ok(Migration { kubectl, options, image, label, has_daemon_config })
    }

    /// Returns the wanted nodes, or all, those that were begun first.
    ///
    /// # Errors
    /// The nodes cannot be read, or one does not exist.
    pub(super) fn nodes(&self, wanted: &[String]) -> Result<Vec<NodeState>, Failure> {
        let list = self.kubectl.get(&["nodes"])?;
        let all: Vec<NodeState> = list["items"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|node| NodeState::of(node, &self.label))
            .collect();
        if let Some(absent) = wanted.iter().find(|name| all.iter().all(|node| node.name != **name)) {
            return Err(
                Failure::new(format!("node {absent} does not exist")).next("kubectl get nodes lists them")
            );
        }
        let mut nodes: Vec<NodeState> =
            all.into_iter().filter(|node| wanted.is_empty() || wanted.contains(&node.name)).collect();
        nodes.sort_by_key(|node| (node.begun.is_none(), node.name.clone()));
        Ok(nodes)
    }

    /// Returns the work on the files of a node.
    pub(super) fn job<'b>(&'b self, node: &'b str) -> NodeJob<'b> {
        NodeJob { kubectl: self.kubectl, options: self.options, image: &self.image, node }
    }

    /// Returns what is on a node, and what would be done.
    pub(super) fn look(&self, state: &NodeState) -> Result<String, Failure> {
        let job = self.job(&state.name);
        if state.has_multus {
            return job.run(&self.import(&[]));
        }
        let Options { conf_dir, bin_dir, .. } = self.options;
        job.run(&["/weft", "install", "--dry-run", "--conf-dir", conf_dir, "--bin-dir", bin_dir])
    }

    /// Moves a node from Multus to weft. Returns what was done.
    ///
    /// # Errors
    /// A step fails. The node stays cordoned, and the repeated command continues.
    pub(super) fn take_over(&self, state: &NodeState, drain: bool) -> Result<Vec<String>, Failure> {
        let NodeState { name, has_multus, begun, .. } = state;
        if !has_multus && begun.is_none() {
            return Ok(vec!["is not labelled as a node of Multus: nothing to do".to_owned()]);
        }
        self.refuse_unprepared()?;
        self.begin(state)?;
        let mut done = Vec::new();
        if drain {
            done.push(self.drain(name)?);
        }
        let (key, _) = &self.label;
        // Also again: pods may have started since the last attempt.
        done.push(self.job(name).run(&self.import(&["--apply"]))?);
        self.kubectl.run(&["label", "node", name, &format!("{key}-")], None)?;
        self.wait(&format!("the pod of {} to leave", self.options.daemonset), || {
            Ok(self.pods(name)?.iter().all(|pod| !self.is_of_multus(pod)))
        })?;
        done.push(self.job(name).run(&self.import(&["--apply", "--remove"]))?);
        self.wait("the agent of weft to be ready", || Ok(self.agents(name)?.iter().any(is_ready)))?;
        self.end(state)?;
        done.push("moved to weft".to_owned());
        Ok(done)
    }

    /// Gives a node back to Multus. Returns what was done.
    ///
    /// # Errors
    /// As for [`Migration::take_over`].
    pub(super) fn give_back(&self, state: &NodeState) -> Result<Vec<String>, Failure> {
        let NodeState { name, has_multus, begun, .. } = state;
        if *has_multus && begun.is_none() {
            return Ok(vec!["has Multus: nothing to do".to_owned()]);
        }
        self.begin(state)?;
        let mut done = vec![self.drain(name)?];
        let Options { conf_dir, bin_dir, .. } = self.options;
        let remove = ["/weft", "install", "--remove", "--conf-dir", conf_dir, "--bin-dir", bin_dir];
        // Before Multus starts, which may take the first file as its default network. It is refused while pods of weft exist.
        done.push(self.job(name).run(&remove)?);
        let (key, value) = &self.label;
        self.kubectl.run(&["label", "node", name, "--overwrite", &format!("{key}={value}")], None)?;
        self.wait("the agent of weft to leave", || Ok(self.agents(name)?.is_empty()))?;
        done.push(self.job(name).run(&remove)?);
        done.push(self.job(name).run(&["/weft", "import", "multus", "--restore", "--conf-dir", conf_dir])?);
        self.end(state)?;
        done.push("given back to Multus".to_owned());
        Ok(done)
    }

    /// Fails while whereabouts' DaemonSet exists: it would write the whereabouts program through weft's link.
    ///
    /// # Errors
    /// It exists, or the cluster cannot be read.
    pub(super) fn refuse_running_whereabouts(&self) -> Result<(), Failure> {
        let sets =
            self.kubectl.get(&["daemonsets", "-A", "--field-selector", "metadata.name=whereabouts"])?;
        let Some(namespace) = sets["items"][0]["metadata"]["namespace"].as_str() else { return Ok(()) };
        Err(Failure::new(format!("daemonset {namespace}/whereabouts exists: it would replace the program of weft"))
            .next(format!(
                "import its addresses (weft import whereabouts --apply), then kubectl -n {namespace} delete daemonset whereabouts"
            )))
    }

    /// Fails unless Multus only runs where the label is: it would stay on a node without it.
    fn refuse_unprepared(&self) -> Result<(), Failure> {
        let Options { namespace, daemonset, .. } = self.options;
        let set = self.kubectl.get(&["daemonset", "-n", namespace, daemonset])?;
        let (key, value) = &self.label;
        if set["spec"]["template"]["spec"]["nodeSelector"][key] == *value {
            return Ok(());
        }
        let patch =
            format!(r#"{{"spec":{{"template":{{"spec":{{"nodeSelector":{{"{key}":"{value}"}}}}}}}}}}"#);
        Err(Failure::new(format!("daemonset {namespace}/{daemonset} does not select nodes by {key}={value}")).next(
            format!("kubectl label node --all {key}={value}; kubectl -n {namespace} patch daemonset {daemonset} -p '{patch}'"),
        ))
    }

    fn import<'b>(&'b self, further: &[&'b str]) -> Vec<&'b str> {
        let mut words = vec!["/weft", "import", "multus", "--conf-dir", &self.options.conf_dir];
        if self.has_daemon_config {
            words.extend(["--daemon-config", DAEMON_CONFIG]);
        }
        words.extend(further);
        words
    }

    /// Cordons a node, and remembers whether it was cordoned before.
    fn begin(&self, state: &NodeState) -> Result<(), Failure> {
        let before = if state.is_cordoned { WAS_CORDONED } else { WAS_OPEN };
        if state.begun.is_none() {
            self.kubectl.run(&["annotate", "node", &state.name, &format!("{ANNOTATION}={before}")], None)?;
        }
        self.kubectl.run(&["cordon", &state.name], None).map(drop)
    }

    fn end(&self, state: &NodeState) -> Result<(), Failure> {
        let was_cordoned = match &state.begun {
            Some(before) => before == WAS_CORDONED,
            None => state.is_cordoned,
        };
        if !was_cordoned {
            self.kubectl.run(&["uncordon", &state.name], None)?;
        }
        self.kubectl.run(&["annotate", "node", &state.name, &format!("{ANNOTATION}-")], None).map(drop)
    }

    fn drain(&self, node: &str) -> Result<String, Failure> {
        let timeout = format!("--timeout={}s", self.options.timeout);
        self.kubectl.run(&["drain", node, "--ignore-daemonsets", "--delete-emptydir-data", &timeout], None)
    }

    /// Returns the pods of a node in the namespace.
    fn pods(&self, node: &str) -> Result<Vec<Value>, Failure> {
        let fields = format!("spec.nodeName={node}");
        let list = self.kubectl.get(&["pods", "-n", &self.options.namespace, "--field-selector", &fields])?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    fn agents(&self, node: &str) -> Result<Vec<Value>, Failure> {
        let fields = format!("spec.nodeName={node}");
        let namespace = &self.options.namespace;
        let list = self.kubectl.get(&["pods", "-n", namespace, "-l", AGENTS, "--field-selector", &fields])?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    fn is_of_multus(&self, pod: &Value) -> bool {
        let owners = pod["metadata"]["ownerReferences"].as_array();
        owners.is_some_and(|all| all.iter().any(|owner| owner["name"] == self.options.daemonset))
    }

    fn wait(&self, what: &str, is_done: impl Fn() -> Result<bool, Failure>) -> Result<(), Failure> {
        let deadline = Instant::now() + Duration::from_secs(self.options.timeout);
        while !is_done()? {
            if Instant::now() >= deadline {
                let why = format!("waited {} s for {what}", self.options.timeout);
                return Err(Failure::new(why)
                    .next("find out why, then repeat the command: it continues with this node"));
            }
            sleep(PAUSE);
        }
        Ok(())
    }
}

fn image_of_agent(kubectl: &Kubectl, namespace: &str) -> Result<String, Failure> {
    let sets = kubectl.get(&[
        "daemonsets",
        "-n",
        namespace,
        "--field-selector",
        &format!("metadata.name={AGENT}"),
    ])?;
    let image = &sets["items"][0]["spec"]["template"]["spec"]["containers"][0]["image"];
    image.as_str().map(str::to_owned).ok_or_else(|| {
        Failure::new(format!("daemonset {namespace}/{AGENT} does not exist, so the image of weft is unknown"))
            .next("name it with --image, or install weft first: docs/migrate-from-multus.md")
    })
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array();
    conditions.is_some_and(|all| all.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
}

// === impl NodeState ===

impl NodeState {
    fn of(node: &Value, (key, value): &(String, String)) -> NodeState {
        let metadata = &node["metadata"];
        NodeState {
            name: metadata["name"].as_str().unwrap_or_default().to_owned(),
            has_multus: metadata["labels"][key] == *value,
            is_cordoned: node["spec"]["unschedulable"] == true,
            begun: metadata["annotations"][ANNOTATION].as_str().map(str::to_owned),
        }
    }

    /// Returns the state in words.
    pub(super) fn describe(&self) -> &'static str {
        match (self.has_multus, &self.begun) {
            (_, Some(_)) => "is being moved; repeat the command to continue",
            (true, None) => "has Multus, by its label",
            (false, None) => "has no label of Multus",
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn migrate_state_of_a_node_is_label_and_annotation() {
        let label = ("network".to_owned(), "multus".to_owned());
        let of = |labels: Value, annotations: Value, spec: Value| {
            NodeState::of(
                &json!({ "metadata": { "name": "w", "labels": labels, "annotations": annotations }, "spec": spec }),
                &label,
            )
        };
        let fresh = of(json!({ "network": "multus" }), json!({}), json!({}));
        assert!(fresh.has_multus && !fresh.is_cordoned && fresh.begun.is_none());
        let begun = of(json!({}), json!({ ANNOTATION: WAS_CORDONED }), json!({ "unschedulable": true }));
        assert!(!begun.has_multus && begun.is_cordoned);
        assert_eq!(begun.begun.as_deref(), Some(WAS_CORDONED));
        assert!(!of(json!({ "network": "other" }), json!(null), json!({})).has_multus);
    }
}
