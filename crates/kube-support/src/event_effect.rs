//! Effect of an Event on the pod state: the networks fail, or work again.
//!
//! `weft list --failed` and the page decide by it whether a pod is failing: the newest Event with an effect counts.

use crate::event_reason::EventReason;

/// Effect of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventEffect {
    /// The pod lacks a network, or a network does not work.
    Fails,
    /// The networks were attached, or work again.
    Works,
}

/// Reasons of a pod that fails. Warnings about a pod that works, such as an ignored annotation, are not among them.
const FAILS: [EventReason; 16] = [
    EventReason::AttachFailed,
    EventReason::DetachFailed,
    EventReason::InterfaceDrifted,
    EventReason::NetworkChangeFailed,
    EventReason::NetworkRefused,
    EventReason::NetworksMissing,
    EventReason::NeutronQuota,
    EventReason::NeutronRefused,
    EventReason::NeutronUnreachable,
    EventReason::NoNetworkFound,
    EventReason::NodeNotTrunk,
    EventReason::NodeUnknown,
    EventReason::PolicyUpdateFailed,
    EventReason::PortNotBound,
    EventReason::VifNotWritten,
    EventReason::VifUnreadable,
];

/// Reasons of a pod that works again.
const WORKS: [EventReason; 2] = [EventReason::AddedInterface, EventReason::InterfaceRestored];

/// Returns the effect of an Event with this reason.
pub fn event_effect(reason: &str) -> Option<EventEffect> {
    let is_among = |reasons: &[EventReason]| reasons.iter().any(|one| one.as_str() == reason);
    if is_among(&FAILS) { Some(EventEffect::Fails) } else { is_among(&WORKS).then_some(EventEffect::Works) }
}

// === impl EventEffect ===

impl EventEffect {
    /// Returns the effect as the page names it.
    pub fn as_str(self) -> &'static str {
        match self {
            EventEffect::Fails => "fails",
            EventEffect::Works => "works",
        }
    }
}
