//! Base chains: hook, priority and policy.

/// Kernel hook at which a base chain is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Before the routing decision.
    Prerouting,
    /// Packets for this host.
    Input,
    /// Packets that this host forwards.
    Forward,
    /// Packets that this host sends.
    Output,
    /// After the routing decision.
    Postrouting,
}

/// Base chain type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainType {
    /// Accepts or drops packets.
    Filter,
    /// Translates addresses; sees only the first packet in a connection.
    Nat,
}

/// Verdict for packets that reach the end of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The packet continues.
    Accept,
    /// The packet is dropped.
    Drop,
}

/// Chain that the kernel evaluates at a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BaseChain {
    /// Chain type.
    pub chain_type: ChainType,
    /// Hook at which the chain is evaluated.
    pub hook: Hook,
    /// Priority among the chains at that hook, lowest first; see [`priority`].
    pub priority: i32,
    /// Verdict for packets that reach the end.
    pub policy: Policy,
}

/// Common base chain priorities; lower values come first. nft(8), "priority".
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
    pub(super) const ALL: [Hook; 5] =
        [Hook::Prerouting, Hook::Input, Hook::Forward, Hook::Output, Hook::Postrouting];

    /// `NF_INET_…`; the bridge family uses the same numbers.
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
    pub(super) const ALL: [ChainType; 2] = [ChainType::Filter, ChainType::Nat];

    pub(super) fn word(self) -> &'static str {
        match self {
            ChainType::Filter => "filter",
            ChainType::Nat => "nat",
        }
    }
}

impl Policy {
    pub(super) const ALL: [Policy; 2] = [Policy::Accept, Policy::Drop];

    /// `NF_…`.
    pub(super) fn number(self) -> u32 {
        match self {
            Policy::Drop => 0,
            Policy::Accept => 1,
        }
    }
}
