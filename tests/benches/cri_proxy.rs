//! Benchmark of `weft cri-proxy` compared with the runtime alone: the same calls to both, in turns, in one run.
//!
//! ```text
//!   client ── weft cri-proxy ── containerd        client ── containerd
//! ```
//!
//! Usage: `benches/cri-proxy`, which builds the programs; figures are medians unless stated otherwise.

#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a benchmark prints its results, and fails by panicking"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use prost::Message;
use rig::Proxy;
use rig::proxy::{SOCKET, bridge};
use testkit::{Feature, host};
use tokio::net::UnixStream;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic_prost::ProstCodec;

const VERSION: &str = "/runtime.v1.RuntimeService/Version";
const LIST: &str = "/runtime.v1.RuntimeService/ListPodNetwork";
const CALLS: usize = 3000;
const CLIENTS: usize = 32;
const PODS: usize = 20;
/// Number of sandboxes that each client creates, one after the other.
const EACH: usize = 3;
const NETWORKS: usize = 1000;

/// Empty message, which accepts any response.
#[derive(Clone, PartialEq, Message)]
struct Nothing {}

#[derive(Clone, PartialEq, Message)]
struct Listed {
    #[prost(bytes = "vec", repeated, tag = "1")]
    networks: Vec<Vec<u8>>,
}

fn main() {
    let host = host!(Feature::Bridge, Feature::Veth);
    let Some(proxy) = Proxy::with_production_log(host) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (through, alone) = (proxy.reach(SOCKET), proxy.reach(rig::containerd::SOCKET));
    println!(
        "| measurement | through the proxy | runtime alone | difference | goal |\n|---|---|---|---|---|"
    );
    runtime.block_on(forwarded(&through, &alone));
    runtime.block_on(parallel(&proxy, &through, &alone));
    println!("| memory of the proxy after that | {} MB | | | ≤ 15 MB |", proxy.resident_memory() / 1000);
    sandboxes(&proxy);
    concurrency(&proxy);
    listed(&proxy, &runtime);
    println!("| memory of the proxy at the end | {} MB | | | |", proxy.resident_memory() / 1000);
}

