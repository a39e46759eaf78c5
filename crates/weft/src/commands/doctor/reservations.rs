//! Addresses that are held by containers which nobody knows: a range full of them starts no pod.
//!
//! ```text
//!   /var/lib/cni/networks/NETWORK/10.1.2.3     of host-local; its owner: the container's id, then the interface
//!   /var/lib/weft/ipam/POOL/ledger             of weft-ipam
//! ```
//!
//! Rules: only the directories that are the plugins' defaults are looked at; a reservation that is younger than a sandbox
//! may take to be made is nobody's yet; there is one finding for each network, and each ledger. A ledger that nobody can
//! read gives no address: that is one, too; and so is what cannot be looked at.
//!
//! Source: plugins `plugins/ipam/host-local/backend/disk`; `docs/plugins/weft-ipam.md`, Files.

use std::fs::{self, DirEntry, File};
use std::io::{self, ErrorKind, Read};
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use super::Finding;
use ipam_api::clock::now;
use node_support::address_store;
use node_support::address_store::Held;

/// Where they are.
pub(super) const DIRECTORY: &str = "/var/lib/cni/networks";
/// Longest owner read.
const OWNER_MAX: u64 = 1024;
/// How long a sandbox may take until its container is known.
const FRESH: Duration = Duration::from_secs(300);
/// What to do about what could not be looked at.
pub(super) const LOOK_AGAIN: &str = "weft doctor again, once it can be read";
/// Most addresses named.
const NAMED_MAX: usize = 3;

/// What is held by a container of which `is_known` says no, given network, container and interface.
pub(super) fn findings(directory: &Path, is_known: impl Fn(&str, &str, &str) -> bool) -> Vec<Finding> {
    let networks = match entries(directory) {
        Ok(networks) => networks,
        Err(cause) => {
            let why = format!("{} cannot be looked at: {cause}", directory.display());
            return vec![Finding::new("addresses of networks", why, LOOK_AGAIN)];
        }
    };
    let mut findings: Vec<Finding> =
        networks.iter().filter_map(|network| of_network(network, &is_known)).collect();
    findings.sort_by(|a, b| a.what.cmp(&b.what));
    findings
}

/// What is in a directory, which need not be there.
fn entries(directory: &Path) -> io::Result<Vec<DirEntry>> {
    match fs::read_dir(directory) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.collect(),
    }
}

