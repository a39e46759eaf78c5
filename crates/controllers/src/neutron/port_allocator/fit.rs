//! Does a port serve a wish? What was made serves it until the wish becomes another.
//!
//! Rules: a port that is written on its pod is not taken away from it: its node may have plugged it in. One that is not is
//! given up as soon as nobody wishes for it as it is.

use std::net::IpAddr;

use neutron::pod_state::PodState;
use neutron::port::{Port, Subnet};
use neutron::vif::{Kind, Vif};

use super::{Allocator, NODE, POD, SUBPORT, Trouble, marks};
use crate::neutron::pod_subject::PodSubject;
use crate::neutron::port_request::PortRequest;
use crate::neutron::port_rules::Driver;
use kube_support::events::EventReason;

impl Allocator {
    /// Gives up what a pod has and does not wish for any more.
    pub(super) async fn drop_unwished(
        &self,
        subject: &PodSubject,
        wishes: &[PortRequest],
        (state, written): (&mut PodState, &PodState),
    ) -> Result<(), Trouble> {
        let had: Vec<(String, Vif)> =
            state.vifs().map(|(name, vif)| (name.to_owned(), vif.clone())).collect();
        for (name, vif) in had {
            let is_wished = match wishes.iter().find(|wish| wish.name == name) {
                Some(wish) => fits(&vif, wish, &self.subnet(&wish.subnet).await?.0),
                None => false,
            };
            if is_wished {
                continue;
            }
            if written.vif(&name).is_some_and(|known| known.id == vif.id) {
                let why = format!(
                    "{name}: port {} is written, and what the pod wishes for has changed since: create the pod anew",
                    vif.id
                );
                return Err(Trouble::new(EventReason::NetworkRefused, why));
            }
            self.release(&subject.pod.uid, &vif, subject.host, &[].into()).await?;
            state.remove(&name);
        }
        Ok(())
    }
}

/// Is a VIF what is wished for: on this subnet, plugged in like this, with these addresses?
fn fits(vif: &Vif, wish: &PortRequest, subnet: &Subnet) -> bool {
    let PortRequest { name: _, subnet: _, driver, addresses, mac } = wish;
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

/// The same of a port that was made for this interface, before it is plugged in anywhere.
pub(super) fn serves(port: &Port, wish: &PortRequest, subnet: &Subnet) -> bool {
    let PortRequest { name: _, subnet: _, driver, addresses, mac } = wish;
    let made = match () {
        () if port.device_owner == SUBPORT || marks(port).any(|mark| mark.starts_with(POD)) => {
            Driver::NestedVlan
        }
        () if marks(port).any(|mark| mark.starts_with(NODE)) => Driver::NestedMacvlan,
        () => Driver::NeutronVif,
    };
    let has = |address: &IpAddr| port.fixed_ips.iter().any(|ip| ip.ip_address == Some(*address));
    made == *driver
        && port.fixed_ips.iter().any(|ip| ip.subnet_id == subnet.id)
        && addresses.iter().all(has)
        // The hardware address of a macvlan is not its port's.
        && (made == Driver::NestedMacvlan
            || mac.as_ref().is_none_or(|mac| port.mac_address.eq_ignore_ascii_case(mac)))
}

#[cfg(test)]
mod tests {
    use neutron::port::{FixedIp, Network};
    use neutron::vif::Plugging;

    use super::*;

    #[test]
    fn what_is_wished_for_anew_is_not_what_was_made() {
        let subnet = |id: &str, network: &str, cidr: &str| Subnet {
            id: id.into(),
            network_id: network.into(),
            cidr: cidr.parse().unwrap(),
            gateway_ip: None,
            dns_nameservers: Vec::new(),
            host_routes: Vec::new(),
        };
        let wish = |driver, addresses: &[&str]| PortRequest {
            name: "eth1".into(),
            subnet: String::new(),
            driver,
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            mac: None,
        };
        let (own, other) = (subnet("s1", "n1", "10.1.0.0/24"), subnet("s2", "n2", "10.1.0.0/24"));
        let beside = subnet("s3", "n1", "10.3.0.0/24");
        let ip = FixedIp { subnet_id: "s1".into(), ip_address: "10.1.0.5".parse().ok() };
        let mac_address = "02:00:00:00:00:0a".into();
        let port = Port { vif_type: "ovs".into(), mac_address, fixed_ips: vec![ip], ..Port::default() };
        let network = Network { id: "n1".into(), ..Network::default() };
        let how = Plugging::Bound { bridge: "br-int".into() };
        let vif = Vif::of(&port, &network, std::slice::from_ref(&own), &how).unwrap();
        for (driver, addresses, subnet, expected) in [
            (Driver::NeutronVif, &[][..], &own, true),
            (Driver::NeutronVif, &["10.1.0.5"], &own, true),
            (Driver::NeutronVif, &["10.1.0.6"], &own, false),
            (Driver::NeutronVif, &[], &other, false),
            (Driver::NeutronVif, &[], &beside, false),
            (Driver::NestedVlan, &[], &own, false),
            (Driver::NestedMacvlan, &[], &own, false),
        ] {
            let wish = wish(driver, addresses);
            assert_eq!(fits(&vif, &wish, subnet), expected, "{wish:?} {subnet:?}");
            assert_eq!(serves(&port, &wish, subnet), expected, "{wish:?} {subnet:?}");
        }
        for (mac, expected) in
            [("02:00:00:00:00:0a", true), ("02:00:00:00:00:0A", true), ("02:00:00:00:00:0b", false)]
        {
            let wish = PortRequest { mac: Some(mac.into()), ..wish(Driver::NeutronVif, &[]) };
            assert_eq!((fits(&vif, &wish, &own), serves(&port, &wish, &own)), (expected, expected), "{mac}");
        }
        // In a trunk, or beside a node's own port: it says so itself. The hardware address of a macvlan is the pod's.
        let tagged = |tag: String| Port { tags: vec![tag], ..port.clone() };
        let subport = Port { device_owner: SUBPORT.into(), ..port.clone() };
        for (port, driver, mac_counts) in [
            (subport, Driver::NestedVlan, true),
            (tagged(format!("{POD}x")), Driver::NestedVlan, true),
            (tagged(format!("{NODE}x")), Driver::NestedMacvlan, false),
        ] {
            for asked in [Driver::NeutronVif, Driver::NestedVlan, Driver::NestedMacvlan] {
                let wish = wish(asked, &["10.1.0.5"]);
                assert_eq!(serves(&port, &wish, &own), asked == driver, "{wish:?} {port:?}");
            }
            let wish = PortRequest { mac: Some("02:00:00:00:00:0b".into()), ..wish(driver, &[]) };
            assert_eq!(serves(&port, &wish, &own), !mac_counts, "{port:?}");
        }
    }
}
