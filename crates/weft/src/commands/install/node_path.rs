//! Paths of a node below `--root`: a mount of the host's file system in a container, or an image under construction.
//!
//! - A path has two forms: the name on the node, which is written into configurations, and the path for this process.
//! - Links are followed inside the root, so a link to `/var/…` in an image does not lead out of it.
//!
//! Source: openat2(2), RESOLVE_IN_ROOT.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};
use rustix::io::Errno;

use cli_support::failure::Failure;

/// Path on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NodePath {
    /// Path on the node.
    pub(super) named: PathBuf,
    /// Path for this process.
    pub(super) here: PathBuf,
}

impl NodePath {
    /// Returns the path `named` below `root`. The last components may be missing.
    ///
    /// # Errors
    /// The root does not exist, or the path is not absolute or leads through something that is not a directory.
    pub(super) fn below(root: &Path, named: &Path) -> Result<NodePath, Failure> {
        let named = named.to_owned();
        if root == Path::new("/") {
            return Ok(NodePath { here: named.clone(), named });
        }
        let failed = |what: &Path, cause: &dyn std::fmt::Display| {
            Failure::new(format!("--root {}: {}: {cause}", root.display(), what.display()))
        };
        let is_plain = |part: Component<'_>| matches!(part, Component::RootDir | Component::Normal(_));
        if !named.is_absolute() || !named.components().all(is_plain) {
            return Err(failed(&named, &"not an absolute path"));
        }
        let directory = OFlags::PATH | OFlags::CLOEXEC;
        let top =
            open(root, directory | OFlags::DIRECTORY, Mode::empty()).map_err(|errno| failed(root, &errno))?;
        let mut existing = named.as_path();
        let mut missing = Vec::new();
        loop {
            match openat2(&top, existing, directory, Mode::empty(), ResolveFlags::IN_ROOT) {
                Ok(found) => {
                    let mut here = path_of(&found).map_err(|cause| failed(&named, &cause))?;
                    if let Some(first) = missing.last()
                        && fs::symlink_metadata(here.join(first)).is_ok()
                    {
                        return Err(failed(&existing.join(first), &"dangling link below the root"));
                    }
                    here.extend(missing.iter().rev());
                    return Ok(NodePath { named, here });
                }
                Err(Errno::NOENT) => match (existing.parent(), existing.file_name()) {
                    (Some(parent), Some(name)) => {
                        missing.push(name.to_owned());
                        existing = parent;
                    }
                    _ => return Err(failed(&named, &Errno::NOENT)),
                },
                Err(errno) => return Err(failed(&named, &errno)),
            }
        }
    }

    /// Returns where the entry of this directory is for this process: a link is followed inside `root`. An entry that
    /// cannot be found that way keeps the same path.
    pub(super) fn locate(&self, root: &Path, entry: &Path) -> PathBuf {
        let Some(name) = entry.file_name() else { return entry.to_owned() };
        NodePath::below(root, &self.named.join(name)).map_or_else(|_| entry.to_owned(), |found| found.here)
    }

    /// Returns the path of an entry in this directory.
    pub(super) fn join(&self, name: &str) -> NodePath {
        NodePath { named: self.named.join(name), here: self.here.join(name) }
    }
}

/// Returns the path that the kernel reports for an open descriptor.
fn path_of(open: &OwnedFd) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", open.as_raw_fd()))
}
