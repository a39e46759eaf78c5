//! Decodes JSON by the rules of Go's `encoding/json`, which all runtimes rely on.
//!
//! - A struct key matches exactly, or else in any letter case; if several keys match one field, the last one counts.
//! - `null` leaves a field as it was: absent, or the zero value if the field cannot be absent.
//! - Unknown keys are ignored.
//! - An integer must be written as an integer; `1.0` and `1e3` are rejected.
//! - An error names the path of the invalid key, and the value (`ipam.ranges[0].subnet: "x": …`).
//!
//! This matters in practice: containerd's go-cni sends `{"HostPort":8080}`, because the Go structs have no JSON tags.
//!
//! Source: Go `encoding/json` "Unmarshal"; requirements trap 1, trap 2.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, Expected, MapAccess, SeqAccess, Unexpected,
    Visitor,
};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::error::{Error, InvalidKey, code, cut};
use crate::wording;

/// Maximum length to which an error quotes an invalid value, in characters.
const QUOTE_MAX: usize = 80;

/// Decodes a document. Errors: code 6, not JSON; code 7, wrong type.
pub fn from_slice<T: DeserializeOwned>(bytes: &[u8], document: &str) -> Result<T, Error> {
    let value: Value = serde_json::from_slice(bytes).map_err(|cause| {
        let why = wording::syntax_error(bytes, &cause);
        Error::new(code::DECODING_FAILURE, format!("{document} is not valid JSON: {why}"))
    })?;
    from_value(&value, "").map_err(|error| error.context(document))
}

/// Decodes the raw value at `key`.
pub fn from_raw<T: DeserializeOwned>(raw: &RawValue, key: &str) -> Result<T, Error> {
    let value: Value = serde_json::from_str(raw.get()).map_err(|cause| {
        let why = wording::syntax_error(raw.get().as_bytes(), &cause);
        Error::new(code::DECODING_FAILURE, format!("{key}: not valid JSON: {why}"))
    })?;
    from_value(&value, key)
}

/// Decodes the value at `key` (empty for a whole document). Error: code 7, wrong type.
pub fn from_value<T: DeserializeOwned>(value: &Value, key: &str) -> Result<T, Error> {
    decode(value, key, Keys::Folded)
}

fn decode<T: DeserializeOwned>(value: &Value, key: &str, keys: Keys) -> Result<T, Error> {
    let path = Path { parent: None, step: Step::Key(key) };
    T::deserialize(Folding { value, path: &path, keys }).map_err(|fault| {
        let fault = fault.at(&path, value);
        let message = fault.to_string();
        let why = fault.why.to_string();
        let key = fault.place.map(|Place { key, value }| InvalidKey { path: key, value, why });
        Error::decoding(message, key)
    })
}

/// Decodes a document into a type that rejects unknown keys, as [`strict`] does. Errors: code 6, not JSON; code 7,
/// wrong type. Error paths begin with `document`.
pub fn strict_from_slice<T: DeserializeOwned>(bytes: &[u8], document: &str) -> Result<T, Error> {
    let value: Value = serde_json::from_slice(bytes).map_err(|cause| {
        let why = wording::syntax_error(bytes, &cause);
        let separator = if document.is_empty() { "" } else { ": " };
        Error::new(code::DECODING_FAILURE, format!("{document}{separator}not valid JSON: {why}"))
    })?;
    strict(&value, document)
}

/// Decodes the value at `key` into a type that rejects unknown keys. Keys must match exactly, and unknown keys are
/// passed to the type. Error: code 7.
pub fn strict<T: DeserializeOwned>(value: &Value, key: &str) -> Result<T, Error> {
    decode(value, key, Keys::Exact)
}

/// Returns a struct's fields, under the names from which they are decoded.
pub fn fields<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut found: &'static [&'static str] = &[];
    // The decoder has no value, so this always fails.
    let _ = T::deserialize(Fields(&mut found));
    found
}

