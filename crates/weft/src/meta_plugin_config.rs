//! The meta-plugin's configuration: found, and made ready to be handed to it.
//!
//! Looked for in this order: `--config`; the files of `-f`, of which exactly one may be one; `/etc/cni/net.d`, where the
//! first by name counts, as for a container runtime. A file is one if its plugin, or the first of its list, is
//! `weft` or `multus`; where the `multus` of its `binDir` is not weft-cni, only if there is no other.

use std::path::{Path, PathBuf};

use cni::network::{Network, plugin_type};
use cni::object::Object;
use cni::runtime::chain;
use cni::runtime::load::{self, Directory};
use npwg::configuration::{Flavour, NodeConfiguration};
use rpc::journal;
use serde::Serialize;

use crate::input_files::{File, Kind};
use cli_support::failure::Failure;
use node_support::weft_cni::WeftCni;

/// Where container runtimes look.
const RUNTIME: &str = "/etc/cni/net.d";

/// The meta-plugin as configured.
#[derive(Clone, Debug)]
pub(crate) struct MetaPlugin {
    /// The file it stands in.
    pub(crate) file: String,
    /// Under which name it is called.
    pub(crate) flavour: Flavour,
    /// What it is given on stdin.
    pub(crate) object: Object,
    /// The same, understood.
    pub(crate) node: NodeConfiguration,
    /// The plugins that follow it in its list: a container runtime runs them, this command does not.
    pub(crate) left_out: Vec<String>,
}

impl MetaPlugin {
    /// Finds the one to use.
    pub(crate) fn find(named: Option<&Path>, files: &[File]) -> Result<MetaPlugin, Failure> {
        MetaPlugin::find_any(named, files)?.ok_or_else(|| {
            Failure::new(format!(
                "no configuration of the meta-plugin: none of type weft is among the files of -f or in {RUNTIME}"
            ))
            .next("name one with --config; it says which network is the default network of every pod")
        })
    }

    /// Finds the one to use, if there is any.
    pub(crate) fn find_any(named: Option<&Path>, files: &[File]) -> Result<Option<MetaPlugin>, Failure> {
        if let Some(path) = named {
            let network = load::network(path)?;
            let why = "its plugin is not weft, and neither is the first of its list";
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
            [] => MetaPlugin::of_runtime(),
            [_] => Ok(found.pop()),
            [first, second, ..] => {
                let why = format!("{} and {} both configure the meta-plugin", first.file, second.file);
                Err(Failure::new(why).next("say which one with --config"))
            }
        }
    }

    fn of_runtime() -> Result<Option<MetaPlugin>, Failure> {
        MetaPlugin::first(Path::new(RUNTIME))
    }

    /// The first of a directory. One that cannot be read may be meant, if it comes before.
    fn first(directory: &Path) -> Result<Option<MetaPlugin>, Failure> {
        let directory = Directory::read(directory)?;
        let mut networks: Vec<&(PathBuf, Network)> = directory.networks.iter().collect();
        networks.sort_by(|(a, _), (b, _)| a.cmp(b));
        let mut anothers = None;
        for (path, network) in networks {
            match MetaPlugin::of(network, path)? {
                Some(found) if found.is_anothers() => anothers = anothers.or(Some(found)),
                Some(found) => {
                    directory.is_first(Some(path))?;
                    return Ok(Some(found));
                }
                None => {}
            }
        }
        directory.is_first(None)?;
        Ok(anothers)
    }

    /// Is it Multus's own: is the `multus` that it calls somebody else's program?
    pub(crate) fn is_anothers(&self) -> bool {
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
        let left_out = names.collect::<Result<_, _>>()?;
        Ok(Some(MetaPlugin { file, flavour, object, node, left_out }))
    }

