//! Support for the roles of a node: the server that weft-cni asks, the journal's reader, sandbox garbage collection, traces.

pub(crate) mod address_store;
pub(crate) mod agent_server;
pub(crate) mod client_probe;
pub(crate) mod journal_reader;
pub(crate) mod listener;
pub(crate) mod metrics;
pub(crate) mod plan_metadata;
pub(crate) mod sandbox_gc;
pub(crate) mod sandboxes;
pub(crate) mod traces;
pub(crate) mod weft_cni;
