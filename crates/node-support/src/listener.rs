//! A unix socket that is ours alone: where the hands ask, and where clients of the container runtime come in.
//!
//! Rules: only root and we ourselves get in, by what the kernel says of the peer; the socket is 0600, and put in its
//! place by rename, so that a process that is replaced is replaced between two callers; it goes when this is dropped,
//! unless another process has taken its place. It is looked every few seconds whether it is still there: one that was
//! removed is put there anew, and who was replaced knows it.

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

/// How long it waits after the kernel refused a connection: it lacks file descriptors, or memory.
const PAUSE: Duration = Duration::from_millis(50);
/// How often it is looked whether the socket is in its place.
const LOOK: Duration = Duration::from_secs(2);
/// At every so many looks another process that has its place is asked whether it lives: it takes that for a caller.
const ASK_EVERY: u32 = 30;

/// A socket that listens.
#[derive(Debug)]
pub struct Listener {
    inner: UnixListener,
    path: PathBuf,
    inode: u64,
    replaced: Arc<AtomicBool>,
    /// Who was seen there last, and how often nobody else was.
    other: (u64, u32),
}

impl Listener {
    /// Listens at `path`, whose directory is made if it is not there.
    pub fn bind(path: &Path) -> Result<Listener, Failure> {
        let (inner, inode) = put(path)?;
        Ok(Listener { inner, path: path.to_owned(), inode, replaced: Arc::default(), other: (0, 0) })
    }

    /// Whether another process listens in this one's place.
    pub fn replaced(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.replaced)
    }

    /// Is it in its place? What is gone, or nobody's, is put there anew; somebody else who listens is left there.
    async fn look(&mut self) {
        let Listener { inner, path, inode, replaced, other: (known, looks) } = self;
        let there = fs::metadata(&*path).map(|meta| meta.ino()).ok();
        if there == Some(*inode) {
            replaced.store(false, Ordering::Relaxed);
            return;
        }
        if let Some(there) = there {
            *looks = if there == *known { looks.wrapping_add(1) } else { 0 };
            *known = there;
            if !looks.is_multiple_of(ASK_EVERY) || lives(path).await {
                if !replaced.swap(true, Ordering::Relaxed) {
                    warn!(socket = %path.display(), "another process listens in this one's place");
                }
                return;
            }
        }
        match put(path) {
            Ok(anew) => {
                (*inner, *inode) = anew;
                replaced.store(false, Ordering::Relaxed);
                warn!(socket = %path.display(), "it was removed, and is there again");
            }
            Err(why) => warn!(%why, "it was removed, and cannot be put there again"),
        }
    }

    /// The next caller that may come in.
    pub async fn accept(&mut self) -> UnixStream {
        let own = rustix::process::geteuid().as_raw();
        loop {
            let accepted = tokio::select! {
                accepted = self.inner.accept() => accepted,
                () = tokio::time::sleep(LOOK) => {
                    self.look().await;
                    continue;
                }
            };
            let stream = match accepted {
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
    pub fn retire(&self) {
        if is_at(&self.path, self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Does anybody listen there? Whoever has too many callers does.
async fn lives(path: &Path) -> bool {
    let dead = [io::ErrorKind::ConnectionRefused, io::ErrorKind::NotFound];
    UnixStream::connect(path).await.err().is_none_or(|cause| !dead.contains(&cause.kind()))
}

fn is_at(path: &Path, inode: u64) -> bool {
    fs::metadata(path).is_ok_and(|found| found.ino() == inode)
}

/// Listens at `path`, and by which inode that is known.
fn put(path: &Path) -> Result<(UnixListener, u64), Failure> {
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

/// Refuses a path that has something else than a socket, or the socket of another program that listens.
///
/// The socket of an earlier process of the same role is replaced. In another PID namespace the program is unknown, and its
/// socket is replaced too: only the role's own containers share the directory.
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

/// Returns the program of a process and its first argument: `weft` and `agent`.
fn role_of(pid: u32) -> Option<(String, Vec<u8>)> {
    let program = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    let name = program.file_name()?.to_string_lossy().into_owned();
    let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let command = words.split(|byte| *byte == 0).nth(1).unwrap_or_default().to_vec();
    Some((name.trim_end_matches(" (deleted)").to_owned(), command))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_is_removed_comes_again_and_one_that_is_replaced_is_told() {
        let directory = std::env::temp_dir().join(format!("weft-listener-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("a.sock");
        cli_support::async_runtime::runtime().unwrap().block_on(async {
            let mut first = Listener::bind(&path).unwrap();
            let replaced = first.replaced();
            fs::remove_file(&path).unwrap();
            first.look().await;
            assert!(is_at(&path, first.inode) && !replaced.load(Ordering::Relaxed));
            let second = Listener::bind(&path).unwrap();
            first.look().await;
            assert!(is_at(&path, second.inode) && replaced.load(Ordering::Relaxed));
            // The other one dies, and its socket stays.
            let left = second.path.with_extension("left");
            fs::rename(&path, &left).unwrap();
            drop(second);
            fs::rename(&left, &path).unwrap();
            for _ in 0..ASK_EVERY {
                first.look().await;
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
