//! Pool of API servers that tests use one after the other: `weft-test-api-pool COUNT` runs COUNT servers until it is
//! ended.
//!
//! ```text
//!   start ─► snapshot of etcd ─► in use by a test ─► connection closed ─► etcd restored ─┐
//!                                  ▲                                                     │
//!                                  └─────────────────────────────────────────────────────┘
//! ```
//!
//! - Only one test at a time uses a server. Before the next test gets it, etcd is restored
//!   (`tests/src/etcd_snapshot.rs`).
//! - If a server cannot be restored, it is stopped and another one is started.
//! - A killed test also returns the server, because the connection to the pool ends with the test.
//!
//! The client is `tests/src/api_pool.rs`.

#![allow(clippy::expect_used, reason = "a test's support fails by panicking")]

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::{env, fs, thread};

use rig::api_pool::SOCKET;
use rig::etcd_snapshot::EtcdSnapshot;
use rig::{Kube, Machine};
use testkit::Host;

fn main() -> ExitCode {
    let count = env::args().nth(1).and_then(|count| count.parse().ok());
    let (Some(count), Some(parts)) = (count, rig::parts::parts("kube")) else {
        eprintln!("usage: weft-test-api-pool COUNT, after lanes/kube/prepare");
        return ExitCode::from(2);
    };
    let socket = parts.join(SOCKET);
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).expect("the socket of the pool");
    thread::scope(|scope| {
        for _ in 0..count {
            // If no server starts any more, the thread ends, and tests start their own servers.
            scope.spawn(|| {
                while let Ok((kube, snapshot)) = catch_unwind(start) {
                    serve_until_broken(&kube, &snapshot, &listener);
                }
            });
        }
    });
    ExitCode::FAILURE
}

fn start() -> (Kube, EtcdSnapshot) {
    let machine = Machine::new(Host::new(), "api-pool");
    let kube = Kube::own(machine.into()).expect("parts that are there");
    let snapshot = EtcdSnapshot::of(&kube);
    (kube, snapshot)
}

/// Serves one test after the other, until the server cannot be restored.
fn serve_until_broken(kube: &Kube, snapshot: &EtcdSnapshot, listener: &UnixListener) {
    loop {
        let (test, _) = listener.accept().expect("a test");
        serve(&kube.machine(), test);
        // Calling a server that has ended panics, and the panic prints its message.
        let restored = catch_unwind(AssertUnwindSafe(|| snapshot.restore(kube)));
        match restored {
            Ok(Ok(())) => {}
            Ok(Err(why)) => return report(&kube.machine(), &why),
            Err(_) => return report(&kube.machine(), "etcd did not answer"),
        }
    }
}

/// Prints why a server is replaced, and the last lines from it and from etcd, because they may explain why a test
/// failed.
fn report(machine: &Machine, why: &str) {
    eprintln!("api-pool: starting another API server, because this one could not be restored: {why}");
    for service in ["kube-apiserver", "etcd"] {
        let state = if machine.is_running(service) { "runs" } else { "has ended" };
        eprintln!("api-pool: {service} {state}; its log ends with\n{}", machine.log_end(service));
    }
}

/// Sends a test the server's network namespace, and returns when the test has closed the connection.
fn serve(machine: &Machine, mut test: UnixStream) {
    let _ = writeln!(test, "{}", machine.handle().display());
    let _ = test.read(&mut [0]);
}
