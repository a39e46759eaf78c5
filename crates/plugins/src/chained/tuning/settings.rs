//! What a configuration wants changed, from all its channels.
//!
//! Rules: `args.cni` wins over `runtimeConfig`, that over `CNI_ARGS`, that over the configuration itself (V6,
//! V13, V14). A kernel parameter is one of `net.*`, named once; `IFNAME` in it stands for the interface.
//!
//! Source: plugins `plugins/meta/tuning`; sysctl(8) on `.` and `/` in names.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cni::Error;
use cni::address::parse_mac;
use cni::args::Args;
use cni::invocation::Call;
use cni::object::Object;
use linux::sysctl::Key;
use serde::Deserialize;

use super::allowlist::Allowlist;
use crate::interface::check_mtu;

/// Where backups are kept unless told otherwise.
const DATA_DIRECTORY: &str = "/run/cni/tuning";

/// What every key must begin with, in path form.
const NETWORK: &str = "net/";

/// The word that stands for the interface's name.
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

/// `args.cni`: what is there replaces the configuration's.
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
struct PlaceConf {
    #[serde(rename = "dataDir")]
    data_dir: String,
}

/// One kernel parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysctl {
    /// The key as it was written, for error texts.
    pub written: String,
    /// The key, below `net/`.
    pub key: Key,
    /// The value to write.
    pub value: String,
}

/// What is to be changed, checked.
#[derive(Debug, PartialEq, Eq)]
pub struct Settings {
    /// Kernel parameters of the container's namespace, by key.
    pub sysctls: Vec<Sysctl>,
    /// The interface's hardware address.
    pub mac: Option<Vec<u8>>,
    /// Take all packets; false leaves that as it is.
    pub promiscuous: bool,
    /// MTU in bytes.
    pub mtu: Option<u32>,
    /// Take all multicast packets, or not.
    pub all_multicast: Option<bool>,
    /// Length of the transmit queue, in packets.
    pub tx_queue_length: Option<u32>,
}

/// The directory of backups: the one key that every verb needs.
pub fn data_directory(call: &Call) -> Result<PathBuf, Error> {
    let PlaceConf { data_dir } = call.config.decode()?;
    match data_dir.as_str() {
        "" => Ok(PathBuf::from(DATA_DIRECTORY)),
        text if text.starts_with('/') && !text.contains('\0') => Ok(Path::new(text).to_path_buf()),
        text => Err(Error::key("dataDir", format!("{text:?}"), "not an absolute path")),
    }
}

impl Settings {
    /// Reads and checks everything, what the node allows included.
    pub fn read(call: &Call, ifname: &str) -> Result<Settings, Error> {
        refuse_duplicates(call)?;
        let settings = Settings::check(call.config.decode()?, call.args(), ifname)?;
        let allowlist = Allowlist::read()?;
        for Sysctl { written, key: _, value } in &settings.sysctls {
            allowlist.check(written, value)?;
        }
        Ok(settings)
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

    /// Is anything of the interface itself to be changed?
    pub fn changes_link(&self) -> bool {
        let Settings { sysctls: _, mac, promiscuous, mtu, all_multicast, tx_queue_length } = self;
        mac.is_some() || *promiscuous || mtu.is_some() || all_multicast.is_some() || tx_queue_length.is_some()
    }
}

/// The parameters of both channels; under whatever notation, one key has one value.
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
                "{} means the same parameter {} and says {:?}",
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

/// The parameter that a key names.
fn resolve(written: &str, value: &str, ifname: &str) -> Result<Key, Error> {
    let refused = |why: &str| Error::key(format!("sysctl.{written}"), format!("{value:?}"), why);
    let Some(key) = Key::new(written) else { return Err(refused("not a legal key")) };
    if !key.as_path().starts_with(NETWORK) {
        return Err(refused("not below net: only parameters of the container's network are changed"));
    }
    // In path form, where the name's own dots mean nothing; checked again with the name in it.
    let path = key.as_path().replacen(PLACEHOLDER, ifname, 1);
    restorable(&path).ok_or_else(|| refused("not a legal key"))
}

/// A key in path form, from anywhere, if it is one that we may write.
pub fn restorable(path: &str) -> Option<Key> {
    Key::new(path).filter(|key| key.as_path() == path && path.starts_with(NETWORK))
}

/// A key that is written twice has two values, of which a decoder sees one.
fn refuse_duplicates(call: &Call) -> Result<(), Error> {
    let whole = Object::parse(call.config.bytes(), "network configuration")?;
    let Some(raw) = whole.get("sysctl").filter(|raw| raw.get() != "null") else { return Ok(()) };
    // Anything but an object the decoder names better.
    let Ok(sysctl) = Object::parse(raw.get().as_bytes(), "sysctl") else { return Ok(()) };
    let mut entries: Vec<_> = sysctl.iter().collect();
    entries.sort_by(|one, other| one.0.cmp(other.0));
    match entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some([_, (key, value)]) => {
            Err(Error::key(format!("sysctl.{key}"), value.get(), "the key is there twice"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
