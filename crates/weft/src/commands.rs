//! Subcommands of `weft`: one module each, with its `Arguments` and `run`.

pub(crate) mod attach;
pub(crate) mod bundle;
pub(crate) mod capture;
pub(crate) mod check;
pub(crate) mod cnitool;
pub(crate) mod completion;
pub(crate) mod crds;
pub(crate) mod demo;
pub(crate) mod detach;
pub(crate) mod doctor;
pub(crate) mod executor;
pub(crate) mod explain;
pub(crate) mod history;
pub(crate) mod import;
pub(crate) mod init;
pub(crate) mod install;
pub(crate) mod ipam;
pub(crate) mod lint;
pub(crate) mod list;
pub(crate) mod network;
pub(crate) mod plan;
pub(crate) mod publish;
pub(crate) mod status;
pub(crate) mod trace;
pub(crate) mod version;
