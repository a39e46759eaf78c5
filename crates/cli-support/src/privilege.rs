//! Checks for root, and tells the user how to run the command again with `sudo`.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::Path;

use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::failure::{Exit, Failure};

/// Hint for the case that root still gets "permission denied", which happens mostly in containers.
const ROOT_DENIED: &str = "the file belongs to another user and root lacks the capability DAC_OVERRIDE here, or a security module of the node denies access: see docs/installation.md, «Permissions»";

/// Fails unless the process runs as root. `why` completes the sentence "`command` needs root: …".
pub fn require(command: &str, why: &str) -> Result<(), Failure> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    Err(lacking(format!("{command} needs root: {why}")))
}

/// Returns the failure for a file operation. If permission was denied, it includes a hint.
pub fn refused(what: &str, cause: &io::Error) -> Failure {
    let sentence = format!("{what}: {cause}");
    match (cause.kind(), rustix::process::geteuid().is_root()) {
        (ErrorKind::PermissionDenied, false) => lacking(sentence),
        (ErrorKind::PermissionDenied, true) => Failure::new(sentence).exit(Exit::NeedsRoot).next(ROOT_DENIED),
        _ => Failure::new(sentence),
    }
}

/// Adds the `sudo` hint to an external program's write failure if only root can write to `path`.
pub fn of_place(failure: Failure, path: &Path) -> Failure {
    let there = path.ancestors().find(|path| path.exists()).unwrap_or(path);
    let is_denied = access(there, Access::WRITE_OK).is_err_and(|errno| errno == Errno::ACCESS);
    if is_denied && !rustix::process::geteuid().is_root() { with_root(failure) } else { failure }
}

fn lacking(sentence: String) -> Failure {
    with_root(Failure::new(sentence))
}

fn with_root(failure: Failure) -> Failure {
    let line: Vec<String> = std::env::args_os().map(|word| quoted(&word)).collect();
    failure.exit(Exit::NeedsRoot).next(format!("run it as: sudo {}", line.join(" ")))
}

/// Quotes a word for a POSIX shell, so that the user can paste the command.
fn quoted(word: &OsString) -> String {
    let word = word.to_string_lossy().into_owned();
    let harmless = |c: char| c.is_ascii_alphanumeric() || "/._-=:,@+%".contains(c);
    if !word.is_empty() && word.chars().all(harmless) {
        return word;
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privilege_hint_quotes_the_command_for_a_shell() {
        assert_eq!(quoted(&"a/b-c.yaml".into()), "a/b-c.yaml");
        assert_eq!(quoted(&"it's me".into()), r"'it'\''s me'");
        assert_eq!(quoted(&OsString::new()), "''");
    }
}
