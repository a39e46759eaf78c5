//! What is wrong with the meta-plugin on this node: its configuration, who calls it, who plans for it, and what it says of
//! itself.
//!
//! Rules: what it can say itself is its own STATUS, which looks at what an ADD would need; here is what it cannot know: which
//! file and which program the runtime takes, and whether pods that select networks find somebody to plan for them.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use cni::Verb;
use cni::name::{ContainerId, IfName};

use super::{Finding, proxy};
use crate::commands::install::{first_before, thin};
use crate::manifest_plan::IFNAME;
use crate::meta_plugin_config::MetaPlugin;
use cri_proxy::runtime_network;
use node_agent::single_plan;
use node_support::weft_cni::{PACKAGED, PLUGINS, PROGRAMS, Plugins, Subject, WeftCni};

/// In this version of the protocol STATUS can be asked.
const WITH_STATUS: &str = "1.1.0";

/// What is wrong with it.
pub(super) fn findings(
    weft_cni: &WeftCni,
    named: Option<&Path>,
    plugins: &Plugins,
    cri_socket: &Path,
) -> Vec<Finding> {
    let found = match MetaPlugin::find_any(named, &[]) {
        Ok(Some(found)) => found,
        Ok(None) if proxy::is_used(cri_socket, []) => return Vec::new(),
        Ok(None) => return vec![Finding::new("configuration", "no file configures weft", "weft install")],
        Err(failure) => {
            return vec![Finding::new("configuration", failure.to_string(), "weft lint names the place")];
        }
    };
    let what = format!("configuration {}", found.file);
    if named.is_none() && found.is_anothers() {
        let why = "it is Multus's, and no other file configures weft";
        return vec![Finding::new(what, why, "docs/migrate-from-multus.md, or weft install")];
    }
    let mut findings = Vec::new();
    if named.is_none() {
        findings.extend(of_order(&found, &what));
        findings.extend(of_program(&found, &what, plugins));
    }
    // Of the proxy's own list the proxy is asked.
    if !of_proxy(&found) {
        findings.extend(of_plugins(&found, &what));
        findings.extend(of_planner(&found));
        findings.extend(of_status(weft_cni, found, &what, plugins));
    }
    findings
}

/// Another file comes first.
fn of_order(found: &MetaPlugin, what: &str) -> Option<Finding> {
    let file = Path::new(&found.file);
    let earlier = first_before(file.parent()?, file).ok()??;
    let why =
        format!("{} comes before it: the runtime uses that, and no pod gets its networks", earlier.display());
    Some(Finding::new(what, why, "remove it, or weft install --file-name"))
}

/// The runtime finds no program of the name.
fn of_program(found: &MetaPlugin, what: &str, plugins: &Plugins) -> Option<Finding> {
    let directories = runtime_path(found, plugins);
    let name = found.name();
    if directories.split(':').any(|directory| Path::new(directory).join(name).is_file()) {
        return None;
    }
    let why = format!("the plugin {name} is not in {directories}: the runtime cannot call it");
    Some(Finding::new(what, why, "weft install, or --path names where the runtime looks for plugins"))
}

/// Where the runtime looks for plugins, as far as anybody here knows.
fn runtime_path(found: &MetaPlugin, plugins: &Plugins) -> String {
    let configured = &found.node.bin_dir;
    plugins.given().map_or_else(
        || match configured == PLUGINS {
            true => format!("{PLUGINS}:{PACKAGED}"),
            false => format!("{configured}:{PLUGINS}:{PACKAGED}"),
        },
        str::to_owned,
    )
}

/// Its own directory of plugins leads nowhere.
fn of_plugins(found: &MetaPlugin, what: &str) -> Option<Finding> {
    let directory = &found.node.bin_dir;
    let cause = match fs::metadata(directory) {
        Ok(meta) if meta.is_dir() => return None,
        Ok(_) => "no directory".to_owned(),
        Err(cause) => cause.to_string(),
    };
    let why = format!("binDir {directory}: {cause}");
    Some(Finding::new(what, why, "weft install --bin-dir with the directory of the runtime's plugins"))
}

/// Nobody plans for pods that select networks.
fn of_planner(found: &MetaPlugin) -> Option<Finding> {
    let node = &found.node;
    let absent = match (&node.manifest_dir, UnixStream::connect(&node.agent_socket)) {
        (Some(_), _) | (_, Ok(_)) => return None,
        (None, Err(cause)) => cause,
    };
    let besides = match &node.kubeconfig {
        None => "the configuration names no kubeconfig to plan without it".to_owned(),
        Some(_) if !has_brain(found) => "weft-cni finds no weft to plan without it".to_owned(),
        Some(file) => single_plan::reach(Path::new(file)).err()?.to_string(),
    };
    let why = format!("nobody answers ({absent}), and {besides}: no pod that selects networks is attached");
    let cure = "start the agent: kubectl -n weft-system get pods -o wide; or weft install --thin";
    Some(Finding::new(format!("agent {}", node.agent_socket), why, cure))
}

/// Does weft-cni find `weft`, from where the runtime calls it?
fn has_brain(found: &MetaPlugin) -> bool {
    let own = fs::canonicalize(Path::new(&found.node.bin_dir).join(found.name())).unwrap_or_default();
    let beside = [own.with_file_name(thin::PROGRAM), own.with_file_name(thin::DIRECTORY).join(thin::PROGRAM)];
    let listed = PROGRAMS.split(':').map(|directory| Path::new(directory).join(thin::PROGRAM));
    beside.into_iter().chain(listed).any(|path: PathBuf| fs::canonicalize(path).is_ok_and(|real| real != own))
}

/// What it says itself: a pod that is made now would not be attached.
fn of_status(weft_cni: &WeftCni, found: MetaPlugin, what: &str, plugins: &Plugins) -> Option<Finding> {
    let path = runtime_path(&found, plugins);
    let asked = || {
        let subject = Subject {
            container: ContainerId::new("doctor")?,
            netns: String::new(),
            ifname: IfName::new(IFNAME)?,
            args: String::new(),
            path,
        };
        let found = found.with("cniVersion", WITH_STATUS).map_err(cni::Error::from)?;
        weft_cni.call(found.name(), &found.object.to_json(), Verb::Status, &subject)
    };
    let error = asked().err()?;
    let cure = match error.details.is_empty() {
        true => "until then no pod is attached; docs/operations.md, «a pod does not start»".to_owned(),
        false => error.details,
    };
    Some(Finding::new(what, format!("STATUS: {}", error.msg), cure))
}

/// Is it the list that `weft cri-proxy` writes?
fn of_proxy(found: &MetaPlugin) -> bool {
    found.object.text("name").is_ok_and(|name| name.as_deref() == Some(runtime_network::NAME))
}
