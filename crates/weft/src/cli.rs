//! Command line: one variant of [`Command`] for each subcommand.
//!
//! A subcommand is a module with an `Arguments` (clap's `Args`) and a `run`. To add one, add a variant of [`Command`],
//! a line in [`Invocation::run`] and the name in [`GROUPS`]. The help of every subcommand has an imperative summary and
//! an example. If `argv[0]` is `cnitool`, the program behaves as that tool. As `kubectl-weft` it is a plugin of
//! kubectl, and its help names it as it is called there: `kubectl weft`.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::commands::{
    attach, bundle, capture, check, cnitool, completion, crds, demo, detach, doctor, executor, explain,
    history, import, init, install, lint, list, migrate, network, plan, probe, publish, reset, status, test,
    trace, version,
};
use cli_support::failure::{EXIT_CODES, Exit, Failure};

/// Attach Kubernetes pods to multiple networks.
#[derive(Debug, Parser)]
#[command(
    name = "weft",
    version,
    after_help = format!("\
Example:
  weft demo
  weft lint examples/
  weft explain -n my-namespace my-pod -f examples/

{EXIT_CODES} Errors are printed to stderr.")
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Attach a pod to its networks, as described in manifest files
    Attach(attach::Arguments),
    /// Check that the attachments of a pod are unchanged
    Check(check::Arguments),
    /// Detach a pod from its networks
    Detach(detach::Arguments),
    /// Run a demonstration on this machine and remove it again
    Demo(demo::Arguments),
    /// Write a commented example of a network and a pod
    Init(init::Arguments),
    /// List the attachments on this node
    List(list::Arguments),
    /// Show every node of the cluster: agent, version, plugin, default network, pools, failures
    Status(status::Arguments),
    /// Show the last calls of this node, their failures, and the stages of an ADD
    History(history::Arguments),
    /// Follow packets between two pods of a network, and say where they are lost
    Trace(trace::Arguments),
    /// Capture the packets of an interface of a pod
    Capture(capture::Arguments),
    /// Diagnose this node: changed attachments, failed teardowns, orphaned resources
    Doctor(doctor::Arguments),
    /// Test networks of the cluster with pods of its own, and remove them
    Test(test::Arguments),
    /// Remove what trials left on this machine: attachments, namespaces, directories
    Reset(reset::Arguments),
    /// Write a support archive without secrets
    Bundle(bundle::Arguments),
    /// Show the plan for a pod and the source of each decision, without changing anything
    Explain(explain::Arguments),
    /// Validate network definitions, annotations and CNI configurations
    Lint(lint::Arguments),
    /// Show and check cluster-wide address pools
    Ipam(crate::commands::ipam::Arguments),
    /// Run the node agent
    Agent(node_agent::Arguments),
    /// Run the cluster controllers (IP pools, network policies, Services, Neutron ports, the page)
    Controller(controllers::Arguments),
    /// Run a CRI proxy that adds the CRI Network API to a container runtime
    CriProxy(cri_proxy::Arguments),
    /// Manage the CRI networks of this node
    Network(network::Arguments),
    /// Execute tasks queued by the node agent
    Executor(executor::Arguments),
    /// Answer one plan request of the meta-plugin
    Plan(plan::Arguments),
    /// Publish the network-status of one sandbox, on a node without an agent
    Publish(publish::Arguments),
    /// Answer, or send, the packets of weft test in its pods
    Probe(probe::Arguments),
    /// Run the plugins of one network in one namespace, as cnitool does
    Cni(cnitool::Arguments),
    /// Install weft-cni and its configuration for the container runtime
    Install(install::Arguments),
    /// Import state from Multus or whereabouts
    Import(import::Arguments),
    /// Move the nodes of a cluster from Multus or whereabouts to weft, one after the other
    Migrate(migrate::Arguments),
    /// Print the CustomResourceDefinitions
    Crds(crds::Arguments),
    /// Print the completions of a shell
    Completion(completion::Arguments),
    /// Print the manual page of a command
    Man(completion::ManArguments),
    /// Print the version, commit, date and features of this program
    Version(version::Arguments),
}

/// Commands by what their user wants to do, in help order. A name that is no command in this build is left
/// out.
const GROUPS: [(&str, &[&str]); 3] = [
    (
        "Use networks, also without a cluster",
        &["demo", "init", "attach", "detach", "check", "list", "explain", "lint", "reset"],
    ),
    (
        "Operate nodes and clusters",
        &[
            "status",
            "doctor",
            "history",
            "trace",
            "capture",
            "test",
            "bundle",
            "ipam",
            "network",
            "install",
            "import",
            "migrate",
            "crds",
            "cni",
            "completion",
            "man",
            "version",
        ],
    ),
    (
        "Roles, which the manifests of deploy/ run",
        &["agent", "controller", "executor", "cri-proxy", "plan", "publish", "probe"],
    ),
];

