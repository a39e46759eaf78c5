//! Network status: whether sandboxes can be attached, and whether attached sandboxes are unchanged.
//!
//! | field | source |
//! |---|---|
//! | `sandbox_management` | every plugin is installed and supports the version; STATUS, from 1.1.0 on; false while it drains |
//! | `connectivity` | CHECK of each live attachment, from 0.4.0 on unless `disable_check`; true if there is none |
//!
//! STATUS and CHECK execute plugins, a few at a time. A caller gets an answer within a bounded time even if plugins
//! hang.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use cni::capability;
use cni::name::PluginType;
use cni::network::Network;
use cni::runtime::chain;
use cni::{Error, Verb};
use rpc::journal::Entry;
use sha2::{Digest, Sha512};
use thiserror::Error;
use tonic::Status;

use super::fallback::OnDisk;
use super::networks::{Networks, blocking};
use super::plugins;
use crate::network_store::Stored;
use crate::plugin_answers::{Answers, PARALLEL};
use cri::network_api;
use cri::network_api::validation::Checked;
use cri::network_api::{FALLBACK, Name, NetworkConfig, NetworkMetadata, NetworkStatus, conflist};
use node_support::plan_metadata;
use node_support::sandboxes::Sandboxes;

/// Maximum number of networks that one error names.
const FAULTS_MAX: usize = 8;
/// Time within which plugins may be started for one caller.
const ASK_MAX: Duration = Duration::from_secs(12);

/// Reason why no sandbox can be created.
#[derive(Debug, Error)]
pub(crate) enum ReadinessError {
    /// The default network is not ready.
    #[error("network {label}: {error}")]
    Default {
        /// Network name.
        label: String,
        /// Error that the plugins reported.
        error: Box<Error>,
    },
    /// There is no default network, and no other network is ready.
    #[error("{absent}{}", sentences(.networks))]
    None {
        /// Why there is no default network.
        absent: String,
        /// Networks, each with what the plugins reported.
        networks: Vec<(String, Error)>,
    },
    /// The check itself failed.
    #[error("{}", .0.message())]
    Failed(Status),
}

/// Evaluates the status of networks and sandboxes.
#[derive(Debug)]
pub(crate) struct NetworkConditions {
    pub(crate) networks: Arc<Networks>,
    sandboxes: Arc<Sandboxes>,
    answers: Answers,
}

/// Network status; both values are true until a plugin reports otherwise.
struct Found {
    managed: AtomicBool,
    connected: AtomicBool,
}

/// Attachment, given by journal entry and index in the plan.
type Place<'a> = (&'a Entry, usize);

impl NetworkConditions {
    /// Returns the evaluator for these networks and the sandboxes in the journal.
    pub(crate) fn of(networks: Arc<Networks>, sandboxes: Arc<Sandboxes>) -> NetworkConditions {
        NetworkConditions { networks, sandboxes, answers: Answers::default() }
    }

    /// Lists all networks and the current status, including the network on disk.
    pub(crate) async fn list(self: &Arc<NetworkConditions>) -> Result<Vec<network_api::Network>, Status> {
        let conditions = Arc::clone(self);
        let examine = move || {
            let all: Vec<Arc<Stored>> =
                conditions.on_disk().into_iter().chain(conditions.networks.all()).collect();
            conditions.examine(&all)
        };
        blocking(examine).await
    }

    /// Returns one network and the current status.
    pub(crate) async fn one(
        self: &Arc<NetworkConditions>,
        stored: Arc<Stored>,
    ) -> Result<Option<network_api::Network>, Status> {
        let conditions = Arc::clone(self);
        blocking(move || conditions.examine(&[stored]).pop()).await
    }

    /// Checks whether sandboxes can be created: the default network must be ready, or any network if there is no
    /// default.
    ///
    /// # Errors
    /// The reason why no sandbox can be created.
    pub(crate) async fn readiness(self: &Arc<NetworkConditions>) -> Result<(), ReadinessError> {
        let conditions = Arc::clone(self);
        let examined = blocking(move || conditions.is_ready()).await;
        examined.unwrap_or_else(|status| Err(ReadinessError::Failed(status)))
    }

    fn is_ready(&self) -> Result<(), ReadinessError> {
        let probe = StatusProbe::of(&self.networks);
        let managed = |label: &str, network: &Network| {
            let needs = network.needs()?;
            self.management(&probe, label, network, &needs)
        };
        let absent = match self.networks.default_network() {
            Ok(usable) => {
                let managed = managed(&usable.label, &usable.network);
                let label = usable.label;
                return managed.map_err(|error| ReadinessError::Default { label, error: Box::new(error) });
            }
            Err(error) => error.msg,
        };
        if let OnDisk::Broken(_) = self.networks.fallback.read() {
            return Err(ReadinessError::None { absent, networks: Vec::new() });
        }
        let usable: Vec<Arc<Stored>> =
            self.networks.all().into_iter().filter(|stored| !stored.draining).collect();
        let (some, faults) = (AtomicBool::new(false), Mutex::new(BTreeMap::new()));
        each(&usable, |stored| {
            // One ready network is enough.
            if some.load(Ordering::Relaxed) {
                return;
            }
            let label = stored.checked.name.to_string();
            match managed(&label, &stored.checked.network) {
                Ok(()) => some.store(true, Ordering::Relaxed),
                Err(error) => {
                    let mut faults = faults.lock().unwrap_or_else(PoisonError::into_inner);
                    faults.insert(label, error);
                }
            }
        });
        if some.into_inner() {
            return Ok(());
        }
        let faults = faults.into_inner().unwrap_or_else(PoisonError::into_inner);
        Err(ReadinessError::None { absent, networks: faults.into_iter().take(FAULTS_MAX).collect() })
    }