async fn connect(socket: &Path) -> Channel {
    let socket = socket.to_owned();
    let connector = tower::service_fn(move |_: Uri| {
        let socket: PathBuf = socket.clone();
        async move { UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://localhost").connect_with_connector(connector).await.expect("a connection")
}

async fn call<A: Message + Default + 'static>(channel: &Channel, path: &'static str) -> A {
    let mut client = tonic::client::Grpc::new(channel.clone()).max_decoding_message_size(64 << 20);
    client.ready().await.expect("a connection");
    let codec: ProstCodec<Nothing, A> = ProstCodec::default();
    let path = PathAndQuery::from_static(path);
    client.unary(tonic::Request::new(Nothing {}), path, codec).await.expect("an answer").into_inner()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

async fn forwarded(through: &Path, alone: &Path) {
    let channels = [connect(through).await, connect(alone).await];
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..CALLS {
        for (channel, times) in channels.iter().zip(&mut times) {
            let started = Instant::now();
            call::<Nothing>(channel, VERSION).await;
            times.push(started.elapsed());
        }
    }
    let [ours, direct] = times.map(median).map(milliseconds);
    println!(
        "| Version, one after the other | {ours:.3} ms | {direct:.3} ms | {:.3} ms | ≤ 0.2 ms |",
        ours - direct
    );
}

/// Measures calls per second from many clients, each with a separate connection, and the number of calls.
async fn throughput(socket: &Path) -> (f64, f64) {
    let count = Arc::new(AtomicUsize::new(0));
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(connect(socket).await);
    }
    let started = Instant::now();
    let tasks = clients.into_iter().map(|channel| {
        let count = Arc::clone(&count);
        async move {
            while started.elapsed() < Duration::from_secs(2) {
                call::<Nothing>(&channel, VERSION).await;
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    let tasks: Vec<_> =
        tasks.map(|task| Box::pin(task) as std::pin::Pin<Box<dyn Future<Output = ()>>>).collect();
    join(tasks).await;
    let calls = count.load(Ordering::Relaxed) as f64;
    (calls / started.elapsed().as_secs_f64(), calls)
}

async fn join(tasks: Vec<std::pin::Pin<Box<dyn Future<Output = ()>>>>) {
    let set = tokio::task::LocalSet::new();
    for task in tasks {
        set.spawn_local(task);
    }
    set.await;
}

/// Processor time used so far by this client, the proxy and the runtime.
fn used(proxy: &Proxy) -> [Duration; 3] {
    // Fields 14 and 15 of proc_pid_stat(5), in hundredths of a second, after the name in parentheses.
    let of = |path: &Path| {
        let stat = std::fs::read_to_string(path).expect("a process");
        let fields: Vec<i64> = stat
            .rsplit(')')
            .next()
            .into_iter()
            .flat_map(str::split_whitespace)
            .filter_map(|n| n.parse().ok())
            .collect();
        Duration::from_millis(fields.iter().skip(10).take(2).sum::<i64>().unsigned_abs() * 10)
    };
    let service = |name: &str| {
        let id = proxy.read(format!("/run/services/{name}.pid")).expect("a running service");
        of(&proxy.reach(&format!("/proc/{}/stat", id.trim())))
    };
    [of(Path::new("/proc/self/stat")), service("cri-proxy"), service("containerd")]
}

async fn parallel(proxy: &Proxy, through: &Path, alone: &Path) {
    let (mut ours, mut direct) = (Vec::new(), Vec::new());
    let mut cost = [[0.0; 3]; 2];
    for _ in 0..3 {
        for ((socket, rates), cost) in [(through, &mut ours), (alone, &mut direct)].into_iter().zip(&mut cost)
        {
            let before = used(proxy);
            let (rate, calls) = throughput(socket).await;
            for ((after, before), cost) in used(proxy).into_iter().zip(before).zip(cost) {
                *cost += (after - before).as_secs_f64() * 1e6 / calls / 3.0;
            }
            rates.push(rate);
        }
    }
    let best = |rates: &[f64]| rates.iter().copied().fold(0.0, f64::max);
    let (ours, direct) = (best(&ours), best(&direct));
    let lost = (1.0 - ours / direct) * 100.0;
    println!(
        "| Version, {CLIENTS} clients, best of 3 | {ours:.0}/s | {direct:.0}/s | {lost:.0} % lost | ≤ 5 % |"
    );
    for (index, name) in ["client", "proxy", "runtime"].into_iter().enumerate() {
        let of = |cost: &[f64; 3]| cost.get(index).copied().unwrap_or_default();
        let [ours, direct] = [of(&cost[0]), of(&cost[1])];
        println!(
            "| processor time of the {name} for each of these calls | {ours:.0} µs | {direct:.0} µs | | |"
        );
    }
}

/// Times the creation of a sandbox: by the proxy with a named network, and by both with the default network.
fn sandboxes(proxy: &Proxy) {
    proxy.write(
        format!("{}/10-red.conflist", rig::containerd::NETWORKS),
        rig::cluster::bridge("red", 1).to_string(),
    );
    proxy.set(&bridge("red", 1));
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for number in 0..PODS {
        let named = proxy.pod_on(&format!("named-{number}"), &[("", "red")]);
        let default = proxy.node().pod(&format!("default-{number}"), &[]);
        // The order rotates.
        for place in 0..times.len() {
            let index = (place + number) % times.len();
            let Some(times) = times.get_mut(index) else { continue };
            let (cri, pod) = match index {
                0 => (proxy.cri(), &default),
                1 => (proxy.node().cri(), &default),
                _ => (proxy.cri(), &named),
            };
            let started = Instant::now();
            let id = cri.run_pod_sandbox(pod).expect("a pod");
            times.push(started.elapsed());
            proxy.remove(&id);
        }
    }
    let [ours, direct, named] = times.map(median).map(milliseconds);
    let share = |ours: f64| (ours / direct - 1.0) * 100.0;
    println!(
        "| RunPodSandbox, no network requested | {ours:.1} ms | {direct:.1} ms | {:.1} % | ≤ 3 % |",
        share(ours)
    );
    println!(
        "| RunPodSandbox, one network requested | {named:.1} ms | {direct:.1} ms | {:.1} % | ≤ 3 % |",
        share(named)
    );
}

/// Measures sandboxes a second of many clients, each created, stopped and removed.
fn concurrency(proxy: &Proxy) {
    let rate = |round: usize, through: bool| {
        let started = Instant::now();
        std::thread::scope(|scope| {
            for client in 0..CLIENTS {
                scope.spawn(move || {
                    let cri = if through { proxy.cri() } else { proxy.node().cri() };
                    for number in 0..EACH {
                        let name = format!("many-{round}-{through}-{client}-{number}");
                        let id = cri.run_pod_sandbox(&proxy.node().pod(&name, &[])).expect("a pod");
                        cri.stop_pod_sandbox(&id).expect("its end");
                        cri.remove_pod_sandbox(&id).expect("its end");
                    }
                });
            }
        });
        (CLIENTS * EACH) as f64 / started.elapsed().as_secs_f64()
    };
    let (mut ours, mut direct) = (0.0_f64, 0.0_f64);
    for round in 0..4 {
        // The order alternates.
        for through in [round % 2 == 0, round % 2 != 0] {
            let rate = rate(round, through);
            if through { ours = ours.max(rate) } else { direct = direct.max(rate) }
        }
    }
    println!(
        "| sandboxes created and removed by {CLIENTS} clients, best of 4 | {ours:.1}/s | {direct:.1}/s | {:.0} % lost | ≤ 5 % |",
        (1.0 - ours / direct) * 100.0
    );
}

fn listed(proxy: &Proxy, runtime: &tokio::runtime::Runtime) {
    let networks: Vec<String> =
        (0..NETWORKS).map(|number| bridge(&format!("n{number}"), 3).to_string()).collect();
    proxy.network(&["set", "-f", "-"], &networks.join("\n---\n")).success();
    let times = runtime.block_on(async {
        let channel = connect(&proxy.reach(SOCKET)).await;
        let mut times = Vec::new();
        for _ in 0..20 {
            let started = Instant::now();
            let found: Listed = call(&channel, LIST).await;
            times.push(started.elapsed());
            assert!(found.networks.len() >= NETWORKS, "{} networks", found.networks.len());
        }
        times
    });
    println!("| ListPodNetwork, {NETWORKS} networks | {:.1} ms | | | ≤ 20 ms |", milliseconds(median(times)));
}
