//! Port allocator: finds or creates the Neutron ports that a pod requests.
//!
//! - Each port is tagged with the owner when it is created: cluster, pod uid, interface. If the cloud accepts tags only
//!   afterwards, the same words are in the port's description.
//! - A port that was created before a restart, or whose response was lost, is found by these tags and
//!   adopted.
//! - A port whose binding failed is deleted.
//!
//! Source: Kuryr-Kubernetes `neutron_vif.py`, `nested_vlan_vif.py`, `nested_macvlan_vif.py`.

mod fit;
mod release;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use neutron::pod_state::PodState;
use neutron::port::{
    AddressPair, BINDING_FAILED, DEVICE_OWNER, FixedIp, Network, NewPort, Port, Subnet, UNBOUND,
};
use neutron::trunk::Allowed;
use neutron::vif::{Kind, Plugging, Vif};
use neutron::{Client, Error};
use tokio::sync::{Mutex, OnceCell};
use tracing::{info, warn};

use self::fit::serves;
use crate::neutron::pod_subject::PodSubject;
use crate::neutron::port_pool::backoff::Backoff;
use crate::neutron::port_pool::{PoolKey, Pools, User};
use crate::neutron::port_request::PortRequest;
use crate::neutron::port_rules::{Driver, Rules};
use kube_support::events::EventReason;

/// Tag prefix for the interface that a port is for.
const ATTACHMENT: &str = "weft-attachment=";
/// Tag prefix for the pod's uid, on ports whose `device_id` cannot contain it: subports on a trunk.
const POD: &str = "weft-pod=";
/// Tag prefix on a macvlan's port. The tag contains the node port's id, whose allowed address pairs contain
/// the macvlan's addresses.
const NODE: &str = "weft-node=";
/// Device owner that a trunk's subport has.
const SUBPORT: &str = "trunk:subport";
/// Neutron extension that accepts tags in the request that creates a port.
const TAGS_AT_ONCE: &str = "tag-ports-during-bulk-creation";
/// Time for which a subnet is cached: longer than a burst of pods, but short enough for a changed subnet.
const SUBNET_AGE: Duration = Duration::from_secs(300);

/// Port allocator, shared by all pods.
#[derive(Debug)]
pub(crate) struct Allocator {
    pub(crate) neutron: Client,
    pub(crate) rules: Rules,
    pub(crate) pools: Pools,
    subnets: Mutex<HashMap<String, Known>>,
    extensions: OnceCell<Vec<String>>,
    /// Locks for the ports of nodes, because allowed address pairs are read and written as a whole.
    node_ports: Mutex<HashMap<String, Arc<Mutex<()>>>>,
}

#[derive(Clone, Debug)]
struct Known {
    subnet: Subnet,
    network: Network,
    at: Instant,
}

/// Why a pod does not get ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortFailure {
    /// Reason in the Event.
    pub(crate) reason: EventReason,
    /// Sentence for people.
    pub(crate) why: String,
    /// Whether the same request may succeed later.
    pub(crate) is_transient: bool,
}

impl From<Error> for PortFailure {
    fn from(error: Error) -> PortFailure {
        let reason = if error.is_over_quota() {
            EventReason::NeutronQuota
        } else if matches!(error.status(), None | Some(502..=504)) {
            // Without a response, or with one of a proxy in front of Neutron.
            EventReason::NeutronUnreachable
        } else {
            EventReason::NeutronRefused
        };
        let mut why = error.to_string();
        if error.kind() == "AllowedAddressPairExhausted" {
            // The limit is low by default and is not the pod's fault.
            why.push_str("; each macvlan on a node needs an allowed address pair of its port: raise max_allowed_address_pair in neutron.conf");
        }
        PortFailure { reason, is_transient: error.is_transient(), why }
    }
}

impl PortFailure {
    pub(crate) fn new(reason: EventReason, why: impl Into<String>) -> PortFailure {
        PortFailure { reason, why: why.into(), is_transient: false }
    }
}

