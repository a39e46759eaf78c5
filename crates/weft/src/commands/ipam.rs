//! `weft ipam`: shows pools and who holds addresses, finds problems, and releases unused blocks and
//! addresses.
//!
//! It reads the cluster's objects. On a node without credentials, or if the API server does not answer, it
//! only reads the node's address stores.

mod host_stores;
mod node_sandboxes;
mod show;
mod store_blocks;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use ipam::Registry;
use ipam::address_store::is_valid_name;
use ipnet::IpNet;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client};
use manifest::NetworkRange;
use npwg::metadata::SpecConfig;
use prometheus_client::metrics::counter::Counter;
use serde::Serialize;
use serde_json::json;
use tokio::time::timeout;

use crate::cluster_access::{ClusterAccess, snapshot_failure};
use crate::commands::ipam::host_stores::HostStore;
use crate::commands::ipam::node_sandboxes::NodeSandboxes;
use crate::commands::ipam::show::show;
use cli_support::async_runtime::runtime;
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output;
use cli_support::output::{Format, Progress};
use cli_support::table;
use ipam_api::api_registry::ApiRegistry;
use ipam_api::cluster_snapshot::ClusterSnapshot;
use ipam_api::findings::Finding;
use ipam_api::ip_objects::BlockObject;
use ipam_api::network_windows::NetworkWindow;
use ipam_api::store_name::{ADDRESS_STORES, address_store_name};
use kube_support::api_error;
use kube_support::resources::{DefinitionObject, Reduced};
use node_support::address_store;
use node_support::address_store::{Held, Owner};

/// Arguments of `weft ipam`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft ipam show --blocks
  weft ipam who 10.1.2.3
  weft ipam check
  sudo weft ipam show --local

{EXIT_CODES} A finding of check is a failure, a warning about the size of a window is not."))]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: IpamCommand,
    #[command(flatten)]
    cluster: ClusterAccess,
    /// Output format
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "table", global = true)]
    format: Format,
    /// Read only the address stores of this node, not the cluster (default: only if the cluster cannot be read)
    #[arg(long, global = true)]
    local: bool,
    /// Directory of the journal, which has the sandboxes of this node (default: that of the meta-plugin's configuration, and
    /// /var/lib/weft)
    #[arg(long, value_name = "DIR", global = true)]
    journal: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum IpamCommand {
    /// Show the utilization of each pool and the blocks of this node
    #[command(after_help = "Example:\n  weft ipam show --blocks")]
    Show {
        /// Include every block and every single address
        #[arg(long)]
        blocks: bool,
        /// Directory of the address stores of this node
        #[arg(long, visible_alias = "data-dir", default_value = ADDRESS_STORES, value_name = "DIR")]
        address_stores: PathBuf,
    },
    /// Show the pod, container and node that hold an address
    #[command(after_help = "Example:\n  weft ipam who 10.1.2.3")]
    Who {
        /// Address to look up
        address: IpAddr,
        /// Directory of the address stores of this node
        #[arg(long, visible_alias = "data-dir", default_value = ADDRESS_STORES, value_name = "DIR")]
        address_stores: PathBuf,
    },
    /// Find duplicate addresses, and addresses of deleted nodes, of deleted pods or without an owner
    #[command(after_help = "Example:\n  weft ipam check -o json")]
    Check {
        /// Directory of the address stores of this node
        #[arg(long, visible_alias = "data-dir", default_value = ADDRESS_STORES, value_name = "DIR")]
        address_stores: PathBuf,
    },
    /// Release an unused block or single address, or an address that this node holds for a container that is gone
    #[command(after_help = "\
Example:
  weft ipam free 10.1.2.0/28
  sudo weft ipam free 10.1.2.3

The blocks of a running node are refused.")]
    Free {
        /// Name of the IPBlock object, its range, or an address in an address store of this node
        block: String,
        /// Release addresses that a container, pods, an unreachable node or a claim may use; they may then be allocated twice
        #[arg(long)]
        force: bool,
        /// Directory of the address stores of this node
        #[arg(long, visible_alias = "data-dir", default_value = ADDRESS_STORES, value_name = "DIR")]
        address_stores: PathBuf,
    },
}

