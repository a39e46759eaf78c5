//! Configuration for `static`.
//!
//! Source: containernetworking/plugins `plugins/ipam/static` v1.9.1; docs/plugins/static.md.

use std::net::IpAddr;

use cni::Error;
use cni::args::Args;
use cni::invocation::Call;
use cni::result::{Dns, Route};
use ipnet::IpNet;
use serde::Deserialize;

use crate::addresses::{self, Request, RequestConf, Requests, RouteConf};

/// The configuration as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Conf {
    ipam: Option<IpamConf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct IpamConf {
    addresses: Vec<AddressConf>,
    routes: Vec<RouteConf>,
    dns: Dns,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AddressConf {
    address: String,
    gateway: String,
}

/// Address to assign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Address and prefix length.
    pub address: IpNet,
    /// Gateway in the address's subnet, if configured.
    pub gateway: Option<IpAddr>,
}

/// Validated configuration.
#[derive(Debug)]
pub struct Network {
    /// Addresses to assign.
    pub addresses: Vec<Address>,
    /// Routes to return in the result.
    pub routes: Vec<Route>,
    /// DNS settings to return in the result.
    pub dns: Dns,
}

impl Network {
    /// Reads and validates the configuration.
    pub fn read(call: &Call) -> Result<Network, Error> {
        let arguments = Args::parse(call.args())?;
        arguments.only(&["IP", "GATEWAY"])?;
        let Conf { ipam } = call.config.decode()?;
        let Some(ipam) = ipam else { return Err(Error::missing("ipam", "set ipam.addresses")) };
        let IpamConf { addresses, routes, dns } = ipam;
        let written = addresses.iter().enumerate().map(|(index, conf)| Address::read(index, conf));
        let configured = written.collect::<Result<Vec<_>, Error>>()?;
        let requests = Requests::read(call.config.decode::<RequestConf>()?, &arguments)?;
        let addresses = chosen(&configured, requests, arguments.get("GATEWAY").unwrap_or_default())?;
        let families = addresses.iter().map(|address| address.address.addr());
        addresses::one_of_each_family(call.config.version, families, "ipam.addresses")?;
        Ok(Network { addresses, routes: addresses::routes(routes)?, dns })
    }
}

impl Address {
    fn read(index: usize, conf: &AddressConf) -> Result<Address, Error> {
        let AddressConf { address, gateway } = conf;
        let address = addresses::prefix(&format!("ipam.addresses[{index}].address"), address)?;
        let key = format!("ipam.addresses[{index}].gateway");
        let gateway = addresses::address(&key, gateway)?;
        match gateway {
            Some(other) if other.is_ipv4() != address.addr().is_ipv4() => {
                Err(Error::key(key, other, format!("not of the family of address {address}")))
            }
            gateway => Ok(Address { address, gateway }),
        }
    }

    /// Returns a requested address with the gateway from the configured subnet that contains it, and with
    /// that subnet's prefix length if it has none. A request with another prefix length is for another
    /// subnet.
    fn requested(request: &Request, configured: &[Address]) -> Result<Address, Error> {
        let Request { key, ip, prefixed } = request;
        let is_subnet = |address: &&Address| match prefixed {
            Some(net) => net.trunc() == address.address.trunc(),
            None => address.address.contains(ip),
        };
        let like = configured.iter().find(is_subnet);
        let gateway = like.and_then(|like| like.gateway).filter(|gateway| gateway != ip);
        if let Some(address) = *prefixed {
            return Ok(Address { address, gateway });
        }
        let made = like.and_then(|like| IpNet::new(*ip, like.address.prefix_len()).ok());
        let made = made.map(|address| Address { address, gateway });
        let why = "it needs a prefix length, because no configured subnet contains it";
        made.ok_or_else(|| Error::key(key, ip, why))
    }
}

