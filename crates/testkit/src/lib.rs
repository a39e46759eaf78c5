//! What tests stand on: pretend hosts in namespaces of their own, a gate for what a kernel lacks,
//! a leak check, and a plugin that records and misbehaves on demand.
//!
//! Rules:
//! - depends on none of our crates: the oracle is `ip -j`, `nft -j`, `tc -j` and `ping`, never the
//!   code under test;
//! - a test never touches the machine: it has its own network and mount namespace ([`Host`]), so
//!   tests run in parallel, and what they leave goes when they end, also after a panic;
//! - what cannot be tested here is skipped by name and counted ([`require!`]), never silently passed.
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
