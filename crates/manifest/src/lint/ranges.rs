//! Requested addresses that a network's IPAM plugin cannot give, because no range contains them.
//!
//! Only `host-local`, `weft-ipam` and `whereabouts` are known to refuse such an address, so nothing is reported for
//! other plugins, or for a range that cannot be read.

use std::net::IpAddr;

use cni::address;
use cni::network::Network;
use npwg::metadata::{Definition, SpecConfig};
use npwg::refusal::{Fault, KeyPath, quote};
use npwg::rule::Rule;
use npwg::selection::{Annotation, Element};
use serde_json::Value as Json;

use crate::network_ranges;

/// Range of a network.
struct KnownRange {
    text: String,
    is_ipv4: bool,
    contains: Box<dyn Fn(IpAddr) -> bool>,
}

/// Returns a finding if an address that `element` requests is in none of the network's ranges.
pub fn outside(element: &Element, definition: &Definition) -> Option<Fault> {
    let ranges = ranges(definition)?;
    let is_outside = |ip: IpAddr| {
        let of_family = ranges.iter().filter(|range| range.is_ipv4 == ip.is_ipv4());
        !of_family.into_iter().any(|range| (range.contains)(ip))
    };
    let (index, ip) = element.ips.iter().enumerate().find(|(_, ip)| is_outside(ip.address))?;
    let path = KeyPath::root().index(element.index).key("ips").index(index);
    let known: Vec<&str> = ranges.iter().map(|range| range.text.as_str()).collect();
    let reason = format!("is in no range of {}, which has {}", element.network, known.join(", "));
    let fault = Fault::new(Rule::AddressOutsideRange, Annotation::Networks.subject(), reason).at(path);
    Some(fault.showing(&quote(&ip.address.to_string())).hint("request an address of a range"))
}

/// Returns the ranges of a network whose IPAM plugin refuses other addresses; `None` if they are not known.
fn ranges(definition: &Definition) -> Option<Vec<KnownRange>> {
    let SpecConfig::Text(text) = &definition.config else { return None };
    let network = Network::parse(text.as_bytes(), &definition.name).ok()?;
    let mut all = Vec::new();
    for plugin in &network.plugins {
        let Some(ipam) = plugin.read::<Json>("ipam").ok()? else { continue };
        match ipam["type"].as_str()? {
            "host-local" => all.extend(host_local(&ipam)?),
            "weft-ipam" | "whereabouts" => all.extend(of_pools(text)?),
            _ => return None,
        }
    }
    (!all.is_empty()).then_some(all)
}

/// Returns the ranges in pools of the cluster; `None` if there are none.
fn of_pools(config: &str) -> Option<Vec<KnownRange>> {
    let found = network_ranges(config).into_iter().map(|found| {
        let range = found.filter.range;
        let is_ipv4 = range.first().is_ipv4();
        KnownRange { text: range.to_string(), is_ipv4, contains: Box::new(move |ip| range.contains(ip)) }
    });
    let found: Vec<KnownRange> = found.collect();
    (!found.is_empty()).then_some(found)
}

/// Returns the ranges of `host-local`; `None` if one cannot be read.
fn host_local(ipam: &Json) -> Option<Vec<KnownRange>> {
    let sets = ipam["ranges"].as_array().into_iter().flatten();
    let of_sets = sets.flat_map(|set| set.as_array().into_iter().flatten());
    let alone = ipam.get("subnet").map(|_| ipam).into_iter();
    alone.chain(of_sets).map(host_local_range).collect()
}

fn host_local_range(range: &Json) -> Option<KnownRange> {
    let subnet = address::parse_cidr(range["subnet"].as_str()?)?.trunc();
    let limit = |key: &str| match range.get(key) {
        None => Some(None),
        Some(limit) => Some(Some(address::parse_ip(limit.as_str()?)?)),
    };
    let (first, last) = (limit("rangeStart")?, limit("rangeEnd")?);
    let contains = move |ip: IpAddr| {
        subnet.contains(&ip)
            && first.is_none_or(|first: IpAddr| ip >= first)
            && last.is_none_or(|last: IpAddr| ip <= last)
    };
    Some(KnownRange {
        text: subnet.to_string(),
        is_ipv4: subnet.addr().is_ipv4(),
        contains: Box::new(contains),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use npwg::selection::Reading;

    fn found(ipam: &str, ips: &str) -> Option<String> {
        let config = format!(r#"{{"cniVersion":"1.0.0","name":"a","type":"bridge","ipam":{ipam}}}"#);
        let definition = Definition { config: SpecConfig::Text(config), ..Definition::default() };
        let text = format!(r#"[{{"name":"a","ips":{ips}}}]"#);
        let reading = Reading::of(Annotation::Networks, &text, "default");
        outside(&reading.elements[0], &definition).map(|fault| format!("{} {}", fault.path, fault.value))
    }

    #[test]
    fn requested_address_outside_of_every_range_is_found() {
        let host_local =
            r#"{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd00::/64"}]]}"#;
        for (ipam, ips, expected) in [
            (host_local, r#"["10.1.0.9","fd00::9"]"#, None),
            (host_local, r#"["10.1.0.9","fd01::9"]"#, Some("[0].ips[1] \"fd01::9\"")),
            (
                r#"{"type":"host-local","subnet":"10.1.0.0/24"}"#,
                r#"["10.2.0.9/24"]"#,
                Some("[0].ips[0] \"10.2.0.9\""),
            ),
            (
                r#"{"type":"weft-ipam","range":"10.1.0.0/24"}"#,
                r#"["10.2.0.9"]"#,
                Some("[0].ips[0] \"10.2.0.9\""),
            ),
            (r#"{"type":"weft-ipam","range":"10.1.0.0/24"}"#, r#"["10.1.0.9"]"#, None),
            (
                r#"{"type":"host-local","subnet":"10.1.0.0/24","rangeEnd":"10.1.0.99"}"#,
                r#"["10.1.0.100"]"#,
                Some("[0].ips[0] \"10.1.0.100\""),
            ),
            // Nothing is known of these.
            (r#"{"type":"static"}"#, r#"["10.2.0.9"]"#, None),
            (r#"{"type":"other","subnet":"10.1.0.0/24"}"#, r#"["10.2.0.9"]"#, None),
            (r#"{"type":"host-local","subnet":"x"}"#, r#"["10.2.0.9"]"#, None),
            ("{}", r#"["10.2.0.9"]"#, None),
        ] {
            assert_eq!(found(ipam, ips).as_deref(), expected, "{ipam} {ips}");
        }
    }
}
