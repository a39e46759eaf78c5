//! Error from a kernel operation: operation, object, errno, and the kernel's own explanation if there is one.
//!
//! Callers decide by [`Error::kind`] and never by the text.
//!
//! Source: errno(3); kernel Documentation/userspace-api/netlink/intro.rst "Extended ACK".

use std::fmt;
use std::io;

use rustix::io::Errno;

/// Error from an operation that failed or that the kernel refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    operation: String,
    cause: Cause,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Cause {
    /// Errno with the extended-ack text, which may be empty.
    Kernel { errno: Errno, explanation: String },
    /// The answer cannot be decoded, or the request cannot be encoded.
    Protocol(String),
    /// The answer is larger than the caller accepts.
    Exceeded(String),
}

/// Kind of an error, as far as callers need to tell errors apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The object does not exist (ENODEV, ENOENT, ENOTDIR, ESRCH, ENXIO, EADDRNOTAVAIL).
    Absent,
    /// The object already exists (EEXIST).
    Exists,
    /// The object is in use (EBUSY).
    Busy,
    /// The kernel does not support the operation (EOPNOTSUPP, EAFNOSUPPORT, EPROTONOSUPPORT).
    Unsupported,
    /// Permission denied (EPERM, EACCES).
    Denied,
    /// The operation took too long (EAGAIN on a socket with a time limit, ETIMEDOUT).
    TimedOut,
    /// The answer is larger than the caller accepts, or takes longer.
    Exceeded,
    /// Anything else.
    Other,
}

impl Error {
    /// Returns a kernel error without explanation.
    pub fn kernel(operation: impl Into<String>, errno: Errno) -> Error {
        Error::explained(operation, errno, "")
    }

    /// Returns a kernel error with the extended-ack text.
    pub fn explained(operation: impl Into<String>, errno: Errno, explanation: impl Into<String>) -> Error {
        Error { operation: operation.into(), cause: Cause::Kernel { errno, explanation: explanation.into() } }
    }

    /// Returns the error for an answer that cannot be decoded, or a request that cannot be encoded.
    pub fn protocol(operation: impl Into<String>, why: impl Into<String>) -> Error {
        Error { operation: operation.into(), cause: Cause::Protocol(why.into()) }
    }

    /// Returns the error for an answer that is larger than the caller accepts.
    pub(crate) fn exceeded(operation: impl Into<String>, why: impl Into<String>) -> Error {
        Error { operation: operation.into(), cause: Cause::Exceeded(why.into()) }
    }

    /// Returns the error from a file operation.
    pub fn io(operation: impl Into<String>, error: &io::Error) -> Error {
        match Errno::from_io_error(error) {
            Some(errno) => Error::kernel(operation, errno),
            None => Error::protocol(operation, error.to_string()),
        }
    }

    /// Returns the error kind, by which callers decide.
    pub fn kind(&self) -> Kind {
        let errno = match &self.cause {
            Cause::Kernel { errno, .. } => *errno,
            Cause::Protocol(_) => return Kind::Other,
            Cause::Exceeded(_) => return Kind::Exceeded,
        };
        match errno {
            Errno::NODEV | Errno::NOENT | Errno::NOTDIR | Errno::SRCH | Errno::NXIO | Errno::ADDRNOTAVAIL => {
                Kind::Absent
            }
            Errno::EXIST => Kind::Exists,
            Errno::BUSY => Kind::Busy,
            Errno::OPNOTSUPP | Errno::AFNOSUPPORT | Errno::PROTONOSUPPORT => Kind::Unsupported,
            Errno::PERM | Errno::ACCESS => Kind::Denied,
            Errno::AGAIN | Errno::TIMEDOUT => Kind::TimedOut,
            _ => Kind::Other,
        }
    }

    /// Whether memory, descriptors, space or time ran out, so that a later attempt may succeed. Any other error comes
    /// from the request itself and would recur.
    pub fn is_transient(&self) -> bool {
        let of_time = [Errno::INTR, Errno::AGAIN, Errno::TIMEDOUT];
        self.errno().is_some_and(|errno| LACKING.contains(&errno) || of_time.contains(&errno))
    }

    /// Adds the kernel module that may be missing, if the kernel does not support the request.
    #[must_use]
    pub(crate) fn of_module(self, module: &str) -> Error {
        self.hinting(&format!("load the kernel module on this node: modprobe {module}"))
    }

