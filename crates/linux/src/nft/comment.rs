//! Comments on rules and elements, in the format that `nft list` can print.
//!
//! The kernel stores user data without interpreting it; nft stores a list of type, length, value.
//!
//! Source: libnftnl `include/libnftnl/udata.h`: the comment is type 0 for rules and for elements; nft
//! `include/datatype.h`: a comment has at most 128 bytes.

/// `NFTNL_UDATA_RULE_COMMENT`, `NFTNL_UDATA_SET_ELEM_COMMENT`.
const COMMENT: u8 = 0;

/// Maximum length in bytes that nft accepts when it reads nft output.
const LONGEST: usize = 128;

/// Encodes a comment as user data. Characters that nft could not read back (quotes, control characters) become `_`, and
/// a comment that is too long is cut.
pub(super) fn user_data(comment: &str) -> Vec<u8> {
    let text = stored(comment);
    let mut data = vec![COMMENT, (text.len() + 1) as u8];
    data.extend_from_slice(text.as_bytes());
    data.push(0);
    data
}

/// Returns a comment as it is stored and listed.
pub fn stored(comment: &str) -> String {
    let mut text: String = comment
        .chars()
        .map(|character| if character == '"' || character.is_control() { '_' } else { character })
        .collect();
    while text.len() > LONGEST {
        text.pop();
    }
    text
}

/// Reads the comment from user data; empty if there is none in nft's format.
pub(super) fn of_user_data(mut data: &[u8]) -> String {
    while let [kind, length, rest @ ..] = data {
        let Some((value, rest)) = rest.split_at_checked(usize::from(*length)) else { break };
        if *kind == COMMENT {
            return crate::attributes::text(value);
        }
        data = rest;
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nft_comment_round_trip() {
        assert_eq!(of_user_data(&user_data("default/web eth0")), "default/web eth0");
        assert_eq!(user_data("ab"), [0, 3, b'a', b'b', 0]);
    }

    #[test]
    fn nft_comment_of_hostile_text_is_escaped() {
        assert_eq!(of_user_data(&user_data("a\"; flush ruleset\n\0b")), "a_; flush ruleset__b");
        let long = of_user_data(&user_data(&"ü".repeat(200)));
        assert_eq!((long.len(), long.chars().all(|character| character == 'ü')), (128, true));
    }

    #[test]
    fn nft_comment_is_empty_for_other_user_data() {
        for data in [&[][..], &[0], &[0, 200, 1], &[5, 1, 7], &[1, 0]] {
            assert_eq!(of_user_data(data), "", "{data:?}");
        }
    }
}
