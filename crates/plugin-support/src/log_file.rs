//! Log file with rotation that many short-lived processes can write at the same time.
//!
//! Each line is one appended write. A process that finds the file too large renames it to `NAME-TIME.EXTENSION`, as
//! lumberjack does, and removes the oldest backups. To rename the file, the process must hold the file lock (flock(2)).
//!
//! - Symbolic links in the path are not followed, because a pod may be able to write to the directory if it is mounted
//!   there. Hard links and anything but regular files are rejected for the same reason.
//! - The file has mode 0600; missing directories are created with mode 0755.
//! - If the file cannot be written, log lines are lost, but nothing else fails.
//! - If a process is killed during rotation, the file has either the old or the new name, and the next process
//!   continues.
//!
//! Source: `lumberjack.v2` (`lumberjack.go`), as Multus uses it; openat(2).

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::fs::{fchmod, flock, fstat, mkdirat, open, openat, renameat_with, statat, unlinkat};
use rustix::io::Errno;

const DAY: Duration = Duration::from_secs(86_400);
/// Pattern for [`timestamp`] in a backup's name; `0` stands for any digit.
const STAMP: &str = "0000-00-00T00-00-00.000";

/// Log file at a fixed path. Every line opens it again, because another process may have renamed it.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    rotation: Rotation,
}

/// Rotation limits.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    /// Size in bytes at which the file is renamed.
    pub max_size: u64,
    /// Age in days after which a backup is removed; 0 means unlimited.
    pub max_age: u32,
    /// Number of backups to keep; 0 means unlimited.
    pub max_backups: u32,
}

/// Open directory and file name, so that no path is resolved twice.
struct Place<'a> {
    directory: OwnedFd,
    name: &'a str,
}

impl LogFile {
    /// Opens the file once, so that an unusable path is reported at start and not with the first line.
    ///
    /// # Errors
    /// The file cannot be opened, or the path contains a symbolic link.
    pub fn new(path: &Path, rotation: Rotation) -> io::Result<LogFile> {
        Place::find(path)?.open()?;
        Ok(LogFile { path: path.to_owned(), rotation })
    }

    /// Appends a line with time and level; ignores write errors.
    pub(crate) fn write(&self, level: &str, line: &str) {
        let now = SystemTime::now();
        let [date, time] = timestamp(now);
        let seconds = time.split('.').next().unwrap_or_default().replace('-', ":");
        let line = format!("{date}T{seconds}Z [{level}] {line}\n");
        let _ = self.append(line.as_bytes(), now);
    }

    fn append(&self, line: &[u8], now: SystemTime) -> io::Result<()> {
        let place = Place::find(&self.path)?;
        let mut file = place.open()?;
        let size = file.metadata()?.len();
        if size > 0 && size.saturating_add(line.len() as u64) > self.rotation.max_size {
            // If rotation fails, the line still goes to the old file.
            if self.rotate(&place, &file, now).is_ok() {
                file = place.open()?;
            }
        }
        file.write_all(line)
    }

    /// Renames the file and removes the oldest backups. Does nothing while another process rotates.
    fn rotate(&self, place: &Place<'_>, file: &File, now: SystemTime) -> io::Result<()> {
        flock(file, FlockOperation::NonBlockingLockExclusive)?;
        let (held, named) = (fstat(file)?, statat(&place.directory, place.name, AtFlags::SYMLINK_NOFOLLOW)?);
        if (held.st_dev, held.st_ino) != (named.st_dev, named.st_ino) {
            return Ok(());
        }
        let [date, time] = timestamp(now);
        let (stem, extension) = place.parts();
        let backup = format!("{stem}-{date}T{time}{extension}");
        let directory = &place.directory;
        renameat_with(directory, place.name, directory, &backup, RenameFlags::NOREPLACE)?;
        let mut backups = place.backups()?;
        backups.sort_by(|one, other| other.0.cmp(&one.0));
        let oldest = match self.rotation.max_age {
            0 => String::new(),
            days => timestamp(now.checked_sub(DAY * days).unwrap_or(UNIX_EPOCH)).join("T"),
        };
        let kept = match self.rotation.max_backups {
            0 => usize::MAX,
            backups => backups as usize,
        };
        for (index, (stamp, name)) in backups.iter().enumerate() {
            if index >= kept || *stamp < oldest {
                // One backup that cannot be removed, for example a directory, must not keep the others.
                let _ = unlinkat(directory, name.as_str(), AtFlags::empty());
            }
        }
        Ok(())
    }
}

