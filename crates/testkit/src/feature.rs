//! What this kernel and machine can do, found out by trying; what is missing skips a test by name.
//!
//! Rules:
//! - the table is the whole truth: feature, how to try it, what offers it;
//! - a skip is never silent: it goes to stderr, and to the file that `WEFT_SKIP_LOG` names, which the
//!   table of lanes counts;
//! - under CI (`CI` is set) a test may skip what the *kernel* lacks, but fails for what a package offers;
//! - where nothing may be missing (`WEFT_NO_SKIP` is set: the lane `vm` brings its own kernel), a skip fails.
//!
//! Source: the kernel's Kconfig symbols, which are named.

use std::io::Write;
use std::sync::OnceLock;

use serde_json::json;

use crate::world::{on_a_thread, unshare};

/// Something a test needs and a machine may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "each has its row in the table below, which says what it is")]
pub enum Feature {
    Root,
    Dummy,
    Vlan,
    Ipvlan,
    Macvlan,
    Macvtap,
    Vxlan,
    Vrf,
    Bond,
    Bridge,
    BridgeVlan,
    Veth,
    Tun,
    Ifb,
    Tbf,
    Htb,
    Ingress,
    Mirred,
    Ipv6,
    NftInet,
    NftBridge,
    NftNetdev,
    NftMasquerade,
    NftFib,
    Conntrack,
    IptablesLegacy,
    IptablesNft,
    Ping,
    GoPlugins,
    NewGoPlugins,
    Ethtool,
    Guest,
    Firewalld,
    Sctp,
    Dnsmasq,
    Kea,
    BridgeNetfilter,
}

/// What a shell says of a program that it cannot find; sh(1).
const COMMAND_NOT_FOUND: i32 = 127;

