//! Attached sandboxes by pod: if a pod has several, the newest one determines the pod's status.

use std::collections::BTreeMap;
use std::time::SystemTime;

use cni::name::ContainerId;
use node_support::sandboxes::Sandbox;
use rpc::journal::Entry;

/// Attached sandboxes by pod uid.
#[derive(Debug, Default)]
pub(super) struct PodSandboxes {
    by_uid: BTreeMap<String, BTreeMap<ContainerId, SystemTime>>,
    uids: BTreeMap<ContainerId, String>,
}

impl PodSandboxes {
    /// Records the state of a sandbox, `None` if it was removed. Returns the uids of the pods that this concerns.
    pub(super) fn update(&mut self, container: &ContainerId, sandbox: Option<&Sandbox>) -> Vec<String> {
        let now = sandbox.filter(|sandbox| has_status(&sandbox.entry));
        let uid = now.map(|sandbox| sandbox.entry.plan.pod.uid.clone());
        let before = self.uids.remove(container);
        if let Some(uid) = &before
            && let Some(all) = self.by_uid.get_mut(uid)
        {
            all.remove(container);
            if all.is_empty() {
                self.by_uid.remove(uid);
            }
        }
        if let (Some(uid), Some(sandbox)) = (&uid, now) {
            self.uids.insert(container.clone(), uid.clone());
            self.by_uid.entry(uid.clone()).or_default().insert(container.clone(), sandbox.modified);
        }
        let moved = before.filter(|before| uid.as_ref() != Some(before));
        moved.into_iter().chain(uid).collect()
    }

    /// Returns the newest sandbox of a pod.
    pub(super) fn newest(&self, uid: &str) -> Option<&ContainerId> {
        let all = self.by_uid.get(uid)?;
        all.iter().max_by_key(|(_, modified)| **modified).map(|(container, _)| container)
    }

    /// Returns the uids of all pods.
    pub(super) fn uids(&self) -> impl Iterator<Item = &String> {
        self.by_uid.keys()
    }
}

/// Whether an entry has a status that belongs to a pod.
fn has_status(entry: &Entry) -> bool {
    entry.complete && !entry.plan.pod.uid.is_empty() && !entry.network_status.is_empty()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::time::Duration;

    use node_support::sandboxes::Sandboxes;

    use super::*;

    const ENTRY: &str = r#"{"version":1,"network":"n","containerId":"ID","netns":"/run/netns/x","ifname":"eth0","args":"",
      "path":"/opt/cni/bin","plan":{"version":1,"pod":{"namespace":"ns","name":"web","uid":"UID"},"container":"ID",
        "status":{"addresses":"bare","keys":"standard"},"delegates":[],"warnings":[]},"attachments":[],
      "networkStatus":[{"name":"n","interface":"eth0","ips":[],"mac":"","default":true,"dns":{}}],"complete":COMPLETE}"#;

    #[test]
    fn network_status_of_a_pod_is_that_of_its_newest_sandbox() {
        let directory = std::env::temp_dir().join(format!("weft-newest-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let write = |id: &str, uid: &str, complete: bool, age: u64| {
            let text = ENTRY.replace("UID", uid).replace("COMPLETE", &complete.to_string()).replace("ID", id);
            let file = directory.join(format!("{id}.json"));
            fs::write(&file, text).unwrap();
            let time = SystemTime::now() - Duration::from_secs(age);
            File::options().append(true).open(&file).unwrap().set_modified(time).unwrap();
        };
        write("a", "1", true, 5);
        write("b", "1", true, 10);
        write("c", "1", false, 0);
        write("d", "2", true, 10);
        let sandboxes = Sandboxes::of(&directory);
        sandboxes.read_all();
        let (mut of_pods, id) = (PodSandboxes::default(), |id: &str| ContainerId::new(id).unwrap());
        let affected = sandboxes.with(|all| {
            let each = all.iter().map(|(container, sandbox)| of_pods.update(container, Some(sandbox)));
            each.collect::<Vec<_>>()
        });
        assert_eq!(affected, [vec!["1"], vec!["1"], vec![], vec!["2"]]);
        assert_eq!((of_pods.newest("1"), of_pods.newest("2")), (Some(&id("a")), Some(&id("d"))));
        // The older sandbox has the status once the newer one is gone.
        assert_eq!(of_pods.update(&id("a"), None), ["1"]);
        assert_eq!(of_pods.newest("1"), Some(&id("b")));
        assert_eq!(of_pods.update(&id("b"), None), ["1"]);
        assert_eq!((of_pods.newest("1"), of_pods.uids().count()), (None, 1));
        assert!(of_pods.update(&id("c"), None).is_empty(), "it never had a status");
        fs::remove_dir_all(&directory).unwrap();
    }
}
