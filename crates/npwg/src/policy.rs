//! Access policy of a definition: the annotation `weft.dev/access`, which says which pods may use it.
//!
//! ```json
//! [{"namespaces": ["prod"], "serviceAccounts": ["prod/db"]}, {"namespaceSelector": {"matchLabels": {"team": "net"}}}]
//! ```
//!
//! The value is a rule or a list of rules. A rule fits a pod if all conditions do. A definition with the annotation
//! admits the pods that at least one rule fits; a definition without it admits every pod.
//!
//! - A policy that cannot be read admits no pod. A rule without a condition, which would fit every pod, is such a fault.
//! - A policy applies to both network annotations (M14).
//! - If only the container runtime describes the pod, labels and service account are unknown. Rules with conditions on
//!   them do not fit.
//!
//! Source: none, the specification has no access policy; selectors are those of `metav1.LabelSelector`.

use std::collections::{BTreeMap, BTreeSet};

use cni::{fold, wording};
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

pub use crate::metadata::Labels;
use crate::metadata::{Definition, NetworkReference, Pod};
use crate::plan::Access;

/// Annotation key.
pub const ACCESS: &str = "weft.dev/access";
/// Maximum length for a policy, in bytes.
const POLICY_MAX: usize = 64 * 1024;

/// Reason for a pod that only the container runtime describes.
const UNKNOWN: &str = "its labels and service account are unknown because the API server does not respond";

/// Access policy on a definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy(Vec<Rule>);

/// Policies on those definitions that have one; an error if a policy cannot be read.
pub type Policies = BTreeMap<NetworkReference, Result<Policy, PolicyError>>;

/// Why a policy cannot be read. Such a policy admits no pod.
#[derive(Debug, Error)]
pub enum PolicyError {
    /// The annotation is too long.
    #[error("annotation {ACCESS} is longer than {POLICY_MAX} bytes")]
    TooLong,
    /// The annotation is not JSON.
    #[error("annotation {ACCESS}: not JSON: {0}")]
    NotJson(String),
    /// An element is not a rule.
    #[error("annotation {ACCESS}: {0}")]
    NotARule(#[source] cni::Error),
    /// A rule has no condition, and would admit every pod.
    #[error("annotation {ACCESS}: [{index}]: names nothing: write one of {known}", known = CONDITIONS)]
    NoCondition {
        /// Index of the rule in the policy.
        index: usize,
    },
}

/// Conditions that a rule can have.
const CONDITIONS: &str = "namespaces, namespaceSelector, podSelector, serviceAccounts";

/// Conditions on a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Rule {
    namespaces: Option<BTreeSet<String>>,
    namespace_selector: Option<Selector>,
    pod_selector: Option<Selector>,
    service_accounts: Option<BTreeSet<String>>,
}

/// Condition on labels, like `metav1.LabelSelector`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Selector {
    match_labels: Labels,
    match_expressions: Vec<Expression>,
}

/// Condition on one label.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expression {
    key: String,
    operator: Operator,
    #[serde(default)]
    values: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

/// Returns the policies on these definitions.
pub fn policies<'a>(
    definitions: impl IntoIterator<Item = (&'a NetworkReference, &'a Definition)>,
) -> Policies {
    let policy = |(reference, definition): (&NetworkReference, &Definition)| {
        Policy::of(definition).transpose().map(|policy| (reference.clone(), policy))
    };
    definitions.into_iter().filter_map(policy).collect()
}

/// Whether a policy has a condition on the labels that the pod's namespace has.
pub fn need_namespace_labels(policies: &Policies) -> bool {
    policies.values().flatten().any(Policy::needs_namespace_labels)
}

/// Returns the definitions that the policies deny to the pod; unknown namespace labels fit no selector.
pub fn access(pod: &Pod, policies: Policies, namespace: Option<&Labels>) -> Access {
    let mut denied = BTreeMap::new();
    for (reference, policy) in policies {
        let why = match policy {
            Ok(policy) if policy.admits(pod, namespace) => continue,
            Ok(_) if pod.described_by_runtime => {
                format!("annotation {ACCESS} of {reference} does not admit it: {UNKNOWN}")
            }
            Ok(_) => format!("annotation {ACCESS} of {reference} does not admit it"),
            Err(error) => error.to_string(),
        };
        denied.insert(reference, why);
    }
    Access { denied }
}

impl Policy {
    /// Returns the definition's policy, if it has one.
    ///
    /// # Errors
    /// The annotation cannot be read.
    pub fn of(definition: &Definition) -> Result<Option<Policy>, PolicyError> {
        definition.annotations.get(ACCESS).map(|text| Policy::read(text)).transpose()
    }

    fn read(text: &str) -> Result<Policy, PolicyError> {
        if text.len() > POLICY_MAX {
            return Err(PolicyError::TooLong);
        }
        let written = match serde_json::from_str(text)
            .map_err(|cause| PolicyError::NotJson(wording::syntax_error(text.as_bytes(), &cause)))?
        {
            Value::Array(rules) => rules,
            rule => vec![rule],
        };
        let mut rules = Vec::with_capacity(written.len());
        for (index, value) in written.into_iter().enumerate() {
            let rule: Rule = fold::strict(&value, &format!("[{index}]")).map_err(PolicyError::NotARule)?;
            if rule == Rule::default() {
                return Err(PolicyError::NoCondition { index });
            }
            rules.push(rule);
        }
        Ok(Policy(rules))
    }

    /// Whether a rule has a condition on the labels that the pod's namespace has.
    pub fn needs_namespace_labels(&self) -> bool {
        self.0.iter().any(|rule| rule.namespace_selector.is_some())
    }

