//! containerd release that a test runs, and the configuration for it.
//!
//! | `CONTAINERD2` | release |
//! |---|---|
//! | not set, empty | 1.6 of Debian 12 |
//! | `debian` | 2.x of Debian unstable, which `lanes/containerd/prepare` downloads |
//! | a directory | the one in that directory: `usr/bin/containerd` as in a package, `bin/containerd` or `containerd` |
//!
//! A test for a feature that 1.6 lacks always runs 2.x, and is skipped if none is available.
//!
//! The shim and `ctr` come from the same directory. runc always comes from Debian 12, because later versions need
//! another C library.
//!
//! Source: containerd `docs/cri/config.md`, for both versions of the configuration.

use std::path::{Path, PathBuf};

use super::{PAUSE, SOCKET};
use crate::parts::text;

/// Environment variable that selects the release.
const VARIABLE: &str = "CONTAINERD2";
/// Value that selects the downloaded release.
const DOWNLOADED: &str = "debian";

/// containerd release, and the directory that contains the programs.
#[derive(Clone, Debug)]
pub enum Release {
    /// 1.6, whose configuration file has version 2.
    One(PathBuf),
    /// 2.x, whose configuration file has version 3.
    Two(PathBuf),
}

impl Release {
    /// Returns the release that the environment selects.
    ///
    /// # Panics
    /// The selected release does not exist.
    #[must_use]
    #[track_caller]
    pub fn chosen(parts: &Path) -> Release {
        let named = std::env::var(VARIABLE).unwrap_or_default();
        let root = match named.as_str() {
            "" => return Release::One(parts.join("root/usr/bin")),
            DOWNLOADED => downloaded(parts),
            directory => PathBuf::from(directory),
        };
        Release::second(&root).unwrap_or_else(|| {
            let root = root.display();
            panic!("{VARIABLE}={named}: no containerd below {root}; run `lanes/containerd/prepare`")
        })
    }

    /// Returns a 2.x release, either the selected or the downloaded one. If there is none, the test is skipped and the
    /// result is `None`.
    ///
    /// # Panics
    /// Under CI, where no part may be missing that a package provides.
    #[must_use]
    #[track_caller]
    pub fn newest(parts: &Path) -> Option<Release> {
        let found = match Release::chosen(parts) {
            Release::One(_) => Release::second(&downloaded(parts)),
            second @ Release::Two(_) => Some(second),
        };
        if found.is_none() {
            let why = format!("no containerd 2.x: run `{VARIABLE}={DOWNLOADED} lanes/containerd/prepare`");
            assert!(std::env::var_os("CI").is_none(), "{why}");
            testkit::record_skip(&testkit::test_name(), &why);
        }
        found
    }

    fn second(root: &Path) -> Option<Release> {
        let places = ["usr/bin", "bin", "."].map(|place| root.join(place));
        places.into_iter().find(|place| place.join("containerd").is_file()).map(Release::Two)
    }

    /// Returns the directory with the programs.
    #[must_use]
    pub fn programs(&self) -> &str {
        match self {
            Release::One(programs) | Release::Two(programs) => text(programs),
        }
    }

    /// Returns how the version begins.
    #[must_use]
    pub fn version(&self) -> &'static str {
        match self {
            Release::One(_) => "1.6.",
            Release::Two(_) => "2.",
        }
    }

    /// Returns the configuration file: plugins in `/opt/cni/bin`, networks in `directory`.
    #[must_use]
    pub fn configuration(&self, runc: &str, directory: &str) -> String {
        match self {
            Release::One(_) => first(runc, directory),
            Release::Two(_) => second(runc, directory),
        }
    }
}

/// Returns the directory into which `lanes/containerd/prepare` unpacks the download.
fn downloaded(parts: &Path) -> PathBuf {
    parts.join("second")
}

/// Returns the configuration for 1.6. Without CAP_SYS_RESOURCE, runc cannot lower a pod's OOM score;
/// `restrict_oom_score_adj` makes it apply the lowest value that is permitted.
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

/// Returns the configuration for 2.x, where CRI consists of three plugins and the sandbox image is a pinned image.
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
