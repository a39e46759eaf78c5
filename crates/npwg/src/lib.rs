//! The multi-network standard, pure.
#![forbid(unsafe_code)]

pub mod metadata;
pub mod nearest;
pub mod refusal;
pub mod request;
pub mod selection;
