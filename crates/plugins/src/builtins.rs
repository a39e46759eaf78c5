//! Which plugins this binary is.

use cni::plugin::Plugin;
use cni::plugin::process::Table;

use crate::interface::loopback::Loopback;
use crate::interface::macvlan::Macvlan;

/// Every name this binary answers to, and the plugin behind it.
pub const TABLE: &Table<'static> = &[("loopback", &Loopback), ("macvlan", &Macvlan)];

/// The built-in plugin of this name.
pub fn find(name: &str) -> Option<&'static dyn Plugin> {
    TABLE.iter().find(|(known, _)| *known == name).map(|(_, plugin)| *plugin)
}
