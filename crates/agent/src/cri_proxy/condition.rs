//! How networks are: can sandboxes be attached, are those that are attached as they were?
//!
//! | | comes from |
//! |---|---|
//! | `sandbox_management` | every plugin is there and speaks the version; STATUS, from 1.1.0 on; not while it drains |
//! | `connectivity` | CHECK of each live attachment, from 0.4.0 on unless `disable_check`; true if there is none |
//!
//! Rules: STATUS and CHECK run programs, a few at a time; what one said counts for a few seconds and no longer.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cni::capability;
use cni::name::PluginType;
use cni::network::Network;
use cni::runtime::chain;
use cni::{Error, Verb};
use npwg::journal::Entry;
use npwg::plan::Role;
use tonic::Status;

use super::fallback::OnDisk;
use super::networks::{Networks, blocking};
use super::plugins::Look;
use super::store::Stored;
use crate::agent::sandboxes::Sandboxes;
use crate::network_api::validation::Checked;
use crate::network_api::{self, FALLBACK, Name, NetworkConfig, NetworkMetadata, NetworkStatus, conflist};

/// How long what a plugin said counts.
const FRESH: Duration = Duration::from_secs(5);
/// Plugins asked at a time.
const PARALLEL: usize = 4;
/// Most answers kept.
const ANSWERS_MAX: usize = 20_000;

/// What a plugin said, and when.
type Answer = (Instant, Result<(), Error>);

/// The networks and their sandboxes, watched.
#[derive(Debug)]
pub(crate) struct Conditions {
    pub(crate) networks: Arc<Networks>,
    sandboxes: Arc<Sandboxes>,
    answers: Mutex<BTreeMap<String, Answer>>,
}

/// A network to be looked at; the fallback is as if it had been set.
struct Subject {
    label: String,
    stored: Arc<Stored>,
}

impl Conditions {
    /// Of these networks, with what the journal knows.
    pub(crate) fn of(networks: Arc<Networks>, sandboxes: Arc<Sandboxes>) -> Conditions {
        Conditions { networks, sandboxes, answers: Mutex::default() }
    }

    /// All networks, as they are now.
    pub(crate) async fn list(self: &Arc<Conditions>) -> Result<Vec<network_api::Network>, Status> {
        let conditions = Arc::clone(self);
        blocking(move || conditions.look()).await
    }

    /// One network as it is now, by its label.
    pub(crate) async fn one(
        self: &Arc<Conditions>,
        label: String,
    ) -> Result<Option<network_api::Network>, Status> {
        let conditions = Arc::clone(self);
        let found = blocking(move || {
            let subjects = conditions.subjects();
            let subject = subjects.into_iter().find(|subject| subject.label == label);
            subject.map(|subject| conditions.examine(&[subject]))
        });
        Ok(found.await?.and_then(|mut found| found.pop()))
    }

    /// Whether sandboxes can be made: the default network is ready, or without one some network is.
    ///
    /// # Errors
    /// Why not.
    pub(crate) async fn readiness(self: &Arc<Conditions>) -> Result<(), String> {
        let conditions = Arc::clone(self);
        let looked = blocking(move || conditions.is_ready()).await;
        looked.unwrap_or_else(|status| Err(status.message().to_owned()))
    }

    fn is_ready(&self) -> Result<(), String> {
        let look = self.networks.plugins.look();
        let managed = |label: &str, network: &Network| {
            let needs = network.needs()?;
            self.management(&look, label, network, &needs)
        };
        let absent = match self.networks.default_network() {
            Ok(usable) => {
                let managed = managed(&usable.label, &usable.network);
                return managed.map_err(|error| format!("network {}: {error}", usable.label));
            }
            Err(error) => error.msg,
        };
        if let OnDisk::Broken(_) = self.networks.fallback.read() {
            return Err(absent);
        }
        let mut why = absent;
        for stored in self.networks.all() {
            let label = stored.checked.name.to_string();
            match managed(&label, &stored.checked.network) {
                Ok(()) if !stored.draining => return Ok(()),
                Ok(()) => {}
                Err(error) => why = format!("{why}; network {label}: {error}"),
            }
        }
        Err(why)
    }

    fn subjects(&self) -> Vec<Subject> {
        let stored = self.networks.all().into_iter();
        let stored = stored.map(|stored| Subject { label: stored.checked.name.to_string(), stored });
        self.on_disk().into_iter().chain(stored).collect()
    }

    fn on_disk(&self) -> Option<Subject> {
        let OnDisk::Found(network) = self.networks.fallback.read() else { return None };
        let view = conflist::view(&network).ok()?;
        let metadata = NetworkMetadata { name: FALLBACK.to_owned(), ..NetworkMetadata::default() };
        let checked = Checked {
            name: Name::of(&metadata),
            config: NetworkConfig { metadata: Some(metadata), ..view },
            needs: network.needs().ok()?,
            network: *network,
            ranges: Vec::new(),
        };
        Some(Subject { label: FALLBACK.to_owned(), stored: Arc::new(Stored { checked, draining: false }) })
    }

