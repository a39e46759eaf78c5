//! Pool layout: a pool is split into aligned blocks of one size, and each block is leased as a whole.
//!
//! - A pool's block size is fixed at the first use, because nodes compete for a block by name.
//! - A block has at most 256 addresses. A block of one address is that address.
//! - A network whose window is not larger than a block uses single addresses instead.
//!
//! [`PoolLayout::for_window`] chooses a size that gives every node four blocks. See `docs/design/ipam.md#pool-layout`.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::number::{Family, number};

/// Largest block size, as a power of two.
pub const BITS_MAX: u8 = 8;
/// Number of pool sections for which the pool status records single-address objects.
const SECTIONS: u128 = 512;
/// Number of blocks that every node should be able to lease.
const BLOCKS_PER_NODE: u128 = 4;
/// Smallest useful block: a lease of a smaller one costs as much as the single addresses in it.
const BLOCK_MIN: u128 = 4;
/// A window with at least this many addresses has blocks of at least [`LARGE_BLOCK_MIN`], if every node can lease one:
/// a lease costs two requests, and one request must yield 16 addresses.
const LARGE_WINDOW: u128 = 1024;
const LARGE_BLOCK_MIN: u128 = 32;

/// Pool subnet and block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolLayout {
    subnet: IpNet,
    bits: u8,
}

impl PoolLayout {
    /// Splits `subnet` into blocks of `2^bits` addresses, limited to the subnet and to [`BITS_MAX`].
    pub fn new(subnet: IpNet, bits: u8) -> PoolLayout {
        let subnet = subnet.trunc();
        let host = Family::of(subnet.addr()).bits() - subnet.prefix_len();
        PoolLayout { subnet, bits: bits.min(BITS_MAX).min(host) }
    }

    /// Splits `subnet` for a network that may allocate `window` addresses from it, so that each of `nodes` nodes can
    /// lease four blocks. If the window is too small for blocks, the size is that for a network with the whole subnet.
    pub fn for_window(subnet: IpNet, window: u128, nodes: u64) -> PoolLayout {
        let bits = match bits_for(window, nodes) {
            0 => bits_for(address_count(subnet), nodes),
            bits => bits,
        };
        PoolLayout::new(subnet, bits)
    }

    /// Whether a network that may allocate `window` addresses leases blocks. A window within one block would be
    /// available to a single node.
    pub fn has_blocks_for(&self, window: u128) -> bool {
        !self.has_single_addresses_only() && window > u128::from(self.block_size())
    }

    /// Subnet of the pool.
    pub fn subnet(&self) -> IpNet {
        self.subnet
    }

    /// Number of addresses in a block, as a power of two.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// Number of addresses in a block.
    pub fn block_size(&self) -> u32 {
        1 << self.bits
    }

    /// Whether every block is one address.
    pub fn has_single_addresses_only(&self) -> bool {
        self.bits == 0
    }

    /// Number of blocks, at most `u128::MAX`.
    pub fn block_count(&self) -> u128 {
        let host = Family::of(self.subnet.addr()).bits() - self.subnet.prefix_len();
        1_u128.checked_shl(u32::from(host - self.bits)).unwrap_or(u128::MAX)
    }

    /// Block with this index.
    pub fn block(&self, index: u128) -> Option<IpNet> {
        if index >= self.block_count() {
            return None;
        }
        let family = Family::of(self.subnet.addr());
        let first = number(self.subnet.network()) + (index << self.bits);
        IpNet::new(family.address(first), family.bits() - self.bits).ok()
    }

    /// Index of the block that contains an address.
    pub fn index_of(&self, ip: IpAddr) -> Option<u128> {
        self.subnet.contains(&ip).then(|| (number(ip) - number(self.subnet.network())) >> self.bits)
    }

    /// Section of the pool that contains an address. In a large pool several blocks share a section.
    pub fn section_of(&self, ip: IpAddr) -> Option<u16> {
        self.index_of(ip).and_then(|index| u16::try_from(index % SECTIONS).ok())
    }

    /// Block that contains an address.
    pub fn block_of(&self, ip: IpAddr) -> Option<IpNet> {
        self.block(self.index_of(ip)?)
    }
}

/// Size of a block, as a power of two, for `window` addresses on `nodes` nodes; 0 for single addresses.
fn bits_for(window: u128, nodes: u64) -> u8 {
    let nodes = u128::from(nodes.max(1));
    let mut share = window / (BLOCKS_PER_NODE * nodes);
    if window >= LARGE_WINDOW && window / LARGE_BLOCK_MIN >= nodes {
        share = share.max(LARGE_BLOCK_MIN);
    }
    let bits = share.checked_ilog2().filter(|_| share >= BLOCK_MIN).unwrap_or(0);
    u8::try_from(bits).unwrap_or(BITS_MAX).min(BITS_MAX)
}