fn of_network(network: &DirEntry, is_known: impl Fn(&str, &str, &str) -> bool) -> Option<Finding> {
    let name = network.file_name().into_string().ok()?;
    let (what, path) = (format!("addresses of network {name}"), network.path());
    let lost = || {
        let mut lost = Vec::new();
        for entry in if fs::metadata(&path)?.is_dir() { entries(&path)? } else { Vec::new() } {
            match reservation(&entry) {
                Ok(Some((ip, container, ifname))) if !is_known(&name, &container, &ifname) => {
                    lost.push((ip, container));
                }
                // It was given back meanwhile.
                Err(cause) if cause.kind() != ErrorKind::NotFound => return Err(cause),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(lost)
    };
    let lost = match lost() {
        Ok(lost) => lost,
        Err(cause) if cause.kind() == ErrorKind::NotFound => return None,
        Err(cause) => {
            let why = format!("{} cannot be looked at: {cause}", path.display());
            return Some(Finding::new(what, why, LOOK_AGAIN));
        }
    };
    let cure = format!(
        "a GC of {name} gives them back; where the runtime has none, remove their files in {}",
        path.display()
    );
    Some(Finding::new(what, lost_addresses(lost)?, cure))
}

/// What ledgers of weft-ipam hold for such, and those that cannot be read.
pub(super) fn of_ledgers(directory: &Path, is_known: impl Fn(&str, &str, &str) -> bool) -> Vec<Finding> {
    match address_store::all(directory) {
        Ok(all) => all.iter().filter_map(|(name, place)| of_ledger(name, place, &is_known)).collect(),
        Err(why) => {
            let why = format!("cannot be looked at: {why}");
            vec![Finding::new("addresses of ledgers", why, LOOK_AGAIN)]
        }
    }
}

fn of_ledger(name: &str, place: &Path, is_known: impl Fn(&str, &str, &str) -> bool) -> Option<Finding> {
    let what = format!("addresses of ledger {name}");
    let ledger = match address_store::read(place) {
        Ok(ledger) => ledger?,
        Err(why) => {
            let why = format!("{why}: no pod gets an address of it");
            return Some(Finding::new(what, why, "docs/plugins/weft-ipam.md, «Damaged address store»"));
        }
    };
    let fresh = u64::try_from(FRESH.as_millis()).unwrap_or(u64::MAX);
    let is_lost = |Held { since, owner, .. }: &Held| {
        now().saturating_sub(*since) >= fresh && !is_known(&owner.network, &owner.container, &owner.ifname)
    };
    let held = match address_store::held(place, &ledger) {
        Ok(held) => held,
        Err(why) => {
            return Some(Finding::new(what, format!("who holds them is not known: {why}"), LOOK_AGAIN));
        }
    };
    let lost = held.into_iter().filter(is_lost).map(|held| (held.ip, held.owner.container)).collect();
    let cure = "their DEL gives them back, or a GC of their network by the runtime; weft ipam check says whose they are";
    Some(Finding::new(what, lost_addresses(lost)?, cure))
}

/// How it is said; nothing of none.
fn lost_addresses(mut lost: Vec<(IpAddr, String)>) -> Option<String> {
    lost.sort();
    let shown: Vec<String> =
        lost.iter().take(NAMED_MAX).map(|(ip, container)| format!("{ip} (container {container})")).collect();
    let more = if lost.len() > NAMED_MAX { ", …" } else { "" };
    match lost.len() {
        0 => None,
        1 => Some(format!("{} is held by a container that nobody knows", shown.concat())),
        count => Some(format!(
            "{count} addresses are held by containers that nobody knows: {}{more}",
            shown.join(", ")
        )),
    }
}

/// The address, its container and interface; nothing of what is no reservation, or too young.
fn reservation(entry: &DirEntry) -> io::Result<Option<(IpAddr, String, String)>> {
    let Some(ip) = entry.file_name().to_str().and_then(|name| name.parse::<IpAddr>().ok()) else {
        return Ok(None);
    };
    let meta = entry.metadata()?;
    let age = meta.modified()?.elapsed().unwrap_or_default();
    if !meta.is_file() || age < FRESH {
        return Ok(None);
    }
    let mut owner = Vec::new();
    File::open(entry.path())?.take(OWNER_MAX).read_to_end(&mut owner)?;
    let owner = String::from_utf8_lossy(&owner);
    let mut lines = owner.lines().map(|line| line.trim().to_owned());
    let container = lines.next().filter(|container| !container.is_empty());
    Ok(container.map(|container| (ip, container, lines.next().unwrap_or_default())))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn what_unknown_containers_hold_is_told_by_network_and_what_is_young_is_not() {
        let directory = std::env::temp_dir().join(format!("weft-reservations-{}", std::process::id()));
        let network = directory.join("lan");
        fs::create_dir_all(&network).unwrap();
        let hold = |name: &str, owner: &str, age: u64| {
            fs::write(network.join(name), owner).unwrap();
            let then = SystemTime::now() - Duration::from_secs(age);
            File::options().write(true).open(network.join(name)).unwrap().set_modified(then).unwrap();
        };
        for last in 2..7 {
            hold(&format!("10.0.0.{last}"), "gone\r\neth0", 3600);
        }
        hold("10.0.0.8", "there\neth0", 3600);
        hold("10.0.0.9", "coming\r\neth0", 1);
        hold("last_reserved_ip.0", "10.0.0.9", 3600);
        hold("fd00::1", "", 3600);
        let found = findings(&directory, |network, container, ifname| {
            (network, container, ifname) == ("lan", "there", "eth0")
        });
        fs::remove_dir_all(&directory).unwrap();
        let [lan] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(lan.what, "addresses of network lan");
        assert!(
            lan.why.starts_with("5 addresses") && lan.why.contains("10.0.0.2 (container gone)"),
            "{lan:?}"
        );
        assert!(lan.why.ends_with(", …"), "{lan:?}");
    }

    #[test]
    fn what_ledgers_hold_for_unknown_containers_is_told_and_a_ledger_that_nobody_can_read() {
        let directory = std::env::temp_dir().join(format!("weft-doctor-ledgers-{}", std::process::id()));
        for name in ["10.0.0.0-24", "spoilt", "empty", "No.Ledger"] {
            fs::create_dir_all(directory.join(name)).unwrap();
        }
        let mut ledger = ipam::AddressStore::new("b");
        let lease = ipam::BlockLease {
            net: "10.0.0.0/24".parse().unwrap(),
            id: "u.0".into(),
            single_owner: false,
            reserved: Vec::new(),
        };
        let _ = ledger.add_block(&lease, 1);
        let mut owners = Vec::new();
        for (slot, container, age) in [(2, "gone", 3_600_000), (3, "there", 3_600_000), (4, "coming", 1_000)]
        {
            let _ = ledger.hold(ipam::address_store::SlotId { page: 0, slot }, now() - age, 7 + slot as u64);
            owners.resize(slot * 1024, 0);
            owners.extend(format!("{container}\neth0\nlan\nuid\ndefault\nweb\n").into_bytes());
        }
        fs::write(directory.join("10.0.0.0-24/ledger"), ledger.to_bytes()).unwrap();
        fs::write(directory.join("10.0.0.0-24/owners"), owners).unwrap();
        fs::write(directory.join("spoilt/ledger"), "nothing").unwrap();
        fs::write(directory.join("No.Ledger/ledger"), "nothing").unwrap();
        let found = of_ledgers(&directory, |network, container, ifname| {
            (network, container, ifname) == ("lan", "there", "eth0")
        });
        fs::remove_dir_all(&directory).unwrap();
        let [lost, spoilt] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(lost.what, "addresses of ledger 10.0.0.0-24");
        assert!(lost.why.starts_with("10.0.0.2 (container gone) is held by a"), "{lost:?}");
        assert!(
            spoilt.what.ends_with("spoilt") && spoilt.why.contains("not an address store of this version"),
            "{spoilt:?}"
        );
    }

    #[test]
    fn what_cannot_be_looked_at_is_told_and_not_passed_over() {
        let directory = std::env::temp_dir().join(format!("weft-doctor-unread-{}", std::process::id()));
        let (networks, pools) = (directory.join("networks"), directory.join("ipam"));
        for path in [&networks, &pools.join("10.0.0.0-24/owners")] {
            fs::create_dir_all(path).unwrap();
        }
        // A link to itself: nobody can read it, not even root.
        let itself = |path: &Path| std::os::unix::fs::symlink(path, path).unwrap();
        itself(&networks.join("lan"));
        itself(&directory.join("loop"));
        fs::write(pools.join("10.0.0.0-24/ledger"), ipam::AddressStore::new("b").to_bytes()).unwrap();
        let of = |found: Vec<Finding>| found.into_iter().map(|found| found.what).collect::<Vec<_>>();
        let nobody = |_: &str, _: &str, _: &str| false;
        assert_eq!(of(findings(&networks, nobody)), ["addresses of network lan"]);
        assert_eq!(of(findings(&directory.join("loop"), nobody)), ["addresses of networks"]);
        assert_eq!(of(of_ledgers(&pools, nobody)), ["addresses of ledger 10.0.0.0-24"]);
        assert_eq!(of(of_ledgers(&directory.join("loop"), nobody)), ["addresses of ledgers"]);
        assert_eq!(of(findings(&directory.join("none"), nobody)), [""; 0]);
        assert_eq!(of(of_ledgers(&directory.join("none"), nobody)), [""; 0]);
        fs::remove_dir_all(&directory).unwrap();
    }
}
