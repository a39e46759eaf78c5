//! Part of a path on the host: the interfaces' other ends, the bridge, VLANs, MTUs and packet filters.

use std::collections::BTreeSet;

use cni::Error;
use linux::link::{Detail, Link};
use linux::nft::{Family, Hook, Nft, Table};
use linux::route::lookup::FoundRoute;
use linux::{Netns, Rtnl};
use plugin_support::failure::OrRefused;
use plugin_support::owner_tag::OwnerTag;
use rpc::diagnosis::{TraceEnd, Verdict};

use super::bridge_ports::{self, PortVlans};
use super::probe::Sent;
use super::{HOST, Pod, Steps};
use crate::inventory;

/// Maximum number of chains that a finding names.
const CHAINS_MAX: usize = 6;

/// Links on the host that the path uses.
pub(super) struct HostPath<'a> {
    net: Rtnl,
    sides: Vec<Side<'a>>,
}

/// Link on the host behind a pod's interface: a veth pair's other end, or the parent.
struct Side<'a> {
    pod: &'a str,
    link: Link,
    /// Interface in the pod.
    inner: Link,
    /// Bridge on which it is a port.
    bridge: Option<Link>,
}

impl<'a> HostPath<'a> {
    /// Finds both pods' links.
    pub(super) fn find<'b: 'a>(
        sender: &mut Pod<'b>,
        receiver: Option<&mut Pod<'b>>,
    ) -> Result<HostPath<'a>, Error> {
        let host = Netns::own().or_refused()?;
        let mut net = host.rtnl().or_refused()?;
        let mut sides = Vec::new();
        for pod in [Some(sender), receiver].into_iter().flatten() {
            let inner = pod.link.clone();
            // Whose index it is: a namespace has an id for each namespace that it knows.
            let is_on_host = match inner.link_netns_id {
                Some(id) => pod.net.netns_id(&host).or_refused()? == Some(id),
                None => false,
            };
            let Some(index) = inner.link.filter(|_| is_on_host) else { continue };
            let Ok(link) = net.link_at(index) else { continue };
            let bridge = link.master.and_then(|master| net.link_at(master).ok());
            sides.push(Side { pod: &pod.end.pod, link, inner, bridge });
        }
        Ok(HostPath { net, sides })
    }

    /// Examines MTUs, ports and VLANs; `remote` is the probe to a pod on another node.
    pub(super) fn examine(
        mut self,
        (route, remote): (Option<&FoundRoute>, Option<&Sent>),
        steps: &mut Steps,
    ) -> Result<(), Error> {
        self.mtu(route, steps);
        if self.sides.is_empty() {
            let found = "the interface has no link on this host";
            steps.unknown("port", HOST, found, "look at the switch or the device behind the interface");
            return Ok(());
        }
        for side in &self.sides {
            side.port(steps);
        }
        self.segment(route, steps);
        // A gateway may be on this node.
        let is_direct = route.is_some_and(|route| route.gateway.is_none());
        self.vlans(remote.filter(|_| is_direct), steps)
    }

    fn mtu(&self, route: Option<&FoundRoute>, steps: &mut Steps) {
        let mut places: Vec<(String, u32)> = Vec::new();
        for side in &self.sides {
            places.push((format!("{} of {}", side.inner.name, side.pod), side.inner.mtu));
            places.push((side.link.name.clone(), side.link.mtu));
            places.extend(side.bridge.iter().map(|bridge| (bridge.name.clone(), bridge.mtu)));
        }
        places.extend(route.and_then(|route| route.mtu).map(|mtu| ("the route".to_owned(), mtu)));
        places.dedup();
        let Some(smallest) = places.iter().map(|(_, mtu)| *mtu).min() else { return };
        // A route may lower the MTU of one destination.
        let own = self.sides.iter().map(|side| side.inner.mtu).max().unwrap_or(smallest);
        let named = places.iter().map(|(name, mtu)| format!("{name} {mtu}")).collect::<Vec<_>>().join(", ");
        if own > smallest && route.and_then(|route| route.mtu) != Some(smallest) {
            let hint = "set the same `mtu` in the network definition and on the links of the host, then recreate the pods";
            steps.fault("mtu", HOST, format!("packets over {smallest} bytes are lost: {named}"), hint);
        } else {
            steps.ok("mtu", HOST, named);
        }
    }

    /// Examines whether both pods are on one segment, if the route has no gateway.
    fn segment(&self, route: Option<&FoundRoute>, steps: &mut Steps) {
        let [one, other] = self.sides.as_slice() else { return };
        let segment = |side: &Side<'_>| match &side.bridge {
            Some(bridge) => (bridge.index, bridge.name.clone()),
            None => (side.link.index, side.link.name.clone()),
        };
        let ((first, name), (second, other_name)) = (segment(one), segment(other));
        let is_routed =
            route.is_none_or(|route| route.gateway.is_some()) || one.inner.kind != other.inner.kind;
        // The ends of two veth pairs without a bridge are routed by the host (ptp).
        let is_pair = one.bridge.is_none() && one.inner.kind == "veth";
        if first != second && !is_routed && !is_pair {
            let found = format!("the pods are on {name} and {other_name}, and the route has no gateway");
            steps.fault("port", HOST, found, "attach both pods to the same network definition");
        }
        let isolated = |side: &Side<'_>| side.link.port.is_some_and(|port| port.isolated);
        if first == second && isolated(one) && isolated(other) {
            let found = format!("{} and {} are isolated ports of {name}", one.link.name, other.link.name);
            steps.fault("port", HOST, found, "remove `portIsolation` from the network definition");
        }
    }

    fn vlans(&mut self, remote: Option<&Sent>, steps: &mut Steps) -> Result<(), Error> {
        let mut known: Vec<PortVlans> = Vec::new();
        for side in &self.sides {
            if let (Detail::Vlan { id }, parent) = (&side.inner.detail, &side.link.name) {
                steps.ok(
                    "vlan",
                    HOST,
                    format!("{} of {} is VLAN {id} of {parent}", side.inner.name, side.pod),
                );
            }
            let Some(bridge) = &side.bridge else { continue };
            known.extend(PortVlans::read(&mut self.net, (bridge, &side.link, side.pod)).or_refused()?);
        }
        bridge_ports::compare(&known, steps);
        if let [Side { bridge: Some(bridge), .. }] = self.sides.as_slice()
            && let Some(sent) = remote
        {
            bridge_ports::uplinks(&mut self.net, (bridge, known.first()), sent, steps).or_refused()?;
        }
        Ok(())
    }
}

