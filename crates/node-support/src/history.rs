//! Reader for the call and task history that `weft-cni` writes on this node.
//!
//! It changes nothing. A line that is not a record is skipped, so a damaged file hides only the damaged lines.
//!
//! Source: [`rpc::history`].

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use cli_support::failure::Failure;
use cli_support::privilege;
use rpc::history::{DIRECTORY, FAILURES, FILE_MAX, Record, SUCCESSES};
use rustix::fs::OFlags;

/// Maximum number of bytes that a follower reads at once: a node whose calls fail without end causes bounded
/// work.
const READ_MAX: u64 = 64 * 1024;

/// History directory.
#[derive(Clone, Debug)]
pub struct History(PathBuf);

/// Follower that sees new failures.
#[derive(Debug)]
pub struct FailureFollower {
    file: PathBuf,
    /// Inode of the file that is read, and how many bytes were read.
    inode: u64,
    offset: u64,
}

// === impl History ===

impl History {
    /// Returns the history below `cniDir`; it need not exist.
    pub fn below(directory: &Path) -> History {
        History(directory.join(DIRECTORY))
    }

    /// Returns all records in the order in which they started.
    ///
    /// # Errors
    /// A file exists and cannot be read.
    pub fn records(&self) -> Result<Vec<Record>, Failure> {
        self.records_of(&[FAILURES, SUCCESSES])
    }

    /// Returns the failure records in the order in which they started. Successes, usually most of the
    /// history, are not read.
    ///
    /// # Errors
    /// A file exists and cannot be read.
    pub fn failures(&self) -> Result<Vec<Record>, Failure> {
        self.records_of(&[FAILURES])
    }

    fn records_of(&self, names: &[&str]) -> Result<Vec<Record>, Failure> {
        let mut records = Vec::new();
        for name in names {
            let file = self.0.join(name);
            for path in [older(&file), file] {
                let bytes = match read(&path, 0, 2 * FILE_MAX) {
                    Err(cause) if cause.kind() == ErrorKind::NotFound => continue,
                    read => read.map_err(|cause| {
                        privilege::refused(&format!("history: read {}", path.display()), &cause)
                    })?,
                };
                records.extend(bytes.split(|byte| *byte == b'\n').filter_map(Record::read));
            }
        }
        records.sort_by_key(|record| record.time);
        Ok(records)
    }

    /// Returns a follower that sees failures from now on.
    pub fn follow_failures(&self) -> FailureFollower {
        let file = self.0.join(FAILURES);
        let metadata = std::fs::metadata(&file);
        let (inode, offset) = metadata.map_or((0, 0), |metadata| (metadata.ino(), metadata.len()));
        FailureFollower { file, inode, offset }
    }
}

// === impl FailureFollower ===

impl FailureFollower {
    /// Returns the failures since the last call, a bounded number. Further ones follow with the next call.
    pub fn read_new(&mut self) -> Vec<Record> {
        let Ok(metadata) = std::fs::metadata(&self.file) else { return Vec::new() };
        if metadata.ino() != self.inode {
            // The file was renamed: its remaining records first.
            let rest = older(&self.file);
            let is_ours = std::fs::metadata(&rest).is_ok_and(|older| older.ino() == self.inode);
            let records = if is_ours { self.take(&rest) } else { Vec::new() };
            if !records.is_empty() {
                return records;
            }
            (self.inode, self.offset) = (metadata.ino(), 0);
        }
        if metadata.len() < self.offset {
            self.offset = 0;
        }
        if metadata.len() == self.offset { Vec::new() } else { self.take(&self.file.clone()) }
    }