    fn on_disk(&self) -> Option<Arc<Stored>> {
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
        Some(Arc::new(Stored { checked, draining: false }))
    }

    /// Examines networks. The time limit covers all of them together.
    fn examine(&self, all: &[Arc<Stored>]) -> Vec<network_api::Network> {
        let sandboxes = self.sandboxes.all();
        let users = users(sandboxes.values().map(|sandbox| &*sandbox.entry), all);
        let probe = StatusProbe::of(&self.networks);
        let initial = || Found { managed: AtomicBool::new(true), connected: AtomicBool::new(true) };
        let networks: Vec<(&Stored, Found)> = all.iter().map(|stored| (&**stored, initial())).collect();
        // Networks first, then attachments, so that a slow CHECK does not hide whether a network is usable.
        let questions: Vec<(usize, Option<Place<'_>>)> =
            (0..all.len()).map(|index| (index, None)).chain(users).collect();
        let ask = |(index, user): &(usize, Option<Place<'_>>)| {
            let Some((Stored { checked, draining }, found)) = networks.get(*index) else { return };
            match user {
                None => {
                    let label = checked.name.to_string();
                    let ready = || self.management(&probe, &label, &checked.network, &checked.needs).is_ok();
                    found.managed.store(!draining && ready(), Ordering::Relaxed);
                }
                Some((entry, place)) if found.connected.load(Ordering::Relaxed) => {
                    if self.connected(entry, *place, probe.until).is_err() {
                        found.connected.store(false, Ordering::Relaxed);
                    }
                }
                // One changed attachment is enough.
                Some(_) => {}
            }
        };
        each(&questions, ask);
        let examined =
            networks.into_iter().map(|(stored, Found { managed, connected })| network_api::Network {
                config: Some(stored.checked.config.clone()),
                status: Some(NetworkStatus {
                    sandbox_management: managed.into_inner(),
                    connectivity: connected.into_inner(),
                    draining: stored.draining,
                }),
            });
        examined.collect()
    }

    fn management(
        &self,
        probe: &StatusProbe<'_>,
        label: &str,
        network: &Network,
        needs: &[PluginType],
    ) -> Result<(), Error> {
        probe.plugins.require(needs, network.version)?;
        if network.version < Verb::Status.since() {
            return Ok(());
        }
        // The digest is part of the key, because the result depends on the configuration.
        let key = format!("status {label} {}", digest(network.bytes()));
        let ask = || chain::status(&self.networks.plugins, network, self.networks.plugins.path());
        self.answers.ask(key, probe.until, ask).unwrap_or_else(|| Err(plugins::late()))
    }

    fn connected(&self, entry: &Entry, place: usize, until: Instant) -> Result<(), Error> {
        let Some(delegate) = entry.plan.delegates.get(place) else { return Ok(()) };
        let network = Network::parse(delegate.config.as_bytes(), &delegate.network)?;
        if network.disable_check || network.version < Verb::Check.since() {
            return Ok(());
        }
        let key = format!("check {} {}", entry.container_id, delegate.ifname);
        let result = self.answers.ask(key, until, || {
            let last = entry.last_result(place, &network)?;
            chain::check(&self.networks.plugins, &network, &entry.parameters(delegate), last.as_ref())
        });
        // An attachment without a result counts as unchanged.
        result.unwrap_or(Ok(()))
    }
}

/// Returns a configuration digest, as a short cache key.
fn digest(bytes: &[u8]) -> String {
    Sha512::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Probe for several networks, with plugin versions and a time limit.
struct StatusProbe<'a> {
    plugins: plugins::VersionProbe<'a>,
    until: Instant,
}

impl StatusProbe<'_> {
    fn of(networks: &Networks) -> StatusProbe<'_> {
        let until = Instant::now() + ASK_MAX;
        StatusProbe { plugins: networks.plugins.probe_until(until), until }
    }
}

/// Runs `work` for each item, a few at a time.
fn each<T: Sync>(all: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let some = || {
        while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(one);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..PARALLEL.min(all.len()) {
            // If the kernel refuses a thread, the existing threads do more.
            let _ = std::thread::Builder::new().spawn_scoped(scope, some);
        }
        some();
    });
}

/// Joins the networks' errors into the end of a sentence.
fn sentences(networks: &[(String, Error)]) -> String {
    networks.iter().map(|(label, error)| format!("; network {label}: {error}")).collect()
}

/// Lists the live attachments of these networks, each with the network's index in `all`.
fn users<'a>(
    entries: impl Iterator<Item = &'a Entry>,
    all: &[Arc<Stored>],
) -> Vec<(usize, Option<Place<'a>>)> {
    let places: BTreeMap<String, usize> =
        all.iter().enumerate().map(|(index, stored)| (stored.checked.name.to_string(), index)).collect();
    let on_disk = places.get(FALLBACK).and_then(|index| all.get(*index));
    let on_disk = on_disk.map(|stored| stored.checked.network.name.as_str());
    let mut users = Vec::new();
    for entry in entries.filter(|entry| entry.complete && Path::new(&entry.netns).exists()) {
        for (place, label) in plan_metadata::attached(entry, on_disk) {
            users.extend(places.get(&label).map(|index| (*index, Some((entry, place)))));
        }
    }
    users
}

/// Encodes ranges as a value for the `ipRanges` capability.
pub(crate) fn ip_ranges(ranges: &[Vec<ipnet::IpNet>]) -> Vec<Vec<capability::IpRange>> {
    let range = |subnet: &ipnet::IpNet| capability::IpRange {
        subnet: *subnet,
        range_start: None,
        range_end: None,
        gateway: None,
    };
    ranges.iter().map(|set| set.iter().map(range).collect()).collect()
}
