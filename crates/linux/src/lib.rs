//! Linux kernel interfaces: namespaces, links, addresses, routes, rules, packet filters, traffic control, sysctls.
//!
//! - This crate knows nothing about CNI, configurations or pods; it uses the kernel's terms.
//! - A network namespace is a value ([`netns::Netns`]). A netlink socket stays in the namespace in which it was opened.
//!   Only [`netns`] calls `setns`.
//! - Only `link/tap/device.rs` contains `unsafe`, for ioctls that nothing can replace.
//! - Every operation documents the `ip`, `bridge`, `tc` or `nft` command that does the same.
//! - An error contains operation, object, errno and the kernel's own explanation ([`error::Error`]).
//!
//! Sources: rtnetlink(7), netlink(7), network_namespaces(7), the kernel's `include/uapi/linux`.

pub mod address;
mod attributes;
pub mod boot_id;
pub mod capture;
pub mod conntrack;
pub mod echo;
pub mod error;
pub mod ethtool;
pub mod grace_period;
pub mod link;
pub mod neighbour;
pub mod netfilter;
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
pub mod tcp;
mod thread_netns;
pub mod undo;
pub mod unix;
pub mod watch;

pub use error::{Error, Kind};
pub use netns::Netns;
pub use nft::Nft;
pub use rtnl::Rtnl;
pub use undo::Undo;
