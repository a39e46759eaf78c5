//! Releases a pod's ports: they go back into the pools, or are deleted.
//!
//! A VIF written on a pod is untrusted, because the pod's author may have written it. It only names a port to look at;
//! the port in Neutron shows the owner. A port is not touched in these cases:
//! - Neither weft nor Kuryr created it.
//! - It belongs to another pod or another cluster.
//! - It has no owner, and another pod names it, too.

use std::collections::BTreeSet;
use std::net::IpAddr;

use neutron::Error;
use neutron::port::Port;
use neutron::trunk::Allowed;
use neutron::vif::{Kind, Vif};
use tracing::warn;

use super::{Allocator, NODE, SUBPORT, address_pairs, is_ours, owner, owner_tags};
use crate::neutron::port_pool::ReturnOutcome;
use crate::neutron::port_rules::CLUSTER;

impl Allocator {
    /// Returns the node's own port; none if it does not exist.
    async fn node(&self, host: Option<IpAddr>) -> Result<Option<Port>, Error> {
        let Some(host) = host else { return Ok(None) };
        match self.neutron.node_port(host, &self.rules.worker_nodes_subnets).await {
            Err(error) if error.is_transient() => Err(error),
            other => Ok(other.ok()),
        }
    }

    /// Releases a port that the pod with this uid names. `others` are the ports that other pods name.
    pub(crate) async fn release(
        &self,
        pod: &str,
        vif: &Vif,
        host: Option<IpAddr>,
        others: &BTreeSet<String>,
    ) -> Result<(), Error> {
        let stays = |reason| warn!(port = vif.id, pod, reason, "port named by the pod is not released");
        match self.pools.return_port(&vif.id, pod, others.contains(&vif.id)) {
            ReturnOutcome::Pooled => return Ok(()),
            ReturnOutcome::Surplus => return self.neutron.delete_port(&vif.id).await,
            ReturnOutcome::Kept => {
                stays("it is in a pool, or another pod may have it");
                return Ok(());
            }
            ReturnOutcome::Unknown => {}
        }
        let port = match self.neutron.port(&vif.id).await {
            Err(error) if error.is_absent() => return Ok(()),
            other => other?,
        };
        if !is_of(&port, pod, &self.rules.cluster_tag(), others) {
            stays("it does not belong to this pod");
            return Ok(());
        }
        if owner_tags(&port).any(|tag| tag.starts_with(NODE)) {
            return self.remove(&port).await;
        }
        if port.device_owner == SUBPORT {
            let trunk = self.node(host).await?.and_then(|node| node.trunk_details);
            let trunk = trunk.map(|trunk| trunk.trunk_id);
            match trunk {
                // A subport that Kuryr created has no owner tag, so it must be in the trunk of the pod's node.
                Some(trunk)
                    if owner(&port).is_empty() && !self.neutron.has_subport(&trunk, &port.id).await? =>
                {
                    stays("it is in another node's trunk");
                    return Ok(());
                }
                Some(trunk) => self.neutron.unnest(&trunk, &port.id).await?,
                None if owner(&port).is_empty() => {
                    stays("it is in a trunk, but the pod's node has no trunk");
                    return Ok(());
                }
                None => self.neutron.unnest_everywhere(&port.id).await?,
            }
        } else if let Kind::MacvlanNested = vif.kind
            && let Some(node) = self.node(host).await?
        {
            // A port that Kuryr created: owner tags of weft would name the node's port.
            self.allow(&node.id, &address_pairs(&port, None), Allowed::No).await?;
        }
        self.neutron.delete_port(&port.id).await
    }
}

/// Whether a port is released with this pod: weft or Kuryr created it, and it belongs to this pod, or it has no owner and no other
/// pod names it.
fn is_of(port: &Port, pod: &str, cluster: &str, others: &BTreeSet<String>) -> bool {
    let is_elsewhere = owner_tags(port).any(|tag| tag.starts_with(CLUSTER) && tag != cluster);
    is_ours(port)
        && !is_elsewhere
        && match owner(port) {
            "" => !others.contains(&port.id),
            owner => owner == pod,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_release_is_limited_to_ports_of_the_pod() {
        let port = |owner: &str, device: &str, tags: &[&str]| Port {
            id: "p".into(),
            device_owner: owner.into(),
            device_id: device.into(),
            tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
            ..Port::default()
        };
        let own = "weft-cluster=a";
        let (free, named) = (BTreeSet::new(), BTreeSet::from(["p".to_owned()]));
        for (port, others, expected) in [
            (port("compute:kuryr", "x", &[own]), &free, true),
            // A copied annotation releases nothing.
            (port("compute:kuryr", "x", &[own]), &named, true),
            (port("compute:kuryr", "y", &[own]), &free, false),
            (port("compute:kuryr", "x", &["weft-cluster=b"]), &free, false),
            (port("trunk:subport", "", &[own, "weft-pod=x"]), &free, true),
            (port("trunk:subport", "", &[own, "weft-pod=y"]), &free, false),
            // A port of Kuryr's pool.
            (port("compute:kuryr", "", &[]), &free, true),
            (port("compute:kuryr", "", &[]), &named, false),
            (port("network:router_interface", "r", &[]), &free, false),
            (port("network:router_interface", "x", &[own]), &free, false),
            (port("compute:nova", "", &[own]), &free, false),
            (port("", "", &[own]), &free, false),
            // A subport that was removed from its trunk, and could not be deleted then.
            (port("", "", &[own, "weft-pod=x"]), &free, true),
        ] {
            assert_eq!(is_of(&port, "x", "weft-cluster=a", others), expected, "{port:?}");
        }
    }
}
