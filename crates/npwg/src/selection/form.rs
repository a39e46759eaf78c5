//! Two forms in which an annotation is written: a comma-delimited list of references, or a JSON list of
//! objects.
//!
//! The first character after leading blanks decides the form. If a value has neither, it fails the pod instead of being
//! ignored: the specification only ignores invalid values for certain keys, and a pod that silently starts without
//! networks is worse than a pod that fails.
//!
//! Source: multi-network specification, 4.1.1 and 4.1.2; conflict C16; Multus defect M9.

use cni::object::Object;
use cni::wording;
use serde_json::value::RawValue;

use super::{ANNOTATION_MAX, ELEMENTS_MAX, Reader};
use crate::refusal::{KeyPath, quote};
use crate::rule::Rule;

/// One element, not yet checked.
pub(super) enum Item {
    /// Element in the comma-delimited form: `[namespace/]name[@interface]`.
    Reference(String),
    /// Element in the JSON form.
    Object(Object),
}

/// Splits `text` into elements; reports invalid elements and leaves them out.
pub(super) fn items(reader: &mut Reader, text: &str) -> Vec<Item> {
    if text.len() > ANNOTATION_MAX {
        let fault = reader.fault(Rule::AnnotationTooLarge, format!("longer than {ANNOTATION_MAX} bytes"));
        reader.fails(fault);
        return Vec::new();
    }
    let text = text.trim();
    match text.chars().next() {
        None => Vec::new(),
        Some('[') => objects(reader, text),
        Some(first @ ('{' | '"' | '\'' | '\u{2018}'..='\u{201f}')) => {
            let (what, hint) = match first {
                '{' => ("is a JSON object, not a list", "write [ in front of it and ] after it"),
                _ => ("is in quotation marks", "remove the quotation marks around it"),
            };
            let fault = reader.fault(Rule::MalformedAnnotation, what).showing(&quote(text));
            reader.fails(fault.hint(hint));
            Vec::new()
        }
        Some(_) => references(reader, text),
    }
}

fn references(reader: &mut Reader, text: &str) -> Vec<Item> {
    let mut items = Vec::new();
    for (index, part) in text.split(',').enumerate() {
        if too_many(reader, index) {
            break;
        }
        items.push(Item::Reference(part.trim().to_owned()));
    }
    items
}

fn objects(reader: &mut Reader, text: &str) -> Vec<Item> {
    let list: Vec<Box<RawValue>> = match serde_json::from_str(text) {
        Ok(list) => list,
        Err(cause) => {
            let why = wording::syntax_error(text.as_bytes(), &cause);
            let fault = reader.fault(Rule::MalformedAnnotation, format!("is not a JSON list: {why}"));
            reader.fails(fault.showing(&quote(text)));
            return Vec::new();
        }
    };
    let mut items = Vec::new();
    for (index, raw) in list.iter().enumerate() {
        if too_many(reader, index) {
            break;
        }
        match Object::parse(raw.get().as_bytes(), "element") {
            Ok(object) => items.push(Item::Object(object)),
            Err(_) => {
                let fault = reader.fault(Rule::MalformedAnnotation, "is not a JSON object");
                let fault = fault.at(KeyPath::root().index(index)).showing(raw.get());
                reader.fails(fault.hint("write {\"name\": …}"));
            }
        }
    }
    items
}

/// Reports the first element beyond the limit and returns whether there is one.
fn too_many(reader: &mut Reader, index: usize) -> bool {
    if index < ELEMENTS_MAX {
        return false;
    }
    let fault = reader.fault(Rule::AnnotationTooLarge, format!("selects more than {ELEMENTS_MAX} networks"));
    reader.fails(fault);
    true
}
