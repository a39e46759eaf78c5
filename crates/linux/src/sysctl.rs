//! Kernel parameters under `/proc/sys`, of the network namespace the calling thread is in.
//!
//! Rules: a key is checked before it becomes a path; it never leaves `/proc/sys`. To act in another
//! namespace, call from inside [`crate::Netns::run`].
//!
//! Source: sysctl(8) on `.` and `/` in names (the first separator decides which is which).

use std::fs;
use std::path::PathBuf;

use crate::error::Error;

/// Longest key, in bytes.
const KEY_MAX: usize = 256;

/// A checked key, in path form (`net/ipv4/conf/eth0.100/arp_notify`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key(String);

impl Key {
    /// Checks a key in either notation: `net.ipv4.ip_forward` or `net/ipv4/conf/eth0.100/forwarding`.
    ///
    /// In dotted notation a `/` stands for a `.` inside a component, as sysctl(8) has it.
    pub fn new(text: &str) -> Option<Key> {
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

    /// The key in path form, relative to `/proc/sys`.
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

/// Writes a parameter, with a newline: of an empty value nothing would be written. `sysctl -w KEY=VALUE`
pub fn write(key: &Key, value: &str) -> Result<(), Error> {
    fs::write(key.file(), format!("{value}\n"))
        .map_err(|error| Error::io(format!("write sysctl {} = {value:?}", key.0), &error))
}

/// Writes a parameter of one interface: `net/FAMILY/conf/INTERFACE/NAME`.
///
/// `sysctl -w net/ipv6/conf/eth0/accept_dad=0`. The interface name must have been checked before.
pub fn write_interface(family: Family, interface: &str, name: &str, value: &str) -> Result<(), Error> {
    write(&interface_key(family, interface, name)?, value)
}

/// Reads a parameter of one interface.
pub fn read_interface(family: Family, interface: &str, name: &str) -> Result<String, Error> {
    read(&interface_key(family, interface, name)?)
}

fn interface_key(family: Family, interface: &str, name: &str) -> Result<Key, Error> {
    let text = format!("net/{}/conf/{interface}/{name}", family.as_str());
    Key::new(&text).ok_or_else(|| Error::protocol(format!("sysctl {text:?}"), "not a legal key"))
}

/// The two families that have parameters per interface.
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

    // Requirements: G6
    #[test]
    fn the_first_separator_decides_the_notation() {
        let path = |text: &str| Key::new(text).map(|key| key.as_path().to_owned());
        assert_eq!(path("net.ipv4.ip_forward").as_deref(), Some("net/ipv4/ip_forward"));
        assert_eq!(
            path("net.ipv4.conf.eth0/100.arp_notify").as_deref(),
            Some("net/ipv4/conf/eth0.100/arp_notify")
        );
        assert_eq!(
            path("net/ipv4/conf/eth0.100/arp_notify").as_deref(),
            Some("net/ipv4/conf/eth0.100/arp_notify")
        );
    }

    #[test]
    fn a_key_cannot_leave_proc_sys() {
        let long = format!("net.{}", "x".repeat(300));
        for bad in [
            "",
            "..",
            "net/../kernel",
            "net..ipv4",
            "/net/core",
            "net/",
            "net/./core",
            "a\0b",
            "net.ipv4.\n",
            &long,
        ] {
            assert_eq!(Key::new(bad), None, "{bad:?}");
        }
    }
}
