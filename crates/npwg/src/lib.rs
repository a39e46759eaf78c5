//! The multi-network standard, pure: what a pod asks for, what will be done about it, what came of it.
//!
//! ```text
//!  manifest ─► metadata ─► selection ┐
//!              (pod, definitions)    ├─► plan ─► the hands act ─► outcome ─► verify
//!  configuration ──────► definition ─┘    │                          └─────► status
//!  (of the meta-plugin)  (four rules)     └─► explain         lint ◄─ manifest
//! ```
//!
//! Nothing here reads a file, a clock, a socket or the kernel. Whoever has the objects (the agent from its informers, the
//! meta-plugin from manifests) calls [`plan::plan`]; whoever has the hands does what the plan says.
//!
//! What binds the hands is in the plan as far as data can say it:
//! - the order of attachment is that of [`plan::Plan::delegates`] (NPWG1-6.2-1), and nothing runs in parallel (7.3);
//! - the identity of an attachment, the same for ADD, CHECK and DEL (4.2.1), and its exact configuration;
//! - what to verify ([`verify`]), whose the default route is ([`plan::RouteWish`]), the device's file (DI-1 to DI-5).
//!
//! Stopping at the first failure, unwinding, tearing down everything (7.2), the lock (7.3), readiness (6.1) and the
//! version of the answer (7.1) are the meta-plugin's; publishing is the agent's. `tests/requirements.rs` says of each
//! requirement which test here shows it, or where else it is kept.

#![forbid(unsafe_code)]

pub mod change;
pub mod configuration;
pub mod definition;
pub mod device;
pub mod exchange;
pub mod explain;
pub mod journal;
pub mod lint;
pub mod manifest;
pub mod metadata;
pub mod nearest;
pub mod outcome;
pub mod place;
pub mod plan;
pub mod policy;
pub mod refusal;
pub mod request;
pub mod selection;
pub mod status;
pub mod verify;

#[cfg(test)]
pub(crate) mod fixture;
