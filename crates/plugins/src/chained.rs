//! The plugins that stand behind another one in a list and change what it made.
//!
//! They need its result, hand it on, and undo on DEL what they did, wherever the interface still is.

pub mod bandwidth;
pub mod firewall;
pub mod portmap;
pub mod sbr;
pub mod tuning;
pub mod vrf;