/// Program name when it is a kubectl plugin.
const KUBECTL_PLUGIN: &str = "kubectl-weft";

/// Returns the command line with the commands in groups.
pub(crate) fn command() -> clap::Command {
    let command = Cli::command();
    let width = command.get_subcommands().map(|one| one.get_name().len()).max().unwrap_or_default();
    let mut text = String::new();
    for (title, names) in GROUPS {
        text.push_str(&format!("{title}:\n"));
        for found in names.iter().filter_map(|name| command.find_subcommand(name)) {
            let about = found.get_about().map(ToString::to_string).unwrap_or_default();
            text.push_str(&format!("  {:width$}  {about}\n", found.get_name()));
        }
        text.push('\n');
    }
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{text}Options:\n{{options}}{{after-help}}"
    );
    command.help_template(template)
}

/// Parsed command line, with the prefix for error messages that goes with the name by which the program was
/// called.
#[derive(Debug)]
pub(crate) struct Invocation {
    command: Command,
    prefix: &'static str,
}

/// Parses the arguments, the first of which is the program name.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Invocation, clap::Error> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let name = arguments.first().and_then(|program| Path::new(program).file_name());
    if name.is_some_and(|name| name == cnitool::NAME) {
        return cnitool::parse(arguments)
            .map(|arguments| Invocation { command: Command::Cni(arguments), prefix: "" });
    }
    let is_plugin = name.is_some_and(|name| name == KUBECTL_PLUGIN);
    let command = command();
    let command = if is_plugin { command.bin_name("kubectl weft") } else { command };
    let Cli { command } = Cli::from_arg_matches(&command.try_get_matches_from(arguments)?)?;
    Ok(Invocation { command, prefix: "weft: " })
}

/// Prints a usage error, the help or the version, and returns the exit code.
pub(crate) fn print_error(error: &clap::Error) -> ExitCode {
    // A closed terminal is no reason to change the exit code.
    let _ = error.print();
    match error.use_stderr() {
        true => Failure::new("").exit(Exit::Usage).code(),
        false => ExitCode::SUCCESS,
    }
}

impl Invocation {
    /// Runs the subcommand.
    pub(crate) fn run(&self) -> Result<(), Failure> {
        match &self.command {
            Command::Attach(arguments) => attach::run(arguments),
            Command::Check(arguments) => check::run(arguments),
            Command::Detach(arguments) => detach::run(arguments),
            Command::Demo(arguments) => demo::run(arguments),
            Command::List(arguments) => list::run(arguments),
            Command::Status(arguments) => status::run(arguments),
            Command::Init(arguments) => init::run(arguments),
            Command::Bundle(arguments) => bundle::run(arguments),
            Command::Completion(arguments) => completion::run(arguments, command()),
            Command::Man(arguments) => completion::run_man(arguments, command()),
            Command::History(arguments) => history::run(arguments),
            Command::Trace(arguments) => trace::run(arguments),
            Command::Capture(arguments) => capture::run(arguments),
            Command::Test(arguments) => test::run(arguments),
            Command::Reset(arguments) => reset::run(arguments),
            Command::Probe(arguments) => probe::run(arguments),
            Command::Doctor(arguments) => doctor::run(arguments),
            Command::Explain(arguments) => explain::run(arguments),
            Command::Lint(arguments) => lint::run(arguments),
            Command::Ipam(arguments) => crate::commands::ipam::run(arguments),
            Command::Agent(arguments) => node_agent::run(arguments),
            Command::Controller(arguments) => controllers::run(arguments),
            Command::CriProxy(arguments) => cri_proxy::run(arguments),
            Command::Network(arguments) => network::run(arguments),
            Command::Executor(arguments) => executor::run(arguments),
            Command::Plan(arguments) => plan::run(arguments),
            Command::Publish(arguments) => publish::run(arguments),
            Command::Install(arguments) => install::run(arguments),
            Command::Import(arguments) => import::run(arguments),
            Command::Migrate(arguments) => migrate::run(arguments),
            Command::Crds(arguments) => crds::run(arguments),
            Command::Version(arguments) => version::run(arguments),
            Command::Cni(arguments) => cnitool::run(arguments),
        }
    }

    /// Returns the prefix for error messages.
    pub(crate) fn prefix(&self) -> &'static str {
        self.prefix
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;
    use clap::error::ErrorKind;

    use super::*;

    #[test]
    fn help_of_every_subcommand_has_summary_and_example() {
        let command = Cli::command();
        command.clone().debug_assert();
        assert_helpful(&command, "weft");
    }

