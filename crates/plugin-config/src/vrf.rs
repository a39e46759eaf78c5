//! Configuration for `vrf`.
//!
//! Source: containernetworking/plugins `plugins/meta/vrf` v1.9.1; docs/plugins/vrf.md.

use cni::Error;
use cni::invocation::Call;
use serde::Deserialize;

use crate::interface::check_name;

/// The configuration as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Conf {
    vrfname: String,
    table: u32,
}

/// Validated configuration.
#[derive(Debug)]
pub struct Settings {
    /// VRF name.
    pub name: String,
    /// Routing table; none: a free one is chosen.
    pub table: Option<u32>,
}

impl Settings {
    /// Reads and validates the configuration.
    pub fn read(call: &Call) -> Result<Settings, Error> {
        let Conf { vrfname, table } = call.config.decode()?;
        if vrfname.is_empty() {
            return Err(Error::missing("vrfname", "set it to the name of the interface's VRF"));
        }
        check_name("vrfname", &vrfname)?;
        Ok(Settings { name: vrfname, table: (table != 0).then_some(table) })
    }
}

/// Returns the options, by name.
pub(crate) fn options() -> &'static [&'static str] {
    cni::fold::fields::<Conf>()
}
