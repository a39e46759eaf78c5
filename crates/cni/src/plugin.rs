//! The callee: what a plugin is, and the only code that turns one into stdout and an exit code.
//!
//! ```text
//!   process (variables, stdin, stdout) ──► respond (a function) ──► Plugin (a value) ──► ipam ──► Invoke
//! ```
//!
//! Source: SPEC 1.1.0 §2, §4 and §5; libcni `pkg/skel` (K1–K6, S28–S36, trap 8).

pub mod ipam;
pub mod process;
mod respond;

pub use respond::{Answer, respond};

use crate::error::Error;
use crate::invocation::{Attach, Attachment, Detach, Probe, Sweep};
use crate::invoke::Invoke;
use crate::result::Success;
use crate::version::Version;

/// A CNI plugin. Every verb is required: a verb with nothing to do says so in its body.
///
/// `delegates` runs other plugins (IPAM, or anything a meta-plugin calls).
pub trait Plugin: Sync {
    /// The name it answers to: the `type` of a configuration.
    fn name(&self) -> &'static str;

    /// The protocol versions it speaks.
    fn versions(&self) -> &'static [Version] {
        Version::ALL
    }

    /// Whether ADD creates the container's interface and DEL does nothing but remove it and release its addresses.
    ///
    /// A meta-plugin may then remove the interfaces of several plugins in one request, before it calls their DEL.
    fn creates_interface(&self) -> bool {
        false
    }

    /// The name that the link on the host has which ADD creates for an attachment, at the `attempt`th try (0 first); `None`
    /// behind the last one, and of a plugin that creates none.
    ///
    /// The link bears the attachment's owner tag, and DEL removes it.
    fn host_link_name(&self, _network: &str, _who: &Attachment, _attempt: u32) -> Option<String> {
        None
    }

    /// Whether an IPAM plugin releases addresses through the container's interface, which must exist during its DEL.
    fn releases_through_interface(&self) -> bool {
        false
    }

    /// Whether the configuration lacks something that only the node agent can add.
    fn needs_agent(&self) -> bool {
        false
    }

    /// Attaches, or fails having changed nothing.
    fn add(&self, request: &Attach, delegates: &dyn Invoke) -> Result<Success, Error>;

    /// Detaches. What is already gone is success; everything is tried, failures are collected.
    fn del(&self, request: &Detach, delegates: &dyn Invoke) -> Result<(), Error>;

    /// Fails if the attachment is not as the last ADD left it; changes nothing.
    fn check(&self, request: &Attach, delegates: &dyn Invoke) -> Result<(), Error>;

    /// Drops what belongs to no valid attachment; everything is tried, failures are collected.
    fn gc(&self, request: &Sweep, delegates: &dyn Invoke) -> Result<(), Error>;

    /// Fails with code 50 or 51 if an ADD could not be served now.
    fn status(&self, request: &Probe, delegates: &dyn Invoke) -> Result<(), Error>;
}
