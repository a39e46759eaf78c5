//! Configuration for `dhcp`.

pub mod v4;
pub mod v6;

use std::path::PathBuf;

use cni::Error;
use cni::config::Config;
use cni::fold::quote;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::v4::{Options, Provide, Request};

/// Socket on which the daemon listens if none is configured.
pub const SOCKET: &str = "/run/cni/dhcp.sock";

/// Address family, which selects the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// DHCPv4.
    Ipv4,
    /// DHCPv6.
    Ipv6,
}

impl Family {
    /// Returns the families that a configuration without `families` has.
    pub fn default_ones() -> Vec<Family> {
        vec![Family::Ipv4]
    }
}

/// DHCPv6 request for an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct V6Request {
    /// Options to send with the request.
    pub options: v6::Options,
    /// Prefix length that the interface uses with the address.
    pub prefix_length: u8,
    /// Whether duplicate address detection runs before the address is used.
    pub detect_duplicates: bool,
}

/// Prefix length that a single address has.
pub const PREFIX_LENGTH: u8 = 128;

impl Default for V6Request {
    fn default() -> V6Request {
        V6Request { options: v6::Options::default(), prefix_length: PREFIX_LENGTH, detect_duplicates: false }
    }
}

/// The configuration as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Conf {
    ipam: IpamConf,
    /// `bridge` option: whether duplicate address detection runs.
    enabledad: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct IpamConf {
    #[serde(rename = "daemonSocketPath")]
    daemon_socket_path: String,
    provide: Vec<Provide>,
    request: Vec<Request>,
    priority: u32,
    families: Option<Vec<Value>>,
    #[serde(rename = "provideV6")]
    provide_v6: Vec<Provide>,
    #[serde(rename = "requestV6")]
    request_v6: Vec<Request>,
    #[serde(rename = "prefixLengthV6")]
    prefix_length_v6: Option<u8>,
}

/// Validated configuration.
#[derive(Debug)]
pub struct PluginConfig {
    /// Socket on which the daemon listens.
    pub socket: PathBuf,
    /// Families in order, each once.
    pub families: Vec<Family>,
    /// DHCPv4 options.
    pub options: Options,
    /// Metric for the routes.
    pub priority: Option<u32>,
    /// DHCPv6 request.
    pub v6_request: V6Request,
}

impl PluginConfig {
    /// Reads and validates the configuration; `args` is `CNI_ARGS`.
    ///
    /// # Errors
    /// The first invalid value, with the field.
    pub fn read(config: &Config, args: &str) -> Result<PluginConfig, Error> {
        let Conf { ipam, enabledad } = config.decode()?;
        let IpamConf {
            daemon_socket_path,
            provide,
            request,
            priority,
            families,
            provide_v6,
            request_v6,
            prefix_length_v6,
        } = ipam;
        let families = families.as_deref().map_or_else(|| Ok(Family::default_ones()), read_families)?;
        let of_v6 = [
            ("provideV6", !provide_v6.is_empty()),
            ("requestV6", !request_v6.is_empty()),
            ("prefixLengthV6", prefix_length_v6.is_some()),
        ];
        if let Some((key, _)) = of_v6.iter().find(|(_, is_there)| *is_there)
            && !families.contains(&Family::Ipv6)
        {
            let key = format!("ipam.{key}");
            return Err(Error::config(format!("{key}: needs \"ipv6\" in ipam.families")).at(key));
        }
        Ok(PluginConfig {
            socket: socket(&daemon_socket_path)?,
            families,
            options: Options::read(&provide, &request, args)?,
            priority: (priority > 0).then_some(priority),
            v6_request: V6Request {
                options: v6::Options::read(&provide_v6, &request_v6, args)?,
                prefix_length: check_prefix_length(prefix_length_v6)?,
                detect_duplicates: enabledad,
            },
        })
    }
}

fn read_families(listed: &[Value]) -> Result<Vec<Family>, Error> {
    let mut families = Vec::new();
    for (at, value) in listed.iter().enumerate() {
        let key = format!("ipam.families[{at}]");
        let family = match value.as_str() {
            Some("ipv4") => Family::Ipv4,
            Some("ipv6") => Family::Ipv6,
            _ => return Err(Error::key(key, quote(value), "neither \"ipv4\" nor \"ipv6\"")),
        };
        if families.contains(&family) {
            return Err(Error::key(key, quote(value), "listed twice"));
        }
        families.push(family);
    }
    families.sort_unstable();
    match families.is_empty() {
        true => Err(Error::key("ipam.families", "[]", "empty; set \"ipv4\", \"ipv6\" or both")),
        false => Ok(families),
    }
}

fn check_prefix_length(length: Option<u8>) -> Result<u8, Error> {
    match length {
        None => Ok(PREFIX_LENGTH),
        Some(length) if (1..=PREFIX_LENGTH).contains(&length) => Ok(length),
        Some(length) => Err(Error::key("ipam.prefixLengthV6", length, "not between 1 and 128")),
    }
}

/// Returns only the daemon's socket, for DEL and GC, which must work with any configuration: an invalid one means the
/// default socket.
pub fn socket_of(config: &Config) -> PathBuf {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Outer {
        ipam: Inner,
    }
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Inner {
        #[serde(rename = "daemonSocketPath")]
        daemon_socket_path: String,
    }
    let configured = config.decode().and_then(|Outer { ipam }| socket(&ipam.daemon_socket_path));
    configured.unwrap_or_else(|_| PathBuf::from(SOCKET))
}

fn socket(text: &str) -> Result<PathBuf, Error> {
    match text {
        "" => Ok(PathBuf::from(SOCKET)),
        path if path.starts_with('/') && path.len() < 108 && !path.contains('\0') => Ok(PathBuf::from(path)),
        path => {
            let why = "not an absolute path of a socket, which has less than 108 bytes";
            Err(Error::key("ipam.daemonSocketPath", format!("{path:?}"), why))
        }
    }
}

/// Returns the options, by name.
pub(crate) fn options() -> &'static [&'static str] {
    cni::fold::fields::<IpamConf>()
}
