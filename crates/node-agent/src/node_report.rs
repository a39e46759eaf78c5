//! Report about this node: the WeftNode object with the node's name, for `weft status`.
//!
//! - Nothing decides on it. A cluster without the definition, or an agent without the right to write it, still works.
//! - The first report is written two seconds after the start, also without sandboxes. A report that could not
//!   be written is tried again, at first after two seconds.
//! - A change is written within half a minute; an unchanged report every five minutes, so that an old time shows a dead
//!   agent.
//! - The object belongs to the Node object, so that Kubernetes deletes it with the node.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipam::address_store::Slot;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use npwg::plan::Role;
use tokio::time::sleep;
use tracing::{debug, warn};

use cli_support::background::run_on_thread;
use cli_support::timestamp::{now, utc};
use kube_support::api_error;
use kube_support::cache::followed;
use kube_support::custom_resources::{
    FailedCall, NodePool, PluginState, WeftNode, WeftNodeSpec, WeftNodeStatus,
};
use kube_support::resources::NodeObject;
use node_support::address_store;
use node_support::history::History;
use node_support::sandboxes::Sandboxes;
use node_support::weft_cni::{WeftCni, is_copy};

/// Interval at which the facts are collected.
const INTERVAL: Duration = Duration::from_secs(30);
/// Interval after which a report that could not be written is tried again. It doubles up to [`INTERVAL`].
const RETRY: Duration = Duration::from_secs(2);
/// Interval at which an unchanged report is written.
const RENEW: Duration = Duration::from_secs(300);
/// Delay before the first report, so that the journal is read.
const FIRST: Duration = Duration::from_secs(2);
/// Age up to which failed calls are counted, in seconds.
const HISTORY_MAX: u64 = 3600;
/// Maximum length for a failure message, in characters.
const MESSAGE_MAX: usize = 300;
/// Maximum number of pools in a report.
const POOLS_MAX: usize = 100;
/// Age from which a cache is reported.
const STALE: Duration = Duration::from_secs(60);
/// Maximum number of stale caches in a report.
const STALE_CACHES_MAX: usize = 32;
/// Variable that the kubelet sets in every pod.
const POD_VARIABLE: &str = "KUBERNETES_SERVICE_HOST";
/// Report fields that may be absent.
const OPTIONAL: [&str; 2] = ["defaultNetwork", "lastFailure"];
/// Field manager for the object.
const MANAGER: &str = "weft-agent";
/// Name under which the container runtime calls the plugin.
const PLUGIN: &str = "weft";

/// Directories on this node from which facts are read.
#[derive(Clone, Debug)]
pub(crate) struct Directories {
    /// The meta-plugin's `cniDir`.
    pub(crate) journal: PathBuf,
    /// Where the address stores are.
    pub(crate) address_stores: PathBuf,
    /// Where the container runtime finds plugins.
    pub(crate) plugins: PathBuf,
}

/// Result of the last comparison with the plugin file, and the file that was compared.
#[derive(Debug, Default)]
struct Compared {
    /// Inode, size, and when it last changed, in seconds and nanoseconds.
    file: (u64, u64, i64, i64),
    state: PluginState,
}

/// Reports until the agent ends.
pub(crate) async fn follow(
    client: Client,
    node: String,
    directories: Directories,
    sandboxes: Arc<Sandboxes>,
) {
    let (mut compared, mut written) = (Compared::default(), None::<(WeftNodeStatus, Instant)>);
    let (mut is_refused, mut retry) = (false, RETRY);
    sleep(FIRST).await;
    loop {
        let (from, of) = (directories.clone(), Arc::clone(&sandboxes));
        let collected = run_on_thread(move || {
            let status = collect(&from, &of, &mut compared);
            (status, compared)
        });
        let Ok((status, still)) = collected.await else {
            compared = Compared::default();
            sleep(INTERVAL).await;
            continue;
        };
        compared = still;
        let mut pause = INTERVAL;
        let is_due = written.as_ref().is_none_or(|(last, at)| *last != status || at.elapsed() >= RENEW);
        if is_due {
            match write(&client, &node, status.clone()).await {
                Ok(()) => {
                    (written, is_refused) = (Some((status, Instant::now())), false);
                    retry = RETRY;
                    debug!("node report written");
                }
                Err(error) => {
                    (pause, retry) = (retry, (retry * 2).min(INTERVAL));
                    // The cluster may lack the definition for good, so this is said once.
                    if !is_refused {
                        let error = api_error::describe(&error);
                        warn!(%error, "failed to write the node report; weft status does not show this node");
                    }
                    is_refused = true;
                }
            }
        }
        sleep(pause).await;
    }
}

