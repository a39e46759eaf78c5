//! Configured DHCPv6 options: those that are provided to the server and those that are requested.
//!
//! They have separate lists (`provideV6`, `requestV6`), because a number has different meanings in both protocols. A
//! value is a string, which is encoded in the form that the option has.
//!
//! Source: names: dhcp-options(5), without the prefix `dhcp6.`; forms: RFC 8415 §21.15, §21.16, RFC 4704 §4.

use cni::Error;
use cni::args::Args;
use cni::fold::quote;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::v4::{Provide, Request, VALUE_MAX, check_lengths};

/// Option numbers.
pub mod option {
    #![allow(missing_docs, reason = "RFC 8415 §24 and IANA name them")]
    pub const CLIENT: u16 = 1;
    pub const SERVER: u16 = 2;
    pub const ASSOCIATION: u16 = 3;
    pub const TEMPORARY: u16 = 4;
    pub const ADDRESS: u16 = 5;
    pub const REQUESTED: u16 = 6;
    pub const PREFERENCE: u16 = 7;
    pub const ELAPSED: u16 = 8;
    pub const RELAYED: u16 = 9;
    pub const AUTHENTICATION: u16 = 11;
    pub const UNICAST: u16 = 12;
    pub const STATUS: u16 = 13;
    pub const RAPID_COMMIT: u16 = 14;
    pub const USER_CLASS: u16 = 15;
    pub const VENDOR_CLASS: u16 = 16;
    pub const RELAY_INTERFACE: u16 = 18;
    pub const RECONFIGURE: u16 = 19;
    pub const RECONFIGURE_ACCEPT: u16 = 20;
    pub const NAME_SERVERS: u16 = 23;
    pub const DOMAIN_SEARCH: u16 = 24;
    pub const DELEGATION: u16 = 25;
    pub const DELEGATED: u16 = 26;
    pub const NAME: u16 = 39;
    pub const SOL_MAX_RT: u16 = 82;
}

/// Valid DUID lengths, in bytes.
const CLIENT: std::ops::RangeInclusive<usize> = 3..=130;
/// Maximum length for a label in a name, in bytes.
const LABEL_MAX: usize = 63;
/// Flag in option 39: the server is to update DNS, because a container cannot.
const SERVER_UPDATES_DNS: u8 = 1;
/// Option names that dhcp-options(5) has, with numbers.
const NAMES: &[(&str, u16)] = &[
    ("client-id", option::CLIENT),
    ("domain-search", option::DOMAIN_SEARCH),
    ("fqdn", option::NAME),
    ("name-servers", option::NAME_SERVERS),
    ("user-class", option::USER_CLASS),
    ("vendor-class", option::VENDOR_CLASS),
];
/// Options that only the client itself, servers or relays may set.
const OWN: &[u16] = &[
    option::SERVER,
    option::ASSOCIATION,
    option::TEMPORARY,
    option::ADDRESS,
    option::REQUESTED,
    option::PREFERENCE,
    option::ELAPSED,
    option::RELAYED,
    option::AUTHENTICATION,
    option::UNICAST,
    option::STATUS,
    option::RAPID_COMMIT,
    option::RELAY_INTERFACE,
    option::RECONFIGURE,
    option::RECONFIGURE_ACCEPT,
    option::DELEGATION,
    option::DELEGATED,
    option::SOL_MAX_RT,
];
/// Options that are requested unless `skipDefault` is set.
const DEFAULTS: &[u16] = &[option::NAME_SERVERS, option::DOMAIN_SEARCH];

/// Options in the messages to a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Provided options, each as number and encoded value.
    pub provided: Vec<(u16, Vec<u8>)>,
    /// Requested option numbers.
    pub requested: Vec<u16>,
}

