//! Labels whose values are names from outside, in the Prometheus text format.
//!
//! Source: Prometheus, "Exposition formats" (`\`, `"` and a line feed are escaped in a label value).

/// Returns the labels as they follow a metric's name: `{pod="web",namespace="blue"}`.
pub fn labels<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> String {
    let mut text = String::from("{");
    for (name, value) in pairs {
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(name);
        text.push_str("=\"");
        for letter in value.chars() {
            match letter {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                other => text.push(other),
            }
        }
        text.push('"');
    }
    text.push('}');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_label_cannot_end_its_value_or_line() {
        assert_eq!(labels([]), "{}");
        let hostile = labels([("pod", "web"), ("network", "a\\\"} 1\nother{b=\"ü")]);
        assert_eq!(hostile, r#"{pod="web",network="a\\\"} 1\nother{b=\"ü"}"#);
    }
}
