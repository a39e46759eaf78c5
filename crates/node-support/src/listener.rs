//! Unix socket for weft-cni and for container runtime clients, restricted to root and the server's own user.
//!
//! - The kernel reports the peer's uid. A connection from another user is closed and logged. The socket has
//!   mode 0600.
//! - The socket is bound under another name and renamed, so every connection reaches either the old or the
//!   new process.
//! - A dropped listener removes the socket, unless another process has replaced it.
//! - The listener checks every few seconds that the path still leads to the same socket. It creates a removed socket
//!   again, and leaves another live process's socket alone ([`Listener::replaced`]).

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use tokio::net::{UnixListener, UnixStream};
use tracing::warn;

use cli_support::failure::Failure;

/// Pause after a failed `accept`: the kernel lacks file descriptors or memory.
const PAUSE: Duration = Duration::from_millis(50);
/// Interval between two checks on the socket.
const LOOK: Duration = Duration::from_secs(2);
/// Number of checks between two connections to the socket with which another process has replaced this one.
/// Rare, because that process serves each connection.
const CONNECT_EVERY: u32 = 30;

/// Listening socket.
#[derive(Debug)]
pub struct Listener {
    inner: UnixListener,
    path: PathBuf,
    inode: u64,
    replaced: Arc<AtomicBool>,
    /// Inode that another process's socket has at the path, and how many checks found it.
    other: (u64, u32),
}

impl Listener {
    /// Listens at `path`; creates the directory if it does not exist.
    pub fn bind(path: &Path) -> Result<Listener, Failure> {
        let (inner, inode) = bind_and_rename(path)?;
        Ok(Listener { inner, path: path.to_owned(), inode, replaced: Arc::default(), other: (0, 0) })
    }

    /// Returns a flag that is set while another process listens at the path.
    pub fn replaced(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.replaced)
    }

    /// Checks the socket. Creates it again if it is removed or the process behind it is dead; leaves a live process's
    /// socket alone.
    async fn check(&mut self) {
        let Listener { inner, path, inode, replaced, other: (known, looks) } = self;
        let there = fs::metadata(&*path).map(|meta| meta.ino()).ok();
        if there == Some(*inode) {
            replaced.store(false, Ordering::Relaxed);
            return;
        }
        if let Some(there) = there {
            *looks = if there == *known { looks.wrapping_add(1) } else { 0 };
            *known = there;
            if !looks.is_multiple_of(CONNECT_EVERY) || is_alive(path).await {
                if !replaced.swap(true, Ordering::Relaxed) {
                    warn!(socket = %path.display(), "socket replaced by another process");
                }
                return;
            }
        }
        match bind_and_rename(path) {
            Ok(created) => {
                (*inner, *inode) = created;
                replaced.store(false, Ordering::Relaxed);
                warn!(socket = %path.display(), "socket was removed and is created again");
            }
            Err(error) => warn!(%error, "failed to create removed socket again"),
        }
    }

    /// Returns the next permitted connection.
    pub async fn accept(&mut self) -> UnixStream {
        let own = rustix::process::geteuid().as_raw();
        loop {
            let accepted = tokio::select! {
                accepted = self.inner.accept() => accepted,
                () = tokio::time::sleep(LOOK) => {
                    self.check().await;
                    continue;
                }
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    warn!(%error, "failed to accept connection");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            match stream.peer_cred() {
                Ok(peer) if peer.uid() == 0 || peer.uid() == own => return stream,
                Ok(peer) => warn!(uid = peer.uid(), "rejected connection from another user"),
                Err(error) => warn!(%error, "rejected connection: its user is unknown"),
            }
        }
    }

    /// Removes the socket, unless another process has replaced it.
    pub fn retire(&self) {
        if is_at(&self.path, self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Whether a process listens at a path. One with a full backlog counts.
async fn is_alive(path: &Path) -> bool {
    let dead = [io::ErrorKind::ConnectionRefused, io::ErrorKind::NotFound];
    UnixStream::connect(path).await.err().is_none_or(|cause| !dead.contains(&cause.kind()))
}

fn is_at(path: &Path, inode: u64) -> bool {
    fs::metadata(path).is_ok_and(|found| found.ino() == inode)
}

/// Listens at `path`; returns the listener and the socket's inode.
fn bind_and_rename(path: &Path) -> Result<(UnixListener, u64), Failure> {
    let failed = |cause: io::Error| Failure::new(format!("socket {}: {cause}", path.display()));
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory).map_err(failed)?;
    check_place(path)?;
    let mut hidden = path.as_os_str().to_owned();
    hidden.push(format!(".{}", std::process::id()));
    let hidden = PathBuf::from(hidden);
    match fs::remove_file(&hidden) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(failed(cause)),
        _ => {}
    }
    sweep(directory, path);
    let inner = UnixListener::bind(&hidden).map_err(failed)?;
    fs::set_permissions(&hidden, fs::Permissions::from_mode(0o600)).map_err(failed)?;
    let inode = fs::metadata(&hidden).map_err(failed)?.ino();
    fs::rename(&hidden, path).map_err(failed)?;
    Ok((inner, inode))
}

/// Refuses a path that has something else than a socket, or a socket on which another program listens.
///
/// A socket that an earlier process in the same role left is replaced. In another PID namespace the program is unknown,
/// and the socket is replaced too: only the role's own containers share the directory.
fn check_place(path: &Path) -> Result<(), Failure> {
    let failed = |why: &dyn std::fmt::Display| Failure::new(format!("socket {}: {why}", path.display()));
    match fs::symlink_metadata(path) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(failed(&cause)),
        Ok(there) if there.file_type().is_socket() => {}
        Ok(_) => {
            let why = failed(&"a file that is no socket is there");
            return Err(why.next("remove the file, or use another path for the socket"));
        }
    }
    let own = role_of(std::process::id());
    let Some(pid) = listening_process(path) else { return Ok(()) };
    match role_of(pid) {
        Some(other) if own.as_ref() != Some(&other) => {
            let why = failed(&format_args!("{} (process {pid}) listens there", other.0));
            Err(why.next("stop that program, or use another path for the socket"))
        }
        _ => Ok(()),
    }
}

