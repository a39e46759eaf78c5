//! The pretend host and the pods on it: made, used, removed.
//!
//! | what | name |
//! |---|---|
//! | pretend host | `/run/netns/weft-demo-TAG-host` |
//! | sandboxes | `/run/netns/weft-demo-TAG-pod1`, `…-pod2` |
//! | journal, manifests, addresses | `/run/weft-demo-TAG/` |
//!
//! Rules: what is about to be made is noted first, so that a failure half-way is cleared away too; removal goes on
//! after failures and returns them all.

use std::path::Path;

use cni::name::{ContainerId, IfName};
use rpc::journal::{self, Entry};

use super::snapshot;
use super::tag::{PREFIX, Tag};
use crate::manifest_plan::{IFNAME, Material};
use crate::meta_plugin_config::MetaPlugin;
use crate::pod_name::{NAMESPACES, PodName};
use crate::scratch::Scratch;
use crate::work::Work;
use cli_support::failure::Failure;
use cli_support::output::Progress;
use node_support::journal_reader::{Journal, Row};
use node_support::weft_cni::{Contents, Subject, WeftCni};

/// The journal's directory, in that of the run.
const JOURNAL: &str = "journal";
/// The directory in the example that a run puts its own in the place of.
const EXAMPLE_DIRECTORY: &str = "/run/weft-example";
/// Time for one plugin: somebody is waiting at a terminal.
const DELEGATE_SECONDS: u32 = 10;

/// A pod and its sandbox.
#[derive(Debug)]
pub(super) struct Actor {
    /// The pod.
    pub(super) pod: PodName,
    /// Where its namespace is mounted.
    pub(super) netns: String,
    /// What was attached.
    pub(super) entry: Entry,
    work: Work,
}

/// All that a run has made.
#[derive(Debug)]
pub(super) struct Stage {
    tag: Tag,
    weft_cni: WeftCni,
    path: String,
    progress: Progress,
    scratch: Option<Scratch>,
    /// Namespaces made, or about to be, the pretend host first.
    namespaces: Vec<String>,
    /// Sandboxes that may have something attached.
    begun: Vec<Work>,
    actors: Vec<Actor>,
}

// === impl Stage ===

impl Stage {
    /// Nothing is made yet.
    pub(super) fn new(tag: Tag, weft_cni: WeftCni, path: Option<&str>, progress: Progress) -> Stage {
        let path = path.map_or_else(|| weft_cni.plugin_path(), str::to_owned);
        Stage {
            tag,
            weft_cni,
            path,
            progress,
            scratch: None,
            namespaces: Vec::new(),
            begun: Vec::new(),
            actors: Vec::new(),
        }
    }

    /// What works on the machine, not on the pretend host.
    pub(super) fn weft_cni(&self) -> &WeftCni {
        &self.weft_cni
    }

    /// What tells this run from others.
    pub(super) fn tag(&self) -> &Tag {
        &self.tag
    }

    /// Where people are told.
    pub(super) fn progress(&self) -> Progress {
        self.progress
    }

    /// Who is attached.
    pub(super) fn actors(&self) -> &[Actor] {
        &self.actors
    }

    /// Removes what runs have left that were killed: by their journals first, then whatever bears their names.
    pub(super) fn clear(&self) -> Result<(), Failure> {
        for left in Scratch::abandoned(PREFIX) {
            self.progress.line(format!("removing what an earlier run, {}, has left", left.name()));
            if let Err(failure) = self.clear_one(&left) {
                left.keep();
                return Err(failure);
            }
            left.remove()?;
        }
        Ok(())
    }

