//! Process that holds a file lock, for messages.
//!
//! Source: proc_locks(5); flock(2). Process ids are those in the reader's PID namespace.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;

/// Returns the file as `/proc/locks` names it: the device's major and minor number, and the inode.
pub(super) fn identity(file: &File) -> Option<String> {
    let meta = file.metadata().ok()?;
    let device = meta.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    Some(format!("{major:02x}:{minor:02x}:{}", meta.ino()))
}

/// Returns the process that holds this file's lock, as `process 123 (name)`.
pub(super) fn find(identity: Option<String>) -> Option<String> {
    let process = holder(&fs::read_to_string("/proc/locks").ok()?, &identity?)?;
    let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    Some(format!("process {process} ({})", name.trim()))
}

/// Returns the process id in a held lock's line. The line of a waiting process has `->`.
fn holder(locks: &str, identity: &str) -> Option<u32> {
    let held = locks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let held = held.filter(|words| words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&identity));
    held.filter_map(|words| words.get(4)?.parse().ok()).find(|process| *process > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_holder_is_the_process_in_the_line_of_the_file() {
        let locks = "1: FLOCK  ADVISORY  WRITE 11 fe:01:100 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 12 fe:01:200 0 EOF\n\
                     2: POSIX  ADVISORY  WRITE 13 fe:01:200 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 14 fe:01:200 0 EOF\n";
        assert_eq!(holder(locks, "fe:01:200"), Some(14));
        assert_eq!(holder(locks, "fe:01:300"), None);
    }

    #[test]
    fn lock_holder_of_a_locked_file_is_this_process() {
        let path = std::env::temp_dir().join(format!("weft-lock-holder-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        file.lock().unwrap();
        let expected = format!("process {} (", std::process::id());
        let found = find(identity(&file)).unwrap_or_default();
        fs::remove_file(&path).unwrap();
        assert!(found.starts_with(&expected), "{found}");
    }
}
