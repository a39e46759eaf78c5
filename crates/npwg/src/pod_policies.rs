//! Pods as the network policies see them: their attachments, from the objects of the pods.

mod pod_networks;

pub use pod_networks::PodNetworks;
