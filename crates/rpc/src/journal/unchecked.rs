//! Plugins that a sandbox's CHECK does not call, so that no report calls them unchanged.

use cni::network::{Network, plugin_type};
use cni::object::Object;
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
            let programs = self.attachments.get(index).map(|attachment| &attachment.programs);
            let is_skipped = |kind: &str, plugin: &Object| {
                let program = programs.and_then(|programs| programs.get(kind));
                let is_built_in =
                    network.version >= Version::V0_3_0 && program == Some(&PluginProgram::BuiltIn);
                let is_external = matches!(program, Some(PluginProgram::External(_)));
                network.disable_check
                    || (!has_check && !is_built_in)
                    || (has_check && is_external && fails_check(kind, plugin))
            };
            let kinds = network.plugins.iter().filter_map(|plugin| Some((plugin_type(plugin).ok()?, plugin)));
            let skipped = kinds.filter(|(kind, plugin)| is_skipped(kind.as_str(), plugin));
            let plugins: Vec<String> = skipped.map(|(kind, _)| kind.to_string()).collect();
            let why = match (network.disable_check, has_check) {
                (true, _) => "disableCheck is set".to_owned(),
                (false, false) => format!(
                    "cniVersion {} has no CHECK, so only interface and addresses were compared",
                    network.version.as_str()
                ),
                (false, true) => {
                    "this program has no CHECK without ipam, so only interface and addresses were compared"
                        .to_owned()
                }
            };
            let (network, interface) = (delegate.network.clone(), delegate.ifname.to_string());
            (!plugins.is_empty()).then_some(Unchecked { network, interface, plugins, why })
        });
        found.collect()
    }
}

/// Whether CHECK of the reference plugin always fails: `bridge` calls its IPAM plugin also without one.
///
/// Source: containernetworking/plugins v1.9.1, `plugins/main/bridge`, `cmdCheck`.
pub fn fails_check(kind: &str, plugin: &Object) -> bool {
    let ipam = cni::network::ipam_type(plugin);
    kind == "bridge" && matches!(ipam, Ok(None))
}

impl std::fmt::Display for Unchecked {
    /// Writes `net1 (default/sriov): plugin sriov: WHY`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Unchecked { network, interface, plugins, why } = self;
        let word = if plugins.len() == 1 { "plugin" } else { "plugins" };
        write!(f, "{interface} ({network}): {word} {}: {why}", plugins.join(", "))
    }
}
