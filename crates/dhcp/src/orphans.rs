//! Finds attachments whose leases the Go plugin's daemon managed, by reading libcni's cache.
//!
//! The Go plugin's daemon keeps leases only in memory, but libcni records each attachment: network, container,
//! interface, configuration, arguments, namespace, address. This is all that a client needs to request the previous
//! address (RFC 2131 §3.2, INIT-REBOOT); the answer names the server.
//!
//! - A cache file is not trusted. The namespace in it must exist and must not be the daemon's. The interface in it must
//!   have the name, MAC address and IP address that the file records.
//! - Files have a maximum size.
//! - If an attachment exists but cannot be taken over, this is logged; all others are only counted.
//!
//! Source: libcni `libcni/api.go` (`cachedInfo`), since 1.2 with the namespace; CNI results contain it since 0.3.0.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use cni::Error;
use cni::config::Config;
use cni::network::Network;
use cni::result::{Interface, IpConfig, Success};
use cni::runtime::cache::{Cache, Entry};
use cni::runtime::chain;
use cni::version::Version;
use ipnet::IpNet;
use linux::link::mac_text;
use plugin_support::log;
use serde::Deserialize;

use crate::owner::{Family, Owner};
use crate::v4::options::Options;
use plugin_config::dhcp::PluginConfig;

/// libcni cache directories: the runtime's, and the one that Multus uses.
pub const DIRECTORIES: [&str; 2] = [cni::runtime::cache::DIRECTORY, "/var/lib/cni/multus"];
/// Maximum number of attachments to take over.
const ATTACHMENTS_MAX: usize = 4096;

/// Attachment whose lease no daemon manages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// Lease owner.
    pub owner: Owner,
    /// Namespace path, as the runtime passed it.
    pub netns: PathBuf,
    /// Address that the attachment has.
    pub address: Ipv4Addr,
    /// MAC address as text; empty if unknown.
    pub mac: String,
    /// DHCPv4 options.
    pub options: Options,
    /// Route metric.
    pub priority: Option<u32>,
}

/// Lists the attachments that a daemon on `socket` served, except those that `is_known`. All paths are below `prefix`.
pub fn find(
    directories: &[PathBuf],
    prefix: &str,
    socket: &Path,
    is_known: &dyn Fn(&Owner) -> bool,
) -> Vec<Orphan> {
    let mut found: Vec<Orphan> = Vec::new();
    for directory in directories {
        let cache = Cache::new(Path::new(&format!("{prefix}{}", directory.display())));
        let entries = cache.attachments(None).unwrap_or_else(|error| {
            log!("dhcp: failed to read a cache, so its leases are not taken over: {error}");
            Vec::new()
        });
        for entry in entries {
            match orphan(&cache, &entry, socket) {
                Ok(Some(orphan)) => {
                    let is_new = found.iter().all(|other| other.owner != orphan.owner);
                    if is_new && !is_known(&orphan.owner) {
                        found.push(orphan);
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    let who = &entry.parameters.who;
                    log!("dhcp: {}/{}/{}: not taken over: {error}", who.container, entry.network, who.ifname);
                }
            }
        }
    }
    if found.len() > ATTACHMENTS_MAX {
        log!("dhcp: only {ATTACHMENTS_MAX} of {} attachments are taken over", found.len());
        found.truncate(ATTACHMENTS_MAX);
    }
    found
}

/// Returns a cache entry's attachment, if a daemon on `socket` allocated the address.
fn orphan(cache: &Cache, entry: &Entry, socket: &Path) -> Result<Option<Orphan>, Error> {
    let Entry { network: name, config, parameters } = entry;
    let Some((network, config)) = plugin_with_dhcp(config, entry)? else { return Ok(None) };
    let PluginConfig { socket: configured, families, options, priority, v6_request: _ } =
        PluginConfig::read(&config, &parameters.args)?;
    // The Go plugin's daemon has no DHCPv6 leases.
    if configured != socket || !families.contains(&Family::Ipv4) {
        return Ok(None);
    }
    let who = &parameters.who;
    let known = cache.result(name, who, network.version)?.map(|attached| attached.success);
    let Some(RecordedInterface { netns, mac, address }) =
        recorded_interface(&known.unwrap_or_default(), who.ifname.as_str())
    else {
        return Err(Error::internal("its result has no address of the interface"));
    };
    let netns = if parameters.netns.is_empty() { netns } else { parameters.netns.clone() };
    if !netns.starts_with('/') {
        return Err(Error::internal("neither its entry nor its result contains the namespace"));
    }
    let owner = Owner {
        container: who.container.to_string(),
        network: config.name.to_string(),
        ifname: who.ifname.to_string(),
    };
    Ok(Some(Orphan { owner, netns: netns.into(), address, mac, options, priority }))
}

/// Returns the plugin configuration whose `ipam` type is `dhcp`.
fn plugin_with_dhcp(bytes: &[u8], entry: &Entry) -> Result<Option<(Network, Config)>, Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Ipam {
        r#type: String,
    }
    // Most entries belong to other networks; invalid ones are skipped.
    let Ok(network) = Network::parse(bytes, "config") else { return Ok(None) };
    for plugin in &network.plugins {
        let ipam: Ipam = plugin.read("ipam").ok().flatten().unwrap_or_default();
        if ipam.r#type == super::NAME {
            let config = chain::derive(&network, plugin, None, Some(&entry.parameters))?;
            let config = Config::read(config.to_json().into_bytes(), Version::ALL)?;
            return Ok(Some((network, config)));
        }
    }
    Ok(None)
}

/// Interface as the CNI result describes it.
struct RecordedInterface {
    /// Namespace path; empty if unknown.
    netns: String,
    /// MAC address; empty if unknown.
    mac: String,
    address: Ipv4Addr,
}

fn recorded_interface(known: &Success, ifname: &str) -> Option<RecordedInterface> {
    let is_it = |interface: &Interface| interface.name == ifname && !interface.sandbox.is_empty();
    let index = known.interfaces.iter().position(is_it);
    let belongs = |ip: &&IpConfig| match (ip.interface, index) {
        (Some(at), Some(index)) => usize::try_from(at).is_ok_and(|at| at == index),
        _ => true,
    };
    let address = known.ips.iter().filter(belongs).find_map(|ip| match ip.address {
        IpNet::V4(address) => Some(address.addr()),
        IpNet::V6(_) => None,
    })?;
    let interface = index.and_then(|index| known.interfaces.get(index));
    let netns = interface.map(|interface| interface.sandbox.clone()).unwrap_or_default();
    let mac = interface.map(|interface| interface.mac.clone()).unwrap_or_default();
    Some(RecordedInterface { netns, mac, address })
}

impl Orphan {
    /// Whether this is the recorded MAC address; any address matches if none is recorded.
    pub fn has_mac(&self, mac: &[u8]) -> bool {
        self.mac.is_empty() || self.mac.eq_ignore_ascii_case(&mac_text(mac))
    }
}