/// Time after which the cluster is not waited for any more, if this node has address stores.
const CLUSTER_MAX: Duration = Duration::from_secs(10);

/// Runs `weft ipam`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { command, cluster: access, format, local, journal } = arguments;
    let directory = command.address_stores();
    let stores = HostStore::all(directory);
    // If the command line names a cluster, nothing is released on this node.
    let only_cluster = matches!(command, IpamCommand::Free { .. }) && access.is_given() && !local;
    if let IpamCommand::Free { block, force, .. } = command
        && !only_cluster
        && let (Ok(address), Ok(stores)) = (block.parse::<IpAddr>(), &stores)
    {
        let sandboxes = if *force { None } else { Some(NodeSandboxes::find(journal.as_deref())?) };
        if let Some(freed) = host_stores::free(stores, directory, address, sandboxes.as_ref()) {
            return freed;
        }
    }
    runtime()?.block_on(async {
        let cluster = cluster(arguments, stores.as_ref().is_ok_and(|stores| !stores.is_empty())).await;
        let (client, snapshot) = match (cluster, stores) {
            (Ok(cluster), _) => cluster,
            (Err(failure), Ok(stores)) if failure.is_none() || !(stores.is_empty() || only_cluster) => {
                if let Some(failure) = failure {
                    Progress::beside(Format::Json).line(format!(
                        "the cluster cannot be read, only the address stores of this node: {failure}"
                    ));
                }
                return command.run_locally(&stores, journal.as_deref(), *format);
            }
            (Err(failure), Err(unread)) => return Err(failure.unwrap_or(unread)),
            (Err(failure), Ok(_)) => return Err(failure.unwrap_or_else(|| Failure::new("no address stores"))),
        };
        match command {
            IpamCommand::Show { blocks, address_stores } => show(&snapshot, *blocks, address_stores, *format),
            IpamCommand::Who { address, address_stores } => who(&snapshot, *address, address_stores, *format),
            IpamCommand::Check { address_stores } => {
                let windows = network_windows(&client).await;
                check(&snapshot, &windows, address_stores, *format)
            }
            IpamCommand::Free { block, force, .. } => free(&client, &snapshot, block, *force).await,
        }
    })
}

/// Reads the cluster. The error is `None` if only the node is to be read.
async fn cluster(
    arguments: &Arguments,
    has_stores: bool,
) -> Result<(Client, ClusterSnapshot), Option<Failure>> {
    if arguments.local {
        return Err(None);
    }
    let reading = async {
        let client = arguments.cluster.client().await?;
        let snapshot = ClusterSnapshot::take(&client).await;
        Ok((client, snapshot.map_err(|error| snapshot_failure(&error))?))
    };
    if !has_stores {
        return reading.await.map_err(Some);
    }
    match timeout(CLUSTER_MAX, reading).await {
        Ok(read) => read.map_err(Some),
        Err(_) => Err(Some(Failure::new(format!(
            "the API server does not answer within {} s",
            CLUSTER_MAX.as_secs()
        )))),
    }
}

/// Returns the windows in all definitions; none if they cannot be listed.
async fn network_windows(client: &Client) -> Vec<NetworkWindow> {
    let definitions = Api::<DefinitionObject>::all(client.clone()).list(&ListParams::default()).await;
    let mut windows: BTreeMap<(String, usize), NetworkWindow> = BTreeMap::new();
    for definition in definitions.map(|list| list.items).unwrap_or_default() {
        let definition = definition.reduce();
        let SpecConfig::Text(config) = &definition.config else { continue };
        let network = format!("{}/{}", definition.namespace, definition.name);
        for NetworkRange { set, pool, filter } in manifest::network_ranges(config) {
            let window = windows.entry((network.clone(), set));
            let window = window.or_insert_with(|| NetworkWindow {
                network: network.clone(),
                set,
                filters: Vec::new(),
            });
            window.filters.push((pool, filter));
        }
    }
    windows.into_values().collect()
}

