//! `weft install --follow`: what was installed stays so.
//!
//! Rules:
//! - it is looked for what changed by names, sizes and times, and only then by reading;
//! - while there is no default network, or it is not ready, what is written stays: pods have to be removed with it;
//! - a failure is told once and ends nothing: the next change may mend it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use super::thin::Thin;
use super::{Arguments, Look, Places, attempt, finish};
use cli_support::failure::Failure;
use cli_support::interrupt::Interrupt;
use cli_support::output::{Format, Progress};
use node_support::weft_cni::WeftCni;

/// How often it is looked whether something changed.
const PAUSE: Duration = Duration::from_millis(500);
/// After so many looks everything is gone through: for what no time or size shows, like a plugin that came.
const AT_LEAST: u32 = 20;

/// What a file is known by: inode, size and the time it changed.
type Mark = (u64, u64, i64, i64);

/// Installs, and goes on until it is told to end.
pub(super) fn follow(arguments: &Arguments) -> Result<(), Failure> {
    let progress = Progress::beside(Format::Text);
    let interrupt = Interrupt::watch()?;
    let weft_cni = WeftCni::find()?;
    let mut seen = BTreeMap::new();
    let mut said = String::new();
    let mut rounds = 0_u32;
    while !interrupt.is_set() {
        let before = marks(arguments);
        if before != seen || rounds.is_multiple_of(AT_LEAST) {
            let lines = once(arguments, &weft_cni);
            let text = lines.join("\n");
            if text != said {
                lines.iter().for_each(|line| progress.line(line));
                said = text;
            }
            // What was written now is no news; what others changed meanwhile is.
            let after = marks(arguments);
            seen = before;
            for path in own(arguments) {
                seen.insert(path.clone(), after.get(&path).copied().flatten());
            }
        }
        rounds = rounds.wrapping_add(1);
        sleep(PAUSE);
    }
    Ok(())
}

/// One try, and what there is to say.
fn once(arguments: &Arguments, weft_cni: &WeftCni) -> Vec<String> {
    let tried = Places::of(arguments).and_then(|places| match attempt(arguments, &places, weft_cni)? {
        (Look::Ready(text), mut lines) => {
            lines.extend(finish(&places, weft_cni, &text)?);
            Ok(lines)
        }
        (Look::NotYet(failure), mut lines) => {
            lines.push(format!("waiting: {failure}"));
            Ok(lines)
        }
    });
    tried.unwrap_or_else(|failure| vec![failure.to_string()])
}

/// What this program writes.
fn own(arguments: &Arguments) -> Vec<PathBuf> {
    let Ok(places) = Places::of(arguments) else { return Vec::new() };
    let thin = Thin::of(arguments, &places).map(|thin| thin.files().0).unwrap_or_default();
    let Places { networks: _, plugins, written, sign: _ } = places;
    let programs = ["weft", "weft-cni", "loopback"].map(|name| plugins.here.join(name));
    programs.into_iter().chain([written.here]).chain(thin).collect()
}

/// What there is, by path.
fn marks(arguments: &Arguments) -> BTreeMap<PathBuf, Option<Mark>> {
    let Ok(places) = Places::of(arguments) else { return BTreeMap::new() };
    let account = Thin::of(arguments, &places).map(|thin| thin.files().1).unwrap_or_default();
    let Places { networks, plugins: _, written: _, sign } = places;
    let mark = |path: &Path| {
        let meta = fs::metadata(path).ok()?;
        // A directory's own size and time change with whatever comes and goes in it; that is looked at itself.
        Some(match meta.is_dir() {
            true => (meta.ino(), 0, 0, 0),
            false => (meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec()),
        })
    };
    let entries = fs::read_dir(&networks.here).into_iter().flatten().flatten().map(|entry| entry.path());
    let single = sign.map(|sign| sign.here).into_iter().chain(arguments.config.clone());
    let all = entries.chain(own(arguments)).chain(single).chain(account);
    all.map(|path| (path.clone(), mark(&path))).collect()
}
