//! Client and messages of the Container Runtime Interface, and the CRI Network API.

pub(crate) mod messages;
pub(crate) mod network_api;
pub(crate) mod runtime_sandboxes;
pub(crate) mod runtime_status;
pub(crate) mod unix_service;
pub(crate) mod wire;
