//! Configuration of the plugin `dhcp`.

use std::path::PathBuf;

use cni::Error;
use cni::config::Config;
use cni::fold::quote;
use serde::Deserialize;
use serde_json::Value;

use crate::owner::Family;
use crate::protocol::SOCKET;
use crate::v4::options::{Options, Provide, Request};
use crate::v6::{self, V6Request};

/// The configuration as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Conf {
    ipam: IpamConf,
    /// Option of `bridge`: whether duplicate address detection runs.
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
    /// Socket of the daemon.
    pub socket: PathBuf,
    /// Families in order, each once.
    pub families: Vec<Family>,
    /// DHCPv4 options.
    pub options: Options,
    /// Metric of the routes.
    pub priority: Option<u32>,
    /// DHCPv6 request.
    pub v6_request: V6Request,
}

impl PluginConfig {
    /// Reads and validates the configuration; `args` is `CNI_ARGS`.
    ///
    /// # Errors
    /// The first invalid value, with its field.
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
            return Err(Error::config(format!("ipam.{key}: needs \"ipv6\" in ipam.families")));
        }
        Ok(PluginConfig {
            socket: socket(&daemon_socket_path)?,
            families,
            options: Options::read(&provide, &request, args)?,
            priority: (priority > 0).then_some(priority),
            v6_request: V6Request {
                options: v6::options::Options::read(&provide_v6, &request_v6, args)?,
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
        None => Ok(v6::PREFIX_LENGTH),
        Some(length) if (1..=v6::PREFIX_LENGTH).contains(&length) => Ok(length),
        Some(length) => Err(Error::key("ipam.prefixLengthV6", length, "not within 1..=128")),
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
