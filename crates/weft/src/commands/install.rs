//! `weft install`: installs weft-cni and, once the default network is ready, the configuration that makes the container
//! runtime call it. `--remove` removes the configuration again.
//!
//! - The configuration is written last, when a pod could be attached: the default network is configured, the plugins
//!   exist, and with `--status` they report that they are ready.
//! - The configuration refers to the file of the default network, so later changes of that file take effect.
//! - Links in the directories are followed inside `--root`, as on the node.
//! - `--dry-run` says what was found and what would be done, and changes nothing.
//! - The configuration is parsed before it is written, and written under a temporary name in the same directory:
//!   containerd does not notice a file that is renamed from another directory.
//! - The configuration stays when the installer exits.
//! - With `--follow` it is written again if the file of the default network is renamed or changed. It stays while there
//!   is no default network.
//!
//! Source: multi-network specification, section 6.1 (NPWG1-6.1-1, 6.1-2, 6.1.2-1); containerd
//! `pkg/cri/server/cni_conf_syncer.go`.

pub(crate) mod command;
mod default_network;
mod dry_run;
mod follow;
mod node_path;
mod removal;

pub(crate) mod thin;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use cni::Error;
use cni::name::PluginType;
use cni::network::{Network, plugin_type};
use cni::runtime::chain;
use cni::runtime::exec::Exec;
use cni::runtime::load::Directory;
use command::Command;
use node_path::NodePath;
use npwg::configuration::{Builtin, Flavour, NodeConfiguration};

use serde_json::{Value, json};
use thin::Thin;

use crate::meta_plugin_config::MetaPlugin;
use crate::whereabouts_program;
use crate::whereabouts_program::WhereaboutsProgram;
use cli_support::atomic_file;
use cli_support::failure::{EXIT_CODES, Exit, Failure};
use cli_support::output::{Format, Progress};
use cli_support::privilege;
use node_support::weft_cni::{Foreign, OnHost, WeftCni};

/// Interval between two checks of the default network.
const PAUSE: Duration = Duration::from_millis(500);
/// Timeout for STATUS in one plugin.
const STATUS_MAX: Duration = Duration::from_secs(30);
/// Interval at which the reason for waiting is printed.
const REMINDER: Duration = Duration::from_secs(30);
/// Extensions of the files that container runtimes read.
const EXTENSIONS: [&str; 3] = ["conf", "conflist", "json"];
/// Directory in which a pod has its token and the certificate authority of the API server.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
/// Capability with which a runtime passes the annotations of a pod, so plans can be made without the API server.
const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

/// Next step without a default network.
const NO_DEFAULT_NETWORK: &str = "install the default network of the cluster first; --wait waits for it, and --conf-dir names another directory";

/// Arguments of `weft install`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft install
  weft install --wait --ready-file /run/flannel/subnet.env
  weft install --wait --follow --root /host
  weft install --set namespaceIsolation=true --set globalNamespaces=shared
  weft install --dry-run
  weft install --command
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
    /// Replace another plugin with the name weft in the plugin directory (default: fail)
    #[arg(long, conflicts_with = "remove")]
    replace: bool,
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
    /// Also install this program as DIR/weft on the node; with --remove, it is removed without this option
    #[arg(
        long,
        value_name = "DIR",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = command::DIRECTORY,
        conflicts_with = "remove"
    )]
    command: Option<PathBuf>,
    /// Directory in which the ServiceAccount of this pod is mounted
    #[arg(long, value_name = "DIR", default_value = SERVICE_ACCOUNT, hide = true)]
    service_account: PathBuf,
    /// Say what was found on the node and what would be done, and change nothing
    #[arg(long, conflicts_with_all = ["wait", "follow", "remove"])]
    dry_run: bool,
    /// Remove the configuration but keep weft-cni; refused while a sandbox needs weft's DEL, unless --wait is set
    #[arg(long)]
    remove: bool,
    #[command(flatten)]
    on_host: OnHost,
}

/// Result of a readiness check.
enum Readiness {
    /// Configuration to write.
    Ready(String),
    /// Reason to wait.
    NotYet(Failure),
}

/// Paths of an installation.
struct InstallPaths {
    root: PathBuf,
    networks: NodePath,
    plugins: NodePath,
    written: NodePath,
    ready_file: Option<NodePath>,
}

