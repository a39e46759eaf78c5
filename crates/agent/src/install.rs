//! `weft install`: weft-cni put where the runtime finds it, and then, once the default network is ready, the
//! configuration that makes the runtime call it. `--remove` takes the configuration away again.
//!
//! Rules:
//! - the configuration comes last, and not before a pod could be attached: the default network is configured, and
//!   every plugin it needs is there, and says that it is ready, if it is asked;
//! - it is made for the default network of the runtime's own directory, which it names and does not copy, so a later
//!   change of it counts; it never takes a meta-plugin, ours or another, for the default network;
//! - it is read back as weft reads it before it is written, and written beside and renamed in the same directory:
//!   containerd does not notice a file that is renamed in from elsewhere;
//! - it stays when whoever wrote it ends, and is not taken away while sandboxes need weft's DEL.
//!
//! Source: the standard, 6.1 (NPWG1-6.1-1, 6.1-2, 6.1.2-1); containerd `pkg/cri/server/cni_conf_syncer.go`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use cni::Error;
use cni::network::{Network, plugin_type};
use cni::runtime::chain;
use cni::runtime::exec::Exec;
use cni::runtime::load::Directory;
use npwg::journal;
use serde_json::json;

use crate::configuration::MetaPlugin;
use crate::failure::{EXIT_CODES, Failure};
use crate::hands::{Foreign, Hands};
use crate::output::{Format, Progress};
use crate::privilege;

/// How often it is looked whether the default network is ready.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a plugin may think about how it is.
const STATUS_MAX: Duration = Duration::from_secs(30);
/// How often it is said what is waited for.
const REMINDER: Duration = Duration::from_secs(30);
/// What runtimes read.
const READ: [&str; 3] = ["conf", "conflist", "json"];
/// Under these names a plugin calls others: it is no default network.
const META_PLUGINS: [&str; 2] = ["weft", "multus"];
/// With it a runtime passes a pod's annotations: plans can be made while the API server is away.
const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

/// What `weft install` is told.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft install
  weft install --wait --ready-file /run/flannel/subnet.env
  weft install --remove

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    /// Wait until the default network is ready, however long that takes
    #[arg(long)]
    wait: bool,
    /// Where the runtime reads its networks
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    conf_dir: PathBuf,
    /// Where the runtime looks for plugins
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    bin_dir: PathBuf,
    /// Name of the file that is written; it has to be the first in its directory
    #[arg(long, value_name = "NAME", default_value = "00-weft.conflist")]
    file_name: String,
    /// Write this configuration instead of one made for the default network
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A file that says by its presence that the default network is ready
    #[arg(long, value_name = "PATH")]
    ready_file: Option<PathBuf>,
    /// Ask the default network's own plugins, too, whether it is ready (STATUS, from CNI 1.1.0 on); on the node itself,
    /// not in a container: they look at what is around them
    #[arg(long)]
    status: bool,
    /// Take the configuration away; weft-cni stays
    #[arg(long)]
    remove: bool,
}

/// What a look around came to.
enum Look {
    /// This can be written.
    Ready(String),
    /// This has to be waited for.
    NotYet(Failure),
}

/// Does it.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { conf_dir, file_name, .. } = arguments;
    if Path::new(file_name).components().count() != 1
        || file_name.starts_with('.')
        || !is_read(Path::new(file_name))
    {
        let why = format!("--file-name {file_name}: not a name that a runtime reads");
        return Err(Failure::new(why).next("one that ends with .conflist is"));
    }
    let place = conf_dir.join(file_name);
    match arguments.remove {
        true => remove(arguments, &place),
        false => install(arguments, &place),
    }
}

