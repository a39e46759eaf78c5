//! Pretend host with pretend pods, all in namespaces.
//!
//! [`Host::new`] creates a network namespace for the host, with the loopback link up, and a mount namespace with a
//! private `/run`, `/etc/cni`, `/opt/cni`, `/var/lib/cni`, `/var/lib/weft`. [`Host::pod`] mounts another network
//! namespace at `/run/netns/NAME`. It is empty and the loopback link is down, just as a container runtime creates it.
//!
//! ```text
//!   machine ── never changed
//!      └─ Host  /run/netns/a  /run/netns/b  /var/lib/cni …
//!            ├─ Pod a
//!            └─ Pod b
//! ```
//!
//! A failed test prints what it had changed. With `WEFT_TEST_KEEP=1`, the namespaces stay until you interrupt the test,
//! and it prints the `nsenter` line with which you can enter them.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::netns::Netns;
use crate::snapshot::Snapshot;
use crate::world::World;

/// Directory in which a host's runtime looks for plugins.
pub(crate) const PLUGINS: &str = "/opt/cni/bin";
/// Time for which a failed test keeps namespaces with `WEFT_TEST_KEEP=1`.
const KEEP: Duration = Duration::from_secs(3600);

/// Pretend host. Everything is removed when the host and all pods are dropped.
#[derive(Debug)]
pub struct Host {
    netns: Netns,
    life: Arc<Life>,
}

/// Pretend pod: a named network namespace on a host.
#[derive(Debug)]
pub struct Pod {
    netns: Netns,
    path: PathBuf,
    life: Arc<Life>,
}

/// Guard that reports changes if the test failed, and kills leftover processes.
#[derive(Debug)]
struct Life {
    world: World,
    test: String,
}

// === impl Host ===

impl Host {
    /// Creates a host.
    ///
    /// # Panics
    /// The test does not run as root. Use `let host = testkit::host!();`, which skips the test instead.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "creating namespaces is no default")]
    #[track_caller]
    pub fn new() -> Host {
        let world = World::new();
        let netns = Host::bare(world.clone());
        let life = Arc::new(Life { world, test: test_name() });
        Host { netns, life }
    }

    /// Returns the host's network namespace in a new world, with the loopback link up.
    #[track_caller]
    fn bare(world: World) -> Netns {
        let netns = Netns { world, name: "host".to_owned() };
        netns.run(["ip", "link", "set", "lo", "up"]);
        netns
    }

    /// Creates a pod, whose network namespace is mounted at `/run/netns/NAME`.
    ///
    /// # Panics
    /// A pod with this name exists.
    #[must_use]
    #[track_caller]
    pub fn pod(&self, name: &str) -> Pod {
        let world = self.netns.world.child(name);
        let netns = Netns { world, name: name.to_owned() };
        Pod { netns, path: PathBuf::from(format!("/run/netns/{name}")), life: Arc::clone(&self.life) }
    }

    /// Returns the namespace that a program mounted at `/run/netns/NAME`.
    ///
    /// # Panics
    /// There is none.
    #[must_use]
    #[track_caller]
    pub fn netns(&self, name: &str) -> Netns {
        Netns { world: self.netns.world.mounted(name), name: name.to_owned() }
    }

    /// Returns another process's namespace, given the [`Netns::handle`].
    ///
    /// # Panics
    /// There is none.
    #[must_use]
    #[track_caller]
    pub fn netns_at(&self, handle: &Path) -> Netns {
        Netns { world: self.netns.world.elsewhere(handle), name: "elsewhere".to_owned() }
    }

    /// Returns the name of the test that created the host.
    #[must_use]
    pub fn test(&self) -> &str {
        &self.life.test
    }

