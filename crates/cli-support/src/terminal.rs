//! Control characters of a terminal: which they are, and text without them.

pub(crate) use cni::text::is_obeyed;
pub use cni::text::plain;
