//! Locks the proxy's directories. A journal and a store belong to one proxy, and a proxy belongs to one runtime.
//!
//! If two proxies used one journal, each would treat the other's sandboxes as lost. The kernel releases the locks when
//! the process ends. A new proxy waits for the old one if that is still shutting down.

use std::fs::{DirBuilder, File, TryLockError};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{Duration, Instant};

use tracing::info;

use crate::server::DRAIN_MAX;
use cli_support::failure::Failure;
use cli_support::privilege;

/// Maximum wait for another proxy, which may be shutting down and need time to finish calls.
const TIMEOUT: Duration = DRAIN_MAX.saturating_add(Duration::from_secs(2));
/// Time after which waiting is logged.
const LOG_AFTER: Duration = Duration::from_secs(1);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Directory locks, held until this value is dropped.
#[derive(Debug)]
pub(crate) struct ProxyLock(#[expect(dead_code, reason = "the open files hold the locks")] Vec<File>);

impl ProxyLock {
    /// Locks the directories, and creates missing ones. Each is given with the option that configures it, for the
    /// error.
    pub(crate) fn of(directories: &[(&str, &Path)]) -> Result<ProxyLock, Failure> {
        ProxyLock::within(TIMEOUT, directories)
    }

    fn within(timeout: Duration, directories: &[(&str, &Path)]) -> Result<ProxyLock, Failure> {
        let mut locked: Vec<(File, &Path)> = Vec::new();
        for (option, path) in directories {
            let failed =
                |cause: std::io::Error| privilege::refused(&format!("{option} {}", path.display()), &cause);
            DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
            let is_same = |known: &Path| known.canonicalize().ok() == path.canonicalize().ok();
            if locked.iter().any(|(_, known)| is_same(known)) {
                continue;
            }
            let directory = File::open(path).map_err(failed)?;
            lock(&directory, option, path, timeout)?;
            locked.push((directory, path));
        }
        Ok(ProxyLock(locked.into_iter().map(|(directory, _)| directory).collect()))
    }
}

fn lock(directory: &File, option: &str, path: &Path, timeout: Duration) -> Result<(), Failure> {
    let started = Instant::now();
    let mut is_logged = false;
    loop {
        match directory.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if started.elapsed() < timeout => {
                if !is_logged && started.elapsed() > LOG_AFTER {
                    info!(option, path = %path.display(), "waiting for another weft cri-proxy to exit");
                    is_logged = true;
                }
                std::thread::sleep(PAUSE);
            }
            Err(TryLockError::WouldBlock) => {
                let why = format!("{option} {}: another weft cri-proxy uses it", path.display());
                let hint = format!(
                    "stop that one, or give each runtime's proxy its own directories and sockets: {option}, --listen, --plan-socket"
                );
                return Err(Failure::new(why).next(hint));
            }
            Err(TryLockError::Error(cause)) => {
                return Err(Failure::new(format!("{option} {}: {cause}", path.display())));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BRIEF: Duration = Duration::from_millis(100);

    #[test]
    fn proxy_lock_admits_one_proxy_until_it_exits() {
        let place = std::env::temp_dir().join(format!("weft-claim-{}", std::process::id()));
        let (journal, store) = (place.join("journal"), place.join("store"));
        let first = ProxyLock::within(BRIEF, &[("--journal", &journal), ("--store", &store)]).unwrap();
        let other = place.join("other");
        let refused =
            ProxyLock::within(BRIEF, &[("--journal", &other), ("--store", &store)]).unwrap_err().to_string();
        assert!(refused.starts_with(&format!("--store {}: another", store.display())), "{refused}");
        ProxyLock::within(BRIEF, &[("--journal", &other)]).unwrap();
        drop(first);
        // Both options may name the same directory.
        let both = ProxyLock::within(BRIEF, &[("--journal", &store), ("--store", &store)]).unwrap();
        ProxyLock::within(BRIEF, &[("--store", &store)]).unwrap_err();
        drop(both);
        // A new proxy waits for one that is shutting down.
        let ending = ProxyLock::within(BRIEF, &[("--store", &store)]).unwrap();
        let next = std::thread::scope(|scope| {
            let next = scope.spawn(|| ProxyLock::of(&[("--store", &store)]));
            std::thread::sleep(3 * BRIEF);
            drop(ending);
            next.join().unwrap()
        });
        next.unwrap();
        std::fs::remove_dir_all(&place).unwrap();
    }
}
