//! Instructions for the plugin, from the configuration's `testPlugin` field or from `TEST_…` in `CNI_ARGS`.
//!
//! ```json
//! { "testPlugin": { "record": "/tmp/calls", "ADD": [{ "do": "sleep", "milliseconds": 50 }, { "do": "fail", "code": 11 }] } }
//! ```
//! Instructions without parameters can be in `CNI_ARGS=TEST_RECORD=/tmp/calls;TEST_DEL=hang`.

use std::collections::BTreeMap;
use std::io::Write;

use serde::Deserialize;
use serde_json::Value;

use crate::{Call, Refusal};

/// Instruction. All except `sleep`, `stderr`, `delete-netns` and `result` end the plugin.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Instruction {
    /// Hangs without an answer, for ten minutes, so that a plugin that is never killed still ends.
    Hang,
    /// Starts a child that keeps standard output open, and does not answer.
    HangWithChild,
    /// Prints bytes that are neither JSON nor UTF-8.
    Garbage,
    /// Prints the first half of a valid result.
    Half,
    /// Prints this many bytes of a JSON string (default: 100 MB).
    Flood {
        #[serde(default = "hundred_megabytes")]
        bytes: u64,
    },
    /// Ends with a signal (default: 9).
    Signal {
        #[serde(default = "kill")]
        number: i32,
    },
    /// Unmounts and removes the network namespace, then continues.
    DeleteNetns,
    /// Waits, then continues.
    Sleep { milliseconds: u64 },
    /// Prints an error (default code: 999).
    Fail {
        #[serde(default = "internal")]
        code: u64,
        #[serde(default = "default_message")]
        message: String,
        #[serde(default)]
        details: String,
    },
    /// Exits with this status and prints nothing.
    Exit { code: u8 },
    /// Prints to standard error, then continues.
    Stderr {
        text: String,
        #[serde(default = "once")]
        times: u64,
    },
    /// Sets the result to print.
    Result { value: Value },
}

fn hundred_megabytes() -> u64 {
    100_000_000
}

fn kill() -> i32 {
    9
}

fn internal() -> u64 {
    999
}

fn default_message() -> String {
    "failed as the test wants".to_owned()
}

fn once() -> u64 {
    1
}

/// Instructions for one call.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Instructions {
    record: Option<String>,
    #[serde(flatten)]
    verbs: BTreeMap<String, Vec<Instruction>>,
}

/// W3C Trace Context and Baggage variables, which are recorded along with the CNI variables.
const TRACE_CONTEXT: [&str; 3] = ["TRACEPARENT", "TRACESTATE", "BAGGAGE"];

impl Instructions {
    pub(crate) fn read(call: &Call) -> Result<Instructions, Refusal> {
        let mut instructions = match call.config.get("testPlugin") {
            Some(instructions) => Instructions::deserialize(instructions)
                .map_err(|error| Refusal::new(7, format!("testPlugin: {error}")))?,
            None => Instructions::default(),
        };
        if let Some(record) = call.argument("TEST_RECORD") {
            instructions.record = Some(record.to_owned());
        }
        if let Some(name) = call.argument(&format!("TEST_{}", call.verb)) {
            let instruction = Instruction::deserialize(serde_json::json!({ "do": name }))
                .map_err(|error| Refusal::new(7, format!("TEST_{}={name}: {error}", call.verb)))?;
            instructions.verbs.entry(call.verb.clone()).or_default().push(instruction);
        }
        Ok(instructions)
    }

    pub(crate) fn of(&self, verb: &str) -> &[Instruction] {
        self.verbs.get(verb).map_or(&[], Vec::as_slice)
    }

    /// Appends this call to the record in one write, so that concurrent calls do not mix.
    pub(crate) fn record(&self, call: &Call) {
        let Some(path) = &self.record else { return };
        let program = std::env::args().next().unwrap_or_default();
        let record = testkit::Call {
            command: call.verb.clone(),
            environment: call
                .environment
                .clone()
                .into_iter()
                .filter(|(name, _)| name.starts_with("CNI_") || TRACE_CONTEXT.contains(&name.as_str()))
                .collect(),
            stdin: String::from_utf8_lossy(&call.stdin).into_owned(),
            program: program.rsplit('/').next().unwrap_or_default().to_owned(),
        };
        let line = serde_json::to_string(&record).expect("a record is JSON") + "\n";
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .unwrap_or_else(|error| panic!("record to {path}: {error}"));
    }
}

/// Whether `TEST_<VERB>=deaf` is set. This must be known before the configuration is read, so it can only be in
/// `CNI_ARGS`.
pub(crate) fn is_deaf(environment: &BTreeMap<String, String>) -> bool {
    let variable = |name| environment.get(name).map_or("", String::as_str);
    let wanted = format!("TEST_{}=deaf", variable("CNI_COMMAND"));
    variable("CNI_ARGS").split(';').any(|pair| pair == wanted)
}
