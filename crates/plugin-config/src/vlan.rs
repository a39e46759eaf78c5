//! Configuration for `vlan`.
//!
//! Source: plugins `plugins/main/vlan`; docs/plugins/vlan.md.

use cni::Error;
use cni::invocation::Call;
use serde::Deserialize;

use crate::interface;
use crate::parent::LinkNamespace;

/// Largest VLAN id.
const ID_MAX: u16 = 4094;

/// The configuration as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Conf {
    master: String,
    #[serde(rename = "vlanId")]
    vlan_id: i64,
    mtu: u32,
    #[serde(rename = "linkInContainer")]
    link_in_container: bool,
}

/// Validated configuration.
#[derive(Debug)]
pub struct Network {
    /// Parent interface.
    pub master: String,
    /// Namespace that the parent is in.
    pub parent_in: LinkNamespace,
    /// VLAN id: 0 (frames with a priority only) to 4094.
    pub id: u16,
    /// MTU in bytes, if configured; at most the parent's.
    pub mtu: Option<u32>,
}

impl Network {
    /// Reads and validates the configuration.
    pub fn read(call: &Call) -> Result<Network, Error> {
        let Conf { master, vlan_id, mtu, link_in_container } = call.config.decode()?;
        if master.is_empty() {
            return Err(Error::missing("master", "set it to the parent interface"));
        }
        interface::check_name("master", &master)?;
        let id = u16::try_from(vlan_id).ok().filter(|id| *id <= ID_MAX);
        Ok(Network {
            master,
            parent_in: LinkNamespace::read(link_in_container),
            id: id.ok_or_else(|| Error::key("vlanId", vlan_id, format!("not between 0 and {ID_MAX}")))?,
            mtu: interface::check_mtu(mtu)?,
        })
    }
}

/// Returns the options, by name.
pub(crate) fn options() -> &'static [&'static str] {
    cni::fold::fields::<Conf>()
}