/// Decoder that only records a struct's field names.
struct Fields<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Fields<'_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Fault> {
        Err(de::Error::custom("there is no value"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        *self.0 = fields;
        self.deserialize_any(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Whether Go's decoder treats two keys as the same.
pub fn same(a: &str, b: &str) -> bool {
    if a.is_ascii() && b.is_ascii() {
        return a.eq_ignore_ascii_case(b);
    }
    let fold = |c: char| c.to_uppercase().flat_map(char::to_lowercase);
    a.chars().flat_map(fold).eq(b.chars().flat_map(fold))
}

/// Path to the current value. It lives on the stack and is formatted only for an error.
#[derive(Clone, Copy)]
struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.step {
            Step::Key("") => Ok(()),
            Step::Key(key) if self.parent.is_none_or(|p| matches!(p.step, Step::Key(""))) => f.write_str(key),
            Step::Key(key) => write!(f, ".{key}"),
            Step::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// Error about a value, with the place once that is known.
#[derive(Debug)]
struct Fault {
    place: Option<Place>,
    why: Why,
}

/// Where an invalid value is.
#[derive(Debug)]
struct Place {
    key: String,
    value: String,
}

/// Reason why a value is invalid.
#[derive(Debug)]
enum Why {
    /// The value must have this type, in the decoder's words.
    Type(String),
    /// Any other reason.
    Text(String),
}

impl Fault {
    fn at(mut self, path: &Path<'_>, value: &Value) -> Fault {
        if self.place.is_none() {
            if let Why::Type(name) = &self.why {
                self.why = Why::Text(wording::expected(&name.as_str(), Some(value)));
            }
            self.place = Some(Place { key: path.to_string(), value: quote(value) });
        }
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Some(Place { key, value }) if key.is_empty() => write!(f, "{value}: ")?,
            Some(Place { key, value }) => write!(f, "{key}: {value}: ")?,
            None => {}
        }
        self.why.fmt(f)
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Why::Type(name) => f.write_str(&wording::expected(&name.as_str(), None)),
            Why::Text(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(why: T) -> Fault {
        Fault { place: None, why: Why::Text(why.to_string()) }
    }

    // The value is left out on purpose, because the place already shows it, shortened.
    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Fault {
        Fault { place: None, why: Why::Type(expected.to_string()) }
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Fault {
        Fault { place: None, why: Why::Type(expected.to_string()) }
    }

    fn missing_field(field: &'static str) -> Fault {
        de::Error::custom(format_args!("the key {field:?} is missing"))
    }

    fn unknown_field(field: &str, known: &'static [&'static str]) -> Fault {
        let field = cut(format!("{field:?}"), QUOTE_MAX);
        de::Error::custom(format_args!("unknown key {field}; the keys are {}", known.join(", ")))
    }

    fn unknown_variant(_: &str, variants: &'static [&'static str]) -> Fault {
        let variants: Vec<String> = variants.iter().map(|v| format!("{v:?}")).collect();
        de::Error::custom(format_args!("expected one of {}", variants.join(", ")))
    }
}

/// Formats a value for an error, as shortened JSON.
pub fn quote(value: &Value) -> String {
    cut(value.to_string(), QUOTE_MAX)
}

/// Rule for comparing struct keys.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keys {
    /// As in Go; unknown keys are ignored.
    Folded,
    /// Exactly; unknown keys are passed to the type.
    Exact,
}

struct Folding<'a> {
    value: &'a Value,
    path: &'a Path<'a>,
    keys: Keys,
}

/// Implements a scalar method: `null` gives the zero value, all other values go to `deserialize_any`.
macro_rules! scalar {
    ($($method:ident => $visit:ident($zero:expr)),* $(,)?) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
            match self.value {
                Value::Null => visitor.$visit($zero),
                _ => self.deserialize_any(visitor),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for Folding<'_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let Folding { value, path, keys } = self;
        let result = match value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(b) => visitor.visit_bool(*b),
            Value::Number(n) => match (n.as_u64(), n.as_i64(), n.as_f64()) {
                (Some(n), _, _) => visitor.visit_u64(n),
                (_, Some(n), _) => visitor.visit_i64(n),
                (_, _, n) => visitor.visit_f64(n.unwrap_or(f64::NAN)),
            },
            Value::String(s) => visitor.visit_str(s),
            Value::Array(items) => visitor.visit_seq(Items { items, next: 0, path, keys }),
            Value::Object(map) => visitor.visit_map(Entries::all(map, path, keys)),
        };
        result.map_err(|fault: Fault| fault.at(path, value))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let Folding { value, path, keys } = self;
        let entries = match value {
            Value::Object(map) if keys == Keys::Exact => Entries::all(map, path, keys),
            Value::Object(map) => Entries::of(map, fields, path),
            Value::Null => Entries { list: Vec::new(), next: 0, path, keys },
            // serde itself would accept a list for a struct.
            _ => {
                return Err(
                    Fault { place: None, why: Why::Text("expected an object".to_owned()) }.at(path, value)
                );
            }
        };
        visitor.visit_map(entries).map_err(|fault: Fault| fault.at(path, value))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let Folding { value, path, keys: _ } = self;
        match value.as_str() {
            Some(text) => {
                visitor.visit_enum(StrDeserializer::<Fault>::new(text)).map_err(|fault| fault.at(path, value))
            }
            None => self.deserialize_any(visitor),
        }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.value {
            Value::Null => visitor.visit_seq(Items { items: &[], next: 0, path: self.path, keys: self.keys }),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.value {
            Value::Null => {
                visitor.visit_map(Entries { list: Vec::new(), next: 0, path: self.path, keys: self.keys })
            }
            _ => self.deserialize_any(visitor),
        }
    }

    scalar! {
        deserialize_bool => visit_bool(false),
        deserialize_i8 => visit_i8(0), deserialize_i16 => visit_i16(0),
        deserialize_i32 => visit_i32(0), deserialize_i64 => visit_i64(0),
        deserialize_u8 => visit_u8(0), deserialize_u16 => visit_u16(0),
        deserialize_u32 => visit_u32(0), deserialize_u64 => visit_u64(0),
        deserialize_f32 => visit_f32(0.0), deserialize_f64 => visit_f64(0.0),
        deserialize_str => visit_str(""), deserialize_string => visit_str(""),
    }

    serde::forward_to_deserialize_any! {
        i128 u128 char bytes byte_buf unit unit_struct tuple tuple_struct identifier ignored_any
    }
}

struct Items<'a> {
    items: &'a [Value],
    next: usize,
    path: &'a Path<'a>,
    keys: Keys,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Fault;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Fault> {
        let Some(value) = self.items.get(self.next) else { return Ok(None) };
        let path = Path { parent: Some(self.path), step: Step::Index(self.next) };
        self.next += 1;
        seed.deserialize(Folding { value, path: &path, keys: self.keys })
            .map(Some)
            .map_err(|fault| fault.at(&path, value))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len() - self.next)
    }
}

