//! Share of each client in the reviews of unknown tokens.
//!
//! A client without a valid token costs the API server a review for each token that it invents. So each client address has
//! a number of reviews that refills with time, and all addresses together have one, too. The token of a viewer who was
//! accepted before needs no share.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Reviews that a client may cause at once, and the time after which it may cause one more.
const CLIENT: Share = Share { burst: 10.0, refill: Duration::from_secs(1) };
/// The same for all clients together.
const ALL: Share = Share { burst: 100.0, refill: Duration::from_millis(50) };
/// Maximum number of client addresses that are remembered.
const CLIENTS_MAX: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Share {
    burst: f64,
    refill: Duration,
}

/// Reviews that are left.
#[derive(Clone, Copy, Debug)]
struct Budget {
    left: f64,
    at: Instant,
}

/// Budgets of all clients.
#[derive(Debug)]
pub(super) struct ReviewShares(Mutex<Budgets>);

#[derive(Debug)]
struct Budgets {
    all: Budget,
    clients: HashMap<IpAddr, Budget>,
}

// === impl Budget ===

impl Budget {
    fn full(share: Share, at: Instant) -> Budget {
        Budget { left: share.burst, at }
    }

    fn refill(&mut self, share: Share, now: Instant) {
        let refilled = now.duration_since(self.at).as_secs_f64() / share.refill.as_secs_f64();
        (self.left, self.at) = ((self.left + refilled).min(share.burst), now);
    }
}

// === impl ReviewShares ===

impl ReviewShares {
    /// Returns full budgets.
    pub(super) fn new() -> ReviewShares {
        let all = Budget::full(ALL, Instant::now());
        ReviewShares(Mutex::new(Budgets { all, clients: HashMap::new() }))
    }

    /// Takes a review from the share of a client. The result is false if nothing is left.
    pub(super) fn take(&self, client: IpAddr) -> bool {
        let now = Instant::now();
        // A panic leaves no budget half changed.
        let mut budgets = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Budgets { all, clients } = &mut *budgets;
        if clients.len() >= CLIENTS_MAX {
            clients.retain(|_, budget| {
                budget.refill(CLIENT, now);
                budget.left < CLIENT.burst
            });
        }
        // So many clients at a time are an attack from many addresses: only the common budget is left.
        let is_full = clients.len() >= CLIENTS_MAX;
        let mut shared = Budget::full(CLIENT, now);
        let own = match is_full {
            true => clients.get_mut(&network(client)).unwrap_or(&mut shared),
            false => clients.entry(network(client)).or_insert(shared),
        };
        own.refill(CLIENT, now);
        all.refill(ALL, now);
        if own.left < 1.0 || all.left < 1.0 {
            return false;
        }
        own.left -= 1.0;
        all.left -= 1.0;
        true
    }
}

/// Returns the address that stands for a client: a host has a whole IPv6 network of 64 bits.
fn network(client: IpAddr) -> IpAddr {
    match client.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v6(low: u64) -> IpAddr {
        Ipv6Addr::from_bits(0x2001_0db8_u128 << 96 | u128::from(low)).into()
    }

    #[tokio::test(start_paused = true)]
    async fn page_client_has_a_share_of_reviews_that_refills() {
        let (shares, other) = (ReviewShares::new(), "10.0.0.2".parse().unwrap());
        let taken = |client: fn(u64) -> IpAddr| (0..1000).filter(|n| shares.take(client(*n))).count();
        assert_eq!(taken(|_| "10.0.0.1".parse().unwrap()), 10);
        assert_eq!(taken(|_| "::ffff:10.0.0.1".parse().unwrap()), 0, "it is the same address");
        assert!(shares.take(other), "another client has its own share");
        assert_eq!(taken(v6), 10, "all addresses of a network are one client");
        tokio::time::advance(Duration::from_secs(3)).await;
        assert_eq!(taken(|_| "10.0.0.1".parse().unwrap()), 3);
        // Many addresses together do not exceed the common budget, and do not take memory without limit.
        tokio::time::advance(Duration::from_secs(3600)).await;
        let many = |n: u64| IpAddr::from([10, 9, u8::try_from(n >> 8 & 255).unwrap(), (n & 255) as u8]);
        assert_eq!((0..60_000).filter(|n| shares.take(many(*n))).count(), 100);
        assert!(shares.0.lock().unwrap().clients.len() <= CLIENTS_MAX);
    }
}
