//! JSON parser that reads values down to a given level and ignores anything deeper.
//!
//! The [`serde_json`] decoder refuses a document with 128 nested levels. A plugin that removes an attachment only reads
//! keys near the top, so deeply nested values elsewhere must not prevent the removal.
//!
//! - Arrays and objects below the level are read as `null`; the decoder skips them without recursion.
//! - If a key occurs several times, the last entry counts.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Parses one JSON value down to `levels`.
///
/// # Errors
/// The text is not JSON.
pub(crate) fn parse(bytes: &[u8], levels: usize) -> Result<Value, serde_json::Error> {
    let mut decoder = serde_json::Deserializer::from_slice(bytes);
    let value = Level(levels).deserialize(&mut decoder)?;
    decoder.end()?;
    Ok(value)
}

/// Number of levels that are still read.
#[derive(Clone, Copy)]
struct Level(usize);

impl<'de> DeserializeSeed<'de> for Level {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, decoder: D) -> Result<Value, D::Error> {
        match self.0 {
            0 => decoder.deserialize_ignored_any(IgnoredAny).map(|_| Value::Null),
            _ => decoder.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Level {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Level(self.0 - 1))? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(Level(self.0 - 1))?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}
