//! Tests how many netfilter sockets a process keeps open. The test is alone in its program, because it counts the
//! process's descriptors.

#![cfg(test)]

use std::fs;

use linux::Netns;
use linux::nft::Family;
use testkit::{Feature, Pod, host};

/// More pods than sockets that stay open.
const PODS: usize = 40;
/// Maximum number of additional descriptors: the sockets that stay open, and the one in use.
const FURTHER_MAX: usize = 17;

/// Counts the open descriptors.
fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("descriptors").count()
}

#[test]
fn netfilter_sockets_are_used_again_and_their_number_is_bounded() {
    let host = host!(Feature::NftInet, Feature::Conntrack);
    let pods: Vec<Pod> = (0..PODS).map(|number| host.pod(&format!("p{number}"))).collect();
    let own = Netns::open(&host.handle()).expect("open the host's namespace");
    let use_in = |netns: &Netns| {
        assert_eq!(netns.nft().expect("a socket").tables(Family::Inet).expect("a list"), [""; 0]);
        assert!(netns.conntrack().expect("a socket").is_empty().expect("a count"));
    };
    use_in(&own);
    let before = descriptors();
    for _ in 0..100 {
        use_in(&own);
    }
    assert_eq!(descriptors(), before, "one socket serves all");
    // A socket in use must not serve a second user.
    let (mut one, mut other) = (own.nft().expect("a socket"), own.nft().expect("a socket"));
    assert_eq!(descriptors(), before + 1);
    assert!(one.tables(Family::Inet).is_ok() && other.tables(Family::Inet).is_ok());
    drop((one, other));
    for pod in &pods {
        use_in(&Netns::open(&pod.handle()).expect("open the pod's namespace"));
        assert!(descriptors() <= before + FURTHER_MAX, "{} instead of {before}", descriptors());
    }
    use_in(&own);
}
