//! `tuning`: sets kernel parameters for the container's network, and interface attributes.
//!
//! Rules beyond the reference plugin's:
//! - A failed ADD restores what it changed. An ADD that would remove IPv6 addresses in the result is refused.
//! - DEL also restores kernel parameters. If the kernel refuses a value, DEL logs it on stderr and succeeds:
//!   a retry would fail again, and the container must end. If memory, descriptors or the like are exhausted,
//!   DEL fails, keeps the backup and can be repeated.
//! - If the container, namespace or interface is gone, DEL succeeds and removes the backup.
//! - In the result, only interfaces in the container get the new hardware address.
//! - Only `net.*` in the container's own namespace is ever written.
//!
//! Source: containernetworking/plugins `plugins/meta/tuning` v1.9.1.

pub mod allowlist;
pub mod backup;

use cni::address::parse_mac;
use cni::error::collected;
use cni::invocation::{Attach, Call, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::Plugin;
use cni::result::{Interface, Success};
use cni::{Error, code};
use linux::link::{Change, Link, mac_text};
use linux::sysctl;
use linux::{Kind, Netns, Rtnl};
use plugin_config::tuning::{Key, PLACEHOLDER, Settings, Sysctl, data_directory, restorable};
use plugin_support::directory;
use plugin_support::failure::{OrRefused, refused};
use plugin_support::log;
use plugin_support::netns::open_netns;
use rustix::io::Errno;

use self::allowlist::Allowlist;
use self::backup::{Backup, BackupFile};
use crate::interface::inspection::{differs, own_ips};

/// Plugin `tuning`.
pub struct Tuning;

const NAME: &str = "tuning";
/// Smallest MTU on an interface with IPv6, in bytes; RFC 8200, section 5.
const IPV6_MTU_MIN: u32 = 1280;

// === impl Plugin ===

impl Plugin for Tuning {
    fn name(&self) -> &'static str {
        NAME
    }

    fn add(&self, request: &Attach, _: &dyn Invoke) -> Result<Success, Error> {
        let Attach { who, netns: path, call } = request;
        let ifname = who.ifname.as_str();
        let settings = read(call, ifname)?;
        let file = BackupFile::of_attachment(&data_directory(call)?, who);
        let mut result = call.config.require_prev_result()?;
        refuse_loss_of_ipv6(&settings, ifname, &result)?;
        let network = call.config.name.as_str();
        open_netns(path)?.run(|| tune(&settings, ifname, network, file)).or_refused()??;
        record(&settings, ifname, &mut result);
        Ok(result)
    }

    fn del(&self, request: &Detach, _: &dyn Invoke) -> Result<(), Error> {
        let Detach { who, netns, call } = request;
        // Without a valid directory ADD failed, so there is no backup.
        let Ok(directory) = data_directory(call) else { return Ok(()) };
        let file = BackupFile::of_attachment(&directory, who);
        let Some(backup) = file.load()? else { return file.remove() };
        let netns = match netns {
            Some(path) => Netns::find(path).or_refused()?,
            None => None,
        };
        if let Some(netns) = netns {
            let NotRestored { refused, retryable } =
                netns.run(|| restore(&backup, who.ifname.as_str())).or_refused()??;
            for error in refused {
                log!("tuning: {error}");
            }
            collected(retryable)?;
        }
        file.remove()
    }

    fn check(&self, request: &Attach, _: &dyn Invoke) -> Result<(), Error> {
        let ifname = request.who.ifname.as_str();
        let settings = read(&request.call, ifname)?;
        request.call.config.require_prev_result()?;
        open_netns(&request.netns)?.run(|| inspect(&settings, ifname)).or_refused()?
    }

    fn gc(&self, request: &Sweep, _: &dyn Invoke) -> Result<(), Error> {
        let Some(valid) = request.valid()? else { return Ok(()) };
        // Without a valid directory ADD failed, so there is no backup.
        let Ok(directory) = data_directory(&request.call) else { return Ok(()) };
        let kept = valid.iter().map(|one| BackupFile::of(&directory, &one.container_id, &one.ifname));
        let kept: Vec<BackupFile> = kept.collect();
        let network = request.call.config.name.as_str();
        let errors =
            BackupFile::all(&directory)?.into_iter().filter(|file| !kept.contains(file)).map(|file| {
                match file.load() {
                    // All networks share the directory: a file without this network's name may be another's.
                    Ok(Some(backup)) if backup.network == network => file.remove(),
                    Ok(_) => Ok(()),
                    Err(error) => Err(error),
                }
            });
        collected(errors.filter_map(Result::err).collect())
    }

    fn status(&self, request: &Probe, _: &dyn Invoke) -> Result<(), Error> {
        let unavailable = |error: Error| match error.code {
            code::IO_FAILURE => Error { code: code::NOT_AVAILABLE, ..error },
            _ => error,
        };
        // STATUS has no interface, so the placeholder stands for its name.
        read(&request.call, PLACEHOLDER).map_err(unavailable)?;
        directory::usable("dataDir", &data_directory(&request.call)?)
    }
}