/// Whether a network is one address.
pub(crate) fn is_single_address(net: IpNet) -> bool {
    net.prefix_len() == net.max_prefix_len()
}

/// Whether two networks have addresses in common.
pub fn overlap(one: IpNet, other: IpNet) -> bool {
    one.contains(&other) || other.contains(&one)
}

/// Number of addresses in a network, at most `u128::MAX`.
pub fn address_count(net: IpNet) -> u128 {
    let host = Family::of(net.addr()).bits() - net.prefix_len();
    1_u128.checked_shl(u32::from(host)).unwrap_or(u128::MAX)
}

/// Address at an offset from the first address of a network.
pub fn nth(net: IpNet, offset: u128) -> IpAddr {
    Family::of(net.addr()).address(number(net.network()).saturating_add(offset))
}

/// Offset of an address from the first address of a network that contains it.
pub fn offset_of(net: IpNet, ip: IpAddr) -> Option<u128> {
    net.contains(&ip).then(|| number(ip) - number(net.network()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn pool_layout_block_size_follows_window_and_node_count() {
        let cases = [
            ("10.0.0.0/16", 65_534, 3, 8),
            ("10.0.0.0/16", 65_534, 100, 7),
            ("10.0.0.0/16", 65_534, 1_000, 5),
            ("10.0.0.0/16", 65_534, 5_000, 0),
            ("10.0.0.0/24", 254, 3, 4),
            ("10.0.0.0/24", 254, 15, 2),
            ("10.0.0.0/24", 254, 16, 0),
            ("10.0.0.0/27", 30, 6, 0),
            ("10.0.0.0/28", 14, 100, 0),
            ("10.0.0.0/22", 1_022, 32, 2),
            ("10.0.0.0/21", 1_024, 32, 5),
            ("10.0.0.0/21", 1_024, 33, 2),
            ("10.0.0.0/8", 1 << 24, 10_000, 8),
            ("fd00::/64", u128::from(u64::MAX), 10_000, 8),
            ("::/0", u128::MAX, 1, 8),
            ("10.0.0.0/30", 2, 0, 0),
        ];
        for (subnet, window, nodes, bits) in cases {
            let layout = PoolLayout::for_window(net(subnet), window, nodes);
            let expected = if bits == 0 { bits_for(address_count(net(subnet)), nodes) } else { bits };
            assert_eq!(layout.bits(), expected, "{window} of {subnet} for {nodes}");
            assert_eq!(bits_for(window, nodes), bits, "{window} of {subnet} for {nodes}");
        }
    }

    #[test]
    fn pool_layout_small_window_has_no_blocks() {
        for (subnet, window, nodes, has_blocks) in [
            ("10.93.96.0/20", 2, 3, false),
            ("10.56.217.0/24", 11, 3, false),
            ("10.0.0.0/27", 5, 3, false),
            ("10.0.0.0/27", 30, 6, false),
            ("10.0.0.0/24", 254, 3, true),
            ("10.0.0.0/16", 1_024, 10, true),
        ] {
            let layout = PoolLayout::for_window(net(subnet), window, nodes);
            assert_eq!(
                layout.has_blocks_for(window),
                has_blocks,
                "{window} of {subnet} for {nodes}: {layout:?}"
            );
        }
        // A network with the whole range leases blocks of the pool that the small window created.
        assert!(PoolLayout::for_window(net("10.93.96.0/20"), 2, 3).has_blocks_for(4_094));
    }

    #[test]
    fn pool_layout_puts_every_address_in_one_block() {
        let layout = PoolLayout::new(net("10.1.2.9/24"), 4);
        let ends = (layout.block_count(), layout.block(15), layout.block(16));
        assert_eq!(ends, (16, Some(net("10.1.2.240/28")), None));
        for last in 0..=255 {
            let ip = IpAddr::from([10, 1, 2, last]);
            let block = layout.block_of(ip).unwrap();
            assert!(block.contains(&ip) && address_count(block) == 16);
            assert_eq!(nth(block, offset_of(block, ip).unwrap()), ip);
        }
        assert_eq!(layout.block_of("10.1.3.0".parse().unwrap()), None);
        assert_eq!(layout.section_of("10.1.2.33".parse().unwrap()), Some(2));
        let large = PoolLayout::new(net("10.0.0.0/8"), 8);
        assert_eq!(large.section_of("10.2.7.1".parse().unwrap()), Some(7));
        assert_eq!(layout.block_of("fd00::1".parse().unwrap()), None);
        assert_eq!(PoolLayout::new(net("10.0.0.0/30"), 8).block(0), Some(net("10.0.0.0/30")));
        assert_eq!(PoolLayout::new(net("::/0"), 8).block_count(), 1 << 120);
        assert_eq!(PoolLayout::new(net("::/0"), 0).block_count(), u128::MAX);
    }
}
