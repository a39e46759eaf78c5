//! Runs a plugin as a process. No other code reads environment variables or stdin, or writes stdout.
//!
//! - Stdin is never read from a terminal.
//! - VERSION does not need stdin and waits for it only briefly, so that a caller that leaves the pipe open cannot block
//!   it.
//! - If the output cannot be written, the call fails.
//! - A panic prints an error and ends the process at once, without unwinding. The DEL that follows a failed ADD cleans
//!   up, as it does after a kill.
//!
//! Source: SPEC 1.1.0 §2; libcni `pkg/skel` (`PluginMainFuncs`), K2, K3.

use std::ffi::OsString;
use std::io::{self, Cursor, IsTerminal, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

use super::{Answer, Plugin, respond};
use crate::environment::Environment;
use crate::error::{Error, code};
use crate::invoke::Invoke;
use crate::object::{DOCUMENT_MAX, Object};
use crate::version::{Verb, Version};

/// Maximum length of a panic message in an error, in characters.
const PANIC_MAX: usize = 500;

/// Time that VERSION waits for optional input on stdin.
const STDIN_TIMEOUT: Duration = Duration::from_millis(250);

/// Finds the plugin that a program was called as: by the file name in the first argument, or else by the second
/// argument.
pub fn called_as<'a>(
    find: impl Fn(&str) -> Option<&'a dyn Plugin>,
    arguments: &[OsString],
) -> Option<&'a dyn Plugin> {
    let file = Path::new(arguments.first()?).file_name()?.to_str()?;
    find(file).or_else(|| find(arguments.get(1)?.to_str()?))
}

/// Runs a program that contains several plugins, each called by name; returns exit code 0 or 1.
pub fn main(plugins: &[&dyn Plugin], delegates: &dyn Invoke) -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match called_as(|name| plugins.iter().find(|plugin| plugin.name() == name).copied(), &arguments) {
        Some(plugin) => run(plugin, delegates),
        None => refuse(plugins.iter().map(|plugin| plugin.name()), ""),
    }
}

/// Answers a call that names none of these plugins with a hint; returns exit code 1.
pub fn refuse<'a>(names: impl Iterator<Item = &'a str>, advice: &str) -> ExitCode {
    let names: Vec<&str> = names.collect();
    let why = format!("no plugin with this name: call this program as one of {}", names.join(", "));
    match Environment::of_process().command.as_str() {
        "" => deliver(&Answer { stdout: Vec::new(), stderr: format!("{why}\n"), success: false }),
        _ => deliver(&Answer::failed(&Error::new(code::NOT_EXECUTED, why).details(advice))),
    }
}

/// Answers a CNI call to a program that is not a plugin with `error`, in the configuration's version; returns exit code
/// 1.
pub fn refuse_call(error: Error) -> ExitCode {
    let stdin = if io::stdin().is_terminal() { Vec::new() } else { optional_stdin() };
    let text = Object::parse(&stdin, "stdin").and_then(|object| object.text("cniVersion"));
    let version = text.ok().flatten().and_then(|text| Version::from_wire(&text)).unwrap_or(Version::LATEST);
    deliver(&Answer::failed(&error.in_version(version)))
}

/// Runs `plugin` with this process's variables and stdin; returns exit code 0 or 1.
pub fn run(plugin: &dyn Plugin, delegates: &dyn Invoke) -> ExitCode {
    answer_panics(plugin.name());
    let environment = Environment::of_process();
    let mut stdin: Box<dyn Read> = match io::stdin().is_terminal() {
        true => Box::new(io::empty()),
        false if environment.command == Verb::Version.as_str() => Box::new(Cursor::new(optional_stdin())),
        false => Box::new(io::stdin().lock()),
    };
    deliver(&respond(plugin, &environment, &mut stdin, delegates))
}

/// Returns stdin if it ends soon, otherwise nothing.
fn optional_stdin() -> Vec<u8> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if io::stdin().lock().take(DOCUMENT_MAX as u64).read_to_end(&mut bytes).is_ok() {
            // If this took too long, the receiver is gone, because the process is ending.
            let _ = send.send(bytes);
        }
    });
    receive.recv_timeout(STDIN_TIMEOUT).unwrap_or_default()
}

/// Ends the process. Unwinding would run code whose assumptions have just been violated.
#[allow(clippy::disallowed_methods, reason = "a panic does not unwind, so `main` cannot return")]
fn end() -> ! {
    std::process::exit(1)
}

/// Makes a panic in any thread print an error on stdout and end the process.
fn answer_panics(plugin: &'static str) {
    std::panic::set_hook(Box::new(move |panic| {
        let text: String = panic.payload_as_str().unwrap_or("no message").chars().take(PANIC_MAX).collect();
        let place = panic.location().map(|place| format!(" at {place}")).unwrap_or_default();
        deliver(&Answer::failed(
            &Error::internal(format!("{plugin} panicked{place}: {text}")).in_version(Version::LATEST),
        ));
        end();
    }));
}

fn deliver(answer: &Answer) -> ExitCode {
    let Answer { stdout, stderr, success } = answer;
    // Stderr is only for people, so a write error is ignored.
    let _ = io::stderr().write_all(stderr.as_bytes());
    let mut out = io::stdout().lock();
    match out.write_all(stdout).and_then(|()| out.flush()) {
        Ok(()) if *success => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::invocation::{Attach, Detach, Probe, Sweep};
    use crate::result::Success;

    struct Named(&'static str);

    impl Plugin for Named {
        fn name(&self) -> &'static str {
            self.0
        }

        fn add(&self, _: &Attach, _: &dyn Invoke) -> Result<Success, Error> {
            Ok(Success::default())
        }

        fn del(&self, _: &Detach, _: &dyn Invoke) -> Result<(), Error> {
            Ok(())
        }

        fn check(&self, _: &Attach, _: &dyn Invoke) -> Result<(), Error> {
            Ok(())
        }

        fn gc(&self, _: &Sweep, _: &dyn Invoke) -> Result<(), Error> {
            Ok(())
        }

        fn status(&self, _: &Probe, _: &dyn Invoke) -> Result<(), Error> {
            Ok(())
        }
    }

    // Requirements: S1
    #[test]
    fn plugin_is_chosen_by_the_name_of_the_program() {
        let (bridge, weft, multus) = (Named("bridge"), Named("weft"), Named("multus"));
        let table: [&dyn Plugin; 3] = [&bridge, &weft, &multus];
        let find = |name: &str| table.iter().find(|plugin| plugin.name() == name).copied();
        let called = |arguments: &[&str]| {
            called_as(find, &arguments.iter().map(OsString::from).collect::<Vec<_>>())
                .map(|plugin| plugin.name())
        };
        assert_eq!(called(&["/opt/cni/bin/bridge"]), Some("bridge"));
        assert_eq!(called(&["multus"]), Some("multus"));
        assert_eq!(called(&["/usr/bin/weft-cni", "bridge"]), Some("bridge"));
        assert_eq!(called(&["bridge", "weft"]), Some("bridge"));
        for unnamed in [&["weft-cni"][..], &["weft-cni", "ptp"], &["weft-cni", "/x/bridge"], &[]] {
            assert_eq!(called(unnamed), None, "{unnamed:?}");
        }
    }
}
