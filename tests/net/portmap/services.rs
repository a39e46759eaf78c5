//! Ports of the host beside Services of kube-proxy: the Service comes first (CVE-2019-9946).
//!
//! ```text
//!   kube-ipvs0 10.96.0.1, fd00:96::1: Service with a server on the host        pod a: hostPort 443
//! ```

use rig::traffic::{Transport, UPLINK, outside, reached};
use serde_json::json;
use testkit::{Feature, Host, Netns, host};

use super::BACKENDS;
use super::chain::{Chain, mapping};

/// Adds the chains of kube-proxy as they are in IPVS mode: packets of Services end there.
fn kube_proxy(host: &Host) {
    for (program, service) in [("iptables", "10.96.0.1"), ("ip6tables", "fd00:96::1")] {
        host.run([program, "-t", "nat", "-N", "KUBE-SERVICES"]);
        host.run([
            program,
            "-t",
            "nat",
            "-A",
            "KUBE-SERVICES",
            "-d",
            service,
            "-p",
            "tcp",
            "--dport",
            "443",
            "-j",
            "ACCEPT",
        ]);
        for chain in ["PREROUTING", "OUTPUT"] {
            host.run([program, "-t", "nat", "-I", chain, "-j", "KUBE-SERVICES"]);
        }
    }
}

fn add_service_link(host: &Host, name: &str) {
    host.run(["ip", "link", "add", name, "type", "dummy"]);
    host.run(["ip", "address", "add", "10.96.0.1/32", "dev", name]);
    host.run(["ip", "address", "add", "fd00:96::1/128", "dev", name, "nodad"]);
}

#[test]
fn portmap_never_takes_over_the_address_of_a_service() {
    for link in ["kube-ipvs0", "kube-dummy-if"] {
        let host = host!(
            Feature::Bridge,
            Feature::Dummy,
            Feature::NftFib,
            Feature::NftMasquerade,
            Feature::IptablesNft
        );
        rig::install(&host);
        let outside = outside(&host);
        add_service_link(&host, link);
        host.run(["ip", "link", "set", link, "up"]);
        kube_proxy(&host);
        let host_end: &Netns = &host;
        for keys in [json!({}), json!({ "backend": BACKENDS[0] }), json!({ "backend": BACKENDS[1] })] {
            let (a, b) = (Chain::new(&host, "a"), Chain::new(&host, "b"));
            let mut of_service = mapping(444, 80, "tcp");
            of_service["hostIP"] = json!("10.96.0.1");
            let config = a.map(&keys, &json!([mapping(443, 80, "tcp"), of_service]));
            a.plugin.check(&config).success();
            for (six, service) in [(false, "10.96.0.1:443"), (true, "[fd00:96::1]:443")] {
                for client in [&*b.pod, host_end] {
                    let case = format!("{link} {keys} {service} from {}", client.name());
                    let hijacked = reached(Transport::Tcp, client, service, &a.pod, &a.at(six, 80));
                    assert_eq!(hijacked, None, "{case}: the pod answers for the Service");
                    assert!(reached(Transport::Tcp, client, service, host_end, service).is_some(), "{case}");
                }
            }
            if keys["backend"] != "iptables" {
                let hijacked = reached(Transport::Tcp, &b.pod, "10.96.0.1:444", &a.pod, &a.at(false, 80));
                assert_eq!(hijacked, None, "{link} {keys}: a hostIP that is the address of a Service");
            }
            // The host's own addresses lead to the pod.
            for (six, to) in [(false, format!("{}:443", UPLINK[0])), (true, format!("[{}]:443", UPLINK[1]))] {
                assert!(
                    reached(Transport::Tcp, &outside, &to, &a.pod, &a.at(six, 80)).is_some(),
                    "{keys}: {to}"
                );
            }
            assert!(
                reached(Transport::Tcp, host_end, "127.0.0.1:443", &a.pod, &a.at(false, 80)).is_some(),
                "{keys}"
            );
            a.plugin.del(&config).success();
            a.end();
            b.end();
        }
    }
}

/// A node port of a Service is translated, whichever chain is created first.
#[test]
fn portmap_leaves_node_ports_of_services_alone() {
    let host = host!(Feature::Bridge, Feature::NftFib, Feature::NftMasquerade, Feature::IptablesNft);
    rig::install(&host);
    let outside = outside(&host);
    let to = format!("{}:8080", UPLINK[0]);
    for backend in BACKENDS {
        let (a, b) = (Chain::new(&host, "a"), Chain::new(&host, "b"));
        let config = a.map(&json!({ "backend": backend }), &json!([mapping(8080, 80, "tcp")]));
        assert!(reached(Transport::Tcp, &outside, &to, &a.pod, &a.at(false, 80)).is_some(), "{backend}");
        let rule =
            format!("-t nat -I PREROUTING -p tcp --dport 8080 -j DNAT --to-destination {}", b.at(false, 80));
        host.run(["iptables"].into_iter().chain(rule.split(' ')));
        assert!(
            reached(Transport::Tcp, &outside, &to, &b.pod, &b.at(false, 80)).is_some(),
            "{backend}: the Service"
        );
        // The table is created after the rule.
        a.plugin.del(&config).success();
        host.attempt(["nft", "delete", "table", "inet", "weft_portmap"]);
        a.map(&json!({ "backend": backend }), &json!([mapping(8080, 80, "tcp")]));
        assert!(
            reached(Transport::Tcp, &outside, &to, &b.pod, &b.at(false, 80)).is_some(),
            "{backend}: created later"
        );
        a.plugin.del(&config).success();
        host.run(["iptables"].into_iter().chain(rule.replace("-I", "-D").split(' ')));
        a.end();
        b.end();
    }
}
