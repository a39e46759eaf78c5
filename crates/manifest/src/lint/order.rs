//! Linter for plugin order: a plugin that changes an interface needs an earlier plugin that makes it.

use serde_json::Value;

use super::chain::{Chain, fault, find};
use super::plugins::canonical;
use npwg::refusal::{KeyPath, quote};
use npwg::rule::Rule;

impl Chain<'_, '_> {
    /// Checks the plugins, each with the path.
    pub(super) fn order(&mut self, plugins: &[(KeyPath, &Value)]) {
        let named: Vec<(&KeyPath, &str)> = plugins
            .iter()
            .filter_map(|(path, plugin)| Some((path, find(plugin.as_object()?, "type")?.as_str()?)))
            .collect();
        let is_chained = |name: &str| plugin_config::CHAINED.contains(&canonical(name));
        let first = named.iter().position(|(_, name)| !is_chained(name));
        // The type of another element is unknown.
        if named.len() < plugins.len() {
            return;
        }
        let early = named.iter().take(first.unwrap_or(named.len()));
        for (path, name) in early.copied() {
            let at = path.key("type");
            let reason = "changes the interface of an earlier plugin, and there is none";
            match first.and_then(|first| named.get(first)) {
                Some((_, other)) => {
                    let fault = fault(Rule::MissingInterfacePlugin, &at, reason).showing(&quote(name));
                    self.say(fault.hint(format!("move it behind {other}")));
                }
                None if self.subject.owner.is_some() => {
                    let fault = fault(Rule::MissingInterfacePlugin, &at, reason).showing(&quote(name));
                    self.say(fault.hint("put a plugin that makes the interface before it"));
                    return;
                }
                None => {
                    let reason = "changes the interface of an earlier plugin, and this file has none";
                    let fault = fault(Rule::NoInterfacePlugin, &at, reason).showing(&quote(name));
                    self.say(
                        fault.hint(
                            "use the file only as a part of another network, or add a plugin before it",
                        ),
                    );
                    return;
                }
            }
        }
    }
}
