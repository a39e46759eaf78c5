//! Processor time by calls, by the service that answers them, by API server and etcd, and by the rest of the machine,
//! which includes kernel threads and other processes.
//!
//! Source: proc(5), `/proc/PID/stat`, `/proc/stat`; 100 ticks a second.

use std::fs;
use std::ops::{AddAssign, Sub};

use rig::Machine;

const TICK_MS: f64 = 10.0;

/// Processor time in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    /// Plugins and child processes.
    pub(crate) calls: f64,
    /// The agent or the daemon, and child processes.
    pub(crate) service: f64,
    /// kube-apiserver and etcd.
    pub(crate) api: f64,
    /// Other processes, including this benchmark.
    pub(crate) rest: f64,
    /// Idle time.
    pub(crate) idle: f64,
}

impl Spent {
    /// Processor time since the machine started.
    pub(crate) fn now(machine: &Machine, service: Option<&str>) -> Spent {
        let own = times(&fs::read_to_string("/proc/self/stat").expect("times of this process"));
        let of = |service: &str| {
            let id = machine.read(format!("/run/services/{service}.pid")).expect("a running service");
            let stat = fs::read_to_string(machine.reach(&format!("/proc/{}/stat", id.trim())));
            let times = times(&stat.expect("times of the service"));
            times[0] + times[1]
        };
        let service = service.map_or(0.0, of);
        let api = of("kube-apiserver") + of("etcd");
        let (busy, idle) = whole(&fs::read_to_string("/proc/stat").expect("the machine's times"));
        Spent { calls: own[1], service, api, rest: busy - own[1] - service - api, idle }
    }

    /// Shares in percent, as text.
    pub(crate) fn shares(&self) -> String {
        let Spent { calls, service, api, rest, idle } = *self;
        let all = (calls + service + api + rest + idle).max(1.0);
        let parts = [("calls", calls), ("service", service), ("API", api), ("rest", rest), ("idle", idle)];
        parts.map(|(name, part)| format!("{name} {:.0} %", 100.0 * part / all)).join(", ")
    }
}

impl Sub for Spent {
    type Output = Spent;

    fn sub(self, before: Spent) -> Spent {
        Spent {
            calls: self.calls - before.calls,
            service: self.service - before.service,
            api: self.api - before.api,
            rest: self.rest - before.rest,
            idle: self.idle - before.idle,
        }
    }
}

impl AddAssign for Spent {
    fn add_assign(&mut self, more: Spent) {
        self.calls += more.calls;
        self.service += more.service;
        self.api += more.api;
        self.rest += more.rest;
        self.idle += more.idle;
    }
}

/// Processor time of a process, and of children it has waited for, in milliseconds.
fn times(stat: &str) -> [f64; 2] {
    // The name, in parentheses, may contain spaces.
    let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
    let ticks = |index: usize| fields[index].parse::<f64>().expect("ticks") * TICK_MS;
    [ticks(11) + ticks(12), ticks(13) + ticks(14)]
}

/// Busy and idle time of all processors.
fn whole(stat: &str) -> (f64, f64) {
    let line = stat.lines().next().expect("all processors");
    let ticks: Vec<f64> = line.split_whitespace().skip(1).filter_map(|text| text.parse().ok()).collect();
    // user nice system idle iowait irq softirq steal; guests are counted in the first two.
    let idle = ticks[3] + ticks[4];
    ((ticks.iter().take(8).sum::<f64>() - idle) * TICK_MS, idle * TICK_MS)
}
