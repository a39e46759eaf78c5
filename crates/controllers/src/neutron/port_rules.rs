//! Rules for the Neutron controller, from weft's YAML or from a `kuryr.conf`.
//!
//! - An unknown key is refused by name.
//! - Drivers have the same names and defaults as in Kuryr.
//!
//! Source: Kuryr-Kubernetes `config.py` (2023.1), sections `kubernetes`, `neutron_defaults`, `vif_pool`,
//! `pod_vif_nested`; Kuryr-Kubernetes specification, `enabled_vif_drivers`.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use thiserror::Error;

/// Tag prefix for the cluster that a port belongs to.
pub(super) const CLUSTER: &str = "weft-cluster=";
/// Driver that reads the annotation from the multi-network specification (NPWG).
pub(crate) const NPWG: &str = "npwg_multiple_interfaces";
/// Drivers for additional networks.
const MULTI_DRIVERS: [&str; 2] = ["noop", NPWG];

/// Settings for the Neutron controller.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    /// Access to the cloud.
    pub(crate) cloud: neutron::settings::Settings,
    /// Rules for ports.
    pub(crate) rules: Rules,
}

/// Rules for ports.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Rules {
    /// Drivers for additional networks: `npwg_multiple_interfaces`, `noop`.
    pub(crate) enabled_vif_drivers: Vec<String>,
    /// Whether every pod's default interface is a port in `podSubnet`.
    pub(crate) default_network: bool,
    /// Subnet for a port whose definition names none.
    pub(crate) pod_subnet: String,
    /// Subnet by driver, for ports whose definition names none.
    pub(crate) subnet_mapping: BTreeMap<String, String>,
    /// Driver for a port whose definition names none.
    pub(crate) pod_vif_driver: Driver,
    /// Project that the ports belong to; if empty, the token's project.
    pub(crate) project: String,
    /// Security groups on the ports; if empty, the project's default group.
    pub(crate) pod_security_groups: Vec<String>,
    /// Bridge on the switch, if the binding names none.
    pub(crate) ovs_bridge: String,
    /// Further tags on each port.
    pub(crate) resource_tags: Vec<String>,
    /// Cluster name, which distinguishes these ports from those that other clusters have in the project.
    pub(crate) cluster: String,
    /// Whether ports have the name `namespace/pod`.
    pub(crate) port_debug: bool,
    /// Namespace for a default network that is named without one, like `multusNamespace` on the nodes.
    pub(crate) multus_namespace: String,
    /// Prefix for further interfaces: `eth` for `eth1`…
    pub(crate) additional_ifname_prefix: String,
    /// Subnets that contain the nodes' ports, for nested ports.
    pub(crate) worker_nodes_subnets: Vec<String>,
    /// Maximum MTU for an interface, in bytes; 0 means the network's MTU.
    pub(crate) network_device_mtu: u32,
    /// Pools with unused ports.
    pub(crate) pool: Pool,
}

/// Settings for the pools with unused ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Pool {
    /// Whether there are pools.
    pub(crate) enabled: bool,
    /// A pool with fewer ports is filled.
    pub(crate) min: usize,
    /// Maximum number of ports in a pool; 0 means no limit.
    pub(crate) max: usize,
    /// Number of ports to create in one request.
    pub(crate) batch: usize,
}

/// Way in which a port is plugged in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum Driver {
    /// Into the node's switch.
    #[default]
    NeutronVif,
    /// As a VLAN subport on the node's own port.
    NestedVlan,
    /// As a macvlan on the node, with an allowed address pair on the node's own port.
    NestedMacvlan,
}

impl Driver {
    const ALL: [(&'static str, Driver); 3] = [
        ("neutron-vif", Driver::NeutronVif),
        ("nested-vlan", Driver::NestedVlan),
        ("nested-macvlan", Driver::NestedMacvlan),
    ];

    /// Returns the driver with this name.
    ///
    /// # Errors
    /// There is no such driver; the error lists the drivers.
    pub(crate) fn named(name: &str) -> Result<Driver, UnknownDriver> {
        let found = Driver::ALL.iter().find(|(known, _)| *known == name);
        found.map(|(_, driver)| *driver).ok_or_else(|| UnknownDriver(name.to_owned()))
    }
}

/// Driver name that weft does not know.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not one of {names}", names = Driver::ALL.map(|(known, _)| known).join(", "))]
pub(crate) struct UnknownDriver(String);

/// Reason why rules are refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum RulesError {
    /// A driver for additional networks is unknown.
    #[error("enabled_vif_drivers: {0:?} is not one of {names}", names = MULTI_DRIVERS.join(", "))]
    MultiDriver(String),
    /// A driver in the subnet mapping is unknown.
    #[error("subnet_mapping: {0}")]
    SubnetMapping(UnknownDriver),
    /// There is no subnet for the default interfaces.
    #[error("pod_subnet is missing: set it to the subnet of the pods' default interfaces")]
    NoPodSubnet,
    /// The batch size is out of bounds.
    #[error("ports_pool_batch: {0} is not between 1 and 1000")]
    Batch(usize),
    /// The prefix is not valid in an interface name.
    #[error("additional_ifname_prefix: {0:?} is not one to ten lower-case letters")]
    Prefix(String),
    /// The cluster's name is not valid in a tag.
    #[error("cluster: {0:?} is not one to forty characters without a comma or a space")]
    Cluster(String),
}

