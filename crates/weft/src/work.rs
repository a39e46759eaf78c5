//! Work on one sandbox: the meta-plugin is called, and its journal tells how far it is.
//!
//! Attaching is one call for all networks; each that is done shows in the journal at once, and so on the terminal.

use std::thread;
use std::time::Duration;

use cni::{Error, Verb};
use rpc::journal::{Entry, State};

use crate::attachments::{self, Row};
use crate::meta_plugin_config::MetaPlugin;
use cli_support::failure::Failure;
use cli_support::output::Progress;
use cli_support::terminal::plain;
use node_support::journal_reader::Journal;
use node_support::weft_cni::{Subject, WeftCni};

/// How often the journal is looked at.
const PAUSE: Duration = Duration::from_millis(2);

/// One sandbox, and all that is needed to work on it.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    /// Who does it.
    pub(crate) weft_cni: WeftCni,
    /// What the meta-plugin is told about the node.
    pub(crate) meta_plugin: MetaPlugin,
    /// What it is told about the sandbox.
    pub(crate) subject: Subject,
    /// Where it writes what it did.
    pub(crate) journal: Journal,
    /// Where people are told.
    pub(crate) progress: Progress,
}

impl Work {
    /// On the sandbox of an entry, as it was attached.
    pub(crate) fn of_entry(
        weft_cni: WeftCni,
        meta_plugin: MetaPlugin,
        entry: &Entry,
        journal: Journal,
        progress: Progress,
    ) -> Work {
        let Entry { container_id, netns, ifname, args, path, .. } = entry;
        let subject = Subject {
            container: container_id.clone(),
            netns: netns.clone(),
            ifname: ifname.clone(),
            args: args.clone(),
            path: path.clone(),
        };
        Work { weft_cni, meta_plugin, subject, journal, progress }
    }

    /// Attaches every network; what it came to is in the entry.
    ///
    /// # Errors
    /// The meta-plugin's. It has undone what it did then, or its journal still has an entry.
    pub(crate) fn attach(&self) -> Result<Entry, Failure> {
        let mut told = 0;
        let outcome = thread::scope(|scope| {
            let Ok(call) = thread::Builder::new().spawn_scoped(scope, || self.call(Verb::Add)) else {
                // Where the kernel gives no thread, all is told in the end.
                return self.call(Verb::Add);
            };
            while !call.is_finished() {
                told = self.tell(told);
                thread::sleep(PAUSE);
            }
            call.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        if let Err(error) = outcome {
            return Err(self.explained(error));
        }
        self.tell(told);
        let entry = self.journal.entry(&self.subject.container)?;
        entry.ok_or_else(|| Failure::new("the sandbox was attached, but its journal has no entry of it"))
    }

    /// Says which attachments were done since `told` of them were, and returns how many are now.
    fn tell(&self, told: usize) -> usize {
        let Ok(Some(entry)) = self.journal.entry(&self.subject.container) else { return told };
        let rows = attachments::rows(&entry);
        let done = rows.iter().take_while(|row| row.state == State::Attached).count();
        for Row { network, interface, addresses, chain, milliseconds, .. } in
            rows.iter().take(done).skip(told)
        {
            let addresses = if addresses.is_empty() { "no address".to_owned() } else { addresses.join(", ") };
            let line = format!("{interface} on {network} by {chain}: {addresses}, in {milliseconds} ms");
            self.progress.line(format!("  attached {}", plain(&line)));
        }
        done.max(told)
    }

    fn explained(&self, error: Error) -> Failure {
        let left = self.journal.entry(&self.subject.container).is_ok_and(|entry| entry.is_some());
        let next = match left {
            true => "not all of it could be undone: weft detach tries again",
            false => "whatever had been attached is detached again",
        };
        Failure::from(error).next(next)
    }

    /// Are the attachments of the entry as they were made?
    pub(crate) fn check(&self) -> Result<(), Failure> {
        Ok(self.call(Verb::Check)?)
    }

    /// Detaches every network of `entry`, the last first.
    pub(crate) fn detach(&self, entry: &Entry) -> Result<(), Failure> {
        let outcome = self.call(Verb::Del);
        let left = match &outcome {
            Ok(()) => None,
            Err(_) => self.journal.entry(&self.subject.container).ok().flatten(),
        };
        for (index, delegate) in entry.plan.delegates.iter().enumerate().rev() {
            let was = entry.attachments.get(index).is_none_or(|before| before.state != State::Detached);
            let is = left.as_ref().and_then(|left| left.attachments.get(index)).map(|after| after.state);
            if was && (outcome.is_ok() || is == Some(State::Detached)) {
                let line = format!("{} from {}", delegate.ifname, delegate.network);
                self.progress.line(format!("  detached {}", plain(&line)));
            }
        }
        outcome.map_err(|error| {
            Failure::from(error).next("what is left is in the journal: weft detach tries again")
        })
    }

    fn call(&self, verb: Verb) -> Result<(), Error> {
        let MetaPlugin { object, .. } = &self.meta_plugin;
        self.weft_cni.call(self.meta_plugin.name(), &object.to_json(), verb, &self.subject)
    }
}
