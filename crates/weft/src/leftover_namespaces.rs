//! Network namespaces that killed attaches left: whether `weft attach`, `weft detach` and `weft reset` may
//! delete one.
//!
//! - An attach writes a first journal entry before it changes the namespace. So a namespace that an attach left without
//!   an entry has only the links that the kernel creates.
//! - A namespace is kept if a sandbox in a journal uses it, if a process runs in it, or if it contains
//!   anything else.
//! - The namespace name contains a pod's name, or the attach left the directory. A command asks this before it locks
//!   the directory, because the lock creates it.
//! - Namespaces are compared by device and inode, because one namespace can have several paths:
//!   `/var/run/netns/a` and `/run/netns/a`.
//!
//! Source: Linux `Documentation/admin-guide/sysctl/net.rst`, `fb_tunnels_only_for_init_net`.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cni::name::ContainerId;
use rpc::journal::{Entry, is_same_namespace};

use crate::known_journals::JournalHandle;
use crate::pod_name::{NAMESPACES, namespace_path};
use crate::trial_sandbox::scratch_name;
use cli_support::failure::Failure;
use cli_support::privilege;
use node_support::journal_reader::Row;
use node_support::weft_cni::{Contents, WeftCni};

/// Prefix for namespaces that `weft attach` creates.
pub(crate) const NAMESPACE: &str = "weft-";

/// Links that the kernel creates in every network namespace, with the kinds.
const OF_KERNEL: [(&str, &str); 10] = [
    ("lo", "device"),
    ("tunl0", "ipip"),
    ("gre0", "gre"),
    ("gretap0", "gretap"),
    ("erspan0", "erspan"),
    ("ip_vti0", "vti"),
    ("sit0", "sit"),
    ("ip6tnl0", "ip6tnl"),
    ("ip6gre0", "ip6gre"),
    ("ip6_vti0", "vti6"),
];
/// Other content, which an attach never leaves. Routes and rules that the kernel makes are not compared.
const OF_USERS: [&str; 2] = ["addresses", "filters"];

/// Namespaces that sandboxes in the journals use.
#[derive(Debug, Default)]
pub(crate) struct UsedNamespaces {
    paths: BTreeSet<String>,
    identities: BTreeSet<(u64, u64)>,
}

/// Namespace with the name that `weft attach` gives to a sandbox's namespace.
#[derive(Debug)]
pub(crate) struct NamedNamespace {
    path: String,
    name: String,
    is_of_attach: bool,
}

// === impl UsedNamespaces ===

impl UsedNamespaces {
    /// Returns the namespaces that the journals contain now.
    ///
    /// # Errors
    /// A journal is unreadable.
    fn read(journals: &[JournalHandle]) -> Result<UsedNamespaces, Failure> {
        let mut used = UsedNamespaces::default();
        for handle in journals {
            handle.journal().rows()?.iter().for_each(|row| used.insert(row));
        }
        Ok(used)
    }

    /// Inserts the namespace in a journal entry. If the entry is unreadable, the namespace is known by name.
    pub(crate) fn insert(&mut self, row: &Row) {
        let path = match row {
            Row::Entry(entry) => entry.netns.clone(),
            Row::Broken { container, .. } => format!("{NAMESPACES}/{NAMESPACE}{container}"),
        };
        self.identities.extend(identity(Path::new(&path)));
        self.paths.insert(path);
    }

    /// Whether a sandbox uses the namespace at `path`.
    pub(crate) fn contains(&self, path: &str) -> bool {
        let has = |identity| self.identities.contains(&identity);
        self.paths.contains(path) || identity(Path::new(path)).is_some_and(has)
    }
}

// === impl NamedNamespace ===

impl NamedNamespace {
    /// Returns a sandbox's namespace, which need not exist. The caller does not yet have the sandbox's lock.
    pub(crate) fn before_lock(container: &ContainerId) -> NamedNamespace {
        let name = format!("{NAMESPACE}{container}");
        NamedNamespace { path: namespace_path(container), is_of_attach: is_of_attach(&name), name }
    }

    /// Returns the namespace's path.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Whether it exists.
    ///
    /// # Errors
    /// This process may not look.
    pub(crate) fn exists(&self) -> Result<bool, Failure> {
        let NamedNamespace { path, .. } = self;
        Path::new(path).try_exists().map_err(|cause| privilege::refused(&format!("stat {path}"), &cause))
    }

    /// Returns why it is not deleted; `None` if a killed attach left it. The caller has the sandbox's lock.
    ///
    /// # Errors
    /// A journal is unreadable.
    pub(crate) fn reason_to_keep(
        &self,
        weft_cni: &WeftCni,
        journals: &[JournalHandle],
    ) -> Result<Option<String>, Failure> {
        match self.is_of_attach {
            true => reason_to_keep_now(weft_cni, journals, &self.path),
            false => Ok(Some(of_unknown_name(&self.name))),
        }
    }
}

/// Returns the container ID for the attach whose namespace has this name.
pub(crate) fn container_of(name: &str) -> Option<ContainerId> {
    name.strip_prefix(NAMESPACE).and_then(|id| ContainerId::new(id).ok())
}

/// Reason to keep a namespace that no killed attach left.
pub(crate) fn of_unknown_name(name: &str) -> String {
    format!("no killed command has this name; to delete it: sudo ip netns delete {name}")
}

