//! The networks of this node: those that were set, and the one on disk.
//!
//! Rules:
//! - what is told to a writer is on disk by then; writers follow each other;
//! - a sandbox keeps the configuration it was attached with, so a network may be replaced at any time;
//! - a network in use is not removed: the journal says who uses it, and what is being attached counts;
//! - a generation orders writers of one object; another uid is another object.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cni::name::PluginType;
use cni::network::Network;
use cni::{Error, code};
use ipnet::IpNet;
use npwg::journal::{Entry, State};
use tokio::sync::Mutex as Turn;
use tonic::Status;
use tracing::{info, warn};

use super::fallback::{Fallback, OnDisk};
use super::plugins::Plugins;
use super::store::{Store, Stored};
use crate::failure::Failure;
use crate::journal::{Journal, Row};
use crate::network_api::validation::{self, fault};
use crate::network_api::{FALLBACK, Name, NetworkConfig, NetworkMetadata};

/// Most networks.
const NETWORKS_MAX: usize = 10_000;
/// Most sandboxes named in a message.
const NAMED_MAX: usize = 8;

/// The networks.
#[derive(Debug)]
pub(crate) struct Networks {
    store: Store,
    pub(crate) plugins: Plugins,
    pub(crate) fallback: Fallback,
    /// What sandboxes get that ask for nothing; else the fallback.
    default: Option<Name>,
    journal: Journal,
    known: Mutex<BTreeMap<Name, Arc<Stored>>>,
    /// Sandboxes that are being attached, by network.
    running: Mutex<BTreeMap<Name, usize>>,
    writing: Turn<()>,
}

/// A network that a sandbox can be attached to.
#[derive(Clone, Debug)]
pub(crate) struct Usable {
    /// As sandboxes call it.
    pub(crate) label: String,
    /// What is run.
    pub(crate) network: Network,
    /// Its addresses, for plugins that take them.
    pub(crate) ranges: Vec<Vec<IpNet>>,
}

/// As long as it is there, a network is in use.
#[derive(Debug)]
pub(crate) struct InUse {
    networks: Arc<Networks>,
    names: Vec<Name>,
}

