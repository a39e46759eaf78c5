//! Stream of server-sent events for one client of the page.
//!
//! | event | data |
//! |---|---|
//! | `viewer` | user, and what it may see. All rows that were sent before are void |
//! | `rows` | changed and deleted rows: `{"set":{"pods":[…]},"gone":{"pods":[["namespace","name"]]}}` |
//! | `again` | all rows that were sent before are void |
//! | `ready` | all rows were sent |
//! | `state` | age of the data while the API server is away, and resources that are not listed |
//! | `denied` | reason why the stream ends |
//!
//! A client that does not read for [`SLOW_MAX`] is disconnected, also after the last event. The rights are reviewed again while the stream lasts.
//!
//! Source: HTML Living Standard, "Server-sent events".

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::PageController;
use super::access::{Denied, KnownScope, Protection, Viewer};
use super::model::{Next, Position};
use super::open_streams::OpenStream;
use super::rights::{Allowed, FRESH, PageScope};
use super::sources::SourceState;

/// Time that a client may take to read a message.
pub(super) const SLOW_MAX: Duration = Duration::from_secs(20);
/// Interval at which the state of the watches is looked at.
const STATE_INTERVAL: Duration = Duration::from_secs(3);
/// Longest silence on a stream: an idle connection ends at many proxies after a minute.
const SILENCE_MAX: Duration = Duration::from_secs(15);
/// Shortest time between two reviews of a stream, also if they take long.
const REVIEW_PAUSE_MIN: Duration = Duration::from_secs(1);

/// Connection state that the request changes.
#[derive(Debug)]
pub(super) struct ConnectionState {
    /// Address of the client.
    pub(super) client: IpAddr,
    /// Whether the response is a stream.
    pub(super) is_stream: AtomicBool,
    /// Ends the connection.
    pub(super) cut: Notify,
    /// The stream has ended: the client has [`SLOW_MAX`] to read what was sent.
    pub(super) ended: Notify,
}

/// Connection of a client that reads a stream.
#[derive(Debug)]
pub(super) struct StreamClient {
    sender: mpsc::Sender<Bytes>,
    connection: Arc<ConnectionState>,
    sent: Instant,
}

/// The client has disconnected, or does not read.
#[derive(Debug)]
struct Disconnected;

// === impl ConnectionState ===

impl ConnectionState {
    /// Returns the state of a new connection.
    pub(super) fn new(client: IpAddr) -> ConnectionState {
        ConnectionState {
            client,
            is_stream: AtomicBool::default(),
            cut: Notify::default(),
            ended: Notify::default(),
        }
    }
}

// === impl StreamClient ===

impl StreamClient {
    /// Returns a client that gets what is sent to `sender`.
    pub(super) fn new(sender: mpsc::Sender<Bytes>, connection: Arc<ConnectionState>) -> StreamClient {
        StreamClient { sender, connection, sent: Instant::now() }
    }

    async fn send(&mut self, text: String, page: &PageController) -> Result<(), Disconnected> {
        match timeout(SLOW_MAX, self.sender.send(text.into())).await {
            Ok(Ok(())) => {
                self.sent = Instant::now();
                Ok(())
            }
            Ok(Err(_)) => Err(Disconnected),
            Err(_) => {
                page.metrics.dropped.inc();
                self.connection.cut.notify_one();
                Err(Disconnected)
            }
        }
    }

    async fn event(&mut self, name: &str, data: &str, page: &PageController) -> Result<(), Disconnected> {
        self.send(format!("event: {name}\ndata: {data}\n\n"), page).await
    }
}

impl Drop for StreamClient {
    fn drop(&mut self) {
        self.connection.ended.notify_one();
    }
}

/// Sends all rows, and then the changes, until the client disconnects or loses the rights.
pub(super) async fn feed(
    page: Arc<PageController>,
    authorization: Option<String>,
    mut client: StreamClient,
    _counted: OpenStream,
) {
    // The client is gone: there is nothing to do.
    let _ = follow(&page, authorization.as_deref(), &mut client).await;
}