/// Reads and validates the configuration, including the node's allow-list.
fn read(call: &Call, ifname: &str) -> Result<Settings, Error> {
    let settings = Settings::read(call, ifname)?;
    let allowlist = Allowlist::read()?;
    for Sysctl { written, key: _, value } in &settings.sysctls {
        allowlist.check(written, value)?;
    }
    Ok(settings)
}

/// Fails if the kernel would remove the interface's IPv6 addresses or routes, which the result contains.
fn refuse_loss_of_ipv6(settings: &Settings, ifname: &str, result: &Success) -> Result<(), Error> {
    let address = own_ips(result, ifname).find(|ip| ip.address.addr().is_ipv6());
    let address = address.map(|ip| format!("address {}", ip.address));
    let route = || result.routes.iter().find(|route| route.dst.addr().is_ipv6());
    let Some(lost) = address.or_else(|| route().map(|route| format!("route {}", route.dst))) else {
        return Ok(());
    };
    let why = format!("the kernel would remove the IPv6 {lost} of {ifname}");
    if let Some(mtu) = settings.mtu.filter(|mtu| *mtu < IPV6_MTU_MIN) {
        return Err(Error::key("mtu", mtu, format!("below {IPV6_MTU_MIN}: {why}")));
    }
    let disables = |sysctl: &&Sysctl| {
        let names = |scope: &str| sysctl.key.as_path() == format!("net/ipv6/conf/{scope}/disable_ipv6");
        (names(ifname) || names("all")) && sysctl.value.trim() != "0"
    };
    match settings.sysctls.iter().find(disables) {
        Some(Sysctl { written, key: _, value }) => {
            Err(Error::key(format!("sysctl.{written}"), format!("{value:?}"), why))
        }
        None => Ok(()),
    }
}

/// Updates the result: interfaces with this name in the container get the values that were set.
fn record(settings: &Settings, ifname: &str, result: &mut Success) {
    let is_own = |interface: &Interface| interface.name == ifname && result.is_inside(interface, ifname);
    let own: Vec<usize> = result
        .interfaces
        .iter()
        .enumerate()
        .filter(|(_, each)| is_own(each))
        .map(|(index, _)| index)
        .collect();
    for interface in own {
        let interface = &mut result.interfaces[interface];
        if let Some(mac) = &settings.mac {
            interface.mac = mac_text(mac);
        }
        if let (Some(recorded), Some(mtu)) = (&mut interface.mtu, settings.mtu) {
            *recorded = mtu;
        }
    }
}

// === ADD, inside the namespace ===

/// Backs up the present values, changes them, and restores them after a failure.
fn tune(settings: &Settings, ifname: &str, network: &str, file: BackupFile) -> Result<(), Error> {
    let link = match settings.changes_link() {
        true => Some(Rtnl::open().and_then(|mut net| net.link(ifname)).or_refused()?),
        false => None,
    };
    check_length(settings, link.as_ref())?;
    let values = Backup { network: network.to_owned(), ..present(settings, link.as_ref())? };
    if values.is_empty() {
        return apply(settings, link.as_ref());
    }
    let before = file.keep(values.clone())?;
    apply(settings, link.as_ref()).map_err(|error| {
        let undone = match restore(&values, ifname) {
            Ok(NotRestored { refused, retryable }) => [refused, retryable].concat(),
            Err(error) => vec![error],
        };
        error.also(undone.into_iter().chain(before.restore().err()))
    })
}

/// Returns the kernel crate's form for a key.
fn known(written: &str, value: &str, key: &Key) -> Result<sysctl::Key, Error> {
    let illegal = || Error::key(format!("sysctl.{written}"), format!("{value:?}"), "not a legal key");
    sysctl::Key::new(key.as_path()).ok_or_else(illegal)
}

