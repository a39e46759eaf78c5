//! Where two JSON documents differ: a line for each place.
//!
//! Rules: hardware addresses, names of links on the host and paths of namespaces are made up anew each time, and are
//! alike if there is one in the same place; but those that were asked for.

use serde_json::Value;

/// A line for each place where they differ; `asked` holds hardware addresses that were asked for.
pub(crate) fn differences(theirs: &Value, ours: &Value, asked: &str) -> Vec<String> {
    let mut lines = Vec::new();
    compare("", theirs, ours, asked, &mut lines);
    lines
}

fn compare(path: &str, theirs: &Value, ours: &Value, asked: &str, lines: &mut Vec<String>) {
    match (theirs, ours) {
        (Value::Object(a), Value::Object(b)) => {
            for (key, value) in a {
                let path = format!("{path}.{key}");
                match b.get(key) {
                    Some(other) => compare(&path, value, other, asked, lines),
                    None => lines.push(format!("{path}: theirs alone, {value}")),
                }
            }
            for (key, value) in b.iter().filter(|(key, _)| !a.contains_key(*key)) {
                lines.push(format!("{path}.{key}: ours alone, {value}"));
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (one, other)) in a.iter().zip(b).enumerate() {
                compare(&format!("{path}[{index}]"), one, other, asked, lines);
            }
        }
        _ if alike(path, theirs, asked) == alike(path, ours, asked) => {}
        _ => lines.push(format!("{path}: theirs {theirs}, ours {ours}")),
    }
}

/// A value, or what stands for one that is made up.
fn alike(path: &str, value: &Value, asked: &str) -> Value {
    let Some(text) = value.as_str() else { return value.clone() };
    let is_hardware = path.ends_with(".mac") && text.len() == 17 && !asked.contains(text);
    match is_hardware || text.starts_with("veth") || path.ends_with(".sandbox") {
        true => "made up".into(),
        false => value.clone(),
    }
}