    /// Asserts that the help for a command and its subcommands has a summary, and ends with an example that
    /// contains `words`.
    fn assert_helpful(command: &clap::Command, words: &str) {
        let help = command.get_after_help().map(|text| text.to_string()).unwrap_or_default();
        assert!(help.starts_with("Example:\n") && help.contains(words), "{words}: {help}");
        assert!(command.get_about().is_some(), "{words}: no summary");
        for option in command.get_arguments() {
            assert!(option.get_help().is_some(), "{words}: no help for {}", option.get_id());
        }
        for subcommand in command.get_subcommands() {
            assert_helpful(subcommand, &format!("{words} {}", subcommand.get_name()));
        }
    }

    /// Returns the words in this program's commands in a shell line, without pipes and redirections.
    fn commands_in(line: &str) -> Vec<Vec<String>> {
        let line = line.split(" # ").next().unwrap_or_default();
        let pieces = line.split(['|', '>', '<']).flat_map(|piece| piece.split("&&"));
        let words = pieces.map(|piece| -> Vec<String> {
            let piece = piece.replace('\'', "");
            let words = piece.split_whitespace().map(str::to_owned);
            words.skip_while(|word| word == "sudo" || word.starts_with("OS_CLOUD=")).collect()
        });
        words.filter(|words| words.first().is_some_and(|word| word == "weft" || word == "bin/weft")).collect()
    }

    /// Returns the commands in a page's console blocks.
    fn commands_of(page: &str) -> Vec<Vec<String>> {
        page.lines().filter_map(|line| line.trim_start().strip_prefix("$ ")).flat_map(commands_in).collect()
    }

    /// Returns the commands that a page's text names, such as `weft history --failed`.
    fn commands_named_in(page: &str) -> Vec<Vec<String>> {
        let text: String = page.split("```").step_by(2).collect();
        let spans = text.split('`').skip(1).step_by(2);
        let is_command = |words: &Vec<String>| words.get(1).is_some_and(|word| word != "COMMAND");
        spans.flat_map(commands_in).filter(is_command).collect()
    }

    #[test]
    fn documents_name_commands_and_options_that_exist() {
        let (mut count, mut named) = (0, 0);
        for directory in ["", "docs", "docs/guides", "docs/plugins", "docs/design", "examples"] {
            for entry in std::fs::read_dir(testkit::workspace().join(directory)).unwrap().flatten() {
                let path = entry.path();
                if path.extension().is_none_or(|extension| extension != "md") {
                    continue;
                }
                let page = std::fs::read_to_string(&path).unwrap();
                for words in commands_of(&page) {
                    count += 1;
                    let parsed = Cli::try_parse_from(&words);
                    assert!(parsed.is_ok(), "{}: {words:?}: {}", path.display(), parsed.unwrap_err());
                }
                for words in commands_named_in(&page) {
                    named += 1;
                    let Err(error) = Cli::try_parse_from(&words) else { continue };
                    // A text may name a command or an option without the values that it needs.
                    let is_name = matches!(
                        error.kind(),
                        ErrorKind::MissingRequiredArgument
                            | ErrorKind::MissingSubcommand
                            | ErrorKind::DisplayHelp
                            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                            | ErrorKind::InvalidValue
                            | ErrorKind::ValueValidation
                    );
                    assert!(is_name, "{}: {words:?}: {error}", path.display());
                }
            }
        }
        assert!(count > 30 && named > 100, "only {count} commands and {named} names were found");
    }

