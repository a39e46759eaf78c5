//! Options for `portmap`.
//!
//! If no backend is named, an option that only one backend has selects that backend. If one is named, the
//! other's options are refused.
//!
//! Source: plugins `plugins/meta/portmap/main.go` (V1); docs/plugins/portmap.md.

use cni::Error;
use cni::config::Config;
use serde::Deserialize;

use crate::chain::checked_chain;
use crate::conditions::{self, Conditions, Family, Syntax};

/// Default bit in the packet mark that selects packets for masquerading.
pub const MARK_BIT: u8 = 13;

/// The configuration as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    backend: Option<String>,
    snat: Option<bool>,
    masq_all: bool,
    mark_masq_bit: Option<i64>,
    external_set_mark_chain: Option<String>,
    conditions_v4: Option<Vec<String>>,
    conditions_v6: Option<Vec<String>>,
}

/// Validated configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Backend and the options for it.
    pub backend: Backend,
    /// Connections that are masqueraded.
    pub masquerade: Masquerade,
}

/// Packet filter that forwards, and the options for it.
#[derive(Clone, Debug)]
pub enum Backend {
    /// nf_tables, natively.
    Nftables {
        /// Bit in the packet mark.
        bit: u8,
        /// Conditions for IPv4 and for IPv6 packets.
        conditions: [Conditions; 2],
    },
    /// `iptables-restore` and `ip6tables-restore`.
    Iptables {
        /// Way in which packets are marked.
        marking: Marking,
        /// Conditions for IPv4 and for IPv6 packets, as rule arguments.
        conditions: [Vec<String>; 2],
    },
}

/// Method by which iptables marks packets for masquerading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Marking {
    /// One of this plugin's chains sets this bit, and another one masquerades.
    Own(u8),
    /// This chain, which another program owns, marks and masquerades.
    Foreign(String),
}

/// Forwarded connections whose source becomes the host's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Masquerade {
    /// None: `snat: false`.
    Nothing,
    /// Those from the host's loopback and from the container's subnet: otherwise replies would take another path.
    Needed,
    /// All: `masqAll`.
    Everything,
}

impl Settings {
    /// Reads the plugin's options.
    pub fn read(config: &Config) -> Result<Settings, Error> {
        let Conf {
            backend,
            snat,
            masq_all,
            mark_masq_bit,
            external_set_mark_chain,
            conditions_v4,
            conditions_v6,
        } = config.decode()?;
        let bit = match mark_masq_bit {
            None => None,
            Some(bit @ 0..=31) => u8::try_from(bit).ok(),
            Some(bit) => return Err(Error::key("markMasqBit", bit, "not between 0 and 31")),
        };
        if let (Some(bit), Some(chain)) = (bit, &external_set_mark_chain) {
            let why = format!("markMasqBit is {bit}: only one of them can mark");
            return Err(Error::key("externalSetMarkChain", format!("{chain:?}"), why));
        }
        let written = [conditions_v4, conditions_v6].map(Option::unwrap_or_default);
        let own = options_of_one_backend(external_set_mark_chain.as_deref(), &written);
        let syntax = chosen(backend.as_deref(), &own)?;
        let backend = match syntax {
            Syntax::Nftables => Backend::Nftables {
                bit: bit.unwrap_or(MARK_BIT),
                conditions: [
                    conditions::read("conditionsV4", Family::V4, &written[0])?,
                    conditions::read("conditionsV6", Family::V6, &written[1])?,
                ],
            },
            Syntax::Iptables => Backend::Iptables {
                marking: match external_set_mark_chain {
                    Some(chain) => Marking::Foreign(checked_chain("externalSetMarkChain", chain)?),
                    None => Marking::Own(bit.unwrap_or(MARK_BIT)),
                },
                conditions: [
                    conditions::words("conditionsV4", &written[0])?,
                    conditions::words("conditionsV6", &written[1])?,
                ],
            },
        };
        let masquerade = match (snat.unwrap_or(true), masq_all) {
            (false, _) => Masquerade::Nothing,
            (true, false) => Masquerade::Needed,
            (true, true) => Masquerade::Everything,
        };
        Ok(Settings { backend, masquerade })
    }
}

