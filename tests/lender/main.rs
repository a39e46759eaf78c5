//! Lends API servers to tests, one after the other: `weft-test-lender COUNT` keeps so many until it is ended.
//!
//! ```text
//!   start ─► as it is when new ─► lent ─► given back ─► put back ─┐
//!                                  ▲                              │
//!                                  └──────────────────────────────┘
//! ```
//!
//! Rules:
//! - a server is lent to one test at a time, and looks as when it was new: what etcd holds is put back, and lent again only
//!   when the server itself has heard of all of it;
//! - one that cannot be put back is thrown away, and another is started;
//! - a test that is killed gives back what it had, as its connection ends with it.
//!
//! Source: etcd's JSON gateway, `/v3/kv`; `tests/rig/loan.rs` is the other side.

#![allow(clippy::expect_used, reason = "a test's support fails by panicking")]

mod contents;

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::panic::catch_unwind;
use std::sync::Arc;
use std::{env, fs, process, thread};

use rig::loan::LENDER;
use rig::{Kube, Machine};
use testkit::Host;

use contents::Contents;

fn main() {
    let count = env::args().nth(1).and_then(|count| count.parse().ok());
    let (Some(count), Some(parts)) = (count, rig::parts::parts("kube")) else {
        eprintln!("usage: weft-test-lender COUNT, after lanes/kube/prepare");
        process::exit(2);
    };
    let place = parts.join(LENDER);
    let _ = fs::remove_file(&place);
    let listener = UnixListener::bind(&place).expect("the lender's socket");
    thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| {
                // Who waits is better off with a server of its own than with none.
                while catch_unwind(|| keep_one(&listener)).is_ok() {}
                process::exit(1);
            });
        }
    });
}

/// Starts a server and lends it, until it cannot be put back.
fn keep_one(listener: &UnixListener) {
    let machine = Arc::new(Machine::new(Host::new(), "lender"));
    let kube = Kube::own(Arc::clone(&machine)).expect("parts that are there");
    let contents = Contents::of(&kube);
    loop {
        let (test, _) = listener.accept().expect("a test");
        lend(&machine, test);
        if let Err(why) = contents.put_back(&kube) {
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
