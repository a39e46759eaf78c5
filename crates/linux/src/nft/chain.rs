//! Where packets meet rules: the place, order and default of a base chain.

/// A place in the kernel where a base chain is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Before routing.
    Prerouting,
    /// For this host.
    Input,
    /// Through this host.
    Forward,
    /// From this host.
    Output,
    /// After routing.
    Postrouting,
}

/// What a base chain may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainType {
    /// Let through or not.
    Filter,
    /// Change addresses; sees the first packet of a connection only.
    Nat,
}

/// What happens at the end of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The packet goes on.
    Accept,
    /// The packet is gone.
    Drop,
}

/// A chain that the kernel enters by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseChain {
    /// What it may do.
    pub chain_type: ChainType,
    /// Where it is entered.
    pub hook: Hook,
    /// Its place among the chains of that hook, lowest first; see [`priority`].
    pub priority: i32,
    /// What happens at its end.
    pub policy: Policy,
}

/// The usual places in the order of base chains of one hook; lower comes first. nft(8), "priority".
pub mod priority {
    /// `raw`: before connection tracking.
    pub const RAW: i32 = -300;
    /// `mangle`.
    pub const MANGLE: i32 = -150;
    /// `dstnat`.
    pub const DESTINATION_NAT: i32 = -100;
    /// `filter`.
    pub const FILTER: i32 = 0;
    /// `srcnat`.
    pub const SOURCE_NAT: i32 = 100;
}

impl Hook {
    /// `NF_INET_…`; those of the bridge family have the same numbers.
    pub(super) fn number(self) -> u32 {
        match self {
            Hook::Prerouting => 0,
            Hook::Input => 1,
            Hook::Forward => 2,
            Hook::Output => 3,
            Hook::Postrouting => 4,
        }
    }
}

impl ChainType {
    pub(super) fn word(self) -> &'static str {
        match self {
            ChainType::Filter => "filter",
            ChainType::Nat => "nat",
        }
    }
}

impl Policy {
    /// `NF_…`.
    pub(super) fn number(self) -> u32 {
        match self {
            Policy::Drop => 0,
            Policy::Accept => 1,
        }
    }
}
