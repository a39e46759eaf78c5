//! Networks on this node: the stored ones, and the one in the CNI directory.
//!
//! - A network is on disk before the client that sets it gets a response. Writers run one after the other.
//! - A write completes even if the client disconnects, so that memory and disk stay equal.
//! - A sandbox keeps the configuration that it was attached with, so a network can be replaced at any time.
//! - A network in use is not removed. The journal shows which sandboxes use it. Sandboxes that are just being created
//!   count as well, and so do journal entries that cannot be read.
//! - If the uid matches the stored one, a write is rejected when the generation is older, or equal with other content;
//!   generation 0 means "the next one". With another uid, the network is replaced whatever the generation.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cni::name::PluginType;
use cni::network::Network;
use cni::{Error, code};
use ipnet::IpNet;
use prost::Message;
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};
use tonic::Status;
use tracing::{info, warn};

use super::fallback::{Fallback, OnDisk};
use super::plugins::Plugins;
use crate::network_store::{Found, Store, Stored};
use cli_support::background::run_on_thread;
use cli_support::failure::Failure;
use cri::network_api::validation;
use cri::network_api::validation::{Checked, fault};
use cri::network_api::{FALLBACK, Name, NetworkConfig, NetworkMetadata};
use node_support::journal_reader::{Journal, Row};
use node_support::plan_metadata;

/// Maximum number of networks.
const NETWORKS_MAX: usize = 10_000;
/// Maximum size of all networks as messages, in bytes: together with the network on disk, a list must fit in 16 MiB.
const BYTES_MAX: usize = 14 << 20;
/// Maximum number of sandboxes that an error names.
const NAMED_MAX: usize = 8;

/// Networks on a node.
#[derive(Debug)]
pub(crate) struct Networks {
    store: Store,
    pub(crate) plugins: Plugins,
    pub(crate) fallback: Fallback,
    /// Network for sandboxes that request none; the fallback if not set.
    default: Option<Name>,
    journal: Journal,
    known: Mutex<BTreeMap<Name, Arc<Stored>>>,
    /// Whether some files could not be read, but may become readable later.
    has_unread: AtomicBool,
    /// Number of sandboxes being created, by network.
    running: Mutex<BTreeMap<Name, usize>>,
    writing: Arc<Turn<()>>,
}

/// Network that a sandbox can be attached to.
#[derive(Clone, Debug)]
pub(crate) struct Usable {
    /// Name that sandboxes use.
    pub(crate) label: String,
    /// Configuration list to execute.
    pub(crate) network: Network,
    /// Ranges for plugins with the `ipRanges` capability.
    pub(crate) ranges: Vec<Vec<IpNet>>,
}

/// Guard that marks networks as in use until it is dropped.
#[derive(Debug)]
pub(crate) struct InUse {
    networks: Arc<Networks>,
    names: Vec<Name>,
}

