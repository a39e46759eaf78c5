//! `weft cri-proxy` before a real containerd.
//!
//! ```text
//!   the test ── CRI ── weft cri-proxy ── CRI ── containerd ── CNI ── weft
//! ```

use std::ops::Deref;

use crate::containerd::{self, Containerd};
use crate::cri::Cri;
use crate::parts::text;

/// Where it listens.
pub const SOCKET: &str = "/run/weft/cri.sock";
const SERVICE: &str = "cri-proxy";

/// A machine with a runtime and a proxy before it.
#[derive(Debug)]
pub struct Proxy {
    node: Containerd,
}

// === impl Proxy ===

impl Proxy {
    /// Starts it before a runtime.
    #[must_use]
    #[track_caller]
    pub fn before(node: Containerd) -> Proxy {
        let proxy = Proxy { node };
        proxy.launch();
        proxy
    }

    /// Starts it, where it does not run.
    #[track_caller]
    pub fn launch(&self) {
        let weft = testkit::binary("weft");
        let words = [text(&weft), "cri-proxy", "--runtime", containerd::SOCKET, "--log", "debug,h2=info"];
        self.node.start(SERVICE, words);
        self.node.wait(SERVICE, "listens", || self.node.reach(SOCKET).exists().then_some(()));
    }

    /// Ends it with a signal.
    #[track_caller]
    pub fn stop(&self, signal: &str) {
        self.node.stop(SERVICE, signal);
    }

    /// What it logged.
    #[must_use]
    pub fn log(&self) -> String {
        self.node.log(SERVICE)
    }

    /// The runtime behind it.
    #[must_use]
    pub fn node(&self) -> &Containerd {
        &self.node
    }

    /// The interface that a kubelet uses, through the proxy.
    #[must_use]
    pub fn cri(&self) -> Cri {
        Cri::new(&self.node.reach(SOCKET))
    }
}

impl Deref for Proxy {
    type Target = Containerd;

    fn deref(&self) -> &Containerd {
        &self.node
    }
}
