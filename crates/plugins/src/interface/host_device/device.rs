//! Device selection: by name, hardware address, sysfs path, PCI address or auxiliary device.
//!
//! If a device has several interfaces, the first by name is used, as in the reference plugin.
//!
//! Source: plugins `host-device.go` `getLink`, `handleDeviceID`, `hasDpdkDriver`; sysfs(5).

use std::fs;
use std::path::Path;

use cni::Error;
use linux::Rtnl;
use linux::link::{Link, mac_text};
use plugin_config::host_device::Device;
use plugin_support::failure::OrRefused;

use super::relocation;

/// Directory with the PCI devices.
const PCI: &str = "/sys/bus/pci/devices";
/// Directory with devices that are a part of another device, for example sub-functions.
const AUXILIARY: &str = "/sys/bus/auxiliary/devices";
/// Kernel drivers that hand a device to a userspace program.
const USER_SPACE_DRIVERS: [&str; 3] = ["vfio-pci", "uio_pci_generic", "igb_uio"];

/// Result of the search for a device.
pub(super) enum FoundDevice {
    /// Interface to move.
    Link(Box<Link>),
    /// No interface: a userspace program drives the device.
    InUserSpace,
}

/// Search for a device on the host.
pub(super) trait Find {
    /// Whether a userspace program drives the device. False for a device that does not exist.
    fn is_in_user_space(&self) -> bool;

    /// Finds the device on the host.
    ///
    /// If the kernel returned the device when the container ended, the name is restored first.
    fn find(&self, host: &mut Rtnl) -> Result<FoundDevice, Error>;
}

impl Find for Device {
    fn is_in_user_space(&self) -> bool {
        let (Device::OnPci { address, .. } | Device::OfRuntime(address)) = self else { return false };
        driver(address).is_some_and(|driver| USER_SPACE_DRIVERS.contains(&driver.as_str()))
    }

    fn find(&self, host: &mut Rtnl) -> Result<FoundDevice, Error> {
        if self.is_in_user_space() {
            return Ok(FoundDevice::InUserSpace);
        }
        let link = match self {
            Device::Named(name) => named(host, name)?,
            Device::WithAddress(mac) => with_address(host, mac)?,
            Device::AtPath(path) => of_directory(host, "kernelpath", &path.display().to_string(), path)?,
            Device::OnPci { key, address } => on_pci(host, key, address)?,
            Device::OfRuntime(id) => of_runtime(host, id)?,
        };
        relocation::with_name_restored(host, link).map(Box::new).map(FoundDevice::Link)
    }
}

fn named(host: &mut Rtnl, name: &str) -> Result<Link, Error> {
    if let Some(link) = host.find_link(name).or_refused()? {
        return Ok(link);
    }
    let absent = || Error::key("device", format!("{name:?}"), "no such interface on the host");
    relocation::find_returned(host, name)?.ok_or_else(absent)
}

/// Returns the interface with this hardware address. Hardware is preferred: a virtual interface often has the parent's
/// address.
fn with_address(host: &mut Rtnl, mac: &[u8]) -> Result<Link, Error> {
    let links = host.links().or_refused()?;
    let first = links
        .into_iter()
        .filter(|link| link.mac == mac)
        .min_by_key(|link| (!link.kind.is_empty(), link.index));
    first.ok_or_else(|| Error::key("hwaddr", mac_text(mac), "no interface of the host has this address"))
}

fn of_runtime(host: &mut Rtnl, id: &str) -> Result<Link, Error> {
    const KEY: &str = "runtimeConfig.deviceID";
    let auxiliary = Path::new(AUXILIARY).join(id);
    if Path::new(PCI).join(id).exists() {
        on_pci(host, KEY, id)
    } else if auxiliary.exists() {
        of_directory(host, KEY, id, &auxiliary)
    } else {
        Err(Error::key(KEY, format!("{id:?}"), "neither a PCI nor an auxiliary device of this node"))
    }
}

fn on_pci(host: &mut Rtnl, key: &str, address: &str) -> Result<Link, Error> {
    let device = Path::new(PCI).join(address);
    if !device.exists() {
        return Err(Error::key(key, format!("{address:?}"), "no such PCI device on this node"));
    }
    if !device.join("net").exists()
        && let Some(virtio) = entries(&device).into_iter().find(|name| name.starts_with("virtio"))
    {
        return of_directory(host, key, address, &device.join(virtio));
    }
    of_directory(host, key, address, &device)
}

/// Returns the first interface on the device with this sysfs directory.
fn of_directory(host: &mut Rtnl, key: &str, value: &str, directory: &Path) -> Result<Link, Error> {
    match entries(&directory.join("net")).into_iter().next() {
        Some(name) => host.link(&name).or_refused(),
        None => {
            let why = "has no interface on the host; it may be in a container, or its driver creates none";
            Err(Error::key(key, format!("{value:?}"), why))
        }
    }
}

/// Returns the names in a sysfs directory, sorted; none if the directory does not exist.
fn entries(directory: &Path) -> Vec<String> {
    let listed = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = listed.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Returns the driver that a PCI device is bound to.
fn driver(address: &str) -> Option<String> {
    let link = fs::read_link(Path::new(PCI).join(address).join("driver")).ok()?;
    link.file_name()?.to_str().map(str::to_owned)
}