    /// Reads the records after the offset.
    fn take(&mut self, path: &Path) -> Vec<Record> {
        let Ok(bytes) = read(path, self.offset, READ_MAX) else { return Vec::new() };
        // An incomplete line is read again, unless it is longer than any record.
        let complete = bytes.iter().rposition(|byte| *byte == b'\n').map(|last| last + 1);
        let length = complete.unwrap_or(if bytes.len() as u64 == READ_MAX { bytes.len() } else { 0 });
        self.offset += length as u64;
        bytes[..length].split(|byte| *byte == b'\n').filter_map(Record::read).collect()
    }
}

/// Returns the older file's path: `failures.1.jsonl`.
fn older(path: &Path) -> PathBuf {
    path.with_extension("1.jsonl")
}

fn read(path: &Path, offset: u64, length: u64) -> std::io::Result<Vec<u8>> {
    // Opening a FIFO would block.
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits() as i32;
    let mut file = File::options().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("not a file"));
    }
    file.seek(SeekFrom::Start(offset))?;
    let mut bytes = Vec::new();
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use cni::Error;

    use super::*;

    fn record(time: u64, failed: bool) -> Record {
        let error = failed.then(|| Error::new(7, format!("failure {time}")));
        Record { time, verb: "ADD".to_owned(), error, ..Record::default() }
    }

    fn append(file: &Path, bytes: &[u8]) {
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        File::options().append(true).create(true).open(file).unwrap().write_all(bytes).unwrap();
    }

    fn times(records: &[Record]) -> Vec<u64> {
        records.iter().map(|record| record.time).collect()
    }

    fn scratch(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("weft-read-history-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        directory
    }

    #[test]
    fn history_of_damaged_files_has_their_readable_records() {
        let directory = scratch("damaged");
        let history = History::below(&directory);
        assert!(history.records().unwrap().is_empty(), "no directory");
        let [failures, successes] = [FAILURES, SUCCESSES].map(|name| directory.join(DIRECTORY).join(name));
        append(&failures, &record(3, true).line());
        append(&failures, b"{\"time\":4,\"verb\":\"ADD\",\"po\n\xff\xfe\n[]\n\n");
        append(&failures, &record(5, true).line());
        append(&successes, &record(4, false).line());
        append(&older(&successes), &record(1, false).line());
        append(&older(&successes), &[b'x'; 3 << 20]);
        assert_eq!(times(&history.records().unwrap()), [1, 3, 4, 5]);
        assert_eq!(times(&history.failures().unwrap()), [3, 5]);
        fs::remove_file(&successes).unwrap();
        fs::create_dir(&successes).unwrap();
        assert!(history.records().is_err(), "a directory in place of a file");
        assert_eq!(times(&history.failures().unwrap()), [3, 5], "successes are not read");
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn history_follower_returns_each_new_failure_once() {
        let directory = scratch("follow");
        let history = History::below(&directory);
        let file = directory.join(DIRECTORY).join(FAILURES);
        let mut early = history.follow_failures();
        assert!(early.read_new().is_empty());
        append(&file, &record(1, true).line());
        let mut follower = history.follow_failures();
        assert_eq!((times(&early.read_new()), times(&follower.read_new())), (vec![1], vec![]));
        let line = record(2, true).line();
        append(&file, &line[..9]);
        assert!(follower.read_new().is_empty(), "an incomplete line");
        append(&file, &line[9..]);
        assert_eq!(times(&follower.read_new()), [2]);
        // The file is renamed after one more record, and a new one begins.
        append(&file, &record(3, true).line());
        fs::rename(&file, older(&file)).unwrap();
        append(&file, &record(4, true).line());
        assert_eq!((times(&follower.read_new()), times(&follower.read_new())), (vec![3], vec![4]));
        assert!(follower.read_new().is_empty());
        // A file without line feeds does not stop the follower.
        append(&file, &vec![b'x'; 3 * READ_MAX as usize]);
        append(&file, b"\n");
        append(&file, &record(5, true).line());
        let read: Vec<u64> = (0..6).flat_map(|_| times(&follower.read_new())).collect();
        assert_eq!(read, [5]);
        fs::remove_dir_all(&directory).unwrap();
    }
}
