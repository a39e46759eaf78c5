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
//! - it stays when whoever wrote it ends;
//! - who follows writes it anew when the default network's file has another name or says something else, and leaves it
//!   as it is while there is none.
//!
//! Source: the standard, 6.1 (NPWG1-6.1-1, 6.1-2, 6.1.2-1); containerd `pkg/cri/server/cni_conf_syncer.go`.

mod follow;
mod removal;
mod root;
pub(crate) mod thin;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use cni::Error;
use cni::network::{Network, plugin_type};
use cni::runtime::chain;
use cni::runtime::exec::Exec;
use cni::runtime::load::Directory;
use npwg::configuration::{Flavour, NodeConfiguration};
use root::Place;
use serde_json::{Value, json};
use thin::Thin;

use crate::meta_plugin_config::MetaPlugin;
use cli_support::atomic_file;
use cli_support::failure::{EXIT_CODES, Exit, Failure};
use cli_support::output::{Format, Progress};
use cli_support::privilege;
use node_support::weft_cni::{Foreign, OnHost, WeftCni};

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
/// Where a pod finds its token and the API server's authority.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// With it a runtime passes a pod's annotations: plans can be made while the API server is away.
const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

/// What `weft install` is told.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft install
  weft install --wait --ready-file /run/flannel/subnet.env
  weft install --wait --follow --root /host
  weft install --set namespaceIsolation=true --set globalNamespaces=shared
  weft install --remove
  weft install --remove --wait

{EXIT_CODES}"))]
pub(crate) struct Arguments {
    /// Wait until the default network is ready (default: fail if it is not); with --remove, until the last sandbox is removed
    #[arg(long)]
    wait: bool,
    /// Keep running and reinstall files that are changed or removed; with --remove, keep running and exit with an error if
    /// the configuration is written again
    #[arg(long)]
    follow: bool,
    /// Root of the node's file system, for example a mount in a container; the other paths are relative to it
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
    /// CNI configuration directory of the container runtime
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    conf_dir: PathBuf,
    /// CNI plugin directory of the container runtime
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    bin_dir: PathBuf,
    /// Name of the configuration file, which must sort first in its directory
    #[arg(long, value_name = "NAME", default_value = "00-weft.conflist")]
    file_name: String,
    /// Name of the default network or of its file (default: the first network in --conf-dir)
    #[arg(long, value_name = "NAME", conflicts_with = "config")]
    default_network: Option<String>,
    /// Set KEY=VALUE in the generated configuration; VALUE is JSON or a plain string. May be repeated
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "config")]
    set: Vec<String>,
    /// Path to a configuration to install (default: one generated for the default network)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Path to a file whose existence means that the default network is ready
    #[arg(long, value_name = "PATH")]
    ready_file: Option<PathBuf>,
    /// Run STATUS of the default network's plugins (CNI 1.1.0) to find out whether it is ready; only on the node itself, not
    /// in a container
    #[arg(long, conflicts_with = "root")]
    status: bool,
    /// Install for a node without an agent: also install weft and the credentials of this pod's ServiceAccount, and refer to
    /// them in the generated configuration
    #[arg(long, conflicts_with = "remove")]
    thin: bool,
    /// Directory in which the ServiceAccount of this pod is mounted
    #[arg(long, value_name = "DIR", default_value = SERVICE_ACCOUNT, hide = true)]
    service_account: PathBuf,
    /// Remove the configuration but keep weft-cni; with --wait, remove it at once and wait for the existing sandboxes
    #[arg(long)]
    remove: bool,
    #[command(flatten)]
    on_host: OnHost,
}

/// What a look around came to.
enum Look {
    /// This can be written.
    Ready(String),
    /// This has to be waited for.
    NotYet(Failure),
}

/// Where everything is.
struct Places {
    networks: Place,
    plugins: Place,
    written: Place,
    sign: Option<Place>,
}

/// Does it.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { file_name, .. } = arguments;
    if Path::new(file_name).components().count() != 1
        || file_name.starts_with('.')
        || !is_read(Path::new(file_name))
    {
        let why = format!("--file-name {file_name}: not a name that a runtime reads");
        return Err(Failure::new(why).next("one that ends with .conflist is"));
    }
    if arguments.on_host.is_wanted() && !arguments.remove {
        let why = "--on-host: it is for plugins that --remove runs";
        return Err(Failure::new(why).next("leave it out, or add --remove --wait").exit(Exit::Usage));
    }
    match arguments {
        Arguments { remove: true, .. } => removal::remove(arguments),
        Arguments { follow: true, .. } => follow::follow(arguments),
        _ => install(arguments),
    }
}

