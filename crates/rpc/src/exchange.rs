//! How the hands ask the brain for a plan: a [`Question`], a [`Reply`], and when it is done a [`Report`], each a
//! length and JSON.
//!
//! The same exchange runs over the agent's socket and, without the report, over the pipes of `weft plan --once`.
//!
//! Rules: a length is four bytes, big-endian; both sides refuse more than [`MESSAGE_MAX`]; either side may be a
//! release older or newer, so unknown keys and kinds of orders are ignored and a newer [`VERSION`] is refused by name; the brain sees
//! no file of the node, so what a plan may need of them is in the question.

pub mod addresses;

use std::borrow::Cow;
use std::io::{Read, Write};
use std::net::IpAddr;

use cni::error::{Error, code};
use cni::name::{ContainerId, IfName};
use cni::network::Network;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use npwg::definition::{Disk, Form, OnDisk};
use npwg::plan::{Plan, PodIdentity};

/// The form of question this release asks.
pub const VERSION: u32 = 1;
/// Largest message, in bytes.
pub const MESSAGE_MAX: usize = 16 << 20;

/// What the hands know.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Question {
    /// The form: [`VERSION`].
    pub version: u32,
    /// The pod, as the runtime names it.
    pub pod: PodIdentity,
    /// The sandbox.
    pub container: ContainerId,
    /// The runtime's interface name.
    pub ifname: IfName,
    /// The meta-plugin's configuration as the runtime gave it, `runtimeConfig` included.
    pub configuration: Box<RawValue>,
    /// Was the meta-plugin called as `multus`?
    #[serde(default)]
    pub multus: bool,
    /// The networks on the node's disk that the plan may need.
    #[serde(default)]
    pub files: Vec<NetworkFile>,
    /// The files that could not be read, as `path: why`.
    #[serde(default)]
    pub unreadable: Vec<String>,
    /// What is wanted.
    #[serde(default)]
    pub purpose: Purpose,
    /// When the call that asks began, in microseconds of Unix time; nothing if it is not known. For figures alone.
    #[serde(default)]
    pub began: u64,
}

/// What the hands come for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Purpose {
    /// A plan for the sandbox.
    #[default]
    Plan,
    /// Work, of whatever sandbox; the reply may take a while.
    Orders,
    /// To tell what came of an order.
    Outcome(Outcome),
}

/// What came of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// What was ordered.
    pub of: Work,
    /// The sandbox.
    pub container: ContainerId,
    /// Its pod.
    pub uid: String,
    /// What was done, in order.
    #[serde(default)]
    pub done: Vec<Done>,
    /// What is wrong, or went wrong.
    #[serde(default)]
    pub error: Option<Error>,
    /// The interfaces of the attachments that a check found wrong. Hands of older releases do not say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wrong: Vec<IfName>,
}

/// A network of a running sandbox that came or went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Done {
    /// The network, as the status names it.
    pub network: String,
    /// Its interface.
    pub ifname: IfName,
    /// Its addresses; none if it went.
    pub added: Option<Vec<IpAddr>>,
}

/// The kinds of orders whose outcome is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Work {
    /// [`Order::Check`].
    Check,
    /// [`Order::Change`].
    Change,
}

/// Orders, and what the hands carry them out with.
#[derive(Debug, Serialize, Deserialize)]
pub struct Errand {
    /// The meta-plugin's configuration.
    pub configuration: Box<RawValue>,
    /// Is the meta-plugin called `multus`?
    pub multus: bool,
    /// What is to be done.
    pub orders: Vec<Order>,
}

/// A network on the node's disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkFile {
    /// Its file.
    pub path: String,
    /// The list, with the plugins of its sub-directory; what was a single configuration is a list of one.
    pub text: String,
}

/// What the brain says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reply {
    /// To the question.
    pub answer: Answer,
    /// What else is to be done on this node, once the runtime has its answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty", deserialize_with = "known_orders")]
    pub orders: Vec<Order>,
}

/// Those of a kind that this release knows: what a newer brain wants beside them must not cost a pod its answer.
fn known_orders<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Order>, D::Error> {
    let all: Vec<Box<RawValue>> = Vec::deserialize(from)?;
    Ok(all.iter().filter_map(|order| serde_json::from_str(order.get()).ok()).collect())
}

