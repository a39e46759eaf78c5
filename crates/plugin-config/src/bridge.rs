//! Configuration for `bridge`.
//!
//! Source: containernetworking/plugins `plugins/main/bridge` v1.9.1; docs/plugins/bridge.md.

use cni::Error;
use cni::invocation;
use cni::name::ifname_fault;
use serde::Deserialize;

use crate::vlans::{Trunk, Vlans};
use crate::{interface, masquerade};

/// Bridge that is used if none is configured.
const DEFAULT_BRIDGE: &str = "cni0";

/// The configuration as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
#[serde(rename_all = "camelCase")]
struct Conf {
    bridge: String,
    is_gateway: bool,
    is_default_gateway: bool,
    force_address: bool,
    ip_masq: bool,
    ip_masq_backend: String,
    mtu: u32,
    queues: u32,
    hairpin_mode: bool,
    promisc_mode: bool,
    vlan: u16,
    vlan_trunk: Option<Vec<Trunk>>,
    preserve_default_vlan: bool,
    #[serde(rename = "macspoofchk")]
    mac_spoof_check: bool,
    #[serde(rename = "enabledad")]
    enable_dad: bool,
    disable_container_interface: bool,
    port_isolation: bool,
    args: interface::CniArgs,
    runtime_config: interface::RuntimeConfig,
}

/// Validated configuration.
#[derive(Debug)]
pub struct Network {
    /// Bridge name.
    pub bridge: String,
    /// Whether the bridge is the containers' gateway.
    pub gateway: Gateway,
    /// Whether a different address on the bridge may be replaced.
    pub force_address: bool,
    /// Backend that masquerades outgoing traffic, if configured.
    pub masquerade: Option<masquerade::Backend>,
    /// MTU in bytes, if configured.
    pub mtu: Option<u32>,
    /// Queues that each end of the pair has.
    pub queues: u32,
    /// Whether a container's traffic to itself is reflected.
    pub reflection: Reflection,
    /// VLANs on the container's port.
    pub vlans: Vlans,
    /// Whether frames with a foreign source address are dropped.
    pub mac_spoof_check: bool,
    /// Whether duplicate address detection runs.
    pub enable_dad: bool,
    /// Setup for the container's interface.
    pub interface: ContainerInterface,
    /// Whether container ports are isolated from each other.
    pub port_isolation: bool,
    /// Hardware address that is requested.
    pub mac: Option<Vec<u8>>,
}

/// Gateway for the containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gateway {
    /// Not the bridge.
    None,
    /// The bridge is a gateway.
    Bridge,
    /// The bridge is a gateway, and the containers' default route uses it.
    Default,
}

/// Method by which a container reaches itself through the bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reflection {
    /// It does not.
    None,
    /// The port returns frames.
    Hairpin,
    /// The bridge accepts every frame.
    Promiscuous,
}

/// Setup for the container's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerInterface {
    /// Up, with addresses from IPAM.
    Addressed,
    /// Up, without addresses.
    Layer2,
    /// Down: the container configures it.
    Untouched,
}

impl Reflection {
    fn read(hairpin: bool, promiscuous: bool) -> Result<Reflection, Error> {
        match (hairpin, promiscuous) {
            (true, true) => Err(Error::key("promiscMode", true, "cannot be combined with hairpinMode: true")),
            (true, false) => Ok(Reflection::Hairpin),
            (false, true) => Ok(Reflection::Promiscuous),
            (false, false) => Ok(Reflection::None),
        }
    }
}

impl Network {
    /// Reads and validates the configuration.
    pub fn read(call: &invocation::Call) -> Result<Network, Error> {
        let addressed = !call.config.ipam_type()?.is_empty();
        let conf: Conf = call.config.decode()?;
        // Validated here because the last step of ADD uses it and must not fail.
        call.config.dns()?;
        let network = Network::check(conf, call.args(), addressed)?;
        network.check_gateway_name()?;
        Ok(network)
    }

    /// Fails unless the gateway interface in a VLAN, such as `cni0.5`, has a valid name.
    fn check_gateway_name(&self) -> Result<(), Error> {
        let has_gateway = self.gateway != Gateway::None && self.interface == ContainerInterface::Addressed;
        let Some(id) = self.vlans.access.filter(|_| has_gateway) else { return Ok(()) };
        let name = format!("{}.{id}", self.bridge);
        match ifname_fault(&name) {
            None => Ok(()),
            Some(fault) => Err(Error::key("vlan", id, format!("the gateway's interface {name:?} {fault}"))),
        }
    }

    fn check(conf: Conf, args: &str, addressed: bool) -> Result<Network, Error> {
        let Conf {
            bridge,
            is_gateway,
            is_default_gateway,
            force_address,
            ip_masq,
            ip_masq_backend,
            mtu,
            queues,
            hairpin_mode,
            promisc_mode,
            vlan,
            vlan_trunk,
            preserve_default_vlan,
            mac_spoof_check,
            enable_dad,
            disable_container_interface,
            port_isolation,
            args: cni_args,
            runtime_config,
        } = conf;
        let bridge = if bridge.is_empty() { DEFAULT_BRIDGE.to_owned() } else { bridge };
        interface::check_name("bridge", &bridge)?;
        let masquerade = masquerade::Backend::read(&ip_masq_backend)?;
        Ok(Network {
            gateway: match (is_gateway, is_default_gateway) {
                (_, true) => Gateway::Default,
                (true, false) => Gateway::Bridge,
                (false, false) => Gateway::None,
            },
            force_address,
            masquerade: ip_masq.then_some(masquerade),
            mtu: interface::check_mtu(mtu)?,
            queues: interface::check_queues(queues)?,
            reflection: Reflection::read(hairpin_mode, promisc_mode)?,
            vlans: Vlans::check(&bridge, vlan, vlan_trunk, preserve_default_vlan)?,
            mac_spoof_check,
            enable_dad,
            interface: match (addressed, disable_container_interface) {
                (true, true) => {
                    return Err(Error::key(
                        "disableContainerInterface",
                        true,
                        "cannot be combined with ipam",
                    ));
                }
                (true, false) => ContainerInterface::Addressed,
                (false, false) => ContainerInterface::Layer2,
                (false, true) => ContainerInterface::Untouched,
            },
            port_isolation,
            mac: interface::requested_mac(&runtime_config, &cni_args, args)?,
            bridge,
        })
    }
}

/// Returns the options, by name.
pub(crate) fn options() -> &'static [&'static str] {
    cni::fold::fields::<Conf>()
}

#[cfg(test)]
mod tests;
