//! Tests that compare `dhcp` with the Go plugin and daemon: the server sees the same lease, the runtime the same
//! result. Each plugin rejects the other's daemon.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{Feature, Host, Running, host};

const GO: &str = "/usr/lib/cni/dhcp";
const WEFT: &str = "/opt/cni/bin/dhcp";
const LEASES: &str = "/run/leases";

fn start(host: &Host, program: &str, socket: &str) -> Running {
    let running = host.command(program).args(["daemon", "-socketpath", socket]).start();
    let until = Instant::now() + Duration::from_secs(20);
    while !host.run(["ss", "-Hlx"]).contains(&format!("{socket} ")) {
        assert!(Instant::now() < until, "{program} does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    running
}

fn serve(host: &Host) -> Running {
    host.run(["ip", "address", "add", "10.1.0.1/24", "dev", "h0"]);
    host.run(["ip", "link", "set", "h0", "up"]);
    let server = host.command("dnsmasq").args([
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--port=0",
        "--interface=h0",
        "--bind-interfaces",
        "--dhcp-authoritative",
        "--no-ping",
        "--user=root",
        "--pid-file",
        "--dhcp-range=10.1.0.50,10.1.0.99,3600",
        "--dhcp-leasefile=/run/leases",
        "--dhcp-option=option:classless-static-route,192.0.2.0/24,10.1.0.3",
        "--dhcp-option=33,198.51.100.0,10.1.0.5",
        "--log-facility=/run/dnsmasq.log",
    ]);
    let server = server.start();
    let until = Instant::now() + Duration::from_secs(20);
    while !host.run(["ss", "-lun"]).contains(":67 ") {
        assert!(Instant::now() < until, "dnsmasq does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    server
}

/// Returns address, host name and client identifier of each lease, without the time.
fn given(host: &Host) -> Vec<String> {
    let text = host.read(LEASES).unwrap_or_default();
    text.lines()
        .map(|line| line.split_once(' ').map(|(_, rest)| rest.to_owned()).unwrap_or_default())
        .collect()
}

#[test]
fn dhcp_lease_and_result_equal_those_of_the_go_plugin() {
    let host = host!(Feature::GoPlugins, Feature::Dnsmasq);
    rig::install(&host);
    let pod = host.pod("a");
    host.run(["ip", "link", "add", "h0", "type", "veth", "peer", "name", "eth0", "netns", "a"]);
    let _server = serve(&host);
    let daemons = [(GO, "/run/cni/go.sock"), (WEFT, "/run/cni/weft.sock")];
    let _running = daemons.map(|(program, socket)| start(&host, program, socket));
    let requests = [
        json!([]),
        json!([{ "option": "121" }]),
        json!([{ "option": "33" }, { "option": "routers" }]),
        json!([{ "skipDefault": true, "option": "subnet-mask" }]),
    ];
    for request in requests {
        let mut seen: Vec<(Value, Vec<String>)> = Vec::new();
        for (program, socket) in daemons {
            let config = json!({
                "cniVersion": "1.0.0", "name": "net", "type": "bridge",
                "ipam": {
                    "type": "dhcp", "daemonSocketPath": socket, "request": request, "priority": 0,
                    "provide": [{ "option": "host-name", "fromArg": "K8S_POD_NAME" }, { "option": "60", "value": "weft" }],
                },
            });
            let mut eth0 = host.attachment(program, &pod, "eth0");
            eth0.args = "IgnoreUnknown=1;K8S_POD_NAME=web".to_owned();
            let result = eth0.add(&config).success().json();
            seen.push((json!([result["ips"], result["routes"]]), given(&host)));
            eth0.del(&config).success();
            pod.run(["ip", "link", "set", "eth0", "down"]);
        }
        assert_eq!(seen[0], seen[1], "{request}");
    }
}

#[test]
fn dhcp_plugin_rejects_the_daemon_of_the_other() {
    let host = host!(Feature::GoPlugins, Feature::Dnsmasq);
    rig::install(&host);
    let pod = host.pod("a");
    host.run(["ip", "link", "add", "h0", "type", "veth", "peer", "name", "eth0", "netns", "a"]);
    for (plugin, daemon, word) in [(WEFT, GO, "reference plugin's"), (GO, WEFT, "")] {
        let running = start(&host, daemon, "/run/cni/dhcp.sock");
        let config =
            json!({ "cniVersion": "1.0.0", "name": "net", "type": "bridge", "ipam": { "type": "dhcp" } });
        let refused = host.attachment(plugin, &pod, "eth0").add(&config);
        assert!(refused.code == Some(1) && refused.stdout.contains(word), "{refused}");
        running.kill();
        host.run(["rm", "-f", "/run/cni/dhcp.sock"]);
    }
}
