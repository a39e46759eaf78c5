//! Lends API servers to tests, one after the other: `weft-test-lender COUNT` keeps so many until it is ended.
//!
//! ```text
//!   start ─► as it is when new ─► lent ─► given back ─► put back ─┐
//!                                  ▲                              │
//!                                  └──────────────────────────────┘
//! ```
//!
//! Rules:
//! - a server is lent to one test at a time, and looks as when it was new: it is put back (`tests/rig/contents.rs`) before
//!   it is lent again;
//! - one that cannot be put back is thrown away, and another is started;
//! - a test that is killed gives back what it had, as its connection ends with it.
//!
//! Source: ours; `tests/rig/loan.rs` is the other side.

#![allow(clippy::expect_used, reason = "a test's support fails by panicking")]

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::{env, fs, thread};

use rig::etcd_snapshot::Contents;
use rig::api_pool::LENDER;
use rig::{Kube, Machine};
use testkit::Host;

fn main() -> ExitCode {
    let count = env::args().nth(1).and_then(|count| count.parse().ok());
    let (Some(count), Some(parts)) = (count, rig::parts::parts("kube")) else {
        eprintln!("usage: weft-test-lender COUNT, after lanes/kube/prepare");
        return ExitCode::from(2);
    };
    let place = parts.join(LENDER);
    let _ = fs::remove_file(&place);
    let listener = UnixListener::bind(&place).expect("the lender's socket");
    thread::scope(|scope| {
        for _ in 0..count {
            // Where none can be started any more, tests have their own.
            scope.spawn(|| {
                while let Ok((kube, contents)) = catch_unwind(start) {
                    let lend = || lend_until_spoilt(&kube, &contents, &listener);
                    let _ = catch_unwind(AssertUnwindSafe(lend));
                }
            });
        }
    });
    ExitCode::FAILURE
}

fn start() -> (Kube, Contents) {
    let machine = Machine::new(Host::new(), "lender");
    let kube = Kube::own(machine.into()).expect("parts that are there");
    let contents = Contents::of(&kube);
    (kube, contents)
}

/// Lends a server to one after the other, until it cannot be put back.
fn lend_until_spoilt(kube: &Kube, contents: &Contents, listener: &UnixListener) {
    loop {
        let (test, _) = listener.accept().expect("a test");
        lend(&kube.machine(), test);
        if let Err(why) = contents.put_back(kube) {
            eprintln!("a server is thrown away: {why}");
            return;
        }
    }
}

/// Until the other side is closed.
fn lend(machine: &Machine, mut test: UnixStream) {
    let _ = writeln!(test, "{}", machine.handle().display());
    let _ = test.read(&mut [0]);
}
