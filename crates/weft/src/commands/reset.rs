//! `weft reset`: removes what trials left on this machine: attachments and namespaces of `weft attach`, and directories
//! that killed commands left. A container runtime's sandboxes stay.
//!
//! ```text
//!   journal ──► sandboxes of attach ──► DEL, then their namespaces ─┐
//!   /run/netns/weft-* without a sandbox ──► deleted ────────────────┼─► nothing of a trial remains
//!   /run/weft-demo-*, /run/weft-attach-* ──► removed ───────────────┘
//! ```
//!
//! - It shows the plan, and changes something only with `--yes`. A failure does not stop the other removals.
//! - A sandbox was made by `attach` if `attach` created the namespace, or if the container ID is the pod's name.
//!   Container runtimes use hexadecimal IDs; a pod's name contains `_` there.
//! - A namespace stays if a sandbox uses it, if a process runs in it, or if it contains anything that the kernel does
//!   not create. This is verified again under the lock that a running `attach` holds.

use std::fs;

use clap::Args;
use rpc::journal::Entry;
use serde::Serialize;

use crate::commands::demo;
use crate::commands::detach::detach_sandbox;
use crate::known_journals::JournalHandle;
use crate::leftover_namespaces::{self, NAMESPACE, UsedNamespaces};
use crate::manifest_plan::Inputs;
use crate::place::require_host;
use crate::pod_name::{NAMESPACES, PodName};
use crate::scratch::Scratch;
use crate::trial_sandbox::{is_created, lock_sandbox};
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output::{self, Format, Output, Progress, counted};
use cli_support::table;
use cli_support::terminal::plain;
use node_support::journal_reader::Row;
use node_support::weft_cni::{Plugins, WeftCni};

/// Prefixes for directories that `weft attach` makes; the second one before it is complete.
const SCRATCH: [&str; 2] = ["weft-attach-", ".weft-attach-"];
/// Bridge for the built-in default network, which no DEL removes.
const BRIDGE: &str = "weft0";

/// Arguments of `weft reset`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft reset
  weft reset --yes

Without --yes, it only shows what it would remove. Sandboxes of a container runtime are never touched.

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    /// Remove what the plan shows (default: only show it)
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    inputs: Inputs,
    #[command(flatten)]
    plugins: Plugins,
    #[command(flatten)]
    output: Output,
}

/// Object that is removed, as printed and as in the document for `-o json`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Leftover {
    kind: Kind,
    name: String,
    details: String,
    state: RemovalState,
    /// Why it could not be removed.
    #[serde(skip_serializing_if = "String::is_empty")]
    error: String,
    #[serde(skip)]
    sandbox: Option<(JournalHandle, Box<Entry>)>,
}

/// Kind of leftover.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum Kind {
    Sandbox,
    Namespace,
    Demo,
    Directory,
}

/// Outcome of the removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
enum RemovalState {
    Planned,
    Removed,
    Failed,
}

/// Leftovers, and reasons why further objects are kept.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Reset {
    leftovers: Vec<Leftover>,
    /// Reasons why further objects stay.
    kept: Vec<String>,
}

/// Runs `weft reset`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { yes, inputs, plugins, output: Output { format } } = arguments;
    require_host("reset", "it removes network interfaces and namespaces")?;
    let weft_cni = WeftCni::find()?;
    let journals = JournalHandle::all(inputs)?.every()?;
    let mut reset = Reset::find(&journals, &weft_cni)?;
    let progress = Progress::beside(*format);
    if !format.is_document() {
        output::print(&reset.plan())?;
    }
    if *yes {
        reset.remove(&weft_cni, &journals, plugins, progress);
    }
    reset.print_end(*format, *yes)
}

// === impl Reset ===

impl Reset {
    /// Returns the leftovers on this machine.
    fn find(journals: &[JournalHandle], weft_cni: &WeftCni) -> Result<Reset, Failure> {
        let mut reset = Reset::default();
        let (mut used, mut of_runtime) = (UsedNamespaces::default(), 0);
        for handle in journals {
            for row in handle.journal().rows()? {
                used.insert(&row);
                match row {
                    Row::Entry(entry) if is_trial(&entry) => {
                        reset.leftovers.push(Leftover::of_sandbox(handle.clone(), entry));
                    }
                    Row::Entry(_) => of_runtime += 1,
                    Row::Broken { container, error } => {
                        reset.kept.push(format!("journal entry {container}: unreadable: {error}"));
                    }
                }
            }
        }
        if of_runtime > 0 {
            reset
                .kept
                .push(format!("{} of a container runtime", counted(of_runtime, "sandbox", "sandboxes")));
        }
        reset.find_namespaces(&used, weft_cni);
        reset.leftovers.extend(
            demo::abandoned_runs()
                .into_iter()
                .map(|name| Leftover::new(Kind::Demo, name, "killed demonstration".to_owned())),
        );
        for name in SCRATCH.into_iter().flat_map(Scratch::abandoned_names) {
            reset.leftovers.push(Leftover::new(Kind::Directory, name, "killed weft attach".to_owned()));
        }
        let ports = fs::read_dir(format!("/sys/class/net/{BRIDGE}/brif"));
        if ports.is_ok_and(|mut ports| ports.next().is_none()) {
            reset.kept.push(format!("bridge {BRIDGE}, without ports: sudo ip link delete {BRIDGE}"));
        }
        Ok(reset)
    }

