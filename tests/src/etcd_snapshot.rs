//! Takes a snapshot of an API server's etcd, and restores it after a test has used the server.
//!
//! Keys and values are opaque. Restoring is complete when etcd holds the same keys and values as in the snapshot, and
//! the server lists the same objects from the cache, for the kinds that tests create most and those that grant rights
//! ([`LISTED`]). The compactor's key is left alone: if it were deleted, kube-apiserver 1.20 would panic five minutes
//! later.
//!
//! Source: etcd's JSON gateway, `/v3/kv`; kube-apiserver 1.20, `storage/etcd3/compact.go`.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Deserializer, Value, json};

use crate::kube::Kube;
use crate::machine::TIMEOUT;

/// Key that belongs to the server's compactor, as the gateway writes it: `compact_rev_key`.
const COMPACTOR: &str = "Y29tcGFjdF9yZXZfa2V5";
const ETCD: &str = "http://127.0.0.1:2379/v3/kv";
/// Time for which etcd must stay unchanged before a new server's snapshot is taken.
const QUIET: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(50);
/// Paths that the server answers from the cache, which follows etcd: what tests create most, and what grants rights.
const LISTED: &[&str] = &[
    "/apis",
    "/api/v1/namespaces?resourceVersion=0",
    "/api/v1/nodes?resourceVersion=0",
    "/api/v1/pods?resourceVersion=0",
    "/api/v1/secrets?resourceVersion=0",
    "/api/v1/serviceaccounts?resourceVersion=0",
    "/api/v1/services?resourceVersion=0",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?resourceVersion=0",
    "/apis/coordination.k8s.io/v1/leases?resourceVersion=0",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles?resourceVersion=0",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings?resourceVersion=0",
    "/apis/rbac.authorization.k8s.io/v1/roles?resourceVersion=0",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings?resourceVersion=0",
];

/// Keys and values in etcd, as the gateway writes them, and names of the objects that the server lists.
#[derive(Debug)]
pub struct EtcdSnapshot {
    stored: BTreeMap<String, String>,
    listed: Vec<BTreeSet<String>>,
}

// === impl EtcdSnapshot ===

impl EtcdSnapshot {
    /// Takes a new server's snapshot once the server has finished the first writes.
    ///
    /// # Panics
    /// The server does not answer.
    #[must_use]
    #[track_caller]
    pub fn of(kube: &Kube) -> EtcdSnapshot {
        let mut stored = stored(kube);
        loop {
            sleep(QUIET);
            let now = self::stored(kube);
            if now == stored {
                let listed = listed(kube).expect("a server that answers");
                return EtcdSnapshot { stored, listed };
            }
            stored = now;
        }
    }

    /// Deletes keys that are new, and writes those that were changed or deleted.
    ///
    /// # Errors
    /// The server has ended, or a difference remains after [`TIMEOUT`].
    pub fn restore(&self, kube: &Kube) -> Result<(), String> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if !kube.machine().is_running("kube-apiserver") {
                return Err("it has ended".to_owned());
            }
            let now = stored(kube);
            if now != self.stored {
                change(kube, &self.changes(&now));
            } else if listed(kube).as_ref() == Some(&self.listed) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(self.difference(listed(kube)));
            }
            sleep(PAUSE);
        }
    }

    /// Returns the first path whose objects differ from the snapshot.
    fn difference(&self, listed: Option<Vec<BTreeSet<String>>>) -> String {
        let Some(listed) = listed else { return "it does not answer".to_owned() };
        let found = LISTED.iter().zip(listed.iter().zip(&self.listed)).find(|(_, (now, then))| now != then);
        match found {
            Some((path, (now, then))) => format!("{path} lists {now:?}, not {then:?}"),
            None => "keys in etcd differ".to_owned(),
        }
    }

    /// Returns the calls that turn etcd's current content into the snapshot.
    fn changes(&self, now: &BTreeMap<String, String>) -> Vec<(&'static str, Value)> {
        let new = now.keys().filter(|key| !self.stored.contains_key(*key));
        let other = self.stored.iter().filter(|(key, value)| now.get(*key) != Some(value));
        let delete = new.map(|key| ("deleterange", json!({ "key": key })));
        delete.chain(other.map(|(key, value)| ("put", json!({ "key": key, "value": value })))).collect()
    }
}

/// Reads all keys and values from etcd, except the compactor's.
fn stored(kube: &Kube) -> BTreeMap<String, String> {
    let machine = kube.machine();
    let everything = r#"{"key":"AA==","range_end":"AA=="}"#;
    let answer =
        machine.attempt(["curl", "-sf", &format!("{ETCD}/range"), "-d", everything]).success().json();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = answer["kvs"].as_array().into_iter().flatten().filter(|one| one["key"] != COMPACTOR);
    all.map(|one| (text(&one["key"]), text(&one["value"]))).collect()
}

/// Sends calls to etcd, one after the other over one connection.
fn change(kube: &Kube, calls: &[(&str, Value)]) {
    let line = |(call, body): &(&str, Value)| {
        format!("url = \"{ETCD}/{call}\"\noutput = /dev/null\ndata = {}\n", json!(body.to_string()))
    };
    let all: Vec<String> = calls.iter().map(line).collect();
    let curl = kube.machine().command("curl").args(["-sf", "--fail-early", "--config", "-"]);
    curl.stdin(all.join("next\n")).finish().success();
}

/// Reads the names of the objects that the server lists on each path; `None` if it does not answer.
fn listed(kube: &Kube) -> Option<Vec<BTreeSet<String>>> {
    let answer = kube.ask(LISTED);
    if answer.code != Some(0) {
        return None;
    }
    let lists = Deserializer::from_str(&answer.stdout).into_iter::<Value>().map_while(Result::ok);
    let names = |list: Value| {
        let of = |key: &str| list[key].as_array().cloned().unwrap_or_default();
        let groups = of("groups").into_iter().map(|group| group["name"].clone());
        let items = of("items").into_iter().map(|item| {
            json!([item["metadata"]["namespace"], item["metadata"]["name"], item["metadata"]["uid"]])
        });
        groups.chain(items).map(|name| name.to_string()).collect()
    };
    Some(lists.map(names).collect())
}
