//! Plan of a pod from manifest files, the same that the meta-plugin makes. Nothing is changed.

use std::path::{Path, PathBuf};

use cni::Error;
use cni::name::IfName;
use cni::runtime::load::Directory;
use manifest::{Collection, Manifest};
use npwg::configuration::{NodeConfiguration, Place};
use npwg::definition::Disk;
use npwg::plan::{Plan, PodIdentity, Sandbox};

use crate::expected_devices;
use crate::input_files;
use crate::input_files::{File, Kind};
use crate::meta_plugin_config::MetaPlugin;
use crate::pod_name::PodName;
use cli_support::failure::{Exit, Failure};
use cli_support::output::{Format, Progress};
use cli_support::terminal::plain;

/// Interface name of the default network.
pub(crate) const IFNAME: &str = "eth0";
/// Maximum number of pods, and of problems, named in a message.
const NAMED_MAX: usize = 8;

/// Options for the sources of pods, definitions and the configuration.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Inputs {
    /// File or directory with manifests of pods and definitions, or with CNI configurations; may be repeated
    #[arg(short = 'f', long = "file", value_name = "FILE|DIR")]
    pub(crate) files: Vec<PathBuf>,
    /// Path to the configuration of the meta-plugin (default: from the files of -f, then from /etc/cni/net.d)
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

/// Files and configuration that the options name.
#[derive(Clone, Debug)]
pub(crate) struct LoadedInputs {
    /// Files in the order of the command line.
    pub(crate) files: Vec<File>,
    /// Configuration of the meta-plugin.
    pub(crate) meta_plugin: MetaPlugin,
}

impl Inputs {
    /// Reads the files and the configuration. Without any configuration, the default network is the built-in one.
    pub(crate) fn read(&self) -> Result<LoadedInputs, Failure> {
        let Inputs { files, config } = self;
        let files = input_files::read(files)?;
        let meta_plugin = match MetaPlugin::find_any(config.as_deref(), &files)? {
            Some(meta_plugin) => meta_plugin,
            None if files.iter().all(|file| file.kind == Kind::Manifest) => MetaPlugin::built_in()?,
            // Another network among the files may be meant as the default one.
            None => return Err(MetaPlugin::missing()),
        };
        LoadedInputs { files, meta_plugin }.with_manifest_directory()
    }
}

impl LoadedInputs {
    /// Adds the files of `manifestDir` if no manifest was given.
    fn with_manifest_directory(mut self) -> Result<LoadedInputs, Failure> {
        if self.manifests().next().is_none() {
            match &self.meta_plugin.node.manifest_dir {
                Some(directory) => {
                    for path in input_files::expand(&[directory.into()])? {
                        match input_files::read(&[path]) {
                            Ok(files) => self.files.extend(files),
                            // As in an ADD.
                            Err(failure) => Progress::beside(Format::Json)
                                .line(format!("weft: skipped: {}", plain(&failure.to_string()))),
                        }
                    }
                }
                None => {
                    let why = "no manifests: -f is not given and the configuration has no manifestDir";
                    return Err(Failure::new(why).next(
                        "add -f FILE|DIR with the manifests of the pod and of its network definitions",
                    ));
                }
            }
        }
        Ok(self)
    }

    /// Returns the files that are manifests.
    pub(crate) fn manifests(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.kind == Kind::Manifest)
    }

    /// Returns the pod of the manifests, if there is exactly one.
    pub(crate) fn only_pod(&self) -> Result<PodName, Failure> {
        let Collection { pods, problems, .. } = collect(self.manifests());
        match pods.as_slice() {
            [] => {
                for problem in problems.iter().take(NAMED_MAX) {
                    Progress::beside(Format::Json).line(format!("weft: skipped: {}", plain(problem)));
                }
                let next = "add -f FILE|DIR with the manifest of the pod; weft init writes an example";
                Err(Failure::new("the manifests contain no pod").next(next).exit(Exit::Usage))
            }
            [pod] => PodName::new(&pod.namespace, &pod.name).map_err(|error| Failure::new(error.to_string())),
            several => {
                let names: Vec<String> =
                    several.iter().map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect();
                let why = format!("the manifests contain {} pods; name one", names.len());
                Err(Failure::new(why).next(available_pods(&names)).exit(Exit::Usage))
            }
        }
    }

    /// Returns the plan for a pod. If no manifest has the pod, the error names the pods of the manifests.
    pub(crate) fn plan(&self, pod: &PodName) -> Result<Plan, Failure> {
        let (manifests, sandbox) = self.manifests_with(pod)?;
        Ok(plan(&manifests, &self.meta_plugin.node, &pod.identity(), &sandbox)?)
    }

    /// Returns the plan for a pod, to be shown: with placeholders for the devices that the pod requests.
    pub(crate) fn expected_plan(&self, pod: &PodName) -> Result<Plan, Failure> {
        let (manifests, sandbox) = self.manifests_with(pod)?;
        let (node, identity) = (&self.meta_plugin.node, pod.identity());
        let texts = self.manifests().map(|file| file.text.as_str());
        let devices = expected_devices::expected_devices(texts, &identity);
        Ok(expected_devices::plan(&manifests, node, (&identity, &sandbox), &disk(node)?, &devices)?)
    }

    /// Returns the objects of the manifests and the sandbox of the pod. If no manifest has the pod, the error names the pods.
    fn manifests_with(&self, pod: &PodName) -> Result<(Collection, Sandbox), Failure> {
        let sandbox = Sandbox { container: pod.container_id()?, ifname: IfName::new(IFNAME)? };
        let manifests = collect(self.manifests());
        for problem in manifests.problems.iter().take(NAMED_MAX) {
            Progress::beside(Format::Json).line(format!("weft: skipped: {}", plain(problem)));
        }
        let is_requested =
            |other: &npwg::metadata::Pod| other.namespace == pod.namespace && other.name == pod.name;
        if !manifests.pods.iter().any(is_requested) {
            let names: Vec<String> =
                manifests.pods.iter().map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect();
            let failure = Failure::new(format!("pod {pod} is not in the manifests"));
            return Err(failure.next(available_pods(&names)));
        }
        Ok((manifests, sandbox))
    }
}

fn available_pods(names: &[String]) -> String {
    let shown = names.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
    let more = if names.len() > NAMED_MAX { ", …" } else { "" };
    match names {
        [] => "the manifests contain no pod".to_owned(),
        _ => format!("available pods: {shown}{more}"),
    }
}

/// Returns the objects of all manifests.
pub(crate) fn collect<'a>(manifests: impl Iterator<Item = &'a File>) -> Collection {
    let mut collection = Collection::default();
    for File { path, text, kind: _ } in manifests {
        collection.add(&path.display().to_string(), Manifest::parse(text));
    }
    // A Kuryr definition needs no configuration; the node agent completes it in the same way.
    kube_support::kuryr::definition::complete(&mut collection.definitions);
    collection
}

/// Returns the plan for a pod, with the CNI configurations on the disk of this machine.
pub(crate) fn plan(
    manifests: &Collection,
    node: &NodeConfiguration,
    pod: &PodIdentity,
    sandbox: &Sandbox,
) -> Result<Plan, Error> {
    manifests.plan(node, &disk(node)?, pod, sandbox)
}

fn disk(node: &NodeConfiguration) -> Result<Disk, Error> {
    let mut disk = Disk::default();
    for location in node.places() {
        if let Place::Path(path) = location {
            disk.add(Directory::at(Path::new(&path))?);
        }
    }
    Ok(disk)
}
