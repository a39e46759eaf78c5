//! The multi-network standard, pure.
#![forbid(unsafe_code)]

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
pub mod refusal;
pub mod request;
pub mod selection;
pub mod status;
pub mod verify;

#[cfg(test)]
pub(crate) mod fixture;