/// Who could provide it.
enum Offer {
    Kernel(&'static str),
    Package(&'static str),
    Privilege,
    Lane(&'static str),
}

/// A row: the feature, its name, a script that succeeds in an empty namespace if it is there, and its origin.
type Row = (Feature, &'static str, &'static str, Offer);

/// A veth pair, as the parent that other kinds of link need.
macro_rules! on_veth {
    ($script:literal) => {
        concat!("ip link add p0 type veth peer p1 && ", $script)
    };
}

const TABLE: &[Row] = &[
    (Feature::Root, "root", "test \"$(id -u)\" = 0", Offer::Privilege),
    (Feature::Dummy, "dummy links", "ip link add x type dummy", Offer::Kernel("DUMMY")),
    (
        Feature::Vlan,
        "vlan links",
        on_veth!("ip link add x link p0 type vlan id 5"),
        Offer::Kernel("VLAN_8021Q"),
    ),
    (Feature::Ipvlan, "ipvlan links", on_veth!("ip link add x link p0 type ipvlan"), Offer::Kernel("IPVLAN")),
    (
        Feature::Macvlan,
        "macvlan links",
        on_veth!("ip link add x link p0 type macvlan"),
        Offer::Kernel("MACVLAN"),
    ),
    (
        Feature::Macvtap,
        "macvtap links",
        on_veth!("ip link add x link p0 type macvtap"),
        Offer::Kernel("MACVTAP"),
    ),
    (Feature::Vxlan, "vxlan links", "ip link add x type vxlan id 5 dstport 4789", Offer::Kernel("VXLAN")),
    (Feature::Vrf, "vrf links", "ip link add x type vrf table 10", Offer::Kernel("NET_VRF")),
    (Feature::Bond, "bond links", "ip link add x type bond", Offer::Kernel("BONDING")),
    (Feature::Bridge, "bridges", "ip link add x type bridge", Offer::Kernel("BRIDGE")),
    (
        Feature::BridgeVlan,
        "bridge VLAN filtering",
        "ip link add x type bridge vlan_filtering 1",
        Offer::Kernel("BRIDGE_VLAN_FILTERING"),
    ),
    (Feature::Veth, "veth links", on_veth!("true"), Offer::Kernel("VETH")),
    (Feature::Tun, "tap links", "ip tuntap add x mode tap", Offer::Kernel("TUN")),
    (Feature::Ifb, "ifb links", "ip link add x type ifb", Offer::Kernel("IFB")),
    (
        Feature::Tbf,
        "token bucket filter",
        on_veth!("tc qdisc add dev p0 root tbf rate 1mbit burst 10k latency 20ms"),
        Offer::Kernel("NET_SCH_TBF"),
    ),
    (
        Feature::Htb,
        "hierarchical token bucket",
        on_veth!("tc qdisc add dev p0 root handle 1: htb"),
        Offer::Kernel("NET_SCH_HTB"),
    ),
    (
        Feature::Ingress,
        "ingress queueing discipline",
        on_veth!("tc qdisc add dev p0 ingress"),
        Offer::Kernel("NET_SCH_INGRESS"),
    ),
    (
        Feature::Mirred,
        "mirred action",
        on_veth!(
            "tc qdisc add dev p0 ingress && tc filter add dev p0 ingress protocol all u32 match u32 0 0 action mirred egress redirect dev p1"
        ),
        Offer::Kernel("NET_ACT_MIRRED"),
    ),
    (Feature::Ipv6, "IPv6", "test -d /proc/sys/net/ipv6", Offer::Kernel("IPV6")),
    (Feature::NftInet, "nftables, family inet", "nft add table inet x", Offer::Kernel("NF_TABLES_INET")),
    (
        Feature::NftBridge,
        "nftables, family bridge",
        "nft 'table bridge x { chain c { type filter hook prerouting priority 0; }; }'",
        Offer::Kernel("NF_TABLES_BRIDGE"),
    ),
    (
        Feature::NftNetdev,
        "nftables, family netdev",
        "ip link set lo up && nft 'table netdev x { chain c { type filter hook ingress device lo priority 0; }; }'",
        Offer::Kernel("NF_TABLES_NETDEV"),
    ),
    (
        Feature::NftMasquerade,
        "nftables masquerade",
        "nft 'table inet x { chain c { type nat hook postrouting priority 100; masquerade; }; }'",
        Offer::Kernel("NFT_MASQ"),
    ),
    (
        Feature::NftFib,
        "nftables fib",
        "nft 'table inet x { chain c { type filter hook prerouting priority 0; fib daddr type local accept; }; }'",
        Offer::Kernel("NFT_FIB_INET"),
    ),
    (Feature::Conntrack, "conntrack tool", "conntrack -L", Offer::Package("conntrack")),
    (
        Feature::IptablesLegacy,
        "iptables, legacy",
        "iptables-legacy -t nat -S",
        Offer::Kernel("IP_NF_IPTABLES_LEGACY"),
    ),
    (Feature::IptablesNft, "iptables over nftables", "iptables-nft -t nat -S", Offer::Package("iptables")),
    (Feature::Ping, "ping", "ip link set lo up && ping -c 1 -W 1 127.0.0.1", Offer::Package("iputils-ping")),
    (
        Feature::GoPlugins,
        "the Go reference plugins in /usr/lib/cni",
        "test -x /usr/lib/cni/bridge",
        Offer::Package("containernetworking-plugins"),
    ),
    (
        Feature::NewGoPlugins,
        "newer Go plugins than Debian's",
        "test -n \"$PEERS\"",
        Offer::Lane("peer with PEERS=debian"),
    ),
    (Feature::Ethtool, "ethtool", "ethtool lo", Offer::Package("ethtool")),
    // Whose hardware a test may take away.
    (Feature::Guest, "the guest's own hardware", "grep -qw weft.guest /proc/cmdline", Offer::Lane("vm")),
    (
        Feature::Firewalld,
        "firewalld and a D-Bus daemon",
        "test -x /usr/sbin/firewalld && test -x /usr/bin/dbus-daemon",
        Offer::Package("firewalld"),
    ),
    (Feature::Sctp, "SCTP", "modprobe -q sctp; grep -q ^SCTP /proc/net/protocols", Offer::Kernel("IP_SCTP")),
    (Feature::Dnsmasq, "dnsmasq", "dnsmasq --version", Offer::Package("dnsmasq-base")),
    (Feature::Kea, "kea-dhcp6", "kea-dhcp6 -v", Offer::Package("kea-dhcp6-server")),
    (
        Feature::BridgeNetfilter,
        "bridged packets shown to iptables",
        "test -e /proc/sys/net/bridge/bridge-nf-call-iptables",
        Offer::Kernel("BRIDGE_NETFILTER"),
    ),
];

/// What trying a feature came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trial {
    Present,
    Absent,
    /// The tool with which to try is not installed.
    NoTool,
}

impl Feature {
    /// Whether it is here.
    #[must_use]
    pub fn is_present(self) -> bool {
        self.trial() == Trial::Present
    }

    /// Tried once in a process, in a namespace that is thrown away.
    fn trial(self) -> Trial {
        static TRIED: [OnceLock<Trial>; TABLE.len()] = [const { OnceLock::new() }; TABLE.len()];
        *TRIED[self as usize].get_or_init(|| attempt(self, self.row().2))
    }

    fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// All of them, in the order of the table.
    pub fn all() -> impl Iterator<Item = Feature> {
        TABLE.iter().map(|row| row.0)
    }

    /// The symbol of the kernel's configuration that brings it, without `CONFIG_`; none if it is not the kernel's.
    #[must_use]
    pub fn kernel_symbol(self) -> Option<&'static str> {
        match self.row().3 {
            Offer::Kernel(symbol) => Some(symbol),
            Offer::Package(_) | Offer::Privilege | Offer::Lane(_) => None,
        }
    }

    /// Why it is missing; nothing if it is here.
    #[must_use]
    pub fn missing(self) -> Option<String> {
        let (_, name, script, offer) = self.row();
        match (self.trial(), offer) {
            (Trial::Present, _) => None,
            (Trial::NoTool, _) => Some(format!("no tool to try {name} with: `{script}` (run `make setup`)")),
            (Trial::Absent, Offer::Kernel(symbol)) => {
                Some(format!("the kernel has no {name} (CONFIG_{symbol})"))
            }
            (Trial::Absent, Offer::Package(package)) => Some(format!("no {name} (package {package})")),
            (Trial::Absent, Offer::Privilege) => Some(format!("not {name}")),
            (Trial::Absent, Offer::Lane(lane)) => Some(format!("only lane {lane} has {name}")),
        }
    }

    /// Whether something that can be installed, or another user, would have it.
    fn could_be_had(self) -> bool {
        self.trial() == Trial::NoTool || !matches!(self.row().3, Offer::Kernel(_) | Offer::Lane(_))
    }
}

fn attempt(feature: Feature, script: &str) -> Trial {
    let outcome = || match std::process::Command::new("sh").args(["-c", script]).output() {
        Ok(output) if output.status.success() => Trial::Present,
        Ok(output) if output.status.code() == Some(COMMAND_NOT_FOUND) => Trial::NoTool,
        _ => Trial::Absent,
    };
    if feature == Feature::Root {
        return outcome();
    }
    on_a_thread(|| match unshare(rustix::thread::UnshareFlags::NEWNET) {
        Ok(()) => outcome(),
        Err(_) => Trial::Absent,
    })
}

/// Whether the running test has to be skipped for want of one of `features`; says so if it has.
///
/// # Panics
/// Under CI, if the missing thing could be had, and where nothing may be missing.
#[must_use]
#[track_caller]
pub fn skip(test: &str, features: &[Feature]) -> bool {
    let Some((feature, why)) = features.iter().find_map(|feature| Some((*feature, feature.missing()?)))
    else {
        return false;
    };
    assert!(std::env::var_os("CI").is_none() || !feature.could_be_had(), "{test}: {why}");
    assert!(std::env::var_os("WEFT_NO_SKIP").is_none(), "{test}: nothing may be missing here: {why}");
    record_skip(test, &why);
    true
}

/// Says that a test is skipped, and why; [`require!`](crate::require) does it for features.
pub fn record_skip(test: &str, why: &str) {
    // Not through eprintln: a test's prints are hidden when it passes.
    let _ = writeln!(std::io::stderr(), "skipped {test}: {why}");
    if let Some(path) = std::env::var_os("WEFT_SKIP_LOG") {
        let line = json!({ "binary": test_binary(), "test": test, "why": why }).to_string() + "\n";
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&path);
        log.and_then(|mut log| log.write_all(line.as_bytes())).expect("write to WEFT_SKIP_LOG");
    }
}

