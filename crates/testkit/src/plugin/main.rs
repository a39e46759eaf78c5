//! `weft-test-plugin`: a real plugin that records calls and follows a test's instructions.
//!
//! Instructions come in two ways, which can be combined:
//! - The protocol of the CNI project's own `noop` plugin ([`noop`]), so that the CNI project's tests work with this
//!   plugin.
//! - The configuration's `testPlugin` field ([`instructions`]): the record file, and the actions for each verb.
//!
//! Without instructions it behaves correctly: it passes on the previous result, or invents an interface if it is first.
//!
//! Source: CNI specification 1.1.0; containernetworking/cni `plugins/test/noop`.

#![allow(clippy::panic, clippy::expect_used, reason = "a test's support fails by panicking")]

mod instructions;
mod misbehaviour;
mod noop;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::process::ExitCode;

use serde_json::{Value, json};

use instructions::{Instruction, Instructions};

/// Parameters for this call.
pub(crate) struct Call {
    pub(crate) verb: String,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) stdin: Vec<u8>,
    pub(crate) config: Value,
}

/// CNI error that the plugin returns.
pub(crate) struct Refusal {
    pub(crate) code: u64,
    pub(crate) message: String,
    pub(crate) details: String,
}

fn main() -> ExitCode {
    let environment: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .collect();
    let verb = environment.get("CNI_COMMAND").cloned().unwrap_or_default();
    if instructions::is_deaf(&environment) {
        return misbehaviour::be_deaf();
    }
    let mut stdin = Vec::new();
    std::io::stdin().read_to_end(&mut stdin).expect("read stdin");
    let config = serde_json::from_slice(&stdin).unwrap_or(Value::Null);
    let call = Call { verb, environment, stdin, config };
    match answer(&call) {
        Ok(code) => ExitCode::from(code),
        Err(refusal) => {
            print(refusal.to_json(&call).to_string().as_bytes());
            ExitCode::FAILURE
        }
    }
}

/// Records the call, follows the instructions and answers; returns the exit status.
fn answer(call: &Call) -> Result<u8, Refusal> {
    let instructions = Instructions::read(call)?;
    instructions.record(call);
    let noop = noop::Debug::read(call)?;
    if call.verb == "VERSION" {
        let versions = noop.as_ref().map_or_else(noop::all_versions, noop::Debug::versions);
        print(json!({ "cniVersion": "1.1.0", "supportedVersions": versions }).to_string().as_bytes());
        return Ok(0);
    }
    call.require_environment()?;
    noop::reconcile(call, noop.as_ref())?;
    let mut result = None;
    for instruction in instructions.of(&call.verb) {
        if let Instruction::Result { value } = instruction {
            result = Some(value.clone());
        } else if let Some(code) = misbehaviour::run(instruction, call)? {
            return Ok(code);
        }
    }
    if let Some(noop) = noop {
        return noop.behave(call);
    }
    if call.verb == "ADD" {
        print(result.unwrap_or_else(|| call.good_result()).to_string().as_bytes());
    }
    Ok(0)
}

// === impl Call ===

impl Call {
    pub(crate) fn variable(&self, name: &str) -> &str {
        self.environment.get(name).map_or("", String::as_str)
    }

    /// Returns a value from `CNI_ARGS`.
    pub(crate) fn argument(&self, name: &str) -> Option<&str> {
        self.variable("CNI_ARGS")
            .split(';')
            .filter_map(|pair| pair.split_once('='))
            .find(|(key, _)| *key == name)
            .map(|(_, value)| value)
    }

    pub(crate) fn version(&self) -> &str {
        self.config
            .get("cniVersion")
            .and_then(Value::as_str)
            .filter(|version| !version.is_empty())
            .unwrap_or("0.1.0")
    }

    /// Returns the result with which the plugin succeeds.
    fn good_result(&self) -> Value {
        if let Some(previous) = self.config.get("prevResult") {
            return previous.clone();
        }
        let version = self.version();
        if version.starts_with("0.1") || version.starts_with("0.2") {
            return json!({ "cniVersion": version, "dns": {} });
        }
        let interface = json!({ "name": self.variable("CNI_IFNAME"), "sandbox": self.variable("CNI_NETNS") });
        json!({ "cniVersion": version, "interfaces": [interface] })
    }

    fn require_environment(&self) -> Result<(), Refusal> {
        let needed: &[&str] = match self.verb.as_str() {
            "ADD" | "CHECK" => &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"],
            "DEL" => &["CNI_CONTAINERID", "CNI_IFNAME", "CNI_PATH"],
            "GC" | "STATUS" => &["CNI_PATH"],
            other => return Err(Refusal::new(4, format!("unknown CNI_COMMAND: {other}"))),
        };
        let missing: Vec<_> = needed.iter().copied().filter(|name| self.variable(name).is_empty()).collect();
        match missing.as_slice() {
            [] => Ok(()),
            missing => {
                Err(Refusal::new(4, format!("required env variables [{}] missing", missing.join(","))))
            }
        }
    }
}

// === impl Refusal ===

impl Refusal {
    pub(crate) fn new(code: u64, message: impl Into<String>) -> Refusal {
        Refusal { code, message: message.into(), details: String::new() }
    }

    fn to_json(&self, call: &Call) -> Value {
        let Refusal { code, message, details } = self;
        let mut error = json!({ "cniVersion": call.version(), "code": code, "msg": message });
        if !details.is_empty() {
            error["details"] = json!(details);
        }
        error
    }
}

/// Prints to the caller. It is not an error if the caller has closed the pipe.
pub(crate) fn print(bytes: &[u8]) {
    let mut stdout = std::io::stdout();
    let _ = stdout.write_all(bytes).and_then(|()| stdout.flush());
}
