//! Runs one lease's thread: it sleeps until the lease must be extended, extends it, and acts if the lease is lost.
//!
//! Source: RFC 2131 §4.4.5, RFC 8415 §18.2.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cni::Error;
use plugin_support::log;

use super::held_lease::{HeldLease, lock};
use super::lease_link::{LeaseLink, identity, remove_address, set_up};
use super::{LeaseManager, STACK, describe};
use crate::owner::Family;
use crate::state::{self, Record};
use crate::terms::{Terms, Times};
use crate::v4::exchange::Extension;
use crate::v6::exchange::Confirmation;
use crate::v6::identity::Identity as Identity6;
use crate::v6::message::Kind;
use crate::v6::timing::{self, Waits};

/// Minimum time between two attempts to extend a lease.
const MIN_PAUSE: Duration = Duration::from_secs(1);
/// Maximum time until a retry, if the error is on this node.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Where a lease came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A server granted it just now.
    Acquired,
    /// The previous daemon left it on disk.
    Restored,
}

/// Action that is due for a lease.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    Nothing(Duration),
    Renewal,
    Rebinding,
    Loss,
}

/// Outcome of one attempt to extend a lease.
enum Attempt {
    /// The lease was extended, or it is lost.
    Settled,
    /// No server answered.
    Silence,
    /// This node lacks a resource that it needs to find the interface.
    Failed,
    /// The lease no longer exists.
    Gone,
}

impl Record {
    fn due(&self, now: u64) -> Due {
        let age = Duration::from_millis(now.saturating_sub(self.granted));
        let Times { renewal, rebinding, expiry } = self.terms.times();
        match expiry {
            _ if self.lost.is_some() => Due::Nothing(Duration::from_secs(3600)),
            Some(expiry) if age >= expiry => Due::Loss,
            _ if age >= rebinding => Due::Rebinding,
            _ if age >= renewal => Due::Renewal,
            _ => Due::Nothing(renewal - age),
        }
    }

    /// Returns how long the lease has until the next action is due.
    fn remaining(&self, due: &Due, now: u64) -> Duration {
        let age = Duration::from_millis(now.saturating_sub(self.granted));
        let Times { renewal: _, rebinding, expiry } = self.terms.times();
        match due {
            Due::Renewal => rebinding,
            _ => expiry.unwrap_or(Duration::from_secs(3600) + age),
        }
        .saturating_sub(age)
    }

    /// Returns the pause after an unsuccessful attempt: half the remaining time, as in RFC 2131. When T2 is reached,
    /// any server is asked at once, even if the last attempt with the lease's own server has only just failed.
    fn pause(&self, due: &Due, now: u64) -> Duration {
        let remaining = self.remaining(due, now);
        match due {
            Due::Renewal => (remaining / 2).max(MIN_PAUSE).min(remaining),
            _ => (remaining / 2).max(MIN_PAUSE).min(remaining.max(MIN_PAUSE)),
        }
    }
}

/// Attempts to extend a lease since it was last extended.
struct Attempts {
    /// Kind of the last action, and the pauses between messages.
    series: Option<(std::mem::Discriminant<Due>, Waits)>,
    longest: Duration,
}

impl Attempts {
    /// Returns the pauses for the action that is due; each kind of action is a separate exchange.
    fn of(&mut self, due: &Due) -> &mut Waits {
        let kind = std::mem::discriminant(due);
        let series = self.series.take().filter(|(of, _)| *of == kind);
        &mut self
            .series
            .insert(series.unwrap_or((kind, timing::EXTEND.at_most(self.longest.max(MIN_PAUSE)).begin())))
            .1
    }
}

// === impl LeaseManager ===

impl LeaseManager {
    /// Starts the thread for a lease.
    pub(super) fn manage(self: &Arc<Self>, held: Arc<HeldLease>, origin: Origin) -> Result<(), Error> {
        let record = held.record();
        let key = (record.owner, record.terms.family());
        lock(&self.leases).insert(key.clone(), Arc::clone(&held));
        let manager = Arc::clone(self);
        let work = move || manager.run_lease(&held, origin);
        match std::thread::Builder::new().stack_size(STACK).spawn(work) {
            Ok(_) => Ok(()),
            Err(cause) => {
                lock(&self.leases).remove(&key);
                Err(Error::io("start a thread", cause))
            }
        }
    }

    fn run_lease(&self, held: &HeldLease, origin: Origin) {
        if origin == Origin::Restored {
            self.confirm(held);
        }
        // If the daemon was stopped for too long, it sends one request before it treats the lease as lost.
        let mut asked = false;
        let mut attempts = Attempts { series: None, longest: self.settings.timing.resend_max };
        loop {
            let record = held.record();
            let pause = match record.due(state::now()) {
                Due::Nothing(time) => time,
                Due::Loss if asked => {
                    self.handle_loss(held, "it was not extended in time");
                    continue;
                }
                due => {
                    let began = Instant::now();
                    let waits = attempts.of(&due);
                    let wait = waits.next_wait().unwrap_or_default();
                    match self.extend(&record, &due, waits, held) {
                        Attempt::Settled => {
                            attempts.series = None;
                            Duration::ZERO
                        }
                        Attempt::Silence if record.terms.family() == Family::Ipv6 => {
                            let remaining = record.remaining(&due, state::now());
                            wait.saturating_sub(began.elapsed()).min(remaining)
                        }
                        Attempt::Silence => record.pause(&due, state::now()),
                        Attempt::Failed => record.pause(&due, state::now()).min(RETRY_MAX),
                        Attempt::Gone => return,
                    }
                }
            };
            asked = true;
            if held.sleep(pause) {
                return;
            }
        }
    }

