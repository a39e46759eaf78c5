//! Readiness of the default network: the file of `readinessindicatorfile` exists.
//!
//! - An ADD waits for the file for up to 45 s.
//! - A DEL does not wait: it works from the journal.
//! - STATUS fails with code 50 while the file or a program of the network is missing.
//!
//! Source: the multi-network specification 6.1.2 (NPWG1-6.1.2-2); conflict C19; Multus `readinessindicatorfile`; CNI STATUS
//! (S33: code 50).

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use cni::network::Network;
use cni::runtime::exec;
use cni::{Error, code};
use npwg::configuration::NodeConfiguration;
use plugin_support::log;

use crate::plugin_invoker::PluginInvoker;

/// Timeout of an ADD: the same as that of Multus.
const WAIT_MAX: Duration = Duration::from_secs(45);
/// Pause between two checks.
const PAUSE: Duration = Duration::from_millis(100);

/// Blocks until the default network is ready.
///
/// # Errors
/// Code 11 with the file that is missing.
pub(super) fn wait(node: &NodeConfiguration) -> Result<(), Error> {
    let Some(file) = &node.readiness_file else { return Ok(()) };
    let started = Instant::now();
    while !Path::new(file).exists() {
        if started.elapsed() >= WAIT_MAX {
            let why = format!(
                "the default network is not ready: {file} does not exist after {} s",
                WAIT_MAX.as_secs()
            );
            return Err(Error::new(code::TRY_AGAIN_LATER, why));
        }
        sleep(PAUSE);
    }
    Ok(())
}

/// Logs that the default network is not ready. The DEL continues: it works from the journal.
pub(super) fn log_if_not_ready(node: &NodeConfiguration) {
    if let Some(file) = node.readiness_file.as_ref().filter(|file| !Path::new(file).exists()) {
        log!("weft: the default network is not ready: {file} does not exist; detaching from the journal");
    }
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

/// Returns the error of a STATUS: a missing file or agent, which would fail an ADD, becomes code 50. An error of the
/// configuration is unchanged.
pub(super) fn unavailable(error: Error) -> Error {
    match error.code {
        code::IO_FAILURE | code::TRY_AGAIN_LATER => Error { code: code::NOT_AVAILABLE, ..error },
        _ => error,
    }
}

/// Refuses a network if one of its plugins is not installed or is not a program (STATUS: code 50).
pub(super) fn require_plugins(invoker: &PluginInvoker, network: &Network, path: &str) -> Result<(), Error> {
    // A foreign plugin calls its IPAM plugin itself, or takes `ipam.type` for something else.
    for plugin in network.needs_where(|plugin| invoker.in_process(plugin, path))? {
        if let Some(error) = invoker.undecided(&plugin, path) {
            let msg = format!("network {}: {}", network.name, error.msg);
            return Err(Error { code: code::NOT_AVAILABLE, msg, ..error });
        }
        if !invoker.in_process(&plugin, path)
            && let Err(error) = exec::find(&plugin, path).and_then(|program| exec::check_executable(&program))
        {
            let why = format!("network {}: {}", network.name, error.msg);
            return Err(Error::new(code::NOT_AVAILABLE, why));
        }
    }
    Ok(())
}
