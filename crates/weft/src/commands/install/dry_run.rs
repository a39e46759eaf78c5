//! `weft install --dry-run`: says what is on the node and what an installation would do. It changes nothing.
//!
//! The exit code is 1 if an installation would wait or fail now.

use super::default_network::{self, Role};
use super::node_path::NodePath;
use super::{Arguments, InstallPaths, Readiness, check_readiness, earlier_file, refuse_unimported};
use cli_support::failure::Failure;
use cli_support::output;
use cli_support::terminal::plain;
use node_support::weft_cni::WeftCni;

/// Prints the report.
///
/// # Errors
/// The directories cannot be read, or an installation would wait or fail.
pub(super) fn report(arguments: &Arguments) -> Result<(), Failure> {
    let paths = InstallPaths::of(arguments)?;
    let weft_cni = WeftCni::find()?;
    let mut lines = found(arguments, &paths, &weft_cni)?;
    let mut notes = Vec::new();
    let outcome = check_readiness(arguments, &paths, &weft_cni, &mut notes)?;
    lines.extend(notes);
    let failure = match outcome {
        Readiness::NotYet(failure) => Some(failure.context("an installation would wait")),
        Readiness::Ready(text) => {
            refuse_unimported(&paths, &text)?;
            lines.extend(planned(&paths, &text));
            earlier_file(&paths)?.map(|failure| failure.context("an installation would fail"))
        }
    };
    let text: String = lines.iter().map(|line| format!("{}\n", plain(line))).collect();
    output::print(&text)?;
    failure.map_or(Ok(()), Err)
}

/// Returns a line for each runtime file, and for each plugin in the default network.
fn found(arguments: &Arguments, paths: &InstallPaths, weft_cni: &WeftCni) -> Result<Vec<String>, Failure> {
    let InstallPaths { networks, plugins, .. } = paths;
    let directory = paths.directory()?;
    let chosen = match &arguments.config {
        Some(_) => None,
        None => default_network::find(arguments.default_network.as_deref(), &directory),
    };
    let named = |path: &std::path::Path| {
        path.file_name()
            .map_or_else(|| path.to_owned(), |name| networks.named.join(name))
            .display()
            .to_string()
    };
    let mut rows: Vec<(String, String)> = Vec::new();
    for (path, network) in &directory.networks {
        let is_chosen = chosen.is_some_and(|(file, _)| file == path);
        let what = match default_network::role(path, network) {
            Role::MetaPlugin if default_network::is_multus(network) => "configuration of Multus",
            Role::MetaPlugin => "configuration of weft",
            Role::Loopback => "loopback alone, no network",
            Role::OfRuntime if is_chosen => "default network, a bridge of the container runtime",
            Role::OfRuntime => "a bridge of the container runtime, not used",
            Role::Network if is_chosen => "default network",
            Role::Network => "another network, not used",
        };
        rows.push((named(path), format!("network {}: {what}", network.name)));
    }
    rows.extend(directory.faults.iter().map(|(path, error)| (named(path), format!("not readable: {error}"))));
    rows.sort();
    let mut lines: Vec<String> =
        rows.into_iter().map(|(path, what)| format!("found {path}: {what}")).collect();
    if lines.is_empty() {
        lines.push(format!("found no network in {}", networks.named.display()));
    }
    if let Some((_, network)) = chosen {
        for plugin in network.needs_where(|_| false)? {
            let file = plugins.named.join(plugin.as_str());
            let (here, located) = (
                plugins.here.join(plugin.as_str()),
                paths.plugins.locate(&paths.root, &plugins.here.join(plugin.as_str())),
            );
            lines.push(match std::fs::read_link(&here) {
                Ok(target) if located.exists() => {
                    format!("found plugin {plugin}: {}, a link to {}", file.display(), target.display())
                }
                Ok(target) => format!(
                    "plugin {plugin}: {} leads to {}, which does not exist",
                    file.display(),
                    target.display()
                ),
                Err(_) if located.exists() => format!("found plugin {plugin}: {}", file.display()),
                Err(_) if weft_cni.answers_to(plugin.as_str())? => {
                    format!("plugin {plugin}: built into weft-cni")
                }
                Err(_) => format!("plugin {plugin}: not found in {}", plugins.named.display()),
            });
        }
    }
    Ok(lines)
}

/// Returns a line for each file that would be written.
fn planned(paths: &InstallPaths, text: &str) -> Vec<String> {
    let InstallPaths { plugins, written: NodePath { named, here }, .. } = paths;
    let mut lines: Vec<String> = ["weft-cni", "weft"]
        .map(|name| format!("would install {}", plugins.named.join(name).display()))
        .to_vec();
    if !paths.has_plugin("loopback") {
        lines.push(format!("would install {}", plugins.named.join("loopback").display()));
    }
    lines.push(match std::fs::read_to_string(here) {
        Ok(there) if there == text => format!("{}: up to date", named.display()),
        Ok(_) => format!("would replace {} with", named.display()),
        Err(_) => format!("would write {}:", named.display()),
    });
    if !lines.last().is_some_and(|line| line.ends_with("up to date")) {
        lines.extend(text.lines().map(str::to_owned));
    }
    lines
}
