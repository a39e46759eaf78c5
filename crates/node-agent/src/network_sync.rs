//! Network sync: sets each NetworkAttachmentDefinition as a network in the container runtime (CRI Network
//! API).
//!
//! - The networks that the runtime lists are compared with the definitions at every change and every 30
//!   seconds, so that a restart or a lost call leaves no difference.
//! - Only networks with the uid [`SYNC_UID`] are changed; others belong to other clients.
//! - A network in use drains when the definition is deleted. It is set again if the definition returns meanwhile.
//!
//! Source: «CRI Network API», «Kubernetes integration»; multi-network specification (NPWG), section 3.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use npwg::definition::{Disk, resolve};
use npwg::metadata::Definition;
use tokio::time::{sleep, timeout};
use tonic::Status;
use tracing::{info, warn};

use crate::agent_state::AgentState;
use cri::network_api::{Name, Network, NetworkConfig, NetworkMetadata, conflist};
use cri::network_client::{Client, InUse};

/// Uid for networks that come from definitions.
const SYNC_UID: &str = "network-attachment-definition";
/// Interval between comparisons if no definition changes.
const PERIOD: Duration = Duration::from_secs(30);
/// Pause before the next attempt after a failure.
const RETRY: Duration = Duration::from_secs(2);
/// Time for which changes are collected.
const GATHER: Duration = Duration::from_millis(100);

/// Runs until the agent ends.
pub(crate) async fn follow(agent: Arc<AgentState>, socket: PathBuf) {
    let mut changes = agent.planner.definitions.changes();
    let mut reported = BTreeMap::new();
    agent.planner.definitions.synced().await;
    loop {
        changes.mark_unchanged();
        let wait = match compare(&agent, &socket, &mut reported).await {
            Ok(()) => PERIOD,
            Err(status) => {
                warn!(socket = %socket.display(), error = status.message(), "failed to synchronize networks with the NetworkAttachmentDefinitions");
                RETRY
            }
        };
        if let Ok(Ok(())) = timeout(wait, changes.changed()).await {
            sleep(GATHER).await;
        }
    }
}

/// Action on one of the runtime's networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// The network is correct.
    Nothing,
    /// The network is missing, different, or draining although the definition exists.
    Set,
    /// The network's definition was deleted.
    Remove,
    /// Another client has set a network with this name.
    Refuse,
}

/// Returns the action for a definition's network, if there is one, and the network that the runtime lists.
fn action(wanted: Option<&NetworkConfig>, there: Option<&Network>) -> Action {
    let draining = there.and_then(|there| there.status.as_ref()).is_some_and(|status| status.draining);
    let config = there.map(|there| there.config.clone().unwrap_or_default());
    match (wanted, config) {
        (Some(_), Some(there)) if !is_ours(&there) => Action::Refuse,
        (Some(wanted), Some(there)) if without_generation(&there) == *wanted && !draining => Action::Nothing,
        (Some(_), _) => Action::Set,
        (None, Some(there)) if is_ours(&there) && !draining => Action::Remove,
        (None, _) => Action::Nothing,
    }
}

/// Sets missing or different networks and removes those without a definition.
async fn compare(
    agent: &AgentState,
    socket: &Path,
    reported: &mut BTreeMap<Name, String>,
) -> Result<(), Status> {
    let client = Client::connect(socket).await?;
    let mut there: BTreeMap<Name, Network> = BTreeMap::new();
    for network in client.list().await? {
        let metadata = network.config.as_ref().and_then(|config| config.metadata.clone());
        there.insert(Name::of(&metadata.unwrap_or_default()), network);
    }
    let mut wanted = BTreeSet::new();
    for definition in agent.planner.definitions.all() {
        let name = Name { namespace: definition.namespace.clone(), name: definition.name.clone() };
        wanted.insert(name.clone());
        let done = match network(&definition) {
            Ok(config) => set(&client, &name, config, there.get(&name)).await,
            Err(error) => Err(Status::invalid_argument(error.to_string())),
        };
        match done {
            Ok(()) => drop(reported.remove(&name)),
            Err(status) if status.code() == tonic::Code::Unavailable => return Err(status),
            Err(status) => {
                // It is logged once, until the reason changes.
                let why = status.message().to_owned();
                if reported.get(&name) != Some(&why) {
                    warn!(definition = %name, error = why, "failed to set NetworkAttachmentDefinition as a network of the runtime");
                    reported.insert(name, why);
                }
            }
        }
    }
    let surplus = there
        .iter()
        .filter(|(name, network)| !wanted.contains(*name) && action(None, Some(network)) == Action::Remove);
    for (Name { namespace, name }, _) in surplus {
        let metadata = NetworkMetadata {
            name: name.clone(),
            namespace: namespace.clone(),
            uid: SYNC_UID.to_owned(),
            generation: 0,
        };
        client.remove(metadata, InUse::Drained).await?;
        info!(namespace, name, "requested removal of network; it is removed when no sandbox uses it");
    }
    reported.retain(|name, _| wanted.contains(name));
    Ok(())
}

