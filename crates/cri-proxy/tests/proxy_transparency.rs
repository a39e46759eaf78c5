//! Proves that `weft cri-proxy` is transparent: random calls, messages, metadata and trailers that it does not know
//! pass unchanged.
//!
//! ```text
//!   the test ── HTTP/2 ── weft cri-proxy ── HTTP/2 ── a server that sends everything back
//! ```
//!
//! `tests/containerd` covers the calls that a real runtime has. The server here is needed because no runtime answers
//! calls that do not exist yet.
//!
//! Source: gRPC over HTTP/2.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

type Body = UnsyncBoxBody<Bytes, Infallible>;
type Sender = hyper::client::conn::http2::SendRequest<Body>;

/// Proxy with a server behind it; dropping this value ends both.
struct Setting {
    directory: PathBuf,
    proxy: Child,
}

impl Setting {
    async fn new(name: &str) -> Setting {
        let directory = std::env::temp_dir().join(format!("weft-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let path = |name: &str| directory.join(name).display().to_string();
        let listener = UnixListener::bind(path("runtime.sock")).expect("a socket");
        tokio::spawn(serve(listener));
        let mut command = Command::new(testkit::binary("weft"));
        command.args(["cri-proxy", "--listen", &path("cri.sock"), "--runtime", &path("runtime.sock")]);
        command.args(["--store", &path("networks"), "--journal", &path("journal")]);
        command.args(["--plan-socket", &path("plan.sock"), "--fallback", &path("net.d"), "--log", "warn"]);
        let proxy = command.spawn().expect("weft runs");
        Setting { directory, proxy }
    }

    async fn connect(&self) -> Sender {
        let started = Instant::now();
        let stream = loop {
            match UnixStream::connect(self.directory.join("cri.sock")).await {
                Ok(stream) => break stream,
                Err(error) => assert!(started.elapsed() < Duration::from_secs(30), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
        let (sender, connection) = handshake.await.expect("HTTP/2");
        tokio::spawn(connection);
        sender
    }
}

impl Drop for Setting {
    fn drop(&mut self) {
        let _ = self.proxy.kill();
        let _ = self.proxy.wait();
        let _ = std::fs::remove_dir_all(Path::new(&self.directory));
    }
}

/// Serves connections; each response repeats the body as it arrives, then sends the metadata back as trailers.
async fn serve(listener: UnixListener) {
    while let Ok((stream, _)) = listener.accept().await {
        let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let connection = builder.auto_date_header(false).serve_connection(
            TokioIo::new(stream),
            service_fn(|request| async { Ok::<_, Infallible>(echo(request)) }),
        );
        tokio::spawn(async move { drop(connection.await) });
    }
}

fn echo(request: Request<Incoming>) -> Response<Body> {
    let (parts, mut body) = request.into_parts();
    let mut trailers = HeaderMap::new();
    for (name, value) in &parts.headers {
        if name.as_str().starts_with("x-") || name == "grpc-timeout" {
            trailers.append(name.clone(), value.clone());
        }
    }
    trailers.insert("x-path", parts.uri.path().parse().expect("a path"));
    if parts.headers.contains_key("x-error") {
        // An error without a message: the headers are also the trailers.
        let mut response = Response::new(Full::new(Bytes::new()).boxed_unsync());
        response.headers_mut().insert("grpc-status", "5".parse().expect("a code"));
        response.headers_mut().insert("grpc-message", "none of it".parse().expect("a text"));
        return response;
    }
    let (sender, receiver) = mpsc::channel::<Result<Frame<Bytes>, Infallible>>(4);
    tokio::spawn(async move {
        while let Some(Ok(frame)) = body.frame().await {
            // A request ends with an empty frame, but HTTP/2 limits how many empty frames a response may have.
            if frame.data_ref().is_some_and(Bytes::is_empty) {
                continue;
            }
            if sender.send(Ok(frame)).await.is_err() {
                return;
            }
        }
        let _ = sender.send(Ok(Frame::trailers(trailers))).await;
    });
    let mut response = Response::new(StreamBody::new(received(receiver)).boxed_unsync());
    response.headers_mut().insert("content-type", "application/grpc".parse().expect("a type"));
    response
}

fn received<T: Send + 'static>(receiver: mpsc::Receiver<T>) -> impl futures_util::Stream<Item = T> + Send {
    futures_util::stream::unfold(receiver, |mut receiver| async move {
        let item = receiver.recv().await?;
        Some((item, receiver))
    })
}

/// Random call.
#[derive(Clone, Debug)]
struct Call {
    path: String,
    metadata: BTreeMap<String, String>,
    pieces: Vec<Vec<u8>>,
}

fn call() -> impl Strategy<Value = Call> {
    let word = "[A-Za-z][A-Za-z0-9_.]{0,20}";
    let path = (word, word).prop_map(|(service, method)| format!("/{service}/{method}"));
    let own = "(SetPodNetwork|ListPodNetwork|RemovePodNetwork|RunPodSandbox|Status)";
    let path = path.prop_filter("the proxy's own", move |path| {
        !own.contains(path.rsplit('/').next().unwrap_or_default())
    });
    // Calls whose responses are decoded, with messages that lack the annotation or are malformed.
    let looked_at = prop::sample::select(vec![
        "PodSandboxStatus",
        "ListPodSandbox",
        "GetContainerEvents",
        "StreamPodSandboxes",
        "PodSandboxStats",
        "ListPodSandboxStats",
        "Status",
    ])
    .prop_map(|method| format!("/runtime.v1.RuntimeService/{method}"));
    let metadata = prop::collection::btree_map("x-[a-z][a-z0-9-]{0,12}", "[ -~]{1,40}", 0..5);
    let metadata = metadata.prop_map(|metadata| {
        let kept = metadata.into_iter().map(|(name, value)| (name, value.trim().to_owned()));
        kept.filter(|(name, _)| name != "x-error" && name != "x-path").collect()
    });
    let message = prop::collection::vec(any::<u8>(), 0..3000).prop_map(|content| {
        let mut message = vec![0];
        message.extend_from_slice(&u32::try_from(content.len()).unwrap().to_be_bytes());
        message.extend(content);
        message
    });
    (prop_oneof![3 => path, 1 => looked_at], metadata, prop::collection::vec(message, 0..6))
        .prop_map(|(path, metadata, pieces)| Call { path, metadata, pieces })
}

fn request(call: &Call) -> Request<Body> {
    let pieces: Vec<_> =
        call.pieces.iter().map(|piece| Ok(Frame::data(Bytes::from(piece.clone())))).collect();
    let body = StreamBody::new(futures_util::stream::iter(pieces)).boxed_unsync();
    let mut builder = Request::post(format!("http://localhost{}", call.path))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", "30S");
    for (name, value) in &call.metadata {
        builder = builder.header(name, value);
    }
    builder.body(body).expect("a request")
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

#[test]
fn proxy_forwards_unknown_calls_messages_and_metadata_unchanged() {
    let runtime = runtime();
    let (setting, sender) = runtime.block_on(async {
        let setting = Setting::new("transparency").await;
        let sender = setting.connect().await;
        (setting, sender)
    });
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(300) });
    let outcome = runner.run(&call(), |call| {
        let mut sender = sender.clone();
        let answer = runtime.block_on(async {
            sender.ready().await.expect("a connection");
            let answer = sender.send_request(request(&call)).await.expect("an answer");
            answer.into_body().collect().await.expect("a body")
        });
        let trailers = answer.trailers().cloned().unwrap_or_default();
        let came = |name: &str| trailers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        prop_assert_eq!(answer.to_bytes().to_vec(), call.pieces.concat());
        prop_assert_eq!(came("x-path"), Some(call.path.clone()));
        prop_assert_eq!(came("grpc-timeout"), Some("30S".to_owned()));
        for (name, value) in &call.metadata {
            prop_assert_eq!(came(name), Some(value.clone()));
        }
        Ok(())
    });
    drop(setting);
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

/// Encodes a message record.
fn record(number: u32, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for mut value in [u64::from(number) << 3 | 2, content.len() as u64] {
        while value >= 0x80 {
            out.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
            value >>= 7;
        }
        out.push(u8::try_from(value).unwrap());
    }
    out.extend_from_slice(content);
    out
}

/// Encodes an entry for a `map<string, string>` in the field `number`.
fn entry(number: u32, key: &str, value: &str) -> Vec<u8> {
    record(number, &[record(1, key.as_bytes()), record(2, value.as_bytes())].concat())
}

/// Adds the gRPC prefix to a message.
fn framed(message: &[u8]) -> Vec<u8> {
    let mut out = vec![0];
    out.extend_from_slice(&u32::try_from(message.len()).unwrap().to_be_bytes());
    out.extend_from_slice(message);
    out
}

#[test]
fn proxy_removes_its_annotation_from_every_response() {
    let runtime = runtime();
    let (setting, sender) = runtime.block_on(async {
        let setting = Setting::new("annotation").await;
        let sender = setting.connect().await;
        (setting, sender)
    });
    let methods = [
        "ListPodSandbox",
        "StreamPodSandboxes",
        "PodSandboxStats",
        "ListPodSandboxStats",
        "StreamPodSandboxStats",
        // A request without networks passes with every field; its response is not a list.
        "RunPodSandbox",
    ];
    let unknown = (1000u32..500_000, prop::collection::vec(any::<u8>(), 0..300));
    let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(60) });
    let outcome =
        runner.run(&(prop::sample::select(methods.to_vec()), unknown), |(method, (number, bytes))| {
            let ours = match method {
                "RunPodSandbox" => Vec::new(),
                _ => entry(6, "weft.dev/attachments", r#"[{"interface":"eth0","network":"red"}]"#),
            };
            let sandbox = |ours: &[u8]| {
                let inner =
                    [&record(1, b"id")[..], ours, &entry(7, "mine", "1"), &record(number, &bytes)].concat();
                // RunPodSandboxRequest and ListPodSandboxResponse; in stats, the attributes are nested one level
                // deeper.
                framed(&[record(1, &inner), record(number, &bytes)].concat())
            };
            let sent = sandbox(&ours);
            let call = Call {
                path: format!("/runtime.v1.RuntimeService/{method}"),
                metadata: BTreeMap::new(),
                pieces: vec![sent],
            };
            let mut sender = sender.clone();
            let answer = runtime.block_on(async {
                sender.ready().await.expect("a connection");
                let answer = sender.send_request(request(&call)).await.expect("an answer");
                answer.into_body().collect().await.expect("a body")
            });
            prop_assert_eq!(answer.to_bytes().to_vec(), sandbox(&[]), "{}", method);
            Ok(())
        });
    drop(setting);
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn proxy_passes_bidirectional_streams_large_messages_and_errors() {
    runtime().block_on(async {
        let setting = Setting::new("streams").await;
        let mut sender = setting.connect().await;
        // Each message is answered before the next one is sent.
        let (feed, fed) = mpsc::channel::<Result<Frame<Bytes>, Infallible>>(1);
        let body = StreamBody::new(received(fed)).boxed_unsync();
        let request = Request::post("http://localhost/a.B/Talk").body(body).expect("a request");
        let mut answer = sender.send_request(request).await.expect("an answer").into_body();
        for word in ["one", "two", "three"] {
            feed.send(Ok(Frame::data(Bytes::from(word)))).await.expect("it listens");
            let frame = answer.frame().await.expect("a frame").expect("data");
            assert_eq!(frame.into_data().expect("data"), word);
        }
        drop(feed);
        assert!(answer.frame().await.expect("trailers").expect("trailers").is_trailers());
        // 16 MiB, the limit in container runtimes.
        let large =
            Call { path: "/a.B/Large".into(), metadata: BTreeMap::new(), pieces: vec![vec![7; 16 << 20]] };
        let answer = sender.send_request(self::request(&large)).await.expect("an answer");
        assert_eq!(answer.into_body().collect().await.expect("a body").to_bytes().len(), 16 << 20);
        // An error without a message ends with its headers, and Go clients require the flag on them.
        let mut failing = large;
        failing.pieces.clear();
        failing.metadata.insert("x-error".into(), "yes".into());
        for path in ["/a.B/Error", "/runtime.v1.RuntimeService/PodSandboxStatus"] {
            failing.path = path.into();
            let answer = sender.send_request(self::request(&failing)).await.expect("an answer");
            assert_eq!(
                (&answer.headers()["grpc-status"], answer.headers().get("date")),
                (&"5".parse().unwrap(), None)
            );
            assert!(hyper::body::Body::is_end_stream(answer.body()), "{path}");
        }
    });
}
