//! DEL for sandboxes that existed before weft was installed: the runtime attached them to the default network
//! itself.
//!
//! The runtime's own cache contains the ADD: network, configuration, arguments, result. This module takes the
//! attachment down from it as the runtime would. Without it, addresses and ports on the default network would
//! remain.
//!
//! - It acts only if the journal has no entry, and only on attachments in the cache: a repeated DEL finds
//!   nothing.
//! - It executes the plugins' programs, because they made the attachment. Only if one is not installed, the
//!   built-in plugins are used.
//! - It leaves attachments that a meta-plugin made alone: weft's are in the journal, and `weft import multus`
//!   imports Multus's.
//! - A failed attachment stays in the cache for the next DEL. One that cannot be parsed, or whose plugins are
//!   not installed, is logged and does not fail the DEL.
//!
//! Source: libcni `libcni/api.go` (`cachedInfo`); go-cni `cni.go` (`Remove`).

use std::path::Path;

use cni::invocation::{Attachment, Detach};
use cni::network::Network;
use cni::runtime::cache::{self, Cache};
use cni::runtime::{chain, exec};
use cni::{Context, Error, code};
use npwg::configuration::Builtin;
use npwg::definition::META_PLUGINS;
use plugin_support::log;

use super::{Node, namespace, readiness};
use crate::plugin_invoker::PluginInvoker;

/// Takes down attachments that the runtime made itself.
///
/// # Errors
/// All failures in one; failed attachments stay in the runtime's cache.
pub(super) fn take_down(node: &Node, request: &Detach) -> Result<(), Error> {
    let Detach { who, netns, call } = request;
    let cache = Cache::new(Path::new(cache::DIRECTORY));
    let known = cache.attachments(Some(&who.container))?;
    let netns = netns.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let mut errors = Vec::new();
    for entry in known {
        let cache::Entry { network: name, config, mut parameters } = entry;
        // The runtime removes the cache entry of this call itself.
        if parameters.who != *who || name == call.config.name {
            continue;
        }
        let Ok(network) = Network::parse(&config, name.as_str()).inspect_err(log_error) else { continue };
        namespace::living(&netns).clone_into(&mut parameters.netns);
        parameters.path.clone_from(&node.path);
        errors.extend(detach(node, &cache, &network, &parameters).err());
    }
    cni::error::collected(errors)
}

fn detach(
    node: &Node,
    cache: &Cache,
    network: &Network,
    parameters: &chain::Parameters,
) -> Result<(), Error> {
    let Ok(types) = network.needs().inspect_err(log_error) else { return Ok(()) };
    let is_ready = readiness::find_programs(&node.invoker, network, &parameters.path).inspect_err(log_error);
    if is_ready.is_err() || types.iter().any(|name| META_PLUGINS.contains(&name.as_str())) {
        return Ok(());
    }
    let Attachment { container, ifname } = &parameters.who;
    let step = || format!("detach {ifname} ({}), attached before weft was installed", network.name);
    let last = match cache.result(&network.name, &parameters.who, network.version) {
        Err(error) if error.code == code::IO_FAILURE => return Err(error.context(step())),
        last => last.inspect_err(log_error),
    };
    let programs = PluginInvoker::new(Builtin::Never, node.configuration.delegate_timeout);
    let are_installed = types.iter().all(|name| exec::find(name, &parameters.path).is_ok());
    let invoker = if are_installed { &programs } else { &node.invoker };
    let last = last.unwrap_or_default();
    let failures = chain::del_all(invoker, network, parameters, last.as_ref());
    cni::error::collected(failures.into_iter().map(|failure| failure.error).collect()).context(step())?;
    log!("weft: sandbox {container}: {}", step());
    cache.remove(&network.name, &parameters.who)
}

fn log_error(error: &Error) {
    log!("weft: the runtime's cache: {error}");
}
