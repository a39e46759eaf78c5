//! Tests of the traffic metrics that `weft executor` serves for each interface of each pod.
//!
//! ```text
//!   pod web eth0, net1 ── bridges ── eth0, net1 pod db        host: weft executor --listen ◄── curl
//! ```

use std::time::{Duration, Instant};

use rig::Cluster;
use rig::cluster::{bridge, configuration};
use rig::machine::until;
use serde_json::{Value, json};
use testkit::{Feature, Host, Pod, Running, host};

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

/// Reads the value of a metric of an interface from a page.
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
