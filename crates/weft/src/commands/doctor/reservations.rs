//! Findings about orphaned addresses: allocated to containers that neither the journal nor the runtime knows.
//!
//! ```text
//!   /var/lib/cni/networks/NETWORK/10.1.2.3     of host-local; content: container ID, then interface
//!   /var/lib/weft/ipam/POOL/ledger             of weft-ipam
//! ```
//!
//! - Only the default directories of the plugins are read.
//! - An address that was allocated less than five minutes ago is not reported, because the sandbox may still be
//!   created.
//! - There is one finding for each network and each address store. An unreadable directory or address store, from which
//!   no pod gets an address, is a finding too.
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

/// Directory with host-local's allocations.
pub(super) const DIRECTORY: &str = "/var/lib/cni/networks";
/// Maximum length for an owner, in bytes.
const OWNER_MAX: u64 = 1024;
/// Age below which an address is not reported, because the sandbox may still be created.
const GRACE_PERIOD: Duration = Duration::from_secs(300);
/// Next step for an unreadable file.
pub(super) const RETRY: &str = "make it readable, then run weft doctor again";
/// Maximum number of addresses in a message.
const NAMED_MAX: usize = 3;

/// Returns a finding for each network with addresses for which `is_known` (network, container, interface) is false.
pub(super) fn findings(directory: &Path, is_known: impl Fn(&str, &str, &str) -> bool) -> Vec<Finding> {
    let networks = match entries(directory) {
        Ok(networks) => networks,
        Err(cause) => {
            let why = format!("failed to read {}: {cause}", directory.display());
            return vec![Finding::new("addresses of networks", why, RETRY)];
        }
    };
    let mut findings: Vec<Finding> =
        networks.iter().filter_map(|network| network_finding(network, &is_known)).collect();
    findings.sort_by(|a, b| a.what.cmp(&b.what));
    findings
}

/// Returns the entries in a directory; none if it does not exist.
fn entries(directory: &Path) -> io::Result<Vec<DirEntry>> {
    match fs::read_dir(directory) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries?.collect(),
    }
}

fn network_finding(network: &DirEntry, is_known: impl Fn(&str, &str, &str) -> bool) -> Option<Finding> {
    let name = network.file_name().into_string().ok()?;
    let (what, path) = (format!("addresses of network {name}"), network.path());
    let orphaned = || {
        let mut orphaned = Vec::new();
        for entry in if fs::metadata(&path)?.is_dir() { entries(&path)? } else { Vec::new() } {
            match reservation(&entry) {
                Ok(Some((ip, container, ifname))) if !is_known(&name, &container, &ifname) => {
                    orphaned.push((ip, container));
                }
                // The address was released in the meantime.
                Err(cause) if cause.kind() != ErrorKind::NotFound => return Err(cause),
                Ok(_) | Err(_) => {}
            }
        }
        Ok(orphaned)
    };
    let orphaned = match orphaned() {
        Ok(orphaned) => orphaned,
        Err(cause) if cause.kind() == ErrorKind::NotFound => return None,
        Err(cause) => {
            let why = format!("failed to read {}: {cause}", path.display());
            return Some(Finding::new(what, why, RETRY));
        }
    };
    let hint = format!(
        "GC of network {name} releases them; if the runtime does not call GC, remove their files in {}",
        path.display()
    );
    Some(Finding::new(what, describe_orphaned(orphaned)?, hint))
}

/// Returns a finding for each of weft-ipam's address stores that has such addresses or is unreadable.
pub(super) fn store_findings(directory: &Path, is_known: impl Fn(&str, &str, &str) -> bool) -> Vec<Finding> {
    match address_store::all(directory) {
        Ok(all) => all.iter().filter_map(|(name, path)| store_finding(name, path, &is_known)).collect(),
        Err(why) => {
            let why = format!("failed to read: {why}");
            vec![Finding::new("address stores", why, RETRY)]
        }
    }
}

