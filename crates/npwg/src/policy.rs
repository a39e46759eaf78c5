//! Who may use a definition: the annotation `weft.dev/access` on it.
//!
//! ```json
//! [{"namespaces": ["prod"], "serviceAccounts": ["prod/db"]}, {"namespaceSelector": {"matchLabels": {"team": "net"}}}]
//! ```
//!
//! A list of rules, or one. A rule fits a pod if everything it names does; a definition with the annotation may be
//! used by pods that one rule fits, and by nobody else; one without it by everyone.
//!
//! Rules: a policy that cannot be read lets nobody in; it holds for both network annotations (M14); of a pod of which the
//! runtime alone tells, neither labels nor service account are known, so that rules about them do not fit.
//!
//! Source: none of the standard's versions has it; selectors as in `metav1.LabelSelector`.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use crate::metadata::{Definition, NetworkReference, Pod};
use crate::plan::Access;

/// The annotation's key.
pub const ACCESS: &str = "weft.dev/access";
/// Longest policy read, in bytes.
const POLICY_MAX: usize = 64 * 1024;

/// What is to be said of a pod that the runtime alone tells of.
const UNKNOWN: &str = "labels and service account are not, for the API server does not answer";

/// Labels of an object.
pub type Labels = BTreeMap<String, String>;

/// A definition's policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy(Vec<Rule>);

/// The policies of definitions that have one, or why one cannot be read.
pub type Policies = BTreeMap<NetworkReference, Result<Policy, PolicyError>>;

/// Error of a policy that cannot be read. Such a policy admits no pod.
#[derive(Debug, Error)]
pub enum PolicyError {
    /// The annotation is too long.
    #[error("annotation {ACCESS} is longer than {POLICY_MAX} bytes")]
    TooLong,
    /// The annotation is not JSON.
    #[error("annotation {ACCESS}: {0}")]
    NotJson(#[source] serde_json::Error),
    /// An element is not a rule.
    #[error("annotation {ACCESS}: [{index}]: {cause}")]
    NotARule {
        /// Index of the element.
        index: usize,
        /// Error of the reader.
        #[source]
        cause: serde_json::Error,
    },
    /// A rule has no condition, and would admit every pod.
    #[error("annotation {ACCESS}: [{index}]: names nothing: write one of {known}", known = CONDITIONS)]
    NoCondition {
        /// Index of the rule.
        index: usize,
    },
}

/// Conditions of a rule.
const CONDITIONS: &str = "namespaces, namespaceSelector, podSelector, serviceAccounts";

/// What a pod must be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Rule {
    namespaces: Option<BTreeSet<String>>,
    namespace_selector: Option<Selector>,
    pod_selector: Option<Selector>,
    service_accounts: Option<BTreeSet<String>>,
}

/// What labels must be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Selector {
    match_labels: Labels,
    match_expressions: Vec<Expression>,
}

/// What one label must be.
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

/// The policies of these definitions.
pub fn policies<'a>(
    definitions: impl IntoIterator<Item = (&'a NetworkReference, &'a Definition)>,
) -> Policies {
    let policy = |(reference, definition): (&NetworkReference, &Definition)| {
        Policy::of(definition).transpose().map(|policy| (reference.clone(), policy))
    };
    definitions.into_iter().filter_map(policy).collect()
}

/// Must the labels of the pod's namespace be known?
pub fn ask_for_namespace_labels(policies: &Policies) -> bool {
    policies.values().flatten().any(Policy::asks_for_namespace_labels)
}

/// What they say about the pod; labels of its namespace that are not known fit no selector.
pub fn access(pod: &Pod, policies: Policies, namespace: Option<&Labels>) -> Access {
    let mut denied = BTreeMap::new();
    for (reference, policy) in policies {
        let why = match policy {
            Ok(policy) if policy.admits(pod, namespace) => continue,
            Ok(_) if pod.hearsay => {
                format!(
                    "annotation {ACCESS} of {reference} does not admit it as far as it is known: {UNKNOWN}"
                )
            }
            Ok(_) => format!("annotation {ACCESS} of {reference} does not admit it"),
            Err(error) => error.to_string(),
        };
        denied.insert(reference, why);
    }
    Access { denied }
}

impl Policy {
    /// The policy of a definition, if it has one.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn of(definition: &Definition) -> Result<Option<Policy>, PolicyError> {
        definition.annotations.get(ACCESS).map(|text| Policy::read(text)).transpose()
    }

    fn read(text: &str) -> Result<Policy, PolicyError> {
        if text.len() > POLICY_MAX {
            return Err(PolicyError::TooLong);
        }
        let written = match serde_json::from_str(text).map_err(PolicyError::NotJson)? {
            Value::Array(rules) => rules,
            rule => vec![rule],
        };
        let mut rules = Vec::with_capacity(written.len());
        for (index, value) in written.into_iter().enumerate() {
            let rule: Rule =
                serde_json::from_value(value).map_err(|cause| PolicyError::NotARule { index, cause })?;
            if rule == Rule::default() {
                return Err(PolicyError::NoCondition { index });
            }
            rules.push(rule);
        }
        Ok(Policy(rules))
    }

    /// Must the labels of the pod's namespace be known?
    pub fn asks_for_namespace_labels(&self) -> bool {
        self.0.iter().any(|rule| rule.namespace_selector.is_some())
    }

    /// May this pod use it? Labels of its namespace that are not known fit no selector.
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
        // Without its labels and account whatever excludes a pod, or names the usual account, would let it in.
        if pod.hearsay && (pod_selector.is_some() || service_accounts.is_some()) {
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
    fn a_rule_fits_if_all_it_names_does_and_one_rule_is_enough() {
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
            if policy.asks_for_namespace_labels() {
                assert!(!policy.admits(&pod(), None), "{text}: labels nobody knows");
            }
        }
    }

    #[test]
    fn a_pod_without_a_service_account_has_the_default_one() {
        let plain = Pod { service_account_name: String::new(), ..pod() };
        assert!(Policy::read(r#"{"serviceAccounts":["prod/default"]}"#).unwrap().admits(&plain, None));
    }

    #[test]
    fn a_pod_known_by_the_runtimes_word_alone_fits_no_rule_about_labels_and_accounts() {
        let told = Pod { namespace: "prod".into(), name: "db-0".into(), hearsay: true, ..Pod::default() };
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
            assert_eq!(Policy::read(text).unwrap().admits(&told, None), expected, "{text}");
        }
    }

    #[test]
    fn a_policy_that_cannot_be_read_says_why() {
        for (text, word) in [
            ("", "EOF"),
            ("{}", "[0]: names nothing"),
            (r#"[{"namespace":["a"]}]"#, "unknown field `namespace`"),
            (r#"{"podSelector":{"matchExpressions":[{"key":"a","operator":"Has"}]}}"#, "unknown variant"),
            ("7", "[0]: invalid type"),
        ] {
            let why = Policy::read(text).unwrap_err().to_string();
            assert!(why.starts_with("annotation weft.dev/access: ") && why.contains(word), "{text}: {why}");
        }
        assert!(Policy::read(&" ".repeat(POLICY_MAX + 1)).is_err());
        assert!(matches!(Policy::of(&Definition::default()), Ok(None)));
    }
}
