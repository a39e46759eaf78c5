//! `weft-cni install DIR`: copies this binary into a plugin directory under the requested names.
//!
//! - The file is written under a temporary name and renamed. Processes of the old binary continue, no process sees an
//!   incomplete file, and the write does not fail with `ETXTBSY`.
//! - An identical file is not written again. A plugin of another project is replaced only on request.
//! - The names are relative links to the one file, so the directory works under another path.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use cni::Error;

use crate::builtins::PROGRAM;
use crate::dispatch;

/// Target directory, names and conflict policy of an installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// Plugin directory; created if it does not exist.
    pub directory: PathBuf,
    /// Plugin names to install.
    pub names: Vec<String>,
    /// Handling of plugins of other projects with these names.
    pub foreign: Foreign,
}

/// Handling of a plugin of another project that has one of the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// Fail before anything is changed.
    Refuse,
    /// Replace it.
    Replace,
    /// Leave it; the name is not installed.
    Keep,
}

/// Results, one line for each file.
pub type Report = Vec<String>;

impl Installation {
    /// Parses the names: a list separated by commas, or `all`.
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

    /// Installs the binary and its links.
    ///
    /// # Errors
    /// Another project's plugin has one of the names and [`Foreign::Refuse`] holds (nothing is changed then), or an I/O error.
    pub fn run(&self) -> Result<Report, Error> {
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
                report.push(format!("{}: plugin of another project, kept", link.display()));
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
                let why = "a plugin of another project has this name; use --replace to replace it";
                return Err(Error::config(format!("{}: {why}", path.display())));
            }
        }
        Ok(())
    }
}

/// Whether the path exists and is not a link to this program's file.
fn is_foreign(path: &Path) -> Result<bool, Error> {
    match fs::symlink_metadata(path) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(false),
        Err(cause) => Err(Error::io(format_args!("look at {}", path.display()), cause)),
        Ok(_) => {
            Ok(!fs::read_link(path).is_ok_and(|target| target.file_name().is_some_and(|n| n == PROGRAM)))
        }
    }
}

/// Copies a file: writes a temporary file, synchronizes it and renames it.
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
        // An incomplete copy is useless and takes space on a full disk.
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
