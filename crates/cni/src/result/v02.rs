//! Results in 0.1.0 and 0.2.0: at most one IPv4 and one IPv6 address, each with routes.
//!
//! Source: SPEC v0.2.0 "Result"; libcni `pkg/types/020` (S2, R1, R2, R7).

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::route::WireRoute;
use super::{Dns, IpConfig, Success, text};
use crate::error::Error;
use crate::fold;
use crate::version::Version;

#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct Wire {
    #[serde(rename = "cniVersion")]
    cni_version: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip4: Option<WireIp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip6: Option<WireIp>,
    dns: Dns,
}

#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
struct WireIp {
    ip: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    gateway: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    routes: Vec<WireRoute>,
}

pub(super) fn read(value: &Value) -> Result<Success, Error> {
    let Wire { cni_version: _, ip4, ip6, dns } = fold::from_value(value, "")?;
    let mut success = Success { dns, ..Success::default() };
    for (key, ip) in [("ip4", ip4), ("ip6", ip6)] {
        let Some(WireIp { ip, gateway, routes }) = ip else { continue };
        success.ips.push(IpConfig {
            interface: None,
            address: text::cidr(&format!("{key}.ip"), &ip)?,
            gateway: text::ip(&format!("{key}.gateway"), &gateway)?,
        });
        for route in routes {
            success.routes.push(route.read(&format!("{key}.routes"))?);
        }
    }
    Ok(success)
}

pub(super) fn write(success: &Success, version: Version) -> Result<Value, Error> {
    let ip4 = family(success, |net| matches!(net, IpNet::V4(_)));
    let ip6 = family(success, |net| matches!(net, IpNet::V6(_)));
    if ip4.is_none() && ip6.is_none() {
        return Err(Error::internal("cannot convert: no valid IP addresses"));
    }
    let wire = Wire { cni_version: version.as_str().to_owned(), ip4, ip6, dns: success.dns.clone() };
    serde_json::to_value(wire).map_err(|cause| Error::internal(format!("encode result: {cause}")))
}

/// Returns a family's first address with that family's routes.
fn family(success: &Success, is: impl Fn(&IpNet) -> bool) -> Option<WireIp> {
    let first = success.ips.iter().find(|ip| is(&ip.address))?;
    let routes = success.routes.iter().filter(|route| is(&route.dst));
    Some(WireIp {
        ip: first.address.to_string(),
        gateway: first.gateway.map(|gw| gw.to_string()).unwrap_or_default(),
        routes: routes.map(WireRoute::of).collect(),
    })
}
