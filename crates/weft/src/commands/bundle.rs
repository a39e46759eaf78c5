//! `weft bundle`: writes a support archive about this node, and about the cluster if it can be reached.
//!
//! ```text
//!   versions, doctor, journal, history, configurations, logs of the node ──┐
//!   WeftNodes, definitions, pools of the cluster ──────────────────────────┴─ redaction ─► tar
//! ```
//!
//! - Secrets are removed by [`redaction`]. The environment, Secrets, pods and kubeconfigs are never read.
//! - A part that cannot be read does not stop the others: `errors.txt` names it.
//! - The archive has mode 0600 and replaces no file.

mod archive;
mod redaction;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use clap::Args;
use kube::api::{DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Api, Client};
use serde::Serialize;
use serde_json::{Value, json};

use crate::cluster_access::ClusterAccess;
use crate::commands::doctor;
use crate::known_journals::{JournalHandle, KnownJournals};
use crate::kubectl::{self, Kubectl};
use crate::manifest_plan::Inputs;
use crate::place::Place;
use crate::remote_node;
use archive::Archive;
use build_info::BuildInfo;
use cli_support::async_runtime::runtime;
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output;
use cli_support::privilege;
use cli_support::timestamp::{now, utc};
use kube_support::api_error;
use node_support::history::History;
use node_support::weft_cni::WeftCni;

/// Directory with the runtime's configurations.
const CONFIGURATIONS: &str = "/etc/cni/net.d";
/// Extensions that configurations have. Kubeconfigs in the directory have others.
const EXTENSIONS: [&str; 4] = ["conf", "conflist", "json", "cilium_bak"];
/// Maximum size for a file that is read, and for the tail of a log, in bytes.
const FILE_MAX: u64 = 16 << 20;
const TAIL_MAX: u64 = 256 << 10;
/// Kinds to read from the cluster: group, version, kind, plural.
const KINDS: [(&str, &str, &str, &str); 4] = [
    ("weft.dev", "v1alpha1", "WeftNode", "weftnodes"),
    ("weft.dev", "v1alpha1", "IPPool", "ippools"),
    ("weft.dev", "v1alpha1", "IPBlock", "ipblocks"),
    ("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition", "network-attachment-definitions"),
];

/// Arguments of `weft bundle`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft bundle
  weft bundle --file /tmp/weft.tar --no-cluster
  weft bundle --file - >weft.tar
  weft bundle --nodes

Secrets are removed: values whose name says so, tokens, private keys, and passwords in URLs. The environment, Secrets,
pods and kubeconfigs are never read. Look at the archive before you pass it on.

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    /// Path to the archive, or - for standard output (default: weft-bundle-TIME.tar in the working directory)
    #[arg(long = "file", value_name = "FILE")]
    file: Option<PathBuf>,
    /// Write an archive of each node of the cluster, made by weft's pod there: weft-bundle-TIME-NODE.tar
    #[arg(long, conflicts_with_all = ["file", "no_cluster"])]
    nodes: bool,
    /// Leave out the objects of the cluster
    #[arg(long)]
    no_cluster: bool,
    #[command(flatten)]
    cluster: ClusterAccess,
}

/// Archive with an error for each part that could not be read.
struct Bundle {
    archive: Archive,
    errors: String,
    /// File names in the archive.
    names: BTreeSet<String>,
}

/// Runs `weft bundle`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { file, nodes, no_cluster, cluster } = arguments;
    let time = now();
    let name = |end: &str| format!("weft-bundle-{}{end}.tar", utc(time).replace([':', '-'], ""));
    if *nodes {
        return of_nodes(cluster, name);
    }
    privilege::require("weft bundle", "the journal and its history belong to root")?;
    let path = file.clone().unwrap_or_else(|| name("").into());
    let is_stdout = path == Path::new("-");
    let failed = |cause: std::io::Error| {
        let failure = privilege::refused(&format!("write {}", path.display()), &cause);
        match (Place::of_process(), cause.kind()) {
            (Place::Pod { namespace, .. }, ErrorKind::ReadOnlyFilesystem) => failure.next(format!(
                "this container has no writable directory: kubectl exec -n {namespace} POD -- weft bundle --file - >weft.tar"
            )),
            _ => failure,
        }
    };
    let created = match is_stdout {
        true => std::io::stdout().as_fd().try_clone_to_owned().map(File::from),
        false => File::options().write(true).create_new(true).mode(0o600).open(&path),
    };
    let created = created.map_err(|cause| match cause.kind() {
        ErrorKind::AlreadyExists => Failure::new(format!("write {}: the file exists", path.display()))
            .next("name another file with --file; weft bundle replaces no file"),
        _ => failed(cause),
    })?;
    let mut bundle =
        Bundle { archive: Archive::new(created, time), errors: String::new(), names: BTreeSet::new() };
    bundle.node().map_err(failed)?;
    if !*no_cluster {
        bundle.cluster(cluster).map_err(failed)?;
    }
    let Bundle { mut archive, errors, names } = bundle;
    archive.add("errors.txt", redaction::text(&errors).as_bytes()).map_err(failed)?;
    archive.end().map_err(failed)?;
    match is_stdout {
        true => Ok(()),
        false => {
            let files = output::counted(names.len() + 1, "file", "files");
            output::print(&format!("wrote {} with {files}\n", path.display()))
        }
    }
}

