//! NetworkAttachmentDefinitions as networks of the container runtime: each definition is set through the runtime's
//! socket, and removed with the definition.
//!
//! Rules: what the runtime lists is compared with what the cluster has, at every change and every half minute, so that
//! neither a restart nor a missed call leaves a difference; a network whose uid is not our mark is somebody else's
//! and is left alone; one in use drains, and is set again if its definition comes back meanwhile.
//!
//! Source: «CRI Network API», «Kubernetes integration»; the standard, 3.

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

/// The uid of networks that come from definitions.
const MARK: &str = "network-attachment-definition";
/// How often everything is compared, also where nothing changed.
const PERIOD: Duration = Duration::from_secs(30);
/// How soon it is tried again where the runtime was away.
const RETRY: Duration = Duration::from_secs(2);
/// How long changes are gathered.
const GATHER: Duration = Duration::from_millis(100);

/// Keeps the runtime's networks as the definitions are, for ever.
pub(crate) async fn follow(agent: Arc<AgentState>, socket: PathBuf) {
    let mut changes = agent.planner.definitions.changes();
    let mut told = BTreeMap::new();
    agent.planner.definitions.synced().await;
    loop {
        changes.mark_unchanged();
        let wait = match compare(&agent, &socket, &mut told).await {
            Ok(()) => PERIOD,
            Err(status) => {
                warn!(socket = %socket.display(), why = status.message(), "networks are not as the definitions");
                RETRY
            }
        };
        if let Ok(Ok(())) = timeout(wait, changes.changed()).await {
            sleep(GATHER).await;
        }
    }
}

/// What is to be done about a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    /// It is as it should be.
    Nothing,
    /// It is missing, different, or on its way out although its definition is there.
    Set,
    /// Its definition is gone.
    Remove,
    /// Somebody else has set one of this name.
    Refuse,
}

/// Between what a definition stands for, if there is one, and what the runtime lists.
fn deed(wanted: Option<&NetworkConfig>, there: Option<&Network>) -> Deed {
    let draining = there.and_then(|there| there.status.as_ref()).is_some_and(|status| status.draining);
    let config = there.map(|there| there.config.clone().unwrap_or_default());
    match (wanted, config) {
        (Some(_), Some(there)) if !is_ours(&there) => Deed::Refuse,
        (Some(wanted), Some(there)) if without_generation(&there) == *wanted && !draining => Deed::Nothing,
        (Some(_), _) => Deed::Set,
        (None, Some(there)) if is_ours(&there) && !draining => Deed::Remove,
        (None, _) => Deed::Nothing,
    }
}

/// Sets what is missing or different, removes what is too much.
async fn compare(agent: &AgentState, socket: &Path, told: &mut BTreeMap<Name, String>) -> Result<(), Status> {
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
            Ok(()) => drop(told.remove(&name)),
            Err(status) if status.code() == tonic::Code::Unavailable => return Err(status),
            Err(status) => {
                // Said once, until it changes.
                let why = status.message().to_owned();
                if told.get(&name) != Some(&why) {
                    warn!(definition = %name, why, "it is no network of the runtime");
                    told.insert(name, why);
                }
            }
        }
    }
    let too_much = there
        .iter()
        .filter(|(name, network)| !wanted.contains(*name) && deed(None, Some(network)) == Deed::Remove);
    for (Name { namespace, name }, _) in too_much {
        let metadata = NetworkMetadata {
            name: name.clone(),
            namespace: namespace.clone(),
            uid: MARK.to_owned(),
            generation: 0,
        };
        client.remove(metadata, InUse::Drained).await?;
        info!(namespace, name, "removed, once nothing uses it");
    }
    told.retain(|name, _| wanted.contains(name));
    Ok(())
}

fn is_ours(config: &NetworkConfig) -> bool {
    config.metadata.as_ref().is_some_and(|metadata| metadata.uid == MARK)
}

async fn set(
    client: &Client,
    name: &Name,
    config: NetworkConfig,
    there: Option<&Network>,
) -> Result<(), Status> {
    match deed(Some(&config), there) {
        Deed::Nothing | Deed::Remove => Ok(()),
        Deed::Refuse => Err(Status::already_exists("somebody else has set a network of this name")),
        Deed::Set => {
            client.set(config).await?;
            info!(network = %name, "set");
            Ok(())
        }
    }
}

fn without_generation(config: &NetworkConfig) -> NetworkConfig {
    let mut config = config.clone();
    config.metadata.iter_mut().for_each(|metadata| metadata.generation = 0);
    config
}

/// A reason why a definition is no network of the runtime.
#[derive(Debug, thiserror::Error)]
enum NetworkError {
    /// The configuration of the definition cannot be resolved.
    #[error("{}", .0.msg)]
    Resolve(cni::Error),
    /// The configuration has no form in the API of networks.
    #[error(transparent)]
    Represent(cni::Error),
}

/// The network that a definition stands for; a definition whose network is on the node's disk has none here.
fn network(definition: &Definition) -> Result<NetworkConfig, NetworkError> {
    let resolved = resolve(definition, &Disk::default(), "the node, which the agent does not see");
    let network = resolved.map_err(|refusal| NetworkError::Resolve(refusal.into()))?.network;
    let view = conflist::view(&network).map_err(NetworkError::Represent)?;
    let metadata = NetworkMetadata {
        name: definition.name.clone(),
        namespace: definition.namespace.clone(),
        uid: MARK.to_owned(),
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
    fn what_drains_is_set_again_when_its_definition_is_back_and_is_removed_once() {
        let there = |config: NetworkConfig, draining: bool| {
            // Whether it is ready says nothing of whether it drains.
            let status = NetworkStatus { sandbox_management: false, connectivity: true, draining };
            Network { config: Some(config), status: Some(status) }
        };
        let wanted = config(MARK, "1.0.0", 0);
        for (wanted, there, expected) in [
            (Some(&wanted), None, Deed::Set),
            (Some(&wanted), Some(there(config(MARK, "1.0.0", 3), false)), Deed::Nothing),
            (Some(&wanted), Some(there(config(MARK, "1.0.0", 3), true)), Deed::Set),
            (Some(&wanted), Some(there(config(MARK, "0.4.0", 3), false)), Deed::Set),
            (Some(&wanted), Some(there(config("", "1.0.0", 3), false)), Deed::Refuse),
            (Some(&wanted), Some(there(config("", "1.0.0", 3), true)), Deed::Refuse),
            (None, Some(there(config(MARK, "1.0.0", 3), false)), Deed::Remove),
            (None, Some(there(config(MARK, "1.0.0", 3), true)), Deed::Nothing),
            (None, Some(there(config("", "1.0.0", 3), false)), Deed::Nothing),
            (None, None, Deed::Nothing),
        ] {
            assert_eq!(deed(wanted, there.as_ref()), expected, "{there:?}");
        }
    }
}
