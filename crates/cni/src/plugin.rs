//! Plugin side of CNI: the trait [`Plugin`], and the code that turns a call into stdout and an exit code.
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

/// CNI plugin. Every verb is required, so that a verb without effect must say so in the function body.
///
/// `delegates` runs other plugins: IPAM, or those that a meta-plugin calls.
pub trait Plugin: Sync {
    /// Returns the plugin name, which is the `type` in a configuration.
    fn name(&self) -> &'static str;

    /// Returns the CNI versions that the plugin supports.
    fn versions(&self) -> &'static [Version] {
        Version::ALL
    }

    /// Whether ADD creates the container's interface, and DEL only removes it and releases the addresses.
    ///
    /// A meta-plugin can then remove several plugins' interfaces in one request before it calls each DEL.
    fn creates_interface(&self) -> bool {
        false
    }

    /// Whether ADD moves a host interface into the container, and DEL moves it back.
    ///
    /// A meta-plugin must call this DEL before it removes the container's interfaces in one request.
    fn moves_interface(&self) -> bool {
        false
    }

    /// Returns the name of the host link that ADD creates for an attachment, on the given `attempt` (counted from 0).
    /// `None` after the last attempt, and for plugins that create no link.
    ///
    /// The link carries the attachment's owner tag, and DEL removes it.
    fn host_link_name(&self, _network: &str, _who: &Attachment, _attempt: u32) -> Option<String> {
        None
    }

    /// Whether an IPAM plugin releases addresses through the container's interface, which must then still exist during
    /// DEL.
    fn releases_through_interface(&self) -> bool {
        false
    }

    /// Whether the configuration lacks something that only the node agent can add.
    fn needs_agent(&self) -> bool {
        false
    }

    /// Whether another project's plugin with this name has state that this plugin does not know, such as addresses in a
    /// cluster.
    ///
    /// Such a plugin runs for a network only where an administrator has installed it under this name; by installing it,
    /// the administrator confirms that the state was taken over.
    fn replaces_state(&self) -> bool {
        false
    }

    /// Attaches the container, or fails without having changed anything.
    fn add(&self, request: &Attach, delegates: &dyn Invoke) -> Result<Success, Error>;

    /// Detaches the container. Objects that no longer exist are not an error. All steps are tried, and the errors
    /// collected.
    fn del(&self, request: &Detach, delegates: &dyn Invoke) -> Result<(), Error>;

    /// Fails if the attachment differs from what the last ADD left; changes nothing.
    fn check(&self, request: &Attach, delegates: &dyn Invoke) -> Result<(), Error>;

    /// Removes objects that belong to no valid attachment. All steps are tried, and the errors collected.
    fn gc(&self, request: &Sweep, delegates: &dyn Invoke) -> Result<(), Error>;

    /// Fails with code 50 or 51 if an ADD would fail now.
    fn status(&self, request: &Probe, delegates: &dyn Invoke) -> Result<(), Error>;
}