fn install(arguments: &Arguments, place: &Path) -> Result<(), Failure> {
    let Arguments { wait, conf_dir, bin_dir, .. } = arguments;
    let progress = Progress::beside(Format::Text);
    let hands = Hands::find()?;
    hands.install(bin_dir, "weft", Foreign::Refused)?.lines().for_each(|line| progress.line(line));
    let mut said: Option<Instant> = None;
    let text = loop {
        match look(arguments, &hands)? {
            Look::Ready(text) => break text,
            Look::NotYet(failure) if !wait => return Err(failure),
            Look::NotYet(failure) => {
                if said.is_none_or(|at| at.elapsed() >= REMINDER) {
                    progress.line(format!("waiting: {failure}"));
                    said = Some(Instant::now());
                }
                sleep(PAUSE);
            }
        }
    };
    // Runtimes call it themselves. Not sooner: an installer of the default network may bring its own.
    hands.install(bin_dir, "loopback", Foreign::Kept)?.lines().for_each(|line| progress.line(line));
    if let Some(earlier) = earlier(conf_dir, place)? {
        let why = format!(
            "{} comes before {}: the runtime would go on using it",
            earlier.display(),
            place.display()
        );
        return Err(Failure::new(why).next("remove it, or give --file-name a name that sorts before it"));
    }
    if fs::read_to_string(place).is_ok_and(|there| there == text) {
        progress.line(format!("{}: up to date", place.display()));
        return Ok(());
    }
    write(place, &text).map_err(|cause| privilege::refused(&format!("write {}", place.display()), &cause))?;
    progress.line(format!("{}: written", place.display()));
    Ok(())
}

/// The configuration, if a pod could be attached with it now.
fn look(arguments: &Arguments, hands: &Hands) -> Result<Look, Failure> {
    let Arguments { conf_dir, bin_dir, config, ready_file, status, .. } = arguments;
    if let Some(file) = ready_file.as_ref().filter(|file| !file.exists()) {
        let why = format!("the default network is not ready: {} is not there", file.display());
        return Ok(Look::NotYet(Failure::new(why)));
    }
    if let Some(file) = config {
        MetaPlugin::find_any(Some(file), &[])?;
        let text = fs::read_to_string(file);
        return text
            .map(Look::Ready)
            .map_err(|cause| privilege::refused(&format!("read {}", file.display()), &cause));
    }
    let directory = Directory::read(conf_dir)?;
    let mut networks: Vec<&(PathBuf, Network)> = directory.networks.iter().collect();
    networks.sort_by(|(a, _), (b, _)| a.cmp(b));
    let default = networks.into_iter().find(|(_, network)| !is_meta_plugin(network));
    let Some((path, network)) = default else {
        let faults: Vec<String> = directory.faults.iter().map(|(_, error)| error.to_string()).collect();
        let why = format!("no default network is configured in {}", conf_dir.display());
        return Ok(Look::NotYet(Failure::new(why).next(faults.join("; "))));
    };
    for plugin in network.needs()? {
        if !bin_dir.join(plugin.as_str()).exists() && !hands.answers_to(plugin.as_str())? {
            let why = format!("network {}: plugin {plugin} is not in {}", network.name, bin_dir.display());
            return Ok(Look::NotYet(Failure::new(why)));
        }
    }
    if let Err(error) = if *status { asked(network, bin_dir) } else { Ok(()) } {
        let why = format!("the default network {} is not ready: {error}", network.name);
        return Ok(Look::NotYet(Failure::new(why)));
    }
    made_for(path, network, arguments).map(Look::Ready)
}

/// What the plugins say themselves. Those that weft-cni is, in place of a file, need nothing but the kernel.
fn asked(network: &Network, bin_dir: &Path) -> Result<(), Error> {
    let types = network.plugins.iter().map(plugin_type).collect::<Result<Vec<_>, _>>()?;
    if !types.iter().all(|name| bin_dir.join(name.as_str()).exists()) {
        return Ok(());
    }
    chain::status(&Exec::new(STATUS_MAX), network, &bin_dir.display().to_string())
}

/// The configuration with `network`, which stands in the file `path`, as the default one.
fn made_for(path: &Path, network: &Network, arguments: &Arguments) -> Result<String, Failure> {
    let Arguments { bin_dir, ready_file, .. } = arguments;
    // Newer than the default network's is more than the runtime is known to take.
    let version = network.version.as_str();
    let wanted: BTreeSet<String> =
        network.capabilities()?.into_iter().chain([ANNOTATIONS.to_owned()]).collect();
    let capabilities: BTreeMap<String, bool> = wanted.into_iter().map(|name| (name, true)).collect();
    let mut plugin = json!({
        "type": "weft",
        "capabilities": capabilities,
        "clusterNetwork": path,
        "binDir": bin_dir,
    });
    if let Some(file) = ready_file {
        plugin["readinessindicatorfile"] = json!(file);
    }
    let list = json!({ "cniVersion": version, "name": "weft", "plugins": [plugin] });
    let text = serde_json::to_string_pretty(&list)
        .map_err(|cause| Failure::new(format!("encode the configuration: {cause}")))?;
    let read_back = Network::parse(text.as_bytes(), "the configuration made")?;
    MetaPlugin::read(&read_back, path)?;
    Ok(text + "\n")
}

