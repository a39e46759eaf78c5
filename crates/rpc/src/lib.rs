//! Protocol between `weft-cni` and the node agent, and the format of the journal that both read.
//!
//! - [`message`]: the requests and responses of the agent's socket, with their bodies in [`plan`], [`task`] and [`allocate`];
//! - [`frame`]: how a message is written and read: length, envelope, version, limits;
//! - [`journal`]: one file for each sandbox: its plan, and the result of every attachment;
//! - [`history`]: one record for each call and task, for people;
//! - [`diagnosis`]: what `weft` asks of `weft-cni` about running sandboxes;
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
