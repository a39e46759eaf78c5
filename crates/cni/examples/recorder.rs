//! Example of a small CNI plugin, which records calls in a file.
//!
//! It works alone or after other plugins, and calls an IPAM plugin if one is configured:
//!
//! ```json
//! {"cniVersion": "1.1.0", "name": "demo", "type": "recorder", "file": "/tmp/calls", "ipam": {"type": "host-local"}}
//! ```
//!
//! The tests for this crate run it as a process.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use cni::Error;
use cni::invocation::{Attach, Attachment, Call, Detach, Probe, Sweep};
use cni::invoke::Invoke;
use cni::plugin::ipam::Ipam;
use cni::plugin::{Plugin, process};
use cni::result::{Interface, Success};
use cni::runtime::exec::Exec;

/// Configuration as written by the user.
#[derive(Default, serde::Deserialize)]
#[serde(default)]
struct Conf {
    file: String,
}

struct Recorder;

impl Plugin for Recorder {
    fn name(&self) -> &'static str {
        "recorder"
    }

    fn add(&self, request: &Attach, delegates: &dyn Invoke) -> Result<Success, Error> {
        let Attach { who, netns, call } = request;
        let mut success = match call.config.prev_result()? {
            Some(previous) => previous,
            None => Success {
                interfaces: vec![Interface {
                    name: who.ifname.to_string(),
                    sandbox: netns.to_string_lossy().into_owned(),
                    ..Interface::default()
                }],
                ..Success::default()
            },
        };
        if let Some(ipam) = Ipam::configured(call, delegates)? {
            let reserved = ipam.add()?;
            success.ips.extend(reserved.ips);
            success.routes.extend(reserved.routes);
        }
        note(call, "add", Some(who))?;
        Ok(success)
    }

    fn del(&self, request: &Detach, delegates: &dyn Invoke) -> Result<(), Error> {
        let mut errors = Vec::new();
        if let Some(ipam) = Ipam::configured(&request.call, delegates)? {
            errors.extend(ipam.del().err());
        }
        errors.extend(note(&request.call, "del", Some(&request.who)).err());
        Error::join(errors).map_or(Ok(()), Err)
    }

    fn check(&self, request: &Attach, _: &dyn Invoke) -> Result<(), Error> {
        let line = line("add", Some(&request.who));
        let Conf { file } = request.call.config.decode()?;
        let kept = fs::read_to_string(&file).map_err(|cause| Error::io(format!("read {file}"), cause))?;
        match kept.lines().any(|known| known == line) {
            true => Ok(()),
            false => Err(Error::internal(format!("{file} has no line {line:?}"))),
        }
    }

    fn gc(&self, request: &Sweep, _: &dyn Invoke) -> Result<(), Error> {
        note(&request.call, "gc", None)
    }

    fn status(&self, request: &Probe, _: &dyn Invoke) -> Result<(), Error> {
        note(&request.call, "status", None)
    }
}

fn line(verb: &str, who: Option<&Attachment>) -> String {
    who.map_or(verb.to_owned(), |who| format!("{verb} {} {}", who.container, who.ifname))
}

fn note(call: &Call, verb: &str, who: Option<&Attachment>) -> Result<(), Error> {
    let Conf { file } = call.config.decode()?;
    if file.is_empty() {
        return Err(Error::key("file", "\"\"", "the plugin needs a file"));
    }
    let mut output = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&file)
        .map_err(|cause| Error::io(format!("open {file}"), cause))?;
    writeln!(output, "{}", line(verb, who)).map_err(|cause| Error::io(format!("write {file}"), cause))
}

fn main() -> ExitCode {
    process::main(&[&Recorder], &Exec::new(Duration::from_secs(30)))
}
