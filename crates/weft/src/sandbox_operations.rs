//! Operations on one sandbox: the meta-plugin's ADD, CHECK and DEL.
//!
//! An ADD is one call for all networks. The journal records each attachment when it is complete, so this
//! module polls the journal and prints the attachments one by one.

use std::thread;
use std::time::Duration;

use cni::object::Object;
use cni::{Error, Verb, Version};
use rpc::journal::{Entry, State};

use crate::attachments::{self, AttachmentRow};
use crate::meta_plugin_config::MetaPlugin;
use cli_support::failure::Failure;
use cli_support::output::Progress;
use cli_support::terminal::plain;
use node_support::journal_reader::Journal;
use node_support::weft_cni::{Subject, WeftCni};

/// Interval between two reads from the journal during an ADD.
const PAUSE: Duration = Duration::from_millis(2);

/// One sandbox, and everything that is needed to call the meta-plugin for it.
#[derive(Clone, Debug)]
pub(crate) struct SandboxOperations {
    /// Program that runs the meta-plugin.
    pub(crate) weft_cni: WeftCni,
    /// Meta-plugin to call.
    pub(crate) meta_plugin: MetaPlugin,
    /// CNI parameters for the sandbox.
    pub(crate) subject: Subject,
    /// Journal to which the meta-plugin writes.
    pub(crate) journal: Journal,
    /// Output for progress messages.
    pub(crate) progress: Progress,
}

impl SandboxOperations {
    /// Returns the operations on the sandbox in a journal entry, with the same parameters as the ADD.
    pub(crate) fn for_entry(
        weft_cni: WeftCni,
        meta_plugin: MetaPlugin,
        entry: &Entry,
        journal: Journal,
        progress: Progress,
    ) -> SandboxOperations {
        let Entry { container_id, netns, ifname, args, path, .. } = entry;
        let subject = Subject {
            container: container_id.clone(),
            netns: netns.clone(),
            ifname: ifname.clone(),
            args: args.clone(),
            path: path.clone(),
        };
        SandboxOperations { weft_cni, meta_plugin, subject, journal, progress }
    }

    /// Attaches every network and returns the journal entry.
    ///
    /// # Errors
    /// Error of the meta-plugin. It has then undone all changes, or the journal still has an entry.
    pub(crate) fn attach(&self) -> Result<Entry, Failure> {
        let mut printed = 0;
        let outcome = thread::scope(|scope| {
            let Ok(call) = thread::Builder::new().spawn_scoped(scope, || self.call(Verb::Add)) else {
                // If no thread can be started, the attachments are printed at the end.
                return self.call(Verb::Add);
            };
            while !call.is_finished() {
                printed = self.print_attached(printed);
                thread::sleep(PAUSE);
            }
            call.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        if let Err(error) = outcome {
            return Err(self.with_next_step(error));
        }
        self.print_attached(printed);
        let entry = self.journal.entry(&self.subject.container)?;
        entry.ok_or_else(|| Failure::new("the sandbox was attached, but its journal has no entry"))
    }

    /// Prints the attachments that were completed after the first `printed` ones, and returns how many there
    /// are in all.
    fn print_attached(&self, printed: usize) -> usize {
        let Ok(Some(entry)) = self.journal.entry(&self.subject.container) else { return printed };
        let rows = attachments::rows(&entry);
        let done = rows.iter().take_while(|row| row.state == State::Attached).count();
        for AttachmentRow { network, interface, addresses, chain, milliseconds, .. } in
            rows.iter().take(done).skip(printed)
        {
            let addresses = if addresses.is_empty() { "no address".to_owned() } else { addresses.join(", ") };
            let line = format!("{interface} on {network} by {chain}: {addresses}, in {milliseconds} ms");
            self.progress.line(format!("  attached {}", plain(&line)));
        }
        done.max(printed)
    }

    fn with_next_step(&self, error: Error) -> Failure {
        let remaining = self.journal.entry(&self.subject.container).is_ok_and(|entry| entry.is_some());
        let next = match remaining {
            true => "some changes could not be undone; run weft detach to try again",
            false => "all changes were undone",
        };
        Failure::from(error).next(next)
    }

    /// Runs CHECK for every attachment whose network has it.
    ///
    /// Only each network's version decides. The meta-plugin is called in the latest version, because the meta-plugin
    /// configuration can have a version without CHECK.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let mut object = self.meta_plugin.object.clone();
        object.banish("cniVersion");
        object.set("cniVersion", Version::LATEST.as_str())?;
        Ok(self.call_with(&object, Verb::Check)?)
    }

    /// Detaches every network of `entry`, the last one first, and prints each detached network.
    pub(crate) fn detach(&self, entry: &Entry) -> Result<(), Failure> {
        let outcome = self.call(Verb::Del);
        let remaining = match &outcome {
            Ok(()) => None,
            Err(_) => self.journal.entry(&self.subject.container).ok().flatten(),
        };
        for (index, delegate) in entry.plan.delegates.iter().enumerate().rev() {
            let was_attached =
                entry.attachments.get(index).is_none_or(|before| before.state != State::Detached);
            let state =
                remaining.as_ref().and_then(|entry| entry.attachments.get(index)).map(|after| after.state);
            if was_attached && (outcome.is_ok() || state == Some(State::Detached)) {
                let line = format!("{} from {}", delegate.ifname, delegate.network);
                self.progress.line(format!("  detached {}", plain(&line)));
            }
        }
        outcome.map_err(|error| {
            Failure::from(error)
                .next(
                    "the journal has the remaining attachments; run weft detach to try again, or with --forget NETWORK to \
                     give up a network whose plugin always fails",
                )
        })
    }

    fn call(&self, verb: Verb) -> Result<(), Error> {
        self.call_with(&self.meta_plugin.object, verb)
    }

    fn call_with(&self, object: &Object, verb: Verb) -> Result<(), Error> {
        self.weft_cni.call(self.meta_plugin.name(), &object.to_json(), verb, &self.subject)
    }
}
