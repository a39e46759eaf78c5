//! Tokens in a Rust file that show which names it uses, and comments and string literals.
//!
//! Source: the Rust reference, "Lexical structure".

/// Token of a source file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Token {
    Name(String),
    Colons,
    Sign(char),
    /// Content of an outer attribute, without spaces and quotation marks.
    Attribute(String),
}

/// Piece of a source file that is a comment, a string literal or a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece<'a> {
    /// Line or block comment, with slashes.
    Comment(&'a str),
    /// String literal, with quotation marks.
    Literal(&'a str),
    Token(Token),
}

/// Returns the tokens of a file.
pub(crate) fn tokens(source: &str) -> Vec<Token> {
    let tokens = pieces(source).into_iter().filter_map(|(_, piece)| match piece {
        Piece::Token(token) => Some(token),
        _ => None,
    });
    tokens.collect()
}

/// Returns the comments, literals and tokens of a file, each with the offset at which it begins.
pub(crate) fn pieces(source: &str) -> Vec<(usize, Piece<'_>)> {
    let mut pieces = Vec::new();
    let mut rest = source;
    while let Some(first) = rest.chars().next() {
        let (length, piece) = match first {
            '/' if rest.starts_with("//") => {
                let length = rest.find('\n').unwrap_or(rest.len());
                (length, Some(Piece::Comment(&rest[..length])))
            }
            '/' if rest.starts_with("/*") => {
                let length = rest.find("*/").map_or(rest.len(), |end| end + 2);
                (length, Some(Piece::Comment(&rest[..length])))
            }
            '#' if rest.starts_with("#[") || rest.starts_with("#![") => {
                let length = attribute(rest);
                let offset = source.len() - rest.len();
                pieces.extend(literals(&rest[..length]).map(|(at, literal)| (offset + at, literal)));
                (length, attribute_token(&rest[..length]).map(Piece::Token))
            }
            '"' => {
                let length = string(rest);
                (length, Some(Piece::Literal(&rest[..length])))
            }
            '\'' => (character_or_lifetime(rest), None),
            ':' if rest.starts_with("::") => (2, Some(Piece::Token(Token::Colons))),
            _ if first.is_alphabetic() || first == '_' => {
                let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
                match raw_string(rest, &rest[..end]) {
                    Some(length) => (length, Some(Piece::Literal(&rest[..length]))),
                    None => (end, Some(Piece::Token(Token::Name(rest[..end].to_owned())))),
                }
            }
            _ if first.is_whitespace() => (first.len_utf8(), None),
            _ => (first.len_utf8(), Some(Piece::Token(Token::Sign(first)))),
        };
        pieces.extend(piece.map(|piece| (source.len() - rest.len(), piece)));
        rest = &rest[length..];
    }
    pieces
}

/// Returns the string literals in an attribute, such as a help text.
fn literals(attribute: &str) -> impl Iterator<Item = (usize, Piece<'_>)> {
    let mut place = 0;
    std::iter::from_fn(move || {
        let start = place + attribute[place..].find('"')?;
        place = start + string(&attribute[start..]);
        Some((start, Piece::Literal(&attribute[start..place])))
    })
}

/// Returns the token of an outer attribute; inner attributes have none.
fn attribute_token(attribute: &str) -> Option<Token> {
    let inside = attribute.strip_prefix("#[")?.trim_end_matches(']');
    Some(Token::Attribute(inside.chars().filter(|c| !c.is_whitespace() && *c != '"').collect()))
}

/// Returns the length of the attribute at the beginning.
fn attribute(text: &str) -> usize {
    let (mut depth, mut place) = (0, 0);
    while let Some(next) = text[place..].chars().next() {
        match next {
            '"' => {
                place += string(&text[place..]);
                continue;
            }
            '[' => depth += 1,
            ']' if depth == 1 => return place + 1,
            ']' => depth -= 1,
            _ => {}
        }
        place += next.len_utf8();
    }
    text.len()
}

/// Returns the length of the string at the beginning.
fn string(text: &str) -> usize {
    let mut escaped = false;
    for (place, next) in text.char_indices().skip(1) {
        match next {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return place + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns the length of `r"…"`, `br#"…"#` and the like, if this word begins such a literal.
fn raw_string(text: &str, word: &str) -> Option<usize> {
    if !["r", "br", "cr"].contains(&word) {
        return None;
    }
    let after = &text[word.len()..];
    let hashes = after.len() - after.trim_start_matches('#').len();
    let inside = after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(word.len() + hashes + 1 + inside.find(&end)? + end.len())
}

/// Returns the length of `'x'` or `'\n'`, or of a lifetime's quotation mark.
fn character_or_lifetime(text: &str) -> usize {
    let mut inside = text.chars().skip(1);
    match (inside.next(), inside.next()) {
        (Some('\\'), _) => text[3..].find('\'').map_or(text.len(), |end| end + 4),
        (Some(one), Some('\'')) => one.len_utf8() + 2,
        _ => 1,
    }
}

#[test]
fn tokens_omit_comments_and_literals() {
    let source = "use a::b; // crate::c\nlet x = \"crate::d \\\" \"; let y = r#\"crate::e\"#; f('\\'', '\"', 'g: loop {})";
    let names = tokens(source).into_iter().filter_map(|token| match token {
        Token::Name(name) => Some(name),
        _ => None,
    });
    assert_eq!(Vec::from_iter(names), ["use", "a", "b", "let", "x", "let", "y", "f", "g", "loop"]);
    let attribute = Token::Attribute("path=a/b.rs".to_owned());
    assert_eq!(tokens("#![cfg(test)] #[path = \"a/b.rs\"]"), [attribute]);
}
