//! `weft-cni sandbox policy-counters`: reads the counters of the rules of network policies.
//!
//! The rules are where the journal says: on the host, or in the namespace of a pod. Rules in a pod may have been changed by
//! it, so their counters are what the pod shows.

use std::process::ExitCode;
use std::time::Duration;

use cni::Error;
use linux::Netns;
use rpc::diagnosis::{INTERFACES_MAX, PolicyCounter, PolicyCountersRequest};

use crate::meta_plugin::{enforcement, namespace};

/// Deadline of the command.
const DEADLINE: Duration = Duration::from_secs(8);

/// Prints the counters of each requested attachment, in the order of the request; `null` for one whose rules are gone.
pub fn run() -> Result<ExitCode, Error> {
    super::within(DEADLINE, print)
}

fn print() -> Result<ExitCode, Error> {
    let requests: Vec<PolicyCountersRequest> = super::request()?;
    let mut room = INTERFACES_MAX;
    let answers = requests.iter().map(|request| {
        let count = request.attachments.len().min(room);
        room -= count;
        read(request, count)
    });
    super::answer(&answers.collect::<Vec<_>>())
}

/// Returns the counters of the first attachments of a sandbox.
fn read(request: &PolicyCountersRequest, count: usize) -> Vec<Option<Vec<PolicyCounter>>> {
    let PolicyCountersRequest { sandbox, attachments } = request;
    let netns: Option<Netns> = namespace::open(sandbox).ok().flatten();
    let each = attachments.iter().enumerate().map(|(at, rules)| {
        if at < count { enforcement::counters(rules, netns.as_ref()).ok().flatten() } else { None }
    });
    each.collect()
}
