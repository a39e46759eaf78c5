//! What is attached, from the journal: rows for people and documents for programs.
//!
//! The keys of the document are stable; a program that ignores those it does not know stays right.

use cni::Version;
use cni::result::Success;
use npwg::explain;
use npwg::outcome::Own;
use npwg::plan::{Delegate, PodIdentity};
use npwg::status;
use rpc::journal::{Attachment, Entry, State};
use serde::Serialize;
use serde_json::Value;

use cli_support::failure::Failure;
use cli_support::table;

/// One sandbox, for programs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sandbox<'a> {
    pod: &'a PodIdentity,
    container_id: &'a str,
    netns: &'a str,
    attachments: Vec<Attached<'a>>,
    /// What the annotation holds.
    network_status: &'a [status::Entry],
}

/// One attachment of a sandbox, for programs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Attached<'a> {
    network: &'a str,
    interface: &'a str,
    config_name: &'a str,
    state: State,
    /// The CNI result in the version of the network's configuration; `null` while there is none.
    result: Option<Value>,
}

/// One attachment, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) network: String,
    pub(crate) interface: String,
    pub(crate) mac: String,
    /// With their prefix lengths.
    pub(crate) addresses: Vec<String>,
    pub(crate) gateways: Vec<String>,
    /// The plugins, in the order of an ADD.
    pub(crate) chain: String,
    pub(crate) milliseconds: String,
    pub(crate) state: State,
}

/// The sandbox of an entry.
pub(crate) fn sandbox(entry: &Entry) -> Sandbox<'_> {
    let attachments = entry.plan.delegates.iter().enumerate().map(|(index, delegate)| {
        let attachment = entry.attachments.get(index);
        Attached {
            network: &delegate.network,
            interface: delegate.ifname.as_str(),
            config_name: delegate.config_name.as_str(),
            state: attachment.map(|attachment| attachment.state).unwrap_or_default(),
            result: attachment
                .and_then(|attachment| serde_json::from_str(attachment.result.as_ref()?.get()).ok()),
        }
    });
    Sandbox {
        pod: &entry.plan.pod,
        container_id: entry.container_id.as_str(),
        netns: &entry.netns,
        attachments: attachments.collect(),
        network_status: &entry.network_status,
    }
}

/// The attachments of an entry, in their order.
pub(crate) fn rows(entry: &Entry) -> Vec<Row> {
    let chains = explain::rows(&entry.plan).into_iter().map(|row| row.chain.join(" → "));
    let planned = Attachment::default();
    let each = entry.plan.delegates.iter().zip(chains).enumerate();
    each.map(|(index, (delegate, chain))| {
        row(delegate, chain, entry.attachments.get(index).unwrap_or(&planned))
    })
    .collect()
}

fn row(delegate: &Delegate, chain: String, attachment: &Attachment) -> Row {
    let result = attachment.result.as_ref().and_then(|raw| {
        // Without a version of its own a result is of the latest: what the journal keeps says it.
        Success::read(raw.get().as_bytes(), Version::LATEST).ok()
    });
    let result = result.map(|(_, success)| success).unwrap_or_default();
    let Own { interface, addresses } = Own::of(&result, &delegate.ifname);
    let mut gateways: Vec<String> =
        addresses.iter().filter_map(|ip| ip.gateway).map(|gateway| gateway.to_string()).collect();
    gateways.dedup();
    Row {
        network: delegate.network.clone(),
        interface: delegate.ifname.to_string(),
        mac: interface.map(|interface| interface.mac.clone()).unwrap_or_default(),
        addresses: addresses.iter().map(|ip| ip.address.to_string()).collect(),
        gateways,
        chain,
        milliseconds: attachment.microseconds.map(milliseconds).unwrap_or_default(),
        state: attachment.state,
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people, and no attachment takes a century")]
fn milliseconds(microseconds: u64) -> String {
    format!("{:.1}", microseconds as f64 / 1e3)
}

/// The table of a sandbox that was just attached.
pub(crate) fn table(entry: &Entry) -> String {
    let cells = |row: Row| {
        let Row { network, interface, mac, addresses, gateways, chain, milliseconds, state: _ } = row;
        let filled = |text: String| if text.is_empty() { "-".to_owned() } else { text };
        [network, interface, mac, addresses.join(","), gateways.join(","), chain, milliseconds]
            .map(filled)
            .to_vec()
    };
    let rows: Vec<Vec<String>> = rows(entry).into_iter().map(cells).collect();
    table::lay_out(&["network", "interface", "mac", "addresses", "gateway", "plugins", "ms"], &rows, 2)
}

/// The network-status annotation with its key, for people.
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
    fn the_keys_for_programs_are_these_and_no_others() {
        let expected = serde_json::json!([{
            "pod": {"namespace": "ns", "name": "web", "uid": "u-1"},
            "containerId": "ns_web",
            "netns": "/run/netns/weft-ns_web",
            "attachments": [
                {"network": "home", "interface": "eth0", "configName": "home", "state": "attached",
                 "result": {"cniVersion": "1.0.0",
                    "interfaces": [{"name": "br0"}, {"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/x"}],
                    "ips": [{"address": "10.0.0.2/24", "gateway": "10.0.0.1", "interface": 1}]}},
                {"network": "ns/a", "interface": "net1", "configName": "a-config", "state": "planned", "result": null}
            ],
            "networkStatus": [{"name": "home", "interface": "eth0", "ips": ["10.0.0.2"], "mac": "02:00:00:00:00:01", "default": true}]
        }]);
        // As text: the order of keys is stable too.
        assert_eq!(serde_json::to_string(&[sandbox(&entry())]).unwrap(), expected.to_string());
    }

    #[test]
    fn the_network_status_is_what_the_annotation_holds() {
        let entry = entry();
        let document = serde_json::to_value(sandbox(&entry)).unwrap();
        let annotation: Value =
            serde_json::from_str(&status::render(&entry.network_status).unwrap()).unwrap();
        assert_eq!(document["networkStatus"], annotation);
    }

    #[test]
    fn the_table_shows_the_attachments_own_interface() {
        let expected = concat!(
            "  NETWORK  INTERFACE  MAC                ADDRESSES    GATEWAY   PLUGINS                 MS\n",
            "  home     eth0       02:00:00:00:00:01  10.0.0.2/24  10.0.0.1  bridge+static → tuning  2.3\n",
            "  ns/a     net1       -                  -            -         -                       -\n",
        );
        assert_eq!(table(&entry()), expected);
    }
}
