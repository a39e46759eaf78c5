//! The sandboxes that the container runtime knows: what the journal has and the runtime has not, nobody will ever DEL.
//!
//! That happens where a runtime lost its state and its pods live on, in new sandboxes. It is asked by option: who can
//! open a runtime's socket can do everything on the node, whatever it asks.
//!
//! Rules: a runtime that does not answer knows everything; a sandbox is unknown only as of a look, never by itself, as
//! a runtime shows one that it is making when it is made.
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

/// How often it is looked, at most and at least.
const LOOK_MIN: Duration = Duration::from_secs(1);
const LOOK_MAX: Duration = Duration::from_secs(30);
/// How long the runtime may take.
const PATIENCE: Duration = Duration::from_secs(10);
const LIST: &str = "/runtime.v1.RuntimeService/ListPodSandbox";

#[derive(Clone, PartialEq, Message)]
struct ListRequest {}

/// Field `items` of a ListPodSandboxResponse.
const ITEMS: u32 = 1;
/// So many sandboxes a runtime has at most: nodes have some hundreds.
const SANDBOXES_MAX: usize = 1 << 16;

#[derive(Clone, PartialEq, Message)]
struct PodSandbox {
    #[prost(string, tag = "1")]
    id: String,
}

/// What the runtime said last.
#[derive(Debug, Default)]
pub struct RuntimeSandboxes(Mutex<Looks>);

#[derive(Debug, Default)]
struct Looks {
    /// When the last look began that had an answer.
    at: Option<Instant>,
    listed: BTreeSet<String>,
    /// Of those that are not listed now: were they ever?
    missed: BTreeSet<String>,
}

/// What is known of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// The runtime has it, or cannot be asked.
    Known,
    /// It had none of this name when it was asked then, and never before.
    NeverSeen(Instant),
    /// It had one, and had none any more when it was asked then.
    Missed(Instant),
}

// === impl RuntimeSandboxes ===

impl RuntimeSandboxes {
    fn looks(&self) -> MutexGuard<'_, Looks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Is this container known?
    pub fn sight(&self, container: &str) -> Sight {
        let looks = self.looks();
        match looks.at {
            None => Sight::Known,
            Some(_) if looks.listed.contains(container) => Sight::Known,
            Some(at) if looks.missed.contains(container) => Sight::Missed(at),
            Some(at) => Sight::NeverSeen(at),
        }
    }

    /// Takes in what a look that began `at` came to; nothing: the runtime did not answer.
    pub(crate) fn saw(&self, at: Instant, listed: Option<BTreeSet<String>>) {
        let mut looks = self.looks();
        let Some(listed) = listed else {
            looks.at = None;
            return;
        };
        let before = std::mem::replace(&mut looks.listed, listed);
        let missed: BTreeSet<String> = before.difference(&looks.listed).cloned().collect();
        looks.missed.extend(missed);
        looks.at = Some(at);
    }

    /// Forgets the sandboxes that nobody asks for any more.
    pub fn retain(&self, wanted: impl Fn(&str) -> bool) {
        self.looks().missed.retain(|container| wanted(container));
    }
}

/// Looks again and again, for ever; often enough for who waits `grace`.
pub async fn follow(socket: PathBuf, grace: Duration, into: Arc<RuntimeSandboxes>) {
    let mut ticks = interval((grace / 4).clamp(LOOK_MIN, LOOK_MAX));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failing = false;
    loop {
        ticks.tick().await;
        let at = Instant::now();
        let listed = look(&socket).await;
        match (&listed, failing) {
            (Err(why), false) => {
                warn!(socket = %socket.display(), why = why.to_string(), "the runtime cannot be asked for its sandboxes");
            }
            (Ok(_), true) => info!(socket = %socket.display(), "the runtime answers again"),
            _ => {}
        }
        failing = listed.is_err();
        into.saw(at, listed.ok());
    }
}

/// Failure of a look at the sandboxes of the runtime.
#[derive(Debug, Error)]
enum LookError {
    /// The runtime does not answer in time.
    #[error("no answer within {} s", PATIENCE.as_secs())]
    Late,
    /// The runtime cannot be reached, or refuses.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The answer is no message.
    #[error("its answer is no message")]
    Answer,
    /// A sandbox in the answer cannot be read.
    #[error("{0}")]
    Sandbox(DecodeError),
    /// The answer has more sandboxes than a node can have.
    #[error("it has more than {SANDBOXES_MAX} sandboxes")]
    TooMany,
}

async fn look(socket: &Path) -> Result<BTreeSet<String>, LookError> {
    let answer = timeout(PATIENCE, unix_service::call(socket, LIST, &ListRequest {})).await;
    let answer = answer.map_err(|_| LookError::Late)??;
    unfolded(&answer)
}

/// The names of the sandboxes in an answer.
fn unfolded(answer: &[u8]) -> Result<BTreeSet<String>, LookError> {
    let mut listed = BTreeSet::new();
    for record in wire::records(answer) {
        let record = record.map_err(|_| LookError::Answer)?;
        let Some(item) = record.content.filter(|_| record.number == ITEMS) else { continue };
        listed.insert(PodSandbox::decode(item).map_err(LookError::Sandbox)?.id);
        if listed.len() > SANDBOXES_MAX {
            return Err(LookError::TooMany);
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
    fn of_what_a_runtime_lists_the_names_are_unfolded_and_no_more_than_a_node_can_have() {
        let mut answer = Vec::new();
        for id in ["a", "b"] {
            let mut item = PodSandbox { id: id.to_owned() }.encode_to_vec();
            wire::push(&mut item, 7, &wire::entry("a", "label"));
            wire::push(&mut answer, ITEMS, &item);
        }
        assert_eq!(unfolded(&answer).unwrap(), BTreeSet::from(["a".to_owned(), "b".to_owned()]));
        assert!(matches!(unfolded(b"\x0a\x09"), Err(LookError::Answer)));
        for number in 0..=SANDBOXES_MAX {
            wire::push(&mut answer, ITEMS, &PodSandbox { id: number.to_string() }.encode_to_vec());
        }
        assert!(unfolded(&answer).unwrap_err().to_string().contains("more than 65536"));
    }

    #[test]
    fn a_runtime_that_does_not_answer_knows_everything() {
        let sandboxes = RuntimeSandboxes::default();
        assert_eq!(sandboxes.sight("a"), Sight::Known);
        let at = Instant::now();
        sandboxes.saw(at, listed(&["a"]));
        assert_eq!((sandboxes.sight("a"), sandboxes.sight("b")), (Sight::Known, Sight::NeverSeen(at)));
        sandboxes.saw(at, None);
        assert_eq!((sandboxes.sight("a"), sandboxes.sight("b")), (Sight::Known, Sight::Known));
        // What it had before it was away counts.
        let later = at + Duration::from_secs(1);
        sandboxes.saw(later, listed(&["b"]));
        assert_eq!((sandboxes.sight("a"), sandboxes.sight("b")), (Sight::Missed(later), Sight::Known));
        sandboxes.retain(|_| false);
        assert_eq!(sandboxes.sight("a"), Sight::NeverSeen(later));
    }
}
