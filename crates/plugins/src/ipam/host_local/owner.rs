//! Whose a reservation is: the content of its file.
//!
//! The reference plugin writes the container's id, a carriage return and a line feed, and the interface's
//! name; its first versions wrote the id alone, which then stands for every interface of the container.
//! Anything around it that is white space is ignored.
//!
//! A file without content is what is left of a call that died, or of a disk that was full or lost power,
//! between creating and writing it: no caller has ever been told the address. Whoever reads these files
//! holds the lock, so nobody is about to write it. Content with a NUL in it has the same origin (file
//! systems that lose power pad with them).
//!
//! Source: plugins `plugins/ipam/host-local/backend/disk/backend.go`; issue containernetworking/plugins#498.

use cni::invocation::{Attachment, ValidAttachment};
use cni::name::{ContainerId, IfName};

const DIVIDER: &str = "\r\n";

/// Longest content that can be a plugin's, in bytes: two names and what is between them.
pub const CONTENT_MAX: usize = 1024;

/// Who holds an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The container.
    pub container: String,
    /// The interface inside it; absent in files of old versions.
    pub ifname: Option<String>,
}

/// What a reservation's file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The address is held.
    Owned(Owner),
    /// It never was: see above.
    Unfinished,
    /// Somebody wrote something else, whose address it is then.
    Foreign,
    /// A bad sector: it may be anybody's.
    Unreadable,
}

impl Owner {
    /// The owner that an attachment is.
    pub fn of(who: &Attachment) -> Owner {
        Owner { container: who.container.to_string(), ifname: Some(who.ifname.to_string()) }
    }

    /// The owner in files of old versions.
    pub fn without_interface(who: &Attachment) -> Owner {
        Owner { container: who.container.to_string(), ifname: None }
    }

    /// The content of its files.
    pub fn content(&self) -> String {
        match &self.ifname {
            Some(ifname) => format!("{}{DIVIDER}{ifname}", self.container),
            None => self.container.clone(),
        }
    }

    /// Is it one of these attachments? Without an interface, any of the container's will do.
    pub fn is_among(&self, valid: &[ValidAttachment]) -> bool {
        valid.iter().any(|one| {
            one.container_id == self.container && self.ifname.as_ref().is_none_or(|name| *name == one.ifname)
        })
    }
}

impl Content {
    /// Reads the bytes of a file.
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
    fn content_is_read_as_the_reference_plugin_reads_it() {
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
    fn what_is_written_reads_back() {
        for owner in [
            Owner { container: "id".into(), ifname: Some("eth0".into()) },
            Owner { container: "id".into(), ifname: None },
        ] {
            assert_eq!(Content::read(owner.content().as_bytes()), Content::Owned(owner));
        }
    }

    #[test]
    fn s32_an_old_file_is_valid_with_any_interface_of_its_container() {
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
