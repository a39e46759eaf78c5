//! Comparison between a port and a request.
//!
//! - A port that is written to a pod is not released while the pod needs a network, because the node may have plugged
//!   it in.
//! - A port that is not written yet is released as soon as it does not match the request.

use std::net::IpAddr;

use neutron::pod_state::PodState;
use neutron::port::{Port, Subnet};
use neutron::vif::{Kind, Vif};

use super::{Allocator, NODE, POD, PortFailure, SUBPORT, owner_tags};
use crate::neutron::pod_subject::PodSubject;
use crate::neutron::port_request::PortRequest;
use crate::neutron::port_rules::Driver;
use kube_support::events::EventReason;

impl Allocator {
    /// Releases ports that a pod has and no longer requests.
    pub(super) async fn release_unrequested(
        &self,
        subject: &PodSubject,
        requests: &[PortRequest],
        (state, written): (&mut PodState, &PodState),
    ) -> Result<(), PortFailure> {
        let had: Vec<(String, Vif)> =
            state.vifs().map(|(name, vif)| (name.to_owned(), vif.clone())).collect();
        for (name, vif) in had {
            let is_requested = match requests.iter().find(|request| request.name == name) {
                Some(request) => fits(&vif, request, &self.subnet(&request.subnet).await?.0),
                None => false,
            };
            if is_requested {
                continue;
            }
            if written.vif(&name).is_some_and(|known| known.id == vif.id) {
                let why = format!(
                    "{name}: port {} is assigned to the pod already, and the pod now requests another one: recreate the pod",
                    vif.id
                );
                return Err(PortFailure::new(EventReason::NetworkRefused, why));
            }
            self.release(&subject.pod.uid, &vif, subject.host, &[].into()).await?;
            state.remove(&name);
        }
        Ok(())
    }
}

/// Whether a VIF matches a request: subnet, driver, addresses, hardware address.
fn fits(vif: &Vif, request: &PortRequest, subnet: &Subnet) -> bool {
    let PortRequest { name: _, subnet: _, driver, addresses, mac } = request;
    let plugged = match &vif.kind {
        Kind::VlanNested { .. } => Driver::NestedVlan,
        Kind::MacvlanNested => Driver::NestedMacvlan,
        Kind::OpenVSwitch { .. } | Kind::Bridge { .. } | Kind::Foreign { .. } => Driver::NeutronVif,
    };
    let has = |address| vif.network.subnets.iter().any(|subnet| subnet.ips.contains(address));
    plugged == *driver
        && vif.network.id == subnet.network_id
        && vif.network.subnets.iter().any(|known| known.cidr == subnet.cidr)
        && addresses.iter().all(has)
        && mac.as_ref().is_none_or(|mac| vif.address.eq_ignore_ascii_case(mac))
}

/// Whether an unplugged port matches a request.
pub(super) fn serves(port: &Port, request: &PortRequest, subnet: &Subnet) -> bool {
    let PortRequest { name: _, subnet: _, driver, addresses, mac } = request;
    let is_tagged = |prefix: &str| owner_tags(port).any(|tag| tag.starts_with(prefix));
    let own = if port.device_owner == SUBPORT || is_tagged(POD) {
        Driver::NestedVlan
    } else if is_tagged(NODE) {
        Driver::NestedMacvlan
    } else {
        Driver::NeutronVif
    };
    let has = |address: &IpAddr| port.fixed_ips.iter().any(|ip| ip.ip_address == Some(*address));
    own == *driver
        && port.fixed_ips.iter().any(|ip| ip.subnet_id == subnet.id)
        && addresses.iter().all(has)
        // A macvlan's port has another hardware address than the macvlan.
        && (own == Driver::NestedMacvlan
            || mac.as_ref().is_none_or(|mac| port.mac_address.eq_ignore_ascii_case(mac)))
}

#[cfg(test)]
mod tests {
    use neutron::port::{FixedIp, Network};
    use neutron::vif::Plugging;

    use super::*;

    #[test]
    fn port_matches_its_request_and_no_changed_one() {
        let subnet = |id: &str, network: &str, cidr: &str| Subnet {
            id: id.into(),
            network_id: network.into(),
            cidr: cidr.parse().unwrap(),
            gateway_ip: None,
            dns_nameservers: Vec::new(),
            host_routes: Vec::new(),
        };
        let request = |driver, addresses: &[&str]| PortRequest {
            name: "eth1".into(),
            subnet: String::new(),
            driver,
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            mac: None,
        };
        let (own, other) = (subnet("s1", "n1", "10.1.0.0/24"), subnet("s2", "n2", "10.1.0.0/24"));
        let same_network = subnet("s3", "n1", "10.3.0.0/24");
        let ip = FixedIp { subnet_id: "s1".into(), ip_address: "10.1.0.5".parse().ok() };
        let mac_address = "02:00:00:00:00:0a".into();
        let port = Port { vif_type: "ovs".into(), mac_address, fixed_ips: vec![ip], ..Port::default() };
        let network = Network { id: "n1".into(), ..Network::default() };
        let plugging = Plugging::Bound { bridge: "br-int".into() };
        let vif = Vif::of(&port, &network, std::slice::from_ref(&own), &plugging).unwrap();
        for (driver, addresses, subnet, expected) in [
            (Driver::NeutronVif, &[][..], &own, true),
            (Driver::NeutronVif, &["10.1.0.5"], &own, true),
            (Driver::NeutronVif, &["10.1.0.6"], &own, false),
            (Driver::NeutronVif, &[], &other, false),
            (Driver::NeutronVif, &[], &same_network, false),
            (Driver::NestedVlan, &[], &own, false),
            (Driver::NestedMacvlan, &[], &own, false),
        ] {
            let request = request(driver, addresses);
            assert_eq!(fits(&vif, &request, subnet), expected, "{request:?} {subnet:?}");
            assert_eq!(serves(&port, &request, subnet), expected, "{request:?} {subnet:?}");
        }
        for (mac, expected) in
            [("02:00:00:00:00:0a", true), ("02:00:00:00:00:0A", true), ("02:00:00:00:00:0b", false)]
        {
            let request = PortRequest { mac: Some(mac.into()), ..request(Driver::NeutronVif, &[]) };
            assert_eq!(
                (fits(&vif, &request, &own), serves(&port, &request, &own)),
                (expected, expected),
                "{mac}"
            );
        }
        // Device owner and tags identify nested ports. A macvlan's hardware address is that of the pod, not of the port.
        let tagged = |tag: String| Port { tags: vec![tag], ..port.clone() };
        let subport = Port { device_owner: SUBPORT.into(), ..port.clone() };
        for (port, driver, mac_counts) in [
            (subport, Driver::NestedVlan, true),
            (tagged(format!("{POD}x")), Driver::NestedVlan, true),
            (tagged(format!("{NODE}x")), Driver::NestedMacvlan, false),
        ] {
            for asked in [Driver::NeutronVif, Driver::NestedVlan, Driver::NestedMacvlan] {
                let request = request(asked, &["10.1.0.5"]);
                assert_eq!(serves(&port, &request, &own), asked == driver, "{request:?} {port:?}");
            }
            let request = PortRequest { mac: Some("02:00:00:00:00:0b".into()), ..request(driver, &[]) };
            assert_eq!(serves(&port, &request, &own), !mac_counts, "{port:?}");
        }
    }
}
