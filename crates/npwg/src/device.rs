//! A pod's devices, what is known about each device, and the files that carry this information.
//!
//! A device plugin writes what it knows to a file. The meta-plugin copies the file before ADD and passes the
//! copy's name to the plugins, which may change it. After ADD the copy's content is added to the network
//! status. This module only has names and types; `weft-cni` copies the files.
//!
//! Source: Device Information Specification v1.1.0 (DI-1 to DI-5); Multus for the file names.

use std::collections::BTreeMap;

use cni::error::{Error, code};
use cni::name::{ContainerId, IfName};
use serde::{Deserialize, Serialize};

/// Directory in which device plugins write files.
pub const PLUGIN_DIRECTORY: &str = "/var/run/k8s.cni.cncf.io/devinfo/dp";
/// Directory with the files that CNI plugins read and write.
pub const CNI_DIRECTORY: &str = "/var/run/k8s.cni.cncf.io/devinfo/cni";

/// Maximum size for a device information file, in bytes.
pub const FILE_MAX: usize = 64 * 1024;
/// Longest file name on Linux, in bytes.
const FILE_NAME_MAX: usize = 255;

/// Devices that the kubelet allocated to a pod, by resource name, in a stable order.
pub type Devices = BTreeMap<String, Vec<Device>>;

/// Device allocated to a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Device id that the device plugin chose, for example a PCI address.
    pub id: String,
    /// Container that the device is allocated to.
    #[serde(default)]
    pub container: String,
}

/// Information about a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Wire", into = "Wire")]
pub struct DeviceInfo {
    /// Specification version, as written in the file.
    pub version: String,
    /// Fields that depend on the type.
    pub kind: DeviceKind,
}

/// Device type, with the fields that only this type has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// Physical or virtual function on the PCI bus.
    Pci(Pci),
    /// vDPA device.
    Vdpa(Vdpa),
    /// vhost-user socket.
    VhostUser(VhostUser),
    /// memif socket.
    Memif(Memif),
}

/// PCI device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Pci {
    /// PCI address; never empty.
    pub pci_address: String,
    /// vhost-net path, for example `/dev/vhost-net`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub vhost_net: String,
    /// RDMA device name, for example `mlx5_0`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub rdma_device: String,
    /// PCI address that the physical function has, if this is a virtual one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pf_pci_address: String,
    /// Representor interface on the host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub representor_device: String,
}

/// vDPA device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Vdpa {
    /// Management device; never empty.
    pub parent_device: String,
    /// `vhost` or `virtio`; never empty.
    pub driver: String,
    /// Device path, for example `/dev/vhost-vdpa-0`; never empty.
    pub path: String,
    /// PCI address under the vDPA device.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pci_address: String,
    /// PCI address that the physical function has.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub pf_pci_address: String,
    /// Representor interface on the host.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub representor_device: String,
}

/// vhost-user socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct VhostUser {
    /// Side that opens the socket: `client` or `server`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mode: String,
    /// Socket path.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
}

/// memif socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memif {
    /// Role on the socket: `master` or `slave`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub role: String,
    /// Socket path.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// `ethernet`, `ip` or `inject-punt`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mode: String,
}

/// JSON form: the type, and an object whose key is that type.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Wire {
    r#type: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    version: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pci: Option<Pci>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vdpa: Option<Vdpa>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    vhost_user: Option<VhostUser>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memif: Option<Memif>,
}

/// Why device information is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceInfoError {
    /// The device information specification has no such type.
    #[error("type: {0:?}: must be pci, vdpa, vhost-user or memif")]
    UnknownType(String),
    /// A field is missing or empty.
    #[error("{0}: missing")]
    Missing(String),
    /// A field only allows certain words, and this is none.
    #[error("{key}: {value:?}: must be one of {}", words.join(", "))]
    UnknownWord {
        /// Field path.
        key: String,
        /// The value.
        value: String,
        /// Allowed words.
        words: &'static [&'static str],
    },
}

impl TryFrom<Wire> for DeviceInfo {
    type Error = DeviceInfoError;

