//! Pretend host with separate processes, on which a container runtime or a whole node can run.
//!
//! ```text
//!   machine ── control groups /weft-test-… only
//!      └─ Host (network, files)
//!            └─ Machine: first process ── services ── containers
//! ```
//!
//! - Every process is in a PID namespace whose first process ends with the test, no matter how the test ends. The
//!   kernel then kills all others, including containers.
//! - Container mounts are in another mount namespace and disappear with it. The host sees `/run/netns`.
//! - On the real machine only control groups are changed: one group with a reserved name, which is removed at the end.
//!
//! Source: pid_namespaces(7), unshare(1), cgroups(7).

use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use testkit::{Command, Finished, Host, Running};

/// Maximum time for any wait.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// Minimum and maximum pause between two polls; the pause grows with the time that a poll takes.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Directory with the services' process ids and logs.
const SERVICES: &str = "/run/services";
/// Prefix for control group names, followed by the test's process id and a number.
const GROUPS: &str = "weft-test-";
/// Where control groups are mounted.
const CGROUPS: &str = "/sys/fs/cgroup";

/// Script that the first process runs. It mounts the rest of the machine's file system, whose mounts containers may
/// see, and then adopts orphaned processes until the input is closed.
const FIRST: &str = "set -e
    mount --rbind /run/machine/sys/fs/cgroup /sys/fs/cgroup
    mount --make-rshared /
    [ ! -e /etc/weft-test/boot ] || mount --bind /etc/weft-test/boot /proc/sys/kernel/random/boot_id
    hostname \"$0\"
    : >/run/services/up
    exec 3<&0; cat <&3 >/dev/null & wait $!";

/// Directory for configuration files that only this machine reads; it survives a reboot.
pub const CONFIGURATIONS: &str = "/etc/weft-test";

/// Pretend host with separate processes.
#[derive(Debug)]
pub struct Machine {
    // Must be first: its processes end before the host is dropped.
    boot: Mutex<Boot>,
    name: String,
    group: String,
    host: Host,
}

/// A machine's processes between two reboots.
#[derive(Debug)]
struct Boot {
    first: Running,
    id: u32,
}

// === impl Machine ===

impl Machine {
    /// Starts a machine on `host` with host name `name`.
    ///
    /// # Panics
    /// The machine does not start.
    #[must_use]
    #[track_caller]
    pub fn new(host: Host, name: &str) -> Machine {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        remove_orphaned_groups();
        let boot = Mutex::new(Boot::new(&host, name));
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let group = format!("{GROUPS}{}-{number}", std::process::id());
        Machine { boot, name: name.to_owned(), group, host }
    }

    /// Reboots the machine: processes, network and `/run` are lost, but files on disk stay. Devices beyond the
    /// machine's network stay, and so does the link `up0`.
    #[track_caller]
    pub fn reboot(&self) {
        let mut boot = self.boot.lock().expect("no panic before");
        boot.end(&self.group);
        let host = &self.host;
        let clear = "for place in /run/netns/cni-*; do
                [ ! -e \"$place\" ] || { umount \"$place\"; rm \"$place\"; }
            done
            rm -rf /run/services /run/containerd /run/weft /run/cni
            nft flush ruleset
            sysctl -q -w net.ipv4.ip_forward=0
            cat /proc/sys/kernel/random/uuid >/etc/weft-test/boot";
        host.run(["mkdir", "-p", CONFIGURATIONS]);
        host.run(["sh", "-e", "-c", clear]);
        for link in crate::links(host).iter().filter(|link| *link != "up0") {
            // Deleting one end of a pair also deletes the other, so this may fail.
            let _ = host.attempt(["ip", "link", "delete", link]);
        }
        *boot = Boot::new(host, &self.name);
    }

    /// Returns the control group for containers, as a path from each hierarchy's root.
    #[must_use]
    pub fn group(&self) -> String {
        format!("/{}", self.group)
    }

    /// Creates the control group, for programs that expect it. With cgroup v1, a new cpuset group is empty and accepts
    /// no process until CPUs and memory nodes are set.
    #[track_caller]
    pub fn make_group(&self) {
        let script = "for place in /sys/fs/cgroup /sys/fs/cgroup/*; do
                [ -e \"$place/cgroup.procs\" ] && mkdir -p \"$place/$0\"
            done
            for file in cpuset.cpus cpuset.mems; do
                cd /sys/fs/cgroup/cpuset 2>/dev/null && cat $file >\"$0/$file\"
            done; true";
        self.run(["sh", "-c", script, &self.group]);
    }

    /// Converts a path on the machine to one that this process can open, including container mounts.
    #[must_use]
    pub fn reach(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.id()))
    }

