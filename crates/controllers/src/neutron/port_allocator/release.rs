//! A pod's ports are given up: back into their pools, or away.
//!
//! Rules: what is written on a pod may be its author's, and says at most which port to look at. Whose that one is says Neutron:
//! a port that is not ours, or is another pod's, or may be one's that lives, stays as it is.

use std::collections::BTreeSet;
use std::net::IpAddr;

use neutron::Error;
use neutron::port::Port;
use neutron::trunk::Allowed;
use neutron::vif::{Kind, Vif};
use tracing::warn;

use super::{Allocator, NODE, SUBPORT, is_ours, marks, owner, pairs};
use crate::neutron::port_pool::Return;
use crate::neutron::port_rules::CLUSTER;

impl Allocator {
    /// The node's own port, which may be gone with its node. What cannot be asked now is not gone.
    async fn node(&self, host: Option<IpAddr>) -> Result<Option<Port>, Error> {
        let Some(host) = host else { return Ok(None) };
        match self.neutron.node_port(host, &self.rules.worker_nodes_subnets).await {
            Err(error) if error.is_transient() => Err(error),
            other => Ok(other.ok()),
        }
    }

    /// Gives up a port that the pod of this uid names; `others` are those that other pods name.
    pub(crate) async fn release(
        &self,
        pod: &str,
        vif: &Vif,
        host: Option<IpAddr>,
        others: &BTreeSet<String>,
    ) -> Result<(), Error> {
        let stays = |why| warn!(port = vif.id, pod, why, "a port that the pod names stays");
        match self.pools.give_back(&vif.id, pod, others.contains(&vif.id)) {
            Return::Waits => return Ok(()),
            Return::Superfluous => return self.neutron.delete_port(&vif.id).await,
            Return::Kept => {
                stays("it waits for a pod, or another one may have it");
                return Ok(());
            }
            Return::Unknown => {}
        }
        let port = match self.neutron.port(&vif.id).await {
            Err(error) if error.is_absent() => return Ok(()),
            other => other?,
        };
        if !is_of(&port, pod, &self.rules.cluster_tag(), others) {
            stays("it is no port of this pod's");
            return Ok(());
        }
        if marks(&port).any(|mark| mark.starts_with(NODE)) {
            return self.remove(&port).await;
        }
        if port.device_owner == SUBPORT {
            let trunk = self.node(host).await?.and_then(|node| node.trunk_details);
            let trunk = trunk.map(|trunk| trunk.trunk_id);
            match trunk {
                // Kuryr's says nothing of whose it is: that it is in the trunk of the pod's node must do.
                Some(trunk)
                    if owner(&port).is_empty() && !self.neutron.has_subport(&trunk, &port.id).await? =>
                {
                    stays("it is in another node's trunk");
                    return Ok(());
                }
                Some(trunk) => self.neutron.unnest(&trunk, &port.id).await?,
                None if owner(&port).is_empty() => {
                    stays("it is in a trunk, and the pod's node has none");
                    return Ok(());
                }
                None => self.neutron.unnest_everywhere(&port.id).await?,
            }
        } else if let Kind::MacvlanNested = vif.kind
            && let Some(node) = self.node(host).await?
        {
            // Kuryr's, too: its own marks would have said which node's port speaks for it.
            self.allow(&node.id, &pairs(&port, None), Allowed::No).await?;
        }
        self.neutron.delete_port(&port.id).await
    }
}

/// May the end of a pod be a port's? It is one of ours, or Kuryr's, and this pod's; or nobody's that can be seen, and no
/// other pod names it.
fn is_of(port: &Port, pod: &str, cluster: &str, others: &BTreeSet<String>) -> bool {
    let is_elsewhere = marks(port).any(|mark| mark.starts_with(CLUSTER) && mark != cluster);
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
    fn a_port_is_released_with_its_pod_and_no_other() {
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
            // The copy of an annotation takes nothing away.
            (port("compute:kuryr", "x", &[own]), &named, true),
            (port("compute:kuryr", "y", &[own]), &free, false),
            (port("compute:kuryr", "x", &["weft-cluster=b"]), &free, false),
            (port("trunk:subport", "", &[own, "weft-pod=x"]), &free, true),
            (port("trunk:subport", "", &[own, "weft-pod=y"]), &free, false),
            // Of Kuryr's pool.
            (port("compute:kuryr", "", &[]), &free, true),
            (port("compute:kuryr", "", &[]), &named, false),
            (port("network:router_interface", "r", &[]), &free, false),
            (port("network:router_interface", "x", &[own]), &free, false),
            (port("compute:nova", "", &[own]), &free, false),
            (port("", "", &[own]), &free, false),
            // It was taken out of its trunk, and then could not be removed.
            (port("", "", &[own, "weft-pod=x"]), &free, true),
        ] {
            assert_eq!(is_of(&port, "x", "weft-cluster=a", others), expected, "{port:?}");
        }
    }
}