/// Whether a killed attach can have created a namespace with this name: it contains a pod's name, or the attach left
/// the directory.
pub(crate) fn is_of_attach(name: &str) -> bool {
    let has_directory = |id: &ContainerId| Path::new("/run").join(scratch_name(id)).exists();
    container_of(name).is_some_and(|id| id.as_str().contains('_') || has_directory(&id))
}

/// Returns why the namespace at `path` is not deleted; `None` if nothing is lost with it, or if it is gone.
pub(crate) fn reason_to_keep(weft_cni: &WeftCni, path: &str) -> Option<String> {
    match fs::metadata(path) {
        Err(cause) if cause.kind() == ErrorKind::NotFound => return None,
        // An attach was killed between the creation of the file and the mount.
        Ok(file) if is_empty_file(path, &file) => return None,
        _ => {}
    }
    if let Some(process) = process_in(Path::new(path)) {
        return Some(format!("process {process} runs in it"));
    }
    match weft_cni.contents(path) {
        Ok(contents) => foreign_content(&contents).map(|what| format!("it contains {what}")),
        Err(failure) => Some(format!("its content is unknown: {failure}")),
    }
}

/// Returns why the namespace at `path` is not deleted, also by the journals as they are now.
///
/// # Errors
/// A journal is unreadable.
pub(crate) fn reason_to_keep_now(
    weft_cni: &WeftCni,
    journals: &[JournalHandle],
    path: &str,
) -> Result<Option<String>, Failure> {
    match UsedNamespaces::read(journals)?.contains(path) {
        true => Ok(Some("a sandbox of the journal uses it".to_owned())),
        false => Ok(reason_to_keep(weft_cni, path)),
    }
}

/// Whether an entry's path now leads to another namespace than the sandbox's. An unknown identity is trusted.
///
/// # Errors
/// The namespace's identity cannot be read.
pub(crate) fn is_another(weft_cni: &WeftCni, entry: &Entry) -> Result<bool, Failure> {
    let Entry { netns, namespace, .. } = entry;
    if namespace.is_empty() || !Path::new(netns).exists() {
        return Ok(false);
    }
    let now = weft_cni.identity(netns)?;
    Ok(!now.is_empty() && !is_same_namespace(namespace, &now))
}

/// Whether no namespace is mounted on a file: it is in the directory's own file system, and empty.
fn is_empty_file(path: &str, file: &fs::Metadata) -> bool {
    let directory = Path::new(path).parent().and_then(|directory| fs::metadata(directory).ok());
    file.is_file() && file.len() == 0 && directory.is_some_and(|directory| directory.dev() == file.dev())
}

/// Returns the first object that neither the kernel nor `weft attach` creates in a new namespace.
fn foreign_content(contents: &Contents) -> Option<String> {
    let lines = |kind: &str| contents.get(kind).map(Vec::as_slice).unwrap_or_default().iter();
    let is_of_kernel = |line: &String| {
        let mut words = line.split(' ');
        let found = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        OF_KERNEL.contains(&found)
    };
    let link = lines("links").find(|line| !is_of_kernel(line)).map(|line| format!("link {line}"));
    link.or_else(|| OF_USERS.iter().find_map(|kind| lines(kind).next().map(|line| format!("{kind}: {line}"))))
}

/// Returns a namespace's device and inode.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Returns the first process in a network namespace.
fn process_in(namespace: &Path) -> Option<u32> {
    let wanted = identity(namespace)?;
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.find(|number| identity(Path::new(&format!("/proc/{number}/ns/net"))) == Some(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reset_namespace_with_anything_but_kernel_links_is_kept() {
        let contents = |kind: &str, line: &str| {
            let links = ["lo device 00:00:00:00:00:00", "sit0 sit 00:00:00:00"].map(str::to_owned).to_vec();
            let mut contents = Contents::from([("links".to_owned(), links)]);
            contents.entry("routes".to_owned()).or_default().push("::1/128 dev lo table 255".to_owned());
            contents.entry(kind.to_owned()).or_default().push(line.to_owned());
            foreign_content(&contents)
        };
        assert_eq!(contents("rules", "from 0.0.0.0/0 lookup 254"), None);
        assert_eq!(
            contents("links", "eth0 veth 02:00:00:00:00:01").unwrap(),
            "link eth0 veth 02:00:00:00:00:01"
        );
        // A name of the kernel, but another kind.
        assert_eq!(contents("links", "tunl0 dummy").unwrap(), "link tunl0 dummy");
        assert_eq!(contents("addresses", "lo 10.0.0.1/32").unwrap(), "addresses: lo 10.0.0.1/32");
    }

    #[test]
    fn reset_namespace_is_in_use_under_each_of_its_paths() {
        let directory = std::env::temp_dir().join(format!("weft-reset-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let [namespace, alias, other] = ["a", "b", "c"].map(|name| directory.join(name));
        fs::write(&namespace, "").unwrap();
        fs::write(&other, "").unwrap();
        std::os::unix::fs::symlink(&namespace, &alias).unwrap();
        let used =
            UsedNamespaces { paths: BTreeSet::new(), identities: identity(&alias).into_iter().collect() };
        assert!(used.contains(&namespace.display().to_string()));
        assert!(!used.contains(&other.display().to_string()));
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn reset_namespace_of_an_attach_has_the_name_of_a_pod() {
        assert!(is_of_attach("weft-demo-lab_my-pod"));
        for name in ["weft-lab", "weft-", "other_pod"] {
            assert!(!is_of_attach(name), "{name}");
        }
    }
}
