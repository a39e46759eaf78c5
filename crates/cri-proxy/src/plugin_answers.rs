//! What plugins said when they were asked how they are, and when.
//!
//! Rules: an answer counts for a few seconds and no longer; of those who want the same answer one asks and the others wait for
//! it; only so many plugins run at a time, whoever has them asked; nobody is asked for somebody who has stopped waiting.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cni::Error;

/// How long what a plugin said counts.
const FRESH: Duration = Duration::from_secs(5);
/// Plugins asked at a time.
pub(crate) const PARALLEL: usize = 4;
/// Most answers kept.
const ANSWERS_MAX: usize = 20_000;

/// An answer, and when it came; nothing: nobody has had one.
type Answer = Mutex<Option<(Instant, Result<(), Error>)>>;

/// The answers.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    known: Mutex<BTreeMap<String, Arc<Answer>>>,
    running: Mutex<usize>,
    ended: Condvar,
}

/// A plugin that runs.
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
    /// The answer to the question `key`: what is known, else what `ask` says; nothing, if that could not be begun by `until`.
    pub(crate) fn ask(
        &self,
        key: String,
        until: Instant,
        ask: impl FnOnce() -> Result<(), Error>,
    ) -> Option<Result<(), Error>> {
        let cell = self.cell(key);
        let mut said = locked(&cell);
        if let Some((when, answer)) = &*said
            && when.elapsed() < FRESH
        {
            return Some(answer.clone());
        }
        let _running = self.turn(until)?;
        let answer = ask();
        *said = Some((Instant::now(), answer.clone()));
        Some(answer)
    }

    fn cell(&self, key: String) -> Arc<Answer> {
        let mut known = locked(&self.known);
        if known.len() >= ANSWERS_MAX {
            // One that is waited for is locked.
            known.retain(|_, cell| {
                cell.try_lock()
                    .map_or(true, |said| said.as_ref().is_some_and(|(when, _)| when.elapsed() < FRESH))
            });
        }
        Arc::clone(known.entry(key).or_default())
    }

    fn turn(&self, until: Instant) -> Option<Running<'_>> {
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
    fn many_who_ask_the_same_have_it_asked_once_and_few_plugins_run_at_a_time() {
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
        assert_eq!(asked.load(Ordering::SeqCst), 8, "one question each");
        assert!(most.load(Ordering::SeqCst) <= PARALLEL, "{most:?} at a time");
    }

    #[test]
    fn who_stops_waiting_is_told_and_nobody_is_asked_for_him() {
        let answers = Answers::default();
        let now = Instant::now();
        assert_eq!(answers.ask("late".into(), now, || panic!("nobody waits")), None);
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
        // What is known costs nobody time.
        assert_eq!(answers.ask("one more".into(), now, || panic!("it is known")), Some(Ok(())));
    }
}
