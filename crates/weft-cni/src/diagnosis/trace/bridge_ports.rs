//! Bridge ports on a path: VLANs on both pods' ports, and ports that lead to other nodes.
//!
//! - A pod sends untagged frames, which belong to the VLAN with the flag `pvid` on the sender's port. They reach the
//!   other pod if they leave the receiver's port untagged. Replies need the same in the other direction.
//! - A port with one of weft's owner tags leads to a pod on this node. Any other port may lead to another
//!   node.
//!
//! Source: bridge(8), `bridge vlan`; IEEE 802.1Q, 6.9 and 8.6.

use linux::Rtnl;
use linux::link::bridge::PortVlan;
use linux::link::{Detail, Link};
use plugin_support::owner_tag::OwnerTag;

use super::probe::Sent;
use super::{HOST, Steps};

/// Maximum number of VLAN ranges that a finding names.
const RANGES_MAX: usize = 8;
/// Maximum number of ports to other nodes that are examined.
const UPLINKS_MAX: usize = 16;

/// VLANs on a port.
#[derive(Clone, Debug)]
pub(super) struct PortVlans {
    /// Port and pod: `veth1 of blue/web`.
    of: String,
    name: String,
    vlans: Vec<PortVlan>,
}

impl PortVlans {
    /// Reads the VLANs on a pod's port; `None` if the bridge does not filter VLANs.
    pub(super) fn read(
        net: &mut Rtnl,
        (bridge, port, pod): (&Link, &Link, &str),
    ) -> Result<Option<PortVlans>, linux::Error> {
        if !filters_vlans(bridge) {
            return Ok(None);
        }
        let vlans = net.port_vlans(port.index, &port.name)?;
        let of = format!("{} of {pod}", port.name);
        Ok(Some(PortVlans { of, name: port.name.clone(), vlans }))
    }

    /// VLAN that untagged frames arrive in.
    fn untagged(&self) -> Option<u16> {
        self.vlans.iter().find(|vlan| vlan.pvid).map(|vlan| vlan.id)
    }
}

fn filters_vlans(bridge: &Link) -> bool {
    matches!(bridge.detail, Detail::Bridge { vlan_filtering: Some(true) })
}

/// Examines the VLANs on both pods' ports, or for the pod on this node.
pub(super) fn compare(ports: &[PortVlans], steps: &mut Steps) {
    for PortVlans { of, name, vlans } in ports.iter().filter(|port| port.untagged().is_none()) {
        let found = format!("untagged frames of port {of} belong to no VLAN: it has {}", describe(vlans));
        let hint = format!(
            "set `vlan` in the network definition, or `bridge vlan add dev {name} vid ID pvid untagged`"
        );
        steps.fault("vlan", HOST, found, &hint);
    }
    let [one, other] = ports else { return };
    let (Some(first), Some(second)) = (one.untagged(), other.untagged()) else { return };
    for (from, id, to) in [(one, first, other), (other, second, one)] {
        let known = to.vlans.iter().find(|vlan| vlan.id == id);
        let why = match known {
            Some(vlan) if vlan.untagged => continue,
            Some(_) => format!("its frames leave port {} tagged", to.of),
            None => format!("port {} is not", to.of),
        };
        let all = describe(&to.vlans);
        let found = format!("port {} is in VLAN {id}, and {why}: it has {all}", from.of);
        let hint = format!(
            "give both pods the same `vlan`, or `bridge vlan add dev {} vid {id} pvid untagged`",
            to.name
        );
        steps.fault("vlan", HOST, found, &hint);
        return;
    }
    steps.ok("vlan", HOST, format!("ports {} and {} share VLAN {first}", one.of, other.of));
}