/// Creates or replaces the report.
///
/// Optional fields that are absent now are removed by a merge patch with null. The API server in Kubernetes
/// 1.20 would read a field that an apply patch no longer has as null, and refuse the whole report.
async fn write(client: &Client, node: &str, mut status: WeftNodeStatus) -> Result<(), kube::Error> {
    status.reported_at = utc(now());
    let mut report = WeftNode::new(node, WeftNodeSpec {});
    let mut patch = serde_json::json!({ "status": status });
    for key in OPTIONAL {
        let absent = patch["status"].get(key).is_none();
        if absent {
            patch["status"][key] = serde_json::Value::Null;
        }
    }
    let reports: Api<WeftNode> = Api::all(client.clone());
    match reports.patch(node, &PatchParams::default(), &Patch::Merge(&patch)).await {
        Err(kube::Error::Api(answer)) if answer.code == 404 => {}
        written => return written.map(drop),
    }
    report.status = Some(status);
    report.metadata.owner_references = owner(client, node).await.map(|owner| vec![owner]);
    reports.patch(node, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&report)).await.map(drop)
}

/// Returns the reference to the Node object; `None` if there is no such object or it cannot be read.
async fn owner(client: &Client, node: &str) -> Option<OwnerReference> {
    // The agent may list nodes, and has no right to get one.
    let named = ListParams::default().fields(&format!("metadata.name={node}"));
    let found = Api::<NodeObject>::all(client.clone()).list_metadata(&named).await.ok()?;
    let uid = found.items.first()?.uid()?;
    Some(OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.to_owned(),
        uid,
        ..OwnerReference::default()
    })
}

/// Collects the facts. The report's time is not set.
fn collect(directories: &Directories, sandboxes: &Sandboxes, compared: &mut Compared) -> WeftNodeStatus {
    let Directories { journal, address_stores, plugins } = directories;
    let [(_, attached), (_, partly), (_, unreadable)] = sandboxes.counts();
    let (failed_calls, last_failure) = failures(journal);
    WeftNodeStatus {
        reported_at: String::new(),
        in_pod: std::env::var_os(POD_VARIABLE).is_some(),
        version: build_info::VERSION.to_owned(),
        commit: build_info::COMMIT.to_owned(),
        plugin: compared.plugin(plugins),
        default_network: default_network(sandboxes),
        sandboxes: (attached + partly + unreadable) as u64,
        incomplete_sandboxes: (partly + unreadable) as u64,
        failed_calls,
        last_failure,
        pools: pools(address_stores),
        stale_caches: stale_caches(),
    }
}

/// Returns the resources whose caches are stale.
fn stale_caches() -> Vec<String> {
    let states = followed::states().into_iter();
    let stale = states.filter(|state| state.is_synced && state.age >= STALE);
    stale.map(|state| state.kind.to_owned()).take(STALE_CACHES_MAX).collect()
}

/// Returns the default network in the newest sandbox.
fn default_network(sandboxes: &Sandboxes) -> String {
    sandboxes.with(|known| {
        let newest = known.values().max_by_key(|sandbox| sandbox.modified);
        let delegates = newest.map(|sandbox| &sandbox.entry.plan.delegates);
        let default = delegates.and_then(|all| all.iter().find(|delegate| delegate.role == Role::Default));
        default.map(|delegate| delegate.network.clone()).unwrap_or_default()
    })
}

/// Returns how many calls failed within the last hour, and the newest one.
fn failures(journal: &Path) -> (u64, Option<FailedCall>) {
    let since = now().saturating_sub(HISTORY_MAX).saturating_mul(1_000_000);
    let mut records = History::below(journal).failures().unwrap_or_default();
    records.retain(|record| record.error.is_some() && record.time >= since);
    let last = records.last().and_then(|record| {
        let message = record.error.as_ref()?.to_string();
        Some(FailedCall {
            time: utc(record.time / 1_000_000),
            verb: record.verb.clone(),
            pod: format!("{}/{}", record.pod.namespace, record.pod.name),
            message: message.chars().take(MESSAGE_MAX).collect(),
        })
    });
    (records.len() as u64, last)
}

/// Returns the pools for this node's address stores. A store that cannot be read is left out.
fn pools(address_stores: &Path) -> Vec<NodePool> {
    let stores = address_store::all(address_stores).unwrap_or_default();
    let pool = |(name, path): (String, PathBuf)| {
        let store = address_store::read(&path).ok()??;
        let (mut held, mut free) = (0, 0);
        for block in store.blocks() {
            for slot in store.slots_of(&block) {
                match slot {
                    Slot::Held { .. } | Slot::Unknown => held += 1,
                    Slot::Free(_) => free += 1,
                    _ => {}
                }
            }
        }
        Some(NodePool { name, held, free })
    };
    stores.into_iter().filter_map(pool).take(POOLS_MAX).collect()
}

// === impl Compared ===

impl Compared {
    /// Compares the runtime's plugin with this image's weft-cni, unless the file is unchanged.
    fn plugin(&mut self, plugins: &Path) -> PluginState {
        let file = plugins.join(PLUGIN);
        let Ok(metadata) = fs::metadata(&file) else {
            *self = Compared::default();
            return if plugins.is_dir() { PluginState::Missing } else { PluginState::Unknown };
        };
        let identity = (metadata.ino(), metadata.size(), metadata.mtime(), metadata.mtime_nsec());
        if self.file != identity || self.state == PluginState::Unknown {
            let state = match WeftCni::find() {
                Err(_) => PluginState::Unknown,
                Ok(own) if is_copy(own.program(), &file) => PluginState::Current,
                Ok(_) => PluginState::Different,
            };
            *self = Compared { file: identity, state };
        }
        self.state
    }
}
