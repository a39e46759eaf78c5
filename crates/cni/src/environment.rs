//! `CNI_*` variables, which pass a verb and the parameters to a plugin.
//!
//! Only [`Environment::of_process`] reads the process environment. All other code passes this value on, so that a
//! plugin can also be called without starting a process.
//!
//! Source: SPEC 1.1.0 §2 "Parameters"; libcni `pkg/skel`, `pkg/invoke/args.go` (S1, K1, L3).

use crate::version::Verb;

/// Verb.
pub const COMMAND: &str = "CNI_COMMAND";
/// Container id.
pub const CONTAINERID: &str = "CNI_CONTAINERID";
/// Network namespace path.
pub const NETNS: &str = "CNI_NETNS";
/// Interface name inside the container.
pub const IFNAME: &str = "CNI_IFNAME";
/// Additional arguments, `K=V;K=V`.
pub const ARGS: &str = "CNI_ARGS";
/// Plugin directories, separated by `:`.
pub const PATH: &str = "CNI_PATH";
/// `1` or `true` allows the namespace to be the plugin's own.
pub const NETNS_OVERRIDE: &str = "CNI_NETNS_OVERRIDE";

/// Variables for one call. An empty value means the same as a missing variable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// [`COMMAND`], not validated yet.
    pub command: String,
    /// [`CONTAINERID`].
    pub container_id: String,
    /// [`NETNS`].
    pub netns: String,
    /// [`IFNAME`].
    pub ifname: String,
    /// [`ARGS`].
    pub args: String,
    /// [`PATH`].
    pub path: String,
    /// [`NETNS_OVERRIDE`].
    pub netns_override: String,
}

impl Environment {
    /// Reads the variables through `lookup`, which should replace bytes that are not UTF-8.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Environment {
        let value = |name| lookup(name).unwrap_or_default();
        Environment {
            command: value(COMMAND),
            container_id: value(CONTAINERID),
            netns: value(NETNS),
            ifname: value(IFNAME),
            args: value(ARGS),
            path: value(PATH),
            netns_override: value(NETNS_OVERRIDE),
        }
    }

    /// Reads the variables from this process's environment.
    pub fn of_process() -> Environment {
        Environment::read(|name| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned()))
    }

    /// Returns the same parameters with another verb, for calling a delegate.
    #[must_use]
    pub fn with(&self, verb: Verb) -> Environment {
        Environment { command: verb.as_str().to_owned(), ..self.clone() }
    }

    /// Returns one of the six variables in [`Environment::variables`]; empty for any other name.
    pub fn value(&self, name: &str) -> &str {
        self.variables().into_iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value)
    }

    /// Returns the six variables that a caller must always set, even if the value is empty (L3).
    pub fn variables(&self) -> [(&'static str, &str); 6] {
        [
            (COMMAND, &self.command),
            (CONTAINERID, &self.container_id),
            (NETNS, &self.netns),
            (ARGS, &self.args),
            (IFNAME, &self.ifname),
            (PATH, &self.path),
        ]
    }
}
