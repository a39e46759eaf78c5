//! Lookup of one object of the Kubernetes API, with a time limit.

use std::fmt::Debug;
use std::time::Duration;

use kube::Api;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::resources::Reduced;
use crate::api_error;

/// How long the API may take for one object.
pub const ASK_MAX: Duration = Duration::from_secs(5);

/// Asks the API for one object.
pub async fn ask<K>(api: Api<K>, name: &str) -> Result<Option<K::Form>, String>
where
    K: Reduced + Clone + Debug + DeserializeOwned,
{
    match timeout(ASK_MAX, api.get_opt(name)).await {
        Ok(Ok(object)) => Ok(object.map(K::reduce)),
        Ok(Err(error)) => Err(api_error::said(&error)),
        Err(_) => Err(format!("the API server does not answer within {} s", ASK_MAX.as_secs())),
    }
}
