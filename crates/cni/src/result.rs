//! ADD result: interfaces, addresses, routes, DNS.
//!
//! [`Success`] has the newest form. Older results are converted to it and from it (`v02`, `v04` and `v1`, one module
//! for each family of versions). A conversion drops what the older form cannot express, and fails only if the older
//! form requires something that is missing.
//!
//! Source: SPEC 1.1.0 §5 and the same section of each older tag; libcni `pkg/types/{020,040,100}` (requirements S2, S7,
//! S15, S22–S24, S35, R1–R8).

mod route;
mod v02;
mod v04;
mod v1;

use std::net::IpAddr;

use ipnet::IpNet;
use serde::Serialize;
use serde_json::Value;

use crate::error::{Error, code};
use crate::fold;
use crate::version::Version;
use crate::wording;

/// Maximum length of a line quoted from a plugin's output, in characters.
const LINE_MAX: usize = 200;

/// ADD result in the newest form.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Success {
    /// Interfaces that the plugins created or moved, including those on the host. IPAM plugins leave it empty.
    pub interfaces: Vec<Interface>,
    /// Allocated addresses.
    pub ips: Vec<IpConfig>,
    /// Routes for the container.
    pub routes: Vec<Route>,
    /// DNS settings.
    pub dns: Dns,
}

/// Interface in a result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Name in the namespace.
    pub name: String,
    /// MAC address; empty for interfaces without layer 2.
    pub mac: String,
    /// MTU in bytes, if the plugin reports it.
    pub mtu: Option<u32>,
    /// Network namespace path (or a hypervisor's id); empty on the host.
    pub sandbox: String,
    /// Socket path, for an interface that is a socket.
    pub socket_path: String,
    /// Platform id of the underlying PCI device.
    pub pci_id: String,
}

/// Address in a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpConfig {
    /// Index into `interfaces`; absent in IPAM results, negative means none.
    pub interface: Option<i32>,
    /// Address with prefix length; host bits are kept.
    pub address: IpNet,
    /// Gateway in that subnet.
    pub gateway: Option<IpAddr>,
}

/// Route in a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Destination.
    pub dst: IpNet,
    /// Next hop; if absent, the gateway from the address's subnet.
    pub gw: Option<IpAddr>,
    /// MTU for this route, in bytes.
    pub mtu: Option<u32>,
    /// Maximum segment size to advertise, in bytes.
    pub advmss: Option<u32>,
    /// Metric; the lowest wins.
    pub priority: Option<u32>,
    /// Routing table number.
    pub table: Option<u32>,
    /// Kernel scope: 0 global, 253 link, 254 host, 255 nowhere.
    pub scope: Option<u8>,
}

impl Route {
    /// Returns a route to `dst`, with a gateway if there is one.
    pub fn new(dst: IpNet, gw: Option<IpAddr>) -> Route {
        Route { dst, gw, mtu: None, advmss: None, priority: None, table: None, scope: None }
    }

    /// Returns the routing table if the route names one; 0 leaves the choice to the kernel, which takes the main table.
    pub fn named_table(&self) -> Option<u32> {
        self.table.filter(|table| *table != 0)
    }
}

/// DNS settings in a result or configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Dns {
    /// DNS servers, most preferred first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// Local domain.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Search list.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// Resolver options.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Dns {
    /// Whether there is no setting at all.
    pub fn is_empty(&self) -> bool {
        *self == Dns::default()
    }
}

impl Success {
    /// Reads a result. The `cniVersion` in it decides the form; without one, it must have the `expected` version.
    ///
    /// # Errors
    /// Code 6: not JSON. Code 1: unknown version. Code 7: malformed field.
    pub fn read(bytes: &[u8], expected: Version) -> Result<(Version, Success), Error> {
        let value: Value = serde_json::from_slice(bytes).map_err(|cause| {
            let why = match first_foreign_line(bytes) {
                Some(line) => format!("result begins with {line:?}, which is not JSON"),
                None => format!("result is not valid JSON: {}", wording::syntax_error(bytes, &cause)),
            };
            let error = Error::new(code::DECODING_FAILURE, why);
            match first_foreign_line(bytes) {
                Some(_) => {
                    error.details("a plugin prints only its result on stdout, and log lines on stderr")
                }
                None => error,
            }
        })?;
        Success::from_value(&value, expected)
    }

