//! What is on the machine, to be compared: that the demo leaves nothing is shown, not claimed.
//!
//! Looked at are links, addresses, routes, rules and our marks in packet filters (`weft-cni sandbox show`), and the
//! files below [`DIRECTORIES`]. Directories do not count, their files do; other runs of the demo are passed over.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::commands::demo::tag::{PREFIX, Tag};
use crate::pod_name::NAMESPACES;
use cli_support::failure::Failure;
use cli_support::output::Progress;
use cli_support::terminal::plain;
use node_support::weft_cni::{Contents, WeftCni};

/// Where network software keeps files.
const DIRECTORIES: &[&str] = &["/run/netns", "/run/cni", "/var/lib/cni", "/var/lib/weft"];
/// In here, those whose name begins with `weft`.
const RUN: &str = "/run";
/// Directories that our plugins make for what they would rather not compute again; the innermost first.
const PASSING: &[&str] = &["/run/weft/host-local", "/run/weft"];
/// Copies of the address directories, under names that do not tell whose: while another demo runs they cannot be told
/// from its own.
const COPIES: &str = "/run/weft/host-local/";
/// Most files looked at.
const FILES_MAX: usize = 100_000;

/// One look at the machine.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    contents: Contents,
    /// `path size modified`
    files: BTreeSet<String>,
    /// Which of [`PASSING`] and of [`NAMESPACES`] were there.
    present: BTreeSet<PathBuf>,
    /// Is another demo at work?
    crowded: bool,
}

impl Snapshot {
    /// Looks.
    pub(super) fn take(weft_cni: &WeftCni, tag: &Tag) -> Result<Snapshot, Failure> {
        let (mut files, mut crowded) = (BTreeSet::new(), false);
        let mut waiting: Vec<PathBuf> = DIRECTORIES.iter().map(PathBuf::from).collect();
        waiting.extend(entries(Path::new(RUN))?.into_iter().filter(|path| name(path).starts_with("weft")));
        while let Some(path) = waiting.pop() {
            let of_another_run = name(&path).starts_with(PREFIX) && !name(&path).starts_with(&tag.prefix());
            let metadata = match fs::symlink_metadata(&path) {
                Err(cause) if cause.kind() == ErrorKind::NotFound => continue,
                looked => looked.map_err(|cause| unread(&path, &cause))?,
            };
            match metadata.is_dir() {
                _ if of_another_run => crowded = true,
                true => waiting.extend(entries(&path)?),
                false => {
                    let modified = format!("{}.{:09}", metadata.mtime(), metadata.mtime_nsec());
                    files.insert(format!("{} {} {modified}", path.display(), metadata.len()));
                }
            }
            if files.len() > FILES_MAX {
                return Err(Failure::new(format!("more than {FILES_MAX} files of network software")));
            }
        }
        let watched = PASSING.iter().chain([&NAMESPACES]).map(PathBuf::from);
        let present = watched.filter(|path| path.exists()).collect();
        Ok(Snapshot { contents: weft_cni.own_contents()?, files, present, crowded })
    }

    /// Removes the passing directories that were not there when this was taken, if nobody uses them now.
    pub(super) fn tidy(&self) {
        for path in PASSING.iter().map(Path::new).filter(|path| !self.present.contains(*path)) {
            // Somebody else's file in there keeps it, and so it should.
            let _ = fs::remove_dir(path);
        }
    }

    /// How much was looked at.
    pub(super) fn summary(&self) -> String {
        let counts = self.contents.iter().map(|(kind, lines)| format!("{kind} {}", lines.len()));
        counts.chain([format!("files {}", self.files.len())]).collect::<Vec<_>>().join(", ")
    }

    /// A line for each thing that is there in one of the two alone.
    pub(super) fn differences(&self, after: &Snapshot) -> Vec<String> {
        let mut lines = contents_differences(&self.contents, &after.contents);
        lines.extend(self.files.difference(&after.files).map(|file| format!("- file {file}")));
        lines.extend(after.files.difference(&self.files).map(|file| format!("+ file {file}")));
        if self.crowded || after.crowded {
            lines.retain(|line| !line.contains(COPIES));
        }
        lines
    }

    /// What is different and does not count.
    pub(super) fn remarks(&self, after: &Snapshot) -> Vec<String> {
        let namespaces = Path::new(NAMESPACES);
        match !self.present.contains(namespaces) && after.present.contains(namespaces) {
            true => vec![format!("{NAMESPACES} was made, empty and shared, as `ip netns` makes it")],
            false => Vec::new(),
        }
    }
}

