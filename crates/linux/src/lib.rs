//! What weft asks of the Linux kernel, in the kernel's own words: namespaces, links, addresses,
//! routes, rules, packet filters, traffic control, sysctls.
//!
//! Rules of this crate:
//! - it knows no CNI, no configuration, no pods: it speaks of links;
//! - a network namespace is a value ([`netns::Netns`]); a netlink socket stays in the one it was
//!   opened in, and the single `setns` of the whole project is in [`netns`];
//! - one file has `unsafe` in it, for the ioctls that nothing can replace (`link/tap/device.rs`);
//! - every operation documents the `ip`, `bridge`, `tc` or `nft` line that does the same;
//! - a refusal names operation, object, errno and the kernel's own explanation ([`error::Error`]).
//!
//! Sources: rtnetlink(7), netlink(7), network_namespaces(7), the kernel's `include/uapi/linux`.

pub mod address;
mod attributes;
pub mod boot_id;
pub mod conntrack;
pub mod echo;
pub mod error;
pub mod ethtool;
pub mod link;
mod netfilter;
pub mod netlink;
pub mod netns;
pub mod nft;
pub mod packet;
pub mod parent_death;
pub mod route;
pub mod rtnl;
pub mod rule;
pub mod sysctl;
pub mod tc;
pub mod undo;
pub mod unix;
pub mod watch;

pub use error::{Error, Kind};
pub use netns::Netns;
pub use nft::Nft;
pub use rtnl::Rtnl;
pub use undo::Undo;
