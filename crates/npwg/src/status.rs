//! Network-status annotation: the result of each attachment.
//!
//! - Each attachment has one entry, from the first interface in the sandbox. Further interfaces in the sandbox follow
//!   as entries with the same name. An attachment without a result has a minimal entry.
//! - `default` is in every entry and true in one (C5): on the default network the interface of the first address with a
//!   gateway, else the first one. `mac` only appears with `interface`.
//! - An entry has the addresses of that interface. If no interface is in the sandbox, they are the addresses without an
//!   interface, as Calico returns them. Addresses of host interfaces never appear (M16).
//! - Results before 0.3.0 have no interfaces: all addresses count, and the interface is `CNI_IFNAME`.
//! - Fields are in the order of the specification's example; other fields come last.
//!
//! Source: multi-network specification v1.3, section 5; conflicts C5, C6; Multus for `gateway`, `mtu` and bare addresses.

mod missing;

pub use missing::{MissingNetwork, missing_networks};

use std::net::IpAddr;

use cni::error::Error;
use cni::result::{Dns, Interface, IpConfig, Success};
use cni::version::Version;
use serde::{Deserialize, Serialize};

pub use crate::configuration::{StatusAddresses, StatusKeys, StatusStyle};
use crate::device::DeviceInfo;
use crate::outcome::{Outcome, addresses_of, in_sandbox, unattributed};
use crate::plan::{DefaultRouteAction, Delegate, Families, Plan, Role};
use crate::refusal::Reason;

/// Key of the annotation.
pub const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
/// Maximum length of a network name, in bytes: NAMESPACE/NAME. A reader that keeps the name with each address of an
/// annotation ignores entries with longer names: every user that can change a pod can write them.
pub const NETWORK_NAME_MAX: usize = 63 + 1 + 253;

/// Entry of the status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Entry {
    /// Name of the network.
    pub name: String,
    /// Interface in the pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub interface: String,
    /// Addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<String>,
    /// Hardware address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// Gateways of the default route, if the pod requests it on this network.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub default_route: Vec<String>,
    /// DNS settings of the network; Multus writes empty ones, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<Dns>,
    /// Device information.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_info: Option<DeviceInfo>,
    /// Whether this is the default network.
    pub default: bool,
    /// Next hops of the default routes in the result (Multus).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gateway: Vec<String>,
    /// MTU of the interface in bytes (Multus).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Component that attached the network to the running pod (weft); empty if it was attached with the sandbox (V13-5.1-1).
    #[serde(rename = "dev.weft.added-by", skip_serializing_if = "String::is_empty")]
    pub added_by: String,
    /// On the default network, the reason why the pod's annotation was ignored (weft; C3).
    #[serde(rename = "dev.weft.annotation-ignored", skip_serializing_if = "String::is_empty")]
    pub annotation_ignored: String,
}

/// Attachment and the CNI result.
#[derive(Clone, Debug)]
pub struct Attachment<'a> {
    /// Network of the plan.
    pub delegate: &'a Delegate,
    /// Result of the plugins.
    pub outcome: &'a Outcome,
    /// Content of the device information file.
    pub device_info: Option<DeviceInfo>,
    /// Component that attached the network to the running pod; empty if it was attached with the sandbox.
    pub added_by: String,
}

/// Returns the status of a sandbox whose attachments are in order.
pub fn entries(plan: &Plan, attachments: &[Attachment<'_>]) -> Vec<Entry> {
    let mut all: Vec<Entry> = Vec::new();
    for attachment in attachments {
        all.extend(of_attachment(plan, attachment, attachments));
    }
    let ignored = plan.warnings.iter().find(|warning| warning.event == Reason::AnnotationIgnored);
    if let (Some(warning), Some(entry)) = (ignored, all.iter_mut().find(|entry| entry.default)) {
        entry.annotation_ignored = warning.fault.to_string();
    }
    all
}

/// Returns the value of the annotation: the entries as indented JSON.
pub fn render(entries: &[Entry]) -> Result<String, Error> {
    let json = cni::result::pretty(&entries)?;
    String::from_utf8(json).map_err(|cause| Error::internal(format!("encode the status: {cause}")))
}

fn of_attachment(plan: &Plan, attachment: &Attachment<'_>, all: &[Attachment<'_>]) -> Vec<Entry> {
    let Attachment { delegate, outcome, device_info, added_by } = attachment;
    let empty = Success::default();
    let result = outcome.result.as_ref().unwrap_or(&empty);
    let multus = plan.status.keys == StatusKeys::Multus;
    let gateways = gateways(plan, delegate, result, all);
    let mut first = Entry {
        name: delegate.network.clone(),
        dns: dns(&result.dns, plan.status.keys),
        device_info: device_info.clone(),
        default: delegate.role == Role::Default,
        default_route: match &delegate.default_route {
            DefaultRouteAction::Untouched | DefaultRouteAction::Yield { .. } => Vec::new(),
            DefaultRouteAction::Keep | DefaultRouteAction::Via { .. } => gateways.clone(),
        },
        gateway: if multus { gateways } else { Vec::new() },
        added_by: added_by.clone(),
        ..Entry::default()
    };
    let mut inside = in_sandbox(result);
    let Some((index, interface)) = inside.next() else {
        let old = outcome.version.is_some_and(|version| version < Version::V0_3_0);
        if old {
            first.interface = delegate.ifname.to_string();
        }
        first.ips = addresses(plan, unattributed(result));
        return vec![first];
    };
    first.show(plan, result, index, interface);
    let further = inside.map(|(index, interface)| {
        let mut entry = Entry { name: first.name.clone(), added_by: added_by.clone(), ..Entry::default() };
        entry.show(plan, result, index, interface);
        entry
    });
    let further: Vec<Entry> = further.collect();
    let mut all: Vec<Entry> = std::iter::once(first).chain(further).collect();
    if delegate.role == Role::Default {
        let default = default_interface(result);
        all.iter_mut().enumerate().for_each(|(place, entry)| entry.default = place == default);
    }
    all
}