fn is_meta_plugin(network: &Network) -> bool {
    let first = network.plugins.first().and_then(|plugin| plugin_type(plugin).ok());
    first.is_some_and(|name| META_PLUGINS.contains(&name.as_str()))
}

/// A file that the runtime would take in the place of ours.
fn earlier(conf_dir: &Path, place: &Path) -> Result<Option<PathBuf>, Failure> {
    let failed = |cause: io::Error| privilege::refused(&format!("read {}", conf_dir.display()), &cause);
    let mut found = Vec::new();
    let entries = match fs::read_dir(conf_dir) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(None),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        if is_read(&path) && path.as_path() < place {
            found.push(path);
        }
    }
    Ok(found.into_iter().min())
}

fn is_read(path: &Path) -> bool {
    path.extension()
        .and_then(|extension| extension.to_str())
        .is_some_and(|extension| READ.contains(&extension))
}

/// Writes beside, onto the disk, and renames.
fn write(place: &Path, text: &str) -> io::Result<()> {
    let name = place.file_name().and_then(|name| name.to_str()).ok_or(ErrorKind::InvalidInput)?;
    let temporary = place.with_file_name(format!(".{name}.new"));
    fs::create_dir_all(place.parent().unwrap_or(place))?;
    let mut options = OpenOptions::new();
    let written = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&temporary)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, place));
    if written.is_err() {
        // Half a file helps nobody.
        let _ = fs::remove_file(&temporary);
        return written;
    }
    sync_directory(place)
}

fn sync_directory(place: &Path) -> io::Result<()> {
    place.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

fn remove(arguments: &Arguments, place: &Path) -> Result<(), Failure> {
    let Arguments { conf_dir, .. } = arguments;
    let progress = Progress::beside(Format::Text);
    if !place.exists() {
        progress.line(format!("{}: not there", place.display()));
        return Ok(());
    }
    let directory = Directory::read(conf_dir)?;
    let other = directory.networks.iter().find(|(path, network)| path != place && !is_meta_plugin(network));
    if other.is_none() {
        let why = format!(
            "{}: no other network is in {}: no pod could be made, or removed",
            place.display(),
            conf_dir.display()
        );
        return Err(Failure::new(why).next("put the configuration of the default network there first"));
    }
    let meta_plugin = MetaPlugin::find_any(Some(place), &[])?;
    let journal = meta_plugin
        .map_or_else(|| Path::new(journal::DIRECTORY).join(journal::ENTRIES), |found| found.journal());
    let held = entries(&journal)
        .map_err(|cause| privilege::refused(&format!("read {}", journal.display()), &cause))?;
    if held > 0 {
        let why = format!("{}: {held} sandboxes in {} need weft's DEL", place.display(), journal.display());
        return Err(Failure::new(why).next("drain the node first; `weft list` shows them"));
    }
    let removed = fs::remove_file(place).and_then(|()| sync_directory(place));
    removed.map_err(|cause| privilege::refused(&format!("remove {}", place.display()), &cause))?;
    progress.line(format!("{}: removed", place.display()));
    Ok(())
}

/// How many sandboxes a journal knows, whether or not they can be read.
fn entries(journal: &Path) -> io::Result<usize> {
    match fs::read_dir(journal) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => Ok(0),
        Err(cause) => Err(cause),
        Ok(found) => {
            let names = found.collect::<io::Result<Vec<_>>>()?;
            let is_entry = |path: &Path| path.extension().is_some_and(|extension| extension == "json");
            Ok(names.iter().filter(|entry| is_entry(&entry.path())).count())
        }
    }
}
