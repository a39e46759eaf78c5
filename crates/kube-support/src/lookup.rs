//! Lookup for one object in the Kubernetes API, with a time limit.

use std::fmt::Debug;
use std::time::Duration;

use kube::Api;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::time::timeout;

use super::resources::Reduced;
use crate::api_error;

/// Timeout for a lookup.
pub const ASK_MAX: Duration = Duration::from_secs(5);

/// Why a lookup failed.
#[derive(Debug, Error)]
pub enum LookupError {
    /// The API server refuses, or cannot be reached.
    #[error("{}", api_error::describe(.0))]
    Api(kube::Error),
    /// The API server does not answer in time.
    #[error("the API server does not answer within {} s", ASK_MAX.as_secs())]
    Late,
}

/// Looks up one object.
///
/// # Errors
/// The API server refuses, cannot be reached, or does not answer in time.
pub async fn ask<K>(api: Api<K>, name: &str) -> Result<Option<K::Form>, LookupError>
where
    K: Reduced + Clone + Debug + DeserializeOwned,
{
    match timeout(ASK_MAX, api.get_opt(name)).await {
        Ok(Ok(object)) => Ok(object.map(K::reduce)),
        Ok(Err(error)) => Err(LookupError::Api(error)),
        Err(_) => Err(LookupError::Late),
    }
}
