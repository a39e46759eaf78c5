//! Reads from the runtime status which CNI configuration lists the runtime has loaded, and from which directory.
//!
//! Source: CRI `runtime.v1`, Status; the verbose `info` of containerd.

use std::collections::BTreeMap;

use prost::Message;
use serde_json::Value;

use super::messages::StatusInfo;
use super::wire;

/// Method that returns the runtime status.
pub const STATUS: &str = "/runtime.v1.RuntimeService/Status";
/// Key in containerd's verbose `info` that holds the loaded lists.
const LISTS: &str = "cniconfig";
/// Whether the runtime has loaded a CNI configuration list, and from where it loads lists.
#[derive(Debug, PartialEq, Eq)]
pub struct ListReport {
    /// Whether the runtime has loaded the list.
    pub is_read: bool,
    /// Directory from which the runtime loads lists, for example `/etc/cni/net.d`.
    pub directory: String,
}

/// Decodes only the `info` entry with the lists. The other entries are skipped, because there may be any number.
pub fn list_info(answer: &[u8]) -> StatusInfo {
    let mut key = Vec::new();
    wire::push(&mut key, 1, LISTS.as_bytes());
    let is_it = |record: &wire::Record<'_>| record.content.is_some_and(|content| content.starts_with(&key));
    let entry = wire::records(answer).flatten().find(is_it);
    entry.and_then(|entry| StatusInfo::decode(entry.whole).ok()).unwrap_or_default()
}

/// Returns the report about the network `name` from a status `info`; `None` if the runtime reports no lists.
pub fn list_report(info: &BTreeMap<String, String>, name: &str) -> Option<ListReport> {
    let lists: Value = serde_json::from_str(info.get(LISTS)?).ok()?;
    let networks = lists.get("Networks")?.as_array();
    let named = networks.into_iter().flatten().filter_map(|network| network.pointer("/Config/Name"));
    let is_read = named.into_iter().any(|known| known == name);
    let directory = lists.get("PluginConfDir").and_then(Value::as_str).unwrap_or_default().to_owned();
    Some(ListReport { is_read, directory })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runtime_status_reports_lists_and_their_directory() {
        let info = |text: &str| BTreeMap::from([(LISTS.to_owned(), text.to_owned())]);
        let report = |name: &str| {
            let text = format!(
                r#"{{"PluginConfDir":"/etc/cni/net.d","Networks":[{{"Config":{{"Name":"cni-loopback"}}}},{{"Config":{{"Name":"{name}"}}}}]}}"#
            );
            list_report(&info(&text), "weft-cri")
        };
        let directory = || "/etc/cni/net.d".to_owned();
        assert_eq!(report("weft-cri"), Some(ListReport { is_read: true, directory: directory() }));
        assert_eq!(report("admins"), Some(ListReport { is_read: false, directory: directory() }));
        let none = list_report(&info(r#"{"PluginConfDir":"/etc/cni/net.d","Networks":null}"#), "weft-cri");
        assert_eq!(none, Some(ListReport { is_read: false, directory: directory() }));
        let unknown = [BTreeMap::new(), info("{")].map(|info| list_report(&info, "weft-cri"));
        assert_eq!(unknown, [None, None]);
        // The entry must be found among others.
        let mut answer = StatusInfo { info: info("[]") }.encode_to_vec();
        wire::push(&mut answer, 2, &wire::entry("config", LISTS));
        assert_eq!(list_info(&answer).info, info("[]"));
    }
}