/// Examines the ports on a bridge that lead to other nodes; `own` has the VLANs on the pod's port, if the
/// bridge filters VLANs. A probe with an answer was led to the other node in another way, so a missing port
/// is no fault then.
pub(super) fn uplinks(
    net: &mut Rtnl,
    (bridge, own): (&Link, Option<&PortVlans>),
    sent: &Sent,
    steps: &mut Steps,
) -> Result<(), linux::Error> {
    let is_uplink = |link: &Link| link.master == Some(bridge.index) && OwnerTag::read(&link.alias).is_none();
    let mut ports: Vec<Link> = net.links()?.into_iter().filter(is_uplink).collect();
    // Ports of other programs that are down must not hide the one that leads to the network.
    ports.sort_by_key(|link| !(link.up && link.carrier && link.forwards));
    ports.truncate(UPLINKS_MAX);
    let named = |ports: &[&Link]| ports.iter().map(|link| link.name.as_str()).collect::<Vec<_>>().join(", ");
    let usable: Vec<&Link> = ports.iter().filter(|link| link.up && link.carrier && link.forwards).collect();
    if usable.is_empty() && sent.is_answered() {
        return Ok(());
    }
    if ports.is_empty() {
        let found = format!("bridge {} has no port that leads to another node", bridge.name);
        let hint = format!(
            "if the nodes are connected by a bridge: `ip link set NAME master {}` for an interface without addresses of this node",
            bridge.name
        );
        steps.fault("port", HOST, found, &hint);
        return Ok(());
    }
    if usable.is_empty() {
        let all = named(&ports.iter().collect::<Vec<_>>());
        let found = format!(
            "no port of bridge {} to other nodes is up, has a carrier and forwards: {all}",
            bridge.name
        );
        steps.fault("port", HOST, found, "`ip link set NAME up`, and examine the cable or the switch");
        return Ok(());
    }
    steps.ok("port", HOST, format!("bridge {} leads to other nodes by {}", bridge.name, named(&usable)));
    let Some(id) = own.and_then(PortVlans::untagged) else { return Ok(()) };
    let mut known = Vec::new();
    for port in &usable {
        known.push((port.name.clone(), net.port_vlans(port.index, &port.name)?));
    }
    let is_in = |(_, vlans): &(String, Vec<PortVlan>)| vlans.iter().any(|vlan| vlan.id == id);
    if !sent.is_answered() || known.iter().any(is_in) {
        uplink_vlans(id, &known, steps);
    }
    Ok(())
}

/// Examines whether a VLAN leaves this node by one of these ports.
fn uplink_vlans(id: u16, ports: &[(String, Vec<PortVlan>)], steps: &mut Steps) {
    let with = ports.iter().filter_map(|(name, vlans)| {
        let vlan = vlans.iter().find(|vlan| vlan.id == id)?;
        Some(format!("{name} ({})", if vlan.untagged { "untagged" } else { "tagged" }))
    });
    let with: Vec<String> = with.collect();
    if let [(name, _), ..] = ports
        && with.is_empty()
    {
        let each = ports.iter().map(|(name, vlans)| format!("{name} has {}", describe(vlans)));
        let each = each.collect::<Vec<_>>().join("; ");
        let found = format!("no port to other nodes is in VLAN {id}: {each}");
        steps.fault("vlan", HOST, found, &format!("`bridge vlan add dev {name} vid {id}`"));
    } else {
        steps.ok("vlan", HOST, format!("VLAN {id} leaves this node by {}", with.join(", ")));
    }
}

