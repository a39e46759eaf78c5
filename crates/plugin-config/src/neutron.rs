//! Configuration for `neutron`.
//!
//! Source: docs/neutron.md.

use std::time::Duration;

use cni::invocation::Call;
use cni::result::Success;
use cni::version::Version;
use cni::{Context, Error};
use serde::Deserialize;
use serde_json::Value;

use crate::interface;

/// Default socket on which the Open vSwitch database listens.
pub const SOCKET: &str = "/run/openvswitch/db.sock";
/// Default timeout for the switch, in seconds.
const TIMEOUT: u64 = 60;

/// The configuration as written.
#[derive(Debug, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    /// Open vSwitch database socket.
    ovsdb: String,
    /// Parent interface for nested ports on the node; empty: the one that the default route uses.
    master: String,
    /// `auto`, `on` or `off`.
    tx_checksum: String,
    /// Timeout for the switch, in seconds.
    timeout: u64,
    vif: Option<VifConf>,
}

impl Default for Conf {
    fn default() -> Conf {
        let text = |text: &str| text.to_owned();
        Conf { ovsdb: text(SOCKET), master: text(""), tx_checksum: text("auto"), timeout: TIMEOUT, vif: None }
    }
}

/// Port as described by the agent.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct VifConf {
    id: String,
    mac: String,
    kind: String,
    bridge: String,
    vlan_id: u16,
    mtu: u32,
    /// Addresses, routes and DNS, as in a result.
    result: Value,
}

/// Validated configuration.
#[derive(Debug)]
pub struct Network {
    /// Open vSwitch database socket.
    pub ovsdb: String,
    /// Parent interface for nested ports; none: the one that the default route uses.
    pub master: Option<String>,
    /// Whether the container's interface computes checksums; none: unchanged.
    pub tx_checksum: Option<bool>,
    /// Timeout for the switch.
    pub timeout: Duration,
    /// Port; none before the agent has added it.
    pub vif: Option<Vif>,
}

/// Validated port.
#[derive(Debug)]
pub struct Vif {
    /// Port id in Neutron.
    pub id: String,
    /// Hardware address that the port has.
    pub mac: Vec<u8>,
    /// Hardware address as written.
    pub mac_text: String,
    /// Method by which the port is connected.
    pub method: PlugMethod,
    /// MTU in bytes, if it is known.
    pub mtu: Option<u32>,
    /// Addresses, routes and DNS.
    pub given: Success,
}

/// Method by which the port is connected.
#[derive(Debug)]
pub enum PlugMethod {
    /// Port on a switch.
    Switch {
        /// Bridge on the switch.
        bridge: String,
        /// Whether a Linux bridge is between the container and the switch.
        hybrid: bool,
    },
    /// VLAN on a trunk port.
    Vlan(u16),
    /// macvlan on the node's port.
    Macvlan,
}

impl Network {
    /// Reads and validates the configuration.
    pub fn read(call: &Call) -> Result<Network, Error> {
        let Conf { ovsdb, master, tx_checksum, timeout, vif } = call.config.decode()?;
        if !master.is_empty() {
            interface::check_name("master", &master)?;
        }
        let tx_checksum = match tx_checksum.as_str() {
            "auto" => None,
            "on" => Some(true),
            "off" => Some(false),
            other => return Err(Error::key("txChecksum", format!("{other:?}"), "not one of auto, on, off")),
        };
        if !(1..=600).contains(&timeout) {
            return Err(Error::key("timeout", timeout, "not between 1 and 600 seconds"));
        }
        Ok(Network {
            ovsdb,
            master: (!master.is_empty()).then_some(master),
            tx_checksum,
            timeout: Duration::from_secs(timeout),
            vif: vif.map(|vif| vif.check().context("vif")).transpose()?,
        })
    }

    /// Returns the port, which must be there.
    pub fn vif(&self) -> Result<&Vif, Error> {
        self.vif.as_ref().ok_or_else(|| {
            Error::missing(
                "vif",
                "`weft agent` adds it after `weft controller --neutron` has created the port",
            )
        })
    }
}

impl VifConf {
    fn check(self) -> Result<Vif, Error> {
        let VifConf { id, mac: mac_text, kind, bridge, vlan_id, mtu, result } = self;
        let is_id = id.len() == 36 && id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        if !is_id {
            return Err(Error::key("id", format!("{id:?}"), "not the id of a port"));
        }
        let mac = interface::ethernet_address("mac", &mac_text)?;
        let method = match kind.as_str() {
            "ovs" | "bridge" => {
                interface::check_name("bridge", &bridge)?;
                PlugMethod::Switch { bridge, hybrid: kind == "bridge" }
            }
            "vlan" if (1..=4094).contains(&vlan_id) => PlugMethod::Vlan(vlan_id),
            "vlan" => return Err(Error::key("vlanId", vlan_id, "not between 1 and 4094")),
            "macvlan" => PlugMethod::Macvlan,
            other => {
                return Err(Error::key(
                    "kind",
                    format!("{other:?}"),
                    "not one of ovs, bridge, vlan, macvlan",
                ));
            }
        };
        let (_, given) = Success::from_value(&result, Version::V1_0_0).context("result")?;
        let mac = mac.ok_or_else(|| Error::missing("mac", "the port has one"))?;
        Ok(Vif { id, mac, mac_text, method, mtu: interface::check_mtu(mtu)?, given })
    }
}

/// Returns the options, by name.
pub(crate) fn options() -> &'static [&'static str] {
    cni::fold::fields::<Conf>()
}