/// What is in a directory, which need not be there.
pub(super) fn entries(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let found = match fs::read_dir(directory) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        found => found.and_then(|found| found.map(|entry| Ok(entry?.path())).collect()),
    };
    found.map_err(|cause| unread(directory, &cause))
}

fn unread(path: &Path, cause: &io::Error) -> Failure {
    Failure::new(format!("look at {}: {cause}", path.display()))
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn contents_differences(before: &Contents, after: &Contents) -> Vec<String> {
    let lines = |contents: &Contents| -> BTreeSet<String> {
        let each = contents.iter().flat_map(|(kind, lines)| {
            let kind = kind.strip_suffix('s').unwrap_or(kind);
            let kind = if kind == "addresse" { "address" } else { kind };
            lines.iter().map(move |line| format!("{kind} {line}"))
        });
        each.collect()
    };
    let (before, after) = (lines(before), lines(after));
    let gone = before.difference(&after).map(|line| format!("- {line}"));
    gone.chain(after.difference(&before).map(|line| format!("+ {line}"))).collect()
}

/// Says what is left on the pretend host once its pods are gone, and why.
///
/// # Errors
/// If something is left that is not a bridge, its address or its route.
pub(super) fn explain_remains(fresh: &Contents, left: &Contents, progress: Progress) -> Result<(), Failure> {
    progress.line(
        "\nleft on the pretend host, which goes with it: bridges with their addresses and routes (and the empty",
    );
    progress.line("table of the masquerading); they stay for the next pod, as those of CNI's own plugins do");
    let bridges = bridges(left);
    let mut foreign = Vec::new();
    for line in contents_differences(fresh, left) {
        progress.line(format!("  {}", plain(&line)));
        let of_bridge = bridges.iter().any(|bridge| line.split(' ').any(|word| word == bridge));
        if !(of_bridge && line.starts_with("+ ") && !line.starts_with("+ filter ")) {
            foreign.push(line);
        }
    }
    match foreign.as_slice() {
        [] => Ok(()),
        foreign => Err(Failure::new(format!("the pods are gone and this is left: {}", foreign.join("; ")))),
    }
}

/// The names of the links that are bridges: lines are `NAME KIND …`.
fn bridges(contents: &Contents) -> Vec<String> {
    let links = contents.get("links").map(Vec::as_slice).unwrap_or_default();
    let bridge = |line: &String| {
        let mut words = line.split(' ');
        let name = words.next()?.to_owned();
        (words.next() == Some("bridge")).then_some(name)
    };
    links.iter().filter_map(bridge).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(links: &[&str], routes: &[&str]) -> Contents {
        let owned = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
        Contents::from([("links".to_owned(), owned(links)), ("routes".to_owned(), owned(routes))])
    }

    fn snapshot(links: &[&str], files: &[&str]) -> Snapshot {
        Snapshot {
            contents: contents(links, &[]),
            files: files.iter().map(|file| (*file).to_owned()).collect(),
            present: BTreeSet::new(),
            crowded: false,
        }
    }

    #[test]
    fn a_difference_is_a_line() {
        let (a, b) = (snapshot(&["lo device"], &["/x 1 1"]), snapshot(&["eth0 device"], &["/x 2 2"]));
        assert_eq!(
            a.differences(&b),
            ["- link lo device", "+ link eth0 device", "- file /x 1 1", "+ file /x 2 2"]
        );
        assert!(a.differences(&a.clone()).is_empty());
        let copied = snapshot(&["lo device"], &["/x 1 1", "/run/weft/host-local/27-1 96 1"]);
        assert_eq!(a.differences(&copied).len(), 1);
        assert!(a.differences(&Snapshot { crowded: true, ..copied }).is_empty());
        assert_eq!(a.summary(), "links 1, routes 0, files 1");
    }

    #[test]
    fn bridges_may_stay_and_nothing_else() {
        let fresh = contents(&["lo device"], &[]);
        let bridge = ["br0 bridge 02:00:00:00:00:01", "lo device"];
        let quiet = Progress::beside(cli_support::output::Format::Json);
        let remains =
            |links: &[&str], routes: &[&str]| explain_remains(&fresh, &contents(links, routes), quiet);
        assert!(remains(&bridge, &["10.0.0.0/24 dev br0 table 254"]).is_ok());
        assert!(remains(&bridge, &["10.0.0.2/32 dev veth1 table 254"]).is_err());
        assert!(remains(&["lo device", "veth1 veth 02:00:00:00:00:02"], &[]).is_err());
        assert!(remains(&[], &[]).is_err());
    }
}
