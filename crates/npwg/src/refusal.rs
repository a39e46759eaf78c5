//! Faults in an input, and what they mean for the pod.
//!
//! The specification has two consequences, which are the two variants of [`Refusal`]:
//! - An *invalid annotation* is ignored as a whole, unless the node configuration says otherwise.
//! - A *failing attachment* fails the pod.
//!
//! Only faults for which the specification says "shall be invalid and ignored" make an annotation invalid.
//! All others fail the pod.
//!
//! Source: multi-network specification, 4.1.2.1.* and 7.2; conflicts C3 and C4.

use std::fmt;

use cni::error::{Error, code};
use cni::text::is_control;
use serde::{Deserialize, Serialize};

use crate::rule::Rule;

/// Maximum length up to which a message repeats an invalid value, in characters.
const QUOTE_MAX: usize = 80;

/// One step on the way to a value in a JSON document.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Step {
    /// Array element.
    Index(usize),
    /// Object field.
    Key(String),
}

/// Path in a document: `[1].ips[0]`. The keys are untrusted input; `Display` shortens and escapes them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyPath(Vec<Step>);

impl KeyPath {
    /// Returns the path to the whole document.
    pub fn root() -> KeyPath {
        KeyPath::default()
    }

    /// Returns this path extended by the field `key`.
    #[must_use]
    pub fn key(&self, key: &str) -> KeyPath {
        let mut steps = self.0.clone();
        steps.push(Step::Key(key.to_owned()));
        KeyPath(steps)
    }

    /// Returns this path extended by the element `index`.
    #[must_use]
    pub fn index(&self, index: usize) -> KeyPath {
        let mut steps = self.0.clone();
        steps.push(Step::Index(index));
        KeyPath(steps)
    }

    /// Returns the steps, outermost first.
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    /// Whether the path leads to the whole document.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Key(key) if at == 0 => f.write_str(&clip(key))?,
                Step::Key(key) => write!(f, ".{}", clip(key))?,
            }
        }
        Ok(())
    }
}

/// Fault in an input: broken rule, place, value, reason, and a suggestion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Rule that the input breaks.
    pub rule: Rule,
    /// Name of the document: `annotation k8s.v1.cni.cncf.io/networks`, `network-attachment-definition a/b`.
    pub subject: String,
    /// Path in the document.
    #[serde(default, skip_serializing_if = "KeyPath::is_root")]
    pub path: KeyPath,
    /// The invalid value, quoted and shortened; empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// Why it is wrong.
    pub reason: String,
    /// Suggestion; empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
}

impl Fault {
    /// Returns a fault that concerns the document `subject` as a whole.
    pub fn new(rule: Rule, subject: impl Into<String>, reason: impl Into<String>) -> Fault {
        Fault {
            rule,
            subject: subject.into(),
            path: KeyPath::root(),
            value: String::new(),
            reason: reason.into(),
            hint: String::new(),
        }
    }

    /// Returns the fault with the place `path`.
    #[must_use]
    pub fn at(mut self, path: KeyPath) -> Fault {
        self.path = path;
        self
    }

    /// Returns the fault with the invalid JSON `value`.
    #[must_use]
    pub fn showing(mut self, value: &str) -> Fault {
        self.value = clip(value);
        self
    }

    /// Returns the fault with a suggestion.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Fault {
        self.hint = hint.into();
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { rule: _, subject, path, value, reason, hint } = self;
        f.write_str(subject)?;
        if !path.is_root() {
            write!(f, ": {path}")?;
        }
        if !value.is_empty() {
            write!(f, ": {value}")?;
        }
        write!(f, ": {reason}")?;
        if !hint.is_empty() {
            write!(f, ": {hint}")?;
        }
        Ok(())
    }
}

/// Returns `text` in quotes, shortened for a message; control characters are escaped.
pub fn quote(text: &str) -> String {
    clip(&format!("{text:?}"))
}

/// Returns the beginning of `text`, short enough for a message and without characters that could break a log
/// line.
pub fn clip(text: &str) -> String {
    let mut short: String =
        text.chars().take(QUOTE_MAX).map(|c| if is_control(c) { ' ' } else { c }).collect();
    if text.chars().nth(QUOTE_MAX).is_some() {
        short.push('…');
    }
    short
}