impl fmt::Display for Driver {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Driver::ALL.iter().find(|(_, driver)| driver == self);
        to.write_str(found.map_or("", |(name, _)| name))
    }
}

impl TryFrom<String> for Driver {
    type Error = UnknownDriver;

    fn try_from(name: String) -> Result<Driver, UnknownDriver> {
        Driver::named(&name)
    }
}

impl Default for Pool {
    fn default() -> Pool {
        Pool { enabled: false, min: 5, max: 0, batch: 10 }
    }
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            enabled_vif_drivers: vec![NPWG.to_owned()],
            default_network: false,
            pod_subnet: String::new(),
            subnet_mapping: BTreeMap::new(),
            pod_vif_driver: Driver::NeutronVif,
            project: String::new(),
            pod_security_groups: Vec::new(),
            ovs_bridge: "br-int".to_owned(),
            resource_tags: Vec::new(),
            cluster: "kubernetes".to_owned(),
            port_debug: false,
            multus_namespace: "kube-system".to_owned(),
            additional_ifname_prefix: "eth".to_owned(),
            worker_nodes_subnets: Vec::new(),
            network_device_mtu: 0,
            pool: Pool::default(),
        }
    }
}

impl Rules {
    /// Checks the rules that the types do not express.
    pub(crate) fn check(self) -> Result<Rules, RulesError> {
        let known = |name: &&String| !MULTI_DRIVERS.contains(&name.as_str());
        if let Some(name) = self.enabled_vif_drivers.iter().find(known) {
            return Err(RulesError::MultiDriver(name.clone()));
        }
        for driver in self.subnet_mapping.keys() {
            Driver::named(driver).map_err(RulesError::SubnetMapping)?;
        }
        if self.default_network && self.pod_subnet.is_empty() {
            return Err(RulesError::NoPodSubnet);
        }
        if self.pool.enabled && !(1..=1000).contains(&self.pool.batch) {
            return Err(RulesError::Batch(self.pool.batch));
        }
        let prefix = &self.additional_ifname_prefix;
        if prefix.is_empty() || prefix.len() > 10 || !prefix.bytes().all(|byte| byte.is_ascii_lowercase()) {
            return Err(RulesError::Prefix(prefix.clone()));
        }
        // A tag has at most 60 characters. In a description, tags are separated by spaces.
        let separates = |character: char| character == ',' || character.is_whitespace();
        if self.cluster.is_empty() || self.cluster.len() > 40 || self.cluster.contains(separates) {
            return Err(RulesError::Cluster(self.cluster));
        }
        Ok(self)
    }

    /// Returns the MTU for an interface on a network with this MTU.
    pub(crate) fn mtu(&self, network: Option<u32>) -> Option<u32> {
        let most = Some(self.network_device_mtu).filter(|most| *most > 0);
        match (network, most) {
            (Some(mtu), Some(most)) => Some(mtu.min(most)),
            (one, other) => one.or(other),
        }
    }

    /// Whether additional networks are read from the annotation.
    pub(crate) fn reads_annotation(&self) -> bool {
        self.enabled_vif_drivers.iter().any(|name| name == NPWG)
    }

    /// Returns the tag that all ports in this cluster have.
    pub(crate) fn cluster_tag(&self) -> String {
        format!("{CLUSTER}{}", self.cluster)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lint_knows_all_neutron_drivers() {
        assert_eq!(Driver::ALL.map(|(name, _)| name), manifest::lint::kuryr::DRIVER_TYPES);
    }

    #[test]
    fn mtu_of_a_port_is_that_of_its_network_or_less() {
        let mtu = |most, network| Rules { network_device_mtu: most, ..Rules::default() }.mtu(network);
        assert_eq!(
            [mtu(0, Some(1442)), mtu(1400, Some(1442)), mtu(1500, Some(1442))],
            [1442, 1400, 1442].map(Some)
        );
        assert_eq!([mtu(0, None), mtu(1400, None)], [None, Some(1400)]);
    }

    #[test]
    fn port_rules_invalid_values_are_named() {
        let wrong = Rules { enabled_vif_drivers: vec!["sriov".into()], ..Rules::default() };
        assert!(wrong.check().unwrap_err().to_string().contains("noop, npwg_multiple_interfaces"));
        assert!(
            Rules { default_network: true, ..Rules::default() }
                .check()
                .unwrap_err()
                .to_string()
                .contains("pod_subnet")
        );
    }
}
