//! What the controller of Neutron ports is told: our own YAML, or a `kuryr.conf` as it is.
//!
//! Rules: an unknown key is refused by name; names of drivers are Kuryr's; what is not said is as Kuryr has it.
//!
//! Source: Kuryr-Kubernetes `config.py` (2023.1), sections `kubernetes`, `neutron_defaults`, `vif_pool`,
//! `pod_vif_nested`; the specification's `enabled_vif_drivers`.

use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;
use thiserror::Error;

/// The beginning of the tag that says which cluster's a port is.
pub(super) const CLUSTER: &str = "weft-cluster=";
/// The driver that reads the standard's annotation.
pub(crate) const NPWG: &str = "npwg_multiple_interfaces";
/// The names under which further networks may be had.
const MULTI_DRIVERS: [&str; 2] = ["noop", NPWG];

/// What there is to be told.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    /// The cloud.
    pub(crate) cloud: neutron::settings::Settings,
    /// How the rest is done.
    pub(crate) rules: Rules,
}

/// How ports are made.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Rules {
    /// Where further networks of a pod come from: `npwg_multiple_interfaces`, `noop`.
    pub(crate) enabled_vif_drivers: Vec<String>,
    /// Has every pod a port as its default interface, in `podSubnet`?
    pub(crate) default_network: bool,
    /// The subnet of a port that names none.
    pub(crate) pod_subnet: String,
    /// The same for one driver.
    pub(crate) subnet_mapping: BTreeMap<String, String>,
    /// How a port is plugged in that does not say.
    pub(crate) pod_vif_driver: Driver,
    /// Whose ports they are; the token's project if empty.
    pub(crate) project: String,
    /// Their security groups; the project's default one if empty.
    pub(crate) pod_security_groups: Vec<String>,
    /// The bridge of the switch, where a binding names none.
    pub(crate) ovs_bridge: String,
    /// Further tags of each port.
    pub(crate) resource_tags: Vec<String>,
    /// Tells the ports of this cluster from those of another one in the same project.
    pub(crate) cluster: String,
    /// Are ports named `namespace/pod`?
    pub(crate) port_debug: bool,
    /// Where a default network is that is named without a namespace, as `multusNamespace` of the nodes says.
    pub(crate) multus_namespace: String,
    /// How further interfaces are numbered: `eth1`…
    pub(crate) additional_ifname_prefix: String,
    /// Where nodes have their own ports, for nested ones.
    pub(crate) worker_nodes_subnets: Vec<String>,
    /// No interface of a pod has a larger MTU, in bytes; 0: its network's.
    pub(crate) network_device_mtu: u32,
    /// Ports that wait for pods.
    pub(crate) pool: Pool,
}

/// Ports that wait for pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub(crate) struct Pool {
    /// Are there any?
    pub(crate) enabled: bool,
    /// Fewer than these are filled up.
    pub(crate) min: usize,
    /// More than these are not kept; 0: no limit.
    pub(crate) max: usize,
    /// So many are made at a time.
    pub(crate) batch: usize,
}

/// How a port is plugged in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub(crate) enum Driver {
    /// Into the node's switch.
    #[default]
    NeutronVif,
    /// As a VLAN of the node's own port.
    NestedVlan,
    /// Beside the node's own address.
    NestedMacvlan,
}

impl Driver {
    const ALL: [(&'static str, Driver); 3] = [
        ("neutron-vif", Driver::NeutronVif),
        ("nested-vlan", Driver::NestedVlan),
        ("nested-macvlan", Driver::NestedMacvlan),
    ];

    /// By its name.
    ///
    /// # Errors
    /// It is none, with the list of those there are.
    pub(crate) fn named(name: &str) -> Result<Driver, UnknownDriver> {
        let found = Driver::ALL.iter().find(|(known, _)| *known == name);
        found.map(|(_, driver)| *driver).ok_or_else(|| UnknownDriver(name.to_owned()))
    }
}

/// Name that no driver has.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not one of {names}", names = Driver::ALL.map(|(known, _)| known).join(", "))]
pub(crate) struct UnknownDriver(String);

/// Reason why rules cannot be kept.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum RulesError {
    /// A source of further interfaces is unknown.
    #[error("enabled_vif_drivers: {0:?} is not one of {names}", names = MULTI_DRIVERS.join(", "))]
    MultiDriver(String),
    /// A driver of the subnet mapping is unknown.
    #[error("subnet_mapping: {0}")]
    SubnetMapping(UnknownDriver),
    /// The subnet of the default interfaces is missing.
    #[error("pod_subnet is missing: it is where the default interface of every pod is")]
    NoPodSubnet,
    /// The size of a batch is out of bounds.
    #[error("ports_pool_batch: {0} is not within 1..=1000")]
    Batch(usize),
    /// The prefix begins no interface's name.
    #[error("additional_ifname_prefix: {0:?} is not one to ten small letters")]
    Prefix(String),
    /// The name of the cluster is no tag.
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
    /// What cannot be seen from the form of a key alone.
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
        // A tag has at most 60 characters; in a description tags are words.
        let separates = |character: char| character == ',' || character.is_whitespace();
        if self.cluster.is_empty() || self.cluster.len() > 40 || self.cluster.contains(separates) {
            return Err(RulesError::Cluster(self.cluster));
        }
        Ok(self)
    }

    /// The MTU of an interface on a network that has this one.
    pub(crate) fn mtu(&self, network: Option<u32>) -> Option<u32> {
        let most = Some(self.network_device_mtu).filter(|most| *most > 0);
        match (network, most) {
            (Some(mtu), Some(most)) => Some(mtu.min(most)),
            (one, other) => one.or(other),
        }
    }

    /// Are further networks had at all?
    pub(crate) fn reads_annotation(&self) -> bool {
        self.enabled_vif_drivers.iter().any(|name| name == NPWG)
    }

    /// The tag that all ports of this cluster have.
    pub(crate) fn cluster_tag(&self) -> String {
        format!("{CLUSTER}{}", self.cluster)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_linter_knows_the_drivers_there_are() {
        assert_eq!(Driver::ALL.map(|(name, _)| name), manifest::lint::kuryr::DRIVER_TYPES);
    }

    #[test]
    fn the_mtu_of_a_device_is_its_networks_or_less() {
        let mtu = |most, network| Rules { network_device_mtu: most, ..Rules::default() }.mtu(network);
        assert_eq!(
            [mtu(0, Some(1442)), mtu(1400, Some(1442)), mtu(1500, Some(1442))],
            [1442, 1400, 1442].map(Some)
        );
        assert_eq!([mtu(0, None), mtu(1400, None)], [None, Some(1400)]);
    }

    #[test]
    fn rules_that_cannot_be_kept_are_refused_by_name() {
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
