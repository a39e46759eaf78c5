//! Which containerd a test runs, and what that wants to be configured with.
//!
//! | `CONTAINERD2` | which |
//! |---|---|
//! | not set, empty | Debian 12's, 1.6 |
//! | `debian` | the 2.x of Debian's unstable suite, which `lanes/containerd/prepare` got |
//! | a directory | the one that is there: as a package unpacks, `usr/bin/containerd`; else `bin/containerd` or `containerd` |
//!
//! A test of what 1.6 cannot do runs with 2.x whatever is named, and is skipped where none was got.
//!
//! The shim and `ctr` are those beside it; runc is Debian 12's always, for later ones want another C library.
//!
//! Source: containerd `docs/cri/config.md`, both versions of the file.

use std::path::{Path, PathBuf};

use super::{PAUSE, SOCKET};
use crate::parts::text;

/// The environment's variable.
const VARIABLE: &str = "CONTAINERD2";
/// Its value for what was fetched.
const FETCHED: &str = "debian";

/// A containerd, by the directory of its programs.
#[derive(Clone, Debug)]
pub enum Release {
    /// Configured with version 2 of the file.
    One(PathBuf),
    /// Configured with version 3 of the file.
    Two(PathBuf),
}

impl Release {
    /// The one that the environment names, of a lane's parts.
    ///
    /// # Panics
    /// If the one that is named is not there.
    #[must_use]
    #[track_caller]
    pub fn chosen(parts: &Path) -> Release {
        let named = std::env::var(VARIABLE).unwrap_or_default();
        let root = match named.as_str() {
            "" => return Release::One(parts.join("root/usr/bin")),
            FETCHED => fetched(parts),
            directory => PathBuf::from(directory),
        };
        Release::second(&root).unwrap_or_else(|| {
            let root = root.display();
            panic!("{VARIABLE}={named}: no containerd below {root}; run `lanes/containerd/prepare`")
        })
    }

    /// A 2.x: the one that is named, else the one that was fetched; nothing, and the test is skipped, if there is none.
    ///
    /// # Panics
    /// Under CI, where nothing that packages offer may be missing.
    #[must_use]
    #[track_caller]
    pub fn newest(parts: &Path) -> Option<Release> {
        let found = match Release::chosen(parts) {
            Release::One(_) => Release::second(&fetched(parts)),
            second @ Release::Two(_) => Some(second),
        };
        if found.is_none() {
            let why = format!("no containerd 2.x: run `{VARIABLE}={FETCHED} lanes/containerd/prepare`");
            assert!(std::env::var_os("CI").is_none(), "{why}");
            testkit::record_skip(&testkit::test_name(), &why);
        }
        found
    }

    fn second(root: &Path) -> Option<Release> {
        let places = ["usr/bin", "bin", "."].map(|place| root.join(place));
        places.into_iter().find(|place| place.join("containerd").is_file()).map(Release::Two)
    }

    /// Where its programs are.
    #[must_use]
    pub fn programs(&self) -> &str {
        match self {
            Release::One(programs) | Release::Two(programs) => text(programs),
        }
    }

    /// What its version begins with.
    #[must_use]
    pub fn version(&self) -> &'static str {
        match self {
            Release::One(_) => "1.6.",
            Release::Two(_) => "2.",
        }
    }

    /// Its configuration: plugins in `/opt/cni/bin`, networks in `directory`.
    #[must_use]
    pub fn configuration(&self, runc: &str, directory: &str) -> String {
        match self {
            Release::One(_) => first(runc, directory),
            Release::Two(_) => second(runc, directory),
        }
    }
}

/// Where `lanes/containerd/prepare` unpacks what it fetches.
fn fetched(parts: &Path) -> PathBuf {
    parts.join("second")
}

/// Without CAP_SYS_RESOURCE runc cannot make a pod less likely to be killed when memory is short:
/// `restrict_oom_score_adj` asks it to do what it can.
fn first(runc: &str, directory: &str) -> String {
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "{directory}"
    max_conf_num = 1
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "{runc}"
"#
    )
}

/// The same for 2.x, whose CRI is three plugins, and whose sandbox image is one of those that are kept.
fn second(runc: &str, directory: &str) -> String {
    format!(
        r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.zfs", "io.containerd.nri.v1.nri",
  "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp"]
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["/opt/cni/bin"]
    conf_dir = "{directory}"
    max_conf_num = 1
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "{runc}"
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
"#
    )
}
