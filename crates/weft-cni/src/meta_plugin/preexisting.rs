//! Sandboxes of before weft was installed: the runtime attached them to the default network by itself, and calls weft
//! for their end.
//!
//! The runtime's own cache says what their ADD was: network, configuration, arguments, result. By that they are taken down,
//! as the runtime would have done it: addresses and ports of the default network would stay behind otherwise.
//!
//! Rules:
//! - only where the journal has no entry, and only what the cache names: a DEL that is repeated finds nothing;
//! - a plugin's own program is run where it is, in place of the one we have of that name: it made what goes;
//! - what a meta-plugin attached is left alone: ours is in the journal, another's is `weft import multus`'s to take over;
//! - what fails stays in the cache for the next DEL; what cannot be understood, or whose plugins are gone, is said, and keeps
//!   no pod from its end.
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

use super::{Node, readiness};
use crate::plugin_invoker::PluginInvoker;

/// Takes down what the runtime attached by itself.
///
/// # Errors
/// All failures in one; what failed is still in the runtime's cache.
pub(super) fn take_down(node: &Node, request: &Detach) -> Result<(), Error> {
    let Detach { who, netns, call } = request;
    let cache = Cache::new(Path::new(cache::DIRECTORY));
    let known = cache.attachments(Some(&who.container))?;
    let netns = netns.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let mut errors = Vec::new();
    for entry in known {
        let cache::Entry { network: name, config, mut parameters } = entry;
        // The note of this very call is the runtime's to remove.
        if parameters.who != *who || name == call.config.name {
            continue;
        }
        let Ok(network) = Network::parse(&config, name.as_str()).inspect_err(say) else { continue };
        parameters.netns.clone_from(&netns);
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
    let Ok(types) = network.needs().inspect_err(say) else { return Ok(()) };
    let is_ready = readiness::plugins_are_there(&node.invoker, network, &parameters.path).inspect_err(say);
    if is_ready.is_err() || types.iter().any(|name| META_PLUGINS.contains(&name.as_str())) {
        return Ok(());
    }
    let Attachment { container, ifname } = &parameters.who;
    let step = || format!("detach {ifname} ({}), attached before weft was installed", network.name);
    let last = match cache.result(&network.name, &parameters.who, network.version) {
        Err(error) if error.code == code::IO_FAILURE => return Err(error.context(step())),
        last => last.inspect_err(say),
    };
    let own = PluginInvoker::new(Builtin::Never, node.configuration.delegate_timeout);
    let are_there = types.iter().all(|name| exec::find(name, &parameters.path).is_ok());
    let invoker = if are_there { &own } else { &node.invoker };
    let last = last.unwrap_or_default();
    let failures = chain::del_all(invoker, network, parameters, last.as_ref());
    cni::error::collected(failures.into_iter().map(|failure| failure.error).collect()).context(step())?;
    log!("weft: sandbox {container}: {}", step());
    cache.remove(&network.name, &parameters.who)
}

fn say(error: &Error) {
    log!("weft: the runtime's cache: {error}");
}
