//! Which of several controllers works: the one that holds a Lease.
//!
//! Rules: who holds it renews it; who could not in time stops before another one may begin, and who stood still, as a process or
//! its node may, does no step more of what he had begun; who waits goes by his own clock, from the moment he saw the last
//! renewal, and who holds it from the moment he asked for it. A Lease is given back at the end, so that another begins at once.
//!
//! Source: `coordination.k8s.io/v1` Lease; client-go `leaderelection`.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use crate::api_error;

/// How long a Lease is good for.
const DURATION: Duration = Duration::from_secs(15);
/// When he who holds it stops, if it could not be renewed.
const DEADLINE: Duration = Duration::from_secs(10);
/// How often it is renewed, and how often it is looked whether it is free.
const PERIOD: Duration = Duration::from_secs(2);

/// A Lease and who we are.
#[derive(Debug)]
pub struct Election {
    leases: Api<Lease>,
    name: String,
    identity: String,
    /// When it was asked for that was given us last.
    asked: Cell<Option<Instant>>,
}

/// What was seen of another one's Lease.
struct Seen {
    version: Option<String>,
    at: Instant,
}

// === impl Election ===

impl Election {
    /// For the Lease `name` of a namespace.
    pub fn new(client: Client, namespace: &str, name: &str, identity: &str) -> Election {
        let leases = Api::namespaced(client, namespace);
        Election { leases, name: name.to_owned(), identity: identity.to_owned(), asked: Cell::default() }
    }

    /// Waits until the Lease is ours.
    pub async fn win(&self) {
        let mut seen: Option<Seen> = None;
        loop {
            let asked = Instant::now();
            match self.take(&mut seen).await {
                Ok(true) => {
                    self.asked.set(Some(asked));
                    info!(lease = self.name, identity = self.identity, "leads");
                    return;
                }
                Ok(false) => {}
                Err(error) => warn!(why = api_error::describe(&error), lease = self.name, "cannot be had"),
            }
            sleep(PERIOD).await;
        }
    }

    /// Renews the Lease until that cannot be done any more.
    pub async fn keep(&self) {
        loop {
            sleep(PERIOD).await;
            let asked = Instant::now();
            match timeout(PERIOD, self.take(&mut None)).await {
                Ok(Ok(true)) => self.asked.set(Some(asked)),
                Ok(Ok(false)) => {
                    warn!(lease = self.name, "another one leads");
                    return;
                }
                Ok(Err(error)) => debug!(why = api_error::describe(&error), "not renewed"),
                Err(_) => debug!("not renewed in time"),
            }
            if !self.is_ours() {
                warn!(lease = self.name, "could not be renewed");
                return;
            }
        }
    }

    /// Does `work`, of which no step is done once the Lease may be another one's: [`Election::keep`] ends then. A request that
    /// a step has handed to its connection is made in any case.
    pub async fn hold_for(&self, work: impl Future<Output = ()>) {
        let mut work = pin!(work);
        poll_fn(|context| match self.is_ours() {
            true => work.as_mut().poll(context),
            // Whoever polls this polls `keep`, too.
            false => Poll::Pending,
        })
        .await;
    }

    fn is_ours(&self) -> bool {
        self.asked.get().is_some_and(|asked| asked.elapsed() < DEADLINE)
    }

    /// Gives it back, if that can be done soon: it ends by itself.
    pub async fn resign(&self) {
        if timeout(PERIOD, self.give_back()).await.is_err() {
            debug!(lease = self.name, "not given back in time");
        }
    }

    async fn give_back(&self) {
        let Ok(Some(mut lease)) = self.leases.get_opt(&self.name).await else { return };
        let held = lease.spec.get_or_insert_default();
        if held.holder_identity.as_deref() == Some(&self.identity) {
            held.holder_identity = Some(String::new());
            let _ = self.leases.replace(&self.name, &PostParams::default(), &lease).await;
        }
    }

    /// Takes or renews it; false if it is another one's.
    async fn take(&self, seen: &mut Option<Seen>) -> Result<bool, kube::Error> {
        let now = Some(MicroTime(Timestamp::now()));
        let Some(mut lease) = self.leases.get_opt(&self.name).await? else {
            let mut lease = Lease::default();
            lease.metadata.name = Some(self.name.clone());
            lease.spec =
                Some(LeaseSpec { acquire_time: now.clone(), lease_transitions: Some(0), ..self.spec(now) });
            return taken(self.leases.create(&PostParams::default(), &lease).await);
        };
        let version = lease.metadata.resource_version.clone();
        let known = lease.spec.take().unwrap_or_default();
        let holder = known.holder_identity.clone().unwrap_or_default();
        if !holder.is_empty() && holder != self.identity {
            match seen {
                Some(seen) if seen.version == version => {
                    let seconds =
                        known.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
                    let good = seconds.map_or(DURATION, Duration::from_secs);
                    if seen.at.elapsed() < good {
                        return Ok(false);
                    }
                }
                _ => {
                    *seen = Some(Seen { version, at: Instant::now() });
                    return Ok(false);
                }
            }
        }
        let changes = holder != self.identity;
        lease.spec = Some(LeaseSpec {
            acquire_time: if changes { now.clone() } else { known.acquire_time },
            lease_transitions: Some(known.lease_transitions.unwrap_or_default() + i32::from(changes)),
            ..self.spec(now)
        });
        // Its version is in it: who was slower is refused.
        taken(self.leases.replace(&self.name, &PostParams::default(), &lease).await)
    }

    fn spec(&self, now: Option<MicroTime>) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            renew_time: now,
            ..LeaseSpec::default()
        }
    }
}

fn taken(outcome: Result<Lease, kube::Error>) -> Result<bool, kube::Error> {
    match outcome {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}
