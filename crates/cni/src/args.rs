//! `CNI_ARGS`: key-value pairs, the oldest way to pass parameters to a plugin.
//!
//! There are two parsers, because two kinds of programs read it:
//! - [`Args::parse`] is as strict as Go's `LoadArgs`, for a plugin that acts on a key: every part must have exactly one
//!   `=`, and an unknown key is an error unless `IgnoreUnknown` is set.
//! - [`Args::scan`] is lenient, for a runtime or meta-plugin that only looks for the pod and must not fail on other
//!   keys.
//!
//! Source: CONVENTIONS.md "CNI_ARGS"; `pkg/types/args.go` (requirements V14–V16).

use std::fmt;

use crate::error::{Error, code};

/// Maximum length of `CNI_ARGS` in bytes.
pub const ARGS_MAX: usize = 64 * 1024;

/// Prefix of the keys that Kubernetes runtimes send; every built-in plugin accepts them.
const KUBERNETES_PREFIX: &str = "K8S_POD_";

/// Parsed pairs, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Args(Vec<(String, String)>);

impl Args {
    /// Parses strictly: `K=V;K=V`, with exactly one `=` in each part and no empty part.
    pub fn parse(text: &str) -> Result<Args, Error> {
        if text.len() > ARGS_MAX {
            return Err(invalid(format!("longer than {ARGS_MAX} bytes")));
        }
        if text.is_empty() {
            return Ok(Args::default());
        }
        let mut pairs = Vec::new();
        for part in text.split(';') {
            match part.split_once('=') {
                Some((key, value)) if !value.contains('=') => {
                    pairs.push((key.to_owned(), value.to_owned()));
                }
                _ => return Err(invalid(format!("invalid pair {part:?}"))),
            }
        }
        Ok(Args(pairs))
    }

    /// Parses leniently: the first `=` separates key and value, and parts without one are skipped.
    pub fn scan(text: &str) -> Args {
        let bounded = &text[..text.floor_char_boundary(ARGS_MAX)];
        let pairs = bounded.split(';').filter_map(|part| part.split_once('='));
        Args(pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect())
    }

    /// Returns the value for `key`; if it occurs more than once, the last one counts. Keys are case-sensitive.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().rev().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// Iterates over all pairs, in order.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }

    /// Fails on a key that is neither in `known` nor a Kubernetes key, unless `IgnoreUnknown` is set.
    pub fn only(&self, known: &[&str]) -> Result<(), Error> {
        let excused = match self.get("IgnoreUnknown") {
            None => false,
            Some(text) => {
                boolean(text).ok_or_else(|| invalid(format!("IgnoreUnknown: {text:?} is not a boolean")))?
            }
        };
        if excused {
            return Ok(());
        }
        let unknown = |key: &str| {
            key != "IgnoreUnknown" && !key.starts_with(KUBERNETES_PREFIX) && !known.contains(&key)
        };
        match self.0.iter().find(|(key, _)| unknown(key)) {
            None => Ok(()),
            Some((key, value)) => Err(invalid(format!(
                "unknown args [{:?}]; set IgnoreUnknown=1 to allow them",
                format!("{key}={value}")
            ))),
        }
    }
}

impl Args {
    /// Builds the pairs that a Kubernetes runtime sends: `IgnoreUnknown=1` first, then the pod's identity.
    pub fn of_pod(namespace: &str, name: &str, container_id: &str, uid: &str) -> Args {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        Args(vec![
            pair("IgnoreUnknown", "1"),
            pair("K8S_POD_NAMESPACE", namespace),
            pair("K8S_POD_NAME", name),
            pair("K8S_POD_INFRA_CONTAINER_ID", container_id),
            pair("K8S_POD_UID", uid),
        ])
    }
}

impl fmt::Display for Args {
    /// Formats the pairs for the variable: `K=V;K=V`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (key, value)) in self.0.iter().enumerate() {
            let divider = if index == 0 { "" } else { ";" };
            write!(f, "{divider}{key}={value}")?;
        }
        Ok(())
    }
}

