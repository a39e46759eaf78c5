//! `weft-cni install DIR`: copies this binary into a plugin directory under the requested names.
//!
//! - The file is written under a temporary name and renamed. Processes that run the old binary continue, no
//!   process sees an incomplete file, and the write does not fail with `ETXTBSY`.
//! - An identical file is not written again. A plugin from another project is replaced only on request.
//! - The names are relative links to the one file, so the directory works under another path.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use cni::Error;
use cni::name::PluginType;

use crate::builtins::PROGRAM;
use crate::dispatch;

/// Where to install, under which names, and what to do about conflicts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installation {
    /// Plugin directory; created if it does not exist.
    pub directory: PathBuf,
    /// Names to install.
    pub names: Vec<Name>,
    /// Policy for another project's plugin that has one of these names.
    pub foreign: Foreign,
}

/// Link name, and the link's target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// File name.
    pub name: String,
    /// `weft-cni`; for a name that is no plugin, the plugin's hidden link.
    pub target: String,
}

impl Name {
    /// Returns the link under a plugin's own name.
    pub fn of_plugin(name: &str) -> Name {
        Name { name: name.to_owned(), target: PROGRAM.to_owned() }
    }

    /// Reads `PLUGIN` or `NAME=PLUGIN`.
    fn read(text: &str) -> Result<Name, Error> {
        let (name, plugin) = text.split_once('=').unwrap_or((text, text));
        let fault = |why: String| Err(Error::key("--names", format!("{text:?}"), why));
        let Some(found) = dispatch::find(plugin) else {
            let known: Vec<&str> = dispatch::names().collect();
            let other = "; NAME=PLUGIN installs a plugin under another name";
            return fault(format!("{plugin:?} is not one of {}{other}", known.join(", ")));
        };
        match dispatch::find(name) {
            Some(own) if own.name() == found.name() => Ok(Name::of_plugin(name)),
            Some(own) => fault(format!("{name} is the name of the plugin {}", own.name())),
            None if PluginType::new(name).is_err() || name.starts_with('.') || name == PROGRAM => {
                fault(format!("{name:?} cannot be the name of a plugin"))
            }
            None => {
                let target = format!("{}{}", dispatch::LINK_PREFIX, found.name());
                Ok(Name { name: name.to_owned(), target })
            }
        }
    }
}

/// Policy for another project's plugin that has one of the names.
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
    /// Parses the names: a list, separated by commas, that contains `PLUGIN` and `NAME=PLUGIN`, or `all`.
    pub fn names(text: &str) -> Result<Vec<Name>, Error> {
        if text == "all" {
            return Ok(dispatch::names().map(Name::of_plugin).collect());
        }
        text.split(',').map(|name| Name::read(name.trim())).collect()
    }

    /// Installs the binary and the links to it.
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
        for Name { name, target } in names.iter().filter(|name| name.name != PROGRAM) {
            let path = directory.join(name);
            if *foreign == Foreign::Keep && is_foreign(&path)? {
                report.push(format!("{}: plugin of another project, kept", path.display()));
                continue;
            }
            if target != PROGRAM {
                link(directory, target, PROGRAM)?;
            }
            report.push(match link(directory, name, target)? {
                true => format!("{}: linked to {target}", path.display()),
                false => format!("{}: up to date", path.display()),
            });
        }
        Ok(report)
    }

    fn refuse_foreign(&self) -> Result<(), Error> {
        for Name { name, .. } in &self.names {
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
            let is_ours = |name: &str| name == PROGRAM || name.starts_with(dispatch::LINK_PREFIX);
            let target = fs::read_link(path).unwrap_or_default();
            Ok(!target.file_name().and_then(|name| name.to_str()).is_some_and(is_ours))
        }
    }
}

/// Links a name in the directory to a target in it; returns whether that was a change.
fn link(directory: &Path, name: &str, target: &str) -> Result<bool, Error> {
    let path = directory.join(name);
    if fs::read_link(&path).is_ok_and(|found| found == Path::new(target)) {
        return Ok(false);
    }
    let temporary = directory.join(format!(".{name}.new"));
    let linked = discard(&temporary)
        .and_then(|()| symlink(target, &temporary))
        .and_then(|()| fs::rename(&temporary, &path));
    linked.map_err(|cause| Error::io(format_args!("link {}", path.display()), cause))?;
    Ok(true)
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
