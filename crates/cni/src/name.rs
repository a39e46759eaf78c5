//! Names that CNI validates: container id, network name, interface name, plugin type.
//!
//! A value with one of these types is valid, so code that receives one need not check it again. All of them end up in
//! file names or kernel calls: none contains `/`, and none is `.` or `..`.
//!
//! Source: SPEC 1.1.0 §2 and §3 (S24); libcni `pkg/utils/utils.go`; kernel `dev_valid_name`.

use std::fmt;

use crate::error::{Error, code};

/// Maximum length of an interface name in bytes (`IFNAMSIZ` without the terminator).
pub const IFNAME_MAX: usize = 15;

/// Maximum length of a container id or network name in bytes, because they become file names.
pub const NAME_MAX: usize = 200;

/// Number of characters that an error shows from a name that is too long.
const SHOWN_MAX: usize = 40;

macro_rules! text_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// Returns the name as a string.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(&self.0)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = String::deserialize(from)?;
                $name::new(&text).map_err(serde::de::Error::custom)
            }
        }
    };
}

text_newtype! {
    /// Container id: starts with a letter or digit, followed by letters, digits, `_`, `.` and `-`.
    ContainerId
}

text_newtype! {
    /// Network name, with the same alphabet as a container id.
    NetworkName
}

text_newtype! {
    /// Interface name that the kernel accepts: 1–15 bytes, not `.` or `..`, without `/`, `:` and spaces.
    IfName
}

text_newtype! {
    /// Plugin `type`: a file name, never a path.
    PluginType
}

impl ContainerId {
    /// Validates `text`. Errors are the same as in libcni: code 3 if it is empty, code 4 if it is malformed.
    pub fn new(text: &str) -> Result<ContainerId, Error> {
        if text.is_empty() {
            return Err(Error::new(code::UNKNOWN_CONTAINER, "missing containerID"));
        }
        if let Some(fault) = identifier_fault(text, "containerID") {
            return Err(Error::new(code::INVALID_ENVIRONMENT, fault));
        }
        Ok(ContainerId(text.to_owned()))
    }
}

impl NetworkName {
    /// Validates `text`. Error: code 7.
    pub fn new(text: &str) -> Result<NetworkName, Error> {
        if text.is_empty() {
            return Err(Error::new(code::INVALID_CONFIG, "missing network name"));
        }
        if let Some(fault) = identifier_fault(text, "network name") {
            return Err(Error::new(code::INVALID_CONFIG, fault));
        }
        Ok(NetworkName(text.to_owned()))
    }
}

impl IfName {
    /// Validates `text`. Error: code 4, naming the broken rule.
    pub fn new(text: &str) -> Result<IfName, Error> {
        match ifname_fault(text) {
            None => Ok(IfName(text.to_owned())),
            Some(fault) => {
                Err(Error::new(code::INVALID_ENVIRONMENT, format!("interface name {text:?} {fault}")))
            }
        }
    }
}

impl PluginType {
    /// Validates `text`. Error: code 7.
    pub fn new(text: &str) -> Result<PluginType, Error> {
        let illegal = |c: char| c == '/' || c == '\\' || c.is_control();
        if text.is_empty() {
            return Err(Error::new(code::INVALID_CONFIG, "missing plugin type"));
        }
        if text.len() > NAME_MAX || text == "." || text == ".." || text.contains(illegal) {
            return Err(Error::new(
                code::INVALID_CONFIG,
                format!("invalid plugin type {text:?}: it must be a file name"),
            ));
        }
        Ok(PluginType(text.to_owned()))
    }
}

/// Returns why `text` is too long or does not match `^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$`; `None` if it is an identifier.
fn identifier_fault(text: &str, kind: &str) -> Option<String> {
    if text.len() > NAME_MAX {
        let beginning: String = text.chars().take(SHOWN_MAX).collect();
        return Some(format!("{kind} {beginning:?}…: {} bytes, the maximum is {NAME_MAX}", text.len()));
    }
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    let is_valid = text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.bytes().all(is_inner);
    (!is_valid).then(|| format!("invalid characters in {kind} {text:?}"))
}

/// Returns why `text` is not an interface name; `None` if it is one.
///
/// Unicode white space counts as space, including U+0085 and U+00A0, as in libcni.
pub fn ifname_fault(text: &str) -> Option<&'static str> {
    if text.is_empty() {
        return Some("is empty");
    }
    if text.len() > IFNAME_MAX {
        return Some("is longer than 15 bytes");
    }
    if text == "." || text == ".." {
        return Some("is . or ..");
    }
    if text.contains(|c: char| c == '/' || c == ':' || c == '\0' || c.is_whitespace()) {
        return Some("contains / or : or whitespace");
    }
    if text.contains('%') {
        return Some("contains %, which the kernel interprets as a pattern");
    }
    if text == "all" || text == "default" {
        return Some("is the name that the kernel uses for all interfaces");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    // Requirements: S24
    #[test]
    fn name_alphabet_of_container_id_and_network() {
        for good in ["a", "0", "a.b-c_d", "cnitool-77383ca0a0715733ca6f", "A1"] {
            assert!(ContainerId::new(good).is_ok(), "{good}");
            assert!(NetworkName::new(good).is_ok(), "{good}");
        }
        for bad in ["-a", ".a", "_a", "a/b", "a b", "a\n", "a\0", "ä", "..", &"x".repeat(201)] {
            assert_eq!(ContainerId::new(bad).map_err(|e| e.code), Err(4), "{bad:?}");
            assert_eq!(NetworkName::new(bad).map_err(|e| e.code), Err(7), "{bad:?}");
        }
    }

    // Requirements: S18
    #[test]
    fn name_empty_container_id_is_code_3_and_network_code_7() {
        assert_eq!(ContainerId::new("").map_err(|e| e.code), Err(3));
        assert_eq!(NetworkName::new("").map_err(|e| e.code), Err(7));
    }

    // Requirements: S24
    #[test]
    fn name_of_a_plugin_type_is_a_file_name() {
        for good in ["bridge", "host-local", "my.plugin"] {
            assert!(PluginType::new(good).is_ok(), "{good}");
        }
        for bad in ["", "a/b", "../bridge", "a\\b", ".", "..", "a\0b", "a\n"] {
            assert_eq!(PluginType::new(bad).map_err(|e| e.code), Err(7), "{bad:?}");
        }
    }

    #[test]
    fn name_of_an_interface_is_valid_for_the_kernel() {
        for good in ["eth0", "a", "net1.100", "exactly15bytes_", "ä"] {
            assert!(IfName::new(good).is_ok(), "{good}");
        }
        let bad =
            ["", ".", "..", "a/b", "a:b", "a b", "a\tb", "a\u{85}", "a\u{a0}", "sixteen-bytes---", "a\0b"];
        // The kernel would change these names, or has no directory for their settings.
        let bad = bad.into_iter().chain(["x%d", "a%%", "%", "all", "default"]);
        for bad in bad {
            assert_eq!(IfName::new(bad).map_err(|e| e.code), Err(4), "{bad:?}");
        }
    }
}
