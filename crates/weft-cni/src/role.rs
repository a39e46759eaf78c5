//! Role of the process, decided once from the arguments: a plugin, a command or the DHCP daemon.
//!
//! The file name of the first argument comes first: a program called as `bridge` is the plugin `bridge`, whatever the
//! other arguments are. The exceptions are `dhcp daemon`, as for the reference plugin, `exec-with-parent`,
//! `remove-links`, `close-sockets` and `run-plugin`.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use cni::plugin::Plugin;
use cni::plugin::process;
use linux::link::removal;
use linux::netfilter::closing;
use linux::parent_death;

use crate::command::Command;
use crate::dispatch;
use crate::plugin_invoker::isolation;

/// Role of the process.
pub enum Role<'a> {
    /// The lease daemon and flags.
    DhcpDaemon(Vec<&'a str>),
    /// Executes another program that is killed with this process's parent.
    ExecWithParent {
        /// Process id of the parent.
        parent: u32,
        /// The program.
        program: &'a Path,
        /// Program arguments.
        arguments: &'a [OsString],
    },
    /// Removes the links with these indexes, on the socket that is the standard input.
    RemoveLinks(Vec<&'a str>),
    /// Holds the inherited sockets until standard input ends.
    CloseSockets,
    /// One CNI call to the built-in plugin with this name, for a process of `weft-cni`.
    RunPlugin(&'a str),
    /// One CNI call of a plugin.
    Plugin(&'static dyn Plugin),
    /// Command from an operator or from `weft`.
    Command(Command<'a>),
    /// Neither a plugin nor a command of this name.
    Unknown,
}

impl<'a> Role<'a> {
    /// Returns the role for these arguments, the program itself included.
    pub fn of(arguments: &'a [OsString]) -> Role<'a> {
        if let Some(flags) = daemon_flags(arguments) {
            return Role::DhcpDaemon(flags.iter().map(|flag| utf8(flag)).collect());
        }
        if let [_, word, parent, program, arguments @ ..] = arguments
            && word == parent_death::COMMAND
            && let Some(parent) = parent.to_str().and_then(|parent| parent.parse().ok())
        {
            return Role::ExecWithParent { parent, program: Path::new(program), arguments };
        }
        if let [_, word, indexes @ ..] = arguments
            && word == removal::COMMAND
        {
            return Role::RemoveLinks(indexes.iter().map(|index| utf8(index)).collect());
        }
        if let [_, word] = arguments
            && word == closing::COMMAND
        {
            return Role::CloseSockets;
        }
        if let [_, word, plugin] = arguments
            && word == isolation::COMMAND
        {
            return Role::RunPlugin(utf8(plugin));
        }
        if let Some(plugin) = process::called_as(dispatch::find, arguments) {
            return Role::Plugin(plugin);
        }
        if let Some(plugin) = arguments.first().and_then(|program| dispatch::find_by_link(Path::new(program)))
        {
            return Role::Plugin(plugin);
        }
        let words: Vec<&str> = arguments.iter().skip(1).map(|word| utf8(word)).collect();
        Command::parse(&words).map_or(Role::Unknown, Role::Command)
    }
}

/// Returns the flags for `weft-cni dhcp daemon`, or for the program called as `dhcp` with `daemon`.
fn daemon_flags(arguments: &[OsString]) -> Option<&[OsString]> {
    match arguments {
        [program, word, flags @ ..] if word == "daemon" && Path::new(program).file_name()? == dhcp::NAME => {
            Some(flags)
        }
        [_, plugin, word, flags @ ..] if plugin == dhcp::NAME && word == "daemon" => Some(flags),
        _ => None,
    }
}

/// Returns an argument as a string; one that is not UTF-8 matches nothing.
fn utf8(argument: &OsStr) -> &str {
    argument.to_str().unwrap_or("\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role(words: &[&str]) -> String {
        let arguments: Vec<OsString> = words.iter().map(OsString::from).collect();
        match Role::of(&arguments) {
            Role::DhcpDaemon(flags) => format!("daemon {flags:?}"),
            Role::ExecWithParent { parent, program, arguments } => {
                format!("exec {parent} {} {}", program.display(), arguments.len())
            }
            Role::RemoveLinks(indexes) => format!("remove {indexes:?}"),
            Role::CloseSockets => "close".to_owned(),
            Role::RunPlugin(plugin) => format!("run {plugin}"),
            Role::Plugin(plugin) => format!("plugin {}", plugin.name()),
            Role::Command(command) => format!("{command:?}"),
            Role::Unknown => "unknown".to_owned(),
        }
    }

    #[test]
    fn role_follows_the_program_name_then_the_first_argument() {
        for (words, expected) in [
            (&["/opt/cni/bin/bridge"][..], "plugin bridge"),
            (&["/opt/cni/bin/bridge", "sandbox", "owner-tags"], "plugin bridge"),
            (&["/opt/cni/bin/cnv-bridge"], "plugin bridge"),
            (&["weft-cni", "multus"], "plugin multus"),
            (&["weft-cni", "dhcp", "daemon", "-broadcast"], "daemon [\"-broadcast\"]"),
            (&["/opt/cni/bin/dhcp", "daemon"], "daemon []"),
            (&["weft-cni", "dhcp"], "plugin dhcp"),
            (&["weft-cni", "daemon"], "unknown"),
            (&["weft-cni", "exec-with-parent", "7", "/x", "a", "b"], "exec 7 /x 2"),
            (&["weft-cni", "exec-with-parent", "x", "/x"], "unknown"),
            (&["weft-cni", "remove-links", "7", "9"], "remove [\"7\", \"9\"]"),
            (&["weft-cni", "close-sockets"], "close"),
            (&["/proc/self/exe", "run-plugin", "bridge"], "run bridge"),
            (&["weft-cni", "sandbox", "owner-tags"], "SandboxOwnerTags"),
            (&["weft-cni", "--version"], "Version"),
            (&["weft-cni", "version"], "BuildInfo { json: false }"),
            (&["weft-cni", "version", "-o", "json"], "BuildInfo { json: true }"),
            (&["weft-cni", "version", "-o", "yaml"], "Invalid([\"version\", \"-o\", \"yaml\"])"),
            (&["weft-cni", "sandbox"], "Invalid([\"sandbox\"])"),
            (&["weft-cni", "what"], "unknown"),
            (&["weft-cni"], "unknown"),
        ] {
            assert_eq!(role(words), expected, "{words:?}");
        }
    }

    #[test]
    fn help_has_a_valid_example_of_every_command() {
        let (commands, examples) = crate::command::USAGE.split_once("\nExamples:\n").unwrap();
        let (examples, _) = examples.split_once("\n\n").unwrap();
        let examples: Vec<Vec<&str>> = examples
            .lines()
            .map(|line| line.split_whitespace().filter(|word| !word.starts_with(['<', '>'])).collect())
            .collect();
        for line in
            commands.lines().filter(|line| line.starts_with("  weft-cni ") && !line.contains("--version"))
        {
            let is_word = |word: &&str| word.chars().all(|c| c.is_ascii_lowercase() || c == '-');
            let words: Vec<&str> = line.split_whitespace().take_while(is_word).collect();
            assert!(examples.iter().any(|example| example.starts_with(&words)), "no example of {words:?}");
        }
        for example in examples {
            let words: Vec<&str> =
                example.iter().map(|word| if *word == "$$" { "7" } else { word }).collect();
            let found = role(&words);
            assert!(found != "unknown" && !found.starts_with("Invalid"), "{example:?}: {found}");
        }
    }
}