// === impl Allocator ===

impl Allocator {
    pub(crate) fn new(neutron: Client, rules: Rules) -> Allocator {
        let pools = Pools::new(rules.pool);
        let (subnets, extensions) = (Mutex::new(HashMap::new()), OnceCell::new());
        Allocator { neutron, rules, pools, subnets, extensions, node_ports: Mutex::default() }
    }

    /// Returns a subnet and the network. Requests are serialized, so that a burst of pods causes one.
    async fn subnet(&self, id: &str) -> Result<(Subnet, Network), Error> {
        let mut subnets = self.subnets.lock().await;
        if let Some(Known { subnet, network, .. }) =
            subnets.get(id).filter(|known| known.at.elapsed() < SUBNET_AGE)
        {
            return Ok((subnet.clone(), network.clone()));
        }
        let subnet = self.neutron.subnet(id).await?;
        let mut network = self.neutron.network(&subnet.network_id).await?;
        network.mtu = self.rules.mtu(network.mtu);
        let known = Known { subnet: subnet.clone(), network: network.clone(), at: Instant::now() };
        subnets.insert(id.to_owned(), known);
        Ok((subnet, network))
    }

    async fn tags_at_once(&self) -> Result<bool, Error> {
        let known = self.extensions.get_or_try_init(|| self.neutron.extensions()).await?;
        Ok(known.iter().any(|alias| alias == TAGS_AT_ONCE))
    }

    /// Provides all ports that a pod requests, in addition to those it has. `found` are ports that may have been created for
    /// it before.
    ///
    /// `state` is updated at once with each created or released port, so that another attempt continues from there.
    pub(crate) async fn fulfil(
        &self,
        subject: &PodSubject,
        requests: &[PortRequest],
        found: &[Port],
        (state, written): (&mut PodState, &PodState),
    ) -> Result<(), PortFailure> {
        self.release_unrequested(subject, requests, (state, written)).await?;
        for request in
            requests.iter().filter(|request| state.vif(&request.name).is_none()).collect::<Vec<_>>()
        {
            let (subnet, network) = self.subnet(&request.subnet).await.map_err(PortFailure::from)?;
            // The node is read before a port is created for it.
            let node = self.node_for(subject, request).await?;
            let port = self.port(subject, request, &subnet, node.as_ref(), found).await?;
            let plugging = self.plugging(node.as_ref(), request, &port).await;
            let vif = plugging.and_then(|plugging| {
                Vif::of(&port, &network, std::slice::from_ref(&subnet), &plugging).map_err(|binding| PortFailure {
                    reason: EventReason::PortNotBound,
                    why: format!(
                        "port {} has the binding {:?} on host {:?}: check that a Neutron agent runs under that host name",
                        port.id, binding.vif_type, port.host_id
                    ),
                    is_transient: true,
                })
            });
            match vif {
                Ok(mut vif) => {
                    if matches!(vif.kind, Kind::MacvlanNested) {
                        vif.address = macvlan_mac(request, &port);
                        // No agent reports the status of a macvlan.
                        vif.active = true;
                    }
                    state.insert(&request.name, vif);
                }
                Err(trouble) => {
                    // An unusable port is deleted; if that fails, the next comparison deletes it.
                    self.pools.forget(&port.id);
                    let _ = self.remove(&port).await;
                    return Err(trouble);
                }
            }
        }
        Ok(())
    }

