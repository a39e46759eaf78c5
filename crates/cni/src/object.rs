//! JSON object that keeps values in the bytes in which they were written.
//!
//! A configuration belongs to the plugin that it names. weft adds a few keys and must not change anything else: not the
//! order, the white space, or a 20-digit number (which libcni rounds). Only the top level is therefore parsed.
//!
//! A key is looked up as in Go's decoder: exactly, or else in any letter case; the last one counts. It is set and
//! removed by exact name.
//!
//! Source: SPEC 1.1.0 §3 "Deriving execution configuration" (S27, S28); libcni `InjectConf` (L12).

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::error::{Error, code};
use crate::fold;
use crate::wording;

/// Maximum size of a JSON document from any source, in bytes.
pub const DOCUMENT_MAX: usize = 1 << 20;

/// Ordered object with unparsed values.
#[derive(Clone, Debug, Default)]
pub struct Object(Vec<(String, Box<RawValue>)>);

impl Object {
    /// Parses exactly one object; `document` names it in the error (code 6).
    pub fn parse(bytes: &[u8], document: &str) -> Result<Object, Error> {
        if bytes.len() > DOCUMENT_MAX {
            return Err(Error::new(
                code::DECODING_FAILURE,
                format!("{document} is larger than {DOCUMENT_MAX} bytes"),
            ));
        }
        serde_json::from_slice(bytes).map_err(|cause| {
            let why = match cause.is_data() {
                true => "it is another JSON value".to_owned(),
                false => wording::syntax_error(bytes, &cause),
            };
            Error::new(code::DECODING_FAILURE, format!("{document} is not a JSON object: {why}"))
        })
    }

    /// Returns the value at `key`: the last exact match, or else the last match in any letter case.
    pub fn get(&self, key: &str) -> Option<&RawValue> {
        let exact = self.0.iter().rev().find(|(k, _)| k == key);
        exact
            .or_else(|| self.0.iter().rev().find(|(k, _)| fold::same(k, key)))
            .map(|(_, value)| value.as_ref())
    }

    /// Decodes the value at `key`; `None` if it is absent or `null`. Errors (code 7) name key and value.
    pub fn read<T: serde::de::DeserializeOwned>(&self, key: &str) -> Result<Option<T>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(raw) if raw.get() == "null" => Ok(None),
            Some(raw) => fold::from_raw(raw, key).map(Some),
        }
    }

    /// Returns the object at `key` with unparsed values; `None` if it is absent or `null`.
    pub fn read_object(&self, key: &str) -> Result<Option<Object>, Error> {
        match self.get(key) {
            None => Ok(None),
            Some(raw) if raw.get() == "null" => Ok(None),
            Some(raw) => serde_json::from_str(raw.get()).map(Some).map_err(|_| {
                let value: serde_json::Value = serde_json::from_str(raw.get()).unwrap_or_default();
                Error::key(key, fold::quote(&value), "expected an object")
            }),
        }
    }

    /// Returns the string at `key`; `None` if it is absent, `null` or `""`.
    pub fn text(&self, key: &str) -> Result<Option<String>, Error> {
        Ok(self.read::<String>(key)?.filter(|text| !text.is_empty()))
    }

    /// Whether there is a key with exactly this name.
    pub fn contains(&self, key: &str) -> bool {
        self.0.iter().any(|(k, _)| k == key)
    }

    /// Sets `key` to these bytes, in the old place if there is one, otherwise at the end.
    pub fn set_raw(&mut self, key: &str, value: Box<RawValue>) {
        match self.0.iter().rposition(|(k, _)| k == key) {
            Some(at) => {
                self.0[at].1 = value;
                let mut index = 0;
                self.0.retain(|(k, _)| {
                    index += 1;
                    k != key || index == at + 1
                });
            }
            None => self.0.push((key.to_owned(), value)),
        }
    }

    /// Sets `key` to the JSON form of `value`.
    pub fn set<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) -> Result<(), Error> {
        let raw = serde_json::value::to_raw_value(value)
            .map_err(|cause| Error::internal(format!("encode {key}: {cause}")))?;
        self.set_raw(key, raw);
        Ok(())
    }

    /// Removes every entry with exactly this name.
    pub fn remove(&mut self, key: &str) {
        self.0.retain(|(k, _)| k != key);
    }

    /// Sets `key`, and removes all other spellings that a folding decoder would accept for it.
    pub fn impose(&mut self, key: &str, value: Box<RawValue>) {
        self.0.retain(|(k, _)| k == key || !fold::same(k, key));
        self.set_raw(key, value);
    }

    /// Removes every entry that a folding decoder would accept for `key`.
    pub fn banish(&mut self, key: &str) {
        self.0.retain(|(k, _)| !fold::same(k, key));
    }

    /// Iterates over keys and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &RawValue)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v.as_ref()))
    }

    /// Whether the object has no entries.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the JSON text, without added white space.
    pub fn to_json(&self) -> String {
        let mut out = String::with_capacity(self.0.iter().map(|(k, v)| k.len() + v.get().len() + 8).sum());
        out.push('{');
        for (index, (key, value)) in self.0.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            out.push_str(&serde_json::Value::from(key.as_str()).to_string());
            out.push(':');
            out.push_str(value.get());
        }
        out.push('}');
        out
    }
}