    /// Confirms that a restored lease's IPv6 address still belongs on this link. If an extension is due anyway, that is
    /// enough.
    fn confirm(&self, held: &HeldLease) {
        let record = held.record();
        let Terms::V6 { v6_request, lease } = &record.terms else { return };
        if !matches!(record.due(state::now()), Due::Nothing(_)) || record.lost.is_some() {
            return;
        }
        if held.sleep(timing::random_tenth(timing::CONFIRM_DELAY * 10)) {
            return;
        }
        // If the interface is missing, the next action that is due will notice it.
        let Ok(Some(lease_link)) =
            self.find_lease_link(&record.netns, &record.owner.ifname, Some(record.inode))
        else {
            return;
        };
        let identity = Identity6::of(&record.owner, &v6_request.options);
        let is_over = || held.is_stopped();
        match self.client_v6(&lease_link, &identity, v6_request).confirm(lease, &is_over) {
            Ok(Confirmation::Belongs | Confirmation::Silence) => {}
            Ok(Confirmation::Elsewhere) => {
                self.handle_loss(
                    held,
                    "a DHCPv6 server says that it does not belong to the link (NotOnLink)",
                );
            }
            Err(error) => log!("dhcp: {}: {error}", describe(&record.owner)),
        }
    }

    /// Tries once to extend a lease.
    fn extend(&self, record: &Record, due: &Due, waits: &Waits, held: &HeldLease) -> Attempt {
        let name = describe(&record.owner);
        let lease_link = match self.find_lease_link(&record.netns, &record.owner.ifname, Some(record.inode)) {
            Ok(Some(lease_link)) => lease_link,
            Ok(None) => {
                log!("dhcp: {name}: lease forgotten: its namespace or interface no longer exists");
                let _ = self.forget(held);
                return Attempt::Gone;
            }
            // The interface may still exist.
            Err(error) => {
                log!("dhcp: {name}: {error}");
                return Attempt::Failed;
            }
        };
        let asked_at = state::now();
        match self.ask_to_extend(record, &lease_link, due, waits, &|| held.is_stopped()) {
            Ok(Extension::Granted(terms)) => {
                let mut record = lock(&held.record);
                (record.terms, record.granted) = (*terms, asked_at);
                drop(record);
                // The lease on disk is then merely older than the one in memory, and would be extended again.
                if let Err(error) = self.save() {
                    log!("dhcp: {name}: {error}");
                }
                Attempt::Settled
            }
            Ok(Extension::Refused) => {
                self.handle_loss(held, "the server refused to extend it");
                Attempt::Settled
            }
            Ok(Extension::Silence) => Attempt::Silence,
            // The link may be down for a long time.
            Err(error) => {
                log!("dhcp: {name}: {error}");
                Attempt::Silence
            }
        }
    }

    fn ask_to_extend(
        &self,
        record: &Record,
        lease_link: &LeaseLink,
        due: &Due,
        waits: &Waits,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Extension<Terms>, Error> {
        match &record.terms {
            Terms::V4 { options, priority, lease } => {
                let identity = identity(&record.owner);
                let client = self.client(lease_link, &identity, options)?;
                let extension = match due {
                    Due::Renewal => client.renew(lease, is_over)?,
                    _ => client.rebind(lease, is_over)?,
                };
                let (options, priority) = (options.clone(), *priority);
                Ok(extension.map(|lease| Terms::V4 { options, priority, lease }))
            }
            Terms::V6 { v6_request, lease } => {
                let identity = Identity6::of(&record.owner, &v6_request.options);
                let kind = if *due == Due::Renewal { Kind::Renew } else { Kind::Rebind };
                let extension =
                    self.client_v6(lease_link, &identity, v6_request).extend(kind, lease, waits, is_over)?;
                Ok(extension.map(|lease| Terms::V6 { v6_request: v6_request.clone(), lease }))
            }
        }
    }

    /// Takes a lost lease's address away from the container.
    fn handle_loss(&self, held: &HeldLease, why: &str) {
        let record = held.record();
        let (name, address) = (describe(&record.owner), record.terms.address());
        let then = match record.terms {
            Terms::V4 { .. } => "the link is set down",
            Terms::V6 { .. } => "the address is removed",
        };
        log!("dhcp: {name}: lease of {} is lost: {why}; {then}", address.addr());
        lock(&held.record).lost = Some(why.to_owned());
        if let Ok(Some(lease_link)) =
            self.find_lease_link(&record.netns, &record.owner.ifname, Some(record.inode))
        {
            let taken = match record.terms {
                Terms::V4 { .. } => set_up(&lease_link.netns, &lease_link.link, false),
                Terms::V6 { .. } => remove_address(&lease_link, address),
            };
            if let Err(error) = taken {
                log!("dhcp: {name}: {error}");
            }
        }
        let _ = self.save();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dhcp_failed_extension_is_not_retried_at_once() {
        let mut attempts = Attempts { series: None, longest: Duration::from_millis(1) };
        for due in [Due::Renewal, Due::Renewal, Due::Rebinding] {
            let wait = attempts.of(&due).next_wait().unwrap();
            assert!(wait >= MIN_PAUSE * 9 / 10, "{wait:?}");
        }
    }
}