async fn follow(
    page: &PageController,
    authorization: Option<&str>,
    client: &mut StreamClient,
) -> Result<(), Disconnected> {
    let mut known: Option<PageScope> = None;
    let mut position = Position::default();
    let mut state = None;
    loop {
        let (viewer, KnownScope { at, scope }) = match reviewed(page, authorization).await {
            Ok(reviewed) => reviewed,
            Err(denied) => {
                return client.event("denied", &json!(denied.to_string()).to_string(), page).await;
            }
        };
        if known.as_ref() != Some(&scope) {
            client.event("viewer", &describe(page, &viewer, &scope).to_string(), page).await?;
            (position, state) = (Position::default(), None);
        }
        let review = (at + FRESH).max(Instant::now() + REVIEW_PAUSE_MIN);
        changes_until(review, page, &scope, (&mut position, &mut state), client).await?;
        known = Some(scope);
    }
}

async fn reviewed(
    page: &PageController,
    authorization: Option<&str>,
) -> Result<(Viewer, KnownScope), Denied> {
    let viewer = page.access.viewer(authorization, None).await?;
    let scope = page.access.scope(&viewer, || page.model.namespaces()).await?;
    Ok((viewer, scope))
}

/// Sends changes until the rights of the viewer are reviewed again.
async fn changes_until(
    review: Instant,
    page: &PageController,
    scope: &PageScope,
    (position, state): (&mut Position, &mut Option<SourceState>),
    client: &mut StreamClient,
) -> Result<(), Disconnected> {
    let mut changes = page.model.changes();
    while Instant::now() < review {
        changes.mark_unchanged();
        let was_complete = position.is_walk_complete();
        let next = page.model.next(position, scope);
        let is_idle = matches!(next, Next::Nothing);
        match next {
            Next::Rows(batch) => client.event("rows", &batch.json(), page).await?,
            Next::StartAgain => {
                *position = Position::default();
                client.event("again", "{}", page).await?;
            }
            Next::Nothing => {}
        }
        let now = page.sources.state();
        if state.as_ref() != Some(&now) {
            let data = json!({ "age": now.age, "waits": now.waits });
            client.event("state", &data.to_string(), page).await?;
            *state = Some(now);
        }
        if position.is_walk_complete() && !was_complete {
            client.event("ready", "{}", page).await?;
        }
        if !is_idle {
            continue;
        }
        if client.sent.elapsed() >= SILENCE_MAX {
            client.send(":\n\n".to_owned(), page).await?;
        }
        tokio::select! {
            _ = changes.changed() => {}
            () = sleep(STATE_INTERVAL) => {}
            () = sleep_until(review) => {}
            () = client.sender.closed() => return Err(Disconnected),
        }
    }
    Ok(())
}

/// Describes the viewer for itself. The names of namespaces are only those that it may list.
fn describe(page: &PageController, viewer: &Viewer, scope: &PageScope) -> Value {
    let user = viewer.user().map(super::rows::name);
    let of = |allowed: &Allowed| match allowed {
        Allowed::All => Value::Bool(true),
        Allowed::Namespaces(all) => json!(all.len()),
    };
    json!({
        "user": user,
        "token": page.access.protection() == Protection::Token,
        "version": env!("CARGO_PKG_VERSION"),
        "may": {
            "pods": of(&scope.pods),
            "networks": of(&scope.networks),
            "events": of(&scope.events),
            "policies": of(&scope.policies),
            "nodes": scope.nodes,
            "pools": scope.pools,
            "blocks": scope.blocks,
        },
    })
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn page_stream_end_limits_the_time_of_its_connection() {
        let connection = Arc::new(ConnectionState::new([127, 0, 0, 1].into()));
        let (sender, _receiver) = mpsc::channel(1);
        let client = StreamClient::new(sender, Arc::clone(&connection));
        // The client does not read: the event stays in the channel.
        client.sender.try_send("event: denied\n\n".into()).expect("a free slot");
        assert!(connection.ended.notified().now_or_never().is_none());
        drop(client);
        assert!(connection.ended.notified().now_or_never().is_some());
    }
}
