//! NetworkAttachmentDefinitions as networks of the container runtime: each definition is set through the runtime's
//! socket, and removed with the definition.
//!
//! Rules: what the runtime lists is compared with what the cluster has, at every change and every half minute, so that
//! neither a restart nor a missed call leaves a difference; a network whose uid is not our mark is somebody else's
//! and is left alone; one in use drains.
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

use super::brain::Brain;
use crate::network_api::client::{Client, InUse};
use crate::network_api::{Name, NetworkConfig, NetworkMetadata, conflist};

/// The uid of networks that come from definitions.
const MARK: &str = "network-attachment-definition";
/// How often everything is compared, also where nothing changed.
const PERIOD: Duration = Duration::from_secs(30);
/// How soon it is tried again where the runtime was away.
const RETRY: Duration = Duration::from_secs(2);
/// How long changes are gathered.
const GATHER: Duration = Duration::from_millis(100);

/// Keeps the runtime's networks as the definitions are, for ever.
pub(crate) async fn follow(brain: Arc<Brain>, socket: PathBuf) {
    let mut changes = brain.definitions.changes();
    let mut told = BTreeMap::new();
    brain.definitions.synced().await;
    loop {
        changes.mark_unchanged();
        let wait = match compare(&brain, &socket, &mut told).await {
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

/// Sets what is missing or different, removes what is too much.
async fn compare(brain: &Brain, socket: &Path, told: &mut BTreeMap<Name, String>) -> Result<(), Status> {
    let client = Client::connect(socket).await?;
    let mut there: BTreeMap<Name, NetworkConfig> = BTreeMap::new();
    for network in client.list().await? {
        let config = network.config.unwrap_or_default();
        there.insert(Name::of(&config.metadata.clone().unwrap_or_default()), config);
    }
    let mut wanted = BTreeSet::new();
    for definition in brain.definitions.all() {
        let name = Name { namespace: definition.namespace.clone(), name: definition.name.clone() };
        wanted.insert(name.clone());
        let done = match network(&definition) {
            Ok(config) => set(&client, &name, config, there.get(&name)).await,
            Err(why) => Err(Status::invalid_argument(why)),
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
    let too_much = there.iter().filter(|(name, config)| is_ours(config) && !wanted.contains(*name));
    for (Name { namespace, name }, _) in too_much {
        let metadata = NetworkMetadata {
            name: name.clone(),
            namespace: namespace.clone(),
            uid: MARK.to_owned(),
            generation: 0,
        };
        client.remove(metadata, InUse::Drained).await?;
        info!(namespace, name, "removed");
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
    there: Option<&NetworkConfig>,
) -> Result<(), Status> {
    match there {
        Some(there) if !is_ours(there) => {
            return Err(Status::already_exists("somebody else has set a network of this name"));
        }
        Some(there) if without_generation(there) == config => return Ok(()),
        _ => {}
    }
    client.set(config).await?;
    info!(network = %name, "set");
    Ok(())
}

fn without_generation(config: &NetworkConfig) -> NetworkConfig {
    let mut config = config.clone();
    config.metadata.iter_mut().for_each(|metadata| metadata.generation = 0);
    config
}

/// The network that a definition stands for; a definition whose network is on the node's disk has none here.
fn network(definition: &Definition) -> Result<NetworkConfig, String> {
    let resolved = resolve(definition, &Disk::default(), "the node, which the agent does not see");
    let network = resolved.map_err(|refusal| cni::Error::from(refusal).msg)?.network;
    let view = conflist::view(&network).map_err(|error| error.to_string())?;
    let metadata = NetworkMetadata {
        name: definition.name.clone(),
        namespace: definition.namespace.clone(),
        uid: MARK.to_owned(),
        generation: 0,
    };
    Ok(NetworkConfig { metadata: Some(metadata), ..view })
}
