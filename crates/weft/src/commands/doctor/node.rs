//! Findings about the node itself: plugin files, Cilium's renaming, the journal's disk, clock.
//!
//! - A directory that does not exist has no findings: other checks report what is missing.
//! - Every hint is a command that can be copied, or names the command.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rpc::history::Record;

use super::Finding;
use cli_support::timestamp::{age, now, utc};
use node_support::weft_cni::{WeftCni, is_copy};

/// Plugin name that the container runtime calls.
const PLUGIN: &str = "weft";
/// Program to which weft's plugins are links.
const PROGRAM: &str = "weft-cni";
/// Extension that Cilium appends to other plugins' configurations.
const CILIUM_EXTENSION: &str = "cilium_bak";
/// Key for the option `cni.exclusive` in Cilium's ConfigMap.
const CILIUM_OPTION: &str = "cni-exclusive";
/// Directory in which the kubelet mounts pod volumes.
pub(super) const KUBELET_PODS: &str = "/var/lib/kubelet/pods";
/// Command that ends the renaming.
const CILIUM_CURE: &str = "kubectl -n kube-system patch configmap cilium-config --type merge -p '{\"data\":{\"cni-exclusive\":\"false\"}}' && kubectl -n kube-system rollout restart daemonset/cilium";
/// Smallest free space for the journal, in bytes: some thousand entries.
const SPACE_MIN: u64 = 64 << 20;
/// Minimum number of free inodes: each sandbox has a file.
const INODES_MIN: u64 = 1000;
/// Time by which the clock may be behind the newest record, in seconds.
const CLOCK_MAX: u64 = 300;
/// Time before which no node's clock can be, in seconds since 1970: 2025-01-01.
const CLOCK_MIN: u64 = 1_735_689_600;

/// Free space in a file system, and the total size.
#[derive(Clone, Copy, Debug)]
struct Space {
    free_bytes: u64,
    free_inodes: u64,
    /// Zero if the file system has no fixed number.
    inodes: u64,
}

/// Returns the findings about plugin files in the runtime's directory.
///
/// `sees_host`: whether the links can be followed to all targets. In a pod they can only be followed within
/// the directory.
pub(super) fn plugin_findings(weft_cni: &WeftCni, directory: &Path, sees_host: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let plugin = directory.join(PLUGIN);
    // A damaged file is a finding of its own.
    let is_plugin = plugin.is_file() && WeftCni::answers_version(&plugin).is_ok();
    if is_plugin && !is_copy(weft_cni.program(), &plugin) {
        let why = format!("it is another build than {}", weft_cni.program().display());
        // Any other file could be that of another project, which weft install does not replace unasked.
        let is_link = fs::read_link(&plugin).is_ok_and(|target| target.ends_with(PROGRAM));
        let hint = if is_link { "weft install" } else { "weft install --replace" };
        findings.push(Finding::new(format!("plugin {}", plugin.display()), why, hint));
    }
    let links = broken_links(directory).into_iter();
    let links = links.filter(|(_, target)| sees_host || target.components().count() == 1);
    findings.extend(links.map(|(link, target)| {
        let why = format!("it is a link to {}, which does not exist", target.display());
        Finding::new(format!("plugin {}", link.display()), why, format!("rm {}", link.display()))
    }));
    findings
}

/// Returns the links in a directory whose targets do not exist, sorted by name.
fn broken_links(directory: &Path) -> Vec<(PathBuf, PathBuf)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut broken: Vec<(PathBuf, PathBuf)> = entries
        .filter_map(|entry| Some((entry.path(), fs::read_link(entry.path()).ok()?)))
        .filter(|(link, _)| link.try_exists().is_ok_and(|exists| !exists))
        .collect();
    broken.sort();
    broken
}

/// Returns a finding if Cilium renames other plugins' configurations in `directory`, where one of weft's still has the
/// original name.
pub(super) fn cilium_finding(directory: &Path) -> Option<Finding> {
    let entries = fs::read_dir(directory).ok()?.flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    let is_used = names.iter().any(|name| name.contains("cilium") && name.ends_with(".conflist"));
    let renamed = names.iter().find(|name| name.ends_with(CILIUM_EXTENSION)).filter(|_| is_used)?;
    let path = directory.join(renamed).display().to_string();
    let why = "Cilium renamed this file, because its option cni.exclusive was true; while it is, Cilium renames that of weft, too, when its agent starts";
    // Cilium does not give the file its name back. With chaining it may still read it (10-aws.conflist.cilium_bak).
    let hint = format!(
        "run `{CILIUM_CURE}`, then delete {path}, or give it its name back if its plugin is still used"
    );
    Some(Finding::new(format!("configuration {path}"), why, hint))
}

/// Returns a finding if a Cilium pod on this node has the option `cni.exclusive`, as the kubelet has mounted
/// it.
///
/// Cilium reads the ConfigMap from a volume, or from a copy in an empty directory.
pub(super) fn cilium_option_finding(pods: &Path) -> Option<Finding> {
    let below = |path: PathBuf| {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<PathBuf>>()
    };
    let files = below(pods.to_owned()).into_iter().flat_map(|pod: PathBuf| {
        let volumes = pod.join("volumes");
        let mounted = below(volumes.join("kubernetes.io~configmap"));
        let copied = below(volumes.join("kubernetes.io~empty-dir"));
        let copied = copied.into_iter().map(|volume| volume.join("cilium/config-map"));
        mounted.into_iter().chain(copied).map(|directory| directory.join(CILIUM_OPTION))
    });
    let is_true = |file: &PathBuf| fs::read_to_string(file).is_ok_and(|text| text.trim() == "true");
    files.into_iter().find(is_true)?;
    let why = "cni-exclusive is true: its agent renames the configuration of weft when it starts, and no pod gets its networks";
    Some(Finding::new("ConfigMap cilium-config", why, CILIUM_CURE))
}

