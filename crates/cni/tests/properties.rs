//! Property tests: parsing never panics, and content that is not weft's is kept.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

use std::collections::BTreeMap;

use cni::args::Args;
use cni::fold;
use cni::network::Network;
use cni::object::Object;
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::Value;

/// Generates any JSON value, with odd spacing and numbers that no machine type can represent.
fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        any::<bool>().prop_map(|value| value.to_string()),
        "-?(0|[1-9][0-9]{0,30})".prop_map(String::from),
        "-?(0|[1-9][0-9]{0,3})\\.[0-9]{1,20}([eE][+-]?[0-9]{1,3})?".prop_map(String::from),
        any::<String>().prop_map(|text| Value::from(text).to_string()),
    ];
    leaf.prop_recursive(4, 40, 5, |inner| {
        let list = proptest::collection::vec(inner.clone(), 0..5)
            .prop_map(|items| format!("[ {} ]", items.join(" ,\n")));
        let object = proptest::collection::vec((key(), inner), 0..5).prop_map(|entries| object(&entries));
        prop_oneof![list, object]
    })
}

/// Generates keys that matter and others, in several spellings.
fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        "(?i)(name|type|plugins|cniVersion|cniVersions|capabilities|disableCheck|ips|address|routes|dst)",
        "[a-zA-Z./ \"\\\\]{0,6}",
        any::<String>(),
    ]
}

fn object(entries: &[(String, String)]) -> String {
    let entries: Vec<String> =
        entries.iter().map(|(key, value)| format!("{} :\t{value}", Value::from(key.as_str()))).collect();
    format!("{{{}}}", entries.join(","))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(dead_code, reason = "only its reading is tested")]
struct Everything {
    name: String,
    r#type: Option<u16>,
    ips: Vec<Nested>,
    capabilities: BTreeMap<String, bool>,
    disable_check: bool,
    dns: Box<Option<Everything>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
#[allow(dead_code, reason = "only its reading is tested")]
struct Nested {
    address: String,
    routes: i32,
    dst: f64,
}

proptest! {
    // Requirements: L12, S28
    #[test]
    fn object_set_keeps_other_bytes(
        entries in proptest::collection::vec((key(), json()), 0..8), name in key()
    ) {
        let mut object = Object::parse(object(&entries).as_bytes(), "any")?;
        let before: Vec<(String, String)> =
            object.iter().map(|(key, value)| (key.to_owned(), value.get().to_owned())).collect();
        prop_assert_eq!(&before, &entries);
        object.set(&name, "ours")?;
        let again = Object::parse(object.to_json().as_bytes(), "again")?;
        prop_assert_eq!(&again, &object);
        let kept: Vec<(String, String)> = again
            .iter()
            .filter(|(key, _)| *key != name)
            .map(|(key, value)| (key.to_owned(), value.get().to_owned()))
            .collect();
        let others: Vec<(String, String)> = entries.into_iter().filter(|(key, _)| *key != name).collect();
        prop_assert_eq!(kept, others);
        prop_assert_eq!(again.text(&name)?, Some("ours".to_owned()));
    }

    // Requirements: S8, trap 1
    #[test]
    fn object_imposed_key_is_read_by_every_folding_reader(
        entries in proptest::collection::vec((key(), json()), 0..8)
    ) {
        let mut object = Object::parse(object(&entries).as_bytes(), "any")?;
        object.impose("name", serde_json::value::to_raw_value("ours").unwrap());
        let seen: Vec<&str> =
            object.iter().filter(|(key, _)| fold::same(key, "name")).map(|(_, value)| value.get()).collect();
        prop_assert_eq!(seen, vec!["\"ours\""]);
    }

    // Requirements: V15
    #[test]
    fn cni_args_scan_returns_the_parsed_pairs(text in "(\\PC|[;=]){0,60}") {
        let scanned = Args::scan(&text);
        if let Ok(parsed) = Args::parse(&text) {
            prop_assert_eq!(&parsed, &scanned);
            prop_assert_eq!(parsed.to_string(), text);
        }
        prop_assert_eq!(Args::scan(&scanned.to_string()), scanned);
    }

    // Requirements: trap 1, trap 2
    #[test]
    fn fold_never_panics_and_errors_are_short(text in json()) {
        if let Err(error) = fold::from_slice::<Everything>(text.as_bytes(), "any") {
            prop_assert!(matches!(error.code, 6 | 7), "{}", error);
            prop_assert!(!error.msg.is_empty());
        }
    }

    // Requirements: trap 1
    #[test]
    fn fold_accepts_any_letter_case(upper in any::<Vec<bool>>(), port in any::<u16>()) {
        let flip = |key: &str| -> String {
            let flags = upper.iter().copied().chain(std::iter::repeat(false));
            key.chars().zip(flags).map(|(c, up)| if up { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() }).collect()
        };
        let text = format!(r#"{{"{}":{port},"{}":[{{"{}":"a"}}]}}"#, flip("type"), flip("ips"), flip("address"));
        let read: Everything = fold::from_slice(text.as_bytes(), "any")?;
        prop_assert_eq!((read.r#type, read.ips[0].address.as_str()), (Some(port), "a"));
    }

    // Requirements: S8
    #[test]
    fn network_parser_never_panics_and_keeps_bytes(
        entries in proptest::collection::vec((key(), json()), 0..8)
    ) {
        let text = object(&entries);
        if let Ok(network) = Network::parse_open(text.as_bytes(), "any") {
            let again = Network::parse_open(network.bytes(), "again")?;
            prop_assert_eq!((again.name, again.version, again.plugins), (network.name, network.version, network.plugins));
        }
    }
}
