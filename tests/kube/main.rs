//! End-to-end tests of lane `kube`: agents and controllers with a real etcd and kube-apiserver, without a kubelet.
//!
//! Needs the programs that `lanes/kube/prepare` provides.

#![cfg(test)]

mod admission_policies;
mod admission_webhook;
mod agent;
mod agent_failures;
mod api_pool;
mod api_proxy;
mod cluster_upgrade;
mod cold_agent;
mod console_blocks;
mod helm_chart;
mod hot_plug_and_drift;
mod ipam;
mod ipam_claims;
mod ipam_findings;
mod ipam_leases;
mod ipam_lost_state;
mod ipam_prefetch;
mod ipam_requests;
mod ipam_resize;
mod ipam_sharing;
mod kustomizations;
mod metrics;
mod multus;
mod network_attachment_definitions;
mod network_policy_agent;
mod network_policy_controller;
mod network_policy_growth;
mod network_test;
mod page;
mod requested_apis;
mod scale;
mod scraping;
mod services;
mod services_leader_election;
mod status;
mod stopped_cache;
mod stuck_leader;
mod throttling;
mod trace;
mod traces;
mod virtual_machines;
mod whereabouts;
mod whereabouts_import;
