//! Code that the roles on a node share: server for weft-cni, journal reader, sandbox garbage collection,
//! metrics, traces.

#![forbid(unsafe_code)]

pub mod address_store;
pub mod agent_server;
pub mod client_probe;
pub mod frame_io;
pub mod history;
pub mod journal_reader;
pub mod listener;
pub mod metric_labels;
pub mod metrics;
pub mod plan_metadata;
pub mod sandbox_gc;
pub mod sandboxes;
pub mod traces;
pub mod weft_cni;
