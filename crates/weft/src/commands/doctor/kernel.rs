//! Findings about the kernel: features that the node's definitions need, and that this kernel lacks.
//!
//! - A feature is there if the kernel has one of the symbols, or if one of the modules is installed, which the kernel
//!   then loads by itself.
//! - Without the module directory, as in a pod, nothing is known about modules that are not loaded. Then
//!   there is no finding, unless the kernel has no modules at all.
//!
//! Source: proc_kallsyms(5); depmod(8), `modules.dep`, `modules.builtin`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::Path;

use cni::network::{Network, plugin_type};
use kube::Api;
use kube::api::ListParams;
use npwg::definition;
use npwg::metadata::{Definition, SpecConfig};
use serde_json::Value;

use super::Finding;
use crate::input_files;
use crate::manifest_plan::{Inputs, collect};
use crate::meta_plugin_config::MetaPlugin;
use cli_support::async_runtime::runtime;
use kube_support::client;
use kube_support::resources::{DefinitionObject, Reduced};

/// Maximum size for the symbol list, in bytes.
const SYMBOLS_MAX: u64 = 64 << 20;
/// Maximum number of definitions that are read from the API server.
const DEFINITIONS_MAX: u32 = 2000;
/// Maximum number of networks that a finding names.
const NAMED_MAX: usize = 5;

/// Features: plugin, name, how a symbol begins, module.
const FEATURES: [(&str, &str, &str, &str); 12] = [
    ("macvlan", "macvlan", "macvlan_common_setup", "macvlan"),
    ("ipvlan", "ipvlan", "ipvlan_link_setup", "ipvlan"),
    ("vlan", "VLANs (802.1Q)", "register_vlan_dev", "8021q"),
    ("vrf", "VRFs", "vrf_setup", "vrf"),
    ("bond", "bonding", "bond_setup", "bonding"),
    ("dummy", "dummy interfaces", "dummy_setup", "dummy"),
    ("bridge", "bridges", "br_dev_setup", "bridge"),
    ("ptp", "veth", "veth_setup", "veth"),
    ("tap", "tap interfaces", "tun_setup", "tun"),
    ("portmap", "nf_tables", "nf_tables_newrule", "nf_tables"),
    ("firewall", "nf_tables", "nf_tables_newrule", "nf_tables"),
    ("bandwidth", "the queueing discipline tbf", "tbf_enqueue", "sch_tbf"),
];
/// Feature that networks with `ipMasq` need.
const MASQUERADE: (&str, &str, &str) = ("masquerading by nf_tables", "nft_masq_", "nft_masq");

/// Facts about the kernel, as far as they are known.
#[derive(Debug)]
struct Kernel {
    /// Symbol prefixes from the tables that the kernel has.
    symbols: BTreeSet<&'static str>,
    /// Installed modules; `None` if they are unknown.
    modules: Option<BTreeSet<String>>,
    release: String,
}