    fn look(&self) -> Vec<network_api::Network> {
        self.examine(&self.subjects())
    }

    /// Looks at each: what takes a program to be run by a few threads, the rest at once.
    fn examine(&self, subjects: &[Subject]) -> Vec<network_api::Network> {
        let sandboxes = self.sandboxes.all();
        let users = users(sandboxes.values().map(|sandbox| &*sandbox.entry), subjects);
        let slow: Vec<usize> = (0..subjects.len())
            .filter(|index| {
                subjects.get(*index).is_some_and(|subject| {
                    subject.stored.checked.network.version >= Verb::Status.since()
                        || users.contains_key(index)
                })
            })
            .collect();
        let next = AtomicUsize::new(0);
        let nobody = Vec::new();
        let look = self.networks.plugins.look();
        let examine = |index: usize| {
            let subject = subjects.get(index)?;
            let used = users.get(&index).unwrap_or(&nobody);
            let Stored { checked, draining } = &*subject.stored;
            let managed = self.management(&look, &subject.label, &checked.network, &checked.needs);
            Some(network_api::Network {
                config: Some(checked.config.clone()),
                status: Some(NetworkStatus {
                    sandbox_management: !draining && managed.is_ok(),
                    connectivity: used.iter().all(|(entry, place)| self.connected(entry, *place).is_ok()),
                }),
            })
        };
        std::thread::scope(|scope| {
            for _ in 0..PARALLEL.min(slow.len()) {
                // What is found is kept for a moment; below it is picked up.
                scope.spawn(|| {
                    while let Some(index) = slow.get(next.fetch_add(1, Ordering::Relaxed)) {
                        examine(*index);
                    }
                });
            }
        });
        (0..subjects.len()).filter_map(examine).collect()
    }

    fn management(
        &self,
        look: &Look<'_>,
        label: &str,
        network: &Network,
        needs: &[PluginType],
    ) -> Result<(), Error> {
        look.require(needs, network.version)?;
        if network.version < Verb::Status.since() {
            return Ok(());
        }
        // Another configuration is another question.
        let key = format!("status {label} {}", String::from_utf8_lossy(network.bytes()));
        self.ask(key, || chain::status(&self.networks.plugins, network, self.networks.plugins.path()))
    }

    fn connected(&self, entry: &Entry, place: usize) -> Result<(), Error> {
        let Some(delegate) = entry.plan.delegates.get(place) else { return Ok(()) };
        let network = Network::parse(delegate.config.as_bytes(), &delegate.network)?;
        if network.disable_check || network.version < Verb::Check.since() {
            return Ok(());
        }
        let key = format!("check {} {}", entry.container_id, delegate.ifname);
        self.ask(key, || {
            let last = entry.last_result(place, &network)?;
            chain::check(&self.networks.plugins, &network, &entry.parameters(delegate), last.as_ref())
        })
    }

    fn ask(&self, key: String, ask: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
        let known = self.answers.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some((when, answer)) = known
            && when.elapsed() < FRESH
        {
            return answer;
        }
        let answer = ask();
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.len() >= ANSWERS_MAX {
            answers.retain(|_, (when, _)| when.elapsed() < FRESH);
        }
        answers.insert(key, (Instant::now(), answer.clone()));
        answer
    }
}

/// The live attachments of each subject, by its place.
fn users<'a>(
    entries: impl Iterator<Item = &'a Entry>,
    subjects: &[Subject],
) -> BTreeMap<usize, Vec<(&'a Entry, usize)>> {
    let places: BTreeMap<&str, usize> =
        subjects.iter().enumerate().map(|(index, subject)| (subject.label.as_str(), index)).collect();
    let fallback = subjects.iter().position(|subject| subject.label == FALLBACK);
    let mut users: BTreeMap<usize, Vec<(&Entry, usize)>> = BTreeMap::new();
    for entry in entries.filter(|entry| entry.complete && Path::new(&entry.netns).exists()) {
        for (place, delegate) in entry.plan.delegates.iter().enumerate() {
            let by_label = places.get(delegate.network.as_str()).copied();
            // Who asked for nothing has it under its CNI name.
            let by_default = fallback.filter(|index| {
                delegate.role == Role::Default
                    && subjects
                        .get(*index)
                        .is_some_and(|subject| subject.stored.checked.network.name == delegate.config_name)
            });
            if let Some(index) = by_label.or(by_default) {
                users.entry(index).or_default().push((entry, place));
            }
        }
    }
    users
}

/// The value of the capability `ipRanges`.
pub(crate) fn ip_ranges(ranges: &[Vec<ipnet::IpNet>]) -> Vec<Vec<capability::IpRange>> {
    let range = |subnet: &ipnet::IpNet| capability::IpRange {
        subnet: *subnet,
        range_start: None,
        range_end: None,
        gateway: None,
    };
    ranges.iter().map(|set| set.iter().map(range).collect()).collect()
}
