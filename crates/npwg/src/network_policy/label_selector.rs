//! Label selectors of Kubernetes, validated.
//!
//! Source: `metav1.LabelSelector`; Kubernetes documentation, "Labels and Selectors".

use std::collections::BTreeSet;

use serde::Serialize;

use super::NAMESPACE_NAME;
use crate::metadata::Labels;

/// Conditions on the labels of an object, all of which must be true. Without a condition it fits every object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    pub(super) requirements: Vec<Requirement>,
}

/// Condition on one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Requirement {
    pub(super) key: String,
    pub(super) operator: Operator,
}

/// Kinds of conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    In(BTreeSet<String>),
    NotIn(BTreeSet<String>),
    Exists,
    DoesNotExist,
}

/// Condition as it is written into the text of a peer selection.
#[derive(PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct RequirementText<'a> {
    key: &'a str,
    #[serde(flatten)]
    operator: OperatorText<'a>,
}

/// Operator and values.
#[derive(PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
enum OperatorText<'a> {
    In(&'a BTreeSet<String>),
    NotIn(&'a BTreeSet<String>),
    Exists(bool),
}

// === impl LabelSelector ===

impl LabelSelector {
    /// Returns the conditions in an order that does not depend on the author's.
    pub(super) fn text(&self) -> BTreeSet<RequirementText<'_>> {
        self.requirements.iter().map(Requirement::text).collect()
    }

    /// Whether an object with these labels fits.
    pub fn fits(&self, labels: &Labels) -> bool {
        self.requirements.iter().all(|one| one.fits(labels.get(&one.key).map(String::as_str)))
    }

    /// Whether a namespace fits. The label with the namespace's name is known without the object; other labels that are
    /// unknown (`None`) fit no condition.
    pub fn fits_namespace(&self, name: &str, labels: Option<&Labels>) -> bool {
        self.requirements.iter().all(|one| match (one.key.as_str(), labels) {
            (NAMESPACE_NAME, _) => one.fits(Some(name)),
            (key, Some(labels)) => one.fits(labels.get(key).map(String::as_str)),
            (_, None) => false,
        })
    }

    /// Whether the selector fits every object.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }
}

// === impl Requirement ===

impl Requirement {
    fn text(&self) -> RequirementText<'_> {
        let Requirement { key, operator } = self;
        let operator = match operator {
            Operator::In(values) => OperatorText::In(values),
            Operator::NotIn(values) => OperatorText::NotIn(values),
            Operator::Exists => OperatorText::Exists(true),
            Operator::DoesNotExist => OperatorText::Exists(false),
        };
        RequirementText { key, operator }
    }

    fn fits(&self, value: Option<&str>) -> bool {
        match &self.operator {
            Operator::In(values) => value.is_some_and(|value| values.contains(value)),
            Operator::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}