fn store_finding(name: &str, path: &Path, is_known: impl Fn(&str, &str, &str) -> bool) -> Option<Finding> {
    let what = format!("address store {name}");
    let store = match address_store::read(path) {
        Ok(store) => store?,
        Err(why) => {
            let why = format!("{why}; no pod gets an address from it");
            return Some(Finding::new(what, why, "see docs/plugins/weft-ipam.md, «Damaged address store»"));
        }
    };
    let grace_period = u64::try_from(GRACE_PERIOD.as_millis()).unwrap_or(u64::MAX);
    let is_orphaned = |Held { since, owner, .. }: &Held| {
        now().saturating_sub(*since) >= grace_period
            && !is_known(&owner.network, &owner.container, &owner.ifname)
    };
    let held = match address_store::held(path, &store) {
        Ok(held) => held,
        Err(why) => {
            return Some(Finding::new(
                what,
                format!("failed to read the owners of its addresses: {why}"),
                RETRY,
            ));
        }
    };
    let orphaned = held.into_iter().filter(is_orphaned).map(|held| (held.ip, held.owner.container)).collect();
    let hint = "DEL, or GC of their network, releases them; weft ipam check shows their pods";
    Some(Finding::new(what, describe_orphaned(orphaned)?, hint))
}

/// Returns a description of orphaned addresses; `None` if there are none.
fn describe_orphaned(mut orphaned: Vec<(IpAddr, String)>) -> Option<String> {
    orphaned.sort();
    let shown: Vec<String> = orphaned
        .iter()
        .take(NAMED_MAX)
        .map(|(ip, container)| format!("{ip} (container {container})"))
        .collect();
    let more = if orphaned.len() > NAMED_MAX { ", …" } else { "" };
    match orphaned.len() {
        0 => None,
        1 => Some(format!("{} is allocated to an unknown container", shown.concat())),
        count => {
            Some(format!("{count} addresses are allocated to unknown containers: {}{more}", shown.join(", ")))
        }
    }
}

