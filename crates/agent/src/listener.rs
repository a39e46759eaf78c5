//! A unix socket that is ours alone: where the hands ask, and where clients of the container runtime come in.
//!
//! Rules: only root and we ourselves get in, by what the kernel says of the peer; the socket is 0600, and put in its
//! place by rename, so that a process that is replaced is replaced between two callers; it goes when this is dropped,
//! unless another process has taken its place.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tracing::warn;

use crate::failure::Failure;

/// How long it waits after the kernel refused a connection: it lacks file descriptors, or memory.
const PAUSE: Duration = Duration::from_millis(50);

/// A socket that listens.
#[derive(Debug)]
pub(crate) struct Listener {
    inner: UnixListener,
    path: PathBuf,
    inode: u64,
}

impl Listener {
    /// Listens at `path`, whose directory is made if it is not there.
    pub(crate) fn bind(path: &Path) -> Result<Listener, Failure> {
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
        Ok(Listener { inner, path: path.to_owned(), inode })
    }

    /// The next caller that may come in.
    pub(crate) async fn accept(&self) -> UnixStream {
        let own = rustix::process::geteuid().as_raw();
        loop {
            let stream = match self.inner.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    warn!(%error, "accept");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            match stream.peer_cred() {
                Ok(peer) if peer.uid() == 0 || peer.uid() == own => return stream,
                Ok(peer) => warn!(uid = peer.uid(), "a stranger asked"),
                Err(error) => warn!(%error, "who asks is not known"),
            }
        }
    }

    /// Removes the socket, if it is still this one.
    pub(crate) fn retire(&self) {
        if fs::metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes what others left that died before their socket was in its place: nobody listens there.
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
