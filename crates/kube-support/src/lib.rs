//! Support for clients of the Kubernetes API: client, caches, Events, leader election, credentials, health endpoints.

#![forbid(unsafe_code)]

pub mod api_error;
pub mod cache;
pub mod client;
mod credentials;
pub mod custom_resources;
pub mod event_effect;
pub mod event_publisher;
mod event_reason;
pub mod events;
pub mod health;
pub mod kuryr;
pub mod leader_election;
pub mod lookup;
mod note_identity;
mod resource_macro;
pub mod resources;