    /// Returns the port for one request.
    async fn port(
        &self,
        subject: &PodSubject,
        request: &PortRequest,
        subnet: &Subnet,
        node: Option<&Port>,
        found: &[Port],
    ) -> Result<Port, PortFailure> {
        let tag = format!("{ATTACHMENT}{}", request.name);
        for port in found.iter().filter(|port| owner_tags(port).any(|own| own == tag)) {
            if serves(port, request, subnet) {
                info!(
                    port = port.id,
                    pod = subject.pod.name,
                    interface = request.name,
                    "adopted existing port"
                );
                return Ok(port.clone());
            }
            // The port was created for another request.
            self.remove(port).await?;
        }
        let pooled = self.rules.pool.enabled
            && request.driver == Driver::NeutronVif
            && request.addresses.is_empty()
            && request.mac.is_none();
        if pooled {
            let key = PoolKey {
                host: subject.pod.node_name.clone(),
                subnet: subnet.id.clone(),
                groups: self.groups(&self.rules.pod_security_groups),
            };
            let fill = |count| self.fill(&key, subnet, count);
            return self.pools.take(&key, &subject.pod.uid, fill).await;
        }
        let mut new = self.new_port(subject, request, subnet, tag);
        if let Some(node) = node.filter(|_| request.driver == Driver::NestedMacvlan) {
            new.tags.push(format!("{NODE}{}", node.id));
        }
        self.create(vec![new])
            .await?
            .pop()
            .ok_or_else(|| PortFailure::new(EventReason::NeutronRefused, "Neutron returned no port"))
    }

    /// Creates ports for a pool. Unbound ports are deleted; the result is an error if no port is bound.
    async fn fill(&self, key: &PoolKey, subnet: &Subnet, count: usize) -> Result<Vec<Port>, PortFailure> {
        let template = NewPort {
            network_id: subnet.network_id.clone(),
            fixed_ips: vec![FixedIp { subnet_id: subnet.id.clone(), ip_address: None }],
            host_id: Some(key.host.clone()),
            ..self.base_port()
        };
        let created = self.create(vec![template; count]).await?;
        let (bound, unbound): (Vec<Port>, Vec<Port>) = created.into_iter().partition(Port::is_bound);
        for port in &unbound {
            // If this fails, the next comparison deletes the port.
            let _ = self.neutron.delete_port(&port.id).await;
        }
        match unbound.first() {
            Some(port) if bound.is_empty() => Err(not_bound(port)),
            _ => Ok(bound),
        }
    }

    /// Creates ports with owner tags.
    async fn create(&self, mut ports: Vec<NewPort>) -> Result<Vec<Port>, Error> {
        let tags_later = !self.tags_at_once().await?;
        for port in ports.iter_mut().filter(|_| tags_later) {
            let tags = std::mem::take(&mut port.tags);
            let own = tags.into_iter().filter(|tag| !self.rules.resource_tags.contains(tag));
            port.description = own.collect::<Vec<_>>().join(" ");
        }
        let mut created = match ports.as_slice() {
            [one] => vec![self.neutron.create_port(one).await?],
            many => self.neutron.create_ports(many).await?,
        };
        for port in created.iter_mut().filter(|_| tags_later) {
            self.tag(port).await?;
        }
        // The response of a bulk request may precede the binding.
        for port in created.iter_mut().filter(|port| port.vif_type == UNBOUND && !port.host_id.is_empty()) {
            *port = self.neutron.port(&port.id).await?;
        }
        Ok(created)
    }

    /// Tags a port whose owner tags are in the description.
    ///
    /// A pod's port is always tagged, because operators search for tags, and subports are found by nothing
    /// else. Pooled ports are tagged only if the configuration has further tags. If tagging fails, the
    /// description still names the owner.
    async fn tag(&self, port: &mut Port) -> Result<(), Error> {
        let wanted = &self.rules.resource_tags;
        if wanted.is_empty() && owner(port).is_empty() {
            return Ok(());
        }
        let tags: Vec<String> =
            port.description.split_whitespace().map(str::to_owned).chain(wanted.clone()).collect();
        self.neutron.tag_port(&port.id, &tags).await?;
        port.tags = tags;
        Ok(())
    }

    /// Returns the security groups as pools use them: without configured groups, all ports have the project's default group.
    fn groups(&self, groups: &[String]) -> Vec<String> {
        let mut groups = if self.rules.pod_security_groups.is_empty() { Vec::new() } else { groups.to_vec() };
        groups.sort();
        groups
    }