/// Entries for a visitor: key as the visitor knows it, key as written, value.
struct Entries<'a> {
    list: Vec<(&'a str, &'a str, &'a Value)>,
    next: usize,
    path: &'a Path<'a>,
    keys: Keys,
}

impl<'a> Entries<'a> {
    fn all(map: &'a serde_json::Map<String, Value>, path: &'a Path<'a>, keys: Keys) -> Entries<'a> {
        let list = map.iter().map(|(key, value)| (key.as_str(), key.as_str(), value)).collect();
        Entries { list, next: 0, path, keys }
    }

    fn of(
        map: &'a serde_json::Map<String, Value>,
        fields: &'static [&'static str],
        path: &'a Path<'a>,
    ) -> Entries<'a> {
        let mut list: Vec<(&str, &str, &Value)> = Vec::with_capacity(map.len());
        for (key, value) in map {
            let exact = fields.iter().find(|field| **field == key.as_str());
            let Some(field) = exact.or_else(|| fields.iter().find(|field| same(field, key))) else {
                continue;
            };
            if value.is_null() {
                continue;
            }
            match list.iter_mut().find(|(known, _, _)| known == field) {
                Some(entry) => *entry = (field, key, value),
                None => list.push((field, key, value)),
            }
        }
        Entries { list, next: 0, path, keys: Keys::Folded }
    }
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Fault;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Fault> {
        match self.list.get(self.next) {
            None => Ok(None),
            Some((field, _, _)) => seed.deserialize(StrDeserializer::<Fault>::new(field)).map(Some),
        }
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Fault> {
        let Some((_, key, value)) = self.list.get(self.next) else {
            return Err(de::Error::custom("a value was requested before its key"));
        };
        self.next += 1;
        let path = Path { parent: Some(self.path), step: Step::Key(key) };
        seed.deserialize(Folding { value, path: &path, keys: self.keys })
            .map_err(|fault| fault.at(&path, value))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default, rename_all = "camelCase")]
    struct Mapping {
        host_port: u16,
        protocol: String,
        host_ip: Option<String>,
        nested: Vec<Mapping>,
        mode: Mode,
        labels: BTreeMap<String, bool>,
    }

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Mode {
        #[default]
        One,
        Two,
    }

    fn read(text: &str) -> Result<Mapping, Error> {
        from_slice(text.as_bytes(), "test")
    }

    // Requirements: trap 1
    #[test]
    fn fold_matches_keys_as_containerd_sends_them() -> Result<(), Error> {
        let mapping = read(r#"{"HostPort":8080,"PROTOCOL":"tcp","HostIP":"","Nested":[{"hostport":1}]}"#)?;
        assert_eq!((mapping.host_port, mapping.protocol.as_str()), (8080, "tcp"));
        assert_eq!(mapping.host_ip.as_deref(), Some(""));
        assert_eq!(mapping.nested[0].host_port, 1);
        Ok(())
    }

    // Requirements: trap 1
    #[test]
    fn fold_uses_the_last_of_several_spellings() -> Result<(), Error> {
        assert_eq!(read(r#"{"hostPort":1,"HOSTPORT":2}"#)?.host_port, 2);
        assert_eq!(read(r#"{"HOSTPORT":2,"hostPort":1}"#)?.host_port, 1);
        Ok(())
    }

    // Requirements: trap 2
    #[test]
    fn fold_null_leaves_the_field_unchanged() -> Result<(), Error> {
        let text = r#"{"hostPort":null,"protocol":null,"hostIP":null,"nested":null,"mode":null,"labels":{"a":null}}"#;
        let expected = Mapping { labels: BTreeMap::from([("a".to_owned(), false)]), ..Mapping::default() };
        assert_eq!(read(text)?, expected);
        Ok(())
    }

    // Requirements: trap 2
    #[test]
    fn fold_refuses_floats_for_integers() {
        for bad in ["1.0", "1e3", "-1", "65536", "\"1\"", "true", "[]"] {
            let error = read(&format!(r#"{{"hostPort":{bad}}}"#)).unwrap_err();
            assert_eq!(error.code, 7, "{bad}");
            assert!(error.msg.starts_with("test: hostPort: "), "{error}");
        }
    }

    // Requirements: trap 2
    #[test]
    fn fold_refuses_other_types_for_objects() {
        for bad in ["[]", "[1,2]", "\"x\"", "7", "true"] {
            let error = read(bad).unwrap_err();
            assert!(error.code == 7 && error.msg.ends_with("expected an object"), "{bad}: {error}");
            let error = read(&format!(r#"{{"nested":[{bad}]}}"#)).unwrap_err();
            assert!(
                error.msg.contains("nested[0]: ") && error.msg.ends_with("expected an object"),
                "{error}"
            );
        }
    }

    #[test]
    fn fold_error_has_path_and_value() {
        let error = read(r#"{"nested":[{},{"Nested":[{"HOSTPORT":"x"}]}]}"#).unwrap_err();
        assert!(error.msg.starts_with("test: nested[1].Nested[0].HOSTPORT: \"x\": "), "{error}");
        let error = read(r#"{"mode":"three"}"#).unwrap_err();
        assert!(
            error.msg.contains("mode: \"three\"") && error.msg.ends_with(r#"expected one of "one", "two""#),
            "{error}"
        );
    }

    #[test]
    fn fold_keeps_keys_of_a_map() -> Result<(), Error> {
        let labels = read(r#"{"labels":{"App":true,"app":false}}"#)?.labels;
        assert_eq!(labels.len(), 2);
        Ok(())
    }

    #[test]
    fn strict_decoding_reports_unknown_and_missing_keys() {
        #[derive(Debug, Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Strict {
            #[allow(dead_code, reason = "only decoded")]
            key: String,
        }
        let read =
            |text: &str| strict::<Strict>(&serde_json::from_str(text).unwrap(), "[0]").unwrap_err().msg;
        assert_eq!(
            read(r#"{"key":"a","kye":1}"#),
            r#"[0]: {"key":"a","kye":1}: unknown key "kye"; the keys are key"#
        );
        assert_eq!(read("{}"), r#"[0]: {}: the key "key" is missing"#);
        assert_eq!(read(r#"{"key":7}"#), "[0].key: 7: expected a string");
        assert_eq!(read("7"), "[0]: 7: expected an object");
    }

    #[test]
    fn fold_fields_are_the_names_that_are_decoded() {
        let expected = ["hostPort", "protocol", "hostIp", "nested", "mode", "labels"];
        assert_eq!(fields::<Mapping>(), expected);
        assert!(fields::<Vec<String>>().is_empty());
    }

    #[test]
    fn fold_error_shortens_a_long_value() {
        let error = read(&format!(r#"{{"hostPort":"{}"}}"#, "x".repeat(10_000))).unwrap_err();
        assert!(error.msg.len() < 300, "{}", error.msg.len());
    }

    #[test]
    fn fold_covers_the_letters_of_go() {
        assert!(same("dns", "DNS") && same("K", "\u{212a}") && same("s", "\u{17f}"));
        assert!(!same("dns", "dn") && !same("a_b", "a-b"));
    }
}
