//! Waiting for the disk together: one round to it is enough for all whose writes came before it.
//!
//! ```text
//!   written ──► begun = n ──► is another to go next? ── yes ─► waits for him ──► one that began after n has ended? done
//!                                    └── no ─► goes next: waits for the round that is out ──► n + 1 begun ─► disk ─► ended
//! ```
//!
//! Who goes next has the lock of `owners`, who is out the one of `synced`, where the numbers are. 32 calls that each went
//! themselves kept the ledger's pages locked from each other's writes, three waits for the device each.
//!
//! Why nobody is told too early: rounds follow each other and each has a number that is written down before it begins. Who
//! reads n after his write, and later that a round above n has ended, knows that this one began after he wrote.
//!
//! Rules:
//! - a round that failed, or whose caller died in it, stands for nobody: who wrote before the next one goes himself, because
//!   the system tells an error of the disk to each who asks, and not through others;
//! - whatever is wrong with locks or numbers, the caller goes himself: that is always right;
//! - what is in `synced` needs no disk: it is only compared while callers live.
//!
//! Source: flock(2); fsync(2), for what an error means.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// The file with the numbers.
const SYNCED: &str = "synced";
/// How often somebody else is waited for: twice, and for bad luck.
const WAITS: usize = 4;

/// The numbers of rounds; a file without any is at the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rounds {
    /// The last one that was begun.
    begun: u64,
    /// The last one that ended well.
    ended: u64,
    /// The last one of which it is known that it did not.
    failed: u64,
}

/// Waits until what was written into the ledger of this directory is on the disk.
///
/// # Errors
/// Those of the disk.
pub(super) fn settle(ledger: &File, owners: &File, directory: &Path) -> io::Result<()> {
    match share(ledger, owners, directory) {
        Ok(Shared::Synced(synced)) => synced,
        Ok(Shared::Not) | Err(_) => ledger.sync_data(),
    }
}

/// What came of waiting together.
enum Shared {
    /// A round for this caller was made, by him or another.
    Synced(io::Result<()>),
    /// None was.
    Not,
}

fn share(ledger: &File, owners: &File, directory: &Path) -> io::Result<Shared> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let out = options.open(directory.join(SYNCED))?;
    let before = Rounds::read(&out)?;
    for _ in 0..WAITS {
        if owners.try_lock().is_ok() {
            out.lock()?;
            owners.unlock()?;
            return go(ledger, &out).map(Shared::Synced);
        }
        // Who goes next, then who is out; all who wait go on at once.
        owners.lock_shared()?;
        owners.unlock()?;
        out.lock_shared()?;
        out.unlock()?;
        if before.is_covered_by(Rounds::read(&out)?) {
            return Ok(Shared::Synced(Ok(())));
        }
    }
    Ok(Shared::Not)
}

/// A round; the lock goes with the file.
fn go(ledger: &File, out: &File) -> io::Result<io::Result<()>> {
    let round = Rounds::read(out)?.next();
    round.write(out)?;
    let synced = ledger.sync_data();
    if synced.is_ok() {
        // If it cannot be said, it stands for nobody else.
        let _ = Rounds { ended: round.begun, ..round }.write(out);
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

    /// The round after them.
    fn next(self) -> Rounds {
        let last = self.begun.max(self.ended);
        let failed = if self.begun == self.ended { self.failed } else { last };
        Rounds { begun: last.saturating_add(1), ended: self.ended, failed }
    }

    /// Has a round begun and ended well since, and none failed? What makes no sense covers nobody.
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
    fn a_round_that_was_out_when_somebody_wrote_does_not_cover_him_and_the_next_one_does() {
        let out = SETTLED.next();
        assert!(SETTLED.is_covered_by(ended(out)));
        assert!(!SETTLED.is_covered_by(out));
        assert!(!out.is_covered_by(ended(out)));
        assert!(out.is_covered_by(ended(ended(out).next())));
    }

    #[test]
    fn a_round_that_failed_or_whose_caller_died_covers_nobody_and_neither_does_the_next_for_who_wrote_before_it()
     {
        let died = SETTLED.next();
        let next = ended(died.next());
        assert_eq!(next.failed, died.begun);
        for before in [SETTLED, died] {
            assert!(!before.is_covered_by(next), "{before:?}");
        }
        assert!(next.is_covered_by(ended(next.next())));
    }

    #[test]
    fn numbers_that_make_no_sense_cover_nobody_and_are_left_behind() {
        let odd = Rounds { begun: 3, ended: 90, failed: 0 };
        let next = ended(odd.next());
        assert!(!odd.is_covered_by(odd));
        assert!(!odd.is_covered_by(next));
        assert!(next.is_covered_by(ended(next.next())));
        let most = Rounds { begun: u64::MAX, ended: u64::MAX, failed: u64::MAX };
        assert!(!most.is_covered_by(ended(most.next())));
    }

    /// A directory with a ledger and owners, removed with this value.
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
    fn who_waits_for_one_that_dies_goes_himself() {
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
    fn who_cannot_say_that_he_goes_goes_all_the_same() {
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
    fn many_at_once_all_end_and_no_more_rounds_are_made_than_there_are_calls() {
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
