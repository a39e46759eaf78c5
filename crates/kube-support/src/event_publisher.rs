//! Publisher for Events about objects in the cluster.
//!
//! - An Event that repeats one from the last six minutes is counted in that Event's series. A series is written at the
//!   2nd, 4th, 8th … repetition, and at the next one after a minute.
//! - Each object has a request budget ([`BURST`], then one each [`REFILL`]); Events beyond it are dropped.
//! - Memory is bounded: the publisher knows [`KNOWN_MAX`] Events and as many budgets, and forgets the oldest
//!   ones first.
//! - The API accepts an Event about a cluster-scoped object only in `kube-system`, so it gets that namespace.
//!
//! Source: Kubernetes API reference, Event v1 (events.k8s.io); client-go, `tools/events`.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event as EventObject;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;

/// Maximum number of Events, and of budgets, that are known at a time.
const KNOWN_MAX: usize = 512;
/// Time after which a repeated Event begins a new series.
const SERIES_MAX: Duration = Duration::from_secs(360);
/// Time after which a series is written again.
const SERIES_INTERVAL: Duration = Duration::from_secs(60);
/// Number of requests about one object that are allowed at once.
const BURST: u32 = 25;
/// Time after which an object may cause one more request.
const REFILL: Duration = Duration::from_secs(30);
/// Maximum length that an object's name has in an Event name, in bytes. The API accepts 253 bytes.
const NAME_MAX: usize = 220;
/// Namespace for Events about cluster-scoped objects.
const CLUSTER_NAMESPACE: &str = "kube-system";

/// Severity of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventType {
    /// Something happened as it should.
    Normal,
    /// Something is not as expected.
    Warning,
}

/// Event about an object.
#[derive(Clone, Debug)]
pub struct Event<'a> {
    /// Severity.
    pub r#type: EventType,
    /// Reason, in `PascalCase`.
    pub reason: &'a str,
    /// Action that was taken or has failed. It is the same for all Events in one series.
    pub action: &'a str,
    /// Description, at most 1024 bytes.
    pub note: &'a str,
}

/// Result of [`EventPublisher::publish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The API server has the Event, or the new count in the series.
    Sent,
    /// The series has counted the Event; the count is written later.
    Merged,
    /// The object's budget is exhausted.
    Dropped,
}

/// Publisher that speaks for one controller.
pub struct EventPublisher {
    client: Client,
    controller: &'static str,
    instance: String,
    hasher: RandomState,
    log: Mutex<EventLog>,
}

/// Recent Events and budgets.
#[derive(Debug, Default)]
struct EventLog {
    series: Bounded<Series>,
    budgets: Bounded<Budget>,
}

/// Event that was sent, and the repetitions.
#[derive(Clone, Debug)]
struct Series {
    /// Name that the API object has.
    name: String,
    count: i32,
    seen: Instant,
    written: Instant,
}

/// Remaining requests about one object.
#[derive(Clone, Copy, Debug)]
struct Budget {
    remaining: u32,
    refilled: Instant,
}

/// Request that an Event causes.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    Create,
    /// Write the count for this Event's series.
    Count(String, i32),
    None(Outcome),
}

/// Map with a limited number of entries: the oldest one is removed first.
#[derive(Debug)]
struct Bounded<V> {
    entries: HashMap<u64, V>,
    order: VecDeque<u64>,
}

// === impl EventPublisher ===

impl EventPublisher {
    /// Returns a publisher that speaks for a controller; `instance` identifies the process.
    pub fn new(client: Client, controller: &'static str, instance: Option<String>) -> EventPublisher {
        let instance = instance.unwrap_or_else(|| controller.to_owned());
        EventPublisher { client, controller, instance, hasher: RandomState::new(), log: Mutex::default() }
    }