    /// Whether the pod may use the definition; unknown namespace labels fit no selector.
    pub fn admits(&self, pod: &Pod, namespace: Option<&Labels>) -> bool {
        self.0.iter().any(|rule| rule.fits(pod, namespace))
    }
}

impl Rule {
    fn fits(&self, pod: &Pod, namespace: Option<&Labels>) -> bool {
        let Rule { namespaces, namespace_selector, pod_selector, service_accounts } = self;
        let account = || match pod.service_account_name.as_str() {
            "" => format!("{}/default", pod.namespace),
            name => format!("{}/{name}", pod.namespace),
        };
        // Labels and account are unknown here: `NotIn`, `DoesNotExist` and the account `default` would fit by mistake.
        if pod.described_by_runtime && (pod_selector.is_some() || service_accounts.is_some()) {
            return false;
        }
        namespaces.as_ref().is_none_or(|known| known.contains(&pod.namespace))
            && namespace_selector
                .as_ref()
                .is_none_or(|selector| namespace.is_some_and(|labels| selector.fits(labels)))
            && pod_selector.as_ref().is_none_or(|selector| selector.fits(&pod.labels))
            && service_accounts.as_ref().is_none_or(|known| known.contains(&account()))
    }
}

impl Selector {
    fn fits(&self, labels: &Labels) -> bool {
        let Selector { match_labels, match_expressions } = self;
        match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && match_expressions.iter().all(|expression| {
                let value = labels.get(&expression.key);
                match expression.operator {
                    Operator::In => value.is_some_and(|value| expression.values.contains(value)),
                    Operator::NotIn => value.is_none_or(|value| !expression.values.contains(value)),
                    Operator::Exists => value.is_some(),
                    Operator::DoesNotExist => value.is_none(),
                }
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn pod() -> Pod {
        Pod {
            namespace: "prod".into(),
            name: "db-0".into(),
            labels: labels(&[("app", "db")]),
            service_account_name: "db".into(),
            ..Pod::default()
        }
    }

    #[test]
    fn access_policy_admits_a_pod_that_one_rule_fits() {
        let home = labels(&[("team", "net")]);
        for (text, expected) in [
            (r#"{"namespaces":["prod"]}"#, true),
            (r#"{"namespaces":["test"]}"#, false),
            (r#"[{"namespaces":["test"]},{"serviceAccounts":["prod/db"]}]"#, true),
            (r#"{"namespaces":["prod"],"serviceAccounts":["prod/web"]}"#, false),
            (r#"{"podSelector":{"matchLabels":{"app":"db"}}}"#, true),
            (
                r#"{"podSelector":{"matchExpressions":[{"key":"app","operator":"NotIn","values":["db"]}]}}"#,
                false,
            ),
            (r#"{"podSelector":{"matchExpressions":[{"key":"x","operator":"DoesNotExist"}]}}"#, true),
            (r#"{"podSelector":{"matchExpressions":[{"key":"app","operator":"Exists"}]}}"#, true),
            (
                r#"{"namespaceSelector":{"matchExpressions":[{"key":"team","operator":"In","values":["net"]}]}}"#,
                true,
            ),
            (r#"{"namespaceSelector":{"matchLabels":{"team":"web"}}}"#, false),
            (r#"{"namespaceSelector":{}}"#, true),
            ("[]", false),
        ] {
            let policy = Policy::read(text).unwrap();
            assert_eq!(policy.admits(&pod(), Some(&home)), expected, "{text}");
            if policy.needs_namespace_labels() {
                assert!(!policy.admits(&pod(), None), "{text}: unknown labels");
            }
        }
    }

    #[test]
    fn access_policy_uses_the_default_service_account() {
        let plain = Pod { service_account_name: String::new(), ..pod() };
        assert!(Policy::read(r#"{"serviceAccounts":["prod/default"]}"#).unwrap().admits(&plain, None));
    }

    #[test]
    fn access_policy_with_unknown_labels_admits_by_namespace_only() {
        let by_runtime = Pod {
            namespace: "prod".into(),
            name: "db-0".into(),
            described_by_runtime: true,
            ..Pod::default()
        };
        for (text, expected) in [
            (r#"{"serviceAccounts":["prod/default"]}"#, false),
            (r#"{"podSelector":{"matchExpressions":[{"key":"app","operator":"DoesNotExist"}]}}"#, false),
            (
                r#"{"podSelector":{"matchExpressions":[{"key":"app","operator":"NotIn","values":["db"]}]}}"#,
                false,
            ),
            (r#"{"podSelector":{}}"#, false),
            (r#"{"namespaces":["prod"]}"#, true),
            (r#"{"namespaces":["test"]}"#, false),
        ] {
            assert_eq!(Policy::read(text).unwrap().admits(&by_runtime, None), expected, "{text}");
        }
    }

    #[test]
    fn access_policy_malformed_is_reported() {
        for (text, word) in [
            ("", "it is empty"),
            ("{}", "[0]: names nothing"),
            (r#"[{"namespace":["a"]}]"#, "unknown key \"namespace\"; the keys are namespaces"),
            (
                r#"{"podSelector":{"matchExpressions":[{"key":"a","operator":"Has"}]}}"#,
                "operator: \"Has\": expected one of",
            ),
            ("7", "[0]: 7: expected an object"),
        ] {
            let why = Policy::read(text).unwrap_err().to_string();
            assert!(why.starts_with("annotation weft.dev/access: ") && why.contains(word), "{text}: {why}");
        }
        assert!(Policy::read(&" ".repeat(POLICY_MAX + 1)).is_err());
        assert!(matches!(Policy::of(&Definition::default()), Ok(None)));
    }
}