/// Fails if the hardware address has the wrong length: the kernel would use the first bytes of a longer one.
fn check_length(settings: &Settings, link: Option<&Link>) -> Result<(), Error> {
    match (&settings.mac, link) {
        (Some(mac), Some(link)) if mac.len() != link.mac.len() => {
            let why = format!("addresses of {} have {} bytes", link.name, link.mac.len());
            Err(Error::key("mac", mac_text(mac), why))
        }
        _ => Ok(()),
    }
}

/// Returns the present value for everything that is to be changed.
fn present(settings: &Settings, link: Option<&Link>) -> Result<Backup, Error> {
    let mut backup = Backup::default();
    for Sysctl { written, key, value } in &settings.sysctls {
        match sysctl::read(&known(written, value, key)?) {
            Ok(present) => drop(backup.sysctl.insert(key.as_path().to_owned(), present)),
            Err(error) if error.kind() == Kind::Absent || error.is_transient() => {
                return Err(sysctl_error(written, value, &error));
            }
            // A parameter that can only be written, or was never set, cannot be restored.
            Err(_) => {}
        }
    }
    let Settings { sysctls: _, mac, promiscuous, mtu, all_multicast, tx_queue_length } = settings;
    if let Some(link) = link {
        backup.mac = mac.as_ref().map(|_| mac_text(&link.mac)).unwrap_or_default();
        backup.promisc = promiscuous.then_some(link.promiscuous);
        backup.mtu = mtu.map_or(0, |_| link.mtu);
        backup.allmulti = all_multicast.map(|_| link.all_multicast);
        backup.tx_queue_length = tx_queue_length.map(|_| link.tx_queue_length);
    }
    Ok(backup)
}

fn apply(settings: &Settings, link: Option<&Link>) -> Result<(), Error> {
    let Settings { sysctls, mac, promiscuous, mtu, all_multicast, tx_queue_length } = settings;
    for Sysctl { written, key, value } in sysctls {
        sysctl::write(&known(written, value, key)?, value)
            .map_err(|error| sysctl_error(written, value, &error))?;
    }
    let Some(link) = link else { return Ok(()) };
    let mut net = Rtnl::open().or_refused()?;
    let wanted = AttributeChanges {
        mac: mac.as_deref(),
        promiscuous: promiscuous.then_some(true),
        mtu: *mtu,
        all_multicast: *all_multicast,
        tx_queue_length: *tx_queue_length,
    };
    for (key, value, change) in wanted.changes() {
        net.change_link(link.index, &link.name, &change)
            .map_err(|error| attribute_error(key, &value, &error))?;
    }
    Ok(())
}

/// Link attributes to set.
struct AttributeChanges<'a> {
    mac: Option<&'a [u8]>,
    promiscuous: Option<bool>,
    mtu: Option<u32>,
    all_multicast: Option<bool>,
    tx_queue_length: Option<u32>,
}

impl<'a> AttributeChanges<'a> {
    /// Returns one change for each attribute, with field and value, so that an error names the attribute.
    fn changes(&self) -> Vec<(&'static str, String, Change<'a>)> {
        let AttributeChanges { mac, promiscuous, mtu, all_multicast, tx_queue_length } = *self;
        let nothing = Change::default;
        let changes = [
            mtu.map(|mtu| ("mtu", mtu.to_string(), Change { mtu: Some(mtu), ..nothing() })),
            mac.map(|mac| ("mac", mac_text(mac), Change { mac: Some(mac), ..nothing() })),
            promiscuous.map(|on| ("promisc", on.to_string(), Change { promiscuous: Some(on), ..nothing() })),
            all_multicast
                .map(|on| ("allmulti", on.to_string(), Change { all_multicast: Some(on), ..nothing() })),
            tx_queue_length.map(|length| {
                ("txQLen", length.to_string(), Change { tx_queue_length: Some(length), ..nothing() })
            }),
        ];
        changes.into_iter().flatten().collect()
    }
}

/// Returns a configuration error if the kernel refused the value, else a system error.
fn attribute_error(key: &str, value: &str, error: &linux::Error) -> Error {
    match error.errno() {
        Some(Errno::INVAL | Errno::RANGE | Errno::ADDRNOTAVAIL | Errno::OPNOTSUPP) => {
            Error::key(key, value, error)
        }
        _ => refused(error).context(format_args!("{key}: {value}")),
    }
}