impl<'a> Place<'a> {
    /// Opens an absolute path's directory step by step, and creates missing directories.
    fn find(path: &'a Path) -> io::Result<Place<'a>> {
        let name = path.file_name().and_then(OsStr::to_str).ok_or(io::ErrorKind::InvalidInput)?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut directory = open("/", flags, Mode::empty())?;
        for component in path.parent().into_iter().flat_map(Path::components) {
            let Component::Normal(one) = component else {
                if component == Component::RootDir {
                    continue;
                }
                return Err(io::ErrorKind::InvalidInput.into());
            };
            directory = match openat(&directory, one, flags, Mode::empty()) {
                Err(Errno::NOENT) => {
                    match mkdirat(&directory, one, Mode::from_raw_mode(0o755)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(cause) => return Err(cause.into()),
                    }
                    openat(&directory, one, flags, Mode::empty())
                }
                opened => opened,
            }
            .map_err(|cause| refused(cause, one, "is not a directory, or a symbolic link"))?;
        }
        Ok(Place { directory, name })
    }

    /// Opens the file for appending; creates it if it is missing.
    fn open(&self) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW;
        let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let name = OsStr::new(self.name);
        let file = openat(&self.directory, self.name, flags, Mode::from_raw_mode(0o600))
            .map_err(|cause| refused(cause, name, "is a symbolic link"))?;
        let found = fstat(&file)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile || found.st_nlink > 1 {
            return Err(io::Error::other("is not a regular file with one name"));
        }
        if found.st_mode & 0o077 != 0 {
            fchmod(&file, Mode::from_raw_mode(0o600))?;
        }
        Ok(File::from(file))
    }

    /// Splits the name into stem and extension; the extension includes the dot.
    fn parts(&self) -> (&str, &str) {
        let dot = self.name.rfind('.').filter(|dot| *dot > 0).unwrap_or(self.name.len());
        self.name.split_at(dot)
    }

    /// Lists the backups and timestamps.
    fn backups(&self) -> io::Result<Vec<(String, String)>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let (stem, extension) = self.parts();
        let mut backups = Vec::new();
        for entry in Dir::read_from(openat(&self.directory, ".", flags, Mode::empty())?)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let own = name.strip_suffix(".gz").unwrap_or(name);
            let stamp = own.strip_prefix(stem).and_then(|rest| rest.strip_prefix('-'));
            let stamp = stamp.and_then(|rest| rest.strip_suffix(extension));
            if let Some(stamp) = stamp.filter(|stamp| is_stamp(stamp)) {
                backups.push((stamp.to_owned(), name.to_owned()));
            }
        }
        Ok(backups)
    }
}

fn refused(cause: Errno, name: &OsStr, why: &str) -> io::Error {
    match cause {
        Errno::LOOP | Errno::NOTDIR => io::Error::other(format!("{name:?} {why}")),
        cause => cause.into(),
    }
}

fn is_stamp(text: &str) -> bool {
    let digit = |byte: u8| if byte.is_ascii_digit() { b'0' } else { byte };
    text.len() == STAMP.len() && text.bytes().zip(STAMP.bytes()).all(|(byte, form)| digit(byte) == form)
}

/// Formats a UTC time as date and time: `2026-11-25` and `19-24-04.123`.
fn timestamp(time: SystemTime) -> [String; 2] {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Converts days since 1970 to a date; years begin in March, so that a leap day comes last.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let date = format!("{year:04}-{month:02}-{day:02}");
    [date, format!("{hour:02}-{minute:02}-{second:02}.{:03}", since.subsec_millis())]
}

#[cfg(test)]
mod tests;
