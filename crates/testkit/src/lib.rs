//! Test support: pretend hosts in namespaces, skips for missing features, a leak check, and a plugin that records calls
//! and misbehaves on demand.
//!
//! - This crate depends on no other crate in the workspace. Tests read expectations with `ip -j`, `nft -j`, `tc -j` and
//!   `ping`, never with the code under test.
//! - A test never changes the machine. It has a separate network and mount namespace ([`Host`]), so tests can run in
//!   parallel, and whatever they leave disappears when they end, even after a panic.
//! - A test that cannot run here is skipped by name and counted ([`require!`]), never silently passed.
//!
//! A test in five lines:
//! ```no_run
//! let host = testkit::Host::new();
//! let (a, b) = (host.pod("a"), host.pod("b"));
//! host.run(["ip", "-n", "a", "link", "add", "eth0", "type", "veth", "peer", "eth0", "netns", "b"]);
//! let links = a.json(["ip", "-j", "link", "show", "eth0"]);
//! assert_eq!(links[0]["ifname"], "eth0");
//! ```

#![allow(
    clippy::panic,
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test's support fails by panicking"
)]

mod attachment;
mod binary;
mod command;
mod feature;
mod host;
mod netns;
mod record;
pub mod snapshot;
mod world;

pub use attachment::Attachment;
pub use binary::{binary, example, workspace};
pub use command::{Command, Finished, Running};
pub use feature::{Feature, record_skip, skip};
pub use host::{Host, Pod, test_name};
pub use netns::Netns;
pub use record::{Call, calls};
pub use snapshot::Snapshot;
