//! Chained plugins, which follow another plugin in a list and change the interface that it made.
//!
//! They require a previous result, pass it on, and on DEL undo the changes on the host and in the container.

pub mod bandwidth;
pub mod firewall;
pub mod passthru;
pub mod portmap;
pub mod sbr;
pub mod tuning;
pub mod vrf;
