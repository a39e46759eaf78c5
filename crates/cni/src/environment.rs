//! `CNI_*` variables, which pass a verb and its parameters to a plugin.
//!
//! Only [`Environment::of_process`] reads the environment of the process. All other code passes this value, so a plugin
//! can be called without a process of its own.
//!
//! Source: SPEC 1.1.0 §2 "Parameters"; libcni `pkg/skel`, `pkg/invoke/args.go` (S1, K1, L3).

use crate::version::Verb;

/// Verb.
pub const COMMAND: &str = "CNI_COMMAND";
/// Container id.
pub const CONTAINERID: &str = "CNI_CONTAINERID";
/// Path of the network namespace.
pub const NETNS: &str = "CNI_NETNS";
/// Name of the interface inside the container.
pub const IFNAME: &str = "CNI_IFNAME";
/// Extra arguments, `K=V;K=V`.
pub const ARGS: &str = "CNI_ARGS";
/// Directories of plugins, separated by `:`.
pub const PATH: &str = "CNI_PATH";
/// `1` or `true`: the namespace may be the plugin's own.
pub const NETNS_OVERRIDE: &str = "CNI_NETNS_OVERRIDE";

/// Variables of a call; an empty value is the same as an absent one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// [`COMMAND`], not validated.
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

    /// Reads the variables of this process.
    pub fn of_process() -> Environment {
        Environment::read(|name| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned()))
    }

    /// Returns the same parameters with another verb.
    #[must_use]
    pub fn with(&self, verb: Verb) -> Environment {
        Environment { command: verb.as_str().to_owned(), ..self.clone() }
    }

    /// Returns the value of one of the six variables of [`Environment::variables`]; empty for any other name.
    pub fn value(&self, name: &str) -> &str {
        self.variables().into_iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value)
    }

    /// Returns name and value of the six variables that a caller must always set, even to an empty value (L3).
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
