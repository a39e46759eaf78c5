//! Linter for Neutron ports in a definition's Kuryr annotation.
//!
//! Source: Kuryr-Kubernetes `multi_vif.py`; `docs/neutron.md`.

use super::Report;
use crate::Located;
use npwg::metadata::Definition;
use npwg::nearest::hint;
use npwg::refusal::{Fault, KeyPath};
use npwg::rule::Rule;

/// Annotation that makes a definition a Neutron network.
pub const KURYR_CONFIG: &str = "openstack.org/kuryr-config";
/// Ways to plug in a port.
pub const DRIVER_TYPES: [&str; 3] = ["neutron-vif", "nested-vlan", "nested-macvlan"];
/// Keys that the annotation can have.
const KEYS: [&str; 2] = ["subnetId", "driverType"];

pub(super) fn look(report: &mut Report<'_>, located: &Located<Definition>) {
    let definition = &located.value;
    let Some(text) = definition.annotations.get(KURYR_CONFIG) else { return };
    let path = KeyPath::root().key("metadata").key("annotations").key(KURYR_CONFIG);
    let at = located.node_at(&path).span.start;
    let subject = npwg::definition::subject(&definition.reference());
    let fault_of = |rule: Rule, reason: String| Fault::new(rule, &subject, reason).at(path.clone());
    let fault = |reason: String| fault_of(Rule::InvalidKuryrConfig, reason);
    let config = match serde_json::from_str::<serde_json::Value>(text) {
        Ok(serde_json::Value::Object(config)) => config,
        Ok(_) => {
            let fault = fault("is not an object".to_owned()).hint("write {\"subnetId\": \"…\"}");
            report.add(at, fault);
            return;
        }
        Err(cause) => {
            let why = cni::wording::syntax_error(text.as_bytes(), &cause);
            report.add(at, fault(format!("is not JSON: {why}")));
            return;
        }
    };
    for (key, value) in &config {
        match (key.as_str(), value.as_str()) {
            (_, _) if value.is_null() => {}
            ("subnetId", Some(id)) => {
                let is_id = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
                if id.is_empty() || id.len() > 64 || !id.bytes().all(is_id) {
                    report.add(at, fault(format!("subnetId: {id:?} is not an id")));
                }
            }
            ("driverType", Some(name)) => {
                if !DRIVER_TYPES.contains(&name) {
                    let reason = format!("driverType: {name:?} is not one of {}", DRIVER_TYPES.join(", "));
                    report.add(at, fault(reason));
                }
            }
            (known, None) if KEYS.contains(&known) => {
                report.add(at, fault(format!("{key}: {value} is not a string")));
            }
            _ => {
                let hint = hint(key, &KEYS);
                let reason = format!("{key}: unknown key");
                let reason = if hint.is_empty() { reason } else { format!("{reason}: {hint}") };
                report.add(at, fault_of(Rule::UnknownKey, reason));
            }
        }
    }
}
