//! VIFs: port descriptions in os_vif format, for the component that plugs the port in.
//!
//! - Objects carry the lowest version that Kuryr ever wrote, because a reader rejects higher versions than it knows.
//! - Unset fields are left out.
//! - A VIF kind that weft cannot plug in is kept unchanged.
//!
//! Source: os_vif `objects/vif.py`, `network.py`, `subnet.py`; Kuryr-Kubernetes `objects/vif.py`, `os_vif_util.py`.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Value, json};

use crate::port::{self, Port};
use crate::primitive::{Data, Object, list, object, open};

/// Maximum length of the interface names that Kuryr assigns, in bytes.
const NAME_LENGTH: usize = 14;

/// Port description for the node.
#[derive(Clone, Debug, PartialEq)]
pub struct Vif {
    /// Port id.
    pub id: String,
    /// MAC address.
    pub address: String,
    /// Network with the subnets and addresses that this port uses.
    pub network: Network,
    /// Whether the port status is ACTIVE.
    pub active: bool,
    /// Whether the port belongs to another component and must be kept when the pod is deleted.
    pub preserve_on_delete: bool,
    /// Whether the switch filters traffic (security groups).
    pub has_traffic_filtering: bool,
    /// Interface name on the host.
    pub vif_name: String,
    /// Kind, which tells how the port is plugged in.
    pub kind: Kind,
}

/// Way in which a port is plugged in.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Directly into Open vSwitch: `VIFOpenVSwitch`.
    OpenVSwitch {
        /// Open vSwitch bridge.
        bridge: String,
    },
    /// Into a Linux bridge that is itself connected to the switch: `VIFBridge`.
    Bridge {
        /// Linux bridge.
        bridge: String,
    },
    /// As a VLAN on the node's own port, which is a trunk: `VIFVlanNested`.
    VlanNested {
        /// VLAN id.
        vlan_id: u16,
    },
    /// As a macvlan on the node's own port: `VIFMacvlanNested`.
    MacvlanNested,
    /// In another way, which weft does not support.
    Foreign {
        /// Class name.
        name: String,
        /// Class version.
        version: String,
        /// Fields that only this class has.
        own: Data,
    },
}

/// Network as one port sees it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Network {
    /// Network id.
    pub id: String,
    /// Network name.
    pub label: String,
    /// MTU in bytes.
    pub mtu: Option<u32>,
    /// Switch bridge.
    pub bridge: Option<String>,
    /// Nova field; Kuryr writes false.
    pub multi_host: bool,
    /// Nova field; Kuryr writes false.
    pub should_provide_bridge: bool,
    /// VLAN id, for a provider network with type `vlan`.
    pub vlan: Option<u16>,
    /// Subnets, each with this port's addresses.
    pub subnets: Vec<Subnet>,
}

/// Subnet with one port's addresses.
#[derive(Clone, Debug, PartialEq)]
pub struct Subnet {
    /// Prefix.
    pub cidr: IpNet,
    /// DNS servers.
    pub dns: Vec<IpAddr>,
    /// Gateway, if the subnet has one.
    pub gateway: Option<IpAddr>,
    /// Host routes.
    pub routes: Vec<Route>,
    /// Addresses that the port has in this subnet.
    pub ips: Vec<IpAddr>,
}

/// Host route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination prefix.
    pub cidr: IpNet,
    /// Next hop.
    pub gateway: IpAddr,
}

/// Error for a Neutron binding that weft cannot plug in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{vif_type}")]
pub struct UnknownBinding {
    /// VIF type, as Neutron writes it.
    pub vif_type: String,
}

/// Error for a VIF or pod state that cannot be parsed.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The text is not JSON.
    #[error("not JSON at line {}, column {}", .0.line(), .0.column())]
    Json(#[from] serde_json::Error),
    /// The value is not an os_vif object.
    #[error("not an os_vif object")]
    NotAnObject,
    /// The object is not a VIF.
    #[error("{object} is not a VIF")]
    NotAVif {
        /// Class name.
        object: String,
    },
    /// A required field is missing.
    #[error("{object}: {field} is missing")]
    MissingField {
        /// Class name.
        object: String,
        /// Field name.
        field: String,
    },
    /// A field has an invalid value.
    #[error("{object}: {field}: {text:?} is invalid")]
    ParseField {
        /// Class name.
        object: String,
        /// Field name.
        field: String,
        /// Field value as text.
        text: String,
    },
    /// The VLAN id for a nested VIF is missing or out of range.
    #[error("VIFVlanNested: vlan_id is not between 1 and 4094")]
    VlanId,
}

