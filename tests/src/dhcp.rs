//! Real DHCP servers on a bridge `br0` with the addresses 10.1.0.1 and, for DHCPv6, 2001:db8::1; a server that sends
//! invalid responses; and the lease daemon.
//!
//! Source: dnsmasq(8); kea-dhcp6(8), for what dnsmasq lacks: leases that last only seconds, REQUEST without rapid
//! commit, and a response to an unknown lease.

use std::net::{Ipv6Addr, SocketAddrV6, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{Attachment, Host, Pod, Running};

use crate::machine::until;

/// File in which the daemon stores leases.
pub const STATE: &str = "/run/cni/dhcp.leases";
/// Daemon log.
pub const DAEMON_LOG: &str = "/run/daemon.log";
/// Daemon socket.
const SOCKET: &str = "/run/cni/dhcp.sock";

/// Creates the bridge with a port, so that the bridge's state is the same with and without pods. `keys` below
/// `net.ipv6.conf` are set before any link is up.
#[track_caller]
pub fn create_bridge(host: &Host, keys: &[&str]) {
    host.run(["ip", "link", "add", "br0", "address", "02:00:00:00:01:01", "type", "bridge"]);
    host.run(["ip", "link", "add", "p0", "type", "veth", "peer", "name", "p1"]);
    host.run(["ip", "link", "set", "p0", "master", "br0"]);
    for key in keys {
        host.run(["sysctl", "-qw", &format!("net.ipv6.conf.{key}")]);
    }
    for link in ["br0", "p0", "p1"] {
        host.run(["ip", "link", "set", link, "up"]);
    }
    host.run(["ip", "address", "add", "10.1.0.1/24", "dev", "br0"]);
    host.run(["mkdir", "-p", "/var/lib/cni/networks"]);
}

/// Adds a machine with this address to the pods' network.
#[track_caller]
#[must_use]
pub fn add_neighbour(host: &Host, address: &str) -> Pod {
    let pod = host.pod("beside");
    host.run(["ip", "link", "add", "h0", "type", "veth", "peer", "name", "eth0", "netns", "beside"]);
    host.run(["ip", "link", "set", "h0", "master", "br0", "up"]);
    pod.run(["sysctl", "-qw", "net.ipv6.conf.eth0.accept_dad=0"]);
    pod.run(["ip", "address", "add", address, "dev", "eth0"]);
    pod.run(["ip", "link", "set", "eth0", "up"]);
    pod
}

/// Starts the daemon with short timeouts.
#[track_caller]
#[must_use]
pub fn daemon(host: &Host) -> Running {
    start_daemon_program(host, "/opt/cni/bin/dhcp", "-timeout 1s -resendtimeout 8s")
}

/// Starts a daemon from this program with these flags.
#[track_caller]
#[must_use]
pub fn start_daemon_program(host: &Host, program: &str, flags: &str) -> Running {
    let script = format!("exec {program} daemon {flags} 2>>{DAEMON_LOG}");
    let running = host.command("sh").args(["-c", &script]).start();
    wait_for_daemon(host);
    running
}

/// Waits until the daemon listens.
#[track_caller]
pub fn wait_for_daemon(host: &Host) {
    wait("the daemon listens", || host.within(|| UnixStream::connect(SOCKET)).is_ok());
}

/// Waits until a condition is true.
#[track_caller]
pub fn wait(what: &str, is_so: impl Fn() -> bool) {
    until(what, || is_so().then_some(()));
}

/// Returns CNI parameters that include the pod name, as a Kubernetes runtime passes it.
#[must_use]
pub fn attachment<'a>(host: &'a Host, pod: &Pod, ifname: &str) -> Attachment<'a> {
    let mut attachment = host.attachment("bridge", pod, ifname);
    attachment.args = format!("IgnoreUnknown=1;K8S_POD_NAME={}", pod.name());
    attachment
}

/// Lists dnsmasq's leases: address, host name and client identity.
#[must_use]
pub fn given(host: &Host) -> Vec<(String, String, String)> {
    let text = host.read(LEASES).unwrap_or_default();
    let fields = text.lines().map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>());
    fields.filter(|f| f.len() == 5).map(|f| (f[2].clone(), f[3].clone(), f[4].clone())).collect()
}

/// Counts how often a string occurs in a file.
#[must_use]
pub fn count(host: &Host, file: &str, word: &str) -> usize {
    host.read(file).unwrap_or_default().matches(word).count()
}

/// dnsmasq's leases, one per line.
pub const LEASES: &str = "/run/leases";
/// dnsmasq's log, with every message.
pub const LOG: &str = "/run/dnsmasq.log";
/// Options that make clients renew every second.
pub const RENEW_EVERY_SECOND: [&str; 2] = ["--dhcp-option=58,1", "--dhcp-option=59,3"];

/// Returns dnsmasq's arguments: 21 addresses from 10.1.0.`first` on, leased for two minutes.
#[must_use]
pub fn words(first: u8, more: &[&str]) -> Vec<String> {
    let fixed = [
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--port=0",
        "--interface=br0",
        "--bind-interfaces",
        "--dhcp-authoritative",
        "--no-ping",
        "--log-dhcp",
        "--user=root",
        "--pid-file",
    ];
    let range = format!("--dhcp-range=10.1.0.{first},10.1.0.{},255.255.255.0,120", first + 20);
    let files = [format!("--dhcp-leasefile={LEASES}"), format!("--log-facility={LOG}")];
    let fixed = fixed.iter().chain(more).map(|word| (*word).to_owned());
    fixed.chain(files).chain([range]).collect()
}

