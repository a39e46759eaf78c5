//! Plugins that a sandbox's CHECK does not call, so that no report calls them unchanged.

use cni::network::{Network, plugin_type};
use cni::version::{Verb, Version};
use serde::Serialize;

use super::{Entry, PluginProgram};

/// Plugins on an attachment that no CHECK calls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Unchecked {
    /// Network that the attachment is to.
    pub network: String,
    /// Interface in the pod.
    pub interface: String,
    /// Plugin types.
    pub plugins: Vec<String>,
    /// Reason, as a clause.
    pub why: String,
}

impl Entry {
    /// Returns the plugins in this sandbox that a CHECK does not call.
    pub fn unchecked(&self) -> Vec<Unchecked> {
        let all = self.plan.delegates.iter().enumerate();
        let found = all.filter_map(|(index, delegate)| {
            let network = Network::parse(delegate.config.as_bytes(), &delegate.network).ok()?;
            let has_check = network.version >= Verb::Check.since();
            if has_check && !network.disable_check {
                return None;
            }
            let programs = self.attachments.get(index).map(|attachment| &attachment.programs);
            let is_built_in = |plugin: &str| {
                network.version >= Version::V0_3_0
                    && programs.and_then(|programs| programs.get(plugin)) == Some(&PluginProgram::BuiltIn)
            };
            let types = network.plugins.iter().filter_map(|plugin| plugin_type(plugin).ok());
            let types = types.filter(|kind| network.disable_check || !is_built_in(kind.as_str()));
            let plugins: Vec<String> = types.map(|kind| kind.to_string()).collect();
            let why = match network.disable_check {
                true => "disableCheck is set".to_owned(),
                false => format!(
                    "cniVersion {} has no CHECK, so only interface and addresses were compared",
                    network.version.as_str()
                ),
            };
            let (network, interface) = (delegate.network.clone(), delegate.ifname.to_string());
            (!plugins.is_empty()).then_some(Unchecked { network, interface, plugins, why })
        });
        found.collect()
    }
}

impl std::fmt::Display for Unchecked {
    /// Writes `net1 (default/sriov): plugin sriov: WHY`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Unchecked { network, interface, plugins, why } = self;
        let word = if plugins.len() == 1 { "plugin" } else { "plugins" };
        write!(f, "{interface} ({network}): {word} {}: {why}", plugins.join(", "))
    }
}
