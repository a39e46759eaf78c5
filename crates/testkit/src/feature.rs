//! Features that a machine may lack, detected by trying them. A test that needs a missing one is skipped by name.
//!
//! - The table lists all features: name, the script that tries it, and where it comes from.
//! - A skip is never silent: it is printed on standard error and appended to the file that `WEFT_SKIP_LOG` names, whose
//!   lines the lane summary counts.
//! - Under CI (`CI` is set), a test may skip a missing *kernel* feature, but must fail if a package is missing.
//! - With `WEFT_NO_SKIP`, any skip fails. The lane `vm` sets it, because it has a separate kernel.
//!
//! Source: the kernel's Kconfig symbols in the table.

use std::io::Write;
use std::sync::OnceLock;

use serde_json::json;

use crate::world::{on_a_thread, unshare};

/// Feature that a test needs and a machine may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the table below describes each")]
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
    BridgeConntrack,
    Promtool,
    Tcpdump,
}

/// Exit status that a shell returns for a program it cannot find; sh(1).
const COMMAND_NOT_FOUND: i32 = 127;

/// Where a feature comes from.
enum Origin {
    Kernel(&'static str),
    Package(&'static str),
    Privilege,
    Lane(&'static str),
}

/// Table row: feature, name, a script that succeeds in an empty namespace if the feature exists, and origin.
type Row = (Feature, &'static str, &'static str, Origin);

/// Puts the command that creates a veth pair in front of a script, as parent for other kinds of link.
macro_rules! on_veth {
    ($script:literal) => {
        concat!("ip link add p0 type veth peer p1 && ", $script)
    };
}

const TABLE: &[Row] = &[
    (Feature::Root, "root", "test \"$(id -u)\" = 0", Origin::Privilege),
    (Feature::Dummy, "dummy links", "ip link add x type dummy", Origin::Kernel("DUMMY")),
    (
        Feature::Vlan,
        "vlan links",
        on_veth!("ip link add x link p0 type vlan id 5"),
        Origin::Kernel("VLAN_8021Q"),
    ),
    (
        Feature::Ipvlan,
        "ipvlan links",
        on_veth!("ip link add x link p0 type ipvlan"),
        Origin::Kernel("IPVLAN"),
    ),
    (
        Feature::Macvlan,
        "macvlan links",
        on_veth!("ip link add x link p0 type macvlan"),
        Origin::Kernel("MACVLAN"),
    ),
    (
        Feature::Macvtap,
        "macvtap links",
        on_veth!("ip link add x link p0 type macvtap"),
        Origin::Kernel("MACVTAP"),
    ),
    (Feature::Vxlan, "vxlan links", "ip link add x type vxlan id 5 dstport 4789", Origin::Kernel("VXLAN")),
    (Feature::Vrf, "vrf links", "ip link add x type vrf table 10", Origin::Kernel("NET_VRF")),
    (Feature::Bond, "bond links", "ip link add x type bond", Origin::Kernel("BONDING")),
    (Feature::Bridge, "bridges", "ip link add x type bridge", Origin::Kernel("BRIDGE")),
    (
        Feature::BridgeVlan,
        "bridge VLAN filtering",
        "ip link add x type bridge vlan_filtering 1",
        Origin::Kernel("BRIDGE_VLAN_FILTERING"),
    ),
    (Feature::Veth, "veth links", on_veth!("true"), Origin::Kernel("VETH")),
    (Feature::Tun, "tap links", "ip tuntap add x mode tap", Origin::Kernel("TUN")),
    (Feature::Ifb, "ifb links", "ip link add x type ifb", Origin::Kernel("IFB")),
    (
        Feature::Tbf,
        "token bucket filter",
        on_veth!("tc qdisc add dev p0 root tbf rate 1mbit burst 10k latency 20ms"),
        Origin::Kernel("NET_SCH_TBF"),
    ),
    (
        Feature::Htb,
        "hierarchical token bucket",
        on_veth!("tc qdisc add dev p0 root handle 1: htb"),
        Origin::Kernel("NET_SCH_HTB"),
    ),
    (
        Feature::Ingress,
        "ingress queueing discipline",
        on_veth!("tc qdisc add dev p0 ingress"),
        Origin::Kernel("NET_SCH_INGRESS"),
    ),
    (
        Feature::Mirred,
        "mirred action",
        on_veth!(
            "tc qdisc add dev p0 ingress && tc filter add dev p0 ingress protocol all u32 match u32 0 0 action mirred egress redirect dev p1"
        ),
        Origin::Kernel("NET_ACT_MIRRED"),
    ),
    (Feature::Ipv6, "IPv6", "test -d /proc/sys/net/ipv6", Origin::Kernel("IPV6")),
    (Feature::NftInet, "nftables, family inet", "nft add table inet x", Origin::Kernel("NF_TABLES_INET")),
    (
        Feature::NftBridge,
        "nftables, family bridge",
        "nft 'table bridge x { chain c { type filter hook prerouting priority 0; }; }'",
        Origin::Kernel("NF_TABLES_BRIDGE"),
    ),
    (
        Feature::NftNetdev,
        "nftables, family netdev",
        "ip link set lo up && nft 'table netdev x { chain c { type filter hook ingress device lo priority 0; }; }'",
        Origin::Kernel("NF_TABLES_NETDEV"),
    ),
    (
        Feature::NftMasquerade,
        "nftables masquerade",
        "nft 'table inet x { chain c { type nat hook postrouting priority 100; masquerade; }; }'",
        Origin::Kernel("NFT_MASQ"),
    ),
    (
        Feature::NftFib,
        "nftables fib",
        "nft 'table inet x { chain c { type filter hook prerouting priority 0; fib daddr type local accept; }; }'",
        Origin::Kernel("NFT_FIB_INET"),
    ),
    (Feature::Conntrack, "conntrack tool", "conntrack -L", Origin::Package("conntrack")),
    (
        Feature::IptablesLegacy,
        "iptables, legacy",
        "iptables-legacy -t nat -S",
        Origin::Kernel("IP_NF_IPTABLES_LEGACY"),
    ),
    (Feature::IptablesNft, "iptables over nftables", "iptables-nft -t nat -S", Origin::Package("iptables")),
    (Feature::Ping, "ping", "ip link set lo up && ping -c 1 -W 1 127.0.0.1", Origin::Package("iputils-ping")),
    (
        Feature::GoPlugins,
        "the Go reference plugins in /usr/lib/cni",
        "test -x /usr/lib/cni/bridge",
        Origin::Package("containernetworking-plugins"),
    ),
    (
        Feature::NewGoPlugins,
        "newer Go plugins than Debian's",
        "test -n \"$PEERS\"",
        Origin::Lane("peer with PEERS=debian"),
    ),
    (Feature::Ethtool, "ethtool", "ethtool lo", Origin::Package("ethtool")),
    // A test may remove hardware from a guest.
    (Feature::Guest, "the guest's own hardware", "grep -qw weft.guest /proc/cmdline", Origin::Lane("vm")),
    (
        Feature::Firewalld,
        "firewalld and a D-Bus daemon",
        "test -x /usr/sbin/firewalld && test -x /usr/bin/dbus-daemon",
        Origin::Package("firewalld"),
    ),
    (Feature::Sctp, "SCTP", "modprobe -q sctp; grep -q ^SCTP /proc/net/protocols", Origin::Kernel("IP_SCTP")),
    (Feature::Dnsmasq, "dnsmasq", "dnsmasq --version", Origin::Package("dnsmasq-base")),
    (Feature::Kea, "kea-dhcp6", "kea-dhcp6 -v", Origin::Package("kea-dhcp6-server")),
    (
        Feature::BridgeNetfilter,
        "bridged packets shown to iptables",
        "test -e /proc/sys/net/bridge/bridge-nf-call-iptables",
        Origin::Kernel("BRIDGE_NETFILTER"),
    ),
    (
        Feature::BridgeConntrack,
        "connection tracking on bridges",
        "nft 'table bridge x { chain c { type filter hook prerouting priority 0; ct state established accept; }; }'",
        Origin::Kernel("NF_CONNTRACK_BRIDGE"),
    ),
    (Feature::Promtool, "promtool", "promtool --version", Origin::Package("prometheus")),
    (Feature::Tcpdump, "tcpdump", "tcpdump --version", Origin::Package("tcpdump")),
];

/// Outcome of trying a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trial {
    Present,
    Absent,
    /// The tool that tries it is not installed.
    NoTool,
}

impl Feature {
    /// Whether this machine has the feature.
    #[must_use]
    pub fn is_present(self) -> bool {
        self.trial() == Trial::Present
    }

    /// Runs the script, once per process, in a temporary namespace.
    fn trial(self) -> Trial {
        static TRIED: [OnceLock<Trial>; TABLE.len()] = [const { OnceLock::new() }; TABLE.len()];
        *TRIED[self as usize].get_or_init(|| attempt(self, self.row().2))
    }

    fn row(self) -> &'static Row {
        &TABLE[self as usize]
    }

    /// Iterates over all features, in table order.
    pub fn all() -> impl Iterator<Item = Feature> {
        TABLE.iter().map(|row| row.0)
    }

    /// Returns the kernel configuration symbol that enables the feature, without `CONFIG_`; `None` if it is not a
    /// kernel feature.
    #[must_use]
    pub fn kernel_symbol(self) -> Option<&'static str> {
        match self.row().3 {
            Origin::Kernel(symbol) => Some(symbol),
            Origin::Package(_) | Origin::Privilege | Origin::Lane(_) => None,
        }
    }

