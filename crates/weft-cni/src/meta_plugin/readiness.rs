//! Whether the default network is ready: the file that `readinessindicatorfile` names exists.
//!
//! - An ADD waits for the file for up to 45 s.
//! - A DEL waits for up to half a second and continues without the file: it works from the journal.
//! - STATUS fails with code 50 while the file or one of the network's programs is missing.
//!
//! Source: the multi-network specification 6.1.2 (NPWG1-6.1.2-2); conflict C19; Multus
//! `readinessindicatorfile`; CNI STATUS (S33: code 50).

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use cni::name::PluginType;
use cni::network::{Network, ipam_type, plugin_type};
use cni::plugin::Plugin;
use cni::runtime::exec;
use cni::{Error, code};
use npwg::configuration::NodeConfiguration;
use plugin_support::log;
use rpc::journal::{PluginProgram, ProgramFile, Programs};

use crate::builtins;
use crate::plugin_invoker::PluginInvoker;
use crate::recursion;

/// Timeout for an ADD, as in Multus.
const WAIT_MAX: Duration = Duration::from_secs(45);
/// Timeout for a DEL: a default network that restarts is usually ready again by then.
const DETACH_WAIT_MAX: Duration = Duration::from_millis(500);
/// Pause between two checks.
const PAUSE: Duration = Duration::from_millis(100);

/// Blocks until the default network is ready.
///
/// # Errors
/// Code 11 with the file that is missing.
pub(super) fn wait(node: &NodeConfiguration) -> Result<(), Error> {
    match missing_after(node, WAIT_MAX) {
        None => Ok(()),
        Some(file) => {
            let why = format!(
                "the default network is not ready: {file} does not exist after {} s",
                WAIT_MAX.as_secs()
            );
            Err(Error::new(code::TRY_AGAIN_LATER, why))
        }
    }
}

/// Blocks for a moment until the default network is ready. The DEL continues without it: it works from the journal.
pub(super) fn wait_briefly(node: &NodeConfiguration) {
    if let Some(file) = missing_after(node, DETACH_WAIT_MAX) {
        log!("weft: the default network is not ready: {file} does not exist; detaching from the journal");
    }
}

/// Waits for the file; returns the path if it is missing after `timeout`.
fn missing_after(node: &NodeConfiguration, timeout: Duration) -> Option<&str> {
    let file = node.readiness_file.as_deref()?;
    let started = Instant::now();
    while !Path::new(file).exists() {
        let left = timeout.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Some(file);
        }
        sleep(PAUSE.min(left));
    }
    None
}

/// Returns code 50 (STATUS) if the default network is not ready now.
pub(super) fn require_ready(node: &NodeConfiguration) -> Result<(), Error> {
    match node.readiness_file.as_ref().filter(|file| !Path::new(file).exists()) {
        None => Ok(()),
        Some(file) => {
            let why = format!("the default network is not ready: {file} does not exist");
            Err(Error::new(code::NOT_AVAILABLE, why))
        }
    }
}

/// Returns the error for a STATUS: a missing file or agent, which would fail an ADD, becomes code 50. An
/// error in the configuration is unchanged.
pub(super) fn unavailable(error: Error) -> Error {
    match error.code {
        code::IO_FAILURE | code::TRY_AGAIN_LATER => Error { code: code::NOT_AVAILABLE, ..error },
        _ => error,
    }
}

/// Returns the programs for a network's plugins. Refuses a network if one is not installed or is not a
/// program (STATUS: code 50).
pub(super) fn find_programs(
    invoker: &PluginInvoker,
    network: &Network,
    path: &str,
) -> Result<Programs, Error> {
    let mut programs = Programs::default();
    for plugin in &network.plugins {
        recursion::refuse_network(plugin, path).map_err(|error| {
            let msg = format!("network {}: {}", network.name, error.msg);
            Error { code: code::NOT_AVAILABLE, msg, ..error }
        })?;
    }
    // A foreign plugin calls its IPAM plugin itself, or takes `ipam.type` for something else.
    for plugin in network.needs_where(|plugin| invoker.in_process(plugin, path))? {
        if let Some(error) = invoker.undecided(&plugin, path) {
            let msg = format!("network {}: {}", network.name, error.msg);
            return Err(Error { code: code::NOT_AVAILABLE, msg, ..error });
        }
        let unavailable = |error: Error| {
            Error::new(code::NOT_AVAILABLE, format!("network {}: {}", network.name, error.msg))
        };
        let program = match invoker.decide(&plugin, path) {
            Some(program) => program,
            None => {
                let file = exec::find(&plugin, path).map_err(unavailable)?;
                let gone = || unavailable(Error::config(format!("{}: it was removed", file.display())));
                PluginProgram::External(ProgramFile::at(&file).ok_or_else(gone)?)
            }
        };
        if let PluginProgram::External(file) = &program {
            exec::check_executable(&file.path).map_err(unavailable)?;
            require_own_ipam(network, &plugin, file, path)?;
        }
        programs.set(&plugin, program);
    }
    Ok(programs)
}

/// Refuses an external reference plugin whose IPAM plugin is built in alone: the program executes it as a program.
fn require_own_ipam(
    network: &Network,
    plugin: &PluginType,
    file: &ProgramFile,
    path: &str,
) -> Result<(), Error> {
    // Chained plugins and those of other projects need not have an IPAM plugin.
    let executes = |plugin: &dyn Plugin| plugin.creates_interface() || plugin.moves_interface();
    if !builtins::find(plugin.as_str()).is_some_and(executes) {
        return Ok(());
    }
    for config in
        network.plugins.iter().filter(|config| plugin_type(config).is_ok_and(|kind| kind == *plugin))
    {
        if let Some(ipam) = ipam_type(config)?.filter(|ipam| builtins::find(ipam.as_str()).is_some())
            && exec::find(&ipam, path).is_err()
        {
            let why = format!(
                "network {}: plugin {plugin} is {}, which executes \"{ipam}\", and {path} has no program of this name",
                network.name,
                file.path.display()
            );
            let next = format!("run weft-cni install DIR --names {ipam}, or set \"builtin\" to \"always\"");
            return Err(Error::new(code::NOT_AVAILABLE, why).details(next));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use npwg::configuration::Flavour;

    use super::*;

    // Requirements: NPWG1-6.1.2-2, conflict C19
    #[test]
    fn readiness_file_is_awaited_within_a_bound() {
        let file = std::env::temp_dir().join(format!("weft-ready-{}", std::process::id()));
        let config = serde_json::json!({ "cniVersion": "1.0.0", "name": "weft", "type": "weft", "clusterNetwork": "pods",
            "readinessindicatorfile": file });
        let node = NodeConfiguration::read(config.to_string().as_bytes(), Flavour::Weft).unwrap();
        assert_eq!(missing_after(&node, Duration::from_millis(1)), file.to_str(), "the bound ends the wait");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| missing_after(&node, Duration::from_secs(600)).is_none());
            std::fs::write(&file, "").unwrap();
            assert!(waiting.join().unwrap(), "the file ends the wait");
        });
        std::fs::remove_file(&file).unwrap();
        assert!(DETACH_WAIT_MAX < WAIT_MAX);
    }
}
