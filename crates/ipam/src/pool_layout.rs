//! How a pool is cut into blocks: aligned pieces of one size, each leased as a whole.
//!
//! ```text
//!   subnet 10.1.0.0/16, 2^8 addresses a block ──► 10.1.0.0/24  10.1.1.0/24  …  10.1.255.0/24
//! ```
//!
//! Rules: the size of blocks is fixed once for a pool, because the name of a block is what two nodes contend for;
//! a block has at most 256 addresses; one of a single address is that address.
//!
//! The size is what gives every node four blocks, so that a node with a full one finds another: half of what
//! a node may have on average lies idle at worst. `2^bits ≤ addresses / (4 × nodes)`, at most 2^8, at least 2^0.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::number::{Family, number};

/// The most addresses of a block, as a power of two.
pub const BITS_MAX: u8 = 8;
/// Parts of a pool that are told apart where it is said which blocks have single addresses.
const PARTS: u128 = 512;
/// Blocks that every node should be able to have.
const BLOCKS_OF_A_NODE: u128 = 4;

/// A pool's subnet and the size of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    subnet: IpNet,
    bits: u8,
}

impl Grid {
    /// Cuts `subnet` into blocks of `2^bits` addresses, fewer if the subnet is smaller or `bits` is above [`BITS_MAX`].
    pub fn new(subnet: IpNet, bits: u8) -> Grid {
        let subnet = subnet.trunc();
        let host = Family::of(subnet.addr()).bits() - subnet.prefix_len();
        Grid { subnet, bits: bits.min(BITS_MAX).min(host) }
    }

    /// The grid for so many nodes.
    pub fn for_nodes(subnet: IpNet, nodes: u64) -> Grid {
        let host = u32::from(Family::of(subnet.addr()).bits() - subnet.prefix_len());
        // Beyond 2^100 the number of nodes does not matter.
        let addresses = 1_u128 << host.min(100);
        let share = addresses / (BLOCKS_OF_A_NODE * u128::from(nodes.max(1)));
        let bits = share.checked_ilog2().unwrap_or(0).min(u32::from(BITS_MAX));
        Grid::new(subnet, u8::try_from(bits).unwrap_or(BITS_MAX))
    }

    /// The pool.
    pub fn subnet(&self) -> IpNet {
        self.subnet
    }

    /// The addresses of a block, as a power of two.
    pub fn bits(&self) -> u8 {
        self.bits
    }

    /// The addresses of a block.
    pub fn size(&self) -> u32 {
        1 << self.bits
    }

    /// Is a block one address?
    pub fn is_single(&self) -> bool {
        self.bits == 0
    }

    /// How many blocks there are.
    pub fn count(&self) -> u128 {
        let host = Family::of(self.subnet.addr()).bits() - self.subnet.prefix_len();
        1_u128.checked_shl(u32::from(host - self.bits)).unwrap_or(u128::MAX)
    }

    /// The block with this number.
    pub fn block(&self, index: u128) -> Option<IpNet> {
        if index >= self.count() {
            return None;
        }
        let family = Family::of(self.subnet.addr());
        let first = number(self.subnet.network()) + (index << self.bits);
        IpNet::new(family.address(first), family.bits() - self.bits).ok()
    }

    /// The number of the block that an address lies in.
    pub fn index_of(&self, ip: IpAddr) -> Option<u128> {
        self.subnet.contains(&ip).then(|| (number(ip) - number(self.subnet.network())) >> self.bits)
    }

    /// The part of the pool that an address lies in: its block, and in a large pool others, which share the number.
    pub fn part_of(&self, ip: IpAddr) -> Option<u16> {
        self.index_of(ip).and_then(|index| u16::try_from(index % PARTS).ok())
    }

    /// The block that an address lies in.
    pub fn block_of(&self, ip: IpAddr) -> Option<IpNet> {
        self.block(self.index_of(ip)?)
    }
}

/// How many addresses a network has; a very large one has `u128::MAX`.
pub fn addresses_of(net: IpNet) -> u128 {
    let host = Family::of(net.addr()).bits() - net.prefix_len();
    1_u128.checked_shl(u32::from(host)).unwrap_or(u128::MAX)
}

/// The address so far behind the first of a network.
pub fn nth(net: IpNet, offset: u128) -> IpAddr {
    Family::of(net.addr()).address(number(net.network()).saturating_add(offset))
}

/// How far an address lies behind the first of a network that holds it.
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
    fn the_size_of_blocks_follows_range_and_nodes() {
        let cases = [
            ("10.0.0.0/16", 3, 8),
            ("10.0.0.0/16", 100, 7),
            ("10.0.0.0/16", 1_000, 4),
            ("10.0.0.0/24", 3, 4),
            ("10.0.0.0/24", 64, 0),
            ("10.0.0.0/28", 100, 0),
            ("10.0.0.0/8", 10_000, 8),
            ("fd00::/64", 10_000, 8),
            ("::/0", 1, 8),
            ("10.0.0.0/30", 0, 0),
        ];
        for (subnet, nodes, bits) in cases {
            assert_eq!(Grid::for_nodes(net(subnet), nodes).bits(), bits, "{subnet} for {nodes}");
        }
    }

    #[test]
    fn every_address_lies_in_one_block() {
        let grid = Grid::new(net("10.1.2.9/24"), 4);
        assert_eq!((grid.count(), grid.block(15), grid.block(16)), (16, Some(net("10.1.2.240/28")), None));
        for last in 0..=255 {
            let ip = IpAddr::from([10, 1, 2, last]);
            let block = grid.block_of(ip).unwrap();
            assert!(block.contains(&ip) && addresses_of(block) == 16);
            assert_eq!(nth(block, offset_of(block, ip).unwrap()), ip);
        }
        assert_eq!(grid.block_of("10.1.3.0".parse().unwrap()), None);
        assert_eq!(grid.part_of("10.1.2.33".parse().unwrap()), Some(2));
        assert_eq!(Grid::new(net("10.0.0.0/8"), 8).part_of("10.2.7.1".parse().unwrap()), Some(7));
        assert_eq!(grid.block_of("fd00::1".parse().unwrap()), None);
        assert_eq!(Grid::new(net("10.0.0.0/30"), 8).block(0), Some(net("10.0.0.0/30")));
        assert_eq!(Grid::new(net("::/0"), 8).count(), 1 << 120);
        assert_eq!(Grid::new(net("::/0"), 0).count(), u128::MAX);
    }
}
