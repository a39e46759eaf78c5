//! Number of open streams, in total and by user.
//!
//! - A stream counts from the response until the last event.
//! - One user has few of all streams, so no account keeps the others out.
//! - A client of this host has no user. Only the number of all streams limits it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::metrics::gauge::Gauge;
use thiserror::Error;

/// Maximum number of streams.
const STREAMS_MAX: usize = 512;
/// Maximum number of streams for one user.
const STREAMS_OF_USER_MAX: usize = 32;

/// Open streams.
#[derive(Debug)]
pub(super) struct OpenStreams {
    counts: Mutex<StreamCounts>,
    gauge: Gauge,
}

/// Number of streams.
#[derive(Debug, Default)]
struct StreamCounts {
    all: usize,
    by_user: HashMap<String, usize>,
}

/// Open stream. It counts until it is dropped.
#[derive(Debug)]
pub(super) struct OpenStream {
    streams: Arc<OpenStreams>,
    user: Option<String>,
}

/// Reason why there is no further stream.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(super) enum TooManyStreams {
    #[error("too many clients; try again later")]
    OfAll,
    #[error("this user has {STREAMS_OF_USER_MAX} open pages, which is the maximum; close one and try again")]
    OfUser,
}

// === impl OpenStreams ===

impl OpenStreams {
    /// Returns the state without a stream. `gauge` gets the number of streams.
    pub(super) fn new(gauge: Gauge) -> Arc<OpenStreams> {
        Arc::new(OpenStreams { counts: Mutex::default(), gauge })
    }

    /// Adds a stream for a user, or for a client on this host.
    ///
    /// # Errors
    /// There are too many streams, or too many of the user.
    pub(super) fn open(self: &Arc<Self>, user: Option<&str>) -> Result<OpenStream, TooManyStreams> {
        self.counts().add(user)?;
        self.gauge.inc();
        Ok(OpenStream { streams: Arc::clone(self), user: user.map(str::to_owned) })
    }

    fn counts(&self) -> MutexGuard<'_, StreamCounts> {
        // No code panics between two changes of the counts.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl OpenStream ===

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.streams.counts().remove(self.user.as_deref());
        self.streams.gauge.dec();
    }
}

// === impl StreamCounts ===

impl StreamCounts {
    fn add(&mut self, user: Option<&str>) -> Result<(), TooManyStreams> {
        if self.all >= STREAMS_MAX {
            return Err(TooManyStreams::OfAll);
        }
        if let Some(user) = user {
            let of_user = self.by_user.get(user).copied().unwrap_or_default();
            if of_user >= STREAMS_OF_USER_MAX {
                return Err(TooManyStreams::OfUser);
            }
            self.by_user.insert(user.to_owned(), of_user + 1);
        }
        self.all += 1;
        Ok(())
    }

    fn remove(&mut self, user: Option<&str>) {
        self.all = self.all.saturating_sub(1);
        let Some(user) = user else { return };
        match self.by_user.get_mut(user) {
            Some(of_user) if *of_user > 1 => *of_user -= 1,
            _ => {
                self.by_user.remove(user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_streams_of_one_user_leave_room_for_others() {
        let gauge = Gauge::default();
        let streams = OpenStreams::new(gauge.clone());
        let mut of_blue: Vec<OpenStream> =
            (0..STREAMS_OF_USER_MAX).map(|_| streams.open(Some("blue")).expect("a stream")).collect();
        assert_eq!(streams.open(Some("blue")).err(), Some(TooManyStreams::OfUser));
        let _of_red = streams.open(Some("red")).expect("a stream of another user");
        // A closed stream makes room for one.
        of_blue.pop();
        of_blue.push(streams.open(Some("blue")).expect("a stream"));
        assert_eq!(streams.open(Some("blue")).err(), Some(TooManyStreams::OfUser));
        drop(of_blue);
        assert_eq!((gauge.get(), streams.counts().by_user.len()), (1, 1));
    }

    #[test]
    fn page_streams_of_this_host_are_limited_together() {
        let streams = OpenStreams::new(Gauge::default());
        let local: Vec<OpenStream> =
            (0..STREAMS_MAX).map(|_| streams.open(None).expect("a stream")).collect();
        for user in [None, Some("blue")] {
            assert_eq!(streams.open(user).err(), Some(TooManyStreams::OfAll), "{user:?}");
        }
        drop(local);
        assert!(streams.open(Some("blue")).is_ok());
    }
}
