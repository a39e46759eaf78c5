//! Configuration of the meta-plugin: search, and preparation for a call.
//!
//! A file configures the meta-plugin if the plugin type, or the first type in the plugin list, is `weft` or `multus`.
//! The search order is:
//!
//! 1. The file of `--config`.
//! 2. The files of `-f`. At most one of them may configure the meta-plugin.
//! 3. The first file by name in `/etc/cni/net.d`, as for a container runtime. A file for the real Multus (`multus` in
//!    that `binDir` is not weft-cni) is used only if there is no other.
//!
//! A file in `/etc/cni/net.d` that is unreadable or no valid network is an error if it may be the searched one: it sorts
//! before the one that was found and mentions a meta-plugin, or none was found.

use std::fs::File as OpenFile;
use std::io::Read;
use std::path::{Path, PathBuf};

use cni::network::{Network, plugin_type};
use cni::object::{DOCUMENT_MAX, Object};
use cni::runtime::chain;
use cni::runtime::load::{self, Directory};
use npwg::configuration::{Flavour, NodeConfiguration};
use npwg::nearest::{hint, nearest};
use rpc::journal;
use serde::Serialize;

use crate::input_files::{File, Kind};
use cli_support::failure::Failure;
use node_support::weft_cni::WeftCni;

/// Directory in which container runtimes look for CNI configurations by default.
const RUNTIME_DIRECTORY: &str = "/etc/cni/net.d";

/// Types under which the meta-plugin is configured.
const NAMES: [&str; 2] = ["weft", "multus"];
/// Extension that Cilium appends to other plugins' configurations (`cni.exclusive`).
const CILIUM_EXTENSION: &str = "cilium_bak";

/// Name that messages use for the built-in configuration.
const BUILT_IN: &str = "the built-in default network";
/// Configuration for `weft attach` on a machine without one: a bridge, as in the demo.
const BUILT_IN_LIST: &str = r#"{"cniVersion":"1.0.0","name":"weft-trial","plugins":[{"type":"weft","delegates":[
  {"cniVersion":"1.0.0","name":"default-network","type":"bridge","bridge":"weft0","isDefaultGateway":true,"ipMasq":true,
   "ipam":{"type":"host-local","subnet":"10.101.0.0/24"}}]}]}"#;

/// Meta-plugin and how it is configured.
#[derive(Clone, Debug)]
pub(crate) struct MetaPlugin {
    /// Path to the file.
    pub(crate) file: String,
    /// Name by which the plugin is called.
    pub(crate) flavour: Flavour,
    /// Configuration for stdin.
    pub(crate) object: Object,
    /// Same configuration, parsed.
    pub(crate) node: NodeConfiguration,
    /// Later plugins in the list. A container runtime runs them; this command does not.
    pub(crate) later_plugins: Vec<String>,
}

impl MetaPlugin {
    /// Returns the meta-plugin to use.
    pub(crate) fn find(config: Option<&Path>, files: &[File]) -> Result<MetaPlugin, Failure> {
        MetaPlugin::find_any(config, files)?.ok_or_else(MetaPlugin::missing)
    }

    /// Returns the failure if no file configures the meta-plugin.
    pub(crate) fn missing() -> Failure {
        let why = format!(
            "no configuration of the meta-plugin: no plugin of type weft in the files of -f or in {RUNTIME_DIRECTORY}"
        );
        Failure::new(why).next("name one with --config; it sets the default network of every pod")
    }

    /// Returns the meta-plugin to use, if there is one.
    pub(crate) fn find_any(config: Option<&Path>, files: &[File]) -> Result<Option<MetaPlugin>, Failure> {
        if let Some(path) = config {
            let network = load::network(path)?;
            let why = "neither the plugin nor the first plugin of the list is of type weft";
            return match MetaPlugin::of(&network, path)? {
                Some(found) => Ok(Some(found)),
                None => Err(Failure::new(format!("--config {}: {why}", path.display()))),
            };
        }
        let mut found = Vec::new();
        for File { path, text, kind: _ } in files.iter().filter(|file| file.kind == Kind::Configuration) {
            let network = Network::parse(text.as_bytes(), &path.display().to_string())?;
            found.extend(MetaPlugin::of(&network, path)?);
        }
        match found.as_slice() {
            [] => MetaPlugin::in_runtime_directory(),
            [_] => Ok(found.pop()),
            [first, second, ..] => {
                let why = format!("{} and {} both configure the meta-plugin", first.file, second.file);
                Err(Failure::new(why).next("name one of them with --config"))
            }
        }
    }

    /// Returns the built-in meta-plugin, whose default network is a bridge.
    pub(crate) fn built_in() -> Result<MetaPlugin, Failure> {
        let network = Network::parse(BUILT_IN_LIST.as_bytes(), BUILT_IN)?;
        MetaPlugin::read(&network, Path::new(BUILT_IN))
    }

