//! Networks that a pod selects and does not have.
//!
//! A network that is selected twice needs two interfaces. Other components write a network's name without the pod's
//! namespace, so both forms count.

use super::Entry;
use crate::refusal::Refusal;
use crate::selection::{Annotation, Reading};

/// Network that a pod selects and does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingNetwork {
    /// `NAMESPACE/NAME`.
    pub network: String,
    /// Interface that it would have: the requested one, or `netN` by position.
    pub interface: String,
}

/// Compares a pod's networks annotation with the network-status.
///
/// # Errors
/// The annotation is invalid.
pub fn missing_networks(
    annotation: &str,
    namespace: &str,
    entries: &[Entry],
) -> Result<Vec<MissingNetwork>, Refusal> {
    let elements = Reading::of(Annotation::Networks, annotation, namespace).settle()?.elements;
    let mut present: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
    let mut missing = Vec::new();
    for element in elements {
        let network = element.network.to_string();
        let short = network.strip_prefix(namespace).and_then(|rest| rest.strip_prefix('/'));
        match present.iter().position(|known| *known == network || Some(*known) == short) {
            Some(place) => drop(present.swap_remove(place)),
            None => {
                let interface = element.interface.map(|name| name.to_string());
                let interface = interface.unwrap_or_else(|| format!("net{}", element.index + 1));
                missing.push(MissingNetwork { network, interface });
            }
        }
    }
    Ok(missing)
}