impl Places {
    fn of(arguments: &Arguments) -> Result<Places, Failure> {
        let Arguments { root, conf_dir, bin_dir, file_name, ready_file, .. } = arguments;
        let networks = Place::below(root, conf_dir)?;
        Ok(Places {
            written: networks.join(file_name),
            networks,
            plugins: Place::below(root, bin_dir)?,
            sign: ready_file.as_ref().map(|file| Place::below(root, file)).transpose()?,
        })
    }
}

fn install(arguments: &Arguments) -> Result<(), Failure> {
    let progress = Progress::beside(Format::Text);
    let weft_cni = WeftCni::find()?;
    let mut said: Option<Instant> = None;
    loop {
        // Directories may come, and lead elsewhere, while it waits.
        let places = Places::of(arguments)?;
        let (failure, done) = match attempt(arguments, &places, &weft_cni)? {
            (Look::Ready(text), done) => {
                done.iter().for_each(|line| progress.line(line));
                return finish(&places, &weft_cni, &text)
                    .map(|lines| lines.iter().for_each(|line| progress.line(line)));
            }
            (Look::NotYet(failure), _) if !arguments.wait => return Err(failure),
            (Look::NotYet(failure), done) => (failure, done),
        };
        if said.is_none_or(|at| at.elapsed() >= REMINDER) {
            done.iter().for_each(|line| progress.line(line));
            progress.line(format!("waiting: {failure}"));
            said = Some(Instant::now());
        }
        sleep(PAUSE);
    }
}

/// The program, and a look around; with what was done, a line each.
fn attempt(
    arguments: &Arguments,
    places: &Places,
    weft_cni: &WeftCni,
) -> Result<(Look, Vec<String>), Failure> {
    let done = weft_cni.install(&places.plugins.here, "weft", Foreign::Refused)?;
    let mut done: Vec<String> = done.lines().map(str::to_owned).collect();
    if let Some(thin) = Thin::of(arguments, places) {
        done.extend(thin.install()?);
    }
    let look = look(arguments, places, weft_cni)?;
    Ok((look, done))
}

/// What comes last.
fn finish(places: &Places, weft_cni: &WeftCni, text: &str) -> Result<Vec<String>, Failure> {
    // Runtimes call it themselves. Not sooner: an installer of the default network may bring its own.
    let done = weft_cni.install(&places.plugins.here, "loopback", Foreign::Kept)?;
    let mut done: Vec<String> = done.lines().map(str::to_owned).collect();
    let Place { named, here } = &places.written;
    if let Some(earlier) = earlier(&places.networks, here)? {
        let why = format!(
            "{} comes before {}: the runtime would go on using it",
            earlier.display(),
            named.display()
        );
        return Err(Failure::new(why).next("remove it, or give --file-name a name that sorts before it"));
    }
    if fs::read_to_string(here).is_ok_and(|there| there == text) {
        done.push(format!("{}: up to date", named.display()));
        return Ok(done);
    }
    atomic_file::write(here, text)
        .map_err(|cause| privilege::refused(&format!("write {}", here.display()), &cause))?;
    done.push(format!("{}: written", named.display()));
    Ok(done)
}

/// The configuration, if a pod could be attached with it now.
fn look(arguments: &Arguments, places: &Places, weft_cni: &WeftCni) -> Result<Look, Failure> {
    let Arguments { config, status, .. } = arguments;
    let Places { networks, plugins, written: _, sign } = places;
    if let Some(sign) = sign.as_ref().filter(|sign| !sign.here.exists()) {
        let why = format!("the default network is not ready: {} is not there", sign.named.display());
        return Ok(Look::NotYet(Failure::new(why)));
    }
    if let Some(file) = config {
        MetaPlugin::find_any(Some(file), &[])?;
        let text = fs::read_to_string(file);
        return text
            .map(Look::Ready)
            .map_err(|cause| privilege::refused(&format!("read {}", file.display()), &cause));
    }
    let directory = Directory::read(&networks.here)?;
    let found = default_network(arguments, &directory);
    if let Err(error) = is_certain(arguments, &directory, found, places) {
        let why = format!("which network is the default one is not known: {error}");
        return Ok(Look::NotYet(Failure::new(why)));
    }
    let Some((path, network)) = found else {
        let faults: Vec<String> = directory.faults.iter().map(|(_, error)| error.to_string()).collect();
        let which = arguments.default_network.as_ref().map(|name| format!(" by the name {name}"));
        let why = format!(
            "no default network is configured in {}{}",
            networks.named.display(),
            which.unwrap_or_default()
        );
        return Ok(Look::NotYet(Failure::new(why).next(faults.join("; "))));
    };
    for plugin in network.needs()? {
        if !plugins.here.join(plugin.as_str()).exists() && !weft_cni.answers_to(plugin.as_str())? {
            let why =
                format!("network {}: plugin {plugin} is not in {}", network.name, plugins.named.display());
            return Ok(Look::NotYet(Failure::new(why)));
        }
    }
    if let Err(error) = if *status { asked(network, &plugins.here) } else { Ok(()) } {
        let why = format!("the default network {} is not ready: {error}", network.name);
        return Ok(Look::NotYet(Failure::new(why)));
    }
    let file = path.file_name().map(|name| networks.named.join(name));
    made_for(&file.unwrap_or_default(), network, arguments, places).map(Look::Ready)
}