impl Side<'_> {
    fn port(&self, steps: &mut Steps) {
        let name = &self.link.name;
        let of = format!("{name} of {}", self.pod);
        if !self.link.up {
            steps.fault("port", HOST, format!("{of} is down"), &format!("ip link set {name} up"));
            return;
        }
        let Some(bridge) = &self.bridge else {
            steps.ok("port", HOST, format!("{of} is up ({})", super::kind_of(&self.link)));
            return;
        };
        if !bridge.up {
            let hint = format!("ip link set {} up", bridge.name);
            steps.fault("port", HOST, format!("bridge {} of port {of} is down", bridge.name), &hint);
        } else if !self.link.forwards {
            let hint =
                "wait for the spanning tree, or switch it off: `ip link set BRIDGE type bridge stp_state 0`";
            steps.fault("port", HOST, format!("port {of} of {} does not forward", bridge.name), hint);
        } else {
            steps.ok("port", HOST, format!("{of} is a forwarding port of {}", bridge.name));
        }
    }
}

/// Examines the packet filters on the host: chains that packets pass, and weft's own entries for the pods.
pub(super) fn filters((from, to): (&TraceEnd, &TraceEnd), is_lost: bool, steps: &mut Steps) {
    let chains = chains();
    let own = entries(from, to);
    let mut found = match &chains {
        Ok(chains) if chains.is_empty() => "no chain of nftables filters forwarded packets".to_owned(),
        Ok(chains) => chains.iter().take(CHAINS_MAX).cloned().collect::<Vec<_>>().join(", "),
        Err(error) => format!("the packet filter cannot be read: {error}"),
    };
    if !own.is_empty() {
        found.push_str(&format!("; entries of weft: {}", own.into_iter().collect::<Vec<_>>().join(", ")));
    }
    if is_lost {
        let found = format!("packets leave {} and do not arrive: the host drops them; {found}", from.pod);
        let hint = "`nft list ruleset` shows the rules, `nft monitor trace` the one that drops; also look at iptables-legacy";
        steps.fault("firewall", HOST, found, hint);
    } else {
        let verdict = if chains.is_ok() { Verdict::Ok } else { Verdict::Unknown };
        steps.push("firewall", HOST, verdict, (found, ""));
    }
}

/// Returns the base chains that filter forwarded packets, with policy and rule count.
fn chains() -> Result<Vec<String>, linux::Error> {
    let mut nft = Nft::open()?;
    let mut named = Vec::new();
    for family in [Family::Ip, Family::Ip6, Family::Inet, Family::Bridge] {
        // The kernel may lack a family.
        let Ok(chains) = nft.filters(family, Hook::Forward) else { continue };
        for chain in chains {
            let table = Table::new(family, &chain.table);
            let rules = nft.rules(table, &chain.name).map_or(0, |rules| rules.len());
            let policy = if chain.drops { "policy drop, " } else { "" };
            named.push(format!("{table} {} ({policy}{rules} rules)", chain.name));
        }
    }
    Ok(named)
}

/// Returns which kinds of packet-filter entries weft has for both interfaces: `masquerade`, `firewall`.
fn entries(from: &TraceEnd, to: &TraceEnd) -> BTreeSet<String> {
    let ends = [from, to];
    let tags = inventory::filter_tags().unwrap_or_default().into_iter();
    let own = tags.filter_map(|tagged| {
        let tag = OwnerTag::read(&tagged.tag)?;
        let is_own = |end: &&TraceEnd| tag.container == end.container && tag.ifname == end.interface;
        let end = ends.iter().find(|end| is_own(end))?;
        let table = tagged.on.split(' ').find(|word| word.starts_with("weft_"))?;
        Some(format!("{} of {}", table.trim_start_matches("weft_"), end.pod))
    });
    own.collect()
}
