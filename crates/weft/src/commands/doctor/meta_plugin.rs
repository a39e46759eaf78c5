//! Findings about the meta-plugin on this node: configuration, program, planner and STATUS.
//!
//! The meta-plugin's STATUS checks what an ADD needs. This module checks what the meta-plugin cannot know:
//! the file and the program that the runtime uses, and whether an agent or a `weft` can plan for pods that
//! select networks.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use cni::Verb;
use cni::name::{ContainerId, IfName};

use super::{Finding, proxy};
use crate::commands::install::{first_before, thin};
use crate::manifest_plan::IFNAME;
use crate::meta_plugin_config::MetaPlugin;
use crate::whereabouts_program;
use crate::whereabouts_program::WhereaboutsProgram;
use cri_proxy::runtime_network;
use node_agent::single_plan;
use node_support::weft_cni::{PACKAGED, PLUGINS, PROGRAMS, Plugins, Subject, WeftCni};
use npwg::configuration::Builtin;

/// CNI version for the STATUS call.
const STATUS_VERSION: &str = "1.1.0";

/// Returns the findings about the meta-plugin.
pub(super) fn findings(
    weft_cni: &WeftCni,
    config: Option<&Path>,
    plugins: &Plugins,
    cri_socket: &Path,
) -> Vec<Finding> {
    let meta_plugin = match MetaPlugin::find_any(config, &[]) {
        Ok(Some(meta_plugin)) => meta_plugin,
        Ok(None) if proxy::is_used(cri_socket, []) => return Vec::new(),
        Ok(None) => {
            return vec![missing_configuration()];
        }
        Err(failure) => {
            return vec![Finding::new(
                "configuration",
                failure.to_string(),
                "weft lint shows the position of the error",
            )];
        }
    };
    let what = format!("configuration {}", meta_plugin.file);
    if config.is_none() && meta_plugin.is_multus_itself() {
        let why = "it is the configuration of Multus, and no other file configures weft";
        return vec![Finding::new(what, why, "see docs/migrate-from-multus.md, or run weft install")];
    }
    let mut findings = Vec::new();
    if config.is_none() {
        findings.extend(check_file_order(&meta_plugin, &what));
        findings.extend(check_program(&meta_plugin, &what, plugins));
    }
    // The CRI proxy is checked through its API.
    if !is_list_of_proxy(&meta_plugin) {
        findings.extend(check_bin_dir(&meta_plugin, &what));
        findings.extend(check_whereabouts(&meta_plugin, &what));
        findings.extend(check_planner(&meta_plugin));
        findings.extend(check_status(weft_cni, meta_plugin, &what, plugins));
    }
    findings
}

/// Returns the finding for a node on which no file configures weft.
fn missing_configuration() -> Finding {
    match MetaPlugin::renamed_by_cilium() {
        None => Finding::new("configuration", "no file configures weft", "run weft install"),
        Some(renamed) => {
            let why =
                "Cilium renamed it, because its option cni.exclusive is true, so the runtime does not use it";
            let hint = format!(
                "set cni.exclusive to false in the configuration of Cilium, run weft install with the same settings \
                 (--set KEY=VALUE) as in {0}, then delete {0}",
                renamed.file
            );
            Finding::new(format!("configuration {}", renamed.file), why, hint)
        }
    }
}

/// Returns a finding if the built-in plugin serves under the name of an installed whereabouts, whose
/// addresses it does not know.
fn check_whereabouts(meta_plugin: &MetaPlugin, what: &str) -> Option<Finding> {
    let WhereaboutsProgram::Foreign(path) = whereabouts_program::find(&meta_plugin.node.bin_dir) else {
        return None;
    };
    let why = format!(
        "builtin: always: networks of whereabouts get addresses of weft-ipam, although {} is installed",
        path.display()
    );
    let hint = "set builtin to auto until weft import whereabouts has imported its addresses";
    (meta_plugin.node.builtin == Builtin::Always).then(|| Finding::new(what, why, hint))
}

/// Returns a finding if another file sorts before the configuration.
fn check_file_order(meta_plugin: &MetaPlugin, what: &str) -> Option<Finding> {
    let file = Path::new(&meta_plugin.file);
    let earlier = first_before(file.parent()?, file).ok()??;
    let why = format!(
        "{} sorts before it, so the runtime uses that file and no pod gets its networks",
        earlier.display()
    );
    Some(Finding::new(what, why, "remove that file, or run weft install with --file-name"))
}