    /// Adds the kernel option that is missing, if the kernel does not support the request. `modprobe` cannot help: the
    /// module was built without the option.
    #[must_use]
    pub(crate) fn of_option(self, option: &str) -> Error {
        self.hinting(&format!("the kernel of this node needs the option {option}"))
    }

    /// Whether the kernel knows no such type of link.
    pub(crate) fn is_unknown_type(&self) -> bool {
        matches!(&self.cause, Cause::Kernel { explanation, .. } if explanation.contains("Unknown device type"))
    }

    fn hinting(mut self, hint: &str) -> Error {
        if let Cause::Kernel { errno: Errno::OPNOTSUPP, explanation } = &mut self.cause {
            let divider = if explanation.is_empty() { "" } else { "; " };
            *explanation = format!("{explanation}{divider}{hint}");
        }
        self
    }

    /// Returns the errno, if the kernel sent one.
    pub fn errno(&self) -> Option<Errno> {
        match &self.cause {
            Cause::Kernel { errno, .. } => Some(*errno),
            Cause::Protocol(_) | Cause::Exceeded(_) => None,
        }
    }
}

/// Whether a path leads to no file: an element of it is missing, is no directory, is too long, or is a link to itself.
/// Another failure to open a path may hide a file.
pub fn leads_nowhere(error: &io::Error) -> bool {
    Errno::from_io_error(error).is_some_and(is_nowhere)
}

/// As [`leads_nowhere`], for an errno.
pub fn is_nowhere(errno: Errno) -> bool {
    matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG | Errno::LOOP)
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.operation)?;
        match &self.cause {
            Cause::Kernel { errno, explanation } => {
                f.write_str(&describe(*errno))?;
                if !explanation.is_empty() {
                    write!(f, " ({explanation})")?;
                }
                Ok(())
            }
            Cause::Protocol(why) | Cause::Exceeded(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Error {}

/// Returns the system's errno text in lower case and without the number, for example `no such device` for ENODEV.
fn describe(errno: Errno) -> String {
    let text = io::Error::from_raw_os_error(errno.raw_os_error()).to_string();
    let words = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = words.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => text,
    }
}

/// Turns "the object does not exist" into success, for removals.
pub fn absent_is_fine(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(error) if error.kind() == Kind::Absent => Ok(()),
        other => other,
    }
}

/// Turns "the object already exists" into success, for creations that may be repeated.
pub fn exists_is_fine(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(error) if error.kind() == Kind::Exists => Ok(()),
        other => other,
    }
}

/// Errnos which mean that memory or descriptors ran out.
const LACKING: [Errno; 4] = [Errno::NOMEM, Errno::NOBUFS, Errno::MFILE, Errno::NFILE];

/// Whether this process or the kernel ran out of memory or descriptors, which has nothing to do with the request.
pub fn lacks_resources(cause: &io::Error) -> bool {
    Errno::from_io_error(cause).is_some_and(|errno| LACKING.contains(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_is_transient_for_lack_of_resources_only() {
        let is_transient = |errno| Error::kernel("change link eth0", errno).is_transient();
        assert!(
            [Errno::NOBUFS, Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::INTR]
                .into_iter()
                .all(is_transient)
        );
        assert!(![Errno::INVAL, Errno::BUSY, Errno::NODEV, Errno::PERM].into_iter().any(is_transient));
        assert!(!Error::protocol("change link eth0", "unreadable").is_transient());
    }

    #[test]
    fn error_of_a_missing_kernel_module_names_it() {
        let error =
            Error::explained("create vlan net1", Errno::OPNOTSUPP, "Unknown device type").of_module("8021q");
        let text = "(Unknown device type; load the kernel module on this node: modprobe 8021q)";
        assert!(error.to_string().ends_with(text), "{error}");
        let other = Error::kernel("create vlan net1", Errno::EXIST).of_module("8021q");
        assert!(!other.to_string().contains("modprobe"), "{other}");
    }

    #[test]
    fn error_text_is_a_path_in_lower_case() {
        let error = Error::explained("create link net1 on eth9", Errno::NODEV, "Unknown parent");
        assert_eq!(error.to_string(), "create link net1 on eth9: no such device (Unknown parent)");
        assert_eq!(error.kind(), Kind::Absent);
        assert!(absent_is_fine(Err(error)).is_ok());
    }
}
