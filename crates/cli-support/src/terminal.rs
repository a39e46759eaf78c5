//! Control characters of a terminal: which they are, and text without them.
//!
//! Names, errors and results are untrusted, so none of their characters may control the terminal that shows them.

/// Returns the text on one line, without characters that a terminal executes.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if is_control(c) { ' ' } else { c }).collect()
}

/// Whether a terminal executes the character instead of showing it. Characters that change the direction of text count, because
/// they change how a line reads.
pub(crate) fn is_control(c: char) -> bool {
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_has_no_control_characters() {
        let name = "a\u{1b}[31m\u{7f}\u{9b}2J\u{85}\u{202e}\u{2066}\u{2028}\t\n\"\\ü€";
        assert_eq!(plain(name), "a [31m  2J        \"\\ü€".replacen("        ", "      ", 1));
    }
}
