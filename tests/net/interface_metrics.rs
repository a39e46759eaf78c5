//! Tests for the metrics that `weft executor` serves: traffic on each pod's interfaces, and policy counters.
//!
//! ```text
//!   pod web eth0, net1 ── bridges ── eth0, net1 pod db        host: weft executor --listen ◄── curl
//! ```

use std::time::{Duration, Instant};

use rig::Cluster;
use rig::cluster::{MANIFESTS, NAMESPACE, bridge, configuration};
use rig::machine::until;
use rig::traffic::outside;
use serde_json::{Value, json};
use testkit::{Feature, Host, Pod, Running, host};

use crate::network_policy::network;

const PAGE: &str = "http://127.0.0.1:9466/metrics";
/// Time for which the executor serves the same page.
const FRESH: Duration = Duration::from_secs(5);

/// Installs the configuration and starts an executor whose agent is away.
fn start(host: &Host, config: &Value) -> Running {
    host.run(["mkdir", "-p", "/etc/cni/net.d"]);
    host.write("/etc/cni/net.d/00-weft.conflist", config.to_string());
    let _ = testkit::binary("weft-cni");
    host.run(["ip", "link", "set", "lo", "up"]);
    let weft = host.command(testkit::binary("weft")).clean_environment();
    weft.args(["executor", "--listen", "127.0.0.1:9466"]).start_tied()
}

fn page(host: &Host) -> String {
    let read = || Some(host.attempt(["curl", "-sf", PAGE])).filter(|got| got.code == Some(0));
    until("a metrics page", read).stdout
}

/// Reads the value of an interface metric from a page.
fn value(page: &str, metric: &str, pod: &str, interface: &str) -> Option<u64> {
    let labels = format!("{{namespace=\"blue\",pod=\"{pod}\",interface=\"{interface}\",");
    let start = format!("weft_interface_{metric}_total{labels}");
    page.lines().find(|line| line.starts_with(&start))?.rsplit(' ').next()?.parse().ok()
}

/// Waits for a page that was read after now.
fn next_page(host: &Host) -> String {
    std::thread::sleep(FRESH);
    page(host)
}

/// Counters as `ip` shows them.
fn counters(pod: &Pod, interface: &str) -> Value {
    pod.json(["ip", "-s", "-j", "link", "show", interface])[0]["stats64"].clone()
}

#[test]
fn interface_metrics_count_traffic_and_end_with_the_pod() {
    let host = host!(Feature::Bridge, Feature::Promtool);
    let cluster = Cluster::new(&host);
    cluster.definition("red", &bridge("red", 2));
    let config = configuration(&bridge("home", 1));
    let [web, db] = ["web", "db"].map(|name| {
        cluster.pod(name, "red");
        host.pod(name)
    });
    let calls = [&web, &db].map(|pod| cluster.attachment(pod));
    calls.iter().for_each(|call| drop(call.add(&config).success()));
    let _executor = start(&host, &config);
    let first = page(&host);
    let sent = |page: &str| value(page, "transmit_packets", "web", "net1").expect("a series");
    let earlier = sent(&first);

    let to = rig::addresses_on(&db, "net1").into_iter().find(|ip| ip.starts_with("10.")).expect("an address");
    let to = to.split('/').next().expect("an address");
    web.run(["ping", "-q", "-c", "7", "-i", "0.05", "-s", "1000", to]);
    assert_eq!(sent(&page(&host)), earlier, "a page is served again for a while");
    let later = next_page(&host);
    assert!(sent(&later) >= earlier + 7, "{later}");
    assert!(value(&later, "receive_bytes", "db", "net1") >= Some(7 * 1000), "{later}");
    // Nothing moves any more, so the page and `ip` agree.
    for pod in ["web", "db"] {
        let namespace = if pod == "web" { &web } else { &db };
        for (metric, direction, key) in [
            ("receive_bytes", "rx", "bytes"),
            ("receive_packets", "rx", "packets"),
            ("receive_errors", "rx", "errors"),
            ("transmit_bytes", "tx", "bytes"),
            ("transmit_packets_dropped", "tx", "dropped"),
        ] {
            let same = || {
                let counted = counters(namespace, "eth0")[direction][key].as_u64();
                (value(&page(&host), metric, pod, "eth0") == counted).then_some(())
            };
            until(metric, same);
        }
    }
    assert!(later.contains("interface=\"net1\",network=\"blue/red\"} "), "{later}");
    let checked = host.command("promtool").args(["check", "metrics"]).stdin(later).finish();
    assert_eq!((checked.code, checked.stderr.as_str()), (Some(0), ""), "{checked}");

    calls[0].del(&config).success();
    let without = next_page(&host);
    assert!(!without.contains("pod=\"web\"") && without.contains("pod=\"db\""), "{without}");
}

