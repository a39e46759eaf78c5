//! oslo.versionedobjects primitives: JSON objects that carry class name and version.
//!
//! - `versioned_object.changes` is neither written nor read. It lists the fields that the writer had not saved yet, in
//!   random order.
//! - Unknown fields are ignored.
//! - Versions are not compared, because only fields that exist in every version are read.
//!
//! Source: oslo.versionedobjects `base.obj_to_primitive`; namespace `os_vif` for everything, as Kuryr writes it.

use serde_json::{Map, Value};

/// Data fields of one object.
pub(crate) type Data = Map<String, Value>;

const NAME: &str = "versioned_object.name";
const NAMESPACE: &str = "versioned_object.namespace";
const VERSION: &str = "versioned_object.version";
const DATA: &str = "versioned_object.data";
/// Namespace that Kuryr writes for all objects, even for Kuryr's classes.
const OS_VIF: &str = "os_vif";

/// Parsed object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object<'a> {
    pub(crate) name: &'a str,
    pub(crate) version: &'a str,
    pub(crate) data: &'a Data,
}

/// Builds an object with these fields.
pub(crate) fn object(name: &str, version: &str, data: Data) -> Value {
    let heads = [(NAME, name), (NAMESPACE, OS_VIF), (VERSION, version)];
    let heads = heads.map(|(key, text)| (key.to_owned(), Value::from(text)));
    heads.into_iter().chain([(DATA.to_owned(), Value::Object(data))]).collect()
}

/// Builds a list, which is itself an object in this format.
pub(crate) fn list(name: &str, objects: Vec<Value>) -> Value {
    let data = Data::from_iter([("objects".to_owned(), Value::Array(objects))]);
    object(name, "1.0", data)
}

/// Parses an object; `None` if the value is not an os_vif object.
pub(crate) fn open(value: &Value) -> Option<Object<'_>> {
    let text = |key| value.get(key).and_then(Value::as_str);
    (text(NAMESPACE) == Some(OS_VIF)).then_some(())?;
    Some(Object { name: text(NAME)?, version: text(VERSION)?, data: value.get(DATA)?.as_object()? })
}

impl<'a> Object<'a> {
    /// Returns a string field.
    pub(crate) fn text(&self, key: &str) -> Option<&'a str> {
        self.data.get(key)?.as_str()
    }

    /// Returns a boolean field; false if it is not set.
    pub(crate) fn flag(&self, key: &str) -> bool {
        self.data.get(key).and_then(Value::as_bool).unwrap_or_default()
    }

    /// Iterates over a list field; empty if it is not set.
    pub(crate) fn objects(&self, key: &str) -> impl Iterator<Item = Object<'a>> {
        let list = self.data.get(key).and_then(open).and_then(|list| list.data.get("objects"));
        list.and_then(Value::as_array).into_iter().flatten().filter_map(open)
    }
}
