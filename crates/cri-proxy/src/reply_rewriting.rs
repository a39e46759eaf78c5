//! Rewrites responses about sandboxes: adds each network's addresses by name, and removes the proxy's annotation.
//!
//! A message without the annotation is not changed, and all other fields are copied byte for byte. The addresses come
//! from the journal. The primary network's address is first; the message has no field for the name of that network.
//!
//! Source: CRI `runtime.v1`, `PodSandboxStatus`, `ContainerEventResponse`; «CRI Network API», `PodIP`.

use cni::Version;
use cni::name::ContainerId;
use cni::result::Success;
use npwg::outcome::Own;
use prost::Message;
use rpc::journal::Entry;
use serde_json::Value;

use crate::request_networks::{ATTACHMENTS, Attachment, PRIMARY};
use cri::messages::{Condition, PodIp, PodSandboxStatus};
use cri::wire;
use node_support::journal_reader::Journal;

/// Field `PodSandboxStatusResponse.status`.
const STATUS: u32 = 1;
/// Field `PodSandboxStatusResponse.info`.
const INFO: u32 = 2;
/// Field `ContainerEventResponse.pod_sandbox_status`.
const EVENT_STATUS: u32 = 4;
/// Field `PodSandboxStatus.network`.
const NETWORK: u32 = 5;
/// Field `PodSandboxNetworkStatus.additional_ips`.
const ADDITIONAL_IPS: u32 = 2;
/// Field `PodIP.network_name`.
const NETWORK_NAME: u32 = 2;
/// Condition type for the network.
const NETWORK_READY: &str = "NetworkReady";

/// Addresses that a response should contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReportedAddresses {
    /// Addresses in every network.
    All,
    /// Only the primary network's addresses, as the runtime reports them.
    Primary,
}

/// Rewrites a `PodSandboxStatusResponse`.
pub(crate) fn status(message: &[u8], journal: &Journal, reported: ReportedAddresses) -> Option<Vec<u8>> {
    with_status(message, STATUS, journal, reported)
}

/// Rewrites a `ContainerEventResponse`.
pub(crate) fn event(message: &[u8], journal: &Journal) -> Option<Vec<u8>> {
    with_status(message, EVENT_STATUS, journal, ReportedAddresses::All)
}

/// Removes the annotation from any other response about sandboxes.
pub(crate) fn list(message: &[u8]) -> Option<Vec<u8>> {
    wire::without_entry(message, ATTACHMENTS)
}

fn with_status(
    message: &[u8],
    field: u32,
    journal: &Journal,
    reported: ReportedAddresses,
) -> Option<Vec<u8>> {
    if !wire::contains(message, ATTACHMENTS.as_bytes()) {
        return None;
    }
    wire::edit(message, |record| {
        let content = record.content?;
        let edited = match record.number {
            number if number == field => sandbox(content, journal, reported),
            INFO => info(content),
            _ => None,
        }?;
        let mut out = Vec::new();
        wire::push(&mut out, record.number, &edited);
        Some(out)
    })
}

/// Rewrites a `PodSandboxStatus`.
fn sandbox(message: &[u8], journal: &Journal, reported: ReportedAddresses) -> Option<Vec<u8>> {
    let PodSandboxStatus { id, annotations } = PodSandboxStatus::decode(message).ok()?;
    let attachments: Vec<Attachment> = serde_json::from_str(annotations.get(ATTACHMENTS)?).ok()?;
    let entry = ContainerId::new(&id).ok().and_then(|id| journal.entry(&id).ok()?);
    let stripped = wire::without_entry(message, ATTACHMENTS)?;
    if reported == ReportedAddresses::Primary {
        return Some(stripped);
    }
    let named = |record: &wire::Record<'_>| {
        let content = record.content.filter(|_| record.number == NETWORK)?;
        let mut out = Vec::new();
        wire::push(&mut out, NETWORK, &network(content, &attachments, entry.as_ref()));
        Some(out)
    };
    wire::edit(&stripped, named).or(Some(stripped))
}

/// Rewrites a `PodSandboxNetworkStatus`: the existing addresses belong to the primary network; the others are appended.
fn network(message: &[u8], attachments: &[Attachment], entry: Option<&Entry>) -> Vec<u8> {
    let primary = attachments.iter().find(|attachment| attachment.interface.as_str() == PRIMARY);
    let name = |record: &wire::Record<'_>| {
        let content = record.content.filter(|_| record.number == ADDITIONAL_IPS)?;
        let mut ip = content.to_vec();
        wire::push(&mut ip, NETWORK_NAME, primary?.network.as_bytes());
        let mut out = Vec::new();
        wire::push(&mut out, ADDITIONAL_IPS, &ip);
        Some(out)
    };
    let mut out = wire::edit(message, name).unwrap_or_else(|| message.to_vec());
    if message.is_empty() {
        // The sandbox has ended: the runtime reports no address.
        return out;
    }
    let others = attachments.iter().filter(|attachment| attachment.interface.as_str() != PRIMARY);
    for Attachment { interface, network, parameters: _ } in others {
        for ip in entry.map(|entry| addresses(entry, interface.as_str())).unwrap_or_default() {
            let ip = PodIp { ip, network_name: network.clone() };
            wire::push(&mut out, ADDITIONAL_IPS, &ip.encode_to_vec());
        }
    }
    out
}

