//! Support for clients of the Kubernetes API: client, caches, Events, leader election, credentials, health endpoints.

pub(crate) mod api_error;
pub(crate) mod cache;
pub(crate) mod client;
pub(crate) mod credentials;
pub(crate) mod events;
pub(crate) mod health;
pub(crate) mod kuryr;
pub(crate) mod leader_election;
pub(crate) mod lookup;
pub(crate) mod resource_macro;
pub(crate) mod resources;
