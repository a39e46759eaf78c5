//! Agent health on this node: what `/readyz` says about the caches.
//!
//! An agent whose caches are stale still plans pods, but by an old state of the cluster: a changed policy or a new network
//! definition is unknown to it.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use super::Finding;

/// Default address of the agent's HTTP server (`weft agent --listen`).
const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);
/// Timeout for the connection, and for each part of the response.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum size of the response.
const RESPONSE_MAX: u64 = 64 << 10;
/// Maximum number of lines in a finding.
const LINES_MAX: usize = 20;

/// Answer from the address of the agent's HTTP server.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// No agent listens there.
    Absent,
    /// A program accepts connections and answers none: the agent is stopped, or blocked.
    Silent,
    /// Body of `/readyz`.
    Body(String),
}

/// Returns a finding if the agent hangs, waits for a cache, or has a stale one. An agent at another address is not known.
pub(super) fn finding() -> Option<Finding> {
    match ask(ADDRESS) {
        Answer::Absent => None,
        Answer::Silent => {
            let why = format!(
                "it accepts connections and does not answer within {} s, so no new pod gets its networks",
                TIMEOUT.as_secs()
            );
            let hint = "look whether its process is stopped or overloaded; delete the agent's pod on this node to restart it";
            Some(Finding::new(format!("agent at {ADDRESS}"), why, hint))
        }
        Answer::Body(body) => judge(&body),
    }
}

fn ask(address: SocketAddr) -> Answer {
    let Ok(stream) = TcpStream::connect_timeout(&address, TIMEOUT) else { return Answer::Absent };
    let mut response = Vec::new();
    // A response that ends early is judged by what arrived.
    let read = request(stream, address, &mut response);
    let is_late =
        read.is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut));
    let text = String::from_utf8_lossy(&response);
    match text.split_once("\r\n\r\n") {
        Some((_, body)) => Answer::Body(body.to_owned()),
        None if is_late && response.is_empty() => Answer::Silent,
        None => Answer::Absent,
    }
}

fn request(mut stream: TcpStream, address: SocketAddr, response: &mut Vec<u8>) -> std::io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let request = format!("GET /readyz HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    stream.take(RESPONSE_MAX).read_to_end(response).map(drop)
}

/// Returns the finding for a response: `ok`, `stale` or `waiting for: …`, and a line for each cache that is not current.
fn judge(body: &str) -> Option<Finding> {
    let (first, caches) = body.split_once('\n').unwrap_or((body, ""));
    let caches: Vec<&str> = caches.lines().filter(|line| !line.is_empty()).take(LINES_MAX).collect();
    let waits = first.strip_prefix("waiting for: ");
    if waits.is_none() && caches.is_empty() {
        return None;
    }
    let mut reasons: Vec<String> = waits.into_iter().map(|what| format!("it waits for {what}")).collect();
    if !caches.is_empty() {
        reasons.push(format!("it plans by an old state of the cluster: {}", caches.join("; ")));
    }
    let hint = "check the connection of this node to the API server, the rights of the agent, and its log";
    Some(Finding::new(format!("agent at {ADDRESS}"), reasons.join("; "), hint))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn stale_cache_of_the_agent_is_a_finding_of_doctor() {
        for fine in ["ok\n", "ok", ""] {
            assert!(judge(fine).is_none(), "{fine}");
        }
        let stale = judge("stale\npods: last known state of 240 s ago (no data for 30 s)\n").unwrap();
        assert!(
            stale.why.contains("pods: last known state of 240 s ago (no data for 30 s)"),
            "{}",
            stale.why
        );
        let waits = judge("waiting for: policyaddresssets (HTTP 403)\n").unwrap();
        assert_eq!(waits.why, "it waits for policyaddresssets (HTTP 403)");
        assert!(
            judge("ok\npods: last known state of 40 s ago\n").is_some(),
            "not yet stale, but not current"
        );
    }

    #[test]
    fn readyz_of_the_agent_is_asked_with_a_limit() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let read = stream.read(&mut request).unwrap();
            stream.write_all(b"HTTP/1.0 503 Service Unavailable\r\n\r\nstale\n").unwrap();
            String::from_utf8_lossy(&request[..read]).into_owned()
        });
        assert_eq!(ask(address), Answer::Body("stale\n".to_owned()));
        assert!(server.join().unwrap().starts_with("GET /readyz HTTP/1.0\r\n"));
        assert_eq!(ask(address), Answer::Absent, "nothing listens any more");
    }

    /// The kernel accepts connections of a stopped process.
    #[test]
    fn doctor_reports_an_agent_that_hangs() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(ask(listener.local_addr().unwrap()), Answer::Silent);
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap();
        let server = std::thread::spawn(move || drop(other.accept()));
        assert_eq!(ask(address), Answer::Absent, "another program that closes the connection");
        server.join().unwrap();
    }
}
