//! Configuration list for a delegate, with the pod's requests added to each plugin.
//!
//! Only `args` and, for a device, `deviceID` and `pciBusID` change. Every other value stays the same byte for byte. A
//! list to which nothing is added is passed on unchanged.
//!
//! Source: multi-network specification v1.0, 4.1.2.1.3.2; v1.1, 4.1.2.1.6.2; Multus `addDeviceIDInConfList`;
//! conflict C7.

use cni::error::Error;
use cni::network::Network;
use cni::object::Object;
use serde_json::value::RawValue;

use super::{CONFIGURATIONS_MAX, too_large};
use crate::refusal::{Fault, KeyPath, Refusal};
use crate::rule::Rule;

/// Returns the list to execute. Each key in `args_cni` replaces the one under a plugin's `args.cni`.
pub(super) fn render(
    network: &Network,
    args_cni: &Object,
    device: Option<&str>,
    subject: &str,
) -> Result<String, Refusal> {
    let fault = |error: Error, path: KeyPath| {
        Refusal::failed(Fault::new(Rule::MalformedArgs, subject, error.to_string()).at(path))
    };
    let list = KeyPath::root().key("plugins");
    let mut head = Object::parse(network.bytes(), "config").map_err(|error| fault(error, KeyPath::root()))?;
    let complete = head.get("plugins").is_some_and(|raw| length(raw) == Some(network.plugins.len()));
    if complete && args_cni.is_empty() && device.is_none() {
        return Ok(String::from_utf8_lossy(network.bytes()).into_owned());
    }
    // Even a few requested bytes must not become gigabytes when they are added to very many plugins.
    let added: usize = args_cni.iter().map(|(key, value)| key.len() + value.get().len()).sum();
    if added.saturating_mul(network.plugins.len()) > CONFIGURATIONS_MAX {
        return Err(too_large(subject));
    }
    let mut plugins = Vec::with_capacity(network.plugins.len());
    for (index, plugin) in network.plugins.iter().enumerate() {
        let mut plugin = plugin.clone();
        merge(&mut plugin, args_cni, device).map_err(|error| fault(error, list.index(index).key("args")))?;
        plugins.push(plugin);
    }
    let all = raw(&plugins).map_err(|error| fault(error, list.clone()))?;
    head.impose("plugins", all);
    if !complete {
        // The list already contains the files of the network's directory; they must not be appended again.
        let yes = raw(&true).map_err(|error| fault(error, list))?;
        head.impose("loadOnlyInlinedPlugins", yes);
    }
    Ok(head.to_json())
}

fn length(raw: &RawValue) -> Option<usize> {
    serde_json::from_str::<Vec<&RawValue>>(raw.get()).ok().map(|list| list.len())
}

fn merge(plugin: &mut Object, args_cni: &Object, device: Option<&str>) -> Result<(), Error> {
    if !args_cni.is_empty() {
        let mut args = plugin.read_object("args")?.unwrap_or_default();
        let mut inner = args.read_object("cni").map_err(|error| error.context("args"))?.unwrap_or_default();
        for (key, value) in args_cni.iter() {
            inner.impose(key, value.to_owned());
        }
        args.impose("cni", raw(&inner)?);
        plugin.impose("args", raw(&args)?);
    }
    if let Some(id) = device {
        plugin.impose("deviceID", raw(id)?);
        plugin.impose("pciBusID", raw(id)?);
    }
    Ok(())
}

fn raw<T: serde::Serialize + ?Sized>(value: &T) -> Result<Box<RawValue>, Error> {
    serde_json::value::to_raw_value(value).map_err(|cause| Error::internal(format!("encode: {cause}")))
}
