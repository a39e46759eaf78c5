//! Ports for wishes: found where there is one already, else made.
//!
//! Rules: whose a port is (the cluster, the pod's uid, the interface's name) is in the request that makes it: in its tags,
//! or, where the cloud takes tags only afterwards, as the same words in its description. What was made for a pod and is
//! not known here, because we were ended or an answer was lost, is found by these and taken up again. A binding that
//! failed leaves no port.
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
use crate::neutron::port_pool::{Key, Pools, User};
use crate::neutron::port_request::PortRequest;
use crate::neutron::port_rules::{Driver, Rules};
use kube_support::events::EventReason;

/// The beginning of the tag that says which interface of its pod a port is.
const ATTACHMENT: &str = "weft-attachment=";
/// The beginning of the tag that says whose a port is where its `device_id` cannot: a subport of a trunk has none.
const POD: &str = "weft-pod=";
/// Tags the port of a macvlan, with the id of the node's port that speaks for it.
const NODE: &str = "weft-node=";
/// Who a port belongs to that a trunk has.
const SUBPORT: &str = "trunk:subport";
/// The extension by which a port is tagged as it is made.
const TAGS_AT_ONCE: &str = "tag-ports-during-bulk-creation";
/// How long a subnet is known: longer than a burst of pods, shorter than somebody waits who has changed it.
const SUBNET_AGE: Duration = Duration::from_secs(300);

/// Makes ports.
#[derive(Debug)]
pub(crate) struct Allocator {
    pub(crate) neutron: Client,
    pub(crate) rules: Rules,
    pub(crate) pools: Pools,
    subnets: Mutex<HashMap<String, Known>>,
    extensions: OnceCell<Vec<String>>,
    /// What a node's own port speaks for is changed by one at a time: each reads all of it and writes all of it.
    node_ports: Mutex<HashMap<String, Arc<Mutex<()>>>>,
}

#[derive(Clone, Debug)]
struct Known {
    subnet: Subnet,
    network: Network,
    at: Instant,
}

/// Why a pod has not what it wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// For an Event.
    pub(crate) reason: EventReason,
    /// For people.
    pub(crate) why: String,
    /// Is it worth being tried again as it is?
    pub(crate) passes: bool,
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Trouble {
        let reason = match () {
            () if error.is_over_quota() => EventReason::NeutronQuota,
            // Or what stands before it has nobody to ask.
            () if matches!(error.status(), None | Some(502..=504)) => EventReason::NeutronUnreachable,
            () => EventReason::NeutronRefused,
        };
        let mut why = error.to_string();
        if error.kind() == "AllowedAddressPairExhausted" {
            // It has nothing to do with the pod, and the limit is low unless somebody raised it.
            why.push_str("; each macvlan of a node is a pair of its port: raise max_allowed_address_pair in neutron.conf");
        }
        Trouble { reason, passes: error.is_transient(), why }
    }
}

impl Trouble {
    pub(crate) fn new(reason: EventReason, why: impl Into<String>) -> Trouble {
        Trouble { reason, why: why.into(), passes: false }
    }
}

// === impl Allocator ===

impl Allocator {
    pub(crate) fn new(neutron: Client, rules: Rules) -> Allocator {
        let pools = Pools::new(rules.pool);
        let (subnets, extensions) = (Mutex::new(HashMap::new()), OnceCell::new());
        Allocator { neutron, rules, pools, subnets, extensions, node_ports: Mutex::default() }
    }

    /// A subnet and its network: asked for by one at a time, so that a burst of pods asks once.
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

    /// All that a pod wants, beside what it has. `found` are ports that may have been made for it before.
    ///
    /// What was made is put into `state` at once, and what was given up is taken out: whoever tries again goes on from
    /// there.
    pub(crate) async fn fulfil(
        &self,
        subject: &PodSubject,
        wishes: &[PortRequest],
        found: &[Port],
        (state, written): (&mut PodState, &PodState),
    ) -> Result<(), Trouble> {
        self.drop_unwished(subject, wishes, (state, written)).await?;
        for wish in wishes.iter().filter(|wish| state.vif(&wish.name).is_none()).collect::<Vec<_>>() {
            let (subnet, network) = self.subnet(&wish.subnet).await.map_err(Trouble::from)?;
            // Before anything is made for it.
            let node = self.node_for(subject, wish).await?;
            let port = self.port(subject, wish, &subnet, node.as_ref(), found).await?;
            let how = self.plugging(node.as_ref(), wish, &port).await;
            let vif = how.and_then(|how| {
                Vif::of(&port, &network, std::slice::from_ref(&subnet), &how).map_err(|binding| Trouble {
                    reason: EventReason::PortNotBound,
                    why: format!(
                        "port {} is bound as {:?} on host {:?}: is there an agent of Neutron under that name?",
                        port.id, binding.vif_type, port.host_id
                    ),
                    passes: true,
                })
            });
            match vif {
                Ok(mut vif) => {
                    if matches!(vif.kind, Kind::MacvlanNested) {
                        vif.address = beside(wish, &port);
                        // There is nobody who would say that it works.
                        vif.active = true;
                    }
                    state.insert(&wish.name, vif);
                }
                Err(trouble) => {
                    // What cannot be used is not kept; a failure of this leaves it to the next look at all ports.
                    self.pools.forget(&port.id);
                    let _ = self.remove(&port).await;
                    return Err(trouble);
                }
            }
        }
        Ok(())
    }

