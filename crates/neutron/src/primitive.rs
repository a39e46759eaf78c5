//! oslo.versionedobjects' primitive: an object as JSON, with its name and version.
//!
//! Rules: `versioned_object.changes` is neither written nor read: it says what its writer had not saved, in random
//! order. Unknown keys are passed over. A version is not compared: what is read is what every version has.
//!
//! Source: oslo.versionedobjects `base.obj_to_primitive`; namespace `os_vif` for everything, as Kuryr writes it.

use serde_json::{Map, Value};

/// The data of an object.
pub(crate) type Data = Map<String, Value>;

const NAME: &str = "versioned_object.name";
const NAMESPACE: &str = "versioned_object.namespace";
const VERSION: &str = "versioned_object.version";
const DATA: &str = "versioned_object.data";
/// What Kuryr's objects are in, its own, too.
const OS_VIF: &str = "os_vif";

/// An object, opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object<'a> {
    pub(crate) name: &'a str,
    pub(crate) version: &'a str,
    pub(crate) data: &'a Data,
}

/// Wraps data.
pub(crate) fn object(name: &str, version: &str, data: Data) -> Value {
    let heads = [(NAME, name), (NAMESPACE, OS_VIF), (VERSION, version)];
    let heads = heads.map(|(key, text)| (key.to_owned(), Value::from(text)));
    heads.into_iter().chain([(DATA.to_owned(), Value::Object(data))]).collect()
}

/// A list of objects, which is an object itself.
pub(crate) fn list(name: &str, objects: Vec<Value>) -> Value {
    let data = Data::from_iter([("objects".to_owned(), Value::Array(objects))]);
    object(name, "1.0", data)
}

/// Opens an object; nothing if it is none.
pub(crate) fn open(value: &Value) -> Option<Object<'_>> {
    let text = |key| value.get(key).and_then(Value::as_str);
    (text(NAMESPACE) == Some(OS_VIF)).then_some(())?;
    Some(Object { name: text(NAME)?, version: text(VERSION)?, data: value.get(DATA)?.as_object()? })
}

impl<'a> Object<'a> {
    /// A text.
    pub(crate) fn text(&self, key: &str) -> Option<&'a str> {
        self.data.get(key)?.as_str()
    }

    /// A truth, false where it is not set.
    pub(crate) fn flag(&self, key: &str) -> bool {
        self.data.get(key).and_then(Value::as_bool).unwrap_or_default()
    }

    /// The objects of a list under a key; none where it is not set.
    pub(crate) fn objects(&self, key: &str) -> impl Iterator<Item = Object<'a>> {
        let list = self.data.get(key).and_then(open).and_then(|list| list.data.get("objects"));
        list.and_then(Value::as_array).into_iter().flatten().filter_map(open)
    }
}
