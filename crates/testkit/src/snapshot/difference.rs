//! Describes the differences between two snapshots in readable lines.

use std::collections::BTreeMap;

use serde_json::Value;

/// Maximum length to which a value is described, in characters.
const LONGEST: usize = 300;

/// Returns one line per difference, in title order.
pub(super) fn lines(before: &BTreeMap<String, Value>, after: &BTreeMap<String, Value>) -> Vec<String> {
    let mut lines = Vec::new();
    let mut titles: Vec<_> = before.keys().chain(after.keys()).collect();
    titles.sort();
    titles.dedup();
    for title in titles {
        match (before.get(title), after.get(title)) {
            (Some(old), None) => lines.push(format!("- {title}  {}", describe(old))),
            (None, Some(new)) => lines.push(format!("+ {title}  {}", describe(new))),
            (Some(old), Some(new)) => compare(&format!("~ {title}"), old, new, &mut lines),
            (None, None) => {}
        }
    }
    lines
}

/// Descends to the members that differ.
fn compare(path: &str, old: &Value, new: &Value, lines: &mut Vec<String>) {
    match (old, new) {
        _ if old == new => {}
        (Value::Object(from), Value::Object(to)) => {
            for (name, value) in from {
                compare(&format!("{path} {name}"), value, to.get(name).unwrap_or(&Value::Null), lines);
            }
            for (name, value) in to.iter().filter(|(name, _)| !from.contains_key(*name)) {
                compare(&format!("{path} {name}"), &Value::Null, value, lines);
            }
        }
        (Value::Array(from), Value::Array(to)) => {
            let lost = from
                .iter()
                .filter(|item| !to.contains(item))
                .map(|item| format!("{path}: - {}", describe(item)));
            let won = to
                .iter()
                .filter(|item| !from.contains(item))
                .map(|item| format!("{path}: + {}", describe(item)));
            let count = lines.len();
            lines.extend(lost.chain(won));
            if lines.len() == count {
                lines.push(format!("{path}: {} → {}", describe(old), describe(new)));
            }
        }
        _ => lines.push(format!("{path}: {} → {}", describe(old), describe(new))),
    }
}

/// Describes a value on one line with limited length, without link sysctls.
fn describe(value: &Value) -> String {
    let mut value = value.clone();
    if let Some(members) = value.as_object_mut() {
        members.remove("sysctl");
    }
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entries<const N: usize>(entries: [(&str, Value); N]) -> BTreeMap<String, Value> {
        entries.into_iter().map(|(title, value)| (title.to_owned(), value)).collect()
    }

    #[test]
    fn snapshot_difference_has_one_line_for_each_change() {
        let before =
            entries([("link a", json!({"mtu": 1500})), ("link b", json!({})), ("set", json!(["x", "y"]))]);
        let after = entries([
            ("link a", json!({"mtu": 1400})),
            ("link c", json!({"sysctl": {}})),
            ("set", json!(["y", "z"])),
        ]);
        let expected = [
            "~ link a mtu: 1500 → 1400",
            "- link b  {}",
            "+ link c  {}",
            r#"~ set: - "x""#,
            r#"~ set: + "z""#,
        ];
        assert_eq!(lines(&before, &after), expected);
        assert!(lines(&before, &before).is_empty());
    }
}
