//! The configured DHCPv4 options: those that are provided to the server and those that are requested.
//!
//! Source: Go plugin `plugins/ipam/dhcp/options.go`, `lease.go` `prepareOptions`; names: dhcp-options(5).

use cni::Error;
use cni::args::Args;
use cni::fold::quote;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Option numbers.
pub mod option {
    #![allow(missing_docs, reason = "RFC 2132 names them")]
    pub const PAD: u8 = 0;
    pub const SUBNET_MASK: u8 = 1;
    pub const ROUTERS: u8 = 3;
    pub const NAME_SERVERS: u8 = 6;
    pub const HOST_NAME: u8 = 12;
    pub const DOMAIN_NAME: u8 = 15;
    pub const INTERFACE_MTU: u8 = 26;
    pub const STATIC_ROUTES: u8 = 33;
    pub const REQUESTED_ADDRESS: u8 = 50;
    pub const LEASE_TIME: u8 = 51;
    pub const OVERLOAD: u8 = 52;
    pub const MESSAGE_TYPE: u8 = 53;
    pub const SERVER: u8 = 54;
    pub const PARAMETERS: u8 = 55;
    pub const MESSAGE: u8 = 56;
    pub const MAXIMUM_SIZE: u8 = 57;
    pub const RENEWAL_TIME: u8 = 58;
    pub const REBINDING_TIME: u8 = 59;
    pub const VENDOR_CLASS: u8 = 60;
    pub const CLIENT: u8 = 61;
    pub const USER_CLASS: u8 = 77;
    pub const DOMAIN_SEARCH: u8 = 119;
    pub const CLASSLESS_ROUTES: u8 = 121;
    pub const MICROSOFT_ROUTES: u8 = 249;
    pub const END: u8 = 255;
}

/// Maximum length for a value, in bytes.
pub const VALUE_MAX: usize = 255;
/// Maximum number of entries in a list.
const LIST_MAX: usize = 64;
/// Option names that dhcp-options(5) has, with numbers.
const NAMES: &[(&str, u8)] = &[
    ("classless-static-routes", option::CLASSLESS_ROUTES),
    ("dhcp-client-identifier", option::CLIENT),
    ("domain-name", option::DOMAIN_NAME),
    ("domain-name-servers", option::NAME_SERVERS),
    ("domain-search", option::DOMAIN_SEARCH),
    ("host-name", option::HOST_NAME),
    ("interface-mtu", option::INTERFACE_MTU),
    ("routers", option::ROUTERS),
    ("static-routes", option::STATIC_ROUTES),
    ("subnet-mask", option::SUBNET_MASK),
    ("user-class", option::USER_CLASS),
    ("vendor-class-identifier", option::VENDOR_CLASS),
];
/// Options that only the client itself may set, because the protocol depends on them.
const OWN: &[u8] = &[
    option::PAD,
    option::REQUESTED_ADDRESS,
    option::OVERLOAD,
    option::MESSAGE_TYPE,
    option::SERVER,
    option::PARAMETERS,
    option::END,
];
/// Options that are requested unless `skipDefault` is set.
const DEFAULTS: &[u8] = &[option::ROUTERS, option::SUBNET_MASK];

/// Entry in `provide`, as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Provide {
    /// Option name or number.
    pub option: Value,
    /// Value as a string.
    pub value: String,
    /// `CNI_ARGS` key that contains the value.
    #[serde(rename = "fromArg")]
    pub from_arg: String,
}

/// Entry in `request`, as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Request {
    /// Option name or number.
    pub option: Value,
    /// Whether the default options are omitted.
    #[serde(rename = "skipDefault")]
    pub skip_default: bool,
}

/// Options in every message to a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Options {
    /// Provided options, each as number and value.
    pub provided: Vec<(u8, Vec<u8>)>,
    /// Requested option numbers.
    pub requested: Vec<u8>,
}

