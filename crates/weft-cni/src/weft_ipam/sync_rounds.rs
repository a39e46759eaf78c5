//! Shared disk synchronization: one `fdatasync` round serves all calls whose writes precede it.
//!
//! ```text
//!   written ──► begun = n ──► is another call next? ── yes ─► waits for it ──► a round > n has ended? done
//!                                    └── no ─► is next: waits for the running round ──► n + 1 begun ─► disk ─► ended
//! ```
//!
//! The next call holds the lock of `owners`; the call whose round runs holds the lock of `synced`, which contains the
//! numbers. (32 calls that each synchronized the file delayed each other's writes.) Rounds run one after the other, and
//! a round's number is written before it begins. A call that writes, then reads n, and later reads that a round above n
//! has ended, therefore knows that this round began after the write.
//!
//! - A round that failed, or whose call was killed, serves no other call. Each call with an earlier write synchronizes the
//!   file itself, because the kernel reports a disk error to each open file separately.
//! - If a lock or a number is invalid, the call synchronizes the file itself, which is always correct.
//! - `synced` itself is never synchronized, because the numbers are compared only among running calls.
//!
//! Source: flock(2); fsync(2), for the meaning of an error.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// File with the numbers.
const SYNCED: &str = "synced";
/// Maximum number of waits for other calls: two, and a margin.
const WAITS: usize = 4;

/// Round numbers. An empty file has none: all are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rounds {
    /// Last round that began.
    begun: u64,
    /// Last round that succeeded.
    ended: u64,
    /// Last round that is known to have failed.
    failed: u64,
}

/// Waits until the writes to the address store in this directory are on the disk.
///
/// # Errors
/// Those from the disk.
pub(super) fn settle(store: &File, owners: &File, directory: &Path) -> io::Result<()> {
    match share(store, owners, directory) {
        Ok(Shared::Synced(synced)) => synced,
        Ok(Shared::Not) | Err(_) => store.sync_data(),
    }
}

/// Result of a shared synchronization.
enum Shared {
    /// A round by this or another call covers the writes.
    Synced(io::Result<()>),
    /// No round does.
    Not,
}

fn share(store: &File, owners: &File, directory: &Path) -> io::Result<Shared> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let running = options.open(directory.join(SYNCED))?;
    let before = Rounds::read(&running)?;
    for _ in 0..WAITS {
        if owners.try_lock().is_ok() {
            running.lock()?;
            owners.unlock()?;
            return run(store, &running).map(Shared::Synced);
        }
        // Waits for the next call, then for the running one; all waiting calls continue together.
        owners.lock_shared()?;
        owners.unlock()?;
        running.lock_shared()?;
        running.unlock()?;
        if before.is_covered_by(Rounds::read(&running)?) {
            return Ok(Shared::Synced(Ok(())));
        }
    }
    Ok(Shared::Not)
}

/// Runs one round. The lock is released when the file is closed.
fn run(store: &File, running: &File) -> io::Result<io::Result<()>> {
    let round = Rounds::read(running)?.next();
    round.write(running)?;
    let synced = store.sync_data();
    if synced.is_ok() {
        // If this write fails, the round serves no other call.
        let _ = Rounds { ended: round.begun, ..round }.write(running);
    }
    Ok(synced)
}

// === impl Rounds ===

impl Rounds {
    fn read(file: &File) -> io::Result<Rounds> {
        let mut bytes = [0; 24];
        if file.read_at(&mut bytes, 0)? < bytes.len() {
            return Ok(Rounds::default());
        }
        let number = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        Ok(Rounds { begun: number(0), ended: number(8), failed: number(16) })
    }

    fn write(self, file: &File) -> io::Result<()> {
        let Rounds { begun, ended, failed } = self;
        let mut bytes = [0; 24];
        for (room, number) in bytes.chunks_exact_mut(8).zip([begun, ended, failed]) {
            room.copy_from_slice(&number.to_le_bytes());
        }
        file.write_all_at(&bytes, 0)
    }