/// Runs `weft install`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { file_name, .. } = arguments;
    if Path::new(file_name).components().count() != 1
        || file_name.starts_with('.')
        || !is_configuration_file(Path::new(file_name))
    {
        let why = format!("--file-name {file_name}: container runtimes do not read a file of this name");
        return Err(Failure::new(why).next("use a name with .conflist"));
    }
    // Before the command waits for a default network.
    arguments.set.iter().try_for_each(|option| set_option(&mut json!({}), option))?;
    if arguments.on_host.is_wanted() && !arguments.remove {
        let why = "--on-host: only valid with --remove";
        return Err(Failure::new(why).next("omit it, or add --remove --wait").exit(Exit::Usage));
    }
    match arguments {
        Arguments { remove: true, .. } => removal::remove(arguments),
        Arguments { dry_run: true, .. } => dry_run::report(arguments),
        Arguments { follow: true, .. } => follow::follow(arguments),
        _ => install(arguments),
    }
}

impl InstallPaths {
    fn of(arguments: &Arguments) -> Result<InstallPaths, Failure> {
        let Arguments { root, conf_dir, bin_dir, file_name, ready_file, .. } = arguments;
        let networks = NodePath::below(root, conf_dir)?;
        Ok(InstallPaths {
            root: root.clone(),
            written: networks.join(file_name),
            networks,
            plugins: NodePath::below(root, bin_dir)?,
            ready_file: ready_file.as_ref().map(|file| NodePath::below(root, file)).transpose()?,
        })
    }
}

impl InstallPaths {
    /// Returns the networks that are configured on the node.
    fn directory(&self) -> Result<Directory, Error> {
        Directory::read_located(&self.networks.here, &|entry| self.networks.locate(&self.root, entry))
    }

    /// Whether the plugin directory has a file of this name.
    fn has_plugin(&self, plugin: &str) -> bool {
        let path = self.plugins.here.join(plugin);
        self.plugins.locate(&self.root, &path).exists()
    }
}

fn install(arguments: &Arguments) -> Result<(), Failure> {
    let progress = Progress::beside(Format::Text);
    let weft_cni = WeftCni::find()?;
    let mut last_message: Option<Instant> = None;
    loop {
        // Directories may be created, and links may change, while the command waits.
        let paths = InstallPaths::of(arguments)?;
        let (failure, done) = match attempt(arguments, &paths, &weft_cni)? {
            (Readiness::Ready(text), done) => {
                done.iter().for_each(|line| progress.line(line));
                return write_configuration(&paths, &weft_cni, &text)
                    .map(|lines| lines.iter().for_each(|line| progress.line(line)));
            }
            (Readiness::NotYet(failure), _) if !arguments.wait => return Err(failure),
            (Readiness::NotYet(failure), done) => (failure, done),
        };
        if last_message.is_none_or(|at| at.elapsed() >= REMINDER) {
            done.iter().for_each(|line| progress.line(line));
            progress.line(format!("waiting: {failure}"));
            last_message = Some(Instant::now());
        }
        sleep(PAUSE);
    }
}

/// Installs the programs and checks whether the configuration can be written. Returns a line for each change.
fn attempt(
    arguments: &Arguments,
    paths: &InstallPaths,
    weft_cni: &WeftCni,
) -> Result<(Readiness, Vec<String>), Failure> {
    let foreign = if arguments.replace { Foreign::Replaced } else { Foreign::Refused };
    let done = weft_cni.install(&paths.plugins.here, "weft", foreign)?;
    let mut done: Vec<String> = done.lines().map(str::to_owned).collect();
    if let Some(thin) = Thin::of(arguments, paths) {
        done.extend(thin.install()?);
    }
    if let Some(command) = Command::of(arguments, paths)? {
        done.extend(command.install());
    }
    let readiness = check_readiness(arguments, paths, weft_cni, &mut done)?;
    Ok((readiness, done))
}

