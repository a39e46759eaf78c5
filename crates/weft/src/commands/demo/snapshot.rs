//! Machine snapshots before and after the demo, and the differences.
//!
//! A snapshot has links, addresses, routes, rules, our owner tags in packet filters (`weft-cni sandbox
//! show`), and the files below [`DIRECTORIES`]. Directories themselves and other demos' files are not
//! compared.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rpc::history;

use crate::commands::demo::run_tag::{PREFIX, RunTag};
use crate::pod_name::NAMESPACES;
use cli_support::failure::Failure;
use cli_support::output::Progress;
use cli_support::terminal::plain;
use node_support::weft_cni::{Contents, WeftCni};

/// Directories in which network software keeps files.
const DIRECTORIES: &[&str] = &["/run/netns", "/run/cni", "/var/lib/cni", "/var/lib/weft"];
/// Directory in which only entries are compared whose name begins with `weft`.
const RUN: &str = "/run";
/// Directories that our plugins create for caches, the innermost first.
const CACHE_DIRECTORIES: &[&str] = &["/run/weft/host-local", "/run/weft"];
/// Cached copies of address directories. The names do not contain a run's tag, so they are not compared while another
/// demo runs.
const CACHED_ADDRESSES: &str = "/run/weft/host-local/";
/// Maximum number of files.
const FILES_MAX: usize = 100_000;

/// State of the machine at one time.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    contents: Contents,
    /// Path, size and modification time for each file.
    files: BTreeSet<String>,
    /// Existing directories among [`CACHE_DIRECTORIES`] and [`NAMESPACES`].
    present: BTreeSet<PathBuf>,
    /// Whether another demo runs.
    is_other_demo_running: bool,
}

impl Snapshot {
    /// Takes a snapshot.
    pub(super) fn take(weft_cni: &WeftCni, tag: &RunTag) -> Result<Snapshot, Failure> {
        let (mut files, mut is_other_demo_running) = (BTreeSet::new(), false);
        let mut pending: Vec<PathBuf> = DIRECTORIES.iter().map(PathBuf::from).collect();
        pending.extend(entries(Path::new(RUN))?.into_iter().filter(|path| name(path).starts_with("weft")));
        while let Some(path) = pending.pop() {
            let of_another_run = name(&path).starts_with(PREFIX) && !name(&path).starts_with(&tag.prefix());
            let metadata = match fs::symlink_metadata(&path) {
                Err(cause) if cause.kind() == ErrorKind::NotFound => continue,
                result => result.map_err(|cause| read_failure(&path, &cause))?,
            };
            match metadata.is_dir() {
                _ if of_another_run => is_other_demo_running = true,
                // A log: calls for other pods append to it meanwhile.
                true if name(&path) == history::DIRECTORY => {}
                true => pending.extend(entries(&path)?),
                false => {
                    let modified = format!("{}.{:09}", metadata.mtime(), metadata.mtime_nsec());
                    files.insert(format!("{} {} {modified}", path.display(), metadata.len()));
                }
            }
            if files.len() > FILES_MAX {
                return Err(Failure::new(format!("more than {FILES_MAX} files of network software")));
            }
        }
        let watched = CACHE_DIRECTORIES.iter().chain([&NAMESPACES]).map(PathBuf::from);
        let present = watched.filter(|path| path.exists()).collect();
        Ok(Snapshot { contents: weft_cni.own_contents()?, files, present, is_other_demo_running })
    }

    /// Removes empty cache directories that did not exist when this snapshot was taken.
    pub(super) fn remove_cache_directories(&self) {
        for path in CACHE_DIRECTORIES.iter().map(Path::new).filter(|path| !self.present.contains(*path)) {
            // A directory with files of another process is not empty and stays.
            let _ = fs::remove_dir(path);
        }
    }

    /// Returns how many objects there are, by kind.
    pub(super) fn summary(&self) -> String {
        let counts = self.contents.iter().map(|(kind, lines)| format!("{kind} {}", lines.len()));
        counts.chain([format!("files {}", self.files.len())]).collect::<Vec<_>>().join(", ")
    }

