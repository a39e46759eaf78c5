//! `weft-cni sandbox counters`: reads the traffic counters on interfaces in sandboxes.
//!
//! Each interface is requested by name, so the cost does not depend on the links that a pod creates.

use std::process::ExitCode;
use std::time::Duration;

use cni::Error;
use linux::link::counters::{Counters, LinkCounters};
use plugin_support::failure::OrRefused;
use rpc::diagnosis::{CountersRequest, INTERFACES_MAX, InterfaceCounters, Traffic};

use crate::meta_plugin::namespace;

/// Deadline for the command.
const DEADLINE: Duration = Duration::from_secs(8);

/// Prints the counters for each requested interface, in request order; `null` for one that is gone.
pub fn run() -> Result<ExitCode, Error> {
    super::within(DEADLINE, print)
}

fn print() -> Result<ExitCode, Error> {
    let requests: Vec<CountersRequest> = super::request()?;
    let mut room = INTERFACES_MAX;
    let answers = requests.iter().map(|request| {
        let count = request.interfaces.len().min(room);
        room -= count;
        read(request, count)
    });
    super::answer(&answers.collect::<Vec<_>>())
}

/// Returns the counters for a sandbox's first interfaces. A sandbox that cannot be read has none.
fn read(request: &CountersRequest, count: usize) -> Vec<Option<InterfaceCounters>> {
    let CountersRequest { sandbox, interfaces } = request;
    let opened =
        namespace::open(sandbox).and_then(|netns| netns.map(|netns| netns.rtnl().or_refused()).transpose());
    let Ok(Some(mut net)) = opened else { return vec![None; interfaces.len()] };
    let each = interfaces.iter().enumerate().map(|(at, name)| {
        let counters = if at < count { net.link_counters(name).ok().flatten() } else { None };
        counters.map(|LinkCounters { received, sent }| InterfaceCounters {
            received: traffic(received),
            sent: traffic(sent),
        })
    });
    each.collect()
}

fn traffic(counters: Counters) -> Traffic {
    let Counters { packets, bytes, errors, dropped } = counters;
    Traffic { bytes, packets, errors, dropped }
}
