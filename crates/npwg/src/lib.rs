//! The Kubernetes multi-network specification (NPWG), pure: selection, definitions, plan, status.
//!
//! ```text
//!  metadata ─────► selection ──┐
//!  (pod, definitions)          ├─► plan ─► weft-cni executes it ─► outcome ─► verify
//!  configuration ► definition ─┘    │                                └──────► status
//!  (of the meta-plugin)             └─► explain
//! ```
//!
//! Nothing here reads a file, a clock, a socket or the kernel. The node agent (from its caches) and the meta-plugin (from
//! manifests) call [`plan::plan`]; `weft-cni` executes the plan.
//!
//! The plan states as data what binds its execution:
//! - the order of attachment is that of [`plan::Plan::delegates`] (NPWG1-6.2-1), and nothing runs in parallel (7.3);
//! - the identity of an attachment, the same for ADD, CHECK and DEL (4.2.1), and its exact configuration;
//! - what to verify ([`verify`]), which network has the default route ([`plan::RouteWish`]), the device file (DI-1 to DI-5).
//!
//! The meta-plugin stops at the first failure, unwinds, tears down (7.2), locks (7.3), checks readiness (6.1) and chooses
//! the version of the answer (7.1); the node agent publishes. `tests/requirements.rs` names the test of each requirement.

#![forbid(unsafe_code)]

pub mod configuration;
pub mod definition;
pub mod device;
pub mod explain;
pub mod metadata;
pub mod nearest;
pub mod outcome;
pub mod plan;
pub mod policy;
pub mod refusal;
pub mod request;
pub mod rule;
pub mod selection;
pub mod status;
pub mod verify;

#[cfg(any(test, feature = "fixture"))]
pub mod fixture;