    /// Returns a line for each object that only one snapshot has.
    pub(super) fn differences(&self, after: &Snapshot) -> Vec<String> {
        let mut lines = contents_differences(&self.contents, &after.contents);
        lines.extend(self.files.difference(&after.files).map(|file| format!("- file {file}")));
        lines.extend(after.files.difference(&self.files).map(|file| format!("+ file {file}")));
        if self.is_other_demo_running || after.is_other_demo_running {
            lines.retain(|line| !line.contains(CACHED_ADDRESSES));
        }
        lines
    }

    /// Returns remarks about differences that are not failures.
    pub(super) fn remarks(&self, after: &Snapshot) -> Vec<String> {
        let namespaces = Path::new(NAMESPACES);
        match !self.present.contains(namespaces) && after.present.contains(namespaces) {
            true => vec![format!("{NAMESPACES} was created, empty and shared, as by `ip netns`")],
            false => Vec::new(),
        }
    }
}

/// Returns the paths in a directory; none if it does not exist.
pub(super) fn entries(directory: &Path) -> Result<Vec<PathBuf>, Failure> {
    let found = match fs::read_dir(directory) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        found => found.and_then(|found| found.map(|entry| Ok(entry?.path())).collect()),
    };
    found.map_err(|cause| read_failure(directory, &cause))
}

fn read_failure(path: &Path, cause: &io::Error) -> Failure {
    Failure::new(format!("read {}: {cause}", path.display()))
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
    let removed = before.difference(&after).map(|line| format!("- {line}"));
    removed.chain(after.difference(&before).map(|line| format!("+ {line}"))).collect()
}

/// Prints what remains on the simulated host after the pods were detached, and why.
///
/// # Errors
/// Something other than a bridge, with addresses and routes, remains.
pub(super) fn check_remaining(
    fresh: &Contents,
    remaining: &Contents,
    progress: Progress,
) -> Result<(), Failure> {
    progress.line(
        "\nremaining on the simulated host until it is removed: bridges with their addresses and routes, and the empty",
    );
    progress.line("masquerading table; they stay for the next pod, as those of the CNI reference plugins do");
    let bridges = bridges(remaining);
    let mut unexpected = Vec::new();
    for line in contents_differences(fresh, remaining) {
        progress.line(format!("  {}", plain(&line)));
        let of_bridge = bridges.iter().any(|bridge| line.split(' ').any(|word| word == bridge));
        if !(of_bridge && line.starts_with("+ ") && !line.starts_with("+ filter ")) {
            unexpected.push(line);
        }
    }
    match unexpected.as_slice() {
        [] => Ok(()),
        unexpected => Err(Failure::new(format!(
            "unexpected objects remain after the pods were detached: {}",
            unexpected.join("; ")
        ))),
    }
}

/// Returns the bridges' names. Lines have the form `NAME KIND …`.
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
            is_other_demo_running: false,
        }
    }

    #[test]
    fn demo_snapshot_difference_is_one_line_each() {
        let (a, b) = (snapshot(&["lo device"], &["/x 1 1"]), snapshot(&["eth0 device"], &["/x 2 2"]));
        assert_eq!(
            a.differences(&b),
            ["- link lo device", "+ link eth0 device", "- file /x 1 1", "+ file /x 2 2"]
        );
        assert!(a.differences(&a.clone()).is_empty());
        let copied = snapshot(&["lo device"], &["/x 1 1", "/run/weft/host-local/27-1 96 1"]);
        assert_eq!(a.differences(&copied).len(), 1);
        assert!(a.differences(&Snapshot { is_other_demo_running: true, ..copied }).is_empty());
        assert_eq!(a.summary(), "links 1, routes 0, files 1");
    }

    #[test]
    fn demo_snapshot_allows_remaining_bridges_only() {
        let fresh = contents(&["lo device"], &[]);
        let bridge = ["br0 bridge 02:00:00:00:00:01", "lo device"];
        let quiet = Progress::beside(cli_support::output::Format::Json);
        let remains =
            |links: &[&str], routes: &[&str]| check_remaining(&fresh, &contents(links, routes), quiet);
        assert!(remains(&bridge, &["10.0.0.0/24 dev br0 table 254"]).is_ok());
        assert!(remains(&bridge, &["10.0.0.2/32 dev veth1 table 254"]).is_err());
        assert!(remains(&["lo device", "veth1 veth 02:00:00:00:00:02"], &[]).is_err());
        assert!(remains(&[], &[]).is_err());
    }
}
