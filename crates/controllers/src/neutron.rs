//! Neutron controller: provides OpenStack ports for the networks that pods select, and writes the VIFs for the nodes.

pub(crate) mod config_file;
pub(crate) mod kuryr_conf;
pub(crate) mod neutron_metrics;
pub(crate) mod pod_subject;
pub(crate) mod port_allocator;
pub(crate) mod port_pool;
pub(crate) mod port_reconciler;
pub(crate) mod port_request;
pub(crate) mod port_rules;
pub(crate) mod vif_writer;
