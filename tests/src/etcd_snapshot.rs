//! What an API server holds when it is new, and how it comes to hold that again.
//!
//! Rules: keys and values are never looked into; it is done when etcd holds what it did, and the server tells of it from
//! memory, in what tests make most and what decides who may do what ([`TOLD`]).
//!
//! Source: etcd's JSON gateway, `/v3/kv`.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Deserializer, Value, json};

use crate::kube::Kube;
use crate::machine::PATIENCE;

const ETCD: &str = "http://127.0.0.1:2379/v3/kv";
/// For so long nothing must change in a server that is said to be ready.
const QUIET: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(50);
/// What the server tells from its memory, which follows etcd: what tests make most, and what decides who may do what.
const TOLD: &[&str] = &[
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

/// Keys and values in etcd, as its gateway writes them, and names of what the server tells.
#[derive(Debug)]
pub struct Contents {
    stored: BTreeMap<String, String>,
    told: Vec<BTreeSet<String>>,
}

// === impl Contents ===

impl Contents {
    /// What a new server has, when it has done what it does by itself at first.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    #[track_caller]
    pub fn of(kube: &Kube) -> Contents {
        let mut stored = stored(kube);
        loop {
            sleep(QUIET);
            let now = self::stored(kube);
            if now == stored {
                let told = told(kube).expect("a server that answers");
                return Contents { stored, told };
            }
            stored = now;
        }
    }

    /// Takes away what is new, and puts back what was changed or is gone.
    ///
    /// # Errors
    /// What is not as it was after a while.
    pub fn put_back(&self, kube: &Kube) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = stored(kube);
            if now != self.stored {
                change(kube, &self.changes(&now));
            } else if told(kube).as_ref() == Some(&self.told) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("{} is not {}", json!(told(kube)), json!(self.told)));
            }
            sleep(PAUSE);
        }
    }

    /// Calls that make it of what there is now.
    fn changes(&self, now: &BTreeMap<String, String>) -> Vec<(&'static str, Value)> {
        let new = now.keys().filter(|key| !self.stored.contains_key(*key));
        let other = self.stored.iter().filter(|(key, value)| now.get(*key) != Some(value));
        let delete = new.map(|key| ("deleterange", json!({ "key": key })));
        delete.chain(other.map(|(key, value)| ("put", json!({ "key": key, "value": value })))).collect()
    }
}

/// All that etcd holds.
fn stored(kube: &Kube) -> BTreeMap<String, String> {
    let machine = kube.machine();
    let everything = r#"{"key":"AA==","range_end":"AA=="}"#;
    let answer =
        machine.attempt(["curl", "-sf", &format!("{ETCD}/range"), "-d", everything]).success().json();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let all = answer["kvs"].as_array().into_iter().flatten();
    all.map(|one| (text(&one["key"]), text(&one["value"]))).collect()
}

/// Makes calls of etcd, one after the other over one connection.
fn change(kube: &Kube, calls: &[(&str, Value)]) {
    let line = |(call, body): &(&str, Value)| {
        format!("url = \"{ETCD}/{call}\"\noutput = /dev/null\ndata = {}\n", json!(body.to_string()))
    };
    let all: Vec<String> = calls.iter().map(line).collect();
    let curl = kube.machine().command("curl").args(["-sf", "--fail-early", "--config", "-"]);
    curl.stdin(all.join("next\n")).finish().success();
}

/// Names of what the server tells on each of the paths; nothing if it does not answer.
fn told(kube: &Kube) -> Option<Vec<BTreeSet<String>>> {
    let answer = kube.ask(TOLD);
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