impl PartialEq for Object {
    fn eq(&self, other: &Object) -> bool {
        let bytes = |o: &Object| o.0.iter().map(|(k, v)| (k.clone(), v.get().to_owned())).collect::<Vec<_>>();
        bytes(self) == bytes(other)
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Object, D::Error> {
        struct Entries;

        impl<'de> Visitor<'de> for Entries {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry::<String, Box<RawValue>>()? {
                    entries.push(entry);
                }
                Ok(Object(entries))
            }
        }

        from.deserialize_map(Entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(text: &str) -> Object {
        Object::parse(text.as_bytes(), "test").unwrap()
    }

    // Requirements: L12
    #[test]
    fn object_unchanged_values_keep_their_bytes() -> Result<(), Error> {
        let mut conf =
            object(r#"{"type":"x", "big": 12345678901234567890123, "b":{ "z" : 1.0e3,"a":[1, 2] }}"#);
        conf.set("name", "net")?;
        assert_eq!(
            conf.to_json(),
            r#"{"type":"x","big":12345678901234567890123,"b":{ "z" : 1.0e3,"a":[1, 2] },"name":"net"}"#
        );
        Ok(())
    }

    // Requirements: trap 1
    #[test]
    fn object_key_matches_without_case_and_exact_first() -> Result<(), Error> {
        let conf = object(r#"{"NAME":"folded","Type":"bridge"}"#);
        assert_eq!(conf.text("name")?.as_deref(), Some("folded"));
        assert_eq!(conf.text("type")?.as_deref(), Some("bridge"));
        let both = object(r#"{"name":"exact","NAME":"folded"}"#);
        assert_eq!(both.text("name")?.as_deref(), Some("exact"));
        Ok(())
    }

    // Requirements: trap 2
    #[test]
    fn object_duplicates_null_and_empty_string() -> Result<(), Error> {
        let conf = object(r#"{"a":"1","a":"2","n":null,"e":""}"#);
        assert_eq!(conf.text("a")?.as_deref(), Some("2"));
        assert_eq!((conf.text("n")?, conf.text("e")?, conf.text("missing")?), (None, None, None));
        Ok(())
    }

    #[test]
    fn object_set_replaces_in_place_and_drops_duplicates() -> Result<(), Error> {
        let mut conf = object(r#"{"a":1,"b":2,"a":3,"c":4}"#);
        conf.set("a", &5)?;
        assert_eq!(conf.to_json(), r#"{"b":2,"a":5,"c":4}"#);
        conf.remove("b");
        assert_eq!(conf.to_json(), r#"{"a":5,"c":4}"#);
        Ok(())
    }

    // Requirements: S8, trap 1
    #[test]
    fn object_impose_removes_other_spellings() -> Result<(), Error> {
        let mut conf = object(r#"{"name":"a","x":1,"NAME":"shadow","Name":"b"}"#);
        conf.impose("name", serde_json::value::to_raw_value("net").unwrap());
        assert_eq!(conf.to_json(), r#"{"name":"net","x":1}"#);
        conf.banish("NAME");
        assert_eq!(conf.to_json(), r#"{"x":1}"#);
        Ok(())
    }

    #[test]
    fn object_parse_of_other_json_is_code_6() {
        for bad in ["", "[]", "1", "null", "{", "{}x", "{\"a\":}"] {
            assert_eq!(Object::parse(bad.as_bytes(), "stdin").map_err(|e| e.code).err(), Some(6), "{bad:?}");
        }
        let large = format!("{{\"a\":\"{}\"}}", "x".repeat(DOCUMENT_MAX));
        assert!(Object::parse(large.as_bytes(), "stdin").unwrap_err().msg.contains("larger than"));
    }

    #[test]
    fn object_error_has_key_and_value() {
        let error = object(r#"{"mtu":"big"}"#).read::<u32>("mtu").unwrap_err();
        assert_eq!(error.code, 7);
        assert!(error.msg.contains("mtu") && error.msg.contains("\"big\""), "{error}");
    }
}
