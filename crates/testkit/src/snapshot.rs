//! Snapshot of everything in a namespace that network software can change, and the differences between two snapshots.
//!
//! - It is read with the system's own tools, never with weft's code.
//! - Volatile state (timers, counters, handles, carrier, duplicate address detection) is left out, so that two
//!   snapshots of an idle namespace are equal.
//! - Each difference is one readable line.
//!
//! Sources: ip(8), nft(8) and tc(8) with `-j`, iptables-save(8), `/proc/sys/net`.

mod collect;
mod difference;

use std::collections::BTreeMap;

use serde_json::Value;

use crate::netns::Netns;

/// Directories whose files belong to a host's snapshot.
pub const DIRECTORIES: [&str; 7] =
    ["/etc/cni", "/opt/cni", "/run/cni", "/run/netns", "/run/weft", "/var/lib/cni", "/var/lib/weft"];

/// State at one moment: one entry, with a title, for each link, address, route, rule, file and so on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    entries: BTreeMap<String, Value>,
}

impl Netns {
    /// Takes a snapshot of links, addresses, routes, rules, filters, queueing disciplines and sysctls.
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

    /// Lists how a later snapshot differs, one difference per line, for example `+ link veth0 …`; empty if it is equal.
    ///
    /// `+` is new, `-` is gone, `~` has another value.
    #[must_use]
    pub fn changes(&self, later: &Snapshot) -> String {
        difference::lines(&self.entries, &later.entries).join("\n")
    }

    /// Iterates over titles that begin with `prefix`: `link `, `route main`, `file /var/lib/cni`.
    pub fn titles(&self, prefix: &str) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str).filter(move |title| title.starts_with(prefix))
    }
}

/// Entries while they are collected; a repeated title gets a number.
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
