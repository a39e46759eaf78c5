//! `dhcp daemon`: listens on a socket and keeps leases.
//!
//! Rules: only root (or whoever it runs as) is answered; a question has an end in time and in size, and there are
//! only so many at once; a socket that nobody listens on any more is replaced, one that somebody does is left alone.
//! When it is told to end it ends at once and gives nothing back: the next daemon takes over, as this one does from the
//! Go plugin's.
//!
//! Source: Go plugin `plugins/ipam/dhcp/{main,daemon}.go`; sd_listen_fds(3).

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
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
use crate::lease_manager::{LeaseManager, Settings, Wanted};
use crate::protocol::{self, Answer, Question};
use crate::v4::exchange::Timing;

/// Questions that are answered at once, at most.
const CONNECTIONS_MAX: usize = 256;
/// How long a question or an answer may take on its way.
const ON_THE_WAY: Duration = Duration::from_secs(10);
/// How often it looks whether it shall end.
const GLANCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };
/// How long nobody comes in after one could not.
const PAUSE: Duration = Duration::from_millis(50);
/// The first descriptor that a service manager hands over.
const FIRST_HANDED: i32 = 3;

/// Runs until it is told to end.
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
    let said = socket.clone();
    // Each lease that waits for its server has three descriptors; without leave for more there are as many as there are.
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
    // Whatever it makes is its own.
    rustix::process::umask(rustix::fs::Mode::from_bits_truncate(0o077));
    let socket = PathBuf::from(format!("{host_prefix}{}", socket.display()));
    let state = state.unwrap_or_else(|| socket.with_extension("leases"));
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::flag::register(signal, Arc::clone(&ended))
            .map_err(|cause| Error::io("wait for signals", cause))?;
    }
    let (listener, own) = listener(&socket)?;
    if let Some(path) = &pidfile {
        fs::write(path, std::process::id().to_string())
            .map_err(|cause| Error::io(format_args!("write {}", path.display()), cause))?;
    }
    let timing = Timing { timeout, resend_max, resend_timeout };
    let manager = LeaseManager::start(Settings { timing, broadcast, host_prefix, state })?;
    if takeover {
        // A socket that was handed over is where it is, whatever the flags say.
        let handed = listener.local_addr().ok().and_then(|address| address.as_pathname().map(Path::to_owned));
        manager.take_over(&caches, &handed.filter(|_| !own).unwrap_or(said));
    }
    match own {
        true => log!("dhcp: listening on {}", socket.display()),
        false => log!("dhcp: listening on the socket that was handed over"),
    }
    serve(&listener, &manager, &ended)?;
    if own {
        // They go as they came; somebody else may have been quicker.
        let _ = fs::remove_file(&socket);
    }
    if let Some(path) = pidfile {
        let _ = fs::remove_file(path);
    }
    Ok(())
}

/// The socket to listen on, and whether it is ours to remove.
fn listener(path: &Path) -> Result<(UnixListener, bool), Error> {
    if let Some(handed) = handed_over()? {
        return Ok((UnixListener::from(handed), false));
    }
    let failed = |cause| Error::io(format_args!("listen on {}", path.display()), cause);
    if let Some(directory) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
    }
    if path.symlink_metadata().is_ok() {
        if UnixStream::connect(path).is_ok() {
            let why = format!("listen on {}: another daemon does", path.display());
            return Err(Error::new(code::IO_FAILURE, why));
        }
        fs::remove_file(path).map_err(failed)?;
    }
    Ok((UnixListener::bind(path).map_err(failed)?, true))
}

/// The socket of a service manager, if it handed one over.
fn handed_over() -> Result<Option<OwnedFd>, Error> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u32>().ok());
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Ok(None);
    }
    match number("LISTEN_FDS") {
        None | Some(0) => Ok(None),
        Some(1) => {
            let failed = |errno: Errno| Error::io("take over the socket of LISTEN_FDS", errno);
            // Asked of ourselves by number: the number alone owns nothing.
            let own =
                rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty());
            let own = own.map_err(failed)?;
            let flags = rustix::process::PidfdGetfdFlags::empty();
            rustix::process::pidfd_getfd(own, FIRST_HANDED, flags).map(Some).map_err(failed)
        }
        Some(more) => Err(Error::key("LISTEN_FDS", more, "one socket is enough")),
    }
}

fn serve(listener: &UnixListener, manager: &Arc<LeaseManager>, ended: &AtomicBool) -> Result<(), Error> {
    let failed = |cause| Error::io("listen", cause);
    listener.set_nonblocking(true).map_err(failed)?;
    let connections = Arc::new(AtomicUsize::new(0));
    while !ended.load(Ordering::Relaxed) {
        match poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&GLANCE)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(failed(errno.into())),
        }
        let Ok((stream, _)) = listener.accept() else {
            // Without a descriptor for it, it would be there again at once.
            std::thread::sleep(PAUSE);
            continue;
        };
        if connections.load(Ordering::Relaxed) >= CONNECTIONS_MAX {
            continue;
        }
        connections.fetch_add(1, Ordering::Relaxed);
        let (manager, count) = (Arc::clone(manager), Arc::clone(&connections));
        let answer = std::thread::Builder::new().spawn(move || {
            if let Err(error) = converse(stream, &manager) {
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

/// One question, one answer.
fn converse(mut stream: UnixStream, manager: &Arc<LeaseManager>) -> Result<(), Error> {
    let failed = |cause| Error::io("prepare connection", cause);
    stream.set_nonblocking(false).map_err(failed)?;
    stream.set_read_timeout(Some(ON_THE_WAY)).map_err(failed)?;
    stream.set_write_timeout(Some(ON_THE_WAY)).map_err(failed)?;
    let peer = sockopt::socket_peercred(&stream).map_err(|errno| failed(errno.into()))?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        return Err(Error::internal(format!("user {} may not ask", peer.uid.as_raw())));
    }
    let question = protocol::receive(&mut stream).context("question")?;
    let answer = answer(question, manager, &|| is_closed(&stream));
    protocol::send(&mut stream, &answer.unwrap_or_else(Answer::Refused)).context("answer")
}

fn answer(
    question: Question,
    manager: &Arc<LeaseManager>,
    is_over: &dyn Fn() -> bool,
) -> Result<Answer, Error> {
    let lease = |success: cni::result::Success| success.to_value(Version::LATEST).map(Answer::Lease);
    match question {
        Question::Ping => Ok(Answer::Done),
        Question::Allocate { owner, netns, options, priority, families, wish } => {
            let wanted = Wanted { families, options, priority, wish };
            lease(manager.allocate(&owner, &netns, &wanted, is_over)?)
        }
        Question::Inspect { owner, families } => lease(manager.inspect(&owner, &families)?),
        Question::Release { owner } => manager.release(&owner).map(|()| Answer::Done),
        Question::Keep { network, valid } => manager.retain(&network, &valid).map(|()| Answer::Done),
    }
}

/// Has the other side gone?
fn is_closed(stream: &UnixStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match rustix::net::recv(stream, &mut [0; 1], flags) {
        Ok((length, _)) => length == 0,
        Err(errno) => !matches!(errno, Errno::AGAIN | Errno::INTR),
    }
}
