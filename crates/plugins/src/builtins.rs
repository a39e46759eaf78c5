//! Which plugins this binary is.

use cni::plugin::Plugin;
use cni::plugin::process::Table;

use crate::interface::bridge::Bridge;
use crate::interface::loopback::Loopback;
use crate::interface::macvlan::Macvlan;
use crate::interface::ptp::Ptp;

/// Every name this binary answers to, and the plugin behind it.
pub const TABLE: &Table<'static> =
    &[("bridge", &Bridge), ("loopback", &Loopback), ("macvlan", &Macvlan), ("ptp", &Ptp)];

/// The built-in plugin of this name.
pub fn find(name: &str) -> Option<&'static dyn Plugin> {
    TABLE.iter().find(|(known, _)| *known == name).map(|(_, plugin)| *plugin)
}