/// Work that nobody calls for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Order {
    /// Take down a sandbox whose pod is gone, by its entry in the journal.
    TakeDown {
        /// The sandbox.
        container: ContainerId,
        /// The pod its entry must name; another one's entry is left alone.
        uid: String,
        /// How much is known about it.
        certainty: Certainty,
    },
    /// Have the status of this very sandbox written by `weft publish`: no agent follows the journal.
    Publish {
        /// The sandbox.
        container: ContainerId,
        /// Credentials on the node, if they are not those of a pod.
        kubeconfig: Option<String>,
    },
    /// See whether a sandbox is as it was attached, and tell.
    Check {
        /// The sandbox.
        container: ContainerId,
        /// The pod its entry must name.
        uid: String,
    },
    /// Attach and detach networks of a running sandbox until it is as planned, and tell. The plan names its pod.
    Change {
        /// The plan, of the same sandbox.
        plan: Box<Plan>,
    },
}

/// How sure the brain is that a sandbox is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Certainty {
    /// The runtime does not know it any more.
    Gone,
    /// Its pod is gone from the cluster: leave the sandbox alone as long as its namespace is there.
    PodGone,
}

/// How it went; for figures alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Report {
    /// The whole call up to the runtime's answer, the plan included, in microseconds.
    pub microseconds: u64,
    /// Each network that was tried, in order.
    pub attachments: Vec<Tried>,
    /// Why the call failed, if it did.
    pub error: Option<Error>,
}

/// A network that was tried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Tried {
    /// The network, as the status names it.
    pub network: String,
    /// The first plugin of its list.
    pub plugin: String,
    /// Its interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ifname: Option<IfName>,
    /// In microseconds; nothing if it failed.
    pub microseconds: Option<u64>,
    /// The plugins that were run for it, as they began; also those that took it down again.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
}

/// A plugin that was run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Step {
    /// Its name.
    pub plugin: String,
    /// `ADD` or `DEL`.
    pub verb: String,
    /// When it began, in microseconds since the call began.
    pub began: u64,
    /// How long it took, those that it called included, in microseconds.
    pub microseconds: u64,
    /// How many plugins had called each other until it was called: 0 for one of the network's list, 1 for its IPAM plugin.
    pub depth: usize,
    /// Did it fail?
    pub failed: bool,
}

/// What the brain decides.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Answer {
    /// Do this.
    Plan(Box<Plan>),
    /// Do nothing; this is why.
    Refused(Error),
    /// It was no question for a plan: there may be orders.
    Noted,
}

impl Question {
    /// Refuses a question of a newer release.
    pub fn check(&self) -> Result<(), Error> {
        match self.version {
            1..=VERSION => Ok(()),
            other => Err(fault(format!("question of version {other}: this release answers up to {VERSION}"))),
        }
    }

    /// The networks on the node's disk; a text that is none is named like a file that could not be read.
    pub fn disk(&self) -> Disk {
        let mut disk = Disk { networks: Vec::new(), unreadable: self.unreadable.clone() };
        for NetworkFile { path, text } in &self.files {
            match Network::parse(text.as_bytes(), path) {
                Ok(network) => {
                    let form = Form::of(path).unwrap_or(Form::List);
                    disk.networks.push(OnDisk { path: path.clone(), form, network });
                }
                Err(error) => disk.unreadable.push(error.to_string()),
            }
        }
        disk
    }
}

impl Reply {
    /// An answer without orders.
    pub fn plain(answer: Answer) -> Reply {
        Reply { answer, orders: Vec::new() }
    }
}

impl NetworkFile {
    /// The files of what was read from the disk.
    pub fn all(disk: &Disk) -> Vec<NetworkFile> {
        let file = |on: &OnDisk| {
            let whole = on.network.inlined().unwrap_or(Cow::Borrowed(on.network.bytes()));
            NetworkFile { path: on.path.clone(), text: String::from_utf8_lossy(&whole).into_owned() }
        };
        disk.networks.iter().map(file).collect()
    }
}

/// Writes one message.
pub fn send<T: Serialize>(to: &mut impl Write, message: &T) -> Result<(), Error> {
    let bytes = serde_json::to_vec(message).map_err(|cause| fault(format!("encode: {cause}")))?;
    let length = u32::try_from(bytes.len()).ok().filter(|length| *length as usize <= MESSAGE_MAX);
    let Some(length) = length else {
        return Err(fault(format!("a message of {} bytes is too large", bytes.len())));
    };
    let sent =
        to.write_all(&length.to_be_bytes()).and_then(|()| to.write_all(&bytes)).and_then(|()| to.flush());
    sent.map_err(|cause| Error::io("plan exchange: send", cause))
}

/// Reads one message.
pub fn receive<T: DeserializeOwned>(from: &mut impl Read) -> Result<T, Error> {
    let failed = |cause| Error::io("plan exchange: receive", cause);
    let mut length = [0; 4];
    from.read_exact(&mut length).map_err(failed)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > MESSAGE_MAX {
        return Err(fault(format!("a message of {length} bytes is too large")));
    }
    let mut bytes = Vec::new();
    from.take(length as u64).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() < length {
        return Err(fault(format!("the message ends after {} of {length} bytes", bytes.len())));
    }
    serde_json::from_slice(&bytes).map_err(|cause| fault(format!("decode: {cause}")))
}

