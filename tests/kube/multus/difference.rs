//! Differences between two JSON documents, one line for each place.
//!
//! Hardware addresses, link names on the host and namespace paths are generated. They count as equal if both
//! documents have one, except for requested addresses.

use serde_json::Value;

/// Returns a line for each difference; `asked` contains the requested hardware addresses.
pub(crate) fn differences(multus: &Value, weft: &Value, asked: &str) -> Vec<String> {
    let mut lines = Vec::new();
    compare("", multus, weft, asked, &mut lines);
    lines
}

fn compare(path: &str, multus: &Value, weft: &Value, asked: &str, lines: &mut Vec<String>) {
    match (multus, weft) {
        (Value::Object(a), Value::Object(b)) => {
            for (key, value) in a {
                let path = format!("{path}.{key}");
                match b.get(key) {
                    Some(other) => compare(&path, value, other, asked, lines),
                    None => lines.push(format!("{path}: only Multus, {value}")),
                }
            }
            for (key, value) in b.iter().filter(|(key, _)| !a.contains_key(*key)) {
                lines.push(format!("{path}.{key}: only weft, {value}"));
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (one, other)) in a.iter().zip(b).enumerate() {
                compare(&format!("{path}[{index}]"), one, other, asked, lines);
            }
        }
        _ if normalized(path, multus, asked) == normalized(path, weft, asked) => {}
        _ => lines.push(format!("{path}: Multus {multus}, weft {weft}")),
    }
}

/// Returns the value, or a constant for a generated one.
fn normalized(path: &str, value: &Value, asked: &str) -> Value {
    let Some(text) = value.as_str() else { return value.clone() };
    let is_hardware = path.ends_with(".mac") && text.len() == 17 && !asked.contains(text);
    match is_hardware || text.starts_with("veth") || path.ends_with(".sandbox") {
        true => "generated".into(),
        false => value.clone(),
    }
}
