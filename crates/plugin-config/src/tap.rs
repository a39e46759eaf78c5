//! Configuration for `tap`.
//!
//! Source: plugins `plugins/main/tap`; docs/plugins/tap.md.

use cni::Error;
use cni::invocation::Call;
use serde::Deserialize;

use crate::interface::{self, RuntimeConfig};

/// Maximum length for an SELinux context, in bytes.
const CONTEXT_MAX: usize = 1024;

/// Largest MTU that a tap interface can have, in bytes: 65535 minus an Ethernet header.
const MTU_MAX: u32 = 65521;

/// The configuration as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Conf {
    #[serde(rename = "multiQueue")]
    multi_queue: bool,
    mtu: u32,
    mac: String,
    owner: Option<u32>,
    group: Option<u32>,
    #[serde(rename = "selinuxContext")]
    selinux_context: String,
    bridge: String,
    args: interface::CniArgs,
    #[serde(rename = "runtimeConfig")]
    runtime_config: RuntimeConfig,
}

/// Validated configuration.
#[derive(Debug)]
pub struct Network {
    /// Whether the interface has several queues.
    pub multi_queue: bool,
    /// MTU in bytes, if configured.
    pub mtu: Option<u32>,
    /// Hardware address that is requested.
    pub mac: Option<Vec<u8>>,
    /// User that may open it; none: only privileged processes.
    pub owner: Option<u32>,
    /// Group that may open it.
    pub group: Option<u32>,
    /// SELinux context, if configured.
    pub context: Option<String>,
    /// Bridge in the container that it becomes a port on.
    pub bridge: Option<String>,
}

impl Network {
    /// Reads and validates the configuration.
    pub fn read(call: &Call) -> Result<Network, Error> {
        let Conf { multi_queue, mtu, mac, owner, group, selinux_context, bridge, args, runtime_config } =
            call.config.decode()?;
        let requested = interface::requested_mac(&runtime_config, &args, call.args())?;
        if !bridge.is_empty() {
            interface::check_name("bridge", &bridge)?;
        }
        let mtu = interface::check_mtu(mtu)?;
        if let Some(mtu) = mtu.filter(|mtu| *mtu > MTU_MAX) {
            return Err(Error::key("mtu", mtu, format!("greater than {MTU_MAX}, a tap interface's largest")));
        }
        Ok(Network {
            multi_queue,
            mtu,
            mac: requested.or(interface::ethernet_address("mac", &mac)?),
            owner: expect_id("owner", owner)?,
            group: expect_id("group", group)?,
            context: context(selinux_context)?,
            bridge: (!bridge.is_empty()).then_some(bridge),
        })
    }
}

/// Fails for the largest number, which means "no user" to the kernel.
fn expect_id(key: &str, id: Option<u32>) -> Result<Option<u32>, Error> {
    match id {
        Some(u32::MAX) => Err(Error::key(key, u32::MAX, "not a valid id")),
        id => Ok(id),
    }
}

fn context(text: String) -> Result<Option<String>, Error> {
    let key = |why: &str| Error::key("selinuxContext", format!("{text:?}"), why);
    if text.is_empty() {
        return Ok(None);
    }
    if text.len() > CONTEXT_MAX || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(key("not a security context"));
    }
    Ok(Some(text))
}

/// Returns the options, by name.
pub(crate) fn options() -> &'static [&'static str] {
    cni::fold::fields::<Conf>()
}