/// Returns the addresses on one interface, from the attachment's CNI result.
fn addresses(entry: &Entry, interface: &str) -> Vec<String> {
    let place = entry.plan.delegates.iter().position(|delegate| delegate.ifname.as_str() == interface);
    let Some((delegate, attachment)) =
        place.and_then(|place| entry.plan.delegates.get(place).zip(entry.attachments.get(place)))
    else {
        return Vec::new();
    };
    let read =
        attachment.result.as_ref().and_then(|raw| Success::read(raw.get().as_bytes(), Version::LATEST).ok());
    let result = read.map(|(_, success)| success).unwrap_or_default();
    let own = Own::of(&result, &delegate.ifname);
    own.addresses.iter().map(|ip| ip.address.addr().to_string()).collect()
}

/// Removes the annotation from an entry in the runtime's verbose `info`, which is JSON.
fn info(entry: &[u8]) -> Option<Vec<u8>> {
    if !wire::contains(entry, ATTACHMENTS.as_bytes()) {
        return None;
    }
    wire::edit(entry, |record| {
        let text = record.content.filter(|_| record.number == 2)?;
        let mut value: Value = serde_json::from_slice(text).ok()?;
        remove_annotation(&mut value);
        let mut out = Vec::new();
        wire::push(&mut out, 2, value.to_string().as_bytes());
        Some(out)
    })
}

fn remove_annotation(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.shift_remove(ATTACHMENTS);
            object.values_mut().for_each(remove_annotation);
        }
        Value::Array(list) => list.iter_mut().for_each(remove_annotation),
        _ => {}
    }
}

/// Rewrites a `StatusResponse`: the network is ready only if both the runtime and the networks are ready.
pub(crate) fn readiness(message: &[u8], ready: &Result<(), impl ToString>) -> Option<Vec<u8>> {
    wire::edit(message, |response| {
        let status = response.content.filter(|_| response.number == 1)?;
        let edited = wire::edit(status, |record| {
            let content = record.content.filter(|_| record.number == 1)?;
            let Condition { kind, holds } = Condition::decode(content).ok()?;
            // A runtime that is not ready keeps its own reason: it has not loaded the list, so it creates no sandbox.
            (kind == NETWORK_READY && holds).then(|| condition(content, ready))
        })?;
        let mut out = Vec::new();
        wire::push(&mut out, 1, &edited);
        Some(out)
    })
}

