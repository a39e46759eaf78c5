//! `dhcp daemon`: listens on a socket and manages leases.
//!
//! - It serves only root and the user that it runs as.
//! - Requests are limited in size, duration and number.
//! - If the socket file has no listener, the daemon replaces it; if another daemon listens there, this one does not
//!   start.
//! - SIGTERM ends the daemon at once and releases no lease. The next daemon takes over, just as this one takes over
//!   from the Go plugin's daemon.
//!
//! Source: Go plugin `plugins/ipam/dhcp/{main,daemon}.go`; sd_listen_fds(3).

use std::fs;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use cni::version::Version;
use cni::{Context, Error, code};
use plugin_support::log;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, sockopt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::flags::Flags;
use crate::lease_manager::{LeaseManager, LeaseRequest, Settings};
use crate::protocol::{self, DaemonAnswer, DaemonRequest};
use crate::v4::exchange::Timing;

/// Maximum number of requests that are handled at the same time.
const CONNECTIONS_MAX: usize = 256;
/// Timeout for receiving a request, and for sending an answer.
const IO_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval at which the daemon checks whether a signal wants it to end.
const POLL: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
/// Pause after a connection could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// First file descriptor that a service manager passes.
const FIRST_PASSED: i32 = 3;

/// Runs the daemon until a signal ends it. `words` are the command-line flags.
pub fn run(words: &[&str]) -> Result<(), Error> {
    let Flags {
        pidfile,
        host_prefix,
        socket,
        state,
        broadcast,
        timeout,
        resend_max,
        resend_timeout,
        takeover,
        caches,
    } = Flags::read(words)?;
    let configured = socket.clone();
    // Each lease that waits for its server needs three descriptors. If the limit cannot be raised, the current one
    // applies.
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
    // All files that the daemon creates must be private.
    rustix::process::umask(rustix::fs::Mode::from_bits_truncate(0o077));
    let socket = PathBuf::from(format!("{host_prefix}{}", socket.display()));
    let state = state.unwrap_or_else(|| socket.with_extension("leases"));
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&ended))
            .map_err(|cause| Error::io("wait for signals", cause))?;
    }
    let (listener, own) = listener(&socket)?;
    let bound = inode_of(&socket);
    if let Some(path) = &pidfile {
        fs::write(path, std::process::id().to_string())
            .map_err(|cause| Error::io(format_args!("write {}", path.display()), cause))?;
    }
    let timing = Timing { timeout, resend_max, resend_timeout };
    let manager = LeaseManager::start(Settings { timing, broadcast, host_prefix, state })?;
    if takeover {
        // A passed socket may have another path than the flags say.
        let passed = listener.local_addr().ok().and_then(|address| address.as_pathname().map(Path::to_owned));
        manager.take_over(&caches, &passed.filter(|_| !own).unwrap_or(configured));
    }
    match own {
        true => log!("dhcp: listening on {}", socket.display()),
        false => log!("dhcp: listening on the socket passed by the service manager"),
    }
    serve(&listener, &manager, &ended)?;
    if own && inode_of(&socket) == bound {
        // Best effort: another process may have removed the file already.
        let _ = fs::remove_file(&socket);
    }
    if let Some(path) = pidfile {
        let _ = fs::remove_file(path);
    }
    Ok(())
}

/// Returns a file's inode; `None` if there is no file.
fn inode_of(path: &Path) -> Option<u64> {
    path.symlink_metadata().ok().map(|there| there.ino())
}

/// Returns the socket to listen on, and whether this process must remove the file at the end.
fn listener(path: &Path) -> Result<(UnixListener, bool), Error> {
    if let Some(passed) = passed_socket()? {
        return Ok((UnixListener::from(passed), false));
    }
    let failed = |cause| Error::io(format_args!("listen on {}", path.display()), cause);
    if let Some(directory) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
    }
    if let Ok(there) = path.symlink_metadata() {
        let refused =
            |why: &str| Err(Error::new(code::IO_FAILURE, format!("listen on {}: {why}", path.display())));
        if !there.file_type().is_socket() {
            return refused("this file is not a socket; remove it, or choose another path with -socketpath");
        }
        match UnixStream::connect(path) {
            Err(cause) if cause.kind() == ErrorKind::ConnectionRefused => {}
            Err(cause) => return Err(failed(cause)),
            Ok(_) => return refused("another daemon listens there"),
        }
        fs::remove_file(path).map_err(failed)?;
    }
    Ok((UnixListener::bind(path).map_err(failed)?, true))
}