/// Returns the addresses to assign. Those from the runtime replace those in `args`, which replace the configured ones.
/// `CNI_ARGS` adds to the configured ones, and gateways from there apply to the subnets that contain them (V14).
fn chosen(configured: &[Address], requests: Requests, gateways: &str) -> Result<Vec<Address>, Error> {
    let Requests { environment, args, runtime } = requests;
    let all = |requests: &[Request]| {
        requests
            .iter()
            .map(|request| Address::requested(request, configured))
            .collect::<Result<Vec<_>, Error>>()
    };
    let mut addresses = configured.to_vec();
    // With `IP` of `CNI_ARGS`, `GATEWAY` names the gateways, as in the reference plugin.
    for request in &environment {
        let bare = |address| Address { address, gateway: None };
        addresses.push(
            request.prefixed.map_or_else(|| Address::requested(request, configured), |net| Ok(bare(net)))?,
        );
    }
    for text in gateways.split(',').map(str::trim).filter(|_| !gateways.is_empty()) {
        let Some(gateway) = cni::address::parse_ip(text) else {
            return Err(Error::key("CNI_ARGS GATEWAY", format!("{text:?}"), "not an IP address"));
        };
        for address in addresses.iter_mut().filter(|address| address.address.contains(&gateway)) {
            address.gateway = Some(gateway);
        }
    }
    match (runtime.as_slice(), args.as_slice()) {
        ([], []) => Ok(addresses),
        ([], args) => all(args),
        (runtime, _) => all(runtime),
    }
}

/// Returns the options, by name.
pub(crate) fn options() -> &'static [&'static str] {
    cni::fold::fields::<IpamConf>()
}

#[cfg(test)]
mod tests {
    use cni::config::Config;
    use cni::environment::Environment;
    use cni::version::Version;
    use serde_json::{Value, json};

    use super::*;

    fn read(conf: &Value, args: &str) -> Result<Vec<String>, Error> {
        let mut whole = json!({ "cniVersion": "1.1.0", "name": "net" });
        for (key, value) in conf.as_object().unwrap() {
            whole[key] = value.clone();
        }
        let config = Config::read(whole.to_string().into_bytes(), Version::ALL)?;
        let environment = Environment { args: args.to_owned(), ..Environment::default() };
        let network = Network::read(&Call { config, environment })?;
        let text = |address: &Address| match address.gateway {
            Some(gateway) => format!("{} via {gateway}", address.address),
            None => address.address.to_string(),
        };
        Ok(network.addresses.iter().map(text).collect())
    }

    /// Returns a configuration with two families, gateways and the fields of `more`.
    fn conf(more: &Value) -> Value {
        let mut conf = json!({ "ipam": { "type": "static", "addresses": [
            { "address": "10.1.0.5/24", "gateway": "10.1.0.1" }, { "Address": "fd00::5/64", "gateway": "" },
        ] } });
        for (key, value) in more.as_object().unwrap() {
            conf[key] = value.clone();
        }
        conf
    }

    #[test]
    fn static_runtime_replaces_args_and_cni_args_adds() {
        let own = ["10.1.0.5/24 via 10.1.0.1", "fd00::5/64"];
        let args = json!({ "args": { "cni": { "ips": ["10.2.0.9/16"] } } });
        let both = json!({ "args": { "cni": { "ips": ["10.2.0.9/16"] } }, "runtimeConfig": { "ips": ["10.3.0.9/16", "fd03::9/64"] } });
        let cases: [(&Value, &str, &[&str]); 6] = [
            (&json!({}), "", &own),
            (&json!({ "args": { "cni": { "ips": [] } }, "runtimeConfig": {} }), "", &own),
            (
                &json!({}),
                "IP=10.4.0.9/16, 10.1.0.7/24;GATEWAY=10.4.0.1,fd00::1",
                &[
                    "10.1.0.5/24 via 10.1.0.1",
                    "fd00::5/64 via fd00::1",
                    "10.4.0.9/16 via 10.4.0.1",
                    "10.1.0.7/24",
                ],
            ),
            (&json!({}), "GATEWAY=10.1.0.254", &["10.1.0.5/24 via 10.1.0.254", "fd00::5/64"]),
            (&args, "IP=10.4.0.9/16", &["10.2.0.9/16"]),
            (&both, "IP=10.4.0.9/16", &["10.3.0.9/16", "fd03::9/64"]),
        ];
        for (more, environment, expected) in cases {
            assert_eq!(read(&conf(more), environment).unwrap(), expected, "{more} {environment}");
        }
        assert_eq!(read(&json!({ "ipam": {} }), "").unwrap(), [""; 0], "no address is no error");
    }

