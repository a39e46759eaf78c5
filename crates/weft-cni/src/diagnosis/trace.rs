//! `weft-cni sandbox trace`: follows the path of packets from one pod to another pod of the same network, step by step.
//!
//! ```text
//!   interface ─ address ─ route ─► neighbour ─► mtu ─► port, vlan ─► firewall ─► probe
//!   both pods   both pods  both    of the next hop     on the host   on the host  from the first pod
//! ```
//!
//! - The probe is sent before the neighbour and the firewall are examined, and reported last: it resolves the
//!   neighbour, and a capture on the receiving interface shows where the packets are lost.
//! - Nothing is changed. Routes and neighbours are requested one by one, because a pod can have any number of them.
//! - If a step makes the following ones impossible, they are left out.

mod bridge_ports;
mod host_path;
mod probe;

use std::net::IpAddr;
use std::process::ExitCode;
use std::time::Duration;

use cni::Error;
use linux::link::Link;
use linux::neighbour::Neighbour;
use linux::route::lookup::FoundRoute;
use linux::{Netns, Rtnl};
use plugin_support::failure::OrRefused;
use rpc::diagnosis::{TraceEnd, TraceRequest, TraceStep, Verdict};

use crate::meta_plugin::namespace;
use host_path::HostPath;
use probe::{Answer, Probe};

/// Deadline for the command.
const DEADLINE: Duration = Duration::from_secs(25);
/// Place that steps on the host have.
const HOST: &str = "host";

/// Steps that were taken.
#[derive(Debug, Default)]
struct Steps(Vec<TraceStep>);

/// Pod on this node.
struct Pod<'a> {
    end: &'a TraceEnd,
    netns: Netns,
    net: Rtnl,
    link: Link,
}

/// Prints the steps on the path.
pub fn run() -> Result<ExitCode, Error> {
    super::within(DEADLINE, || {
        let request: TraceRequest = super::request()?;
        let mut steps = Steps::default();
        follow(&request, &mut steps)?;
        super::answer(&steps.0)
    })
}

// === impl Steps ===

impl Steps {
    fn push(&mut self, step: &str, place: &str, verdict: Verdict, (found, hint): (String, &str)) {
        self.0.push(TraceStep {
            step: step.to_owned(),
            place: place.to_owned(),
            verdict,
            found,
            hint: hint.to_owned(),
        });
    }

    fn ok(&mut self, step: &str, place: &str, found: impl Into<String>) {
        self.push(step, place, Verdict::Ok, (found.into(), ""));
    }

    fn fault(&mut self, step: &str, place: &str, found: impl Into<String>, hint: &str) {
        self.push(step, place, Verdict::Fault, (found.into(), hint));
    }

    fn unknown(&mut self, step: &str, place: &str, found: impl Into<String>, hint: &str) {
        self.push(step, place, Verdict::Unknown, (found.into(), hint));
    }
}

// === impl Pod ===

