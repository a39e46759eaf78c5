//! Client for the Open vSwitch database: adds ports to a bridge and removes them.
//!
//! Rules:
//! - The server's answers are limited in size and validated, and each has a timeout. `echo` requests from the server
//!   are answered.
//! - Every object has `external_ids:vm-uuid=weft`, and the owner tag in `weft`.
//! - Requests are strings with quoted values; a tree of request types would need much more code.
//!
//! Source: RFC 7047; ovs-vswitchd.conf.db(5); ovn-architecture(7), "Life Cycle of a VIF" (`iface-id`,
//! `ovn-installed`).

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use cni::{Error, code};
use linux::unix::connect_within;
pub use plugin_config::neutron::SOCKET;
use serde_json::Value;

/// Timeout for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size for an answer, in bytes.
const ANSWER_MAX: usize = 16 << 20;
/// Interval at which a new port's state is read.
const POLL: Duration = Duration::from_millis(5);

/// Connection to the server.
#[derive(Debug)]
pub struct Ovsdb {
    stream: UnixStream,
    buffer: Vec<u8>,
    path: String,
    number: u32,
}

/// Port to add.
#[derive(Debug)]
pub struct Plug<'a> {
    /// Bridge that gets the port.
    pub bridge: &'a str,
    /// Link to add.
    pub device: &'a str,
    /// Neutron port id.
    pub port: &'a str,
    /// Hardware address in the container.
    pub mac: &'a str,
    /// The attachment's owner tag.
    pub tag: &'a str,
}

/// Facts about a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bridge {
    /// Whether a userspace process forwards the packets, so that checksums are not completed.
    pub in_user_space: bool,
    /// Whether OVN controls it and reports when a port works.
    pub by_ovn: bool,
}

/// Port that this plugin made on the switch.
#[derive(Debug)]
pub struct OwnPort {
    /// Link that the port is for.
    pub device: String,
    /// The attachment's owner tag.
    pub tag: String,
    /// Reason why it does not work; empty if it does.
    pub error: String,
}

// === impl Ovsdb ===

impl Ovsdb {
    /// Connects to the server at `address`, a path with or without `unix:`.
    ///
    /// # Errors
    /// Code 11: the server may become available.
    pub fn connect(address: &str) -> Result<Ovsdb, Error> {
        let path = address.strip_prefix("unix:").unwrap_or(address);
        let connected = connect_within(Path::new(path), TIMEOUT).and_then(|stream| {
            stream.set_read_timeout(Some(TIMEOUT))?;
            Ok(stream)
        });
        match connected {
            Ok(stream) => Ok(Ovsdb { stream, buffer: Vec::new(), path: path.to_owned(), number: 0 }),
            Err(cause) => Err(later(path, &cause.to_string())),
        }
    }