    /// Returns the first process's id in the test's own namespace.
    fn id(&self) -> u32 {
        self.boot.lock().expect("no panic before").id
    }

    /// Returns a command to run inside; the program is looked up in `PATH`.
    pub fn command(&self, program: &str) -> Command {
        let id = self.id().to_string();
        let namespaces = ["--mount", "--pid", "--ipc", "--uts", "--root", "--wd"];
        self.host.command("nsenter").args(["--target", &id]).args(namespaces).args(["--", program])
    }

    /// Runs a program inside, which must succeed; returns the standard output.
    #[track_caller]
    pub fn run<'a>(&self, line: impl IntoIterator<Item = &'a str>) -> String {
        self.attempt(line).success().stdout
    }

    /// Runs a program inside that may fail.
    #[track_caller]
    pub fn attempt<'a>(&self, line: impl IntoIterator<Item = &'a str>) -> Finished {
        let mut words = line.into_iter();
        let program = words.next().expect("a program to run");
        self.command(program).args(words).finish()
    }

    /// Starts a service; the output goes to a log.
    #[track_caller]
    pub fn start<'a>(&self, service: &str, line: impl IntoIterator<Item = &'a str>) {
        let file = format!("{SERVICES}/{service}");
        let script = "setsid sh -c 'echo $$ >\"$0.pid.new\"; mv \"$0.pid.new\" \"$0.pid\"; exec \"$@\"' \"$0\" \"$@\" \
                      >>\"$0.log\" 2>&1 </dev/null &";
        // With the default garbage collection, a short-lived Go server would spend a sixth of its time on it.
        let shell = self.command("sh").env("GOGC", "400");
        shell.args(["-c", script, &file]).args(line).finish().success();
        until(&format!("{service} is started"), || self.host.read(format!("{file}.pid")));
    }

    /// Sends a service a signal that does not end it, for example `STOP` or `CONT`.
    #[track_caller]
    pub fn signal(&self, service: &str, signal: &str) {
        let id = self.host.read(format!("{SERVICES}/{service}.pid"));
        let id = id.unwrap_or_else(|| panic!("{service} was never started"));
        self.run(["kill", "-s", signal, id.trim()]);
    }

    /// Stops a service with a signal and waits until it has ended.
    #[track_caller]
    pub fn stop(&self, service: &str, signal: &str) {
        let file = format!("{SERVICES}/{service}.pid");
        let id = self.host.read(&file).unwrap_or_else(|| panic!("{service} was never started"));
        self.run(["kill", "-s", signal, id.trim()]);
        until(&format!("{service} has ended"), || (!self.is_running(service)).then_some(()));
        self.host.run(["rm", &file]);
    }

    /// Whether a service runs. A remaining thread counts, because it still holds the sockets.
    #[must_use]
    pub fn is_running(&self, service: &str) -> bool {
        let Some(id) = self.host.read(format!("{SERVICES}/{service}.pid")) else { return false };
        let threads = fs::read_dir(self.reach(&format!("/proc/{}/task", id.trim())));
        threads.into_iter().flatten().flatten().any(|thread| runs(&thread.path().join("stat")))
    }

    /// Returns a service's output so far.
    #[must_use]
    pub fn log(&self, service: &str) -> String {
        self.host.read(format!("{SERVICES}/{service}.log")).unwrap_or_default()
    }

    /// Returns the last lines of a service's output.
    #[must_use]
    pub fn log_end(&self, service: &str) -> String {
        let log = self.log(service);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Waits for a service to have an effect.
    ///
    /// # Panics
    /// The service ends first, or the time is over; the message contains the end of the log.
    #[track_caller]
    pub fn wait<T>(&self, service: &str, condition: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let until = Instant::now() + TIMEOUT;
        loop {
            let started = Instant::now();
            if let Some(found) = look() {
                return found;
            }
            let ended = !self.is_running(service);
            if ended || Instant::now() > until {
                let why = if ended { "it has ended" } else { "it takes too long" };
                panic!("{service}: {condition}: {why}; its log ends with\n{}", self.log_end(service));
            }
            pause(started);
        }
    }
}

