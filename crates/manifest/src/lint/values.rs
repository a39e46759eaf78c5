//! Forms of option values (a range, one of a few words, an address), and the fault of a value of another form.
//!
//! Only values that the plugin itself always refuses are faults. Checks that need the node (whether an interface exists
//! or a table is free) are not made, nor those of several values together. An empty string means "not configured", as
//! for plugins.

use cni::address::{parse_cidr, parse_ip, parse_mac};
use cni::name::ifname_fault;
use serde_json::Value;

/// Form of a value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    /// Any value, not checked.
    Any,
    /// `true` or `false`.
    Truth,
    /// A whole number within these limits.
    Number(i64, i64),
    /// A number of bytes, or 0 for "not configured".
    Mtu,
    /// One of these words.
    Word(&'static [&'static str]),
    /// Any string.
    Text,
    /// An absolute path.
    Path,
    /// The name of an interface.
    Interface,
    /// An IP address.
    Address,
    /// An address with a prefix length.
    Prefix,
    /// An address with or without a prefix length.
    AddressOrPrefix,
    /// An address with or without a prefix length, or `FIRST-LAST/LENGTH`.
    Range,
    /// A hardware address.
    Hardware,
    /// An object of strings.
    Texts,
    /// A list of these.
    Each(&'static Form),
    /// An object with these keys.
    Fields(&'static [(&'static str, Form)]),
}

use Form::{
    Address, AddressOrPrefix, Any, Each, Fields, Hardware, Interface, Mtu, Number, Path, Prefix, Range, Text,
    Texts, Truth, Word,
};

/// Returns why a value is not of this form; an empty string means "not configured".
pub(super) fn fault_of(form: Form, value: &Value) -> Option<String> {
    let Value::String(text) = value else { return fault_of_other(form, value) };
    let must = |holds: bool, what: &str| (!holds).then(|| format!("must be {what}"));
    if text.is_empty() && !matches!(form, Truth | Number(..) | Mtu | Texts | Each(_) | Fields(_)) {
        return None;
    }
    match form {
        Truth => must(false, "true or false, without quotation marks"),
        Number(..) | Mtu => must(false, "a number, without quotation marks"),
        Word(words) => must(words.contains(&text.as_str()), &format!("one of {}", words.join(", "))),
        Any | Text => None,
        Path => must(text.starts_with('/'), "an absolute path"),
        Interface => ifname_fault(text).map(|fault| format!("is not an interface name: it {fault}")),
        Address => must(parse_ip(text).is_some(), "an IP address"),
        Prefix => must(parse_cidr(text).is_some(), "an address with a prefix length (CIDR notation)"),
        AddressOrPrefix => must(
            parse_ip(text).is_some() || parse_cidr(text).is_some(),
            "an address, or a range in CIDR notation",
        ),
        Range => must(is_range(text), "a range in CIDR notation"),
        Hardware => must(parse_mac(text).is_some(), "a hardware address"),
        Texts | Fields(_) => must(false, "an object"),
        Each(_) => must(false, "a list"),
    }
}

/// Returns why a value that is not a string is not of this form.
fn fault_of_other(form: Form, value: &Value) -> Option<String> {
    let must = |holds: bool, what: &str| (!holds).then(|| format!("must be {what}"));
    match form {
        Any => None,
        Truth => must(value.is_boolean(), "true or false"),
        Number(least, most) => {
            let fits = value.as_i64().is_some_and(|number| (least..=most).contains(&number));
            let within = if most == i64::MAX { String::new() } else { format!(" within {least}..={most}") };
            must(fits, &format!("a whole number{within}"))
        }
        Mtu => {
            let fits = value.as_i64().is_some_and(|mtu| mtu == 0 || (68..=65_535).contains(&mtu));
            must(fits, "0, or a whole number within 68..=65535")
        }
        Texts => match value.as_object() {
            Some(texts) => must(texts.values().all(Value::is_string), "an object of strings"),
            None => must(false, "an object of strings"),
        },
        Each(_) => must(value.is_array(), "a list"),
        Fields(_) => must(value.is_object(), "an object"),
        Word(_) | Text | Path | Interface | Address | Prefix | AddressOrPrefix | Range | Hardware => {
            must(false, "a string")
        }
    }
}

/// Whether the text is a range; whereabouts also writes first-last/length.
fn is_range(text: &str) -> bool {
    match text.split_once('-') {
        Some((first, rest)) => parse_ip(first).is_some() && parse_cidr(rest).is_some(),
        None => parse_cidr(text).is_some(),
    }
}
