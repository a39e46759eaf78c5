//! What is wrong with an input, and what follows from it.
//!
//! The standard knows two kinds of wrong, and they end differently: an *invalid annotation* is ignored
//! as a whole (unless the node's policy says otherwise), a *failing attachment* fails the pod. They are
//! two variants here, so nobody can confuse them. The rule that sorts them: ignored is only what the
//! standard says shall be ignored; everything else fails.
//!
//! Source: the standard, 4.1.2.1.* ("shall be invalid and ignored") and 7.2; conflicts C3 and C4.

use std::fmt;

use cni::error::{Error, code};
use serde::{Deserialize, Serialize};

use crate::rule::Rule;

/// Longest piece of an offending value that is repeated in a message, in characters.
const QUOTE_MAX: usize = 80;

/// One step from a JSON value to one inside it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Step {
    /// Into an array.
    Index(usize),
    /// Into an object.
    Key(String),
}

/// Where in a document: `[1].ips[0]`. Keys are as hostile as the document; printing cuts and cleans them.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyPath(Vec<Step>);

impl KeyPath {
    /// The whole document.
    pub fn root() -> KeyPath {
        KeyPath::default()
    }

    /// This path and then the key `key`.
    #[must_use]
    pub fn key(&self, key: &str) -> KeyPath {
        let mut steps = self.0.clone();
        steps.push(Step::Key(key.to_owned()));
        KeyPath(steps)
    }

    /// This path and then the element `index`.
    #[must_use]
    pub fn index(&self, index: usize) -> KeyPath {
        let mut steps = self.0.clone();
        steps.push(Step::Index(index));
        KeyPath(steps)
    }

    /// The steps, outermost first.
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    /// Is this the whole document?
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

/// One thing that is wrong: which rule, where, the value, why, and what would cure it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Rule that the input breaks.
    pub rule: Rule,
    /// The document: `annotation k8s.v1.cni.cncf.io/networks`, `network-attachment-definition a/b`.
    pub subject: String,
    /// Where in it.
    #[serde(default, skip_serializing_if = "KeyPath::is_root")]
    pub path: KeyPath,
    /// The offending value, quoted and bounded; empty where there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
    /// Why it is wrong.
    pub reason: String,
    /// What to do instead; empty where nothing is known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cure: String,
}

impl Fault {
    /// A fault of the whole of `subject`.
    pub fn new(rule: Rule, subject: impl Into<String>, reason: impl Into<String>) -> Fault {
        Fault {
            rule,
            subject: subject.into(),
            path: KeyPath::root(),
            value: String::new(),
            reason: reason.into(),
            cure: String::new(),
        }
    }

    /// The same fault at `path`.
    #[must_use]
    pub fn at(mut self, path: KeyPath) -> Fault {
        self.path = path;
        self
    }

    /// The same fault, showing the JSON `value`.
    #[must_use]
    pub fn showing(mut self, value: &str) -> Fault {
        self.value = clip(value);
        self
    }

    /// The same fault with its cure.
    #[must_use]
    pub fn cure(mut self, cure: impl Into<String>) -> Fault {
        self.cure = cure.into();
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { rule: _, subject, path, value, reason, cure } = self;
        f.write_str(subject)?;
        if !path.is_root() {
            write!(f, ": {path}")?;
        }
        if !value.is_empty() {
            write!(f, ": {value}")?;
        }
        write!(f, ": {reason}")?;
        if !cure.is_empty() {
            write!(f, ": {cure}")?;
        }
        Ok(())
    }
}

/// A value in quotes, cut to a length fit for a message; control characters are escaped.
pub fn quote(text: &str) -> String {
    clip(&format!("{text:?}"))
}

/// The beginning of `text`: short enough for a message, without anything that could break a log line.
pub fn clip(text: &str) -> String {
    let mut short: String =
        text.chars().take(QUOTE_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(QUOTE_MAX).is_some() {
        short.push('…');
    }
    short
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Refusal {
    /// The annotation as a whole is invalid; by the standard it is ignored.
    AnnotationInvalid(Box<Fault>),
    /// An attachment cannot be made as asked; the pod fails.
    AttachmentFailed(Box<Fault>),
}

impl Refusal {
    /// An attachment fails.
    pub fn failed(fault: Fault) -> Refusal {
        Refusal::AttachmentFailed(Box::new(fault))
    }

    /// The annotation is invalid.
    pub fn invalid(fault: Fault) -> Refusal {
        Refusal::AnnotationInvalid(Box::new(fault))
    }

    /// What is wrong.
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
    /// Returns an error of code 7 whose details name the rule.
    fn from(refusal: Refusal) -> Error {
        let kind = match &refusal {
            Refusal::AnnotationInvalid(_) => "annotation invalid",
            Refusal::AttachmentFailed(_) => "attachment refused",
        };
        Error::new(code::INVALID_CONFIG, refusal.to_string())
            .details(format!("{kind}: weft lint --explain {} explains why", refusal.fault().rule))
    }
}

/// Something a person should hear of although the plan stands. The agent makes Events of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// The kind: the Event's reason.
    pub event: Reason,
    /// The rest.
    #[serde(flatten)]
    pub fault: Fault,
}

/// Kinds of warnings; each is the reason of an Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Reason {
    /// The annotation was invalid and has been ignored.
    AnnotationIgnored,
    /// A key nobody defined.
    UnknownKey,
    /// A request travels although no plugin declares that it understands it.
    CapabilityMissing,
    /// The request is legal and probably not what was meant.
    Questionable,
}

impl Warning {
    /// A warning of this kind.
    pub fn new(event: Reason, fault: Fault) -> Warning {
        Warning { event, fault }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_one_sentence_with_a_path_and_becomes_a_cni_error() {
        let path = KeyPath::root().index(1).key("ips").index(0);
        let fault = Fault::new(Rule::InvalidIps, "annotation k8s.v1.cni.cncf.io/networks", "not an address")
            .at(path)
            .showing("\"10.0.0.256\"")
            .cure("write it as 10.0.0.25");
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
    fn a_quoted_value_is_bounded_and_harmless() {
        let quoted = quote(&"a\n\u{1b}[31m".repeat(100));
        assert!(quoted.chars().count() <= QUOTE_MAX + 1, "{quoted}");
        assert!(!quoted.contains(|c: char| c.is_control()), "{quoted}");
    }

    #[test]
    fn a_hostile_key_cannot_break_a_message() {
        let path = KeyPath::root().key(&format!("a\nb{}", "x".repeat(10_000)));
        let text = path.to_string();
        assert!(text.chars().count() <= QUOTE_MAX + 1 && !text.contains('\n'), "{text}");
    }

    #[test]
    fn a_path_survives_json() -> Result<(), serde_json::Error> {
        let path = KeyPath::root().index(3).key("a.b").key("0");
        let json = serde_json::to_string(&path)?;
        assert_eq!(json, r#"[3,"a.b","0"]"#);
        assert_eq!(serde_json::from_str::<KeyPath>(&json)?, path);
        Ok(())
    }
}
