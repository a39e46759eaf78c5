//! Nested ports: pods that share the node's own port, through trunk VLANs or additional allowed addresses.
//!
//! The VLAN id is chosen among the free ones; if another client takes it first, the next one is tried. Changing allowed
//! addresses names the revision that was read, so that concurrent changes are not lost.
//!
//! Source: Networking API v2.0, "Trunk networking"; Kuryr-Kubernetes `nested_vlan_vif.py`, `nested_macvlan_vif.py`.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};

use crate::client::Client;
use crate::error::Error;
use crate::port::{AddressPair, Port};

/// Maximum number of retries after a conflict.
const TRIES: usize = 5;
/// Valid VLAN ids.
const VLANS: std::ops::RangeInclusive<u16> = 1..=4094;

impl Client {
    /// Finds the node's own port by the node address, which must be in one of these subnets.
    ///
    /// # Errors
    /// There is no such port.
    pub async fn node_port(&self, address: IpAddr, subnets: &[String]) -> Result<Port, Error> {
        let query = format!("ip_address={address}");
        let found = self.ports(&[("fixed_ips", &query)]).await?;
        let on = |port: &Port| {
            port.fixed_ips.iter().any(|ip| {
                ip.ip_address == Some(address) && (subnets.is_empty() || subnets.contains(&ip.subnet_id))
            })
        };
        found.into_iter().find(on).ok_or_else(|| {
            let why = format!("no port has the node's address {address} in worker_nodes_subnets");
            Error::configuration("nested", why)
        })
    }

    /// Adds a port to a trunk as a subport, and returns the VLAN id.
    ///
    /// # Errors
    /// All VLAN ids are in use, or other clients caused too many conflicts.
    pub async fn nest(&self, trunk: &str, port: &str) -> Result<u16, Error> {
        let mut tries = 0;
        loop {
            let taken = self.subports(trunk).await?;
            if let Some(known) = taken.iter().find(|one| one["port_id"] == port)
                && let Some(id) = known["segmentation_id"].as_u64().and_then(|id| u16::try_from(id).ok())
            {
                return Ok(id);
            }
            let taken: BTreeSet<u64> =
                taken.iter().filter_map(|one| one["segmentation_id"].as_u64()).collect();
            let Some(id) = free_vlan(&taken, port) else {
                return Err(Error::configuration(format!("trunk {trunk}"), "all 4094 VLAN ids are in use"));
            };
            let subport = json!([{ "port_id": port, "segmentation_type": "vlan", "segmentation_id": id }]);
            match self.change_trunk(trunk, "add_subports", &subport).await {
                Ok(_) => return Ok(id),
                // Any other conflict concerns the port itself, so another VLAN id would not help.
                Err(error) if error.kind() == "DuplicateSubPort" && tries < TRIES => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Removes a port from every trunk.
    pub async fn unnest_everywhere(&self, port: &str) -> Result<(), Error> {
        let trunks = self.trunks().await?;
        let has_it = |trunk: &&Value| {
            trunk["sub_ports"].as_array().into_iter().flatten().any(|subport| subport["port_id"] == port)
        };
        for trunk in trunks.iter().filter(has_it) {
            self.unnest(trunk["id"].as_str().unwrap_or_default(), port).await?;
        }
        Ok(())
    }

    /// Whether a trunk has this subport; false if the trunk does not exist.
    pub async fn has_subport(&self, trunk: &str, port: &str) -> Result<bool, Error> {
        match self.subports(trunk).await {
            Err(error) if error.is_absent() => Ok(false),
            all => Ok(all?.iter().any(|subport| subport["port_id"] == port)),
        }
    }

    /// Removes a subport from the trunk; a missing subport or trunk is not an error.
    pub async fn unnest(&self, trunk: &str, port: &str) -> Result<(), Error> {
        match self.change_trunk(trunk, "remove_subports", &json!([{ "port_id": port }])).await {
            Err(error) if error.is_absent() => Ok(()),
            other => other.map(drop),
        }
    }

    /// Allows or forbids a node's port to send from additional addresses.
    ///
    /// # Errors
    /// Other clients caused too many conflicts.
    pub async fn allow(&self, node_port: &str, pair: &[AddressPair], allowed: Allowed) -> Result<(), Error> {
        let mut tries = 0;
        loop {
            let port = self.port(node_port).await?;
            let mut pairs = port.allowed_address_pairs.clone();
            let is_one = |known: &AddressPair| pair.iter().any(|one| one.ip_address == known.ip_address);
            pairs.retain(|known| !is_one(known));
            if allowed == Allowed::Yes {
                pairs.extend(pair.iter().cloned());
            }
            if pairs == port.allowed_address_pairs {
                return Ok(());
            }
            let change: Value = json!({ "allowed_address_pairs": pairs });
            match self.update_port(node_port, &change, Some(port.revision_number)).await {
                Ok(_) => return Ok(()),
                Err(error) if error.is_outdated() && tries < TRIES => tries += 1,
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether a port may send from an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Adds the address pairs.
    Yes,
    /// Removes the address pairs.
    No,
}

/// Finds a free VLAN id. The search starts at an id derived from the port, so that concurrent searches rarely conflict.
fn free_vlan(taken: &BTreeSet<u64>, port: &str) -> Option<u16> {
    let count = VLANS.end() - VLANS.start() + 1;
    let hash = port.bytes().fold(0u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(u32::from(byte)));
    let first = u16::try_from(hash % u32::from(count)).unwrap_or_default();
    let all = VLANS.map(|id| (id - VLANS.start() + first) % count + VLANS.start());
    all.into_iter().find(|id| !taken.contains(&u64::from(*id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vlan_ids_are_all_allocated_before_none_is_free() {
        let mut taken = BTreeSet::new();
        while let Some(id) = free_vlan(&taken, "some-port") {
            assert!(VLANS.contains(&id) && taken.insert(u64::from(id)), "{id}");
        }
        assert_eq!(taken.len(), 4094);
    }
}
