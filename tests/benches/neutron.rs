//! Ports of pods beside Neutron's own work: what an ADD costs beyond a port's activation, what a burst of pods costs
//! Neutron, how long a controller takes that finds a thousand ports.
//!
//! ```text
//!   ADD      a pod with 3 networks, ports ready        beside   the same ports put in with ovs-vsctl until OVN has them
//!   burst    100 pods with 3 networks, pools warm      beside   Neutron making one port after the other
//!   restart  1000 ports of pods and pools              until the new controller leads
//! ```
//!
//! Usage: `benches/neutron`; `PODS` (default 100) and `PORTS` (default 1000) make it shorter, `ONLY` is `add` or `burst`. Figures are medians unless they say otherwise.

#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a bench prints its figures, and fails by panicking"
)]

use std::time::{Duration, Instant};

use rig::OpenStack;
use rig::cluster::bridge;
use rig::neutron::{Mode, Subnet};
use rig::openstack::{BOUND, FIRST, VIF, configuration, eventually};
use serde_json::{Value, json};
use testkit::host;

const ROUNDS: usize = 15;
/// How long Neutron may take for the ports of all pools.
const WARMING: Duration = Duration::from_secs(1200);
const NETWORKS: &str = "net-0,net-1,net-2";

fn main() {
    println!("| what | figure | beside | goal |\n|---|---|---|---|");
    // Containers are named after the thread.
    let only = std::env::var("ONLY").unwrap_or_default();
    for (name, bench) in [("add", add as fn()), ("burst", burst)] {
        if !only.is_empty() && only != name {
            continue;
        }
        std::thread::Builder::new().name(name.to_owned()).spawn(bench).unwrap().join().unwrap();
    }
}

