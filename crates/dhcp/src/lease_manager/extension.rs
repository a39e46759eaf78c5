//! The thread of one lease: sleeps until the lease is due for extension, extends it, and handles its loss.
//!
//! Source: RFC 2131 §4.4.5, RFC 8415 §18.2.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cni::Error;
use plugin_support::log;

use super::held_lease::{HeldLease, lock};
use super::place::{Place, identity, set_up, take_away};
use super::{LeaseManager, STACK, describe};
use crate::owner::Family;
use crate::state::{self, Record};
use crate::terms::{Terms, Times};
use crate::v4::exchange::Extension;
use crate::v6::exchange::Confirmation;
use crate::v6::identity::Identity as Identity6;
use crate::v6::message::Kind;
use crate::v6::timing::{self, Waits};

/// The shortest time between two attempts to extend.
const PATIENCE: Duration = Duration::from_secs(1);
/// The longest time until it is tried again what this node could not do.
const SOON: Duration = Duration::from_secs(5);

/// Where a lease comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A server said so just now.
    Acquired,
    /// The last daemon had it.
    Restored,
}

/// What there is to do for a lease now.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    Nothing(Duration),
    Renewal,
    Rebinding,
    Loss,
}

/// What came of an attempt to extend a lease.
enum Attempt {
    /// It was granted, or is lost.
    Settled,
    /// Nobody answered.
    Silence,
    /// It could not be looked at: something is lacking on this node.
    Failed,
    /// There is nothing to extend any more.
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

    /// How long there is until something else is due.
    fn left(&self, due: &Due, now: u64) -> Duration {
        let age = Duration::from_millis(now.saturating_sub(self.granted));
        let Times { renewal: _, rebinding, expiry } = self.terms.times();
        match due {
            Due::Renewal => rebinding,
            _ => expiry.unwrap_or(Duration::from_secs(3600) + age),
        }
        .saturating_sub(age)
    }

    /// How long to wait after an attempt that came to nothing: half of what is left, as RFC 2131 has it; but anybody is
    /// asked as soon as it is time for that, also if the last attempt with the server took until then.
    fn pause(&self, due: &Due, now: u64) -> Duration {
        let left = self.left(due, now);
        match due {
            Due::Renewal => (left / 2).max(PATIENCE).min(left),
            _ => (left / 2).max(PATIENCE).min(left.max(PATIENCE)),
        }
    }
}

/// The attempts to extend one lease since the last that came to something.
struct Attempts {
    /// What was due at the last one, and how long to wait after each.
    series: Option<(std::mem::Discriminant<Due>, Waits)>,
    most: Duration,
}

impl Attempts {
    /// The waits of what is due now: an exchange of its own for each kind of question.
    fn of(&mut self, due: &Due) -> &mut Waits {
        let kind = std::mem::discriminant(due);
        let series = self.series.take().filter(|(of, _)| *of == kind);
        &mut self
            .series
            .insert(series.unwrap_or((kind, timing::EXTEND.at_most(self.most.max(PATIENCE)).begin())))
            .1
    }
}

// === impl LeaseManager ===

impl LeaseManager {
    /// Has a lease looked after.
    pub(super) fn keep(self: &Arc<Self>, held: Arc<HeldLease>, origin: Origin) -> Result<(), Error> {
        let record = held.record();
        let key = (record.owner, record.terms.family());
        lock(&self.leases).insert(key.clone(), Arc::clone(&held));
        let manager = Arc::clone(self);
        let work = move || manager.look_after(&held, origin);
        match std::thread::Builder::new().stack_size(STACK).spawn(work) {
            Ok(_) => Ok(()),
            Err(cause) => {
                lock(&self.leases).remove(&key);
                Err(Error::io("start a thread", cause))
            }
        }
    }

