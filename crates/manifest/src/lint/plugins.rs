//! The plugins that the linter knows, and other names for them.
//!
//! Options and checks come from the crate `plugin-config`, with which the plugins read the configuration.

use std::collections::BTreeMap;

use super::Knowledge;

/// Other plugin names that OpenShift Virtualization installs: name and plugin.
pub const ALIASES: &[(&str, &str)] = &[("cnv-bridge", "bridge"), ("cnv-tuning", "tuning")];

/// Returns the plugin that an alias stands for, or else the name itself.
pub fn canonical(name: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, plugin)| plugin)
}

impl Knowledge {
    /// Returns the options that weft's own plugins have.
    pub fn of_known_plugins() -> Knowledge {
        Knowledge {
            plugin_keys: table(plugin_config::PLUGINS, plugin_config::options),
            ipam_keys: table(plugin_config::IPAM_PLUGINS, plugin_config::ipam_options),
            programs: None,
            nodes: None,
        }
    }
}

fn table(names: &[&str], options: fn(&str) -> Option<Vec<&'static str>>) -> BTreeMap<String, Vec<String>> {
    let owned = |name: &&str| {
        let options = options(name).unwrap_or_default();
        ((*name).to_owned(), options.into_iter().map(str::to_owned).collect())
    };
    names.iter().map(owned).collect()
}