    fn try_from(wire: Wire) -> Result<DeviceInfo, DeviceInfoError> {
        let Wire { r#type: name, version, pci, vdpa, vhost_user, memif } = wire;
        let kind = match name.as_str() {
            "pci" => pci.map(DeviceKind::Pci),
            "vdpa" => vdpa.map(DeviceKind::Vdpa),
            "vhost-user" => vhost_user.map(DeviceKind::VhostUser),
            "memif" => memif.map(DeviceKind::Memif),
            other => return Err(DeviceInfoError::UnknownType(other.to_owned())),
        };
        let kind = kind.ok_or_else(|| DeviceInfoError::Missing(name.clone()))?;
        for (key, value) in kind.required_fields() {
            if value.is_empty() {
                return Err(DeviceInfoError::Missing(format!("{name}.{key}")));
            }
        }
        for (key, value, words) in kind.words() {
            if !value.is_empty() && !words.contains(&value) {
                let (key, value) = (format!("{name}.{key}"), value.to_owned());
                return Err(DeviceInfoError::UnknownWord { key, value, words });
            }
        }
        Ok(DeviceInfo { version, kind })
    }
}

impl From<DeviceInfo> for Wire {
    fn from(info: DeviceInfo) -> Wire {
        let DeviceInfo { version, kind } = info;
        let empty =
            Wire { r#type: String::new(), version, pci: None, vdpa: None, vhost_user: None, memif: None };
        match kind {
            DeviceKind::Pci(pci) => Wire { r#type: "pci".into(), pci: Some(pci), ..empty },
            DeviceKind::Vdpa(vdpa) => Wire { r#type: "vdpa".into(), vdpa: Some(vdpa), ..empty },
            DeviceKind::VhostUser(user) => {
                Wire { r#type: "vhost-user".into(), vhost_user: Some(user), ..empty }
            }
            DeviceKind::Memif(memif) => Wire { r#type: "memif".into(), memif: Some(memif), ..empty },
        }
    }
}

impl DeviceKind {
    /// Returns the fields that must not be empty.
    fn required_fields(&self) -> Vec<(&'static str, &str)> {
        match self {
            DeviceKind::Pci(pci) => vec![("pci-address", &pci.pci_address)],
            DeviceKind::Vdpa(vdpa) => {
                vec![("parent-device", &vdpa.parent_device), ("driver", &vdpa.driver), ("path", &vdpa.path)]
            }
            DeviceKind::VhostUser(_) | DeviceKind::Memif(_) => Vec::new(),
        }
    }

    /// Returns the fields that allow only certain words: path, value, allowed words.
    fn words(&self) -> Vec<(&'static str, &str, &'static [&'static str])> {
        match self {
            DeviceKind::Pci(_) => Vec::new(),
            DeviceKind::Vdpa(vdpa) => vec![("driver", &vdpa.driver, &["vhost", "virtio"])],
            DeviceKind::VhostUser(user) => vec![("mode", &user.mode, &["client", "server"])],
            DeviceKind::Memif(memif) => vec![
                ("role", &memif.role, &["master", "slave"]),
                ("mode", &memif.mode, &["ethernet", "ip", "inject-punt"]),
            ],
        }
    }
}

impl DeviceInfo {
    /// Reads a device information file (DI-4).
    ///
    /// # Errors
    /// Code 6: not JSON, or too large. Code 7: unknown type, missing field or invalid value.
    pub fn read(bytes: &[u8]) -> Result<DeviceInfo, Error> {
        if bytes.len() > FILE_MAX {
            let why = format!("device information is larger than {FILE_MAX} bytes");
            return Err(Error::new(code::DECODING_FAILURE, why));
        }
        let wire: Wire = cni::fold::from_slice(bytes, "device information")?;
        DeviceInfo::try_from(wire).map_err(|why| Error::config(format!("device information: {why}")))
    }
}

/// Returns the path at which a device plugin writes what it knows about device `id` of `resource`; `None` if
/// this gives no valid file name.
pub fn plugin_file(resource: &str, id: &str) -> Option<String> {
    file(PLUGIN_DIRECTORY, &format!("{resource}-{id}-device.json"))
}

/// Returns the file path for one attachment (DI-1): Multus's name, or a shorter one if that is too long.
pub fn attachment_file(network: &str, container: &ContainerId, ifname: &IfName) -> Option<String> {
    let short = format!("{container}_{ifname}");
    file(CNI_DIRECTORY, &format!("{network}-{short}")).or_else(|| file(CNI_DIRECTORY, &short))
}

/// Whether a path leads to a file directly in [`PLUGIN_DIRECTORY`].
pub fn is_plugin_file(path: &str) -> bool {
    let name = path.strip_prefix(PLUGIN_DIRECTORY).and_then(|rest| rest.strip_prefix('/'));
    name.is_some_and(|name| !name.is_empty() && file(PLUGIN_DIRECTORY, name).as_deref() == Some(path))
}

/// Returns a path directly in `directory`; `/` in the name becomes `-`, as the specification requires.
fn file(directory: &str, name: &str) -> Option<String> {
    let name = name.replace('/', "-");
    let legal =
        name.len() <= FILE_NAME_MAX && !name.starts_with('.') && !name.contains(|c: char| c.is_control());
    legal.then(|| format!("{directory}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Requirements: DI-1
    #[test]
    fn device_info_files_have_the_names_of_multus() -> Result<(), Error> {
        assert_eq!(
            plugin_file("intel.com/sriov", "0000:18:02.5").as_deref(),
            Some("/var/run/k8s.cni.cncf.io/devinfo/dp/intel.com-sriov-0000:18:02.5-device.json")
        );
        let (container, ifname) = (ContainerId::new("abc")?, IfName::new("net1")?);
        assert_eq!(
            attachment_file("ns/net-a", &container, &ifname).as_deref(),
            Some("/var/run/k8s.cni.cncf.io/devinfo/cni/ns-net-a-abc_net1")
        );
        let long = attachment_file(&"x".repeat(250), &container, &ifname);
        assert_eq!(long.as_deref(), Some("/var/run/k8s.cni.cncf.io/devinfo/cni/abc_net1"));
        Ok(())
    }

    #[test]
    fn device_info_path_cannot_leave_its_directory() {
        assert_eq!(plugin_file("..", "../../etc/passwd"), None);
        let inside = plugin_file("a", "../../etc/passwd").unwrap();
        assert_eq!(inside, format!("{PLUGIN_DIRECTORY}/a-..-..-etc-passwd-device.json"));
        assert_eq!(plugin_file("a\0", "b"), None);
        assert_eq!(plugin_file(&"a".repeat(300), "b"), None);
    }

    // Requirements: V12-5.3.7-1
    #[test]
    fn device_info_of_each_type_survives_a_round_trip() {
        for text in [
            r#"{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:18:02.5","pf-pci-address":"0000:18:00.0"}}"#,
            r#"{"type":"vdpa","version":"1.1.0","vdpa":{"parent-device":"vdpa2","driver":"vhost","path":"/dev/vhost-vdpa0"}}"#,
            r#"{"type":"vhost-user","version":"1.1.0","vhost-user":{"mode":"client","path":"/var/run/net3/vhost.sock"}}"#,
            r#"{"type":"memif","version":"1.1.0","memif":{"role":"master","path":"/m","mode":"ip"}}"#,
        ] {
            let info = DeviceInfo::read(text.as_bytes()).unwrap();
            assert_eq!(serde_json::to_string(&info).unwrap(), text);
        }
    }

    // Requirements: DI-4
    #[test]
    fn device_info_malformed_is_refused() {
        for (text, what) in [
            (r#"{"type":"pci"}"#, "pci: missing"),
            (r#"{"type":"pci","pci":{}}"#, "pci.pci-address: missing"),
            (r#"{"type":"vdpa","vdpa":{"parent-device":"a","driver":"x","path":"p"}}"#, "vdpa.driver"),
            (r#"{"type":"memif","memif":{"role":"king"}}"#, "memif.role"),
            (r#"{"type":"ethernet"}"#, "type: \"ethernet\""),
            ("[]", ""),
            ("{", "JSON"),
        ] {
            let error = DeviceInfo::read(text.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(what), "{text}: {error}");
        }
        assert!(DeviceInfo::read(&vec![b' '; FILE_MAX + 1]).is_err());
    }
}
