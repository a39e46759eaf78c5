//! Status of a container runtime: which CNI configuration lists it has read, and from which directory.
//!
//! Source: CRI `runtime.v1`, Status; the verbose `info` of containerd.

use std::collections::BTreeMap;

use prost::Message;
use serde_json::Value;

use super::messages::StatusInfo;
use super::wire;

/// The method by which a runtime tells of itself, and where in its notes the lists are that it has read: containerd's.
pub const STATUS: &str = "/runtime.v1.RuntimeService/Status";
const LISTS: &str = "cniconfig";
/// What a runtime says of the lists that it has read.
#[derive(Debug, PartialEq, Eq)]
pub struct Known {
    /// Whether the list that was asked for is among them.
    pub reads: bool,
    /// The directory where it looks.
    pub from: String,
}

/// The one of a runtime's notes that is looked at: there may be any number.
pub fn of_lists(answer: &[u8]) -> StatusInfo {
    let mut key = Vec::new();
    wire::push(&mut key, 1, LISTS.as_bytes());
    let is_it = |record: &wire::Record<'_>| record.content.is_some_and(|content| content.starts_with(&key));
    let note = wire::records(answer).flatten().find(is_it);
    note.and_then(|note| StatusInfo::decode(note.whole).ok()).unwrap_or_default()
}

/// The runtime's report on the network `name`, from the `info` of its status; `None` if it reports no lists.
pub fn known(info: &BTreeMap<String, String>, name: &str) -> Option<Known> {
    let told: Value = serde_json::from_str(info.get(LISTS)?).ok()?;
    let networks = told.get("Networks")?.as_array();
    let named = networks.into_iter().flatten().filter_map(|network| network.pointer("/Config/Name"));
    let reads = named.into_iter().any(|known| known == name);
    let from = told.get("PluginConfDir").and_then(Value::as_str).unwrap_or_default().to_owned();
    Some(Known { reads, from })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_says_whether_it_has_read_the_list_and_from_where() {
        let info = |text: &str| BTreeMap::from([(LISTS.to_owned(), text.to_owned())]);
        let told = |name: &str| {
            let text = format!(
                r#"{{"PluginConfDir":"/etc/cni/net.d","Networks":[{{"Config":{{"Name":"cni-loopback"}}}},{{"Config":{{"Name":"{name}"}}}}]}}"#
            );
            known(&info(&text), "weft-cri")
        };
        let from = || "/etc/cni/net.d".to_owned();
        assert_eq!(told("weft-cri"), Some(Known { reads: true, from: from() }));
        assert_eq!(told("admins"), Some(Known { reads: false, from: from() }));
        let none = known(&info(r#"{"PluginConfDir":"/etc/cni/net.d","Networks":null}"#), "weft-cri");
        assert_eq!(none, Some(Known { reads: false, from: from() }));
        assert_eq!((known(&BTreeMap::new(), "weft-cri"), known(&info("{"), "weft-cri")), (None, None));
        // Among other notes.
        let mut answer = StatusInfo { info: info("[]") }.encode_to_vec();
        wire::push(&mut answer, 2, &wire::entry("config", LISTS));
        assert_eq!(of_lists(&answer).info, info("[]"));
    }
}