/// Returns the index, among the interfaces in the sandbox, of the first one that has an address with a gateway, because
/// OVN-Kubernetes lists the cluster network's interface before that of a primary network. 0 if no address has a
/// gateway.
fn default_interface(result: &Success) -> usize {
    let with_gateway = result.ips.iter().filter(|ip| ip.gateway.is_some());
    let mut indexes = with_gateway.filter_map(|ip| usize::try_from(ip.interface?).ok());
    let place = indexes.find_map(|at| in_sandbox(result).position(|(index, _)| index == at));
    place.unwrap_or_default()
}

impl Entry {
    /// Adds the hardware address, MTU and addresses of an interface.
    fn show(&mut self, plan: &Plan, result: &Success, index: usize, interface: &Interface) {
        self.interface.clone_from(&interface.name);
        if !interface.name.is_empty() {
            self.mac.clone_from(&interface.mac);
        }
        self.ips = addresses(plan, addresses_of(result, index));
        if plan.status.keys == StatusKeys::Multus {
            self.mtu = interface.mtu.filter(|mtu| *mtu > 0);
        }
    }
}

fn addresses<'a>(plan: &Plan, ips: impl Iterator<Item = &'a IpConfig>) -> Vec<String> {
    let print = |ip: &IpConfig| match plan.status.addresses {
        StatusAddresses::Bare => ip.address.addr().to_string(),
        StatusAddresses::Cidr => ip.address.to_string(),
    };
    ips.map(print).collect()
}

fn dns(dns: &Dns, keys: StatusKeys) -> Option<Dns> {
    match keys {
        StatusKeys::Standard => {
            Some(Dns { options: Vec::new(), ..dns.clone() }).filter(|dns| !dns.is_empty())
        }
        StatusKeys::Multus => Some(dns.clone()),
    }
}

/// Returns the next hops of the default routes that this attachment has in the end, without duplicates.
fn gateways(plan: &Plan, delegate: &Delegate, result: &Success, all: &[Attachment<'_>]) -> Vec<String> {
    let of_plugins = next_hops(result);
    let (own, replaced): (Vec<IpAddr>, Replaced) = match &delegate.default_route {
        DefaultRouteAction::Untouched | DefaultRouteAction::Keep => {
            (Vec::new(), Replaced { v4: false, v6: false })
        }
        DefaultRouteAction::Via { gateways } => {
            let own: Vec<IpAddr> = gateways.iter().map(|gateway| gateway.address).collect();
            let replaced = Replaced::by(&own);
            (own, replaced)
        }
        DefaultRouteAction::Yield { families: Families::V4, .. } => {
            (Vec::new(), Replaced { v4: true, v6: false })
        }
        DefaultRouteAction::Yield { families: Families::V6, .. } => {
            (Vec::new(), Replaced { v4: false, v6: true })
        }
        DefaultRouteAction::Yield { families: Families::Both, .. } => {
            (Vec::new(), Replaced { v4: true, v6: true })
        }
        DefaultRouteAction::Yield { to, families: Families::OfHolder } => {
            let holder = plan.delegates.get(*to).map(|delegate| &delegate.ifname);
            let holder = all.iter().find(|attachment| Some(&attachment.delegate.ifname) == holder);
            let result = holder.and_then(|attachment| attachment.outcome.result.as_ref());
            (Vec::new(), Replaced::by(&result.map(next_hops).unwrap_or_default()))
        }
    };
    let kept = of_plugins.into_iter().filter(|hop| !replaced.holds(*hop));
    let mut texts: Vec<String> = Vec::new();
    for hop in own.into_iter().chain(kept).map(|hop| hop.to_string()) {
        if !texts.contains(&hop) {
            texts.push(hop);
        }
    }
    texts
}

/// Families whose default routes of the plugins were replaced.
struct Replaced {
    v4: bool,
    v6: bool,
}

impl Replaced {
    fn by(hops: &[IpAddr]) -> Replaced {
        Replaced { v4: hops.iter().any(IpAddr::is_ipv4), v6: hops.iter().any(IpAddr::is_ipv6) }
    }

    fn holds(&self, hop: IpAddr) -> bool {
        if hop.is_ipv4() { self.v4 } else { self.v6 }
    }
}

/// Returns the next hops of the default routes in a result; a route without one uses the gateway in the address of the
/// same family.
fn next_hops(result: &Success) -> Vec<IpAddr> {
    let subnet_gateway = |v4: bool| {
        let of_family = result.ips.iter().filter(|ip| ip.address.addr().is_ipv4() == v4);
        of_family.filter_map(|ip| ip.gateway).next()
    };
    let defaults = result.routes.iter().filter(|route| route.dst.prefix_len() == 0);
    let in_main = defaults.filter(|route| route.table.is_none_or(|table| table == 0 || table == 254));
    in_main.filter_map(|route| route.gw.or_else(|| subnet_gateway(route.dst.addr().is_ipv4()))).collect()
}

#[cfg(test)]
mod tests;
