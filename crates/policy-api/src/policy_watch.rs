//! Watch on a cluster's policies, in the newest version that the API server has.

use std::sync::Arc;
use std::time::Duration;

use kube::runtime::watcher::Config;
use kube::{Api, Client};
use kube_support::api_error;
use kube_support::cache::{Cache, follow};
use npwg::network_policy::VERSIONS;
use thiserror::Error;
use tokio::time::sleep;
use tracing::warn;

use crate::policy_object::{PolicyObject, WatchedPolicy};

/// First and longest pause between attempts to detect the version.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Why the MultiNetworkPolicy version could not be detected.
#[derive(Debug, Error)]
enum VersionError {
    /// The API server returned an error or cannot be reached.
    #[error("{}", api_error::describe(.0))]
    Api(kube::Error),
    /// The server has no MultiNetworkPolicies.
    #[error("the API server has no MultiNetworkPolicies: apply deploy/policy")]
    None,
}

/// Keeps a cache with all policies up to date until the process ends. If the cluster has no definition yet,
/// it waits for it.
pub async fn follow_policies(client: Client, cache: Arc<Cache<WatchedPolicy>>) {
    let mut pause = PAUSES.0;
    let is_old = loop {
        match is_old(&client).await {
            Ok(is_old) => break is_old,
            Err(error) => {
                let error = error.to_string();
                warn!(error, "failed to detect the version of MultiNetworkPolicies");
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSES.1);
    };
    if is_old {
        follow(client, Api::<PolicyObject<true>>::all, Config::default(), cache).await;
    } else {
        follow(client, Api::<PolicyObject<false>>::all, Config::default(), cache).await;
    }
}

/// Whether the API server has the older version alone.
async fn is_old(client: &Client) -> Result<bool, VersionError> {
    let mut found = None;
    for (index, version) in VERSIONS.iter().enumerate() {
        let list = match client.list_api_group_resources(version).await {
            Ok(list) => list,
            Err(kube::Error::Api(status)) if status.code == 404 => continue,
            Err(error) => return Err(VersionError::Api(error)),
        };
        if list.resources.iter().any(|resource| resource.name == "multi-networkpolicies") {
            found = Some(index == 0);
        }
    }
    found.ok_or(VersionError::None)
}