/// Networks by needed feature: name, symbol and module.
type Needs = BTreeMap<(&'static str, &'static str, &'static str), BTreeSet<String>>;

/// Returns the findings for a node's definitions: those in the files, in `manifestDir`, and from the API
/// server.
pub(super) fn findings(inputs: &Inputs, kubeconfig: Kubeconfig<'_>) -> Vec<Finding> {
    let mut definitions = of_files(inputs);
    definitions.extend(of_cluster(kubeconfig));
    let needs = needs(&definitions);
    if needs.is_empty() {
        return Vec::new();
    }
    Kernel::of_machine().findings(&needs)
}

/// Credentials with which definitions are read from the API server.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kubeconfig<'a> {
    /// There is none.
    Absent,
    /// This pod's credentials.
    OfPod,
    /// A file.
    File(&'a Path),
}

fn of_files(inputs: &Inputs) -> Vec<Definition> {
    let found = MetaPlugin::find_any(inputs.config.as_deref(), &[]).ok().flatten();
    let directory = found.and_then(|found| found.node.manifest_dir);
    let paths = inputs.files.iter().cloned().chain(directory.map(Into::into));
    let files = paths.filter_map(|path| input_files::read(&[path]).ok()).flatten();
    let files: Vec<_> = files.filter(|file| file.kind == input_files::Kind::Manifest).collect();
    collect(files.iter()).definitions.into_values().collect()
}

/// Returns the cluster's definitions; none if it cannot be reached, which other checks report.
fn of_cluster(kubeconfig: Kubeconfig<'_>) -> Vec<Definition> {
    let path = match kubeconfig {
        Kubeconfig::Absent => return Vec::new(),
        Kubeconfig::OfPod => None,
        Kubeconfig::File(path) => Some(path),
    };
    let Ok(runtime) = runtime() else { return Vec::new() };
    let listed = runtime.block_on(async {
        let api: Api<DefinitionObject> = Api::all(client::client(path).await.ok()?);
        api.list(&ListParams::default().limit(DEFINITIONS_MAX)).await.ok()
    });
    listed.into_iter().flat_map(|list| list.items).map(Reduced::reduce).collect()
}

/// Returns the features that definitions need. A definition that cannot be read needs none.
fn needs(definitions: &[Definition]) -> Needs {
    let mut needs = Needs::new();
    for definition in definitions {
        let text = match &definition.config {
            SpecConfig::Text(text) | SpecConfig::Structured(text) => text,
            SpecConfig::Absent => continue,
        };
        let Ok(network) = definition::inline(&definition.name, text) else { continue };
        let name = format!("{}/{}", definition.namespace, definition.name);
        for feature in features(&network) {
            needs.entry(feature).or_default().insert(name.clone());
        }
    }
    needs
}

/// Returns the features that a network's plugins need.
fn features(network: &Network) -> Vec<(&'static str, &'static str, &'static str)> {
    let mut found = Vec::new();
    for plugin in &network.plugins {
        let Ok(plugin_type) = plugin_type(plugin) else { continue };
        let of_plugin = FEATURES.iter().filter(|(name, ..)| *name == plugin_type.as_str());
        let options: Value = serde_json::from_str(&plugin.to_json()).unwrap_or_default();
        let is_iptables = ["backend", "ipMasqBackend"].iter().any(|key| options[*key] == "iptables");
        found.extend(
            of_plugin
                .filter(|(_, name, ..)| *name != "nf_tables" || !is_iptables)
                .map(|(_, name, symbol, module)| (*name, *symbol, *module)),
        );
        if options["ipMasq"] == true && !is_iptables {
            found.push(MASQUERADE);
        }
    }
    found
}

// === impl Kernel ===

impl Kernel {
    fn of_machine() -> Kernel {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned();
        let directory = Path::new("/lib/modules").join(&release);
        let has_modules = Path::new("/proc/modules").exists();
        let modules = match modules(&directory) {
            Some(modules) => Some(modules),
            None if has_modules => None,
            None => Some(BTreeSet::new()),
        };
        let mut text = Vec::new();
        let opened = fs::File::open("/proc/kallsyms");
        let read = opened.and_then(|file| file.take(SYMBOLS_MAX).read_to_end(&mut text));
        let text = String::from_utf8_lossy(&text);
        // A kernel that shows no symbols could have any feature.
        let modules = modules.filter(|_| read.is_ok() && !text.is_empty());
        Kernel { symbols: symbols(&text), modules, release }
    }

    /// Whether the kernel lacks a feature for certain.
    fn lacks(&self, symbol: &str, module: &str) -> bool {
        let is_installed = |modules: &BTreeSet<String>| modules.contains(&module.replace('-', "_"));
        !self.symbols.contains(symbol) && self.modules.as_ref().is_some_and(|modules| !is_installed(modules))
    }

    fn findings(&self, needs: &Needs) -> Vec<Finding> {
        let missing = needs.iter().filter(|((_, symbol, module), _)| self.lacks(symbol, module));
        missing
            .map(|((name, _, module), networks)| {
                let named: Vec<&str> = networks.iter().take(NAMED_MAX).map(String::as_str).collect();
                let more = if networks.len() > NAMED_MAX { ", …" } else { "" };
                let why = format!(
                    "the kernel {} has no {name} (module {module}), which these networks need: {}{more}",
                    self.release,
                    named.join(", ")
                );
                let hint = format!(
                    "install the package with {module}.ko, for example linux-modules-extra-{}, or use a kernel with it",
                    self.release
                );
                Finding::new("kernel", why, hint)
            })
            .collect()
    }
}

/// Returns which symbols from the tables are in the kernel's list: with or without a suffix from the
/// compiler.
fn symbols(text: &str) -> BTreeSet<&'static str> {
    let wanted: BTreeSet<&'static str> =
        FEATURES.iter().map(|(_, _, symbol, _)| *symbol).chain([MASQUERADE.1]).collect();
    let mut found = BTreeSet::new();
    for symbol in text.lines().filter_map(|line| line.split_whitespace().nth(2)) {
        found.extend(wanted.iter().filter(|wanted| symbol.starts_with(**wanted)));
    }
    found
}

