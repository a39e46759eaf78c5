//! Where the node's files are for who installs: below `--root`, where the host's file system is mounted, or an image
//! is being built.
//!
//! Rules: a path keeps the name that the node knows it by, which is what is written into configurations; links are followed
//! inside the root, so an image's link to `/var/…` is no way out of it.
//!
//! Source: openat2(2), RESOLVE_IN_ROOT.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, ResolveFlags, open, openat2};
use rustix::io::Errno;

use cli_support::failure::Failure;

/// A path of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// As the node names it.
    pub(super) named: PathBuf,
    /// As it is reached from here.
    pub(super) here: PathBuf,
}

impl Place {
    /// The path `named` below `root`; what of it does not exist yet is put behind what does.
    ///
    /// # Errors
    /// The root is not there, or the path is not absolute and leads through something that is no directory.
    pub(super) fn below(root: &Path, named: &Path) -> Result<Place, Failure> {
        let named = named.to_owned();
        if root == Path::new("/") {
            return Ok(Place { here: named.clone(), named });
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
        let mut there = named.as_path();
        let mut missing = Vec::new();
        loop {
            match openat2(&top, there, directory, Mode::empty(), ResolveFlags::IN_ROOT) {
                Ok(found) => {
                    let mut here = path_of(&found).map_err(|cause| failed(&named, &cause))?;
                    if let Some(first) = missing.last()
                        && fs::symlink_metadata(here.join(first)).is_ok()
                    {
                        return Err(failed(
                            &there.join(first),
                            &"a link that leads to nothing below the root",
                        ));
                    }
                    here.extend(missing.iter().rev());
                    return Ok(Place { named, here });
                }
                Err(Errno::NOENT) => match (there.parent(), there.file_name()) {
                    (Some(parent), Some(name)) => {
                        missing.push(name.to_owned());
                        there = parent;
                    }
                    _ => return Err(failed(&named, &Errno::NOENT)),
                },
                Err(errno) => return Err(failed(&named, &errno)),
            }
        }
    }

    /// What is in it by this name.
    pub(super) fn join(&self, name: &str) -> Place {
        Place { named: self.named.join(name), here: self.here.join(name) }
    }
}

/// What the kernel calls what is open.
fn path_of(open: &OwnedFd) -> io::Result<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", open.as_raw_fd()))
}