    /// The port for one wish.
    async fn port(
        &self,
        subject: &PodSubject,
        wish: &PortRequest,
        subnet: &Subnet,
        node: Option<&Port>,
        found: &[Port],
    ) -> Result<Port, Trouble> {
        let tag = format!("{ATTACHMENT}{}", wish.name);
        for port in found.iter().filter(|port| marks(port).any(|mark| mark == tag)) {
            if serves(port, wish, subnet) {
                info!(port = port.id, pod = subject.pod.name, interface = wish.name, "taken up again");
                return Ok(port.clone());
            }
            // It was made when something else was wished for.
            self.remove(port).await?;
        }
        let pooled = self.rules.pool.enabled
            && wish.driver == Driver::NeutronVif
            && wish.addresses.is_empty()
            && wish.mac.is_none();
        if pooled {
            let key = Key {
                host: subject.pod.node_name.clone(),
                subnet: subnet.id.clone(),
                groups: self.groups(&self.rules.pod_security_groups),
            };
            let fill = |count| self.fill(&key, subnet, count);
            return self.pools.take(&key, &subject.pod.uid, fill).await;
        }
        let mut new = self.new_port(subject, wish, subnet, tag);
        if let Some(node) = node.filter(|_| wish.driver == Driver::NestedMacvlan) {
            new.tags.push(format!("{NODE}{}", node.id));
        }
        self.create(vec![new])
            .await?
            .pop()
            .ok_or_else(|| Trouble::new(EventReason::NeutronRefused, "no port came back"))
    }

    /// Makes ports for a pool; those that cannot be bound are removed at once, and are trouble if there are no others.
    async fn fill(&self, key: &Key, subnet: &Subnet, count: usize) -> Result<Vec<Port>, Trouble> {
        let one = NewPort {
            network_id: subnet.network_id.clone(),
            fixed_ips: vec![FixedIp { subnet_id: subnet.id.clone(), ip_address: None }],
            host_id: Some(key.host.clone()),
            ..self.bare()
        };
        let made = self.create(vec![one; count]).await?;
        let (bound, unbound): (Vec<Port>, Vec<Port>) = made.into_iter().partition(Port::is_bound);
        for port in &unbound {
            // A failure of this leaves it to the next look at all ports.
            let _ = self.neutron.delete_port(&port.id).await;
        }
        match unbound.first() {
            Some(port) if bound.is_empty() => Err(not_bound(port)),
            _ => Ok(bound),
        }
    }

    /// Makes ports, each of them marked from its beginning.
    async fn create(&self, mut ports: Vec<NewPort>) -> Result<Vec<Port>, Error> {
        let afterwards = !self.tags_at_once().await?;
        for port in ports.iter_mut().filter(|_| afterwards) {
            let tags = std::mem::take(&mut port.tags);
            let own = tags.into_iter().filter(|tag| !self.rules.resource_tags.contains(tag));
            port.description = own.collect::<Vec<_>>().join(" ");
        }
        let mut made = match ports.as_slice() {
            [one] => vec![self.neutron.create_port(one).await?],
            many => self.neutron.create_ports(many).await?,
        };
        for port in made.iter_mut().filter(|_| afterwards) {
            self.tag(port).await?;
        }
        // A bulk's answer may come before the binding.
        for port in made.iter_mut().filter(|port| port.vif_type == UNBOUND && !port.host_id.is_empty()) {
            *port = self.neutron.port(&port.id).await?;
        }
        Ok(made)
    }

    /// Tags a port that has been marked by its description: one that is made for a pod, because its operator looks for
    /// tags and a trunk's are found by nothing else; those of a pool, which are made by the dozen, only if somebody
    /// else's tags are wanted. If it fails the description still says whose it is.
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

