//! The messages between `weft-cni` and the node agent, and the format of the journal that both read.
//!
//! - [`exchange`]: requests and replies on the agent's socket;
//! - [`journal`]: one file for each sandbox: its plan, and the result of every attachment;
//! - [`change`]: the difference between a sandbox in the journal and a new plan, for hot-plug.
//!
//! Nothing here opens a file or a socket.

#![forbid(unsafe_code)]

pub mod change;
pub mod exchange;
pub mod journal;