impl<'a> Pod<'a> {
    /// Opens a pod and examines the interface; `None` if the path ends there.
    fn open(end: &'a TraceEnd, steps: &mut Steps) -> Result<Option<Pod<'a>>, Error> {
        let TraceEnd { pod, interface, .. } = end;
        let Some(sandbox) = &end.sandbox else { return Ok(None) };
        let Some(netns) = namespace::open(sandbox)? else {
            let found = format!("its network namespace {} no longer exists", sandbox.netns);
            steps.fault("interface", pod, found, "recreate the pod");
            return Ok(None);
        };
        let mut net = netns.rtnl().or_refused()?;
        let Some(link) = net.find_link(interface).or_refused()? else {
            steps.fault("interface", pod, format!("{interface} does not exist"), "recreate the pod");
            return Ok(None);
        };
        if !link.up {
            let hint =
                "find the process that set it down; `ip link set NAME up` in the pod, or recreate the pod";
            steps.fault("interface", pod, format!("{interface} is down"), hint);
            return Ok(None);
        }
        if !link.carrier {
            let hint = "set the other end of the interface up: see the step `port`";
            steps.fault("interface", pod, format!("{interface} is up, but has no carrier"), hint);
        } else {
            steps.ok("interface", pod, format!("{interface} is up ({})", kind_of(&link)));
        }
        Ok(Some(Pod { end, netns, net, link }))
    }

    fn address(&mut self, address: IpAddr, steps: &mut Steps) -> Result<(), Error> {
        let all = self.net.addresses(self.link.index, &self.link.name).or_refused()?;
        let (pod, name) = (&self.end.pod, &self.link.name);
        match all.iter().find(|found| found.address.addr() == address) {
            Some(found) if found.duplicate => {
                let hint = "find the other owner of the address in the network";
                steps.fault("address", pod, format!("{address} on {name} has another owner, too"), hint);
            }
            Some(found) => steps.ok("address", pod, format!("{name} has {}", found.address)),
            None => steps.fault("address", pod, format!("{name} lost {address}"), "recreate the pod"),
        }
        Ok(())
    }

    /// Examines the route to an address on the other pod.
    fn route(&mut self, from: IpAddr, to: IpAddr, steps: &mut Steps) -> Result<Option<FoundRoute>, Error> {
        let (pod, name) = (&self.end.pod, &self.link.name);
        let Some(found) = self.net.find_route(to, from).or_refused()? else {
            let hint = "add a route to the network definition (`routes` of its ipam), then recreate the pod";
            steps.fault("route", pod, format!("no route to {to} from {from}"), hint);
            return Ok(None);
        };
        let via = found.gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
        if found.is_local {
            let hint = "give the pods different addresses";
            steps.fault("route", pod, format!("{to} is an address of the pod itself"), hint);
            return Ok(None);
        }
        if found.link != self.link.index {
            let other =
                self.net.link_at(found.link).map_or_else(|_| found.link.to_string(), |link| link.name);
            let found = format!("packets to {to} leave by {other}{via}, not by {name}");
            let hint = "add a route through the network, or the plugin `sbr`, to its definition";
            steps.fault("route", pod, found, hint);
            return Ok(None);
        }
        steps.ok("route", pod, format!("{to}{via} dev {name} table {}", found.table));
        Ok(Some(found))
    }

    /// Examines the next hop, after a packet was sent to it. Returns whether packets reach it.
    fn neighbour(&mut self, next: IpAddr, steps: &mut Steps) -> bool {
        let pod = &self.end.pod;
        match self.net.neighbour(self.link.index, next) {
            Ok(Neighbour::Resolved(mac)) if mac.is_empty() => {
                steps.ok("neighbour", pod, format!("{} needs no address resolution", self.link.name));
            }
            Ok(Neighbour::Resolved(mac)) => {
                let mac = linux::link::mac_text(&mac);
                steps.ok("neighbour", pod, format!("{next} has {mac}"));
            }
            Ok(Neighbour::Unresolved) => {
                let hint = "the owner of the address is down, in another VLAN or on another segment: see the other steps";
                steps.fault("neighbour", pod, format!("{next} does not answer address resolution"), hint);
                return false;
            }
            Ok(Neighbour::Unknown) => {
                steps.unknown("neighbour", pod, format!("the kernel has no entry for {next}"), "");
            }
            Err(error) => steps.unknown("neighbour", pod, error.to_string(), ""),
        }
        true
    }
}

fn kind_of(link: &Link) -> &str {
    if link.kind.is_empty() { "device" } else { &link.kind }
}

/// Takes the steps.
fn follow(request: &TraceRequest, steps: &mut Steps) -> Result<(), Error> {
    let TraceRequest { from, to, tcp } = request;
    let opened = Pod::open(from, steps)?;
    let is_remote = to.sandbox.is_none();
    let mut receiver = Pod::open(to, steps)?;
    let Some(mut sender) = opened else { return Ok(()) };
    if receiver.is_none() && !is_remote {
        return Ok(());
    }
    let pairs = from.addresses.iter().flat_map(|one| to.addresses.iter().map(move |other| (*one, *other)));
    let Some((source, target)) = pairs.into_iter().find(|(one, other)| one.is_ipv4() == other.is_ipv4())
    else {
        let found = format!("{} and {} have no addresses of one family on the network", from.pod, to.pod);
        steps.fault("address", &from.pod, found, "add an `ipam` to the network definition");
        return Ok(());
    };
    sender.address(source, steps)?;
    let route = sender.route(source, target, steps)?;
    if let Some(receiver) = &mut receiver {
        receiver.address(target, steps)?;
        receiver.route(target, source, steps)?;
    }
    let probe = Probe { from: source, to: target, tcp: *tcp };
    let sent = probe.send(&sender, receiver.as_ref())?;
    let next = route.as_ref().and_then(|route| route.gateway).unwrap_or(target);
    let is_resolved = route.is_none() || sender.neighbour(next, steps);
    let path = HostPath::find(&mut sender, receiver.as_mut())?;
    path.examine((route.as_ref(), is_remote.then_some(&sent)), steps)?;
    let is_lost = is_resolved && route.is_some() && sent.is_lost();
    host_path::filters((from, to), is_lost, steps);
    let cause = if !is_resolved { Some("neighbour") } else { is_lost.then_some("firewall") };
    report(&probe, &sent.answer, (cause, to), steps);
    Ok(())
}

/// Adds the probe's step.
fn report(probe: &Probe, answer: &Answer, (cause, to): (Option<&str>, &TraceEnd), steps: &mut Steps) {
    let place = &to.pod;
    let other_side =
        format!("examine the other side: run `weft trace` in the other direction on node {}", to.node);
    let sent = probe.describe();
    match answer {
        Answer::Replied(took) => {
            steps.ok("probe", place, format!("{sent}: answered in {:.3} ms", took.as_secs_f64() * 1e3));
        }
        Answer::Refused => {
            let hint = "start a process that listens on the port and on the address of this network, or remove the filter \
                that rejects the port";
            steps.fault("probe", place, format!("{sent}: refused; the path itself works"), hint);
        }
        Answer::Unreachable(why) => {
            steps.fault("probe", place, format!("{sent}: {why}"), "see the faults above");
        }
        Answer::Silent { pings } => {
            let found = if *pings {
                format!("{sent}: no answer, but {} answers pings: a packet filter drops the port", probe.to)
            } else {
                format!("{sent}: no answer")
            };
            let hint = match cause {
                Some("neighbour") => "see the step `neighbour`",
                Some(_) => "see the step `firewall`",
                None if to.sandbox.is_none() => &other_side,
                None => "the packets reached the pod: look at its own packet filter and at its processes",
            };
            steps.fault("probe", place, found, hint);
        }
    }
}