/// Writes an archive of each node, made in weft's pod there with the rights of the caller. An archive that fails is removed,
/// and does not stop the others.
fn of_nodes(cluster: &ClusterAccess, name: impl Fn(&str) -> String) -> Result<(), Failure> {
    let kubectl = Kubectl::new(cluster);
    let words = ["bundle", "--file", "-", "--no-cluster"].map(str::to_owned);
    let nodes = remote_node::all_nodes(&kubectl, &words)?;
    if nodes.is_empty() {
        let why = "no pod of weft with a container agent or executor runs in the cluster";
        return Err(Failure::new(why).next("kubectl get pods -A -l app.kubernetes.io/name=weft shows them"));
    }
    let mut failed = Vec::new();
    for (node, line) in nodes {
        let path = name(&format!("-{node}"));
        let created = File::options().write(true).create_new(true).mode(0o600).open(&path);
        let file = created.map_err(|cause| privilege::refused(&format!("write {path}"), &cause))?;
        let status = kubectl.command(line).stdin(Stdio::null()).stdout(file).status();
        if status.map_err(|cause| kubectl::absent(&cause))?.success() {
            output::print(&format!("wrote {path}\n"))?;
        } else {
            // It is incomplete.
            let _ = fs::remove_file(&path);
            failed.push(node);
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Failure::new(format!("no archive of node {}", failed.join(", ")))),
    }
}

impl Bundle {
    /// Adds everything about this node.
    fn node(&mut self) -> std::io::Result<()> {
        self.document("version.json", &BuildInfo::of("weft", Vec::new()))?;
        let plugin = WeftCni::find().and_then(|weft_cni| weft_cni.version());
        self.part("weft-cni.txt", plugin.map(String::into_bytes))?;
        let findings = doctor::document().map(|document| pretty(&document));
        self.part("doctor.json", findings)?;
        let inputs = Inputs { files: Vec::new(), config: None };
        let known = match JournalHandle::all(&inputs) {
            Ok(KnownJournals { known, unknown }) => {
                self.errors.extend(unknown.map(|why| format!("journal: {why}\n")));
                known
            }
            Err(failure) => {
                self.errors.push_str(&format!("journal: {failure}\n"));
                Vec::new()
            }
        };
        for (index, handle) in known.into_iter().enumerate() {
            // The configuration and the default directory may name two journals.
            let number = if index == 0 { String::new() } else { format!("-{}", index + 1) };
            let directory = handle.journal().directory();
            for path in files(directory, &["json"]) {
                self.json_file(&format!("journal{number}"), &path)?;
            }
            if let Some(above) = directory.parent() {
                let records = History::below(above).records().map(|records| pretty(&json!(records)));
                self.part(&format!("history{number}.json"), records)?;
            }
            if let Some(log) = handle.log_file() {
                self.part(&format!("log{number}.txt"), tail(Path::new(&log)))?;
            }
        }
        for path in files(Path::new(CONFIGURATIONS), &EXTENSIONS) {
            self.json_file("configurations", &path)?;
        }
        Ok(())
    }

    /// Adds the cluster's objects.
    fn cluster(&mut self, access: &ClusterAccess) -> std::io::Result<()> {
        let lists = runtime().and_then(|runtime| {
            runtime.block_on(async {
                let client = access.client().await?;
                let mut lists = Vec::new();
                for (group, version, kind, plural) in KINDS {
                    let kind = GroupVersionKind::gvk(group, version, kind);
                    let resource = ApiResource::from_gvk_with_plural(&kind, plural);
                    lists.push((plural, list(&client, &resource).await));
                }
                Ok(lists)
            })
        });
        match lists {
            Err(failure) => self.errors.push_str(&format!("cluster: {failure}\n")),
            Ok(lists) => {
                for (plural, list) in lists {
                    self.part(&format!("cluster/{plural}.json"), list.map(|value| pretty(&value)))?;
                }
            }
        }
        Ok(())
    }

