//! Simulated host for a demo: creates it and the pods, uses them, removes them.
//!
//! | object | name |
//! |---|---|
//! | simulated host | `/run/netns/weft-demo-TAG-host` |
//! | sandboxes | `/run/netns/weft-demo-TAG-pod1`, `…-pod2` |
//! | journal, manifests, addresses | `/run/weft-demo-TAG/` |
//!
//! - Each object is recorded before it is created, so the removal after a failure finds it.
//! - The removal continues after failures and returns all of them.

use std::path::Path;

use cni::name::{ContainerId, IfName};
use rpc::journal::{self, Entry};

use super::run_tag::{PREFIX, RunTag};
use super::snapshot;
use crate::attachments::network_count;
use crate::manifest_plan::{IFNAME, LoadedInputs};
use crate::meta_plugin_config::MetaPlugin;
use crate::pod_name::{NAMESPACES, PodName};
use crate::sandbox_operations::SandboxOperations;
use crate::scratch::Scratch;
use cli_support::failure::Failure;
use cli_support::output::Progress;
use node_support::journal_reader::{Journal, Row};
use node_support::weft_cni::{Contents, Subject, WeftCni};

/// Name of the journal directory below the run's directory.
const JOURNAL: &str = "journal";
/// Directory in the example files, which the run's directory replaces.
const EXAMPLE_DIRECTORY: &str = "/run/weft-example";
/// Timeout for one plugin, in seconds; short, because a person waits at a terminal.
const DELEGATE_SECONDS: u32 = 10;

/// Attached pod and the sandbox.
#[derive(Debug)]
pub(super) struct AttachedPod {
    /// Pod that was attached.
    pub(super) pod: PodName,
    /// Path to the pod's network namespace.
    pub(super) netns: String,
    /// Journal entry after the ADD.
    pub(super) entry: Entry,
    operations: SandboxOperations,
}

/// Simulated host with all objects that a run creates.
#[derive(Debug)]
pub(super) struct DemoHost {
    tag: RunTag,
    weft_cni: WeftCni,
    path: String,
    progress: Progress,
    scratch: Option<Scratch>,
    /// Namespaces that were or are about to be created, the simulated host first.
    namespaces: Vec<String>,
    /// Sandboxes that may have attachments.
    started: Vec<SandboxOperations>,
    pods: Vec<AttachedPod>,
}

// === impl DemoHost ===

impl DemoHost {
    /// Returns a host for which nothing is created yet.
    pub(super) fn new(tag: RunTag, weft_cni: WeftCni, path: Option<&str>, progress: Progress) -> DemoHost {
        let path = path.map_or_else(|| weft_cni.plugin_path(), str::to_owned);
        DemoHost {
            tag,
            weft_cni,
            path,
            progress,
            scratch: None,
            namespaces: Vec::new(),
            started: Vec::new(),
            pods: Vec::new(),
        }
    }

    /// Returns weft-cni on the machine itself, not on the simulated host.
    pub(super) fn weft_cni(&self) -> &WeftCni {
        &self.weft_cni
    }

    /// Returns this run's tag.
    pub(super) fn tag(&self) -> &RunTag {
        &self.tag
    }

    /// Returns the output for progress messages.
    pub(super) fn progress(&self) -> Progress {
        self.progress
    }

    /// Returns the attached pods.
    pub(super) fn pods(&self) -> &[AttachedPod] {
        &self.pods
    }

    /// Removes what killed runs left: first the attachments in the journals, then the namespaces with such names.
    pub(super) fn remove_abandoned(&self) -> Result<(), Failure> {
        self.remove_abandoned_runs(PREFIX)
    }

    /// Removes what killed runs left whose names begin with `prefix`.
    pub(super) fn remove_abandoned_runs(&self, prefix: &str) -> Result<(), Failure> {
        for abandoned in Scratch::abandoned(prefix) {
            self.progress.line(format!("removing the remains of an earlier run, {}", abandoned.name()));
            if let Err(failure) = self.remove_run(&abandoned) {
                abandoned.keep();
                return Err(failure);
            }
            abandoned.remove()?;
        }
        Ok(())
    }

