//! Tests the rig itself: a pretend host is isolated and private, and the leak check finds changes.
//!
//! ```text
//!   Host ── lo
//!    ├─ Pod a ── eth0 10.1.0.1/24 ──┐ veth
//!    └─ Pod b ── eth0 10.1.0.2/24 ──┘
//! ```

use std::path::Path;
use std::time::{Duration, Instant};

use testkit::{Feature, Host, host};

/// Creates two pods with a veth pair between them.
fn wired(host: &Host) -> (testkit::Pod, testkit::Pod) {
    let (a, b) = (host.pod("a"), host.pod("b"));
    host.run(["ip", "-n", "a", "link", "add", "eth0", "type", "veth", "peer", "eth0", "netns", "b"]);
    for (pod, address) in [(&a, "10.1.0.1/24"), (&b, "10.1.0.2/24")] {
        pod.run(["ip", "address", "add", address, "dev", "eth0"]);
        pod.run(["ip", "link", "set", "eth0", "up"]);
    }
    (a, b)
}

#[test]
fn pods_on_a_veth_pair_ping_only_each_other() {
    let host = host!(Feature::Ping);
    let (a, b) = wired(&host);
    assert!(a.pings("10.1.0.2"), "a reaches b");
    assert!(b.pings("10.1.0.1"), "b reaches a");
    assert!(!a.pings("10.1.0.3"), "no pod has 10.1.0.3");
    assert!(!host.pings("10.1.0.2"), "the host is not connected to the pods");
}

#[test]
fn snapshot_shows_every_kind_of_change() {
    let host = host!(Feature::NftInet, Feature::Tbf, Feature::Ingress);
    let before = host.snapshot();
    let cases: [(&str, &str, &str); 10] = [
        ("ip link add v0 type veth peer v1", "ip link delete v0", "+ link v0"),
        (
            "ip address add 10.9.0.1/32 dev lo",
            "ip address delete 10.9.0.1/32 dev lo",
            "+ address lo 10.9.0.1/32",
        ),
        (
            "ip route add 10.8.0.0/24 dev lo table 77",
            "ip route flush table 77",
            "+ route 77 unicast 10.8.0.0/24 dev lo",
        ),
        (
            "ip -6 route add fd08::/64 dev lo",
            "ip -6 route delete fd08::/64 dev lo",
            "+ route main unicast fd08::/64 lo",
        ),
        ("ip rule add from 10.7.0.1 table 77", "ip rule delete from 10.7.0.1", "+ rule 32765 10.7.0.1 77"),
        (
            "ip -6 rule add from fd07::1 table 77",
            "ip -6 rule delete from fd07::1",
            "+ rule6 32765 fd07::1 77",
        ),
        ("nft add table inet weft", "nft delete table inet weft", "+ nft table inet weft"),
        (
            "tc qdisc add dev lo root tbf rate 1mbit burst 10k latency 20ms",
            "tc qdisc delete dev lo root",
            "qdisc lo tbf",
        ),
        (
            "sysctl -qw net.ipv4.conf.lo.arp_notify=1",
            "sysctl -qw net.ipv4.conf.lo.arp_notify=0",
            "~ link lo sysctl ipv4.arp_notify: \"0\" → \"1\"",
        ),
        ("mkdir -p /var/lib/cni/networks/x", "rm -r /var/lib/cni", "+ directory /var/lib/cni/networks/x"),
    ];
    for (make, unmake, expected) in cases {
        host.run(["sh", "-c", make]);
        let changes = before.changes(&host.snapshot());
        let expected = expected.replace(" dev ", " ");
        assert!(changes.contains(&expected), "after `{make}` expected `{expected}` in:\n{changes}");
        host.run(["sh", "-c", unmake]);
        host.assert_unchanged(&before);
    }
}

#[test]
fn leak_check_fails_the_test() {
    let host = host!();
    let before = host.snapshot();
    host.run(["ip", "link", "add", "leak", "type", "veth", "peer", "kael"]);
    let verdict = std::panic::catch_unwind(|| host.assert_unchanged(&before));
    let message = *verdict.expect_err("the check must fail").downcast::<String>().expect("a message");
    assert!(message.contains("+ link leak"), "{message}");
}

#[test]
fn host_directories_are_private() {
    let host = host!();
    let files = [
        "/run/weft/x",
        "/var/lib/weft/x",
        "/var/lib/cni/networks/x",
        "/etc/cni/net.d/x",
        "/opt/cni/bin/x",
        "/run/cni/x",
    ];
    for file in files {
        let outside = Path::new(file).exists();
        assert_eq!(host.read(file), None, "{file} of the machine is visible");
        host.write(file, "mine");
        assert_eq!(host.read(file).as_deref(), Some("mine"));
        assert_eq!(Path::new(file).exists(), outside, "{file} appeared on the machine");
    }
    assert!(host.read("/etc/hostname").is_some(), "the rest of /etc is the machine's");
    let other = Host::new();
    assert_eq!(other.read("/run/weft/x"), None, "one host sees another's files");
}

