//! Why the kernel said no: operation, object, errno, and its own explanation where it gave one.
//!
//! Rule: nobody decides on the text; [`Error::kind`] is what callers branch on.
//!
//! Source: errno(3); kernel Documentation/userspace-api/netlink/intro.rst "Extended ACK".

use std::fmt;
use std::io;

use rustix::io::Errno;

/// A refused or failed operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    operation: String,
    cause: Cause,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Cause {
    /// The kernel's errno and its extended-ack text, which may be empty.
    Kernel { errno: Errno, explanation: String },
    /// The kernel answered something unreadable, or we cannot say what we were asked to.
    Protocol(String),
}

/// What kind of failure it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The object is not there (ENODEV, ENOENT, ENOTDIR, ESRCH, ENXIO, EADDRNOTAVAIL).
    Absent,
    /// The object is there already (EEXIST).
    Exists,
    /// Something else uses it (EBUSY).
    Busy,
    /// This kernel cannot do it (EOPNOTSUPP, EAFNOSUPPORT, EPROTONOSUPPORT).
    Unsupported,
    /// Not allowed (EPERM, EACCES).
    Denied,
    /// It took too long (EAGAIN on a socket with a time limit, ETIMEDOUT).
    TimedOut,
    /// Anything else.
    Other,
}

impl Error {
    /// A refusal by the kernel.
    pub fn kernel(operation: impl Into<String>, errno: Errno) -> Error {
        Error::explained(operation, errno, "")
    }

    /// A refusal by the kernel with its extended-ack text.
    pub fn explained(operation: impl Into<String>, errno: Errno, explanation: impl Into<String>) -> Error {
        Error { operation: operation.into(), cause: Cause::Kernel { errno, explanation: explanation.into() } }
    }

    /// An answer we cannot read, or a request that cannot be made.
    pub fn protocol(operation: impl Into<String>, why: impl Into<String>) -> Error {
        Error { operation: operation.into(), cause: Cause::Protocol(why.into()) }
    }

    /// A failure of a file operation.
    pub fn io(operation: impl Into<String>, error: &io::Error) -> Error {
        match Errno::from_io_error(error) {
            Some(errno) => Error::kernel(operation, errno),
            None => Error::protocol(operation, error.to_string()),
        }
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> Kind {
        let Cause::Kernel { errno, .. } = &self.cause else { return Kind::Other };
        match *errno {
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

    /// Was it for want of something that may be there in a moment: memory, descriptors, room, time? Anything else is said of
    /// what was asked for, and would be said again.
    pub fn may_pass(&self) -> bool {
        let of_time = [Errno::INTR, Errno::AGAIN, Errno::TIMEDOUT];
        self.errno().is_some_and(|errno| LACKING.contains(&errno) || of_time.contains(&errno))
    }

    /// The errno, if the kernel gave one.
    pub fn errno(&self) -> Option<Errno> {
        match &self.cause {
            Cause::Kernel { errno, .. } => Some(*errno),
            Cause::Protocol(_) => None,
        }
    }
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
            Cause::Protocol(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Error {}

/// `no such device` for ENODEV: the system's words, lower case, without the number.
fn describe(errno: Errno) -> String {
    let text = io::Error::from_raw_os_error(errno.raw_os_error()).to_string();
    let words = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = words.chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => text,
    }
}

/// Makes a result whose object is already gone a success.
pub fn absent_is_fine(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(error) if error.kind() == Kind::Absent => Ok(()),
        other => other,
    }
}

/// Makes a result whose object is already there a success.
pub fn exists_is_fine(result: Result<(), Error>) -> Result<(), Error> {
    match result {
        Err(error) if error.kind() == Kind::Exists => Ok(()),
        other => other,
    }
}

/// Memory, and descriptors.
const LACKING: [Errno; 4] = [Errno::NOMEM, Errno::NOBUFS, Errno::MFILE, Errno::NFILE];

/// Had this process, or the kernel, no memory or descriptor left? It says nothing of what was asked for.
pub fn is_lacking(cause: &io::Error) -> bool {
    Errno::from_io_error(cause).is_some_and(|errno| LACKING.contains(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lacking_may_pass_and_what_was_refused_may_not() {
        let may_pass = |errno| Error::kernel("change link eth0", errno).may_pass();
        assert!(
            [Errno::NOBUFS, Errno::NOMEM, Errno::MFILE, Errno::NFILE, Errno::INTR].into_iter().all(may_pass)
        );
        assert!(![Errno::INVAL, Errno::BUSY, Errno::NODEV, Errno::PERM].into_iter().any(may_pass));
        assert!(!Error::protocol("change link eth0", "unreadable").may_pass());
    }

    #[test]
    fn the_sentence_is_a_path_in_lower_case() {
        let error = Error::explained("create link net1 on eth9", Errno::NODEV, "Unknown parent");
        assert_eq!(error.to_string(), "create link net1 on eth9: no such device (Unknown parent)");
        assert_eq!(error.kind(), Kind::Absent);
        assert!(absent_is_fine(Err(error)).is_ok());
    }
}
