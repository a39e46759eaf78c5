//! Program under the name `whereabouts` on this node, which decides whether weft serves networks with this IPAM.
//!
//! With `builtin: auto`, weft executes the program of whereabouts while the plugin directory has it, and the built-in plugin
//! if weft is installed under the name. See `docs/migrate-from-whereabouts.md`.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// Plugin name, and program name.
pub(crate) const NAME: &str = "whereabouts";
/// weft's file to which the plugin names are links.
const OWN: &str = "weft-cni";

/// Program in the plugin directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WhereaboutsProgram {
    /// There is none.
    Missing,
    /// The real whereabouts.
    Foreign(PathBuf),
    /// weft under this name.
    Own(PathBuf),
}

/// Returns the first program with the name in a list of directories, separated by colons.
pub(crate) fn find(directories: &str) -> WhereaboutsProgram {
    let paths = directories.split(':').filter(|directory| !directory.is_empty());
    let mut files = paths.map(|directory| Path::new(directory).join(NAME)).filter(|path| path.is_file());
    let Some(path) = files.next() else { return WhereaboutsProgram::Missing };
    let real = std::fs::canonicalize(&path).unwrap_or_default();
    match real.file_name().is_some_and(|name| name == OWN) {
        true => WhereaboutsProgram::Own(path),
        false => WhereaboutsProgram::Foreign(path),
    }
}

/// Whether a network's IPAM is whereabouts.
pub(crate) fn is_used_by(config: &str) -> bool {
    let Ok(config) = serde_json::from_str::<Value>(config) else { return false };
    let is_used = |plugin: &Value| plugin["ipam"]["type"] == NAME;
    is_used(&config) || config["plugins"].as_array().is_some_and(|plugins| plugins.iter().any(is_used))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn whereabouts_program_is_own_only_as_a_link_to_weft() {
        let directory = std::env::temp_dir().join(format!("weft-whereabouts-{}", std::process::id()));
        let [empty, foreign, own] = ["empty", "foreign", "own"].map(|name| directory.join(name));
        for path in [&empty, &foreign, &own] {
            fs::create_dir_all(path).unwrap();
        }
        fs::write(foreign.join(NAME), "program").unwrap();
        fs::write(own.join(OWN), "program").unwrap();
        symlink(OWN, own.join(NAME)).unwrap();
        let list = |paths: &[&PathBuf]| {
            paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(":")
        };
        let found =
            [&[&empty][..], &[&empty, &foreign, &own], &[&own, &foreign]].map(|paths| find(&list(paths)));
        fs::remove_dir_all(&directory).unwrap();
        let expected = [
            WhereaboutsProgram::Missing,
            WhereaboutsProgram::Foreign(foreign.join(NAME)),
            WhereaboutsProgram::Own(own.join(NAME)),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn whereabouts_networks_are_found_in_lists_and_single_plugins() {
        for (config, expected) in [
            (r#"{"type":"macvlan","ipam":{"type":"whereabouts"}}"#, true),
            (r#"{"plugins":[{"type":"tuning"},{"type":"macvlan","ipam":{"type":"whereabouts"}}]}"#, true),
            (r#"{"type":"macvlan","ipam":{"type":"weft-ipam"}}"#, false),
            ("{", false),
        ] {
            assert_eq!(is_used_by(config), expected, "{config}");
        }
    }
}
