//! Configuration for `macvlan`.
//!
//! Source: plugins `plugins/main/macvlan`; docs/plugins/macvlan.md.

use cni::Error;
use cni::invocation::Call;
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
    mac: String,
    #[serde(rename = "linkInContainer")]
    link_in_container: bool,
    #[serde(rename = "bcqueuelen")]
    broadcast_queue_length: u32,
    args: interface::CniArgs,
    #[serde(rename = "runtimeConfig")]
    runtime_config: interface::RuntimeConfig,
}

/// Validated configuration.
#[derive(Debug)]
pub struct Network {
    /// Configured parent; none: the interface that the default route uses.
    pub master: Option<String>,
    /// Namespace that the parent is in.
    pub parent_in: LinkNamespace,
    /// Mode that the macvlan gets.
    pub mode: Mode,
    /// MTU in bytes, if configured; at most the parent's.
    pub mtu: Option<u32>,
    /// Hardware address that is requested.
    pub mac: Option<Vec<u8>>,
    /// Queue length for broadcast packets, if configured.
    pub broadcast_queue_length: Option<u32>,
}

/// macvlan `mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Interfaces on one parent reach each other directly.
    Bridge,
    /// Interfaces on one parent do not reach each other.
    Private,
    /// Interfaces on one parent reach each other through the switch.
    Vepa,
    /// One interface gets all traffic that the parent receives.
    Passthru,
}

impl Network {
    /// Reads and validates the configuration.
    pub fn read(call: &Call) -> Result<Network, Error> {
        let conf: Conf = call.config.decode()?;
        Network::check(conf, call.args())
    }

    fn check(conf: Conf, cni_args: &str) -> Result<Network, Error> {
        let Conf { master, mode, mtu, mac, link_in_container, broadcast_queue_length, args, runtime_config } =
            conf;
        if !master.is_empty() {
            interface::check_name("master", &master)?;
        }
        let configured = interface::ethernet_address("mac", &mac)?;
        Ok(Network {
            master: (!master.is_empty()).then_some(master),
            parent_in: LinkNamespace::read(link_in_container),
            mode: match mode.as_str() {
                "" | "bridge" => Mode::Bridge,
                "private" => Mode::Private,
                "vepa" => Mode::Vepa,
                "passthru" => Mode::Passthru,
                other => {
                    let why = "not one of bridge, private, vepa, passthru";
                    return Err(Error::key("mode", format!("{other:?}"), why));
                }
            },
            mtu: interface::check_mtu(mtu)?,
            mac: interface::requested_mac(&runtime_config, &args, cni_args)?.or(configured),
            broadcast_queue_length: (broadcast_queue_length > 0).then_some(broadcast_queue_length),
        })
    }
}

/// Returns the options, by name.
pub(crate) fn options() -> &'static [&'static str] {
    cni::fold::fields::<Conf>()
}