    #[test]
    fn file_option_has_one_value_and_is_repeated() {
        fn assert_one_value(command: &clap::Command, count: &mut usize) {
            for option in command.get_arguments().filter(|option| option.get_short() == Some('f')) {
                *count += 1;
                let values = option.get_num_args().unwrap_or_default();
                assert_eq!((values.min_values(), values.max_values()), (1, 1), "{}", command.get_name());
            }
            command.get_subcommands().for_each(|subcommand| assert_one_value(subcommand, count));
        }
        let (mut command, mut count) = (command(), 0);
        command.build();
        assert_one_value(&command, &mut count);
        assert!(count >= 6, "{count}");
        // The word after the file is the pod, as for kubectl.
        let words = ["weft", "explain", "-f", "a.yaml", "-f", "b", "my-pod"].map(OsString::from);
        let Command::Explain(arguments) = parse(words).unwrap().command else { panic!() };
        let text = format!("{arguments:?}");
        assert!(text.contains(r#"files: ["a.yaml", "b"]"#) && text.contains(r#"Some("my-pod")"#), "{text}");
    }

    /// Returns the commands below `command` that declare `--timeout`.
    fn commands_with_timeout(command: &clap::Command) -> BTreeSet<&str> {
        let mut names = BTreeSet::new();
        for subcommand in command.get_subcommands() {
            let timeout = subcommand.get_arguments().find(|option| option.get_long() == Some("timeout"));
            if let Some(timeout) = timeout {
                assert_eq!(timeout.get_value_names().unwrap(), ["DURATION"], "{}", subcommand.get_name());
                names.insert(subcommand.get_name());
            }
            names.extend(commands_with_timeout(subcommand));
        }
        names
    }

    #[test]
    fn timeout_option_of_each_command_takes_the_same_durations() {
        const LINES: [&str; 9] = [
            "weft cni --timeout=VALUE add net /run/netns/a",
            "weft cni add net /run/netns/a --timeout=VALUE",
            "weft cni check net /run/netns/a --timeout=VALUE",
            "weft cni del net /run/netns/a --timeout=VALUE",
            "weft cni gc net --all --timeout=VALUE",
            "weft cni status net --timeout=VALUE",
            "weft migrate check --timeout=VALUE",
            "weft status --wait --timeout=VALUE",
            "weft test --timeout=VALUE",
        ];
        let known: BTreeSet<&str> = LINES.iter().filter_map(|line| line.split(' ').nth(1)).collect();
        let command = command();
        assert_eq!(
            commands_with_timeout(&command),
            known,
            "commands with --timeout, and those that are tried"
        );
        let parse = |line: &str, value: &str| {
            let line = line.replace("--timeout=VALUE", &format!("--timeout={value}"));
            command.clone().try_get_matches_from(line.split(' '))
        };
        for line in LINES {
            for (value, seconds) in [("30", 30), ("30s", 30), ("2m", 120), ("1m30s", 90), ("1h", 3600)] {
                let parsed = parse(line, value).unwrap_or_else(|error| panic!("{line}: {value}: {error}"));
                let mut innermost = &parsed;
                while let Some((_, matches)) = innermost.subcommand() {
                    innermost = matches;
                }
                assert_eq!(innermost.get_one::<u64>("timeout"), Some(&seconds), "{line}: {value}");
            }
            for value in ["", "s", "x", "-1", "+30", "1.5m", "1d", "1m2", "30ms", "30S", "9999999999h"] {
                let refused = parse(line, value).unwrap_err();
                let text = refused.to_string();
                for part in ["--timeout <DURATION>", &format!("'{value}'"), "as in 90, 2m or 1h30m"] {
                    assert!(text.contains(part), "{line}: {value}: {part}: {text}");
                }
                assert_eq!(refused.kind(), ErrorKind::ValueValidation, "{line}: {value}");
            }
        }
    }

    #[test]
    fn help_has_every_command_in_one_group() {
        let command = command();
        let help = command.clone().render_help().to_string();
        for subcommand in command.get_subcommands() {
            let name = subcommand.get_name();
            let groups = GROUPS.iter().flat_map(|(_, names)| names.iter()).filter(|other| **other == name);
            assert_eq!(groups.count(), 1, "{name}");
            assert!(help.contains(&format!("\n  {name} ")), "{name}: {help}");
        }
        assert!(help.contains("\nOptions:\n") && help.contains("\nExample:\n"), "{help}");
    }

    #[test]
    fn kubectl_plugin_names_itself_as_kubectl_calls_it() {
        let words = |name: &str| {
            ["--help"].map(OsString::from).into_iter().fold(vec![name.into()], |mut all, word| {
                all.push(word);
                all
            })
        };
        let help = parse(words("/usr/local/bin/kubectl-weft")).unwrap_err().to_string();
        assert!(help.contains("Usage: kubectl weft <COMMAND>"), "{help}");
        let help = parse(words("weft")).unwrap_err().to_string();
        assert!(help.contains("Usage: weft <COMMAND>"), "{help}");
    }

    #[test]
    fn help_commands_and_options_are_documented() {
        let page = include_str!("../../../docs/commands.md");
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            let section = page.split("\n## ").find(|section| section.starts_with(&format!("weft {name}\n")));
            let section = section.unwrap_or_else(|| panic!("docs/commands.md has no section on weft {name}"));
            assert!(section.contains("$ "), "{name}: no example in the section");
            // Hidden options are for tests.
            let shown = command.get_arguments().filter(|argument| !argument.is_hide_set());
            for option in shown.filter_map(clap::Arg::get_long) {
                let known = page.contains(&format!("--{option}"))
                    || matches!(option, "file" | "output" | "namespace");
                assert!(known, "docs/commands.md does not mention --{option} of weft {name}");
            }
        }
    }
}