    /// One for taking down and looking after what the journal knows: nothing of it decides about networks.
    pub(crate) fn of_journal(network: &str) -> Result<MetaPlugin, Failure> {
        let mut object = Object::default();
        object.set("cniVersion", cni::Version::LATEST.as_str())?;
        object.set("name", network)?;
        object.set("type", "weft")?;
        object.set("clusterNetwork", network)?;
        let node = read(&object, Flavour::Weft)?;
        Ok(MetaPlugin { file: String::new(), flavour: Flavour::Weft, object, node, left_out: Vec::new() })
    }

    /// The one that `network` is, which stands in the file `path`.
    pub(crate) fn read(network: &Network, path: &Path) -> Result<MetaPlugin, Failure> {
        let why = "its plugin is not weft, and neither is the first of its list";
        MetaPlugin::of(network, path)?.ok_or_else(|| Failure::new(format!("{}: {why}", path.display())))
    }

    /// The same with `key` set.
    pub(crate) fn with<T: Serialize + ?Sized>(mut self, key: &str, value: &T) -> Result<MetaPlugin, Failure> {
        self.object.banish(key);
        self.object.set(key, value)?;
        self.node = read(&self.object, self.flavour)?;
        Ok(self)
    }

    /// The same with one text in the place of another, wherever it stands.
    pub(crate) fn replaced(&self, old: &str, new: &str) -> Result<MetaPlugin, Failure> {
        let text = self.object.to_json().replace(old, new);
        let object = Object::parse(text.as_bytes(), &self.file)?;
        let node = read(&object, self.flavour)?;
        Ok(MetaPlugin { object, node, ..self.clone() })
    }

    /// The name it is called by.
    pub(crate) fn name(&self) -> &'static str {
        match self.flavour {
            Flavour::Weft => "weft",
            Flavour::Multus => "multus",
        }
    }

    /// Where its journal is.
    pub(crate) fn journal(&self) -> PathBuf {
        let directory = self.node.cni_dir.as_deref().unwrap_or(journal::DIRECTORY);
        Path::new(directory).join(journal::ENTRIES)
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
    fn a_list_whose_first_plugin_is_weft_is_one() {
        let other = file("a.conf", r#"{"cniVersion":"1.0.0","name":"a","type":"bridge"}"#);
        let files = [other, file("b.conflist", LIST)];
        let found = MetaPlugin::find(None, &files).unwrap();
        assert_eq!(
            (found.file.as_str(), found.name(), found.left_out.as_slice()),
            ("b.conflist", "weft", &["portmap".to_owned()][..])
        );
        assert_eq!(found.object.text("name").unwrap().as_deref(), Some("n"));
        assert_eq!(found.object.text("cniVersion").unwrap().as_deref(), Some("1.0.0"));
        assert_eq!(found.journal(), Path::new("/j/sandboxes"));
    }

    #[test]
    fn of_two_one_must_be_named() {
        let single = r#"{"cniVersion":"1.0.0","name":"m","type":"multus","clusterNetwork":"home"}"#;
        let files = [file("a.conf", single), file("b.conflist", LIST)];
        let failure = MetaPlugin::find(None, &files).unwrap_err().to_string();
        assert!(failure.starts_with("a.conf and b.conflist both"), "{failure}");
    }

    #[test]
    fn a_wrong_one_is_named() {
        let wrong = LIST.replace("clusterNetwork", "clusterNetwrok");
        let failure = MetaPlugin::find(None, &[file("b.conflist", &wrong)]).unwrap_err().to_string();
        assert!(
            failure.starts_with("b.conflist: ") && failure.contains("did you mean clusterNetwork?"),
            "{failure}"
        );
    }

    #[test]
    fn a_key_that_is_set_replaces_every_spelling_of_it() {
        let text = LIST.replace("cniDir", "CNIDIR");
        let found = MetaPlugin::find(None, &[file("b.conflist", &text)]).unwrap();
        let changed = found.with("cniDir", "/k").unwrap();
        assert_eq!(changed.journal(), Path::new("/k/sandboxes"));
        assert!(!changed.object.to_json().contains("CNIDIR"));
    }
}