impl Options {
    /// Reads both lists; values may come from `CNI_ARGS`.
    pub fn read(provide: &[Provide], request: &[Request], args: &str) -> Result<Options, Error> {
        let args = Args::scan(args);
        let mut options = Options::default();
        check_lengths(&[("ipam.provideV6", provide.len()), ("ipam.requestV6", request.len())])?;
        for (at, Provide { option, value, from_arg }) in provide.iter().enumerate() {
            let key = format!("ipam.provideV6[{at}]");
            let number = number(&format!("{key}.option"), option)?;
            if OWN.contains(&number) {
                let why = "an option that cannot be configured";
                return Err(Error::key(format!("{key}.option"), quote(option), why));
            }
            let from_args = args.get(from_arg).filter(|_| !from_arg.is_empty());
            for (part, value) in [("value", Some(value.as_str())), ("fromArg", from_args)] {
                let Some(value) = value.filter(|value| !value.is_empty()) else { continue };
                let fault =
                    |why: String| Err(Error::key(format!("{key}.{part}"), quote(&Value::from(value)), why));
                if value.len() > VALUE_MAX {
                    return fault(format!("longer than {VALUE_MAX} bytes"));
                }
                match encode_value(number, value) {
                    Ok(bytes) => {
                        options.provided.retain(|(known, _)| *known != number);
                        options.provided.push((number, bytes));
                    }
                    Err(error) => return fault(error.to_string()),
                }
            }
        }
        for (at, Request { option, .. }) in request.iter().enumerate() {
            if !matches!(option, Value::Null) && option != "" {
                options.ask(number(&format!("ipam.requestV6[{at}].option"), option)?);
            }
        }
        if !request.iter().any(|request| request.skip_default) {
            DEFAULTS.iter().for_each(|number| options.ask(*number));
        }
        Ok(options)
    }

    fn ask(&mut self, number: u16) {
        if !self.requested.contains(&number) {
            self.requested.push(number);
        }
    }
}

/// Returns the option number for a name or a number, which may be written as a string.
fn number(key: &str, option: &Value) -> Result<u16, Error> {
    let text = option.as_str().unwrap_or_default();
    let named = NAMES.iter().find(|(name, _)| *name == text).map(|(_, number)| *number);
    let numbered =
        || option.as_u64().or_else(|| text.parse().ok()).and_then(|number| u16::try_from(number).ok());
    named.or_else(numbered).filter(|number| *number > 0).ok_or_else(|| {
        let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
        Error::key(
            key,
            quote(option),
            format!("neither a number up to 65535 nor one of {}", names.join(", ")),
        )
    })
}

/// Why a string is not a valid value for an option.
#[derive(Clone, Copy, Debug, thiserror::Error)]
enum ValueError {
    /// The client identifier has an invalid length.
    #[error("a DUID of {0} bytes; it has {least} to {most}", least = CLIENT.start(), most = CLIENT.end())]
    ClientLength(usize),
    /// The vendor class has no enterprise number.
    #[error("not an enterprise number, a colon and a class, as 32473:printers")]
    VendorClass,
    /// The name is no DNS name.
    #[error("not a DNS name")]
    Name,
}

/// Encodes a string in the form that the option has.
fn encode_value(number: u16, text: &str) -> Result<Vec<u8>, ValueError> {
    match number {
        option::CLIENT => {
            let bytes = digits(text).unwrap_or_else(|| text.as_bytes().to_vec());
            match CLIENT.contains(&bytes.len()) {
                true => Ok(bytes),
                false => Err(ValueError::ClientLength(bytes.len())),
            }
        }
        option::USER_CLASS => Ok(length_prefixed(text)),
        option::VENDOR_CLASS => {
            let parts = text.split_once(':');
            let enterprise = parts.and_then(|(number, class)| Some((number.parse::<u32>().ok()?, class)));
            let (enterprise, class) = enterprise.ok_or(ValueError::VendorClass)?;
            Ok([&enterprise.to_be_bytes()[..], &length_prefixed(class)].concat())
        }
        option::NAME => name(text),
        _ => Ok(text.as_bytes().to_vec()),
    }
}

/// Decodes pairs of hexadecimal digits separated by colons, such as `00:04:a1`.
fn digits(text: &str) -> Option<Vec<u8>> {
    let byte = |pair: &str| {
        let is_pair = pair.len() == 2 && pair.chars().all(|c| c.is_ascii_hexdigit());
        u8::from_str_radix(pair, 16).ok().filter(|_| is_pair)
    };
    let is_list = text.contains(':');
    text.split(':').map(byte).collect::<Option<_>>().filter(|_| is_list)
}

