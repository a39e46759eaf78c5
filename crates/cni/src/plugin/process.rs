//! A plugin as a process: the only code that reads the process's variables and stdin and writes its stdout.
//!
//! Rules: stdin is never read from a terminal; VERSION, which needs no stdin, waits for it only briefly
//! (a caller that forgot to close its end must not hang the probe); an answer that cannot be written
//! is a failure; a panic ends the process where it is, and still there is an answer. What it leaves is what a kill
//! leaves: the DEL that follows a failed ADD removes it. Nothing unwinds, so nothing pays for the tables of it.
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
use crate::object::DOCUMENT_MAX;
use crate::version::{Verb, Version};

/// Longest piece of a panic's message we repeat, in characters.
const PANIC_MAX: usize = 500;

/// How long VERSION waits for its optional stdin.
const COURTESY: Duration = Duration::from_millis(250);

/// The plugin a program was called as: by the file name of its first argument, else by the second argument.
pub fn called_as<'a>(
    find: impl Fn(&str) -> Option<&'a dyn Plugin>,
    arguments: &[OsString],
) -> Option<&'a dyn Plugin> {
    let file = Path::new(arguments.first()?).file_name()?.to_str()?;
    find(file).or_else(|| find(arguments.get(1)?.to_str()?))
}

/// The `main` of a program that is nothing but plugins, each called by its name: exit code 0 or 1.
pub fn main(plugins: &[&dyn Plugin], delegates: &dyn Invoke) -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    match called_as(|name| plugins.iter().find(|plugin| plugin.name() == name).copied(), &arguments) {
        Some(plugin) => run(plugin, delegates),
        None => refuse(plugins.iter().map(|plugin| plugin.name())),
    }
}

/// Answers a call that names none of the plugins of these names; exit code 1.
pub fn refuse<'a>(names: impl Iterator<Item = &'a str>) -> ExitCode {
    let names: Vec<&str> = names.collect();
    let why = format!("no plugin of this name: call this program as one of {}", names.join(", "));
    match Environment::of_process().command.as_str() {
        "" => deliver(&Answer { stdout: Vec::new(), stderr: format!("{why}\n"), success: false }),
        _ => deliver(&Answer::failed(&Error::new(code::INVALID_ENVIRONMENT, why))),
    }
}

/// Runs `plugin` with this process's variables and stdin; exit code 0 or 1.
pub fn run(plugin: &dyn Plugin, delegates: &dyn Invoke) -> ExitCode {
    answer_panics(plugin.name());
    let environment = Environment::of_process();
    let mut stdin: Box<dyn Read> = match io::stdin().is_terminal() {
        true => Box::new(io::empty()),
        false if environment.command == Verb::Version.as_str() => Box::new(Cursor::new(courtesy())),
        false => Box::new(io::stdin().lock()),
    };
    deliver(&respond(plugin, &environment, &mut stdin, delegates))
}

/// Stdin as far as it comes to its end soon; else nothing.
fn courtesy() -> Vec<u8> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if io::stdin().lock().take(DOCUMENT_MAX as u64).read_to_end(&mut bytes).is_ok() {
            // Nobody listens any more if it took too long; the process is ending then.
            let _ = send.send(bytes);
        }
    });
    receive.recv_timeout(COURTESY).unwrap_or_default()
}

/// Ends the process: undoing would need what has just proved to be wrong.
#[allow(clippy::disallowed_methods, reason = "nothing unwinds, so there is no return to make")]
fn end() -> ! {
    std::process::exit(1)
}

/// From here on a panic of any thread is an error on stdout, and the end of the process.
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
    // What goes to stderr is for people; that nobody can read it changes nothing.
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
    fn a_program_is_the_plugin_it_is_called_as() {
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
        for nobody in [&["weft-cni"][..], &["weft-cni", "ptp"], &["weft-cni", "/x/bridge"], &[]] {
            assert_eq!(called(nobody), None, "{nobody:?}");
        }
    }
}