impl Networks {
    /// Reads the stored networks.
    pub(crate) fn open(
        store: Store,
        plugins: Plugins,
        fallback: Fallback,
        default: Option<Name>,
        journal: Journal,
    ) -> Result<Networks, Failure> {
        let Found { networks, has_unread } = store.read_all()?;
        let known =
            networks.into_iter().map(|stored| (stored.checked.name.clone(), Arc::new(stored))).collect();
        Ok(Networks {
            store,
            plugins,
            fallback,
            default,
            journal,
            known: Mutex::new(known),
            has_unread: AtomicBool::new(has_unread),
            running: Mutex::default(),
            writing: Arc::default(),
        })
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<Name, Arc<Stored>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<Name, usize>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists the stored networks, sorted by name.
    pub(crate) fn all(&self) -> Vec<Arc<Stored>> {
        self.known().values().cloned().collect()
    }

    /// Creates or replaces a network, and returns it as stored.
    pub(crate) async fn set(
        self: &Arc<Networks>,
        config: Option<NetworkConfig>,
    ) -> Result<Arc<Stored>, Status> {
        let checked = validation::check(config)?;
        let networks = Arc::clone(self);
        let (needs, version) = (checked.needs.clone(), checked.network.version);
        blocking(move || networks.plugins.probe().require(&needs, version))
            .await?
            .map_err(|error| fault("config.cniv1_config", types(&checked.needs), error))?;
        let turn = Arc::clone(&self.writing).lock_owned().await;
        let networks = Arc::clone(self);
        complete(turn, async move { networks.replace(checked).await }).await
    }

    /// Stores a valid network if it differs from the stored one.
    async fn replace(self: &Arc<Networks>, mut checked: Checked) -> Result<Arc<Stored>, Status> {
        if self.has_unread.load(Ordering::Relaxed) {
            self.reread().await;
        }
        let before = self.known().get(&checked.name).cloned();
        if before.is_none() && self.known().len() >= NETWORKS_MAX {
            return Err(Status::resource_exhausted(format!(
                "the limit of {NETWORKS_MAX} networks is reached"
            )));
        }
        settle_generation(&mut checked.config, before.as_deref().map(|stored| &stored.checked.config))?;
        self.require_room(&checked)?;
        if let Some(same) =
            before.filter(|stored| stored.checked.config == checked.config && !stored.draining)
        {
            return Ok(same);
        }
        let generation = checked.config.metadata.as_ref().map(|metadata| metadata.generation);
        let stored = Arc::new(Stored { checked, draining: false });
        self.write(&stored).await?;
        info!(network = %stored.checked.name, ?generation, "network stored");
        Ok(stored)
    }

    /// Checks that a list of all networks would still fit in one response.
    fn require_room(&self, checked: &Checked) -> Result<(), Status> {
        let known = self.known();
        let others = known.values().filter(|stored| stored.checked.name != checked.name);
        let others: usize = others.map(|stored| stored.checked.config.encoded_len()).sum();
        let own = checked.config.encoded_len();
        let before = known.get(&checked.name).map_or(0, |stored| stored.checked.config.encoded_len());
        match others + own > BYTES_MAX && own > before {
            false => Ok(()),
            true => Err(Status::resource_exhausted(format!(
                "network {} has {own} bytes, the others {others}, and the limit is {BYTES_MAX}: remove some",
                checked.name
            ))),
        }
    }

    async fn write(self: &Arc<Networks>, stored: &Arc<Stored>) -> Result<(), Status> {
        let (store, writes) = (self.store.clone(), Arc::clone(stored));
        let name = &stored.checked.name;
        match blocking(move || store.write(&writes)).await? {
            Ok(()) => drop(self.known().insert(name.clone(), Arc::clone(stored))),
            Err(cause) => return Err(self.failed(name, "stored", &cause).await),
        }
        Ok(())
    }

    /// Rereads a network after a failed write, which may have reached the disk without being durable. Returns the error
    /// for the client.
    async fn failed(self: &Arc<Networks>, name: &Name, what: &str, cause: &std::io::Error) -> Status {
        let (store, wanted) = (self.store.clone(), name.clone());
        match blocking(move || store.find(&wanted)).await {
            Ok(Ok(Some(there))) => drop(self.known().insert(name.clone(), Arc::new(there))),
            Ok(Ok(None)) => drop(self.known().remove(name)),
            Ok(Err(error)) => {
                warn!(network = %name, %error, "failed to read stored network");
            }
            Err(status) => {
                warn!(network = %name, error = status.message(), "state of stored network unknown");
            }
        }
        Status::internal(format!("network {name}: not {what}: {cause}: try again"))
    }

    /// Removes a network, or lets it drain.
    pub(crate) async fn remove(
        self: &Arc<Networks>,
        metadata: Option<NetworkMetadata>,
        drain: bool,
    ) -> Result<(), Status> {
        let name = validation::name(metadata.as_ref(), "metadata")?;
        let uid = metadata.map(|metadata| metadata.uid).unwrap_or_default();
        let turn = Arc::clone(&self.writing).lock_owned().await;
        let networks = Arc::clone(self);
        complete(turn, async move { networks.remove_known(&name, &uid, drain).await }).await
    }

    async fn remove_known(self: &Arc<Networks>, name: &Name, uid: &str, drain: bool) -> Result<(), Status> {
        let Some(stored) = self.known().get(name).cloned() else {
            return self.remove_unread(name, uid).await;
        };
        let known = stored.checked.config.metadata.as_ref().map_or("", |metadata| metadata.uid.as_str());
        if !uid.is_empty() && uid != known {
            let why = format!("network {name} has uid {known:?}, not {uid:?}: it is another network");
            return Err(Status::failed_precondition(why));
        }
        let users = self.users(name).await?;
        match (users.is_empty(), drain) {
            (true, _) => self.forget(name).await,
            (false, true) => {
                let draining = Stored { draining: true, ..Stored::clone(&stored) };
                self.write(&Arc::new(draining)).await?;
                info!(network = %name, sandboxes = users.len(), "network draining");
                Ok(())
            }
            (false, false) => Err(in_use(name, &users)),
        }
    }

    /// Removes the file of a network that could not be read; otherwise the network would reappear once the file is
    /// readable.
    async fn remove_unread(self: &Arc<Networks>, name: &Name, uid: &str) -> Result<(), Status> {
        let (store, wanted) = (self.store.clone(), name.clone());
        let unread = match blocking(move || store.find(&wanted)).await? {
            Ok(None) => return Ok(()),
            Ok(Some(_)) => "its file did not exist or was unreadable when the proxy started".to_owned(),
            Err(error) => error.to_string(),
        };
        if !uid.is_empty() {
            let why = format!("network {name}: {unread}: cannot compare its uid with {uid:?}: omit the uid");
            return Err(Status::failed_precondition(why));
        }
        let users = self.users(name).await?;
        if !users.is_empty() {
            return Err(in_use(name, &users));
        }
        warn!(network = %name, error = unread, "removing network that could not be read");
        self.forget(name).await
    }

    async fn forget(self: &Arc<Networks>, name: &Name) -> Result<(), Status> {
        let (store, gone) = (self.store.clone(), name.clone());
        if let Err(cause) = blocking(move || store.remove(&gone)).await? {
            return Err(self.failed(name, "removed", &cause).await);
        }
        self.known().remove(name);
        info!(network = %name, "network removed");
        Ok(())
    }

    /// Rereads files that could not be read. The caller must hold the writers' lock.
    async fn reread(self: &Arc<Networks>) {
        let store = self.store.clone();
        match blocking(move || store.read_all()).await {
            Ok(Ok(Found { networks, has_unread })) => {
                let mut known = self.known();
                for stored in networks {
                    known.entry(stored.checked.name.clone()).or_insert_with(|| Arc::new(stored));
                }
                self.has_unread.store(has_unread, Ordering::Relaxed);
            }
            Ok(Err(error)) => warn!(%error, "failed to read stored networks"),
            Err(status) => warn!(error = status.message(), "state of stored networks unknown"),
        }
    }

    /// Rereads files that could not be read, if there are any.
    pub(crate) async fn recover(self: &Arc<Networks>) {
        if self.has_unread.load(Ordering::Relaxed) {
            let _turn = self.writing.lock().await;
            self.reread().await;
        }
    }

    /// Removes draining networks that no sandbox uses any more.
    pub(crate) async fn finish_draining(self: &Arc<Networks>) {
        let draining: Vec<Name> =
            self.known().iter().filter(|(_, stored)| stored.draining).map(|(name, _)| name.clone()).collect();
        for name in draining {
            let _turn = self.writing.lock().await;
            let still = self.known().get(&name).is_some_and(|stored| stored.draining);
            let done = match self.users(&name).await {
                Ok(users) if users.is_empty() && still => self.forget(&name).await,
                Ok(_) => Ok(()),
                Err(status) => Err(status),
            };
            if let Err(status) = done {
                warn!(network = %name, error = status.message(), "failed to remove draining network");
            }
        }
    }

    /// Lists a network's users as text for an error. Sandboxes that may be users count as well.
    async fn users(self: &Arc<Networks>, name: &Name) -> Result<Vec<String>, Status> {
        let journal = self.journal.clone();
        let rows = blocking(move || journal.rows()).await?;
        let rows = rows.map_err(|failure| Status::internal(failure.to_string()))?;
        let label = name.to_string();
        let mut users: Vec<String> = rows
            .iter()
            .filter_map(|row| match row {
                Row::Entry(entry)
                    if plan_metadata::attached(entry, None).iter().any(|(_, on)| *on == label) =>
                {
                    Some(format!(
                        "sandbox {} ({}/{})",
                        entry.container_id, entry.plan.pod.namespace, entry.plan.pod.name
                    ))
                }
                Row::Entry(_) => None,
                Row::Broken { container, .. } => {
                    Some(format!("sandbox {container}, whose journal entry cannot be read"))
                }
            })
            .collect();
        if let Some(count) = self.running().get(name) {
            users.push(match count {
                1 => "a sandbox that is being created".to_owned(),
                count => format!("{count} sandboxes that are being created"),
            });
        }
        Ok(users)
    }

    /// Finds a network by the name that sandboxes use; `path` leads to the name in the request, for the error.
    pub(crate) fn find(&self, name: &Name, path: &str) -> Result<Usable, Status> {
        if name.namespace.is_empty() && name.name == FALLBACK {
            return match self.fallback.read() {
                OnDisk::Found(network) => Ok(on_disk(*network)),
                OnDisk::Broken(why) => Err(Status::failed_precondition(format!("{path}: {FALLBACK}: {why}"))),
                OnDisk::Absent => {
                    let directory = self.fallback.directory().display();
                    Err(Status::not_found(format!("{path}: {FALLBACK}: {directory} contains no network")))
                }
            };
        }
        let label = name.to_string();
        match self.known().get(name) {
            None => Err(Status::not_found(format!("{path}: {label:?}: no such network"))),
            Some(stored) if stored.draining => {
                let why = format!("{path}: {label:?}: is being removed and accepts no new sandbox");
                Err(Status::failed_precondition(why))
            }
            Some(stored) => {
                let network = stored.checked.network.clone();
                Ok(Usable { label, network, ranges: stored.checked.ranges.clone() })
            }
        }
    }

    /// Returns the network for sandboxes that request none.
    ///
    /// # Errors
    /// Code 11: there is none at present.
    pub(crate) fn default_network(&self) -> Result<Usable, Error> {
        let absent = |why: String| Error::new(code::TRY_AGAIN_LATER, why);
        match &self.default {
            Some(name) => self
                .find(name, "--default-network")
                .map_err(|status| absent(format!("no default network: {}", status.message()))),
            None => match self.fallback.read() {
                OnDisk::Found(network) => Ok(on_disk(*network)),
                OnDisk::Broken(why) => Err(absent(format!("no default network: {why}"))),
                OnDisk::Absent => Err(absent(format!(
                    "no default network: {} contains none",
                    self.fallback.directory().display()
                ))),
            },
        }
    }

    /// Returns the default network's name, if it is a stored network.
    pub(crate) fn default_name(&self) -> Option<&Name> {
        self.default.as_ref()
    }

    /// Marks networks as in use until the guard is dropped.
    pub(crate) fn hold(self: &Arc<Networks>, names: Vec<Name>) -> InUse {
        let mut running = self.running();
        for name in &names {
            *running.entry(name.clone()).or_default() += 1;
        }
        drop(running);
        InUse { networks: Arc::clone(self), names }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut running = self.networks.running();
        for name in &self.names {
            if let Some(count) = running.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    running.remove(name);
                }
            }
        }
    }
}

