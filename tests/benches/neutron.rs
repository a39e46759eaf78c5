//! Benchmark of pod ports compared with Neutron's own work: the cost of an ADD beyond the activation of a port, the load of
//! many pods on Neutron, and the start of a controller that finds a thousand ports.
//!
//! ```text
//!   add      a pod with 3 networks, ports ready         compared with the same ports added by ovs-vsctl until OVN has them
//!   attach   100 pods with 3 networks, pools filled,    compared with Neutron creating one port after the other
//!            all attached by the plugin, until Neutron reports ACTIVE and the controller has written it
//!   burst    the same without switch and plugin: the controller and Neutron's API
//!   restart  1000 ports of pods and pools               until the new controller leads
//! ```
//!
//! Usage: `benches/neutron`; `PODS` (default 100), `PORTS` (1000) and `ROUNDS` of `add` (15) make it shorter, `ONLY` is
//! `add`, `attach`, `burst` or `restart`. Results are medians unless stated otherwise.

#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a benchmark prints its results, and fails by panicking"
)]

use std::sync::Mutex;
use std::time::{Duration, Instant};

use rig::OpenStack;
use rig::cluster::bridge;
use rig::neutron::{Mode, Subnet};
use rig::openstack::{BOUND, FIRST, NAMESPACE, VIF, configuration};
use serde_json::{Value, json};
use testkit::{Pod, host};

/// Number of sandboxes that a runtime creates concurrently.
const RUNTIME: usize = 8;
/// Limit for Neutron to create the ports of all pools.
const POOL_TIMEOUT: Duration = Duration::from_secs(1200);
/// Interval between two polls.
const LOOK: Duration = Duration::from_millis(50);
/// Time without any change of a port after which Neutron counts as idle.
const STILL: Duration = Duration::from_secs(2);
const NETWORKS: &str = "net-0,net-1,net-2";