/// Way in which a port will be plugged in, which decides the VIF kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Plugging {
    /// As Neutron has bound the port.
    Bound {
        /// Switch bridge to use if the binding names none.
        bridge: String,
    },
    /// As a trunk subport with this VLAN id.
    Vlan(u16),
    /// As an additional address on the node's own port.
    Macvlan,
}

// === impl Vif ===

impl Vif {
    /// Builds the VIF for a port and the network.
    ///
    /// # Errors
    /// weft cannot plug in this VIF type.
    pub fn of(
        port: &Port,
        network: &port::Network,
        subnets: &[port::Subnet],
        how: &Plugging,
    ) -> Result<Vif, UnknownBinding> {
        let details = &port.vif_details;
        let hybrid = details.get("ovs_hybrid_plug").and_then(Value::as_bool).unwrap_or_default();
        let mut described = Network::of(port, network, subnets);
        let kind = match (how, port.vif_type.as_str()) {
            (Plugging::Vlan(vlan_id), _) => Kind::VlanNested { vlan_id: *vlan_id },
            (Plugging::Macvlan, _) => Kind::MacvlanNested,
            (Plugging::Bound { bridge }, "ovs") => {
                let named =
                    details.get("bridge_name").and_then(Value::as_str).filter(|name| !name.is_empty());
                let bridge = named.unwrap_or(bridge).to_owned();
                described.bridge = Some(bridge.clone());
                match hybrid {
                    true => Kind::Bridge { bridge: named_after("qbr", &port.id) },
                    false => Kind::OpenVSwitch { bridge },
                }
            }
            (Plugging::Bound { .. }, other) => return Err(UnknownBinding { vif_type: other.to_owned() }),
        };
        Ok(Vif {
            id: port.id.clone(),
            address: port.mac_address.to_lowercase(),
            network: described,
            active: port.status == port::ACTIVE,
            preserve_on_delete: false,
            has_traffic_filtering: details.get("port_filter").and_then(Value::as_bool).unwrap_or_default(),
            vif_name: named_after("tap", &port.id),
            kind,
        })
    }

    /// Encodes the VIF as a primitive.
    pub fn to_primitive(&self) -> Value {
        let Vif { id, address, network, active, preserve_on_delete, has_traffic_filtering, vif_name, kind } =
            self;
        let mut data = Data::from_iter([
            ("active".to_owned(), json!(active)),
            ("address".to_owned(), json!(address)),
            ("has_traffic_filtering".to_owned(), json!(has_traffic_filtering)),
            ("id".to_owned(), json!(id)),
            ("network".to_owned(), network.to_primitive()),
            ("preserve_on_delete".to_owned(), json!(preserve_on_delete)),
            ("vif_name".to_owned(), json!(vif_name)),
        ]);
        let mut set = |key: &str, value: Value| drop(data.insert(key.to_owned(), value));
        let (name, version) = match kind {
            Kind::OpenVSwitch { bridge } | Kind::Bridge { bridge } => {
                set("bridge_name", json!(bridge));
                set("plugin", json!("ovs"));
                set("port_profile", profile(id));
                (if matches!(kind, Kind::Bridge { .. }) { BRIDGE } else { OPEN_VSWITCH }, "1.0")
            }
            Kind::VlanNested { vlan_id } => {
                set("vlan_id", json!(vlan_id));
                set("plugin", json!("noop"));
                (VLAN_NESTED, "1.0")
            }
            Kind::MacvlanNested => {
                set("plugin", json!("noop"));
                (MACVLAN_NESTED, "1.0")
            }
            Kind::Foreign { name, version, own } => {
                own.iter().for_each(|(key, value)| set(key, value.clone()));
                (name.as_str(), version.as_str())
            }
        };
        object(name, version, data)
    }

