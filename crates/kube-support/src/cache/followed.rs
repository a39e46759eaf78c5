//! Caches that this process follows, for metrics and readiness.
//!
//! The list belongs to the process, like the metrics: each cache is in it while something uses the cache. Caches for
//! one kind, for example in several namespaces, count as one, and the oldest determines the age.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch::{Receiver, Sender};

use super::Cache;

/// Age from which a cache is stale: the process is not ready any more.
pub const STALE: Duration = Duration::from_secs(120);

static FOLLOWED: Mutex<Vec<Weak<dyn FollowedCache>>> = Mutex::new(Vec::new());
/// Number of times that all caches had to be listed again.
static RESTARTS: LazyLock<Sender<u64>> = LazyLock::new(|| Sender::new(0));

/// Cache for any kind.
pub(super) trait FollowedCache: Send + Sync {
    fn state(&self) -> CacheState;
}

/// State of all caches for one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheState {
    /// Kind name.
    pub kind: &'static str,
    /// Number of objects.
    pub objects: usize,
    /// Whether a complete list was read.
    pub is_synced: bool,
    /// Time since the cache was current, or since it was first requested; zero while it is current.
    pub age: Duration,
    /// Number of lists and watches that failed.
    pub failures: u64,
    /// Reason why it is not current.
    pub why: Option<String>,
}

/// Adds a cache to the process's list.
pub(super) fn register<T: PartialEq + Send + Sync + 'static>(cache: &Arc<Cache<T>>) {
    let cache: Weak<Cache<T>> = Arc::downgrade(cache);
    let mut followed = FOLLOWED.lock().unwrap_or_else(PoisonError::into_inner);
    followed.retain(|cache| cache.strong_count() > 0);
    followed.push(cache);
}

/// Lists every cache in this process again, for example after a restore of the API server's database: until the new list
/// is complete, the old one is served.
pub fn list_again() {
    RESTARTS.send_modify(|count| *count += 1);
}

/// Returns a receiver that is notified when the caches must be listed again.
pub(super) fn restarts() -> Receiver<u64> {
    RESTARTS.subscribe()
}

/// Returns each kind's state, sorted by name.
pub fn states() -> Vec<CacheState> {
    let followed: Vec<Arc<dyn FollowedCache>> = {
        let followed = FOLLOWED.lock().unwrap_or_else(PoisonError::into_inner);
        followed.iter().filter_map(Weak::upgrade).collect()
    };
    let mut kinds: BTreeMap<&'static str, CacheState> = BTreeMap::new();
    for state in followed.iter().map(|cache| cache.state()) {
        match kinds.get_mut(state.kind) {
            Some(known) => known.add(state),
            None => drop(kinds.insert(state.kind, state)),
        }
    }
    kinds.into_values().collect()
}

/// Returns what is stale: the kinds that were current once, and are not any more for at least this time.
pub fn stale(age: Duration) -> Vec<String> {
    let stale = states().into_iter().filter(|state| state.is_synced && state.age >= age);
    stale.map(|state| state.to_string()).collect()
}

/// Returns metrics about the caches.
pub fn metrics() -> String {
    page(&states())
}

/// Returns metrics about these caches, as OpenMetrics lines without the end mark.
pub(crate) fn page(states: &[CacheState]) -> String {
    let mut page = String::new();
    for (name, kind, help, value) in [
        (
            "cache_objects",
            "gauge",
            "Number of Kubernetes objects in the cache, by resource",
            (|state| state.objects.to_string()) as fn(&CacheState) -> String,
        ),
        (
            "cache_age_seconds",
            "gauge",
            "Time since the cache was current in seconds, by resource; 0 while its watch is connected",
            |state| format!("{:.1}", state.age.as_secs_f64()),
        ),
        (
            "cache_failures",
            "counter",
            "Number of failed lists and watches of the API server, by resource",
            |state| state.failures.to_string(),
        ),
    ] {
        let suffix = if kind == "counter" { "_total" } else { "" };
        // Writing to a string cannot fail.
        let _ = write!(page, "# HELP weft_{name} {help}.\n# TYPE weft_{name} {kind}\n");
        for state in states {
            let _ = writeln!(page, "weft_{name}{suffix}{{resource=\"{}\"}} {}", state.kind, value(state));
        }
    }
    page
}

// === impl CacheState ===

impl CacheState {
    fn add(&mut self, other: CacheState) {
        let CacheState { kind: _, objects, is_synced, age, failures, why } = other;
        self.objects += objects;
        self.failures += failures;
        if age > self.age {
            (self.age, self.why, self.is_synced) = (age, why, is_synced);
        }
    }
}

impl std::fmt::Display for CacheState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: last known state of {} s ago", self.kind, self.age.as_secs())?;
        self.why.iter().try_for_each(|why| write!(f, " ({why})"))
    }
}

impl<T: PartialEq + Send + Sync> FollowedCache for Cache<T> {
    fn state(&self) -> CacheState {
        CacheState {
            kind: self.kind(),
            objects: self.count(),
            is_synced: self.is_synced(),
            age: self.liveness.time_without_data(),
            failures: self.liveness.failures(),
            why: self.liveness.reason(),
        }
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::{self, Event};
    use npwg::metadata::Pod;

    use super::*;
    use crate::resources::PodObject;

    #[test]
    fn cache_metrics_have_the_age_of_the_oldest_of_a_kind() {
        let caches = [(); 2].map(|()| Arc::new(Cache::<Pod>::new("followed-pods")));
        caches.iter().for_each(register);
        let of_kind = || states().into_iter().find(|state| state.kind == "followed-pods");
        assert!(!of_kind().unwrap().is_synced);
        for cache in &caches {
            cache.take(Event::<PodObject>::Init);
            cache.take(Event::<PodObject>::InitDone);
        }
        assert_eq!(of_kind().unwrap().age, Duration::ZERO);
        caches[1].fail(&watcher::Error::NoResourceVersion);
        std::thread::sleep(Duration::from_millis(2));
        let state = of_kind().unwrap();
        assert!(state.is_synced && state.age > Duration::ZERO && state.failures == 1, "{state:?}");
        assert!(
            stale(Duration::from_millis(1)).iter().any(|line| line.starts_with("followed-pods: last known"))
        );
        assert!(metrics().contains("weft_cache_failures_total{resource=\"followed-pods\"} 1\n"));
        drop(caches);
        assert_eq!(of_kind(), None);
    }
}