/// Returns the condition with a new status and reason.
fn condition(content: &[u8], ready: &Result<(), impl ToString>) -> Vec<u8> {
    let replaced = |number: u32| (2..=4).contains(&number);
    let mut inner = wire::edit(content, |record| replaced(record.number).then(Vec::new))
        .unwrap_or_else(|| content.to_vec());
    wire::push_bool(&mut inner, 2, ready.is_ok());
    if let Err(why) = ready {
        wire::push(&mut inner, 3, b"NetworkPluginNotReady");
        wire::push(&mut inner, 4, why.to_string().as_bytes());
    }
    let mut out = Vec::new();
    wire::push(&mut out, 1, &inner);
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Clone, PartialEq, Message)]
    struct Network {
        #[prost(string, tag = "1")]
        ip: String,
        #[prost(message, repeated, tag = "2")]
        additional_ips: Vec<PodIp>,
    }

    /// Message from a newer CRI release, with an unknown field.
    #[derive(Clone, PartialEq, Message)]
    struct Full {
        #[prost(string, tag = "1")]
        id: String,
        #[prost(message, optional, tag = "5")]
        network: Option<Network>,
        #[prost(btree_map = "string, string", tag = "8")]
        annotations: BTreeMap<String, String>,
        #[prost(string, tag = "4711")]
        unknown: String,
    }

    #[derive(Clone, PartialEq, Message)]
    struct Event {
        #[prost(string, tag = "1")]
        container_id: String,
        #[prost(int32, tag = "2")]
        kind: i32,
        #[prost(message, optional, tag = "4")]
        status: Option<Full>,
        #[prost(message, repeated, tag = "5")]
        containers: Vec<Network>,
    }

    const ENTRY: &str = r#"{"version":1,"network":"weft-cri","containerId":"c1","netns":"/run/netns/x","ifname":"eth0",
      "args":"","path":"/opt/cni/bin","plan":{"version":1,"pod":{"namespace":"ns","name":"web","uid":"u"},"container":"c1",
      "status":{"addresses":"bare","keys":"standard"},"delegates":[
        {"network":"red","role":"default","configName":"red","config":"{}","ifname":"eth0","runtimeConfig":{},"args":[],"verify":{},"defaultRoute":"untouched","because":[]},
        {"network":"ns/blue","role":"selected","configName":"blue","config":"{}","ifname":"net1","runtimeConfig":{},"args":[],"verify":{},"defaultRoute":"untouched","because":[]}],"warnings":[]},
      "attachments":[{"state":"attached","result":{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"address":"10.0.0.2/24","interface":0}]}},
        {"state":"attached","result":{"cniVersion":"1.0.0","interfaces":[{"name":"net1","sandbox":"/x"}],"ips":[{"address":"10.1.0.9/24","interface":0},{"address":"fd01::9/64","interface":0}]}}],
      "complete":true}"#;

    #[test]
    fn event_of_a_sandbox_gets_the_addresses_of_every_network() {
        let directory = std::env::temp_dir().join(format!("weft-reply-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("c1.json"), ENTRY).unwrap();
        let journal = Journal::at(&directory);
        let asked = r#"[{"interface":"eth0","network":"red"},{"interface":"net1","network":"ns/blue"}]"#;
        let ip = |ip: &str, name: &str| PodIp { ip: ip.to_owned(), network_name: name.to_owned() };
        let status = |annotations: &[(&str, &str)], additional_ips| Full {
            id: "c1".to_owned(),
            network: Some(Network { ip: "10.0.0.2".to_owned(), additional_ips }),
            annotations: annotations.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            unknown: "stays".to_owned(),
        };
        let event = |status| Event {
            container_id: "c1".to_owned(),
            kind: 1,
            status: Some(status),
            containers: vec![Network::default(), Network { ip: "x".to_owned(), ..Network::default() }],
        };
        let sent = event(status(&[("mine", "1"), (ATTACHMENTS, asked)], vec![ip("fd00::2", "")]));
        let expected = event(status(
            &[("mine", "1")],
            vec![ip("fd00::2", "red"), ip("10.1.0.9", "ns/blue"), ip("fd01::9", "ns/blue")],
        ));
        let edited = super::event(&sent.encode_to_vec(), &journal).unwrap();
        assert_eq!(Event::decode(edited.as_slice()).unwrap(), expected);
        // `v1alpha2` clients get only the primary network's addresses.
        let primary = status(&[("mine", "1")], vec![ip("fd00::2", "")]);
        let edited =
            sandbox(&sent.status.unwrap().encode_to_vec(), &journal, ReportedAddresses::Primary).unwrap();
        assert_eq!(Full::decode(edited.as_slice()).unwrap(), primary);
        // A sandbox that requests no networks passes unchanged.
        assert_eq!(
            super::event(&event(status(&[("mine", "1")], Vec::new())).encode_to_vec(), &journal),
            None
        );
        std::fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn network_ready_condition_combines_runtime_and_networks() {
        #[derive(Clone, PartialEq, Message)]
        struct Full {
            #[prost(string, tag = "1")]
            kind: String,
            #[prost(bool, tag = "2")]
            holds: bool,
            #[prost(string, tag = "3")]
            reason: String,
            #[prost(string, tag = "4")]
            message: String,
            #[prost(string, tag = "9")]
            unknown: String,
        }
        #[derive(Clone, PartialEq, Message)]
        struct Conditions {
            #[prost(message, repeated, tag = "1")]
            conditions: Vec<Full>,
        }
        #[derive(Clone, PartialEq, Message)]
        struct Response {
            #[prost(message, optional, tag = "1")]
            status: Option<Conditions>,
        }
        let condition = |kind: &str, holds, reason: &str, message: &str| Full {
            kind: kind.to_owned(),
            holds,
            reason: reason.to_owned(),
            message: message.to_owned(),
            unknown: "stays".to_owned(),
        };
        let response = |network: Full| Response {
            status: Some(Conditions { conditions: vec![condition("RuntimeReady", true, "", ""), network] }),
        };
        let not_ready = condition(NETWORK_READY, false, "NetworkPluginNotReady", "no network");
        let ready = condition(NETWORK_READY, true, "", "");
        let uninitialized = condition(NETWORK_READY, false, "NetworkPluginNotReady", "not initialized");
        let no_network = || Err("no network".to_owned());
        for (reported, networks, expected) in [
            (&ready, no_network(), &not_ready),
            (&ready, Ok(()), &ready),
            (&uninitialized, Ok(()), &uninitialized),
            (&uninitialized, no_network(), &uninitialized),
        ] {
            let sent = response(reported.clone());
            let edited = readiness(&sent.encode_to_vec(), &networks).unwrap_or_else(|| sent.encode_to_vec());
            assert_eq!(Response::decode(edited.as_slice()).unwrap(), response(expected.clone()));
        }
    }
}
