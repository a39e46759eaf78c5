//! Validates the parameters that a sandbox passes to a network: values for capabilities that the network's plugins
//! declare.
//!
//! - A value is rejected by path, before the runtime receives the request, if it is invalid or no plugin accepts it.
//! - A sandbox cannot set capabilities that only the runtime knows, for example `cgroupPath`.
//! - If a capability follows no CNI convention, the value is up to the client and the plugin. Likewise, only the plugin
//!   can decide whether an address is free and belongs to the network.
//!
//! Source: CNI CONVENTIONS.md, «Dynamic Plugin specific fields»; «CRI Network API»,
//! `PodSandboxNetworkConfig.parameters`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cni::capability::{
    ALIASES, BANDWIDTH, Bandwidth, CGROUP_PATH, DEVICE_ID, DEVICE_INFO_FILE, DNS, HardwareAddress,
    INFINIBAND_GUID, IP_RANGES, IPS, IpRange, MAC, POD_ANNOTATIONS, PORT_MAPPINGS, PortMapping, RequestedIp,
    Resolution,
};
use cni::fold;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tonic::Status;

use super::networks::Usable;
use cri::network_api::validation::fault;

/// Maximum size of all parameters for a sandbox, in bytes.
pub(crate) const BYTES_MAX: usize = 64 << 10;
/// Valid MAC address lengths: Ethernet, InfiniBand.
const MAC_LENGTHS: &[usize] = &[6, 20];
/// Valid InfiniBand GUID lengths.
const GUID_LENGTHS: &[usize] = &[8];
/// Valid port protocols; the protocol may be left empty.
const PROTOCOLS: &[&str] = &["", "tcp", "udp", "sctp"];

/// Validates the parameters for one network. `path` leads to them in the request; `room` is how many bytes the sandbox
/// has left for all networks.
///
/// # Errors
/// INVALID_ARGUMENT with the path to the value.
pub(crate) fn check(
    parameters: &BTreeMap<String, Box<RawValue>>,
    usable: &Usable,
    path: &str,
    room: &mut usize,
) -> Result<(), Status> {
    let declared = usable.network.capabilities().map_err(|error| fault(path, &usable.label, error))?;
    for (key, value) in parameters {
        let at = format!("{path}.parameters[{key:?}]");
        if !declared.contains(key) {
            let known: Vec<&str> = declared.iter().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            let why = format!("no plugin of network {} takes it; they take: {known}", usable.label);
            return Err(fault(&at, value.get(), why));
        }
        *room = room.checked_sub(key.len() + value.get().len()).ok_or_else(|| {
            fault(&at, value.get().len(), format_args!("parameters must be at most {BYTES_MAX} bytes"))
        })?;
        check_value(key, value, &at)?;
    }
    Ok(())
}

fn check_value(key: &str, value: &RawValue, at: &str) -> Result<(), Status> {
    match key {
        IPS => check_ips(&read::<Vec<RequestedIp>>(value, at)?, at),
        MAC => check_hardware(&read(value, at)?, MAC_LENGTHS, at),
        INFINIBAND_GUID => check_hardware(&read(value, at)?, GUID_LENGTHS, at),
        PORT_MAPPINGS => check_ports(&read::<Vec<PortMapping>>(value, at)?, at),
        IP_RANGES => read::<Vec<Vec<IpRange>>>(value, at).map(drop),
        BANDWIDTH => read::<Bandwidth>(value, at).map(drop),
        DNS => read::<Resolution>(value, at).map(drop),
        ALIASES => read::<Vec<String>>(value, at).map(drop),
        DEVICE_ID => read::<String>(value, at).map(drop),
        CGROUP_PATH | POD_ANNOTATIONS | DEVICE_INFO_FILE => {
            Err(fault(at, value.get(), "is set by the runtime, not by a sandbox"))
        }
        _ => Ok(()),
    }
}

fn read<T: DeserializeOwned>(value: &RawValue, at: &str) -> Result<T, Status> {
    if value.get() == "null" {
        return Err(fault(at, value.get(), "is not a value: omit the parameter"));
    }
    fold::from_raw(value, at).map_err(|error| Status::invalid_argument(error.to_string()))
}

fn check_ips(ips: &[RequestedIp], at: &str) -> Result<(), Status> {
    let mut seen: BTreeSet<IpAddr> = BTreeSet::new();
    for (index, ip) in ips.iter().enumerate() {
        let address = ip.address;
        let at = format!("{at}[{index}]");
        if address.is_unspecified() || address.is_loopback() || address.is_multicast() {
            return Err(fault(&at, ip.to_string(), "is not an address that an interface can have"));
        }
        if !seen.insert(address) {
            return Err(fault(&at, ip.to_string(), "is a duplicate"));
        }
    }
    Ok(())
}

fn check_hardware(address: &HardwareAddress, lengths: &[usize], at: &str) -> Result<(), Status> {
    let bytes = address.bytes();
    if !lengths.contains(&bytes.len()) {
        let known: Vec<String> = lengths.iter().map(ToString::to_string).collect();
        let why = format!("has {} bytes, and must have {}", bytes.len(), known.join(" or "));
        return Err(fault(at, address.to_string(), why));
    }
    let is_group = bytes.len() == 6 && bytes.first().is_some_and(|first| first & 1 == 1);
    if is_group || bytes.iter().all(|byte| *byte == 0) {
        return Err(fault(at, address.to_string(), "is not a unicast address"));
    }
    Ok(())
}

