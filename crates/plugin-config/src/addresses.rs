//! The IPAM plugins, and the inputs that they have in common: requests, routes, addresses.
//!
//! Rules:
//! - An IPAM plugin receives the whole configuration for the plugin that calls it and reads `ipam` in it.
//! - Every error names field and value.
//!
//! Source: CONVENTIONS.md "ips" (V5, V13, V14); plugins `pkg/ip/ip.go`.

use std::net::IpAddr;

use cni::Error;
use cni::address::{parse_cidr, parse_ip};
use cni::args::Args;
use cni::result::Route;
use cni::version::Version;
use ipnet::IpNet;
use serde::Deserialize;

/// Requested addresses in a configuration, as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct RequestConf {
    args: ArgsConf,
    #[serde(rename = "runtimeConfig")]
    runtime_config: AddressesConf,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ArgsConf {
    cni: AddressesConf,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AddressesConf {
    ips: Vec<String>,
}

/// Address that somebody requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Field that contains it.
    pub key: String,
    /// Address without prefix length.
    pub ip: IpAddr,
    /// The same address with a prefix length, if there is one.
    pub prefixed: Option<IpNet>,
}

/// Requested addresses from all three sources, each in order.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// `IP` in `CNI_ARGS`: addresses separated by commas.
    pub environment: Vec<Request>,
    /// `args.cni.ips`.
    pub args: Vec<Request>,
    /// `runtimeConfig.ips`.
    pub runtime: Vec<Request>,
}

impl Requests {
    /// Reads all sources; an invalid address fails.
    pub fn read(conf: RequestConf, environment: &Args) -> Result<Requests, Error> {
        let RequestConf { args: ArgsConf { cni }, runtime_config } = conf;
        let list = |key: &str, AddressesConf { ips }: AddressesConf| {
            let each =
                ips.iter().enumerate().map(|(index, text)| Request::read(format!("{key}[{index}]"), text));
            each.collect::<Result<Vec<_>, Error>>()
        };
        let environment = environment.get("IP").filter(|text| !text.is_empty()).into_iter();
        let environment = environment.flat_map(|text| text.split(','));
        Ok(Requests {
            environment: environment
                .map(|text| Request::read("CNI_ARGS IP".to_owned(), text.trim()))
                .collect::<Result<_, Error>>()?,
            args: list("args.cni.ips", cni)?,
            runtime: list("runtimeConfig.ips", runtime_config)?,
        })
    }
}

impl Request {
    fn read(key: String, text: &str) -> Result<Request, Error> {
        let prefixed = parse_cidr(text);
        match prefixed.map(|net| net.addr()).or_else(|| parse_ip(text)) {
            Some(ip) => Ok(Request { key, ip, prefixed }),
            None => {
                Err(Error::key(key, format!("{text:?}"), "not an IP address, with or without prefix length"))
            }
        }
    }
}

/// Route as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct RouteConf {
    dst: String,
    gw: String,
    mtu: Option<u32>,
    advmss: Option<u32>,
    priority: Option<u32>,
    table: Option<u32>,
    scope: Option<u8>,
}

/// Validates the routes under `ipam.routes`.
pub fn routes(written: Vec<RouteConf>) -> Result<Vec<Route>, Error> {
    let check = |(index, route): (usize, RouteConf)| {
        let RouteConf { dst, gw, mtu, advmss, priority, table, scope } = route;
        let dst = prefix(&format!("ipam.routes[{index}].dst"), &dst)?;
        let gw = address(&format!("ipam.routes[{index}].gw"), &gw)?;
        Ok(Route { dst, gw, mtu, advmss, priority, table, scope })
    };
    written.into_iter().enumerate().map(check).collect()
}

/// Parses a required address with prefix length.
pub fn prefix(key: &str, text: &str) -> Result<IpNet, Error> {
    parse_cidr(text).ok_or_else(|| {
        Error::key(key, format!("{text:?}"), "not an address with a prefix length (CIDR notation)")
    })
}

/// Parses an optional address; an empty string means "absent".
pub fn address(key: &str, text: &str) -> Result<Option<IpAddr>, Error> {
    match text {
        "" => Ok(None),
        text => match parse_ip(text) {
            Some(ip) => Ok(Some(ip)),
            None => Err(Error::key(key, format!("{text:?}"), "not an IP address")),
        },
    }
}

