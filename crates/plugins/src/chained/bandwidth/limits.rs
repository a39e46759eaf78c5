//! Token bucket for a limit.

use linux::tc::Bucket;
use plugin_config::bandwidth::Limit;

/// Longest time that a packet waits in the queue, as a fraction of a second: 25 ms.
const LATENCY: u64 = 40;
/// Header size before the payload, in bytes: Ethernet with a VLAN tag.
const HEADER: u32 = 18;
/// Rate for traffic that is not limited, in bytes per second.
const UNLIMITED: u64 = 100_000_000_000;

/// Returns the token bucket for a limit on a link with this MTU.
pub fn bucket(limit: &Limit, mtu: u32) -> Bucket {
    let burst = limit.burst.max(mtu.saturating_add(HEADER));
    let waiting = (limit.rate / LATENCY).saturating_add(u64::from(burst));
    Bucket { rate: limit.rate, burst, limit: u32::try_from(waiting).unwrap_or(u32::MAX) }
}

/// Returns the token bucket for traffic that is not limited.
pub fn unlimited() -> Bucket {
    Bucket { rate: UNLIMITED, burst: 10_000_000, limit: 10_000_000 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_bucket_holds_a_packet_and_waits_25_milliseconds() {
        let limit = Limit { rate: 1_000_000, burst: 20_000 };
        assert_eq!(bucket(&limit, 1500), Bucket { rate: 1_000_000, burst: 20_000, limit: 45_000 });
        assert_eq!(bucket(&limit, 65_535).burst, 65_553);
        let large = Limit { rate: u64::MAX / 8, burst: u32::MAX - 1 };
        assert_eq!(bucket(&large, 1500).limit, u32::MAX);
    }
}
