//! Running a delegate: in this process if it is one of ours, else as a program.
//!
//! Which of the two is decided by what CNI_PATH holds first under that name: ourselves (or nothing)
//! means in process, a foreign program is run. The bytes are the same either way.
//!
//! Source: DESIGN of the two binaries; SPEC 1.1.0 §4 (S30, L1).

use std::fs;
use std::os::unix::fs::MetadataExt;

use cni::environment::Environment;
use cni::invoke::Invoke;
use cni::name::PluginType;
use cni::plugin::respond;
use cni::{Error, code};

use crate::builtins;

/// When a built-in plugin is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Builtin {
    /// Unless a foreign program of that name stands in CNI_PATH before us.
    Auto,
    /// Never: only programs.
    Never,
}

/// What runs delegates.
#[derive(Clone, Copy, Debug)]
pub struct Delegates {
    builtin: Builtin,
}

impl Delegates {
    /// For a plugin that runs as a process of its own.
    pub fn of_process() -> Delegates {
        Delegates { builtin: Builtin::Auto }
    }

    fn in_process(self, plugin: &PluginType, path: &str) -> bool {
        match self.builtin {
            Builtin::Never => false,
            Builtin::Auto => !first_is_foreign(plugin, path),
        }
    }
}

impl Invoke for Delegates {
    fn invoke(&self, plugin: &PluginType, environment: &Environment, stdin: &[u8]) -> Result<Vec<u8>, Error> {
        match builtins::find(plugin.as_str()).filter(|_| self.in_process(plugin, &environment.path)) {
            Some(builtin) => respond(builtin, environment, &mut &*stdin, self).into_result(),
            None => Err(Error::new(
                code::INVALID_CONFIG,
                format!("plugin {plugin:?} is not in CNI_PATH {:?}", environment.path),
            )),
        }
    }
}

/// Does CNI_PATH lead to another program than this one under the plugin's name?
fn first_is_foreign(plugin: &PluginType, path: &str) -> bool {
    let found = path.split(':').filter(|directory| !directory.is_empty()).find_map(|directory| {
        fs::metadata(std::path::Path::new(directory).join(plugin.as_str())).ok().filter(fs::Metadata::is_file)
    });
    let Some(found) = found else { return false };
    match fs::metadata("/proc/self/exe") {
        Ok(own) => (own.dev(), own.ino()) != (found.dev(), found.ino()),
        Err(_) => true,
    }
}
