//! `weft-cni install DIR`: puts this binary into a plugin directory, under the names asked for.
//!
//! Rules:
//! - written beside and renamed: whoever runs the old one keeps it, nobody sees half of the new one, and
//!   there is no «text file busy»;
//! - what is the same is left alone; a foreign plugin is only replaced if that was said;
//! - names are links to the one file, relative, so the directory may be seen under another path.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use cni::Error;

use crate::builtins::PROGRAM;
use crate::dispatch;

/// What to install, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// The plugin directory; made if it is not there.
    pub directory: PathBuf,
    /// The names to answer to.
    pub names: Vec<String>,
    /// What to do with foreign plugins of these names.
    pub foreign: Foreign,
}

/// What to do with a foreign plugin that has one of our names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// Refuse before anything is changed.
    Refuse,
    /// Replace it.
    Replace,
    /// Leave it where it is: the name is not ours here.
    Keep,
}

/// What was done, a line each.
pub type Report = Vec<String>;

impl Installation {
    /// Reads the names: a list divided by commas, or `all`.
    pub fn names(text: &str) -> Result<Vec<String>, Error> {
        if text == "all" {
            return Ok(dispatch::names().map(str::to_owned).collect());
        }
        let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
        match names.iter().find(|name| dispatch::find(name).is_none()) {
            None => Ok(names),
            Some(unknown) => {
                let known: Vec<&str> = dispatch::names().collect();
                Err(Error::key("--names", format!("{unknown:?}"), format!("not one of {}", known.join(", "))))
            }
        }
    }

    /// Does it.
    ///
    /// # Errors
    /// A foreign plugin in the way (nothing is changed then), or the file system's refusal.
    pub fn carry_out(&self) -> Result<Report, Error> {
        let Installation { directory, names, foreign } = self;
        let failed = |what: &str, path: &Path, cause: io::Error| {
            Error::io(format_args!("{what} {}", path.display()), cause)
        };
        fs::create_dir_all(directory).map_err(|cause| failed("create", directory, cause))?;
        if *foreign == Foreign::Refuse {
            self.refuse_foreign()?;
        }
        let mut report = Report::new();
        let binary = directory.join(PROGRAM);
        let own = Path::new("/proc/self/exe");
        match same_content(own, &binary).map_err(|cause| failed("compare", &binary, cause))? {
            true => report.push(format!("{}: up to date", binary.display())),
            false => {
                copy(own, &binary).map_err(|cause| failed("write", &binary, cause))?;
                report.push(format!("{}: installed", binary.display()));
            }
        }
        for name in names.iter().filter(|name| *name != PROGRAM) {
            let link = directory.join(name);
            if fs::read_link(&link).is_ok_and(|target| target == Path::new(PROGRAM)) {
                report.push(format!("{}: up to date", link.display()));
                continue;
            }
            if *foreign == Foreign::Keep && is_foreign(&link)? {
                report.push(format!("{}: somebody else's, kept", link.display()));
                continue;
            }
            let temporary = directory.join(format!(".{name}.new"));
            discard(&temporary).map_err(|cause| failed("remove", &temporary, cause))?;
            let linked = symlink(PROGRAM, &temporary).and_then(|()| fs::rename(&temporary, &link));
            linked.map_err(|cause| failed("link", &link, cause))?;
            report.push(format!("{}: linked to {PROGRAM}", link.display()));
        }
        Ok(report)
    }

    fn refuse_foreign(&self) -> Result<(), Error> {
        for name in &self.names {
            let path = self.directory.join(name);
            if is_foreign(&path)? {
                let why = "another plugin of this name; use --replace to replace it";
                return Err(Error::config(format!("{}: {why}", path.display())));
            }
        }
        Ok(())
    }
}

/// Whether there is something that is no link to our file.
fn is_foreign(path: &Path) -> Result<bool, Error> {
    match fs::symlink_metadata(path) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(false),
        Err(cause) => Err(Error::io(format_args!("look at {}", path.display()), cause)),
        Ok(_) => {
            Ok(!fs::read_link(path).is_ok_and(|target| target.file_name().is_some_and(|n| n == PROGRAM)))
        }
    }
}

/// Writes beside, onto the disk, and renames.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let temporary = to.with_file_name(format!(".{PROGRAM}.new"));
    discard(&temporary)?;
    let mut source = File::open(from)?;
    let mut options = OpenOptions::new();
    let written = options
        .write(true)
        .create_new(true)
        .mode(0o755)
        .open(&temporary)
        .and_then(|mut file| io::copy(&mut source, &mut file).and_then(|_| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, to));
    if written.is_err() {
        // Half a binary helps nobody; on a full disk its room does.
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn discard(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(cause) if cause.kind() != ErrorKind::NotFound => Err(cause),
        _ => Ok(()),
    }
}

fn same_content(a: &Path, b: &Path) -> io::Result<bool> {
    let mut b = match File::open(b) {
        Ok(file) => file,
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(false),
        Err(cause) => return Err(cause),
    };
    let mut a = File::open(a)?;
    if a.metadata()?.len() != b.metadata()?.len() {
        return Ok(false);
    }
    let (mut left, mut right) = (Vec::new(), Vec::new());
    a.read_to_end(&mut left)?;
    b.read_to_end(&mut right)?;
    Ok(left == right)
}