    fn document<T: Serialize>(&mut self, name: &str, value: &T) -> std::io::Result<()> {
        self.part(name, Ok(pretty(&json!(value))))
    }

    /// Adds a file with JSON values, one after the other. A file that is no JSON is added as text.
    fn json_file(&mut self, directory: &str, path: &Path) -> std::io::Result<()> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let read = File::open(path).and_then(|file| {
            let mut text = String::new();
            file.take(FILE_MAX).read_to_string(&mut text).map(|_| text)
        });
        let content =
            read.map_err(|cause| Failure::new(format!("read {}: {cause}", path.display()))).map(|text| {
                let values: Result<Vec<Value>, _> =
                    serde_json::Deserializer::from_str(&text).into_iter().collect();
                match values {
                    Ok(values) => values.iter().flat_map(pretty).collect(),
                    Err(_) => redaction::text(&text).into_bytes(),
                }
            });
        // The name of an archive's file is short.
        let short: String = name.chars().rev().take(70).collect::<Vec<_>>().into_iter().rev().collect();
        self.part(&format!("{directory}/{short}"), content)
    }

    /// Adds a part, or the error.
    fn part(&mut self, name: &str, content: Result<Vec<u8>, Failure>) -> std::io::Result<()> {
        match content {
            Ok(content) => {
                let name = unique(name, &self.names);
                self.archive.add(&name, &content)?;
                self.names.insert(name);
                Ok(())
            }
            Err(failure) => {
                self.errors.push_str(&format!("{name}: {failure}\n"));
                Ok(())
            }
        }
    }
}

/// Returns a file name, with a number if the archive already has the name.
fn unique(name: &str, names: &BTreeSet<String>) -> String {
    let (stem, extension) = name.rsplit_once('.').unwrap_or((name, ""));
    let numbered = (2..).map(|number| format!("{stem}-{number}.{extension}"));
    let mut possible = std::iter::once(name.to_owned()).chain(numbered);
    possible.find(|name| !names.contains(name)).unwrap_or_default()
}

/// Returns a document without secrets, indented.
fn pretty(value: &Value) -> Vec<u8> {
    let mut value = value.clone();
    redaction::document(&mut value);
    let mut text = serde_json::to_vec_pretty(&value).unwrap_or_default();
    text.push(b'\n');
    text
}

async fn list(client: &Client, resource: &ApiResource) -> Result<Value, Failure> {
    let api: Api<DynamicObject> = Api::all_with(client.clone(), resource);
    let listed = api.list(&ListParams::default()).await;
    let listed = listed.map_err(|error| Failure::new(api_error::describe(&error)))?;
    let mut items = json!(listed.items);
    for item in items.as_array_mut().into_iter().flatten() {
        // They repeat the object, in the words of its last writer.
        let annotations = item.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
        annotations.map(|all| all.remove("kubectl.kubernetes.io/last-applied-configuration"));
        item.pointer_mut("/metadata").and_then(Value::as_object_mut).map(|all| all.remove("managedFields"));
    }
    Ok(items)
}

/// Returns a directory's regular files with these extensions, sorted by name.
fn files(directory: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_wanted = |path: &PathBuf| {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        extensions.contains(&extension) && fs::symlink_metadata(path).is_ok_and(|found| found.is_file())
    };
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_wanted).collect();
    files.sort();
    files
}

/// Returns the end of a log, without secrets.
fn tail(path: &Path) -> Result<Vec<u8>, Failure> {
    let read = || {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_MAX)))?;
        let mut bytes = Vec::new();
        file.take(TAIL_MAX).read_to_end(&mut bytes).map(|_| bytes)
    };
    let bytes =
        read().map_err(|cause: std::io::Error| Failure::new(format!("read {}: {cause}", path.display())))?;
    Ok(redaction::text(&String::from_utf8_lossy(&bytes)).into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bundle_file_names_are_unique() {
        let names = BTreeSet::from(["journal/a.json".to_owned(), "journal/a-2.json".to_owned()]);
        assert_eq!(unique("journal/a.json", &names), "journal/a-3.json");
        assert_eq!(unique("journal/b.json", &names), "journal/b.json");
    }
}