    fn look_after(&self, held: &HeldLease, origin: Origin) {
        if origin == Origin::Restored {
            self.confirm(held);
        }
        // A daemon that was away for too long asks once before it believes that all is lost.
        let mut asked = false;
        let mut attempts = Attempts { series: None, most: self.settings.timing.resend_max };
        loop {
            let record = held.record();
            let pause = match record.due(state::now()) {
                Due::Nothing(time) => time,
                Due::Loss if asked => {
                    self.lose(held, "it was not extended in time");
                    continue;
                }
                due => {
                    let began = Instant::now();
                    let waits = attempts.of(&due);
                    let wait = waits.again().unwrap_or_default();
                    match self.extend(&record, &due, waits, held) {
                        Attempt::Settled => {
                            attempts.series = None;
                            Duration::ZERO
                        }
                        Attempt::Silence if record.terms.family() == Family::Ipv6 => {
                            let left = record.left(&due, state::now());
                            wait.saturating_sub(began.elapsed()).min(left)
                        }
                        Attempt::Silence => record.pause(&due, state::now()),
                        Attempt::Failed => record.pause(&due, state::now()).min(SOON),
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

    /// Whether an address of IPv6 that the last daemon had still belongs to its link. Who is too late for that asks for more.
    fn confirm(&self, held: &HeldLease) {
        let record = held.record();
        let Terms::V6 { wish, lease } = &record.terms else { return };
        if !matches!(record.due(state::now()), Due::Nothing(_)) || record.lost.is_some() {
            return;
        }
        if held.sleep(timing::tenth(timing::CONFIRM_DELAY * 10)) {
            return;
        }
        // One that is gone is found out when something is due.
        let Ok(Some(place)) = self.seek(&record.netns, &record.owner.ifname, Some(record.inode)) else {
            return;
        };
        let identity = Identity6::of(&record.owner, &wish.options);
        let is_over = || held.is_stopped();
        match self.client_v6(&place, &identity, wish).confirm(lease, &is_over) {
            Ok(Confirmation::Belongs | Confirmation::Silence) => {}
            Ok(Confirmation::Elsewhere) => {
                self.lose(held, "a DHCPv6 server says that it does not belong to the link (NotOnLink)");
            }
            Err(error) => log!("dhcp: {}: {error}", describe(&record.owner)),
        }
    }

    /// One attempt to extend.
    fn extend(&self, record: &Record, due: &Due, waits: &Waits, held: &HeldLease) -> Attempt {
        let name = describe(&record.owner);
        let place = match self.seek(&record.netns, &record.owner.ifname, Some(record.inode)) {
            Ok(Some(place)) => place,
            Ok(None) => {
                log!("dhcp: {name}: forgotten: its namespace or interface is gone");
                let _ = self.forget(held);
                return Attempt::Gone;
            }
            // It may be there all the same.
            Err(error) => {
                log!("dhcp: {name}: {error}");
                return Attempt::Failed;
            }
        };
        let asked_at = state::now();
        match self.ask_to_extend(record, &place, due, waits, &|| held.is_stopped()) {
            Ok(Extension::Granted(terms)) => {
                let mut record = lock(&held.record);
                (record.terms, record.granted) = (*terms, asked_at);
                drop(record);
                // Not written down it is only older than it is: it would be extended again.
                if let Err(error) = self.save() {
                    log!("dhcp: {name}: {error}");
                }
                Attempt::Settled
            }
            Ok(Extension::Refused) => {
                self.lose(held, "the server refused to extend it");
                Attempt::Settled
            }
            Ok(Extension::Silence) => Attempt::Silence,
            // Its link may be down for long.
            Err(error) => {
                log!("dhcp: {name}: {error}");
                Attempt::Silence
            }
        }
    }

    fn ask_to_extend(
        &self,
        record: &Record,
        place: &Place,
        due: &Due,
        waits: &Waits,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Extension<Terms>, Error> {
        match &record.terms {
            Terms::V4 { options, priority, lease } => {
                let identity = identity(&record.owner);
                let client = self.client(place, &identity, options)?;
                let extension = match due {
                    Due::Renewal => client.renew(lease, is_over)?,
                    _ => client.rebind(lease, is_over)?,
                };
                let (options, priority) = (options.clone(), *priority);
                Ok(extension.map(|lease| Terms::V4 { options, priority, lease }))
            }
            Terms::V6 { wish, lease } => {
                let identity = Identity6::of(&record.owner, &wish.options);
                let kind = if *due == Due::Renewal { Kind::Renew } else { Kind::Rebind };
                let extension = self.client_v6(place, &identity, wish).extend(kind, lease, waits, is_over)?;
                Ok(extension.map(|lease| Terms::V6 { wish: wish.clone(), lease }))
            }
        }
    }

    /// The address is not the container's any more.
    fn lose(&self, held: &HeldLease, why: &str) {
        let record = held.record();
        let (name, address) = (describe(&record.owner), record.terms.address());
        let then = match record.terms {
            Terms::V4 { .. } => "the link goes down",
            Terms::V6 { .. } => "it is taken away",
        };
        log!("dhcp: {name}: {} is lost: {why}; {then}", address.addr());
        lock(&held.record).lost = Some(why.to_owned());
        if let Ok(Some(place)) = self.seek(&record.netns, &record.owner.ifname, Some(record.inode)) {
            let taken = match record.terms {
                Terms::V4 { .. } => set_up(&place.netns, &place.link, false),
                Terms::V6 { .. } => take_away(&place, address),
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
    fn an_attempt_that_fails_at_once_is_not_repeated_at_once_whatever_the_daemon_was_told() {
        let mut attempts = Attempts { series: None, most: Duration::from_millis(1) };
        for due in [Due::Renewal, Due::Renewal, Due::Rebinding] {
            let wait = attempts.of(&due).again().unwrap();
            assert!(wait >= PATIENCE * 9 / 10, "{wait:?}");
        }
    }
}
