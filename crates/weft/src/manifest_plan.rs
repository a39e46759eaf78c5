//! The plan of a pod from files, as the meta-plugin would make it: nothing is changed.

use std::path::{Path, PathBuf};

use cni::Error;
use cni::name::IfName;
use cni::runtime::load::Directory;
use manifest::{Collection, Manifest};
use npwg::configuration::{NodeConfiguration, Place};
use npwg::definition::Disk;
use npwg::plan::{Plan, PodIdentity, Sandbox};

use crate::input_files;
use crate::input_files::{File, Kind};
use crate::meta_plugin_config::MetaPlugin;
use crate::pod_name::PodName;
use cli_support::failure::Failure;
use cli_support::output::{Format, Progress};
use cli_support::terminal::plain;

/// The interface of the default network.
pub(crate) const IFNAME: &str = "eth0";
/// Most pods, and most problems, named in messages.
const NAMED_MAX: usize = 8;

/// Where pods, definitions and the configuration come from.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Inputs {
    /// Files or directories with manifests of pods and definitions, and with CNI configurations
    #[arg(short = 'f', long = "file", value_name = "FILE|DIR", num_args = 1..)]
    pub(crate) files: Vec<PathBuf>,
    /// Path to the configuration of the meta-plugin (default: from the files of -f, then from /etc/cni/net.d)
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// What was read.
#[derive(Clone, Debug)]
pub(crate) struct Material {
    /// The files, by their order on the command line.
    pub(crate) files: Vec<File>,
    /// The meta-plugin's configuration.
    pub(crate) meta_plugin: MetaPlugin,
}

impl Inputs {
    /// Reads everything.
    pub(crate) fn read(&self) -> Result<Material, Failure> {
        let Inputs { files, config } = self;
        let files = input_files::read(files)?;
        let meta_plugin = MetaPlugin::find(config.as_deref(), &files)?;
        Material { files, meta_plugin }.with_manifest_directory()
    }
}

impl Material {
    /// Without files the configuration may name a directory.
    fn with_manifest_directory(mut self) -> Result<Material, Failure> {
        if self.manifests().next().is_none() {
            match &self.meta_plugin.node.manifest_dir {
                Some(directory) => self.files.extend(input_files::read(&[directory.into()])?),
                None => {
                    let why = "no manifests: neither -f nor manifestDir of the configuration names any";
                    return Err(
                        Failure::new(why).next("-f FILE|DIR names those of the pod and its definitions")
                    );
                }
            }
        }
        Ok(self)
    }

    /// The files that are manifests.
    pub(crate) fn manifests(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.kind == Kind::Manifest)
    }

    /// The plan for a pod; a pod that is in no manifest is answered with those that are.
    pub(crate) fn plan(&self, pod: &PodName) -> Result<Plan, Failure> {
        let sandbox = Sandbox { container: pod.container_id()?, ifname: IfName::new(IFNAME)? };
        let manifests = collect(self.manifests());
        for problem in manifests.problems.iter().take(NAMED_MAX) {
            Progress::beside(Format::Json).line(format!("weft: passed over: {}", plain(problem)));
        }
        let known = |known: &npwg::metadata::Pod| known.namespace == pod.namespace && known.name == pod.name;
        if !manifests.pods.iter().any(known) {
            let names: Vec<String> =
                manifests.pods.iter().map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect();
            let failure = Failure::new(format!("pod {pod} is in none of the manifests"));
            return Err(failure.next(pods_there(&names)));
        }
        Ok(plan(&manifests, &self.meta_plugin.node, &pod.identity(), &sandbox)?)
    }
}

fn pods_there(names: &[String]) -> String {
    let shown = names.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
    let more = if names.len() > NAMED_MAX { ", …" } else { "" };
    match names {
        [] => "they hold no pod".to_owned(),
        _ => format!("pods there: {shown}{more}"),
    }
}

/// What the manifests hold together.
pub(crate) fn collect<'a>(manifests: impl Iterator<Item = &'a File>) -> Collection {
    let mut collection = Collection::default();
    for File { path, text, kind: _ } in manifests {
        collection.add(&path.display().to_string(), Manifest::parse(text));
    }
    // As an agent does: Kuryr's need no configuration.
    kube_support::kuryr::definition::complete(&mut collection.definitions);
    collection
}

/// The plan for a pod, with the networks of this machine's disk.
pub(crate) fn plan(
    manifests: &Collection,
    node: &NodeConfiguration,
    pod: &PodIdentity,
    sandbox: &Sandbox,
) -> Result<Plan, Error> {
    let mut disk = Disk::default();
    for place in node.places() {
        if let Place::Path(path) = place {
            disk.add(Directory::at(Path::new(&path))?);
        }
    }
    manifests.plan(node, &disk, pod, sandbox)
}
