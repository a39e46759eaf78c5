//! Configuration for `bandwidth`: rates and bursts, in bits as written and in bytes once validated.
//!
//! If the configuration has any rate, the runtime's rates are ignored. The configured subnets apply to
//! either.

use cni::Error;
use cni::config::Config;
use cni::error::Context;
use cni::fold::quote;
use ipnet::IpNet;
use serde::Deserialize;
use serde_json::Value;

/// Capability with which the runtime passes rates.
const CAPABILITY: &str = "bandwidth";

/// Maximum number of subnets: each is a filter that every packet may have to pass.
const SUBNETS_MAX: usize = 128;

/// The configuration as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    ingress_rate: Option<u64>,
    ingress_burst: Option<u64>,
    egress_rate: Option<u64>,
    egress_burst: Option<u64>,
    shaped_subnets: Vec<Value>,
    unshaped_subnets: Vec<Value>,
}

/// Validated limits for one attachment.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Limit for traffic that the container receives.
    pub ingress: Option<Limit>,
    /// Limit for traffic that the container sends.
    pub egress: Option<Limit>,
    /// Traffic that the limits apply to.
    pub scope: Scope,
}

/// Limit for one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Bytes per second, at least 1.
    pub rate: u64,
    /// Bytes that may be sent at once.
    pub burst: u32,
}

/// Traffic that is limited, by the remote address.
#[derive(Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// All traffic, whatever the remote address is.
    #[default]
    All,
    /// Traffic with these subnets.
    Only(Vec<IpNet>),
    /// Traffic with all but these subnets.
    AllBut(Vec<IpNet>),
}

impl Limits {
    /// Reads the configuration and the runtime's values.
    pub fn read(config: &Config) -> Result<Limits, Error> {
        let own: Conf = config.decode()?;
        let scope = Scope::read(&own)?;
        if own.names_rates() {
            return Limits::check(&own, scope);
        }
        let Some(given) = config.capability::<Conf>(CAPABILITY)? else { return Ok(Limits::default()) };
        let scope =
            if scope == Scope::All { Scope::read(&given).context("runtimeConfig.bandwidth")? } else { scope };
        Limits::check(&given, scope).context("runtimeConfig.bandwidth")
    }

    fn check(conf: &Conf, scope: Scope) -> Result<Limits, Error> {
        let Conf { ingress_rate, ingress_burst, egress_rate, egress_burst, .. } = conf;
        Ok(Limits {
            ingress: Limit::read(["ingressRate", "ingressBurst"], [*ingress_rate, *ingress_burst])?,
            egress: Limit::read(["egressRate", "egressBurst"], [*egress_rate, *egress_burst])?,
            scope,
        })
    }

    /// Whether neither direction is limited.
    pub fn is_none(&self) -> bool {
        self.ingress.is_none() && self.egress.is_none()
    }
}

impl Conf {
    fn names_rates(&self) -> bool {
        let Conf { ingress_rate, ingress_burst, egress_rate, egress_burst, .. } = self;
        [ingress_rate, ingress_burst, egress_rate, egress_burst].iter().any(|rate| rate.is_some())
    }
}

impl Limit {
    /// Reads a rate and a burst in bits; both are set or neither.
    fn read(keys: [&str; 2], [rate, burst]: [Option<u64>; 2]) -> Result<Option<Limit>, Error> {
        let (rate, burst) = (rate.unwrap_or(0), burst.unwrap_or(0));
        let [rate_key, burst_key] = keys;
        match (rate, burst) {
            (0, 0) => Ok(None),
            (0, _) => Err(Error::key(rate_key, 0, format!("must be set, since {burst_key} is {burst}"))),
            (_, 0) => Err(Error::key(burst_key, 0, format!("must be set, since {rate_key} is {rate}"))),
            (1..8, _) => Err(Error::key(rate_key, rate, "less than one byte a second")),
            _ => match u32::try_from(burst / 8) {
                Ok(bytes) if bytes < u32::MAX => Ok(Some(Limit { rate: rate / 8, burst: bytes })),
                _ => Err(Error::key(burst_key, burst, "must be less than 4 GiB")),
            },
        }
    }
}

impl Scope {
    fn read(conf: &Conf) -> Result<Scope, Error> {
        let Conf { shaped_subnets, unshaped_subnets, .. } = conf;
        match (shaped_subnets.is_empty(), unshaped_subnets.is_empty()) {
            (true, true) => Ok(Scope::All),
            (false, true) => Scope::subnets("shapedSubnets", shaped_subnets).map(Scope::Only),
            (true, false) => Scope::subnets("unshapedSubnets", unshaped_subnets).map(Scope::AllBut),
            (false, false) => {
                let list = quote(&Value::Array(unshaped_subnets.clone()));
                Err(Error::key("unshapedSubnets", list, "cannot be combined with shapedSubnets"))
            }
        }
    }

