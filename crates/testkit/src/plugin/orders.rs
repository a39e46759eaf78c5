//! What the test wants of the plugin: key `testPlugin` of the configuration, or `TEST_…` in `CNI_ARGS`.
//!
//! ```json
//! { "testPlugin": { "record": "/tmp/calls", "ADD": [{ "do": "sleep", "milliseconds": 50 }, { "do": "fail", "code": 11 }] } }
//! ```
//! or, for orders without parameters, `CNI_ARGS=TEST_RECORD=/tmp/calls;TEST_DEL=hang`.

use std::collections::BTreeMap;
use std::io::Write;

use serde::Deserialize;
use serde_json::Value;

use crate::{Call, Refusal};

/// One thing to do. All but `sleep`, `stderr` and `result` end the plugin.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Order {
    /// Never answer (for ten minutes: a plugin that nobody kills must not stay for ever).
    Hang,
    /// Start a child that keeps stdout open, and never answer.
    HangWithChild,
    /// Print what is no JSON and no UTF-8.
    Garbage,
    /// Print the first half of a good result.
    Half,
    /// Print this many bytes of JSON string; 100 MB unless said.
    Flood {
        #[serde(default = "hundred_megabytes")]
        bytes: u64,
    },
    /// End by a signal; 9 unless said.
    Signal {
        #[serde(default = "kill")]
        number: i32,
    },
    /// Unmount and remove the network namespace, then go on.
    DeleteNetns,
    /// Wait, then go on.
    Sleep { milliseconds: u64 },
    /// Print an error; code 999 unless said.
    Fail {
        #[serde(default = "internal")]
        code: u64,
        #[serde(default = "on_demand")]
        message: String,
        #[serde(default)]
        details: String,
    },
    /// Exit with this status and print nothing.
    Exit { code: u8 },
    /// Print to stderr, then go on.
    Stderr {
        text: String,
        #[serde(default = "once")]
        times: u64,
    },
    /// The result to print.
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

fn on_demand() -> String {
    "failed as the test wants".to_owned()
}

fn once() -> u64 {
    1
}

/// All orders of a call.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Orders {
    record: Option<String>,
    #[serde(flatten)]
    verbs: BTreeMap<String, Vec<Order>>,
}

impl Orders {
    pub(crate) fn read(call: &Call) -> Result<Orders, Refusal> {
        let mut orders = match call.config.get("testPlugin") {
            Some(orders) => Orders::deserialize(orders)
                .map_err(|error| Refusal::new(7, format!("testPlugin: {error}")))?,
            None => Orders::default(),
        };
        if let Some(record) = call.argument("TEST_RECORD") {
            orders.record = Some(record.to_owned());
        }
        if let Some(name) = call.argument(&format!("TEST_{}", call.verb)) {
            let order = Order::deserialize(serde_json::json!({ "do": name }))
                .map_err(|error| Refusal::new(7, format!("TEST_{}={name}: {error}", call.verb)))?;
            orders.verbs.entry(call.verb.clone()).or_default().push(order);
        }
        Ok(orders)
    }

    pub(crate) fn of(&self, verb: &str) -> &[Order] {
        self.verbs.get(verb).map_or(&[], Vec::as_slice)
    }

    /// Appends this call to the record, in one write: calls at the same time do not mix.
    pub(crate) fn record(&self, call: &Call) {
        let Some(path) = &self.record else { return };
        let program = std::env::args().next().unwrap_or_default();
        let record = testkit::Call {
            command: call.verb.clone(),
            environment: call
                .environment
                .clone()
                .into_iter()
                .filter(|(name, _)| name.starts_with("CNI_"))
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

/// `TEST_<VERB>=deaf`: has to be known before the configuration is read, so it is in `CNI_ARGS` only.
pub(crate) fn is_deaf(environment: &BTreeMap<String, String>) -> bool {
    let variable = |name| environment.get(name).map_or("", String::as_str);
    let wanted = format!("TEST_{}=deaf", variable("CNI_COMMAND"));
    variable("CNI_ARGS").split(';').any(|pair| pair == wanted)
}