impl IpamCommand {
    fn address_stores(&self) -> &Path {
        let (IpamCommand::Show { address_stores, .. }
        | IpamCommand::Who { address_stores, .. }
        | IpamCommand::Check { address_stores }
        | IpamCommand::Free { address_stores, .. }) = self;
        address_stores
    }

    /// Runs the command on this node's address stores.
    fn run_locally(
        &self,
        stores: &[HostStore],
        journal: Option<&Path>,
        format: Format,
    ) -> Result<(), Failure> {
        match self {
            IpamCommand::Show { .. } => host_stores::show(stores, format),
            IpamCommand::Who { address, .. } => host_stores::who(stores, *address, format),
            IpamCommand::Check { address_stores } => {
                let sandboxes = NodeSandboxes::find(journal)?;
                print_findings(&host_stores::findings(address_stores, &sandboxes)?, &[], format)
            }
            IpamCommand::Free { block, .. } => Err(Failure::new(format!(
                "{block}: no address store of this node holds it"
            ))
            .next("the release of a block or of another node's address needs the cluster: set --kubeconfig")),
        }
    }
}

/// Document for `weft ipam who -o json`: who holds the address.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AddressHolder {
    address: IpAddr,
    pool: String,
    block: String,
    node: String,
    claim: String,
    /// For a single address: pod uid, container and interface.
    owner: String,
    pods: Vec<String>,
    container: Option<String>,
}

fn who(
    snapshot: &ClusterSnapshot,
    address: IpAddr,
    address_stores: &Path,
    format: Format,
) -> Result<(), Failure> {
    let has_address =
        |pod: &&ipam_api::cluster_snapshot::Holder| pod.addresses.iter().any(|(ip, ..)| *ip == address);
    let pods: Vec<String> = snapshot
        .pods
        .values()
        .filter(has_address)
        .map(|pod| format!("{}/{}", pod.namespace, pod.name))
        .collect();
    let mut holders = Vec::new();
    for pool in snapshot.pools_of(address) {
        let pool = pool.metadata.name.clone().unwrap_or_default();
        let mut found: Vec<_> =
            snapshot.objects_of(&pool).filter(|object| object.net.contains(&address)).collect();
        // The object of a single address takes precedence over the block in which the address is reserved.
        found.sort_by_key(|object| u8::MAX - object.net.prefix_len());
        let first = found.into_iter().next();
        // A network may use a part of the pool. Its address store is then named after that part.
        let store_name = first.as_ref().map(|object| address_store_name(&object.holder.store));
        let store_name = store_name.into_iter().chain([pool.as_str()]).find(|name| is_valid_name(name));
        let container = store_name.and_then(|name| recorded_owner(&address_stores.join(name), address));
        let container = container.map(|owner| owner.to_string());
        let (block, holder) = first.map(|object| (object.net.to_string(), object.holder)).unwrap_or_default();
        holders.push(AddressHolder {
            address,
            pool,
            block,
            node: holder.node,
            claim: holder.claim,
            owner: holder.owner,
            pods: pods.clone(),
            container,
        });
    }
    let host_stores: Vec<HostStore> = HostStore::all(address_stores)
        .unwrap_or_default()
        .into_iter()
        .filter(HostStore::is_of_host)
        .collect();
    let of_host = host_stores::holders(&host_stores, address)?;
    if holders.is_empty() && !of_host.is_empty() {
        return format.print(&of_host).unwrap_or_else(|| host_stores::print_holders(&of_host));
    }
    if holders.is_empty() && pods.is_empty() {
        return Err(Failure::new(format!("{address}: not in a pool, and not in the status of a pod")));
    }
    if let Some(printed) = format.print(&holders) {
        return printed;
    }
    print_address_holders(&holders)
}