    fn subnets(key: &str, list: &[Value]) -> Result<Vec<IpNet>, Error> {
        if list.len() > SUBNETS_MAX {
            return Err(Error::key(key, format!("{} subnets", list.len()), format!("at most {SUBNETS_MAX}")));
        }
        let read = |(at, value): (usize, &Value)| {
            let subnet = value.as_str().and_then(cni::address::parse_cidr);
            let fault = || Error::key(format!("{key}[{at}]"), quote(value), "not a subnet like 10.0.0.0/8");
            subnet.map(|subnet| subnet.trunc()).ok_or_else(fault)
        };
        list.iter().enumerate().map(read).collect()
    }
}

/// Returns the options, by name.
pub(crate) fn options() -> &'static [&'static str] {
    cni::fold::fields::<Conf>()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(keys: &Value) -> Result<Limits, Error> {
        let mut document = json!({ "cniVersion": "1.1.0", "name": "net", "type": "bandwidth" });
        for (key, value) in keys.as_object().unwrap() {
            document[key] = value.clone();
        }
        Limits::read(&Config::read(document.to_string().into_bytes(), cni::version::Version::ALL)?)
    }

    #[test]
    fn bandwidth_rates_of_the_configuration_override_the_runtimes() {
        let given = json!({ "IngressRate": 16_000_000, "ingressBurst": 80_000 });
        let both =
            json!({ "egressRate": 8_000_000, "egressBurst": 8_000, "runtimeConfig": { "bandwidth": given } });
        let limits = read(&both).unwrap();
        assert_eq!((limits.ingress, limits.egress), (None, Some(Limit { rate: 1_000_000, burst: 1_000 })));
        let limits = read(&json!({ "runtimeConfig": { "bandwidth": given } })).unwrap();
        assert_eq!(limits.ingress, Some(Limit { rate: 2_000_000, burst: 10_000 }));
        let off = json!({ "egressRate": 0, "runtimeConfig": { "bandwidth": given } });
        assert!(read(&off).unwrap().is_none(), "a configured 0 is no limit, whatever the runtime says");
        assert!(read(&json!({})).unwrap().is_none());
        let subnets = json!({ "unshapedSubnets": ["10.0.0.5/8"], "runtimeConfig": { "bandwidth": given } });
        let limits = read(&subnets).unwrap();
        assert_eq!(limits.scope, Scope::AllBut(vec!["10.0.0.0/8".parse().unwrap()]));
        assert_eq!(limits.ingress, Some(Limit { rate: 2_000_000, burst: 10_000 }));
    }

    #[test]
    fn bandwidth_invalid_value_is_reported_by_field_and_value() {
        let list = |count: usize| vec!["10.0.0.0/8"; count];
        for (keys, start) in [
            (json!({ "ingressRate": 8 }), "ingressBurst: 0: must be set"),
            (json!({ "egressBurst": 8 }), "egressRate: 0: must be set"),
            (json!({ "egressRate": 7, "egressBurst": 8 }), "egressRate: 7: less than"),
            (json!({ "egressRate": 8, "egressBurst": 34_359_738_360_u64 }), "egressBurst: 34359738360: "),
            (json!({ "egressRate": -1 }), "egressRate: -1: "),
            (json!({ "egressRate": "8M" }), "egressRate: \"8M\": "),
            (json!({ "egressRate": 1.5 }), "egressRate: 1.5: "),
            (json!({ "shapedSubnets": ["10.0.0.0/8", "x"] }), "shapedSubnets[1]: \"x\": "),
            (json!({ "unshapedSubnets": [7] }), "unshapedSubnets[0]: 7: "),
            (json!({ "unshapedSubnets": list(129) }), "unshapedSubnets: 129 subnets: "),
            (
                json!({ "shapedSubnets": list(1), "unshapedSubnets": list(1) }),
                "unshapedSubnets: [\"10.0.0.0/8\"]: ",
            ),
            (
                json!({ "runtimeConfig": { "bandwidth": { "ingressRate": 8 } } }),
                "runtimeConfig.bandwidth: ingressBurst: 0: ",
            ),
        ] {
            let error = read(&keys).unwrap_err();
            assert!(error.code == 7 && error.msg.starts_with(start), "{error}");
        }
    }
}
