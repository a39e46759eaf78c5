//! A sandbox's attachments from the journal entry: table rows for people and JSON documents for programs.
//!
//! The documents' field names are stable. Fields may be added, so a reader must ignore unknown ones.

use cni::Version;
use cni::result::Success;
use npwg::explain;
use npwg::outcome::Own;
use npwg::plan::{Delegate, PodIdentity};
use npwg::status;
use rpc::journal::{Attachment, Entry, PluginProgram, ProgramFile, Programs, State};
use serde::Serialize;
use serde_json::Value;

use cli_support::failure::Failure;
use cli_support::output::counted;
use cli_support::table;

/// JSON document for one sandbox.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SandboxDocument<'a> {
    pod: &'a PodIdentity,
    container_id: &'a str,
    netns: &'a str,
    attachments: Vec<AttachmentDocument<'a>>,
    /// Value for the network-status annotation.
    network_status: &'a [status::Entry],
}

/// JSON document for one attachment.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct AttachmentDocument<'a> {
    network: &'a str,
    interface: &'a str,
    config_name: &'a str,
    state: State,
    /// Program that serves each plugin: `builtIn`, or an external program's file; empty if it is not
    /// recorded.
    programs: &'a Programs,
    /// CNI result in the network configuration's version; `null` if there is none.
    result: Option<Value>,
}

/// Attachment by name, in a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct NamedAttachment<'a> {
    pub(crate) network: &'a str,
    pub(crate) interface: &'a str,
}

/// Table row for one attachment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AttachmentRow {
    pub(crate) network: String,
    pub(crate) interface: String,
    pub(crate) mac: String,
    /// Addresses with prefix lengths.
    pub(crate) addresses: Vec<String>,
    pub(crate) gateways: Vec<String>,
    /// Plugins in ADD order.
    pub(crate) chain: String,
    pub(crate) milliseconds: String,
    pub(crate) state: State,
}

/// Returns the document for a journal entry.
pub(crate) fn document(entry: &Entry) -> SandboxDocument<'_> {
    static UNKNOWN: Programs = Programs::unknown();
    let attachments = entry.plan.delegates.iter().enumerate().map(|(index, delegate)| {
        let attachment = entry.attachments.get(index);
        AttachmentDocument {
            network: &delegate.network,
            interface: delegate.ifname.as_str(),
            config_name: delegate.config_name.as_str(),
            state: attachment.map(|attachment| attachment.state).unwrap_or_default(),
            programs: attachment.map_or(&UNKNOWN, |attachment| &attachment.programs),
            result: attachment
                .and_then(|attachment| serde_json::from_str(attachment.result.as_ref()?.get()).ok()),
        }
    });
    SandboxDocument {
        pod: &entry.plan.pod,
        container_id: entry.container_id.as_str(),
        netns: &entry.netns,
        attachments: attachments.collect(),
        network_status: &entry.network_status,
    }
}

/// Returns how many networks there are, in words.
pub(crate) fn network_count(count: usize) -> String {
    counted(count, "network", "networks")
}

/// Returns a journal entry's attachments by name, in order.
pub(crate) fn named_attachments(entry: &Entry) -> impl DoubleEndedIterator<Item = NamedAttachment<'_>> {
    let delegates = entry.plan.delegates.iter();
    delegates
        .map(|delegate| NamedAttachment { network: &delegate.network, interface: delegate.ifname.as_str() })
}

/// Returns the rows for a journal entry, in attachment order.
pub(crate) fn rows(entry: &Entry) -> Vec<AttachmentRow> {
    let chains = explain::rows(&entry.plan).into_iter().map(|row| row.chain.join(" → "));
    let planned = Attachment::default();
    let each = entry.plan.delegates.iter().zip(chains).enumerate();
    each.map(|(index, (delegate, chain))| {
        row(delegate, &chain, entry.attachments.get(index).unwrap_or(&planned))
    })
    .collect()
}

/// Returns the external programs that made an attachment, in words; all other plugins are built in.
fn external_programs(programs: &Programs) -> String {
    let describe = |(plugin, program): (&str, &PluginProgram)| match program {
        PluginProgram::BuiltIn => None,
        PluginProgram::External(file) => {
            let now = match ProgramFile::at(&file.path) {
                None => ", now removed",
                Some(now) if now != *file => ", replaced since",
                Some(_) => "",
            };
            Some(format!("{plugin}: {}{now}", file.path.display()))
        }
    };
    let all: Vec<String> = programs.iter().filter_map(describe).collect();
    if all.is_empty() { String::new() } else { format!(" (external {})", all.join("; ")) }
}

fn row(delegate: &Delegate, chain: &str, attachment: &Attachment) -> AttachmentRow {
    let result = attachment.result.as_ref().and_then(|raw| {
        // A stored result without a `cniVersion` has the latest version.
        Success::read(raw.get().as_bytes(), Version::LATEST).ok()
    });
    let result = result.map(|(_, success)| success).unwrap_or_default();
    let Own { interface, addresses } = Own::of(&result, &delegate.ifname);
    let mut gateways: Vec<String> =
        addresses.iter().filter_map(|ip| ip.gateway).map(|gateway| gateway.to_string()).collect();
    gateways.dedup();
    AttachmentRow {
        network: delegate.network.clone(),
        interface: delegate.ifname.to_string(),
        mac: interface.map(|interface| interface.mac.clone()).unwrap_or_default(),
        addresses: addresses.iter().map(|ip| ip.address.to_string()).collect(),
        gateways,
        chain: format!("{chain}{}", external_programs(&attachment.programs)),
        milliseconds: attachment.microseconds.map(milliseconds).unwrap_or_default(),
        state: attachment.state,
    }
}

