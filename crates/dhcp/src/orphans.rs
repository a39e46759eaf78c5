//! What the Go plugin's daemon looked after until this one took its place, as libcni's cache tells it.
//!
//! That daemon keeps its leases in memory alone. But whoever attached the containers remembers each attachment: network,
//! container, interface, configuration, arguments, namespace, address. That is all a client needs to ask for the address
//! it had (RFC 2131 §3.2, INIT-REBOOT), except the server, which the answer names.
//!
//! Rules: what a file says is looked at, never believed: there must be a namespace at the path, other than ours, in it an
//! interface of that name with that hardware address and that address; files without end are not read; what is not
//! taken over although it is there is told, what is gone is only counted.
//!
//! Source: libcni `libcni/api.go` (`cachedInfo`), since 1.2 with the namespace; CNI results name it since 0.3.0.

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
use crate::plugin_config::PluginConfig;
use crate::v4::options::Options;

/// Where libcni remembers attachments: those of the runtime, and Multus's.
pub const DIRECTORIES: [&str; 2] = [cni::runtime::cache::DIRECTORY, "/var/lib/cni/multus"];
/// Most attachments that are taken over.
const ATTACHMENTS_MAX: usize = 4096;

/// An attachment whose lease nobody looks after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// Whose it is.
    pub owner: Owner,
    /// The path of the namespace, as the runtime said it.
    pub netns: PathBuf,
    /// The address it was given.
    pub address: Ipv4Addr,
    /// The interface's hardware address, if it is known, as text.
    pub mac: String,
    /// What is said to servers.
    pub options: Options,
    /// Metric of the routes.
    pub priority: Option<u32>,
}

/// What the caches know of daemons that listen on `socket`, but for what `is_known`; all paths are below `prefix`.
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
            log!("dhcp: nothing is taken over: {error}");
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
        log!("dhcp: of {} attachments {ATTACHMENTS_MAX} are taken over", found.len());
        found.truncate(ATTACHMENTS_MAX);
    }
    found
}

/// The attachment of an entry, if a daemon at `socket` gave it its address.
fn orphan(cache: &Cache, entry: &Entry, socket: &Path) -> Result<Option<Orphan>, Error> {
    let Entry { network: name, config, parameters } = entry;
    let Some((network, config)) = plugin_with_dhcp(config, entry)? else { return Ok(None) };
    let PluginConfig { socket: theirs, families, options, priority, wish: _ } =
        PluginConfig::read(&config, &parameters.args)?;
    // Their daemon has nothing of DHCPv6.
    if theirs != socket || !families.contains(&Family::Ipv4) {
        return Ok(None);
    }
    let who = &parameters.who;
    let known = cache.result(name, who, network.version)?.map(|attached| attached.success);
    let Some(Place { netns, mac, address }) = place(&known.unwrap_or_default(), who.ifname.as_str()) else {
        return Err(Error::internal("its result names no address of it"));
    };
    let netns = if parameters.netns.is_empty() { netns } else { parameters.netns.clone() };
    if !netns.starts_with('/') {
        return Err(Error::internal("neither its entry nor its result names its namespace"));
    }
    let owner = Owner {
        container: who.container.to_string(),
        network: config.name.to_string(),
        ifname: who.ifname.to_string(),
    };
    Ok(Some(Orphan { owner, netns: netns.into(), address, mac, options, priority }))
}

/// The configuration that the plugin with `ipam` of this type got.
fn plugin_with_dhcp(bytes: &[u8], entry: &Entry) -> Result<Option<(Network, Config)>, Error> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Ipam {
        r#type: String,
    }
    // Most entries are of other networks, and no concern of ours, whatever they are.
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

/// Where an attachment is, as far as its result says it.
struct Place {
    /// Empty if it does not say.
    netns: String,
    /// Empty if it does not say.
    mac: String,
    address: Ipv4Addr,
}

fn place(known: &Success, ifname: &str) -> Option<Place> {
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
    Some(Place { netns, mac, address })
}

impl Orphan {
    /// Is this the hardware address it had?
    pub fn had(&self, mac: &[u8]) -> bool {
        self.mac.is_empty() || self.mac.eq_ignore_ascii_case(&mac_text(mac))
    }
}
