//! Protocol between `weft-cni` and the node agent, and the journal format that both read.
//!
//! - [`message`]: requests and responses on the agent's socket, with the bodies in [`plan`], [`task`] and [`allocate`];
//! - [`frame`]: how a message is written and read: length, envelope, version, limits;
//! - [`journal`]: one file for each sandbox: the plan, and a result for every attachment;
//! - [`history`]: one record for each call and task, for people;
//! - [`diagnosis`]: what `weft` asks `weft-cni` about running sandboxes;
//! - [`change`]: the difference between a sandbox in the journal and a new plan, for hot-plug.
//!
//! Nothing here opens a file or a socket.

#![forbid(unsafe_code)]

pub mod allocate;
pub mod change;
pub mod diagnosis;
pub mod frame;
pub mod history;
pub mod journal;
pub mod message;
pub mod node_input;
pub mod plan;
pub mod task;
