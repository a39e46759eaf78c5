//! GC: gives back, one after another, the leases of attachments that are no more.
//!
//! Rules:
//! - who asks is answered in time, whatever servers do: what is not given back by then is given back afterwards, and what
//!   fails then is in the log;
//! - an attachment that comes back meanwhile keeps what it has, and one that is on its way is left alone;
//! - what a daemon that is killed meanwhile has not given back is on disk still: the next GC finds it.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use cni::Error;
use cni::invocation::ValidAttachment;
use plugin_support::log;

use super::held_lease::lock;
use super::{LeaseManager, STACK, describe};
use crate::owner::Owner;

/// How long who asks waits, which is half of what the plugin would: a server of DHCPv6 that is gone costs three seconds for
/// each lease.
const ANSWER: Duration = Duration::from_secs(15);

impl LeaseManager {
    /// Gives back every lease of a network that is not in the list.
    pub fn retain(self: &Arc<Self>, network: &str, valid: &[ValidAttachment]) -> Result<(), Error> {
        let stale = self.invalid(network, valid);
        if stale.is_empty() {
            return Ok(());
        }
        let mut left = stale.len();
        lock(&self.stale).extend(stale.iter().cloned());
        let (tell, told) = mpsc::channel();
        let manager = Arc::clone(self);
        let work = move || {
            for owner in stale {
                // Who has come back, or was given back by a DEL, is not among them any more.
                let is_stale = lock(&manager.stale).remove(&owner);
                let outcome = if is_stale { manager.release(&owner) } else { Ok(()) };
                if let Err(mpsc::SendError(Err(error))) = tell.send(outcome) {
                    log!("dhcp: {}: {error}", describe(&owner));
                }
            }
        };
        std::thread::Builder::new()
            .stack_size(STACK)
            .spawn(work)
            .map_err(|cause| Error::io("start a thread", cause))?;
        let (end, mut errors) = (Instant::now() + ANSWER, Vec::new());
        while left > 0 {
            let Ok(outcome) = told.recv_timeout(end.saturating_duration_since(Instant::now())) else { break };
            errors.extend(outcome.err());
            left -= 1;
        }
        if left > 0 {
            log!("dhcp: {network}: {left} attachments that are no more are still to give their leases back");
        }
        cni::error::collected(errors)
    }

    /// Whose leases are of this network and not in the list.
    fn invalid(&self, network: &str, valid: &[ValidAttachment]) -> Vec<Owner> {
        let is_valid = |owner: &Owner| {
            valid.iter().any(|one| one.container_id == owner.container && one.ifname == owner.ifname)
        };
        let mut owners: Vec<Owner> = lock(&self.orphans).keys().cloned().collect();
        owners.extend(lock(&self.leases).keys().map(|(owner, _)| owner.clone()));
        owners.sort();
        owners.dedup();
        let pending = lock(&self.pending);
        owners.retain(|owner| owner.network == network && !is_valid(owner) && !pending.contains_key(owner));
        owners
    }
}
