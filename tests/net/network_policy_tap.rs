//! Tests for network policies on `tap`, with a program at the other end, as a virtual machine monitor in the pod is.
//!
//! ```text
//!   db 10.9.0.11: sockets ── net1, rules ── program with /dev/net/tun, which sends frames of web and other
//! ```
//!
//! Both ends are in the pod, so the rules are there, too.

use rig::{Cluster, link};
use serde_json::json;
use testkit::{Feature, Pod, host};

use crate::network_policy::{PODS, network, pod_manifest, policies, weft};

/// Plugin of another project that removes all rules of the pod.
const FLUSH: &str = r"#!/usr/bin/python3
import json, os, subprocess, sys
config = json.load(sys.stdin)
if os.environ['CNI_COMMAND'] == 'ADD':
    subprocess.run(['/usr/bin/nsenter', '--net=' + os.environ['CNI_NETNS'], '/usr/sbin/nft', 'flush', 'ruleset'], check=True)
    print(json.dumps(config['prevResult']))
";

/// Opens `net1` and sends datagrams of the pods `web` and `other` to UDP ports of `db`, last to a port that every policy allows.
/// Prints the ports to which some came.
const INGRESS: &str = r"
import fcntl, os, socket, struct, sys
tap = os.open('/dev/net/tun', os.O_RDWR)
fcntl.ioctl(tap, 0x400454ca, struct.pack('16sH22x', b'net1', 0x1002))
def receiver(port):
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind(('10.9.0.11', port))
    return made
def send(source, port):
    udp = struct.pack('!HHHH', 4000, port, 12, 0) + b'weft'
    head = lambda total: struct.pack('!BBHHHBBH4s4s', 0x45, 0, 20 + len(udp), 0, 0, 64, 17, total,
                                     socket.inet_aton(source), socket.inet_aton('10.9.0.11'))
    total = sum(struct.unpack('!10H', head(0)))
    while total >> 16: total = (total & 0xffff) + (total >> 16)
    os.write(tap, bytes.fromhex(sys.argv[1].replace(':', '')) + bytes.fromhex('0200000000990800') + head(~total & 0xffff) + udp)
allowed, denied = receiver(53), receiver(61)
for source in ['10.9.0.12', '10.9.0.13']: send(source, 61)
send('10.9.0.12', 53)
allowed.settimeout(20)
allowed.recv(16)
denied.setblocking(False)
try:
    denied.recv(16)
    print('53 61')
except BlockingIOError:
    print('53')
";

/// Opens `net1`, sends a datagram to `web`, and begins a TCP connection with it. Prints the protocols that leave.
const EGRESS: &str = r"
import fcntl, os, select, socket, struct, time
tap = os.open('/dev/net/tun', os.O_RDWR)
fcntl.ioctl(tap, 0x400454ca, struct.pack('16sH22x', b'net1', 0x1002))
left = []
datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
try:
    datagram.sendto(b'weft', ('10.9.0.12', 80))
    left.append('UDP')
except PermissionError:
    pass
stream = socket.socket()
stream.setblocking(False)
stream.connect_ex(('10.9.0.12', 80))
end = time.monotonic() + 20
while time.monotonic() < end:
    if select.select([tap], [], [], 1)[0]:
        frame = os.read(tap, 2048)
        if frame[12:14] == b'\x08\x00' and frame[23] == 6:
            left.append('TCP')
            break
print(' '.join(left))
";

fn run(pod: &Pod, program: &str) -> String {
    let shown = link(pod, "net1").expect("net1");
    let mac = shown["address"].as_str().expect("an address").to_owned();
    pod.run(["/usr/bin/python3", "-c", program, &mac]).trim().to_owned()
}

#[test]
fn network_policy_is_enforced_on_tap() {
    let host = host!(Feature::Bridge, Feature::Tun, Feature::NftInet);
    let cluster = Cluster::new(&host);
    cluster.definition("data", &network("tap"));
    policies(&host);
    (0..PODS.len()).for_each(|index| pod_manifest(&host, index));
    let [db, other] = [0, 2].map(|index| host.pod(PODS[index]));
    for pod in [&db, &other] {
        cluster.attachment(pod).add(&weft()).success();
    }
    let rules = cluster.entry(&db).expect("an entry")["attachments"][1]["rules"].clone();
    assert_eq!((rules["place"].as_str(), rules["link"].as_str()), (Some("pod"), Some("net1")));
    other.run(["ip", "neigh", "replace", "10.9.0.12", "lladdr", "02:00:00:00:00:99", "dev", "net1"]);
    assert_eq!(run(&db, INGRESS), "53");
    assert_eq!(run(&other, EGRESS), "TCP");
    // The same packets pass without the rules, which CHECK misses.
    for pod in [&db, &other] {
        pod.run(["nft", "flush", "ruleset"]);
    }
    assert_eq!(run(&db, INGRESS), "53 61");
    assert_eq!(run(&other, EGRESS), "UDP TCP");
    for pod in [&db, &other] {
        let (_, message) = rig::refusal(&cluster.attachment(pod).check(&weft()));
        assert!(message.contains("network policy: "), "{message}");
        cluster.attachment(pod).del(&weft()).success();
    }
}

#[test]
fn network_policy_is_enforced_after_a_plugin_flushes_rules() {
    let host = host!(Feature::Bridge, Feature::Tun, Feature::NftInet);
    let cluster = Cluster::new(&host);
    cluster.definition("data", &network("tap"));
    policies(&host);
    (0..PODS.len()).for_each(|index| pod_manifest(&host, index));
    host.write("/opt/cni/bin/flush", FLUSH);
    host.run(["chmod", "755", "/opt/cni/bin/flush"]);
    let mut weft = weft();
    weft["delegates"][0]["plugins"].as_array_mut().expect("plugins").push(json!({ "type": "flush" }));
    let db = host.pod("db");
    cluster.attachment(&db).add(&weft).success();
    assert_eq!(run(&db, INGRESS), "53");
    cluster.attachment(&db).del(&weft).success();
}
