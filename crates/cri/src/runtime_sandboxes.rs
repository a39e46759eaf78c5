//! Tracks which sandboxes the container runtime lists. A journal entry that the runtime does not list never gets a DEL.
//!
//! This happens, for example, when a runtime loses all state and the pods continue in new sandboxes. weft reads the
//! list only if an option asks for it, because access to a runtime socket means access to the whole node.
//!
//! - While the runtime does not answer, every sandbox is treated as present.
//! - A sandbox that is missing from a list was absent when that list was started; it may have been created since,
//!   because a runtime lists a sandbox only after creating it.
//!
//! Source: CRI `runtime.v1`, ListPodSandbox.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prost::{DecodeError, Message};
use thiserror::Error;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tracing::{info, warn};

use crate::unix_service::{self, CallError};
use crate::wire;

/// Minimum interval between two lists.
const LIST_MIN: Duration = Duration::from_secs(1);
/// Maximum interval between two lists.
const LIST_MAX: Duration = Duration::from_secs(30);
/// Timeout for one list.
const TIMEOUT: Duration = Duration::from_secs(10);
const LIST: &str = "/runtime.v1.RuntimeService/ListPodSandbox";

#[derive(Clone, PartialEq, Message)]
struct ListRequest {}

/// Number of the `items` field in ListPodSandboxResponse.
const ITEMS: u32 = 1;
/// Maximum number of sandboxes in a list; real nodes have a few hundred.
const SANDBOXES_MAX: usize = 1 << 16;

#[derive(Clone, PartialEq, Message)]
struct PodSandbox {
    #[prost(string, tag = "1")]
    id: String,
}

/// Most recent sandbox list from the runtime.
#[derive(Debug, Default)]
pub struct RuntimeSandboxes(Mutex<Lists>);

#[derive(Debug, Default)]
struct Lists {
    /// When the last successful list was started; `None` if the latest attempt failed.
    at: Option<Instant>,
    listed: BTreeSet<String>,
    /// Sandboxes that an earlier list contained and the current one does not.
    missed: BTreeSet<String>,
}

/// Whether the runtime knows a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The runtime lists it, or does not answer.
    Present,
    /// The list started at this time does not contain it, nor does any earlier one.
    NeverSeen(Instant),
    /// An earlier list contained it, but the one started at this time does not.
    Missed(Instant),
}

// === impl RuntimeSandboxes ===

impl RuntimeSandboxes {
    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the runtime lists a container's sandbox.
    pub fn presence(&self, container: &str) -> Presence {
        let lists = self.lists();
        match lists.at {
            None => Presence::Present,
            Some(_) if lists.listed.contains(container) => Presence::Present,
            Some(at) if lists.missed.contains(container) => Presence::Missed(at),
            Some(at) => Presence::NeverSeen(at),
        }
    }

    /// Records the list that was started `at`; `None` if the runtime did not answer.
    pub(crate) fn record(&self, at: Instant, listed: Option<BTreeSet<String>>) {
        let mut lists = self.lists();
        let Some(listed) = listed else {
            lists.at = None;
            return;
        };
        let before = std::mem::replace(&mut lists.listed, listed);
        let missed: BTreeSet<String> = before.difference(&lists.listed).cloned().collect();
        lists.missed.extend(missed);
        lists.at = Some(at);
    }

    /// Forgets missed sandboxes that no journal entry refers to any more.
    pub fn retain(&self, wanted: impl Fn(&str) -> bool) {
        self.lists().missed.retain(|container| wanted(container));
    }
}

/// Lists the sandboxes periodically, at least four times within `grace`; never returns.
pub async fn follow(socket: PathBuf, grace: Duration, into: Arc<RuntimeSandboxes>) {
    let mut ticks = interval((grace / 4).clamp(LIST_MIN, LIST_MAX));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failing = false;
    loop {
        ticks.tick().await;
        let at = Instant::now();
        let listed = list(&socket).await;
        match (&listed, failing) {
            (Err(error), false) => {
                warn!(socket = %socket.display(), %error, "failed to list the sandboxes that the runtime has");
            }
            (Ok(_), true) => info!(socket = %socket.display(), "runtime lists its sandboxes again"),
            _ => {}
        }
        failing = listed.is_err();
        into.record(at, listed.ok());
    }
}

/// Error while listing the sandboxes.
#[derive(Debug, Error)]
enum ListError {
    /// The runtime did not answer in time.
    #[error("no response within {} s", TIMEOUT.as_secs())]
    Late,
    /// The runtime cannot be reached, or it rejects the request.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The response is not a protobuf message.
    #[error("malformed response")]
    Malformed,
    /// A sandbox in the response cannot be decoded.
    #[error("{0}")]
    Sandbox(DecodeError),
    /// The response has more sandboxes than any node can run.
    #[error("more than {SANDBOXES_MAX} sandboxes")]
    TooMany,
}

async fn list(socket: &Path) -> Result<BTreeSet<String>, ListError> {
    let response = timeout(TIMEOUT, unix_service::call(socket, LIST, &ListRequest {})).await;
    let response = response.map_err(|_| ListError::Late)??;
    ids(&response)
}

/// Extracts the sandbox ids from a response.
fn ids(response: &[u8]) -> Result<BTreeSet<String>, ListError> {
    let mut listed = BTreeSet::new();
    for record in wire::records(response) {
        let record = record.map_err(|_| ListError::Malformed)?;
        let Some(item) = record.content.filter(|_| record.number == ITEMS) else { continue };
        listed.insert(PodSandbox::decode(item).map_err(ListError::Sandbox)?.id);
        if listed.len() > SANDBOXES_MAX {
            return Err(ListError::TooMany);
        }
    }
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(names: &[&str]) -> Option<BTreeSet<String>> {
        Some(names.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn runtime_sandbox_list_is_decoded_and_bounded() {
        let mut response = Vec::new();
        for id in ["a", "b"] {
            let mut item = PodSandbox { id: id.to_owned() }.encode_to_vec();
            wire::push(&mut item, 7, &wire::entry("a", "label"));
            wire::push(&mut response, ITEMS, &item);
        }
        assert_eq!(ids(&response).unwrap(), BTreeSet::from(["a".to_owned(), "b".to_owned()]));
        assert!(matches!(ids(b"\x0a\x09"), Err(ListError::Malformed)));
        for number in 0..=SANDBOXES_MAX {
            wire::push(&mut response, ITEMS, &PodSandbox { id: number.to_string() }.encode_to_vec());
        }
        assert!(ids(&response).unwrap_err().to_string().contains("more than 65536"));
    }

    #[test]
    fn runtime_sandboxes_are_all_present_while_the_runtime_is_away() {
        let sandboxes = RuntimeSandboxes::default();
        assert_eq!(sandboxes.presence("a"), Presence::Present);
        let at = Instant::now();
        sandboxes.record(at, listed(&["a"]));
        assert_eq!(
            (sandboxes.presence("a"), sandboxes.presence("b")),
            (Presence::Present, Presence::NeverSeen(at))
        );
        sandboxes.record(at, None);
        assert_eq!(
            (sandboxes.presence("a"), sandboxes.presence("b")),
            (Presence::Present, Presence::Present)
        );
        // Sandboxes listed before the outage count as missed.
        let later = at + Duration::from_secs(1);
        sandboxes.record(later, listed(&["b"]));
        assert_eq!(
            (sandboxes.presence("a"), sandboxes.presence("b")),
            (Presence::Missed(later), Presence::Present)
        );
        sandboxes.retain(|_| false);
        assert_eq!(sandboxes.presence("a"), Presence::NeverSeen(later));
    }
}