fn on_disk(network: Network) -> Usable {
    Usable { label: FALLBACK.to_owned(), network, ranges: Vec::new() }
}

/// Settles uid and generation for a network that replaces `stored`.
///
/// Generation 0 keeps the stored generation if nothing changes, and increments it otherwise.
fn settle_generation(config: &mut NetworkConfig, stored: Option<&NetworkConfig>) -> Result<(), Status> {
    let before = stored.and_then(|stored| stored.metadata.clone()).unwrap_or_default();
    let metadata = config.metadata.get_or_insert_default();
    let written = metadata.generation;
    if metadata.uid.is_empty() {
        metadata.uid.clone_from(&before.uid);
    }
    if stored.is_none() || metadata.uid != before.uid {
        metadata.generation = written.max(1);
        return Ok(());
    }
    metadata.generation = before.generation;
    let same = Some(&*config) == stored;
    let refused =
        |why: &str| Err(Status::failed_precondition(format!("config.metadata.generation: {written}: {why}")));
    let settled = match written {
        0 if same => before.generation,
        0 => before.generation.saturating_add(1),
        older if older < before.generation => {
            return refused(&format!("older than the stored generation {}", before.generation));
        }
        equal if equal == before.generation && !same => {
            return refused("is already stored with other content: a change needs a higher generation");
        }
        newer => newer,
    };
    config.metadata.get_or_insert_default().generation = settled;
    Ok(())
}

fn types(needs: &[PluginType]) -> String {
    needs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Returns the error for an attempt to remove a network in use.
fn in_use(name: &Name, users: &[String]) -> Status {
    let shown = users.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
    let more = users.len().saturating_sub(NAMED_MAX);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Status::failed_precondition(format!("network {name} is in use by {shown}{more}"))
}

/// Completes a write in a separate task. If it ran in the call itself, a cancelled call could stop it anywhere.
async fn complete<T: Send + 'static>(
    turn: OwnedMutexGuard<()>,
    work: impl Future<Output = Result<T, Status>> + Send + 'static,
) -> Result<T, Status> {
    let done = tokio::spawn(async move {
        let done = work.await;
        drop(turn);
        done
    });
    done.await.map_err(|cause| Status::internal(cause.to_string()))?
}

/// Runs blocking work on another thread, so that it does not delay other calls.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    run_on_thread(work).await.map_err(|error| Status::internal(error.to_string()))
}

#[cfg(test)]
mod tests;
