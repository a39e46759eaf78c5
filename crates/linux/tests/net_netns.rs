//! Namespaces that are made and removed at the same moment, as by an attach that was killed and the detach after it.

#![cfg(test)]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use linux::Netns;
use linux::netns::Lock;
use testkit::host;

const PATH: &str = "/run/netns/both";
/// Enough for some of them to meet at every step.
const ROUNDS: usize = 300;

#[test]
fn one_that_is_made_meanwhile_is_removed_or_cannot_be_made_and_is_never_busy() {
    let (host, is_over) = (host!(), AtomicBool::new(false));
    let remove = || Netns::destroy(Path::new(PATH)).unwrap_or_else(|error| panic!("{error}"));
    host.within(|| Netns::create(Path::new(PATH)).map(drop)).expect("one can be made");
    thread::scope(|scope| {
        scope.spawn(|| {
            // Whether one could be made is chance.
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
    assert!(!host.within(|| Path::new(PATH).exists()), "the last one is gone");
}

#[test]
fn nobody_who_may_only_look_at_a_namespace_keeps_its_administrators_waiting() {
    let host = host!();
    let hold =
        "setpriv --reuid 65534 --clear-groups flock -x /proc/self/ns/net sh -c 'echo held; exec sleep 5'";
    host.run([
        "sh",
        "-c",
        // A file of its own: an older one would say so before it is held.
        &format!("f=$(mktemp); ({hold}) >$f 2>&1 & while ! grep -q held $f; do sleep 0.01; done; rm $f"),
    ]);
    host.within(|| {
        let beside = Netns::lock_own(Lock::Shared).expect("a shared lock");
        let _two = Netns::lock_own(Lock::Shared).expect("two of them");
        assert!(Netns::lock_own(Lock::TryExclusive).is_err(), "not while they are held");
        let own = Netns::own().expect("this namespace");
        assert!(own.lock(Lock::TryExclusive).is_err(), "by its handle, it is the same lock");
        drop((beside, _two));
        drop(own.lock(Lock::TryExclusive).expect("released"));
    });
}
