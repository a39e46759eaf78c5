//! Validated configuration for `tuning`, from all sources.
//!
//! Rules:
//! - `args.cni` overrides `runtimeConfig`, which overrides `CNI_ARGS`, which overrides the configuration
//!   itself (V6, V13, V14).
//! - A kernel parameter must begin with `net.` and may be named only once; `IFNAME` in it stands for the
//!   interface.
//!
//! Source: plugins `plugins/meta/tuning`; sysctl(8) on `.` and `/` in names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cni::Error;
use cni::address::parse_mac;
use cni::args::Args;
use cni::invocation::Call;
use cni::object::Object;
use serde::Deserialize;

use crate::interface::check_mtu;

/// Maximum length for a key, in bytes.
const KEY_MAX: usize = 256;

/// Default backup directory.
const DATA_DIRECTORY: &str = "/run/cni/tuning";

/// Prefix that every key must have, in path form.
const NETWORK: &str = "net/";

/// Placeholder for the interface's name.
pub const PLACEHOLDER: &str = "IFNAME";

/// The configuration as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Conf {
    sysctl: BTreeMap<String, String>,
    mac: String,
    promisc: bool,
    mtu: u32,
    #[serde(rename = "txQLen")]
    tx_queue_length: Option<u32>,
    allmulti: Option<bool>,
    #[serde(rename = "runtimeConfig")]
    runtime_config: RuntimeConf,
    args: ArgsConf,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RuntimeConf {
    mac: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ArgsConf {
    cni: Overrides,
}

/// Fields in `args.cni`; each replaces the configuration's.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Overrides {
    sysctl: BTreeMap<String, String>,
    mac: Option<String>,
    promisc: Option<bool>,
    mtu: Option<u32>,
    #[serde(rename = "txQLen")]
    tx_queue_length: Option<u32>,
    allmulti: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DirectoryConf {
    #[serde(rename = "dataDir")]
    data_dir: String,
}

/// Kernel parameter as a path (`net/ipv4/conf/eth0.100/arp_notify`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(String);

impl Key {
    /// Reads a key in either notation: `net.ipv4.ip_forward` or `net/ipv4/conf/eth0.100/forwarding`.
    ///
    /// In dotted notation a `/` stands for a `.` inside a component, as in sysctl(8).
    fn new(text: &str) -> Option<Key> {
        let dotted = match (text.find('.'), text.find('/')) {
            (Some(dot), Some(slash)) => dot < slash,
            (Some(_), None) => true,
            _ => false,
        };
        let path: String = match dotted {
            false => text.to_owned(),
            true => text
                .chars()
                .map(|c| match c {
                    '.' => '/',
                    '/' => '.',
                    c => c,
                })
                .collect(),
        };
        let legal = |part: &str| {
            !part.is_empty() && part != "." && part != ".." && !part.contains(|c: char| c.is_control())
        };
        (path.len() <= KEY_MAX && path.split('/').all(legal)).then_some(Key(path))
    }

    /// Returns the key as a path relative to `/proc/sys`.
    pub fn as_path(&self) -> &str {
        &self.0
    }
}

/// Kernel parameter to set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysctl {
    /// Key as it was written, for errors.
    pub written: String,
    /// Key, below `net/`.
    pub key: Key,
    /// Value to write.
    pub value: String,
}

/// Validated configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct Settings {
    /// Kernel parameters in the container's namespace, by key.
    pub sysctls: Vec<Sysctl>,
    /// Hardware address that the interface gets.
    pub mac: Option<Vec<u8>>,
    /// Whether the interface becomes promiscuous; false leaves it unchanged.
    pub promiscuous: bool,
    /// MTU in bytes.
    pub mtu: Option<u32>,
    /// Whether the interface receives all multicast packets; none leaves it unchanged.
    pub all_multicast: Option<bool>,
    /// Transmit queue length, in packets.
    pub tx_queue_length: Option<u32>,
}

/// Returns the backup directory, the only option that every verb needs.
pub fn data_directory(call: &Call) -> Result<PathBuf, Error> {
    let DirectoryConf { data_dir } = call.config.decode()?;
    match data_dir.as_str() {
        "" => Ok(PathBuf::from(DATA_DIRECTORY)),
        text if text.starts_with('/') && !text.contains('\0') => Ok(Path::new(text).to_path_buf()),
        text => Err(Error::key("dataDir", format!("{text:?}"), "not an absolute path")),
    }
}

impl Settings {
    /// Reads and validates the configuration, without the node's allow-list.
    pub fn read(call: &Call, ifname: &str) -> Result<Settings, Error> {
        refuse_duplicates(call)?;
        Settings::check(call.config.decode()?, call.args(), ifname)
    }