fn main() {
    println!("| measurement | result | compared with | goal |\n|---|---|---|---|");
    // Container ids contain the name of the thread.
    let only = std::env::var("ONLY").unwrap_or_default();
    for (name, bench) in [("add", add as fn()), ("attach", attach), ("burst", burst), ("restart", restart)] {
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

/// Times three ports, one after the other, from adding a link to the bridge until OVN has installed it.
fn baseline(cluster: &OpenStack, subnets: &[Subnet], round: usize) -> Duration {
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

/// Number of pods whose annotation reports all ports as ACTIVE.
fn written_active(cluster: &OpenStack) -> usize {
    let pods = cluster.kube.json(["pods", "-n", NAMESPACE]);
    let items = pods["items"].as_array().unwrap().iter();
    let texts = items.filter_map(|pod| pod["metadata"]["annotations"][VIF].as_str());
    texts.filter(|text| text.matches(r#""active":true"#).count() == 3).count()
}

/// Waits until all ports of this number of pods are written as ACTIVE. It polls rarely, because `kubectl` is expensive.
fn wait_until_written(cluster: &OpenStack, pods: usize, since: Instant) {
    loop {
        let written = written_active(cluster);
        if written >= pods {
            return;
        }
        assert!(since.elapsed() < POOL_TIMEOUT, "not all are ACTIVE: {written}");
        std::thread::sleep(LOOK * 10);
    }
}

/// Queries Neutron's database directly: the API would slow down the ports that are measured.
fn ports_where(cluster: &OpenStack, what: &str, condition: &str) -> String {
    let query = format!("select {what} from ports where {condition}");
    let words = ["mariadb", "-u", "root", "-S", "/run/neutron/maria/sock", "-N", "-e", &query, "neutron"];
    cluster.machine.run(words)
}

/// Whether all of these ports are ACTIVE.
fn active(cluster: &OpenStack, vifs: &[Value]) -> bool {
    let ids: Vec<String> = vifs.iter().map(|vif| format!("'{}'", vif["id"].as_str().unwrap())).collect();
    let condition = format!("status='ACTIVE' and id in ({})", ids.join(","));
    ports_where(cluster, "count(*)", &condition).trim().parse() == Ok(vifs.len())
}

/// Waits until Neutron is idle: work for the previous round and for pools must not count for this one.
fn settle(cluster: &OpenStack) {
    let look = || ports_where(cluster, "id, status", "true");
    let (mut last, mut since) = (look(), Instant::now());
    while since.elapsed() < STILL {
        std::thread::sleep(LOOK);
        let now = look();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
}

/// Times two conditions, one after the other, polled twenty times a second.
fn both(
    started: Instant,
    mut first: impl FnMut() -> bool,
    mut second: impl FnMut() -> bool,
) -> [Duration; 2] {
    let until = |seen: &mut dyn FnMut() -> bool| {
        while !seen() {
            assert!(started.elapsed() < POOL_TIMEOUT, "not after {POOL_TIMEOUT:?}");
            std::thread::sleep(LOOK);
        }
        started.elapsed()
    };
    [until(&mut first), until(&mut second)]
}

fn add() {
    let Some(cluster) = OpenStack::new(host!(), Mode::Open, &[FIRST]) else { return };
    let subnets = networks(&cluster);
    let rules = json!({ "pool": { "enabled": true, "min": 5, "batch": 10 } });
    cluster.start_controller("controller", &rules, &[]);
    cluster.start_agent(FIRST, &[]);
    cluster.wait_until_leading("controller");
    let (mut ours, mut bare, mut neutrons, mut written) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..count("ROUNDS", 15) {
        settle(&cluster);
        let name = format!("pod{round}");
        let uid = cluster.pod(FIRST, &name, NETWORKS);
        let vifs = cluster.wait_for_vifs(&name);
        let pod = cluster.machine.pod(&name);
        let started = Instant::now();
        cluster
            .attachment(FIRST, &pod, &name, &uid)
            .add(&configuration(FIRST, &bridge("home", 10)))
            .success();
        ours.push(started.elapsed());
        let plugged = Instant::now();
        let [neutron, annotation] =
            both(plugged, || active(&cluster, &vifs), || written_active(&cluster) == round + 1);
        neutrons.push(neutron);
        written.push(annotation);
        bare.push(baseline(&cluster, &subnets, round));
    }
    let (ours, bare) = (median(ours), median(bare));
    println!(
        "| ADD of a default network and 3 ports | {} ms | {} ms: 3 ports by ovs-vsctl until OVN has them | ≤ 30 ms more |",
        milliseconds(ours),
        milliseconds(bare)
    );
    println!(
        "| from the end of that ADD until Neutron reports ACTIVE for all 3 | {} ms | | ≤ 1 s |",
        milliseconds(median(neutrons))
    );
    println!("| … until it is written on the pod | {} ms | | |", milliseconds(median(written)));
}

/// Times Neutron alone: it creates this number of ports, one after the other. They are deleted again.
fn serial(cluster: &OpenStack, subnets: &[Subnet], host: &str, ports: usize) -> Duration {
    let started = Instant::now();
    let create = |number: usize| {
        let network = &subnets[number % subnets.len()].network;
        let new = json!({ "port": { "network_id": network, "binding:host_id": host } });
        let made = cluster.neutron.api("POST", "ports", Some(&new));
        made["port"]["id"].as_str().unwrap().to_owned()
    };
    let made: Vec<String> = (0..ports).map(create).collect();
    let took = started.elapsed();
    for id in made {
        let _ = cluster.neutron.api("DELETE", &format!("ports/{id}"), None);
    }
    took
}

/// Starts a controller with pools, and waits until they are filled for a first pod.
fn fill_pools(cluster: &OpenStack, host: &str, each: usize) {
    // The batch is large, so that pools do not run low and refilling is three requests at any time.
    let rules = json!({ "pool": { "enabled": true, "min": 5, "batch": each } });
    cluster.start_controller("one", &rules, &[]);
    cluster.wait_until_leading("one");
    cluster.pod(host, "first", NETWORKS);
    let started = Instant::now();
    let waiting = || cluster.metric("one", "weft_neutron_pool_ports ").unwrap_or_default();
    while waiting() < u64::try_from((each - 1) * 3).unwrap() {
        assert!(started.elapsed() < POOL_TIMEOUT, "the pools are not filled: {}", waiting());
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn attach() {
    let Some(cluster) = OpenStack::new(host!(), Mode::Open, &[FIRST]) else { return };
    let (subnets, pods) = (networks(&cluster), count("PODS", 100));
    let serial = serial(&cluster, &subnets, FIRST, pods * 3);
    fill_pools(&cluster, FIRST, pods + 10);
    cluster.start_agent(FIRST, &[]);
    let names: Vec<String> = (0..pods).map(|number| format!("pod{number}")).collect();
    let sandboxes: Vec<Pod> = names.iter().map(|name| cluster.machine.pod(name)).collect();
    let metric = |line: &str| cluster.metric("one", line).unwrap_or_default();
    let requests = || metric("weft_neutron_api_requests_total ");
    let allocated = || metric(r#"weft_neutron_port_operations_total{outcome="allocated"} "#);
    let (before, finished, started) = (requests(), allocated(), Instant::now());
    cluster.pods(FIRST, &names, NETWORKS);
    let made = started.elapsed();
    while allocated() - finished < u64::try_from(pods).unwrap() {
        assert!(started.elapsed() < POOL_TIMEOUT, "not all have ports");
        std::thread::sleep(Duration::from_millis(50));
    }
    let allocated_after = started.elapsed();
    let list = cluster.kube.json(["pods", "-n", NAMESPACE]);
    let uid = |name: &str| {
        let found = list["items"].as_array().unwrap().iter().find(|pod| pod["metadata"]["name"] == name);
        found.unwrap()["metadata"]["uid"].as_str().unwrap().to_owned()
    };
    let queue = Mutex::new(names.iter().zip(&sandboxes));
    std::thread::scope(|scope| {
        for _ in 0..RUNTIME {
            scope.spawn(|| {
                loop {
                    let Some((name, pod)) = queue.lock().unwrap().next() else { return };
                    let attachment = cluster.attachment(FIRST, pod, name, &uid(name));
                    attachment.add(&configuration(FIRST, &bridge("home", 10))).success();
                }
            });
        }
    });
    let plugged = started.elapsed();
    wait_until_written(&cluster, pods, started);
    let took = started.elapsed();
    let sent = requests() - before;
    println!(
        "| {pods} pods × 3 ports at once, pools filled: all have ports | {} ms, of which the pods' own creation {} ms | {} ms: Neutron, one port after the other | |",
        milliseconds(allocated_after),
        milliseconds(made),
        milliseconds(serial)
    );
    println!("| … all attached, {RUNTIME} at a time | {} ms | | |", milliseconds(plugged));
    println!("| … all {} ports ACTIVE, and written | {} ms | | |", pods * 3, milliseconds(took));
    println!(
        "| … requests to Neutron a pod, all that time | {:.2} | 3 without pools, plus polling | ≤ 0.5 |",
        sent as f64 / pods as f64
    );
}

/// Copies ports in Neutron's database, with distinct addresses, to create a thousand at once.
const COPY: &str = "
import sqlite3, sys, uuid
ids, count = sys.argv[1].split(','), int(sys.argv[2])
base = sqlite3.connect('/run/neutron/neutron/neutron.db', timeout=60)
base.row_factory = sqlite3.Row
tables = [row[0] for row in base.execute(\"select name from sqlite_master where type='table'\")]
columns = {table: [row[1] for row in base.execute(f'pragma table_info({table})')] for table in tables}
def put(table, row):
    marks = ','.join('?' * len(row))
    return base.execute(f'insert into {table} ({\",\".join(row)}) values ({marks})', list(row.values())).lastrowid
def rows(table, key, value):
    return [dict(row) for row in base.execute(f'select * from {table} where {key}=?', (value,))]
for net, source in enumerate(ids):
    port = rows('ports', 'id', source)[0]
    attributes = rows('standardattributes', 'id', port['standard_attr_id'])[0]
    del attributes['id']
    of_port = [(table, rows(table, 'port_id', source)) for table in tables if 'port_id' in columns[table]]
    tags = rows('tags', 'standard_attr_id', port['standard_attr_id'])
    for number in range(count):
        new, number_of = str(uuid.uuid4()), put('standardattributes', attributes)
        mac = f'fa:16:3f:{net:02x}:{number >> 8:02x}:{number & 255:02x}'
        put('ports', {**port, 'id': new, 'standard_attr_id': number_of, 'mac_address': mac})
        for tag in tags:
            put('tags', {**tag, 'standard_attr_id': number_of})
        for table, found in of_port:
            for row in found:
                row = {**row, 'port_id': new}
                if 'ip_address' in row:
                    network = '.'.join(row['ip_address'].split('.')[:2])
                    row['ip_address'] = f'{network}.{200 + number // 250}.{1 + number % 250}'
                put(table, row)
base.commit()
";

/// Creates this number of pool ports in each of three subnets; returns the subnets.
fn filled(cluster: &OpenStack, each: usize) -> Vec<Subnet> {
    let subnets = networks(cluster);
    let new = |subnet: &Subnet| {
        json!({ "network_id": subnet.network, "binding:host_id": BOUND,
        "device_owner": "compute:kuryr", "tags": ["weft-cluster=kubernetes"] })
    };
    let ports: Vec<Value> = subnets.iter().map(new).collect();
    let made = cluster.neutron.api("POST", "ports", Some(&json!({ "ports": ports })));
    let ids: Vec<&str> =
        made["ports"].as_array().unwrap().iter().map(|port| port["id"].as_str().unwrap()).collect();
    let more = (each - 1).to_string();
    cluster.machine.run(["/usr/bin/python3", "-c", COPY, &ids.join(","), &more]);
    assert_eq!(cluster.neutron.pod_ports().len(), each * 3);
    subnets
}

fn burst() {
    let Some(cluster) = OpenStack::without_switch(host!()) else { return };
    let pods = count("PODS", 100);
    let subnets = filled(&cluster, pods + 10);
    let serial = serial(&cluster, &subnets, BOUND, pods * 3);
    let rules = json!({ "pool": { "enabled": true, "min": 5, "batch": 10 } });
    cluster.start_controller("one", &rules, &[]);
    cluster.wait_until_leading("one");
    let names: Vec<String> = (0..pods).map(|number| format!("pod{number}")).collect();
    let requests = || cluster.metric("one", "weft_neutron_api_requests_total ").unwrap_or_default();
    let (before, started) = (requests(), Instant::now());
    cluster.pods(BOUND, &names, NETWORKS);
    let made = started.elapsed();
    wait_until_written(&cluster, pods, started);
    let (took, sent) = (started.elapsed(), requests() - before);
    println!(
        "| {pods} pods × 3 ports at once, pools filled, until all are written as ACTIVE | {} ms, of which the pods' own creation {} ms | {} ms: Neutron, one port after the other | |",
        milliseconds(took),
        milliseconds(made),
        milliseconds(serial)
    );
    println!("| … requests to Neutron a pod | {:.2} | 3 without pools | ≤ 0.5 |", sent as f64 / pods as f64);
}

fn restart() {
    let Some(cluster) = OpenStack::without_switch(host!()) else { return };
    let (pods, wanted) = (count("PODS", 100), count("PORTS", 1000));
    let _ = filled(&cluster, wanted.div_ceil(3));
    let rules = json!({ "pool": { "enabled": true, "min": 5 } });
    cluster.start_controller("one", &rules, &[]);
    cluster.wait_until_leading("one");
    let names: Vec<String> = (0..pods).map(|number| format!("pod{number}")).collect();
    cluster.pods(BOUND, &names, NETWORKS);
    wait_until_written(&cluster, pods, Instant::now());
    cluster.machine.stop("one", "KILL");
    // The Lease of the killed controller would add the time of the election.
    cluster.kube.kubectl(["delete", "lease", "-n", "kube-system", "weft-neutron"]);
    let started = Instant::now();
    cluster.start_controller("two", &rules, &[]);
    cluster.wait_until_leading("two");
    let took = started.elapsed();
    let waiting = cluster.metric("two", "weft_neutron_pool_ports ").unwrap_or_default();
    println!(
        "| start of a controller with {} ports of {pods} pods and {waiting} in pools, until it leads and has compared them | {} ms | | ≤ 10 s |",
        pods * 3,
        milliseconds(took)
    );
}
