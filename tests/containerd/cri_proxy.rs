//! Tests for `weft cri-proxy` before a real containerd: it forwards all other calls unchanged.
//!
//! ```text
//!   the test ── CRI ── weft cri-proxy ── CRI ── containerd
//! ```
//!
//! Source: gRPC over HTTP/2; CRI `runtime.v1`.

use rig::machine::until;
use rig::{Containerd, Proxy, assert_nothing_left};
use testkit::{Feature, host};

/// Returns a runtime with four networks and a proxy before it.
macro_rules! proxy {
    ($($name:expr),*) => {{
        let host = host!(Feature::Bridge, Feature::Veth, Feature::NftMasquerade);
        let Some(node) = Containerd::with_networks(host, &[$($name),*]) else { return };
        Proxy::before(node)
    }};
}

#[test]
fn cri_proxy_forwards_the_life_of_a_pod_unchanged() {
    let proxy = proxy!("web");
    let before = proxy.snapshot();
    let web = proxy.cri().run_pod_sandbox(&proxy.pod("web", &[])).expect("a pod");
    let (through, behind) =
        (proxy.cri().pod_sandbox_status(&web), proxy.node().cri().pod_sandbox_status(&web));
    let (through, behind) = (through.expect("a status"), behind.expect("a status"));
    assert_eq!((through.ready, &through.addresses), (true, &behind.addresses));
    assert_eq!(through.info, behind.info, "the runtime's info is forwarded");
    proxy.cri().stop_pod_sandbox(&web).expect("stop");
    proxy.cri().remove_pod_sandbox(&web).expect("remove");
    assert_eq!(proxy.node().cri().list_pod_sandbox().expect("a list"), []);
    let [through, behind] = [proxy.cri(), proxy.node().cri()].map(|cri| cri.pod_sandbox_status(&web));
    assert_eq!(
        through.expect_err("the sandbox is removed"),
        behind.expect_err("the sandbox is removed"),
        "the message of the runtime"
    );
    assert_nothing_left("a pod through the proxy", &proxy, &before);
}

#[test]
fn cri_proxy_reports_a_stopped_runtime_and_reconnects() {
    let proxy = proxy!("web");
    let web = proxy.cri().run_pod_sandbox(&proxy.pod("web", &[])).expect("a pod");
    proxy.machine().stop("containerd", "KILL");
    let error = proxy.cri().list_pod_sandbox().expect_err("the runtime is stopped");
    assert!(error.contains("runtime /run/containerd/containerd.sock: "), "{error}");
    proxy.node().launch();
    assert_eq!(proxy.cri().list_pod_sandbox().expect("a list"), [(web.clone(), true)]);
    // The proxy is replaced; the runtime and its pods stay.
    proxy.stop("TERM");
    assert!(!proxy.reach(rig::proxy::SOCKET).exists(), "the proxy removed its socket");
    proxy.launch();
    assert_eq!(proxy.cri().list_pod_sandbox().expect("a list"), [(web.clone(), true)]);
    proxy.stop("KILL");
    proxy.launch();
    until("the proxy answers", || proxy.cri().list_pod_sandbox().ok());
    proxy.remove(&web);
}