#[test]
fn interface_metrics_of_a_hostile_pod_stay_bounded() {
    let host = host!(Feature::Bridge, Feature::Veth);
    let cluster = Cluster::new(&host);
    let config = configuration(&bridge("home", 1));
    cluster.pod("web", json!([]));
    let pod = host.pod("web");
    let call = cluster.attachment(&pod);
    call.add(&config).success();
    // The pod creates many links, and renames its interface away.
    let script: String = (0..300).map(|n| format!("link add x{n} type veth peer y{n}\n")).collect();
    pod.command("ip").args(["-batch", "-"]).stdin(script).finish().success();
    let _executor = start(&host, &config);
    let began = Instant::now();
    let page = page(&host);
    assert!(began.elapsed() < Duration::from_secs(5));
    assert_eq!(page.matches("weft_interface_receive_bytes_total{").count(), 1, "{page}");
    pod.run(["ip", "link", "set", "eth0", "down"]);
    pod.run(["ip", "link", "set", "eth0", "name", "other"]);
    let without = next_page(&host);
    assert!(!without.contains("_total{") && without.contains("weft_interface_read_failed 0\n"), "{without}");
}

#[test]
fn policy_metrics_survive_a_pod_with_many_nftables_rules() {
    let host = host!(Feature::Bridge, Feature::Veth, Feature::Macvlan, Feature::NftInet);
    let _outside = outside(&host);
    let cluster = Cluster::new(&host);
    let config = configuration(&bridge("home", 1));
    let isolated = json!({ "apiVersion": "k8s.cni.cncf.io/v1beta2", "kind": "MultiNetworkPolicy",
        "metadata": { "name": "none", "namespace": NAMESPACE,
            "annotations": { "k8s.v1.cni.cncf.io/policy-for": "inside, outside" } },
        "spec": { "podSelector": {}, "policyTypes": ["Ingress"] } });
    host.write(format!("{MANIFESTS}/policy-none.json"), isolated.to_string());
    // The rules of macvlan are in the pod, those of ptp on the host.
    let plugins = [("inside", "macvlan"), ("outside", "ptp")];
    for (name, plugin) in plugins {
        let mut config = network(plugin);
        config["name"] = name.into();
        cluster.definition(name, &config);
    }
    let pods = [("any", "inside"), ("db", "inside"), ("web", "outside")].map(|(name, network)| {
        cluster.pod(name, network);
        let pod = host.pod(name);
        cluster.attachment(&pod).add(&config).success();
        pod
    });
    let has_denied = |page: &str, pod: &str| {
        let start = format!("weft_policy_denied_packets_total{{namespace=\"{NAMESPACE}\",pod=\"{pod}\",");
        page.lines().any(|line| line.starts_with(&start))
    };
    let _executor = start(&host, &config);
    let first = page(&host);
    assert!(["any", "db", "web"].iter().all(|pod| has_denied(&first, pod)), "{first}");

    let chains = pods[0].json(["nft", "-j", "list", "chains", "inet"]);
    let name = |chain: &Value| chain["chain"]["name"].as_str().map(str::to_owned);
    let mut names = chains["nftables"].as_array().expect("a list").iter().filter_map(name);
    let chain = names.find(|name| name.starts_with("ingress-")).expect("the chain of the attachment");
    let text = "x".repeat(100);
    let rule = format!("add rule inet weft-policy {chain} counter comment \"{text}\"\n");
    for _ in 0..10 {
        pods[0].command("nft").args(["-f", "-"]).stdin(rule.repeat(5000)).finish().success();
    }
    let later = next_page(&host);
    assert!(!has_denied(&later, "any"), "the list of the pod is read without bound: {later}");
    assert!(["db", "web"].iter().all(|pod| has_denied(&later, pod)), "{later}");
    assert!(later.contains("weft_interface_read_failed 0\n"), "{later}");
    assert_eq!(later.matches("weft_interface_receive_bytes_total{").count(), 6, "{later}");
}
