//! Removes control characters from text.
//!
//! Names, errors and results may contain any character, and none may control the terminal, log or Event that shows it.
//! Errors and log lines from plugins are cleaned when they are printed or encoded.

use serde::Serializer;

/// Returns the text on one line, with a space for each character that a terminal would execute.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if is_control(c) { ' ' } else { c }).collect()
}

/// Whether a terminal executes the character instead of showing it. Characters that change the text direction count as
/// well, because they change how a line reads.
pub fn is_control(c: char) -> bool {
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}')
}

/// Encodes an error field without control characters.
pub(crate) fn serialize_plain<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&plain(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn plain_text_has_no_control_characters() {
        let name = "a\u{1b}[31m\u{7f}\u{9b}2J\u{85}\u{202e}\u{2066}\u{2028}\t\n\"\\ü€";
        assert_eq!(plain(name), "a [31m  2J        \"\\ü€".replacen("        ", "      ", 1));
    }

    #[test]
    fn error_shows_and_encodes_no_control_characters() {
        let hostile = "net.a\n\u{1b}[2J\u{9b}31m\u{202e}\u{85}";
        // An external program's error, which is decoded, must be cleaned as well.
        let text = format!(r#"{{"code":7,"msg":{},"details":"a\u009bb"}}"#, serde_json::json!(hostile));
        let decoded: Error = serde_json::from_str(&text).unwrap();
        let made = Error::key(hostile, hostile, hostile).details(hostile).context(hostile);
        for error in [decoded, made.clone(), Error::internal("a").also([made])] {
            for shown in [error.to_string(), serde_json::to_value(&error).unwrap().to_string()] {
                let decoded: String =
                    serde_json::from_str(&format!("\"{}\"", shown.replace('"', "'"))).unwrap();
                assert!(!decoded.contains(is_control), "{decoded:?}");
            }
        }
    }
}