    fn check(conf: Conf, cni_args: &str, ifname: &str) -> Result<Settings, Error> {
        let Conf { sysctl, mac, promisc, mtu, tx_queue_length, allmulti, runtime_config, args } = conf;
        let ArgsConf { cni: over } = args;
        let environment = Args::parse(cni_args)?;
        environment.only(&["MAC"])?;
        let RuntimeConf { mac: runtime } = runtime_config;
        let sources = [
            ("args.cni.mac", over.mac.as_deref()),
            ("runtimeConfig.mac", Some(runtime.as_str()).filter(|text| !text.is_empty())),
            ("CNI_ARGS MAC", environment.get("MAC").filter(|text| !text.is_empty())),
            ("mac", Some(mac.as_str())),
        ];
        let wanted = sources.into_iter().find_map(|(key, text)| Some((key, text?)));
        let mac = match wanted.filter(|(_, text)| !text.is_empty()) {
            None => None,
            Some((key, text)) => match parse_mac(text) {
                Some(mac) => Some(mac),
                None => return Err(Error::key(key, format!("{text:?}"), "not a hardware address")),
            },
        };
        Ok(Settings {
            sysctls: sysctls(sysctl, over.sysctl, ifname)?,
            mac,
            promiscuous: over.promisc.unwrap_or(promisc),
            mtu: check_mtu(over.mtu.unwrap_or(mtu))?,
            all_multicast: over.allmulti.or(allmulti),
            tx_queue_length: over.tx_queue_length.or(tx_queue_length),
        })
    }

    /// Whether an interface attribute is to be changed.
    pub fn changes_link(&self) -> bool {
        let Settings { sysctls: _, mac, promiscuous, mtu, all_multicast, tx_queue_length } = self;
        mac.is_some() || *promiscuous || mtu.is_some() || all_multicast.is_some() || tx_queue_length.is_some()
    }
}

/// Returns the parameters from both sources. A key has one value, whatever the notation.
fn sysctls(
    configured: BTreeMap<String, String>,
    over: BTreeMap<String, String>,
    ifname: &str,
) -> Result<Vec<Sysctl>, Error> {
    let mut all: BTreeMap<Key, Sysctl> = BTreeMap::new();
    for (written, value) in configured {
        let sysctl = Sysctl { key: resolve(&written, &value, ifname)?, written, value };
        if let Some(other) = all.get(&sysctl.key).filter(|other| other.value != sysctl.value) {
            let Sysctl { written, key, value } = &sysctl;
            let why = format!(
                "{} is the same parameter {} with the value {:?}",
                other.written,
                key.as_path(),
                other.value
            );
            return Err(Error::key(format!("sysctl.{written}"), format!("{value:?}"), why));
        }
        all.insert(sysctl.key.clone(), sysctl);
    }
    for (written, value) in over {
        let key = resolve(&written, &value, ifname).map_err(|error| error.context("args.cni"))?;
        all.insert(key.clone(), Sysctl { key, written, value });
    }
    Ok(all.into_values().collect())
}

/// Returns the parameter that a key names.
fn resolve(written: &str, value: &str, ifname: &str) -> Result<Key, Error> {
    let refused = |why: &str| Error::key(format!("sysctl.{written}"), format!("{value:?}"), why);
    let Some(key) = Key::new(written) else { return Err(refused("not a legal key")) };
    if !key.as_path().starts_with(NETWORK) {
        return Err(refused("not below net: only parameters of the container's network are changed"));
    }
    // The interface's name is inserted in path form, in which its dots have no meaning, and validated with it.
    let path = key.as_path().replacen(PLACEHOLDER, ifname, 1);
    restorable(&path).ok_or_else(|| refused("not a legal key"))
}

/// Returns the key for a path from any source, if this plugin may write it.
pub fn restorable(path: &str) -> Option<Key> {
    Key::new(path).filter(|key| key.as_path() == path && path.starts_with(NETWORK))
}

/// Fails if a key occurs twice: a decoder would silently use one of the two values.
fn refuse_duplicates(call: &Call) -> Result<(), Error> {
    let whole = Object::parse(call.config.bytes(), "network configuration")?;
    let Some(raw) = whole.get("sysctl").filter(|raw| raw.get() != "null") else { return Ok(()) };
    // The decoder reports a value that is no object with a better error.
    let Ok(sysctl) = Object::parse(raw.get().as_bytes(), "sysctl") else { return Ok(()) };
    let mut entries: Vec<_> = sysctl.iter().collect();
    entries.sort_by(|one, other| one.0.cmp(other.0));
    match entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some([_, (key, value)]) => {
            Err(Error::key(format!("sysctl.{key}"), value.get(), "the key occurs twice"))
        }
        _ => Ok(()),
    }
}

/// Returns the options, by name.
pub(crate) fn options() -> Vec<&'static str> {
    [cni::fold::fields::<Conf>(), cni::fold::fields::<DirectoryConf>()].concat()
}

#[cfg(test)]
mod tests;