/// Name of the running test binary; its file is NAME-HASH.
fn test_binary() -> String {
    let program = std::env::current_exe().ok();
    let name = program.as_deref().and_then(|path| path.file_name()).unwrap_or_default().to_string_lossy();
    name.rsplit_once('-').map_or(&*name, |(name, _)| name).to_owned()
}

/// Ends the test as skipped if one of these [`Feature`]s is missing: `require!(Feature::Vlan);`
#[macro_export]
macro_rules! require {
    ($($feature:expr),+ $(,)?) => {
        if $crate::skip(&$crate::test_name(), &[$($feature),+]) {
            return;
        }
    };
}

/// A [`Host`](crate::Host) for this test, or its end as skipped: without root, or without one of the
/// features that are given. `let host = host!(Feature::Vlan);`
#[macro_export]
macro_rules! host {
    ($($feature:expr),* $(,)?) => {{
        $crate::require!($crate::Feature::Root $(, $feature)*);
        $crate::Host::new()
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_has_one_row() {
        for (place, row) in TABLE.iter().enumerate() {
            assert_eq!(TABLE.iter().position(|other| other.0 == row.0), Some(place), "{:?}", row.0);
            assert_eq!(row.0 as usize, place, "{:?} stands elsewhere in the enum", row.0);
        }
        assert_eq!(
            Feature::BridgeNetfilter as usize + 1,
            TABLE.len(),
            "the last feature of the enum has the last row"
        );
    }
}
