//! Which directories are this proxy's alone: a journal and a store have one proxy, and a proxy one runtime.
//!
//! Rules: two proxies with one journal would each take the other's sandboxes for lost; a lock of the kernel goes with its
//! process, however that ends; who is just ending is waited for.

use std::fs::{DirBuilder, File, TryLockError};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::privilege;

/// How long one is waited for that ends.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(50);

/// Directories that nobody else has, as long as this is there.
#[derive(Debug)]
pub(crate) struct Claim(#[expect(dead_code, reason = "their locks are what they are for")] Vec<File>);

impl Claim {
    /// Claims directories, each named by the option that says it; they are made if they are not there.
    pub(crate) fn of(directories: &[(&str, &Path)]) -> Result<Claim, Failure> {
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
            lock(&directory, option, path)?;
            locked.push((directory, path));
        }
        Ok(Claim(locked.into_iter().map(|(directory, _)| directory).collect()))
    }
}

fn lock(directory: &File, option: &str, path: &Path) -> Result<(), Failure> {
    let started = Instant::now();
    loop {
        match directory.try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) if started.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
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

    #[test]
    fn a_directory_has_one_proxy_and_is_free_when_that_has_ended() {
        let place = std::env::temp_dir().join(format!("weft-claim-{}", std::process::id()));
        let (journal, store) = (place.join("journal"), place.join("store"));
        let first = Claim::of(&[("--journal", &journal), ("--store", &store)]).unwrap();
        let other = place.join("other");
        let refused = Claim::of(&[("--journal", &other), ("--store", &store)]).unwrap_err().to_string();
        assert!(refused.starts_with(&format!("--store {}: another", store.display())), "{refused}");
        Claim::of(&[("--journal", &other)]).unwrap();
        drop(first);
        // One place for both is nobody else's either.
        let both = Claim::of(&[("--journal", &store), ("--store", &store)]).unwrap();
        Claim::of(&[("--store", &store)]).unwrap_err();
        drop(both);
        std::fs::remove_dir_all(&place).unwrap();
    }
}
