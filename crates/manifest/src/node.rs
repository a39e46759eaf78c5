//! YAML or JSON document as a tree in which every node has a source position.
//!
//! Values are interpreted as Kubernetes does: plain `yes` and `on` are booleans, a later key with the same
//! name wins, `<<` merges. Positions refer to the file.

use cni::address;
use serde_json::Value as Json;

use super::source::Span;
use npwg::refusal::{KeyPath, Step};

/// Tree node.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// Content of the node.
    pub value: Value,
    /// Where it is in the file.
    pub span: Span,
}

/// Node content.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `null`, `~`, or no value.
    Null,
    /// Boolean.
    Bool(bool),
    /// A number, as written.
    Number(String),
    /// String, quoted or not.
    Text(String),
    /// List elements.
    List(Vec<Node>),
    /// Map entries in file order; if two have one name, the last counts.
    Map(Vec<(Key, Node)>),
}

/// Map key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Key as text.
    pub text: String,
    /// Where it is in the file.
    pub span: Span,
}

impl Node {
    /// Returns the value at `key` in a map; a `null` value counts as absent.
    pub fn get(&self, key: &str) -> Option<&Node> {
        let Value::Map(entries) = &self.value else { return None };
        let found = entries.iter().rev().find(|(k, _)| k.text == key).map(|(_, node)| node);
        found.filter(|node| node.value != Value::Null)
    }

    /// Returns the node at the end of `path`, or the last existing one on the way.
    pub fn nearest(&self, path: &KeyPath) -> &Node {
        let mut node = self;
        for step in path.steps() {
            let next = match (step, &node.value) {
                (Step::Key(key), Value::Map(_)) => node.get(key),
                (Step::Index(index), Value::List(items)) => items.get(*index),
                _ => None,
            };
            match next {
                Some(next) => node = next,
                None => return node,
            }
        }
        node
    }

    /// Returns what messages call the value's type.
    pub fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "nothing",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::Text(_) => "a string",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }

    /// Returns the node as JSON. A YAML number without a JSON form becomes the number's value, or else a string.
    pub fn to_json(&self) -> Json {
        match &self.value {
            Value::Null => Json::Null,
            Value::Bool(value) => Json::Bool(*value),
            Value::Number(text) => number(text).unwrap_or_else(|| Json::from(text.as_str())),
            Value::Text(text) => Json::from(text.as_str()),
            Value::List(items) => items.iter().map(Node::to_json).collect(),
            Value::Map(entries) => {
                Json::Object(entries.iter().map(|(key, node)| (key.text.clone(), node.to_json())).collect())
            }
        }
    }
}

/// Largest number below which each whole number has a distinct floating-point form.
const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// Returns a YAML number in JSON form. As in the API server, a whole number has no fraction and no exponent,
/// which a plugin would not read as an integer: `1e3` and `1000.0` become `1000`.
fn number(text: &str) -> Option<Json> {
    match serde_json::from_str(text) {
        Ok(Json::Number(number)) if number.is_f64() => number.as_f64().map(whole),
        Ok(Json::Number(number)) => Some(Json::Number(number)),
        _ => yaml_number(text),
    }
}

/// Returns the JSON form for a number that is not written as in JSON.
fn yaml_number(text: &str) -> Option<Json> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let digits = digits.replace('_', "");
    let radix = |prefix: &str, radix: u32| {
        digits.strip_prefix(prefix).and_then(|rest| i64::from_str_radix(rest, radix).ok()).map(|n| n * sign)
    };
    let in_radix = radix("0x", 16).or_else(|| radix("0o", 8)).or_else(|| radix("0b", 2));
    let octal = || (digits.len() > 1).then(|| radix("0", 8)).flatten();
    match in_radix.or_else(octal) {
        Some(number) => Some(Json::from(number)),
        None => {
            digits.parse::<f64>().ok().filter(|n| n.is_finite()).map(|n| whole(n * f64::from(sign as i8)))
        }
    }
}

/// Returns a number without a fraction where it has none.
fn whole(number: f64) -> Json {
    if number.fract() == 0.0 && number.abs() < EXACT_MAX {
        Json::from(number as i64)
    } else {
        Json::from(number)
    }
}

/// Returns the value that a plain scalar has.
pub(super) fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Value::Bool(true),
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Value::Bool(false),
        text if is_number(text) => Value::Number(text.to_owned()),
        text => Value::Text(text.to_owned()),
    }
}

/// Whether a plain scalar is a YAML 1.1 number in a common form; an address or a version is not.
fn is_number(text: &str) -> bool {
    let bare = text.strip_prefix(['-', '+']).unwrap_or(text);
    let starts = bare.starts_with(|c: char| c.is_ascii_digit())
        || bare.strip_prefix('.').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    if matches!(bare, ".inf" | ".Inf" | ".INF") || matches!(text, ".nan" | ".NaN" | ".NAN") {
        return true;
    }
    if !starts || address::parse_ip(text).is_some() {
        return false;
    }
    let digits = bare.replace('_', "");
    let of_radix = |prefix: &str, radix: u32| {
        digits
            .strip_prefix(prefix)
            .is_some_and(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_digit(radix)))
    };
    of_radix("0x", 16) || of_radix("0o", 8) || of_radix("0b", 2) || digits.parse::<f64>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_plain_scalars_are_read_as_in_kubernetes() {
        for text in ["yes", "On", "TRUE"] {
            assert_eq!(plain(text), Value::Bool(true), "{text}");
        }
        for text in ["no", "off", "False"] {
            assert_eq!(plain(text), Value::Bool(false), "{text}");
        }
        for text in ["", "~", "null"] {
            assert_eq!(plain(text), Value::Null, "{text}");
        }
        for text in ["0", "-1", "1.5", "1e3", "0x1F", "0o17", "0b11", "1_000", ".5", ".inf", "-.inf"] {
            assert_eq!(plain(text), Value::Number(text.to_owned()), "{text}");
        }
        for text in ["10.0.0.1", "1.2.3", "v1", "eth0", "1a", "-", ".", "0x", "aa:bb", "1-2"] {
            assert_eq!(plain(text), Value::Text(text.to_owned()), "{text}");
        }
    }

    #[test]
    fn yaml_numbers_become_json() {
        let json = |text: &str| number(text).map(|n| n.to_string());
        assert_eq!(json("12345678901234567890").as_deref(), Some("12345678901234567890"));
        assert_eq!(json("0x1F").as_deref(), Some("31"));
        assert_eq!(json("-0b11").as_deref(), Some("-3"));
        for text in ["1_000", "1e3", "1000.0", "+1000", "0.1e4"] {
            assert_eq!(json(text).as_deref(), Some("1000"), "{text}");
        }
        assert_eq!(json("-2.0e2").as_deref(), Some("-200"));
        assert_eq!(json("1e30").as_deref(), Some("1e+30"));
        assert_eq!(json("1.5e0").as_deref(), Some("1.5"));
        assert_eq!(json("017").as_deref(), Some("15"));
        assert_eq!(json(".5").as_deref(), Some("0.5"));
        assert_eq!(json(".inf"), None);
    }
}