    /// Reads a result from JSON; `null` is the empty result (trap 4).
    pub fn from_value(value: &Value, expected: Version) -> Result<(Version, Success), Error> {
        if value.is_null() {
            return Ok((expected, Success::default()));
        }
        let Header { cni_version } = fold::from_value(value, "")?;
        let version = match cni_version.as_str() {
            "" => expected,
            text => Version::from_wire(text).ok_or_else(|| {
                Error::new(code::INCOMPATIBLE_VERSION, format!("result has unknown cniVersion {text:?}"))
            })?,
        };
        let success = match version {
            Version::V0_1_0 | Version::V0_2_0 => v02::read(value),
            Version::V0_3_0 | Version::V0_3_1 | Version::V0_4_0 => v04::read(value),
            Version::V1_0_0 | Version::V1_1_0 => v1::read(value),
        }?;
        Ok((version, success))
    }

    /// Checks that each address with an index names an interface of this result.
    ///
    /// # Errors
    /// Code 7: an index beyond the interfaces. The address would belong to nothing and appear nowhere.
    pub fn check_indexes(&self) -> Result<(), Error> {
        let count = self.interfaces.len();
        let is_beyond = |index: i32| usize::try_from(index).is_ok_and(|index| index >= count);
        for (place, ip) in self.ips.iter().enumerate() {
            // Some IPAM plugins write an index without any interface.
            if let Some(index) = ip.interface.filter(|index| count > 0 && is_beyond(*index)) {
                let (key, last) = (format!("result.ips[{place}].interface"), count - 1);
                let why = format!("no such interface in the result of {}; the last is {last}", ip.address);
                return Err(Error::key(&key, index.to_string(), why));
            }
        }
        Ok(())
    }

    /// Whether an interface in this result is in the container, that is, has a sandbox.
    ///
    /// Some plugins never set a sandbox. If no interface has one, the interface named `ifname` (`CNI_IFNAME`) is the
    /// container's.
    pub fn is_inside(&self, interface: &Interface, ifname: &str) -> bool {
        let is_marked = |interface: &Interface| !interface.sandbox.is_empty();
        is_marked(interface) || (interface.name == ifname && !self.interfaces.iter().any(is_marked))
    }

    /// Converts this result to JSON in the form that `version` requires.
    ///
    /// # Errors
    /// Only 0.1.0 and 0.2.0 can fail, because they have no form for a result without an address.
    pub fn to_value(&self, version: Version) -> Result<Value, Error> {
        match version {
            Version::V0_1_0 | Version::V0_2_0 => v02::write(self, version),
            Version::V0_3_0 | Version::V0_3_1 | Version::V0_4_0 => v04::write(self, version),
            Version::V1_0_0 | Version::V1_1_0 => serde_json::to_value(v1::write(self, version))
                .map_err(|cause| Error::internal(format!("encode result: {cause}"))),
        }
    }

    /// Formats this result as plugins print it: indented by four spaces, without a newline at the end.
    pub fn print(&self, version: Version) -> Result<Vec<u8>, Error> {
        match version {
            // Nearly every call prints this form, and a JSON tree in between would take twice as long.
            Version::V1_0_0 | Version::V1_1_0 => pretty(&v1::write(self, version)),
            _ => pretty(&self.to_value(version)?),
        }
    }
}

/// Formats JSON as Go plugins print it: indented by four spaces, without a newline at the end.
pub fn pretty<T: Serialize>(value: &T) -> Result<Vec<u8>, Error> {
    let mut out = Vec::with_capacity(512);
    let format = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut to = serde_json::Serializer::with_formatter(&mut out, format);
    match value.serialize(&mut to) {
        Ok(()) => Ok(out),
        Err(cause) => Err(Error::internal(format!("encode the output: {cause}"))),
    }
}

#[derive(serde::Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Header {
    cni_version: String,
}

/// Returns the first line if the output does not begin with a JSON document, shortened.
fn first_foreign_line(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes.trim_ascii_start());
    let is_document = text.is_empty() || text.starts_with(['{', '[', '"', '\u{feff}']);
    let line = text.lines().next().filter(|_| !is_document)?;
    Some(line.chars().take(LINE_MAX).collect())
}

/// Decoders for address strings, which all forms use.
mod text {
    use std::net::IpAddr;

    use ipnet::IpNet;

    use crate::address::{parse_cidr, parse_ip};
    use crate::error::Error;

    /// Parses a required prefix.
    pub(super) fn cidr(key: &str, text: &str) -> Result<IpNet, Error> {
        parse_cidr(text)
            .ok_or_else(|| Error::key(key, format!("{text:?}"), "not an address with a prefix length"))
    }

    /// Parses an optional address; `""` means absent.
    pub(super) fn ip(key: &str, text: &str) -> Result<Option<IpAddr>, Error> {
        match text {
            "" => Ok(None),
            text => match parse_ip(text) {
                Some(ip) => Ok(Some(ip)),
                None => Err(Error::key(key, format!("{text:?}"), "not an IP address")),
            },
        }
    }
}

#[cfg(test)]
mod tests;
