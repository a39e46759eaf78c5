//! Control characters of a terminal: which they are, and text without them.
//!
//! Names, errors and results are untrusted, so none of their characters may control the terminal that shows them.

pub(crate) use cni::text::is_control;
pub use cni::text::plain;
