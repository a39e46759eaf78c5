//! A mount namespace and a network namespace, and threads that work inside.
//!
//! - A thread enters the namespaces and ends there. Nothing has to be restored, so a panic inside is harmless.
//! - Two descriptors keep the namespaces alive. When the last owner is dropped, the kernel removes every mount, link,
//!   route and rule in them.
//! - Directories that network software writes to are private. Everything else in the file system is the machine's own
//!   and readable as usual.
//!
//! Source: mount_namespaces(7), network_namespaces(7), setns(2); ip-netns(8) for `/run/netns`.

use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, mount, mount_bind, mount_bind_recursive, mount_change,
};
use rustix::process::{chroot, fchdir};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// Directory in which the machine's own directories stay readable after others were mounted over them.
const MACHINE: &str = "/run/machine";

/// Directories that a pretend host gets a private copy of, and which of the machine's entries the copy leaves out.
const SHADOWED: [(&str, &[&str]); 4] = [
    ("/etc", &["cni", "containers", "docker"]),
    ("/var/lib", &["cni", "weft", "containerd", "containers", "docker", "etcd", "kubelet"]),
    ("/var/log", &["pods", "containers"]),
    ("/opt", &["cni"]),
];

/// A mount and a network namespace.
#[derive(Clone, Debug)]
pub(crate) struct World {
    mount: Arc<File>,
    network: Arc<File>,
    /// Directory that is `/` inside, because entering a mount namespace alone would leave the chroot.
    root: Arc<File>,
}

impl World {
    /// Creates a pretend host: an empty network, a private `/run`, and CNI directories that do not exist yet.
    pub(crate) fn new() -> World {
        let made = on_a_thread(|| {
            unshare(UnshareFlags::FS | UnshareFlags::NEWNS | UnshareFlags::NEWNET)?;
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
            lay_out_directories()?;
            Ok(World { mount: own("ns/mnt"), network: own("ns/net"), root: own("root") })
        });
        made.unwrap_or_else(|errno: Errno| panic!("make a pretend host: {errno}"))
    }

    /// Creates a network namespace and mounts it at `/run/netns/NAME` in this world's file system.
    pub(crate) fn child(&self, name: &str) -> World {
        let path = format!("/run/netns/{name}");
        let network = self.run(|| {
            fs::create_dir_all("/run/netns").expect("make /run/netns");
            File::create_new(&path).unwrap_or_else(|error| panic!("make {path}: {error}"));
            unshare(UnshareFlags::NEWNET)
                .and_then(|()| mount_bind("/proc/thread-self/ns/net", &path))
                .unwrap_or_else(|errno| panic!("mount network namespace {path}: {errno}"));
            own("ns/net")
        });
        World { network, ..self.clone() }
    }

    /// Returns the network namespace mounted at `/run/netns/NAME` in this world's file system.
    pub(crate) fn mounted(&self, name: &str) -> World {
        self.run(|| self.elsewhere(Path::new("/run/netns").join(name).as_path()))
    }

    /// Returns the network namespace at a path that the caller can open, with this world's file system.
    pub(crate) fn elsewhere(&self, path: &Path) -> World {
        let file = File::open(path);
        let file = file.unwrap_or_else(|error| panic!("open network namespace {}: {error}", path.display()));
        World { network: Arc::new(file), ..self.clone() }
    }

    /// Runs `work` inside. If it panics, the panic continues in the caller.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        on_a_thread(|| {
            self.enter().unwrap_or_else(|errno| panic!("enter a pretend host: {errno}"));
            assert!(
                Path::new(MACHINE).is_dir(),
                "not inside the pretend host: the test would change the machine"
            );
            work()
        })
    }

    fn enter(&self) -> Result<(), Errno> {
        unshare(UnshareFlags::FS)?;
        move_into_link_name_space(self.mount.as_fd(), Some(LinkNameSpaceType::Mount))?;
        move_into_link_name_space(self.network.as_fd(), Some(LinkNameSpaceType::Network))?;
        fchdir(&self.root)?;
        chroot(".")
    }

    /// Returns the open network namespace file.
    pub(crate) fn network(&self) -> &File {
        &self.network
    }

    /// Returns a command line with which a shell can enter the namespaces while this process runs.
    pub(crate) fn nsenter(&self) -> String {
        let file = |option: &str, file: &File| {
            format!(" --{option}=/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())
        };
        [
            "nsenter".to_owned(),
            file("mount", &self.mount),
            file("net", &self.network),
            file("root", &self.root),
        ]
        .concat()
    }

    /// Lists the processes in this world's mount namespace.
    pub(crate) fn processes(&self) -> Vec<i32> {
        let inside = fs::read_link(format!("/proc/self/fd/{}", self.mount.as_raw_fd())).ok();
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
            .filter(|process| {
                inside.is_some() && fs::read_link(format!("/proc/{process}/ns/mnt")).ok() == inside
            })
            .collect()
    }
}

/// Runs `work` on a thread that has the caller's name.
pub(crate) fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let name = thread::current().name().unwrap_or("test").to_owned();
    thread::scope(|scope| {
        let handle = thread::Builder::new().name(name).spawn_scoped(scope, work).expect("start a thread");
        handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Gives this thread new namespaces, or private file system state.
pub(crate) fn unshare(flags: UnshareFlags) -> Result<(), Errno> {
    #[expect(deprecated, reason = "its danger is CLONE_FILES, which is never used here")]
    rustix::thread::unshare(flags)
}

/// Opens this thread's file with that name in proc(5).
fn own(name: &str) -> Arc<File> {
    let path = format!("/proc/thread-self/{name}");
    Arc::new(File::open(&path).unwrap_or_else(|error| panic!("open {path}: {error}")))
}

/// Mounts a private `/run`, a `/sys` that shows this network namespace, and copies of [`SHADOWED`] that consist of
/// symbolic links. overlayfs would do the same, but not every kernel and file system has it.
fn lay_out_directories() -> Result<(), Errno> {
    let plain = MountFlags::NOSUID | MountFlags::NODEV;
    let failed = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    mount("tmpfs", "/run", "tmpfs", plain, Some(c"mode=755"))?;
    for (directory, hidden) in SHADOWED {
        let machine = format!("{MACHINE}{directory}");
        fs::create_dir_all(&machine).map_err(failed)?;
        mount_bind_recursive(directory, &machine)?;
        mount("tmpfs", directory, "tmpfs", plain, Some(c"mode=755"))?;
        for entry in fs::read_dir(&machine).map_err(failed)?.flatten() {
            let name = entry.file_name();
            if !hidden.iter().any(|hidden| name == *hidden) {
                std::os::unix::fs::symlink(entry.path(), Path::new(directory).join(name)).map_err(failed)?;
            }
        }
    }
    // Control groups are mounted below it, and they belong to the machine.
    let machine = format!("{MACHINE}/sys");
    fs::create_dir(&machine).map_err(failed)?;
    mount_bind_recursive("/sys", &machine)?;
    mount("sysfs", "/sys", "sysfs", plain | MountFlags::NOEXEC, None)?;
    // As in ip-netns(8): copies of this world see namespaces that are mounted here, and can remove them.
    fs::create_dir("/run/netns").map_err(failed)?;
    mount_bind("/run/netns", "/run/netns")?;
    mount_change("/run/netns", MountPropagationFlags::SHARED | MountPropagationFlags::REC)
}
