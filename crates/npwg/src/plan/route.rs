//! The default route: whose it is to be, by which gateways, and who gives it up.
//!
//! - One network at most asks for it. Families are treated apart: a gateway of IPv4 only moves only IPv4 (C13).
//! - Of several gateways of a family the first is preferred: metrics 100, 101, … in their order; a single
//!   one has none (C14).
//! - `[]` leaves the gateway to the network's own plugins (C12): who gives up which family is then known only
//!   from the results.
//! - On the default network itself the request moves nothing away from anybody (C15).
//!
//! Source: the standard v1.1, 4.1.2.1.9; Multus defects M1–M4.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::networks::Draft;
use super::{Decision, Role};
use crate::refusal::Refusal;
use crate::request::DefaultRoute;
use crate::rule::Rule;

/// Metric of the most preferred of several gateways.
const FIRST_METRIC: u32 = 100;

/// What to do about default routes on one attachment's interface, once every network is attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum RouteWish {
    /// Nothing.
    Untouched,
    /// Remove the default routes of these families from this interface: another attachment has them now.
    Yield {
        /// Index of that attachment's delegate.
        to: usize,
        /// Which families.
        families: Families,
    },
    /// Keep the default routes its plugins made; the others yield to it.
    Keep,
    /// Replace the default routes of the gateways' families by these.
    Via {
        /// Most preferred first.
        gateways: Vec<Gateway>,
    },
}

/// Address families of a default route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Families {
    /// IPv4 alone.
    V4,
    /// IPv6 alone.
    V6,
    /// Both.
    Both,
    /// Those in which the holder has a default route after its ADD.
    OfHolder,
}

/// One gateway of a default route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gateway {
    /// The next hop.
    pub address: IpAddr,
    /// The metric; `None` is the kernel's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<u32>,
}

impl RouteWish {
    /// The decision, for a person.
    pub(super) fn reason(&self) -> Option<Decision> {
        let decided = |value: String, why: &str| Some(Decision::new("default-route", value, why));
        match self {
            RouteWish::Untouched => None,
            RouteWish::Yield { to, families } => {
                let value = format!("given up ({families:?})").to_lowercase();
                decided(value, &format!("network {to} asks for it"))
            }
            RouteWish::Keep => decided("as its plugins make it".to_owned(), "asked for without a gateway"),
            RouteWish::Via { gateways } => {
                let gateways: Vec<String> = gateways.iter().map(|gw| gw.address.to_string()).collect();
                decided(gateways.join(", "), "asked for")
            }
        }
    }
}

/// A wish for each network, from what each asked.
pub(super) fn wishes(asked: &[&DefaultRoute], drafts: &[Draft]) -> Result<Vec<RouteWish>, Refusal> {
    let mut wishes = vec![RouteWish::Untouched; asked.len()];
    let mut holder = None;
    for (index, route) in asked.iter().enumerate().filter(|(_, route)| route.is_asked()) {
        if let (Some(first), Some(asked)) = (holder, drafts.get(index).and_then(|draft| draft.asked.as_ref()))
        {
            let fault = asked.fault(
                Rule::DuplicateDefaultRoute,
                "default-route",
                format!("network {first} asks for it already"),
            );
            return Err(Refusal::failed(fault.cure("leave it on one network only")));
        }
        holder = Some(index);
        wishes[index] = match route {
            DefaultRoute::Via(gateways) => RouteWish::Via { gateways: with_metrics(gateways) },
            DefaultRoute::OfPlugins | DefaultRoute::Unasked => RouteWish::Keep,
        };
    }
    let Some(holder) = holder else { return Ok(wishes) };
    if drafts.get(holder).is_none_or(|draft| draft.role == Role::Default) {
        return Ok(wishes);
    }
    let families = match asked[holder] {
        DefaultRoute::Via(gateways) => families(gateways),
        DefaultRoute::OfPlugins | DefaultRoute::Unasked => Families::OfHolder,
    };
    for (index, wish) in wishes.iter_mut().enumerate() {
        if index != holder {
            *wish = RouteWish::Yield { to: holder, families };
        }
    }
    Ok(wishes)
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