#[test]
fn sysfs_shows_the_links_of_the_host() {
    let host = host!();
    host.run(["ip", "link", "add", "v0", "type", "veth", "peer", "v1"]);
    let shown = host.run(["ls", "/sys/class/net"]);
    // A kernel with bonding has a file there.
    let links: Vec<&str> = shown.lines().filter(|name| *name != "bonding_masters").collect();
    assert_eq!(links, ["lo", "v0", "v1"]);
}

#[test]
fn processes_of_a_test_end_with_its_host() {
    let host = host!();
    let left = host.run(["sh", "-c", "setsid sleep 300 >/dev/null 2>&1 </dev/null & echo $!"]);
    let process = format!("/proc/{}", left.trim());
    assert!(Path::new(&process).exists(), "the process runs");
    drop(host);
    let until = Instant::now() + Duration::from_secs(5);
    while Path::new(&process).join("cwd").read_link().is_ok() {
        assert!(Instant::now() < until, "{process} is still there");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn command_is_killed_at_its_deadline() {
    let host = host!();
    let started = Instant::now();
    let attempt = || {
        host.command("sh").args(["-c", "echo early; sleep 60"]).deadline(Duration::from_millis(200)).finish()
    };
    let verdict = std::panic::catch_unwind(std::panic::AssertUnwindSafe(attempt));
    let message = *verdict.expect_err("it must not wait").downcast::<String>().expect("a message");
    assert!(
        message.contains("had not ended after 200ms and was killed") && message.contains("early"),
        "{message}"
    );
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn command_fails_if_a_grandchild_holds_its_output_open() {
    let host = host!();
    let attempt = || {
        host.command("sh").args(["-c", "sleep 60 & echo done"]).deadline(Duration::from_millis(300)).finish()
    };
    let verdict = std::panic::catch_unwind(std::panic::AssertUnwindSafe(attempt));
    let message = *verdict.expect_err("it must notice").downcast::<String>().expect("a message");
    assert!(message.contains("left a process that holds its output open"), "{message}");
}

#[test]
fn command_passes_large_input_and_output() {
    let host = host!();
    let input = "0123456789abcdef".repeat(64 * 1024);
    let finished = host.command("cat").stdin(input.clone()).finish().success();
    assert!(finished.stdout == input, "{} bytes came back", finished.stdout.len());
}

#[test]
fn removed_pod_leaves_the_host_unchanged() {
    let host = host!();
    let before = host.snapshot();
    let pod = host.pod("a");
    assert!(!before.changes(&host.snapshot()).is_empty(), "a pod shows in /run/netns");
    pod.remove();
    host.assert_unchanged(&before);
}

#[test]
fn socket_opened_in_a_pod_stays_there() {
    let host = host!();
    let (a, b) = wired(&host);
    let server = a.within(|| std::net::UdpSocket::bind("10.1.0.1:7000")).expect("bind in a");
    let client = b.within(|| std::net::UdpSocket::bind("10.1.0.2:0")).expect("bind in b");
    client.send_to(b"thread", "10.1.0.1:7000").expect("send");
    let mut buffer = [0; 16];
    server.set_read_timeout(Some(Duration::from_secs(2))).expect("set a timeout");
    let (length, from) = server.recv_from(&mut buffer).expect("receive");
    assert_eq!((&buffer[..length], from.ip().to_string().as_str()), (&b"thread"[..], "10.1.0.2"));
}

#[test]
fn kernel_features_match_the_kernel_configuration() {
    let host = host!();
    // A kernel need not expose its configuration; modules may be missing although they were built.
    let config = host.attempt(["zcat", "/proc/config.gz"]);
    if config.code != Some(0) || Path::new("/proc/modules").exists() {
        return testkit::record_skip(host.test(), "the kernel does not expose its configuration");
    }
    for feature in Feature::all() {
        let Some(symbol) = feature.kernel_symbol() else { continue };
        let built_in = config.stdout.contains(&format!("CONFIG_{symbol}=y\n"));
        assert_eq!(feature.is_present(), built_in, "{feature:?}: CONFIG_{symbol} built in: {built_in}");
    }
}

#[test]
fn host_is_created_in_milliseconds() {
    let _ = host!();
    let mut times: Vec<Duration> = (0..20)
        .map(|_| {
            let started = Instant::now();
            let host = Host::new();
            let _pods = (host.pod("a"), host.pod("b"));
            started.elapsed()
        })
        .collect();
    times.sort();
    eprintln!("a host with two pods: median {:?}, slowest {:?}", times[10], times[19]);
    assert!(times[10] < Duration::from_millis(100), "median {:?}", times[10]);
}