/// Reason why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Refusal {
    /// The annotation as a whole is invalid; the specification says that it is ignored.
    AnnotationInvalid(Box<Fault>),
    /// An attachment is impossible as requested; the pod fails.
    AttachmentFailed(Box<Fault>),
}

impl Refusal {
    /// Returns a refusal that fails an attachment.
    pub fn failed(fault: Fault) -> Refusal {
        Refusal::AttachmentFailed(Box::new(fault))
    }

    /// Returns a refusal that makes the whole annotation invalid.
    pub fn invalid(fault: Fault) -> Refusal {
        Refusal::AnnotationInvalid(Box::new(fault))
    }

    /// Returns the fault, whatever the consequence.
    pub fn fault(&self) -> &Fault {
        match self {
            Refusal::AnnotationInvalid(fault) | Refusal::AttachmentFailed(fault) => fault,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fault().fmt(f)
    }
}

impl std::error::Error for Refusal {}

impl From<Refusal> for Error {
    /// Returns an error with code 7 whose details name the rule.
    fn from(refusal: Refusal) -> Error {
        let kind = match &refusal {
            Refusal::AnnotationInvalid(_) => "annotation invalid",
            Refusal::AttachmentFailed(_) => "attachment refused",
        };
        Error::new(code::INVALID_CONFIG, refusal.to_string())
            .details(format!("{kind}: weft lint --explain {} explains why", refusal.fault().rule))
    }
}

/// Warning about a valid plan. The node agent creates an Event for each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// Kind of warning, used as the Event's reason.
    pub event: Reason,
    /// Error with place and reason.
    #[serde(flatten)]
    pub fault: Fault,
}

/// Warning kinds; each is used as an Event reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Reason {
    /// The annotation is invalid and was ignored.
    AnnotationIgnored,
    /// The key is not defined.
    UnknownKey,
    /// The request is passed on, although no plugin declares the capability.
    CapabilityMissing,
    /// The request is valid and probably not intended.
    Questionable,
}

impl Warning {
    /// Returns a warning.
    pub fn new(event: Reason, fault: Fault) -> Warning {
        Warning { event, fault }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_text_has_path_value_reason_and_suggestion() {
        let path = KeyPath::root().index(1).key("ips").index(0);
        let fault = Fault::new(Rule::InvalidIps, "annotation k8s.v1.cni.cncf.io/networks", "not an address")
            .at(path)
            .showing("\"10.0.0.256\"")
            .hint("write it as 10.0.0.25");
        let refusal = Refusal::invalid(fault);
        assert_eq!(
            refusal.to_string(),
            "annotation k8s.v1.cni.cncf.io/networks: [1].ips[0]: \"10.0.0.256\": not an address: write it as 10.0.0.25"
        );
        let error = Error::from(refusal);
        assert_eq!(error.code, 7);
        assert_eq!(error.details, "annotation invalid: weft lint --explain invalid-ips explains why");
    }

    #[test]
    fn quoted_value_is_shortened_and_escaped() {
        let quoted = quote(&"a\n\u{1b}[31m\u{202e}".repeat(100)) + &clip("\u{9b}\u{202e}");
        assert!(quoted.chars().count() <= QUOTE_MAX + 3, "{quoted}");
        assert!(!quoted.contains(is_control), "{quoted}");
    }

    #[test]
    fn key_path_escapes_hostile_keys() {
        let path = KeyPath::root().key(&format!("a\nb{}", "x".repeat(10_000)));
        let text = path.to_string();
        assert!(text.chars().count() <= QUOTE_MAX + 1 && !text.contains('\n'), "{text}");
    }

    #[test]
    fn key_path_survives_json() -> Result<(), serde_json::Error> {
        let path = KeyPath::root().index(3).key("a.b").key("0");
        let json = serde_json::to_string(&path)?;
        assert_eq!(json, r#"[3,"a.b","0"]"#);
        assert_eq!(serde_json::from_str::<KeyPath>(&json)?, path);
        Ok(())
    }
}