/// Starts dnsmasq on a host.
#[track_caller]
#[must_use]
pub fn serve(host: &Host, first: u8, more: &[&str]) -> Running {
    let server = host.command("dnsmasq").args(words(first, more)).start();
    until("the server listens", || host.run(["ss", "-lun"]).contains(":67 ").then_some(()));
    server
}

/// dnsmasq's arguments for IPv6: addresses from 2001:db8::100 on, leased for two minutes, and router advertisements
/// with a prefix for SLAAC.
pub const IPV6: [&str; 3] =
    ["--dhcp-range=2001:db8::100,2001:db8::1ff,slaac,64,120", "--enable-ra", "--ra-param=br0,high,10"];

/// Kea's log, with every message.
pub const KEA_LOG: &str = "/run/kea.log";
/// Kea's leases, one line per change.
pub const KEA_LEASES: &str = "/run/kea-leases6.csv";

/// Starts dnsmasq for both families on a host whose bridge also has 2001:db8::1.
#[track_caller]
#[must_use]
pub fn serve_both(host: &Host, more: &[&str]) -> Running {
    let server = serve(host, 50, &[&IPV6[..], more].concat());
    until("the server listens", || host.run(["ss", "-lun"]).contains(":547 ").then_some(()));
    server
}

/// Starts Kea for DHCPv6 on `br0`: `pool` below 2001:db8::/64, leases that last four seconds and are renewed every
/// second. `identifier` is two hexadecimal digits that distinguish the server; `more` contains additional options.
#[track_caller]
#[must_use]
pub fn kea(host: &Host, identifier: &str, pool: &str, more: &Value) -> Running {
    let mut keys = json!({
        "interfaces-config": { "interfaces": ["br0"] },
        "lease-database": { "type": "memfile", "persist": true, "name": KEA_LEASES, "lfc-interval": 0 },
        "renew-timer": 1, "rebind-timer": 2, "preferred-lifetime": 3, "valid-lifetime": 4,
        "server-id": { "type": "EN", "enterprise-id": 32473, "identifier": identifier, "persist": false },
        "subnet6": [{ "id": 1, "subnet": "2001:db8::/64", "interface": "br0", "pools": [{ "pool": pool }] }],
        "loggers": [{
            "name": "kea-dhcp6", "severity": "DEBUG", "debuglevel": 55,
            "output_options": [{ "output": KEA_LOG, "flush": true }],
        }],
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        keys[key] = value.clone();
    }
    // Kea opens its socket once and does not retry.
    until("the bridge has a link-local address", || {
        let shown = host.run(["ip", "-6", "address", "show", "dev", "br0", "scope", "link"]);
        (shown.contains("fe80::") && !shown.contains("tentative")).then_some(())
    });
    host.run(["mkdir", "-p", "/run/kea"]);
    host.write("/run/kea.json", json!({ "Dhcp6": keys }).to_string());
    let server = host
        .command("kea-dhcp6")
        .args(["-c", "/run/kea.json"])
        .env("KEA_LOCKFILE_DIR", "none")
        .env("KEA_PIDFILE_DIR", "/run/kea")
        .start();
    until("Kea listens", || host.run(["ss", "-lun"]).contains(":547 ").then_some(()));
    server
}

/// Returns invalid responses to a request, and whether it is the request that the test waits for.
pub type Responder<'a> = &'a (dyn Fn(&[u8]) -> (bool, Vec<Vec<u8>>) + Sync);

/// Answers each request with invalid responses until `ended` is set.
#[track_caller]
pub fn send_invalid_responses(pod: &Pod, respond: Responder<'_>, ended: &AtomicBool, received: &AtomicBool) {
    let link = pod.json(["ip", "-j", "link", "show", "eth0"]);
    let index = u32::try_from(link[0]["ifindex"].as_u64().expect("an index")).expect("a small one");
    let socket = pod.within(|| {
        let socket = UdpSocket::bind(SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 547, 0, 0)).expect("port 547");
        let group: Ipv6Addr = "ff02::1:2".parse().unwrap();
        socket.join_multicast_v6(&group, index).expect("join");
        socket
    });
    socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
    let mut request = [0; 2048];
    // If the test fails, this ends after a minute.
    let until = Instant::now() + Duration::from_secs(60);
    while !ended.load(Ordering::Relaxed) && Instant::now() < until {
        let Ok((length, from)) = socket.recv_from(&mut request) else { continue };
        let (is_it, answers) = respond(&request[..length]);
        for answer in answers {
            let _ = socket.send_to(&answer, from);
        }
        received.fetch_or(is_it, Ordering::Relaxed);
    }
}

/// Encodes a DHCPv6 option.
#[must_use]
pub fn option(number: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len()).unwrap();
    [&number.to_be_bytes()[..], &length.to_be_bytes(), value].concat()
}

/// Extracts client identifier and identity association from a request, as bytes.
#[must_use]
pub fn client_and_association(request: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let (mut client, mut id) = (Vec::new(), vec![0; 4]);
    let mut rest = request.get(4..).unwrap_or_default();
    while let [n0, n1, l0, l1, later @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*l0, *l1])).min(later.len());
        match u16::from_be_bytes([*n0, *n1]) {
            1 => client = later[..length].to_vec(),
            3 => id = later[..4].to_vec(),
            _ => {}
        }
        rest = &later[length..];
    }
    (client, id)
}