/// Fails if the result has several addresses in one family and a version below 0.3.0.
pub fn one_of_each_family(
    version: Version,
    families: impl Iterator<Item = IpAddr> + Clone,
    key: &str,
) -> Result<(), Error> {
    let v4 = families.clone().filter(IpAddr::is_ipv4).count();
    let most = v4.max(families.count() - v4);
    match most > 1 && version < Version::V0_3_0 {
        false => Ok(()),
        true => {
            let why = format!(
                "more than one address of a family, which a result of cniVersion {version} cannot contain"
            );
            Err(Error::key(key, format!("{most} addresses"), why))
        }
    }
}

#[cfg(test)]
mod tests {
    use cni::fold;
    use serde_json::json;

    use super::*;

    fn requests(conf: &serde_json::Value, environment: &str) -> Result<Requests, Error> {
        Requests::read(fold::from_value(conf, "")?, &Args::parse(environment)?)
    }

    #[test]
    fn ipam_requests_have_three_sources_and_optional_prefixes() -> Result<(), Error> {
        let conf = json!({ "args": { "CNI": { "ips": ["10.0.0.5/24"] } }, "runtimeConfig": { "IPs": ["fd00::5", "::ffff:10.0.0.6"] } });
        let Requests { environment, args, runtime } = requests(&conf, "IP=10.0.0.7, 10.0.0.8/16")?;
        let texts = |list: Vec<Request>| {
            list.iter().map(|r| format!("{} {} {}", r.key, r.ip, r.prefixed.is_some())).collect::<Vec<_>>()
        };
        assert_eq!(texts(environment), ["CNI_ARGS IP 10.0.0.7 false", "CNI_ARGS IP 10.0.0.8 true"]);
        assert_eq!(texts(args), ["args.cni.ips[0] 10.0.0.5 true"]);
        assert_eq!(
            texts(runtime),
            ["runtimeConfig.ips[0] fd00::5 false", "runtimeConfig.ips[1] 10.0.0.6 false"]
        );
        assert_eq!(requests(&json!({}), "IP=")?, Requests::default());
        Ok(())
    }

    #[test]
    fn ipam_request_that_is_no_address_is_reported_by_field() {
        let cases = [
            (json!({ "args": { "cni": { "ips": ["10.0.0.5", "x"] } } }), "", "args.cni.ips[1]: \"x\""),
            (json!({ "runtimeConfig": { "ips": [""] } }), "", "runtimeConfig.ips[0]: \"\""),
            (json!({ "runtimeConfig": { "ips": "10.0.0.5" } }), "", "runtimeConfig.ips: \"10.0.0.5\""),
            (json!({}), "IP=10.0.0.5,,10.0.0.6", "CNI_ARGS IP: \"\""),
            (json!({}), "IP=10.0.0.5/33", "CNI_ARGS IP: \"10.0.0.5/33\""),
        ];
        for (conf, environment, start) in cases {
            let error = requests(&conf, environment).unwrap_err();
            assert!(error.code == 7 && error.msg.starts_with(start), "{error}");
        }
    }

    #[test]
    fn ipam_routes_keep_every_field_and_report_invalid_ones() {
        let written = json!([{ "dst": "0.0.0.0/0" }, { "dst": "10.1.0.0/16", "GW": "10.0.0.1", "mtu": 1400, "priority": 5, "table": 0, "scope": 253 }]);
        let read = |value: &serde_json::Value| routes(fold::from_value(value, "ipam.routes")?);
        let list = read(&written).unwrap();
        assert_eq!(list[0], Route::new("0.0.0.0/0".parse().unwrap(), None));
        assert_eq!(
            (list[1].gw.is_some(), list[1].mtu, list[1].table, list[1].scope),
            (true, Some(1400), Some(0), Some(253))
        );
        for (bad, start) in [
            (json!([{ "gw": "10.0.0.1" }]), "ipam.routes[0].dst: \"\""),
            (json!([{ "dst": "10.0.0.1" }]), "ipam.routes[0].dst: \"10.0.0.1\""),
            (json!([{ "dst": "0.0.0.0/0", "gw": "here" }]), "ipam.routes[0].gw: \"here\""),
            (json!([{ "dst": "0.0.0.0/0", "mtu": "big" }]), "ipam.routes[0].mtu: \"big\""),
        ] {
            let error = read(&bad).unwrap_err();
            assert!(error.code == 7 && error.msg.starts_with(start), "{error}");
        }
    }
}