/// The first by name that is no meta-plugin, or the one that is asked for.
fn default_network<'a>(arguments: &Arguments, directory: &'a Directory) -> Option<&'a (PathBuf, Network)> {
    let is_called = |name: &str, (path, network): &(PathBuf, Network)| {
        path.file_name().is_some_and(|file| file == name) || network.name.as_str() == name
    };
    let possible = directory.networks.iter().filter(|(_, network)| !is_meta_plugin(network));
    let wanted =
        possible.filter(|found| arguments.default_network.as_ref().is_none_or(|name| is_called(name, found)));
    wanted.min_by(|(a, _), (b, _)| a.cmp(b))
}

/// Is it the one that is meant, as far as files can be read? One that is asked for by its name is; our own does not count.
fn is_certain(
    arguments: &Arguments,
    directory: &Directory,
    found: Option<&(PathBuf, Network)>,
    places: &Places,
) -> Result<(), Error> {
    match directory.unread() {
        Some((file, _)) if file == places.written.here => Ok(()),
        _ if arguments.default_network.is_some() && found.is_some() => Ok(()),
        _ => directory.is_first(found.map(|(path, _)| path.as_path())),
    }
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
fn made_for(
    path: &Path,
    network: &Network,
    arguments: &Arguments,
    places: &Places,
) -> Result<String, Failure> {
    let Arguments { bin_dir, ready_file, set, .. } = arguments;
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
    if let Some(thin) = Thin::of(arguments, places) {
        plugin["kubeconfig"] = json!(thin.kubeconfig());
    }
    let made = plugin.clone();
    set.iter().try_for_each(|words| put(&mut plugin, words))?;
    if let Err(error) = understood(&plugin) {
        // Two may contradict each other: then none is to blame alone.
        let is_wrong = |words: &&String| {
            let mut alone = made.clone();
            put(&mut alone, words).is_ok() && understood(&alone).is_err()
        };
        if let Some(words) = set.iter().find(is_wrong) {
            return Err(Failure::from(error).context(format!("--set {words}")).exit(Exit::Usage));
        }
    }
    let list = json!({ "cniVersion": version, "name": "weft", "plugins": [plugin] });
    let text = serde_json::to_string_pretty(&list)
        .map_err(|cause| Failure::new(format!("encode the configuration: {cause}")))?;
    let read_back = Network::parse(text.as_bytes(), "the configuration made")?;
    MetaPlugin::read(&read_back, path)?;
    Ok(text + "\n")
}

/// Does what `--set` says.
fn put(plugin: &mut Value, words: &str) -> Result<(), Failure> {
    let Some((key, value)) = words.split_once('=') else {
        let why = format!("--set {words}: not KEY=VALUE");
        return Err(Failure::new(why).exit(Exit::Usage));
    };
    plugin[key] = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
    Ok(())
}

/// Is it a configuration of weft?
fn understood(plugin: &Value) -> Result<(), Error> {
    NodeConfiguration::read(plugin.to_string().as_bytes(), Flavour::Weft).map(drop)
}

fn is_meta_plugin(network: &Network) -> bool {
    let first = network.plugins.first().and_then(|plugin| plugin_type(plugin).ok());
    first.is_some_and(|name| META_PLUGINS.contains(&name.as_str()))
}

/// A file that the runtime would take in the place of ours.
fn earlier(networks: &Place, written: &Path) -> Result<Option<PathBuf>, Failure> {
    let Place { named, here } = networks;
    let found = first_before(here, written)
        .map_err(|cause| privilege::refused(&format!("read {}", here.display()), &cause))?;
    Ok(found.and_then(|path| Some(named.join(path.file_name()?))))
}

/// The first file of a directory that a runtime reads before `written`.
pub(crate) fn first_before(directory: &Path, written: &Path) -> io::Result<Option<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    };
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
    Ok(paths.into_iter().filter(|path| is_read(path) && path.as_path() < written).min())
}

fn is_read(path: &Path) -> bool {
    path.extension()
        .and_then(|extension| extension.to_str())
        .is_some_and(|extension| READ.contains(&extension))
}
