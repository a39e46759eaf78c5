//! `weft cri-proxy` before a real containerd: what is not its own passes as it is.
//!
//! ```text
//!   the test ── CRI ── weft cri-proxy ── CRI ── containerd
//! ```
//!
//! Source: gRPC over HTTP/2; CRI `runtime.v1`.

use rig::machine::until;
use rig::{Containerd, Proxy, assert_nothing_left};
use testkit::{Feature, host};

/// A runtime with four networks and a proxy before it.
macro_rules! proxy {
    ($($name:expr),*) => {{
        let host = host!(Feature::Bridge, Feature::Veth, Feature::NftMasquerade);
        let Some(node) = Containerd::with_networks(host, &[$($name),*]) else { return };
        Proxy::before(node)
    }};
}

#[test]
fn a_pod_lives_through_the_proxy_as_without_it() {
    let proxy = proxy!("web");
    let before = proxy.snapshot();
    let web = proxy.cri().run_pod_sandbox(&proxy.pod("web", &[])).expect("a pod");
    let (through, behind) =
        (proxy.cri().pod_sandbox_status(&web), proxy.node().cri().pod_sandbox_status(&web));
    let (through, behind) = (through.expect("a status"), behind.expect("a status"));
    assert_eq!((through.ready, &through.addresses), (true, &behind.addresses));
    assert_eq!(through.info, behind.info, "the runtime's notes pass");
    proxy.cri().stop_pod_sandbox(&web).expect("stop");
    proxy.cri().remove_pod_sandbox(&web).expect("remove");
    assert_eq!(proxy.node().cri().list_pod_sandbox().expect("a list"), []);
    let [through, behind] = [proxy.cri(), proxy.node().cri()].map(|cri| cri.pod_sandbox_status(&web));
    assert_eq!(through.expect_err("it is gone"), behind.expect_err("it is gone"), "the runtime's own words");
    assert_nothing_left("a pod through the proxy", &proxy, &before);
}

#[test]
fn a_runtime_that_is_away_is_unavailable_and_found_again_when_it_is_back() {
    let proxy = proxy!("web");
    let web = proxy.cri().run_pod_sandbox(&proxy.pod("web", &[])).expect("a pod");
    proxy.machine().stop("containerd", "KILL");
    let error = proxy.cri().list_pod_sandbox().expect_err("nobody is there");
    assert!(error.contains("runtime /run/containerd/containerd.sock: "), "{error}");
    proxy.node().launch();
    assert_eq!(proxy.cri().list_pod_sandbox().expect("a list"), [(web.clone(), true)]);
    // The other way round: the proxy is replaced, the runtime and its pods stay.
    proxy.stop("TERM");
    assert!(!proxy.reach(rig::proxy::SOCKET).exists(), "it took its socket away");
    proxy.launch();
    assert_eq!(proxy.cri().list_pod_sandbox().expect("a list"), [(web.clone(), true)]);
    proxy.stop("KILL");
    proxy.launch();
    until("the proxy is back", || proxy.cri().list_pod_sandbox().ok());
    proxy.remove(&web);
}
