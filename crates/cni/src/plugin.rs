//! Plugin side of CNI: the trait [`Plugin`], and the code that turns a call of it into stdout and an exit code.
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

/// CNI plugin. Every verb is required; a verb without effect says so in its body.
///
/// `delegates` runs other plugins (IPAM, or those that a meta-plugin calls).
pub trait Plugin: Sync {
    /// Returns the name of the plugin: the `type` of a configuration.
    fn name(&self) -> &'static str;

    /// Returns the CNI versions that the plugin supports.
    fn versions(&self) -> &'static [Version] {
        Version::ALL
    }

    /// Whether ADD creates the container's interface and DEL does nothing but remove it and release its addresses.
    ///
    /// A meta-plugin may then remove the interfaces of several plugins in one request, before it calls their DEL.
    fn creates_interface(&self) -> bool {
        false
    }

    /// Whether ADD moves an interface of the host into the container and DEL returns it.
    ///
    /// A meta-plugin calls this DEL before it removes interfaces of the container in one request.
    fn moves_interface(&self) -> bool {
        false
    }

    /// Returns the name of the host link that ADD creates for an attachment, at the `attempt`th try (0 first). Returns `None`
    /// after the last try, and for a plugin that creates no link.
    ///
    /// The link has the attachment's owner tag, and DEL removes it.
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

    /// Whether another project's plugin of this name has state that this plugin does not know: addresses in a cluster.
    ///
    /// Such a plugin runs for a network only where it is installed under this name. To install it is the decision that the
    /// state was taken over.
    fn replaces_state(&self) -> bool {
        false
    }

    /// Attaches, or fails without having changed anything.
    fn add(&self, request: &Attach, delegates: &dyn Invoke) -> Result<Success, Error>;

    /// Detaches. Objects that no longer exist are no error; all steps are attempted and their failures collected.
    fn del(&self, request: &Detach, delegates: &dyn Invoke) -> Result<(), Error>;

    /// Fails if the attachment differs from the state after the last ADD; changes nothing.
    fn check(&self, request: &Attach, delegates: &dyn Invoke) -> Result<(), Error>;

    /// Removes objects that belong to no valid attachment; all steps are attempted and their failures collected.
    fn gc(&self, request: &Sweep, delegates: &dyn Invoke) -> Result<(), Error>;

    /// Fails with code 50 or 51 if an ADD would fail now.
    fn status(&self, request: &Probe, delegates: &dyn Invoke) -> Result<(), Error>;
}
