//! Names that the program can be called by: the meta-plugin's and the built-in plugins'.

use std::path::Path;

use cni::plugin::Plugin;
use npwg::configuration::Flavour;

use crate::builtins;
use crate::meta_plugin::Weft;

pub use crate::builtins::LINK_PREFIX;

const META_PLUGINS: &[&dyn Plugin] = &[&Weft(Flavour::Weft), &Weft(Flavour::Multus)];

/// Returns all plugins.
pub fn plugins() -> impl Iterator<Item = &'static dyn Plugin> {
    META_PLUGINS.iter().chain(builtins::TABLE).copied()
}

/// Returns all plugin names.
pub fn names() -> impl Iterator<Item = &'static str> {
    plugins().map(|plugin| plugin.name())
}

/// Returns the plugin with this name or alias.
pub fn find(name: &str) -> Option<&'static dyn Plugin> {
    META_PLUGINS.iter().copied().find(|plugin| plugin.name() == name).or_else(|| builtins::find(name))
}

/// Returns the plugin that a link `NAME -> .weft-cni.PLUGIN` names, which `weft-cni install --names
/// NAME=PLUGIN` creates.
pub fn find_by_link(program: &Path) -> Option<&'static dyn Plugin> {
    let target = std::fs::read_link(program).ok()?;
    find(target.file_name()?.to_str()?.strip_prefix(LINK_PREFIX)?)
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
