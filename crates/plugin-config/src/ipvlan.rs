//! Configuration for `ipvlan`.
//!
//! Source: plugins `plugins/main/ipvlan`; docs/plugins/ipvlan.md.

use cni::Error;
use cni::invocation::Call;
use cni::result::Success;
use serde::Deserialize;

use crate::interface;
use crate::parent::LinkNamespace;

/// The configuration as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Conf {
    master: String,
    mode: String,
    mtu: u32,
    #[serde(rename = "linkInContainer")]
    link_in_container: bool,
}

/// Validated configuration.
#[derive(Debug)]
pub struct Network {
    /// Configured parent. None: the previous plugin's interface, else the one that the default route uses.
    pub master: Option<String>,
    /// Namespace that the parent is in.
    pub parent_in: LinkNamespace,
    /// Mode that the ipvlan gets.
    pub mode: Mode,
    /// MTU in bytes, if configured.
    pub mtu: Option<u32>,
}

/// ipvlan `mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Layer 2: the container resolves addresses.
    L2,
    /// Layer 3: the host routes.
    L3,
    /// Layer 3, with the host's packet filter.
    L3s,
}

impl Network {
    /// Reads and validates the configuration.
    pub fn read(call: &Call) -> Result<Network, Error> {
        let Conf { master, mode, mtu, link_in_container } = call.config.decode()?;
        if !master.is_empty() {
            interface::check_name("master", &master)?;
        }
        Ok(Network {
            master: (!master.is_empty()).then_some(master),
            parent_in: LinkNamespace::read(link_in_container),
            mode: match mode.as_str() {
                "" | "l2" => Mode::L2,
                "l3" => Mode::L3,
                "l3s" => Mode::L3s,
                other => return Err(Error::key("mode", format!("{other:?}"), "not one of l2, l3, l3s")),
            },
            mtu: interface::check_mtu(mtu)?,
        })
    }

    /// Without a configured parent, uses the previous plugin's only interface.
    pub fn chained(self, previous: Option<&Success>) -> Result<Network, Error> {
        let (None, Some(previous)) = (&self.master, previous) else { return Ok(self) };
        match previous.interfaces.as_slice() {
            [only] if !only.name.is_empty() => {
                interface::check_name("prevResult.interfaces[0].name", &only.name)?;
                Ok(Network { master: Some(only.name.clone()), ..self })
            }
            several => Err(Error::config(format!(
                "master: missing, and prevResult has {} interfaces instead of one; set it",
                several.len()
            ))),
        }
    }
}

/// Returns the options, by name.
pub(crate) fn options() -> &'static [&'static str] {
    cni::fold::fields::<Conf>()
}