    fn in_runtime_directory() -> Result<Option<MetaPlugin>, Failure> {
        MetaPlugin::first(Path::new(RUNTIME_DIRECTORY))
    }

    /// Returns the configuration in the runtime's directory that Cilium renamed, if there is one.
    pub(crate) fn renamed_by_cilium() -> Option<MetaPlugin> {
        let mut files: Vec<PathBuf> = std::fs::read_dir(RUNTIME_DIRECTORY)
            .ok()?
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == CILIUM_EXTENSION))
            .filter(|path| path.is_file())
            .collect();
        files.sort();
        files.iter().find_map(|path| MetaPlugin::of(&load::network(path).ok()?, path).ok()?)
    }

    /// Returns the first one in a directory. A file that sorts before it and cannot be used is an error if it
    /// may be the one.
    fn first(directory: &Path) -> Result<Option<MetaPlugin>, Failure> {
        let directory = Directory::read(directory)?;
        let mut networks: Vec<&(PathBuf, Network)> = directory.networks.iter().collect();
        networks.sort_by(|(a, _), (b, _)| a.cmp(b));
        let mut multus = None;
        for (path, network) in networks {
            match MetaPlugin::of(network, path)? {
                Some(found) if found.is_multus_itself() => multus = multus.or(Some(found)),
                Some(found) => {
                    directory.is_first(Some(path))?;
                    check_faults(&directory, |fault| fault < path && mentions_meta_plugin(fault))?;
                    return Ok(Some(found));
                }
                None => check_type(network, path)?,
            }
        }
        directory.is_first(None)?;
        check_faults(&directory, |fault| multus.is_none() || mentions_meta_plugin(fault))?;
        Ok(multus)
    }

    /// Whether the file is Multus's own: the `multus` that it calls is not weft-cni.
    pub(crate) fn is_multus_itself(&self) -> bool {
        let called = Path::new(&self.node.bin_dir).join(self.name());
        self.flavour == Flavour::Multus && called.is_file() && !WeftCni::is_in(&called)
    }

    fn of(network: &Network, path: &Path) -> Result<Option<MetaPlugin>, Failure> {
        let file = path.display().to_string();
        let Some((first, rest)) = network.plugins.split_first() else { return Ok(None) };
        let flavour = match plugin_type(first)?.as_str() {
            "weft" => Flavour::Weft,
            "multus" => Flavour::Multus,
            _ => return Ok(None),
        };
        let object = chain::derive(network, first, None, None)?;
        let node = read(&object, flavour).map_err(|failure| failure.context(&file))?;
        let names = rest.iter().map(|plugin| plugin_type(plugin).map(|name| name.to_string()));
        let later_plugins = names.collect::<Result<_, _>>()?;
        Ok(Some(MetaPlugin { file, flavour, object, node, later_plugins }))
    }

    /// Returns a configuration that suffices for CHECK and DEL on journal entries. It contains no networks.
    pub(crate) fn for_journal(network: &str) -> Result<MetaPlugin, Failure> {
        let mut object = Object::default();
        object.set("cniVersion", cni::Version::LATEST.as_str())?;
        object.set("name", network)?;
        object.set("type", "weft")?;
        object.set("clusterNetwork", network)?;
        let node = read(&object, Flavour::Weft)?;
        Ok(MetaPlugin {
            file: String::new(),
            flavour: Flavour::Weft,
            object,
            node,
            later_plugins: Vec::new(),
        })
    }

    /// Returns the meta-plugin in `network`, which was read from `path`.
    pub(crate) fn read(network: &Network, path: &Path) -> Result<MetaPlugin, Failure> {
        let why = "neither the plugin nor the first plugin of the list is of type weft";
        MetaPlugin::of(network, path)?.ok_or_else(|| Failure::new(format!("{}: {why}", path.display())))
    }

    /// Returns the same configuration with the option `key` set.
    pub(crate) fn with<T: Serialize + ?Sized>(mut self, key: &str, value: &T) -> Result<MetaPlugin, Failure> {
        self.object.banish(key);
        self.object.set(key, value)?;
        self.node = read(&self.object, self.flavour)?;
        Ok(self)
    }

    /// Returns the same configuration with every occurrence of one string replaced.
    pub(crate) fn with_replaced(&self, old: &str, new: &str) -> Result<MetaPlugin, Failure> {
        let text = self.object.to_json().replace(old, new);
        let object = Object::parse(text.as_bytes(), &self.file)?;
        let node = read(&object, self.flavour)?;
        Ok(MetaPlugin { object, node, ..self.clone() })
    }

    /// Returns the name by which the plugin is called.
    pub(crate) fn name(&self) -> &'static str {
        match self.flavour {
            Flavour::Weft => "weft",
            Flavour::Multus => "multus",
        }
    }

    /// Returns the journal's directory.
    pub(crate) fn journal(&self) -> PathBuf {
        let directory = self.node.cni_dir.as_deref().unwrap_or(journal::DIRECTORY);
        Path::new(directory).join(journal::ENTRIES)
    }
}

