//! A pretend host with processes of its own: what a container runtime, or a whole node, runs on.
//!
//! ```text
//!   machine ── control groups /weft-test-… only
//!      └─ Host (network, files)
//!            └─ Machine: first process ── services ── containers
//! ```
//!
//! Rules:
//! - every process is in a PID namespace whose first process ends with the test, however the test ends; the kernel
//!   then kills the rest, containers too;
//! - mounts of containers are in a further mount namespace, and go with it; `/run/netns` is seen from the host;
//! - of the machine itself, control groups are touched: in one group of a name of our own, removed at the end.
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

/// How long anything may take to come up or to go.
pub const TIMEOUT: Duration = Duration::from_secs(60);
/// How long nobody looks after a look that took no time, and after one that took long.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// Process ids and output of services.
const SERVICES: &str = "/run/services";
/// Names of our control groups begin with it; the test's process id and a number follow.
const GROUPS: &str = "weft-test-";
/// Where control groups are.
const CGROUPS: &str = "/sys/fs/cgroup";

/// What the first process does: the rest of a machine's file system, whose mounts containers may see; then, for as long as somebody holds its input,
/// take in orphans.
const FIRST: &str = "set -e
    mount --rbind /run/machine/sys/fs/cgroup /sys/fs/cgroup
    mount --make-rshared /
    [ ! -e /etc/weft-test/boot ] || mount --bind /etc/weft-test/boot /proc/sys/kernel/random/boot_id
    hostname \"$0\"
    : >/run/services/up
    exec 3<&0; cat <&3 >/dev/null & wait $!";

/// Where what a machine is configured with lies; it outlives a reboot, and is nobody else's.
pub const CONFIGURATIONS: &str = "/etc/weft-test";

/// A host with processes of its own.
#[derive(Debug)]
pub struct Machine {
    // First: what is in it ends before the host does.
    boot: Mutex<Boot>,
    name: String,
    group: String,
    host: Host,
}

/// From start to end of a machine's processes.
#[derive(Debug)]
struct Boot {
    first: Running,
    id: u32,
}

// === impl Machine ===

impl Machine {
    /// Starts one on `host`, whose name will be `name`.
    ///
    /// # Panics
    /// If it does not come up.
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

