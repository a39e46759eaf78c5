//! The leak check: everything about a namespace that network software can change, and what differs.
//!
//! Rules:
//! - what the system's own tools say, never our readers;
//! - what changes by itself (timers, counters, handles, carrier, duplicate address detection) is left
//!   out; a snapshot of an idle namespace is equal to the next one;
//! - a difference is a line that a person can read.
//!
//! Sources: ip(8), nft(8) and tc(8) with `-j`, iptables-save(8), `/proc/sys/net`.

mod collect;
mod difference;

use std::collections::BTreeMap;

use serde_json::Value;

use crate::netns::Netns;

/// The directories of a host whose files belong to its snapshot.
pub const DIRECTORIES: [&str; 7] =
    ["/etc/cni", "/opt/cni", "/run/cni", "/run/netns", "/run/weft", "/var/lib/cni", "/var/lib/weft"];

/// State at one moment: one entry for each link, address, route, rule, file and so on, by a title.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    entries: BTreeMap<String, Value>,
}

impl Netns {
    /// Links, addresses, routes, rules, filters, queueing disciplines and sysctls, as they are now.
    #[must_use]
    #[track_caller]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of_network(self)
    }
}

impl Snapshot {
    #[track_caller]
    pub(crate) fn of_network(netns: &Netns) -> Snapshot {
        let mut entries = Entries::default();
        collect::network(netns, &mut entries);
        Snapshot { entries: entries.0 }
    }

    #[track_caller]
    pub(crate) fn of_host(netns: &Netns) -> Snapshot {
        let mut entries = Entries::default();
        collect::network(netns, &mut entries);
        netns.within(|| {
            for directory in DIRECTORIES {
                collect::files(directory.as_ref(), &mut entries);
            }
        });
        Snapshot { entries: entries.0 }
    }

    /// What became different until `later`, a line each; empty if nothing did.
    ///
    /// `+` is new, `-` is gone, `~` has another value.
    #[must_use]
    pub fn changes(&self, later: &Snapshot) -> String {
        difference::lines(&self.entries, &later.entries).join("\n")
    }

    /// The titles that begin with `prefix`: `link `, `route main`, `file /var/lib/cni`.
    pub fn titles(&self, prefix: &str) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str).filter(move |title| title.starts_with(prefix))
    }
}

/// Entries being collected; a title that is there already gets a number.
#[derive(Default)]
struct Entries(BTreeMap<String, Value>);

impl Entries {
    fn add(&mut self, title: &str, value: Value) {
        let mut key = title.to_owned();
        let mut number = 1;
        while self.0.contains_key(&key) {
            number += 1;
            key = format!("{title} ({number})");
        }
        self.0.insert(key, value);
    }
}
