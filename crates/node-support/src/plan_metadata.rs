//! Metadata that the CRI proxy adds to a sandbox plan: the runtime's socket, and each interface's network.
//!
//! A network's label in the status is for people; networks of different kinds may have the same label. If a sandbox was
//! attached without the proxy, the plan has no metadata, and the labels are used instead.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cni::name::IfName;
use npwg::plan::{Plan, Role};
use rpc::journal::{Entry, State};
use serde::{Deserialize, Serialize};

use cri::network_api::FALLBACK;

/// Field names in [`Plan::note`].
const RUNTIME: &str = "runtime";
const NETWORKS: &str = "networks";

/// Notes that the proxy made in a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanMetadata {
    /// Path to the runtime's socket, without symbolic links.
    pub runtime: PathBuf,
    /// Network for each interface, by the name that sandboxes use.
    pub networks: BTreeMap<String, String>,
}

impl PlanMetadata {
    /// Returns the metadata in a plan; `None` if the proxy did not make it.
    pub fn of(plan: &Plan) -> Option<PlanMetadata> {
        let runtime = plan.note.read(RUNTIME).ok()??;
        Some(PlanMetadata { runtime, networks: plan.note.read(NETWORKS).ok()?.unwrap_or_default() })
    }

    /// Writes the metadata to a plan.
    pub fn write(&self, plan: &mut Plan) -> Result<(), cni::Error> {
        let PlanMetadata { runtime, networks } = self;
        plan.note.set(RUNTIME, runtime)?;
        plan.note.set(NETWORKS, networks)
    }
}

/// Returns the path to the runtime's socket without symbolic links, so that equal sockets have equal paths.
pub fn canonical(runtime: &Path) -> PathBuf {
    std::fs::canonicalize(runtime).unwrap_or_else(|_| runtime.to_owned())
}

/// Whether the sandbox belongs to another runtime. One without metadata does not.
pub fn is_of_another_runtime(entry: &Entry, runtime: &Path) -> bool {
    PlanMetadata::of(&entry.plan).is_some_and(|metadata| metadata.runtime != runtime)
}

/// Whether the sandbox has networks that it requested from the runtime, besides the one on its first interface. The
/// pod's annotation does not contain them.
pub fn has_runtime_networks(plan: &Plan, first: &IfName) -> bool {
    PlanMetadata::of(plan)
        .is_some_and(|metadata| metadata.networks.keys().any(|ifname| ifname != first.as_str()))
}

/// Returns the attachments that exist or may exist: the index in the plan, and the network by the name that
/// sandboxes use. `on_disk` is the CNI name that `_fallback` has.
pub fn attached(entry: &Entry, on_disk: Option<&str>) -> Vec<(usize, String)> {
    let metadata = PlanMetadata::of(&entry.plan);
    let attachments = entry.plan.delegates.iter().zip(&entry.attachments).enumerate();
    let there = attachments.filter(|(_, (_, attachment))| attachment.state != State::Detached);
    let named = there.flat_map(|(place, (delegate, _))| {
        let labels = match &metadata {
            Some(metadata) => metadata.networks.get(delegate.ifname.as_str()).into_iter().cloned().collect(),
            // A sandbox without a request has the fallback under its CNI name.
            None if delegate.role == Role::Default && on_disk == Some(delegate.config_name.as_str()) => {
                vec![delegate.network.clone(), FALLBACK.to_owned()]
            }
            None => vec![delegate.network.clone()],
        };
        labels.into_iter().map(move |label| (place, label))
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a sandbox whose only network has this label, with or without metadata.
    fn entry(label: &str, config_name: &str, network: Option<&str>) -> Entry {
        let note = network.map_or_else(String::new, |network| {
            format!(r#","note":{{"runtime":"/run/a.sock","networks":{{"eth0":"{network}"}}}}"#)
        });
        let text = format!(
            r#"{{"version":1,"network":"weft-cri","containerId":"c1","netns":"/run/netns/x","ifname":"eth0","args":"","path":"/opt/cni/bin",
            "plan":{{"version":1,"pod":{{"namespace":"ns","name":"web","uid":"u"}},"container":"c1",
              "status":{{"addresses":"bare","keys":"standard"}},"delegates":[{{"network":"{label}","role":"default","configName":"{config_name}",
              "config":"{{}}","ifname":"eth0","runtimeConfig":{{}},"args":[],"verify":{{}},"defaultRoute":"untouched","because":[]}}],"warnings":[]{note}}},
            "attachments":[{{"state":"attached"}}],"complete":true}}"#
        );
        Entry::read(text.as_bytes()).unwrap()
    }

    #[test]
    fn plan_metadata_shows_networks_requested_from_the_runtime() {
        let mut entry = entry("red", "red", Some("red"));
        assert!(!has_runtime_networks(&entry.plan, &entry.ifname), "an agent's plan, relayed by the proxy");
        let mut metadata = PlanMetadata::of(&entry.plan).unwrap();
        metadata.networks.insert("net1".to_owned(), "blue".to_owned());
        metadata.write(&mut entry.plan).unwrap();
        assert!(has_runtime_networks(&entry.plan, &entry.ifname));
        entry.plan.note = cni::object::Object::default();
        assert!(!has_runtime_networks(&entry.plan, &entry.ifname), "attached without the proxy");
    }

    #[test]
    fn plan_metadata_separates_a_stored_network_from_the_fallback() {
        let is_on =
            |entry: &Entry, label: &str| attached(entry, Some("admins")).contains(&(0, label.to_owned()));
        let by_default = entry("admins", "admins", Some(FALLBACK));
        assert_eq!((is_on(&by_default, FALLBACK), is_on(&by_default, "admins")), (true, false));
        let asked_for = entry("admins", "admins", Some("admins"));
        assert_eq!((is_on(&asked_for, FALLBACK), is_on(&asked_for, "admins")), (false, true));
        // In an agent's plan the fallback keeps its CNI name.
        let relayed = entry("podnet", "podnet", Some("infra/pods"));
        assert_eq!((is_on(&relayed, "infra/pods"), is_on(&relayed, "podnet")), (true, false));
        // Attached without the proxy: either is possible.
        let old = entry("admins", "admins", None);
        assert_eq!((is_on(&old, FALLBACK), is_on(&old, "admins"), is_on(&old, "red")), (true, true, false));
        let mut gone = asked_for;
        gone.attachments[0].state = State::Detached;
        assert!(!is_on(&gone, "admins"));
    }

    #[test]
    fn plan_metadata_identifies_the_runtime_of_a_sandbox() {
        let described = entry("red", "red", Some("red"));
        assert!(is_of_another_runtime(&described, Path::new("/run/b.sock")));
        assert!(!is_of_another_runtime(&described, Path::new("/run/a.sock")));
        assert!(!is_of_another_runtime(&entry("red", "red", None), Path::new("/run/b.sock")));
        let mut plan = entry("red", "red", None).plan;
        let metadata = PlanMetadata::of(&described.plan).unwrap();
        metadata.write(&mut plan).unwrap();
        assert_eq!(PlanMetadata::of(&plan), Some(metadata));
    }
}