impl Networks {
    /// Reads what was set.
    pub(crate) fn open(
        store: Store,
        plugins: Plugins,
        fallback: Fallback,
        default: Option<Name>,
        journal: Journal,
    ) -> Result<Networks, Failure> {
        let read = store.read_all()?;
        let known = read.into_iter().map(|stored| (stored.checked.name.clone(), Arc::new(stored))).collect();
        Ok(Networks {
            store,
            plugins,
            fallback,
            default,
            journal,
            known: Mutex::new(known),
            running: Mutex::default(),
            writing: Turn::new(()),
        })
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<Name, Arc<Stored>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn running(&self) -> MutexGuard<'_, BTreeMap<Name, usize>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those that were set, by name.
    pub(crate) fn all(&self) -> Vec<Arc<Stored>> {
        self.known().values().cloned().collect()
    }

    /// Creates or replaces one; as it is stored then.
    pub(crate) async fn set(
        self: &Arc<Networks>,
        config: Option<NetworkConfig>,
    ) -> Result<Arc<Stored>, Status> {
        let mut checked = validation::check(config)?;
        let networks = Arc::clone(self);
        let (needs, version) = (checked.needs.clone(), checked.network.version);
        blocking(move || networks.plugins.look().require(&needs, version))
            .await?
            .map_err(|error| fault("config.cniv1_config", types(&checked.needs), error))?;
        let _turn = self.writing.lock().await;
        let before = self.known().get(&checked.name).cloned();
        if before.is_none() && self.known().len() >= NETWORKS_MAX {
            return Err(Status::resource_exhausted(format!("there are {NETWORKS_MAX} networks already")));
        }
        settle(&mut checked.config, before.as_deref().map(|stored| &stored.checked.config))?;
        if let Some(same) =
            before.filter(|stored| stored.checked.config == checked.config && !stored.draining)
        {
            return Ok(same);
        }
        let generation = checked.config.metadata.as_ref().map(|metadata| metadata.generation);
        let stored = Arc::new(Stored { checked, draining: false });
        self.write(&stored).await?;
        info!(network = %stored.checked.name, ?generation, "set");
        Ok(stored)
    }

    async fn write(self: &Arc<Networks>, stored: &Arc<Stored>) -> Result<(), Status> {
        let (store, writes) = (self.store.clone(), Arc::clone(stored));
        let written = blocking(move || store.write(&writes)).await?;
        written.map_err(|cause| {
            Status::internal(format!("network {}: not stored: {cause}", stored.checked.name))
        })?;
        self.known().insert(stored.checked.name.clone(), Arc::clone(stored));
        Ok(())
    }

    /// Removes one, or lets it drain.
    pub(crate) async fn remove(
        self: &Arc<Networks>,
        metadata: Option<NetworkMetadata>,
        drain: bool,
    ) -> Result<(), Status> {
        let name = validation::name(metadata.as_ref(), "metadata")?;
        let _turn = self.writing.lock().await;
        let Some(stored) = self.known().get(&name).cloned() else { return Ok(()) };
        let uid = metadata.map(|metadata| metadata.uid).unwrap_or_default();
        let known = stored.checked.config.metadata.as_ref().map_or("", |metadata| metadata.uid.as_str());
        if !uid.is_empty() && uid != known {
            let why = format!("network {name} has uid {known:?}, not {uid:?}: it is another one");
            return Err(Status::failed_precondition(why));
        }
        let users = self.users(&name).await?;
        match (users.is_empty(), drain) {
            (true, _) => self.forget(&name).await,
            (false, true) => {
                let draining = Stored { draining: true, ..Stored::clone(&stored) };
                self.write(&Arc::new(draining)).await?;
                info!(network = %name, sandboxes = users.len(), "draining");
                Ok(())
            }
            (false, false) => {
                let shown = users.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
                let more = users.len().saturating_sub(NAMED_MAX);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                Err(Status::failed_precondition(format!("network {name} is in use by {shown}{more}")))
            }
        }
    }

    async fn forget(self: &Arc<Networks>, name: &Name) -> Result<(), Status> {
        let (store, gone) = (self.store.clone(), name.clone());
        let removed = blocking(move || store.remove(&gone)).await?;
        removed.map_err(|cause| Status::internal(format!("network {name}: not removed: {cause}")))?;
        self.known().remove(name);
        info!(network = %name, "removed");
        Ok(())
    }

    /// Removes what drains and has drained.
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
                warn!(network = %name, why = status.message(), "still draining");
            }
        }
    }

    /// Who uses it, as a person calls them; also who may, where that cannot be known.
    async fn users(self: &Arc<Networks>, name: &Name) -> Result<Vec<String>, Status> {
        let journal = self.journal.clone();
        let rows = blocking(move || journal.rows()).await?;
        let rows = rows.map_err(|failure| Status::internal(failure.to_string()))?;
        let label = name.to_string();
        let mut users: Vec<String> = rows
            .iter()
            .filter_map(|row| match row {
                Row::Entry(entry) if uses(entry, &label) => Some(format!(
                    "sandbox {} ({}/{})",
                    entry.container_id, entry.plan.pod.namespace, entry.plan.pod.name
                )),
                Row::Entry(_) => None,
                Row::Broken { container, .. } => {
                    Some(format!("sandbox {container}, whose entry in the journal cannot be read"))
                }
            })
            .collect();
        if let Some(count) = self.running().get(name) {
            users.push(format!("{count} that are being made"));
        }
        Ok(users)
    }

    /// A network by the name a sandbox uses; `path` is where it stands.
    pub(crate) fn find(&self, name: &Name, path: &str) -> Result<Usable, Status> {
        if name.namespace.is_empty() && name.name == FALLBACK {
            return match self.fallback.read() {
                OnDisk::Found(network) => Ok(on_disk(*network)),
                OnDisk::Broken(why) => Err(Status::failed_precondition(format!("{path}: {FALLBACK}: {why}"))),
                OnDisk::Absent => {
                    let directory = self.fallback.directory().display();
                    Err(Status::not_found(format!("{path}: {FALLBACK}: {directory} holds no network")))
                }
            };
        }
        let label = name.to_string();
        match self.known().get(name) {
            None => Err(Status::not_found(format!("{path}: {label:?}: there is no such network"))),
            Some(stored) if stored.draining => {
                let why = format!("{path}: {label:?}: it is being removed, and takes no new sandbox");
                Err(Status::failed_precondition(why))
            }
            Some(stored) => {
                let network = stored.checked.network.clone();
                Ok(Usable { label, network, ranges: stored.checked.ranges.clone() })
            }
        }
    }

    /// What sandboxes get that ask for nothing.
    ///
    /// # Errors
    /// Code 11: there is none now.
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
                    "no default network: {} holds none",
                    self.fallback.directory().display()
                ))),
            },
        }
    }

    /// Holds networks as being in use.
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