fn sysctl_error(written: &str, value: &str, error: &linux::Error) -> Error {
    let (key, value) = (format!("sysctl.{written}"), format!("{value:?}"));
    match error.errno() {
        Some(Errno::NOENT | Errno::NOTDIR | Errno::ISDIR | Errno::ACCESS) => Error::key(key, value, error),
        _ => attribute_error(&key, &value, error),
    }
}

// === DEL, inside the namespace ===

/// Values that were not restored.
#[derive(Default)]
struct NotRestored {
    /// Errors that a retry would repeat.
    refused: Vec<Error>,
    /// Errors that a retry may avoid: a resource was exhausted.
    retryable: Vec<Error>,
}

impl NotRestored {
    fn push(&mut self, error: &linux::Error, what: std::fmt::Arguments<'_>) {
        let list = if error.is_transient() { &mut self.retryable } else { &mut self.refused };
        list.push(refused(error).context(what));
    }
}

/// Restores all values. Missing objects are skipped, and an error does not stop the rest.
fn restore(backup: &Backup, ifname: &str) -> Result<NotRestored, Error> {
    let Backup { mac, promisc, mtu, allmulti, tx_queue_length, network: _, sysctl } = backup;
    let mut not_restored = NotRestored::default();
    let mac = parse_mac(mac);
    let wanted = AttributeChanges {
        mac: mac.as_deref(),
        promiscuous: *promisc,
        mtu: Some(*mtu).filter(|mtu| *mtu > 0),
        all_multicast: *allmulti,
        tx_queue_length: *tx_queue_length,
    };
    let changes = wanted.changes();
    if !changes.is_empty() {
        let mut net = Rtnl::open().or_refused()?;
        if let Some(link) = net.find_link(ifname).or_refused()? {
            for (key, value, change) in changes {
                match net.change_link(link.index, ifname, &change) {
                    Err(error) if error.errno() != Some(Errno::NODEV) => {
                        not_restored.push(&error, format_args!("restore {key}: {value}"));
                    }
                    _ => {}
                }
            }
        }
    }
    // After the link: with a small MTU the interface has no IPv6 parameters.
    for (path, value) in sysctl {
        let Some(key) = restorable(path).and_then(|key| sysctl::Key::new(key.as_path())) else { continue };
        match sysctl::write(&key, value) {
            Err(error) if error.kind() != Kind::Absent => {
                not_restored.push(&error, format_args!("restore sysctl {path}"));
            }
            _ => {}
        }
    }
    Ok(not_restored)
}

// === CHECK, inside the namespace ===

fn inspect(settings: &Settings, ifname: &str) -> Result<(), Error> {
    let Settings { sysctls, mac, promiscuous, mtu, all_multicast, tx_queue_length } = settings;
    for Sysctl { written, key, value } in sysctls {
        let present = sysctl::read(&known(written, value, key)?)
            .map_err(|error| sysctl_error(written, value, &error))?;
        // The kernel separates several numbers by tabs, whatever separator was written.
        if !present.split_whitespace().eq(value.split_whitespace()) {
            return Err(Error::internal(format!("sysctl {}: is {present:?}, not {value:?}", key.as_path())));
        }
    }
    let link = Rtnl::open().and_then(|mut net| net.link(ifname)).or_refused()?;
    let differ = |what: &str, is: &dyn ToString, wanted: &dyn ToString| {
        Err(differs(ifname, what, &is.to_string(), &wanted.to_string()))
    };
    match mac {
        Some(mac) if *mac != link.mac => differ("address", &mac_text(&link.mac), &mac_text(mac))?,
        _ => {}
    }
    // Without the option, another plugin or the host may have set it.
    if *promiscuous && !link.promiscuous {
        differ("promisc", &link.promiscuous, promiscuous)?;
    }
    match mtu {
        Some(mtu) if *mtu != link.mtu => differ("mtu", &link.mtu, mtu)?,
        _ => {}
    }
    match all_multicast {
        Some(on) if *on != link.all_multicast => differ("allmulti", &link.all_multicast, on)?,
        _ => {}
    }
    match tx_queue_length {
        Some(length) if *length != link.tx_queue_length => differ("txQLen", &link.tx_queue_length, length),
        _ => Ok(()),
    }
}
