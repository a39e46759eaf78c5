//! The node's allow-list for kernel parameters: an optional file with one pattern in each line.
//!
//! Rules:
//! - Without the file every parameter is allowed.
//! - A pattern matches anywhere in the key as it was written, before `IFNAME` is replaced.
//! - An invalid pattern is an error, unless an earlier line matches.
//!
//! Source: plugins `plugins/meta/tuning`, whose patterns are Go's; Unicode classes are not supported here.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use cni::{Error, code};
use plugin_support::failure::refused;
use regex_lite::Regex;

/// Where the file is.
pub const PATH: &str = "/etc/cni/tuning/allowlist.conf";

/// Maximum file size, in bytes.
const FILE_MAX: u64 = 1 << 20;

/// Allow-list on the node.
#[derive(Debug)]
pub struct Allowlist {
    /// Content of the file; none without a file.
    text: Option<String>,
}

impl Allowlist {
    /// Reads the node's file.
    pub fn read() -> Result<Allowlist, Error> {
        Allowlist::read_from(Path::new(PATH))
    }

    fn read_from(path: &Path) -> Result<Allowlist, Error> {
        let failed =
            |error: io::Error| refused(&linux::Error::io(format!("read {}", path.display()), &error));
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Allowlist { text: None }),
            Err(error) => return Err(failed(error)),
        };
        let mut bytes = Vec::new();
        file.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
        if bytes.len() as u64 > FILE_MAX {
            let why = format!("read {}: larger than {FILE_MAX} bytes", path.display());
            return Err(Error::new(code::IO_FAILURE, why));
        }
        Ok(Allowlist { text: Some(String::from_utf8_lossy(&bytes).into_owned()) })
    }

    /// Fails unless `key` is allowed; `value` is used in the error.
    pub fn check(&self, key: &str, value: &str) -> Result<(), Error> {
        let Some(text) = &self.text else { return Ok(()) };
        for (number, line) in text.lines().enumerate().map(|(index, line)| (index + 1, line.trim())) {
            if line.is_empty() {
                continue;
            }
            let pattern = Regex::new(line)
                .map_err(|cause| Error::config(format!("{PATH} line {number}: {line:?}: {cause}")))?;
            if pattern.is_match(key) {
                return Ok(());
            }
        }
        Err(Error::key(format!("sysctl.{key}"), format!("{value:?}"), format!("not allowed by {PATH}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(text: &str, key: &str) -> Result<(), Error> {
        Allowlist { text: Some(text.to_owned()) }.check(key, "1")
    }

    #[test]
    fn tuning_allowlist_pattern_matches_anywhere_first_match_wins() {
        let text = "\n  ^net\\.ipv4\\.conf\\.IFNAME\\.[a-z_]*$ \r\nnet.core.somaxconn\n[broken\n";
        assert!(allows(text, "net.ipv4.conf.IFNAME.arp_notify").is_ok());
        assert!(allows(text, "net.core.somaxconn2").is_ok(), "unanchored");
        let error = allows(text, "net.ipv4.ip_forward").unwrap_err();
        assert!(error.msg.contains("allowlist.conf line 4: \"[broken\""), "{error}");
        let error = allows("net.core", "net.ipv4.ip_forward").unwrap_err();
        assert_eq!(error.code, 7);
        assert!(error.msg.starts_with("sysctl.net.ipv4.ip_forward: \"1\": not allowed"), "{error}");
        assert!(allows("", "net.core.somaxconn").is_err(), "an empty file allows nothing");
    }

    #[test]
    fn tuning_allowlist_absent_allows_all_unreadable_is_an_error() {
        let absent = Allowlist::read_from(Path::new("/no/such/file")).unwrap();
        assert!(absent.check("net.anything", "1").is_ok());
        let error = Allowlist::read_from(Path::new("/")).map(|_| ()).unwrap_err();
        assert_eq!((error.code, error.msg.as_str()), (5, "read /: is a directory"));
        assert_eq!(Allowlist::read_from(Path::new("/dev/zero")).map(|_| ()).unwrap_err().code, 5);
    }
}
