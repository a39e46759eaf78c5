//! Unix socket for weft-cni and for clients of the container runtime, restricted to root and the server's own user.
//!
//! - The kernel reports the uid of a peer. A connection of another user is closed and logged. The socket has mode 0600.
//! - The socket is bound under another name and renamed, so every connection reaches either the old or the new process.
//! - A dropped listener removes its socket, unless another process has replaced it.
//! - The listener checks every few seconds that the path leads to its socket. It creates a removed socket again, and leaves
//!   the socket of another live process ([`Listener::replaced`]).

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tracing::warn;

use cli_support::failure::Failure;

/// Pause after a failed `accept`: the kernel lacks file descriptors or memory.
const PAUSE: Duration = Duration::from_millis(50);
/// Interval between two checks of the socket.
const LOOK: Duration = Duration::from_secs(2);
/// Number of checks between two connections to the socket of a process that has replaced this one. Rare, because that
/// process serves each of them as a connection.
const CONNECT_EVERY: u32 = 30;

/// Listening socket.
#[derive(Debug)]
pub struct Listener {
    inner: UnixListener,
    path: PathBuf,
    inode: u64,
    replaced: Arc<AtomicBool>,
    /// Inode of another process's socket at the path, and the number of checks that found it.
    other: (u64, u32),
}

impl Listener {
    /// Listens at `path`; creates its directory if it does not exist.
    pub fn bind(path: &Path) -> Result<Listener, Failure> {
        let (inner, inode) = bind_and_rename(path)?;
        Ok(Listener { inner, path: path.to_owned(), inode, replaced: Arc::default(), other: (0, 0) })
    }

    /// Returns a flag that is set while another process listens at the path.
    pub fn replaced(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.replaced)
    }

    /// Checks the socket. Creates it again if it is removed or its process is dead; leaves the socket of a live process.
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

/// Listens at `path`; returns the listener and the inode of its socket.
fn bind_and_rename(path: &Path) -> Result<(UnixListener, u64), Failure> {
    let failed = |cause: io::Error| Failure::new(format!("socket {}: {cause}", path.display()));
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory).map_err(failed)?;
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

/// Removes temporary sockets of processes that died before the rename.
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
}