    /// Security groups as pools know them: where none are named all ports have the project's own.
    fn groups(&self, groups: &[String]) -> Vec<String> {
        let mut groups = if self.rules.pod_security_groups.is_empty() { Vec::new() } else { groups.to_vec() };
        groups.sort();
        groups
    }

    /// Learns of a port of a pool that is there after a restart; false if it is one too many, or has the security groups
    /// that pods had before.
    pub(crate) fn learn(&self, port: &Port, user: Option<&User>) -> bool {
        let groups = self.groups(&port.security_groups);
        groups == self.groups(&self.rules.pod_security_groups) && self.pools.learn(port, groups, user)
    }

    /// Fills the pools that run low; where it is not quiet, those only that may soon be empty. One that cannot be filled
    /// rests, and keeps no other from being filled.
    pub(crate) async fn top_up(&self, is_quiet: bool, backoff: &mut Backoff) {
        let low = self.pools.low(is_quiet);
        backoff.keep(&low);
        for (key, count) in low {
            if !backoff.is_due(&key, Instant::now()) {
                continue;
            }
            match self.fill_up(&key, count).await {
                Ok(()) => backoff.filled(&key),
                Err(Trouble { reason, why, .. }) => {
                    warn!(
                        reason = reason.as_str(),
                        why,
                        host = key.host,
                        subnet = key.subnet,
                        "a pool cannot be filled"
                    );
                    backoff.failed(&key, Instant::now());
                }
            }
        }
    }

    async fn fill_up(&self, key: &Key, count: usize) -> Result<(), Trouble> {
        let (subnet, _) = self.subnet(&key.subnet).await?;
        self.pools.top_up(key, count, |count| self.fill(key, &subnet, count)).await
    }

    /// What all ports of ours have.
    fn bare(&self) -> NewPort {
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

    fn new_port(&self, subject: &PodSubject, wish: &PortRequest, subnet: &Subnet, tag: String) -> NewPort {
        let pod = &subject.pod;
        let fixed = |ip_address| FixedIp { subnet_id: subnet.id.clone(), ip_address };
        // One outside of the subnet is for Neutron to refuse, by name.
        let mut fixed_ips: Vec<FixedIp> =
            wish.addresses.iter().map(|address| fixed(Some(*address))).collect();
        if fixed_ips.is_empty() {
            fixed_ips.push(fixed(None));
        }
        let mut port = NewPort {
            network_id: subnet.network_id.clone(),
            fixed_ips,
            device_id: pod.uid.clone(),
            host_id: (wish.driver == Driver::NeutronVif).then(|| pod.node_name.clone()),
            // The hardware address of a macvlan is not its port's.
            mac_address: wish.mac.clone().filter(|_| wish.driver != Driver::NestedMacvlan),
            ..self.bare()
        };
        port.tags.push(tag);
        if wish.driver == Driver::NestedVlan {
            port.tags.push(format!("{POD}{}", pod.uid));
        }
        // It keeps the address, and the switch is to look for whoever answers there: OVN would send what comes from
        // beyond a router to the port itself.
        port.admin_state_up = wish.driver != Driver::NestedMacvlan;
        if self.rules.port_debug {
            port.name = format!("{}/{}", pod.namespace, pod.name).chars().take(255).collect();
        }
        port
    }

    /// The port of the pod's node, where the pod's is to be nested in it.
    async fn node_for(&self, subject: &PodSubject, wish: &PortRequest) -> Result<Option<Port>, Trouble> {
        if wish.driver == Driver::NeutronVif {
            return Ok(None);
        }
        let Some(host) = subject.host else {
            let why = format!("driverType {}: the node's address is not known yet", wish.driver);
            return Err(Trouble { reason: EventReason::NodeUnknown, why, passes: true });
        };
        let node = self.neutron.node_port(host, &self.rules.worker_nodes_subnets).await?;
        if wish.driver == Driver::NestedVlan && node.trunk_details.is_none() {
            let why = format!("driverType nested-vlan: the node's port {} is no trunk's parent", node.id);
            return Err(Trouble::new(EventReason::NodeNotTrunk, why));
        }
        Ok(Some(node))
    }

    /// How a port is plugged in; for a nested one the node's own port is changed.
    async fn plugging(
        &self,
        node: Option<&Port>,
        wish: &PortRequest,
        port: &Port,
    ) -> Result<Plugging, Trouble> {
        let Some(node) = node else {
            if port.vif_type == BINDING_FAILED {
                return Err(not_bound(port));
            }
            return Ok(Plugging::Bound { bridge: self.rules.ovs_bridge.clone() });
        };
        let Some(trunk) = node.trunk_details.as_ref().filter(|_| wish.driver == Driver::NestedVlan) else {
            self.allow(&node.id, &pairs(port, Some(&beside(wish, port))), Allowed::Yes).await?;
            return Ok(Plugging::Macvlan);
        };
        if !port.device_id.is_empty() {
            // From here on its tag says whose it is: a trunk takes nobody's port.
            let nobody = serde_json::json!({ "device_id": "" });
            self.neutron.update_port(&port.id, &nobody, None).await?;
        }
        Ok(Plugging::Vlan(self.neutron.nest(&trunk.trunk_id, &port.id).await?))
    }

    /// Lets a node's own port speak for these addresses, or no longer.
    async fn allow(&self, node: &str, pairs: &[AddressPair], allowed: Allowed) -> Result<(), Error> {
        let turn = Arc::clone(self.node_ports.lock().await.entry(node.to_owned()).or_default());
        let _turn = turn.lock().await;
        self.neutron.allow(node, pairs, allowed).await
    }

    /// Removes a port that was made: out of the trunk it may be in, and the node's port speaks for it no longer. Whether
    /// that was ever begun need not be known: a request without an answer may have been done.
    pub(crate) async fn remove(&self, port: &Port) -> Result<(), Error> {
        if let Some(node) = marks(port).find_map(|mark| mark.strip_prefix(NODE)) {
            match self.allow(node, &pairs(port, None), Allowed::No).await {
                // The node has gone, and its port with it.
                Err(error) if error.is_absent() => {}
                other => other?,
            }
        }
        if marks(port).any(|mark| mark.starts_with(POD)) {
            self.neutron.unnest_everywhere(&port.id).await?;
        }
        self.neutron.delete_port(&port.id).await
    }

    /// All ports of this cluster's pods.
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
        // A subport's owner is its trunk.
        Ok(all.into_iter().filter(is_ours).collect())
    }

