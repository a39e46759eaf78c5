//! Calls a plugin as a runtime does, and times the call from process start to exit.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use linux::Netns;

use benches::Failure;

/// Pause in which the kernel removes a namespace, or finishes what follows from a new link, so that grace periods do
/// not count for the next call.
pub(crate) const SETTLING: Duration = Duration::from_millis(100);

/// Prefix for namespace names; the bench's process id follows.
const NAMESPACES: &str = "weft-bench-";
/// Directory for named network namespaces.
const DIRECTORY: &str = "/run/netns";

/// Container: a network namespace that is removed when this value is dropped.
pub(crate) struct Container {
    pub(crate) id: String,
    pub(crate) netns: String,
    /// Pause after the removal.
    settling: Duration,
}

impl Container {
    pub(crate) fn new(id: String) -> Result<Container, Failure> {
        let netns = format!("{DIRECTORY}/{NAMESPACES}{}-{id}", std::process::id());
        Netns::create(Path::new(&netns))?;
        Ok(Container { id, netns, settling: SETTLING })
    }

    /// Creates many containers, which are removed without a pause after each one.
    pub(crate) fn many(prefix: &str, count: usize) -> Result<Vec<Container>, Failure> {
        let one = |number| Container::new(format!("{prefix}{number}"));
        let quick = |mut container: Container| {
            container.settling = Duration::ZERO;
            container
        };
        (0..count).map(|number| one(number).map(quick)).collect()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // Best effort: the next run uses other names.
        let _ = Netns::destroy(Path::new(&self.netns));
        thread::sleep(self.settling);
    }
}

/// Removes namespaces that interrupted benches have left, that is, whose process no longer exists.
pub(crate) fn remove_leftovers() -> Result<(), Failure> {
    let entries = match std::fs::read_dir(DIRECTORY) {
        Ok(entries) => entries,
        // The first namespace creates the directory.
        Err(_) => return Ok(()),
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_str().and_then(owner).is_some_and(|process| !is_alive(process)) {
            Netns::destroy(&entry.path())?;
        }
    }
    Ok(())
}

/// Extracts the process id from a namespace name.
fn owner(name: &str) -> Option<u32> {
    name.strip_prefix(NAMESPACES)?.split('-').next()?.parse().ok()
}

fn is_alive(process: u32) -> bool {
    Path::new("/proc").join(process.to_string()).exists()
}

/// Plugin to call.
#[derive(Clone, Copy)]
pub(crate) struct Plugin<'a> {
    /// Plugin directory.
    pub(crate) directory: &'a Path,
    /// Plugin name.
    pub(crate) name: &'a str,
    /// Path of the plugin's configuration.
    pub(crate) config: &'a Path,
}

/// Calls the plugin; an error contains the output.
pub(crate) fn call(verb: &str, plugin: Plugin<'_>, container: &Container) -> Result<Duration, Failure> {
    call_in(verb, plugin, [&container.id, &container.netns, "eth0"], &plugin.config.with_extension("answer"))
}

/// Calls a plugin that does not use the container's namespace, so that calls can be concurrent.
pub(crate) fn call_for(verb: &str, plugin: Plugin<'_>, container: &str) -> Result<Duration, Failure> {
    let answer = plugin.config.with_extension(format!("{container}.answer"));
    call_in(verb, plugin, [container, "/run/netns/none", "eth0"], &answer)
}

/// Calls the plugin for a container, a namespace and an interface; writes the result to `answer`.
pub(crate) fn call_in(
    verb: &str,
    plugin: Plugin<'_>,
    target: [&str; 3],
    answer: &Path,
) -> Result<Duration, Failure> {
    let (Plugin { directory, name, config }, [container, netns, ifname]) = (plugin, target);
    let mut command = Command::new(directory.join(name));
    command
        .env_clear()
        .env("CNI_COMMAND", verb)
        .env("CNI_CONTAINERID", container)
        .env("CNI_NETNS", netns)
        .env("CNI_IFNAME", ifname)
        .env("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAMESPACE=bench;K8S_POD_NAME=pod")
        .env("CNI_PATH", directory)
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(File::open(config)?)
        .stdout(File::create(answer)?)
        .stderr(Stdio::null());
    let started = Instant::now();
    let status = command.status()?;
    let took = started.elapsed();
    match status.success() {
        true => Ok(took),
        false => {
            Err(format!("{verb} of {}: {}", directory.join(name).display(), std::fs::read_to_string(answer)?)
                .into())
        }
    }
}

/// Times how long a process takes that has nothing to do.
pub(crate) fn start(program: &Path, arguments: &[&str], verb: &str) -> Result<Duration, Failure> {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("CNI_COMMAND", verb).env("CNI_PATH", "/nowhere");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let started = Instant::now();
    command.status()?;
    Ok(started.elapsed())
}

/// Runs `work` for all subjects concurrently, each on a separate thread; returns the results and the total time.
pub(crate) fn at_once<S: Sync, T: Send>(
    all: &[S],
    work: impl Fn(&S) -> Result<T, Failure> + Sync,
) -> Result<(Vec<T>, Duration), Failure> {
    let one = |subject| work(subject).map_err(|failure| failure.to_string());
    let one = &one;
    let started = Instant::now();
    let outcomes: Vec<Result<T, String>> = thread::scope(|scope| {
        let threads: Vec<_> = all.iter().map(|subject| scope.spawn(move || one(subject))).collect();
        let ended = || Err("a thread ended".to_owned());
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| ended())).collect()
    });
    let whole = started.elapsed();
    Ok((outcomes.into_iter().collect::<Result<_, _>>()?, whole))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bench_namespace_of_an_ended_process_is_removed() {
        assert_eq!(owner("weft-bench-41-flow-ptp-many-client"), Some(41));
        assert_eq!(owner("weft-bench-42"), Some(42), "that of benches/run");
        for other in ["weft-bench-", "weft-bench-x-1", "weft-web", "web"] {
            assert_eq!(owner(other), None, "{other}");
        }
        assert!(is_alive(std::process::id()) && !is_alive(u32::MAX));
    }
}
