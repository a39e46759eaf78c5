//! Tells whether a cache is current: what list and watch received, and when.
//!
//! - A cache is current once the list is complete, until list or watch fails. A new watch makes it current again when
//!   the API server begins the response. A list that is not complete changes nothing.
//! - The API server's responses are observed below the watch, which reports objects only: an accepted watch
//!   is silent until an object changes, and a list until it is complete.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use hyper::{Request, Response};
use kube::Client;
use kube::client::Body;
use tower::Service;

use crate::client::transport::is_watch;

/// Silence that is not worth mentioning.
const SILENCE_MIN: Duration = Duration::from_secs(1);

/// Whether a cache is current.
#[derive(Debug)]
pub(super) struct Liveness(Mutex<State>);

#[derive(Debug)]
struct State {
    /// When the first list began.
    began: Instant,
    is_synced: bool,
    /// Whether a list is not complete.
    is_listing: bool,
    /// When the first failure since the cache was current happened.
    failing: Option<Instant>,
    /// Why the last failure since the cache was current happened.
    why: Option<String>,
    failures: u64,
    request: Phase,
}

/// Progress in the last list request.
#[derive(Debug)]
enum Phase {
    /// It was not sent, or is complete.
    None,
    /// It was sent at this time.
    Sent(Instant),
    /// The response began; when the last data arrived, and how many bytes so far.
    Receiving(Instant, usize),
}

/// Service that reports the responses to one cache's requests.
#[derive(Clone)]
struct Observer {
    client: Client,
    liveness: Arc<Liveness>,
}

/// Body whose data is counted.
struct ObservedBody {
    body: Body,
    liveness: Arc<Liveness>,
    is_watch: bool,
}

// === impl Liveness ===

impl Liveness {
    /// Returns the state that a never filled cache has.
    pub(super) fn new() -> Arc<Liveness> {
        Arc::new(Liveness(Mutex::new(State {
            began: Instant::now(),
            is_synced: false,
            is_listing: false,
            failing: None,
            why: None,
            failures: 0,
            request: Phase::None,
        })))
    }