fn is_ours(config: &NetworkConfig) -> bool {
    config.metadata.as_ref().is_some_and(|metadata| metadata.uid == SYNC_UID)
}

async fn set(
    client: &Client,
    name: &Name,
    config: NetworkConfig,
    there: Option<&Network>,
) -> Result<(), Status> {
    match action(Some(&config), there) {
        Action::Nothing | Action::Remove => Ok(()),
        Action::Refuse => Err(Status::already_exists("another client has set a network of this name")),
        Action::Set => {
            client.set(config).await?;
            info!(network = %name, "network set");
            Ok(())
        }
    }
}

fn without_generation(config: &NetworkConfig) -> NetworkConfig {
    let mut config = config.clone();
    config.metadata.iter_mut().for_each(|metadata| metadata.generation = 0);
    config
}

/// Why a definition cannot be set as a network in the runtime.
#[derive(Debug, thiserror::Error)]
enum NetworkError {
    /// The definition's configuration cannot be resolved.
    #[error("{}", .0.msg)]
    Resolve(cni::Error),
    /// The CRI Network API cannot represent the configuration.
    #[error(transparent)]
    Represent(cni::Error),
}

/// Returns the network for a definition. A definition whose configuration is on the node's disk has none
/// here.
fn network(definition: &Definition) -> Result<NetworkConfig, NetworkError> {
    let resolved = resolve(definition, &Disk::default(), "the node's disk, which the agent does not read");
    let network = resolved.map_err(|refusal| NetworkError::Resolve(refusal.into()))?.network;
    let view = conflist::view(&network).map_err(NetworkError::Represent)?;
    let metadata = NetworkMetadata {
        name: definition.name.clone(),
        namespace: definition.namespace.clone(),
        uid: SYNC_UID.to_owned(),
        generation: 0,
    };
    Ok(NetworkConfig { metadata: Some(metadata), ..view })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cri::network_api::{CniConfig, NetworkStatus};

    fn config(uid: &str, version: &str, generation: u32) -> NetworkConfig {
        let metadata =
            NetworkMetadata { name: "n".into(), uid: uid.into(), generation, ..Default::default() };
        let cni = CniConfig { cni_version: version.into(), ..Default::default() };
        NetworkConfig { metadata: Some(metadata), cniv1_config: Some(cni), ..Default::default() }
    }

    #[test]
    fn network_sync_sets_a_draining_network_again_and_removes_once() {
        let there = |config: NetworkConfig, draining: bool| {
            // Readiness is independent of draining.
            let status = NetworkStatus { sandbox_management: false, connectivity: true, draining };
            Network { config: Some(config), status: Some(status) }
        };
        let wanted = config(SYNC_UID, "1.0.0", 0);
        for (wanted, there, expected) in [
            (Some(&wanted), None, Action::Set),
            (Some(&wanted), Some(there(config(SYNC_UID, "1.0.0", 3), false)), Action::Nothing),
            (Some(&wanted), Some(there(config(SYNC_UID, "1.0.0", 3), true)), Action::Set),
            (Some(&wanted), Some(there(config(SYNC_UID, "0.4.0", 3), false)), Action::Set),
            (Some(&wanted), Some(there(config("", "1.0.0", 3), false)), Action::Refuse),
            (Some(&wanted), Some(there(config("", "1.0.0", 3), true)), Action::Refuse),
            (None, Some(there(config(SYNC_UID, "1.0.0", 3), false)), Action::Remove),
            (None, Some(there(config(SYNC_UID, "1.0.0", 3), true)), Action::Nothing),
            (None, Some(there(config("", "1.0.0", 3), false)), Action::Nothing),
            (None, None, Action::Nothing),
        ] {
            assert_eq!(action(wanted, there.as_ref()), expected, "{there:?}");
        }
    }
}
