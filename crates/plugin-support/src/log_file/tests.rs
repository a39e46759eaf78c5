//! Tests for the log file.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::{AtomicU32, Ordering};

use super::*;

const SMALL: Rotation = Rotation { max_size: 200, max_age: 0, max_backups: 0 };

/// Returns a directory that no other test uses.
fn directory() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = fs::canonicalize(std::env::temp_dir()).unwrap();
    let path = path.join(format!("weft-log-{}-{number}", std::process::id()));
    fs::create_dir_all(&path).unwrap();
    path
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn log_file_timestamps_are_dates_of_the_calendar() {
    for (seconds, date, time) in [
        (0, "1970-01-01", "00-00-00.000"),
        (951_782_400, "2000-02-29", "00-00-00.000"),
        (1_764_098_644, "2025-11-25", "19-24-04.000"),
        (4_107_542_399, "2100-02-28", "23-59-59.000"),
    ] {
        assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(seconds)), [date, time]);
    }
}

#[test]
fn log_file_is_private_and_gets_missing_directories() {
    let directory = directory();
    let path = directory.join("a/b/weft.log");
    let log = LogFile::new(&path, SMALL).unwrap();
    log.write("verbose", "first");
    fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
    log.write("error", "second");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() == 2 && lines[0].ends_with("Z [verbose] first"), "{text}");
    assert!(lines[1].ends_with("Z [error] second") && lines[1].contains('T'), "{text}");
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn log_file_links_and_special_files_are_refused() {
    let directory = directory();
    let victim = directory.join("victim");
    fs::write(&victim, "kept").unwrap();
    fs::create_dir(directory.join("real")).unwrap();
    symlink(&victim, directory.join("soft.log")).unwrap();
    symlink(directory.join("real"), directory.join("linked")).unwrap();
    fs::hard_link(&victim, directory.join("hard.log")).unwrap();
    fs::create_dir(directory.join("folder.log")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, directory.join("pipe.log"), Mode::from_raw_mode(0o600)).unwrap();
    for name in
        ["soft.log", "linked/weft.log", "hard.log", "folder.log", "pipe.log", "victim/x.log", "../x/y.log"]
    {
        let refused = LogFile::new(&directory.join(name), SMALL);
        assert!(refused.is_err(), "{name}: {refused:?}");
    }
    // A link that appears later must not be followed either.
    let path = directory.join("weft.log");
    let log = LogFile::new(&path, SMALL).unwrap();
    fs::remove_file(&path).unwrap();
    symlink(&victim, &path).unwrap();
    log.write("error", "lost");
    assert_eq!(fs::read_to_string(&victim).unwrap(), "kept");
    assert_eq!(names(&directory.join("real")), [""; 0]);
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn log_file_rotation_ends_although_a_file_cannot_be_removed() {
    let directory = directory();
    let path = directory.join("weft.log");
    let rotation = Rotation { max_backups: 1, ..SMALL };
    let log = LogFile::new(&path, rotation).unwrap();
    let of = |year: u32| format!("weft-{year}-01-01T00-00-00.000.log");
    fs::create_dir(directory.join(of(2001))).unwrap();
    fs::write(directory.join(of(2000)), "old").unwrap();
    log.write("error", &"a".repeat(190));
    log.write("error", "after the rotation");
    assert!(fs::read_to_string(&path).unwrap().ends_with("after the rotation\n"));
    let left = names(&directory);
    assert!(left.len() == 3 && left.contains(&of(2001)), "{left:?}");
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn log_file_rotation_keeps_the_newest_files() {
    let directory = directory();
    let path = directory.join("weft.log");
    let rotation = Rotation { max_size: 200, max_age: 5, max_backups: 2 };
    let log = LogFile::new(&path, rotation).unwrap();
    let old = "weft-2001-01-01T00-00-00.000.log";
    for name in
        [old, "weft-2001-01-01T00-00-00.000.log.gz", "weft-today.log", "other-2001-01-01T00-00-00.000.log"]
    {
        fs::write(directory.join(name), "").unwrap();
    }
    let now = SystemTime::now();
    for round in 0..4 {
        fs::write(&path, "x".repeat(190)).unwrap();
        log.append(format!("line {round:5}\n").as_bytes(), now + DAY * round / 4).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("line {round:5}\n"));
    }
    let left = names(&directory);
    assert_eq!(left.len(), 5, "{left:?}");
    assert!(left.contains(&"weft-today.log".to_owned()) && !left.contains(&old.to_owned()), "{left:?}");
    // A line that fits is appended to the same file.
    log.append(b"next\n", now).unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), "line     3\nnext\n");
    fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn log_file_of_concurrent_writers_loses_no_line() {
    let directory = directory();
    let path = directory.join("weft.log");
    let log = LogFile::new(&path, Rotation { max_size: 2000, ..SMALL }).unwrap();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let log = &log;
            scope.spawn(move || {
                for line in 0..100 {
                    log.write("error", &format!("{writer}:{line}"));
                }
            });
        }
    });
    let all = names(&directory);
    assert!(all.len() > 1, "the file was rotated: {all:?}");
    let lines: usize =
        all.iter().map(|name| fs::read_to_string(directory.join(name)).unwrap().lines().count()).sum();
    assert_eq!(lines, 400, "{all:?}");
    fs::remove_dir_all(&directory).unwrap();
}
