//! Requests to the page: files, stream, and the headers for every response.
//!
//! - Only GET and HEAD exist. The path of each view, also of a deep link, returns the same document: which rows exist is
//!   only in the stream, so a deep link tells nothing about objects that a viewer may not see.
//! - The Content-Security-Policy permits no inline script, no other host, and no HTML from strings (trusted types).
//!
//! Source: RFC 9110; Content Security Policy Level 3.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, ETAG, HOST, HeaderName, HeaderValue, IF_NONE_MATCH,
    RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use tokio::sync::mpsc;

use super::PageController;
use super::access::{Denied, Protection};
use super::assets::{self, Asset};
use super::stream::{ConnectionState, StreamClient, feed};

/// Path of the stream.
const STREAM: &str = "/api/stream";
/// Headers of every response.
const HEADERS: [(&str, &str); 6] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
         trusted-types 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
];

/// Body of a response.
pub(super) type PageBody = UnsyncBoxBody<Bytes, Infallible>;

/// Returns the response to a request.
pub(super) async fn answer(
    request: &Parts,
    page: Arc<PageController>,
    connection: &Arc<ConnectionState>,
) -> Response<PageBody> {
    let mut response = route(request, page, connection).await;
    for (name, value) in HEADERS {
        response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

async fn route(
    request: &Parts,
    page: Arc<PageController>,
    connection: &Arc<ConnectionState>,
) -> Response<PageBody> {
    if ![Method::GET, Method::HEAD].contains(&request.method) {
        let mut response =
            plain(StatusCode::METHOD_NOT_ALLOWED, "the page is read-only: GET and HEAD alone exist\n");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let host = request.headers.get(HOST).and_then(|value| value.to_str().ok());
    if page.access.protection() == Protection::Loopback && !host.is_some_and(is_own_host) {
        let why = "without a token the page is served under localhost or a loopback address alone\n";
        return plain(StatusCode::MISDIRECTED_REQUEST, why);
    }
    let path = request.uri.path();
    if path == STREAM {
        return stream_of(request, page, connection).await;
    }
    match assets::find(path) {
        Some(asset) => file(request, asset),
        None => plain(StatusCode::NOT_FOUND, "not found\n"),
    }
}

/// Whether a web site of another name cannot have caused the request: the host is `localhost` or a loopback address.
fn is_own_host(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost")
        || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

fn file(request: &Parts, asset: &Asset) -> Response<PageBody> {
    let known = request.headers.get(IF_NONE_MATCH).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let tag = asset.tag();
    let is_known = known.split(',').any(|known| known.trim().trim_start_matches("W/") == tag);
    let mut response = if is_known {
        let mut response = Response::new(Full::default().boxed_unsync());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else {
        Response::new(Full::new(Bytes::from_static(asset.content.as_bytes())).boxed_unsync())
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(asset.content_type));
    // A browser asks each time, because a new version of weft has other files.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(ETAG, tag);
    }
    response
}

async fn stream_of(
    request: &Parts,
    page: Arc<PageController>,
    connection: &Arc<ConnectionState>,
) -> Response<PageBody> {
    let authorization = request.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let viewer = match page.access.viewer(authorization, Some(connection.client)).await {
        Ok(viewer) => viewer,
        Err(denied) => {
            page.metrics.refused.inc();
            return refused(&denied);
        }
    };
    let counted = match page.streams.open(viewer.user()) {
        Ok(counted) => counted,
        Err(why) => {
            page.metrics.refused.inc();
            let mut response = plain(StatusCode::SERVICE_UNAVAILABLE, &format!("{why}\n"));
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("30"));
            return response;
        }
    };
    let body = if request.method == Method::HEAD {
        Full::default().boxed_unsync()
    } else {
        connection.is_stream.store(true, Ordering::Relaxed);
        let (sender, receiver) = mpsc::channel(1);
        let client = StreamClient::new(sender, Arc::clone(connection));
        tokio::spawn(feed(page, authorization.map(str::to_owned), client, counted));
        let frames = stream::unfold(receiver, |mut receiver| async {
            receiver.recv().await.map(|bytes| (Ok(Frame::data(bytes)), receiver))
        });
        StreamBody::new(frames).boxed_unsync()
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // A proxy must not gather the events (nginx).
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

fn refused(denied: &Denied) -> Response<PageBody> {
    let status = match denied {
        Denied::NoToken | Denied::InvalidToken => StatusCode::UNAUTHORIZED,
        Denied::TooMany => StatusCode::TOO_MANY_REQUESTS,
        Denied::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    let mut response = plain(status, &format!("{denied}\n"));
    match denied {
        Denied::NoToken | Denied::InvalidToken => {
            response
                .headers_mut()
                .insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"weft\""));
        }
        Denied::TooMany | Denied::Unavailable(_) => {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
        }
    }
    response
}

fn plain(status: StatusCode, text: &str) -> Response<PageBody> {
    let mut response = Response::new(Full::new(Bytes::copy_from_slice(text.as_bytes())).boxed_unsync());
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_host_of_another_site_is_no_own_host() {
        for own in ["localhost", "LOCALHOST:9467", "127.0.0.1:9467", "127.1.2.3", "[::1]:9467", "[::1]"] {
            assert!(is_own_host(own), "{own}");
        }
        for other in [
            "",
            "evil.example",
            "localhost.evil.example",
            "10.0.0.1:9467",
            "127.0.0.1.evil.example:80",
            "a:b",
        ] {
            assert!(!is_own_host(other), "{other}");
        }
    }
}