/// Returns address, container and interface for an allocation; `None` for other files and for recent
/// allocations.
fn reservation(entry: &DirEntry) -> io::Result<Option<(IpAddr, String, String)>> {
    let Some(ip) = entry.file_name().to_str().and_then(|name| name.parse::<IpAddr>().ok()) else {
        return Ok(None);
    };
    let meta = entry.metadata()?;
    let age = meta.modified()?.elapsed().unwrap_or_default();
    if !meta.is_file() || age < GRACE_PERIOD {
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
    fn doctor_reports_orphaned_addresses_of_host_local() {
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
    fn doctor_reports_orphaned_addresses_and_unreadable_stores() {
        let directory = std::env::temp_dir().join(format!("weft-doctor-ledgers-{}", std::process::id()));
        for name in ["10.0.0.0-24", "damaged", "empty", "No.Ledger"] {
            fs::create_dir_all(directory.join(name)).unwrap();
        }
        let mut store = ipam::AddressStore::new("b");
        let lease = ipam::BlockLease {
            net: "10.0.0.0/24".parse().unwrap(),
            id: "u.0".into(),
            single_owner: false,
            reserved: Vec::new(),
        };
        let _ = store.add_block(&lease, 1);
        let mut owners = Vec::new();
        for (slot, container, age) in [(2, "gone", 3_600_000), (3, "there", 3_600_000), (4, "coming", 1_000)]
        {
            let _ = store.hold(ipam::address_store::SlotId { page: 0, slot }, now() - age, 7 + slot as u64);
            owners.resize(slot * 1024, 0);
            owners.extend(format!("{container}\neth0\nlan\nuid\ndefault\nweb\n").into_bytes());
        }
        fs::write(directory.join("10.0.0.0-24/ledger"), store.to_bytes()).unwrap();
        fs::write(directory.join("10.0.0.0-24/owners"), owners).unwrap();
        fs::write(directory.join("damaged/ledger"), "nothing").unwrap();
        fs::write(directory.join("No.Ledger/ledger"), "nothing").unwrap();
        let found = store_findings(&directory, |network, container, ifname| {
            (network, container, ifname) == ("lan", "there", "eth0")
        });
        fs::remove_dir_all(&directory).unwrap();
        let [orphaned, damaged] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(orphaned.what, "address store 10.0.0.0-24");
        assert!(
            orphaned.why.starts_with("10.0.0.2 (container gone) is allocated to an unknown"),
            "{orphaned:?}"
        );
        assert!(
            damaged.what.ends_with("damaged") && damaged.why.contains("not an address store of this version"),
            "{damaged:?}"
        );
    }

    #[test]
    fn doctor_reports_owners_of_addresses_that_cannot_be_read() {
        let directory = std::env::temp_dir().join(format!("weft-doctor-owners-{}", std::process::id()));
        let pool = directory.join("10.0.0.0-24");
        fs::create_dir_all(&pool).unwrap();
        let mut store = ipam::AddressStore::new("b");
        let lease = ipam::BlockLease {
            net: "10.0.0.0/24".parse().unwrap(),
            id: "u.0".into(),
            single_owner: false,
            reserved: Vec::new(),
        };
        let _ = store.add_block(&lease, 1);
        let _ = store.hold(ipam::address_store::SlotId { page: 0, slot: 2 }, now() - 3_600_000, 9);
        fs::write(pool.join("ledger"), store.to_bytes()).unwrap();
        let owners = pool.join("owners");
        let only = || {
            let found = store_findings(&directory, |_, _, _| false);
            let [only] = found.as_slice() else { panic!("{found:?}") };
            assert_eq!(only.what, "address store 10.0.0.0-24");
            only.clone()
        };
        // A link to itself is unreadable, even for root.
        std::os::unix::fs::symlink(&owners, &owners).unwrap();
        let unread = only();
        let why = format!("failed to read the owners of its addresses: {}: ", owners.display());
        assert!(unread.why.starts_with(&why), "{unread:?}");
        assert_eq!(unread.hint, "make it readable, then run weft doctor again");
        // The hint: the owners are read, and with them the address that none of the known containers has.
        fs::remove_file(&owners).unwrap();
        let record = [vec![0; 2 * 1024], b"gone\neth0\nlan\nuid\ndefault\nweb\n".to_vec()].concat();
        fs::write(&owners, record).unwrap();
        assert_eq!(only().why, "10.0.0.2 (container gone) is allocated to an unknown container");
        assert_eq!(store_findings(&directory, |_, container, _| container == "gone"), []);
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn doctor_reports_unreadable_address_directories() {
        let directory = std::env::temp_dir().join(format!("weft-doctor-unread-{}", std::process::id()));
        let (networks, pools) = (directory.join("networks"), directory.join("ipam"));
        for path in [&networks, &pools.join("10.0.0.0-24/owners")] {
            fs::create_dir_all(path).unwrap();
        }
        // A link to itself is unreadable, even for root.
        let link_to_itself = |path: &Path| std::os::unix::fs::symlink(path, path).unwrap();
        link_to_itself(&networks.join("lan"));
        link_to_itself(&directory.join("loop"));
        fs::write(pools.join("10.0.0.0-24/ledger"), ipam::AddressStore::new("b").to_bytes()).unwrap();
        let subjects = |found: Vec<Finding>| found.into_iter().map(|found| found.what).collect::<Vec<_>>();
        let no_container = |_: &str, _: &str, _: &str| false;
        assert_eq!(subjects(findings(&networks, no_container)), ["addresses of network lan"]);
        assert_eq!(subjects(findings(&directory.join("loop"), no_container)), ["addresses of networks"]);
        assert_eq!(subjects(store_findings(&pools, no_container)), ["address store 10.0.0.0-24"]);
        assert_eq!(subjects(store_findings(&directory.join("loop"), no_container)), ["address stores"]);
        assert_eq!(subjects(findings(&directory.join("none"), no_container)), [""; 0]);
        assert_eq!(subjects(store_findings(&directory.join("none"), no_container)), [""; 0]);
        fs::remove_dir_all(&directory).unwrap();
    }
}