    /// Ports that a query selects among those that have no tags, if their description says that they are ours.
    async fn described(&self, query: &[(&str, &str)]) -> Result<Vec<Port>, Error> {
        let cluster = self.rules.cluster_tag();
        let mut ports = self.neutron.ports(query).await?;
        ports.retain(|port| port.description.split_whitespace().any(|mark| mark == cluster));
        for port in &mut ports {
            self.tag(port).await?;
        }
        Ok(ports)
    }

    /// The ports that were made for a pod, whoever made them.
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

    /// Which of these ports are ACTIVE, in as few requests as there is room for in an address.
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

/// What a port says of whose it is: its tags, and the words of its description.
fn marks(port: &Port) -> impl Iterator<Item = &str> {
    port.tags.iter().map(String::as_str).chain(port.description.split_whitespace())
}

/// Whose a port is: a pod's uid; nobody's, if it waits in a pool.
pub(crate) fn owner(port: &Port) -> &str {
    let tagged = marks(port).find_map(|mark| mark.strip_prefix(POD));
    Some(port.device_id.as_str()).filter(|id| !id.is_empty()).or(tagged).unwrap_or_default()
}

fn not_bound(port: &Port) -> Trouble {
    let why = format!("port {}: no mechanism of Neutron binds it on host {:?}", port.id, port.host_id);
    Trouble { reason: EventReason::PortNotBound, why, passes: true }
}

/// Is it one that we make, or Kuryr did? Neutron takes the owner off what is taken out of a trunk.
fn is_ours(port: &Port) -> bool {
    match port.device_owner.as_str() {
        DEVICE_OWNER | SUBPORT => true,
        "" => marks(port).any(|mark| mark.starts_with(POD)),
        _ => false,
    }
}

/// The hardware address of a macvlan: what is asked for, or one that only differs from its port's in a bit of the first
/// byte. What is sent to the port's own goes to the port, which is plugged in nowhere: OVN knows where each address is.
fn beside(wish: &PortRequest, port: &Port) -> String {
    wish.mac.clone().unwrap_or_else(|| {
        let own = port.mac_address.to_lowercase();
        let first = own.get(..2).and_then(|byte| u8::from_str_radix(byte, 16).ok());
        // Locally administered, and no group's.
        first.map_or(own.clone(), |byte| format!("{:02x}{}", (byte ^ 0x08) & 0xfe | 0x02, &own[2..]))
    })
}

/// What the node's port speaks for.
fn pairs(port: &Port, mac: Option<&str>) -> Vec<AddressPair> {
    let one = |ip: &FixedIp| {
        let mac_address = mac.map(str::to_owned);
        ip.ip_address.map(|address| AddressPair { ip_address: address.to_string(), mac_address })
    };
    port.fixed_ips.iter().filter_map(one).collect()
}