    /// Returns why the feature is missing; `None` if it exists.
    #[must_use]
    pub fn missing(self) -> Option<String> {
        let (_, name, script, origin) = self.row();
        match (self.trial(), origin) {
            (Trial::Present, _) => None,
            (Trial::NoTool, _) => Some(format!("no tool to try {name} with: `{script}` (run `make setup`)")),
            (Trial::Absent, Origin::Kernel(symbol)) => {
                Some(format!("the kernel has no {name} (CONFIG_{symbol})"))
            }
            (Trial::Absent, Origin::Package(package)) => Some(format!("no {name} (package {package})")),
            (Trial::Absent, Origin::Privilege) => Some(format!("not {name}")),
            (Trial::Absent, Origin::Lane(lane)) => Some(format!("only lane {lane} has {name}")),
        }
    }

    /// Whether installing a package, or running as another user, would provide the feature.
    fn is_installable(self) -> bool {
        self.trial() == Trial::NoTool || !matches!(self.row().3, Origin::Kernel(_) | Origin::Lane(_))
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

/// Whether the running test must be skipped because one of `features` is missing; records the skip.
///
/// # Panics
/// Under CI, if a package would provide the missing feature; and whenever `WEFT_NO_SKIP` is set.
#[must_use]
#[track_caller]
pub fn skip(test: &str, features: &[Feature]) -> bool {
    let Some((feature, why)) = features.iter().find_map(|feature| Some((*feature, feature.missing()?)))
    else {
        return false;
    };
    assert!(std::env::var_os("CI").is_none() || !feature.is_installable(), "{test}: {why}");
    assert!(std::env::var_os("WEFT_NO_SKIP").is_none(), "{test}: WEFT_NO_SKIP is set: {why}");
    record_skip(test, &why);
    true
}

/// Records that a test is skipped, and why; [`require!`](crate::require) does it for features.
pub fn record_skip(test: &str, why: &str) {
    // Not `eprintln`, whose output libtest hides when a test passes.
    let _ = writeln!(std::io::stderr(), "skipped {test}: {why}");
    if let Some(path) = std::env::var_os("WEFT_SKIP_LOG") {
        let line = json!({ "binary": test_binary(), "test": test, "why": why }).to_string() + "\n";
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&path);
        log.and_then(|mut log| log.write_all(line.as_bytes())).expect("write to WEFT_SKIP_LOG");
    }
}

/// Returns the name of the running test binary, whose file is NAME-HASH.
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

/// Creates a [`Host`](crate::Host) for this test. Without root, or if one of the given features is missing, the test
/// ends as skipped. `let host = host!(Feature::Vlan);`
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
    fn feature_table_has_one_row_for_each_feature() {
        for (place, row) in TABLE.iter().enumerate() {
            assert_eq!(TABLE.iter().position(|other| other.0 == row.0), Some(place), "{:?}", row.0);
            assert_eq!(row.0 as usize, place, "{:?} is at another position in the enum", row.0);
        }
        assert_eq!(
            Feature::Tcpdump as usize + 1,
            TABLE.len(),
            "the last feature of the enum has the last row"
        );
    }
}
