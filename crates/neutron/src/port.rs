//! Objects of Neutron's API: ports, networks and subnets, with the fields that weft uses.
//!
//! Source: OpenStack Networking API v2.0, "Ports", "Networks", "Subnets", with the extensions `binding`, `tag-ports-…`,
//! `provider`.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Status of a port that is plugged in.
pub const ACTIVE: &str = "ACTIVE";
/// Binding of a port that no mechanism of its host accepts.
pub const BINDING_FAILED: &str = "binding_failed";
/// Binding of a port without a host.
pub const UNBOUND: &str = "unbound";
/// Device owner of a pod's port, as Kuryr sets it.
pub const DEVICE_OWNER: &str = "compute:kuryr";

/// Port.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Port {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// Description; also contains weft's tags where the cloud does not accept tags on creation.
    pub description: String,
    /// Id of the network.
    pub network_id: String,
    /// Id of the project.
    pub project_id: String,
    /// Hardware address.
    pub mac_address: String,
    /// Status: `ACTIVE` once the port is plugged in.
    pub status: String,
    /// Device: a pod's uid.
    pub device_id: String,
    /// Component that created the port.
    pub device_owner: String,
    /// Addresses.
    pub fixed_ips: Vec<FixedIp>,
    /// Ids of the security groups.
    pub security_groups: Vec<String>,
    /// Tags.
    pub tags: Vec<String>,
    /// Number of the revision.
    pub revision_number: u64,
    /// Host where the port is to be plugged in.
    #[serde(rename = "binding:host_id")]
    pub host_id: String,
    /// Type of the binding.
    #[serde(rename = "binding:vif_type")]
    pub vif_type: String,
    /// Details of the binding.
    #[serde(rename = "binding:vif_details")]
    pub vif_details: Map<String, Value>,
    /// Trunk whose parent port this is.
    pub trunk_details: Option<TrunkDetails>,
    /// Further addresses that the port may send from.
    pub allowed_address_pairs: Vec<AddressPair>,
}

impl Port {
    /// Whether a mechanism of the host has bound the port.
    pub fn is_bound(&self) -> bool {
        self.vif_type != BINDING_FAILED && self.vif_type != UNBOUND
    }
}

/// Trunk of a parent port.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TrunkDetails {
    /// Id.
    pub trunk_id: String,
}

/// Address that a port may send from besides its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AddressPair {
    /// Address or prefix.
    pub ip_address: String,
    /// Hardware address; the port's own if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac_address: Option<String>,
}

/// Address of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FixedIp {
    /// Id of the subnet.
    pub subnet_id: String,
    /// The address; Neutron chooses one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_address: Option<IpAddr>,
}

/// Network.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Network {
    /// Id.
    pub id: String,
    /// Name.
    pub name: String,
    /// MTU in bytes.
    pub mtu: Option<u32>,
    /// Type of the provider network; visible to administrators only.
    #[serde(rename = "provider:network_type")]
    pub network_type: Option<String>,
    /// Segment of the provider network.
    #[serde(rename = "provider:segmentation_id")]
    pub segmentation_id: Option<u64>,
}

/// Subnet.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Subnet {
    /// Id.
    pub id: String,
    /// Id of the network.
    pub network_id: String,
    /// Prefix.
    pub cidr: IpNet,
    /// Gateway.
    #[serde(default)]
    pub gateway_ip: Option<IpAddr>,
    /// Name servers.
    #[serde(default)]
    pub dns_nameservers: Vec<IpAddr>,
    /// Static routes that the hosts in the subnet get.
    #[serde(default)]
    pub host_routes: Vec<HostRoute>,
}

/// Static route that the hosts in a subnet get.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct HostRoute {
    /// Destination.
    pub destination: IpNet,
    /// Gateway.
    pub nexthop: IpAddr,
}

/// Port to be created with `POST /v2.0/ports`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NewPort {
    /// Id of the project; the token's if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// Id of the network.
    pub network_id: String,
    /// Subnets and requested addresses.
    pub fixed_ips: Vec<FixedIp>,
    /// Component that creates the port.
    pub device_owner: &'static str,
    /// Device: a pod's uid.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub device_id: String,
    /// Whether the port is to be plugged in. One that only reserves an address is not.
    pub admin_state_up: bool,
    /// Host where the port is plugged in; absent for a nested port.
    #[serde(rename = "binding:host_id", skip_serializing_if = "Option::is_none")]
    pub host_id: Option<String>,
    /// Requested hardware address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac_address: Option<String>,
    /// Ids of the security groups; the project's default group if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_groups: Option<Vec<String>>,
    /// Name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Description: weft's tags where the cloud accepts tags only after creation; at most 255 characters.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Tags, where the cloud accepts them on creation.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}
