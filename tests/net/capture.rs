//! Tests for `weft capture`: tcpdump reads what it wrote.
//!
//! ```text
//!   pod web net1 ── bridge ── net1 pod db          host: weft capture db --network red ──► file.pcap ──► tcpdump -r
//! ```

use std::time::Duration;

use rig::Cluster;
use rig::cluster::{bridge, configuration};
use rig::machine::until;
use testkit::{Feature, Finished, Host, Pod, Running, host};

const FILE: &str = "/run/red.pcap";

/// Attaches two pods to the network `red`.
fn attached(host: &Host) -> [Pod; 2] {
    let cluster = Cluster::new(host);
    cluster.definition("red", &bridge("red", 2));
    let config = configuration(&bridge("home", 1));
    let _ = testkit::binary("weft-cni");
    ["web", "db"].map(|name| {
        cluster.pod(name, "red");
        let pod = host.pod(name);
        cluster.attachment(&pod).add(&config).success();
        pod
    })
}

fn capture(host: &Host, words: &str) -> testkit::Command {
    let weft = host.command(testkit::binary("weft")).clean_environment();
    weft.args(["capture", "-n", "blue", "db"])
        .args(words.split_whitespace())
        .deadline(Duration::from_secs(60))
}

/// Starts a capture into the file, and waits until the socket is open.
fn start(host: &Host, words: &str) -> Running {
    let running = capture(host, &format!("-w {FILE} {words}")).start_tied();
    // The header is written once the socket is open.
    until("the capture", || {
        host.read(FILE).is_none_or(|text| !text.is_empty()).then_some(()).filter(|()| size(host) > 0)
    });
    running
}

fn size(host: &Host) -> u64 {
    host.attempt(["stat", "-c", "%s", FILE]).stdout.trim().parse().unwrap_or(0)
}

/// Lines that tcpdump prints for the file.
fn read(host: &Host) -> String {
    host.command("tcpdump").args(["-nn", "-r", FILE]).finish().success().stdout
}

fn address(pod: &Pod) -> String {
    let all = rig::addresses_on(pod, "net1");
    let own = all.iter().find(|ip| ip.starts_with("10.")).expect("an address");
    own.split('/').next().expect("an address").to_owned()
}

fn refused(finished: &Finished, code: i32, word: &str) {
    assert!(finished.code == Some(code) && finished.stderr.contains(word), "{word}: {finished}");
}

#[test]
fn capture_is_read_by_tcpdump_and_never_overwritten() {
    let host = host!(Feature::Bridge, Feature::Tcpdump);
    let [web, db] = attached(&host);
    let (from, to) = (address(&web), address(&db));
    let running = start(&host, "--network red --filter icmp --count 4");
    web.run(["ping", "-q", "-c", "3", "-i", "0.05", &to]);
    assert!(running.finish(Duration::from_secs(30)).success());
    let text = read(&host);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[0].contains(&format!("IP {from} > {to}: ICMP echo request")), "{text}");
    assert!(lines[1].contains(&format!("IP {to} > {from}: ICMP echo reply")), "{text}");
    assert_eq!(host.run(["stat", "-c", "%a", FILE]), "600\n");
    let kept = size(&host);
    refused(&capture(&host, &format!("-w {FILE}")).finish(), 1, "the file exists");
    host.run(["ln", "-s", "/run/other.pcap", "/run/link.pcap"]);
    refused(&capture(&host, "-w /run/link.pcap").finish(), 1, "the file exists");
    assert_eq!((size(&host), host.read("/run/other.pcap")), (kept, None));
}

#[test]
fn capture_ends_with_a_signal_a_size_and_a_time() {
    let host = host!(Feature::Bridge, Feature::Tcpdump);
    let [web, db] = attached(&host);
    let to = address(&db);
    for signal in ["INT", "TERM"] {
        let running = start(&host, "--interface net1");
        web.run(["ping", "-q", "-c", "2", "-i", "0.05", &to]);
        until("the packets", || (size(&host) > 24).then_some(()));
        host.run(["kill", &format!("-{signal}"), &running.id().to_string()]);
        assert!(running.finish(Duration::from_secs(30)).success(), "{signal}");
        assert!(read(&host).contains("ICMP echo request"), "{signal}");
        host.run(["rm", FILE]);
    }
    // Under load, the kernel drops some frames.
    let running = start(&host, "--network red --size 1");
    until("a mebibyte", || {
        web.run(["ping", "-q", "-f", "-c", "300", "-s", "1400", &to]);
        (size(&host) > (1 << 20) - 2_000).then_some(())
    });
    assert!(running.finish(Duration::from_secs(30)).success());
    assert!((900_000..=1 << 20).contains(&size(&host)), "{}", size(&host));
    host.run(["rm", FILE]);
    let timed = capture(&host, &format!("-w {FILE} --network red --seconds 1")).finish().success();
    assert!(timed.stderr.contains("captured "), "{timed}");
    host.run(["rm", FILE]);
    // To a pipe, with a part of each frame.
    let piped =
        "weft capture -n blue db --network red --seconds 2 --snap-length 40 | tcpdump -nn -r - 2>/dev/null";
    let weft = testkit::binary("weft");
    let piped = piped.replacen("weft", weft.to_str().expect("a path"), 1);
    let reader = host.command("sh").args(["-c", &piped]).deadline(Duration::from_secs(30)).finish();
    assert_eq!(reader.code, Some(0), "{reader}");
}

#[test]
fn capture_with_wrong_pod_interface_or_filter_is_refused() {
    let host = host!(Feature::Bridge);
    let [_web, db] = attached(&host);
    let run = |words: &str| capture(&host, words).finish();
    refused(&run("-w /run/a --network green"), 1, "pod blue/db has eth0 (home), net1 (blue/red)");
    refused(&run("-w /run/a --interface net7"), 1, "net7");
    refused(&run("-w /run/a --interface ../x"), 1, "../x");
    refused(&run("-w /run/a --interface net1 --network red"), 2, "cannot be used with");
    refused(&run("-w /run/a --filter tcp;id"), 2, "expected arp, icmp");
    refused(&run("-w /nowhere/a --network red"), 1, "/nowhere/a");
    let weft = host.command(testkit::binary("weft")).clean_environment();
    refused(
        &weft.args(["capture", "-n", "blue", "none", "-w", "/run/b"]).finish(),
        1,
        "not attached on this node",
    );
    db.remove();
    host.run(["rm", "-f", "/run/a"]);
    refused(&run("-w /run/a --network red"), 1, "is gone");
}