    fn clear_one(&self, left: &Scratch) -> Result<(), Failure> {
        self.detach_abandoned(left)?;
        let own = format!("{}-", left.name());
        for path in snapshot::entries(Path::new(NAMESPACES))? {
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&own)) {
                self.weft_cni.delete(&path.display().to_string())?;
            }
        }
        Ok(())
    }

    fn detach_abandoned(&self, left: &Scratch) -> Result<(), Failure> {
        let directory = left.path().join(JOURNAL);
        let journal = Journal::at(&directory.join(journal::ENTRIES));
        for row in journal.rows()? {
            // Of one that cannot be read the interfaces go with the namespaces.
            let Row::Entry(entry) = row else { continue };
            let meta_plugin = MetaPlugin::of_journal(&entry.network)?
                .with("cniDir", &directory)?
                .with("builtin", "always")?;
            let weft_cni = self.weft_cni.inside(&format!("{NAMESPACES}/{}-host", left.name()));
            let work = Work::of_entry(weft_cni, meta_plugin, &entry, journal.clone(), self.progress);
            // What refuses goes with the namespaces, too.
            if let Err(failure) = work.detach(&entry) {
                self.progress.line(format!("  {failure}"));
            }
        }
        Ok(())
    }

    /// Makes the pretend host and the directory of this run.
    pub(super) fn set(&mut self) -> Result<(), Failure> {
        self.scratch = Some(Scratch::new(&self.tag.prefix(), "another demo has the same names")?);
        self.create(&self.tag.host())
    }

    fn create(&mut self, path: &str) -> Result<(), Failure> {
        self.namespaces.push(path.to_owned());
        self.weft_cni.create(path)
    }

    /// What is in the pretend host.
    pub(super) fn host_contents(&self) -> Result<Contents, Failure> {
        self.weft_cni.contents(&self.tag.host())
    }

    /// Makes a sandbox for a pod and attaches its networks.
    pub(super) fn enter(&mut self, material: &Material, pod: &PodName) -> Result<(), Failure> {
        let number = self.actors.len() + 1;
        let netns = self.tag.namespace(&format!("pod{number}"));
        let plan = material.plan(pod)?;
        let count = plan.delegates.len();
        self.progress.line(format!("\npod {pod}: {count} networks, by {}", material.meta_plugin.file));
        self.create(&netns)?;
        let container = ContainerId::new(&format!("{}-pod{number}", self.tag.prefix()))?;
        let meta_plugin = self.meta_plugin(material, number)?;
        let PodName { namespace, name } = pod;
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_INFRA_CONTAINER_ID={container}"
        );
        let work = Work {
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
        self.begun.push(work.clone());
        let entry = work.attach()?;
        self.actors.push(Actor { pod: pod.clone(), netns, entry, work });
        Ok(())
    }

    /// The meta-plugin as the example configures it, with this run's directories and our own plugins.
    fn meta_plugin(&self, material: &Material, number: usize) -> Result<MetaPlugin, Failure> {
        let Some(scratch) = &self.scratch else { return Err(Failure::new("the stage is not set")) };
        let own = scratch.path().display().to_string();
        let texts: Vec<String> =
            material.manifests().map(|file| file.text.replace(EXAMPLE_DIRECTORY, &own)).collect();
        let manifests = scratch.manifests(&format!("manifests{number}"), texts.iter().map(String::as_str))?;
        let mut meta_plugin = material
            .meta_plugin
            .replaced(EXAMPLE_DIRECTORY, &own)?
            .with("cniDir", &scratch.path().join(JOURNAL))?
            .with("manifestDir", &manifests)?
            .with("delegateTimeout", &DELEGATE_SECONDS)?;
        if meta_plugin.object.get("builtin").is_none() {
            meta_plugin = meta_plugin.with("builtin", "always")?;
        }
        Ok(meta_plugin)
    }

    /// Asks the plugins whether all is as they made it.
    pub(super) fn check(&self) -> Result<(), Failure> {
        self.progress.line("");
        for Actor { pod, work, entry, .. } in &self.actors {
            work.check().map_err(|failure| failure.context(format_args!("check {pod}")))?;
            let count = entry.plan.delegates.len();
            self.progress.line(format!("checked {pod}: all {count} networks are as they were attached"));
        }
        Ok(())
    }

    /// Detaches the pods; their namespaces and the host stay.
    pub(super) fn leave(&mut self) -> Result<(), Failure> {
        while let Some(work) = self.begun.last() {
            self.detach(work)?;
            self.begun.pop();
        }
        Ok(())
    }

    fn detach(&self, work: &Work) -> Result<(), Failure> {
        let Some(entry) = work.journal.entry(&work.subject.container)? else { return Ok(()) };
        let pod = format!("{}/{}", entry.plan.pod.namespace, entry.plan.pod.name);
        self.progress.line(format!("\npod {pod}"));
        work.detach(&entry).map_err(|failure| failure.context(format_args!("detach {pod}")))
    }

    /// Removes all that was made; what is gone already is removed.
    pub(super) fn strike(&mut self) -> Result<(), Failure> {
        let mut failures = Vec::new();
        while let Some(work) = self.begun.pop() {
            failures.extend(self.detach(&work).err());
        }
        let before = failures.len();
        while let Some(path) = self.namespaces.pop() {
            // Of a namespace that could not be made there may be nothing.
            if Path::new(&path).try_exists().unwrap_or(true) {
                failures.extend(self.weft_cni.delete(&path).err());
            }
        }
        match self.scratch.take() {
            // The next demo finds by it what is left.
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