    /// Registers a pooled port that exists after a restart. The result is false if the pool is full, or the
    /// port has outdated security groups.
    pub(crate) fn register(&self, port: &Port, user: Option<&User>) -> bool {
        let groups = self.groups(&port.security_groups);
        groups == self.groups(&self.rules.pod_security_groups) && self.pools.register(port, groups, user)
    }

    /// Fills the pools that run low; while ports become active, only those that may soon be empty. A pool that cannot be
    /// filled is paused and does not delay the others.
    pub(crate) async fn top_up(&self, is_quiet: bool, backoff: &mut Backoff) {
        let low = self.pools.low(is_quiet);
        backoff.keep(&low);
        for (key, count) in low {
            if !backoff.is_due(&key, Instant::now()) {
                continue;
            }
            match self.fill_up(&key, count).await {
                Ok(()) => backoff.filled(&key),
                Err(PortFailure { reason, why, .. }) => {
                    warn!(
                        reason = reason.as_str(),
                        error = why,
                        host = key.host,
                        subnet = key.subnet,
                        "failed to fill port pool"
                    );
                    backoff.failed(&key, Instant::now());
                }
            }
        }
    }

    async fn fill_up(&self, key: &PoolKey, count: usize) -> Result<(), PortFailure> {
        let (subnet, _) = self.subnet(&key.subnet).await?;
        self.pools.top_up(key, count, |count| self.fill(key, &subnet, count)).await
    }

    /// Returns a new port with the fields that all of weft's ports have.
    fn base_port(&self) -> NewPort {
        let Rules { project, pod_security_groups, .. } = &self.rules;
        NewPort {
            project_id: Some(project.clone()).filter(|project| !project.is_empty()),
            device_owner: DEVICE_OWNER,
            admin_state_up: true,
            security_groups: Some(pod_security_groups.clone()).filter(|groups| !groups.is_empty()),
            tags: std::iter::once(self.rules.cluster_tag()).chain(self.rules.resource_tags.clone()).collect(),
            ..NewPort::default()
        }
    }

    fn new_port(&self, subject: &PodSubject, request: &PortRequest, subnet: &Subnet, tag: String) -> NewPort {
        let pod = &subject.pod;
        let fixed = |ip_address| FixedIp { subnet_id: subnet.id.clone(), ip_address };
        // Neutron rejects an address outside of the subnet, with its name.
        let mut fixed_ips: Vec<FixedIp> =
            request.addresses.iter().map(|address| fixed(Some(*address))).collect();
        if fixed_ips.is_empty() {
            fixed_ips.push(fixed(None));
        }
        let mut port = NewPort {
            network_id: subnet.network_id.clone(),
            fixed_ips,
            device_id: pod.uid.clone(),
            host_id: (request.driver == Driver::NeutronVif).then(|| pod.node_name.clone()),
            // A macvlan's port has another hardware address than the macvlan.
            mac_address: request.mac.clone().filter(|_| request.driver != Driver::NestedMacvlan),
            ..self.base_port()
        };
        port.tags.push(tag);
        if request.driver == Driver::NestedVlan {
            port.tags.push(format!("{POD}{}", pod.uid));
        }
        // A macvlan's port only reserves the address, so it is down, and the switch learns where the address is. OVN would
        // otherwise send routed traffic to the port itself.
        port.admin_state_up = request.driver != Driver::NestedMacvlan;
        if self.rules.port_debug {
            port.name = format!("{}/{}", pod.namespace, pod.name).chars().take(255).collect();
        }
        port
    }

    /// Returns the port that the pod's node has, for a nested port.
    async fn node_for(
        &self,
        subject: &PodSubject,
        request: &PortRequest,
    ) -> Result<Option<Port>, PortFailure> {
        if request.driver == Driver::NeutronVif {
            return Ok(None);
        }
        let Some(host) = subject.host else {
            let why = format!("driverType {}: the node's address is not known yet", request.driver);
            return Err(PortFailure { reason: EventReason::NodeUnknown, why, is_transient: true });
        };
        let node = self.neutron.node_port(host, &self.rules.worker_nodes_subnets).await?;
        if request.driver == Driver::NestedVlan && node.trunk_details.is_none() {
            let why = format!(
                "driverType nested-vlan: the node's port {} is not the parent port of a trunk",
                node.id
            );
            return Err(PortFailure::new(EventReason::NodeNotTrunk, why));
        }
        Ok(Some(node))
    }

