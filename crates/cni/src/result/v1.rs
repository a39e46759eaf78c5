//! Results in 1.0.0 and 1.1.0, which share one form: fields that 1.1.0 added also stay in a 1.0.0 result, as in libcni.
//!
//! Source: SPEC v1.0.0 and v1.1.0 §5 "Success"; libcni `pkg/types/100` (S22–S23, S35, R4–R6).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::route::{WireRoute, is_unset};
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
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<WireRoute>,
    #[serde(skip_serializing_if = "Dns::is_empty")]
    dns: Dns,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct WireInterface {
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    mac: String,
    #[serde(skip_serializing_if = "is_unset")]
    mtu: Option<u32>,
    #[serde(skip_serializing_if = "String::is_empty")]
    sandbox: String,
    #[serde(rename = "socketPath", skip_serializing_if = "String::is_empty")]
    socket_path: String,
    #[serde(rename = "pciID", skip_serializing_if = "String::is_empty")]
    pci_id: String,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct WireIp {
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<i32>,
    address: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    gateway: String,
}

pub(super) fn read(value: &Value) -> Result<Success, Error> {
    let Wire { cni_version: _, interfaces, ips, routes, dns } = fold::from_value(value, "")?;
    let interfaces = interfaces.into_iter().map(|wire| {
        let WireInterface { name, mac, mtu, sandbox, socket_path, pci_id } = wire;
        Interface { name, mac, mtu, sandbox, socket_path, pci_id }
    });
    let ips = ips.into_iter().map(|WireIp { interface, address, gateway }| {
        let address = text::cidr("ips.address", &address)?;
        Ok(IpConfig { interface, address, gateway: text::ip("ips.gateway", &gateway)? })
    });
    Ok(Success {
        interfaces: interfaces.collect(),
        ips: ips.collect::<Result<_, Error>>()?,
        routes: routes.into_iter().map(|route| route.read("routes")).collect::<Result<_, Error>>()?,
        dns,
    })
}

/// Converts a result to the written form.
pub(super) fn write(success: &Success, version: Version) -> impl Serialize + use<> {
    let Success { interfaces, ips, routes, dns } = success;
    Wire {
        cni_version: version.as_str().to_owned(),
        interfaces: interfaces.iter().map(write_interface).collect(),
        ips: ips
            .iter()
            .map(|ip| WireIp {
                interface: ip.interface,
                address: ip.address.to_string(),
                gateway: ip.gateway.map(|gw| gw.to_string()).unwrap_or_default(),
            })
            .collect(),
        routes: routes.iter().map(WireRoute::of).collect(),
        dns: dns.clone(),
    }
}

fn write_interface(interface: &Interface) -> WireInterface {
    let Interface { name, mac, mtu, sandbox, socket_path, pci_id } = interface.clone();
    WireInterface { name, mac, mtu, sandbox, socket_path, pci_id }
}