/// Returns a string's length and then its bytes.
fn length_prefixed(text: &str) -> Vec<u8> {
    let length = u16::try_from(text.len()).unwrap_or(u16::MAX);
    [&length.to_be_bytes()[..], text.as_bytes()].concat()
}

/// Encodes a DNS name; one without a dot is partial, and the server completes it.
fn name(text: &str) -> Result<Vec<u8>, ValueError> {
    let mut bytes = vec![SERVER_UPDATES_DNS];
    let whole = text.strip_suffix('.').unwrap_or(text);
    for label in whole.split('.') {
        let is_label = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        match u8::try_from(label.len()) {
            Ok(length) if length > 0 && label.len() <= LABEL_MAX && label.chars().all(is_label) => {
                bytes.push(length);
                bytes.extend(label.as_bytes());
            }
            _ => return Err(ValueError::Name),
        }
    }
    if text.contains('.') {
        bytes.push(0);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(provide: &Value, request: &Value, args: &str) -> Result<Options, Error> {
        let provide: Vec<Provide> = cni::fold::from_value(provide, "ipam.provideV6")?;
        let request: Vec<Request> = cni::fold::from_value(request, "ipam.requestV6")?;
        Options::read(&provide, &request, args)
    }

    #[test]
    fn dhcp_v6_option_values_have_the_form_of_their_option() {
        let provide = json!([
            { "option": "fqdn", "fromArg": "K8S_POD_NAME" },
            { "option": "vendor-class", "value": "32473:a:b" },
            { "option": 15, "value": "lab" },
            { "option": "client-id", "value": "00:04:Ab" },
            { "option": "59", "value": "http" },
        ]);
        let options = read(&provide, &json!(null), "IgnoreUnknown=1;K8S_POD_NAME=web-0").unwrap();
        let expected: [(u16, &[u8]); 5] = [
            (39, b"\x01\x05web-0"),
            (16, b"\0\0\x7e\xd9\0\x03a:b"),
            (15, b"\0\x03lab"),
            (1, &[0, 4, 0xab]),
            (59, b"http"),
        ];
        assert_eq!(options.provided, expected.map(|(number, value)| (number, value.to_vec())));
        assert_eq!(options.requested, [23, 24]);
        let whole = read(&json!([{ "option": 39, "value": "a.example." }]), &json!([]), "").unwrap();
        assert_eq!(whole.provided, [(39, b"\x01\x01a\x07example\0".to_vec())]);
        let named = read(&json!([{ "option": 1, "value": "web-0" }]), &json!([]), "").unwrap();
        assert_eq!(named.provided, [(1, b"web-0".to_vec())]);
        let request = json!([{ "option": "31" }, { "option": "domain-search", "skipDefault": true }]);
        assert_eq!(read(&json!([]), &request, "").unwrap().requested, [31, 24]);
    }

    #[test]
    fn dhcp_v6_invalid_option_is_reported_by_field_and_value() {
        let long = "x".repeat(256);
        for (provide, request, start) in [
            (json!([{ "option": "host-name" }]), json!([]), "ipam.provideV6[0].option: \"host-name\": "),
            (json!([{ "option": 65536 }]), json!([]), "ipam.provideV6[0].option: 65536: "),
            (json!([{ "option": 3, "value": "x" }]), json!([]), "ipam.provideV6[0].option: 3: an option"),
            (json!([{ "option": 59, "value": long }]), json!([]), "ipam.provideV6[0].value: \"xxx"),
            (
                json!([{ "option": 1, "value": "ab" }]),
                json!([]),
                "ipam.provideV6[0].value: \"ab\": a DUID of 2",
            ),
            (
                json!([{ "option": 16, "value": "x:y" }]),
                json!([]),
                "ipam.provideV6[0].value: \"x:y\": not an",
            ),
            (
                json!([{ "option": 39, "value": "a..b" }]),
                json!([]),
                "ipam.provideV6[0].value: \"a..b\": not a",
            ),
            (json!([]), json!([{}, { "option": "0" }]), "ipam.requestV6[1].option: \"0\": "),
            (json!([]), json!(vec![json!({}); 65]), "ipam.requestV6: 65 entries: "),
        ] {
            let error = read(&provide, &request, "").unwrap_err();
            assert!(error.code == 7 && error.msg.starts_with(start), "{error}");
        }
    }
}