impl FromIterator<(String, String)> for Args {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(pairs: I) -> Args {
        Args(pairs.into_iter().collect())
    }
}

/// Parses `1`, `0`, `true` or `false` in any letter case, as used in `CNI_ARGS` and `CNI_NETNS_OVERRIDE`.
pub fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" => Some(true),
        "0" | "false" => Some(false),
        _ => None,
    }
}

fn invalid(why: impl fmt::Display) -> Error {
    Error::new(code::INVALID_ENVIRONMENT, format!("CNI_ARGS: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Requirements: V15
    #[test]
    fn cni_args_parts_have_exactly_one_equals_sign() -> Result<(), Error> {
        let args = Args::parse("IP=10.1.2.3;GATEWAY=;ip=lower")?;
        assert_eq!(args.get("IP"), Some("10.1.2.3"));
        assert_eq!(args.get("GATEWAY"), Some(""));
        for bad in ["IP", "A=b=c", "A=1;", ";A=1", "A=1;;B=2"] {
            let error = Args::parse(bad).unwrap_err();
            assert!(error.msg.starts_with("CNI_ARGS: invalid pair"), "{bad}: {error}");
            assert_eq!(error.code, 4);
        }
        assert_eq!(Args::parse("")?, Args::default());
        Ok(())
    }

    // Requirements: V15
    #[test]
    fn cni_args_unknown_keys_need_ignore_unknown() -> Result<(), Error> {
        let args = Args::parse("IP=1.2.3.4;FOO=bar")?;
        assert!(args.only(&["IP"]).unwrap_err().msg.contains("FOO=bar"));
        assert!(args.only(&["IP", "FOO"]).is_ok());
        for excuse in ["IgnoreUnknown=1", "IgnoreUnknown=TRUE", "IgnoreUnknown=true"] {
            assert!(Args::parse(&format!("FOO=bar;{excuse}"))?.only(&[]).is_ok(), "{excuse}");
        }
        assert!(Args::parse("FOO=bar;IgnoreUnknown=0")?.only(&[]).is_err());
        assert!(Args::parse("IgnoreUnknown=maybe")?.only(&[]).is_err());
        Ok(())
    }

    // Requirements: V16
    #[test]
    fn cni_args_keys_of_kubernetes_are_always_known() -> Result<(), Error> {
        Args::parse("K8S_POD_NAMESPACE=a;K8S_POD_INFRA_CONTAINER_ID=b;K8S_POD_UID=c")?.only(&[])
    }

    // Requirements: V16
    #[test]
    fn cni_args_of_a_pod_begin_with_ignore_unknown() -> Result<(), Error> {
        let text = Args::of_pod("ns", "web", "c1", "u1").to_string();
        assert!(text.starts_with("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web;"), "{text}");
        Args::parse(&text)?.only(&[])
    }

    // Requirements: V14
    #[test]
    fn cni_args_keys_are_case_sensitive_and_the_last_counts() -> Result<(), Error> {
        let args = Args::parse("ip=1;IP=2;IP=3")?;
        assert_eq!((args.get("ip"), args.get("IP"), args.get("Ip")), (Some("1"), Some("3"), None));
        Ok(())
    }

    // Requirements: V15
    #[test]
    fn cni_args_scan_is_limited_at_any_character() {
        for pad in 0..4 {
            let text = format!("{}K={}", " ".repeat(pad), "ä€".repeat(ARGS_MAX));
            let scanned = Args::scan(&text);
            let value = scanned.pairs().next().map_or(0, |(_, value)| value.len());
            assert!((ARGS_MAX - 10..=ARGS_MAX).contains(&value), "{value}");
        }
    }

    // Requirements: M18
    #[test]
    fn cni_args_scan_accepts_values_with_equals_signs() {
        let args = Args::scan("IgnoreUnknown=1;;junk;TOKEN=a=b==;K8S_POD_NAME=web");
        assert_eq!(args.get("TOKEN"), Some("a=b=="));
        assert_eq!(args.get("K8S_POD_NAME"), Some("web"));
    }
}
