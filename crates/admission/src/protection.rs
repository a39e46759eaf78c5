//! Protection of a definition that pods use.
//!
//! A deletion is refused, not held by a finalizer: a finalizer would need a controller that is always there, and the definition
//! would vanish by itself later, when the last pod ends and nobody expects it. The annotation [`FORCE`] overrides it.
//!
//! weft itself never needs the definition of a running pod, because the plan is in the journal. A definition that is gone still
//! hurts: a pod that is recreated does not start, and Multus needs the definition for a DEL.

use kube_support::resources::Key;
use npwg::metadata::NetworkReference;
use serde_json::Value;

/// Annotation of a definition with the value `true`: it may be deleted while pods use it.
pub(crate) const FORCE: &str = "weft.dev/force";
/// Maximum number of pods that a message names.
const NAMED_MAX: usize = 5;

/// Returns why a definition cannot be deleted; `None` if no pod uses it, or the deletion is forced.
pub(crate) fn refusal(network: &NetworkReference, definition: &Value, users: &[Key]) -> Option<String> {
    let forced = definition.pointer("/metadata/annotations").and_then(|annotations| annotations.get(FORCE));
    if users.is_empty() || forced.is_some_and(|value| value == "true") {
        return None;
    }
    let NetworkReference { namespace, name, .. } = network;
    Some(format!(
        "network {network} is used by {}; delete them first, or run: kubectl annotate net-attach-def -n {namespace} {name} {FORCE}=true",
        named(users)
    ))
}

/// Returns a warning for a change of a definition that pods use.
pub(crate) fn warning(users: &[Key]) -> Option<String> {
    (!users.is_empty())
        .then(|| format!("{} keep the old configuration until they are recreated", named(users)))
}

fn named(users: &[Key]) -> String {
    let mut names: Vec<String> =
        users.iter().take(NAMED_MAX).map(|(namespace, name)| format!("{namespace}/{name}")).collect();
    if users.len() > names.len() {
        names.push(format!("{} more", users.len() - names.len()));
    }
    match users.len() {
        1 => format!("pod {}", names.join(", ")),
        count => format!("{count} pods ({})", names.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pods(count: usize) -> Vec<Key> {
        (0..count).map(|number| ("n".to_owned(), format!("p{number}"))).collect()
    }

    #[test]
    fn definition_in_use_names_its_pods_and_the_way_out() {
        let network = NetworkReference::new("n", "a");
        let refused = |definition: &Value, count| refusal(&network, definition, &pods(count));
        assert_eq!(refused(&json!({}), 0), None);
        let why = refused(&json!({}), 1).unwrap();
        assert!(why.starts_with("network n/a is used by pod n/p0; "), "{why}");
        assert!(why.ends_with("kubectl annotate net-attach-def -n n a weft.dev/force=true"), "{why}");
        let why = refused(&json!({}), 7).unwrap();
        assert!(why.contains("7 pods (n/p0, n/p1, n/p2, n/p3, n/p4, 2 more)"), "{why}");
        let forced = json!({ "metadata": { "annotations": { FORCE: "true" } } });
        assert_eq!(refused(&forced, 7), None);
        let not_forced = json!({ "metadata": { "annotations": { FORCE: "false" } } });
        assert!(refused(&not_forced, 1).is_some());
    }
}
