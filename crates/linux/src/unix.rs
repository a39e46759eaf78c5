//! Connects to processes on this node, with a limit on the whole connection.
//!
//! If a process does not accept connections, clients queue up to the backlog, and then the next connect(2) blocks
//! forever. A server that sends a few bytes again and again can also delay an answer forever if only each read has a
//! timeout. The connection as a whole therefore has a deadline.
//!
//! Source: unix(7), connect(2), socket(7) `SO_RCVTIMEO`, `SO_SNDTIMEO`.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Connects to a socket; connecting, and each later write, may take at most `timeout`.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`]: the server did not accept in time. Other kinds: the error from connect(2).
pub fn connect_within(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    match connect(&socket, &SocketAddrUnix::new(path)?) {
        Ok(()) => Ok(UnixStream::from(socket)),
        Err(rustix::io::Errno::AGAIN) => Err(io::Error::new(
            ErrorKind::TimedOut,
            "no process accepts connections: the owner of the socket does not run",
        )),
        Err(errno) => Err(errno.into()),
    }
}

/// Connection with a deadline that does not depend on how often the peer sends.
///
/// After the deadline, reads and writes fail with [`ErrorKind::TimedOut`], even those that are waiting when it passes.
#[derive(Debug)]
pub struct Bounded<'a> {
    stream: &'a mut UnixStream,
    end: Instant,
    timeout: Duration,
}

impl Bounded<'_> {
    /// Limits the stream to `timeout` from now on.
    pub fn within(stream: &mut UnixStream, timeout: Duration) -> Bounded<'_> {
        Bounded { stream, end: Instant::now() + timeout, timeout }
    }

    /// Returns the time that remains; never zero, which the socket would interpret as no limit.
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(self.late()),
            left => Ok(Some(left)),
        }
    }

    fn late(&self) -> io::Error {
        io::Error::new(ErrorKind::TimedOut, format!("no answer within {} ms", self.timeout.as_millis()))
    }

    /// Turns the kernel's EAGAIN into a timeout error.
    fn named(&self, cause: io::Error) -> io::Error {
        if cause.kind() == ErrorKind::WouldBlock { self.late() } else { cause }
    }
}

impl Read for Bounded<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer).map_err(|cause| self.named(cause))
    }
}

impl Write for Bounded<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(buffer).map_err(|cause| self.named(cause))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn unix_connect_times_out_without_accept() {
        let path = std::env::temp_dir().join(format!("weft-backlog-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let began = Instant::now();
        let mut taken = Vec::new();
        let refused = loop {
            match connect_within(&path, Duration::from_millis(200)) {
                Ok(stream) => taken.push(stream),
                Err(cause) => break cause,
            }
            assert!(taken.len() < 100);
        };
        assert_eq!(refused.kind(), ErrorKind::TimedOut, "{refused}");
        assert!(began.elapsed() >= Duration::from_millis(150) && began.elapsed() < Duration::from_secs(20));
        assert!(!taken.is_empty());
        drop(listener);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(connect_within(&path, Duration::from_secs(1)).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
