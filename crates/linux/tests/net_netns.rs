//! Namespaces that are made and removed at the same moment, as by an attach that was killed and the detach after it.

#![cfg(test)]

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use linux::Netns;
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
