//! Client for the pool of API servers. A test has a server to itself for a while, because starting one takes longer
//! than most tests.
//!
//! ```text
//!   machine (network of the test)            machine of the pool
//!   client ──► 0.0.0.0:6443 ── this process ──► 127.0.0.1:6443 kube-apiserver
//! ```
//!
//! - A test gets a server that looks new: the pool (`tests/src/bin/api_pool.rs`) restores it after each use.
//! - A test has the server for as long as the connection to the pool is open, no matter how the test ends.
//! - If a test has more machines, each reaches the port in the same way.
//! - The test's machine only sees the server's port, not the processes, log or etcd.

use std::io::{self, BufRead, BufReader};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use testkit::Netns;

use crate::machine::{Machine, TIMEOUT};

/// Name of the pool's socket among the parts for lane `kube`.
pub const SOCKET: &str = "api-pool";
/// Port that every API server uses.
const PORT: u16 = 6443;

/// Server from the pool, returned when this value is dropped.
#[derive(Debug)]
pub struct PooledServer {
    listener: Arc<TcpListener>,
    _connection: Option<UnixStream>,
}

// === impl PooledServer ===

impl PooledServer {
    /// Waits for a server from the pool and makes it reachable on `machine`; `None` if no pool runs or it has no server
    /// left.
    ///
    /// # Panics
    /// No server becomes free within [`TIMEOUT`].
    #[must_use]
    #[track_caller]
    pub fn take(parts: &Path, machine: &Machine) -> Option<PooledServer> {
        let connection = UnixStream::connect(parts.join(SOCKET)).ok()?;
        connection.set_read_timeout(Some(TIMEOUT)).expect("a timeout");
        let mut netns = String::new();
        let length = BufReader::new(&connection).read_line(&mut netns).expect("a free server in the pool");
        // The pool closed the connection because it has no servers.
        if length == 0 {
            return None;
        }
        let there = machine.netns_at(Path::new(netns.trim_end()));
        let listener = listen(machine, there);
        Some(PooledServer { listener, _connection: Some(connection) })
    }

    /// Makes one machine's server reachable on another machine.
    #[must_use]
    #[track_caller]
    pub fn of(there: &Machine, machine: &Machine) -> PooledServer {
        let listener = listen(machine, machine.netns_at(&there.handle()));
        PooledServer { listener, _connection: None }
    }
}

impl Drop for PooledServer {
    fn drop(&mut self) {
        // Ends the thread that accepts connections.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }
}

/// Listens on a machine, and forwards every connection to the server in another network namespace.
fn listen(machine: &Machine, there: Netns) -> Arc<TcpListener> {
    let listen = || TcpListener::bind(("0.0.0.0", PORT)).expect("the port of the API server");
    let listener = Arc::new(machine.within(listen));
    let accepting = Arc::clone(&listener);
    thread::spawn(move || forward(&accepting, &there));
    listener
}

/// Forwards every connection to the server.
fn forward(listener: &TcpListener, there: &Netns) {
    while let Ok((near, _)) = listener.accept() {
        // If the server refuses, dropping `near` closes the client's connection.
        let Ok(far) = there.within(|| TcpStream::connect(("127.0.0.1", PORT))) else { continue };
        let (near, far) = (Arc::new(near), Arc::new(far));
        for (from, to) in [(&near, &far), (&far, &near)] {
            let (from, to) = (Arc::clone(from), Arc::clone(to));
            // Data is sent as soon as it is read.
            to.set_nodelay(true).expect("an option of a socket");
            thread::spawn(move || {
                // When one direction ends, this is passed on, even after an error.
                let _ = io::copy(&mut &*from, &mut &*to);
                let _ = to.shutdown(Shutdown::Write);
            });
        }
    }
}