    /// The machine loses power and is started again: what was in memory is gone, processes, network and `/run`;
    /// what was on disk is there. What is beyond its network stays, and the link `up0` to it.
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
            // The other end of one that is gone already.
            let _ = host.attempt(["ip", "link", "delete", link]);
        }
        *boot = Boot::new(host, &self.name);
    }

    /// The control group in which its containers have to be, as a path from the root of each hierarchy.
    #[must_use]
    pub fn group(&self) -> String {
        format!("/{}", self.group)
    }

    /// Makes the control group, for who expects it to be there. With version 1 a group of processors is empty at
    /// first, and takes nobody.
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

    /// A path of the machine as this process can open it, mounts of containers included.
    #[must_use]
    pub fn reach(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.id()))
    }

    /// The first process, as this process knows it.
    fn id(&self) -> u32 {
        self.boot.lock().expect("no panic before").id
    }

    /// A program to run inside, found in `PATH`.
    pub fn command(&self, program: &str) -> Command {
        let id = self.id().to_string();
        let namespaces = ["--mount", "--pid", "--ipc", "--uts", "--root", "--wd"];
        self.host.command("nsenter").args(["--target", &id]).args(namespaces).args(["--", program])
    }

    /// Runs a program inside that must succeed; what it prints.
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

    /// Starts a program that stays; its output goes to its log.
    #[track_caller]
    pub fn start<'a>(&self, service: &str, line: impl IntoIterator<Item = &'a str>) {
        let file = format!("{SERVICES}/{service}");
        let script = "setsid sh -c 'echo $$ >\"$0.pid.new\"; mv \"$0.pid.new\" \"$0.pid\"; exec \"$@\"' \"$0\" \"$@\" \
                      >>\"$0.log\" 2>&1 </dev/null &";
        // To look for garbage as often as usual is a sixth of what a server in Go does that lives for seconds.
        let shell = self.command("sh").env("GOGC", "400");
        shell.args(["-c", script, &file]).args(line).finish().success();
        until(&format!("{service} is started"), || self.host.read(format!("{file}.pid")));
    }

    /// Ends a program with a signal, and waits until it is gone.
    #[track_caller]
    pub fn stop(&self, service: &str, signal: &str) {
        let file = format!("{SERVICES}/{service}.pid");
        let id = self.host.read(&file).unwrap_or_else(|| panic!("{service} was never started"));
        self.run(["kill", "-s", signal, id.trim()]);
        until(&format!("{service} is gone"), || (!self.is_running(service)).then_some(()));
        self.host.run(["rm", &file]);
    }

    /// Whether a program that was started runs: a thread of it that is left has its sockets still.
    #[must_use]
    pub fn is_running(&self, service: &str) -> bool {
        let Some(id) = self.host.read(format!("{SERVICES}/{service}.pid")) else { return false };
        let threads = fs::read_dir(self.reach(&format!("/proc/{}/task", id.trim())));
        threads.into_iter().flatten().flatten().any(|thread| runs(&thread.path().join("stat")))
    }

    /// What a program printed so far.
    #[must_use]
    pub fn log(&self, service: &str) -> String {
        self.host.read(format!("{SERVICES}/{service}.log")).unwrap_or_default()
    }

    /// Waits for something that a program brings about.
    ///
    /// # Panics
    /// If the program ends before, or it takes too long; with the end of its log.
    #[track_caller]
    pub fn wait<T>(&self, service: &str, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let until = Instant::now() + TIMEOUT;
        loop {
            let started = Instant::now();
            if let Some(found) = look() {
                return found;
            }
            let ended = !self.is_running(service);
            if ended || Instant::now() > until {
                let log = self.log(service);
                let lines: Vec<&str> = log.lines().collect();
                let tail = lines[lines.len().saturating_sub(20)..].join("\n");
                let why = if ended { "it has ended" } else { "it takes too long" };
                panic!("{service}: {what}: {why}; its log ends with\n{tail}");
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
        until("the machine is up", || host.read(format!("{SERVICES}/up")));
        let children = format!("/proc/{0}/task/{0}/children", first.id());
        let children = fs::read_to_string(&children).expect("children of unshare");
        let id = children.trim().parse().expect("one child");
        Boot { first, id }
    }

    /// Kills all of its processes, and takes their control group away.
    fn end(&mut self, group: &str) {
        self.first.end();
        // All of them are dead once the first is: but its end may take the kernel a moment, and who takes in orphans may let
        // it lie for a second.
        let process = Path::new("/proc").join(self.id.to_string()).join("stat");
        let deadline = Instant::now() + TIMEOUT;
        while (runs(&process) || !remove_group(group)) && Instant::now() < deadline {
            thread::sleep(PAUSE);
        }
    }
}

/// Whether a process or thread is more than what is left for its parent to read; by its `stat`.
fn runs(stat: &Path) -> bool {
    fs::read_to_string(stat).is_ok_and(|stat| !stat.contains(") Z ") && !stat.contains(") X "))
}

/// Waits until `look` finds something.
///
/// # Panics
/// If it takes too long.
#[track_caller]
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let started = Instant::now();
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: not after {TIMEOUT:?}");
        pause(started);
    }
}

/// Waits before the next look: whoever waits for work must not be most of it.
fn pause(started: Instant) {
    thread::sleep(started.elapsed().clamp(PAUSE, PAUSE_MAX));
}

/// Control groups that tests left which were killed.
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

/// Takes a control group away in every hierarchy; false if something is still in it.
fn remove_group(name: &str) -> bool {
    let all = hierarchies().into_iter().map(|place| place.join(name));
    all.filter(|path| path.exists()).all(|path| remove_tree(&path))
}

fn remove_tree(path: &Path) -> bool {
    let below = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let empty = below.filter(|path| path.is_dir()).all(|path| remove_tree(&path));
    empty && fs::remove_dir(path).is_ok()
}

/// The roots of all hierarchies: one with version 2, one a controller with version 1.
fn hierarchies() -> Vec<PathBuf> {
    let below = fs::read_dir(CGROUPS).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut roots: Vec<PathBuf> =
        below.filter(|path| path.join("cgroup.procs").exists() && path.is_dir()).collect();
    roots.push(PathBuf::from(CGROUPS));
    roots
}
