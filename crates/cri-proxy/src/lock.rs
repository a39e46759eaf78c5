//! Which directories are this proxy's alone: a journal and a store have one proxy, and a proxy one runtime.
//!
//! Rules: two proxies with one journal would each take the other's sandboxes for lost; a lock of the kernel goes with its
//! process, however that ends; who is just ending is waited for.

use std::fs::{DirBuilder, File, TryLockError};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{Duration, Instant};

use tracing::info;

use crate::server::DRAIN_MAX;
use cli_support::failure::Failure;
use cli_support::privilege;

/// How long one is waited for that ends: what is under way with it, it finishes.
const PATIENCE: Duration = DRAIN_MAX.saturating_add(Duration::from_secs(2));
/// After this long it is said what is waited for.
const SILENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(50);

/// Directories that nobody else has, as long as this is there.
#[derive(Debug)]
pub(crate) struct ProxyLock(#[expect(dead_code, reason = "their locks are what they are for")] Vec<File>);

impl ProxyLock {
    /// Claims directories, each named by the option that says it; they are made if they are not there.
    pub(crate) fn of(directories: &[(&str, &Path)]) -> Result<ProxyLock, Failure> {
        ProxyLock::within(PATIENCE, directories)
    }

    fn within(patience: Duration, directories: &[(&str, &Path)]) -> Result<ProxyLock, Failure> {
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
            lock(&directory, option, path, patience)?;
            locked.push((directory, path));
        }
        Ok(ProxyLock(locked.into_iter().map(|(directory, _)| directory).collect()))
    }
}

fn lock(directory: &File, option: &str, path: &Path, patience: Duration) -> Result<(), Failure> {
    let started = Instant::now();
    let mut is_told = false;
    loop {
        match directory.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if started.elapsed() < patience => {
                if !is_told && started.elapsed() > SILENCE {
                    info!("{option} {}: waiting for the weft cri-proxy that uses it to end", path.display());
                    is_told = true;
                }
                std::thread::sleep(PAUSE);
            }
            Err(TryLockError::WouldBlock) => {
                let why = format!("{option} {}: another weft cri-proxy uses it", path.display());
                let cure = format!(
                    "end that one, or give each runtime's proxy its own: {option}, --listen, --plan-socket"
                );
                return Err(Failure::new(why).next(cure));
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
    fn a_directory_has_one_proxy_and_is_free_when_that_has_ended() {
        let place = std::env::temp_dir().join(format!("weft-claim-{}", std::process::id()));
        let (journal, store) = (place.join("journal"), place.join("store"));
        let first = ProxyLock::within(BRIEF, &[("--journal", &journal), ("--store", &store)]).unwrap();
        let other = place.join("other");
        let refused =
            ProxyLock::within(BRIEF, &[("--journal", &other), ("--store", &store)]).unwrap_err().to_string();
        assert!(refused.starts_with(&format!("--store {}: another", store.display())), "{refused}");
        ProxyLock::within(BRIEF, &[("--journal", &other)]).unwrap();
        drop(first);
        // One place for both is nobody else's either.
        let both = ProxyLock::within(BRIEF, &[("--journal", &store), ("--store", &store)]).unwrap();
        ProxyLock::within(BRIEF, &[("--store", &store)]).unwrap_err();
        drop(both);
        // One that ends later than at once is waited for.
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
