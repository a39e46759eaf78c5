//! Open vSwitch's configuration, over its own protocol: ports are put into a bridge and taken out.
//!
//! Rules: what comes from the server is bounded and checked; nobody is waited for longer than told; its questions
//! whether we live are answered. What we made says so: `external_ids:vm-uuid=weft`, and for whom in `weft`.
//!
//! Requests are texts: what goes into them is quoted, and a tree of them would be many times the code.
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
use serde_json::Value;

/// Where the server is unless the configuration says something else.
pub const SOCKET: &str = "/run/openvswitch/db.sock";
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Largest answer, in bytes.
const ANSWER_MAX: usize = 16 << 20;
/// How often it is looked whether the switch has acted.
const POLL: Duration = Duration::from_millis(5);

/// A connection to the server.
#[derive(Debug)]
pub struct Ovsdb {
    stream: UnixStream,
    buffer: Vec<u8>,
    path: String,
    number: u32,
}

/// A port to be put in.
#[derive(Debug)]
pub struct Plug<'a> {
    /// The bridge.
    pub bridge: &'a str,
    /// The link.
    pub device: &'a str,
    /// The port of Neutron it is.
    pub port: &'a str,
    /// Its hardware address inside.
    pub mac: &'a str,
    /// For whom.
    pub tag: &'a str,
}

/// What a bridge is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bridge {
    /// Its packets are switched by a process: nobody completes a checksum.
    pub in_user_space: bool,
    /// OVN drives it, and says when a port works.
    pub by_ovn: bool,
}

/// A port of ours in the switch.
#[derive(Debug)]
pub struct Found {
    /// Its link.
    pub device: String,
    /// For whom.
    pub tag: String,
    /// Why it does not work; empty if it does.
    pub error: String,
}

// === impl Ovsdb ===

impl Ovsdb {
    /// Connects to the server at `address`, a path, `unix:` before it or not.
    ///
    /// # Errors
    /// Code 11: it may be back any moment.
    pub fn connect(address: &str) -> Result<Ovsdb, Error> {
        let path = address.strip_prefix("unix:").unwrap_or(address);
        let connected = connect_within(Path::new(path), PATIENCE).and_then(|stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            Ok(stream)
        });
        match connected {
            Ok(stream) => Ok(Ovsdb { stream, buffer: Vec::new(), path: path.to_owned(), number: 0 }),
            Err(cause) => Err(later(path, &cause.to_string())),
        }
    }

    /// Puts a port into its bridge, in the place of one of the same name. `ovs-vsctl add-port`
    ///
    /// What the switch makes of it, [`Ovsdb::wait`] says.
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
            NEXT.to_owned(),
        ]);
        self.transact(&operations)?;
        Ok(Bridge {
            in_user_space: found["datapath_type"] == "netdev",
            by_ovn: known[2]["rows"]
                .get(0)
                .is_some_and(|row| entry(&row["external_ids"], "ovn-remote").is_some()),
        })
    }

    /// Waits until the switch has taken the port in, and where OVN drives it until it works there.
    ///
    /// # Errors
    /// What the switch says of the link; code 11 if it takes too long.
    pub fn wait(&mut self, device: &str, bridge: Bridge, patience: Duration) -> Result<(), Error> {
        let deadline = Instant::now() + patience;
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
                let who =
                    if taken { "ovn-controller does not install" } else { "ovs-vswitchd does not take in" };
                let why = format!("{who} port {device} within {} s", patience.as_secs());
                return Err(Error::new(code::TRY_AGAIN_LATER, why));
            }
            sleep(pause);
            pause = (pause * 2).min(POLL * 10);
        }
    }

    /// The ports that are ours.
    pub fn own(&mut self) -> Result<Vec<Found>, Error> {
        let select = r#"{"op":"select","table":"Interface","where":[["external_ids","includes",["map",[["vm-uuid","weft"]]]]],"columns":["name","error","external_ids"]}"#;
        let answer = self.transact(&[select.to_owned()])?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let rows = answer[0]["rows"].as_array().into_iter().flatten().map(|row| Found {
            device: text(&row["name"]),
            tag: entry(&row["external_ids"], "weft").unwrap_or_default().to_owned(),
            error: text(&row["error"]),
        });
        Ok(rows.collect())
    }

    /// Takes ports out of whatever bridge they are in. `ovs-vsctl --if-exists del-port`
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
        operations.push(NEXT.to_owned());
        self.transact(&operations).map(drop)
    }

    /// Carries operations out, all or none; an answer to each.
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
            // What fails at the end of it all is an answer too many.
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

    /// The next message: they follow each other without anything between them.
    fn receive(&mut self) -> Result<Value, Error> {
        let mut chunk = [0; 16 * 1024];
        loop {
            let first = first_value(&self.buffer).map_err(|_| later(&self.path, "it does not speak JSON"))?;
            if let Some((message, end)) = first {
                self.buffer.drain(..end);
                return Ok(message);
            }
            let read = self.stream.read(&mut chunk).map_err(|cause| later(&self.path, &cause.to_string()))?;
            if read == 0 || self.buffer.len() > ANSWER_MAX {
                return Err(later(&self.path, "the answer breaks off"));
            }
            self.buffer.extend_from_slice(&chunk[..read]);
        }
    }

    fn fault(&self, answer: &Value) -> Error {
        Error::internal(format!("Open vSwitch at {}: refused: {answer}", self.path))
    }
}

/// `vswitchd` looks for changes by it.
const NEXT: &str = r#"{"op":"mutate","table":"Open_vSwitch","where":[],"mutations":[["next_cfg","+=",1]]}"#;

/// Takes a port out; its rows go by themselves.
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

/// A value of a map of OVSDB: `["map", [[KEY, VALUE], …]]`.
fn entry<'a>(map: &'a Value, key: &str) -> Option<&'a str> {
    map[1].as_array()?.iter().find(|pair| pair[0] == key)?[1].as_str()
}

/// The first value of these bytes and where it ends, if it is all there.
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
    fn messages_are_told_apart_whatever_is_in_their_texts() {
        let two = br#"{"a":"}\"}","b":{"c":[{}]}}{"id":2}"#;
        let (first, end) = first_value(two).unwrap().unwrap();
        assert_eq!((first["a"].as_str(), end), (Some("}\"}"), two.len() - 8));
        for part in [&br#"{"a":"}"#[..], br#"{"a":{}"#, b" ", b""] {
            assert_eq!(first_value(part).unwrap(), None);
        }
        assert!(first_value(b"}").is_err());
    }

    #[test]
    fn a_map_of_ovsdb_is_looked_up() {
        let map = serde_json::json!(["map", [["iface-id", "x"], ["ovn-installed", "true"]]]);
        assert_eq!(entry(&map, "ovn-installed"), Some("true"));
        assert_eq!(entry(&map, "other"), None);
        assert_eq!(entry(&Value::Null, "other"), None);
    }
}