fn check_ports(mappings: &[PortMapping], at: &str) -> Result<(), Status> {
    for (index, mapping) in mappings.iter().enumerate() {
        let PortMapping { host_port: _, container_port, protocol, host_ip: _ } = mapping;
        if *container_port == 0 {
            return Err(fault(&format!("{at}[{index}].containerPort"), container_port, "is not a port"));
        }
        if !PROTOCOLS.contains(&protocol.to_ascii_lowercase().as_str()) {
            return Err(fault(&format!("{at}[{index}].protocol"), protocol, "must be tcp, udp or sctp"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(key: &str, json: &str) -> Result<(), String> {
        let value = RawValue::from_string(json.to_owned()).unwrap();
        check_value(key, &value, "p").map_err(|status| {
            assert_eq!(status.code(), tonic::Code::InvalidArgument);
            status.message().to_owned()
        })
    }

    #[test]
    fn sandbox_parameters_that_are_valid_pass() {
        for (key, json) in [
            (IPS, r#"["10.1.0.9/24","fd00::9","10.1.0.10"]"#),
            (IPS, "[]"),
            (MAC, r#""02:00:00:00:00:07""#),
            (INFINIBAND_GUID, r#""c2:11:22:33:44:55:66:77""#),
            (PORT_MAPPINGS, r#"[{"HostPort":80,"ContainerPort":8080,"Protocol":"TCP","HostIP":""}]"#),
            (IP_RANGES, r#"[[{"subnet":"10.1.0.0/24","rangeStart":"10.1.0.9"}]]"#),
            (BANDWIDTH, r#"{"ingressRate":1000,"ingressBurst":1000}"#),
            (DNS, r#"{"servers":["10.0.0.1"]}"#),
            (ALIASES, r#"["web"]"#),
            (DEVICE_ID, r#""0000:04:00.5""#),
            ("example.com/unknown", "[1, {}]"),
        ] {
            assert_eq!(checked(key, json), Ok(()), "{key}: {json}");
        }
    }

    #[test]
    fn sandbox_parameters_that_are_invalid_are_refused_by_path() {
        for (key, json, begins) in [
            (IPS, "null", "p: "),
            (IPS, "{}", "p: "),
            (IPS, r#""10.1.0.9""#, "p: "),
            (IPS, "[7]", "p[0]: "),
            (IPS, r#"["10.1.0.9/33"]"#, "p[0]: "),
            (IPS, r#"["10.1.0.9","10.1.0.300"]"#, "p[1]: "),
            (IPS, r#"["10.1.0.9","10.1.0.9/24"]"#, "p[1]: \"10.1.0.9/24\": is a duplicate"),
            (IPS, r#"["0.0.0.0"]"#, "p[0]: "),
            (IPS, r#"["127.0.0.1/8"]"#, "p[0]: "),
            (IPS, r#"["ff02::1"]"#, "p[0]: "),
            (MAC, "null", "p: "),
            (MAC, "7", "p: "),
            (MAC, r#""""#, "p: "),
            (MAC, r#""02:00:00:00:00""#, "p: "),
            (MAC, r#""02:00:00:00:00:0g""#, "p: "),
            (MAC, r#""01:00:5e:00:00:01""#, "p: \"01:00:5e:00:00:01\": is not a unicast address"),
            (MAC, r#""00:00:00:00:00:00""#, "p: "),
            (MAC, r#""02:00:00:00:00:00:00:07""#, "p: \"02:00:00:00:00:00:00:07\": has 8 bytes"),
            (INFINIBAND_GUID, r#""02:00:00:00:00:07""#, "p: "),
            (PORT_MAPPINGS, "{}", "p: "),
            (PORT_MAPPINGS, r#"[{"hostPort":65536,"containerPort":1}]"#, "p[0].hostPort: "),
            (PORT_MAPPINGS, r#"[{"hostPort":1}]"#, "p[0].containerPort: "),
            (PORT_MAPPINGS, r#"[{"containerPort":1,"protocol":"icmp"}]"#, "p[0].protocol: "),
            (PORT_MAPPINGS, r#"[{"containerPort":1,"hostIP":"x"}]"#, "p[0].hostIP: "),
            (IP_RANGES, r#"[{"subnet":"10.1.0.0/24"}]"#, "p[0]: "),
            (IP_RANGES, r#"[[{"subnet":"x"}]]"#, "p[0][0].subnet: "),
            (BANDWIDTH, r#"{"ingressRate":-1}"#, "p.ingressRate: "),
            (BANDWIDTH, r#"{"ingressRate":"1M"}"#, "p.ingressRate: "),
            (DNS, r#"{"servers":"10.0.0.1"}"#, "p.servers: "),
            (ALIASES, r#""web""#, "p: "),
            (DEVICE_ID, "4", "p: "),
            (CGROUP_PATH, r#""/""#, "p: "),
            (POD_ANNOTATIONS, "{}", "p: "),
            (DEVICE_INFO_FILE, r#""/etc/shadow""#, "p: "),
        ] {
            let error = checked(key, json).expect_err(json);
            assert!(error.starts_with(begins), "{key}: {json}: {error}");
        }
    }
}
