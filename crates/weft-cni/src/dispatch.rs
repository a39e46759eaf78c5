//! Names that the program can be called by: those of the meta-plugin and of the built-in plugins.

use cni::plugin::Plugin;
use npwg::configuration::Flavour;

use crate::builtins;
use crate::meta_plugin::Weft;

const META_PLUGINS: &[&dyn Plugin] = &[&Weft(Flavour::Weft), &Weft(Flavour::Multus)];

/// Returns all plugins.
pub fn plugins() -> impl Iterator<Item = &'static dyn Plugin> {
    META_PLUGINS.iter().chain(builtins::TABLE).copied()
}

/// Returns the names of all plugins.
pub fn names() -> impl Iterator<Item = &'static str> {
    plugins().map(|plugin| plugin.name())
}

/// Returns the plugin of this name.
pub fn find(name: &str) -> Option<&'static dyn Plugin> {
    plugins().find(|plugin| plugin.name() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_names_are_unique() {
        let all: std::collections::BTreeSet<&str> = names().collect();
        assert_eq!(all.len(), plugins().count());
    }
}