/// Prints a table that shows who holds an address.
fn print_address_holders(holders: &[AddressHolder]) -> Result<(), Failure> {
    let or_default =
        |text: &str, otherwise: &str| if text.is_empty() { otherwise.to_owned() } else { text.to_owned() };
    let row = |holder_row: &AddressHolder| {
        let AddressHolder { address, pool, block, node, claim, owner, pods, container } = holder_row;
        let holder =
            container.clone().unwrap_or_else(|| or_default(&pods.join(", "), &or_default(owner, "unknown")));
        vec![
            address.to_string(),
            pool.clone(),
            or_default(block, "not leased"),
            or_default(node, "-"),
            or_default(claim, "-"),
            holder,
        ]
    };
    let rows: Vec<Vec<String>> = holders.iter().map(row).collect();
    output::print(&table::lay_out(&["address", "pool", "block", "node", "claim", "held by"], &rows, 0))
}

/// Returns an address's owner in one of this node's address stores; `None` if there is none or it is
/// unreadable.
fn recorded_owner(path: &Path, address: IpAddr) -> Option<Owner> {
    let store = address_store::read(path).ok()??;
    let held = address_store::held(path, &store).ok()?.into_iter().find(|held| held.ip == address);
    held.map(|held| held.owner)
}

/// Returns findings for addresses that this node's stores hold for deleted pods, and for unreadable stores. Only root may
/// read the stores, so other users get no findings about unreadable ones.
fn store_findings(snapshot: &ClusterSnapshot, directory: &Path) -> Vec<Finding> {
    let uids = snapshot.uids();
    let unread = |object: String, why: String| {
        let is_root = rustix::process::geteuid().is_root();
        is_root.then(|| Finding { what: "unread", object, why: format!("{why}; its addresses are unknown") })
    };
    let all = match address_store::all(directory) {
        Ok(all) => all,
        Err(why) => return unread("address stores".to_owned(), why.to_string()).into_iter().collect(),
    };
    let mut findings = Vec::new();
    for (name, path) in all {
        let held = address_store::read(&path)
            .and_then(|store| store.map_or(Ok(Vec::new()), |store| address_store::held(&path, &store)));
        let held = match held {
            Ok(held) => held,
            Err(why) => {
                findings.extend(unread(format!("address store {name}"), why.to_string()));
                continue;
            }
        };
        for Held { ip, since: _, owner } in held {
            if owner.uid.is_empty() || uids.contains(owner.uid.as_str()) {
                continue;
            }
            let why = format!(
                "{ip} is allocated to {owner}, whose pod no longer exists; DEL or GC of the runtime releases it"
            );
            findings.push(Finding { what: "leaked", object: format!("address store {name}"), why });
        }
    }
    findings
}

fn check(
    snapshot: &ClusterSnapshot,
    windows: &[NetworkWindow],
    address_stores: &Path,
    format: Format,
) -> Result<(), Failure> {
    let mut findings = snapshot.findings();
    findings.extend(store_findings(snapshot, address_stores));
    print_findings(&findings, &snapshot.window_warnings(windows), format)
}

/// Prints findings and warnings. Findings are a failure.
fn print_findings(findings: &[Finding], warnings: &[Finding], format: Format) -> Result<(), Failure> {
    let all: Vec<&Finding> = findings.iter().chain(warnings).collect();
    if let Some(printed) = format.print(&all) {
        printed?;
    } else if all.is_empty() {
        output::print("no findings\n")?;
    } else {
        let row =
            |finding: &&Finding| vec![finding.what.to_owned(), finding.object.clone(), finding.why.clone()];
        let rows: Vec<Vec<String>> = all.iter().map(row).collect();
        output::print(&table::lay_out(&["what", "object", "why"], &rows, 0))?;
    }
    match findings.len() {
        0 => Ok(()),
        count => Err(Failure::quiet(format!("{count} findings"))),
    }
}

