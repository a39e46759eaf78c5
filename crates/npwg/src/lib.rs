//! Kubernetes multi-network specification (NPWG): selection, definitions, plan, status.
//!
//! ```text
//!  metadata ─────► selection ──┐
//!  (pod, definitions)          ├─► plan ─► weft-cni executes it ─► outcome ─► verify
//!  configuration ► definition ─┘    │                                └──────► status
//!  (of the meta-plugin)             └─► explain
//! ```
//!
//! The crate is pure: it reads no file, clock or socket, and does not use the kernel. The node agent calls
//! [`plan::plan`] with caches, the meta-plugin with manifests. `weft-cni` executes the plan.
//!
//! The plan contains as data what must be followed when it is executed:
//! - the order of attachment, that of [`plan::Plan::delegates`] (NPWG1-6.2-1); nothing runs in parallel (7.3);
//! - the identity of each attachment, the same for ADD, CHECK and DEL (4.2.1), and the exact configuration;
//! - the requests to verify ([`verify`]), the network with the default route ([`plan::DefaultRouteAction`]) and the device
//!   file (DI-1 to DI-5).
//!
//! The meta-plugin stops at the first failure, undoes all effects and deletes attachments (7.2), locks (7.3), checks
//! readiness (6.1) and chooses the version of the result (7.1). The node agent publishes the status.
//! `tests/requirements.rs` tests that each requirement has a test.

#![forbid(unsafe_code)]

pub mod configuration;
pub mod definition;
pub mod device;
pub mod explain;
pub mod metadata;
pub mod nearest;
pub mod network_policy;
pub mod outcome;
pub mod plan;
pub mod pod_policies;
pub mod policy;
pub mod protocol;
pub mod refusal;
pub mod request;
pub mod rule;
pub mod selection;
pub mod status;
pub mod verify;

#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
