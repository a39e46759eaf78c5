//! Removes terminal control characters from text.
//!
//! Names, errors and results are untrusted: no character in them may control the terminal that shows them.

pub(crate) use cni::text::is_control;
pub use cni::text::plain;
