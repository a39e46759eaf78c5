//! `weft ipam`: shows pools and holders of addresses, finds problems, and releases unused blocks.

mod show;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use ipam::Registry;
use ipam::address_store::is_valid_name;
use ipnet::IpNet;
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client};
use prometheus_client::metrics::counter::Counter;
use serde::Serialize;
use serde_json::json;

use crate::cluster_access::ClusterAccess;
use crate::commands::ipam::show::show;
use cli_support::async_runtime::runtime;
use cli_support::failure::{EXIT_CODES, Failure};
use cli_support::output;
use cli_support::output::Format;
use cli_support::table;
use ipam_api::api_registry::ApiRegistry;
use ipam_api::cluster_snapshot::ClusterSnapshot;
use ipam_api::findings::Finding;
use ipam_api::ip_objects::BlockObject;
use ipam_api::store_name::{ADDRESS_STORES, address_store_name};
use kube_support::api_error;
use node_support::address_store;
use node_support::address_store::{Held, Owner};

/// Arguments of `weft ipam`.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft ipam show --blocks
  weft ipam who 10.1.2.3
  weft ipam check

{EXIT_CODES} A finding of check is a failure."))]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: IpamCommand,
    #[command(flatten)]
    cluster: ClusterAccess,
    /// Output format
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "table", global = true)]
    format: Format,
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
        #[arg(long, default_value = ADDRESS_STORES, value_name = "DIR")]
        address_stores: PathBuf,
    },
    /// Show the pod, container and node that hold an address
    #[command(after_help = "Example:\n  weft ipam who 10.1.2.3")]
    Who {
        /// Address to look up
        address: IpAddr,
        /// Directory of the address stores of this node
        #[arg(long, default_value = ADDRESS_STORES, value_name = "DIR")]
        address_stores: PathBuf,
    },
    /// Find duplicate addresses, and addresses of deleted nodes, of deleted pods or without an owner
    #[command(after_help = "Example:\n  weft ipam check -o json")]
    Check {
        /// Directory of the address stores of this node
        #[arg(long, default_value = ADDRESS_STORES, value_name = "DIR")]
        address_stores: PathBuf,
    },
    /// Release an unused block or single address; the blocks of a running node are refused
    #[command(after_help = "Example:\n  weft ipam free 10.1.2.0/28")]
    Free {
        /// Name of the IPBlock object, or its range
        block: String,
        /// Release addresses that pods, an unreachable node or a claim still use; they may then be allocated twice
        #[arg(long)]
        force: bool,
    },
}

/// Runs `weft ipam`.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { command, cluster, format } = arguments;
    runtime()?.block_on(async {
        let client = cluster.client().await?;
        let snapshot =
            ClusterSnapshot::take(&client).await.map_err(|error| Failure::new(error.to_string()))?;
        match command {
            IpamCommand::Show { blocks, address_stores } => show(&snapshot, *blocks, address_stores, *format),
            IpamCommand::Who { address, address_stores } => who(&snapshot, *address, address_stores, *format),
            IpamCommand::Check { address_stores } => check(&snapshot, address_stores, *format),
            IpamCommand::Free { block, force } => free(&client, &snapshot, block, *force).await,
        }
    })
}

/// Document of `weft ipam who -o json`: the holder of an address.
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
    if holders.is_empty() && pods.is_empty() {
        return Err(Failure::new(format!("{address}: not in a pool, and not in the status of a pod")));
    }
    if format.is_document() {
        return output::print_document(format, &holders);
    }
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

/// Returns the owner of an address in an address store of this node; `None` if there is none or it is unreadable.
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

fn check(snapshot: &ClusterSnapshot, address_stores: &Path, format: Format) -> Result<(), Failure> {
    let mut findings = snapshot.findings();
    findings.extend(store_findings(snapshot, address_stores));
    if format.is_document() {
        output::print_document(format, &findings)?;
    } else if findings.is_empty() {
        output::print("no findings\n")?;
    } else {
        let rows: Vec<Vec<String>> = findings
            .iter()
            .map(|finding| vec![finding.what.to_owned(), finding.object.clone(), finding.why.clone()])
            .collect();
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
            removed
                .map_err(|error| Failure::new(format!("ipblock {name}: {}", api_error::describe(&error))))?;
        }
    }
    output::print(&format!("{}\n", json!({ "freed": name })))
}

/// Deletes an invalid object. Its finalizer is removed first, because it would delay the deletion.
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

/// Returns the object with this name, or the only one with this range. Pools of several address spaces may have the range.
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

/// Refuses to release a block in use. A running node continues to allocate from its address store, so its blocks are always
/// refused. Addresses of a deleted node, and addresses without a node, may still be in use and require `--force`.
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