    /// Returns how a port is plugged in. For a nested port, the node's own port is changed.
    async fn plugging(
        &self,
        node: Option<&Port>,
        request: &PortRequest,
        port: &Port,
    ) -> Result<Plugging, PortFailure> {
        let Some(node) = node else {
            if port.vif_type == BINDING_FAILED {
                return Err(not_bound(port));
            }
            return Ok(Plugging::Bound { bridge: self.rules.ovs_bridge.clone() });
        };
        let Some(trunk) = node.trunk_details.as_ref().filter(|_| request.driver == Driver::NestedVlan) else {
            self.allow(&node.id, &address_pairs(port, Some(&macvlan_mac(request, port))), Allowed::Yes)
                .await?;
            return Ok(Plugging::Macvlan);
        };
        if !port.device_id.is_empty() {
            // From here on the tag names the owner: a trunk accepts no port with a device id.
            let no_device = serde_json::json!({ "device_id": "" });
            self.neutron.update_port(&port.id, &no_device, None).await?;
        }
        Ok(Plugging::Vlan(self.neutron.nest(&trunk.trunk_id, &port.id).await?))
    }

    /// Adds addresses to the allowed address pairs on a node's own port, or removes them.
    async fn allow(&self, node: &str, pairs: &[AddressPair], allowed: Allowed) -> Result<(), Error> {
        let lock = Arc::clone(self.node_ports.lock().await.entry(node.to_owned()).or_default());
        let _lock = lock.lock().await;
        self.neutron.allow(node, pairs, allowed).await
    }

    /// Removes a port from the trunk and from the node's allowed address pairs, and deletes it. All steps are done in
    /// any case, because a request without a response may have succeeded.
    pub(crate) async fn remove(&self, port: &Port) -> Result<(), Error> {
        if let Some(node) = owner_tags(port).find_map(|tag| tag.strip_prefix(NODE)) {
            match self.allow(node, &address_pairs(port, None), Allowed::No).await {
                // The node's port was deleted with the node.
                Err(error) if error.is_absent() => {}
                other => other?,
            }
        }
        if owner_tags(port).any(|tag| tag.starts_with(POD)) {
            self.neutron.unnest_everywhere(&port.id).await?;
        }
        self.neutron.delete_port(&port.id).await
    }

    /// Returns all ports that belong to this cluster's pods.
    pub(crate) async fn all(&self) -> Result<Vec<Port>, Error> {
        let tag = self.rules.cluster_tag();
        let fields = [
            "id",
            "device_id",
            "device_owner",
            "tags",
            "description",
            "status",
            "mac_address",
            "network_id",
            "fixed_ips",
            "security_groups",
            "binding:host_id",
            "binding:vif_type",
            "binding:vif_details",
        ];
        let fields = fields.map(|field| ("fields", field));
        let query: Vec<(&str, &str)> = [("tags", tag.as_str())].into_iter().chain(fields).collect();
        let mut all = self.neutron.ports(&query).await?;
        if !self.tags_at_once().await? {
            let mut query = vec![("device_owner", DEVICE_OWNER), ("not-tags", tag.as_str())];
            let project = Some(("project_id", self.rules.project.as_str()));
            query.extend(project.filter(|(_, project)| !project.is_empty()));
            query.extend(fields);
            all.extend(self.described(&query).await?);
        }
        // The device owner of a subport is its trunk.
        Ok(all.into_iter().filter(is_ours).collect())
    }

