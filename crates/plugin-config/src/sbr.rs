//! Validated configuration for `sbr`.

use std::net::IpAddr;

use cni::Error;
use cni::address::parse_ip;
use cni::config::Config;
use cni::fold::quote;
use serde::Deserialize;
use serde_json::Value;

/// Tables that cannot hold routes: "unspecified" and the kernel's local table.
const UNUSABLE: [u32; 2] = [0, 255];

/// The configuration as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Conf {
    table: Option<u32>,
    gateways: Vec<Value>,
    #[serde(rename = "addSourceHints")]
    add_source_hints: bool,
}

/// Validated configuration.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Table that rules refer to and that another program fills. None: this plugin fills one table for each address.
    pub table: Option<u32>,
    /// Gateways that replace the addresses' own; at most one in each family.
    gateways: Vec<IpAddr>,
    /// Treatment that the interface's subnets get in the main table.
    pub subnets: Subnets,
}

/// Treatment that the interface's subnets get in the main table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Subnets {
    /// They leave the main table.
    #[default]
    Leave,
    /// They stay, with the address to send from.
    StayWithSource,
}

impl Settings {
    /// Reads the configuration; invalid gateways fail.
    pub fn read(config: &Config) -> Result<Settings, Error> {
        let Conf { table, gateways, add_source_hints } = config.decode()?;
        if let Some(table) = table.filter(|table| UNUSABLE.contains(table)) {
            return Err(Error::key("table", table, "not a table that can have routes"));
        }
        let subnets = if add_source_hints { Subnets::StayWithSource } else { Subnets::Leave };
        Ok(Settings { table, gateways: read_gateways(&gateways)?, subnets })
    }

    /// Returns the gateway configured for the address's family.
    pub fn gateway(&self, address: IpAddr) -> Option<IpAddr> {
        self.gateways.iter().copied().find(|gateway| gateway.is_ipv4() == address.is_ipv4())
    }
}

fn read_gateways(list: &[Value]) -> Result<Vec<IpAddr>, Error> {
    let mut gateways: Vec<IpAddr> = Vec::new();
    for (at, value) in list.iter().enumerate() {
        let fault = |why: &str| Error::key(format!("gateways[{at}]"), quote(value), why);
        let Some(gateway) = value.as_str().and_then(parse_ip) else {
            return Err(fault("not an IP address"));
        };
        if gateways.iter().any(|known| known.is_ipv4() == gateway.is_ipv4()) {
            return Err(fault("a second gateway of this family: at most one IPv4 and one IPv6"));
        }
        gateways.push(gateway);
    }
    Ok(gateways)
}

/// Returns the options, by name.
pub(crate) fn options() -> &'static [&'static str] {
    cni::fold::fields::<Conf>()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(keys: &Value) -> Result<Settings, Error> {
        let mut document = json!({ "cniVersion": "1.1.0", "name": "net", "type": "sbr" });
        for (key, value) in keys.as_object().unwrap() {
            document[key] = value.clone();
        }
        Settings::read(&Config::read(document.to_string().into_bytes(), cni::version::Version::ALL)?)
    }

    #[test]
    fn sbr_gateway_applies_to_its_address_family() {
        let settings = read(&json!({ "gateways": ["fd01::1", "10.0.0.1"] })).unwrap();
        let gateway = |of: &str| settings.gateway(of.parse().unwrap()).unwrap().to_string();
        assert_eq!((gateway("10.9.9.9").as_str(), gateway("fd09::9").as_str()), ("10.0.0.1", "fd01::1"));
        assert_eq!(read(&json!({ "gateways": null, "table": null })).unwrap(), Settings::default());
    }

    #[test]
    fn sbr_invalid_value_is_reported_by_field_and_value() {
        for (keys, start) in [
            (json!({ "table": 0 }), "table: 0: "),
            (json!({ "table": 255 }), "table: 255: "),
            (json!({ "table": -5 }), "table: -5: "),
            (json!({ "table": "main" }), "table: \"main\": "),
            (json!({ "table": 4_294_967_296_u64 }), "table: 4294967296: "),
            (json!({ "gateways": "10.0.0.1" }), "gateways: \"10.0.0.1\": "),
            (json!({ "gateways": ["10.0.0.1", "here"] }), "gateways[1]: \"here\": "),
            (json!({ "gateways": ["10.0.0.1", "10.0.0.2"] }), "gateways[1]: \"10.0.0.2\": a second"),
            (json!({ "addSourceHints": "yes" }), "addSourceHints: \"yes\": "),
        ] {
            let error = read(&keys).unwrap_err();
            assert!(error.code == 7 && error.msg.starts_with(start), "{error}");
        }
    }
}
