//! Root: who has it not is told how to run the command with it.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::Path;

use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::failure::{Exit, Failure};

/// What root may lack, in a container above all.
const ROOT_LACKS: &str = "it is somebody else's, and root has not the capability DAC_OVERRIDE here, or the node's security module forbids it: docs/installation.md, «Permissions»";

/// Refuses unless we are root.
pub fn require(command: &str, why: &str) -> Result<(), Failure> {
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err(lacking(format!("{command} needs root: {why}"))),
    }
}

/// A refusal by the file system; if root would have been let in, that is what is said, and what root itself lacks.
pub fn refused(what: &str, cause: &io::Error) -> Failure {
    let sentence = format!("{what}: {cause}");
    match (cause.kind(), rustix::process::geteuid().is_root()) {
        (ErrorKind::PermissionDenied, false) => lacking(sentence),
        (ErrorKind::PermissionDenied, true) => Failure::new(sentence).exit(Exit::NeedsRoot).next(ROOT_LACKS),
        _ => Failure::new(sentence),
    }
}

/// A failure of another program to write to a place: if that is root's, root would not have had it.
pub fn of_place(failure: Failure, place: &Path) -> Failure {
    let there = place.ancestors().find(|path| path.exists()).unwrap_or(place);
    let is_denied = access(there, Access::WRITE_OK).is_err_and(|errno| errno == Errno::ACCESS);
    match is_denied && !rustix::process::geteuid().is_root() {
        true => with_root(failure),
        false => failure,
    }
}

fn lacking(sentence: String) -> Failure {
    with_root(Failure::new(sentence))
}

fn with_root(failure: Failure) -> Failure {
    let line: Vec<String> = std::env::args_os().map(|word| quoted(&word)).collect();
    failure.exit(Exit::NeedsRoot).next(format!("run it as: sudo {}", line.join(" ")))
}

/// A word as a shell takes it.
fn quoted(word: &OsString) -> String {
    let word = word.to_string_lossy().into_owned();
    let harmless = |c: char| c.is_ascii_alphanumeric() || "/._-=:,@+%".contains(c);
    match !word.is_empty() && word.chars().all(harmless) {
        true => word,
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_shown_as_a_shell_takes_it() {
        assert_eq!(quoted(&"a/b-c.yaml".into()), "a/b-c.yaml");
        assert_eq!(quoted(&"it's me".into()), r"'it'\''s me'");
        assert_eq!(quoted(&OsString::new()), "''");
    }
}
