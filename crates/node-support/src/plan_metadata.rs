//! What the proxy notes in the plan of a sandbox: the runtime it was made for, and which of its networks each interface is on.
//!
//! Rules: a label of the status is for people, and networks of different kinds may have the same one; the plan of a
//! sandbox that was attached without the proxy has no note, and its labels are used instead.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use cni::name::IfName;
use npwg::plan::{Plan, Role};
use rpc::journal::{Entry, State};
use serde::{Deserialize, Serialize};

use cri::network_api::FALLBACK;

/// Its keys in [`Plan::note`].
const RUNTIME: &str = "runtime";
const NETWORKS: &str = "networks";

/// What is noted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanMetadata {
    /// The runtime's socket, without links.
    pub runtime: PathBuf,
    /// The network of each interface, as sandboxes call it.
    pub networks: BTreeMap<String, String>,
}

impl PlanMetadata {
    /// Returns the note of a plan; `None` if it was not made by the proxy.
    pub fn of(plan: &Plan) -> Option<PlanMetadata> {
        let runtime = plan.note.read(RUNTIME).ok()??;
        Some(PlanMetadata { runtime, networks: plan.note.read(NETWORKS).ok()?.unwrap_or_default() })
    }

    /// Notes it.
    pub fn write(&self, plan: &mut Plan) -> Result<(), cni::Error> {
        let PlanMetadata { runtime, networks } = self;
        plan.note.set(RUNTIME, runtime)?;
        plan.note.set(NETWORKS, networks)
    }
}

/// The runtime's socket, so that one is called the same however it was named.
pub fn settled(runtime: &Path) -> PathBuf {
    std::fs::canonicalize(runtime).unwrap_or_else(|_| runtime.to_owned())
}

/// Is this sandbox another runtime's? Nothing in it tells, where no note is.
pub fn is_anothers(entry: &Entry, runtime: &Path) -> bool {
    PlanMetadata::of(&entry.plan).is_some_and(|note| note.runtime != runtime)
}

/// Has a sandbox networks that it asked its runtime for, beside that of its first interface? Its pod's annotation says
/// nothing of them.
pub fn has_its_own(plan: &Plan, first: &IfName) -> bool {
    PlanMetadata::of(plan).is_some_and(|note| note.networks.keys().any(|ifname| ifname != first.as_str()))
}

/// What is attached, or may be: the place of each attachment in the plan, and its network as sandboxes call it. `on_disk` is
/// the CNI name of `_fallback`.
pub fn attached(entry: &Entry, on_disk: Option<&str>) -> Vec<(usize, String)> {
    let note = PlanMetadata::of(&entry.plan);
    let attachments = entry.plan.delegates.iter().zip(&entry.attachments).enumerate();
    let there = attachments.filter(|(_, (_, attachment))| attachment.state != State::Detached);
    let named = there.flat_map(|(place, (delegate, _))| {
        let labels = match &note {
            Some(note) => note.networks.get(delegate.ifname.as_str()).into_iter().cloned().collect(),
            // Who asked for nothing has it under its CNI name.
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

    /// A sandbox whose only network has this label, with and without a note.
    fn entry(label: &str, config_name: &str, note: Option<&str>) -> Entry {
        let note = note.map_or_else(String::new, |network| {
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
    fn a_sandbox_that_asked_for_several_networks_has_its_own() {
        let mut entry = entry("red", "red", Some("red"));
        assert!(!has_its_own(&entry.plan, &entry.ifname), "an agent's plan that was relayed");
        let mut note = PlanMetadata::of(&entry.plan).unwrap();
        note.networks.insert("net1".to_owned(), "blue".to_owned());
        note.write(&mut entry.plan).unwrap();
        assert!(has_its_own(&entry.plan, &entry.ifname));
        entry.plan.note = cni::object::Object::default();
        assert!(!has_its_own(&entry.plan, &entry.ifname), "no proxy made it");
    }

    #[test]
    fn a_network_set_by_the_name_of_the_one_on_disk_is_another() {
        let is_on =
            |entry: &Entry, label: &str| attached(entry, Some("admins")).contains(&(0, label.to_owned()));
        let by_default = entry("admins", "admins", Some(FALLBACK));
        assert_eq!((is_on(&by_default, FALLBACK), is_on(&by_default, "admins")), (true, false));
        let asked_for = entry("admins", "admins", Some("admins"));
        assert_eq!((is_on(&asked_for, FALLBACK), is_on(&asked_for, "admins")), (false, true));
        // By an agent's plan it keeps its CNI name.
        let relayed = entry("podnet", "podnet", Some("infra/pods"));
        assert_eq!((is_on(&relayed, "infra/pods"), is_on(&relayed, "podnet")), (true, false));
        // Attached without the proxy: it may be either.
        let old = entry("admins", "admins", None);
        assert_eq!((is_on(&old, FALLBACK), is_on(&old, "admins"), is_on(&old, "red")), (true, true, false));
        let mut gone = asked_for;
        gone.attachments[0].state = State::Detached;
        assert!(!is_on(&gone, "admins"));
    }

    #[test]
    fn a_sandbox_is_its_runtimes_and_one_that_says_nothing_may_be_anybodys() {
        let noted = entry("red", "red", Some("red"));
        assert!(is_anothers(&noted, Path::new("/run/b.sock")));
        assert!(!is_anothers(&noted, Path::new("/run/a.sock")));
        assert!(!is_anothers(&entry("red", "red", None), Path::new("/run/b.sock")));
        let mut plan = entry("red", "red", None).plan;
        let note = PlanMetadata::of(&noted.plan).unwrap();
        note.write(&mut plan).unwrap();
        assert_eq!(PlanMetadata::of(&plan), Some(note));
    }
}
