//! Connections to processes of this node, with a limit on their whole duration.
//!
//! A socket whose owner does not accept queues as many clients as its backlog allows; the next connect(2) blocks without a
//! limit. A server that sends a few bytes again and again can also delay an answer without a limit if only each read has
//! a timeout. Therefore the whole connection has a deadline.
//!
//! Source: unix(7), connect(2), socket(7) `SO_RCVTIMEO`, `SO_SNDTIMEO`.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Connects to a socket; connecting, and each later write, may take `timeout`.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`]: the server did not accept in time. Other kinds: the error of connect(2).
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

/// Connection with a deadline, which does not depend on how often the peer sends.
///
/// Reads and writes fail with [`ErrorKind::TimedOut`] after the deadline, also if it passes while they wait.
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

    /// Returns the remaining time; never zero, which the socket would interpret as no limit.
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(self.late()),
            left => Ok(Some(left)),
        }
    }

    fn late(&self) -> io::Error {
        io::Error::new(ErrorKind::TimedOut, format!("no answer within {} ms", self.timeout.as_millis()))
    }

    /// Names the timeout, for which the kernel's error is EAGAIN.
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
