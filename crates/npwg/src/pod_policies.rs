//! Network policies for planned pods, and pod attachments as policies see them, both derived from the pod
//! objects.

mod plan_policies;
mod pod_networks;

pub use plan_policies::{
    ISOLATED, POD_POLICIES_MAX, add_resolved_to_plan, add_to_plan, attachment_policy, encoded_size,
    own_attachment, reference,
};
pub use pod_networks::PodNetworks;