impl Deref for Machine {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Ok(boot) = self.boot.get_mut() {
            boot.end(&self.group);
        }
    }
}

// === impl Boot ===

impl Boot {
    #[track_caller]
    fn new(host: &Host, name: &str) -> Boot {
        host.run(["mkdir", "-p", SERVICES]);
        let namespaces = ["--mount", "--mount-proc", "--propagation", "unchanged", "--pid", "--ipc", "--uts"];
        let words = ["--fork", "--kill-child", "sh", "-c", FIRST, name];
        let first = host.command("unshare").args(namespaces).args(words).start_tied();
        until("the machine is started", || host.read(format!("{SERVICES}/up")));
        let children = format!("/proc/{0}/task/{0}/children", first.id());
        let children = fs::read_to_string(&children).expect("children of unshare");
        let id = children.trim().parse().expect("one child");
        Boot { first, id }
    }

    /// Kills all processes and removes the control group.
    fn end(&mut self, group: &str) {
        self.first.end();
        // The first process takes the others with it, but the kernel may need a moment, and a zombie may stay for a
        // second until its parent reaps it.
        let process = Path::new("/proc").join(self.id.to_string()).join("stat");
        let deadline = Instant::now() + TIMEOUT;
        while (runs(&process) || !remove_group(group)) && Instant::now() < deadline {
            thread::sleep(PAUSE);
        }
    }
}

/// Whether a process or thread, given a `stat` file, runs and is not a zombie.
fn runs(stat: &Path) -> bool {
    fs::read_to_string(stat).is_ok_and(|stat| !stat.contains(") Z ") && !stat.contains(") X "))
}

/// Waits until `look` returns a value.
///
/// # Panics
/// It takes longer than [`TIMEOUT`].
#[track_caller]
pub fn until<T>(condition: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let started = Instant::now();
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{condition}: not after {TIMEOUT:?}");
        pause(started);
    }
}

/// Pauses in proportion to how long the last poll took, so that polling is not most of the load.
fn pause(started: Instant) {
    thread::sleep(started.elapsed().clamp(PAUSE, PAUSE_MAX));
}

/// Removes control groups that killed tests have left.
fn remove_orphaned_groups() {
    for place in hierarchies() {
        for entry in fs::read_dir(place).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let test = name.strip_prefix(GROUPS).and_then(|rest| rest.split('-').next());
            if test.is_some_and(|id| !Path::new("/proc").join(id).exists()) {
                remove_group(&name);
            }
        }
    }
}

/// Removes a control group from every hierarchy; returns false if it still contains processes.
fn remove_group(name: &str) -> bool {
    let all = hierarchies().into_iter().map(|place| place.join(name));
    all.filter(|path| path.exists()).all(|path| remove_tree(&path))
}

fn remove_tree(path: &Path) -> bool {
    let below = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let empty = below.filter(|path| path.is_dir()).all(|path| remove_tree(&path));
    empty && fs::remove_dir(path).is_ok()
}

/// Lists the roots of all hierarchies: one with cgroup v2, one per controller with v1.
fn hierarchies() -> Vec<PathBuf> {
    let below = fs::read_dir(CGROUPS).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut roots: Vec<PathBuf> =
        below.filter(|path| path.join("cgroup.procs").exists() && path.is_dir()).collect();
    roots.push(PathBuf::from(CGROUPS));
    roots
}