impl Options {
    /// Reads both lists; values may come from `CNI_ARGS`.
    pub fn read(provide: &[Provide], request: &[Request], args: &str) -> Result<Options, Error> {
        let args = Args::scan(args);
        let mut options = Options::default();
        check_lengths(&[("ipam.provide", provide.len()), ("ipam.request", request.len())])?;
        for (at, Provide { option, value, from_arg }) in provide.iter().enumerate() {
            let key = format!("ipam.provide[{at}]");
            let number = number(&format!("{key}.option"), option)?;
            if OWN.contains(&number) {
                return Err(Error::key(
                    format!("{key}.option"),
                    quote(option),
                    "the client itself sets this option",
                ));
            }
            let from_args = args.get(from_arg).filter(|_| !from_arg.is_empty());
            for (part, value) in [("value", Some(value.as_str())), ("fromArg", from_args)] {
                let Some(value) = value.filter(|value| !value.is_empty()) else { continue };
                if value.len() > VALUE_MAX {
                    let why = format!("longer than {VALUE_MAX} bytes");
                    return Err(Error::key(format!("{key}.{part}"), quote(&Value::from(value)), why));
                }
                options.provided.retain(|(known, _)| *known != number);
                options.provided.push((number, value.as_bytes().to_vec()));
            }
        }
        for (at, Request { option, .. }) in request.iter().enumerate() {
            if !matches!(option, Value::Null) && option != "" {
                options.ask(number(&format!("ipam.request[{at}].option"), option)?);
            }
        }
        if !request.iter().any(|request| request.skip_default) {
            DEFAULTS.iter().for_each(|number| options.ask(*number));
        }
        Ok(options)
    }

    fn ask(&mut self, number: u8) {
        if !self.requested.contains(&number) {
            self.requested.push(number);
        }
    }
}

/// Fails if a list with this field and length is too long.
pub fn check_lengths(lists: &[(&str, usize)]) -> Result<(), Error> {
    match lists.iter().find(|(_, length)| *length > LIST_MAX) {
        None => Ok(()),
        Some((key, length)) => {
            Err(Error::key(*key, format!("{length} entries"), format!("at most {LIST_MAX}")))
        }
    }
}

/// Returns the option number for a name or a number, which may be written as a string.
fn number(key: &str, option: &Value) -> Result<u8, Error> {
    let text = option.as_str().unwrap_or_default();
    let named = NAMES.iter().find(|(name, _)| *name == text).map(|(_, number)| *number);
    let counted =
        || option.as_u64().or_else(|| text.parse().ok()).and_then(|number| u8::try_from(number).ok());
    named.or_else(counted).ok_or_else(|| {
        let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
        Error::key(key, quote(option), format!("neither a number up to 255 nor one of {}", names.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(provide: &Value, request: &Value, args: &str) -> Result<Options, Error> {
        let provide: Vec<Provide> = cni::fold::from_value(provide, "ipam.provide")?;
        let request: Vec<Request> = cni::fold::from_value(request, "ipam.request")?;
        Options::read(&provide, &request, args)
    }

    #[test]
    fn dhcp_options_have_names_or_numbers_and_values_from_args() {
        let provide = json!([
            { "option": "host-name", "fromArg": "K8S_POD_NAME" },
            { "option": "60", "value": "weft" },
            { "option": 77, "value": "a", "fromArg": "CLASS" },
            { "option": "dhcp-client-identifier", "fromArg": "NOT_THERE" },
        ]);
        let options = read(&provide, &json!(null), "IgnoreUnknown=1;K8S_POD_NAME=web;CLASS=b=c").unwrap();
        assert_eq!(options.provided[..2], [(12, b"web".to_vec()), (60, b"weft".to_vec())]);
        assert_eq!(options.provided.len(), 3);
        assert_eq!(options.requested, [3, 1]);
        let request =
            json!([{ "option": "119" }, { "option": "domain-name-servers" }, { "skipDefault": true }]);
        assert_eq!(read(&json!([]), &request, "").unwrap().requested, [119, 6]);
    }

    #[test]
    fn dhcp_invalid_option_is_reported_by_field_and_value() {
        let long = "x".repeat(256);
        for (provide, request, start) in [
            (json!([{ "option": "hostname" }]), json!([]), "ipam.provide[0].option: \"hostname\": "),
            (json!([{ "option": 256 }]), json!([]), "ipam.provide[0].option: 256: "),
            (json!([{ "option": 53, "value": "x" }]), json!([]), "ipam.provide[0].option: 53: the client"),
            (json!([{ "option": 60, "value": long }]), json!([]), "ipam.provide[0].value: \"xxx"),
            (json!([{ "option": 60, "value": 7 }]), json!([]), "ipam.provide[0].value: 7: "),
            (json!([]), json!([{}, { "option": "-1" }]), "ipam.request[1].option: \"-1\": "),
            (json!([]), json!([{ "skipDefault": "yes" }]), "ipam.request[0].skipDefault: \"yes\": "),
            (json!([]), json!(vec![json!({}); 65]), "ipam.request: 65 entries: "),
        ] {
            let error = read(&provide, &request, "").unwrap_err();
            assert!(error.code == 7 && error.msg.starts_with(start), "{error}");
        }
    }
}
