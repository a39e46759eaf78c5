//! Addresses of `host-local` that are held by containers which nobody knows: a range full of them starts no pod.
//!
//! ```text
//!   /var/lib/cni/networks/NETWORK/10.1.2.3     its owner: the container's id, then the interface
//! ```
//!
//! Rules: only the directory that is the plugin's default is looked at; a reservation that is younger than a sandbox
//! may take to be made is nobody's yet; there is one finding for each network.
//!
//! Source: plugins `plugins/ipam/host-local/backend/disk`.

use std::fs::{self, DirEntry, File};
use std::io::Read;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use super::Finding;

/// Where they are.
pub(super) const DIRECTORY: &str = "/var/lib/cni/networks";
/// Longest owner read.
const OWNER_MAX: u64 = 1024;
/// How long a sandbox may take until its container is known.
const FRESH: Duration = Duration::from_secs(300);
/// Most addresses named.
const NAMED_MAX: usize = 3;

/// What is held by a container of which `is_known` says no, given network, container and interface.
pub(super) fn findings(directory: &Path, is_known: impl Fn(&str, &str, &str) -> bool) -> Vec<Finding> {
    let networks = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut findings: Vec<Finding> = networks.filter_map(|network| of_network(&network, &is_known)).collect();
    findings.sort_by(|a, b| a.what.cmp(&b.what));
    findings
}

fn of_network(network: &DirEntry, is_known: impl Fn(&str, &str, &str) -> bool) -> Option<Finding> {
    let name = network.file_name().into_string().ok()?;
    let path = network.path();
    let reservations = fs::read_dir(&path).into_iter().flatten().flatten();
    let mut lost: Vec<(IpAddr, String)> = reservations
        .filter_map(|entry| {
            let (ip, container, ifname) = reservation(&entry)?;
            (!is_known(&name, &container, &ifname)).then_some((ip, container))
        })
        .collect();
    lost.sort();
    let shown: Vec<String> =
        lost.iter().take(NAMED_MAX).map(|(ip, container)| format!("{ip} (container {container})")).collect();
    let more = if lost.len() > NAMED_MAX { ", …" } else { "" };
    let why = match lost.len() {
        0 => return None,
        1 => format!("{} is held by a container that nobody knows", shown.concat()),
        count => {
            format!("{count} addresses are held by containers that nobody knows: {}{more}", shown.join(", "))
        }
    };
    let cure = format!(
        "a GC of {name} gives them back; where the runtime has none, remove their files in {}",
        path.display()
    );
    Some(Finding::new(format!("addresses of network {name}"), why, cure))
}

/// The address, its container and interface; nothing of what is no reservation, or too young.
fn reservation(entry: &DirEntry) -> Option<(IpAddr, String, String)> {
    let ip: IpAddr = entry.file_name().to_str()?.parse().ok()?;
    let meta = entry.metadata().ok().filter(fs::Metadata::is_file)?;
    let age = meta.modified().ok()?.elapsed().unwrap_or_default();
    if age < FRESH {
        return None;
    }
    let mut owner = String::new();
    File::open(entry.path()).ok()?.take(OWNER_MAX).read_to_string(&mut owner).ok()?;
    let mut lines = owner.lines().map(|line| line.trim().to_owned());
    let container = lines.next().filter(|container| !container.is_empty())?;
    Some((ip, container, lines.next().unwrap_or_default()))
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
}
