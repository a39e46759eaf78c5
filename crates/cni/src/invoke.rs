//! How one plugin calls another, whatever stands behind it: a process or a function.
//!
//! The contract is the wire: variables and stdin in, stdout or an error out. A caller cannot tell
//! an exec'ed plugin from a built-in one, and the tests run both.

use crate::environment::Environment;
use crate::error::Error;
use crate::name::PluginType;

/// Something that can run a plugin.
pub trait Invoke {
    /// Runs `plugin` with these variables and this stdin.
    ///
    /// Returns what it printed (empty for verbs without an answer).
    ///
    /// # Errors
    /// The plugin's own error, code and details untouched; or a failure to run it at all.
    fn invoke(&self, plugin: &PluginType, environment: &Environment, stdin: &[u8]) -> Result<Vec<u8>, Error>;

    /// Whether the IPAM plugin of this name releases addresses through the container's interface
    /// ([`crate::plugin::Plugin::releases_through_interface`]).
    fn releases_through_interface(&self, _plugin: &str) -> bool {
        false
    }
}
