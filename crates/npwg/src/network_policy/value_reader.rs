//! Reader for a JSON value that notes every error with the path, and continues.

use serde_json::{Map, Value};

use crate::nearest::hint;
use crate::refusal::{Fault, KeyPath};
use crate::rule::Rule;

/// Maximum number of faults that are noted for one object.
const FAULTS_MAX: usize = 32;

/// Value and where it is in the object.
#[derive(Clone, Debug)]
pub(super) struct Field<'a> {
    pub(super) value: &'a Value,
    pub(super) path: KeyPath,
}

/// Collector for an object's faults.
#[derive(Debug)]
pub(super) struct ValueReader {
    subject: String,
    faults: Vec<Fault>,
}

// === impl ValueReader ===

impl ValueReader {
    pub(super) fn new(subject: String) -> ValueReader {
        ValueReader { subject, faults: Vec::new() }
    }

    pub(super) fn has_faults(&self) -> bool {
        !self.faults.is_empty()
    }

    pub(super) fn faults(self) -> Vec<Fault> {
        self.faults
    }

    /// Notes that a value is wrong, and why.
    pub(super) fn fault(&mut self, field: &Field<'_>, reason: impl Into<String>, hint: &str) {
        let shown = match field.value {
            Value::Array(_) | Value::Object(_) | Value::Null => String::new(),
            value => value.to_string(),
        };
        let fault = Fault::new(Rule::InvalidNetworkPolicy, self.subject.as_str(), reason);
        self.push(fault.at(field.path.clone()).showing(&shown).hint(hint));
    }

    /// Notes a fault at a place without a value.
    pub(super) fn missing(&mut self, rule: Rule, path: KeyPath, reason: &str, hint: &str) {
        self.push(Fault::new(rule, self.subject.as_str(), reason).at(path).hint(hint));
    }

    fn push(&mut self, fault: Fault) {
        if self.faults.len() < FAULTS_MAX {
            self.faults.push(fault);
        }
    }

    /// Returns an object's fields; one that is not `known` is a fault.
    pub(super) fn object<'a>(&mut self, field: &Field<'a>, known: &[&str]) -> Fields<'a> {
        let Value::Object(map) = field.value else {
            self.fault(field, format!("must be an object, this is {}", kind(field.value)), "");
            return Fields { map: None, path: field.path.clone() };
        };
        for (key, value) in map {
            if !known.contains(&key.as_str()) {
                let place = Field { value, path: field.path.key(key) };
                let near = hint(key, known);
                let hint =
                    if near.is_empty() { format!("the fields are {}", known.join(", ")) } else { near };
                self.fault(&place, "unknown field", &hint);
            }
        }
        Fields { map: Some(map), path: field.path.clone() }
    }

    /// Returns the fields in an object that may have any field names, at most `max`.
    pub(super) fn object_of_any<'a>(&mut self, field: &Field<'a>, max: usize) -> Fields<'a> {
        let map = field.value.as_object();
        match map {
            None => self.fault(field, format!("must be an object, this is {}", kind(field.value)), ""),
            Some(map) if map.len() > max => {
                self.fault(field, format!("has {} fields; the maximum is {max}", map.len()), "");
            }
            Some(_) => return Fields { map, path: field.path.clone() },
        }
        Fields { map: None, path: field.path.clone() }
    }

    /// Returns the elements in a list that may have at most `max`.
    pub(super) fn list<'a>(&mut self, field: &Field<'a>, max: usize) -> Vec<Field<'a>> {
        let Value::Array(all) = field.value else {
            self.fault(field, format!("must be a list, this is {}", kind(field.value)), "");
            return Vec::new();
        };
        if all.len() > max {
            let reason = format!("has {} elements; the maximum is {max}", all.len());
            self.fault(field, reason, "write several policies");
            return Vec::new();
        }
        let element = |(index, value)| Field { value, path: field.path.index(index) };
        all.iter().enumerate().map(element).collect()
    }

    /// Returns a string.
    pub(super) fn text<'a>(&mut self, field: &Field<'a>) -> Option<&'a str> {
        let text = field.value.as_str();
        if text.is_none() {
            self.fault(field, format!("must be a string, this is {}", kind(field.value)), "");
        }
        text
    }
}

/// An object's fields.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    map: Option<&'a Map<String, Value>>,
    path: KeyPath,
}

// === impl Fields ===

impl<'a> Fields<'a> {
    /// Returns a field. `null` counts as absent, as at the API server.
    pub(super) fn find(&self, key: &str) -> Option<Field<'a>> {
        let value = self.map?.get(key).filter(|value| !value.is_null())?;
        Some(Field { value, path: self.path.key(key) })
    }

    /// Returns all names and values.
    pub(super) fn all(&self) -> impl Iterator<Item = (&'a str, Field<'a>)> + use<'a, '_> {
        let entries = self.map.into_iter().flatten();
        entries.map(|(key, value)| (key.as_str(), Field { value, path: self.path.key(key) }))
    }

    /// Returns a field's path.
    pub(super) fn path(&self, key: &str) -> KeyPath {
        self.path.key(key)
    }
}

/// Returns what messages call this kind of value.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
