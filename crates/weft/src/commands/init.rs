//! `weft init`: writes a commented example, from which a first network can be made.
//!
//! - Existing files are never replaced.
//! - A test lints and plans the files.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output;

/// Files in the example.
const FILES: [(&str, &str); 2] =
    [("network.yaml", include_str!("init/network.yaml")), ("pod.yaml", include_str!("init/pod.yaml"))];

/// Arguments of `weft init`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft init my-network

{EXIT_CODES} An existing file is a failure."))]
pub(crate) struct Arguments {
    /// Directory, which is created if it does not exist
    #[arg(value_name = "DIR", default_value = ".")]
    directory: PathBuf,
}

/// Runs `weft init`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { directory } = arguments;
    let failed = |path: &Path, cause: &dyn std::fmt::Display| {
        Failure::new(format!("write {}: {cause}", path.display()))
    };
    fs::create_dir_all(directory).map_err(|cause| match cause.kind() {
        ErrorKind::AlreadyExists => failed(directory, &"it is a file").next("name a directory"),
        _ => failed(directory, &cause),
    })?;
    // Nothing is written if one of the files exists.
    for (name, _) in FILES {
        let path = directory.join(name);
        if path.symlink_metadata().is_ok() {
            let next = "name another directory; weft init replaces no file";
            return Err(failed(&path, &"the file exists").next(next));
        }
    }
    for (name, text) in FILES {
        let path = directory.join(name);
        let created = File::options().write(true).create_new(true).open(&path);
        created.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|cause| match cause.kind() {
            ErrorKind::AlreadyExists => failed(&path, &"the file exists"),
            _ => failed(&path, &cause),
        })?;
    }
    let directory = directory.display();
    output::print(&format!(
        "wrote {directory}/network.yaml and {directory}/pod.yaml\n\
         \x20 weft lint {directory}                  validates them\n\
         \x20 sudo weft attach -f {directory}        attaches the pod on this machine; weft detach web removes it\n\
         \x20 kubectl apply -f {directory}           creates both in a cluster with weft\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn init_writes_both_files_and_replaces_none() {
        let directory = std::env::temp_dir().join(format!("weft-init-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        let arguments = Arguments { directory: directory.join("new") };
        run(&arguments).unwrap();
        let pod = arguments.directory.join("pod.yaml");
        fs::write(&pod, "mine").unwrap();
        fs::remove_file(arguments.directory.join("network.yaml")).unwrap();
        let refused = run(&arguments).unwrap_err().to_string();
        assert!(refused.contains("pod.yaml: the file exists"), "{refused}");
        assert_eq!(fs::read_to_string(&pod).unwrap(), "mine");
        assert!(!arguments.directory.join("network.yaml").exists());
        fs::remove_dir_all(&directory).unwrap();
    }
}