    /// Returns the next round.
    fn next(self) -> Rounds {
        let last = self.begun.max(self.ended);
        let failed = if self.begun == self.ended { self.failed } else { last };
        Rounds { begun: last.saturating_add(1), ended: self.ended, failed }
    }

    /// Whether a round has begun and succeeded since `self`, and none failed. Invalid numbers cover no write.
    fn is_covered_by(self, now: Rounds) -> bool {
        let makes_sense = self.ended <= self.begun && now.ended <= now.begun;
        makes_sense && now.ended > self.begun && now.failed < self.begun
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    const SETTLED: Rounds = Rounds { begun: 7, ended: 7, failed: 0 };

    fn ended(round: Rounds) -> Rounds {
        Rounds { ended: round.begun, ..round }
    }

    #[test]
    fn sync_round_covers_only_writes_before_its_begin() {
        let out = SETTLED.next();
        assert!(SETTLED.is_covered_by(ended(out)));
        assert!(!SETTLED.is_covered_by(out));
        assert!(!out.is_covered_by(ended(out)));
        assert!(out.is_covered_by(ended(ended(out).next())));
    }

    #[test]
    fn sync_round_that_failed_covers_no_earlier_write() {
        let died = SETTLED.next();
        let next = ended(died.next());
        assert_eq!(next.failed, died.begun);
        for before in [SETTLED, died] {
            assert!(!before.is_covered_by(next), "{before:?}");
        }
        assert!(next.is_covered_by(ended(next.next())));
    }

    #[test]
    fn sync_round_numbers_that_are_invalid_cover_no_write() {
        let odd = Rounds { begun: 3, ended: 90, failed: 0 };
        let next = ended(odd.next());
        assert!(!odd.is_covered_by(odd));
        assert!(!odd.is_covered_by(next));
        assert!(next.is_covered_by(ended(next.next())));
        let most = Rounds { begun: u64::MAX, ended: u64::MAX, failed: u64::MAX };
        assert!(!most.is_covered_by(ended(most.next())));
    }

    /// Directory with an address store's files, removed with this value.
    struct Scratch(PathBuf);

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let directory = std::env::temp_dir().join(format!("weft-rounds-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&directory);
            std::fs::create_dir_all(&directory).unwrap();
            Scratch(directory)
        }

        fn open(&self, name: &str) -> File {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).open(self.0.join(name)).unwrap()
        }

        fn settle(&self) -> io::Result<()> {
            settle(&self.open("ledger"), &self.open("owners"), &self.0)
        }
    }

    fn rounds(directory: &Path) -> Rounds {
        Rounds::read(&File::open(directory.join(SYNCED)).unwrap()).unwrap()
    }

    #[test]
    fn sync_round_of_a_killed_call_is_replaced_by_the_waiting_call() {
        let scratch = Scratch::new("dies");
        let [next, out] = ["owners", SYNCED].map(|name| scratch.open(name));
        next.lock().unwrap();
        out.lock().unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| scratch.settle());
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!waits.is_finished());
            drop((next, out));
            waits.join().unwrap().unwrap();
        });
        assert_eq!(rounds(&scratch.0), Rounds { begun: 1, ended: 1, failed: 0 });
    }

    #[test]
    fn sync_round_runs_without_a_usable_number_file() {
        let scratch = Scratch::new("says");
        let synced = scratch.0.join(SYNCED);
        std::fs::create_dir(&synced).unwrap();
        scratch.settle().unwrap();
        std::fs::remove_dir(&synced).unwrap();
        std::fs::write(&synced, "7").unwrap();
        scratch.settle().unwrap();
        assert_eq!(rounds(&scratch.0).ended, 1);
    }

    #[test]
    fn sync_rounds_of_concurrent_calls_end_without_extra_rounds() {
        let scratch = Scratch::new("many");
        std::thread::scope(|scope| {
            for _ in 0..16 {
                scope.spawn(|| (0..20).for_each(|_| scratch.settle().unwrap()));
            }
        });
        let Rounds { begun, ended, failed } = rounds(&scratch.0);
        assert_eq!((begun, failed), (ended, 0));
        assert!((1..=320).contains(&begun), "{begun}");
    }
}
