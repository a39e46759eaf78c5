//! Neutron API objects: ports, networks and subnets, reduced to the fields that weft uses.
//!
//! Source: OpenStack Networking API v2.0, "Ports", "Networks", "Subnets", with the extensions `binding`, `tag-ports-…`,
//! `provider`.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Port status once the port is plugged in.
pub const ACTIVE: &str = "ACTIVE";
/// VIF type if no mechanism driver on the host accepts the port.
pub const BINDING_FAILED: &str = "binding_failed";
/// VIF type while the port has no host.
pub const UNBOUND: &str = "unbound";
/// Device owner for pod ports; the same value that Kuryr sets.
pub const DEVICE_OWNER: &str = "compute:kuryr";

/// Neutron port.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Port {
    /// Port id.
    pub id: String,
    /// Port name.
    pub name: String,
    /// Description. It also holds weft's tags if the cloud does not accept tags when a port is created.
    pub description: String,
    /// Network id.
    pub network_id: String,
    /// Project id.
    pub project_id: String,
    /// MAC address.
    pub mac_address: String,
    /// Status: `ACTIVE` once the port is plugged in.
    pub status: String,
    /// Device id; for pod ports, the pod's uid.
    pub device_id: String,
    /// Component that created the port, for example [`DEVICE_OWNER`].
    pub device_owner: String,
    /// IP addresses and subnets.
    pub fixed_ips: Vec<FixedIp>,
    /// Security group ids.
    pub security_groups: Vec<String>,
    /// Tags.
    pub tags: Vec<String>,
    /// Revision number; it increases with each change and guards concurrent updates.
    pub revision_number: u64,
    /// Host on which the port should be plugged in.
    #[serde(rename = "binding:host_id")]
    pub host_id: String,
    /// VIF type, for example `ovs`, or [`BINDING_FAILED`].
    #[serde(rename = "binding:vif_type")]
    pub vif_type: String,
    /// Binding details, for example the bridge name.
    #[serde(rename = "binding:vif_details")]
    pub vif_details: Map<String, Value>,
    /// Trunk whose parent is this port.
    pub trunk_details: Option<TrunkDetails>,
    /// Additional addresses that the port may send from.
    pub allowed_address_pairs: Vec<AddressPair>,
}

impl Port {
    /// Whether a mechanism driver has bound the port on the host.
    pub fn is_bound(&self) -> bool {
        self.vif_type != BINDING_FAILED && self.vif_type != UNBOUND
    }
}

/// Trunk that a parent port belongs to.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TrunkDetails {
    /// Trunk id.
    pub trunk_id: String,
}

/// Address that a port may send from in addition to the fixed IPs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AddressPair {
    /// Address or prefix.
    pub ip_address: String,
    /// MAC address; the port's own if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac_address: Option<String>,
}

/// IP address on a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FixedIp {
    /// Subnet id.
    pub subnet_id: String,
    /// IP address; Neutron chooses one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_address: Option<IpAddr>,
}

/// Neutron network.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Network {
    /// Network id.
    pub id: String,
    /// Network name.
    pub name: String,
    /// MTU in bytes.
    pub mtu: Option<u32>,
    /// Provider network type, for example `vlan`; only administrators can see it.
    #[serde(rename = "provider:network_type")]
    pub network_type: Option<String>,
    /// Provider segment, for example the VLAN id.
    #[serde(rename = "provider:segmentation_id")]
    pub segmentation_id: Option<u64>,
}

/// Neutron subnet.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Subnet {
    /// Subnet id.
    pub id: String,
    /// Network id.
    pub network_id: String,
    /// Prefix.
    pub cidr: IpNet,
    /// Gateway, if the subnet has one.
    #[serde(default)]
    pub gateway_ip: Option<IpAddr>,
    /// DNS servers.
    #[serde(default)]
    pub dns_nameservers: Vec<IpAddr>,
    /// Static routes that every host in the subnet gets.
    #[serde(default)]
    pub host_routes: Vec<HostRoute>,
}

/// Static route that every host in a subnet gets.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct HostRoute {
    /// Destination prefix.
    pub destination: IpNet,
    /// Next hop.
    pub nexthop: IpAddr,
}

/// Port to create with `POST /v2.0/ports`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NewPort {
    /// Project id; the token's project if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// Network id.
    pub network_id: String,
    /// Subnets, and addresses if specific ones are requested.
    pub fixed_ips: Vec<FixedIp>,
    /// Component that creates the port.
    pub device_owner: &'static str,
    /// Device id; for pod ports, the pod's uid.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub device_id: String,
    /// Whether the port should be plugged in; false for a port that only reserves an address.
    pub admin_state_up: bool,
    /// Host on which the port is plugged in; absent for a nested port.
    #[serde(rename = "binding:host_id", skip_serializing_if = "Option::is_none")]
    pub host_id: Option<String>,
    /// Requested MAC address; Neutron chooses one if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac_address: Option<String>,
    /// Security group ids; the project's default group if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_groups: Option<Vec<String>>,
    /// Port name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Description, at most 255 characters. It holds weft's tags if the cloud accepts tags only after creation.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Tags, if the cloud accepts them on creation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}