/// Returns VLANs as ranges: `VLANs 100 (untagged), 200-210 (tagged)`.
fn describe(vlans: &[PortVlan]) -> String {
    let mut sorted = vlans.to_vec();
    sorted.sort_unstable();
    let mut ranges: Vec<(PortVlan, u16)> = Vec::new();
    for vlan in sorted {
        match ranges.last_mut() {
            Some((first, last))
                if *last + 1 == vlan.id && (first.pvid, first.untagged) == (vlan.pvid, vlan.untagged) =>
            {
                *last = vlan.id;
            }
            _ => ranges.push((vlan, vlan.id)),
        }
    }
    let each = ranges.iter().take(RANGES_MAX).map(|(PortVlan { id, pvid, untagged }, last)| {
        let flags = match (pvid, untagged) {
            (true, true) => "untagged",
            (true, false) => "untagged in, tagged out",
            (false, true) => "untagged out",
            (false, false) => "tagged",
        };
        let range = if id == last { id.to_string() } else { format!("{id}-{last}") };
        format!("{range} ({flags})")
    });
    let each: Vec<String> = each.collect();
    match ranges.len() {
        0 => "no VLAN".to_owned(),
        1..=RANGES_MAX => format!("VLANs {}", each.join(", ")),
        count => format!("VLANs {} and {} more ranges", each.join(", "), count - RANGES_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rpc::diagnosis::Verdict;

    fn access(id: u16) -> PortVlan {
        PortVlan { id, pvid: true, untagged: true }
    }

    fn tagged(id: u16) -> PortVlan {
        PortVlan { id, pvid: false, untagged: false }
    }

    fn port(name: &str, vlans: &[PortVlan]) -> PortVlans {
        PortVlans { of: format!("{name} of blue/{name}"), name: name.to_owned(), vlans: vlans.to_vec() }
    }

    #[test]
    fn trace_compares_the_vlans_of_both_ports() {
        let trunk = [access(200), tagged(300), tagged(301), tagged(302)];
        let fault = Verdict::Fault;
        let cases = [
            (vec![access(100)], vec![access(100)], Verdict::Ok, "share VLAN 100", ""),
            (
                vec![access(100)],
                trunk.to_vec(),
                fault,
                "port a of blue/a is in VLAN 100, and port b of blue/b is not: it has VLANs 200 (untagged), 300-302 (tagged)",
                "bridge vlan add dev b vid 100 pvid untagged",
            ),
            (
                vec![access(100)],
                vec![access(200), tagged(100)],
                fault,
                "its frames leave port b of blue/b tagged",
                "vid 100",
            ),
            // Requests arrive, and replies do not.
            (
                vec![access(100)],
                vec![access(200), PortVlan { pvid: false, ..access(100) }],
                fault,
                "port b of blue/b is in VLAN 200, and port a of blue/a is not: it has VLANs 100 (untagged)",
                "dev a vid 200",
            ),
            (
                vec![tagged(100)],
                vec![access(100)],
                fault,
                "untagged frames of port a of blue/a belong to no VLAN: it has VLANs 100 (tagged)",
                "dev a vid ID pvid",
            ),
            (vec![access(100)], vec![], fault, "port b of blue/b belong to no VLAN: it has no VLAN", "dev b"),
        ];
        for (first, second, verdict, words, hint) in cases {
            let mut steps = Steps::default();
            compare(&[port("a", &first), port("b", &second)], &mut steps);
            let [step] = steps.0.as_slice() else { panic!("{steps:?}") };
            assert!(step.verdict == verdict && step.found.contains(words), "{step:?}");
            assert!(step.hint.contains(hint), "{step:?}");
        }
    }

    #[test]
    fn trace_finds_an_uplink_without_the_vlan() {
        let cases = [
            (vec![tagged(100)], Verdict::Ok, "VLAN 100 leaves this node by eth1 (tagged)", ""),
            (vec![access(100)], Verdict::Ok, "eth1 (untagged)", ""),
            (
                vec![access(1), tagged(200)],
                Verdict::Fault,
                "no port to other nodes is in VLAN 100: eth1 has VLANs 1 (untagged), 200 (tagged)",
                "bridge vlan add dev eth1 vid 100",
            ),
        ];
        for (vlans, verdict, words, hint) in cases {
            let mut steps = Steps::default();
            uplink_vlans(100, &[("eth1".to_owned(), vlans)], &mut steps);
            let [step] = steps.0.as_slice() else { panic!("{steps:?}") };
            assert!(step.verdict == verdict && step.found.contains(words), "{step:?}");
            assert!(step.hint.contains(hint), "{step:?}");
        }
    }

    #[test]
    fn trace_names_a_bounded_number_of_vlans() {
        let all: Vec<PortVlan> = (1..=4094).step_by(2).map(tagged).collect();
        let text = describe(&all);
        assert!(text.len() < 200 && text.ends_with("15 (tagged) and 2039 more ranges"), "{text}");
        assert_eq!(describe(&(1..=4094).map(tagged).collect::<Vec<_>>()), "VLANs 1-4094 (tagged)");
        assert_eq!(describe(&[]), "no VLAN");
    }
}
