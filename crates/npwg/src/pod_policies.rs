//! Network policies of planned pods, and the attachments of pods as policies see them, from the objects of the pods.

mod plan_policies;
mod pod_networks;

pub use plan_policies::{
    ISOLATED, POD_POLICIES_MAX, add_resolved_to_plan, add_to_plan, attachment_policy, encoded_size,
    own_attachment, reference,
};
pub use pod_networks::PodNetworks;