    // Requirements: V11-4.1.2.1.3-1
    #[test]
    fn static_request_uses_the_configured_subnet() {
        let ask = |ips: &[&str]| conf(&json!({ "runtimeConfig": { "ips": ips } }));
        assert_eq!(
            read(&ask(&["10.1.0.77", "fd00::77"]), "").unwrap(),
            ["10.1.0.77/24 via 10.1.0.1", "fd00::77/64"]
        );
        assert_eq!(
            read(&ask(&["10.1.0.77/24"]), "").unwrap(),
            ["10.1.0.77/24 via 10.1.0.1"],
            "the same subnet"
        );
        assert_eq!(read(&ask(&["10.1.0.77/16"]), "").unwrap(), ["10.1.0.77/16"], "another subnet");
        assert_eq!(read(&ask(&["10.1.0.1"]), "").unwrap(), ["10.1.0.1/24"], "not its own gateway");
        assert_eq!(read(&conf(&json!({})), "IP=10.1.0.77").unwrap()[2], "10.1.0.77/24 via 10.1.0.1");
        let error = read(&ask(&["10.1.0.77", "10.9.0.77"]), "").unwrap_err();
        assert!(error.code == 7 && error.msg.starts_with("runtimeConfig.ips[1]: 10.9.0.77: "), "{error}");
    }

    #[test]
    fn static_invalid_value_is_reported_by_field_and_value() {
        let address = |address: Value| json!({ "ipam": { "addresses": [address] } });
        let cases = [
            (json!({}), "", "ipam: missing"),
            (json!({ "ipam": "static" }), "", "ipam: \"static\""),
            (json!({ "ipam": { "addresses": {} } }), "", "ipam.addresses: {}"),
            (address(json!("10.0.0.1/24")), "", "ipam.addresses[0]: \"10.0.0.1/24\""),
            (address(json!({})), "", "ipam.addresses[0].address: \"\""),
            (address(json!({ "address": "10.0.0.1" })), "", "ipam.addresses[0].address: \"10.0.0.1\""),
            (address(json!({ "address": "10.0.0.1/33" })), "", "ipam.addresses[0].address: \"10.0.0.1/33\""),
            (
                address(json!({ "address": "10.0.0.1/24", "gateway": "x" })),
                "",
                "ipam.addresses[0].gateway: \"x\"",
            ),
            (
                address(json!({ "address": "10.0.0.1/24", "gateway": "fd00::1" })),
                "",
                "ipam.addresses[0].gateway: fd00::1",
            ),
            (json!({ "ipam": { "routes": [{}] } }), "", "ipam.routes[0].dst: \"\""),
            (json!({ "ipam": { "dns": { "nameservers": "x" } } }), "", "ipam.dns.nameservers: \"x\""),
            (
                json!({ "ipam": {}, "args": { "cni": { "ips": ["10.0.0.1"] } } }),
                "",
                "args.cni.ips[0]: 10.0.0.1",
            ),
            (json!({ "ipam": {} }), "IP=10.0.0.1", "CNI_ARGS IP: 10.0.0.1"),
            (json!({ "ipam": {} }), "GATEWAY=10.0.0.1,x", "CNI_ARGS GATEWAY: \"x\""),
            (
                json!({ "cniVersion": "0.2.0", "ipam": { "addresses": [{ "address": "10.0.0.1/24" }, { "address": "10.0.0.2/24" }] } }),
                "",
                "ipam.addresses: 2 addresses",
            ),
        ];
        for (conf, args, expected) in cases {
            let error = read(&conf, args).unwrap_err();
            assert!(error.code == 7 && error.msg.contains(expected), "{conf}: {error}");
        }
        assert_eq!(read(&json!({ "ipam": {} }), "MAC=x").unwrap_err().code, 4);
    }
}