#[expect(clippy::cast_precision_loss, reason = "rounded to 0.1 ms for display")]
fn milliseconds(microseconds: u64) -> String {
    format!("{:.1}", microseconds as f64 / 1e3)
}

/// Returns the table for a sandbox that was just attached.
pub(crate) fn table(entry: &Entry) -> String {
    let cells = |row: AttachmentRow| {
        let AttachmentRow { network, interface, mac, addresses, gateways, chain, milliseconds, state: _ } =
            row;
        let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
        [network, interface, mac, addresses.join(","), gateways.join(","), chain, milliseconds]
            .map(or_dash)
            .to_vec()
    };
    let rows: Vec<Vec<String>> = rows(entry).into_iter().map(cells).collect();
    table::lay_out(&["network", "interface", "mac", "addresses", "gateway", "plugins", "ms"], &rows, 2)
}

/// Returns the network-status annotation with the key, for the terminal.
pub(crate) fn annotation(entry: &Entry) -> Result<String, Failure> {
    let value = status::render(&entry.network_status)?;
    let lines: Vec<String> = value.lines().map(|line| format!("    {line}\n")).collect();
    Ok(format!("  {}: |\n{}", status::NETWORK_STATUS, lines.concat()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: &str = r#"{"version":1,"network":"weft-example","containerId":"ns_web","netns":"/run/netns/weft-ns_web","ifname":"eth0",
      "args":"","path":"/opt/cni/bin","plan":{"version":1,"pod":{"namespace":"ns","name":"web","uid":"u-1"},"container":"ns_web",
      "status":{"addresses":"bare","keys":"standard"},"delegates":[
        {"network":"home","role":"default","configName":"home","config":"{\"cniVersion\":\"1.0.0\",\"name\":\"home\",\"plugins\":[{\"type\":\"bridge\",\"ipam\":{\"type\":\"static\"}},{\"type\":\"tuning\"}]}",
         "ifname":"eth0","runtimeConfig":{},"args":[],"verify":{},"defaultRoute":"untouched","because":[]},
        {"network":"ns/a","role":"selected","configName":"a-config","config":"{}","ifname":"net1","runtimeConfig":{},"args":[],"verify":{},"defaultRoute":"untouched","because":[]}],"warnings":[]},
      "attachments":[{"state":"attached","microseconds":2345,"result":{"cniVersion":"1.0.0","interfaces":[{"name":"br0"},{"name":"eth0","mac":"02:00:00:00:00:01","sandbox":"/run/netns/x"}],
        "ips":[{"address":"10.0.0.2/24","gateway":"10.0.0.1","interface":1}]}},{"state":"planned"}],
      "networkStatus":[{"name":"home","interface":"eth0","ips":["10.0.0.2"],"mac":"02:00:00:00:00:01","default":true}],"complete":false}"#;

    fn entry() -> Entry {
        Entry::read(ENTRY.as_bytes()).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn json_document_of_a_sandbox_has_stable_fields() {
        let expected = serde_json::json!([{
            "pod": {"namespace": "ns", "name": "web", "uid": "u-1"},
            "containerId": "ns_web",
            "netns": "/run/netns/weft-ns_web",
            "attachments": [
                {"network": "home", "interface": "eth0", "configName": "home", "state": "attached",
                 "programs": {}, "result": {"cniVersion": "1.0.0",
                    "interfaces": [{"name": "br0"}, {"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/x"}],
                    "ips": [{"address": "10.0.0.2/24", "gateway": "10.0.0.1", "interface": 1}]}},
                {"network": "ns/a", "interface": "net1", "configName": "a-config", "state": "planned", "programs": {}, "result": null}
            ],
            "networkStatus": [{"name": "home", "interface": "eth0", "ips": ["10.0.0.2"], "mac": "02:00:00:00:00:01", "default": true}]
        }]);
        // Compared as a string, because the order of fields is stable too.
        assert_eq!(serde_json::to_string(&[document(&entry())]).unwrap(), expected.to_string());
    }

    #[test]
    fn json_network_status_equals_the_annotation() {
        let entry = entry();
        let document = serde_json::to_value(document(&entry)).unwrap();
        let annotation: Value =
            serde_json::from_str(&status::render(&entry.network_status).unwrap()).unwrap();
        assert_eq!(document["networkStatus"], annotation);
    }

    #[test]
    fn table_of_a_sandbox_shows_container_interfaces() {
        let expected = concat!(
            "  NETWORK  INTERFACE  MAC                ADDRESSES    GATEWAY   PLUGINS                 MS\n",
            "  home     eth0       02:00:00:00:00:01  10.0.0.2/24  10.0.0.1  bridge+static → tuning  2.3\n",
            "  ns/a     net1       -                  -            -         -                       -\n",
        );
        assert_eq!(table(&entry()), expected);
    }
}
