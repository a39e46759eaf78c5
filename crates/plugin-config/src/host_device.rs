//! Configuration for `host-device`: how the device is selected.
//!
//! An input is one path component, or a path below `/sys/devices` without `..`.
//!
//! Source: plugins `host-device.go`; sysfs(5).

use std::path::{Component, Path, PathBuf};

use cni::Error;
use cni::address::parse_mac;
use cni::invocation::Call;
use serde::Deserialize;

use crate::interface;

/// The configuration as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Conf {
    device: String,
    hwaddr: String,
    kernelpath: String,
    #[serde(rename = "pciBusID")]
    pci_bus_id: String,
    #[serde(rename = "runtimeConfig")]
    runtime_config: RuntimeConfig,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RuntimeConfig {
    #[serde(rename = "deviceID")]
    device_id: String,
}

impl Device {
    /// Returns the device that the configuration or the runtime names.
    pub fn read(call: &Call) -> Result<Device, Error> {
        let hint = "set device, hwaddr, kernelpath or pciBusID, or let the runtime pass deviceID";
        Device::written(call)?.ok_or_else(|| Error::missing("device", hint))
    }

    /// Returns the device that the runtime names, else the first one in the configuration.
    pub fn written(call: &Call) -> Result<Option<Device>, Error> {
        let Conf { device, hwaddr, kernelpath, pci_bus_id, runtime_config } = call.config.decode()?;
        let RuntimeConfig { device_id } = runtime_config;
        if !device_id.is_empty() {
            check_bus_name("runtimeConfig.deviceID", &device_id)?;
            return Ok(Some(Device::OfRuntime(device_id)));
        }
        if !device.is_empty() {
            interface::check_name("device", &device)?;
            return Ok(Some(Device::Named(device)));
        }
        if !hwaddr.is_empty() {
            return Ok(Some(Device::WithAddress(address("hwaddr", &hwaddr)?)));
        }
        if !kernelpath.is_empty() {
            return check_path("kernelpath", &kernelpath).map(|path| Some(Device::AtPath(path)));
        }
        if !pci_bus_id.is_empty() {
            check_bus_name("pciBusID", &pci_bus_id)?;
            return Ok(Some(Device::OnPci { key: "pciBusID", address: pci_bus_id }));
        }
        Ok(None)
    }
}

/// Directory below which all devices are.
const DEVICES: &str = "/sys/devices";

/// Longest name on a bus, in bytes.
const BUS_NAME_MAX: usize = 128;

/// Selector for a device.
#[derive(Debug)]
pub enum Device {
    /// `device`: by interface name.
    Named(String),
    /// `hwaddr`: by hardware address.
    WithAddress(Vec<u8>),
    /// `kernelpath`: by path below `/sys/devices`.
    AtPath(PathBuf),
    /// `pciBusID`, or a PCI address in `runtimeConfig.deviceID`.
    OnPci {
        /// Configuration field that contains the address.
        key: &'static str,
        /// PCI address such as `0000:04:00.5`.
        address: String,
    },
    /// `runtimeConfig.deviceID`: a PCI address, else an auxiliary device.
    OfRuntime(String),
}

/// Returns an interface's hardware address; the loopback interface has zeros.
fn address(key: &str, text: &str) -> Result<Vec<u8>, Error> {
    let refused = |why: &str| Error::key(key, format!("{text:?}"), why);
    match parse_mac(text) {
        None => Err(refused("not a hardware address")),
        Some(mac) if mac.iter().all(|byte| *byte == 0) => Err(refused("the address of no interface")),
        Some(mac) => Ok(mac),
    }
}

/// Fails unless `name` is one path component.
fn check_bus_name(key: &str, name: &str) -> Result<(), Error> {
    let legal = name.len() <= BUS_NAME_MAX
        && name != "."
        && name != ".."
        && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
    match legal {
        true => Ok(()),
        false => Err(Error::key(key, format!("{name:?}"), "not the name of a device on a bus")),
    }
}

/// Fails unless `text` is a path below `/sys/devices`.
fn check_path(key: &str, text: &str) -> Result<PathBuf, Error> {
    let path = Path::new(text);
    let below = path.strip_prefix(DEVICES).is_ok_and(|rest| rest.components().next().is_some());
    let straight = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    match below && straight && !text.contains('\0') {
        true => Ok(path.to_owned()),
        false => Err(Error::key(key, format!("{text:?}"), format!("not a path below {DEVICES}"))),
    }
}

/// Returns the options, by name.
pub(crate) fn options() -> &'static [&'static str] {
    cni::fold::fields::<Conf>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_bus_name_must_be_one_path_component() {
        for good in ["0000:04:00.5", "10000:e1:00.0", "mlx5_core.sf.4"] {
            check_bus_name("pciBusID", good).unwrap();
        }
        let long = "x".repeat(129);
        for bad in ["..", ".", "a/b", "../../../etc", "a b", "a\nb", "a\0b", "ä", &long] {
            let error = check_bus_name("pciBusID", bad).unwrap_err();
            assert!(error.code == 7 && error.msg.starts_with("pciBusID: "), "{bad:?}: {error}");
        }
    }

    #[test]
    fn device_kernelpath_must_be_below_sys_devices() {
        let good = "/sys/devices/pci0000:00/0000:00:02.0";
        assert_eq!(check_path("kernelpath", good).unwrap(), Path::new(good));
        for bad in [
            "/sys/devices",
            "/sys/devices/",
            "/sys/devicesx/y",
            "/sys/class/net",
            "sys/devices/x",
            "/sys/devices/../class",
            "/sys/devices/a/../../..",
            "/sys/devices/a\0b",
            "",
        ] {
            let error = check_path("kernelpath", bad).unwrap_err();
            assert!(error.code == 7 && error.msg.starts_with("kernelpath: "), "{bad:?}: {error}");
        }
    }
}