    /// Parses a primitive.
    ///
    /// # Errors
    /// A field is missing or invalid.
    pub fn from_primitive(value: &Value) -> Result<Vif, DecodeError> {
        let object = open(value).ok_or(DecodeError::NotAnObject)?;
        let text = |key: &str| match object.text(key) {
            Some(text) => Ok(text.to_owned()),
            None => Err(missing(&object, key)),
        };
        let network = object.data.get("network").and_then(open);
        let network = network.ok_or_else(|| missing(&object, "network"))?;
        let kind = match object.name {
            OPEN_VSWITCH => Kind::OpenVSwitch { bridge: text("bridge_name")? },
            BRIDGE => Kind::Bridge { bridge: text("bridge_name")? },
            VLAN_NESTED => {
                let id = object.data.get("vlan_id").and_then(Value::as_u64);
                let id = id.and_then(|id| u16::try_from(id).ok()).filter(|id| (1..=4094).contains(id));
                Kind::VlanNested { vlan_id: id.ok_or(DecodeError::VlanId)? }
            }
            MACVLAN_NESTED => Kind::MacvlanNested,
            name if name.starts_with("VIF") => Kind::foreign(&object),
            other => return Err(DecodeError::NotAVif { object: other.to_owned() }),
        };
        Ok(Vif {
            id: text("id")?,
            address: text("address")?,
            network: Network::from_object(&network)?,
            active: object.flag("active"),
            preserve_on_delete: object.flag("preserve_on_delete"),
            has_traffic_filtering: object.flag("has_traffic_filtering"),
            vif_name: text("vif_name")?,
            kind,
        })
    }
}

const OPEN_VSWITCH: &str = "VIFOpenVSwitch";
const BRIDGE: &str = "VIFBridge";
const VLAN_NESTED: &str = "VIFVlanNested";
const MACVLAN_NESTED: &str = "VIFMacvlanNested";

/// Fields that every VIF class has.
const SHARED: [&str; 7] =
    ["id", "address", "network", "active", "preserve_on_delete", "has_traffic_filtering", "vif_name"];

impl Kind {
    fn foreign(object: &Object<'_>) -> Kind {
        let own = object.data.iter().filter(|(key, _)| !SHARED.contains(&key.as_str()));
        Kind::Foreign {
            name: object.name.to_owned(),
            version: object.version.to_owned(),
            own: own.map(|(key, value)| (key.clone(), value.clone())).collect(),
        }
    }
}

/// Returns the prefix followed by as much of the port id as fits into an interface name.
pub fn named_after(prefix: &str, id: &str) -> String {
    format!("{prefix}{id}").chars().take(NAME_LENGTH).collect()
}

fn profile(id: &str) -> Value {
    let data = Data::from_iter([("interface_id".to_owned(), json!(id))]);
    object("VIFPortProfileOpenVSwitch", "1.3", data)
}

// === impl Network ===

impl Network {
    fn of(port: &Port, network: &port::Network, subnets: &[port::Subnet]) -> Network {
        let is_vlan = network.network_type.as_deref() == Some("vlan");
        Network {
            id: network.id.clone(),
            label: network.name.clone(),
            mtu: network.mtu,
            bridge: None,
            multi_host: false,
            should_provide_bridge: false,
            vlan: network.segmentation_id.filter(|_| is_vlan).and_then(|id| u16::try_from(id).ok()),
            subnets: subnets.iter().map(|subnet| Subnet::of(port, subnet)).collect(),
        }
    }

