//! What Neutron's API says: ports, networks, subnets; as far as we look at it.
//!
//! Source: OpenStack Networking API v2.0, "Ports", "Networks", "Subnets", with the extensions `binding`, `tag-ports-…`,
//! `provider`.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The status of a port that is plugged in.
pub const ACTIVE: &str = "ACTIVE";
/// The binding of a port that no mechanism of its host wants.
pub const BINDING_FAILED: &str = "binding_failed";
/// The binding of a port before it is begun.
pub const UNBOUND: &str = "unbound";
/// Who a port of a pod belongs to, as Kuryr says.
pub const DEVICE_OWNER: &str = "compute:kuryr";

/// A port.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Port {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// For people, and for us where it cannot be tagged as it is made.
    pub description: String,
    /// What it is on.
    pub network_id: String,
    /// Its project.
    pub project_id: String,
    /// Its hardware address.
    pub mac_address: String,
    /// `ACTIVE` once it is plugged in.
    pub status: String,
    /// What it is for: a pod's uid.
    pub device_id: String,
    /// Who made it.
    pub device_owner: String,
    /// Its addresses.
    pub fixed_ips: Vec<FixedIp>,
    /// Its security groups.
    pub security_groups: Vec<String>,
    /// Its tags.
    pub tags: Vec<String>,
    /// Counts its changes.
    pub revision_number: u64,
    /// Where it is to be plugged in.
    #[serde(rename = "binding:host_id")]
    pub host_id: String,
    /// How.
    #[serde(rename = "binding:vif_type")]
    pub vif_type: String,
    /// And what one must know for that.
    #[serde(rename = "binding:vif_details")]
    pub vif_details: Map<String, Value>,
    /// The trunk whose parent it is.
    pub trunk_details: Option<TrunkDetails>,
    /// Further addresses that may come from it.
    pub allowed_address_pairs: Vec<AddressPair>,
}

impl Port {
    /// Has a mechanism of its host taken it?
    pub fn is_bound(&self) -> bool {
        self.vif_type != BINDING_FAILED && self.vif_type != UNBOUND
    }
}

/// The trunk whose parent a port is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct TrunkDetails {
    /// Its id.
    pub trunk_id: String,
}

/// An address that may come from a port beside its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AddressPair {
    /// Address or prefix.
    pub ip_address: String,
    /// Hardware address; the port's own if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac_address: Option<String>,
}

/// An address of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FixedIp {
    /// Of which subnet.
    pub subnet_id: String,
    /// The address; Neutron chooses one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_address: Option<IpAddr>,
}

/// A network.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Network {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its MTU in bytes.
    pub mtu: Option<u32>,
    /// What it is on the wire; only an administrator is told.
    #[serde(rename = "provider:network_type")]
    pub network_type: Option<String>,
    /// Which of them.
    #[serde(rename = "provider:segmentation_id")]
    pub segmentation_id: Option<u64>,
}

/// A subnet.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Subnet {
    /// Its id.
    pub id: String,
    /// Its network.
    pub network_id: String,
    /// Its prefix.
    pub cidr: IpNet,
    /// The way out.
    #[serde(default)]
    pub gateway_ip: Option<IpAddr>,
    /// Name servers.
    #[serde(default)]
    pub dns_nameservers: Vec<IpAddr>,
    /// Routes for whoever is on it.
    #[serde(default)]
    pub host_routes: Vec<HostRoute>,
}

/// A route for whoever is on a subnet.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct HostRoute {
    /// Where to.
    pub destination: IpNet,
    /// By way of.
    pub nexthop: IpAddr,
}

/// A port to be made. `POST /v2.0/ports`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NewPort {
    /// Its project; the token's if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<String>,
    /// What it is on.
    pub network_id: String,
    /// Its subnets, and what addresses are wanted.
    pub fixed_ips: Vec<FixedIp>,
    /// Who makes it.
    pub device_owner: &'static str,
    /// What it is for.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub device_id: String,
    /// Is it to be plugged in at all? One that only keeps an address is not.
    pub admin_state_up: bool,
    /// Where it will be plugged in; absent for what is nested.
    #[serde(rename = "binding:host_id", skip_serializing_if = "Option::is_none")]
    pub host_id: Option<String>,
    /// Hardware address that is wanted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac_address: Option<String>,
    /// Its security groups; the project's default one if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_groups: Option<Vec<String>>,
    /// For people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// What we say of it where the cloud takes tags only afterwards; at most 255 characters.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    /// Its tags, where the cloud takes them at once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
}
