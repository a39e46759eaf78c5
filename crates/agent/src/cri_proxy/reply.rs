//! What clients are told of sandboxes: as the runtime tells it, with the addresses of every network by name, and without
//! our annotation.
//!
//! Rules: a message that holds nothing of ours is not touched; what is not meant is copied byte for byte; addresses come
//! from the journal, the primary network's first, which has no place for its own name.
//!
//! Source: CRI `runtime.v1`, `PodSandboxStatus`, `ContainerEventResponse`; «CRI Network API», `PodIP`.

use cni::Version;
use cni::name::ContainerId;
use cni::result::Success;
use npwg::journal::Entry;
use npwg::outcome::Own;
use prost::Message;
use serde_json::Value;

use super::messages::{Condition, PodIp, PodSandboxStatus};
use super::request::{ATTACHMENTS, Attachment, PRIMARY};
use super::wire;
use crate::journal::Journal;

/// `PodSandboxStatusResponse.status`.
const STATUS: u32 = 1;
/// `PodSandboxStatusResponse.info`.
const INFO: u32 = 2;
/// `ContainerEventResponse.pod_sandbox_status`.
const EVENT_STATUS: u32 = 4;
/// `PodSandboxStatus.network`.
const NETWORK: u32 = 5;
/// `PodSandboxNetworkStatus.additional_ips`.
const ADDITIONAL_IPS: u32 = 2;
/// `PodIP.network_name`.
const NETWORK_NAME: u32 = 2;
/// The condition that speaks of the network.
const NETWORK_READY: &str = "NetworkReady";

/// `PodSandboxStatusResponse`.
pub(crate) fn status(message: &[u8], journal: &Journal) -> Option<Vec<u8>> {
    with_status(message, STATUS, journal)
}

/// `ContainerEventResponse`.
pub(crate) fn event(message: &[u8], journal: &Journal) -> Option<Vec<u8>> {
    with_status(message, EVENT_STATUS, journal)
}

/// Any other message about sandboxes: without our annotation.
pub(crate) fn list(message: &[u8]) -> Option<Vec<u8>> {
    wire::without_entry(message, ATTACHMENTS)
}

fn with_status(message: &[u8], field: u32, journal: &Journal) -> Option<Vec<u8>> {
    if !wire::holds(message, ATTACHMENTS.as_bytes()) {
        return None;
    }
    wire::edit(message, |record| {
        let content = record.content?;
        let edited = match record.number {
            number if number == field => sandbox(content, journal),
            INFO => info(content),
            _ => None,
        }?;
        let mut out = Vec::new();
        wire::push(&mut out, record.number, &edited);
        Some(out)
    })
}

/// `PodSandboxStatus`.
fn sandbox(message: &[u8], journal: &Journal) -> Option<Vec<u8>> {
    let PodSandboxStatus { id, annotations } = PodSandboxStatus::decode(message).ok()?;
    let attachments: Vec<Attachment> = serde_json::from_str(annotations.get(ATTACHMENTS)?).ok()?;
    let entry = ContainerId::new(&id).ok().and_then(|id| journal.entry(&id).ok()?);
    let stripped = wire::without_entry(message, ATTACHMENTS)?;
    let named = |record: &wire::Record<'_>| {
        let content = record.content.filter(|_| record.number == NETWORK)?;
        let mut out = Vec::new();
        wire::push(&mut out, NETWORK, &network(content, &attachments, entry.as_ref()));
        Some(out)
    };
    wire::edit(&stripped, named).or(Some(stripped))
}

/// `PodSandboxNetworkStatus`: what is there is the primary network's; the others follow.
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
        // It has ended: the runtime tells no address of it any more.
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

/// The addresses of one interface of a sandbox, from the result of its attachment.
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

/// An entry of the runtime's notes: JSON, in which the annotation may stand, too.
fn info(entry: &[u8]) -> Option<Vec<u8>> {
    if !wire::holds(entry, ATTACHMENTS.as_bytes()) {
        return None;
    }
    wire::edit(entry, |record| {
        let text = record.content.filter(|_| record.number == 2)?;
        let mut value: Value = serde_json::from_slice(text).ok()?;
        forget(&mut value);
        let mut out = Vec::new();
        wire::push(&mut out, 2, value.to_string().as_bytes());
        Some(out)
    })
}

fn forget(value: &mut Value) {
    match value {
        Value::Object(object) => {
            object.shift_remove(ATTACHMENTS);
            object.values_mut().for_each(forget);
        }
        Value::Array(list) => list.iter_mut().for_each(forget),
        _ => {}
    }
}

/// `StatusResponse`: whether the network is ready, as its networks are.
pub(crate) fn readiness(message: &[u8], ready: &Result<(), String>) -> Option<Vec<u8>> {
    wire::edit(message, |response| {
        let status = response.content.filter(|_| response.number == 1)?;
        let edited = wire::edit(status, |record| {
            let content = record.content.filter(|_| record.number == 1)?;
            let Condition { kind } = Condition::decode(content).ok()?;
            (kind == NETWORK_READY).then(|| condition(content, ready))
        })?;
        let mut out = Vec::new();
        wire::push(&mut out, 1, &edited);
        Some(out)
    })
}

/// The condition with its truth and its reason replaced.
fn condition(content: &[u8], ready: &Result<(), String>) -> Vec<u8> {
    let replaced = |number: u32| (2..=4).contains(&number);
    let mut inner = wire::edit(content, |record| replaced(record.number).then(Vec::new))
        .unwrap_or_else(|| content.to_vec());
    wire::push_bool(&mut inner, 2, ready.is_ok());
    if let Err(why) = ready {
        wire::push(&mut inner, 3, b"NetworkPluginNotReady");
        wire::push(&mut inner, 4, why.as_bytes());
    }
    let mut out = Vec::new();
    wire::push(&mut out, 1, &inner);
    out
}
