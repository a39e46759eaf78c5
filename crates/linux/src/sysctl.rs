//! Kernel parameters under `/proc/sys`, in the calling thread's network namespace.
//!
//! A key is validated before it becomes a path, so that the path never leaves `/proc/sys`. To reach another namespace,
//! call these functions inside [`crate::Netns::run`].

use std::fs;
use std::path::PathBuf;

use crate::error::Error;

/// Maximum key length in bytes.
const KEY_MAX: usize = 256;

/// Validated key as a path (`net/ipv4/conf/eth0.100/arp_notify`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(String);

impl Key {
    /// Validates a key written as a path: `net/ipv4/conf/eth0.100/forwarding`.
    pub fn new(path: &str) -> Option<Key> {
        let legal = |part: &str| {
            !part.is_empty() && part != "." && part != ".." && !part.contains(|c: char| c.is_control())
        };
        (path.len() <= KEY_MAX && path.split('/').all(legal)).then(|| Key(path.to_owned()))
    }

    /// Returns the key as a path relative to `/proc/sys`.
    pub fn as_path(&self) -> &str {
        &self.0
    }

    fn file(&self) -> PathBuf {
        PathBuf::from("/proc/sys").join(&self.0)
    }
}

/// Reads a parameter, without the newline. `sysctl -n KEY`
pub fn read(key: &Key) -> Result<String, Error> {
    match fs::read_to_string(key.file()) {
        Ok(text) => Ok(text.trim_end_matches('\n').to_owned()),
        Err(error) => Err(Error::io(format!("read sysctl {}", key.0), &error)),
    }
}

/// Writes a parameter, followed by a newline, because an empty value would otherwise write nothing. `sysctl -w
/// KEY=VALUE`
pub fn write(key: &Key, value: &str) -> Result<(), Error> {
    fs::write(key.file(), format!("{value}\n"))
        .map_err(|error| Error::io(format!("write sysctl {} = {value:?}", key.0), &error))
}

/// Writes a parameter for one interface: `net/FAMILY/conf/INTERFACE/NAME`.
///
/// `sysctl -w net/ipv6/conf/eth0/accept_dad=0`. The interface name must be valid.
pub fn write_interface(family: Family, interface: &str, name: &str, value: &str) -> Result<(), Error> {
    write(&interface_key(family, interface, name)?, value)
}

/// Reads a parameter for one interface.
pub fn read_interface(family: Family, interface: &str, name: &str) -> Result<String, Error> {
    read(&interface_key(family, interface, name)?)
}

fn interface_key(family: Family, interface: &str, name: &str) -> Result<Key, Error> {
    let text = format!("net/{}/conf/{interface}/{name}", family.as_str());
    Key::new(&text).ok_or_else(|| Error::protocol(format!("sysctl {text:?}"), "not a valid key"))
}

/// Address family of an interface parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `net/ipv4`.
    V4,
    /// `net/ipv6`.
    V6,
}

impl Family {
    fn as_str(self) -> &'static str {
        match self {
            Family::V4 => "ipv4",
            Family::V6 => "ipv6",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysctl_key_cannot_leave_proc_sys() {
        let long = format!("net/{}", "x".repeat(300));
        for bad in [
            "",
            "..",
            "net/../kernel",
            "net//ipv4",
            "/net/core",
            "net/",
            "net/./core",
            "a\0b",
            "net/ipv4/\n",
            &long,
        ] {
            assert_eq!(Key::new(bad), None, "{bad:?}");
        }
    }
}