/// Returns the findings about the journal's file system.
pub(super) fn disk_findings(directory: &Path) -> Vec<Finding> {
    let Ok(found) = rustix::fs::statvfs(directory) else { return Vec::new() };
    let space = Space {
        free_bytes: found.f_bavail.saturating_mul(found.f_frsize),
        free_inodes: found.f_favail,
        inodes: found.f_files,
    };
    space.findings(directory)
}

impl Space {
    fn findings(self, directory: &Path) -> Vec<Finding> {
        let Space { free_bytes, free_inodes, inodes } = self;
        let what = || format!("disk of {}", directory.display());
        let hint = |option: &str| {
            format!(
                "delete files that are not needed: du {option} -x {} | sort -h | tail",
                mount_of(directory).display()
            )
        };
        let mut findings = Vec::new();
        if free_bytes < SPACE_MIN {
            let why =
                format!("{} MiB are free; an ADD fails when the journal cannot be written", free_bytes >> 20);
            findings.push(Finding::new(what(), why, hint("-m")));
        }
        if inodes > 0 && free_inodes < INODES_MIN {
            let why =
                format!("{free_inodes} inodes are free; an ADD fails when the journal cannot be written");
            findings.push(Finding::new(what(), why, hint("--inodes")));
        }
        findings
    }
}

/// Returns the directory on which the file system that contains `directory` is mounted.
fn mount_of(directory: &Path) -> PathBuf {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| fs::metadata(path).map(|metadata| metadata.dev()).ok();
    let own = device(directory);
    let above = directory.ancestors().take_while(|path| device(path) == own);
    above.last().unwrap_or(directory).to_owned()
}

/// Returns a finding if the clock is behind the records in the history, or was never set.
pub(super) fn clock_finding(records: &[Record]) -> Option<Finding> {
    let newest = records.iter().map(|record| record.time / 1_000_000).max().unwrap_or_default();
    clock_fault(now(), newest).map(|why| {
        Finding::new(
            "clock",
            why,
            "timedatectl set-ntp true; quarantine and leases of addresses depend on the clock",
        )
    })
}

fn clock_fault(now: u64, newest: u64) -> Option<String> {
    if now < CLOCK_MIN {
        return Some(format!("it shows {}, so it was never set", utc(now)));
    }
    let behind = newest.saturating_sub(now);
    let text = age(Duration::from_secs(behind));
    (behind > CLOCK_MAX)
        .then(|| format!("it shows {}, {text} before the newest call in the history", utc(now)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let directory = std::env::temp_dir().join(format!("weft-doctor-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        directory
    }

    #[test]
    fn doctor_reports_little_space_and_few_inodes() {
        let enough = Space { free_bytes: SPACE_MIN, free_inodes: INODES_MIN, inodes: 1 << 20 };
        let directory = Path::new("/var/lib/weft");
        assert!(enough.findings(directory).is_empty());
        // Some file systems have no fixed number of inodes.
        assert!(Space { free_inodes: 0, inodes: 0, ..enough }.findings(directory).is_empty());
        let full = Space { free_bytes: 3 << 20, free_inodes: 7, ..enough }.findings(directory);
        let whys: Vec<&str> = full.iter().map(|finding| finding.why.as_str()).collect();
        assert!(
            whys.len() == 2 && whys[0].starts_with("3 MiB") && whys[1].starts_with("7 inodes"),
            "{whys:?}"
        );
    }

    #[test]
    fn doctor_reports_a_clock_behind_the_history() {
        assert_eq!(clock_fault(CLOCK_MIN, CLOCK_MIN + CLOCK_MAX), None);
        assert!(clock_fault(CLOCK_MIN, CLOCK_MIN + 7_200).unwrap().contains("2h before"));
        assert!(clock_fault(5, 0).unwrap().contains("never set"));
    }

    #[test]
    fn doctor_reports_the_option_of_a_mounted_cilium_config() {
        let pods = scratch("cilium");
        assert_eq!(cilium_option_finding(&pods), None);
        for volume in
            ["kubernetes.io~configmap/cilium-config-path", "kubernetes.io~empty-dir/tmp/cilium/config-map"]
        {
            let directory = pods.join("uid-1/volumes").join(volume);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join(CILIUM_OPTION), "true").unwrap();
            let finding = cilium_option_finding(&pods).unwrap();
            assert!(finding.what == "ConfigMap cilium-config" && finding.hint.contains("cni-exclusive"));
            fs::write(directory.join(CILIUM_OPTION), "false").unwrap();
            assert_eq!(cilium_option_finding(&pods), None);
        }
        fs::remove_dir_all(&pods).unwrap();
    }

    #[test]
    fn doctor_reports_broken_links_and_files_renamed_by_cilium() {
        let directory = scratch("files");
        symlink("weft-cni", directory.join("bridge")).unwrap();
        assert_eq!(broken_links(&directory), [(directory.join("bridge"), PathBuf::from("weft-cni"))]);
        fs::write(directory.join("weft-cni"), "").unwrap();
        assert!(broken_links(&directory).is_empty());
        fs::write(directory.join("10-flannel.conflist.cilium_bak"), "").unwrap();
        assert_eq!(cilium_finding(&directory), None, "Cilium is not used any more");
        fs::write(directory.join("05-cilium.conflist"), "").unwrap();
        let finding = cilium_finding(&directory).unwrap();
        assert!(
            finding.what.ends_with("10-flannel.conflist.cilium_bak")
                && finding.hint.contains("cni-exclusive")
        );
        assert!(finding.hint.contains(&format!("delete {}", directory.display())), "{finding:?}");
        fs::remove_dir_all(&directory).unwrap();
    }
}
