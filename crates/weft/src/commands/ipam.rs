//! `weft ipam`: how full pools are, who has an address, what is wrong, and giving back what nobody has.

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
use kube_support::client;
use node_support::address_store;
use node_support::address_store::{Held, Owner};

/// What `weft ipam` is told.
#[derive(Debug, Args)]
#[command(after_help = format!("\
Example:
  weft ipam show --blocks
  weft ipam who 10.1.2.3
  weft ipam check

{EXIT_CODES} A finding of check is a failure."))]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
    /// Path to a kubeconfig (default: in-cluster configuration)
    #[arg(long, env = "KUBECONFIG", value_name = "FILE", value_parser = client::path, global = true)]
    kubeconfig: Option<PathBuf>,
    /// Output format
    #[arg(short = 'o', long = "output", value_name = "FORMAT", default_value = "text", global = true)]
    format: Format,
}

#[derive(Debug, Subcommand)]
enum What {
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

/// Does it.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { what, kubeconfig, format } = arguments;
    runtime()?.block_on(async {
        let client = client::client_of_person(kubeconfig.as_deref()).await?;
        let snapshot =
            ClusterSnapshot::take(&client).await.map_err(|error| Failure::new(error.to_string()))?;
        match what {
            What::Show { blocks, address_stores } => show(&snapshot, *blocks, address_stores, *format),
            What::Who { address, address_stores } => who(&snapshot, *address, address_stores, *format),
            What::Check { address_stores } => check(&snapshot, address_stores, *format),
            What::Free { block, force } => free(&client, &snapshot, block, *force).await,
        }
    })
}

/// Who has an address, for programs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    address: IpAddr,
    pool: String,
    block: String,
    node: String,
    claim: String,
    /// Of a single address: pod uid, container and interface.
    owner: String,
    pods: Vec<String>,
    container: Option<String>,
}