/// Returns the modules in a directory, including those that are built in; `None` if the list is missing.
fn modules(directory: &Path) -> Option<BTreeSet<String>> {
    let installed = fs::read_to_string(directory.join("modules.dep")).ok()?;
    let built_in = fs::read_to_string(directory.join("modules.builtin")).unwrap_or_default();
    let name = |line: &str| {
        let path = line.split(':').next().unwrap_or_default();
        let file = path.rsplit('/').next().unwrap_or_default();
        file.split(".ko").next().unwrap_or_default().replace('-', "_")
    };
    Some(installed.lines().chain(built_in.lines()).map(name).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(name: &str, config: &str) -> Definition {
        Definition {
            namespace: "blue".into(),
            name: name.into(),
            config: SpecConfig::Text(config.into()),
            ..Definition::default()
        }
    }

    fn kernel(symbols_of: &str, modules: Option<&[&str]>) -> Kernel {
        let modules = modules.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
        Kernel { symbols: symbols(symbols_of), modules, release: "6.1.0".into() }
    }

    #[test]
    fn doctor_kernel_features_of_definitions() {
        let definitions = [
            definition("a", r#"{"cniVersion":"1.0.0","type":"macvlan","master":"eth0"}"#),
            definition(
                "b",
                r#"{"cniVersion":"1.0.0","plugins":[{"type":"bridge","ipMasq":true},{"type":"vrf","vrfname":"v"}]}"#,
            ),
            definition(
                "c",
                r#"{"cniVersion":"1.0.0","type":"bridge","ipMasq":true,"ipMasqBackend":"iptables"}"#,
            ),
            definition("broken", "{"),
        ];
        let needs = needs(&definitions);
        let names: Vec<&str> = needs.keys().map(|(name, ..)| *name).collect();
        assert_eq!(names, ["VRFs", "bridges", "macvlan", "masquerading by nf_tables"]);

        let bare = kernel("0 T br_dev_setup\n0 t nft_masq_init.constprop.0 [nft_masq]\n", Some(&["macvlan"]));
        let found = bare.findings(&needs);
        let [vrf] = found.as_slice() else { panic!("{found:?}") };
        assert!(vrf.why.contains("no VRFs (module vrf)") && vrf.why.ends_with("blue/b"), "{vrf:?}");
        assert!(vrf.hint.contains("linux-modules-extra-6.1.0"), "{vrf:?}");
        assert!(kernel("", None).findings(&needs).is_empty(), "modules are unknown");
    }

    #[test]
    fn doctor_kernel_modules_are_installed_or_built_in() {
        let directory = std::env::temp_dir().join(format!("weft-modules-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        assert_eq!(modules(&directory), None);
        fs::write(directory.join("modules.dep"), "kernel/net/sched/sch_tbf.ko.xz: kernel/a.ko\n").unwrap();
        fs::write(directory.join("modules.builtin"), "kernel/drivers/net/mac-vlan.ko\n").unwrap();
        let found = modules(&directory).unwrap();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), ["mac_vlan", "sch_tbf"]);
        fs::remove_dir_all(&directory).unwrap();
    }
}
