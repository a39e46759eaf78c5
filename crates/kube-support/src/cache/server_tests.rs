//! Caches of API servers that answer with errors, close the connection, hang, or stop in the middle of a list.

use kube::Config as ClientConfig;
use npwg::metadata::Pod;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use super::*;
use crate::client::{client_of, transport::DEADLINES, transport::Deadlines};
use crate::resources::PodObject;

const DEADLINES_OF_TEST: Deadlines =
    Deadlines { response: Duration::from_secs(2), pause: Duration::from_millis(1500), ..DEADLINES };

/// Behaviour of an API server for lists.
#[derive(Clone, Copy, PartialEq)]
enum Lists {
    /// Complete.
    Whole,
    /// An error with this code.
    Code(u16),
    /// The connection is closed.
    Closed,
    /// No response.
    Hang,
    /// Half of the body.
    Half,
    /// A byte from time to time.
    Drip,
}

/// Serves one connection. A watch stays open without an event.
async fn serve(mut stream: TcpStream, lists: Lists) {
    let (mut head, mut piece) = (Vec::new(), [0; 1024]);
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut piece).await {
            Ok(read) if read > 0 => head.extend_from_slice(&piece[..read]),
            _ => return,
        }
    }
    let is_watch = String::from_utf8(head).unwrap().contains("watch=true");
    let pods = json!({ "apiVersion": "v1", "kind": "PodList", "metadata": { "resourceVersion": "1" },
        "items": [{ "metadata": { "namespace": "n", "name": "a", "uid": "1" } }] });
    let refusal = |code| json!({ "kind": "Status", "status": "Failure", "code": code, "message": "not now" });
    let (code, body) = match lists {
        _ if is_watch => (200, String::new()),
        Lists::Code(code) => (code, refusal(code).to_string()),
        _ => (200, pods.to_string()),
    };
    let length = if is_watch { 1 << 20 } else { body.len() };
    let fields = "content-type: application/json\r\nconnection: close";
    let head = format!("HTTP/1.1 {code} X\r\n{fields}\r\ncontent-length: {length}\r\n\r\n");
    match lists {
        _ if is_watch => drop(stream.write_all(head.as_bytes()).await),
        Lists::Closed => return,
        Lists::Hang => {}
        Lists::Half => drop(stream.write_all((head + &body[..body.len() / 2]).as_bytes()).await),
        Lists::Drip => {
            stream.write_all(head.as_bytes()).await.unwrap();
            for byte in body.into_bytes() {
                sleep(Duration::from_millis(300)).await;
                let _ = stream.write_all(&[byte]).await;
            }
        }
        Lists::Whole | Lists::Code(_) => return drop(stream.write_all((head + &body).as_bytes()).await),
    }
    std::future::pending::<()>().await;
}

/// Returns a cache of a server whose behaviour the sender changes.
async fn cache_of(lists: Lists, deadlines: Deadlines) -> (Arc<Cache<Pod>>, Sender<Lists>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let behaviour = Sender::new(lists);
    let current = behaviour.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, *current.borrow()));
        }
    });
    let client = client_of(ClientConfig::new(server.parse().unwrap()), deadlines, usize::MAX).unwrap();
    let cache = Arc::new(Cache::new("pods"));
    tokio::spawn(follow(client, Api::<PodObject>::all, watch::Config::default(), Arc::clone(&cache)));
    (cache, behaviour)
}

async fn waits_for(cache: &Cache<Pod>, reason: &str) {
    let look = async {
        while !cache.waited().is_some_and(|why| why.contains(reason)) {
            sleep(Duration::from_millis(50)).await;
        }
    };
    let found = timeout(Duration::from_secs(15), look).await;
    assert!(found.is_ok(), "{reason}: {:?}", cache.waited());
}

#[tokio::test]
async fn cold_cache_tells_what_the_api_server_does() {
    for (lists, reason) in [
        (Lists::Code(429), "the API server returned 429: not now"),
        (Lists::Code(503), "the API server returned 503: not now"),
        (Lists::Code(403), "the API server returned 403: not now"),
        (Lists::Closed, "connection closed before message completed"),
        (Lists::Hang, "the API server has not answered the list for 1 s"),
        (Lists::Hang, ": request timed out"),
        (Lists::Half, "the list stopped 1 s ago, after "),
        (Lists::Half, "its response stopped after "),
    ] {
        let (cache, _server) = cache_of(lists, DEADLINES_OF_TEST).await;
        waits_for(&cache, reason).await;
        assert!(!cache.is_synced() && cache.liveness.time_without_data() > Duration::ZERO);
    }
}

#[tokio::test]
async fn cache_recovers_from_a_list_that_stopped_or_dripped() {
    let short = Deadlines { body: Duration::from_secs(3), ..DEADLINES_OF_TEST };
    for (lists, reason) in [(Lists::Half, "stopped after"), (Lists::Drip, "has no end after 3 s")] {
        let (cache, server) = cache_of(lists, short).await;
        waits_for(&cache, reason).await;
        server.send_replace(Lists::Whole);
        timeout(Duration::from_secs(20), cache.synced()).await.expect("a complete list");
        assert_eq!((cache.count(), cache.age()), (1, Duration::ZERO));
    }
}
