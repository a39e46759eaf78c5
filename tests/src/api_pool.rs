//! An API server that a test has for itself for a while: to start one is much of what most tests would do.
//!
//! ```text
//!   machine (network of the test)            machine of the lender
//!   client ──► 0.0.0.0:6443 ── this process ──► 127.0.0.1:6443 kube-apiserver
//! ```
//!
//! Rules:
//! - who is lent one finds it as a new one: `tests/lender` sees to that;
//! - it is lent for as long as the connection to the lender is open, however the test ends;
//! - nothing of it is on the test's machine but the port: neither its processes and log nor its etcd.

use std::io::{self, BufRead, BufReader};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use testkit::Netns;

use crate::machine::{Machine, PATIENCE};

/// The lender's socket among the parts of the lane.
pub const LENDER: &str = "lender";
/// The port of every API server.
const PORT: u16 = 6443;

/// A server that is lent to us.
#[derive(Debug)]
pub struct Loan {
    listener: Arc<TcpListener>,
    _claim: UnixStream,
}

// === impl Loan ===

impl Loan {
    /// Waits for a server, and makes it the machine's; nothing where nobody lends.
    ///
    /// # Panics
    /// If the lender has none for too long.
    #[must_use]
    #[track_caller]
    pub fn ask(parts: &Path, machine: &Machine) -> Option<Loan> {
        let claim = UnixStream::connect(parts.join(LENDER)).ok()?;
        claim.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut place = String::new();
        let told = BufReader::new(&claim).read_line(&mut place).expect("the lender has a server for us");
        // It has none any more.
        if told == 0 {
            return None;
        }
        let there = machine.netns_at(Path::new(place.trim_end()));
        let listen = || TcpListener::bind(("0.0.0.0", PORT)).expect("the port of the API server");
        let listener = Arc::new(machine.within(listen));
        let taken = Arc::clone(&listener);
        thread::spawn(move || pass_on(&taken, &there));
        Some(Loan { listener, _claim: claim })
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        // Who waits for the next connection hears that there is none.
        let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
    }
}

/// Takes connections and makes each one to the server.
fn pass_on(listener: &TcpListener, there: &Netns) {
    while let Ok((near, _)) = listener.accept() {
        // One that is refused is closed here, too.
        let Ok(far) = there.within(|| TcpStream::connect(("127.0.0.1", PORT))) else { continue };
        let (near, far) = (Arc::new(near), Arc::new(far));
        for (from, to) in [(&near, &far), (&far, &near)] {
            let (from, to) = (Arc::clone(from), Arc::clone(to));
            // What is here is whole already.
            to.set_nodelay(true).expect("an option of a socket");
            thread::spawn(move || {
                // However it ends, the other side hears of it.
                let _ = io::copy(&mut &*from, &mut &*to);
                let _ = to.shutdown(Shutdown::Write);
            });
        }
    }
}