/// Fails if one of the selected files is not a valid network.
fn check_faults(directory: &Directory, is_selected: impl Fn(&Path) -> bool) -> Result<(), Failure> {
    let faults = directory.faults.iter().filter(|(path, _)| is_selected(path));
    faults.min_by_key(|(path, _)| path).map_or(Ok(()), |(_, error)| Err(error.clone().into()))
}

/// Whether an invalid file's name or content contains one of the meta-plugin's names, in any encoding that
/// extends ASCII.
fn mentions_meta_plugin(path: &Path) -> bool {
    let mut bytes = Vec::new();
    let read = OpenFile::open(path).and_then(|file| file.take(DOCUMENT_MAX as u64).read_to_end(&mut bytes));
    bytes.retain(|byte| *byte != 0);
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let text = name + &String::from_utf8_lossy(&bytes);
    read.is_err() || NAMES.iter().any(|name| text.contains(name))
}

/// Refuses a network with another type that has the meta-plugin's options: the type is misspelt.
fn check_type(network: &Network, path: &Path) -> Result<(), Failure> {
    let Some(first) = network.plugins.first() else { return Ok(()) };
    let name = plugin_type(first)?;
    let option = ["clusterNetwork", "delegates"].into_iter().find(|key| first.get(key).is_some());
    match option.filter(|_| nearest(name.as_str(), &NAMES).is_some()) {
        Some(option) => {
            let hint = hint(name.as_str(), &NAMES);
            let why = format!("no meta-plugin, although it has {option}: {hint}");
            Err(Failure::new(format!("{}: type: {:?}: {why}", path.display(), name.as_str())))
        }
        None => Ok(()),
    }
}

fn read(object: &Object, flavour: Flavour) -> Result<NodeConfiguration, Failure> {
    Ok(NodeConfiguration::read(object.to_json().as_bytes(), flavour)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> File {
        File { path: name.into(), text: text.into(), kind: Kind::Configuration }
    }

    const LIST: &str = r#"{"cniVersion":"1.0.0","name":"n","plugins":[
        {"type":"weft","clusterNetwork":"home","cniDir":"/j"},{"type":"portmap"}]}"#;

    #[test]
    fn meta_plugin_config_is_a_list_whose_first_plugin_is_weft() {
        let other = file("a.conf", r#"{"cniVersion":"1.0.0","name":"a","type":"bridge"}"#);
        let files = [other, file("b.conflist", LIST)];
        let found = MetaPlugin::find(None, &files).unwrap();
        assert_eq!(
            (found.file.as_str(), found.name(), found.later_plugins.as_slice()),
            ("b.conflist", "weft", &["portmap".to_owned()][..])
        );
        assert_eq!(found.object.text("name").unwrap().as_deref(), Some("n"));
        assert_eq!(found.object.text("cniVersion").unwrap().as_deref(), Some("1.0.0"));
        assert_eq!(found.journal(), Path::new("/j/sandboxes"));
    }

    #[test]
    fn meta_plugin_config_is_ambiguous_if_two_files_match() {
        let single = r#"{"cniVersion":"1.0.0","name":"m","type":"multus","clusterNetwork":"home"}"#;
        let files = [file("a.conf", single), file("b.conflist", LIST)];
        let failure = MetaPlugin::find(None, &files).unwrap_err().to_string();
        assert!(failure.starts_with("a.conf and b.conflist both"), "{failure}");
    }

    #[test]
    fn meta_plugin_config_error_names_the_file() {
        let wrong = LIST.replace("clusterNetwork", "clusterNetwrok");
        let failure = MetaPlugin::find(None, &[file("b.conflist", &wrong)]).unwrap_err().to_string();
        assert!(
            failure.starts_with("b.conflist: ") && failure.contains("did you mean clusterNetwork?"),
            "{failure}"
        );
    }

    #[test]
    fn meta_plugin_config_option_replaces_every_spelling() {
        let text = LIST.replace("cniDir", "CNIDIR");
        let found = MetaPlugin::find(None, &[file("b.conflist", &text)]).unwrap();
        let changed = found.with("cniDir", "/k").unwrap();
        assert_eq!(changed.journal(), Path::new("/k/sandboxes"));
        assert!(!changed.object.to_json().contains("CNIDIR"));
    }
}