/// Writes the configuration, as the last step. Returns a line for each change.
fn write_configuration(paths: &InstallPaths, weft_cni: &WeftCni, text: &str) -> Result<Vec<String>, Failure> {
    refuse_unimported(paths, text)?;
    // Runtimes call loopback themselves. It is installed last, because the installer of the default network may have its own.
    let done = weft_cni.install(&paths.plugins.here, "loopback", Foreign::Kept)?;
    let mut done: Vec<String> = done.lines().map(str::to_owned).collect();
    let NodePath { named, here } = &paths.written;
    if let Some(failure) = earlier_file(paths)? {
        return Err(failure);
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

/// Returns the configuration if a pod could be attached with it now, or else the reason to wait.
fn check_readiness(
    arguments: &Arguments,
    paths: &InstallPaths,
    weft_cni: &WeftCni,
    notes: &mut Vec<String>,
) -> Result<Readiness, Failure> {
    let Arguments { config, status, .. } = arguments;
    let InstallPaths { networks, plugins, ready_file, .. } = paths;
    if let Some(ready_file) = ready_file.as_ref().filter(|ready_file| !ready_file.here.exists()) {
        let why = format!("the default network is not ready: {} does not exist", ready_file.named.display());
        return Ok(Readiness::NotYet(Failure::new(why)));
    }
    if let Some(file) = config {
        MetaPlugin::find_any(Some(file), &[])?;
        let text = fs::read_to_string(file);
        return text
            .map(Readiness::Ready)
            .map_err(|cause| privilege::refused(&format!("read {}", file.display()), &cause));
    }
    let directory = paths.directory()?;
    let found = default_network::find(arguments.default_network.as_deref(), &directory);
    if let Err(error) = is_certain(arguments, &directory, found, paths) {
        let why = format!("the default network is unknown: {error}");
        return Ok(Readiness::NotYet(Failure::new(why)));
    }
    let Some((path, network)) = found else {
        let faults: Vec<String> = directory.faults.iter().map(|(_, error)| error.to_string()).collect();
        let which = arguments.default_network.as_ref().map(|name| format!(" with the name {name}"));
        let why = format!(
            "no default network is configured in {}{}",
            networks.named.display(),
            which.unwrap_or_default()
        );
        let names = directory.networks.iter().map(|(_, network)| network.name.as_str());
        let next = match arguments.default_network {
            _ if !faults.is_empty() => faults.join("; "),
            Some(_) if !directory.networks.is_empty() => {
                format!("networks there: {}", names.collect::<Vec<_>>().join(", "))
            }
            _ => NO_DEFAULT_NETWORK.to_owned(),
        };
        return Ok(Readiness::NotYet(Failure::new(why).next(next)));
    };
    let is_own = |plugin: &PluginType| weft_cni.answers_to(plugin.as_str()).unwrap_or(false);
    for plugin in network.needs_where(is_own)? {
        if !paths.has_plugin(plugin.as_str()) && !weft_cni.answers_to(plugin.as_str())? {
            let why = format!(
                "network {}: plugin {plugin}: not found in {}",
                network.name,
                plugins.named.display()
            );
            return Ok(Readiness::NotYet(Failure::new(why)));
        }
    }
    if let Err(error) = if *status { check_status(network, &plugins.here) } else { Ok(()) } {
        let why = format!("the default network {} is not ready: {error}", network.name);
        return Ok(Readiness::NotYet(Failure::new(why)));
    }
    if let Some(note) = default_network::note(path, network) {
        notes.push(note);
    }
    let file = path.file_name().map(|name| networks.named.join(name));
    generate_configuration(&file.unwrap_or_default(), network, arguments, paths).map(Readiness::Ready)
}

/// Refuses a configuration with which the built-in plugin would serve the name of an installed whereabouts, whose addresses
/// it does not know.
fn refuse_unimported(paths: &InstallPaths, text: &str) -> Result<(), Failure> {
    let network = Network::parse(text.as_bytes(), "configuration")?;
    let found = MetaPlugin::read(&network, &paths.written.named)?;
    let WhereaboutsProgram::Foreign(path) =
        whereabouts_program::find(&paths.plugins.here.display().to_string())
    else {
        return Ok(());
    };
    if found.node.builtin != Builtin::Always {
        return Ok(());
    }
    let why = format!(
        "builtin: always: weft-ipam would serve networks of whereabouts, although {} is installed",
        path.display()
    );
    Err(Failure::new(why).next(
        "set builtin to auto, or import its addresses and install weft under its name: docs/migrate-from-whereabouts.md",
    ))
}

/// Checks that an unreadable file cannot be the default network. The file written by weft is ignored, and so is every
/// file if the network was requested by name.
fn is_certain(
    arguments: &Arguments,
    directory: &Directory,
    found: Option<&(PathBuf, Network)>,
    paths: &InstallPaths,
) -> Result<(), Error> {
    match directory.unread() {
        Some((file, _)) if file == paths.written.here => Ok(()),
        _ if arguments.default_network.is_some() && found.is_some() => Ok(()),
        _ => directory.is_first(found.map(|(path, _)| path.as_path())),
    }
}

/// Runs STATUS for the default network's plugins. If one of them is a built-in plugin without a file, nothing is run:
/// built-in plugins need only the kernel.
fn check_status(network: &Network, bin_dir: &Path) -> Result<(), Error> {
    let types = network.plugins.iter().map(plugin_type).collect::<Result<Vec<_>, _>>()?;
    if !types.iter().all(|name| bin_dir.join(name.as_str()).exists()) {
        return Ok(());
    }
    chain::status(&Exec::new(STATUS_MAX), network, &bin_dir.display().to_string())
}

/// Returns the configuration with `network`, which was read from `path`, as the default network.
fn generate_configuration(
    path: &Path,
    network: &Network,
    arguments: &Arguments,
    paths: &InstallPaths,
) -> Result<String, Failure> {
    let Arguments { bin_dir, ready_file, set, .. } = arguments;
    // The runtime is known to support the version of the default network, but maybe not a later one.
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
    if let Some(thin) = Thin::of(arguments, paths) {
        plugin["kubeconfig"] = json!(thin.kubeconfig());
    }
    let generated = plugin.clone();
    set.iter().try_for_each(|option| set_option(&mut plugin, option))?;
    if let Err(error) = validate(&plugin) {
        // If two options contradict each other, none of them is named.
        let is_invalid = |option: &&String| {
            let mut alone = generated.clone();
            set_option(&mut alone, option).is_ok() && validate(&alone).is_err()
        };
        if let Some(option) = set.iter().find(is_invalid) {
            return Err(Failure::from(error).context(format!("--set {option}")).exit(Exit::Usage));
        }
    }
    let list = json!({ "cniVersion": version, "name": "weft", "plugins": [plugin] });
    let text = serde_json::to_string_pretty(&list)
        .map_err(|cause| Failure::new(format!("encode the configuration: {cause}")))?;
    let read_back = Network::parse(text.as_bytes(), "generated configuration")?;
    MetaPlugin::read(&read_back, path)?;
    Ok(text + "\n")
}

/// Sets the option of one `--set KEY=VALUE`.
fn set_option(plugin: &mut Value, option: &str) -> Result<(), Failure> {
    let Some((key, value)) = option.split_once('=').filter(|(key, _)| !key.is_empty()) else {
        let why = format!("--set {option}: not KEY=VALUE");
        let next = "docs/plugins/weft.md lists the keys, for example --set logLevel=debug";
        return Err(Failure::new(why).next(next).exit(Exit::Usage));
    };
    plugin[key] = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
    Ok(())
}

/// Checks that the plugin configuration is valid for weft.
fn validate(plugin: &Value) -> Result<(), Error> {
    NodeConfiguration::read(plugin.to_string().as_bytes(), Flavour::Weft).map(drop)
}

/// Returns why the runtime would use another file instead of weft's configuration; `None` if it would not.
fn earlier_file(paths: &InstallPaths) -> Result<Option<Failure>, Failure> {
    let InstallPaths { networks, written, .. } = paths;
    let found = first_before(&networks.here, &written.here)
        .map_err(|cause| privilege::refused(&format!("read {}", networks.here.display()), &cause))?;
    let Some(path) = found else { return Ok(None) };
    let named = path.file_name().map_or_else(|| path.clone(), |name| networks.named.join(name));
    let why = format!(
        "{} sorts before {}, so the runtime would continue to use it",
        named.display(),
        written.named.display()
    );
    let directory = paths.directory()?;
    let network = directory.networks.iter().find(|(file, _)| *file == path);
    let next = if network.is_some_and(|(_, network)| default_network::is_multus(network)) {
        "this node uses Multus: weft migrate multus moves its nodes and their pods to weft, see \
         docs/migrate-from-multus.md; if you removed that file, its pods could not be deleted"
    } else {
        "remove that file, or choose a --file-name that sorts before it"
    };
    Ok(Some(Failure::new(why).next(next)))
}

/// Returns the first file of a directory that a runtime reads before `written`.
pub(crate) fn first_before(directory: &Path, written: &Path) -> io::Result<Option<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    };
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
    Ok(paths.into_iter().filter(|path| is_configuration_file(path) && path.as_path() < written).min())
}

fn is_configuration_file(path: &Path) -> bool {
    path.extension()
        .and_then(|extension| extension.to_str())
        .is_some_and(|extension| EXTENSIONS.contains(&extension))
}