fn who(snapshot: &ClusterSnapshot, address: IpAddr, ledgers: &Path, format: Format) -> Result<(), Failure> {
    let shows =
        |pod: &&ipam_api::cluster_snapshot::Holder| pod.addresses.iter().any(|(ip, ..)| *ip == address);
    let pods: Vec<String> =
        snapshot.pods.values().filter(shows).map(|pod| format!("{}/{}", pod.namespace, pod.name)).collect();
    let mut answers = Vec::new();
    for pool in snapshot.pools_of(address) {
        let pool = pool.metadata.name.clone().unwrap_or_default();
        let mut found: Vec<_> =
            snapshot.objects_of(&pool).filter(|object| object.net.contains(&address)).collect();
        // A single address before the block in which it is a hole.
        found.sort_by_key(|object| u8::MAX - object.net.prefix_len());
        let first = found.into_iter().next();
        // A network may have a part of the pool; its ledger is called after that part.
        let named = first.as_ref().map(|object| address_store_name(&object.holder.store));
        let named = named.into_iter().chain([pool.as_str()]).find(|name| is_valid_name(name));
        let container = named.and_then(|name| recorded(&ledgers.join(name), address));
        let container = container.map(|owner| owner.to_string());
        let (block, holder) = first.map(|object| (object.net.to_string(), object.holder)).unwrap_or_default();
        answers.push(Answer {
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
    if answers.is_empty() && pods.is_empty() {
        return Err(Failure::new(format!("{address}: in no pool, and no pod shows it")));
    }
    if format == Format::Json {
        return output::print_json(&answers);
    }
    let or =
        |text: &str, otherwise: &str| if text.is_empty() { otherwise.to_owned() } else { text.to_owned() };
    let row = |answer: &Answer| {
        let Answer { address, pool, block, node, claim, owner, pods, container } = answer;
        let holder =
            container.clone().unwrap_or_else(|| or(&pods.join(", "), &or(owner, "nobody that is known")));
        vec![
            address.to_string(),
            pool.clone(),
            or(block, "not leased"),
            or(node, "-"),
            or(claim, "-"),
            holder,
        ]
    };
    let rows: Vec<Vec<String>> = answers.iter().map(row).collect();
    output::print(&table::lay_out(&["address", "pool", "block", "node", "claim", "held by"], &rows, 0))
}

/// What this node's ledger says about an address, if it has one and may be read.
fn recorded(place: &Path, address: IpAddr) -> Option<Owner> {
    let ledger = address_store::read(place).ok()??;
    let held = address_store::held(place, &ledger).ok()?.into_iter().find(|held| held.ip == address);
    held.map(|held| held.owner)
}

/// Addresses that this node's ledgers hold for pods that are gone, and ledgers of which that is not known. Who is not root
/// is not told of what root alone reads.
fn leaked(snapshot: &ClusterSnapshot, directory: &Path) -> Vec<Finding> {
    let uids = snapshot.uids();
    let unread = |object: String, why: String| {
        let is_ours = rustix::process::geteuid().is_root();
        is_ours.then(|| Finding { what: "unread", object, why: format!("{why}: what it holds is not known") })
    };
    let all = match address_store::all(directory) {
        Ok(all) => all,
        Err(why) => return unread("ledgers".to_owned(), why.to_string()).into_iter().collect(),
    };
    let mut findings = Vec::new();
    for (name, place) in all {
        let held = address_store::read(&place)
            .and_then(|ledger| ledger.map_or(Ok(Vec::new()), |ledger| address_store::held(&place, &ledger)));
        let held = match held {
            Ok(held) => held,
            Err(why) => {
                findings.extend(unread(format!("ledger {name}"), why.to_string()));
                continue;
            }
        };
        for Held { ip, since: _, owner } in held {
            if owner.uid.is_empty() || uids.contains(owner.uid.as_str()) {
                continue;
            }
            let why = format!(
                "{ip} is held for {owner}, whose pod is gone: its DEL or the runtime's GC gives it back"
            );
            findings.push(Finding { what: "leaked", object: format!("ledger {name}"), why });
        }
    }
    findings
}

fn check(snapshot: &ClusterSnapshot, ledgers: &Path, format: Format) -> Result<(), Failure> {
    let mut findings = snapshot.findings();
    findings.extend(leaked(snapshot, ledgers));
    if format == Format::Json {
        output::print_json(&findings)?;
    } else if findings.is_empty() {
        output::print("nothing is wrong\n")?;
    } else {
        let rows: Vec<Vec<String>> = findings
            .iter()
            .map(|finding| vec![finding.what.to_owned(), finding.object.clone(), finding.why.clone()])
            .collect();
        output::print(&table::lay_out(&["what", "object", "why"], &rows, 0))?;
    }
    match findings.len() {
        0 => Ok(()),
        count => Err(Failure::quiet(format!("{count} things are wrong"))),
    }
}

async fn free(client: &Client, snapshot: &ClusterSnapshot, name: &str, force: bool) -> Result<(), Failure> {
    let block = named(snapshot, name)?;
    let name = block.metadata.name.as_deref().unwrap_or_default();
    refuse_what_is_in_use(snapshot, name, block, force)?;
    let registry =
        snapshot.pool(&block.spec.pool).and_then(|pool| ApiRegistry::of(client, pool, &Counter::default()));
    match (block.object(), registry) {
        (Some(object), Some(registry)) => {
            registry
                .delete(&object)
                .await
                .map_err(|fault| Failure::new(format!("ipblock {name}: {fault}")))?;
        }
        // What makes no sense is removed by its name.
        _ => {
            let removed = remove_spoilt(client, name, block).await;
            removed
                .map_err(|error| Failure::new(format!("ipblock {name}: {}", api_error::describe(&error))))?;
        }
    }
    output::print(&format!("{}\n", json!({ "freed": name })))
}

/// What is in use stays when it is deleted, until it is written that it is not.
async fn remove_spoilt(client: &Client, name: &str, block: &BlockObject) -> Result<(), kube::Error> {
    let blocks: Api<BlockObject> = Api::all(client.clone());
    if block.metadata.finalizers.as_ref().is_some_and(|all| !all.is_empty()) {
        let mut unused = block.clone();
        unused.metadata.finalizers = None;
        blocks.replace(name, &PostParams::default(), &unused).await?;
    }
    match blocks.delete(name, &DeleteParams::default()).await {
        // It was deleted before, and waited for this.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}

/// The object of this name, or of this range if there is one alone: pools of several address spaces may have it.
fn named<'a>(snapshot: &'a ClusterSnapshot, name: &str) -> Result<&'a BlockObject, Failure> {
    let own = |block: &BlockObject| block.metadata.name.clone().unwrap_or_default();
    let range: Option<IpNet> = name.parse().ok().or_else(|| name.parse::<IpAddr>().ok().map(IpNet::from));
    let of_range = |block: &&BlockObject| {
        own(block) == name || (range.is_some() && block.object().map(|object| object.net) == range)
    };
    match snapshot.blocks.iter().filter(of_range).collect::<Vec<_>>().as_slice() {
        [] => Err(Failure::new(format!("ipblock {name}: not there"))
            .next("weft ipam show --blocks, or kubectl get ipblocks, names those that are")),
        [one] => Ok(one),
        several => {
            let names: Vec<String> = several.iter().map(|block| own(block)).collect();
            let why = format!("ipblock {name}: several pools have it: {}", names.join(", "));
            Err(Failure::new(why).next("name the one that is meant"))
        }
    }
}

/// What a living node has is in its ledger, which gives it whatever becomes of the object: nobody may take that away. What
/// a dead one had, or nobody, may be somebody's yet: that must be said.
fn refuse_what_is_in_use(
    snapshot: &ClusterSnapshot,
    name: &str,
    block: &BlockObject,
    force: bool,
) -> Result<(), Failure> {
    let node = block.spec.node.as_str();
    if !node.is_empty() && !snapshot.is_off(node) {
        let why = format!(
            "ipblock {name}: node {node} has it and is there: it would go on giving its addresses, and so would another"
        );
        let next = format!(
            "what its pods have comes back with their DEL or the runtime's GC; if the node is gone for good: kubectl delete \
             node {node}, or taint it node.kubernetes.io/out-of-service; what a hand has edited is put back with kubectl edit"
        );
        return Err(Failure::new(why).next(next));
    }
    let claim = block.spec.claim.as_str();
    let bound = snapshot.pods.values().filter(|pod| !node.is_empty() && pod.node == node).count();
    let used = block.object().map_or(0, |object| {
        snapshot.used_of(&block.spec.pool).iter().filter(|ip| object.net.contains(*ip)).count()
    });
    let why = if bound > 0 {
        format!("node {node}, which has it, is off, but {bound} pods are bound to it")
    } else if used > 0 {
        format!("pods show {used} of its addresses")
    } else if !claim.is_empty() {
        format!("it is kept for {claim}")
    } else {
        return Ok(());
    };
    match force {
        true => Ok(()),
        false => Err(Failure::new(format!("ipblock {name}: {why}")).next(
            "--force removes it nevertheless: whoever has its addresses has them together with others",
        )),
    }
}