    fn remove_run(&self, abandoned: &Scratch) -> Result<(), Failure> {
        self.detach_abandoned(abandoned)?;
        let prefix = format!("{}-", abandoned.name());
        for path in snapshot::entries(Path::new(NAMESPACES))? {
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix)) {
                self.weft_cni.delete(&path.display().to_string())?;
            }
        }
        Ok(())
    }

    fn detach_abandoned(&self, abandoned: &Scratch) -> Result<(), Failure> {
        let directory = abandoned.path().join(JOURNAL);
        let journal = Journal::at(&directory.join(journal::ENTRIES));
        for row in journal.rows()? {
            // The interfaces of an unreadable entry are removed with the namespaces.
            let Row::Entry(entry) = row else { continue };
            let meta_plugin = MetaPlugin::for_journal(&entry.network)?
                .with("cniDir", &directory)?
                .with("builtin", "always")?;
            let weft_cni = self.weft_cni.inside(&format!("{NAMESPACES}/{}-host", abandoned.name()));
            let operations =
                SandboxOperations::for_entry(weft_cni, meta_plugin, &entry, journal.clone(), self.progress);
            // A failed DEL is not fatal: its interfaces are removed with the namespaces.
            if let Err(failure) = operations.detach(&entry) {
                self.progress.line(format!("  {failure}"));
            }
        }
        Ok(())
    }

    /// Creates the simulated host and this run's directory.
    pub(super) fn create(&mut self) -> Result<(), Failure> {
        self.scratch = Some(Scratch::new(&self.tag.prefix(), "another demo uses the same names")?);
        self.create_namespace(&self.tag.host())
    }

    fn create_namespace(&mut self, path: &str) -> Result<(), Failure> {
        self.namespaces.push(path.to_owned());
        self.weft_cni.create(path)
    }

    /// Returns the network objects on the simulated host.
    pub(super) fn host_contents(&self) -> Result<Contents, Failure> {
        self.weft_cni.contents(&self.tag.host())
    }

    /// Creates a sandbox for a pod and attaches the networks.
    pub(super) fn attach(&mut self, loaded: &LoadedInputs, pod: &PodName) -> Result<(), Failure> {
        let number = self.pods.len() + 1;
        let netns = self.tag.namespace(&format!("pod{number}"));
        let plan = loaded.plan(pod)?;
        let networks = network_count(plan.delegates.len());
        self.progress.line(format!("\npod {pod}: {networks}, configured by {}", loaded.meta_plugin.file));
        self.create_namespace(&netns)?;
        let container = ContainerId::new(&format!("{}-pod{number}", self.tag.prefix()))?;
        let meta_plugin = self.meta_plugin(loaded, number)?;
        let PodName { namespace, name } = pod;
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID={container}"
        );
        let operations = SandboxOperations {
            weft_cni: self.weft_cni.inside(&self.tag.host()),
            journal: Journal::at(&meta_plugin.journal()),
            meta_plugin,
            subject: Subject {
                container,
                netns: netns.clone(),
                ifname: IfName::new(IFNAME)?,
                args,
                path: self.path.clone(),
            },
            progress: self.progress,
        };
        self.started.push(operations.clone());
        let entry = operations.attach()?;
        self.pods.push(AttachedPod { pod: pod.clone(), netns, entry, operations });
        Ok(())
    }

    /// Returns the meta-plugin with this run's directories and, by default, built-in plugins.
    fn meta_plugin(&self, loaded: &LoadedInputs, number: usize) -> Result<MetaPlugin, Failure> {
        let Some(scratch) = &self.scratch else {
            return Err(Failure::new("the simulated host is not created"));
        };
        let directory = scratch.path().display().to_string();
        let manifest_texts: Vec<String> =
            loaded.manifests().map(|file| file.text.replace(EXAMPLE_DIRECTORY, &directory)).collect();
        let manifests =
            scratch.manifests(&format!("manifests{number}"), manifest_texts.iter().map(String::as_str))?;
        let mut meta_plugin = loaded
            .meta_plugin
            .with_replaced(EXAMPLE_DIRECTORY, &directory)?
            .with("cniDir", &scratch.path().join(JOURNAL))?
            .with("manifestDir", &manifests)?
            .with("delegateTimeout", &DELEGATE_SECONDS)?;
        if meta_plugin.object.get("builtin").is_none() {
            meta_plugin = meta_plugin.with("builtin", "always")?;
        }
        Ok(meta_plugin)
    }

    /// Runs CHECK for every attachment.
    pub(super) fn check(&self) -> Result<(), Failure> {
        self.progress.line("");
        for AttachedPod { pod, operations, entry, .. } in &self.pods {
            operations.check().map_err(|failure| failure.context(format_args!("check {pod}")))?;
            let summary = match entry.plan.delegates.len() {
                1 => "its network is unchanged".to_owned(),
                count => format!("all {count} networks are unchanged"),
            };
            self.progress.line(format!("checked {pod}: {summary}"));
        }
        Ok(())
    }

    /// Detaches the pods. The namespaces and the simulated host stay.
    pub(super) fn detach_all(&mut self) -> Result<(), Failure> {
        while let Some(operations) = self.started.last() {
            self.detach(operations)?;
            self.started.pop();
        }
        Ok(())
    }

    fn detach(&self, operations: &SandboxOperations) -> Result<(), Failure> {
        let Some(entry) = operations.journal.entry(&operations.subject.container)? else { return Ok(()) };
        let pod = format!("{}/{}", entry.plan.pod.namespace, entry.plan.pod.name);
        self.progress.line(format!("\npod {pod}"));
        operations.detach(&entry).map_err(|failure| failure.context(format_args!("detach {pod}")))
    }

    /// Removes everything that the run created. Objects that are already gone are not an error.
    pub(super) fn remove_all(&mut self) -> Result<(), Failure> {
        let mut failures = Vec::new();
        while let Some(operations) = self.started.pop() {
            failures.extend(self.detach(&operations).err());
        }
        let before = failures.len();
        while let Some(path) = self.namespaces.pop() {
            // A namespace whose creation failed may not exist.
            if Path::new(&path).try_exists().unwrap_or(true) {
                failures.extend(self.weft_cni.delete(&path).err());
            }
        }
        match self.scratch.take() {
            // The next demo finds the remaining namespaces through it.
            Some(scratch) if failures.len() > before => scratch.keep(),
            Some(scratch) => failures.extend(scratch.remove().err()),
            None => {}
        }
        let mut failures = failures.into_iter();
        let first = failures.next();
        match first {
            None => Ok(()),
            Some(first) => Err(failures.fold(first, |all, failure| all.also(Some(failure)))),
        }
    }
}
