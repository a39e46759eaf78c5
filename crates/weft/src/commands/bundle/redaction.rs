//! Removes secrets from documents and texts in a support archive.
//!
//! - A value is removed if the field name says that it is secret, whatever the value is.
//! - In texts, also inside strings in documents: named values, bearer tokens, JSON web tokens, private keys,
//!   and passwords in URLs.
//! - A JSON document inside a string, such as a network's configuration, is treated like the document around
//!   it.

use std::sync::LazyLock;

use regex_lite::Regex;
use serde_json::Value;

/// Text in place of a secret.
pub(super) const REDACTED: &str = "REDACTED";
/// Parts that mark a name's value as secret, in lower case and without separators.
const SECRET_NAMES: [&str; 16] = [
    "psk",
    "pwd",
    "presharedkey",
    "authkey",
    "encryptionkey",
    "accesskey",
    "token",
    "passw",
    "passphrase",
    "secret",
    "credential",
    "authorization",
    "apikey",
    "privatekey",
    "keydata",
    "cookie",
];

/// Patterns that secrets have in texts, and what replaces them.
static PATTERNS: LazyLock<Vec<(Regex, &'static str)>> = LazyLock::new(|| {
    let patterns = [
        (r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)", REDACTED),
        // The text may begin within a key.
        (r"(?s)\A.*-----END [A-Z ]*PRIVATE KEY-----", REDACTED),
        (
            r#"(?i)([a-z0-9_.-]*(?:token|passw|passphrase|pwd|psk|secret|credential|authorization|(?:api|private|pre-?shared|auth|encryption|access)[_-]?key|key-data|cookie)[a-z0-9_.-]*\\?["']?\s*[:=]\s*)(?:(?:bearer|basic)\s+)?(?:\\?"[^"\\]*\\?"|'[^']*'|[^\s,;"'}\]]+)"#,
            "${1}REDACTED",
        ),
        (r"(?i)\b(bearer|basic)\s+[a-z0-9._~+/=-]{8,}", "${1} REDACTED"),
        (r"\beyJ[A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*", REDACTED),
        (r"://[^/\s:@]*:[^\s@]+@", "://REDACTED@"),
        (r"(?i)(--?[a-z0-9-]*(?:token|passw|passphrase|secret)[a-z0-9-]*)\s+\S+", "${1} REDACTED"),
    ];
    // Each is a constant, which a test compiles.
    patterns.into_iter().filter_map(|(pattern, with)| Some((Regex::new(pattern).ok()?, with))).collect()
});

/// Removes the secrets from a text.
pub(super) fn text(text: &str) -> String {
    let clean = |text: String, (pattern, with): &(Regex, &'static str)| {
        pattern.replace_all(&text, *with).into_owned()
    };
    PATTERNS.iter().fold(text.to_owned(), clean)
}

/// Removes the secrets from a JSON document.
pub(super) fn document(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let names_secret = fields.get("name").and_then(Value::as_str).is_some_and(is_secret);
            for (name, value) in fields {
                let is_secret = is_secret(name) || names_secret && name == "value";
                if is_secret && !value.is_null() {
                    *value = REDACTED.into();
                } else {
                    document(value);
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(document),
        Value::String(own) => {
            let inner: Option<Value> =
                serde_json::from_str(own).ok().filter(|inner: &Value| inner.is_object() || inner.is_array());
            *own = match inner {
                Some(mut inner) => {
                    document(&mut inner);
                    inner.to_string()
                }
                None => text(own),
            };
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Whether a field name says that the value is secret.
fn is_secret(name: &str) -> bool {
    let plain: String =
        name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    plain == "auth" || SECRET_NAMES.iter().any(|secret| plain.contains(secret))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bundle_redaction_removes_secrets_of_documents() {
        assert_eq!(PATTERNS.len(), 7, "every pattern is valid");
        let mut value = json!({
            "type": "bridge", "mtu": 1400,
            "password": "hunter2", "clientSecret": { "a": "hunter2" }, "client-key-data": "hunter2", "token": 7,
            "config": r#"{"type":"sriov","auth_token":"hunter2","vlan":5}"#,
            "args": "IgnoreUnknown=1;API_TOKEN=hunter2;K8S_POD_NAME=web",
            "env": [{ "name": "API_TOKEN", "value": "hunter2" }], "psk": "hunter2", "auth": "hunter2",
            "list": ["redis://:hunter2@example.com", "https://user:hunter2@example.com/x", "Authorization: Bearer hunter2hunter2"],
        });
        document(&mut value);
        let text = value.to_string();
        assert!(!text.contains("hunter2"), "{text}");
        for kept in ["bridge", "1400", r#"\"vlan\":5"#, "K8S_POD_NAME=web", "example.com/x"] {
            assert!(text.contains(kept), "{kept}: {text}");
        }
    }

    #[test]
    fn bundle_redaction_removes_secrets_of_texts() {
        for secret in [
            "login with password=hunter2 failed",
            "password: 'hunter2 with blanks'",
            r#"sent {\"token\": \"hunter2\"}"#,
            "got eyJhbGciOiJIUzI1NiJ9.hunter2hunter2.hunter2",
            "-----BEGIN RSA PRIVATE KEY-----\nhunter2\nhunter2\n-----END RSA PRIVATE KEY-----",
            "-----BEGIN PRIVATE KEY-----\nhunter2",
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nhunter2\n-----END RSA PRIVATE KEY-----",
            "hunter2\n-----END PRIVATE KEY-----\nbridge",
            "program --password hunter2 started",
            "basic hunter2hunter2==",
        ] {
            assert!(!text(secret).contains("hunter2"), "{secret}: {}", text(secret));
        }
        let harmless = "bridge: master \"eth9\": no such interface; key: value";
        assert_eq!(text(harmless), harmless);
    }
}