    /// Takes a snapshot like [`Netns::snapshot`], with every file in [`crate::snapshot::DIRECTORIES`].
    #[must_use]
    #[track_caller]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of_host(&self.netns)
    }

    /// Checks for leaks: fails with the difference if the host no longer equals the snapshot.
    ///
    /// # Panics
    /// The host differs.
    #[track_caller]
    pub fn assert_unchanged(&self, before: &Snapshot) {
        let changes = before.changes(&self.snapshot());
        assert!(changes.is_empty(), "{} changed its host:\n{changes}", self.life.test);
    }

    /// Installs a program in the plugin directory, `/opt/cni/bin`, under each of `names`.
    #[track_caller]
    pub fn install(&self, program: &Path, names: &[&str]) {
        let program =
            program.canonicalize().unwrap_or_else(|error| panic!("find {}: {error}", program.display()));
        self.within(|| {
            std::fs::create_dir_all(PLUGINS).expect("make the plugin directory");
            for name in names {
                let link = Path::new(PLUGINS).join(name);
                std::os::unix::fs::symlink(&program, &link)
                    .unwrap_or_else(|error| panic!("install {}: {error}", link.display()));
            }
        });
    }

    /// Writes a file on the host, and creates the parent directories.
    #[track_caller]
    pub fn write(&self, path: impl AsRef<Path>, content: impl AsRef<[u8]>) {
        let (path, content) = (path.as_ref(), content.as_ref());
        self.within(|| {
            if let Some(directory) = path.parent() {
                std::fs::create_dir_all(directory)
                    .unwrap_or_else(|error| panic!("make {}: {error}", directory.display()));
            }
            std::fs::write(path, content).unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
        });
    }

    /// Reads a file on the host; `None` if it does not exist.
    #[must_use]
    #[track_caller]
    pub fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        let path = path.as_ref();
        self.within(|| match std::fs::read(path) {
            Ok(content) => Some(String::from_utf8_lossy(&content).into_owned()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => panic!("read {}: {error}", path.display()),
        })
    }
}

impl Deref for Host {
    type Target = Netns;

    fn deref(&self) -> &Netns {
        &self.netns
    }
}

// === impl Pod ===

impl Pod {
    /// Returns where the namespace is mounted inside the host: the value for `CNI_NETNS`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the pod's container id, which is unique on the machine and contains the test name.
    #[must_use]
    pub fn container_id(&self) -> String {
        let test = self.life.test.rsplit("::").next().unwrap_or_default();
        format!("{test}-{}", self.netns.name)
    }

    /// Removes the namespace, as a runtime does after a sandbox has ended.
    #[track_caller]
    pub fn remove(self) {
        let Pod { netns, path, life } = self;
        World::clone(&life.world).run(|| {
            rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH)
                .unwrap_or_else(|errno| panic!("unmount {}: {errno}", path.display()));
            std::fs::remove_file(&path).unwrap_or_else(|error| panic!("remove {}: {error}", path.display()));
        });
        drop(netns);
    }
}

impl Deref for Pod {
    type Target = Netns;

    fn deref(&self) -> &Netns {
        &self.netns
    }
}

// === impl Life ===

impl Drop for Life {
    fn drop(&mut self) {
        let Life { world, test } = self;
        if thread::panicking() {
            // A second panic here would hide the first.
            let changes = std::panic::catch_unwind(|| {
                let fresh = Host::bare(World::new());
                Snapshot::of_host(&fresh)
                    .changes(&Snapshot::of_host(&Netns { world: world.clone(), name: "host".to_owned() }))
            });
            if let Ok(changes) = changes {
                eprintln!("{test}: changes of its host when it failed, compared with a new host:\n{changes}");
            }
            if std::env::var_os("WEFT_TEST_KEEP").is_some() {
                eprintln!(
                    "{test}: enter its host with\n  {}\nand interrupt the test to end it",
                    world.nsenter()
                );
                thread::sleep(KEEP);
            } else {
                eprintln!("{test}: to inspect its host, run the test again with WEFT_TEST_KEEP=1");
            }
        }
        for process in world.processes() {
            // These processes are in a mount namespace that only this test uses.
            let _ = Pid::from_raw(process).map(|process| kill_process(process, Signal::KILL));
        }
    }
}

/// Returns the name of the running test, which libtest gives to the thread.
#[must_use]
pub fn test_name() -> String {
    match thread::current().name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => std::env::var("NEXTEST_TEST_NAME").unwrap_or_else(|_| format!("process {}", std::process::id())),
    }
}