/// Returns a finding if the runtime's plugin directories have no program with this name, or a file that is no
/// plugin.
fn check_program(meta_plugin: &MetaPlugin, what: &str, plugins: &Plugins) -> Option<Finding> {
    let directories = runtime_path(meta_plugin, plugins);
    let name = meta_plugin.name();
    let files = directories.split(':').map(|directory| Path::new(directory).join(name));
    if let Some(file) = files.into_iter().find(|file| file.is_file()) {
        let error = WeftCni::answers_version(&file).err()?;
        let real = fs::canonicalize(&file).unwrap_or(file);
        let why = format!("plugin {name}: {} is damaged, so no pod starts or ends: {error}", real.display());
        return Some(Finding::new(
            what,
            why,
            "run weft install, from another directory than that of the plugins",
        ));
    }
    let why = format!("plugin {name}: not found in {directories}, so the runtime cannot call it");
    Some(Finding::new(
        what,
        why,
        "run weft install, or name the plugin directories of the runtime with --path",
    ))
}

/// Returns the runtime's plugin directories, as far as the configuration and the options say.
fn runtime_path(meta_plugin: &MetaPlugin, plugins: &Plugins) -> String {
    let configured = &meta_plugin.node.bin_dir;
    plugins.given().map_or_else(
        || match configured == PLUGINS {
            true => format!("{PLUGINS}:{PACKAGED}"),
            false => format!("{configured}:{PLUGINS}:{PACKAGED}"),
        },
        str::to_owned,
    )
}

/// Returns a finding if `binDir` is not a directory.
fn check_bin_dir(meta_plugin: &MetaPlugin, what: &str) -> Option<Finding> {
    let directory = &meta_plugin.node.bin_dir;
    let cause = match fs::metadata(directory) {
        Ok(meta) if meta.is_dir() => return None,
        Ok(_) => "not a directory".to_owned(),
        Err(cause) => cause.to_string(),
    };
    let why = format!("binDir {directory}: {cause}");
    Some(Finding::new(what, why, "run weft install with --bin-dir and the plugin directory of the runtime"))
}

/// Returns a finding if neither an agent nor `weft plan --once` can plan for pods that select networks.
fn check_planner(meta_plugin: &MetaPlugin) -> Option<Finding> {
    let node = &meta_plugin.node;
    let cause = match (&node.manifest_dir, UnixStream::connect(&node.agent_socket)) {
        (Some(_), _) | (_, Ok(_)) => return None,
        (None, Err(cause)) => cause,
    };
    let without_agent = match &node.kubeconfig {
        None => "the configuration has no kubeconfig to plan without an agent".to_owned(),
        Some(_) if !finds_weft(meta_plugin) => "weft-cni finds no weft to plan without an agent".to_owned(),
        Some(file) => single_plan::reach(Path::new(file)).err()?.to_string(),
    };
    let why =
        format!("no agent answers ({cause}), and {without_agent}; pods that select networks do not start");
    let hint = "start the agent (kubectl -n kube-system get pods -l app.kubernetes.io/component=agent -o wide), or run weft install --thin";
    Some(Finding::new(format!("agent {}", node.agent_socket), why, hint))
}

/// Whether weft-cni finds `weft`, called from the runtime's directory.
fn finds_weft(meta_plugin: &MetaPlugin) -> bool {
    let own =
        fs::canonicalize(Path::new(&meta_plugin.node.bin_dir).join(meta_plugin.name())).unwrap_or_default();
    let beside = [own.with_file_name(thin::PROGRAM), own.with_file_name(thin::DIRECTORY).join(thin::PROGRAM)];
    let listed = PROGRAMS.split(':').map(|directory| Path::new(directory).join(thin::PROGRAM));
    beside.into_iter().chain(listed).any(|path: PathBuf| fs::canonicalize(path).is_ok_and(|real| real != own))
}

/// Returns a finding if STATUS fails: an ADD would fail too.
fn check_status(
    weft_cni: &WeftCni,
    meta_plugin: MetaPlugin,
    what: &str,
    plugins: &Plugins,
) -> Option<Finding> {
    let path = runtime_path(&meta_plugin, plugins);
    let status = || {
        let subject = Subject {
            container: ContainerId::new("doctor")?,
            netns: String::new(),
            ifname: IfName::new(IFNAME)?,
            args: String::new(),
            path,
        };
        let meta_plugin = meta_plugin.with("cniVersion", STATUS_VERSION).map_err(cni::Error::from)?;
        weft_cni.call(meta_plugin.name(), &meta_plugin.object.to_json(), Verb::Status, &subject)
    };
    let error = status().err()?;
    let hint = match error.details.is_empty() {
        true => "no pod is attached until then; see docs/operations.md, «A pod does not start»".to_owned(),
        false => error.details,
    };
    Some(Finding::new(what, format!("STATUS: {}", error.msg), hint))
}

/// Whether the configuration is the list that `weft cri-proxy` writes.
fn is_list_of_proxy(meta_plugin: &MetaPlugin) -> bool {
    meta_plugin.object.text("name").is_ok_and(|name| name.as_deref() == Some(runtime_network::NAME))
}
