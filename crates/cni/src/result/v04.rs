//! Results in 0.3.0, 0.3.1 and 0.4.0: interfaces, any number of addresses, each with a `version`.
//!
//! The text of 0.3.0 says `ip` in one place and `ips` in another; both are read, `ips` is written. `dns` is always
//! written, even if it is empty, because every Go plugin from that time does so (trap 5).
//!
//! Source: SPEC v0.3.0 and v0.4.0 "Result"; libcni `pkg/types/040` (S7, S15, R3–R5).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::route::WireRoute;
use super::{Dns, Interface, IpConfig, Success, text};
use crate::error::Error;
use crate::fold;
use crate::version::Version;

#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct Wire {
    #[serde(rename = "cniVersion")]
    cni_version: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    interfaces: Vec<WireInterface>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ips: Vec<WireIp>,
    #[serde(skip_serializing)]
    ip: Vec<WireIp>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<WireRoute>,
    dns: Dns,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct WireInterface {
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    mac: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    sandbox: String,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct WireIp {
    version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<i32>,
    address: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    gateway: String,
}

pub(super) fn read(value: &Value) -> Result<Success, Error> {
    let Wire { cni_version: _, interfaces, ips, ip, routes, dns } = fold::from_value(value, "")?;
    let interfaces = interfaces.into_iter().map(|WireInterface { name, mac, sandbox }| Interface {
        name,
        mac,
        sandbox,
        ..Interface::default()
    });
    let ips = if ips.is_empty() { ip } else { ips };
    Ok(Success {
        interfaces: interfaces.collect(),
        ips: ips.into_iter().map(read_ip).collect::<Result<_, _>>()?,
        routes: routes.into_iter().map(|route| route.read("routes")).collect::<Result<_, Error>>()?,
        dns,
    })
}

/// Reads an address; the `version` is redundant and ignored.
fn read_ip(wire: WireIp) -> Result<IpConfig, Error> {
    let WireIp { version: _, interface, address, gateway } = wire;
    Ok(IpConfig {
        interface,
        address: text::cidr("ips.address", &address)?,
        gateway: text::ip("ips.gateway", &gateway)?,
    })
}

pub(super) fn write(success: &Success, version: Version) -> Result<Value, Error> {
    let Success { interfaces, ips, routes, dns } = success;
    let wire = Wire {
        cni_version: version.as_str().to_owned(),
        interfaces: interfaces
            .iter()
            .map(|i| WireInterface { name: i.name.clone(), mac: i.mac.clone(), sandbox: i.sandbox.clone() })
            .collect(),
        ips: ips
            .iter()
            .map(|ip| WireIp {
                version: if ip.address.addr().is_ipv4() { "4" } else { "6" }.to_owned(),
                interface: ip.interface,
                address: ip.address.to_string(),
                gateway: ip.gateway.map(|gw| gw.to_string()).unwrap_or_default(),
            })
            .collect(),
        ip: Vec::new(),
        routes: routes.iter().map(WireRoute::of).collect(),
        dns: dns.clone(),
    };
    serde_json::to_value(wire).map_err(|cause| Error::internal(format!("encode result: {cause}")))
}