/// Returns the options that only one backend has, with the backend and the value.
fn options_of_one_backend(
    chain: Option<&str>,
    conditions: &[Vec<String>; 2],
) -> Vec<(&'static str, Syntax, String)> {
    let mut own = Vec::new();
    if let Some(chain) = chain {
        own.push(("externalSetMarkChain", Syntax::Iptables, format!("{chain:?}")));
    }
    for (key, words) in ["conditionsV4", "conditionsV6"].into_iter().zip(conditions) {
        if let Some(syntax) = Syntax::of(words) {
            own.push((key, syntax, format!("{words:?}")));
        }
    }
    own
}

/// Returns the requested backend, else the one that the other options need, else nftables.
fn chosen(backend: Option<&str>, own: &[(&'static str, Syntax, String)]) -> Result<Syntax, Error> {
    let wanted = match backend {
        Some("nftables") => Syntax::Nftables,
        Some("iptables") => Syntax::Iptables,
        Some(other) => {
            return Err(Error::key("backend", format!("{other:?}"), "not one of nftables, iptables"));
        }
        None => own.first().map_or(Syntax::Nftables, |(_, syntax, _)| *syntax),
    };
    match own.iter().find(|(_, syntax, _)| *syntax != wanted) {
        None => Ok(wanted),
        Some((key, syntax, value)) => {
            let why = format!("only the backend {syntax} has this option, and the backend is {wanted}");
            Err(Error::key(key, value, why))
        }
    }
}

/// Returns the options, by name.
pub(crate) fn options() -> &'static [&'static str] {
    cni::fold::fields::<Conf>()
}

#[cfg(test)]
mod tests {
    use cni::version::Version;
    use serde_json::{Value, json};

    use super::*;

    fn config(keys: &Value) -> Config {
        let mut value = json!({ "cniVersion": "1.1.0", "name": "net", "type": "portmap" });
        for (key, inner) in keys.as_object().unwrap() {
            value[key] = inner.clone();
        }
        Config::read(value.to_string().into_bytes(), Version::ALL).unwrap()
    }

    #[test]
    fn portmap_option_of_one_backend_selects_it() {
        let chosen = |keys: Value| match Settings::read(&config(&keys)).map(|settings| settings.backend) {
            Ok(Backend::Nftables { .. }) => "nftables".to_owned(),
            Ok(Backend::Iptables { .. }) => "iptables".to_owned(),
            Err(error) => error.msg,
        };
        assert_eq!(chosen(json!({})), "nftables");
        assert_eq!(chosen(json!({ "conditionsV4": [], "conditionsV6": [""] })), "nftables");
        assert_eq!(chosen(json!({ "externalSetMarkChain": "KUBE-MARK-MASQ" })), "iptables");
        assert_eq!(chosen(json!({ "conditionsV4": ["!", "-s", "192.0.2.0/24"] })), "iptables");
        assert_eq!(chosen(json!({ "conditionsV6": ["ip6", "saddr", "fd00::/8"] })), "nftables");
        assert!(
            chosen(json!({ "backend": "nftables", "conditionsV4": ["-s", "1.2.3.4"] }))
                .contains("conditionsV4: [\"-s\", \"1.2.3.4\"]: only the backend iptables")
        );
        assert!(
            chosen(json!({ "backend": "iptables", "conditionsV6": ["ip6 saddr ::1"] }))
                .contains("conditionsV6")
        );
    }

    #[test]
    fn portmap_invalid_value_is_reported_by_field_and_value() {
        for (keys, expected) in [
            (json!({ "backend": "pf" }), "backend: \"pf\""),
            (json!({ "backend": "" }), "backend: \"\""),
            (json!({ "markMasqBit": 32 }), "markMasqBit: 32"),
            (json!({ "markMasqBit": -1 }), "markMasqBit: -1"),
            (
                json!({ "markMasqBit": 5, "externalSetMarkChain": "X" }),
                "externalSetMarkChain: \"X\": markMasqBit is 5",
            ),
            (json!({ "externalSetMarkChain": "a b" }), "externalSetMarkChain: \"a b\""),
            (json!({ "externalSetMarkChain": "-j" }), "externalSetMarkChain"),
            (json!({ "externalSetMarkChain": "X".repeat(29) }), "externalSetMarkChain"),
            (json!({ "conditionsV4": ["-s\n*filter"] }), "conditionsV4"),
        ] {
            let error = Settings::read(&config(&keys)).unwrap_err();
            assert!(error.code == 7 && error.msg.starts_with(expected), "{}", error.msg);
        }
    }
}