    /// Returns a query's untagged ports whose description names this cluster, and tags them.
    async fn described(&self, query: &[(&str, &str)]) -> Result<Vec<Port>, Error> {
        let cluster = self.rules.cluster_tag();
        let mut ports = self.neutron.ports(query).await?;
        ports.retain(|port| port.description.split_whitespace().any(|tag| tag == cluster));
        for port in &mut ports {
            self.tag(port).await?;
        }
        Ok(ports)
    }

    /// Returns the ports that were created for a pod.
    pub(crate) async fn of_pod(&self, uid: &str) -> Result<Vec<Port>, Error> {
        let tag = self.rules.cluster_tag();
        let mut ports = self.neutron.ports(&[("device_id", uid), ("tags", &tag)]).await?;
        if !self.tags_at_once().await? {
            ports.extend(self.described(&[("device_id", uid), ("not-tags", &tag)]).await?);
        }
        let nested = self.neutron.ports(&[("tags", &format!("{tag},{POD}{uid}"))]).await?;
        ports.extend(nested.into_iter().filter(|port| port.device_id.is_empty()));
        Ok(ports)
    }

    /// Returns whether each of these ports is ACTIVE. A request contains at most 100 ids, which fit into a
    /// URL.
    pub(crate) async fn active(&self, ids: &[String]) -> Result<BTreeMap<String, bool>, Error> {
        let mut seen = BTreeMap::new();
        for part in ids.chunks(100) {
            let mut query: Vec<(&str, &str)> = part.iter().map(|id| ("id", id.as_str())).collect();
            query.extend([("fields", "id"), ("fields", "status")]);
            for port in self.neutron.ports(&query).await? {
                seen.insert(port.id, port.status == neutron::port::ACTIVE);
            }
        }
        Ok(seen)
    }
}

/// Returns a port's owner tags: the tags, and the words in the description.
fn owner_tags(port: &Port) -> impl Iterator<Item = &str> {
    port.tags.iter().map(String::as_str).chain(port.description.split_whitespace())
}

/// Returns the uid of the pod that a port belongs to; empty for a pooled port.
pub(crate) fn owner(port: &Port) -> &str {
    let tagged = owner_tags(port).find_map(|tag| tag.strip_prefix(POD));
    Some(port.device_id.as_str()).filter(|id| !id.is_empty()).or(tagged).unwrap_or_default()
}

fn not_bound(port: &Port) -> PortFailure {
    let why = format!("port {}: no mechanism driver of Neutron binds it on host {:?}", port.id, port.host_id);
    PortFailure { reason: EventReason::PortNotBound, why, is_transient: true }
}

/// Whether weft or Kuryr created the port. Neutron clears the device owner when a port is removed from a
/// trunk.
fn is_ours(port: &Port) -> bool {
    match port.device_owner.as_str() {
        DEVICE_OWNER | SUBPORT => true,
        "" => owner_tags(port).any(|tag| tag.starts_with(POD)),
        _ => false,
    }
}

/// Returns a macvlan's hardware address: the requested one, or the port's with a bit in the first byte changed.
///
/// It must differ from the port's address: OVN knows where that is, and would send frames to the port, which is not
/// plugged in.
fn macvlan_mac(request: &PortRequest, port: &Port) -> String {
    request.mac.clone().unwrap_or_else(|| {
        let own = port.mac_address.to_lowercase();
        let first = own.get(..2).and_then(|byte| u8::from_str_radix(byte, 16).ok());
        // Locally administered and unicast.
        first.map_or(own.clone(), |byte| format!("{:02x}{}", (byte ^ 0x08) & 0xfe | 0x02, &own[2..]))
    })
}

/// Returns a port's addresses as allowed address pairs.
fn address_pairs(port: &Port, mac: Option<&str>) -> Vec<AddressPair> {
    let one = |ip: &FixedIp| {
        let mac_address = mac.map(str::to_owned);
        ip.ip_address.map(|address| AddressPair { ip_address: address.to_string(), mac_address })
    };
    port.fixed_ips.iter().filter_map(one).collect()
}
