//! `weft install --follow`: installs again after changes.
//!
//! - Changes are detected by inode, size and modification time. Files are read only if one of these differs.
//! - While the default network is missing or not ready, the installed configuration stays, because the runtime needs it
//!   to delete pods.
//! - A failure is printed once and does not end the command, because a later change may resolve it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use super::command::Command;
use super::thin::Thin;
use super::{Arguments, InstallPaths, Readiness, attempt, write_configuration};
use cli_support::failure::Failure;
use cli_support::interrupt::Interrupt;
use cli_support::output::{Format, Progress};
use node_support::weft_cni::WeftCni;

/// Interval between two checks for changes.
const PAUSE: Duration = Duration::from_millis(500);
/// Number of checks after which everything is installed again, to repair changes that no file state shows.
const FULL_CHECK_ROUNDS: u32 = 20;

/// Inode, size and modification time (seconds, nanoseconds) of a file.
type FileState = (u64, u64, i64, i64);

/// Installs, and continues until SIGTERM or SIGINT.
pub(super) fn follow(arguments: &Arguments) -> Result<(), Failure> {
    let progress = Progress::beside(Format::Text);
    let interrupt = Interrupt::watch()?;
    let weft_cni = WeftCni::find()?;
    let mut seen = BTreeMap::new();
    let mut printed = String::new();
    let mut rounds = 0_u32;
    while !interrupt.is_set() {
        let before = file_states(arguments);
        if before != seen || rounds.is_multiple_of(FULL_CHECK_ROUNDS) {
            let lines = install_once(arguments, &weft_cni);
            let text = lines.join("\n");
            if text != printed {
                lines.iter().for_each(|line| progress.line(line));
                printed = text;
            }
            // Our own writes are no change; concurrent changes by other programs are.
            let after = file_states(arguments);
            seen = before;
            for path in written_files(arguments) {
                seen.insert(path.clone(), after.get(&path).copied().flatten());
            }
        }
        rounds = rounds.wrapping_add(1);
        sleep(PAUSE);
    }
    Ok(())
}

/// Installs once, and returns the lines to print.
fn install_once(arguments: &Arguments, weft_cni: &WeftCni) -> Vec<String> {
    let result = InstallPaths::of(arguments).and_then(|paths| match attempt(arguments, &paths, weft_cni)? {
        (Readiness::Ready(text), mut lines) => {
            lines.extend(write_configuration(&paths, weft_cni, &text)?);
            Ok(lines)
        }
        (Readiness::NotYet(failure), mut lines) => {
            lines.push(format!("waiting: {failure}"));
            Ok(lines)
        }
    });
    result.unwrap_or_else(|failure| vec![failure.to_string()])
}

/// Returns the files that the command writes.
fn written_files(arguments: &Arguments) -> Vec<PathBuf> {
    let Ok(paths) = InstallPaths::of(arguments) else { return Vec::new() };
    let thin = Thin::of(arguments, &paths).map(|thin| thin.files().0).unwrap_or_default();
    let command = Command::of(arguments, &paths).ok().flatten();
    let command = command.iter().flat_map(Command::files);
    let InstallPaths { plugins, written, .. } = paths;
    let programs = ["weft", "weft-cni", "loopback"].map(|name| plugins.here.join(name));
    programs.into_iter().chain([written.here]).chain(thin).chain(command).collect()
}

/// Returns the state of every watched file, by path.
fn file_states(arguments: &Arguments) -> BTreeMap<PathBuf, Option<FileState>> {
    let Ok(paths) = InstallPaths::of(arguments) else { return BTreeMap::new() };
    let account = Thin::of(arguments, &paths).map(|thin| thin.files().1).unwrap_or_default();
    let InstallPaths { networks, ready_file, .. } = paths;
    let file_state = |path: &Path| {
        let meta = fs::metadata(path).ok()?;
        // Size and time of a directory change with its entries, which are watched themselves.
        Some(match meta.is_dir() {
            true => (meta.ino(), 0, 0, 0),
            false => (meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec()),
        })
    };
    let entries = fs::read_dir(&networks.here).into_iter().flatten().flatten().map(|entry| entry.path());
    let single = ready_file.map(|ready_file| ready_file.here).into_iter().chain(arguments.config.clone());
    let all = entries.chain(written_files(arguments)).chain(single).chain(account);
    all.map(|path| (path.clone(), file_state(&path))).collect()
}