fn count(variable: &str, usual: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn milliseconds(time: Duration) -> u128 {
    time.as_millis()
}

fn networks(cluster: &OpenStack) -> Vec<Subnet> {
    (0..3).map(|n| cluster.network(&format!("net-{n}"), &format!("10.4{n}.0.0/16"), &json!({}))).collect()
}

/// How long it takes from putting a link in until OVN has installed it, for three of them one after the other.
fn floor(cluster: &OpenStack, subnets: &[Subnet], round: usize) -> Duration {
    let ports: Vec<Value> = subnets
        .iter()
        .map(|subnet| {
            let new = json!({ "port": { "network_id": subnet.network, "device_owner": "compute:bench",
                "binding:host_id": FIRST } });
            cluster.neutron.api("POST", "ports", Some(&new))["port"].clone()
        })
        .collect();
    let mut took = Duration::ZERO;
    for (number, port) in ports.iter().enumerate() {
        let (link, peer) = (format!("f{round}x{number}"), format!("g{round}x{number}"));
        let words = ["ip", "link", "add", &link, "up", "type", "veth", "peer", "name", &peer];
        cluster.machine.run(words);
        let id = port["id"].as_str().unwrap();
        let script = "ovs-vsctl --db=\"unix:$0\" add-port br-int \"$1\" -- set Interface \"$1\" external_ids:iface-id=\"$2\"
            exec ovs-vsctl --db=\"unix:$0\" wait-until Interface \"$1\" external_ids:ovn-installed=true";
        let started = Instant::now();
        cluster.machine.run(["sh", "-c", script, &cluster.neutron.ovsdb(FIRST), &link, id]);
        took += started.elapsed();
    }
    took
}

fn add() {
    let Some(cluster) = OpenStack::new(host!(), Mode::Open, &[FIRST]) else { return };
    let subnets = networks(&cluster);
    let rules = json!({ "pool": { "enabled": true, "min": 5, "batch": 10 } });
    cluster.start_controller("controller", &rules, &[]);
    cluster.start_agent(FIRST, &[]);
    cluster.wait_until_leading("controller");
    let (mut ours, mut bare, mut active) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let name = format!("pod{round}");
        let uid = cluster.pod(FIRST, &name, NETWORKS);
        let _ = cluster.wait_for_vifs(&name);
        let pod = cluster.machine.pod(&name);
        let started = Instant::now();
        cluster
            .attachment(FIRST, &pod, &name, &uid)
            .add(&configuration(FIRST, &bridge("home", 10)))
            .success();
        ours.push(started.elapsed());
        eventually("all are ACTIVE", || {
            let text = cluster.annotation(&name, VIF)?;
            (text.matches(r#""active":true"#).count() == 3).then_some(())
        });
        active.push(started.elapsed());
        bare.push(floor(&cluster, &subnets, round));
    }
    let (ours, bare, active) = (median(ours), median(bare), median(active));
    println!(
        "| ADD of a default network and 3 ports | {} ms | {} ms: 3 ports by ovs-vsctl until OVN has them | ≤ 30 ms more |",
        milliseconds(ours),
        milliseconds(bare)
    );
    println!("| from that ADD until all 3 are written as ACTIVE | {} ms | | |", milliseconds(active));
}

fn burst() {
    let Some(cluster) = OpenStack::beside_api(host!()) else { return };
    let (subnets, pods) = (networks(&cluster), count("PODS", 100));
    // Neutron alone: one port after the other.
    let started = Instant::now();
    let few = 30;
    for number in 0..few {
        let new = json!({ "port": { "network_id": subnets[number % 3].network, "binding:host_id": BOUND } });
        let _ = cluster.neutron.api("POST", "ports", Some(&new));
    }
    let serial = started.elapsed() / u32::try_from(few).unwrap() * u32::try_from(pods * 3).unwrap();
    let rules = json!({ "pool": { "enabled": true, "min": pods, "batch": pods } });
    cluster.start_controller("one", &rules, &[]);
    cluster.wait_until_leading("one");
    // The first pod makes the pools.
    cluster.pod(BOUND, "first", NETWORKS);
    let waiting = || cluster.figure("one", "weft_neutron_pool_ports ").unwrap_or_default();
    let started = Instant::now();
    // The first pod takes one of each pool, which is then filled once more.
    while waiting() < u64::try_from((2 * pods - 1) * 3).unwrap() {
        assert!(started.elapsed() < WARMING, "the pools are not warm: {}", waiting());
        std::thread::sleep(Duration::from_secs(1));
    }
    let requests = || cluster.figure("one", "weft_neutron_requests_total ").unwrap();
    let done =
        || cluster.figure("one", r#"weft_neutron_cases_total{outcome="allocated"} "#).unwrap_or_default();
    let names: Vec<String> = (0..pods).map(|number| format!("pod{number}")).collect();
    let (before, finished, started) = (requests(), done(), Instant::now());
    cluster.pods(BOUND, &names, NETWORKS);
    let made = started.elapsed();
    eventually("all have their ports", || (done() - finished >= u64::try_from(pods).unwrap()).then_some(()));
    let took = started.elapsed();
    let asked = requests() - before;
    println!(
        "| {pods} pods × 3 ports at once, pools warm | {} ms, of which the pods' own creation {} ms | {} ms: Neutron, one port after the other | |",
        milliseconds(took),
        milliseconds(made),
        milliseconds(serial)
    );
    println!("| requests to Neutron a pod | {:.2} | 3 without pools | ≤ 0.5 |", asked as f64 / pods as f64);
    restart(&cluster, &subnets);
}

fn restart(cluster: &OpenStack, subnets: &[Subnet]) {
    cluster.machine.stop("one", "TERM");
    let there = cluster.neutron.pod_ports().len();
    let (tags, wanted) = (["weft-cluster=kubernetes"], count("PORTS", 1000));
    for part in 0..wanted.saturating_sub(there).div_ceil(100) {
        let new = json!({ "network_id": subnets[part % 3].network, "binding:host_id": BOUND,
            "device_owner": "compute:kuryr", "tags": tags });
        let _ = cluster.neutron.api("POST", "ports", Some(&json!({ "ports": vec![new; 100] })));
    }
    let there = cluster.neutron.pod_ports().len();
    let started = Instant::now();
    cluster.start_controller("two", &json!({ "pool": { "enabled": true, "min": 5 } }), &[]);
    cluster.wait_until_leading("two");
    println!(
        "| a controller that finds {there} ports, until it leads and has compared them | {} ms | | ≤ 10 s |",
        milliseconds(started.elapsed())
    );
}
