//! Tests namespaces that are created and removed concurrently, as by an ADD that was killed and the DEL after it.

#![cfg(test)]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use linux::Netns;
use linux::netns::Lock;
use testkit::host;

const PATH: &str = "/run/netns/both";
/// Number of attempts, enough for some to overlap at every step.
const ROUNDS: usize = 300;

#[test]
fn netns_created_and_removed_concurrently_is_never_busy() {
    let (host, is_over) = (host!(), AtomicBool::new(false));
    let remove = || Netns::destroy(Path::new(PATH)).unwrap_or_else(|error| panic!("{error}"));
    host.within(|| Netns::create(Path::new(PATH)).map(drop)).expect("a namespace can be created");
    thread::scope(|scope| {
        scope.spawn(|| {
            // Whether this succeeds depends on timing.
            host.within(|| (0..ROUNDS).for_each(|_| drop(Netns::create(Path::new(PATH)))));
            is_over.store(true, Ordering::Release);
        });
        host.within(|| {
            while !is_over.load(Ordering::Acquire) {
                remove();
            }
            remove();
        });
    });
    assert!(!host.within(|| Path::new(PATH).exists()), "the last one was removed");
}

#[test]
fn netns_lock_is_only_for_administrators() {
    let host = host!();
    let hold =
        "setpriv --reuid 65534 --clear-groups flock -x /proc/self/ns/net sh -c 'echo held; exec sleep 5'";
    host.run([
        "sh",
        "-c",
        // A new file, because an existing one would show the lock too early.
        &format!("f=$(mktemp); ({hold}) >$f 2>&1 & while ! grep -q held $f; do sleep 0.01; done; rm $f"),
    ]);
    host.within(|| {
        let beside = Netns::lock_own(Lock::Shared).expect("a shared lock");
        let _two = Netns::lock_own(Lock::Shared).expect("a second shared lock");
        assert!(Netns::lock_own(Lock::TryExclusive).is_err(), "shared locks are held");
        let own = Netns::own().expect("this namespace");
        assert!(own.lock(Lock::TryExclusive).is_err(), "by its handle, it is the same lock");
        drop((beside, _two));
        drop(own.lock(Lock::TryExclusive).expect("released"));
    });
}
