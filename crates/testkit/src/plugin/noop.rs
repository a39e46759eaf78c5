//! Protocol of the CNI project's `noop` plugin: a file contains the response, and receives the call's parameters.
//!
//! `DEBUG=` in `CNI_ARGS` names the file, or else `debugFile` in the configuration. `commandLog` names a second file, a
//! JSON array to which each call is appended. Bytes are written as base64, as in Go.
//!
//! Source: containernetworking/cni `plugins/test/noop/{main,debug/debug}.go` (v1.3.0), `pkg/skel`.

use std::io::Write;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{Call, Refusal, print};

/// File content, with Go's names and letter case.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(crate) struct Debug {
    report_result: String,
    report_error: String,
    report_error_code: u64,
    report_stderr: String,
    report_version_support: Option<Vec<String>>,
    exit_with_code: u8,
    command: String,
    cmd_args: Value,
}

impl Debug {
    /// Reads this call's file, if it names one.
    pub(crate) fn read(call: &Call) -> Result<Option<Debug>, Refusal> {
        let Some(path) = path(call) else { return Ok(None) };
        let text = std::fs::read(path).map_err(|error| Refusal::new(999, format!("open {path}: {error}")))?;
        serde_json::from_slice(&text).map(Some).map_err(|error| Refusal::new(999, format!("{path}: {error}")))
    }

    pub(crate) fn versions(&self) -> Vec<String> {
        self.report_version_support.clone().unwrap_or_else(all_versions)
    }

    /// Records the call and answers as the file says; returns the exit status.
    pub(crate) fn behave(mut self, call: &Call) -> Result<u8, Refusal> {
        self.command.clone_from(&call.verb);
        self.cmd_args = command_arguments(call);
        if let Some(path) = path(call) {
            let text = serde_json::to_vec(&self).expect("the file is JSON");
            std::fs::write(path, text)
                .map_err(|error| Refusal::new(999, format!("write {path}: {error}")))?;
        }
        self.log(call)?;
        // The caller may have closed standard error.
        let _ = std::io::stderr().write_all(self.report_stderr.as_bytes());
        if !self.report_error.is_empty() {
            let code = if self.report_error_code == 0 { 999 } else { self.report_error_code };
            return Err(Refusal::new(code, self.report_error));
        }
        let mut previous = call.config.get("prevResult").cloned().unwrap_or_else(|| json!({}));
        match self.report_result.as_str() {
            "PASSTHROUGH" => print(previous.to_string().as_bytes()),
            "INJECT-DNS" => {
                previous["dns"]["nameservers"] = json!(["1.2.3.4"]);
                print(previous.to_string().as_bytes());
            }
            result => print(result.as_bytes()),
        }
        Ok(self.exit_with_code)
    }

    fn log(&self, call: &Call) -> Result<(), Refusal> {
        let Some(path) =
            call.config.get("commandLog").and_then(Value::as_str).filter(|path| !path.is_empty())
        else {
            return Ok(());
        };
        let text = std::fs::read(path).map_err(|error| Refusal::new(999, format!("open {path}: {error}")))?;
        let mut log: Vec<Value> = match text.as_slice() {
            [] => Vec::new(),
            text => {
                serde_json::from_slice(text).map_err(|error| Refusal::new(999, format!("{path}: {error}")))?
            }
        };
        log.push(json!({ "Command": self.command, "CmdArgs": self.cmd_args }));
        let text = Value::from(log).to_string();
        std::fs::write(path, text).map_err(|error| Refusal::new(999, format!("write {path}: {error}")))
    }
}

/// Returns all CNI versions, and one that does not exist.
pub(crate) fn all_versions() -> Vec<String> {
    ["0.-42.0", "0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"].map(str::to_owned).to_vec()
}

/// Rejects a configuration whose version the debug file does not list.
pub(crate) fn reconcile(call: &Call, debug: Option<&Debug>) -> Result<(), Refusal> {
    let versions = debug.map_or_else(all_versions, Debug::versions);
    let version = call.version();
    if versions.iter().any(|known| known == version) {
        return Ok(());
    }
    let details = format!("config is {version:?}, plugin supports {versions:?}");
    Err(Refusal { code: 1, message: "incompatible CNI versions".to_owned(), details })
}

fn path(call: &Call) -> Option<&str> {
    let in_config = || call.config.get("debugFile").and_then(Value::as_str);
    call.argument("DEBUG").or_else(in_config).filter(|path| !path.is_empty())
}

/// Encodes `skel.CmdArgs` as Go prints it.
fn command_arguments(call: &Call) -> Value {
    json!({
        "ContainerID": call.variable("CNI_CONTAINERID"),
        "Netns": call.variable("CNI_NETNS"),
        "IfName": call.variable("CNI_IFNAME"),
        "Args": call.variable("CNI_ARGS"),
        "Path": call.variable("CNI_PATH"),
        "NetnsOverride": call.variable("CNI_NETNS_OVERRIDE"),
        "StdinData": base64(&call.stdin),
    })
}

/// Encodes as in RFC 4648 section 4, with padding.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk
            .iter()
            .enumerate()
            .fold(0_u32, |group, (place, byte)| group | u32::from(*byte) << (16 - 8 * place));
        for place in 0..4 {
            let character = ALPHABET[(group >> (18 - 6 * place) & 63) as usize] as char;
            text.push(if place > chunk.len() { '=' } else { character });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64;

    #[test]
    fn base64_matches_the_vectors_of_rfc_4648() {
        let vectors = [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ];
        for (plain, encoded) in vectors {
            assert_eq!(base64(plain.as_bytes()), encoded);
        }
    }
}
