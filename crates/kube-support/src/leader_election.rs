//! Leader election: among several controllers, the one that holds a Lease works.
//!
//! - The holder renews the Lease. If it cannot, it stops before another controller may begin.
//! - A holder that was suspended continues no step after the Lease may have expired.
//! - A candidate measures by the local clock, from the time at which it observed the last renewal. The holder measures
//!   from the time at which it sent the request.
//! - The Lease is released at the end, so that another controller begins at once.
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

/// Time for which a Lease is valid.
const DURATION: Duration = Duration::from_secs(15);
/// Time without a renewal after which the holder stops.
const DEADLINE: Duration = Duration::from_secs(10);
/// Interval at which the Lease is renewed, and read by candidates.
const PERIOD: Duration = Duration::from_secs(2);

/// Candidate for a Lease.
#[derive(Debug)]
pub struct Election {
    leases: Api<Lease>,
    name: String,
    identity: String,
    /// When the last successful renewal was requested.
    renewed: Cell<Option<Instant>>,
}

/// Version that was observed while another controller holds the Lease.
struct Observed {
    version: Option<String>,
    at: Instant,
}

// === impl Election ===

impl Election {
    /// Returns a candidate for the Lease `name` in a namespace.
    pub fn new(client: Client, namespace: &str, name: &str, identity: &str) -> Election {
        let leases = Api::namespaced(client, namespace);
        Election { leases, name: name.to_owned(), identity: identity.to_owned(), renewed: Cell::default() }
    }

    /// Waits until this candidate holds the Lease.
    pub async fn win(&self) {
        let mut observed: Option<Observed> = None;
        loop {
            let asked = Instant::now();
            match self.take(&mut observed).await {
                Ok(true) => {
                    self.renewed.set(Some(asked));
                    info!(lease = self.name, identity = self.identity, "acquired leadership");
                    return;
                }
                Ok(false) => {}
                Err(error) => {
                    warn!(error = api_error::describe(&error), lease = self.name, "failed to acquire Lease");
                }
            }
            sleep(PERIOD).await;
        }
    }

    /// Renews the Lease until it is lost.
    pub async fn keep(&self) {
        loop {
            sleep(PERIOD).await;
            let asked = Instant::now();
            match timeout(PERIOD, self.take(&mut None)).await {
                Ok(Ok(true)) => self.renewed.set(Some(asked)),
                Ok(Ok(false)) => {
                    warn!(lease = self.name, "lost leadership: another controller holds the Lease");
                    return;
                }
                Ok(Err(error)) => debug!(error = api_error::describe(&error), "failed to renew Lease"),
                Err(_) => debug!("failed to renew Lease: the API server did not answer in time"),
            }
            if !self.is_held() {
                warn!(lease = self.name, "lost leadership: the Lease was not renewed in time");
                return;
            }
        }
    }

    /// Polls `work` only while the Lease is held. Poll [`Election::keep`] beside it, which ends when the
    /// Lease is lost.
    ///
    /// A request that was already passed to the connection is sent in any case.
    pub async fn hold_for(&self, work: impl Future<Output = ()>) {
        let mut work = pin!(work);
        poll_fn(|context| if self.is_held() { work.as_mut().poll(context) } else { Poll::Pending }).await;
    }

    fn is_held(&self) -> bool {
        self.renewed.get().is_some_and(|renewed| renewed.elapsed() < DEADLINE)
    }

    /// Releases the Lease. If that takes too long, the Lease expires.
    pub async fn resign(&self) {
        if timeout(PERIOD, self.release()).await.is_err() {
            debug!(lease = self.name, "failed to release Lease in time");
        }
    }

    async fn release(&self) {
        let Ok(Some(mut lease)) = self.leases.get_opt(&self.name).await else { return };
        let held = lease.spec.get_or_insert_default();
        if held.holder_identity.as_deref() == Some(&self.identity) {
            held.holder_identity = Some(String::new());
            let _ = self.leases.replace(&self.name, &PostParams::default(), &lease).await;
        }
    }

    /// Acquires or renews the Lease. The result is false if another controller holds it.
    async fn take(&self, observed: &mut Option<Observed>) -> Result<bool, kube::Error> {
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
            match observed {
                Some(observed) if observed.version == version => {
                    let seconds =
                        known.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
                    let valid_for = seconds.map_or(DURATION, Duration::from_secs);
                    if observed.at.elapsed() < valid_for {
                        return Ok(false);
                    }
                }
                _ => {
                    *observed = Some(Observed { version, at: Instant::now() });
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
        // The object contains its resource version, so a concurrent replacement is rejected.
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