    /// Returns a client whose responses are observed.
    pub(super) fn observe(self: &Arc<Self>, client: &Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        Client::new(Observer { client: client.clone(), liveness: Arc::clone(self) }, namespace)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic leaves no field half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a list was requested.
    pub(super) fn list_began(&self) {
        self.state().is_listing = true;
    }

    /// Records a complete list. Returns how long the cache was not current, if it failed.
    pub(super) fn listed(&self) -> Option<Duration> {
        let mut state = self.state();
        (state.is_synced, state.is_listing, state.request) = (true, false, Phase::None);
        state.recover()
    }

    /// Records a watch event.
    pub(super) fn changed(&self) {
        let _ = self.state().recover();
    }

    /// Records a failure. The result is whether it is the first one since the cache was current.
    pub(super) fn failed(&self, why: String) -> bool {
        let mut state = self.state();
        state.failures += 1;
        (state.why, state.request) = (Some(why), Phase::None);
        let is_first = state.failing.is_none();
        state.failing.get_or_insert_with(Instant::now);
        is_first
    }

    /// Whether a complete list was read.
    pub(super) fn is_synced(&self) -> bool {
        self.state().is_synced
    }

    /// Whether a list is not complete.
    pub(super) fn is_listing(&self) -> bool {
        self.state().is_listing
    }

    /// Returns the time since the list or the watch failed; zero while the cache is current.
    pub(super) fn age(&self) -> Duration {
        self.state().failing.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Returns the time since the cache was current, or since the first list began if it never was.
    pub(super) fn time_without_data(&self) -> Duration {
        let state = self.state();
        let since = if state.is_synced { state.failing } else { Some(state.began) };
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Returns how many failures there were.
    pub(super) fn failures(&self) -> u64 {
        self.state().failures
    }

    /// Returns why the cache is not current: the last failure, or how long the API server has been silent.
    pub(super) fn reason(&self) -> Option<String> {
        let state = self.state();
        let silence = match state.request {
            Phase::Sent(at) if at.elapsed() >= SILENCE_MIN => {
                Some(format!("the API server has not answered the list for {} s", at.elapsed().as_secs()))
            }
            Phase::Receiving(at, bytes) if at.elapsed() >= SILENCE_MIN => {
                Some(format!("the list stopped {} s ago, after {bytes} bytes", at.elapsed().as_secs()))
            }
            _ => None,
        };
        state.why.clone().or(silence)
    }
}

// === impl State ===

impl State {
    fn recover(&mut self) -> Option<Duration> {
        self.why = None;
        self.failing.take().map(|since| since.elapsed())
    }

    fn sent(&mut self, is_watch: bool) {
        if !is_watch {
            self.request = Phase::Sent(Instant::now());
        }
    }

    fn received(&mut self, is_watch: bool, bytes: usize) {
        if !is_watch {
            let before = if let Phase::Receiving(_, before) = self.request { before } else { 0 };
            self.request = Phase::Receiving(Instant::now(), before + bytes);
        }
    }
}

// === impl Observer ===

impl Service<Request<Body>> for Observer {
    type Response = Response<ObservedBody>;
    type Error = kube::Error;
    type Future = BoxFuture<'static, Result<Self::Response, kube::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), kube::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Observer { client, liveness } = self.clone();
        let is_watch = is_watch(request.uri());
        Box::pin(async move {
            liveness.state().sent(is_watch);
            let response = client.send(request).await?;
            if response.status().is_success() {
                let mut state = liveness.state();
                state.received(is_watch, 0);
                // A watch that also sends the list is current when the list is complete.
                if is_watch
                    && state.is_synced
                    && !state.is_listing
                    && let Some(age) = state.recover()
                {
                    drop(state);
                    tracing::info!(age = age.as_secs(), "the API server answers a watch again");
                }
            }
            Ok(response.map(|body| ObservedBody { body, liveness, is_watch }))
        })
    }
}

// === impl ObservedBody ===

impl HttpBody for ObservedBody {
    type Data = Bytes;
    type Error = kube::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, kube::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(Ok(frame)) = &frame {
            self.liveness.state().received(self.is_watch, frame.data_ref().map_or(0, Bytes::len));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_age_survives_a_list_that_is_not_complete() {
        let liveness = Liveness::new();
        assert!(!liveness.is_synced() && liveness.age().is_zero());
        std::thread::sleep(Duration::from_millis(2));
        assert!(liveness.time_without_data() > Duration::ZERO, "absent is not current");
        assert!(liveness.listed().is_none() && liveness.time_without_data().is_zero());
        assert!(liveness.failed("it is closed".to_owned()) && !liveness.failed("it hangs".to_owned()));
        liveness.list_began();
        std::thread::sleep(Duration::from_millis(2));
        assert!(liveness.age() > Duration::ZERO && liveness.is_listing());
        assert_eq!((liveness.reason().as_deref(), liveness.failures()), (Some("it hangs"), 2));
        assert!(liveness.listed().is_some());
        assert_eq!((liveness.reason(), liveness.age()), (None, Duration::ZERO));
    }

    #[test]
    fn cache_reason_tells_how_long_the_server_is_silent() {
        let liveness = Liveness::new();
        liveness.state().sent(false);
        assert_eq!(liveness.reason(), None, "not worth mentioning yet");
        let Some(past) = Instant::now().checked_sub(Duration::from_secs(7)) else { return };
        liveness.state().request = Phase::Sent(past);
        assert_eq!(liveness.reason().unwrap(), "the API server has not answered the list for 7 s");
        liveness.state().request = Phase::Receiving(past, 512);
        assert_eq!(liveness.reason().unwrap(), "the list stopped 7 s ago, after 512 bytes");
        liveness.failed("it is closed".to_owned());
        assert_eq!(liveness.reason().unwrap(), "it is closed");
    }
}