/// Returns the socket that a service manager passed, if there is one.
fn passed_socket() -> Result<Option<OwnedFd>, Error> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Ok(None);
    }
    match number("LISTEN_FDS") {
        None | Some(0) => Ok(None),
        Some(1) => {
            let failed = |errno: Errno| Error::io("take over the socket of LISTEN_FDS", errno);
            // Duplicates the descriptor through a pidfd for this process, because std has no safe way to own a
            // descriptor that is given as a number.
            let own =
                rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty());
            let own = own.map_err(failed)?;
            let flags = rustix::process::PidfdGetfdFlags::empty();
            rustix::process::pidfd_getfd(own, FIRST_PASSED, flags).map(Some).map_err(failed)
        }
        Some(more) => Err(Error::key("LISTEN_FDS", more, "more than one socket")),
    }
}

fn serve(listener: &UnixListener, manager: &Arc<LeaseManager>, ended: &AtomicBool) -> Result<(), Error> {
    let failed = |cause| Error::io("listen", cause);
    listener.set_nonblocking(true).map_err(failed)?;
    let connections = Arc::new(AtomicUsize::new(0));
    while !ended.load(Ordering::Relaxed) {
        match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&POLL)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(failed(errno.into())),
        }
        let Ok((stream, _)) = listener.accept() else {
            // While no descriptor is free, the next attempt would fail at once.
            std::thread::sleep(ACCEPT_PAUSE);
            continue;
        };
        if connections.load(Ordering::Relaxed) >= CONNECTIONS_MAX {
            continue;
        }
        connections.fetch_add(1, Ordering::Relaxed);
        let (manager, count) = (Arc::clone(manager), Arc::clone(&connections));
        let answer = std::thread::Builder::new().spawn(move || {
            if let Err(error) = serve_connection(stream, &manager) {
                log!("dhcp: {error}");
            }
            count.fetch_sub(1, Ordering::Relaxed);
        });
        if answer.is_err() {
            connections.fetch_sub(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Handles one request.
fn serve_connection(mut stream: UnixStream, manager: &Arc<LeaseManager>) -> Result<(), Error> {
    let failed = |cause| Error::io("prepare connection", cause);
    stream.set_nonblocking(false).map_err(failed)?;
    stream.set_read_timeout(Some(IO_TIMEOUT)).map_err(failed)?;
    stream.set_write_timeout(Some(IO_TIMEOUT)).map_err(failed)?;
    let peer = sockopt::socket_peercred(&stream).map_err(|errno| failed(errno.into()))?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        return Err(Error::internal(format!("rejected connection from uid {}", peer.uid.as_raw())));
    }
    let daemon_request = protocol::receive(&mut stream).context("question")?;
    let answer = answer(daemon_request, manager, &|| is_closed(&stream));
    protocol::send(&mut stream, &answer.unwrap_or_else(DaemonAnswer::Refused)).context("answer")
}

fn answer(
    daemon_request: DaemonRequest,
    manager: &Arc<LeaseManager>,
    is_over: &dyn Fn() -> bool,
) -> Result<DaemonAnswer, Error> {
    let lease = |success: cni::result::Success| success.to_value(Version::LATEST).map(DaemonAnswer::Lease);
    match daemon_request {
        DaemonRequest::Ping => Ok(DaemonAnswer::Done),
        DaemonRequest::Allocate { owner, netns, options, priority, families, v6_request } => {
            let lease_request = LeaseRequest { families, options, priority, v6_request };
            lease(manager.allocate(&owner, &netns, &lease_request, is_over)?)
        }
        DaemonRequest::Inspect { owner, families } => lease(manager.inspect(&owner, &families)?),
        DaemonRequest::Release { owner } => manager.release(&owner).map(|()| DaemonAnswer::Done),
        DaemonRequest::Keep { network, valid } => {
            manager.retain(&network, &valid).map(|()| DaemonAnswer::Done)
        }
    }
}

/// Whether the client has closed the connection, so that nothing waits for the lease any more.
fn is_closed(stream: &UnixStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match rustix::net::recv(stream, &mut [0; 1], flags) {
        Ok((length, _)) => length == 0,
        Err(errno) => !matches!(errno, Errno::AGAIN | Errno::INTR),
    }
}