async fn free(client: &Client, snapshot: &ClusterSnapshot, name: &str, force: bool) -> Result<(), Failure> {
    let block = find_block(snapshot, name)?;
    let name = block.metadata.name.as_deref().unwrap_or_default();
    refuse_if_in_use(snapshot, name, block, force)?;
    let registry =
        snapshot.pool(&block.spec.pool).and_then(|pool| ApiRegistry::of(client, pool, &Counter::default()));
    match (block.object(), registry) {
        (Some(object), Some(registry)) => {
            registry
                .delete(&object)
                .await
                .map_err(|fault| Failure::new(format!("ipblock {name}: {fault}")))?;
        }
        // An invalid object is deleted by its name.
        _ => {
            let removed = remove_invalid(client, name, block).await;
            removed.map_err(|error| api_error::failure(format_args!("ipblock {name}"), &error))?;
        }
    }
    output::print(&format!("{}\n", json!({ "freed": name })))
}

/// Deletes an invalid object. The finalizer is removed first, because it would delay the deletion.
async fn remove_invalid(client: &Client, name: &str, block: &BlockObject) -> Result<(), kube::Error> {
    let blocks: Api<BlockObject> = Api::all(client.clone());
    if block.metadata.finalizers.as_ref().is_some_and(|all| !all.is_empty()) {
        let mut released = block.clone();
        released.metadata.finalizers = None;
        blocks.replace(name, &PostParams::default(), &released).await?;
    }
    match blocks.delete(name, &DeleteParams::default()).await {
        // The object was already being deleted, and waited for the finalizer.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}

/// Returns the object with this name, or the only one with this range. Pools in several address spaces may
/// have the range.
fn find_block<'a>(snapshot: &'a ClusterSnapshot, name: &str) -> Result<&'a BlockObject, Failure> {
    let own = |block: &BlockObject| block.metadata.name.clone().unwrap_or_default();
    let range: Option<IpNet> = name.parse().ok().or_else(|| name.parse::<IpAddr>().ok().map(IpNet::from));
    let of_range = |block: &&BlockObject| {
        own(block) == name || (range.is_some() && block.object().map(|object| object.net) == range)
    };
    match snapshot.blocks.iter().filter(of_range).collect::<Vec<_>>().as_slice() {
        [] => Err(Failure::new(format!("ipblock {name}: not found"))
            .next("list the blocks with weft ipam show --blocks or kubectl get ipblocks")),
        [one] => Ok(one),
        several => {
            let names: Vec<String> = several.iter().map(|block| own(block)).collect();
            let why = format!("ipblock {name}: the range is in several pools: {}", names.join(", "));
            Err(Failure::new(why).next("use the name of the object"))
        }
    }
}

/// Refuses to release a block in use. A running node continues to allocate from the address store, so blocks on it are
/// always refused. If a node is deleted or an address has no node, the addresses may still be in use, so `--force` is
/// required.
fn refuse_if_in_use(
    snapshot: &ClusterSnapshot,
    name: &str,
    block: &BlockObject,
    force: bool,
) -> Result<(), Failure> {
    let node = block.spec.node.as_str();
    if !node.is_empty() && !snapshot.is_off(node) {
        let why = format!(
            "ipblock {name}: node {node} is running and holds it; if it were released, two nodes would allocate its addresses"
        );
        let next = format!(
            "addresses of pods are released by DEL or GC of the runtime; if the node is gone for good, run kubectl delete \
             node {node}, or taint it node.kubernetes.io/out-of-service; undo manual changes with kubectl edit"
        );
        return Err(Failure::new(why).next(next));
    }
    let claim = block.spec.claim.as_str();
    let bound = snapshot.pods.values().filter(|pod| !node.is_empty() && pod.node == node).count();
    let used = block.object().map_or(0, |object| {
        snapshot.used_of(&block.spec.pool).iter().filter(|ip| object.net.contains(*ip)).count()
    });
    let why = if bound > 0 {
        format!("its node {node} is deleted or out of service, but {bound} pods are bound to it")
    } else if used > 0 {
        format!("{used} of its addresses are in the status of pods")
    } else if !claim.is_empty() {
        format!("it is reserved for {claim}")
    } else {
        return Ok(());
    };
    match force {
        true => Ok(()),
        false => Err(Failure::new(format!("ipblock {name}: {why}"))
            .next("--force releases it nevertheless; its addresses may then be allocated twice")),
    }
}
