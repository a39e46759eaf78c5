//! Owner of a reservation, as the reservation file contains it.
//!
//! The reference plugin writes the container's id, a carriage return and a line feed, and the interface's name. The
//! first versions wrote only the id, which stands for every interface that the container has. White space around it is
//! ignored.
//!
//! An empty file is left if a kill, a full disk or a power failure came between the creation and the write.
//! Such an address was never returned to a caller. The process that reads a file holds the lock, so no other process
//! is about to write it. Content with a NUL has the same origin: some file systems pad with NULs after a
//! power failure.
//!
//! Source: plugins `plugins/ipam/host-local/backend/disk/backend.go`; issue containernetworking/plugins#498.

use cni::invocation::{Attachment, ValidAttachment};
use cni::name::{ContainerId, IfName};

const DIVIDER: &str = "\r\n";

/// Maximum size that a plugin writes, in bytes: two names and the separator.
pub const CONTENT_MAX: usize = 1024;

/// Holder of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Container id.
    pub container: String,
    /// Interface name in the container; none in files from old versions.
    pub ifname: Option<String>,
}

/// Content of a reservation's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The address is allocated.
    Owned(Owner),
    /// The address was never allocated; see above.
    Unfinished,
    /// The file is another program's, and so is the address.
    Foreign,
    /// The file cannot be read, for example from a bad sector. The owner is unknown.
    Unreadable,
}

impl Owner {
    /// Returns the owner for an attachment.
    pub fn of(who: &Attachment) -> Owner {
        Owner { container: who.container.to_string(), ifname: Some(who.ifname.to_string()) }
    }

    /// Returns the owner as in files from old versions.
    pub fn without_interface(who: &Attachment) -> Owner {
        Owner { container: who.container.to_string(), ifname: None }
    }

    /// Returns the file content.
    pub fn content(&self) -> String {
        match &self.ifname {
            Some(ifname) => format!("{}{DIVIDER}{ifname}", self.container),
            None => self.container.clone(),
        }
    }

    /// Whether the owner is one of these attachments. Without an interface, any that the container has
    /// matches.
    pub fn is_among(&self, valid: &[ValidAttachment]) -> bool {
        valid.iter().any(|one| {
            one.container_id == self.container && self.ifname.as_ref().is_none_or(|name| *name == one.ifname)
        })
    }
}

impl Content {
    /// Decodes what a file contains.
    pub fn read(bytes: &[u8]) -> Content {
        if bytes.len() > CONTENT_MAX {
            return Content::Foreign;
        }
        if bytes.contains(&0) {
            return Content::Unfinished;
        }
        let Ok(text) = std::str::from_utf8(bytes).map(str::trim) else { return Content::Foreign };
        if text.is_empty() {
            return Content::Unfinished;
        }
        let (container, ifname) = match text.split_once(DIVIDER) {
            Some((container, ifname)) => (container, Some(ifname)),
            None => (text, None),
        };
        let legal =
            ContainerId::new(container).is_ok() && ifname.is_none_or(|name| IfName::new(name).is_ok());
        match legal {
            true => {
                Content::Owned(Owner { container: container.to_owned(), ifname: ifname.map(str::to_owned) })
            }
            false => Content::Foreign,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(container: &str, ifname: Option<&str>) -> Content {
        Content::Owned(Owner { container: container.to_owned(), ifname: ifname.map(str::to_owned) })
    }

    #[test]
    fn host_local_file_is_decoded_as_by_the_reference_plugin() {
        let long = "x".repeat(CONTENT_MAX + 1);
        let cases: [(&[u8], Content); 14] = [
            (b"id\r\neth0", owned("id", Some("eth0"))),
            (b" id\r\neth0\n", owned("id", Some("eth0"))),
            (b"id", owned("id", None)),
            (b"id\r\n", owned("id", None)),
            (b"", Content::Unfinished),
            (b" \n", Content::Unfinished),
            (b"\0\0\0\0", Content::Unfinished),
            (b"id\r\n\0\0\0\0", Content::Unfinished),
            (b"kept for the printer", Content::Foreign),
            (b"id\neth0", Content::Foreign),
            (b"id\r\neth 0", Content::Foreign),
            (b"../id\r\neth0", Content::Foreign),
            (b"\xff\xfe", Content::Foreign),
            (long.as_bytes(), Content::Foreign),
        ];
        for (bytes, expected) in cases {
            assert_eq!(Content::read(bytes), expected, "{:?}", String::from_utf8_lossy(bytes));
        }
    }

    #[test]
    fn host_local_owner_round_trips() {
        for owner in [
            Owner { container: "id".into(), ifname: Some("eth0".into()) },
            Owner { container: "id".into(), ifname: None },
        ] {
            assert_eq!(Content::read(owner.content().as_bytes()), Content::Owned(owner));
        }
    }

    #[test]
    fn gc_old_host_local_file_matches_any_interface() {
        let valid = [ValidAttachment { container_id: "a".into(), ifname: "eth0".into() }];
        let owner = |container: &str, ifname: Option<&str>| Owner {
            container: container.to_owned(),
            ifname: ifname.map(str::to_owned),
        };
        for (owner, expected) in [
            (owner("a", Some("eth0")), true),
            (owner("a", Some("eth1")), false),
            (owner("a", None), true),
            (owner("b", Some("eth0")), false),
            (owner("b", None), false),
        ] {
            assert_eq!(owner.is_among(&valid), expected, "{owner:?}");
        }
    }
}
