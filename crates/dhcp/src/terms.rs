//! Lease terms in the form that the lease manager needs, the same for both address families.

use std::net::IpAddr;
use std::time::Duration;

use cni::result::{Dns, Success};
use ipnet::{IpNet, Ipv6Net};

use crate::owner::Family;
use crate::v4::lease::Lease;
use crate::v4::options::Options;
use crate::v6::{self, V6Request};

/// Granted lease, and the request that led to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Terms {
    /// DHCPv4 lease.
    V4 {
        /// Options in the request.
        options: Options,
        /// Route metric.
        priority: Option<u32>,
        /// Granted lease.
        lease: Lease,
    },
    /// DHCPv6 lease.
    V6 {
        /// Settings in the request.
        v6_request: V6Request,
        /// Granted lease.
        lease: v6::lease::Lease,
    },
}

/// Lease times, relative to the grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// When to start asking the lease's own server for an extension (T1).
    pub renewal: Duration,
    /// When to start asking any server (T2).
    pub rebinding: Duration,
    /// When the lease ends; `None` means never.
    pub expiry: Option<Duration>,
}

impl Terms {
    /// Returns the address family.
    pub fn family(&self) -> Family {
        match self {
            Terms::V4 { .. } => Family::Ipv4,
            Terms::V6 { .. } => Family::Ipv6,
        }
    }

    /// Returns the lease times.
    pub fn times(&self) -> Times {
        match self {
            Terms::V4 { lease: Lease { renewal, rebinding, expiry, .. }, .. }
            | Terms::V6 { lease: v6::lease::Lease { renewal, rebinding, expiry, .. }, .. } => {
                Times { renewal: *renewal, rebinding: *rebinding, expiry: *expiry }
            }
        }
    }

    /// Returns the address with the prefix length that the interface gets.
    pub fn address(&self) -> IpNet {
        match self {
            Terms::V4 { lease, .. } => IpNet::V4(lease.address),
            Terms::V6 { lease, v6_request } => {
                let single = Ipv6Net::from(lease.address);
                IpNet::V6(Ipv6Net::new(lease.address, v6_request.prefix_length).unwrap_or(single))
            }
        }
    }

    /// Returns the CNI result for the container.
    pub fn result(&self) -> Success {
        match self {
            Terms::V4 { lease, priority, .. } => lease.result(*priority),
            Terms::V6 { lease, v6_request } => lease.result(v6_request.prefix_length),
        }
    }
}

/// Formats address and server for the log.
impl std::fmt::Display for Terms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let address: IpAddr = self.address().addr();
        match self {
            Terms::V4 { lease, .. } => write!(f, "{address} from {}", lease.server),
            Terms::V6 { lease, .. } => {
                let server = plugin_support::hash::hex("", lease.server.len() * 2, &lease.server);
                write!(f, "{address} from server {server}")
            }
        }
    }
}

/// Merges the results from all leases, DHCPv4 first.
pub fn merge_results(results: impl IntoIterator<Item = Success>) -> Success {
    let mut merged = Success::default();
    for Success { interfaces: _, ips, routes, dns } in results {
        merged.ips.extend(ips);
        merged.routes.extend(routes);
        let Dns { nameservers, domain, search, options } = dns;
        merged.dns.nameservers.extend(nameservers);
        merged.dns.options.extend(options);
        for name in search {
            if !merged.dns.search.contains(&name) {
                merged.dns.search.push(name);
            }
        }
        if merged.dns.domain.is_empty() {
            merged.dns.domain = domain;
        }
    }
    merged
}
