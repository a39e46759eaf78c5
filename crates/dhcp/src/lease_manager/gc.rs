//! GC: releases leases whose attachments no longer exist, one after the other.
//!
//! - The client gets an answer within a timeout, no matter how slow the servers are. Leases that remain are released
//!   afterwards, and errors are logged.
//! - An attachment that is added again meanwhile keeps the leases, and one that is being added is left alone.
//! - If the daemon is killed, the remaining leases are still on disk, and the next GC finds them.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use cni::Error;
use cni::invocation::ValidAttachment;
use plugin_support::log;

use super::held_lease::lock;
use super::{LeaseManager, STACK, describe};
use crate::owner::Owner;

/// Time until the client gets an answer, half the plugin's own timeout. A DHCPv6 server that does not answer costs
/// three seconds per lease.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

impl LeaseManager {
    /// Releases every lease in a network whose attachment is not in the list.
    pub fn retain(self: &Arc<Self>, network: &str, valid: &[ValidAttachment]) -> Result<(), Error> {
        let stale = self.invalid(network, valid);
        if stale.is_empty() {
            return Ok(());
        }
        let mut remaining = stale.len();
        lock(&self.stale).extend(stale.iter().cloned());
        let (sender, receiver) = mpsc::channel();
        let manager = Arc::clone(self);
        let work = move || {
            for owner in stale {
                // An ADD or DEL for the attachment removes the owner from the set, and then nothing must be released
                // here.
                let is_stale = lock(&manager.stale).remove(&owner);
                let outcome = if is_stale { manager.release(&owner) } else { Ok(()) };
                if let Err(mpsc::SendError(Err(error))) = sender.send(outcome) {
                    log!("dhcp: {}: {error}", describe(&owner));
                }
            }
        };
        std::thread::Builder::new()
            .stack_size(STACK)
            .spawn(work)
            .map_err(|cause| Error::io("start a thread", cause))?;
        let (end, mut errors) = (Instant::now() + ANSWER_TIMEOUT, Vec::new());
        while remaining > 0 {
            let Ok(outcome) = receiver.recv_timeout(end.saturating_duration_since(Instant::now())) else {
                break;
            };
            errors.extend(outcome.err());
            remaining -= 1;
        }
        if remaining > 0 {
            log!("dhcp: {network}: leases of {remaining} deleted attachments are still to be released");
        }
        cni::error::collected(errors)
    }

    /// Lists the owners that have leases in this network and are not in the list.
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
