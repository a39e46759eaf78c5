//! Caches results from plugin probes (STATUS and CHECK).
//!
//! - A result stays valid for a few seconds.
//! - If several callers need the same result, one of them runs the plugin and the others wait.
//! - Only a bounded number of plugins run at the same time.
//! - Once the caller's deadline has passed, no plugin is started any more.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cni::Error;

/// Time for which a result is valid.
const FRESH: Duration = Duration::from_secs(5);
/// Maximum number of plugins that run at the same time.
pub(crate) const PARALLEL: usize = 4;
/// Maximum number of cached results.
const ANSWERS_MAX: usize = 20_000;

/// Result with the time at which it was obtained; `None` before the first one.
type Answer = Mutex<Option<(Instant, Result<(), Error>)>>;

/// Cached results by key, for example `check CONTAINER net1`.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    known: Mutex<BTreeMap<String, Arc<Answer>>>,
    running: Mutex<usize>,
    ended: Condvar,
}

/// Guard that counts a running plugin.
struct Running<'a>(&'a Answers);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        *locked(&self.0.running) -= 1;
        self.0.ended.notify_one();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Answers {
    /// Returns the result for `key`, from the cache or from `ask`; `None` if `ask` could not be started by `until`.
    pub(crate) fn ask(
        &self,
        key: String,
        until: Instant,
        ask: impl FnOnce() -> Result<(), Error>,
    ) -> Option<Result<(), Error>> {
        let cell = self.cell(key);
        let mut cached = locked(&cell);
        if let Some((when, answer)) = &*cached
            && when.elapsed() < FRESH
        {
            return Some(answer.clone());
        }
        let _running = self.slot(until)?;
        let answer = ask();
        *cached = Some((Instant::now(), answer.clone()));
        Some(answer)
    }

    fn cell(&self, key: String) -> Arc<Answer> {
        let mut known = locked(&self.known);
        if known.len() >= ANSWERS_MAX {
            // A locked cell has a caller waiting for it, so it must stay.
            known.retain(|_, cell| {
                cell.try_lock()
                    .map_or(true, |cached| cached.as_ref().is_some_and(|(when, _)| when.elapsed() < FRESH))
            });
        }
        Arc::clone(known.entry(key).or_default())
    }

    fn slot(&self, until: Instant) -> Option<Running<'_>> {
        let mut running = locked(&self.running);
        while *running >= PARALLEL {
            let left = until.checked_duration_since(Instant::now())?;
            running = self.ended.wait_timeout(running, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        (Instant::now() < until).then(|| {
            *running += 1;
            Running(self)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn plugin_probe_runs_once_for_many_callers_and_few_at_a_time() {
        let (answers, asked) = (Answers::default(), AtomicUsize::new(0));
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let until = Instant::now() + Duration::from_secs(60);
        let ask = || {
            asked.fetch_add(1, Ordering::SeqCst);
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(30));
            running.fetch_sub(1, Ordering::SeqCst);
            Err(Error::internal("not ready"))
        };
        std::thread::scope(|scope| {
            for client in 0..40 {
                let (answers, ask) = (&answers, &ask);
                let key = format!("status {}", client % 8);
                scope.spawn(move || answers.ask(key, until, ask).unwrap().unwrap_err());
            }
        });
        assert_eq!(asked.load(Ordering::SeqCst), 8, "one run for each key");
        assert!(most.load(Ordering::SeqCst) <= PARALLEL, "{most:?} at a time");
    }

    #[test]
    fn plugin_probe_is_not_started_after_the_deadline() {
        let answers = Answers::default();
        let now = Instant::now();
        assert_eq!(answers.ask("late".into(), now, || panic!("the deadline has passed")), None);
        let until = now + Duration::from_millis(50);
        std::thread::scope(|scope| {
            for plugin in 0..PARALLEL {
                let answers = &answers;
                scope.spawn(move || {
                    let hang = || {
                        std::thread::sleep(Duration::from_millis(400));
                        Ok(())
                    };
                    answers.ask(format!("{plugin}"), now + Duration::from_secs(9), hang)
                });
            }
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(answers.ask("one more".into(), until, || Ok(())), None);
        });
        let later = Instant::now() + Duration::from_secs(9);
        assert_eq!(answers.ask("one more".into(), later, || Ok(())), Some(Ok(())));
        // A cached result needs no time.
        assert_eq!(answers.ask("one more".into(), now, || panic!("cached")), Some(Ok(())));
    }
}
