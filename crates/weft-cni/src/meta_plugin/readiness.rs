//! Is the default network ready? An ADD waits for it, a DEL does not, STATUS says so.
//!
//! Source: the standard 6.1.2 (NPWG1-6.1.2-2); conflict C19; Multus `readinessindicatorfile`; CNI STATUS
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

/// How long an ADD waits: as long as Multus does.
const WAIT_MAX: Duration = Duration::from_secs(45);
/// How often it looks.
const PAUSE: Duration = Duration::from_millis(100);

/// Blocks until the default network is ready.
///
/// # Errors
/// Code 11, naming the file that is waited for.
pub(super) fn wait(node: &NodeConfiguration) -> Result<(), Error> {
    let Some(file) = &node.readiness_file else { return Ok(()) };
    let started = Instant::now();
    while !Path::new(file).exists() {
        if started.elapsed() >= WAIT_MAX {
            let why = format!(
                "the default network is not ready: {file} is not there after {} s",
                WAIT_MAX.as_secs()
            );
            return Err(Error::new(code::TRY_AGAIN_LATER, why));
        }
        sleep(PAUSE);
    }
    Ok(())
}

/// Says so if the default network is not ready, and goes on: what is recorded can be taken down without it.
pub(super) fn look(node: &NodeConfiguration) {
    if let Some(file) = node.readiness_file.as_ref().filter(|file| !Path::new(file).exists()) {
        log!("weft: the default network is not ready: {file} is not there; detaching from the journal");
    }
}

/// STATUS: code 50 if the default network is not ready now.
pub(super) fn now(node: &NodeConfiguration) -> Result<(), Error> {
    match node.readiness_file.as_ref().filter(|file| !Path::new(file).exists()) {
        None => Ok(()),
        Some(file) => {
            let why = format!("the default network is not ready: {file} is not there");
            Err(Error::new(code::NOT_AVAILABLE, why))
        }
    }
}

/// STATUS: what an ADD would fail of for want of a file or an agent is code 50; a configuration that is wrong
/// stays that.
pub(super) fn unavailable(error: Error) -> Error {
    match error.code {
        code::IO_FAILURE | code::TRY_AGAIN_LATER => Error { code: code::NOT_AVAILABLE, ..error },
        _ => error,
    }
}

/// Refuses a network one of whose plugins is not there or is not a program (STATUS: code 50).
pub(super) fn plugins_are_there(invoker: &PluginInvoker, network: &Network, path: &str) -> Result<(), Error> {
    // A foreign plugin calls its IPAM plugin itself, or takes `ipam.type` for something else.
    for plugin in network.needs_where(|plugin| invoker.in_process(plugin, path))? {
        if !invoker.in_process(&plugin, path)
            && let Err(error) = exec::find(&plugin, path).and_then(|program| exec::check_executable(&program))
        {
            let why = format!("network {}: {}", network.name, error.msg);
            return Err(Error::new(code::NOT_AVAILABLE, why));
        }
    }
    Ok(())
}
