//! Assignment of the default route: the network that gets it, through which gateways, and the networks that
//! lose it.
//!
//! - At most one network requests it. Address families are independent: an IPv4 gateway moves only IPv4
//!   (C13).
//! - If a family has several gateways, the first is preferred: they get the metrics 100, 101, … in order. A single
//!   gateway gets no metric (C14).
//! - `[]` leaves the gateway to the network's plugins (C12). Only the results show which families move.
//! - A request on the default network itself changes no other network (C15).
//!
//! Source: multi-network specification v1.1, 4.1.2.1.9; Multus defects M1–M4.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::networks::Draft;
use super::{Decision, Role};
use crate::refusal::Refusal;
use crate::request::DefaultRoute;
use crate::rule::Rule;

/// Metric for the most preferred among several gateways.
const FIRST_METRIC: u32 = 100;

/// Change to the default routes on one attachment's interface, made after every network is attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum DefaultRouteAction {
    /// They stay as they are.
    Untouched,
    /// Remove this interface's default routes in these families, because another attachment gets them.
    Yield {
        /// Index of the delegate that gets them.
        to: usize,
        /// Families to remove.
        families: Families,
    },
    /// Keep the default routes that the plugins set; the other attachments yield to it.
    Keep,
    /// Replace the default routes in the families that the gateways have.
    Via {
        /// Gateways, most preferred first.
        gateways: Vec<Gateway>,
    },
}

/// Address families in which a default route changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Families {
    /// Only IPv4.
    V4,
    /// Only IPv6.
    V6,
    /// IPv4 and IPv6.
    Both,
    /// The families in which the holder has a default route after the ADD.
    OfHolder,
}

/// Gateway for a default route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gateway {
    /// Next hop.
    pub address: IpAddr,
    /// Metric; `None` for the kernel's default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<u32>,
}

impl DefaultRouteAction {
    /// Returns the decision for users, if the routes change.
    pub(super) fn reason(&self) -> Option<Decision> {
        let decided = |value: String, why: &str| Some(Decision::new("default-route", value, why));
        match self {
            DefaultRouteAction::Untouched => None,
            DefaultRouteAction::Yield { to, families } => {
                let value = format!("removed ({families:?})").to_lowercase();
                decided(value, &format!("network {to} requests it"))
            }
            DefaultRouteAction::Keep => {
                decided("as its plugins make it".to_owned(), "requested without a gateway")
            }
            DefaultRouteAction::Via { gateways } => {
                let gateways: Vec<String> = gateways.iter().map(|gw| gw.address.to_string()).collect();
                decided(gateways.join(", "), "requested")
            }
        }
    }
}

/// Returns the change for each network.
pub(super) fn actions(asked: &[&DefaultRoute], drafts: &[Draft]) -> Result<Vec<DefaultRouteAction>, Refusal> {
    let mut actions = vec![DefaultRouteAction::Untouched; asked.len()];
    let mut holder = None;
    for (index, route) in asked.iter().enumerate().filter(|(_, route)| route.is_requested()) {
        if let (Some(first), Some(asked)) = (holder, drafts.get(index).and_then(|draft| draft.asked.as_ref()))
        {
            let fault = asked.fault(
                Rule::DuplicateDefaultRoute,
                "default-route",
                format!("network {first} already requests it"),
            );
            return Err(Refusal::failed(fault.hint("leave it on one network only")));
        }
        holder = Some(index);
        actions[index] = match route {
            DefaultRoute::Via(gateways) => DefaultRouteAction::Via { gateways: with_metrics(gateways) },
            DefaultRoute::FromPlugins | DefaultRoute::NotRequested => DefaultRouteAction::Keep,
        };
    }
    let Some(holder) = holder else { return Ok(actions) };
    if drafts.get(holder).is_none_or(|draft| draft.role == Role::Default) {
        return Ok(actions);
    }
    let families = match asked[holder] {
        DefaultRoute::Via(gateways) => families(gateways),
        DefaultRoute::FromPlugins | DefaultRoute::NotRequested => Families::OfHolder,
    };
    for (index, action) in actions.iter_mut().enumerate() {
        if index != holder {
            *action = DefaultRouteAction::Yield { to: holder, families };
        }
    }
    Ok(actions)
}

fn families(gateways: &[IpAddr]) -> Families {
    match (gateways.iter().any(IpAddr::is_ipv4), gateways.iter().any(IpAddr::is_ipv6)) {
        (true, false) => Families::V4,
        (false, true) => Families::V6,
        _ => Families::Both,
    }
}

fn with_metrics(gateways: &[IpAddr]) -> Vec<Gateway> {
    let mut next = [FIRST_METRIC; 2];
    let count = |v6: bool| gateways.iter().filter(|gateway| gateway.is_ipv6() == v6).count();
    let alone = [count(false) < 2, count(true) < 2];
    let numbered = gateways.iter().map(|address| {
        let family = usize::from(address.is_ipv6());
        let metric = (!alone[family]).then_some(next[family]);
        next[family] += 1;
        Gateway { address: *address, metric }
    });
    numbered.collect()
}
