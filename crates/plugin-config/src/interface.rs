//! The options that several interface plugins have: names, MTU, queues, hardware addresses.

use cni::address::parse_mac;
use cni::args::Args;
use cni::invocation::Call;
use cni::name::{PluginType, ifname_fault};
use cni::{Context, Error};
use serde::Deserialize;

/// Largest MTU that the kernel accepts for any link, in bytes.
const MTU_MAX: u32 = 65535;

/// Smallest MTU that IPv4 allows, in bytes.
const MTU_MIN: u32 = 68;

/// Maximum number of queues at one end of a veth pair, a kernel limit.
pub const QUEUES_MAX: u32 = 4096;

/// Fields that interface plugins read under `args`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct CniArgs {
    /// Fields in `args.cni`, which CONVENTIONS.md reserves.
    pub cni: CniArgsCni,
}

/// Fields that interface plugins read under `args.cni`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct CniArgsCni {
    /// Hardware address that is requested.
    pub mac: String,
}

/// Fields that interface plugins read under `runtimeConfig`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct RuntimeConfig {
    /// Hardware address that is requested.
    pub mac: String,
}

/// Fails unless the kernel accepts `name` as an interface name.
pub fn check_name(key: &str, name: &str) -> Result<(), Error> {
    match ifname_fault(name) {
        None => Ok(()),
        Some(fault) => Err(Error::key(key, format!("{name:?}"), format!("the interface name {fault}"))),
    }
}

/// Returns the configured MTU; 0 means "not configured".
pub fn check_mtu(mtu: u32) -> Result<Option<u32>, Error> {
    match mtu {
        0 => Ok(None),
        MTU_MIN..=MTU_MAX => Ok(Some(mtu)),
        _ => Err(Error::key("mtu", mtu, format!("not between {MTU_MIN} and {MTU_MAX}"))),
    }
}

/// Returns how many queues each end of a veth pair gets: 0, which means "not configured", is one.
pub fn check_queues(queues: u32) -> Result<u32, Error> {
    match queues {
        0 => Ok(1),
        1..=QUEUES_MAX => Ok(queues),
        _ => Err(Error::key("queues", queues, format!("not between 1 and {QUEUES_MAX}"))),
    }
}

/// Returns the requested hardware address: from the runtime, else from `args`, else from `CNI_ARGS` (V6, V13, V14).
pub fn requested_mac(
    runtime: &RuntimeConfig,
    args: &CniArgs,
    cni_args: &str,
) -> Result<Option<Vec<u8>>, Error> {
    let environment = Args::parse(cni_args)?;
    environment.only(&["MAC"])?;
    let sources = [
        ("runtimeConfig.mac", runtime.mac.as_str()),
        ("args.cni.mac", args.cni.mac.as_str()),
        ("CNI_ARGS MAC", environment.get("MAC").unwrap_or_default()),
    ];
    let (key, text) = sources.into_iter().find(|(_, text)| !text.is_empty()).unwrap_or_default();
    ethernet_address(key, text)
}

/// Returns a unicast hardware address, or none for an empty string.
pub fn ethernet_address(key: &str, text: &str) -> Result<Option<Vec<u8>>, Error> {
    // The lowest bit of the first byte marks a group address.
    let is_usable = |mac: &Vec<u8>| mac.len() == 6 && mac[0] & 1 == 0 && mac.iter().any(|byte| *byte != 0);
    match parse_mac(text).filter(is_usable) {
        _ if text.is_empty() => Ok(None),
        Some(mac) => Ok(Some(mac)),
        None => Err(Error::key(key, format!("{text:?}"), "not an Ethernet address of one interface")),
    }
}

/// Fails unless the configuration names an IPAM plugin; `hint` says why the plugin needs one.
pub fn expect_ipam(call: &Call, hint: &str) -> Result<(), Error> {
    let plugin = call.config.ipam_type()?;
    match plugin.is_empty() {
        true => Err(Error::missing("ipam.type", hint)),
        false => PluginType::new(&plugin).map(drop).context("ipam.type"),
    }
}