    fn to_primitive(&self) -> Value {
        let Network { id, label, mtu, bridge, multi_host, should_provide_bridge, vlan, subnets } = self;
        let mut data = Data::from_iter([
            ("id".to_owned(), json!(id)),
            ("label".to_owned(), json!(label)),
            ("multi_host".to_owned(), json!(multi_host)),
            ("should_provide_bridge".to_owned(), json!(should_provide_bridge)),
            ("should_provide_vlan".to_owned(), json!(vlan.is_some())),
            ("subnets".to_owned(), list("SubnetList", subnets.iter().map(Subnet::to_primitive).collect())),
        ]);
        let optional = [
            ("mtu", mtu.map(Value::from)),
            ("bridge", bridge.clone().map(Value::from)),
            ("vlan", vlan.map(Value::from)),
        ];
        data.extend(optional.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
        object("Network", "1.1", data)
    }

    fn from_object(object: &Object<'_>) -> Result<Network, DecodeError> {
        let number = |key: &str| object.data.get(key).and_then(Value::as_u64);
        Ok(Network {
            id: object.text("id").ok_or_else(|| missing(object, "id"))?.to_owned(),
            label: object.text("label").unwrap_or_default().to_owned(),
            mtu: number("mtu").and_then(|mtu| u32::try_from(mtu).ok()),
            bridge: object.text("bridge").map(str::to_owned),
            multi_host: object.flag("multi_host"),
            should_provide_bridge: object.flag("should_provide_bridge"),
            vlan: number("vlan").and_then(|vlan| u16::try_from(vlan).ok()),
            subnets: object
                .objects("subnets")
                .map(|one| Subnet::from_object(&one))
                .collect::<Result<_, _>>()?,
        })
    }
}

// === impl Subnet ===

impl Subnet {
    fn of(port: &Port, subnet: &port::Subnet) -> Subnet {
        let own = port.fixed_ips.iter().filter(|ip| ip.subnet_id == subnet.id);
        let route = |route: &port::HostRoute| Route { cidr: route.destination, gateway: route.nexthop };
        Subnet {
            cidr: subnet.cidr,
            dns: subnet.dns_nameservers.clone(),
            gateway: subnet.gateway_ip,
            routes: subnet.host_routes.iter().map(route).collect(),
            ips: own.filter_map(|ip| ip.ip_address).collect(),
        }
    }

    fn to_primitive(&self) -> Value {
        let Subnet { cidr, dns, gateway, routes, ips } = self;
        let ip = |address: &IpAddr| {
            object("FixedIP", "1.0", Data::from_iter([("address".to_owned(), json!(address))]))
        };
        let route = |Route { cidr, gateway }: &Route| {
            let data = [("cidr".to_owned(), json!(cidr)), ("gateway".to_owned(), json!(gateway))];
            object("Route", "1.0", Data::from_iter(data))
        };
        let mut data = Data::from_iter([
            ("cidr".to_owned(), json!(cidr)),
            ("dns".to_owned(), json!(dns)),
            ("ips".to_owned(), list("FixedIPList", ips.iter().map(ip).collect())),
            ("routes".to_owned(), list("RouteList", routes.iter().map(route).collect())),
        ]);
        if let Some(gateway) = gateway {
            data.insert("gateway".to_owned(), json!(gateway));
        }
        object("Subnet", "1.0", data)
    }

    fn from_object(object: &Object<'_>) -> Result<Subnet, DecodeError> {
        let dns = object.data.get("dns").and_then(Value::as_array).into_iter().flatten();
        let route =
            |route: Object<'_>| Ok(Route { cidr: read(&route, "cidr")?, gateway: read(&route, "gateway")? });
        Ok(Subnet {
            cidr: read(object, "cidr")?,
            dns: dns.filter_map(|dns| dns.as_str()?.parse().ok()).collect(),
            gateway: object.text("gateway").map(|_| read(object, "gateway")).transpose()?,
            routes: object.objects("routes").map(route).collect::<Result<_, DecodeError>>()?,
            ips: object.objects("ips").map(|ip| read(&ip, "address")).collect::<Result<_, _>>()?,
        })
    }
}

fn read<T: std::str::FromStr>(object: &Object<'_>, key: &str) -> Result<T, DecodeError> {
    let text = object.text(key).unwrap_or_default();
    text.parse().map_err(|_| DecodeError::ParseField {
        object: object.name.to_owned(),
        field: key.to_owned(),
        text: text.to_owned(),
    })
}

fn missing(object: &Object<'_>, field: &str) -> DecodeError {
    DecodeError::MissingField { object: object.name.to_owned(), field: field.to_owned() }
}
