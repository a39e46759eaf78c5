//! Client and messages for the Container Runtime Interface (CRI) and for the CRI Network API.

#![forbid(unsafe_code)]

pub mod messages;
pub mod network_api;
pub mod network_client;
pub mod runtime_sandboxes;
pub mod runtime_status;
pub mod unix_service;
pub mod wire;
