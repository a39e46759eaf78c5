//! Terms of a lease of either family: what a server granted, as far as the lease manager needs it.

use std::net::IpAddr;
use std::time::Duration;

use cni::result::{Dns, Success};
use ipnet::{IpNet, Ipv6Net};

use crate::owner::Family;
use crate::v4::lease::Lease;
use crate::v4::options::Options;
use crate::v6::{self, Wish};

/// A lease, and what was said to have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Terms {
    /// Of DHCPv4.
    V4 {
        /// What is said to servers.
        options: Options,
        /// Metric of the routes.
        priority: Option<u32>,
        /// What was granted.
        lease: Lease,
    },
    /// Of DHCPv6.
    V6 {
        /// What was wished for.
        wish: Wish,
        /// What was granted.
        lease: v6::lease::Lease,
    },
}

/// From when on what is done, counted from the grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// The server is asked to extend it.
    pub renewal: Duration,
    /// Any server is.
    pub rebinding: Duration,
    /// It is over; `None`: never.
    pub expiry: Option<Duration>,
}

impl Terms {
    /// Which protocol it is of.
    pub fn family(&self) -> Family {
        match self {
            Terms::V4 { .. } => Family::Ipv4,
            Terms::V6 { .. } => Family::Ipv6,
        }
    }

    /// When what is due.
    pub fn times(&self) -> Times {
        match self {
            Terms::V4 { lease: Lease { renewal, rebinding, expiry, .. }, .. }
            | Terms::V6 { lease: v6::lease::Lease { renewal, rebinding, expiry, .. }, .. } => {
                Times { renewal: *renewal, rebinding: *rebinding, expiry: *expiry }
            }
        }
    }

    /// The address, as the interface has it.
    pub fn address(&self) -> IpNet {
        match self {
            Terms::V4 { lease, .. } => IpNet::V4(lease.address),
            Terms::V6 { lease, wish } => {
                let whole = Ipv6Net::from(lease.address);
                IpNet::V6(Ipv6Net::new(lease.address, wish.prefix_length).unwrap_or(whole))
            }
        }
    }

    /// What the container gets.
    pub fn result(&self) -> Success {
        match self {
            Terms::V4 { lease, priority, .. } => lease.result(*priority),
            Terms::V6 { lease, wish } => lease.result(wish.prefix_length),
        }
    }
}

/// For the log: the address and who granted it.
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

/// What a container gets of all its leases: those of DHCPv4 first.
pub fn whole(results: impl IntoIterator<Item = Success>) -> Success {
    let mut whole = Success::default();
    for Success { interfaces: _, ips, routes, dns } in results {
        whole.ips.extend(ips);
        whole.routes.extend(routes);
        let Dns { nameservers, domain, search, options } = dns;
        whole.dns.nameservers.extend(nameservers);
        whole.dns.options.extend(options);
        for name in search {
            if !whole.dns.search.contains(&name) {
                whole.dns.search.push(name);
            }
        }
        if whole.dns.domain.is_empty() {
            whole.dns.domain = domain;
        }
    }
    whole
}
