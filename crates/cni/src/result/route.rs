//! Result routes, which have the same form in all versions.
//!
//! Fields that 1.1.0 added also stay in earlier results, as in libcni. An IPAM plugin returns routes in the
//! configuration's version, so without these fields, route options would never reach the interface plugin.
//!
//! Source: SPEC v0.2.0 "Result" to v1.1.0 §5 "Success"; libcni `pkg/types` `Route` (S35, C5).

use serde::{Deserialize, Serialize};

use super::{Route, text};
use crate::error::Error;

#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct WireRoute {
    dst: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    gw: String,
    #[serde(skip_serializing_if = "is_unset")]
    mtu: Option<u32>,
    #[serde(skip_serializing_if = "is_unset")]
    advmss: Option<u32>,
    #[serde(skip_serializing_if = "is_unset")]
    priority: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    table: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scope: Option<u8>,
}

/// Whether Go would omit the number, which it does if it is 0.
pub(super) fn is_unset(number: &Option<u32>) -> bool {
    matches!(number, None | Some(0))
}

impl WireRoute {
    /// Converts to a route; errors name fields below `key`.
    pub(super) fn read(self, key: &str) -> Result<Route, Error> {
        let WireRoute { dst, gw, mtu, advmss, priority, table, scope } = self;
        Ok(Route {
            dst: text::cidr(&format!("{key}.dst"), &dst)?,
            gw: text::ip(&format!("{key}.gw"), &gw)?,
            mtu,
            advmss,
            priority,
            table,
            scope,
        })
    }

    /// Converts a route to the written form.
    pub(super) fn of(route: &Route) -> WireRoute {
        let Route { dst, gw, mtu, advmss, priority, table, scope } = *route;
        WireRoute {
            dst: dst.to_string(),
            gw: gw.map(|gw| gw.to_string()).unwrap_or_default(),
            mtu,
            advmss,
            priority,
            table,
            scope,
        }
    }
}
