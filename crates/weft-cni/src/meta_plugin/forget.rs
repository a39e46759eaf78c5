//! `weft-cni forget-attachment`: gives up attachments whose DEL fails, so that the sandbox can be deleted.
//!
//! The network's addresses and interfaces may remain: the operator decides that. The error that was given up
//! is in the history.

use std::path::Path;

use cni::name::ContainerId;
use cni::{Error, code};
use plugin_support::log;
use rpc::journal::State;

use super::enforcement;
use super::history::CallRecorder;
use super::journal::Journal;
use super::lock::Lock;

/// Command name.
pub const COMMAND: &str = "forget-attachment";

/// Marks a sandbox's attachments to `network` whose last DEL failed as detached. `directory` is the
/// journal's.
///
/// # Errors
/// The sandbox has no such attachment.
pub fn forget(directory: &Path, container: &str, network: &str) -> Result<(), Error> {
    let container = ContainerId::new(container)?;
    let journal = Journal::open(directory)?;
    let lock = Lock::acquire(journal.directory(), &container)?;
    let Some(mut entry) = journal.read(&container)? else {
        lock.retire();
        return Err(Error::new(code::UNKNOWN_CONTAINER, format!("sandbox {container} is not attached")));
    };
    let mut recorder = CallRecorder::begin("forget", entry.plan.pod.clone());
    recorder.journal(&journal);
    recorder.sandbox(&container, &entry.ifname);
    recorder.stage("forget");
    let delegates = entry.plan.delegates.clone();
    let mut given_up = Vec::new();
    for (index, delegate) in delegates.iter().enumerate() {
        let attachment = &mut entry.attachments[index];
        let is_named = [delegate.network.as_str(), delegate.config_name.as_str()].contains(&network);
        if !is_named || attachment.state == State::Detached {
            continue;
        }
        let Some(failure) = attachment.failure.clone() else { continue };
        attachment.state = State::Detached;
        given_up.push(failure.context(format_args!("gave up {} ({})", delegate.ifname, delegate.network)));
        if let Err(error) = enforcement::remove(&entry, index, delegate) {
            log!("weft: {container}: {error}");
        }
    }
    let Some(error) = Error::join(given_up) else {
        let why = format!("sandbox {container} has no attachment to {network} whose DEL failed");
        return Err(Error::config(why).details("detach the sandbox first"));
    };
    let is_over = entry.attachments.iter().all(|attachment| attachment.state == State::Detached);
    if is_over {
        journal.remove(&container)?;
    } else {
        journal.update(&entry)?;
    }
    recorder.networks(&delegates);
    recorder.finish(Some(&error), || directory.to_owned());
    if is_over {
        lock.retire();
    }
    Ok(())
}
