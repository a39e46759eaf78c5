//! The network-status annotation: what came of each attachment.
//!
//! Rules:
//! - one entry for each attachment, from the first interface in the sandbox; further ones in the sandbox follow as
//!   entries of the same name; no result, or nothing in it, still makes a minimal entry;
//! - `default` is in every entry and true in one (C5); `mac` never stands without `interface`;
//! - addresses are those of that interface; where none is in the sandbox, the first that belongs to no
//!   interface; host-side addresses never show (M16);
//! - results before 0.3.0 know no interfaces: all their addresses count, and the interface is `CNI_IFNAME`;
//! - keys stand in the order of the standard's example; what is not the standard's comes last.
//!
//! Source: the standard v1.3, section 5; conflicts C5, C6; Multus for `gateway`, `mtu` and bare addresses.

use std::net::IpAddr;

use cni::error::Error;
use cni::result::{Dns, Interface, IpConfig, Success};
use cni::version::Version;
use serde::{Deserialize, Serialize};

pub use crate::configuration::{StatusAddresses, StatusKeys, StatusStyle};
use crate::device::DeviceInfo;
use crate::outcome::{Outcome, addresses_of, in_sandbox, unattributed};
use crate::plan::{Delegate, Families, Plan, Role, RouteWish};
use crate::refusal::Reason;

/// The annotation's key.
pub const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

/// One entry of the status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Entry {
    /// The network.
    pub name: String,
    /// The interface in the pod.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub interface: String,
    /// Its addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<String>,
    /// Its hardware address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// The gateways of the default route, if the pod asked for it on this network.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub default_route: Vec<String>,
    /// DNS settings of the network; Multus writes them where there are none, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<Dns>,
    /// What is known about its device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_info: Option<DeviceInfo>,
    /// Is this the default network?
    pub default: bool,
    /// Multus: next hops of the default routes in the result.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gateway: Vec<String>,
    /// Multus: the interface's MTU in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Ours: who attached it to the running pod; empty if it came with the sandbox (V13-5.1-1).
    #[serde(rename = "dev.weft.added-by", skip_serializing_if = "String::is_empty")]
    pub added_by: String,
    /// Ours, on the default network: why the pod's annotation was ignored (C3).
    #[serde(rename = "dev.weft.annotation-ignored", skip_serializing_if = "String::is_empty")]
    pub annotation_ignored: String,
}

/// One attachment and what came of it.
#[derive(Clone, Debug)]
pub struct Attachment<'a> {
    /// What was to be done.
    pub delegate: &'a Delegate,
    /// What the plugins answered.
    pub outcome: &'a Outcome,
    /// What stood in its device information file.
    pub device_info: Option<DeviceInfo>,
    /// Who asked for it on the running pod; empty if it came with the sandbox.
    pub added_by: String,
}

/// The status of a sandbox: its attachments, in order.
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

/// The annotation's value: the entries as indented JSON.
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
            RouteWish::Untouched | RouteWish::Yield { .. } => Vec::new(),
            RouteWish::Keep | RouteWish::Via { .. } => gateways.clone(),
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
        first.ips = addresses(plan, unattributed(result).take(if old { usize::MAX } else { 1 }));
        return vec![first];
    };
    first.show(plan, result, index, interface);
    let further = inside.map(|(index, interface)| {
        let mut entry = Entry { name: first.name.clone(), added_by: added_by.clone(), ..Entry::default() };
        entry.show(plan, result, index, interface);
        entry
    });
    let further: Vec<Entry> = further.collect();
    std::iter::once(first).chain(further).collect()
}

impl Entry {
    /// Fills in what an interface has.
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

/// The next hops of the default routes this attachment ends up with, each once.
fn gateways(plan: &Plan, delegate: &Delegate, result: &Success, all: &[Attachment<'_>]) -> Vec<String> {
    let of_plugins = next_hops(result);
    let (own, replaced): (Vec<IpAddr>, Replaced) = match &delegate.default_route {
        RouteWish::Untouched | RouteWish::Keep => (Vec::new(), Replaced { v4: false, v6: false }),
        RouteWish::Via { gateways } => {
            let own: Vec<IpAddr> = gateways.iter().map(|gateway| gateway.address).collect();
            let replaced = Replaced::by(&own);
            (own, replaced)
        }
        RouteWish::Yield { families: Families::V4, .. } => (Vec::new(), Replaced { v4: true, v6: false }),
        RouteWish::Yield { families: Families::V6, .. } => (Vec::new(), Replaced { v4: false, v6: true }),
        RouteWish::Yield { families: Families::Both, .. } => (Vec::new(), Replaced { v4: true, v6: true }),
        RouteWish::Yield { to, families: Families::OfHolder } => {
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

/// The families whose default routes are not the plugins' any more.
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

/// The next hops of the default routes in a result; without one of its own a route goes by its subnet's gateway.
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
