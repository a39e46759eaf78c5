//! Connections to processes of this node.
//!
//! A socket whose owner no longer accepts takes so many callers as its backlog holds, and then the next one waits for as long
//! as it likes, whatever it meant to wait for an answer. One that says a little again and again has an answer waited for as long
//! as it likes where each read has a limit of its own: so the whole has one.
//!
//! Source: unix(7), connect(2), socket(7) `SO_RCVTIMEO`, `SO_SNDTIMEO`.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Connects to a socket; that, and each write afterwards, may take `patience`.
///
/// # Errors
/// [`io::ErrorKind::TimedOut`] if nobody took the call by then; else what connect(2) says.
pub fn connect_within(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(patience))?;
    match connect(&socket, &SocketAddrUnix::new(path)?) {
        Ok(()) => Ok(UnixStream::from(socket)),
        Err(rustix::io::Errno::AGAIN) => {
            Err(io::Error::new(ErrorKind::TimedOut, "nobody takes calls there: its owner does not run"))
        }
        Err(errno) => Err(errno.into()),
    }
}

/// A conversation that has an end, however often the other side says a little.
///
/// Reads and writes fail with [`ErrorKind::TimedOut`] once it is over, also if it ends while they wait.
#[derive(Debug)]
pub struct Bounded<'a> {
    stream: &'a mut UnixStream,
    end: Instant,
    patience: Duration,
}

impl Bounded<'_> {
    /// From now on it may take `patience`.
    pub fn within(stream: &mut UnixStream, patience: Duration) -> Bounded<'_> {
        Bounded { stream, end: Instant::now() + patience, patience }
    }

    /// What is left of its time; never nothing, which would be for ever.
    fn left(&self) -> io::Result<Option<Duration>> {
        match self.end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(self.late()),
            left => Ok(Some(left)),
        }
    }

    fn late(&self) -> io::Error {
        io::Error::new(ErrorKind::TimedOut, format!("no answer within {} ms", self.patience.as_millis()))
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
    fn a_socket_whose_owner_takes_no_calls_holds_nobody_up() {
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