fn fault(why: impl std::fmt::Display) -> Error {
    Error::new(code::DECODING_FAILURE, format!("plan exchange: {why}"))
}

#[cfg(test)]
mod tests {
    use cni::object::Object;

    use super::*;

    #[test]
    fn a_message_arrives_as_it_was_sent() -> Result<(), Error> {
        let mut wire = Vec::new();
        let order = Order::TakeDown {
            container: ContainerId::new("c1")?,
            uid: "u-1".to_owned(),
            certainty: Certainty::PodGone,
        };
        let refused = Answer::Refused(Error::new(7, "no"));
        send(&mut wire, &Reply { answer: refused, orders: vec![order.clone()] })?;
        assert_eq!(&wire[..4], u32::try_from(wire.len() - 4).unwrap().to_be_bytes());
        let Reply { answer, orders } = receive(&mut wire.as_slice())?;
        assert!(matches!(answer, Answer::Refused(error) if error == Error::new(7, "no")));
        assert_eq!(orders, [order]);
        Ok(())
    }

    #[test]
    fn an_order_of_a_kind_that_is_not_known_is_passed_over() -> Result<(), Error> {
        let text = br#"{"answer":"noted","orders":[{"dance":{"container":"c1"}},"rest",{"check":{"container":"c1","uid":"u"}}]}"#;
        let mut wire = u32::try_from(text.len()).unwrap().to_be_bytes().to_vec();
        wire.extend_from_slice(text);
        let reply: Reply = receive(&mut wire.as_slice())?;
        assert_eq!(reply.orders, [Order::Check { container: ContainerId::new("c1")?, uid: "u".to_owned() }]);
        Ok(())
    }

    #[test]
    fn networks_on_disk_travel_with_the_question() -> Result<(), Error> {
        let text = r#"{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"bridge","x":1.50}]}"#;
        let file = |path: &str, text: &str| NetworkFile { path: path.to_owned(), text: text.to_owned() };
        let question = Question {
            version: VERSION,
            pod: PodIdentity::default(),
            container: ContainerId::new("c1")?,
            ifname: IfName::new("eth0")?,
            configuration: RawValue::from_string("{}".to_owned()).unwrap(),
            multus: false,
            files: vec![file("/n/a.conflist", text), file("/n/b.conf", "{")],
            unreadable: vec!["/n/c.conf: no".to_owned()],
            purpose: Purpose::Plan,
            began: 0,
        };
        let disk = question.disk();
        assert_eq!(NetworkFile::all(&disk), [file("/n/a.conflist", text)]);
        assert_eq!(disk.unreadable.len(), 2, "{:?}", disk.unreadable);
        Ok(())
    }

    #[test]
    fn s39_plugins_with_files_of_their_own_travel_in_their_list() -> Result<(), Error> {
        let own = Object::parse(br#"{"type":"tuning","mtu":1.50}"#, "own")?;
        for text in [
            r#"{"cniVersion":"1.0.0","name":"a","x":1.50,"plugins":[{"type":"bridge"}]}"#,
            r#"{"cniVersion":"1.0.0","name":"a","x":1.50}"#,
        ] {
            let mut network = Network::parse_open(text.as_bytes(), "a")?;
            let inlined = network.plugins.len();
            network.append(own.clone())?;
            let on = OnDisk { path: "/n/a.conflist".into(), form: Form::List, network };
            let disk = Disk { networks: vec![on], ..Disk::default() };
            let sent = NetworkFile::all(&disk).remove(0).text;
            let read = Network::parse(sent.as_bytes(), "a")?;
            assert_eq!((read.plugins.len(), read.load_only_inlined_plugins), (inlined + 1, true), "{sent}");
            assert!(
                sent.contains(r#"{"type":"tuning","mtu":1.50}"#) && sent.contains(r#""x":1.50"#),
                "{sent}"
            );
        }
        Ok(())
    }

    #[test]
    fn hostile_lengths_are_refused_without_room_being_made() {
        let huge = [0xff, 0xff, 0xff, 0xff, b'{'];
        assert!(receive::<Reply>(&mut huge.as_slice()).unwrap_err().msg.contains("too large"));
        let short = [0, 0, 0, 9, b'{'];
        assert!(receive::<Reply>(&mut short.as_slice()).unwrap_err().msg.contains("ends after 1 of 9"));
        assert!(receive::<Reply>(&mut [0u8, 0].as_slice()).is_err());
    }
}