    fn log(&self) -> MutexGuard<'_, EventLog> {
        // A panic leaves no map half changed.
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends an Event, or counts it in an earlier one's series.
    ///
    /// # Errors
    /// The API server refuses the Event or cannot be reached.
    pub async fn publish(&self, event: &Event<'_>, about: &ObjectReference) -> Result<Outcome, kube::Error> {
        let object = self.hasher.hash_one((&about.kind, &about.namespace, &about.name, &about.uid));
        let key = self.hasher.hash_one((object, event.r#type, event.reason, event.action));
        let request = self.log().request(key, object, Instant::now());
        let namespace = about.namespace.as_deref().unwrap_or(CLUSTER_NAMESPACE);
        let events: Api<EventObject> = Api::namespaced(self.client.clone(), namespace);
        match request {
            Request::None(outcome) => return Ok(outcome),
            Request::Count(name, count) => {
                let series = json!({ "count": count, "lastObservedTime": MicroTime(Timestamp::now()) });
                let patch = Patch::Merge(json!({ "series": series }));
                match events.patch(&name, &PatchParams::default(), &patch).await {
                    Ok(_) => return Ok(Outcome::Sent),
                    // The API server deletes old Events.
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    Err(error) => return Err(error),
                }
            }
            Request::Create => {}
        }
        let object = self.object(event, about, namespace);
        let name = object.metadata.name.clone().unwrap_or_default();
        events.create(&PostParams::default(), &object).await?;
        self.log().created(key, name, Instant::now());
        Ok(Outcome::Sent)
    }

    fn object(&self, event: &Event<'_>, about: &ObjectReference, namespace: &str) -> EventObject {
        let Event { r#type, reason, action, note } = *event;
        let now = Timestamp::now();
        let subject = about.name.as_deref().unwrap_or(self.controller);
        let r#type = match r#type {
            EventType::Normal => "Normal",
            EventType::Warning => "Warning",
        };
        EventObject {
            metadata: ObjectMeta {
                namespace: Some(namespace.to_owned()),
                name: Some(event_name(subject, now)),
                ..ObjectMeta::default()
            },
            action: Some(action.to_owned()),
            event_time: Some(MicroTime(now)),
            note: Some(note.to_owned()),
            reason: Some(reason.to_owned()),
            regarding: Some(about.clone()),
            reporting_controller: Some(self.controller.to_owned()),
            reporting_instance: Some(self.instance.clone()),
            type_: Some(r#type.to_owned()),
            ..EventObject::default()
        }
    }
}

/// Returns a name for an Event about the object with this name, as a DNS subdomain with at most 253 bytes.
fn event_name(subject: &str, now: Timestamp) -> String {
    let short = &subject[..subject.floor_char_boundary(NAME_MAX)];
    let short = short.trim_end_matches(|letter: char| !letter.is_ascii_alphanumeric());
    format!("{short}.{:x}", now.as_nanosecond())
}

// === impl EventLog ===

impl EventLog {
    /// Counts an Event and returns the request that it causes.
    fn request(&mut self, key: u64, object: u64, now: Instant) -> Request {
        let known = self.series.entries.get_mut(&key);
        let known = known.filter(|known| now.saturating_duration_since(known.seen) < SERIES_MAX);
        let Some(series) = known else {
            let request =
                if self.spend(object, now) { Request::Create } else { Request::None(Outcome::Dropped) };
            return request;
        };
        series.count = series.count.saturating_add(1);
        series.seen = now;
        let is_due = (series.count as u32).is_power_of_two()
            || now.saturating_duration_since(series.written) >= SERIES_INTERVAL;
        if !is_due {
            return Request::None(Outcome::Merged);
        }
        series.written = now;
        let request = Request::Count(series.name.clone(), series.count);
        if self.spend(object, now) { request } else { Request::None(Outcome::Merged) }
    }

    /// Takes a request from an object's budget; `false` if it is exhausted.
    fn spend(&mut self, object: u64, now: Instant) -> bool {
        let fresh = Budget { remaining: BURST, refilled: now };
        let mut budget = self.budgets.entries.get(&object).copied().unwrap_or(fresh);
        let refills = now.saturating_duration_since(budget.refilled).as_secs() / REFILL.as_secs();
        let refills = u32::try_from(refills).unwrap_or(u32::MAX);
        budget.refilled += REFILL.saturating_mul(refills.min(BURST));
        budget.remaining = budget.remaining.saturating_add(refills).min(BURST);
        if budget.remaining == BURST {
            budget.refilled = now;
        }
        let remaining = budget.remaining.checked_sub(1);
        budget.remaining = remaining.unwrap_or_default();
        self.budgets.insert(object, budget);
        remaining.is_some()
    }

    /// Records an Event that the API server has accepted.
    fn created(&mut self, key: u64, name: String, now: Instant) {
        self.series.insert(key, Series { name, count: 1, seen: now, written: now });
    }
}

// === impl Bounded ===

impl<V> Default for Bounded<V> {
    fn default() -> Bounded<V> {
        Bounded { entries: HashMap::new(), order: VecDeque::new() }
    }
}

impl<V> Bounded<V> {
    fn insert(&mut self, key: u64, value: V) {
        if self.entries.insert(key, value).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > KNOWN_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.entries.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Publishes an Event in a log that the API server accepts.
    fn publish(log: &mut EventLog, key: u64, object: u64, now: Instant) -> Request {
        let request = log.request(key, object, now);
        if request == Request::Create {
            log.created(key, format!("e{key}"), now);
        }
        request
    }

    #[test]
    fn event_series_is_written_at_growing_counts() {
        let (mut log, now) = (EventLog::default(), Instant::now());
        let mut written = Vec::new();
        for _ in 0..20 {
            if let Request::Count(name, count) = publish(&mut log, 1, 1, now) {
                assert_eq!(name, "e1");
                written.push(count);
            }
        }
        assert_eq!(written, [2, 4, 8, 16]);
        // The count is written a minute later, whatever it is.
        assert_eq!(publish(&mut log, 1, 1, now + SERIES_INTERVAL), Request::Count("e1".to_owned(), 21));
        assert_eq!(publish(&mut log, 1, 1, now + SERIES_INTERVAL), Request::None(Outcome::Merged));
        // Six minutes without a repetition end a series.
        let later = now + SERIES_INTERVAL + SERIES_MAX;
        assert_eq!(publish(&mut log, 1, 1, later), Request::Create);
        assert_eq!(publish(&mut log, 1, 1, later), Request::Count("e1".to_owned(), 2));
    }

    #[test]
    fn event_budget_limits_the_requests_about_an_object() {
        let (mut log, now) = (EventLog::default(), Instant::now());
        let sent = |log: &mut EventLog, object: u64, now: Instant| {
            (0..100).filter(|key| log.request(1000 * object + key, object, now) == Request::Create).count()
        };
        assert_eq!(sent(&mut log, 1, now), BURST as usize);
        assert_eq!(sent(&mut log, 1, now + REFILL / 2), 0);
        assert_eq!(sent(&mut log, 2, now), BURST as usize, "each object has its own budget");
        assert_eq!(sent(&mut log, 1, now + REFILL), 1);
        assert_eq!(sent(&mut log, 1, now + 3 * REFILL), 2);
        assert_eq!(sent(&mut log, 1, now + 1000 * REFILL), BURST as usize);
    }

    #[test]
    fn event_log_has_a_bounded_number_of_entries() {
        let (mut log, now) = (EventLog::default(), Instant::now());
        for key in 0..10_000 {
            assert_eq!(publish(&mut log, key, key, now), Request::Create);
        }
        for known in [log.series.entries.len(), log.series.order.len(), log.budgets.entries.len()] {
            assert_eq!(known, KNOWN_MAX);
        }
        // The newest are known, the oldest are not.
        assert_eq!(publish(&mut log, 9_999, 9_999, now), Request::Count("e9999".to_owned(), 2));
        assert_eq!(publish(&mut log, 0, 0, now), Request::Create);
    }

    #[test]
    fn event_name_is_valid_for_the_longest_object_name() {
        let now = Timestamp::from_nanosecond(0xabc).unwrap();
        assert_eq!(event_name("web", now), "web.abc");
        let long = format!("{}-.{}", "a".repeat(NAME_MAX - 2), "b".repeat(30));
        assert_eq!(event_name(&long, now), format!("{}.abc", "a".repeat(NAME_MAX - 2)));
        let name = event_name(&"a".repeat(253), Timestamp::MAX);
        assert!(name.len() <= 253, "{}", name.len());
    }
}