    /// Adds the namespaces that killed attaches left: weft's, if nothing uses them.
    fn find_namespaces(&mut self, used: &UsedNamespaces, weft_cni: &WeftCni) {
        let entries = fs::read_dir(NAMESPACES).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        for name in names.iter().filter(|name| name.starts_with(NAMESPACE)) {
            let path = format!("{NAMESPACES}/{name}");
            // Those of a demonstration belong to its directory.
            if used.contains(&path) || demo::has_directory(name) {
                continue;
            }
            let reason = match leftover_namespaces::is_of_attach(name) {
                true => leftover_namespaces::reason_to_keep(weft_cni, &path),
                false => Some(leftover_namespaces::of_unknown_name(name)),
            };
            match reason {
                Some(reason) => self.kept.push(format!("namespace {path}: {reason}")),
                None => {
                    let details = "killed weft attach".to_owned();
                    self.leftovers.push(Leftover::new(Kind::Namespace, path, details));
                }
            }
        }
    }

    /// Removes the leftovers. A failure does not stop the other removals.
    fn remove(
        &mut self,
        weft_cni: &WeftCni,
        journals: &[JournalHandle],
        plugins: &Plugins,
        progress: Progress,
    ) {
        for mut leftover in std::mem::take(&mut self.leftovers) {
            match leftover.remove(weft_cni, journals, plugins, progress) {
                Ok(None) => leftover.state = RemovalState::Removed,
                Ok(Some(reason)) => {
                    let line = format!("namespace {}: {reason}", leftover.name);
                    progress.line(plain(&format!("kept: {line}")));
                    self.kept.push(line);
                    continue;
                }
                Err(failure) => {
                    progress.line(plain(&format!("  {}: {failure}", leftover.name)));
                    leftover.state = RemovalState::Failed;
                    leftover.error = failure.to_string();
                }
            }
            self.leftovers.push(leftover);
        }
    }

    /// Returns the plan as text.
    fn plan(&self) -> String {
        let Reset { leftovers, kept } = self;
        let rows: Vec<Vec<String>> = leftovers.iter().map(Leftover::cells).collect();
        let mut text = match rows.is_empty() {
            true => "no trial left anything\n".to_owned(),
            false => table::lay_out(&["kind", "name", "details"], &rows, 0),
        };
        for line in kept {
            text.push_str(&plain(&format!("kept: {line}")));
            text.push('\n');
        }
        text
    }

    /// Prints the end, or the document.
    fn print_end(&self, format: Format, is_confirmed: bool) -> Result<(), Failure> {
        let failed = self.leftovers.iter().filter(|one| one.state == RemovalState::Failed).count();
        if format.is_document() {
            output::print_document(format, self)?;
        } else if !self.leftovers.is_empty() {
            let removed = self.leftovers.len() - failed;
            output::print(&match is_confirmed {
                true => format!("removed {removed} of {}\n", self.leftovers.len()),
                false => "nothing was changed; weft reset --yes removes them\n".to_owned(),
            })?;
        }
        match failed {
            0 => Ok(()),
            count => Err(Failure::quiet(format!("{count} were not removed"))),
        }
    }
}

// === impl Leftover ===

impl Leftover {
    fn new(kind: Kind, name: String, details: String) -> Leftover {
        let (state, error) = (RemovalState::Planned, String::new());
        Leftover { kind, name, details, state, error, sandbox: None }
    }

    fn of_sandbox(handle: JournalHandle, entry: Box<Entry>) -> Leftover {
        let pod = format!("{}/{}", entry.plan.pod.namespace, entry.plan.pod.name);
        let links: Vec<&str> = entry.plan.delegates.iter().map(|delegate| delegate.ifname.as_str()).collect();
        let details = format!("pod {pod}: {} in {}", links.join(","), entry.netns);
        let name = entry.container_id.to_string();
        Leftover { sandbox: Some((handle, entry)), ..Leftover::new(Kind::Sandbox, name, details) }
    }

    fn cells(&self) -> Vec<String> {
        let kind = match self.kind {
            Kind::Sandbox => "sandbox",
            Kind::Namespace => "namespace",
            Kind::Demo => "demo",
            Kind::Directory => "directory",
        };
        vec![kind.to_owned(), self.name.clone(), self.details.clone()]
    }

    /// Removes it. It is no error if it is already gone. Returns why a namespace is kept: it is used now.
    fn remove(
        &self,
        weft_cni: &WeftCni,
        journals: &[JournalHandle],
        plugins: &Plugins,
        progress: Progress,
    ) -> Result<Option<String>, Failure> {
        match (self.kind, &self.sandbox) {
            (Kind::Sandbox, Some((handle, entry))) => {
                let _lock = lock_sandbox(&entry.container_id)?;
                detach_sandbox(weft_cni, handle, entry, plugins, progress)?;
            }
            (Kind::Sandbox, None) => {}
            (Kind::Namespace, _) => {
                let container =
                    leftover_namespaces::container_of(self.name.rsplit('/').next().unwrap_or_default());
                // A running attach has the lock. One that has ended meanwhile is in the journal.
                let _lock = container.as_ref().map(lock_sandbox).transpose()?;
                if let Some(reason) = leftover_namespaces::reason_to_keep_now(weft_cni, journals, &self.name)?
                {
                    return Ok(Some(reason));
                }
                weft_cni.delete(&self.name)?;
            }
            (Kind::Demo, _) => demo::remove_abandoned_run(weft_cni, &self.name, progress)?,
            (Kind::Directory, _) => Scratch::abandoned(&self.name).iter().try_for_each(Scratch::remove)?,
        }
        Ok(None)
    }
}

/// Whether `weft attach` made the sandbox in an entry.
fn is_trial(entry: &Entry) -> bool {
    let pod = PodName::new(&entry.plan.pod.namespace, &entry.plan.pod.name);
    let id = pod.ok().and_then(|pod| pod.container_id().ok());
    is_created(entry) || id.as_ref() == Some(&entry.container_id)
}