/// Returns the process that listens at `path`, if this PID namespace has it.
fn listening_process(path: &Path) -> Option<u32> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
    connect(&socket, &SocketAddrUnix::new(path).ok()?).ok()?;
    let peer = UnixStream::from_std(socket.into()).ok()?.peer_cred().ok()?;
    peer.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|pid| *pid > 0)
}

/// Returns a process's program and first argument: `weft` and `agent`.
fn role_of(pid: u32) -> Option<(String, Vec<u8>)> {
    let program = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let name = program.file_name()?.to_string_lossy().into_owned();
    let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let command = words.split(|byte| *byte == 0).nth(1).unwrap_or_default().to_vec();
    Some((name.trim_end_matches(" (deleted)").to_owned(), command))
}

/// Removes temporary sockets that processes left which died before the rename.
fn sweep(directory: &Path, path: &Path) {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return };
    let is_left = |found: &Path| {
        let rest = found.file_name().and_then(|found| found.to_str()?.strip_prefix(name)?.strip_prefix('.'));
        rest.is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
            && std::os::unix::net::UnixStream::connect(found)
                .is_err_and(|cause| cause.kind() == io::ErrorKind::ConnectionRefused)
    };
    let found = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    for path in found.filter(|path| is_left(path)) {
        let _ = fs::remove_file(path);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.retire();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_is_created_again_if_removed_and_left_if_replaced() {
        let directory = std::env::temp_dir().join(format!("weft-listener-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("a.sock");
        cli_support::async_runtime::runtime().unwrap().block_on(async {
            let mut first = Listener::bind(&path).unwrap();
            let replaced = first.replaced();
            fs::remove_file(&path).unwrap();
            first.check().await;
            assert!(is_at(&path, first.inode) && !replaced.load(Ordering::Relaxed));
            let second = Listener::bind(&path).unwrap();
            first.check().await;
            assert!(is_at(&path, second.inode) && replaced.load(Ordering::Relaxed));
            // The other process dies and its socket file remains.
            let left = second.path.with_extension("left");
            fs::rename(&path, &left).unwrap();
            drop(second);
            fs::rename(&left, &path).unwrap();
            for _ in 0..CONNECT_EVERY {
                first.check().await;
            }
            assert!(is_at(&path, first.inode) && !replaced.load(Ordering::Relaxed));
        });
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn socket_path_of_a_file_or_a_live_program_is_refused() {
        let directory = std::env::temp_dir().join(format!("weft-listener-other-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let (file, link, live) = (directory.join("file"), directory.join("link"), directory.join("live"));
        fs::write(&file, "content").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let script = "use Socket; socket(S, PF_UNIX, SOCK_STREAM, 0); bind(S, sockaddr_un($ARGV[0])); listen(S, 9); sleep 99";
        let mut other = std::process::Command::new("perl").args(["-e", script]).arg(&live).spawn().unwrap();
        while std::os::unix::net::UnixStream::connect(&live).is_err() {
            std::thread::sleep(Duration::from_millis(5));
        }
        cli_support::async_runtime::runtime().unwrap().block_on(async {
            for (path, says) in [(&file, "no socket"), (&link, "no socket"), (&live, "perl (process")] {
                let refused = Listener::bind(path).unwrap_err().to_string();
                assert!(refused.contains(says) && refused.contains(path.to_str().unwrap()), "{refused}");
            }
            assert_eq!(fs::read_to_string(&link).unwrap(), "content");
            other.kill().unwrap();
            other.wait().unwrap();
            // A socket without a listener is replaced.
            drop(Listener::bind(&live).unwrap());
        });
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 2);
        fs::remove_dir_all(&directory).unwrap();
    }
}