/// Is something of this sandbox attached to the network, or may it be?
fn uses(entry: &Entry, label: &str) -> bool {
    let attachments = entry.plan.delegates.iter().zip(&entry.attachments);
    attachments
        .into_iter()
        .any(|(delegate, attachment)| delegate.network == label && attachment.state != State::Detached)
}

/// Settles uid and generation beside what is stored.
///
/// Generation 0 keeps the generation where nothing changes, and is the next one where something does.
fn settle(config: &mut NetworkConfig, stored: Option<&NetworkConfig>) -> Result<(), Status> {
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
            return refused(&format!("older than what is stored: {}", before.generation));
        }
        equal if equal == before.generation && !same => {
            return refused("is stored already, with another content: a change has a higher one");
        }
        newer => newer,
    };
    config.metadata.get_or_insert_default().generation = settled;
    Ok(())
}

fn types(needs: &[PluginType]) -> String {
    needs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Does what takes time away from the thread that answers.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    tokio::task::spawn_blocking(work).await.map_err(|cause| Status::internal(cause.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(uid: &str, generation: u32, kind: &str) -> NetworkConfig {
        let metadata =
            NetworkMetadata { name: "n".into(), namespace: String::new(), uid: uid.into(), generation };
        let plugin = crate::network_api::CniPlugin { r#type: kind.into(), ..Default::default() };
        let cni = crate::network_api::CniConfig { plugins: vec![plugin], ..Default::default() };
        NetworkConfig { metadata: Some(metadata), cniv1_config: Some(cni), ..Default::default() }
    }

    #[test]
    fn generations_order_writers_of_one_object() {
        let stored = config("u", 5, "bridge");
        for (uid, written, kind, expected) in [
            ("u", 0, "bridge", Some(5)),
            ("u", 0, "ptp", Some(6)),
            ("", 5, "bridge", Some(5)),
            ("u", 5, "ptp", None),
            ("u", 4, "bridge", None),
            ("u", 9, "ptp", Some(9)),
            ("u", 9, "bridge", Some(9)),
            ("another", 1, "ptp", Some(1)),
        ] {
            let mut config = config(uid, written, kind);
            let settled = settle(&mut config, Some(&stored)).ok();
            let metadata = config.metadata.unwrap();
            assert_eq!(settled.map(|()| metadata.generation), expected, "{uid} {written} {kind}");
            assert_eq!(metadata.uid, if uid.is_empty() { "u" } else { uid });
        }
        let mut first = config("", 0, "bridge");
        settle(&mut first, None).unwrap();
        assert_eq!(first.metadata.unwrap().generation, 1);
    }
}
