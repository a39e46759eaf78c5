//! `CNI_ARGS`: the oldest and loosest of the three channels to a plugin.
//!
//! Two readers, because two kinds of program read it. A plugin that acts on a key reads it
//! strictly, as Go's `LoadArgs` does: every part has exactly one `=`, an unknown key is an error
//! unless `IgnoreUnknown` says otherwise. A runtime or meta-plugin only looks for the pod and must
//! never fail on what it does not understand.
//!
//! Source: CONVENTIONS.md "CNI_ARGS"; `pkg/types/args.go` (requirements V14–V16).

use std::fmt;

use crate::error::{Error, code};

/// Longest `CNI_ARGS` we read, in bytes.
pub const ARGS_MAX: usize = 64 * 1024;

/// The keys Kubernetes runtimes send; no plugin of ours fails on them.
const KUBERNETES_PREFIX: &str = "K8S_POD_";

/// The pairs of `CNI_ARGS`, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Args(Vec<(String, String)>);

impl Args {
    /// Reads strictly: `K=V;K=V`, exactly one `=` a part, no empty part.
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

    /// Reads what can be read: the first `=` of a part divides it, other parts are skipped.
    pub fn scan(text: &str) -> Args {
        let bounded = &text[..text.floor_char_boundary(ARGS_MAX)];
        let pairs = bounded.split(';').filter_map(|part| part.split_once('='));
        Args(pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect())
    }

    /// The value of `key`; the last one wins. Keys are case-sensitive.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().rev().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// All pairs, in order.
    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v.as_str()))
    }

    /// Fails on a key that is neither in `known`, nor Kubernetes' own, nor excused by `IgnoreUnknown`.
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
    /// What a Kubernetes runtime sends: `IgnoreUnknown=1` first, then who the pod is.
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
    /// As in the variable: `K=V;K=V`.
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

/// `1`, `0`, `true`, `false` in any letter case: the booleans of `CNI_ARGS` and of `CNI_NETNS_OVERRIDE`.
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
    fn each_part_has_exactly_one_equals_sign() -> Result<(), Error> {
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
    fn unknown_keys_need_ignore_unknown() -> Result<(), Error> {
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
    fn the_keys_of_kubernetes_are_never_unknown() -> Result<(), Error> {
        Args::parse("K8S_POD_NAMESPACE=a;K8S_POD_INFRA_CONTAINER_ID=b;K8S_POD_UID=c")?.only(&[])
    }

    // Requirements: V16
    #[test]
    fn a_pod_is_announced_with_ignore_unknown_first() -> Result<(), Error> {
        let text = Args::of_pod("ns", "web", "c1", "u1").to_string();
        assert!(text.starts_with("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web;"), "{text}");
        Args::parse(&text)?.only(&[])
    }

    // Requirements: V14
    #[test]
    fn a_key_is_case_sensitive_and_the_last_one_wins() -> Result<(), Error> {
        let args = Args::parse("ip=1;IP=2;IP=3")?;
        assert_eq!((args.get("ip"), args.get("IP"), args.get("Ip")), (Some("1"), Some("3"), None));
        Ok(())
    }

    // Requirements: V15
    #[test]
    fn a_scan_is_bounded_wherever_the_bound_falls() {
        for pad in 0..4 {
            let text = format!("{}K={}", " ".repeat(pad), "ä€".repeat(ARGS_MAX));
            let scanned = Args::scan(&text);
            let value = scanned.pairs().next().map_or(0, |(_, value)| value.len());
            assert!((ARGS_MAX - 10..=ARGS_MAX).contains(&value), "{value}");
        }
    }

    // Requirements: M18
    #[test]
    fn a_scan_survives_values_with_equals_signs() {
        let args = Args::scan("IgnoreUnknown=1;;junk;TOKEN=a=b==;K8S_POD_NAME=web");
        assert_eq!(args.get("TOKEN"), Some("a=b=="));
        assert_eq!(args.get("K8S_POD_NAME"), Some("web"));
    }
}
