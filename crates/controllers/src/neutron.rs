//! Controller of Neutron ports: from the pods' selections to ports of OpenStack, and to the VIFs that nodes read.

pub(crate) mod config_file;
pub(crate) mod kuryr_conf;
pub(crate) mod pod_subject;
pub(crate) mod port_allocator;
pub(crate) mod port_pool;
pub(crate) mod port_reconciler;
pub(crate) mod port_request;
pub(crate) mod port_rules;
pub(crate) mod vif_writer;