    /// Adds a port to the bridge and replaces one with the same name. `ovs-vsctl add-port`
    ///
    /// [`Ovsdb::wait`] waits for the result.
    pub fn plug(&mut self, plug: &Plug<'_>) -> Result<Bridge, Error> {
        let Plug { bridge, device, port, mac, tag } = *plug;
        let (named, link) = (quoted(bridge), quoted(device));
        let select = |table: &str, condition: &str, columns: &str| {
            format!(r#"{{"op":"select","table":"{table}","where":[{condition}],"columns":[{columns}]}}"#)
        };
        let known = self.transact(&[
            select("Bridge", &format!(r#"["name","==",{named}]"#), r#""datapath_type""#),
            select("Port", &format!(r#"["name","==",{link}]"#), r#""_uuid""#),
            select("Open_vSwitch", "", r#""external_ids""#),
        ])?;
        let Some(found) = known[0]["rows"].get(0) else {
            return Err(Error::key("bridge", named, format!("no such bridge in {}", self.path)));
        };
        let ids = [
            ("iface-id", port),
            ("iface-status", "active"),
            ("attached-mac", mac),
            ("vm-uuid", "weft"),
            ("weft", tag),
        ];
        let ids: Vec<String> =
            ids.iter().map(|(key, value)| format!(r#"["{key}",{}]"#, quoted(value))).collect();
        let mut operations: Vec<String> =
            known[1]["rows"].get(0).map(|row| remove(&row["_uuid"])).into_iter().collect();
        operations.extend([
            format!(
                r#"{{"op":"insert","table":"Interface","uuid-name":"i","row":{{"name":{link},"external_ids":["map",[{}]]}}}}"#,
                ids.join(",")
            ),
            format!(
                r#"{{"op":"insert","table":"Port","uuid-name":"p","row":{{"name":{link},"interfaces":["named-uuid","i"]}}}}"#
            ),
            format!(
                r#"{{"op":"mutate","table":"Bridge","where":[["name","==",{named}]],"mutations":[["ports","insert",["named-uuid","p"]]]}}"#
            ),
            NEXT_CONFIG.to_owned(),
        ]);
        self.transact(&operations)?;
        Ok(Bridge {
            in_user_space: found["datapath_type"] == "netdev",
            by_ovn: known[2]["rows"]
                .get(0)
                .is_some_and(|row| entry(&row["external_ids"], "ovn-remote").is_some()),
        })
    }

    /// Waits until the switch has added the port, and if OVN controls it until the port works.
    ///
    /// # Errors
    /// The error that the switch reports for the link; code 11 after the timeout.
    pub fn wait(&mut self, device: &str, bridge: Bridge, timeout: Duration) -> Result<(), Error> {
        let deadline = Instant::now() + timeout;
        let select = format!(
            r#"{{"op":"select","table":"Interface","where":[["name","==",{}]],"columns":["ofport","error","external_ids"]}}"#,
            quoted(device)
        );
        let mut pause = POLL;
        loop {
            let answer = self.transact(std::slice::from_ref(&select))?;
            let row = &answer[0]["rows"][0];
            if let Some(error) = row["error"].as_str().filter(|error| !error.is_empty()) {
                return Err(Error::internal(format!("Open vSwitch: {device}: {error}")));
            }
            let taken = row["ofport"].as_i64().is_some_and(|port| port > 0);
            let works = !bridge.by_ovn || entry(&row["external_ids"], "ovn-installed") == Some("true");
            if taken && works {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let reason =
                    if taken { "ovn-controller does not install" } else { "ovs-vswitchd does not add" };
                let why = format!("{reason} port {device} within {} s", timeout.as_secs());
                return Err(Error::new(code::TRY_AGAIN_LATER, why));
            }
            sleep(pause);
            pause = (pause * 2).min(POLL * 10);
        }
    }

    /// Returns the ports that this plugin made.
    pub fn own(&mut self) -> Result<Vec<OwnPort>, Error> {
        let select = r#"{"op":"select","table":"Interface","where":[["external_ids","includes",["map",[["vm-uuid","weft"]]]]],"columns":["name","error","external_ids"]}"#;
        let answer = self.transact(&[select.to_owned()])?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let rows = answer[0]["rows"].as_array().into_iter().flatten().map(|row| OwnPort {
            device: text(&row["name"]),
            tag: entry(&row["external_ids"], "weft").unwrap_or_default().to_owned(),
            error: text(&row["error"]),
        });
        Ok(rows.collect())
    }

    /// Removes ports from any bridge. `ovs-vsctl --if-exists del-port`
    pub fn unplug(&mut self, devices: &[String]) -> Result<(), Error> {
        let select = |device: &String| {
            format!(
                r#"{{"op":"select","table":"Port","where":[["name","==",{}]],"columns":["_uuid"]}}"#,
                quoted(device)
            )
        };
        let selects: Vec<String> = devices.iter().map(select).collect();
        let found = self.transact(&selects)?;
        let rows = found.iter().filter_map(|answer| answer["rows"].get(0));
        let mut operations: Vec<String> = rows.map(|row| remove(&row["_uuid"])).collect();
        if operations.is_empty() {
            return Ok(());
        }
        operations.push(NEXT_CONFIG.to_owned());
        self.transact(&operations).map(drop)
    }

    /// Executes operations as one transaction; returns an answer for each.
    fn transact(&mut self, operations: &[String]) -> Result<Vec<Value>, Error> {
        if operations.is_empty() {
            return Ok(Vec::new());
        }
        self.number += 1;
        let (number, all) = (self.number, operations.join(","));
        self.send(&format!(r#"{{"method":"transact","id":{number},"params":["Open_vSwitch",{all}]}}"#))?;
        loop {
            let mut message = self.receive()?;
            if message["method"] == "echo" {
                self.send(&format!(
                    r#"{{"id":{},"result":{},"error":null}}"#,
                    message["id"], message["params"]
                ))?;
                continue;
            }
            if message["id"] != number {
                continue;
            }
            let Value::Array(answers) = message["result"].take() else {
                return Err(self.fault(&message["error"]));
            };
            // An error of the commit itself is an additional answer at the end.
            return match answers.iter().find(|answer| !answer["error"].is_null()) {
                Some(answer) => Err(self.fault(answer)),
                None if answers.len() < operations.len() => Err(self.fault(&Value::Null)),
                None => Ok(answers),
            };
        }
    }

    fn send(&mut self, message: &str) -> Result<(), Error> {
        self.stream.write_all(message.as_bytes()).map_err(|cause| later(&self.path, &cause.to_string()))
    }

    /// Reads the next message; messages follow each other without a separator.
    fn receive(&mut self) -> Result<Value, Error> {
        let mut chunk = [0; 16 * 1024];
        loop {
            let first = first_value(&self.buffer).map_err(|_| later(&self.path, "the answer is not JSON"))?;
            if let Some((message, end)) = first {
                self.buffer.drain(..end);
                return Ok(message);
            }
            let read = self.stream.read(&mut chunk).map_err(|cause| later(&self.path, &cause.to_string()))?;
            if read == 0 || self.buffer.len() > ANSWER_MAX {
                return Err(later(&self.path, "the answer is incomplete or too large"));
            }
            self.buffer.extend_from_slice(&chunk[..read]);
        }
    }

    fn fault(&self, answer: &Value) -> Error {
        Error::internal(format!("Open vSwitch at {}: refused: {answer}", self.path))
    }
}

/// Operation that makes `ovs-vswitchd` read the changes.
const NEXT_CONFIG: &str =
    r#"{"op":"mutate","table":"Open_vSwitch","where":[],"mutations":[["next_cfg","+=",1]]}"#;

/// Returns the operation that removes a port; the database deletes the rows that nothing refers to.
fn remove(port: &Value) -> String {
    format!(
        r#"{{"op":"mutate","table":"Bridge","where":[["ports","includes",{port}]],"mutations":[["ports","delete",{port}]]}}"#
    )
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn later(path: &str, why: &str) -> Error {
    Error::new(code::TRY_AGAIN_LATER, format!("Open vSwitch at {path}: {why}"))
}

/// Returns a value in an OVSDB map: `["map", [[KEY, VALUE], …]]`.
fn entry<'a>(map: &'a Value, key: &str) -> Option<&'a str> {
    map[1].as_array()?.iter().find(|pair| pair[0] == key)?[1].as_str()
}

/// Returns the first value in the bytes and the length, if it is complete.
fn first_value(bytes: &[u8]) -> Result<Option<(Value, usize)>, serde_json::Error> {
    let mut values = serde_json::Deserializer::from_slice(bytes).into_iter();
    match values.next() {
        Some(Ok(value)) => Ok(Some((value, values.byte_offset()))),
        Some(Err(error)) if !error.is_eof() => Err(error),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ovsdb_messages_are_separated_whatever_their_strings_contain() {
        let two = br#"{"a":"}\"}","b":{"c":[{}]}}{"id":2}"#;
        let (first, end) = first_value(two).unwrap().unwrap();
        assert_eq!((first["a"].as_str(), end), (Some("}\"}"), two.len() - 8));
        for part in [&br#"{"a":"}"#[..], br#"{"a":{}"#, b" ", b""] {
            assert_eq!(first_value(part).unwrap(), None);
        }
        assert!(first_value(b"}").is_err());
    }

    #[test]
    fn ovsdb_map_returns_the_value_of_a_key() {
        let map = serde_json::json!(["map", [["iface-id", "x"], ["ovn-installed", "true"]]]);
        assert_eq!(entry(&map, "ovn-installed"), Some("true"));
        assert_eq!(entry(&map, "other"), None);
        assert_eq!(entry(&Value::Null, "other"), None);
    }
}
